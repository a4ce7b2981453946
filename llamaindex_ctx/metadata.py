"""Names the metadata that is kept on LlamaIndex messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from ctxfold.messages import ToolCallPart
from ctxfold.validation import as_dict, as_dicts

if TYPE_CHECKING:
    from _collections_abc import dict_items

ID_KEY: Final = "ctxfold_id"
KIND_KEY: Final = "ctxfold_kind"
NEWEST_KEY: Final = "ctxfold_newest"  # on the question with which a window ends
PRESERVE_KEY: Final = "ctxfold_preserve_reasoning"
REPLY_KEY: Final = "ctxfold_reply"  # what a provider wants back of its reply, where the blocks have no place for it
NAMESPACE: Final = "llama_index"
REASONING_KEY: Final = "reasoning_content"  # where OpenAI-like integrations look for it
Json: TypeAlias = dict[str, Any]


class Noted(dict[str, Any]):
    """`additional_kwargs` with marks beside them, which are read like entries and serialised with them, yet are none.

    LlamaIndex writes all entries into the prompts of its condensing engines and of completion models, compares messages by
    them, and several LLM packages send them along.
    """

    __slots__ = ("_marks",)

    def __init__(self, kwargs: Mapping[str, Any], marks: Mapping[str, Any]) -> None:
        if kwargs:
            self.update(kwargs)
        self._marks = marks

    @property
    def marks(self) -> Json:
        return dict(self._marks)

    def __missing__(self, key: str) -> Any:
        return self._marks[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._marks

    def get(self, key: str, default: Any = None, /) -> Any:
        return super().get(key, self._marks.get(key, default))

    def items(self) -> dict_items[str, Any]:
        """Returns the marks too: serialisers use this method, while copying or printing a dict does not."""
        return {**self._marks, **self}.items()

    def __reduce__(self) -> tuple[Any, ...]:
        return Noted, (dict(self), self._marks)


def mark(message: ChatMessage, **marks: str) -> None:
    """Adds marks to those of the message."""
    extras: Json = message.additional_kwargs
    known = extras.marks if isinstance(extras, Noted) else {}
    message.additional_kwargs = Noted(extras, known | marks)


def is_section(message: ChatMessage) -> bool:
    """Returns True if an engine added the message to one request; such a message is never stored."""
    return message.additional_kwargs.get(KIND_KEY) == "section"


def is_summary(message: ChatMessage) -> bool:
    """Returns True if the message is a summary that an engine wrote."""
    return message.additional_kwargs.get(KIND_KEY) == "summary"


def section(text: str) -> ChatMessage:
    """Returns a user message for one request only, marked so that it is never stored."""
    message = ChatMessage(role=MessageRole.USER, content=text)
    mark(message, **{KIND_KEY: "section"})
    return message


def without_marks(message: ChatMessage, *, keep_id: bool = False) -> ChatMessage:
    """Returns the message without what was noted on it here, except what its author said of it, and its provider beside it."""
    extras: Json = message.additional_kwargs
    kwargs = {k: v for k, v in extras.items() if k not in (ID_KEY, KIND_KEY, NEWEST_KEY, PRESERVE_KEY, REPLY_KEY)}
    marks = {k: extras[k] for k in (PRESERVE_KEY, REPLY_KEY, *((ID_KEY,) if keep_id else ())) if k in extras}
    return message.model_copy(update={"additional_kwargs": Noted(kwargs, marks) if marks else kwargs})


def calls_in_kwargs(value: Any) -> Iterable[ToolCallPart]:
    """Returns the tool calls in `additional_kwargs`: in the shape of OpenAI, Anthropic, or LlamaIndex's own selection."""
    for call in as_dicts(value):
        source = as_dict(call["function"]) if isinstance(call.get("function"), dict) else call
        name = _first(source, "name", "tool_name")
        if isinstance(name, str):
            arguments = _first(source, "arguments", "input", "tool_kwargs")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            yield ToolCallPart(str(_first(call, "id", "tool_id") or ""), name, text or "{}")


def with_call_ids(calls: Sequence[object], ids: Sequence[str]) -> list[object]:
    """Returns the tool calls in `additional_kwargs` under these ids; unchanged where they are not the same calls."""
    if len(calls) != len(ids) or len(list(calls_in_kwargs(calls))) != len(ids):
        return list(calls)
    named = zip(cast("Sequence[dict[str, Any]]", calls), ids, strict=True)
    return [{**call, "tool_id" if "tool_id" in call else "id": call_id} for call, call_id in named]


def _first(source: Mapping[str, Any], *names: str) -> Any:
    return next((source[name] for name in names if name in source), None)
