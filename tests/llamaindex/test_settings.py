"""Settings of `with_context` and `CtxMemory`: a whole policy, and the names that release 2.0 drops."""

from __future__ import annotations

import pytest
from llama_index.core.llms.llm import LLM
from llama_index.core.llms.mock import MockLLM
from llama_index.llms.openai import OpenAI, OpenAIResponses

from ctxfold import ConfigError, Policy
from llamaindex_ctx import CtxMemory, with_context
from tests.llamaindex.scripted_agents import Script
from tests.llamaindex.talk import bot, user, words

POLICY = Policy(context_window=6_000, reply_reserve_tokens=700, keep_last=3, summary_tokens=300)


def test_an_llm_takes_a_whole_policy_and_single_fields_over_it() -> None:
    with with_context(MockLLM(max_tokens=5), session_id="s", policy=POLICY, keep_last=5) as chat:
        rules = chat.context().policy
    assert rules == POLICY.model_copy(update={"keep_last": 5})
    assert chat.metadata.context_window == 6_000


def test_a_window_beside_a_policy_takes_precedence() -> None:
    with with_context(MockLLM(), session_id="s", policy=POLICY, context_window=5_000) as chat:
        assert chat.context().policy.context_window == 5_000
    with CtxMemory.from_defaults("s", policy=POLICY, token_limit=4_000) as memory:
        assert memory.token_limit == 4_000


def test_a_memory_takes_a_whole_policy() -> None:
    with CtxMemory.from_defaults("s", policy=POLICY, llm=MockLLM()) as memory:
        assert memory.context.policy == POLICY


def test_the_reply_reserve_is_the_llms_own_limit_unless_it_is_given() -> None:
    with with_context(MockLLM(max_tokens=256), session_id="s", context_window=8_000) as chat:
        assert chat.context().policy.reply_reserve_tokens == 256
    with with_context(MockLLM(max_tokens=256), session_id="s", context_window=8_000, reply_reserve_tokens=900) as chat:
        assert chat.context().policy.reply_reserve_tokens == 900


@pytest.mark.parametrize(
    ("llm", "reserve"),
    [
        (OpenAIResponses("gpt-5-mini", api_key="x", max_output_tokens=4_000), 4_000),
        (OpenAI("gpt-5-mini", api_key="x", max_tokens=4_000), 4_000),
        (OpenAI("gpt-5-mini", api_key="x", additional_kwargs={"max_completion_tokens": 4_000}), 4_000),
        (OpenAI("gpt-5-mini", api_key="x"), 1_800),
        (MockLLM(max_tokens=-1), 1_800),
    ],
)
def test_the_limit_of_a_reply_has_several_names(llm: LLM, reserve: int) -> None:
    """A service counts it as a part of the request, whatever the class of the LLM calls it."""
    with CtxMemory.from_defaults(context_window=9_000, llm=llm) as memory:
        assert memory.context.policy.reply_reserve_tokens == reserve
    with with_context(llm, session_id="s", context_window=9_000) as chat:
        assert chat.context().policy.reply_reserve_tokens == reserve


@pytest.mark.parametrize("name", ["max_tokens", "max_output_tokens", "max_completion_tokens"])
def test_the_limit_of_one_reply_leaves_less_room_for_its_request(name: str) -> None:
    llm = Script(bot("Noted."))
    with with_context(llm, session_id="s", context_window=4_000) as chat:
        for number in range(20):
            chat.chat([user(f"Question {number}. " + words("Please", 100))])
        before = len(llm.sent[-1])
        chat.chat([user("And now?")], **{name: 3_000})
        assert len(llm.sent[-1]) < before // 2


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give a ctxfold\.Policy"):
        with_context(MockLLM(), policy={"keep_last": 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrong", "right"), [("session", "session_id"), ("max_output_tokens", "reply_reserve_tokens")])
def test_a_name_that_others_use_is_told_the_right_one(wrong: str, right: str) -> None:
    setting: dict[str, object] = {wrong: "all" if wrong == "session" else 100}
    with pytest.raises(ConfigError, match=f"there is no setting '{wrong}': ctxfold calls it {right}"):
        with_context(MockLLM(), context_window=8_000, **setting)  # type: ignore[arg-type]
