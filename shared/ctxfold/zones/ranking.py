"""BM25 over the archive with bounded work: rare terms are read in full, common ones where a rarer one has been found.

Stores only hand out hits, so every store ranks alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

from ctxfold.effects import Search
from ctxfold.flow import Flow
from ctxfold.history.hits import Hit, Hits
from ctxfold.history.records import SessionKey
from ctxfold.ports import Document, Postings

__all__ = ["bm25", "frequencies", "idf", "ranked"]

K1, B = 1.2, 0.75  # the usual BM25 parameters (Robertson and Zaragoza, 2009)
PROBE = 256  # newest hits of each term that are read first, fewer of each in a question of many; a term below is known in full
LEAST_PROBE, PROBED = 16, 256
HITS = 4_096  # further hits that are read of rare terms: some milliseconds
RARE = 16  # a term that stands in more than one of so many documents tells too little to be read in full
LOOKED_UP = 32  # best documents in which common terms are looked up,
TELLING = 4  # and how many of those, least common first; the rest says next to nothing,
LEAST_TOLD = 0.02  # as does one that can add no more than this much of the best score

Ranking: TypeAlias = Sequence[tuple[int, float]]


def ranked(
    key: SessionKey,
    terms: Sequence[str],
    *,
    beside: Sequence[Document] = (),
    probe: int | None = None,
    hits: Hits | None = None,
) -> Flow[tuple[Ranking, Mapping[str, float]]]:
    """(seq, score) of documents that hold a term, best first, and the weight of each term.

    `beside` are documents that count as if they were indexed too; `probe` is how many hits of each term are read first, and
    `hits` are those of the session that need not be read again. Exact while no term has more than `probe`; beyond, a term too
    common to be read in full counts in the best documents of the others, and the commonest nowhere.
    """
    probe = probe or max(LEAST_PROBE, min(PROBE, PROBED // max(1, len(terms))))
    known_hits = hits or Hits()
    first = yield from _newest(key, terms, probe, known_hits)
    common = [t for t in terms if len(first.by_term[t]) >= probe]
    if not common:
        joined = _joined(first, first.by_term, beside)
        weights = idf(joined, frequencies(joined))
        return bm25(joined, weights), weights
    guessed = frequencies(first, at_most=probe)
    common.sort(key=lambda t: (guessed[t], t))
    rare = _worth_reading(common, guessed, first.documents, alone=len(common) == len(terms))
    by_term = dict(first.by_term)
    if rare:
        by_term |= (yield from Search(key, rare, newest=HITS)).by_term
    read = Postings(first.documents, first.total_length, by_term)
    known = guessed | frequencies(read, at_most=HITS, terms=rare)
    rest = [t for t in common if t not in rare]
    newest = _joined(first, {t: by_term.pop(t) for t in rest}, beside)
    in_full = _joined(first, by_term, beside)
    weights = idf(in_full, {t: n + sum(t in d.terms for d in beside) for t, n in known.items()})
    sure = bm25(in_full, weights)
    best = bm25(newest, weights, onto=sure)
    floor = LEAST_TOLD * best[0][1]
    told = [t for t in rest[:TELLING] if weights[t] * (K1 + 1) > floor]
    if told:
        seqs = [seq for seq, _ in best[:LOOKED_UP]]
        found = yield from _among(key, told, sorted(seqs), known_hits)
        best = bm25(_joined(first, {t: found.get(t, ()) for t in rest}, beside), weights, onto=sure)
    return best, weights


def _newest(key: SessionKey, terms: Sequence[str], probe: int, hits: Hits) -> Flow[Postings]:
    """The newest hits of each term, of those that are not known from an index of the same size."""
    known = hits.newest(terms, probe)
    found = yield from Search(key, [t for t in terms if t not in known], newest=probe)
    if not hits.keep((found.documents, found.total_length), found.by_term, probe) and known:
        return (yield from _newest(key, terms, probe, hits))
    both = known | dict(found.by_term)
    return Postings(found.documents, found.total_length, {t: both[t] for t in terms})


def _among(key: SessionKey, terms: Sequence[str], seqs: Sequence[int], hits: Hits) -> Flow[dict[str, tuple[Hit, ...]]]:
    """The hits of the terms in these documents."""
    found, unknown = hits.among(terms, seqs)
    if not unknown:
        return found
    read = (yield from Search(key, terms, among=unknown)).by_term
    hits.keep_among(read, unknown)
    new = frozenset(unknown)
    return {t: tuple(sorted((*(h for h in found[t] if h[0] not in new), *read[t]))) for t in terms}


def _joined(
    size: Postings, by_term: Mapping[str, tuple[tuple[int, int, int], ...]], beside: Sequence[Document]
) -> Postings:
    """The hits and those in the documents beside; one that is indexed as well counts once."""
    if not beside:
        return Postings(size.documents, size.total_length, by_term)
    joined = {
        term: tuple(sorted({*hits, *((d.seq, d.terms[term], d.length) for d in beside if term in d.terms)}))
        for term, hits in by_term.items()
    }
    return Postings(size.documents + len(beside), size.total_length + sum(d.length for d in beside), joined)


def _worth_reading(common: Sequence[str], guessed: Mapping[str, int], documents: int, *, alone: bool) -> list[str]:
    """Of the common terms, least common first, those to be read further back; with no other term at least one."""
    rare: list[str] = []
    left = HITS
    for term in common:
        if (guessed[term] <= left and guessed[term] * RARE <= documents) or (alone and not rare):
            rare.append(term)
            left -= min(left, guessed[term])
    return rare


def frequencies(
    postings: Postings, *, at_most: int | None = None, terms: Sequence[str] | None = None
) -> dict[str, int]:
    """In how many documents each term stands; where only the newest `at_most` were read, estimated from how dense those lie."""
    newest = max((h[-1][0] for h in postings.by_term.values() if h), default=0)
    found: dict[str, int] = {}
    for term in postings.by_term if terms is None else terms:
        hits = postings.by_term[term]
        found[term] = len(hits)
        if at_most is not None and len(hits) >= at_most:
            guess = len(hits) * newest // (newest - hits[0][0] + 1)
            found[term] = max(len(hits), min(postings.documents, guess))
    return found


def idf(postings: Postings, frequency: Mapping[str, int]) -> dict[str, float]:
    """Inverse document frequency, never negative."""
    total = max(1, postings.documents)
    return {t: math.log(1 + (total - n + 0.5) / (n + 0.5)) for t, n in frequency.items()}


def bm25(postings: Postings, weights: Mapping[str, float], *, onto: Ranking = ()) -> Ranking:
    """(seq, score) of every document among the hits, best first, of equals the newer; `onto` is what other terms gave."""
    average = postings.total_length / max(1, postings.documents) or 1.0
    base, per_token = K1 * (1 - B), K1 * B / average
    scores = defaultdict[int, float](float, onto)
    for term, hits in postings.by_term.items():
        weight = weights[term] * (K1 + 1)
        for seq, count, length in hits:
            scores[seq] += weight * count / (count + base + per_token * length)
    return sorted(scores.items(), key=itemgetter(1, 0), reverse=True)
