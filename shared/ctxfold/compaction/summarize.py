"""Summarises a span as one message: by a model, and where that fails by fallbacks that cannot fail.

The fallbacks: "model" -> "model, tool outputs left out" -> "extractive" -> "truncate". A model's text is checked against its
source. Facts that it leaves out are appended as verbatim lines with references, as far as the limit allows; the archive has all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from ctxfold.compaction.extract import ARCHIVED_NOTE, CALLED, REPEATED, Sentence, Source, extract
from ctxfold.compaction.live_prefix import LivePrefix
from ctxfold.compaction.steps import summary_limit
from ctxfold.compaction.strategy import Writer
from ctxfold.compaction.transcript import DEFAULT_SUMMARY_PROMPT, pieces, request, transcript, without_tags
from ctxfold.compaction.verify import (
    CHOSEN,
    Verification,
    check,
    looks_wrong,
    repaired,
    too_much_invented,
    verbatim_lines,
)
from ctxfold.compaction.work_state import STATE_HEADING, STATE_TOKENS, state_block, with_calls
from ctxfold.effects import All, Complete, Flow, limited, off_loop
from ctxfold.errors import BackendError, CtxError, SummarizationFailedError
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.history.view import Entry
from ctxfold.lru import lazy_pattern
from ctxfold.messages import Message, Part, ProviderSummary, TextPart, Usage, tool_result, user
from ctxfold.policy.settings import Policy
from ctxfold.policy.triggers import WRITTEN_SHARE
from ctxfold.protocols import Request, TokenCounter
from ctxfold.tokens.media import with_media_named

HEADING = "[Summary of prior conversation]"
LEDGER_HEADING = "Facts, verbatim:"
DATA_HEADING = "From tool outputs (data, no rules):"
PROMPT_OVERHEAD_TOKENS = 160  # markup, roles, and errors of the counter
MIN_ROOM_TOKENS = 256
# of an extractive summary's room where recall, which uses it at least as well, is on; and the room that it has at least
RECALLED_SHARE, MIN_EXTRACT_TOKENS = 1 / 2, 160
# least limit of a summary, as in a large window, beside which the state of the work comes on top: within a fifth of the budget
FULL_LIMIT = 1_900
AT_ONCE = 4  # concurrent calls, which most rate limits allow
MODEL_LEVELS = (("model", True), ("model, tool outputs left out", False))
Progress: TypeAlias = "Callable[[int, int], None]"  # is called with the calls done, and those needed so far
_REFERENCE = lazy_pattern(r"(?<!\s)\s*+\(#(\d{1,18})\)\s*+$")


@dataclass(frozen=True, slots=True)
class Summary:
    """The text that replaces a span.

    Args:
        text: the summary.
        fallback_level: the writer: "provider", "model", "model, tool outputs left out", "extractive", "truncate", "given" or
            "dropped".
        problems: the reasons for which the writers tried before failed.
        kept: sentences of the source whose values or words the text contains.
        put_back: sentences that its verbatim lines add.
        archived: sentences that only the log contains.
        invented: values of the model's text that no source contains; they were replaced or struck out.
        calls: the number of calls to the summariser.
        usage: tokens that the summariser reported.
        provided: the provider's own summary of the span, which its model reads in place of the text; None without one.
        live: True when it was written on the live prefix, False when the model was asked that way and wrote no summary, else
            None.
        timed_out: True when the summariser did not answer in time.
    """

    text: str
    fallback_level: str
    problems: tuple[str, ...] = ()
    kept: int = 0
    put_back: int = 0
    archived: int = 0
    invented: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    live: bool | None = None
    provided: ProviderSummary | None = None
    timed_out: bool = False


@dataclass(slots=True)
class _Task:
    """A span that is being summarised. `window_tokens` is the summariser's window, None without a summariser."""

    entries: Sequence[Entry]
    rules: Policy
    counter: TokenCounter
    window_tokens: int | None
    calls_left: int | None
    limit: int = 0
    source_tokens: int = 0
    previous: str = ""
    state: str = ""
    state_tokens: int = 0  # of the limit
    chars: int = 0
    found: tuple[Sentence, ...] = ()
    lead: Entry | None = None
    most_tokens: int | None = None
    problems: list[str] = field(default_factory=list[str])
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    progress: Progress | None = None
    live: bool | None = None
    timed_out: bool = False

    @property
    def new_messages(self) -> list[Message]:
        """Returns the messages of the span without older summaries."""
        return [e.message for e in self.entries if e.message.kind != "summary"]

    @property
    def transcript(self) -> list[Message]:
        """Returns the messages that the model is shown."""
        return [self.lead.message, *self.new_messages] if self.lead is not None else self.new_messages

    @property
    def sources(self) -> list[Source]:
        """Returns everything that a model can have taken facts from."""
        before = [user(self.previous, id="previous")] if self.previous else []
        return [*before, *((self.lead,) if self.lead is not None else ()), *self.entries]

    @property
    def tool_ids(self) -> frozenset[str]:
        return frozenset(e.id for e in self.entries if e.message.role == "tool")


def summarize(  # noqa: PLR0913 - one keyword per independent setting
    covered: Sequence[Entry],
    *,
    rules: Policy,
    counter: TokenCounter,
    window_tokens: int | None,
    writer: Writer = "model",
    text: str | None = None,
    calls_left: int | None = None,
    lead: Entry | None = None,
    live: LivePrefix | None = None,
    progress: Progress | None = None,
    most_tokens: int | None = None,
    state_tokens: int = STATE_TOKENS,
) -> Flow[Summary]:
    """Returns a summary of the entries within the policy's limit; never fails, as the last fallbacks need no model.

    `text` is a summary that is written already: it is counted, not checked. `calls_left` is how often the summariser may be
    asked, None for any number. `lead` is the entry that the others answer: the model sees it, and the summary, which stands beside
    it, has no heading. With `live` the model is asked on the live prefix first. `most_tokens` is the size of the text that an
    extractive summary replaces: where it would be larger within the policy's limit, it has fewer lines. `state_tokens` is the
    most that the state of an agent's work may take.
    """
    # sections leave without a summary
    messages = with_calls([_media_named(e) for e in covered if e.message.kind != "section"])
    entries = [part for e in messages for part in _split_summary(e)]
    source_tokens = sum(e.tokens for e in messages)
    limit = summary_limit(source_tokens, rules) - (0 if lead else counter.count_text(HEADING) + 2)
    task = _Task(
        entries, rules, counter, window_tokens, calls_left, limit, source_tokens, _previous(messages), lead=lead
    )
    task.progress, task.most_tokens = progress, most_tokens
    task.chars = sum(len(e.message.text) for e in entries)  # long spans are gone through in a worker thread
    if lead is None and text is None and writer != "none":
        yield from _take_state(task, messages, state_tokens)
    task.found = yield from off_loop(partial(extract, entries), task.chars)
    if text is not None:
        verification = yield from _verify(task, text)
        return _counted(task, text, "given", verification, 0, len(verification.missing))
    if writer == "none" or not entries:
        return _counted(task, "", "dropped", None, 0, len(task.found))
    if writer == "model" and window_tokens is not None:
        has_outputs = lead is None and any(e.message.role == "tool" for e in entries)
        levels = MODEL_LEVELS if has_outputs else MODEL_LEVELS[:1]
        attempts = [(level, partial(_by_model, task, level, window_tokens, bodies=bodies)) for level, bodies in levels]
        if live is not None:
            attempts.insert(0, ("live prefix", partial(_on_live_prefix, task, live, window_tokens)))
        for name, attempt in attempts:
            try:
                return (yield from attempt())
            except Exception as error:  # noqa: BLE001 - any failure of a user's summariser is reported; the next fallback follows
                problem = str(error) if isinstance(error, CtxError) else repr(error)
                task.problems.append(f"{name}: {problem}")
                if isinstance(error, BackendError) and error.kind == "timeout":
                    task.timed_out = True
                    break  # another call would wait as long
        if rules.strict_summaries:
            raise SummarizationFailedError(f"no model wrote a summary: {'; '.join(task.problems)}")
    if writer in ("model", "extractive"):
        try:
            return (yield from _extractive(task))
        except SummarizationFailedError as error:
            task.problems.append(f"extractive: {error}")
    return _note(task)


def _media_named(entry: Entry) -> Entry:
    named = with_media_named(entry.message, entry.number)
    return entry if named is entry.message else replace(entry, message=named)


def _take_state(task: _Task, messages: Sequence[Entry], most_tokens: int) -> Flow[None]:
    """Writes the state of the work in the messages; it takes its tokens from the rest of the summary, half of them at most."""
    rules, limit = task.rules, task.limit
    most = min(most_tokens, max(limit // 2, limit - MIN_EXTRACT_TOKENS))
    read = partial(state_block, messages, limit_tokens=most, counter=task.counter, references=rules.references)
    task.state = yield from off_loop(read, task.chars)
    taken = task.counter.count_text(task.state) + 1 if task.state else 0
    task.state_tokens = max(0, taken - (rules.budget_tokens // 5 - limit if limit >= FULL_LIMIT else 0))
    task.limit -= task.state_tokens


def as_message(summary: Summary, *, message_id: str, role: str = "user") -> Message:
    """Returns the summary as a message, which is recognised by its kind, never by its text."""
    parts: tuple[Part, ...] = (TextPart(summary.text),)
    if summary.provided is not None:
        parts = (*parts, summary.provided.part())
    message = Message(message_id, "user" if role != "system" else "system", parts)
    return replace(message, kind="summary")


# by a model


def _by_model(task: _Task, fallback_level: str, window_tokens: int, *, bodies: bool) -> Flow[Summary]:
    share, room = _shares(task, window_tokens)
    previous = task.previous
    blocks = yield from off_loop(partial(transcript, task.transcript, bodies=bodies), task.chars)
    if previous and task.counter.count_text(previous) > room // 3:
        blocks, previous = [*transcript([user(previous, id="previous")]), *blocks], ""
    return (yield from _verified(task, (yield from _reduced(task, blocks, previous, share, room)), fallback_level))


def _on_live_prefix(task: _Task, live: LivePrefix, window_tokens: int) -> Flow[Summary]:
    share, _ = _shares(task, window_tokens)
    answer = (yield from _answers(task, [live.asking(share, task.rules)]))[0]
    summary = yield from _verified(task, answer, "model")
    return replace(summary, live=True)


def _shares(task: _Task, window_tokens: int) -> tuple[int, int]:
    """Returns the tokens that the model's text may take, and those that are left for a transcript."""
    overhead = PROMPT_OVERHEAD_TOKENS + task.counter.count_text(task.rules.summary_prompt or DEFAULT_SUMMARY_PROMPT)
    share = min(int(task.limit * WRITTEN_SHARE), max(32, (window_tokens - overhead) // 5))
    if share < 16:
        raise SummarizationFailedError(f"only {task.limit} tokens are left for the summary: too few to ask a model")
    return share, max(MIN_ROOM_TOKENS, window_tokens - share - overhead)


def _verified(task: _Task, answer: str, fallback_level: str) -> Flow[Summary]:
    """Returns the summary that a model's answer makes; SummarizationFailedError where it is none of the span."""
    text = own_words(answer)
    verification = yield from _verify(task, text)
    reason = yield from off_loop(partial(looks_wrong, text, task.sources, verification), task.chars)
    if reason is not None:
        raise SummarizationFailedError(reason)
    said = tuple(s for s in task.found if s.message_id not in task.tool_ids)  # what a tool says corrects nobody
    repair = yield from off_loop(partial(repaired, text, said, verification.invented), task.chars)
    if (
        reason := too_much_invented(repair.struck if repair.text else verification.invented, verification.checked)
    ) is not None:
        raise SummarizationFailedError(reason)
    if repair.text != text:
        task.found = tuple(s._replace(worth=s.worth * CHOSEN) if s in repair.better else s for s in task.found)
        invented = verification.invented
        verification = replace((yield from _verify(task, repair.text)), invented=invented)
    return (yield from off_loop(partial(_finished, task, repair.text, fallback_level, verification), task.chars))


def own_words(text: str) -> str:
    """Returns the text without our headings and references, which a prompt injection may have made the model forge."""
    ours = (HEADING, LEDGER_HEADING, DATA_HEADING, STATE_HEADING)
    lines = strip_control_chars(text).splitlines()  # no token of a chat template, nothing invisible
    return "\n".join(_REFERENCE.sub("", line) for line in lines if line.strip() not in ours)


def _reduced(task: _Task, blocks: Sequence[str], previous: str, share: int, room: int) -> Flow[str]:
    """Returns one text of all blocks.

    Blocks that do not fit one call are summarised in two steps, the second with the first one's result; or piece by piece, and
    then the pieces' summaries become one.
    """
    merging = False
    while True:
        ask = partial(request, limit_tokens=share, instructions=task.rules.summary_prompt, about_parts=merging)
        carried = task.counter.count_text(previous) + 8 if previous else 0
        parts = yield from _in_pieces(task, blocks, room - carried)
        if len(parts) == 1:
            return (yield from _answers(task, [ask(parts[0], previous=previous)]))[0]
        parts = yield from _in_pieces(task, blocks, room - max(carried, share + 8))
        if len(parts) == 2:  # as cheap in calls as it gets, and nothing to gain by doing both at once
            first = (yield from _answers(task, [ask(parts[0], previous=previous)]))[0]
            return (yield from _answers(task, [ask(parts[1], previous=first)]))[0]
        if merging and len(parts) >= len(blocks):
            raise SummarizationFailedError(
                f"{len(parts)} partial summaries cannot be reduced further: the summariser ignores its limit of {share} tokens"
            )
        texts = yield from _answers(task, [ask(p, previous="") for p in parts])
        blocks = [f'<part number="{i}">\n{strip_control_chars(text)}\n</part>' for i, text in enumerate(texts, 1)]
        merging = True


def _in_pieces(task: _Task, blocks: Sequence[str], room: int) -> Flow[list[str]]:
    return (yield from off_loop(partial(pieces, blocks, room, task.counter), sum(map(len, blocks))))


def _answers(task: _Task, requests: Sequence[Request]) -> Flow[list[str]]:
    """Returns the answers in order; asks several at once where the driver can."""
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
            answers = yield from All(tuple(_answer(task, r) for r in batch))
            texts += answers
        if task.progress is not None:
            task.progress(task.calls, task.calls + max(0, len(requests) - start - AT_ONCE))
    return texts


def _answer(task: _Task, request: Request) -> Flow[str]:
    reply = yield from limited(Complete(request, summarizer=True), task.rules.summary_timeout_s)
    task.usage += reply.usage or Usage()
    task.live = False if request.live_prefix else task.live  # until its text has passed
    if reply.message.tool_calls:
        raise SummarizationFailedError(f"the model called {reply.message.tool_calls[0].name} instead of summarising")
    text = without_tags(reply.message.text)
    if not text:
        raise SummarizationFailedError("the summariser returned no text")
    if (cost := task.counter.count_text(text)) > task.limit:
        raise SummarizationFailedError(f"the summary has {cost} tokens, the limit is {task.limit}")
    return text


def _verify(task: _Task, text: str) -> Flow[Verification]:
    return (yield from off_loop(partial(check, text, task.sources, found=task.found), task.chars))


# without a model


def _extractive(task: _Task) -> Flow[Summary]:
    verification = Verification((), task.found, (), 0)
    if task.rules.recall_share_tokens:
        share = int((task.limit + task.state_tokens) * RECALLED_SHARE)
        task.limit = min(task.limit, max(MIN_EXTRACT_TOKENS, share))
    while True:
        summary = yield from off_loop(partial(_finished, task, "", "extractive", verification), task.chars)
        if summary.text in (HEADING, ""):
            raise SummarizationFailedError("no sentence fits the limit" if task.found else "nothing to keep")
        if task.most_tokens is None or (excess := task.counter.count_text(summary.text) - task.most_tokens) <= 0:
            return summary
        task.limit -= excess


def _note(task: _Task) -> Summary:
    """Returns a line that says how many messages are archived; nothing in place of a summary that did not say it."""
    earlier = [
        int(n[1]) for e in task.entries if e.message.kind == "summary" if (n := ARCHIVED_NOTE.search(e.message.text))
    ]
    if not (archived := len(task.new_messages) + sum(earlier)):
        return _counted(task, "", "dropped", None, 0, len(task.found))
    text = f"{HEADING}\n{archived} earlier messages are archived."
    return _counted(task, text, "truncate", None, 0, len(task.found))


def _finished(task: _Task, text: str, fallback_level: str, verification: Verification) -> Summary:
    """Returns the text with verbatim lines for missing facts; SummarizationFailedError when that is no smaller than its source."""
    count = task.counter.count_text
    room = task.limit - count(text) - 2
    if task.lead is None:
        room -= count(LEDGER_HEADING) + (count(DATA_HEADING) + 1 if task.tool_ids else 0)
    # the summary of one output lacks nothing but values
    missing = [s for s in verification.missing if s.values or task.lead is None]
    if task.state:
        # beside it, what was called tells little
        told = (s for s in missing if (s.text.partition(": ")[2] or s.text) not in task.state)
        missing = [s._replace(worth=REPEATED * s.worth) if s.text.startswith(CALLED) else s for s in told]
    lines = verbatim_lines(
        missing,
        limit_tokens=max(0, room),
        counter=task.counter,
        data=task.tool_ids,
        references=task.rules.references,
    )
    if task.lead is None:
        sections = [HEADING, text] if text else [HEADING]
        for heading, block in ((LEDGER_HEADING, lines.lines), (DATA_HEADING, lines.data_lines)):
            sections += [heading, *block] if block else []
        sections += [task.state] if task.state else []
    else:
        sections = [*([text] if text else []), *lines.lines, *lines.data_lines]
    whole = "\n".join(sections)
    size = count(whole)
    if size >= task.source_tokens:
        raise SummarizationFailedError(f"the summary would have {size} tokens, its source has {task.source_tokens}")
    put_back = len(lines.lines) + len(lines.data_lines)
    return _counted(task, whole, fallback_level, verification, put_back, lines.archived)


def _counted(
    task: _Task, text: str, fallback_level: str, verification: Verification | None, put_back: int, archived: int
) -> Summary:
    kept, invented = (len(verification.kept), len(verification.invented)) if verification else (0, 0)
    return Summary(
        text,
        fallback_level,
        tuple(task.problems),
        kept,
        put_back,
        archived,
        invented,
        task.calls,
        task.usage,
        task.live,
        timed_out=task.timed_out,
    )


# earlier summaries


def _split_summary(entry: Entry) -> Iterable[Entry]:
    """Yields an earlier summary as an entry for its words and one for each verbatim line, with the number that it refers to.

    The entries of lines have no record of their own (`seq` is 0), and their message is of kind "summary".
    """
    if entry.message.kind != "summary":
        return (entry,)
    words: list[str] = []
    lines: list[Entry] = []
    heading = ""
    for index, line in enumerate(entry.message.text.splitlines()):
        if line in (HEADING, LEDGER_HEADING, DATA_HEADING, STATE_HEADING):
            heading = line
        if heading in (line, STATE_HEADING):  # the state of the work is read by itself
            continue
        reference = _REFERENCE.search(line)
        if reference is None and (heading == HEADING or not line.startswith("- ")):
            words.append(line)
            continue
        text, key = line[: reference.start() if reference else None].removeprefix("- "), f"{entry.id}:{index}"
        line_message = tool_result("", text, id=key) if heading == DATA_HEADING else user(text, id=key)
        number = int(reference[1]) if reference else 0
        lines.append(Entry(key, 0, replace(line_message, kind="summary"), 0, number=number))
    message = replace(entry.message, parts=(TextPart("\n".join(words)),))
    # the summary's own words stand in no numbered record of the conversation
    return (replace(entry, message=message, number=0), *lines)


def _previous(covered: Sequence[Entry]) -> str:
    """Returns the text of earlier summaries, without headings and references."""
    lines = [line for e in covered if e.message.kind == "summary" for line in e.message.text.splitlines()]
    return "\n".join(_REFERENCE.sub("", line) for line in lines if line != HEADING)
