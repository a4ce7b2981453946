"""Defines the wire formats that `ModelServer` speaks: their base, chat completions, and what strict providers of these refuse."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from ctxfold.lru import LruCache
from ctxfold.testing.script import Body, ErrorReply, Scripted, api_error, as_list, as_mapping, calls_of
from ctxfold.testing.usage import MarkedBlocks
from ctxfold.validation import read_json, strict_json

Strict: TypeAlias = Literal["openai", "deepseek", "moonshot", "gemini", "anthropic", "alternating"]
Problems: TypeAlias = "Iterator[str | ErrorReply]"
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def thinks(body: Body, strict: Strict | None, *, reasoning: bool) -> bool:
    """Returns True when this request is answered in thinking mode."""
    if strict in ("deepseek", "moonshot"):
        return as_mapping(body.get("thinking")).get("type") != "disabled"
    if strict == "anthropic":
        mode = as_mapping(body.get("thinking")).get("type")
        return mode in ("enabled", "adaptive") or (reasoning and mode != "disabled")
    return reasoning


def _arguments(messages: Sequence[Mapping[str, Any]], *, any_text: bool) -> Problems:
    """Checks the arguments of calls; OpenAI takes back the text that its model wrote, whatever it is."""
    needed = "arguments that are text" if any_text else "arguments that are a JSON object"
    for index, message in enumerate(messages):
        for call in calls_of(message):
            try:
                text = call["function"]["arguments"]
                valid = isinstance(text, str) if any_text else isinstance(strict_json(text), dict)
            except (KeyError, TypeError, ValueError, RecursionError):
                valid = False
            if not valid or not call.get("id"):
                yield f"Invalid tool call at messages[{index}].tool_calls: needs an id, a function name and {needed}."


def _pairs(messages: Sequence[Mapping[str, Any]]) -> Problems:
    """Checks that each call is answered right after it, and that each answer follows its call."""
    open_ids: list[str] = []
    caller = -1
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_ids:
                yield (
                    f"Invalid parameter: messages[{index}] with role 'tool' must be a response to a "
                    f"preceding message with 'tool_calls' (tool_call_id {message.get('tool_call_id')!r})."
                )
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            break
        open_ids = [call["id"] for call in calls_of(message)]
        caller = index
    if not open_ids:
        return
    yield (
        f"An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id': messages[{caller}] has no response for {', '.join(open_ids)}."
    )


def _alternation(messages: Sequence[Mapping[str, Any]]) -> Problems:
    """Checks the rule of Gemma and Mistral: a system message first, then user and assistant in turns, without calls and results."""
    awaited = "user"
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool" or (role == "system" and index == 0):
            continue
        if role == "assistant" and calls_of(message) and awaited == "assistant":
            continue
        if role != awaited:
            yield (
                "After the optional system message, conversation roles must alternate user and assistant roles except for "
                f"tool calls and results: messages[{index}] has role {role!r}, expected {awaited!r}."
            )
        awaited = "assistant" if role == "user" else "user"


def _deepseek(body: Body, messages: Sequence[Mapping[str, Any]]) -> Problems:
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        yield "Thinking mode does not support this tool_choice."
    for message in messages:
        if message["role"] == "assistant" and not isinstance(message.get("reasoning_content"), str):
            yield "The `reasoning_content` in the thinking mode must be passed back to the API."


def _moonshot(messages: Sequence[Mapping[str, Any]], produced: LruCache[str, str]) -> Problems:
    for index, message in enumerate(messages):
        calls = calls_of(message) if message["role"] == "assistant" else []
        if not calls:
            continue
        sent = message.get("reasoning_content")
        if not isinstance(sent, str) or not sent:
            yield (
                f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}"
            )
        if any((produced.get(call["id"]) or sent) != sent for call in calls):
            yield f"reasoning_content was modified in assistant tool call message at index {index}"


_WORDS_PER_DELTA = 4
_DONE = b"data: [DONE]\n\n"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class Tokens(NamedTuple):
    """The token counts of a reply; `prompt` includes what was read from the cache and written to it."""

    prompt: int
    completion: int
    reasoning: int
    cached: int
    written: int

    @property
    def fresh(self) -> int:
        return self.prompt - self.cached - self.written


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply with what the server adds to it.

    `summary` is the text of the server's own compaction, "" without one; with `alone` it is the whole reply.
    """

    reply: Scripted
    id: str
    created: int
    model: str
    usage: Mapping[str, Any]
    summary: str = ""
    alone: bool = False
    summary_tokens: tuple[int, int] = (0, 0)  # read and written for it
    user_texts: tuple[str, ...] = ()  # the user's own messages before it

    def tokens(self) -> Tokens:
        """Returns the counts of the usage."""
        usage = self.usage
        prompt, completion = (as_mapping(usage.get(f"{name}_tokens_details")) for name in ("prompt", "completion"))
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"), completion.get("reasoning_tokens"))
        cached = prompt.get("cached_tokens"), prompt.get("cache_write_tokens")
        return Tokens(*(int(count or 0) for count in (*counts, *cached)))

    def calls(self) -> list[dict[str, Any]]:
        """Returns the tool calls, each with an id."""
        return [
            {
                "id": call.id or f"call_{self.id[-20:]}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(self.reply.tool_calls)
        ]


def parsed_arguments(call: Mapping[str, Any]) -> Any:
    """Returns the arguments of a call as the wires have them that send no text; an empty object for text that is no JSON."""
    try:
        return read_json(call["function"]["arguments"])
    except (ValueError, RecursionError):
        return {}


def signature(wire: str, reasoning: str) -> str:
    """Returns the signature of a reasoning text, so that the server can tell what comes back unchanged."""
    return base64.b64encode(hashlib.sha256(f"{wire}:{reasoning}".encode("utf-8", "replace")).digest()).decode()


def encode(value: Mapping[str, Any]) -> bytes:
    """Returns compact JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate that the request brought along
        return json.dumps(value, separators=(",", ":")).encode()


def present(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def schema_format(schema: object) -> dict[str, Any]:
    """Returns the response format of a chat completion for a JSON schema."""
    return {"type": "json_schema", "json_schema": {"schema": schema}}


class Thoughts(NamedTuple):
    """What a turn has of reasoning: its texts with place and signature, the ids of its calls, and whether it begins with it."""

    asks: bool
    signed: Sequence[tuple[int, str, object]]
    call_ids: Sequence[str]
    leads: bool


def missing_thoughts(
    turns: Sequence[Thoughts], mode: object, produced: LruCache[str, str], wire: str
) -> Iterator[tuple[int, int | None]]:
    """Yields the turn, and the place of reasoning with a wrong signature, or None where a turn lacks reasoning that it needs.

    A model that thinks as it sees fit accepts turns that begin without. One that always thinks does not for a turn that this
    server sent with thinking. One with a budget does not for the first turn after a question.
    """
    question = max((index for index, turn in enumerate(turns) if turn.asks), default=0)
    for index, turn in enumerate(turns):
        yield from ((index, place) for place, text, sent in turn.signed if sent != signature(wire, text))
        needed = bool(turn.call_ids) and mode == "enabled" and index == question + 1
        needed = needed or any(map(produced.get, turn.call_ids))
        if needed and index > question and mode not in ("adaptive", "disabled") and not turn.leads:
            yield index, None


def pieces(text: str, number: int | None) -> list[str]:
    """Returns the text in the given number of pieces, or a few words each; Chinese by eight characters."""
    if number is not None:
        size = max(1, -(-len(text) // max(1, number)))
        return [text[start : start + size] for start in range(0, len(text), size)]
    units = re.findall(r"\s*[^\s\u3040-\u9fff]+\s*|[\s\u3040-\u9fff]{1,2}", text)
    return ["".join(units[at : at + _WORDS_PER_DELTA]) for at in range(0, len(units), _WORDS_PER_DELTA)]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request as it arrived. `body` has the wire's own form, `path` is without its query."""

    path: str
    headers: Mapping[str, str]
    body: Body


class ServedWire(ABC):
    """A wire format: which requests are its own, what they say as a chat completion, and how replies are written."""

    stream_type = EVENT_STREAM
    refusal_fields: Mapping[str, str] = {}

    @abstractmethod
    def serves(self, path: str) -> bool:
        """Returns True for the path of a request in this format."""

    @abstractmethod
    def chat_body(self, api_request: ApiRequest) -> dict[str, Any]:
        """Returns the request as the body of a chat completion.

        It has `model`, `messages`, `tools`, `max_tokens` and `stream` where the request says so, so that scripts, the lookup
        model, token counts and the prefix cache read every format alike.
        """

    def cache_blocks(self, api_request: ApiRequest) -> Sequence[MarkedBlocks] | None:
        """Returns the tools, the system prompt and each message as blocks without their cache marks, and which block has one.

        None is for a service that caches without marks.
        """
        return None

    def refusal(
        self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]
    ) -> ErrorReply | None:
        """Returns the error that the request earns; `produced` maps the ids of calls to the reasoning they were sent with."""
        problem = next(self.problems(api_request, strict, produced), None)
        return api_error(400, problem, **self.refusal_fields) if isinstance(problem, str) else problem

    @abstractmethod
    def problems(self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]) -> Problems:
        """Yields what is wrong with the request. Later checks rely on the earlier ones, so that the first alone counts."""

    def compaction(self, api_request: ApiRequest, prompt_tokens: int) -> Literal["alone", "beside"] | None:
        """Returns whether the request gets the server's own summary of its messages, in place of a reply or beside it."""
        return None

    def without_compaction(self, api_request: ApiRequest) -> ErrorReply | None:
        """Returns the error of a server that does not compact, for a request that asks for it."""
        return None

    @abstractmethod
    def whole(self, completion: Completion) -> bytes:
        """Returns the body of a reply that is not streamed."""

    @abstractmethod
    def frames(self, completion: Completion, api_request: ApiRequest) -> Iterator[bytes]:
        """Yields the frames of a streamed reply; the last one goes out together with the end of the body."""

    def overflow(self, window: int, prompt_tokens: int, reply_tokens: int) -> str:
        """Returns the words for a request beyond the window; those of OpenAI unless the format has its own."""
        return (
            f"This model's maximum context length is {window} tokens. However, you requested "
            f"{prompt_tokens + reply_tokens} tokens ({prompt_tokens} in the messages, {reply_tokens} "
            "in the completion). Please reduce the length of the messages or completion."
        )

    def error(self, error: ErrorReply) -> ErrorReply:
        """Returns an error in the format's own shape."""
        return error


class ChatCompletions(ServedWire):
    """OpenAI's chat completions."""

    refusal_fields: Mapping[str, str] = {"param": "messages", "code": "invalid_request_error"}

    def serves(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def chat_body(self, api_request: ApiRequest) -> dict[str, Any]:
        return dict(api_request.body)

    def problems(self, api_request: ApiRequest, strict: Strict | None, produced: LruCache[str, str]) -> Problems:
        body, messages = api_request.body, as_list(api_request.body.get("messages"))
        if not isinstance(body.get("messages"), list) or not all(isinstance(one, Mapping) for one in messages):
            yield api_error(400, "'messages' must be an array of objects.", param="messages")
        if strict is None:
            return
        if not messages:
            yield api_error(400, "Invalid 'messages': empty array, at least 1 is expected.", param="messages")
        for index, message in enumerate(messages):
            if message.get("role") not in ROLES:
                known = ", ".join(sorted(ROLES))
                yield f"Invalid role {message.get('role')!r} at messages[{index}]: expected one of {known}."
        yield from _arguments(messages, any_text=strict == "openai")
        yield from _pairs(messages)
        if strict == "alternating":
            yield from _alternation(messages)
        if thinks(body, strict, reasoning=False):
            yield from _deepseek(body, messages) if strict == "deepseek" else _moonshot(messages, produced)

    def whole(self, completion: Completion) -> bytes:
        reply, calls = completion.reply, completion.calls()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not reply.content else reply.content,
        }
        optional: dict[str, Any] = {"reasoning_content": reply.reasoning, "tool_calls": calls}
        message |= {name: value for name, value in optional.items() if value}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish}
        return encode({**_envelope(completion, "chat.completion"), "choices": [choice], "usage": completion.usage})

    def frames(self, completion: Completion, api_request: ApiRequest) -> Iterator[bytes]:
        """Yields events; the finish, the usage if asked for, and [DONE] are the last three."""
        envelope = _envelope(completion, "chat.completion.chunk")
        counted = bool(as_mapping(api_request.body.get("stream_options")).get("include_usage"))

        def event(choices: list[dict[str, Any]], usage: Mapping[str, Any] | None = None) -> bytes:
            counts = {"usage": usage} if counted else {}
            return b"data: " + encode({**envelope, "choices": choices, **counts}) + b"\n\n"

        for delta in _deltas(completion):
            yield event([{"index": 0, "delta": delta, "finish_reason": None}])
        yield event([{"index": 0, "delta": {}, "finish_reason": completion.reply.finish}])
        if counted:
            yield event([], completion.usage)
        yield _DONE


def _envelope(completion: Completion, kind: str) -> dict[str, Any]:
    return {"id": completion.id, "object": kind, "created": completion.created, "model": completion.model}


def _deltas(completion: Completion) -> Iterator[dict[str, Any]]:
    reply = completion.reply
    yield {"role": "assistant", "content": ""}
    yield from ({"reasoning_content": piece} for piece in pieces(reply.reasoning, None))
    yield from ({"content": piece} for piece in pieces(reply.content, reply.chunks))
    for index, call in enumerate(completion.calls()):
        function = call["function"]
        opened = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [opened]}
        for piece in pieces(function["arguments"], 2):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
