"""Writes requests for the Responses API: a conversation as a list of items, each as the service sent it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never, cast

from ctxfold.backends.openai_responses_items import (
    KEY,
    Item,
    client_call,
    client_output,
    media_part,
    own_fields,
    own_item,
    sealed_items,
)
from ctxfold.backends.profile import (
    Profile,
    arguments_text,
    check_extra,
    function_fields,
    json_lines,
    kept_reasoning,
    provider_summary,
    sampling,
    settings,
    tool_choice,
    without_refused,
)
from ctxfold.history.cuts import alternating
from ctxfold.messages import MediaPart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolSpec, joined_texts
from ctxfold.protocols import Request
from ctxfold.validation import as_text

INCLUDE = "reasoning.encrypted_content"
MAX_CALL_ID_CHARS = 64
_RESERVED = frozenset({"input", "instructions", "model", "stream"})
_STORED = ("conversation", "previous_response_id")


def request_body(profile: Profile, request: Request, *, model: str, stream: bool) -> dict[str, Any]:
    """Returns the JSON body of a request; raises ConfigError when the profile does not support it."""
    check_extra(request, _RESERVED)
    stored = not request.compact and any(request.extra.get(name) is not None for name in _STORED)
    messages = request.messages
    if stored:  # the leading system prompts, which the service does not carry over, and what follows the last reply
        last = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=-1)
        leading = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
        messages = [*messages[:leading], *messages[max(leading, last + 1) :]]
    refused = 0 if stored else request.refused_before
    store = not request.compact and request.extra.get("store") is True
    earlier = request.messages if stored else ()
    projected = project(profile, messages, model=model, refused_before=refused, store=store, earlier=earlier)
    body: dict[str, Any] = {"model": model, "input": projected.items}
    if projected.instructions:
        body["instructions"] = projected.instructions
    if request.compact:  # a summary of the service's own takes neither tools nor settings of a reply
        return body
    tools = [*(tool_body(tool) for tool in request.tools), *_listed(request.extra.get("tools"))]
    if tools:
        body["tools"] = tools
    choice = tool_choice(profile, request)
    if choice is not None:
        plain = choice in ("auto", "none", "required")
        body["tool_choice"] = choice if plain else {"type": "function", "name": choice}
    body["stream"] = stream
    body["store"] = False
    body["include"] = list(dict.fromkeys([INCLUDE, *_listed(request.extra.get("include"))]))
    body |= sampling(request, "max_output_tokens") | settings(profile, request, with_tools=bool(tools))
    body |= {name: value for name, value in request.extra.items() if name not in ("include", "tools")}
    return without_refused(profile, body, request.thinking)


def _listed(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []


def canonical_bytes(profile: Profile, request: Request, *, model: str) -> bytes:
    """Returns tools, instructions and items as lines, to compare requests."""
    projected = project(profile, request.messages, model=model, refused_before=request.refused_before, joined=False)
    lines: list[Any] = [tool_body(tool) for tool in request.tools]
    lines += [{"role": "system", "content": projected.instructions}] if projected.instructions else []
    return json_lines([*lines, *projected.items])


def tool_body(tool: ToolSpec) -> dict[str, Any]:
    """Returns a function tool. `strict` is off, because its default here would make optional parameters required."""
    return {"type": "function", **function_fields(tool, "parameters"), "strict": False}


# a conversation as items


@dataclass(frozen=True, slots=True)
class Projected:
    """A conversation in the form of requests: the leading system text, where the row sends it apart, and the items."""

    instructions: str = ""
    items: list[Item] = field(default_factory=list[Item])


def project(
    profile: Profile,
    messages: Sequence[Message],
    *,
    model: str,
    refused_before: int = 0,
    joined: bool = True,
    store: bool = False,
    earlier: Sequence[Message] = (),
) -> Projected:
    """Returns the messages as instructions and items, from the newest compaction item on where there is one.

    Messages at an index below `refused_before` are sent without reasoning and ids. With `store`, the service finds reasoning by
    its id alone. It has the calls of `earlier` messages. With `joined` false, adjacent messages of one role stay separate, to
    compare requests.
    """
    rules = profile.request
    kept = kept_reasoning(profile.reasoning_out, messages, model=model)
    sent = [
        _for_model(message, model, keeps=kept[index], refused=index < refused_before)
        for index, message in enumerate(messages)
    ]
    texts: list[str] = []
    runs: list[list[Item]] = []
    leading = True
    shown = alternating(sent) if rules.alternating_roles and joined else sent
    place, provided = provider_summary(profile, shown, model=model, refused_before=refused_before)
    whole, called = -1, {call.id: own_item(call) for message in earlier for call in message.tool_calls}
    for index, message in enumerate(shown):
        if index == place:
            whole = len(runs)
            runs.append(provided)
            leading = False
            continue
        leading = leading and message.role == "system"
        if leading and rules.instructions:
            texts.append(message.text)
            continue
        role = "user" if message.role == "system" and rules.system_leads and not leading else message.role
        wrapped = rules.malformed_arguments == "wrapped"
        made = message_items(message.with_role(role), rules.system_role, called, wrapped=wrapped, store=store)
        called |= {call.id: own_item(call) for call in message.tool_calls}
        runs.append(made)
    return Projected("\n\n".join(text for text in texts if text), _since_compaction(runs, whole))


def _for_model(message: Message, model: str, *, keeps: bool, refused: bool) -> Message:
    """Returns a reply with what may go back to the model: of another model's, and after a refusal, no reasoning and no ids."""
    if message.role != "assistant":
        return message
    if message.finish_reason == "aborted":
        # without the reasoning at its end, whose item never came: the service refuses it alone
        last = max((i for i, p in enumerate(message.parts) if isinstance(p, TextPart | ToolCallPart)), default=-1)
        told = (p for i, p in enumerate(message.parts) if i < last or not isinstance(p, ReasoningPart))
        message = replace(message, parts=tuple(told))
    if message.model in (None, model):
        kept = message if keeps and not refused else message.without_reasoning()
        return kept if not refused else replace(kept, parts=tuple(_unbound(part) for part in kept.parts))
    parts = tuple(replace(p, extra=None) if isinstance(p, TextPart | ToolCallPart) else p for p in message.parts)
    return replace(message, parts=parts).without_reasoning()


def _unbound(part: Part) -> Part:
    """Returns a text or call that names reasoning which no request has, so that it goes without its id."""
    if not isinstance(part, TextPart | ToolCallPart) or not (fields := own_fields(part.extra)):
        return part
    return replace(part, extra=json.dumps({KEY: {**fields, "after": ""}}, ensure_ascii=False))


def _since_compaction(runs: Sequence[list[Item]], whole: int) -> list[Item]:
    """Returns the items from the newest compaction item on, which stands for those before it.

    System prompts stay, as the compaction does not hold them. A reply that has calls before its compaction item stays whole,
    because their results follow it; so does the run at `whole`, which was asked for.
    """
    newest = max((n for n, run in enumerate(runs) if any(_compacts(item) for item in run)), default=None)
    if newest is None:
        return [item for run in runs for item in run]
    run = runs[newest]
    place = 0 if newest == whole else max(n for n, item in enumerate(run) if _compacts(item))
    if any(item.get("type") == "function_call" or client_call(item) is not None for item in run[:place]):
        place = 0
    system = [item for earlier in runs[:newest] for item in earlier if item.get("role") in ("system", "developer")]
    user_items = [item for item in run[:place] if item.get("role") == "user"]  # with a compaction that was asked for
    return [*system, *user_items, *run[place:], *(item for later in runs[newest + 1 :] for item in later)]


def _compacts(item: Item) -> bool:
    return item.get("type") == "compaction"


def message_items(
    message: Message,
    system_role: str = "system",
    called: Mapping[str, Item] | None = None,
    *,
    store: bool,
    wrapped: bool = False,
) -> list[Item]:
    """Returns the items of a message in order; `wrapped` turns malformed arguments of calls into an object.

    `called` has the item of each call that results may answer, if that is no function call.
    """
    match message.role:
        case "system":
            return [{"role": system_role, "content": message.text}]
        case "user":
            return [{"role": "user", "content": _content(message)}]
        case "tool":
            return _results(message, called or {})
        case "assistant":
            entries = list(_entries(message, wrapped=wrapped, store=store))
            return [item for group in _groups(entries) for item in _sendable(group)]
        case _:
            assert_never(message.role)


@dataclass(slots=True)
class _Entry:
    """An item of a reply: as it came, None where it did not come from this service, and without its id and its reasoning.

    `after` is the id of the reasoning that the item needs.
    """

    whole: Item | None
    bare: Item | None = None
    after: str | None = None

    @property
    def reasons(self) -> bool:
        return self.whole is not None and self.whole.get("type") == "reasoning"


def _entries(message: Message, *, wrapped: bool, store: bool) -> Iterator[_Entry]:
    """Yields the entries of a reply; the parts of one message item, and adjacent texts without an item, are one entry."""
    last: _Entry | None = None
    for part in message.parts:
        match part:
            case TextPart():
                fields = own_fields(part.extra)
                entry = _text_entry(part, fields)
                if last is not None and _joins(last, entry, continued=bool(fields.get("index"))):
                    _join(last, entry)
                    continue
            case ToolCallPart():
                entry = _called(part, own_fields(part.extra), wrapped=wrapped)
            case ReasoningPart():
                if last is not None:
                    yield last
                    last = None
                # a service that does not store reasoning cannot find it by its id alone
                items = (
                    i
                    for i in sealed_items(part.details)
                    if store or i.get("type") != "reasoning" or i.get("encrypted_content") or i.get("content")
                )
                yield from map(_Entry, items)
                continue
            case _:  # media that a model made are among its items; opaque parts are never sent
                continue
        if last is not None:
            yield last
        last = entry if entry.whole is not None or entry.bare is not None else None
    if last is not None:
        yield last


def _text_entry(part: TextPart, fields: Mapping[str, Any]) -> _Entry:
    if not fields:
        return _Entry(None, {"role": "assistant", "content": part.text} if part.text else None)
    item: Item = {**fields["item"], "content": []}
    content: Item | None = fields.get("part")
    text = part.text
    if content is not None:
        refusal = content.get("type") == "refusal"
        item["content"] = [content if refusal else {**content, "text": text}]
        text = str(content.get("refusal", "")) if refusal else text
    phase = {"phase": item["phase"]} if item.get("phase") is not None else {}
    return _Entry(item, {"role": "assistant", "content": text, **phase} if text else None, fields.get("after"))


def _joins(first: _Entry, second: _Entry, *, continued: bool) -> bool:
    """Returns True for the next part of one message item, and for two texts without one."""
    if first.whole is None or second.whole is None:
        texts = first.bare is not None and "content" in first.bare
        return texts and first.whole is None and second.whole is None
    return continued and first.whole.get("type") == "message" and first.whole.get("id") == second.whole.get("id")


def _join(first: _Entry, second: _Entry) -> None:
    if first.whole is not None and second.whole is not None:
        first.whole = {**first.whole, **second.whole, "content": [*first.whole["content"], *second.whole["content"]]}
    if second.bare is not None:
        before = "" if first.bare is None else first.bare["content"]
        first.bare = {**second.bare, "content": before + second.bare["content"]}


def _called(part: ToolCallPart, fields: Mapping[str, Any], *, wrapped: bool) -> _Entry:
    arguments = arguments_text(part, "wrapped" if wrapped else "as_received")
    call: Item = {"type": "function_call", "call_id": _call_id(part.id), "name": part.name, "arguments": arguments}
    item: Item = fields.get("item", {})
    if "type" in item:  # of a tool of another kind, whose item is whole
        optional = item["type"] in ("apply_patch_call", "custom_tool_call", "shell_call", "tool_search_call")
        bare = {name: value for name, value in item.items() if name != "id"} if optional else item
        return _Entry(item, bare, fields.get("after"))
    place = {"namespace": item["namespace"]} if item.get("namespace") is not None else {}
    return _Entry({**item, **call} if fields else None, {**call, **place}, fields.get("after"))


def _groups(entries: Iterable[_Entry]) -> list[list[_Entry]]:
    """Returns runs of reasoning, each with the entries up to the next one."""
    groups: list[list[_Entry]] = []
    for entry in entries:
        if not groups or (entry.reasons and not groups[-1][-1].reasons):
            groups.append([])
        groups[-1].append(entry)
    return groups


def _sendable(group: Sequence[_Entry]) -> list[Item]:
    """Returns the items of a group: the service refuses reasoning without the item that followed it, and the reverse.

    Where one of them is missing or was rewritten, the others go without reasoning and ids.
    """
    reasoning = [entry for entry in group if entry.reasons]
    others = [entry for entry in group if not entry.reasons]
    ids = {as_text(cast("Item", entry.whole).get("id")) for entry in reasoning}
    torn = bool(others) and (others[0].whole is None or others[0].after not in {None, *ids})
    if reasoning and torn:
        reasoning = []
    items: list[Item] = [entry.whole for entry in reasoning if entry.whole is not None]
    reasoning_ids = {as_text(item.get("id")) for item in items}
    for entry in others:
        item = entry.whole if entry.after is None or entry.after in reasoning_ids else entry.bare
        item = entry.bare if entry.whole is None else item
        if item is not None:
            items.append(item)
    return items


def _call_id(original: str) -> str:
    """Returns the id within the length that the service accepts; a longer one is shortened equally in call and result."""
    if 0 < len(original) <= MAX_CALL_ID_CHARS:
        return original
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"call_{original[:40]}_{digest}"


def _content(message: Message) -> str | list[Item]:
    """Returns a string when there is only text, else a list of typed parts."""
    if not any(isinstance(part, MediaPart) for part in message.parts):
        return joined_texts(part.text for part in message.parts if isinstance(part, TextPart))
    parts: list[Item] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            parts.append({"type": "input_text", "text": part.text})
        elif isinstance(part, MediaPart):
            parts.append(media_part(part))
    return parts


def _results(message: Message, called: Mapping[str, Item]) -> list[Item]:
    """Returns the results of calls, each in the form that answers its call; media go with the last of them."""
    items: list[Item] = []
    for result in message.tool_results:
        last = result is message.tool_results[-1]
        media = [part for part in message.parts if isinstance(part, MediaPart)] if last else []
        item = called.get(result.call_id, {})
        if "type" not in item:
            item = {"type": "custom_tool_call", "call_id": _call_id(result.call_id)}
            items += [{**one, "type": "function_call_output"} for one in client_output(item, result, media)]
        else:
            items += client_output(item, result, media)
    return items
