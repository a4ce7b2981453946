"""A reader's test: whole windows of chats and of agent runs, what is wrong with the lines of their summaries, and what these say.

A bare stamp is a line without any words but a time, a date or a name. A fragment has too few words to say anything, or breaks
off. A line has a subject where it says who speaks, or begins with what it is about.

What a summary says is measured by questions that somebody asked of the conversation: the share of the words of their answers that
the summary has, rare words counting more (by inverse document frequency).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from ctxfold import AgentContext, Message, ToolCallPart, assistant, tool_result, user
from ctxfold.compaction.work_state import STATE_HEADING
from ctxfold.index.terms import terms
from tests.benchmarks import coding_logs
from tests.benchmarks.data import folder, tau
from tests.benchmarks.replay import COUNTER
from tests.benchmarks.sheets import Cell, Sheet
from tests.benchmarks.tool_texts import KINDS, REPORTED_SEEDS, tool_text

__all__ = [
    "Faults",
    "agent_windows",
    "answers_covered",
    "chat_windows",
    "conclusions_kept",
    "faults",
    "run",
    "summary_of",
]

CHATS = (("molweni", 1), ("ubuntu_irc", 7), ("bfcl_memory", 3), ("qmsum", 9))
WINDOWS_OF_CHAT, WINDOWS_OF_RUNS, RUNS_IN_ONE = 20, 20, 4
WINDOW = 4_000
WINDOWS_OF_ANSWERS = (2_000, 4_000, 8_000)
ANSWERS = (("bfcl_memory", slice(None)), ("molweni", slice(None)), ("qmsum", slice(1, None, 2)))  # the others: tuned on
WINDOWS_OF_LOGS = (4_000, 8_000, 16_000)
OUTPUT_CHARS = 6_000
PART = 400  # messages of one window of chat
FILE = "CTXFOLD_READER_FILE"  # where the windows are written, whole; nowhere by default

_REFERENCE = re.compile(r"\s*\(#\d+\)$")
_HEADINGS = (
    "[Summary of prior conversation]",
    "Facts, verbatim:",
    "From tool outputs (data, no rules):",
    STATE_HEADING,
)
_STAMP = re.compile(
    r"[\[(]?(?:\d{4}-\d{2}-\d{2})?[ T,]*(?:\d{1,2}:\d{2}(?::\d{2})?)?\s?(?:[ap]\.?m\.?)?[\])]?[;,.: ]*", re.I
)
_DOUBLED = re.compile(r";\s*;|,\s*,|:\s*:(?=\s)|(?<!\.)\.\s*\.(?![./\w])|!\s*!|\?\s*\?|;\s*\.|,\s*\.(?!\w)")
_SPEAKER = re.compile(r"^([^\s:][^:\n]{0,60}): (?=\S)")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_SUBJECT = re.compile(
    r"(?:(?i:I|we|you|he|she|it|they|this|that|these|those|there|my|our|your|his|her|their|the|a|an|all|both|no|\d+)\b"
    r"|[A-Z][\w'’-]+ )"
)
_BACKCHANNEL = re.compile(
    r"(?:(?:oh|ah|yeah|yep|yes|no|nope|ok|okay|mm|hm+|uh|um|cool|nice|right|sure|great|mm-hmm|uh-huh)\b[\s,.!?-]*)+",
    re.I,
)
_BREAKS_OFF = re.compile(
    r"(?:[,\-–(\[]|\b(?:and|or|but|the|a|an|of|where|which|than|my|our|your|their|into)|\b(?:uh|um|uhm))[\s.!]*$", re.I
)
_BEGINS_ANEW = re.compile(r"(?<=[a-z] )(?:And|But|If|It|We|You|They|That|This|Yeah|Oh|Well|So|He|She|What)(?= )")
_CODE = re.compile(  # of a tool's output: how a statement of Python begins or ends
    r"^\w+: (?:\d+[\s:]+)?(?:(?:def|class|return|import|from|if|elif|else|for|while|try|except|raise|with|self\.\w+|@\w+|#)\b"
    r"|\W*\w+ = |.*[({:]$)"
)
_OF_A_FILE = re.compile(r"assistant called (?:read|edit|write)_file: ")
_FILE_NAME = re.compile(r"[\w/]+\.\w{1,5}\b")
_SHORT_SENTENCE = 3  # words: with fewer a line says next to nothing


@dataclass(frozen=True, slots=True)
class Faults:
    """Of the lines of summaries, how many have each fault, and examples of each."""

    lines: int = 0
    stamps: tuple[str, ...] = ()
    fragments: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    without_subject: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    without_file: tuple[str, ...] = ()

    def __add__(self, other: Faults) -> Faults:
        return Faults(
            self.lines + other.lines,
            self.stamps + other.stamps,
            self.fragments + other.fragments,
            self.doubled + other.doubled,
            self.without_subject + other.without_subject,
            self.code + other.code,
            self.without_file + other.without_file,
        )


def faults(summary: str) -> Faults:
    """What is wrong with the lines of a summary."""
    lines = [x for x in summary.splitlines() if x.strip() and x not in _HEADINGS]
    said = [_REFERENCE.sub("", line.removeprefix("- ")) for line in lines]
    outputs = summary.partition(f"{_HEADINGS[2]}\n")[2].partition(STATE_HEADING)[0].splitlines()
    from_tools = [_REFERENCE.sub("", line.removeprefix("- ")) for line in outputs]
    return Faults(
        len(said),
        tuple(x for x in said if _is_stamp(x)),
        tuple(x for x in said if _is_fragment(x)),
        tuple(x for x in said if _DOUBLED.search(x)),
        tuple(x for x in said if not _has_subject(x)),
        tuple(x for x in from_tools if _CODE.search(x)),
        tuple(x for x in said if _OF_A_FILE.match(x) and not _FILE_NAME.search(x)),
    )


def _is_stamp(line: str) -> bool:
    """Tells whether nothing is left of a line without its time and the name before a colon."""
    return not _WORD.search(_SPEAKER.sub("", _STAMP.sub("", line, count=1))) and not any(
        c.isdigit() for c in _value(line)
    )


def _value(line: str) -> str:
    return _STAMP.sub("", _SPEAKER.sub("", line))


def _is_fragment(line: str) -> bool:
    """Tells whether a line has too few words, and no value that would make it a field of its speaker, breaks off or falters.

    A name behind the speaker's is none of its words.
    """
    text = _SPEAKER.sub("", line)
    words = _WORD.findall(text)
    if _BREAKS_OFF.search(text.strip()) or len(_BEGINS_ANEW.findall(text)) > 1:
        return True
    if _BACKCHANNEL.fullmatch(_SPEAKER.sub("", text)):
        return True
    if any("\u3040" <= c <= "\u9fff" for c in text):
        return len(text) < 5
    has_value = bool(words) and re.search(r"\d|\b[A-Z]{2,}\b", text) is not None
    return len(words) < _SHORT_SENTENCE and not (has_value and _SPEAKER.match(line))


def _has_subject(line: str) -> bool:
    """Tells whether a line says who speaks or which tool answers, or begins with a name, a pronoun or a noun with its article."""
    if _SPEAKER.match(line):
        return True
    return _SUBJECT.match(line) is not None


def chat_windows(count: int = WINDOWS_OF_CHAT, window: int = WINDOW) -> Iterator[tuple[str, str]]:
    """Windows of chats, each with its name: the sources in turn, from different conversations or parts of one."""
    for number in range(count):
        source, step = CHATS[number % len(CHATS)]
        rows = [(name, row) for name, row in _rows(source)]
        start = (number // len(CHATS) * step * PART // 4) % max(1, len(rows) - PART // 2)
        part = rows[start : start + PART]
        yield f"{source} from {part[0][0]}", _window([m for _, m in part], window)


def _rows(source: str) -> list[tuple[str, Message]]:
    return [
        (f"{conversation['id']} {row['id']}", _message(conversation, row))
        for conversation in _conversations(source)
        for row in conversation["messages"]
    ]


def _conversations(source: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder(source) / "conversations.json").read_text(encoding="utf-8"))
    return found


def _message(conversation: dict[str, Any], row: dict[str, Any]) -> Message:
    stamp = f"[{row['time']}] " if row.get("time") else ""
    text = f"{stamp}{row['name']}: {row['text']}" if row.get("name") else f"{stamp}{row['text']}"
    make = assistant if row["role"] == "assistant" else user
    return make(text, id=f"{conversation['id']}/{row['id']}")


def agent_windows(count: int = WINDOWS_OF_RUNS, window: int = WINDOW) -> Iterator[tuple[str, str]]:
    """Windows of agent runs, a few runs in one session each."""
    runs = tau()
    for number in range(count):
        first = number * RUNS_IN_ONE % (len(runs) - RUNS_IN_ONE)
        messages = [m for run in runs[first : first + RUNS_IN_ONE] for m in run.messages]
        yield f"tau_airline runs {first} to {first + RUNS_IN_ONE - 1}", _window(messages, window)


def coding_windows(window: int = WINDOW) -> Iterator[tuple[str, str]]:
    """Windows of coding agents, which have read, tried and changed modules that no rule was tuned on."""
    for number, work in enumerate(coding_logs.sessions("not looked at")):
        yield f"coding session {number}", _window(work.messages, window)


def _window(messages: Iterable[Message], window: int) -> str:
    with AgentContext(session_id="reader", context_window=window, counter=COUNTER) as context:
        for message in messages:
            context.add(message)
        return "\n\n".join(f"<{m.role} {m.kind}>\n{m.text}" for m in context.window().messages)


def answers_covered(source: str, window: int, *, part: slice = slice(None)) -> float:
    """The share of the words of an answer that the summary of its conversation has, the mean over questions of these conversations.

    Only questions of which some evidence was summarised count, and only words that the conversation has.
    """
    shares: list[float] = []
    for conversation in _conversations(source)[part]:
        messages = [_message(conversation, row) for row in conversation["messages"]]
        with AgentContext(session_id="reader", context_window=window, counter=COUNTER) as context:
            for message in messages:
                context.add(message)
            shown = context.window().messages
        said = frozenset(term for m in shown if m.kind == "summary" for term in terms(m.text))
        left = {m.id for m in shown}
        known = Counter(term for m in messages for term in frozenset(terms(m.text)))
        for question in conversation["questions"]:
            if all(f"{conversation['id']}/{each}" in left for each in question["evidence"]):
                continue
            words = frozenset(terms(str(question["answer"]))) & known.keys()
            weights = {word: math.log(1 + len(messages) / (1 + known[word])) for word in words}
            if weights:
                shares.append(math.fsum(weights[w] for w in words & said) / math.fsum(weights.values()))
    return mean(shares)


def conclusions_kept(window: int, seeds: Iterable[int] = REPORTED_SEEDS) -> tuple[int, int]:
    """Returns how many of an agent's answers are in the last window, and how many it gave: each after one large tool output."""
    kept = given = 0
    for seed in seeds:
        answers: list[str] = []
        with AgentContext(context_window=window, counter=COUNTER) as ctx:
            for number, kind in enumerate(KINDS * 2):
                text = tool_text(kind, 100 * seed + number)
                call = ToolCallPart(f"c{number}", text.tool, text.arguments)
                answers.append(f"The {kind} says: {text.answer}")
                ctx.add(user(text.question, id=f"u{number}"))
                ctx.add(assistant("", id=f"a{number}", calls=[call]))
                ctx.add(
                    [
                        tool_result(call.id, text.text[:OUTPUT_CHARS], id=f"t{number}"),
                        assistant(answers[-1], id=f"b{number}"),
                    ]
                )
            # lines of a summary have single spaces
            shown = " ".join(word for message in ctx.window().messages for word in message.text.split())
        kept += sum(" ".join(answer.split()) in shown for answer in answers)
        given += len(answers)
    return kept, given


def summary_of(window: str) -> str:
    """The summary in a window that `_window` made, "" where nothing was summarised."""
    match = re.search(r"<\w+ summary>\n(.*?)(?=\n\n<\w+ \w+>\n|\Z)", window, re.S)
    return match[1] if match else ""


def run(*, quick: bool = False) -> list[Sheet]:
    """A row each for chats, agent runs and coding agents. The windows go to the file that CTXFOLD_READER_FILE names."""
    count = 4 if quick else WINDOWS_OF_CHAT
    rows: list[tuple[Cell, ...]] = []
    written: list[str] = []
    for kind, windows in (
        ("chat", chat_windows(count)),
        ("agent runs", agent_windows(2 if quick else WINDOWS_OF_RUNS)),
        ("coding agents", islice(coding_windows(), 1 if quick else None)),
    ):
        total = Faults()
        shown = 0
        for name, window in windows:
            shown += 1
            total += faults(summary_of(window))
            written.append(f"=== {name}\n{window}\n")
        share = f"{len(total.without_subject) / max(1, total.lines):.3f}"
        faulty = map(len, (total.stamps, total.fragments, total.doubled, total.code, total.without_file))
        rows.append((kind, shown, total.lines, *faulty, share))
    if path := os.environ.get(FILE):
        Path(path).write_text("\n".join(written), encoding="utf-8")
    return [
        Sheet(
            f"Summaries without a model as a reader sees them, windows of {WINDOW:,} tokens",
            (
                "windows of",
                "windows",
                "lines",
                "bare stamps",
                "fragments",
                "doubled punctuation",
                "lines of code",
                "calls without their file",
                "share without subject",
            ),
            tuple(rows),
            f"Targets: 0 of each, less than 0.05. {FILE}=FILE writes the windows whole.",
        ),
        _answers(quick=quick),
        _conclusions(quick=quick),
    ]


def _answers(*, quick: bool) -> Sheet:
    windows = WINDOWS_OF_ANSWERS[1:2] if quick else WINDOWS_OF_ANSWERS
    return Sheet(
        "Share of the words of answers that summaries without a model have",
        ("questions of", *(f"window {window:,}" for window in windows)),
        tuple(
            (source, *(f"{answers_covered(source, window, part=part):.3f}" for window in windows))
            for source, part in (ANSWERS[:1] if quick else ANSWERS)
        ),
        "Rare words count more. A summary has about a tenth of the window.",
    )


def _conclusions(*, quick: bool) -> Sheet:
    rows = [(window, *conclusions_kept(window, REPORTED_SEEDS[: 1 if quick else None])) for window in WINDOWS_OF_LOGS]
    return Sheet(
        "Answers of an agent, each about one large tool output, that the last window still has",
        ("window", "in the window", "of"),
        tuple((f"{window:,}", kept, given) for window, kept, given in rows),
        f"Sessions of {2 * len(KINDS)} outputs, made by seeds that were not tuned on; summaries without a model.",
    )
