"""Searches the archive of a session for the messages that bear on a question.

Messages are ranked by BM25, with the terms of those nearby, and by meaning where there is an embedder. Tool calls are part of their
message. A message that an edit removes from the view stays searchable and is not recalled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from math import fsum, log

from ctxfold.effects import Flow, StoreCall, off_loop
from ctxfold.history.records import SessionKey
from ctxfold.history.view import Entry
from ctxfold.index.cache import Chunk, LiveIndex, PassageCache, Reading, stamp
from ctxfold.index.terms import query_terms
from ctxfold.lru import lazy_pattern
from ctxfold.protocols import Store
from ctxfold.retrieval.bm25 import K1, B, Ranked, Ranking, best_first, ranked, sizes
from ctxfold.state import index_terms, searchable_chars

LEAST_CANDIDATES, MOST_CANDIDATES = 24, 256  # messages that are read; between the two, as many as the budget may hold
BEST_MESSAGES = 24  # whose neighbours are looked up
REACH = 8  # records on either side in which the neighbours of a message are looked for
# of the terms of the next message, for a message of no terms; it falls with each step, to none after REACH
NEIGHBOUR_WEIGHT = 0.25
LEAST_FREQUENCY = 1e-6  # of a term in a message with those nearby; less is a rounding error
HALF_TERMS = 60  # a message of so many terms takes half of that from its neighbours: it says more by itself
LIKENESS_WEIGHTS = (0.7, 0.45, 0.22)  # of the likeness of the messages one, two and three steps away, in the same way
MEANING_WEIGHT = 0.5  # of the likeness of meaning, where there is an embedder; the rest goes by words
# of the weight of the query's terms: a question of which no archived message has so much is not about them
REACHES_BACK_SHARE = 0.3
CHECKED_MESSAGES = 8  # best messages in which these terms are looked for
STEPS_BEFORE = 3  # records before such a message, whose terms count as its own
HALF_WEIGHT = log(2)  # of a term that half of all messages have
LONG_NUMBER = 3  # digits; a shorter one stands in most calls and outputs by chance
# of the visible messages of a role: a term that more of them have says nothing about the outputs beside them
RARE_SHARE = 0.25
# of the best score among older messages of the tail: from here on a question is about the archive too
ARCHIVE_SHARE = 0.7
AGE_WEIGHT = 0.04  # of the best score: what a message loses each time that its distance grows e times
RECENT_MESSAGES = 50  # added to the distance: among the newest ones age counts little
ASIDE_WEIGHT = 0.25  # of a term that stands in the question's message, but in none of the sentences that ask
_QUESTION_MARKS = ("?", "？", "؟")
_PARTS = lazy_pattern(r"(?<=[.!?؟])[\"'”’»)\]]*\s+|(?<=[。！？])[”’」』）]*|\n+|[\"'”’»)\]]*\Z")
LEAST_SHARE = 0.15  # of the best score; weaker messages are noise
TOKENS_PER_TERM, LINE_TOKENS = 2, 12  # to estimate the size of a message before it is read
# a message may be shown whole up to WHOLE_RATIO of the budget less OTHERS_TOKENS, and up to either of the other two in any case
WHOLE_RATIO, OTHERS_TOKENS = 0.5, 100
LEAST_WHOLE_RATIO, LEAST_WHOLE_TOKENS = 1 / 3, 96
BEGINNING_CHARS = 240  # of a message, in which it may point back
_POINTS_BACK = lazy_pattern(
    r"(?:(?:actually|also|and|because|but|no|oh|ok|okay|plus|so|then|well|yeah|yep|yes)\b[, ]*)*"
    r"(?:(?:after|apart|aside|because|before|besides|beyond|by|for|in addition|on top|other|speaking|with) "
    r"(?:(?:all|from|of|than|to) )?)?"
    r"(?:he|her|his|it|its|she|such|that|their|these|they|this|those)\b|[他她它这那]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Matches:
    """Holds the messages that a search found: their scores by seq, the best first, what was read, and the terms' weights."""

    scores: Mapping[int, float]
    readings: Mapping[int, Reading]
    weights: Mapping[str, float]
    likeness: Mapping[Chunk, float]


def search(
    key: SessionKey,
    query: str,
    *,
    budget_tokens: int,
    visible: Container[int],
    likeness: Mapping[Chunk, float] | None = None,
    readings: PassageCache | None = None,
    older: Sequence[Entry] = (),
    context: Sequence[Entry] = (),
    reaching: bool = False,
) -> Flow[Matches]:
    """Finds the archived messages that bear on `query`, as many as may fit, without the records in `visible`.

    `likeness` are chunks found by meaning; `readings` caches messages of the session. With `older`, messages of the tail that
    are searched too and are not in `visible`, nothing is found where one of them matches the query better than the archive.
    `context` are visible messages beside outputs that are excerpts: they speak for these, as neighbours, and are not found.
    With `reaching`, nothing is found for a question that does not reach back: of which no message has the terms that matter.
    """
    terms, likeness = query_terms(query), likeness or {}
    if budget_tokens <= 0 or not (terms or likeness):
        return Matches({}, {}, {}, {})
    readings = readings or PassageCache()
    tail = {e.seq: e.message for e in older if not e.shown_seq and e.message.kind == "message"}
    speaking = {e.seq: e.message for e in context}
    unarchived = tail | speaking
    unread_chars = sum(map(searchable_chars, readings.unread(unarchived)))
    live_index = yield from off_loop(lambda: readings.live_index(unarchived, index_terms), unread_chars)
    emphasis = _emphasis(query, terms)
    found = yield from ranked(key, terms, hits=readings.hits, live_index=live_index, emphasis=emphasis)
    if not found.scores and len(every := query_terms(query, function_words=True)) > len(terms):
        found = yield from ranked(key, every, hits=readings.hits, live_index=live_index)
    nothing = Matches({}, {}, found.weights, {})
    if tail and _tail_matches_better(found.scores, tail, unarchived):
        return nothing
    by_words = {seq: score for seq, score in found.scores if seq not in visible or seq in speaking}
    by_meaning = _nearest(likeness)
    if not (by_words or by_meaning):
        return nothing
    best_first_scores = dict(best_first(_mixed(by_words, by_meaning))) if by_meaning else by_words
    size, lengths = yield from sizes(key, _records_near(best_first_scores), readings.hits)
    lengths |= live_index.lengths
    line_up = _spaced(sorted(lengths))
    by_words |= _with_near_terms(found, by_words, line_up, lengths)
    by_meaning |= _with_near_likeness(by_meaning, line_up, lengths)
    scores = {seq: score for seq, score in _mixed(by_words, by_meaning).items() if seq not in visible}
    scores, followers = _best(scores, size, lengths, budget_tokens, visible)
    read = yield from _read(key, scores.keys() | followers.keys(), readings)
    matches = Matches(_with_continuations(scores, followers, read), read, found.weights, likeness)
    if reaching and not likeness:
        said = _rare_terms_said(context, live_index, found.weights)
        if _covered(matches, said) < REACHES_BACK_SHARE:
            return nothing
    return matches


def asked_in(query: str) -> str:
    """Returns the sentences of a message that ask, all of it where none does.

    People ask within a message of other things: where some of its sentences end with a question mark, these ask.
    """
    return " ".join(part for part in _PARTS.split(query) if part.endswith(_QUESTION_MARKS)) or query


def _emphasis(query: str, terms: Iterable[str]) -> dict[str, float]:
    """Returns what the weight of a term is multiplied with that stands beside the question and not in it."""
    asked = frozenset(query_terms(asked_in(query)))
    return {term: ASIDE_WEIGHT for term in terms if asked and term not in asked}


def _tail_matches_better(ranking: Ranking, tail: Container[int], unarchived: Container[int]) -> bool:
    """Tells whether a message of the tail answers the query so much better that the question is not about the archive."""
    best_in_tail = next((score for seq, score in ranking if seq in tail), 0.0)
    best_in_archive = next((score for seq, score in ranking if seq not in unarchived), 0.0)
    return best_in_archive < ARCHIVE_SHARE * best_in_tail


def _read(key: SessionKey, seqs: Set[int], cache: PassageCache) -> Flow[dict[int, Reading]]:
    """Returns the readings of these messages; those that are not cached are fetched."""
    readings = cache.known(seqs)
    if len(readings) < len(seqs):
        records = yield from StoreCall(Store.fetch, key, tuple(sorted(seqs - readings.keys())))
        readings |= cache.keep(records)
    return readings


def _covered(matches: Matches, context: Mapping[int, Collection[str]]) -> float:
    """Returns which share of the weight of the query's terms a message has at most, among the best ones.

    What the `context` says directly before a message counts as its own, and so does, before the results of many calls at once, the
    message with the calls. Of a tool call those terms count that fewer than half of all messages have: where an agent writes module
    after module, each call has the words of "Write module 7.", which asks for none of them. Nor do short numbers of calls and
    outputs count.
    """
    total, best = fsum(matches.weights.values()), 0.0
    for seq in islice(matches.scores, CHECKED_MESSAGES):
        if (each := matches.readings.get(seq)) is not None:
            in_text, in_calls = filter(each.in_text, matches.weights), frozenset(filter(each.in_calls, matches.weights))
            terms = {*in_text, *(t for t in in_calls if matches.weights[t] > HALF_WEIGHT)}
            data = in_calls if each.role != "tool" else terms
            by_chance = {t for t in terms if t.isdigit() and len(t) < LONG_NUMBER and t in data}
            # of many calls at once, some results stand further behind
            steps = next((n for n in range(1, REACH + 1) if seq - n in context), 0) if each.role == "tool" else 0
            before = (context.get(seq - n, ()) for n in {*range(1, STEPS_BEFORE + 1), steps})
            best = max(best, fsum(map(matches.weights.__getitem__, (terms - by_chance).union(*before))))
    return best / total if total else 0.0


def _rare_terms_said(context: Sequence[Entry], live: LiveIndex, terms: Iterable[str]) -> dict[int, set[str]]:
    """Returns which of the query's terms each message of the context has, without those that are usual in its role.

    Each command has the words of "Read the page of Visby.", and each call the name of the tool: they say nothing about an output.
    """
    roles = {e.seq: e.message.role for e in context}
    most = {role: RARE_SHARE * (count + 1) for role, count in Counter(roles.values()).items()}
    said: dict[int, set[str]] = {seq: set() for seq in roles}
    for term in terms:
        seqs = [seq for seq, _, _ in live.hits.get(term, ()) if seq in roles]
        times = Counter(map(roles.__getitem__, seqs))
        for seq in seqs:
            if times[roles[seq]] <= most[roles[seq]]:
                said[seq].add(term)
    return said


def _nearest(likeness: Mapping[Chunk, float]) -> dict[int, float]:
    """Returns the likeness of each message: that of its chunk that is most alike."""
    nearest: dict[int, float] = {}
    for (seq, _), value in likeness.items():
        nearest[seq] = max(nearest.get(seq, 0.0), value)
    return nearest


def _mixed(by_words: Mapping[int, float], by_meaning: Mapping[int, float]) -> dict[int, float]:
    """Returns the scores of the messages as shares of the best one: by words, or the mean of words and meaning."""
    best = max(by_words.values(), default=0.0)
    scores = {seq: score / best for seq, score in by_words.items()} if best > 0 else {}
    if not by_meaning:
        return scores
    nearest, least = max(by_meaning.values()), min(by_meaning.values())
    spread, part = nearest - least, MEANING_WEIGHT if scores else 1.0
    # vectors of all texts are somewhat alike: likeness counts from that of the least like message found on
    alike = {seq: (value - least) / spread if spread else 1.0 for seq, value in by_meaning.items()}
    return {seq: (1 - part) * scores.get(seq, 0.0) + part * alike.get(seq, 0.0) for seq in {*scores, *alike}}


def _records_near(own: Mapping[int, float]) -> list[int]:
    """Returns the records of the best messages, which `own` has first, and of those that may be near them, in order."""
    around: list[int] = []
    last = 0
    for seq in sorted(islice(own, BEST_MESSAGES)):
        around += range(max(last + 1, seq - REACH), seq + REACH + 1)
        last = seq + REACH
    return around


def _best(
    scores: Mapping[int, float],
    size: tuple[int, int],
    lengths: Mapping[int, int],
    budget_tokens: int,
    visible: Container[int],
) -> tuple[dict[int, float], dict[int, int]]:
    """Returns the scores with what recency adds, the best first: as many messages as the budget may hold.

    Also returns, of the messages that directly follow one of these, which one that is.
    """
    if not scores:
        return {}, {}
    documents, total_length = size
    mean = total_length / max(1, documents)
    records_each = max(1.0, max(scores) / max(1, documents))
    aged = _aged(scores, RECENT_MESSAGES * records_each, LEAST_SHARE * max(scores.values()))
    kept: dict[int, float] = {}
    tokens, most_tokens = 0.0, most_whole_tokens(budget_tokens)
    for seq, score in best_first(aged)[:MOST_CANDIDATES]:
        if tokens > 1.25 * budget_tokens and len(kept) >= LEAST_CANDIDATES:
            break
        kept[seq] = score
        tokens += min(most_tokens, TOKENS_PER_TERM * lengths.get(seq, mean) + LINE_TOKENS)
    followed = ((a, b) for a, b in pairwise(sorted(lengths)) if a in kept and b not in visible and b - a <= REACH)
    return kept, {after: before for before, after in followed}


def _spaced(order: Sequence[int]) -> list[int]:
    """Returns the messages with REACH zeros in each gap of more than REACH records, and at both ends: no neighbours across them."""
    spaced: list[int] = []
    gap, last = [0] * REACH, -REACH
    for seq in order:
        if seq - last > REACH:
            spaced += gap
        spaced.append(seq)
        last = seq
    return spaced + gap


def _with_near_terms(
    found: Ranked, scored: Container[int], line_up: Sequence[int], lengths: Mapping[int, int]
) -> dict[int, float]:
    """Returns the BM25 scores of messages to which the terms of those nearby belong too, with less weight.

    A term that several of them have counts little more than once, and different terms add up: people say one thing in several
    messages. Fields of a document are weighted in this way (BM25F; Robertson and Zaragoza, 2009).
    """
    postings = found.postings
    base, per_token = 1 - B, B / (postings.total_length / max(1, postings.documents) or 1.0)
    places = {seq: place for place, seq in enumerate(line_up) if seq and seq in scored}
    needs = [HALF_TERMS / (HALF_TERMS + lengths[seq]) if seq else 0.0 for seq in line_up]
    # the weights around a message are two straight lines: numbers where these bend, accumulated twice
    step = NEIGHBOUR_WEIGHT / REACH
    peak = step * (REACH + 1)
    totals = [0.0] * len(line_up)
    for term, hits in postings.by_term.items():
        frequencies = [
            (place, n / (base + per_token * length))
            for seq, n, length in hits
            if (place := places.get(seq)) is not None
        ]
        if not frequencies:
            continue
        start, end = frequencies[0][0] - REACH, frequencies[-1][0] + REACH + 1  # hits are in order
        own, bends = [0.0] * (end - start), [0.0] * (end - start + 2)
        for place, frequency in frequencies:
            at = place - start
            own[at] = frequency
            bends[at - REACH] += step * frequency
            bends[at + 1] -= 2 * step * frequency
            bends[at + REACH + 2] += step * frequency
        weight = found.weights[term] * (K1 + 1)
        around = accumulate(accumulate(bends))
        totals[start:end] = [
            total + weight * both / (both + K1)
            if (both := itself + need * (nearby - peak * itself)) > LEAST_FREQUENCY
            else total
            for total, itself, need, nearby in zip(totals[start:end], own, needs[start:end], around, strict=False)
        ]
    return {seq: total for seq, total in zip(line_up, totals, strict=True) if total}


def _with_near_likeness(
    own: Mapping[int, float], line_up: Sequence[int], lengths: Mapping[int, int]
) -> dict[int, float]:
    """Returns the scores of messages: their own and what the best neighbours on either side add."""
    if not own:
        return {}
    scores = [own.get(seq, 0.0) for seq in line_up]
    summed: dict[int, float] = {}
    for place, seq in enumerate(line_up):
        if seq:
            need = HALF_TERMS / (HALF_TERMS + lengths[seq])
            added = sum(w * max(scores[place - n], scores[place + n]) for n, w in enumerate(LIKENESS_WEIGHTS, 1))
            if total := scores[place] + need * added:
                summed[seq] = total
    return summed


def _aged(scores: Mapping[int, float], recent: float, floor: float) -> dict[int, float]:
    """Returns the scores from `floor` on with what age changes: the best one stays, older messages lose and newer ones gain.

    BM25 adds up log odds, and so does a prior: the odds that a message is meant fall with its distance in records, as a power of
    1 / (1 + distance / `recent`). What matches is not lost to age: the floor is held against what words say.
    """
    newest, (_, best) = max(scores), max(zip(scores.values(), scores, strict=True))
    of_best = log(1 + (newest - best) / recent)
    return {
        seq: score + AGE_WEIGHT * (of_best - log(1 + (newest - seq) / recent))
        for seq, score in scores.items()
        if score >= floor
    }


def _with_continuations(
    scores: Mapping[int, float], before: Mapping[int, int], readings: Mapping[int, Reading]
) -> dict[int, float]:
    """Returns the scores, the best first; a message that begins with a word for what was said before scores as that does."""
    continued = dict(scores)
    for seq, previous in before.items():
        each = readings.get(seq)
        if each is not None and scores[previous] > scores.get(seq, 0.0) and _points_back(each.text[:BEGINNING_CHARS]):
            continued[seq] = scores[previous]
    return dict(best_first(continued))


@lru_cache(maxsize=4_096)
def _points_back(text: str) -> bool:
    """Tells whether the beginning of a message has, after its stamp, a word for what was said before."""
    return _POINTS_BACK.match(text, len(stamp(text))) is not None


def most_whole_tokens(budget_tokens: int) -> float:
    """Returns how many tokens a message may have that is shown whole."""
    return max(LEAST_WHOLE_TOKENS, LEAST_WHOLE_RATIO * budget_tokens, WHOLE_RATIO * budget_tokens - OTHERS_TOKENS)
