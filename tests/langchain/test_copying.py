"""Conversations between a session and other histories: imported, exported, mirrored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)

from ctxfold import AgentContext
from ctxfold.errors import CtxWarning
from langchain_ctx import CtxChatMessageHistory
from langchain_ctx.history import aexport_history, aimport_history, export_history, import_history
from tests.langchain.test_history import contents, turn


class FileHistory(BaseChatMessageHistory):
    """As many packages write one: the whole list as JSON in a file, ids kept or not."""

    def __init__(self, path: Path, *, ids: bool = True) -> None:
        self._path = path
        self._ids = ids

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        return messages_from_dict(json.loads(self._path.read_text())) if self._path.exists() else []

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        new = messages if self._ids else [m.model_copy(update={"id": None}) for m in messages]
        self._path.write_text(json.dumps(messages_to_dict([*self.messages, *new])))

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


CALL = {"name": "look", "args": {"key": 1}, "id": "c1"}
TALK: list[BaseMessage] = [
    HumanMessage("one"),
    AIMessage("", tool_calls=[CALL], additional_kwargs={"reasoning_content": "Hm."}),
    ToolMessage("found", tool_call_id="c1"),
    AIMessage("1"),
    HumanMessage("one"),
    AIMessage("1"),
]


@pytest.mark.parametrize("ids", [True, False])
async def test_there_and_back(ids: bool, tmp_path: Path) -> None:
    """Each message once, however often it is copied; the same words said twice are two messages."""
    old, new = FileHistory(tmp_path / "old.json", ids=ids), FileHistory(tmp_path / "new.json", ids=ids)
    with AgentContext(context_window=8_000) as context:
        assert import_history(old, context) == 0
        old.add_messages(TALK)
        assert import_history(old, context) == 6
        assert import_history(old, context) == await aimport_history(old, context) == 0
        old.add_messages([HumanMessage("more"), AIMessage("yes")])
        assert await aimport_history(old, context) == 2
        assert [m.text for m in context.messages()] == contents(old.messages)
        assert export_history(context, new) == 8
        assert export_history(context, new) == await aexport_history(context, new) == 0
        assert contents(new.messages) == contents(old.messages)
        assert new.messages[1].additional_kwargs["reasoning_content"] == "Hm."
        assert new.messages[1].tool_calls[0]["args"] == {"key": 1}  # type: ignore[attr-defined]


def test_a_long_history_is_imported_into_a_small_window() -> None:
    old = InMemoryChatMessageHistory()
    for number in range(60):
        old.add_messages(turn(number))
    with AgentContext(context_window=1_000) as context:
        assert import_history(old, context) == 120
        assert context.usage().compactions > 0
        assert context.window().view.tokens < 1_000
        assert export_history(context, InMemoryChatMessageHistory()) == 120  # as it was said, summaries aside


@pytest.mark.parametrize("ids", [True, False])
async def test_a_mirror_gets_every_message(ids: bool, tmp_path: Path) -> None:
    def other(session: str, owner: str) -> FileHistory:
        return FileHistory(tmp_path / f"{owner}-{session}.json", ids=ids)

    with CtxChatMessageHistory.factory(context_window=1_000, mirror=other) as factory:
        for number in range(20):
            if number % 2:
                factory("s", "ann").add_messages(turn(number))
            else:
                await factory("s", "ann").aadd_messages(turn(number))
        assert factory("s", "ann").context.usage().compactions > 0
        said = [m.text for m in factory("s", "ann").context.messages()]
        assert contents(other("s", "ann").messages) == said
        assert len(said) == 40
        assert other("s", "default").messages == []


async def test_a_mirror_that_fails_is_told_and_catches_up(tmp_path: Path) -> None:
    mirror = FileHistory(tmp_path / "no-such-folder" / "s.json")
    with CtxChatMessageHistory("s", context_window=8_000, mirror=mirror) as history:
        with pytest.warns(CtxWarning, match=r"'s' did not take 2 message.*FileNotFoundError.*export_history"):
            history.add_messages(turn(1))
        with pytest.warns(CtxWarning, match="did not take"):
            await history.aadd_messages(turn(2))
        assert len(history.messages) == 4
        (tmp_path / "no-such-folder").mkdir()
        assert export_history(history.context, mirror) == 4
        history.add_messages(turn(3))
        assert contents(mirror.messages) == contents(history.messages)
