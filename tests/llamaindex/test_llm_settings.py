"""What a `CtxLLM` is: its metadata, its key that shows nowhere, its copies, its backend."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
from llama_index.llms.openai_like import OpenAILike

from ctxfold import AgentContext, ConfigError, ScriptedBackend
from ctxfold.errors import CtxWarning
from ctxfold.testing import Scripted
from llamaindex_ctx import CtxLLM, CtxMemory, with_context
from llamaindex_ctx.backend import LlamaIndexBackend
from tests.llamaindex.served_llm import HELLO, KEY, ask, served


def test_metadata_knows_the_window_from_the_user_then_the_row() -> None:
    row = CtxLLM(model="deepseek-v4-pro", provider="deepseek", api_key=KEY)
    assert row.metadata.context_window == 1_000_000
    given = CtxLLM(model="deepseek-v4-pro", provider="deepseek", api_key=KEY, context_window=64_000, max_tokens=500)
    assert (given.metadata.context_window, given.metadata.num_output) == (64_000, 500)
    unknown = CtxLLM(model="m").metadata
    assert unknown.num_output == -1
    assert unknown.is_function_calling_model
    assert unknown.is_chat_model
    assert unknown.model_name == "m"


@pytest.mark.parametrize(
    ("provider", "model", "window"),
    [
        ("openai", "gpt-4o", 128_000),
        ("openai", "gpt-4o-mini", 128_000),
        ("openai", "gpt-4-0613", 8_192),
        ("openai", "gpt-4.1-nano", 1_047_576),
        ("openai", "o3-mini", 200_000),
        ("openai", "gpt-5.2-chat-latest", 128_000),
        ("openai", "gpt-5.2", 400_000),
        ("moonshot", "moonshot-v1-32k", 32_768),
        ("moonshot", "kimi-k2.5", 262_144),
        ("deepseek", "deepseek-flash", 1_000_000),
    ],
)
def test_the_rows_have_the_windows_of_known_models(provider: str, model: str, window: int) -> None:
    """Step 7, item B14: 32,768 was claimed for these."""
    assert CtxLLM(model=model, provider=provider, api_key=KEY).metadata.context_window == window


async def test_no_window_is_guessed() -> None:
    """Step 7, item B14: to read a window that nobody told is an error that says what to give; nothing else is."""
    async with served(Scripted("Yes."), Scripted("No."), settings={"context_window": None}) as (llm, _):
        assert str((await llm.achat(HELLO)).message.content) == "Yes."
        metadata = llm.metadata
        assert (metadata.model_name, metadata.is_function_calling_model) == ("m", True)
        with pytest.raises(ConfigError, match=r"model 'm'.*give context_window="):
            _ = metadata.context_window
        with pytest.raises(ConfigError, match=r"model 'm'.*give context_window="):
            with_context(llm=llm)
        with pytest.warns(CtxWarning, match="the window of CtxLLM is not known.*30000"):  # LlamaIndex's own default
            assert CtxMemory.from_defaults(llm=llm).token_limit == 30_000
        assert LlamaIndexBackend(llm).context_window is None
        with pytest.raises(ConfigError, match="context_window="):
            AgentContext(LlamaIndexBackend(llm))
        assert (await AgentContext(LlamaIndexBackend(llm), context_window=500).asend("Well?")).message.text == "No."
        with with_context(llm, context_window=4_000) as wrapped:
            assert wrapped.metadata.context_window == 4_000
            assert wrapped.metadata.model_name == "m"
    told = OpenAILike(model="m", api_base="http://127.0.0.1:9/v1", api_key="x", context_window=9_000)
    bare = OpenAILike(model="m", api_base="http://127.0.0.1:9/v1", api_key="x")
    assert CtxMemory.from_defaults(llm=told).context.policy.context_window == 9_000
    assert LlamaIndexBackend(bare).context_window is None
    with pytest.warns(CtxWarning, match="the window of OpenAILike is not known"):
        assert CtxMemory.from_defaults(llm=bare).token_limit == 30_000


async def test_the_key_is_in_no_repr_dict_json_pickle_or_payload_and_is_sent() -> None:
    async with served(Scripted("ok"), settings={"temperature": 0.3, "thinking": True}) as (llm, server):
        texts = [repr(llm), str(llm), str(llm.to_dict()), llm.to_json(), llm.model_dump_json(), str(llm.to_payload())]
        assert not [text for text in texts if KEY in text]
        assert KEY.encode() not in pickle.dumps(llm)
        await llm.achat(HELLO)
    assert "authorization" in server.requests[0].headers


def test_the_secrets_of_an_address_are_in_no_repr_dict_json_or_pickle() -> None:
    llm = CtxLLM(model="m", base_url="http://ann:pw-of-ann@127.0.0.1:9/v1?api-key=key-of-ann", context_window=8_000)
    texts = [repr(llm), str(llm.to_dict()), llm.to_json(), llm.model_dump_json(), pickle.dumps(llm).decode("latin-1")]
    assert not [text for text in texts if "pw-of-ann" in text or "key-of-ann" in text]
    assert all("127.0.0.1:9" in text for text in texts)


async def test_an_llm_comes_back_from_dict_json_and_pickle() -> None:
    async with served(*[Scripted("ok")] * 4, settings={"temperature": 0.3, "extra_body": {"seed": 1}}) as (llm, server):
        copies = [
            CtxLLM.from_dict(llm.to_dict(), api_key=KEY),
            CtxLLM.from_json(llm.to_json()),
            pickle.loads(pickle.dumps(llm)),
            copy.deepcopy(llm),
        ]
        for other in copies:
            assert other.model_dump() == llm.model_dump()
            assert (await other.achat(HELLO)).message.content == "ok"
            await other.aclose()
        copies[3].extra_body["seed"] = 2
        assert llm.extra_body == {"seed": 1}
    assert [r.body["seed"] for r in server.requests] == [1, 1, 1, 1]
    assert ["authorization" in r.headers for r in server.requests] == [True, False, False, True]


def test_a_pickled_llm_whose_key_is_gone_says_so_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    other = pickle.loads(pickle.dumps(CtxLLM(model="deepseek-v4-pro", provider="deepseek", api_key=KEY)))
    with pytest.raises(ConfigError, match="DEEPSEEK_API_KEY"):
        other.chat(HELLO)


@pytest.mark.parametrize("settings", [{"provider": "nowhere"}, {"base_url": "not an address"}, {"model": ""}])
def test_wrong_settings_are_config_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CtxLLM(**{"model": "m", **settings})


async def test_a_backend_can_be_given() -> None:
    backend = ScriptedBackend(["First.", "Second."], context_window=5000)
    llm = CtxLLM(model="m", backend=backend, thinking="high")
    assert llm.metadata.context_window == 5000
    assert llm.chat(HELLO).message.content == "First."
    assert (await ask(llm, "astream_chat"))[-1].message.content == "Second."
    assert backend.requests[0].thinking == "high"
    llm.close()


def test_making_an_llm_opens_no_http_client() -> None:
    code = (
        "import sys; from llamaindex_ctx import CtxLLM; CtxLLM(model='m');"
        "print('ctxfold.backends.http_backend' in sys.modules, 'ctxfold.backends.http' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["True", "False"]
