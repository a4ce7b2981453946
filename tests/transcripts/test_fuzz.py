"""Fields under other names: what is said is either there, or refused by its line. No message is accepted and emptied."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctxfold.errors import ConfigError, ImportLineError
from ctxfold.messages import ReasoningPart, TextPart, ToolResultPart, says_something
from ctxfold.transcripts.conversation import NO_RESULT
from ctxfold.transcripts.reading import read_transcripts
from tests.transcripts.samples import SAMPLES, Sample

SAID = (TextPart, ReasoningPart, ToolResultPart)
# fields that decide who speaks, what is current and what repeats: with another name, another speaks, or a branch is left out
STRUCTURE = re.compile(
    "type|role|from|author|sender|is[A-Z].*|subtype|origin|model|kind|recipient|current_node|parent.*|logicalParentUuid|file_name"
    "|current_leaf_message_uuid|metadata|status|state|is_visually_hidden_from_conversation|input|output"
)


def places(value: Any) -> Iterator[tuple[Any, str]]:
    """Each object within a value, with each of its fields."""
    if isinstance(value, dict):
        for key, held in value.items():
            yield value, key
            yield from places(held)
    elif isinstance(value, list):
        for held in value:
            yield from places(held)


def values_of(sample: Sample) -> tuple[Any, bool]:
    try:
        value = json.loads(sample.text)
        return json.loads(value) if isinstance(value, str) else value, False
    except ValueError:
        return [json.loads(line) for line in sample.text.splitlines()], True


def spoken(path: Path, form: str) -> set[str]:
    """All words that are said. No message is empty."""
    found: list[str] = []
    for conversation in read_transcripts(path, format=form):
        for message in conversation.messages:
            assert message.parts
            assert says_something(message)
            found += [
                p.content if isinstance(p, ToolResultPart) else p.text for p in message.parts if isinstance(p, SAID)
            ]
    return set(re.findall(r"\w+", " ".join(text for text in found if text != NO_RESULT)))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.format}: {s.name}")
def test_a_field_under_another_name_loses_no_text(sample: Sample, tmp_path: Path) -> None:
    values, lined = values_of(sample)
    fields = [(held, key) for held, key in places(values)]
    path = tmp_path / "file"
    path.write_text(sample.text, encoding="utf-8")
    before = spoken(path, sample.format)

    @settings(
        max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
    )
    @given(st.integers(0, len(fields) - 1), st.sampled_from(["xq", "body", "value2", "contents", "note"]))
    def renamed(place: int, name: str) -> None:
        held, key = fields[place]
        items = list(held.items())
        held.clear()
        held.update({name if k == key else k: v for k, v in items})
        try:
            path.write_text(
                "".join(json.dumps(v) + "\n" for v in values) if lined else json.dumps(values), encoding="utf-8"
            )
        finally:
            held.clear()
            held.update(items)
        try:
            after = spoken(path, sample.format)
        except (ImportLineError, ConfigError):
            return
        if not STRUCTURE.fullmatch(key):
            assert not (before - after - {key}), (key, name, held)

    renamed()
