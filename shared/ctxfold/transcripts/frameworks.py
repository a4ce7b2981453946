"""Reads what frameworks keep: LangChain's and Vercel's messages, LangSmith's runs, LlamaIndex's chat stores, OpenTelemetry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from ctxfold.errors import ImportLineError, MessageError
from ctxfold.transcripts.chat_messages import add_message, join_conversation, join_history
from ctxfold.transcripts.conversation import (
    Conversation,
    ConversationBuilder,
    Numbered,
    Row,
    check_fields,
    json_text,
    need,
    numbered,
    rows,
    seconds,
    worded,
)
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, is_a, read_json

_HELD = "messages store system tools functions options format response_format metadata title template class_name"


def message_lists(form: str, values: Numbered) -> Iterator[Conversation]:
    """Reads objects with a list of messages, and chat stores with one for each key; bare messages are one conversation.

    Pieces of a streamed reply, as Ollama sends them, are one message, behind the request before them.
    """
    builder, streamed = ConversationBuilder(form, 1), list[Row]()
    for number, value in values:
        with numbered(number, form):
            check_fields(value, _HELD, "a conversation") if value.keys() & {"messages", "store"} else None
            lists = [(value.get("id") or value.get("thread_id"), value["messages"])] if "messages" in value else []
            lists += need(value, "store", dict, "a chat store").items() if "store" in value else []
            for name, messages in lists:
                if builder.rows:
                    yield builder.conversation()
                builder = ConversationBuilder(form, number, name, value.get("title") or ("store" in value and name))
                if value.get("system"):
                    add_message(builder, {"role": "system", "content": value["system"]})
                for message in need({"messages": messages}, "messages", list, "a conversation"):
                    add_message(builder, message)
            if "done" in value:
                streamed.append(value)
                if value["done"]:
                    add_message(builder, _whole(streamed), at=streamed[0].get("created_at"))
                    streamed = []
            elif not lists:
                add_message(builder, value)
    if streamed:
        raise ImportLineError(
            builder.number, f"it resembles {form}, but its reply is cut off: none of its pieces is done"
        )
    yield builder.conversation()


def _whole(pieces: Iterable[Row]) -> Row:
    whole: dict[str, Any] = {}
    for piece in pieces:
        message = need(piece, "message", dict, "a piece of a reply")
        need(message, "content", str, "a piece of a reply")
        for key, value in message.items():
            whole[key] = value if key == "role" or key not in whole else whole[key] + value
    return whole


# LangSmith and OpenTelemetry: each run and each span repeats the history


_THREADS = ("session_id", "thread_id", "conversation_id")
_RUN = "inputs outputs extra serialized events error tags name feedback_stats inputs_preview outputs_preview manifest"


def langsmith(values: Numbered) -> Iterator[Conversation]:
    """Reads runs: a conversation for each thread, or each trace without one, of its root's messages, or else of its models'."""
    traces: dict[str, list[tuple[int, Row]]] = {}
    for number, run in values:
        with numbered(number, "langsmith"):
            check_fields(run, _RUN, "a run")
            need(run, "run_type", str, "a run")
            traces.setdefault(as_text(run.get("trace_id") or run.get("id")), []).append((number, run))
    threads: dict[str, ConversationBuilder] = {}
    for trace, runs in sorted(
        traces.items(), key=lambda item: min(as_text(run.get("start_time")) for _, run in item[1])
    ):
        runs.sort(key=lambda pair: as_text(pair[1].get("start_time")))
        roots = [_of_run(*pair) for pair in runs if not pair[1].get("parent_run_id")]
        models = ConversationBuilder("langsmith", runs[0][0])
        for pair in runs:
            if pair[1].get("run_type") in ("llm", "chat_model"):
                join_history(models, _of_run(*pair))
        said = sum(len(each.rows) for each in roots)
        metadata = as_dict(as_dict(runs[0][1].get("extra")).get("metadata"))
        thread = next((as_text(metadata[key]) for key in _THREADS if metadata.get(key)), "")
        # a root may hold no more than a text and an answer
        for each in [models] if said <= 2 and len(models.rows) > said else roots:
            each.title = as_text(runs[0][1].get("name"))
            join_conversation(threads, thread, trace, each)
    for builder in threads.values():
        yield builder.conversation()


def _of_run(number: int, run: Row) -> ConversationBuilder:
    """Returns the messages that went into a run, and those that came out of it."""
    with numbered(number, "langsmith"):
        asked, told = ConversationBuilder("langsmith", number), ConversationBuilder("langsmith", number)
        for builder, side, time in ((asked, "inputs", "start_time"), (told, "outputs", "end_time")):
            found = _messages_in(as_dict(run.get(side)), "user" if side == "inputs" else "assistant")
            if not found and re.search(r'"(?:role|lc)": ', json_text(run.get(side))):
                raise MessageError(f"its {side} hold messages in a field that is not known: {', '.join(run[side])}")
            builder.left_out["inputs and outputs of traces without messages"] += bool(run.get(side)) and not found
            for message in found:
                add_message(builder, message, at=run.get(time))
        join_history(asked, told)
        return asked


def _messages_in(held: Row, role: str) -> list[Any]:
    """Returns the messages of a run's inputs or outputs; the only text, where there are none, is a message too."""
    messages = as_list(held.get("messages"))
    if len(messages) == 1 and is_a(messages[0], list) and not isinstance((as_list(messages[0]) or [None])[0], str):
        messages = as_list(messages[0])  # a list of lists
    if messages or "role" in held:
        return messages or [held]
    generations = as_list(held.get("generations"))
    first = as_dicts(generations[0] if generations and is_a(generations[0], list) else generations)
    first += as_dicts(held.get("choices"))
    if first:
        return [first[0].get("message") or {"role": role, "content": need(first[0], "text", str, "a generation")}]
    said = [text for key in ("message", "input", "question", "output", "answer", "text") if (text := held.get(key))]
    return (
        [said[0] if is_a(said[0], dict) else {"role": role, "content": said[0]}]
        if said and not is_a(said[0], list)
        else []
    )


def opentelemetry(values: Numbered) -> Iterator[Conversation]:
    """Reads spans and events of OTLP files and of the console: a conversation for each `gen_ai.conversation.id`, or each trace."""
    spans: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for number, value in values:
        with numbered(number, "opentelemetry"):
            for record in _records(value):
                spans.setdefault((record["trace"], record["span"]), []).append((number, record))
    found: dict[str, ConversationBuilder] = {}
    for (trace, _), records in sorted(spans.items(), key=lambda item: min(record["at"] for _, record in item[1])):
        each, name = ConversationBuilder("opentelemetry", records[0][0]), ""
        for number, record in records:
            with numbered(number, "opentelemetry"):
                told = ConversationBuilder("opentelemetry", number)
                for message in _told(record):
                    add_message(told, message, at=record["at"])
                name = as_text(record["attributes"].get("gen_ai.conversation.id")) or name
                each.rows += told.rows if "gen_ai.input.messages" not in record["attributes"] else []
                join_history(each, told)
        join_conversation(found, name, trace, each)
    for builder in found.values():
        yield builder.conversation()


_SPAN = "attributes body context events links name resource severityText severity_text status schema_url instrumentation_scope"


def _records(value: Row) -> Iterator[Row]:
    """Yields the spans, the logs, and the events of spans, of an OTLP export or as the console shows one."""
    held = [*as_dicts(value.get("resourceSpans")), *as_dicts(value.get("resourceLogs"))]
    scopes = [scope for each in held for scope in (*as_dicts(each.get("scopeSpans")), *as_dicts(each.get("scopeLogs")))]
    spans = [span for each in scopes for span in (*as_dicts(each.get("spans")), *as_dicts(each.get("logRecords")))]
    for span in spans if held else [value]:
        context = as_dict(span.get("context")) or span
        trace, identity = (
            as_text(context.get(a) or context.get(b)) for a, b in (("traceId", "trace_id"), ("spanId", "span_id"))
        )
        for event in (span, *as_dicts(span.get("events"))):
            check_fields(event, _SPAN, "a span or an event")
            times = (event.get(key) for key in ("startTimeUnixNano", "timeUnixNano", "start_time", "timestamp"))
            at = next((found for time in times if (found := seconds(time)) is not None), 0.0)
            attributes = _plain(event.get("attributes") or {})
            name = (
                event.get("eventName") or event.get("event_name") or attributes.get("event.name") or event.get("name")
            )
            body = _plain(event.get("body"))
            yield {"trace": trace, "span": identity, "at": at, "name": name, "attributes": attributes, "body": body}


def _plain(value: object) -> Any:
    """Returns a value of OTLP as plain JSON."""
    if is_a(value, list):
        pairs = as_dicts(value)
        return (
            {pair["key"]: _plain(need(pair, "value", object, "an attribute")) for pair in pairs}
            if all("key" in pair for pair in pairs)
            else value
        )
    row = as_dict(value)
    kind = next((key for key in row if key.endswith("Value") and len(row) == 1), "")
    if kind in ("arrayValue", "kvlistValue"):
        held = as_list(as_dict(row[kind]).get("values"))
        return [_plain(item) for item in held] if kind == "arrayValue" else _plain(held)
    return row[kind] if kind else value


_MESSAGES = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages")


def _told(record: Row) -> Iterator[Row]:
    """Yields the messages in the attributes of a span or an event, or the one that an event of the older conventions is."""
    held = {**record["attributes"], **as_dict(record["body"])}
    lists = {key: _read(value) for key, value in held.items() if key != "content"}
    for key, value in lists.items():
        if key not in _MESSAGES and any("role" in row for row in as_dicts(value)):
            raise MessageError(f"the attribute {key!r} holds messages, and is not known: {', '.join(_MESSAGES)} are")
    if lists.get(_MESSAGES[0]):
        yield {"role": "system", "parts": lists[_MESSAGES[0]]}
    for key in _MESSAGES[1:]:
        yield from rows(lists.get(key), f"the attribute {key!r}")
    if not record["name"] and worded(held.get("content") or held.get("message"), "content"):
        raise MessageError("an event with a message has no name")
    kind = re.fullmatch(r"gen_ai\.(?:(choice)|(\w+)\.message)", as_text(record["name"]))
    if kind is not None:
        row = as_dict(lists.get("message")) if kind[1] else {**held, "tool_calls": lists.get("tool_calls")}
        told = {key: value for key, value in row.items() if not key.startswith("gen_ai")}
        yield {"role": kind[2] or "assistant", "tool_call_id": row.get("id"), **told}


def _read(value: object) -> Any:
    """Returns the JSON that a text holds, where it is a list or an object; else the value."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return read_json(value)
    return value
