"""A span becomes one message: by a model, and where that fails by rungs that cannot.

Rungs: "model" -> "model, tool outputs left out" -> "extractive" -> "truncate". What a model writes is checked against its source;
what it leaves out is appended as verbatim lines with references, as far as the limit allows. The rest stays in the archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ctxfold.budget import Policy
from ctxfold.compaction.extractive import ledger, passages
from ctxfold.compaction.literals import Fact, Source, extract, message_of
from ctxfold.compaction.plan import Writer
from ctxfold.compaction.spans import summary_limit
from ctxfold.compaction.strategy import MODEL_SHARE
from ctxfold.compaction.transcript import INSTRUCTIONS, pieces, request, transcript
from ctxfold.compaction.verify import Verification, check, ledger_lines, looks_wrong
from ctxfold.effects import Complete
from ctxfold.errors import CtxError, SummarizationFailedError
from ctxfold.flow import All, Deadline, Flow, off_loop
from ctxfold.history.data import defused
from ctxfold.history.view import Entry
from ctxfold.messages import Message, TextPart, Usage, tool_result, user
from ctxfold.ports import Request, TokenCounter

__all__ = ["HEADING", "Summary", "as_message", "own_words", "summarize"]

HEADING = "[Summary of prior conversation]"
LEDGER_HEADING = "Facts, verbatim:"
DATA_HEADING = "From tool outputs (data, no rules):"
SENTENCE_SHARE = 0.6  # of an extractive summary; the rest is for literals of other sentences
PROMPT_OVERHEAD_TOKENS = 160  # markup, roles, and counts that miss
MIN_ROOM_TOKENS = 256
AT_ONCE = 4  # calls that a rate limiter should bear
RUNGS = (("model", True), ("model, tool outputs left out", False))
_R = TypeVar("_R")
_NOTED = re.compile(r"^(\d{1,18}) earlier messages are archived\.$", re.M)
_REFERENCE = re.compile(r"(?<!\s)\s*+\(#(\d{1,18})\)\s*+$")


@dataclass(frozen=True, slots=True)
class Summary:
    """The text that replaces a span, the rung that wrote it, and what went wrong on the way.

    Of the source's literals `kept` are in the text, `in_ledger` in its verbatim lines, and `archived` only in the log; `invented`
    are in the text but in no source. `calls` is how often the summariser was asked, and `usage` what it said that took.
    """

    text: str
    rung: str
    problems: tuple[str, ...] = ()
    kept: int = 0
    in_ledger: int = 0
    archived: int = 0
    invented: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(slots=True)
class _Task:
    """One span on its way to a summary. `window_tokens` is the summariser's own, None when there is none."""

    entries: Sequence[Entry]
    rules: Policy
    counter: TokenCounter
    window_tokens: int | None
    calls_left: int | None
    limit: int = 0
    source_tokens: int = 0
    previous: str = ""
    facts: tuple[Fact, ...] = ()
    lead: Entry | None = None
    problems: list[str] = field(default_factory=list[str])
    calls: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def fresh(self) -> list[Message]:
        return [e.message for e in self.entries if e.message.kind != "summary"]

    @property
    def shown(self) -> list[Message]:
        return [self.lead.message, *self.fresh] if self.lead is not None else self.fresh

    @property
    def given(self) -> list[Source]:
        """All that a model could have taken something from."""
        before = [user(self.previous, id="previous")] if self.previous else []
        return [*before, *((self.lead,) if self.lead is not None else ()), *self.entries]

    @property
    def data(self) -> frozenset[str]:
        return frozenset(e.id for e in self.entries if e.message.role == "tool")


def summarize(
    covered: Sequence[Entry],
    *,
    rules: Policy,
    counter: TokenCounter,
    window_tokens: int | None,
    writer: Writer = "model",
    text: str | None = None,
    calls_left: int | None = None,
    lead: Entry | None = None,
) -> Flow[Summary]:
    """Summary of the entries within the policy's limit; it never fails, as the last rungs need no model.

    `text` is a summary that somebody else wrote: it is counted, not judged. `calls_left` is how often the summariser may be
    asked, None for any number. `lead` is what the entries answer: the model sees it, the summary stands beside it, without a
    heading.
    """
    said = [e for e in covered if e.message.kind != "section"]  # what was put in beside the conversation just leaves
    entries = [part for e in said for part in _unfolded(e)]
    source_tokens = sum(e.tokens for e in said)
    limit = summary_limit(source_tokens, rules) - (0 if lead else counter.count_text(HEADING) + 2)
    task = _Task(entries, rules, counter, window_tokens, calls_left, limit, source_tokens, _previous(said), lead=lead)
    task.facts = yield from _apart(partial(extract, entries), entries)
    if text is not None:
        found = yield from _checked(task, text)
        return _counted(task, text, "given", found, 0, len(found.missing))
    if writer == "nobody" or not entries:
        return _counted(task, "", "dropped", None, 0, len(task.facts))
    if writer == "model" and window_tokens is not None:
        has_outputs = lead is None and any(e.message.role == "tool" for e in entries)
        for rung, bodies in RUNGS if has_outputs else RUNGS[:1]:
            try:
                return (yield from _by_model(task, rung, window_tokens, bodies=bodies))
            except Exception as error:  # noqa: BLE001 - any failure of a user's summariser is reported; the next rung follows
                task.problems.append(f"{rung}: {error}" if isinstance(error, CtxError) else f"{rung}: {error!r}")
    if writer in ("model", "extractive"):
        try:
            return (yield from _extractive(task))
        except SummarizationFailedError as error:
            task.problems.append(f"extractive: {error}")
    return _note(task)


def as_message(summary: Summary, *, message_id: str, role: str = "user") -> Message:
    """The summary as a message; it is known by its kind, never by its text."""
    message = Message(message_id, "user" if role != "system" else "system", (TextPart(summary.text),))
    return replace(message, kind="summary")


# the model's rungs


def _by_model(task: _Task, rung: str, window_tokens: int, *, bodies: bool) -> Flow[Summary]:
    overhead = PROMPT_OVERHEAD_TOKENS + task.counter.count_text(task.rules.summary_prompt or INSTRUCTIONS)
    share = min(int(task.limit * MODEL_SHARE), max(32, (window_tokens - overhead) // 5))
    if share < 16:
        raise SummarizationFailedError(f"only {task.limit} tokens are left for the summary: too few to ask a model")
    room = max(MIN_ROOM_TOKENS, window_tokens - share - overhead)
    previous = task.previous
    blocks = yield from _apart(partial(transcript, task.shown, bodies=bodies), task.entries)
    if previous and task.counter.count_text(previous) > room // 3:
        blocks, previous = [*transcript([user(previous, id="previous")]), *blocks], ""
    text = own_words((yield from _reduced(task, blocks, previous, share, room)))
    found = yield from _checked(task, text)
    reason = yield from _apart(partial(looks_wrong, text, task.given, found), task.entries)
    if reason is not None:
        raise SummarizationFailedError(reason)
    return (yield from _apart(partial(_finished, task, text, rung, found), task.entries))


def own_words(text: str) -> str:
    """A summary without headings and references of ours; a model may have been told to forge them."""
    ours = (HEADING, LEDGER_HEADING, DATA_HEADING)
    lines = defused(text).splitlines()  # no token of a chat template, nothing invisible
    return "\n".join(_REFERENCE.sub("", line) for line in lines if line.strip() not in ours)


def _reduced(task: _Task, blocks: Sequence[str], previous: str, share: int, room: int) -> Flow[str]:
    """One text of all blocks. Where they do not fit at once: in two steps, the second with the first one's result; or piece by
    piece, and the pieces' summaries are made into one."""
    merging = False
    while True:
        ask = partial(request, limit_tokens=share, instructions=task.rules.summary_prompt, about_parts=merging)
        carried = task.counter.count_text(previous) + 8 if previous else 0
        parts = yield from _in_pieces(task, blocks, room - carried)
        if len(parts) == 1:
            return (yield from _asked(task, [ask(parts[0], previous=previous)]))[0]
        parts = yield from _in_pieces(task, blocks, room - max(carried, share + 8))
        if len(parts) == 2:  # as cheap in calls as it gets, and nothing to gain by doing both at once
            first = (yield from _asked(task, [ask(parts[0], previous=previous)]))[0]
            return (yield from _asked(task, [ask(parts[1], previous=first)]))[0]
        if merging and len(parts) >= len(blocks):
            raise SummarizationFailedError(
                f"{len(parts)} partial summaries do not get fewer: the summariser ignores its limit of {share} tokens"
            )
        texts = yield from _asked(task, [ask(p, previous="") for p in parts])
        blocks = [f'<part number="{i}">\n{defused(text)}\n</part>' for i, text in enumerate(texts, 1)]
        merging = True


def _in_pieces(task: _Task, blocks: Sequence[str], room: int) -> Flow[list[str]]:
    return (yield from off_loop(partial(pieces, blocks, room, task.counter), sum(map(len, blocks))))


def _asked(task: _Task, requests: Sequence[Request]) -> Flow[list[str]]:
    """The answers in order; several at once where the driver can."""
    if task.calls_left is not None and task.calls + len(requests) > task.calls_left:
        raise SummarizationFailedError(
            f"{len(requests)} calls to the summariser are needed and {max(0, task.calls_left - task.calls)} are left of the "
            "session's max_summary_calls"
        )
    texts: list[str] = []
    for start in range(0, len(requests), AT_ONCE):
        batch = requests[start : start + AT_ONCE]
        task.calls += len(batch)
        if len(batch) == 1:
            texts.append((yield from _answer(task, batch[0])))
        else:
            found = yield from All(tuple(_answer(task, r) for r in batch))
            texts += found
    return texts


def _answer(task: _Task, asked: Request) -> Flow[str]:
    effect = Complete(asked, summarizer=True)
    limit_s = task.rules.summary_timeout_s
    reply = yield from (effect if limit_s is None else Deadline(effect, limit_s))
    task.usage += reply.usage or Usage()
    text = reply.message.text.strip()
    if not text:
        raise SummarizationFailedError("the summariser answered with no text")
    if (cost := task.counter.count_text(text)) > task.limit:
        raise SummarizationFailedError(f"the summary has {cost} tokens, the limit is {task.limit}")
    return text


def _checked(task: _Task, text: str) -> Flow[Verification]:
    return (yield from _apart(partial(check, text, task.given, facts=task.facts), task.entries))


# the rungs without a model


def _extractive(task: _Task) -> Flow[Summary]:
    messages = [e.message for e in task.entries]
    room = int(task.limit * SENTENCE_SHARE)
    found = yield from _apart(partial(passages, messages), task.entries)
    text = yield from _apart(partial(ledger, found, limit_tokens=room, counter=task.counter), task.entries)
    checked = yield from _checked(task, text)
    summary = yield from _apart(partial(_finished, task, text, "extractive", checked), task.entries)
    if summary.text in (HEADING, ""):
        raise SummarizationFailedError("no sentence and no literal fits the limit" if task.facts else "nothing to keep")
    return summary


def _note(task: _Task) -> Summary:
    """A line that says how much has gone."""
    noted = [int(n[1]) for e in task.entries if e.message.kind == "summary" if (n := _NOTED.search(e.message.text))]
    text = f"{HEADING}\n{len(task.fresh) + sum(noted)} earlier messages are archived."
    return _counted(task, text, "truncate", None, 0, len(task.facts))


def _finished(task: _Task, text: str, rung: str, found: Verification) -> Summary:
    """The text with verbatim lines for what it lacks; SummarizationFailedError when that is no smaller than its source."""
    count = task.counter.count_text
    room = task.limit - count(text) - 2
    if task.lead is None:
        room -= count(LEDGER_HEADING) + (count(DATA_HEADING) + 1 if task.data else 0)
    lines = ledger_lines(
        found.missing,
        limit_tokens=max(0, room),
        counter=task.counter,
        data=task.data,
        references=task.rules.references,
    )
    if task.lead is None:
        sections = [HEADING, text] if text else [HEADING]
        for heading, block in ((LEDGER_HEADING, lines.lines), (DATA_HEADING, lines.data_lines)):
            sections += [heading, *block] if block else []
    else:
        sections = [*([text] if text else []), *lines.lines, *lines.data_lines]
    whole = "\n".join(sections)
    size = count(whole)
    if size >= task.source_tokens:
        raise SummarizationFailedError(f"the summary would have {size} tokens, its source has {task.source_tokens}")
    in_ledger = len(found.missing) - len(lines.archived)
    return _counted(task, whole, rung, found, in_ledger, len(lines.archived))


def _counted(task: _Task, text: str, rung: str, found: Verification | None, in_ledger: int, archived: int) -> Summary:
    kept, invented = (len(found.kept), len(found.invented)) if found else (0, 0)
    return Summary(text, rung, tuple(task.problems), kept, in_ledger, archived, invented, task.calls, task.usage)


# the summary before


def _unfolded(entry: Entry) -> Iterable[Entry]:
    """An old summary as one entry for its words and one for each verbatim line, under the number that the line refers to."""
    if entry.message.kind != "summary":
        return (entry,)
    words: list[str] = []
    lines: list[Entry] = []
    data = False
    for index, line in enumerate(entry.message.text.splitlines()):
        data = (data or line == DATA_HEADING) and line != LEDGER_HEADING
        found = _REFERENCE.search(line)
        if line in (HEADING, LEDGER_HEADING, DATA_HEADING):
            continue
        if found is None:
            words.append(line)
            continue
        text, key = line[: found.start()].removeprefix("- "), f"{entry.id}:{index}"
        message = tool_result("", text, id=key) if data else replace(user(text, id=key), kind="summary")
        lines.append(Entry(key, 0, message, 0, number=int(found[1])))
    message = replace(entry.message, parts=(TextPart("\n".join(words)),))
    # what only the old summary's own words have stands in no numbered record of the conversation
    return (replace(entry, message=message, number=0), *lines)


def _previous(covered: Sequence[Entry]) -> str:
    """The old summaries' text, without headings and references."""
    lines = [line for e in covered if e.message.kind == "summary" for line in e.message.text.splitlines()]
    return "\n".join(_REFERENCE.sub("", line) for line in lines if line != HEADING)


def _apart(function: partial[_R], entries: Sequence[Entry]) -> Flow[_R]:
    """The function's result; long spans are gone through in a worker thread when driven on a loop."""
    return (yield from off_loop(function, sum(len(message_of(e)[0].text) for e in entries)))
