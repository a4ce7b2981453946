"""Defines read_transcripts, which reads the conversations that other programs keep, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from ctxfold.errors import ConfigError, ImportLineError
from ctxfold.transcripts.chat_exports import chatgpt, claude_ai
from ctxfold.transcripts.coding_agents import claude_code, codex, gemini_cli
from ctxfold.transcripts.conversation import Conversation, Numbered, Row, numbered, words
from ctxfold.transcripts.datasets import openai_batch, openai_finetuning, sharegpt
from ctxfold.transcripts.frameworks import langsmith, message_lists, opentelemetry
from ctxfold.transcripts.values import Place, file_values
from ctxfold.validation import as_dict, as_list, is_a, read_json

MESSAGES = "messages"
_MESSAGE = words("content ctxfold output parts role tool_calls")  # fields of a line that is a message
_LOOKED_AT = 200  # values of a file among which one has to show its format
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Format:
    """A format: all `required` fields are in one of its values, or one of `marks`; `usual` ones tell what a file resembles.

    It has a reader of each value, or of the whole file.
    """

    required: str
    usual: str
    each: Callable[[int, Row], Conversation] | None = None
    whole: Callable[[Numbered], Iterable[Conversation]] | None = None
    marks: str = ""

    def recognises(self, value: Row) -> bool:
        messages = value.get("messages")
        keys = value.keys() | as_dict(as_list(messages)[0] if messages and is_a(messages, list) else None).keys()
        return keys >= words(self.required) or not words(self.marks).isdisjoint(keys)

    def resembled(self, value: Row) -> int:
        return len(value.keys() & words(f"{self.required} {self.marks} {self.usual}"))


FORMATS: Mapping[str, Format] = {
    "chatgpt": Format("mapping", "title create_time current_node conversation_id", chatgpt),
    "claude-ai": Format("chat_messages", "uuid name created_at updated_at account", claude_ai),
    "codex": Format("timestamp type payload", "ordinal", whole=codex),
    "gemini-cli": Format(
        "sessionId projectHash", "messages startTime lastUpdated", whole=gemini_cli, marks="$set $rewindTo"
    ),
    "claude-code": Format("type sessionId", "uuid message timestamp", whole=claude_code, marks="parentUuid leafUuid"),
    "langsmith": Format("id run_type inputs", "name trace_id outputs start_time", whole=langsmith),
    "opentelemetry": Format(
        "attributes context", "name", whole=opentelemetry, marks="resourceSpans resourceLogs trace_id"
    ),
    "openai-batch": Format("custom_id", "response body method url", openai_batch),
    "sharegpt": Format("conversations", "system tools images", sharegpt),
    "llamaindex": Format(
        "role blocks", "class_name additional_kwargs", whole=partial(message_lists, "llamaindex"), marks="store"
    ),
    "langchain": Format("type data", "kwargs", whole=partial(message_lists, "langchain"), marks="lc"),
    "ollama": Format(
        "model messages", "content", whole=partial(message_lists, "ollama"), marks="done images tool_name thinking"
    ),
    "vercel": Format("id role parts", "metadata", whole=partial(message_lists, "vercel")),
    "openai-finetuning": Format("messages", "tools", openai_finetuning, marks="preferred_output"),
    "chat": Format("role content", "tool_calls", whole=partial(message_lists, "chat")),
}


def read_transcripts(
    path: str | os.PathLike[str],
    *,
    format: str = "auto",
    on_progress: Progress | None = None,
    on_refused: Callable[[ImportLineError], None] | None = None,
) -> Iterator[Conversation]:
    """Yields the conversations of a file, or of a zip archive with conversations.json, in the memory of the largest of them.

    `format` is one of `FORMATS`; "auto" recognises it. `on_progress` is called with the bytes that were read, and with all.
    Raises ImportLineError for a damaged or unknown line or conversation, by its number, with the format that it resembles; with
    `on_refused`, a conversation that cannot be read is given there and left out.
    """
    chosen = transcript_format(path) if format == "auto" else format
    if chosen not in FORMATS:
        raise ConfigError(
            f"format is {chosen!r}: use auto, {', '.join(FORMATS)}; lines of messages go to files.import_jsonl"
        )
    form, values = FORMATS[chosen], _objects(path, chosen, on_progress)
    said = False
    for found in form.whole(values) if form.whole else ():
        said = said or bool(found.messages)
        yield found
    if form.whole and not said:
        raise ImportLineError(1, f"it resembles {chosen}, but the file holds no message")
    for number, value in values if form.each else ():
        try:
            with numbered(number, chosen):
                conversation = form.each(number, value) if form.each else None
        except ImportLineError as error:
            if on_refused is None:
                raise
            on_refused(error)
        else:
            if conversation is not None:
                yield conversation


def transcript_format(path: str | os.PathLike[str]) -> str:
    """Returns the format of a file, "messages" for lines that `files.import_jsonl` reads.

    Raises ImportLineError for one that is not known, with the format that it resembles most.
    """
    first: tuple[Place, Row] | None = None
    for place, value in islice(_values(path), _LOOKED_AT):
        row = as_dict(value)
        first = first or (place, row)
        found = next((name for name, form in FORMATS.items() if form.recognises(row)), "")
        if place.unit == "line" and row.keys() & _MESSAGE and (found in ("", "chat") or "ctxfold" in row):
            return MESSAGES
        if found:
            return found
    if first is None:
        raise ConfigError(f"{path} is empty: give the file that the other program wrote")
    place, row = first
    closest = max(FORMATS, key=lambda name: FORMATS[name].resembled(row))
    resembled = f"resembles {closest} most" if FORMATS[closest].resembled(row) else "resembles none"
    problem = f"its format is not known (it {resembled}; fields: {', '.join(row) or 'none'}): name it, one of "
    raise ImportLineError(place, problem + ", ".join(FORMATS), place.unit)


def _objects(path: str | os.PathLike[str], form: str, on_progress: Progress | None) -> Iterator[tuple[Place, Any]]:
    for place, value in _values(path, on_progress):
        if not is_a(value, dict):
            raise ImportLineError(place, f"it is no object, as each of {form} is: {str(value)[:60]!r}", place.unit)
        yield place, value


def _values(path: str | os.PathLike[str], on_progress: Progress | None = None) -> Iterator[tuple[Place, Any]]:
    """Yields the values of a file; of one that is JSON in a text, as older chat stores of LlamaIndex are, what the text holds."""
    for place, value in file_values(path, on_progress):
        with numbered(place, "JSON within a text"):
            held = read_json(value) if isinstance(value, str) else value
        yield place, held
