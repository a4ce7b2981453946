"""Both faces name the provider, the model and the wire format in the same words, and keep them in copies and pickles."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxfold import AnthropicBackend, ConfigError, OpenAIChatBackend
from ctxfold.connect import named_provider
from langchain_ctx import ChatCtx
from llamaindex_ctx import CtxLLM

Made = ChatCtx | CtxLLM
FACES = pytest.mark.parametrize("face", [ChatCtx, CtxLLM])
HOME = {"path": "/v2/said", "headers": {"x-key": "{key}"}}


@pytest.fixture
def row(tmp_path: Path) -> str:
    """A provider with two wires, as a file of the user's."""
    path = tmp_path / "two.json"
    path.write_text(
        json.dumps({"name": "two", "base_url": "http://127.0.0.1:9/v1", "wires": {"anthropic_messages": HOME}})
    )
    return str(path)


def backend_of(made: Made) -> Any:
    return made.context_backend if isinstance(made, ChatCtx) else made.backend


def settings_of(made: Made) -> dict[str, Any]:
    return made.model_dump() if isinstance(made, ChatCtx) else made.to_dict()


@FACES
def test_the_wire_picks_the_backend(face: Callable[..., Made], row: str) -> None:
    own, other = (
        face(model="m", provider=row, api_key="k"),
        face(model="m", provider=row, api_key="k", wire="anthropic_messages"),
    )
    assert type(backend_of(own)) is OpenAIChatBackend
    assert type(backend_of(other)) is AnthropicBackend
    assert backend_of(other).profile.path == "/v2/said"
    named = face(model="m", provider=row, api_key="k", wire="openai_chat")
    assert type(backend_of(named)) is OpenAIChatBackend


@FACES
def test_copies_and_pickles_keep_the_wire(face: Callable[..., Made], row: str) -> None:
    made = face(model="m", provider=row, api_key="k", wire="anthropic_messages")
    assert settings_of(made)["wire"] == made.wire == "anthropic_messages"
    assert "wire='anthropic_messages'" in repr(made)
    assert "wire='" not in repr(face(model="m", provider=row, api_key="k"))
    for other in (copy.copy(made), copy.deepcopy(made), made.model_copy()):
        assert (other.wire, type(backend_of(other))) == ("anthropic_messages", AnthropicBackend)
    pickled = pickle.loads(pickle.dumps(made))
    assert (pickled.wire, pickled.provider, pickled.model) == ("anthropic_messages", row, "m")
    if isinstance(made, CtxLLM):
        assert type(backend_of(CtxLLM.from_dict(made.to_dict(), api_key="k"))) is AnthropicBackend
    else:
        assert type(backend_of(pickled)) is AnthropicBackend


@FACES
@pytest.mark.parametrize("wire", ["gemini", "morse", 3])
def test_a_wire_that_the_provider_does_not_speak_is_named_with_those_that_it_does(
    face: Callable[..., Made], wire: Any, row: str
) -> None:
    with pytest.raises(ConfigError, match=rf"'two' speaks openai_chat, anthropic_messages, and not {wire}: use one"):
        face(model="m", provider=row, api_key="k", wire=wire)


@FACES
def test_a_models_name_may_begin_with_its_provider(face: Callable[..., Made]) -> None:
    made = face(model="deepseek:deepseek-chat", api_key="k")
    assert (made.provider, made.model) == ("deepseek", "deepseek-chat")
    assert backend_of(made).profile.name == "deepseek"
    again = (
        pickle.loads(pickle.dumps(made)) if isinstance(made, ChatCtx) else CtxLLM.from_dict(made.to_dict(), api_key="k")
    )
    assert (again.provider, again.model) == ("deepseek", "deepseek-chat")


@FACES
@pytest.mark.parametrize(
    ("model", "provider", "expected"),
    [
        ("llama3:8b", None, ("generic", "llama3:8b")),
        ("deepseek:deepseek-chat", "generic", ("generic", "deepseek:deepseek-chat")),
        ("openai:", None, ("generic", "openai:")),
        ("deepseek-chat", "deepseek", ("deepseek", "deepseek-chat")),
    ],
)
def test_other_colons_stay_in_the_models_name(
    face: Callable[..., Made], model: str, provider: str | None, expected: tuple[str, str]
) -> None:
    given = {} if provider is None else {"provider": provider}
    made = face(model=model, api_key="k", **given)
    assert (made.provider, made.model) == expected == named_provider(model, provider)
