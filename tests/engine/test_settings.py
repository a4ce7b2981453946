"""Settings of a session: the typed fields, a whole policy, and keywords of older releases."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import pytest

from ctxfold import AgentContext, ConfigError, MemoryStore, Message, Policy
from ctxfold.connect import SessionSettings
from ctxfold.errors import CtxWarning, WindowTooSmallError
from ctxfold.history.records import PolicyChanged, SessionKey
from ctxfold.policy.settings import PolicyChanges, PolicyFields
from tests.support.driven import context

OWN_PARAMETERS = {"context_window", "reply_reserve_tokens", "strategy"}


def test_the_typed_fields_are_those_of_the_policy() -> None:
    changes, fields = get_type_hints(PolicyChanges), get_type_hints(Policy)
    assert changes.keys() == fields.keys() | {"keep"}
    # these two are taken in shorter forms too, and `keep` in those that LangChain has for keep_last
    assert {name for name in fields if changes[name] != fields[name]} == {"trigger", "memory"}
    assert {*get_args(fields["trigger"])} < {*get_args(changes["trigger"])}
    assert get_type_hints(PolicyFields).keys() == Policy.model_fields.keys() - OWN_PARAMETERS | {"keep"}
    assert get_type_hints(PolicyFields).keys() <= get_type_hints(SessionSettings).keys()


def test_a_whole_policy_is_taken_and_single_settings_change_it() -> None:
    whole = Policy(context_window=4_000, reply_reserve_tokens=300, summary_tokens=90, keep_last=3, strategy="truncate")
    assert context(context_window=None, policy=whole).policy == whole
    changed = context(context_window=None, policy=whole, keep_last=2, strategy="tiered").policy
    assert changed == whole.model_copy(update={"keep_last": 2, "strategy": "tiered"})


class Newest:
    """A summarizer of a caller's own: it keeps the newest messages."""

    name = "newest"

    def should_summarize(self, history: list[Message]) -> bool:
        return len(history) > 4

    def summarize(self, history: list[Message]) -> list[Message]:
        return history[-4:]


def test_a_policy_without_strategy_does_not_replace_a_custom_one() -> None:
    whole = Policy(context_window=4_000, reply_reserve_tokens=300, summary_tokens=90)
    with MemoryStore() as store:
        context(store=store, context_window=4_000, strategy=Newest()).close()
        with pytest.warns(CtxWarning, match="uses the strategy 'newest', which is not built in"):
            context(store=store, context_window=None, policy=whole)
        key = SessionKey("default", store.sessions("default")[0])
        policies = [json.loads(r.body.policy) for r in store.read(key) if isinstance(r.body, PolicyChanged)]
        assert {p["strategy"] for p in policies} == {"newest"}, "it stays in the log"


def test_another_window_limits_the_reserve_of_a_whole_policy() -> None:
    whole = Policy(context_window=4_000, reply_reserve_tokens=800, summary_tokens=600)
    smaller = context(context_window=1_000, policy=whole).policy
    assert (smaller.context_window, smaller.reply_reserve_tokens) == (1_000, 200)
    larger = context(context_window=9_000, policy=whole).policy
    assert larger == whole.model_copy(update={"context_window": 9_000})


def test_a_policy_that_is_none_or_leaves_no_room_is_refused() -> None:
    fields: Any = {"keep_last": 3}
    with pytest.raises(ConfigError, match=r"policy is a dict: give a ctxfold\.Policy"):
        AgentContext(context_window=4_000, policy=fields)
    with pytest.raises(WindowTooSmallError, match="nothing is left for the prompt"):
        AgentContext(policy=Policy(context_window=100, reply_reserve_tokens=100, summary_tokens=9))
