"""Orders tool outputs for pruning: five orders, from oldest first to relevance less redundancy within subgoals. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, assert_never

from ctxfold.history.cuts import answered_calls
from ctxfold.history.records import Subgoal
from ctxfold.history.terms import term_counts
from ctxfold.history.view import Entry
from ctxfold.policy.settings import PruningOrder

ACTIVE, COMPLETED, UNTAGGED = 1.0, 0.3, 0.1
RECENCY = 0.5  # an old output of an active subgoal still outlives a new one of a completed subgoal
MIG_LIMIT = 256  # newest tool messages that are compared with each other; older ones are pruned first
MIG_TERMS = 64  # heaviest terms of a message, the only ones that are compared

Vector: TypeAlias = Mapping[str, float]


def pruning_order(
    entries: Sequence[Entry], kind: PruningOrder, *, goal: str = "", subgoals: Sequence[Subgoal] = ()
) -> list[int]:
    """Returns the indices of all tool messages in the order of pruning; of equals the older comes first.

    Without `goal` the newest user message is the goal. A tool message is compared by its text and by the call that it answers.
    """
    tools = [i for i, e in enumerate(entries) if e.message.role == "tool"]
    match kind:
        case "reactive":
            return tools
        case "task_aware":
            return _ascending(tools, _cosines(_vectors(entries), goal or _newest_question(entries)))
        case "mig":
            vectors = _vectors(entries)
            return _by_gain(tools, vectors, _cosines(vectors, goal or _newest_question(entries)))
        case "subgoal":
            return _ascending(tools, _subgoal_scores(entries, tools, subgoals))
        case "subgoal_mig":
            vectors = _vectors(entries)
            active = " ".join(s.text for s in subgoals if not s.completed)
            scores = _cosines(vectors, f"{goal} {active}".strip() or _newest_question(entries))
            tagged = _subgoal_scores(entries, tools, subgoals)
            return _by_gain(tools, vectors, [r + t for r, t in zip(scores, tagged, strict=True)])
        case _:
            assert_never(kind)


def _ascending(tools: Sequence[int], scores: Sequence[float]) -> list[int]:
    return [tools[i] for i in sorted(range(len(tools)), key=lambda i: (scores[i], i))]


def _by_gain(tools: Sequence[int], vectors: Sequence[Vector], worth: Sequence[float]) -> list[int]:
    """Returns the reverse of a greedy choice: keep next what adds most, its worth less its likeness to the most similar kept one.

    Only the newest `MIG_LIMIT` are compared; older ones are pruned first, the oldest at once.
    """
    first = max(0, len(tools) - MIG_LIMIT)
    heads = {i: _head(vectors[i]) for i in range(first, len(tools))}
    postings: defaultdict[str, list[int]] = defaultdict(list)
    for index, head in heads.items():
        for term in head:
            postings[term].append(index)
    redundancy = dict.fromkeys(heads, 0.0)
    kept: list[int] = []
    while redundancy:
        best = max(redundancy, key=lambda i: (worth[i] - redundancy[i], i))
        del redundancy[best]
        kept.append(best)
        likeness: defaultdict[int, float] = defaultdict(float)
        for term, weight in heads[best].items():
            for other in postings[term]:
                likeness[other] += weight * heads[other][term]
        for other, value in likeness.items():
            if other in redundancy:
                redundancy[other] = max(redundancy[other], value)
    return [*tools[:first], *(tools[i] for i in reversed(kept))]


def _subgoal_scores(entries: Sequence[Entry], tools: Sequence[int], subgoals: Iterable[Subgoal]) -> list[float]:
    """Scores each tool message by the step that it was written for, plus how recent it is."""
    steps = sorted(subgoals, key=lambda s: s.since)
    begins = [s.since for s in steps]
    worth = [UNTAGGED, *((COMPLETED if s.completed else ACTIVE) if s.text else UNTAGGED for s in steps)]
    newest = max(1, len(entries) - 1)
    return [worth[bisect_right(begins, entries[i].seq)] + RECENCY * i / newest for i in tools]


def _vectors(entries: Sequence[Entry]) -> list[Vector]:
    """Returns the TF-IDF vector, of length 1, of each tool message with the calls that it answers."""
    texts = (
        "\n".join([entry.message.text, *(f"{c.name} {c.arguments}" for c in calls)])
        for entry, calls in answered_calls(entries)
        if entry.message.role == "tool"
    )
    return _weighted(list(map(term_counts, texts)))


def relevance(texts: Sequence[str], topic: str) -> list[float]:
    """Returns the relevance of each text to the topic, among these texts: 0 without a shared word, 1 for the same words."""
    return _cosines(_weighted([term_counts(t) for t in texts]), topic)


def _weighted(counts: Sequence[Counter[str]]) -> list[Vector]:
    documents = Counter(term for c in counts for term in c)
    idf = {term: math.log(1 + len(counts) / n) for term, n in documents.items()}
    return [_unit({t: (1 + math.log(n)) * idf[t] for t, n in c.items()}) for c in counts]


def _cosines(vectors: Sequence[Vector], goal: str) -> list[float]:
    """Returns the cosine of each vector and the goal's; terms that no vector has carry no weight."""
    goal_vector = _unit({term: 1 + math.log(n) for term, n in term_counts(goal).items()})
    return [sum(weight * vector.get(term, 0.0) for term, weight in goal_vector.items()) for vector in vectors]


def _unit(vector: Mapping[str, float]) -> Vector:
    length = math.sqrt(sum(w * w for w in vector.values()))
    return {t: w / length for t, w in vector.items()} if length else {}


def _head(vector: Vector) -> Vector:
    if len(vector) <= MIG_TERMS:
        return vector
    return _unit(dict(sorted(vector.items(), key=lambda item: (-item[1], item[0]))[:MIG_TERMS]))


def _newest_question(entries: Sequence[Entry]) -> str:
    return next((e.message.text for e in reversed(entries) if e.message.role == "user"), "")
