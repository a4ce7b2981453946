"""Recalls passages of compacted messages into the window of a request, and decides which older turns give way to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice, pairwise

from ctxfold.effects import Flow, StoreQuery
from ctxfold.history.cuts import kept, legal_cuts
from ctxfold.history.view import Entry, View
from ctxfold.index.cache import Chunk
from ctxfold.messages import Message, TextPart, is_question
from ctxfold.policy.settings import SMALL_TOKENS, Policy
from ctxfold.protocols import Ports
from ctxfold.retrieval.embeddings import near_chunks
from ctxfold.retrieval.loss import lost_question
from ctxfold.retrieval.passages import Passage, chosen, render, tokens_of
from ctxfold.retrieval.search import asked_in, search
from ctxfold.state import RequestText, Session, Stage

_log = logging.getLogger("ctxfold")

# largest budget in which older turns give way to recall, since what follows the gap is not cached
GIVES_WAY_TOKENS = 8_192
# where so much of recall's share is free, or all of it, nothing gives way: a question about long messages needs some ten
ENOUGH_TOKENS = 1_600
# with tools, one part in so many of the budget stays free: the turn's next tool rounds then keep the prefix
FREE_PART = 8
NEWEST = 16  # messages among which a tool's result tells that the model works with tools
# tool rounds after which recall ends: passages stand at the end, so they are new to the cache each time
RECALL_ROUNDS = 8
NOTHING_FOUND = RequestText("", 0, "")


class PassageFitter:
    """Fits passages into the windows of sessions."""

    def __init__(self, ports: Ports, count_text: Callable[[str], int]) -> None:
        self.ports = ports
        self.count_text = count_text

    def fit(
        self,
        session: Session,
        stage: Stage,
        question: Message,
        room_tokens: int,
        *,
        whole_tail: bool,
    ) -> Flow[tuple[View, RequestText]]:
        """Returns the view with passages for the question; older turns of the tail may give way to them.

        They give way where the archive matches the question about as well as they do, and only in this request: nothing is
        compacted. The newest of them that fit beside the passages stay; with `whole_tail` all of them do.
        """
        view, count = stage.view, self.count_text
        if not self._may_recall(session, stage, question):
            return view, NOTHING_FOUND
        stage, question = _with_lost(stage, question)
        rules = stage.rules
        known = session.request_text(question.id, question)
        if whole_tail:
            keep = known is None or not known.hidden
            return view, (yield from self.recall(session, stage, question, room_tokens, keep=keep))
        if known is not None and known.hidden:
            missing = [e for e in view.live if e.seq in known.hidden]
            fits = count(known.text) <= min(rules.recall_share_tokens, room_tokens + sum(e.tokens for e in missing))
            # a message may have been pinned within the turn
            if fits and not any(e.id in session.pins for e in missing):
                return view.with_live(e for e in view.live if e.seq not in known.hidden), known
        turns = _older_tail(session, stage, room_tokens) if known is None or known.hidden else []
        if older := [e for turn in turns for e in turn]:
            room = room_tokens + sum(e.tokens for e in older) - _kept_free(session, stage)
            share = min(rules.recall_share_tokens, room)
            if passages := (yield from self._found(session, stage, question, share, older)):
                staying = _fitting(turns, room - tokens_of(passages, self.ports.counter))
                hidden = frozenset(e.seq for e in older) - {e.seq for e in staying}
                numbers = {e.number for e in staying if not e.shown_seq}
                shown = [p for p in passages if p.number not in numbers]
                text = render(shown, references=rules.references)
                found = session.keep_request_text(question.id, question, text, hidden, _numbers(shown))
                return view.with_live(e for e in view.live if e.seq not in hidden), found
        return view, (yield from self.recall(session, stage, question, room_tokens))

    def _may_recall(self, session: Session, stage: Stage, question: Message) -> bool:
        """Tells whether there is an archive to recall from, and fewer than eight tool rounds have followed the question.

        What a longer run still needs, it has said or can look up.
        """
        state = session.state
        return bool(state.compactions or state.excerpts) and _rounds_after(question, stage.view) < RECALL_ROUNDS

    def recall(
        self, session: Session, stage: Stage, question: Message, room_tokens: int, *, keep: bool = True
    ) -> Flow[RequestText]:
        """Returns passages of compacted messages for the question, within the policy's share and the room left.

        They stay the same all turn long, unless less room is left for them. Without `keep`, the turn's requests keep theirs.
        """
        if not self._may_recall(session, stage, question):
            return NOTHING_FOUND
        stage, question = _with_lost(stage, question)
        share = min(stage.rules.recall_share_tokens, room_tokens)
        if share <= 0:
            return NOTHING_FOUND
        known = session.request_text(question.id, question)
        if known is not None and not known.hidden and self.count_text(known.text) <= share:
            return known
        passages = yield from self._found(session, stage, question, share)
        text = render(passages, references=stage.rules.references)
        if keep:
            return session.keep_request_text(question.id, question, text, numbers=_numbers(passages))
        return RequestText(question.text, session.state.edits, text, numbers=_numbers(passages))

    def _found(
        self,
        session: Session,
        stage: Stage,
        question: Message,
        share_tokens: int,
        older: Sequence[Entry] = (),
    ) -> Flow[tuple[Passage, ...]]:
        """Returns the passages that bear on the question, from the archive and from `older`, which are messages of the tail.

        Returns none where `older` matches the question better than the archive does, and none where the conversation works with
        tools and the question does not reach back: each round would send the passages anew.
        """
        view = stage.view
        tail = {e.seq for e in older}
        visible = session.state.out_of_recall({e.seq for e in view if not e.shown_seq and e.seq not in tail})
        likeness = yield from _near(session, asked_in(question.text), visible, older)
        now_s, counter = self.ports.clock.now_s(), self.ports.counter

        def read() -> Flow[tuple[Passage, ...]]:
            matches = yield from search(
                session.key,
                question.text,
                budget_tokens=stage.rules.recall_share_tokens,
                visible=visible,
                likeness=likeness,
                readings=session.passage_cache,
                older=older,
                context=_dialogue_with_excerpts(view, tail),
                reaching=any(e.message.role == "tool" for e in islice(view.newest_first(), NEWEST)),
            )
            return (yield from chosen(matches, share_tokens, counter, now_s=now_s))

        return (yield from StoreQuery(read()))


def _numbers(passages: Sequence[Passage]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(p.number for p in passages))


def _with_lost(stage: Stage, question: Message) -> tuple[Stage, Message]:
    """Returns rules with twice the share, and a question that asks for what the newest reply says is missing, if it does."""
    lost, rules = lost_question(stage.view), stage.rules
    if not lost or question.text.startswith(f"{lost}\n"):
        return stage, question
    twice = {"recall_ratio": 2 * rules.recall_ratio, "recall_tokens": 2 * rules.recall_tokens}
    both = replace(question, parts=(TextPart(f"{lost}\n{question.text}"),))
    return replace(stage, rules=rules.model_copy(update=twice)), both


def _dialogue_with_excerpts(view: View, tail: Container[int]) -> list[Entry]:
    """Returns the users' and models' messages before the question, if some tool output there is shown as an excerpt.

    Messages of the `tail` that may give way are left out.
    """
    before, _ = view.parted()
    if not any(e.shown_seq for e in before):
        return []
    dialogue = (e for e in before if e.message.role in ("user", "assistant") and e.message.kind == "message")
    return [e for e in dialogue if not e.shown_seq and e.seq not in tail]


def _older_tail(session: Session, stage: Stage, room_tokens: int) -> list[Sequence[Entry]]:
    """Returns the turns that may give way to recall: all but the newest ones, which fit in `_kept_tokens`.

    The newest turn stays too, unless it takes more than half of the budget, and so does a turn with a message that has to stay.
    Nothing gives way in a large window, or where the room that is left is enough: see ENOUGH_TOKENS.
    """
    view, rules = stage.view, stage.rules
    share_tokens = rules.recall_share_tokens
    if room_tokens >= min(ENOUGH_TOKENS, share_tokens) or rules.budget_tokens > GIVES_WAY_TOKENS:
        return []
    entries = [*view.parted()[0]]
    cuts = legal_cuts(entries)
    starts = [at for at, entry in enumerate(entries) if entry.message.role == "user" and at in cuts]
    tokens = list(accumulate((e.tokens for e in reversed(entries)), initial=0))[::-1]  # from each place to the end
    end = next((at for at in starts if tokens[at] <= _kept_tokens(rules)), len(entries))
    if starts and tokens[starts[-1]] <= rules.budget_tokens // 2:
        end = min(end, starts[-1])
    stay = kept(entries, pins=session.pins, question=False)
    turns = [entries[a:b] for a, b in pairwise([0, *(at for at in starts if 0 < at < end), end])]
    return [turn for turn in turns if turn and not any(e.id in stay for e in turn)]


def _kept_tokens(rules: Policy) -> float:
    """Returns the tokens of the newest turns that never give way: half of the tail's share of the budget, more in larger windows.

    With the defaults a tenth of a budget of 1,600, a fifth of 3,200 and three tenths of 6,400.
    """
    return rules.tail_ratio * max(rules.budget_tokens / 2, 2 * (rules.budget_tokens - SMALL_TOKENS))


def _kept_free(session: Session, stage: Stage) -> int:
    """Returns the tokens that passages and staying turns leave to the results of the turn's next tool rounds; 0 in a chat.

    A conversation counts as a chat when no tools are sent with it, and none of its messages is a tool's result.
    """
    tools = session.overhead_tokens or any(e.message.role == "tool" for e in stage.view)
    return stage.rules.budget_tokens // FREE_PART if tools else 0


def _fitting(turns: Sequence[Sequence[Entry]], room_tokens: int) -> list[Entry]:
    """Returns the messages of the newest turns that fit."""
    fitting: list[Entry] = []
    for turn in reversed(turns):
        room_tokens -= sum(e.tokens for e in turn)
        if room_tokens < 0:
            break
        fitting += turn
    return fitting


def _near(session: Session, query: str, visible: Container[int], older: Sequence[Entry]) -> Flow[Mapping[Chunk, float]]:
    """Returns how near chunks of the archive are to the query in meaning; nothing where the embedder fails."""
    try:
        return (yield from near_chunks(session, query, visible=visible, older=older))
    except Exception as error:  # noqa: BLE001 - somebody else's embedder: reported, and the turn goes on
        _log.warning("recall goes by words alone, the embedder failed: %r", error)
        return {}


def _rounds_after(question: Message, view: View) -> int:
    """Returns how many tool rounds follow the question, at most RECALL_ROUNDS; 0 when it is not the newest or not stored."""
    rounds = 0
    for entry in view.newest_first():
        if is_question(entry.message):
            return rounds if entry.id == question.id else 0
        rounds += bool(entry.message.tool_calls)
        if rounds == RECALL_ROUNDS:
            break
    return rounds
