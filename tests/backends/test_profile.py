"""Profiles: the built-in rows, rows of one's own, and what a model's prefix overrides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctxfold import ConfigError
from ctxfold.backends.profile import common_rules, load_profile, provider_names
from tests.backends.openai_backend import make


def test_every_built_in_row_loads_and_has_its_own_name() -> None:
    assert {"deepseek", "openai", "ollama", "llamacpp", "generic", "anthropic"} <= set(provider_names())
    for name in provider_names():
        assert load_profile(name).name == name
    assert "connection" in common_rules().retryable


def test_the_longest_prefix_overrides_whole_fields() -> None:
    assert load_profile("openai", "gpt-5-mini").context_window == 400_000
    assert load_profile("openai", "GPT-5.4-x").context_window == 1_050_000
    assert load_profile("openai", "other").context_window is None
    row = load_profile("zhipu", "glm-5.3-air")
    assert (row.thinking.off, row.thinking.effort["max"]) == (None, {"reasoning_effort": "max"})
    assert row.reasoning_out == load_profile("zhipu").reasoning_out
    assert row.for_model("glm-4.5") is row


def test_rows_of_ones_own(tmp_path: Path) -> None:
    given = {"name": "mine", "base_url": "http://h/v1", "models": {"big": {"context_window": 9}}}
    (tmp_path / "row.json").write_text(json.dumps(given))
    (tmp_path / "row.toml").write_text('name = "mine"\nbase_url = "http://h/v1"\n[models.big]\ncontext_window = 9\n')
    for source in (given, str(tmp_path / "row.json"), tmp_path / "row.toml", load_profile(given)):
        row = load_profile(source, "big-1")
        assert (row.name, row.context_window, row.request.max_tokens_field) == ("mine", 9, "max_tokens")
    assert make(profile=given, model="big-2").context_window == 9


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "no table"),
        ('{"name":"x","pth":"/"}', "pth"),
        ('{"name":"x","errors":[{"kind":"k","message":"("}]}', "regular expression"),
    ],
)
def test_wrong_rows_are_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "row.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_profile(path)


def test_unknown_names_and_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="deepseek, fireworks, gemini, generic"):
        load_profile("deepsek")
    with pytest.raises(ConfigError, match="cannot read"):
        load_profile(tmp_path / "none.toml")
