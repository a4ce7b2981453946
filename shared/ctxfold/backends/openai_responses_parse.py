"""Parses replies of the Responses API, whole or streamed, into chunks. Pure: bytes in, chunks out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ctxfold.backends.errors import error_body
from ctxfold.backends.openai_responses_items import Item, call_extra, client_call, text_extra
from ctxfold.backends.profile import Profile
from ctxfold.backends.response_parser import AnswerParser
from ctxfold.protocols import Chunk, ToolCallDelta
from ctxfold.validation import as_dict, as_dicts, as_text

_GAP = "\n\n"  # between the parts of a reasoning summary
_TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled"})
_LIVE = frozenset({"message", "reasoning"})
_SILENT = frozenset({"reasoning", "compaction"})  # items that alone are no answer


@dataclass(slots=True)
class _OpenItem:
    """An item under way: `waiting` are its chunks while an earlier item is unfinished, `final` is the item once it is complete.

    `place` is the number of the content part that is open.
    """

    index: int
    serial: int
    start: Mapping[str, Any]
    waiting: list[Chunk] = field(default_factory=list[Chunk])
    texts: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    parts: dict[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    place: int | None = None
    reasoned_by: str = ""
    final: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        return as_text(self.start.get("type"))

    @property
    def identity(self) -> str:
        return as_text(self.start.get("id"))

    def text_so_far(self, place: int) -> str:
        return "".join(self.texts.get(place, ()))

    def rest(self, place: int, text: object) -> str:
        """Returns what a whole text has beyond the pieces that came; "" when it differs from them."""
        streamed = self.text_so_far(place)
        return text[len(streamed) :] if isinstance(text, str) and text.startswith(streamed) else ""


class ResponsesParser(AnswerParser):
    """Decodes one reply of the Responses API.

    Its chunks come in the order of the output, whatever the order of arrival: an item waits for those before it. A text that
    events repeat counts once. Each message, call and reasoning chunk ends with the item's own fields; other items are sealed.
    """

    def __init__(self, profile: Profile, *, limit: int | None = None, hide: Callable[[str], str] = str) -> None:
        super().__init__(profile, hide=hide)
        self._limit = limit  # of the request, in tokens
        self._model: str | None = None
        self._items: list[_OpenItem] = []  # unfinished or held, in the order of the output
        self._all: list[_OpenItem] = []
        self._by_index: dict[int, _OpenItem] = {}
        self._by_id: dict[str, _OpenItem] = {}
        self._next_index = 0
        self._reasoning_id: str | None = None
        self._called = False
        self._callers: dict[str, int] = {}
        self._handlers: dict[str, Callable[[Mapping[str, Any]], list[Chunk]]] = {
            "response.output_item.done": self._done,
            "response.content_part.done": self._part_done,
        }
        for name, kind, field_name, added in (
            ("output_text", "message", "text", self._text_delta),
            ("refusal", "message", "refusal", self._refusal_delta),
            ("function_call_arguments", "function_call", "arguments", self._arguments_delta),
            ("reasoning_summary_text", "reasoning", "text", partial(self._reasoning_delta, source="summary")),
            ("reasoning_text", "reasoning", "text", partial(self._reasoning_delta, source="content")),
        ):
            self._handlers[f"response.{name}.delta"] = added
            self._handlers[f"response.{name}.done"] = partial(self._beyond, kind=kind, name=field_name, added=added)

    def close(self) -> list[Chunk]:
        """Returns the remaining chunks at the end of the body; of a reply that broke off, also those that were held."""
        chunks = super().close()
        return [*chunks, *(chunk for item in self._items for chunk in item.waiting)]

    def _payload(self, payload: object, event_name: str) -> list[Chunk]:
        body = as_dict(payload)
        kind = as_text(body.get("type")) or event_name
        handler = self._handlers.get(kind)
        if handler is not None:
            return handler(body)
        if kind == "response.created":
            self._model = as_text(as_dict(body.get("response")).get("model")) or self._model
        if kind == "response.output_item.added":
            item = self._opened(body, as_dict(body.get("item")))
            return self._released(item, self._start_chunks(item, body)) if item is not None else []
        if kind in _TERMINAL:
            return self._terminal(as_dict(body.get("response")), kind.partition(".")[2])
        if kind == "error" or (body.get("error") and not kind.startswith("response.")):
            nested = as_dict(body.get("error"))
            self._failed(nested or error_body(body) or body)
        return []

    # items

    def _opened(self, body: Mapping[str, Any], start: Mapping[str, Any]) -> _OpenItem | None:
        """Returns a new item; None for one that was added before. Some servers give several items one id."""
        identity, index = as_text(start.get("id")), body.get("output_index")
        number = index if isinstance(index, int) else max(self._by_index, default=-1) + 1
        known = self._by_id.get(identity) if index is None else self._by_index.get(number)
        if known is not None and identity in ("", known.identity):
            return None
        item = _OpenItem(number, len(self._all), start)
        self._all.append(item)
        self._by_index[number] = item
        if identity:
            self._by_id[identity] = item
        place = len(self._items)
        while place and self._items[place - 1].index > number:
            place -= 1
        self._items.insert(place, item)
        return item

    def _start_chunks(self, item: _OpenItem, body: Mapping[str, Any]) -> list[Chunk]:
        if item.kind != "function_call":
            return []
        self.answered = self._called = True
        identity = as_text(item.start.get("call_id")) or as_text(item.start.get("id"))
        delta = ToolCallDelta(item.serial, self._unique(identity, item), as_text(item.start.get("name")) or None)
        chunks = [self._chunk(body, tool_calls=(delta,))]
        arguments = item.start.get("arguments")
        return chunks if not arguments else chunks + self._argument_chunks(item, arguments, body)

    def _unique(self, call_id: str, item: _OpenItem) -> str | None:
        """Returns the id of a call; None for one that another call has, because their results could not be told apart."""
        return call_id if call_id and self._callers.setdefault(call_id, item.serial) == item.serial else None

    def _known(self, body: Mapping[str, Any], identity: str, kind: str) -> _OpenItem | None:
        """Returns the item of an event: by its place and id, by one of them, or the open one of its kind if it has neither."""
        index = body.get("output_index")
        placed = isinstance(index, int)
        at_place = self._by_index.get(index) if isinstance(index, int) else None
        if at_place is not None and at_place.identity in ("", identity):
            return at_place
        named = self._by_id.get(identity)
        if named is not None and not (placed and named.final is not None):
            return named
        if placed:
            return at_place
        same = (item for item in reversed(self._all) if item.kind == kind and item.final is None)
        return next((item for item in same if not (identity and item.identity)), None)

    def _item(self, body: Mapping[str, Any], kind: str, *, opens: bool = True) -> _OpenItem | None:
        """Returns the unfinished item that an event is about; one that was never announced begins with it if it `opens`."""
        identity = as_text(body.get("item_id"))
        item = self._known(body, identity, kind)
        if item is None and opens:
            start = {"type": kind, "role": "assistant"} if kind == "message" else {"type": kind}
            item = self._opened(body, {**start, "id": identity} if identity else start)
        return None if item is None or item.final is not None else item

    def _beyond(
        self, body: Mapping[str, Any], kind: str, name: str, added: Callable[[Mapping[str, Any]], list[Chunk]]
    ) -> list[Chunk]:
        """Returns what the whole text at the end of its pieces has beyond them, which is all of it where none came."""
        item = self._item(body, kind, opens=False)
        place = body.get("summary_index", body.get("content_index"))
        rest = "" if item is None else item.rest(place if isinstance(place, int) else 0, body.get(name))
        return added({**body, "delta": rest}) if rest else []

    def _released(self, item: _OpenItem, chunks: list[Chunk]) -> list[Chunk]:
        """Returns the chunks if it is the item's turn; otherwise keeps them in `waiting`."""
        if self._items[0] is item and self._may_flow(item):
            if item.waiting:
                chunks, item.waiting = [*item.waiting, *chunks], []
            return chunks
        item.waiting += chunks
        return []

    def _may_flow(self, item: _OpenItem) -> bool:
        """Returns False for a call when an item before it has not begun; live text does not wait for what may never come."""
        return item.index <= self._next_index or item.kind in _LIVE

    def _finish_item(self, item: _OpenItem, final: Mapping[str, Any]) -> list[Chunk]:
        """Returns what the complete item adds, and what waited for it."""
        if item.final is None:
            item.final = final
        return self._advanced()

    def _advanced(self, *, to_the_end: bool = False) -> list[Chunk]:
        """Returns the held chunks of the items whose turn has come."""
        chunks: list[Chunk] = []
        while self._items and (to_the_end or self._may_flow(self._items[0])):
            item = self._items[0]
            chunks += item.waiting
            item.waiting = []
            if item.final is None:
                break
            chunks += self._end_chunks(item, item.final)
            self._items.pop(0)
            self._next_index = max(self._next_index, item.index + 1)
        return chunks

    def _end_chunks(self, item: _OpenItem, final: Mapping[str, Any]) -> list[Chunk]:
        match as_text(final.get("type")):
            case "message" if final.get("role", "assistant") == "assistant":
                return self._end_message(item, final)
            case "function_call":
                return self._end_call(item, final)
            case "reasoning":
                return self._end_reasoning(item, final)
            case _ if (call := client_call(final)) is not None:
                return self._end_client_call(item, final, call)
            case kind:
                self.answered = self.answered or kind not in _SILENT
                return [self._chunk(final, sealed=dict(final))]

    def _after(self, item: _OpenItem) -> str | None:
        """Returns the id of the newest reasoning before the item in the output."""
        after = self._reasoning_id
        for other in self._items:
            if other is item:
                break
            if other.kind == "reasoning":
                after = as_text(other.start.get("id")) or None
        return after

    # messages

    def _text_delta(self, body: Mapping[str, Any], *, refusal: bool = False) -> list[Chunk]:
        item, text = self._item(body, "message"), as_text(body.get("delta"))
        if item is None or not text:
            return []
        place = body.get("content_index")
        number = place if isinstance(place, int) else 0
        late = self._turn_to(item, number, body) if item.place != number else []
        item.texts.setdefault(number, []).append(text)
        if refusal:
            item.parts.setdefault(number, {"type": "refusal"})
        self.answered = True
        chunk = self._refusal(text, body) if refusal else self._chunk(body, content=text)
        return self._released(item, [*late, chunk])

    def _refusal_delta(self, body: Mapping[str, Any]) -> list[Chunk]:
        return self._text_delta(body, refusal=True)

    def _refusal(self, text: str, body: Mapping[str, Any]) -> Chunk:
        self.answered = self._refused = True
        return self._chunk(body, refusal=text)

    def _turn_to(self, item: _OpenItem, place: int, body: Mapping[str, Any]) -> list[Chunk]:
        """Begins a content part; returns the end of the one before it."""
        before, item.place = item.place, place
        if before is None or before > place:
            return []
        part = item.parts.get(before, {"type": "output_text", "annotations": []})
        if part.get("type") == "refusal":
            part = {**part, "refusal": item.text_so_far(before)}
        return [self._chunk(body, text_extra=text_extra(item.start, part, before, self._after(item)))]

    def _part_done(self, body: Mapping[str, Any]) -> list[Chunk]:
        item, part = self._item(body, "message", opens=False), as_dict(body.get("part"))
        place = body.get("content_index")
        if item is not None and isinstance(place, int) and part.get("type") in ("output_text", "refusal"):
            item.parts[place] = part
            if part["type"] == "refusal":
                return self._beyond({**part, **body}, "message", "refusal", self._refusal_delta)
            return self._beyond({**part, **body}, "message", "text", self._text_delta)
        return []

    def _end_message(self, item: _OpenItem, final: Mapping[str, Any]) -> list[Chunk]:
        after = self._after(item)
        content = as_dicts(final.get("content"))
        chunks = [] if content else [self._chunk(final, text_extra=text_extra(final, None, 0, after))]
        for place, part in enumerate(content):
            if item.place is not None and place < item.place:
                continue  # it ended when the next one began
            refused = part.get("type") == "refusal"
            rest = item.rest(place, part.get("refusal" if refused else "text"))
            if rest and refused:
                chunks.append(self._refusal(rest, final))
            elif rest:
                self.answered = True
                chunks.append(self._chunk(final, content=rest))
            chunks.append(self._chunk(final, text_extra=text_extra(final, part, place, after)))
        return chunks

    # calls

    def _arguments_delta(self, body: Mapping[str, Any]) -> list[Chunk]:
        item = self._item(body, "function_call", opens=False)
        if item is None or item.kind != "function_call":
            return []
        return self._released(item, self._argument_chunks(item, body.get("delta"), body))

    def _argument_chunks(self, item: _OpenItem, piece: object, body: Mapping[str, Any]) -> list[Chunk]:
        text = piece if isinstance(piece, str) else json.dumps(piece) if isinstance(piece, dict) else ""
        if not text:
            return []
        item.texts.setdefault(0, []).append(text)
        return [self._chunk(body, tool_calls=(ToolCallDelta(item.serial, arguments=text),))]

    def _end_call(self, item: _OpenItem, final: Mapping[str, Any]) -> list[Chunk]:
        arguments: object = final.get("arguments")
        text = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
        rest = item.rest(0, text)
        identity = as_text(final.get("call_id")) or as_text(final.get("id"))
        delta = ToolCallDelta(
            item.serial,
            self._unique(identity, item) if not item.start.get("call_id") else None,
            as_text(final.get("name")) or None if not item.start.get("name") else None,
            rest,
            call_extra(final, self._after(item)),
        )
        self.answered = self._called = True
        return [self._chunk(final, tool_calls=(delta,))]

    def _end_client_call(self, item: _OpenItem, final: Mapping[str, Any], call: tuple[str, str, str]) -> list[Chunk]:
        identity, name, arguments = call
        extra = call_extra(final, self._after(item))
        delta = ToolCallDelta(item.serial, self._unique(identity, item), name or None, arguments, extra)
        self.answered = self._called = True
        return [self._chunk(final, tool_calls=(delta,))]

    # reasoning

    def _reasoning_delta(self, body: Mapping[str, Any], *, source: str) -> list[Chunk]:
        """Returns a piece of reasoning: of the summary or of the raw text, whichever an item began with."""
        item, text = self._item(body, "reasoning"), as_text(body.get("delta"))
        if item is None or not text or item.reasoned_by not in ("", source):
            return []
        place = body.get(f"{source}_index")
        number = place if isinstance(place, int) else 0
        gap = _GAP if source == "summary" and item.texts and number not in item.texts else ""
        item.reasoned_by = source
        item.texts.setdefault(number, []).append(text)
        self.answered = True
        return self._released(item, [self._chunk(body, reasoning=gap + text)])

    def _end_reasoning(self, item: _OpenItem, final: Mapping[str, Any]) -> list[Chunk]:
        self._reasoning_id = as_text(final.get("id")) or None
        final = {**final, "summary": as_dicts(final.get("summary"))}  # without it, the item is not taken back
        summary = [as_text(part.get("text")) for part in final["summary"]]
        raw = [as_text(part.get("text")) for part in as_dicts(final.get("content"))]
        source = item.reasoned_by or ("summary" if any(summary) else "content")
        chunks: list[Chunk] = []
        for place, text in enumerate(summary if source == "summary" else raw):
            rest = item.rest(place, text)
            if not rest:
                continue
            gap = _GAP if source == "summary" and item.texts and place not in item.texts else ""
            item.texts.setdefault(place, []).append(rest)
            self.answered = True
            chunks.append(self._chunk(final, reasoning=gap + rest))
        if item.texts:
            return [*chunks, self._chunk(final, reasoning_block=dict(final))]
        return [self._chunk(final, sealed=dict(final))]

    def _done(self, body: Mapping[str, Any]) -> list[Chunk]:
        final = as_dict(body.get("item"))
        item, chunks = self._known(body, as_text(final.get("id")), as_text(final.get("type"))), list[Chunk]()
        if item is None:
            item = self._opened(body, _begun(final))
            chunks = self._released(item, self._start_chunks(item, body)) if item is not None else []
        return chunks if item is None else [*chunks, *self._finish_item(item, final)]

    # the end

    def _terminal(self, response: Mapping[str, Any], name: str) -> list[Chunk]:
        self._model = as_text(response.get("model")) or self._model
        status, usage = as_text(response.get("status")) or name, self._usage_in(response.get("usage"))
        if status == "completed" and self._limit and usage is not None and usage.output_tokens == self._limit:
            status = "incomplete"  # llama.cpp says completed of an answer that its limit has cut
        # a compaction that was asked for is an answer, and has no status
        self.answered = self.answered or response.get("object") == "response.compaction"
        chunks = self._rest_of_output(as_dicts(response.get("output")), status)
        reason = as_text(as_dict(response.get("incomplete_details")).get("reason"))
        finish = self._finished(reason if status == "incomplete" and reason else status, refused=self._refused)
        if finish == "stop" and self._called:
            finish = self._finish = "tool_calls"
        error = as_dict(response.get("error"))
        if error:
            self._failed(error)
        chunks.append(self._chunk(response, usage=usage, finish_reason=finish))
        return [*chunks, *self._end()]

    def _rest_of_output(self, output: list[Item], status: str) -> list[Chunk]:
        """Returns what the complete output has beyond the events, and what was held; without it, items end as they stand."""
        chunks: list[Chunk] = []
        matched: set[int] = set()
        for index, final in enumerate(output):
            item = self._same(index, final, matched)
            if item is None:
                item = self._opened({"output_index": index}, _begun(final))
                chunks += self._released(item, self._start_chunks(item, final)) if item is not None else []
            if item is not None:
                matched.add(item.serial)
                chunks += self._finish_item(item, final)
        state = "completed" if status == "completed" else "incomplete"
        for item in self._items:
            if item.final is None:
                item.final = _assembled(item, state)
        return [*chunks, *self._advanced(to_the_end=True)]

    def _same(self, index: int, final: Item, matched: set[int]) -> _OpenItem | None:
        """Returns the streamed item that an item of the complete output is: by its id, its place, or the next of its kind."""
        kind, identity = final.get("type"), as_text(final.get("id"))
        at_place = self._by_index.get(index)
        candidates = [at_place, self._by_id.get(identity)] if at_place and at_place.identity == identity else []
        candidates += [self._by_id.get(identity), at_place if at_place and at_place.kind == kind else None]
        candidates += [item for item in self._all if item.kind == kind]
        return next((item for item in candidates if item is not None and item.serial not in matched), None)

    def _reply(self, payload: object) -> list[Chunk]:
        body = as_dict(payload)
        if isinstance(body.get("output"), list) or body.get("object") == "response":
            return self._terminal(body, "completed")
        return self._no_reply(error_body(payload), "a reply that is not a response")

    def _end(self, *, said_done: bool = False, whole: bool = False) -> list[Chunk]:
        if self.done:
            return []
        self.done = True
        chunks: list[Chunk] = []
        if said_done and self._profile.finish_reason_optional and self._finish is None:
            chunks = self._rest_of_output([], "completed")
            self._finish = "tool_calls" if self._called else "stop"
            chunks.append(Chunk(finish_reason=self._finish))
        if self.error is None:
            self._check_end()
        return chunks

    def _chunk(self, raw: Mapping[str, Any], **fields: Any) -> Chunk:
        return Chunk(model=self._model, raw=raw, **fields)


def _begun(final: Item | Mapping[str, Any]) -> Item:
    """Returns the beginning of an item that came complete: what it says is added as its end."""
    return {name: value for name, value in final.items() if name != "arguments"}


def _assembled(item: _OpenItem, status: str) -> Item:
    """Returns an item whose end never came, from its pieces. What it said of encrypted reasoning so far is no more than a stub."""
    final: Item = dict(item.start)
    if "status" in final:
        final["status"] = status
    match item.kind:
        case "message":
            parts: list[Item] = []
            for place in sorted({*item.texts, *item.parts}):
                part = item.parts.get(place, {"type": "output_text", "annotations": []})
                parts.append({**part, "refusal" if part.get("type") == "refusal" else "text": item.text_so_far(place)})
            final["content"] = parts
        case "function_call":
            final["arguments"] = item.text_so_far(0)
        case "reasoning":
            final.pop("encrypted_content", None)
            kind = "summary_text" if item.reasoned_by == "summary" else "reasoning_text"
            texts = [{"type": kind, "text": item.text_so_far(place)} for place in sorted(item.texts)]
            final |= {"summary": [], item.reasoned_by or "summary": texts}
        case _:
            pass
    return final
