"""The built-in `lookup` model, which knows only what the request says, and the smallest values that satisfy a JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ctxfold.testing.lookup as lookup
from ctxfold.testing.script import Body, Reply, Scripted, ScriptedCall, api_error, as_list, as_mapping, as_mappings

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
Schema = Mapping[str, Any]

_SUMMARISE = re.compile(
    r"\bsummari[sz](?:e|ing)\b|\bextract(?:ing)?\b[^.?!\n]{0,80}\b(?:context|facts)\b|"
    r"\b(?:write|create|produce|give|make|update|extend|provide|merge|generate)\b[^.?!\n]{0,80}\b(?:summary|summaries)\b|"
    r"总结|摘要|概括",
    re.I,
)
_INSTRUCTION_CHARS = 600  # where an instruction to summarise must stand, from the beginning
_TAGGED = re.compile(
    r"<(\w*(?:transcript|conversation|messages|history|summary|dialog|text|document)\w*)>(.*?)</\1>",
    re.DOTALL | re.IGNORECASE,
)
_ABOVE = re.compile(r"\b(?:conversation|messages) above\b", re.I)
_QUOTED = r"the message of the \w+ that begins with (?P<quote>\"(?:[^\"\\]|\\.)*\")"
_NUMBERED = r"(?: and is followed by one that begins with \"(?:[^\"\\]|\\.)*\")?(?: \(number (?P<number>\d+) of)?"
_ENDS = tuple(
    re.compile(f"{words} {_QUOTED}{_NUMBERED}") for words in ("above from \\(and with\\)", "up to but without")
)
_CALL = re.compile(r"\bcall\s+`?([\w.-]+)`?\s+with\s+(?=\{)", re.I)
_DEFAULT_SUMMARY_TOKENS = 512
_SCHEMA_DEPTH = 32


def reply(body: Body, *, count: Callable[[str], int], room: int | None, thinking: bool) -> Reply:
    """Returns the answer of the model `lookup`; `room` is the number of tokens that the window leaves for it."""
    messages = messages_of(body)
    limit = body.get("max_tokens") or body.get("max_completion_tokens")
    forced = _forced(body)
    if isinstance(forced, str):
        return api_error(400, forced, param="tool_choice")
    if forced is None:
        forced = _asked_calls(messages, _tools(body))
    if forced:
        names = ", ".join(call.name for call in forced)
        return Scripted(tool_calls=forced, reasoning=f"The request asks for {names}." if thinking else "")
    form = as_mapping(body.get("response_format"))
    if form.get("type") in ("json_schema", "json_object"):
        shape = as_mapping(form.get("json_schema") if form["type"] == "json_schema" else None)
        text = json.dumps(minimal(as_mapping(shape.get("schema")) or {"type": "object"}), ensure_ascii=False)
        return Scripted(content=text, reasoning="The request asks for JSON of that shape." if thinking else "")
    text, why = _text(messages, limit=limit, room=room, count=count)
    cut = _fit(text, limit, count) if limit else text
    return Scripted(content=cut, reasoning=why if thinking else "", finish_reason="stop" if cut == text else "length")


def own_summary(body: Body, *, count: Callable[[str], int]) -> str:
    """Returns the summary that a service writes of a request's messages on its own side."""
    instruction: Message = {"role": "user", "content": "Summarise the conversation above."}
    transcript = to_summarise([*messages_of(body), instruction]) or []
    return lookup.summarise(transcript, limit_tokens=_DEFAULT_SUMMARY_TOKENS, count=count) or "Nothing to report."


def messages_of(body: Body) -> list[Message]:
    """Returns the request's messages."""
    return as_mappings(body.get("messages"))


def _text(
    messages: Sequence[Message], *, limit: int | None, room: int | None, count: Callable[[str], int]
) -> tuple[str, str]:
    """Returns the words of the reply, and how they were found."""
    transcript = to_summarise(messages)
    if transcript is not None:
        allowed = limit or min(_DEFAULT_SUMMARY_TOKENS, _DEFAULT_SUMMARY_TOKENS if room is None else room)
        text = lookup.summarise(transcript, limit_tokens=allowed, count=count)
        return text or "Nothing to report.", f"Kept what states facts, out of {len(transcript)} sentences."
    located = lookup.question_of(messages)
    if located is None:
        return _acknowledge(messages)
    index, question = located
    answer = lookup.answer(messages, without=index, question=question)
    if answer.sentence is None:
        return answer.text, f"Read {answer.read} sentences; none matches the question well enough."
    where = f"message {answer.sentence.message} ({answer.sentence.role})"
    return answer.text, f"Read {answer.read} sentences; the best match is in {where}, score {answer.score:.2f}."


def _acknowledge(messages: Sequence[Message]) -> tuple[str, str]:
    """Returns the reply to a statement, which it notes, or to a tool's result, which it reports."""
    last: Message = messages[-1] if messages else {}
    if last.get("role") == "tool":
        sentences = lookup.message_sentences(last)
        text = sentences[0] if sentences else "The tool returned nothing."
        return text, f"Message {len(messages) - 1} is a tool result."
    users = [lookup.content_text(one.get("content")) for one in messages if one.get("role") == "user"]
    noted = "好的。" if users and lookup.is_chinese(users[-1]) else "Noted."
    return noted, "The newest message asks nothing."


def to_summarise(messages: Sequence[Message]) -> list[str] | None:
    """Returns the sentences that a request asks to summarise; None when it does not ask for that.

    The instruction stands in a leading system message of a request without replies, or where the last user
    message begins.
    """
    if not messages or messages[-1].get("role") not in ("user", "system", "developer"):
        return None
    first, last = (lookup.content_text(messages[index].get("content")) for index in (0, -1))
    replies = any(one.get("role") in ("assistant", "tool") for one in messages)
    if (
        not replies
        and len(messages) > 1
        and messages[0].get("role") in ("system", "developer")
        and _SUMMARISE.search(first[:_INSTRUCTION_CHARS])
    ):
        texts = [lookup.content_text(one.get("content")) for one in messages[1:]]
        return [sentence for text in texts for sentence in _material(text)]
    # a question about a summary, such as `What did the summary say?`, is no order to write one
    asks = re.match(r"(?:what|who|when|where|which|why|how|did|does|is|was|are|were)\b", last.strip(), re.I)
    if not _SUMMARISE.search(last[:_INSTRUCTION_CHARS]) or (asks and "\n" not in last.strip()):
        return None
    if not _ABOVE.search(last) and (material := _material(last, instructed=True)):
        return material
    # the ends of the span by how its messages begin, where the instruction names them
    start, end = (_place(messages[:-1], match) if match else None for match in (s.search(last) for s in _ENDS))
    meant = (one for one in messages[:-1][start or 0 : end] if one.get("role") not in ("system", "developer"))
    return [sentence for one in meant for sentence in lookup.message_sentences(one)]


def _place(messages: Sequence[Message], match: re.Match[str]) -> int | None:
    """Returns the position of the message whose beginning an instruction quotes."""
    quoted = json.loads(match["quote"])
    places: list[int] = []
    for index, message in enumerate(messages):
        calls = [as_mapping(call.get("function")) for call in as_list(message.get("tool_calls"))]
        named = "; ".join(f"{call.get('name')} {call.get('arguments')}" for call in calls)
        if " ".join((lookup.content_text(message.get("content")) or named).split()).startswith(quoted):
            places.append(index)
    number = int(match["number"] or 1)
    return places[number - 1] if number <= len(places) else None


def _material(text: str, *, instructed: bool = False) -> list[str]:
    tagged = [match.group(2) for match in _TAGGED.finditer(text)]
    if tagged:
        return [sentence for part in tagged for sentence in _lines(part)]
    if not instructed:
        return _lines(text)
    # untagged: the instruction is the first paragraph, or the line that ends with a colon
    head = re.search(r"\n\s*\n|[:：]\s*\n", text)
    return _lines(text[head.end() :]) if head else []


def _lines(text: str) -> list[str]:
    return lookup.message_sentences({"content": text.strip()})


def _tools(body: Body) -> list[Tool]:
    return [as_mapping(as_mapping(tool).get("function")) for tool in as_list(body.get("tools"))]


def _forced(body: Body) -> tuple[ScriptedCall, ...] | str | None:
    """Returns the call that tool_choice demands, () when it forbids calls, or what is wrong with it."""
    choice = body.get("tool_choice")
    if choice == "none":
        return ()
    if choice in (None, "auto"):
        return None
    tools = _tools(body)
    if isinstance(choice, Mapping):
        name = as_mapping(as_mapping(choice).get("function") or choice).get("name")
        tools = [tool for tool in tools if tool.get("name") == name]
    if not tools:
        return f"tool_choice is {json.dumps(choice)}, but no such tool is in 'tools'."
    named_calls = _asked_calls(messages_of(body), tools)
    if named_calls:
        return named_calls
    arguments = json.dumps(minimal(as_mapping(tools[0].get("parameters")) or {"type": "object"}), ensure_ascii=False)
    return (ScriptedCall(str(tools[0]["name"]), arguments),)


def _asked_calls(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[ScriptedCall, ...]:
    """Returns the calls that the last message, from the user, spells out: `call NAME with {...}`."""
    if not messages or messages[-1].get("role") != "user":
        return ()
    known = {tool.get("name") for tool in tools}
    # a passage that is quoted asks for nothing
    text = re.sub(r"^- #\d+ .*", "", lookup.content_text(messages[-1].get("content")), flags=re.M)
    calls: list[ScriptedCall] = []
    for match in _CALL.finditer(text):
        try:
            _, end = json.JSONDecoder().raw_decode(text, match.end())
        except ValueError:
            continue
        if match.group(1) in known:
            calls.append(ScriptedCall(match.group(1), text[match.end() : end]))
    return tuple(calls)


def _fit(text: str, limit: int, count: Callable[[str], int]) -> str:
    """Returns the longest beginning of the text within the limit."""
    if count(text) <= limit:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= limit else (low, middle - 1)
    return text[:low]


def minimal(schema: Schema, root: Schema | None = None, depth: int = 0) -> Any:
    """Returns a minimal value that fits the schema: required members only, the first of any choice."""
    root = schema if root is None else root
    if depth > _SCHEMA_DEPTH:  # a schema that requires itself has no finite value
        return None
    if "$ref" in schema:
        return minimal(_resolve(str(schema["$ref"]), root), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return minimal(as_mapping(schema[key][0]), root, depth + 1)
    if schema.get("allOf"):
        return minimal(_merged(as_list(schema["allOf"]), root), root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: Schema, root: Schema, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match (as_list(kind) or [kind])[0]:
        case "object":
            properties = as_mapping(schema.get("properties"))
            required = as_list(schema.get("required"))
            return {name: minimal(as_mapping(properties.get(name)), root, depth + 1) for name in required}
        case "array":
            item = as_mapping(schema.get("items"))
            return [minimal(item, root, depth + 1) for _ in range(int(schema.get("minItems") or 0))]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return _FORMATS.get(str(schema.get("format")), "x" * int(schema.get("minLength") or 0))


_FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "a@example.com",
    "uri": "http://example.com",
    "uuid": "00000000-0000-0000-0000-000000000000",
}


def _number(schema: Schema) -> float | int:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    value = max(0, low) if low is not None else 0
    if low is not None and "minimum" not in schema and value == low:
        value += 1
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if high is not None and value > high:
        value = high
    if high is not None and "maximum" not in schema and value == high:
        value -= 1
    step = schema.get("multipleOf")
    return value if not step or value % step == 0 else (value // step + 1) * step


def _resolve(reference: str, root: Schema) -> Schema:
    value: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            value = as_mapping(value).get(part.replace("~1", "/").replace("~0", "~"))
    return as_mapping(value)


def _merged(schemas: list[Schema], root: Schema) -> Schema:
    merged: dict[str, Any] = {}
    for part in schemas:
        one = _resolve(str(part["$ref"]), root) if "$ref" in part else part
        properties = {**merged.get("properties", {}), **one.get("properties", {})}
        required = [*merged.get("required", ()), *one.get("required", ())]
        merged.update(one)
        merged.update({"properties": properties, "required": required} if properties else {})
    return merged
