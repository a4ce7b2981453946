"""Defines framework-neutral tools with which an agent reads, searches, pins and compacts its own history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import Signature, signature
from typing import Any, TypeVar

from ctxfold.adapters.calls import Invoke, acall, call
from ctxfold.effects import Flow, flow_of
from ctxfold.engine.archive import Hit
from ctxfold.engine.fit import newest_question
from ctxfold.errors import ConfigError, CtxError
from ctxfold.history.prompt_safety import as_quoted_data
from ctxfold.history.view import View
from ctxfold.messages import Message, ToolSpec
from ctxfold.protocols import TokenCounter
from ctxfold.retrieval.originals import (
    readable_text,
)
from ctxfold.session.context import AgentContext
from ctxfold.session.parts import SessionArchive, SessionHandle
from ctxfold.validation import is_a, kind_of

T = TypeVar("T")

PAGE_SHARE = 0.5  # of the largest tool output that is shown whole: what is read back must not be cut again
LEAST_PAGE_CHARS = 200
TYPES: Mapping[str, type] = {"string": str, "integer": int}  # by the names of JSON schema
REFERENCE = {"type": "string", "description": "the message's reference, such as #17, or its id"}


def _schema(**properties: dict[str, Any]) -> dict[str, Any]:
    required = [name for name, value in properties.items() if "default" not in value]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


HISTORY_TOOLS = (
    ToolSpec(
        "read_message",
        "Read an earlier message of this conversation in full, also one that was summarised or shown as an excerpt. Long "
        "ones come in pieces: ask again with the offset that the answer names.",
        _schema(reference=REFERENCE, offset={"type": "integer", "minimum": 0, "default": 0}),
    ),
    ToolSpec(
        "search_history",
        "Search the whole conversation, summarised messages and full tool outputs included. Answers with references that "
        "read_message takes.",
        _schema(query={"type": "string", "description": "the words to look for"}),
    ),
    ToolSpec(
        "pin_message",
        "Keep a message word for word from now on, whatever is summarised. The room for pins is small: pin what must not "
        "be lost or changed.",
        _schema(reference=REFERENCE),
    ),
    ToolSpec("unpin_message", "End the pin of a message.", _schema(reference=REFERENCE)),
    ToolSpec(
        "compact_history",
        "Summarise the earlier conversation now, to make room. Once per turn; everything stays readable by reference.",
        _schema(),
    ),
)


@dataclass(frozen=True, slots=True)
class HistoryTool:
    """A tool. `call` and `acall` take the arguments described by `parameters`, a JSON schema, and return text, errors included.

    A model may give others than those: it is told so in the text.
    """

    name: str
    description: str
    parameters: dict[str, Any] = field(repr=False)
    call: Callable[..., str] = field(repr=False)
    acall: Callable[..., Awaitable[str]] = field(repr=False)

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.parameters)


def history_tools(context: AgentContext) -> tuple[HistoryTool, ...]:
    """Returns the tools read_message, search_history, pin_message, unpin_message and compact_history for one session.

    These tools are the only way for a model to pin messages; no text of a message or a tool output can do so. Messages that are
    for the user only cannot be read. `compact_history` works once per turn.
    """
    if not is_a(context, AgentContext):
        raise ConfigError(
            f"{kind_of(context)} is no session: give an AgentContext, as `.context` of a memory or history is one"
        )
    flows = _SessionTools(context)

    def run(flow: Flow[str]) -> str:
        return context.handle.run_flow(lambda _: flow)

    async def arun(flow: Flow[str]) -> str:
        return await context.handle.arun_flow(lambda _: flow)

    return tuple(
        HistoryTool(s.name, s.description, dict(s.parameters), *_forms(s.parameters, getattr(flows, s.name), run, arun))
        for s in HISTORY_TOOLS
    )


def _forms(
    parameters: Mapping[str, Any],
    flow: Callable[..., Flow[T]],
    run: Callable[[Flow[T]], T],
    arun: Callable[[Flow[T]], Awaitable[T]],
) -> tuple[Callable[..., T | str], Callable[..., Awaitable[T | str]]]:
    """Returns both forms of a tool, which answer wrong arguments with an error that the model reads."""
    own = signature(flow)

    @wraps(flow)
    def checked(*args: Any, **kwargs: Any) -> T | str:
        return _wrong(parameters, own, args, kwargs) or run(flow(*args, **kwargs))

    @wraps(flow)
    async def achecked(*args: Any, **kwargs: Any) -> T | str:
        return _wrong(parameters, own, args, kwargs) or await arun(flow(*args, **kwargs))

    return checked, achecked


def _wrong(
    parameters: Mapping[str, Any], own: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Returns the error for arguments that are unknown, missing or of another type than the parameters have."""
    properties: Mapping[str, Mapping[str, Any]] = parameters["properties"]
    takes = ", ".join(f"{name} ({p['type']})" for name, p in properties.items()) or "none"
    try:
        given = own.bind(*args, **kwargs).arguments
    except TypeError as error:
        return f"Error: {error}. The arguments are: {takes}."
    wrong = next((name for name, value in given.items() if not _fits(value, properties[name])), None)
    return None if wrong is None else f"Error: {wrong} is {kind_of(given[wrong])}. The arguments are: {takes}."


def _fits(value: object, rules: Mapping[str, Any]) -> bool:
    """Returns True for a value of the parameter's type; 200.0 is a whole number in JSON, and null an argument left out."""
    if value is None:
        return "default" in rules
    plain = int(value) if isinstance(value, float) and value.is_integer() else value
    return is_a(plain, TYPES[rules["type"]])


def reading_media(
    context: AgentContext, tool: HistoryTool, add_media: Callable[[str, Message], T]
) -> tuple[Callable[..., str | T], Callable[..., Awaitable[str | T]]]:
    """Returns both forms of `read_message` with the message's media beside the first page of its text.

    `add_media` returns the text and the media of a message in the framework's own blocks.
    """

    def read(reference: str, offset: float | None = 0) -> Flow[str | T]:
        text: str = yield from Invoke(tool.call, tool.acall, reference=reference, offset=offset)
        try:
            get = Invoke(context.archive.get, context.archive.aget, reference, newest=True)
            return add_media(text, (yield from get)) if not offset else text
        except CtxError:
            return text  # it says what is wrong with the reference

    return _forms(tool.parameters, read, call, acall)


class _SessionTools:
    """The tools on one session, as flows. A failure becomes text that a model can read."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    def read_message(self, reference: str, offset: float | None = 0) -> Flow[str]:
        return _or_error(self._page(reference, int(offset or 0)))

    def search_history(self, query: str) -> Flow[str]:
        return _or_error(self._search(query))

    def pin_message(self, reference: str) -> Flow[str]:
        return _or_error(self._change(flow_of(AgentContext.pin), reference, "Pinned"))

    def unpin_message(self, reference: str) -> Flow[str]:
        return _or_error(self._change(flow_of(AgentContext.unpin), reference, "Unpinned"))

    def compact_history(self) -> Flow[str]:
        if (yield from flow_of(SessionHandle.compacted_in_turn)(self._context.handle)):
            return TWICE
        return (yield from _or_error(self._compact()))

    def _search(self, query: str) -> Flow[str]:
        hits = yield from flow_of(AgentContext.search)(self._context, query)
        return _listed(hits, (yield from flow_of(AgentContext.view)(self._context)))

    def _change(self, change: Callable[[AgentContext, str], Flow[None]], reference: str, done: str) -> Flow[str]:
        message = yield from flow_of(SessionArchive.get)(self._context.archive, reference)
        yield from change(self._context, message.id)
        return f"{done} {reference}."

    def _compact(self) -> Flow[str]:
        outcome = yield from flow_of(AgentContext.compact)(self._context)
        return _done(outcome.event)

    def _page(self, reference: str, offset: int) -> Flow[str]:
        message = yield from flow_of(SessionArchive.get)(self._context.archive, reference, newest=True)
        if message.visibility == "user":
            return f"Error: message {reference} is for the user only."
        text = readable_text(message)
        rules = self._context.handle.engine.rules  # of the engine: no reading of the log for it
        start = max(0, offset)
        limit_tokens = int(PAGE_SHARE * rules.tool_result_ratio * rules.budget_tokens)
        end = start + _page_chars(text[start:], limit_tokens, self._context.handle.counter)
        head = f"Message {reference} ({message.role}), characters {start} to {end} of {len(text)}"
        more = f"; go on with offset {end}" if end < len(text) else ""
        return f"{head}{more}:\n{text[start:end]}"


def _or_error(work: Flow[str]) -> Flow[str]:
    """Returns the text of the work, or that of its error."""
    try:
        return (yield from work)
    except CtxError as error:
        return f"Error: {error}"


def _page_chars(text: str, limit_tokens: int, counter: TokenCounter) -> int:
    """Returns how many characters of the text fit the limit of tokens, in any script."""
    size = min(len(text), 4 * limit_tokens)
    while size > LEAST_PAGE_CHARS and (tokens := counter.count_text(text[:size])) > limit_tokens:
        size = min(size - 1, size * limit_tokens // tokens)
    return min(len(text), max(size, LEAST_PAGE_CHARS))


TWICE = "Nothing was compacted: it was done in this turn already."


def _listed(hits: tuple[Hit, ...], view: View) -> str:
    """Returns a line for each hit, except for the question under way, which holds all the words itself."""
    question = newest_question(view)
    lines = [
        f"{h.reference} {h.role}: {as_quoted_data(h.excerpt)}"
        for h in hits
        if question is None or h.message_id != question.id
    ]
    return "\n".join(lines) or "Nothing was found."


def _done(event: Any) -> str:
    return (
        f"Compacted: {event.tokens_before} tokens before, {event.tokens_after} after. Earlier messages stay readable."
    )
