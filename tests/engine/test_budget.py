"""Windows, reserves and what a message costs."""

from __future__ import annotations

import pytest

from ctxfold import ConfigError, MediaPart, Message, TextPart, ToolSpec, assistant, tool_result, user
from ctxfold.errors import WindowTooSmallError
from ctxfold.messages import Opaque, ProviderSummary
from ctxfold.policy.settings import policy_for
from ctxfold.tokens.text import MessageCounter, RatioCounter
from tests.support.driven import call


def test_defaults_depend_on_the_window() -> None:
    rules = policy_for(10_000)
    assert (rules.reply_reserve_tokens, rules.budget_tokens, rules.summary_tokens) == (2_000, 8_000, 1_600)
    assert policy_for(1_000_000).summary_tokens == 2_048
    assert policy_for(100).summary_tokens == 64
    assert policy_for(100, reply_reserve_tokens=30, summary_tokens=9).summary_tokens == 9


@pytest.mark.parametrize(
    ("budget", "summary"),
    [(160, 64), (640, 128), (800, 160), (1_600, 160), (2_000, 160), (2_400, 320), (3_200, 640), (5_000, 1_000)],
)
def test_a_summary_leaves_recall_its_room_in_a_small_window(budget: int, summary: int) -> None:
    assert policy_for(budget * 5 // 4).summary_tokens == summary


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_needs_tokens(window: int) -> None:
    with pytest.raises(ConfigError, match=str(window)):
        policy_for(window)


def test_bad_settings_name_themselves() -> None:
    with pytest.raises(WindowTooSmallError, match="100 tokens and the reply reserve 100"):
        policy_for(100, reply_reserve_tokens=100)
    with pytest.raises(ConfigError, match="soft_ratio"):
        policy_for(100, soft_ratio=2)
    with pytest.raises(ConfigError, match="no_such_rule"):
        policy_for(100, no_such_rule=1)


def test_everything_that_is_sent_is_counted() -> None:
    counter = MessageCounter(RatioCounter())
    plain = counter.count(user("x" * 40, id="a"))
    assert counter.count(assistant("x" * 40, id="a", reasoning="y" * 40)) > plain
    assert (
        MessageCounter(RatioCounter(), count_reasoning=False).count(assistant("x" * 40, id="a", reasoning="y" * 40))
        == plain
    )
    assert counter.count(assistant("x" * 40, id="a", calls=[call("c")])) > plain
    assert counter.count(tool_result("c", "x" * 40, id="t")) >= plain
    assert counter.count(Message("m", "user", (MediaPart("image", "{}"),))) > 500
    assert counter.count(Message("m", "user", (TextPart("x" * 40), Opaque("lc", "{}" * 500)))) == plain
    assert counter.count_tools([ToolSpec("f", "d" * 100, {"type": "object"})]) > 25
    assert counter.count_all([user("a", id="1"), user("b", id="2")]) == 2 * counter.count(user("a", id="1"))
    assert counter.id != MessageCounter(RatioCounter(), count_reasoning=False).id


def test_a_summary_that_a_service_wrote_counts_as_what_is_sent_of_it() -> None:
    """Beside our text, which goes to other services, it has a block that only its author can read."""
    block = {"type": "compaction", "id": "c", "encrypted_content": "gAAA"}
    for tokens, counted in ((500, 504), (1, 14)):
        provided = ProviderSummary("openai_responses", "openai", "m", (block,), tokens)
        message = Message("x", "user", (TextPart("x" * 40), provided.part()), kind="summary")
        assert MessageCounter(RatioCounter()).count(message) == counted
