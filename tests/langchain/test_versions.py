"""Versions tell an edited message of a list from the one that the session has, with the cache and without."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langchain_ctx.message_lists import LangChainList, VersionCache


def called(**fields: object) -> AIMessage:
    return AIMessage("", id="m", tool_calls=[{"name": "look", "args": {"page": 1}, "id": "c", **fields}])  # type: ignore[list-item]


DIFFERENT: list[tuple[BaseMessage, BaseMessage]] = [
    (HumanMessage("one", id="m"), HumanMessage("two", id="m")),
    (HumanMessage("one", id="m"), AIMessage("one", id="m")),
    (called(), called(args={"page": 2})),
    (called(), called(name="read")),
    (called(), called(id="d")),
    (called(), AIMessage("", id="m")),
    (AIMessage("", id="m", invalid_tool_calls=[{"name": "look", "args": "{", "id": "c", "error": None}]), called()),  # type: ignore[typeddict-item]
    (ToolMessage("found", tool_call_id="c", id="m"), ToolMessage("found", tool_call_id="d", id="m")),
]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_an_edit_is_another_version(first: BaseMessage, second: BaseMessage, *, cached: bool) -> None:
    known = VersionCache() if cached else None
    versions = [LangChainList([m], known=known).versions([0])[0] for m in (first, second, first.model_copy(deep=True))]
    assert versions[0] == versions[2] != versions[1]
