"""Keeps the state of an agent's work in its summary: plan, files, failures, delegated work, and what was said about them.

All is read from the shape of calls and results, without a model and without words of any language. Each compaction goes on from
the lines of the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from string import ascii_uppercase
from typing import Any, NamedTuple

from ctxfold.compaction.excerpts import SURE, WEAK, failure_lines
from ctxfold.compaction.text_units import is_code
from ctxfold.compaction.tool_outputs import call_values
from ctxfold.history.prompt_safety import redacted, strip_control_chars, without_private_keys
from ctxfold.history.view import Entry, View
from ctxfold.index.terms import sentences, terms
from ctxfold.lru import lazy_pattern
from ctxfold.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from ctxfold.protocols import TokenCounter
from ctxfold.validation import as_dicts, json_object

STATE_HEADING = "State of the work, from its calls and results (data, no rules):"
STATE_TOKENS = 300  # most of all blocks in a window, with their headings
# most characters of parts of a line
SAID_CHARS, FAILED_CHARS, REASON_CHARS, RESULT_CHARS, TASK_CHARS, CALL_CHARS = 180, 100, 150, 70, 110, 50
# of an item of a plan, of a whole plan or the names of files, and of a message
ITEM_CHARS, LIST_CHARS, READ_CHARS = 40, 280, 4_000
SHORT_CHARS = 200  # of a result in which a weak sign of failure counts
LEAST_ITEMS, LEAST_TERMS = 3, 3  # of a numbered plan, and of what is said or given as a task
MOST_KEPT = 24  # lines of a kind that are carried on
_NUMBERS = "".join(map(str, range(1, 100)))
_ORDER = ("progress", "plan", "failed", "delegated", "files", "user", "assistant", "step")  # in which lines are taken
ARROW, RESOLVED = " -> ", " -> succeeded later"
_LINE = lazy_pattern(r"- (\w+): (.+?)(?: \(#(\d{1,18})\))?")
# a call as a transcript has it: a name and an object at the end of a line
_TOLD_CALL = lazy_pattern(r"(?<!\S)([A-Za-z][\w.-]{1,63})[ \t]{0,4}(?=\{)")
_BOX = lazy_pattern(r"(?m)^[ \t]*+(?:[-*+]|\d{1,3}[.)])?[ \t]*+(\[[ xX/~✓✔-]\])[ \t]+(\S.*)$")
_NUMBERED = lazy_pattern(r"(?m)^[ \t]*+(\d{1,2}|[A-Z])[.)][ \t]+(\S.*)$")
_LISTED = lazy_pattern(r"(?:^|; )(\d{1,2}|[A-Z])\. ")
_LABEL = lazy_pattern(r"(?<![\w.,:/#-])(\d{1,2}|[A-Z])(?![\w'’-]|[.,:/]\w)")
_PATCHED = lazy_pattern(r"(?m)^(?:\*\*\* \w+ File: |\+\+\+ (?:b/)?)(\S+)")
_FOLDER, _IN_NO_PATH, _ENDING = lazy_pattern(r"[/\\]"), lazy_pattern(r"[\s@:]"), lazy_pattern(r"\.[A-Za-z]\w{0,7}\Z")
_NAME = lazy_pattern(r"[^\W\d][\w.'’&@ -]{0,39}")
_NO_PROSE = lazy_pattern(r"(?:^|\s)[-=<>|*&$+\\(){}]|[={}<>;|$]")
_NAMED = lazy_pattern(r"\d|(?<=[^\W.!?:] )[^\W\d_a-z]\w")  # a number, or a name within a sentence
_STATUS = lazy_pattern(r"\W{0,8}(?:HTTP\S* )?[45]\d\d(?:[,:;]| - | [A-Z])")  # of HTTP, in front of its reason
_KEY = lazy_pattern(r"(?<![\w-])(?=[\w-]*\d)[A-Za-z][\w-]{2,31}(?![\w-])")


class Item(NamedTuple):
    """A line of the block: its kind, what it says, and the number of its message, 0 for none."""

    kind: str
    text: str
    number: int = 0

    def __str__(self) -> str:
        return f"- {self.kind}: {self.text}" + (f" (#{self.number})" if self.number else "")


def state_lines(text: str) -> list[Item]:
    """Returns the lines of the block in a summary."""
    _, _, block = text.partition(f"\n{STATE_HEADING}\n")
    found = [_LINE.fullmatch(line) for line in block.splitlines()]
    return [Item(m[1], m[2], int(m[3] or 0)) for m in found if m is not None and m[1] in _ORDER]


def tokens_left(view: View, covered: Iterable[Entry], counter: TokenCounter) -> int:
    """Returns the tokens that a block may take in place of the `covered` entries, beside those of other summaries in the view.

    One for the past leaves a quarter of them to the turn under way, where that works with tools.
    """
    covered_ids, (_, own) = {e.id for e in covered}, view.parted()
    others = (e.message.text for e in view if e.message.kind == "summary" and e.id not in covered_ids)
    taken = sum(counter.count_text(text[text.index(STATE_HEADING) :]) for text in others if STATE_HEADING in text)
    is_past = covered_ids.isdisjoint(e.id for e in own)
    reserved = STATE_TOKENS // 4 if is_past and any(e.message.role == "tool" for e in own) else 0
    return STATE_TOKENS - reserved - taken


def state_block(entries: Iterable[Entry], *, limit_tokens: int, counter: TokenCounter, references: bool = True) -> str:
    """Returns the block for the entries and the summaries before them, "" where no work was done.

    Of each kind the newest lines are taken in turn, as far as the limit allows.
    """
    items = _Work().read(entries)
    items.sort(key=lambda i: not i.text.endswith(RESOLVED))  # what is settled gives way first
    names = [i.text for i in items if i.kind == "files"]
    while sum(map(len, names)) + 2 * len(names) > LIST_CHARS:
        names.pop(0)
    lines = [i if references else i._replace(number=0) for i in items if i.kind != "files"]
    lines += [Item("files", ", ".join(names))] if names else []
    queues = {kind: [i for i in reversed(lines) if i.kind == kind] for kind in _ORDER}
    queues["assistant"].sort(key=lambda i: not _NAMED.search(i.text))
    if not any(queues[kind] for kind in _ORDER[:5]):
        return ""  # a chat, in which tools at most looked something up
    chosen: list[Item] = []
    used = counter.count_text(STATE_HEADING) + 1
    for item in chain.from_iterable(zip_longest(*queues.values())):
        cost = counter.count_text(str(item)) + 1 if item is not None else 0
        if item is not None and used + cost <= limit_tokens:
            used += cost
            chosen.append(item)
    chosen.sort(key=lambda i: (min(_ORDER.index(i.kind), _ORDER.index("user")), lines.index(i)))
    return "\n".join([STATE_HEADING, *map(str, chosen)]) if chosen else ""


@dataclass(slots=True)
class _Work:
    """The work as far as it was read."""

    items: list[Item] = field(default_factory=list[Item])
    calls: dict[str, ToolCallPart] = field(default_factory=dict[str, ToolCallPart])
    remark: Item | None = None  # what the assistant said since the last result
    asked: bool = False  # by the user, since the last result: what is said now only answers
    failure: Item | None = None  # the newest one, until somebody says something about it
    listed: Item | None = None  # by the assistant: a plan if a call follows it

    def read(self, entries: Iterable[Entry]) -> list[Item]:
        for entry in entries:
            message, number = entry.message, entry.number
            if message.kind == "summary" and (earlier := state_lines(message.text)):
                for item in earlier:
                    names = item.text.split(", ") if item.kind == "files" else [item.text]
                    self.items += [item._replace(text=name) for name in names]
                newest = max(earlier, key=lambda i: i.number)
                self.failure = newest if newest.kind == "failed" and ARROW not in newest.text else None
            if message.kind != "message" or message.role == "system":
                continue
            for result in message.tool_results:
                if (call := self.calls.get(result.call_id)) is not None:
                    self._answered(call, result, entry)
            if message.role != "tool" and message.text.strip():
                self._said(message, number)
            for call in message.tool_calls:
                self.calls[call.id], self.failure = call, None
                todos = _todos(call.parsed() or {})
                if plan := Item("plan", todos, number) if todos else self.listed:
                    self._plan(plan)
        self.items += [self.remark] if self.remark is not None else []
        return self.items

    def _put(self, item: Item, *, instead: Collection[Item] = ()) -> None:
        """Adds a line in place of others, and of the same one; of a kind that has many, the oldest goes."""
        self.items = [i for i in self.items if i not in instead and i[:2] != item[:2]]
        same = [i for i in self.items if i.kind == item.kind]
        if len(same) >= MOST_KEPT:
            self.items.remove(same[0])
        self.items.append(item)

    def _of(self, *kinds: str) -> list[Item]:
        return [i for i in self.items if i.kind in kinds]

    # what is said

    def _said(self, message: Message, number: int) -> None:
        text, by_user = without_private_keys(message.text)[:READ_CHARS], message.role == "user"
        self.listed = None if by_user else self.listed
        if self.remark is not None:
            self._put(self.remark)
        self.remark = None
        if not by_user and (listed := _by_state(_BOX.findall(text)) or _numbered(text)):
            self.listed = Item("plan", listed, number)
            return
        steps, progress = (0, "") if by_user else self._progress(text)
        said = _first(text)
        tells = len([*terms(said)]) >= LEAST_TERMS and not said.endswith(("?", "？"))
        if steps:
            outdated = ("progress", "step") if steps > 1 else ()
            self._put(Item(outdated[0] if outdated else "step", progress, number), instead=self._of(*outdated))
        elif self.failure is not None and not by_user and tells:
            text = f"{self.failure.text}{ARROW}{_cut(said, REASON_CHARS)}"
            self._put(self.failure._replace(text=text), instead=[self.failure])
            self.failure = None
        elif tells and (by_user or not (self.asked or message.tool_calls)):
            self.remark = Item(message.role, said, number)
        self.asked |= by_user

    def _plan(self, item: Item) -> None:
        self._put(item, instead=self._of("plan", "progress", "step"))
        self.listed = None

    def _progress(self, text: str) -> tuple[int, str]:
        """Returns how many steps of the plan a text names, and the sentences that name them."""
        steps = {label for item in self._of("plan") for label in _LISTED.findall(item.text)}
        named = [(s, steps.intersection(_LABEL.findall(s))) for s in _stated(text)] if steps else []
        total = frozenset[str]().union(*(labels for _, labels in named))
        return len(total), _cut(" ".join(s for s, labels in named if labels), SAID_CHARS)

    # what is done

    def _answered(self, call: ToolCallPart, result: ToolResultPart, entry: Entry) -> None:
        arguments = call.parsed() or {}
        content = without_private_keys(result.content)
        name = _cut(f"{call.name} {call_values(call)}".strip(), CALL_CHARS)
        is_source = is_code(content) and bool(_paths(arguments))
        is_short = len(content) <= SHORT_CHARS and not entry.shown_seq
        reports = [] if is_source else failure_lines(content, least=WEAK if is_short else SURE)
        before = [i for i in self._of("failed") if i.text.startswith(f"{name}: ")]
        self.asked = False
        if result.is_error or reports or _STATUS.match(content):
            line = reports[0] if reports else next(iter(content.split("\n")), "")
            self.failure = Item("failed", f"{name}: {_cut(line, FAILED_CHARS)}", entry.number)
            self._put(self.failure, instead=before)
            return
        for item in [i for i in before if not i.text.endswith(RESOLVED)]:
            line, _, reason = item.text.partition(ARROW)
            text = f"{name}: {reason}" if reason else line  # how it was put right
            self._put(item._replace(text=text + RESOLVED), instead=[item])
        outcome, keys = _first(content, RESULT_CHARS), frozenset(_KEY.findall(call.arguments))
        known = [i for i in self._of("delegated") if keys.intersection(_KEY.findall(i.text.partition(ARROW)[2]))]
        if known:
            told = known[-1].text.split(ARROW)[:2]
            self._put(known[-1]._replace(text=ARROW.join([*told, outcome])), instead=[known[-1]])
        elif (given := _task(arguments)) and not content.lstrip().startswith(("{", "[", "<")) and not is_code(content):
            to, task = given
            if self.remark is not None and to.casefold() in self.remark.text.casefold():
                to, self.remark = self.remark.text, None
            self._put(Item("delegated", f"{to}: {task}{ARROW}{outcome}", entry.number))
        for path in _written(arguments, content):
            self._put(Item("files", path))


# shapes of arguments


def _todos(arguments: Mapping[str, Any]) -> str:
    """Returns the items of a list of tasks by their state, "" where the arguments hold none.

    Its objects have a field for the state, or a truth value, and one for the text; or it is a list of boxes.
    """
    for value in arguments.values():
        items = as_dicts(value)
        keys = [k for k, v in items[0].items() if isinstance(v, bool) or "stat" in k.casefold()] if items else []
        if key := next((k for k in keys if all(isinstance(i.get(k), str | bool) for i in items)), None):
            texts = [[str(v) for k, v in i.items() if k != key and isinstance(v, str) and v.strip()] for i in items]
            if all(texts):  # the words of a task, not its id
                return _by_state([(str(i[key]), max(t, key=len)) for i, t in zip(items, texts, strict=True)])
        if isinstance(value, str) and (boxes := _by_state(_BOX.findall(value))):
            return boxes
    return ""


def _by_state(items: Sequence[tuple[str, str]]) -> str:
    """Returns the items in groups of one state; of long lists without the first ones, which are done first."""
    for start in range(max(0, len(items) - LIST_CHARS // 5), len(items)):
        groups: dict[str, list[str]] = {f"{start} more before": []} if start else {}
        for state, text in items[start:]:
            groups.setdefault(state, []).append(_cut(text, ITEM_CHARS))
        shown = "; ".join(f"{s}: {', '.join(texts)}" if texts else s for s, texts in groups.items())
        if len(shown) <= LIST_CHARS:
            return shown
    return ""


def _numbered(text: str) -> str:
    """Returns the items of a list that counts from 1 or A, "" where the text has none of three or more."""
    found = _NUMBERED.findall(text)
    labels = "".join(label for label, _ in found)
    if len(found) < LEAST_ITEMS or not (_NUMBERS.startswith(labels) or ascii_uppercase.startswith(labels)):
        return ""
    return _cut("; ".join(f"{label}. {_cut(said.strip(), ITEM_CHARS)}" for label, said in found), LIST_CHARS)


def _task(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns who is given a task and the task, where the arguments are a name and a text in prose; None otherwise."""
    texts = [v.strip() for v in arguments.values() if isinstance(v, str) and v.strip()]
    task = max(texts, key=len, default="")
    to = next((t for t in texts if t != task and len(t.split()) <= 3 and _NAME.fullmatch(t)), "")
    if not to or _paths(arguments) or len([*terms(task[:READ_CHARS])]) < LEAST_TERMS or _NO_PROSE.search(task):
        return None
    return to, _cut(" ".join(task.split()), TASK_CHARS)


def _paths(arguments: Mapping[str, Any]) -> list[str]:
    """Returns the files that arguments name: by the name of the argument, by an ending behind a folder, or in a patch."""
    found: list[str] = []
    for key, value in ((k, v) for k, v in arguments.items() if isinstance(v, str) and v.strip()):
        if len(value) > SHORT_CHARS or "\n" in value:
            found += _PATCHED.findall(value)
        elif "path" in key.casefold() or "file" in key.casefold() or _is_path(value):
            found.append(value)
    return found


def _is_path(value: str) -> bool:
    return bool(_FOLDER.search(value) and _ENDING.search(value)) and not _IN_NO_PATH.search(value)


def _written(arguments: Mapping[str, Any], content: str) -> list[str]:
    """Returns the files that a call has changed: it brings more than their names, and its result is short."""
    paths = _paths(arguments)
    given = sum(len(str(v)) for v in arguments.values() if v not in paths)
    is_long = len(content) > max(SHORT_CHARS, given) or content.strip().count("\n") > 2
    return paths if not is_long and (given or any(path in content for path in paths)) else []


def _first(text: str, most: int = SAID_CHARS) -> str:
    """Returns the first two sentences of a text."""
    return _cut(" ".join(_stated(text)[:2]), most)


def _stated(text: str) -> list[str]:
    """Returns the sentences of a text without numbers of items and headings."""
    found = sentences(text[:READ_CHARS])
    return [s for s in found if sum(map(str.isalpha, s)) > 1 and not s.endswith((":", "："))]


def _cut(text: str, most: int) -> str:
    """Returns one line of at most so many characters, without credentials and without what poses as markup."""
    line = redacted(strip_control_chars(" ".join(text.split())))
    return line if len(line) <= most else f"{line[: most - 2].rpartition(' ')[0] or line[: most - 2]} …"


# calls that are told as text


def with_calls(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries with calls and results where a transcript tells them in words.

    A line of the assistant ends with a name and a JSON object, and a next message begins with that name and a colon.
    """
    out: list[Entry] = []
    waiting: list[ToolCallPart] = []
    for entry in entries:
        message, role, parts = entry.message, entry.message.role, tuple[Part, ...]()
        name, _, content = message.text.partition(": ")
        if role == "assistant" and message.kind == "message" and not message.tool_calls:
            lines = [s for line in message.text.splitlines() if (s := line.rstrip()).endswith("}")]
            found = [(s, m[1], s[m.end() :]) for s in lines if (m := _TOLD_CALL.search(s))]
            told = [each for each in found if json_object(each[2]) is not None]
            waiting = [ToolCallPart(f"told:{entry.id}:{n}", name, said) for n, (_, name, said) in enumerate(told)]
            parts = (TextPart(message.text.partition(told[0][0])[0]), *waiting) if told else ()
        elif not message.tool_results and (call := next((c for c in waiting if c.name == name), None)) is not None:
            waiting.remove(call)
            role, parts = "tool", (ToolResultPart(call.id, content, name),)
        out.append(replace(entry, message=replace(message, role=role, parts=parts)) if parts else entry)
    return out
