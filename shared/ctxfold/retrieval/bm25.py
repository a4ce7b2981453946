"""Ranks archived messages by BM25 with bounded work: rare terms are read in full, common terms only where a rarer one matched."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ctxfold.effects import Flow, StoreCall
from ctxfold.history.records import SessionKey
from ctxfold.index.cache import Hit, Hits, LiveIndex
from ctxfold.index.terms import rough_stem
from ctxfold.protocols import Postings, Store

K1, B = 1.2, 0.75  # the usual BM25 parameters (Robertson and Zaragoza, 2009)
PROBE = 256  # newest hits of each term that are read first, fewer each for many terms; a term with fewer hits is read in full
LEAST_PROBE, PROBED = 16, 256
HITS = 4_096  # further hits that are read of rare terms: some milliseconds
FEW = 256  # hits of a term that is read in full in any case
RARE = 16  # beyond, a term in more than one of so many documents is too common to be read in full
LOOKED_UP = 32  # best documents in which common terms are looked up
COMMON_TERMS = 4  # looked up, least common first; the others change next to nothing
MIN_GAIN = 0.02  # of the best score: a common term that can add less is not looked up

Ranking: TypeAlias = Sequence[tuple[int, float]]


class Ranked(NamedTuple):
    """Holds (seq, score) of the documents with a term, best first, the weight of each term, and the hits that counted."""

    scores: Ranking
    weights: Mapping[str, float]
    postings: Postings


def ranked(
    key: SessionKey,
    terms: Sequence[str],
    *,
    live_index: LiveIndex | None = None,
    probe: int | None = None,
    hits: Hits | None = None,
    emphasis: Mapping[str, float] | None = None,
) -> Flow[Ranked]:
    """Ranks the documents with one of the terms; the weights of those in `emphasis` are multiplied.

    Messages of `live_index` count as if they were archived. `probe` is how many hits of each term are read first, and `hits`
    are cached ones of the session. The result is exact while no term has more than FEW hits; otherwise a term too common to be
    read in full counts only in the best documents of the other terms, and the most common ones do not count.
    """
    probe = probe or max(LEAST_PROBE, min(PROBE, PROBED // max(1, len(terms))))
    known_hits, live_index = hits or Hits(), live_index or LiveIndex()
    first = yield from _newest(key, terms, probe, known_hits)
    common = [t for t in terms if len(first.by_term[t]) >= probe]
    if not common:
        joined = _joined(first, first.by_term, live_index)
        weights = _emphasised(idf(joined, frequencies(joined)), emphasis)
        return Ranked(bm25(joined, weights), weights, joined)
    guessed = frequencies(first, at_most=probe)
    common.sort(key=lambda t: (guessed[t], t))
    rare = _worth_reading(common, guessed, first.documents, alone=len(common) == len(terms))
    by_term, known = dict(first.by_term), guessed
    if few := [t for t in rare if guessed[t] <= FEW]:
        read = yield from _newest(key, few, FEW, known_hits)
        by_term |= read.by_term
        known = known | frequencies(read, at_most=FEW)
    if many := [t for t in rare if guessed[t] > FEW]:
        read = yield from StoreCall(Store.postings, key, many, newest=HITS)
        by_term |= read.by_term
        known = known | frequencies(read, at_most=HITS)
    unread = [t for t in common if t not in rare]
    sampled = _joined(first, {t: by_term.pop(t) for t in unread}, live_index)
    in_full = _joined(first, by_term, live_index)
    weights = _emphasised(idf(in_full, {t: n + len(live_index.hits.get(t, ())) for t, n in known.items()}), emphasis)
    exact = _scores(in_full, weights)
    best = best_first(_scores(sampled, weights, onto=exact))
    floor = MIN_GAIN * best[0][1]
    looked_up = [t for t in unread[:COMMON_TERMS] if weights[t] * (K1 + 1) > floor]
    if looked_up:
        seqs = {seq for seq, _ in best[:LOOKED_UP]}
        hits_by_term = yield from _among(key, looked_up, sorted(seqs), known_hits)
        sampled = _joined(first, {t: hits_by_term.get(t, ()) for t in unread}, live_index)
        best = best_first(_scores(sampled, weights, onto=exact))
    counted = {**in_full.by_term, **sampled.by_term}
    return Ranked(best, weights, Postings(in_full.documents, in_full.total_length, counted))


def _newest(key: SessionKey, terms: Sequence[str], probe: int, hits: Hits) -> Flow[Postings]:
    """Returns the newest hits of each term; reads those that are not cached from an index of the same size."""
    known = hits.newest(terms, probe)
    read = yield from StoreCall(Store.postings, key, [t for t in terms if t not in known], newest=probe)
    if not hits.keep((read.documents, read.total_length), read.by_term, probe) and known:
        return (yield from _newest(key, terms, probe, hits))
    both = known | dict(read.by_term)
    return Postings(read.documents, read.total_length, {t: both[t] for t in terms})


def _among(key: SessionKey, terms: Sequence[str], seqs: Sequence[int], hits: Hits) -> Flow[dict[str, tuple[Hit, ...]]]:
    """Returns the hits of the terms in these documents."""
    cached, unknown = hits.among(terms, seqs)
    if not unknown:
        return cached
    read = (yield from StoreCall(Store.postings, key, terms, among=unknown)).by_term
    hits.keep_among(read, unknown)
    new = frozenset(unknown)
    return {t: tuple(sorted((*(h for h in cached[t] if h[0] not in new), *read[t]))) for t in terms}


def sizes(key: SessionKey, seqs: Sequence[int], hits: Hits) -> Flow[tuple[tuple[int, int], dict[int, int]]]:
    """Returns (documents, total length) of the index that `ranked` read last, and the lengths of these documents, by seq."""
    size, known = hits.lengths(seqs)
    if unknown := [seq for seq in seqs if seq not in known]:
        read = yield from StoreCall(Store.postings, key, [""], among=unknown)
        size = (read.documents, read.total_length)
        new = dict.fromkeys(unknown) | {seq: length for seq, _, length in read.by_term[""]}
        hits.keep_lengths(size, new)
        known |= new
    return size, {seq: length for seq, length in known.items() if length is not None}


def _joined(size: Postings, by_term: Mapping[str, tuple[Hit, ...]], live_index: LiveIndex) -> Postings:
    """Returns the hits with those of the messages that are not archived; one that is archived as well counts once."""
    if not live_index.lengths:
        return Postings(size.documents, size.total_length, by_term)
    joined: dict[str, tuple[Hit, ...]] = {}
    for term, hits in by_term.items():
        new = live_index.hits.get(term, ())
        newer = not (new and hits) or hits[-1][0] < new[0][0]  # nearly always: what is not archived is newer
        joined[term] = (*hits, *new) if newer else tuple(sorted({*hits, *new}))
    documents, total_length = (
        size.documents + len(live_index.lengths),
        size.total_length + sum(live_index.lengths.values()),
    )
    return Postings(documents, total_length, joined)


def _worth_reading(common: Sequence[str], guessed: Mapping[str, int], documents: int, *, alone: bool) -> list[str]:
    """Returns the common terms to read further back, least common first; at least one where there is no other term."""
    rare: list[str] = []
    hits_left = HITS
    for term in common:
        few = guessed[term] <= max(FEW, documents // RARE)
        if (few and guessed[term] <= hits_left) or (alone and not rare):
            rare.append(term)
            hits_left -= min(hits_left, guessed[term])
    return rare


def frequencies(
    postings: Postings, *, at_most: int | None = None, terms: Sequence[str] | None = None
) -> dict[str, int]:
    """Returns how many documents have each term; estimated from their density where only the newest `at_most` were read."""
    newest = max((h[-1][0] for h in postings.by_term.values() if h), default=0)
    counts: dict[str, int] = {}
    for term in postings.by_term if terms is None else terms:
        hits = postings.by_term[term]
        counts[term] = len(hits)
        if at_most is not None and len(hits) >= at_most:
            guess = len(hits) * newest // (newest - hits[0][0] + 1)
            counts[term] = max(len(hits), min(postings.documents, guess))
    return counts


def idf(postings: Postings, frequency: Mapping[str, int]) -> dict[str, float]:
    """Returns the inverse document frequency of each term, never negative.

    It is 0 for a rough stem that fewer documents have than a term that has this stem: most of these are English, and have none.
    """
    total = max(1, postings.documents)
    weights = {t: math.log(1 + (total - n + 0.5) / (n + 0.5)) for t, n in frequency.items()}
    missing = [stem for t, n in frequency.items() if n > frequency.get(stem := rough_stem(t), n)]
    return weights | dict.fromkeys(missing, 0.0)


def _emphasised(weights: dict[str, float], emphasis: Mapping[str, float] | None) -> dict[str, float]:
    return {t: weight * emphasis.get(t, 1.0) for t, weight in weights.items()} if emphasis else weights


def bm25(postings: Postings, weights: Mapping[str, float]) -> Ranking:
    """Returns (seq, score) of every document of the hits, best first, of equals the newer."""
    return best_first(_scores(postings, weights))


def _scores(
    postings: Postings, weights: Mapping[str, float], *, onto: Mapping[int, float] | None = None
) -> Mapping[int, float]:
    """Returns the scores of the documents of the hits, added to those in `onto`."""
    average = postings.total_length / max(1, postings.documents) or 1.0
    base, per_token = K1 * (1 - B), K1 * B / average
    scores = defaultdict[int, float](float, onto or {})
    for term, hits in postings.by_term.items():
        weight = weights[term] * (K1 + 1)
        for seq, count, length in hits if weight else ():
            scores[seq] += weight * count / (count + base + per_token * length)
    return scores


def best_first(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    """Returns (seq, score), best first, of equals the newer: two sorts of plain numbers take half the time of one of pairs."""
    seqs = sorted(scores, reverse=True)
    seqs.sort(key=scores.__getitem__, reverse=True)
    return [(seq, scores[seq]) for seq in seqs]
