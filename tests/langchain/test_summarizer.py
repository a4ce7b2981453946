"""Any LangChain model as the summariser."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core import exceptions as lc
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda, ensure_config
from langchain_openai import ChatOpenAI

from ctxfold import BackendError, Request, system, user
from ctxfold.adapters.summaries import SummaryWriter
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, CtxChatMessageHistory
from langchain_ctx.backend import LangChainBackend
from langchain_ctx.summarizer import ChatModelSummarizer
from tests.langchain.test_history import words

ASKED = Request(messages=[system("Summarise.", id="1"), user("a long talk", id="2")], max_tokens=77, thinking=False)


class Recording(FakeListChatModel):
    """Keeps what it was asked, and fails when told to."""

    responses: list[str] = ["short"]  # noqa: RUF012
    max_tokens: int | None = None
    asked: list[Any] = []  # noqa: RUF012
    error: Any = None

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.asked.append((messages, kwargs, list(run_manager.tags)))
        if self.error is not None:
            raise self.error
        return ChatResult(generations=[ChatGeneration(message=AIMessage("short"))])


async def test_it_is_asked_with_roles_limit_and_tags() -> None:
    model = Recording(asked=[])
    summarizer = ChatModelSummarizer(model)
    assert summarizer.send(ASKED).message.text == "short"
    assert (await summarizer.asend(ASKED)).message.text == "short"
    assert "".join([c.content for c in summarizer.open_stream(ASKED)]) == "short"
    assert "".join([c.content async for c in await summarizer.aopen_stream(ASKED)]) == "short"
    for messages, kwargs, tags in model.asked:
        assert [m.type for m in messages] == ["system", "human"]
        assert kwargs == {"max_tokens": 77}
        assert {"nostream", "ctxfold:summary"} <= set(tags)


def claude(url: str, **settings: Any) -> Any:
    from langchain_anthropic import ChatAnthropic  # takes a second: only the worker that runs this is to wait

    base: Any = url.removesuffix("/v1")
    return ChatAnthropic(model="m", base_url=base, api_key="x", max_retries=0, max_tokens=9_000, **settings)  # type: ignore[arg-type, call-arg]


def gpt(url: str, **settings: Any) -> Any:
    return ChatOpenAI(model="m", base_url=url, api_key="x", max_retries=0, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [ChatModelSummarizer, LangChainBackend])
@pytest.mark.parametrize(
    ("model", "settings", "limited"),
    [
        (claude, {"thinking": {"type": "enabled", "budget_tokens": 1_024}}, False),
        (claude, {"thinking": {"type": "disabled"}}, True),
        (claude, {"profile": {"reasoning_output": True}}, True),
        (gpt, {"profile": {"reasoning_output": True}}, False),
        (gpt, {"profile": {"reasoning_output": True}, "reasoning_effort": "none"}, True),
        (gpt, {"reasoning_effort": "low"}, False),
        (gpt, {}, True),
    ],
)
def test_the_limit_of_a_summary_does_not_cut_a_models_thinking(
    make: Any, model: Any, settings: dict[str, Any], limited: bool
) -> None:
    """Claude refuses a limit below its budget for thinking, and others think until the limit is reached."""
    strict = "anthropic" if model is claude else "openai"
    with ModelServer(
        model="m", script=[Scripted("They have boats at piers, such as 217 and 248.")], strict=strict
    ) as server:
        writer = SummaryWriter(make(model(server.base_url, **settings)), context_window=8_000)
        summary = writer.write([user(f"The boat of friend {n} is at pier {n * 31}.", id=f"m{n}") for n in range(40)])
        assert (summary.fallback_level, summary.problems) == ("model", ())
        body = server.requests[0].body
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 9_000
        assert (limit < 1_024) is limited


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lc.ContextOverflowError("big"), "context_overflow"),
        (lc.ModelRateLimitError("slow"), "rate_limit"),
        (TimeoutError("late"), "timeout"),
        (RuntimeError("boom"), "server"),
    ],
)
async def test_its_errors_are_backend_errors(error: Exception, kind: str) -> None:
    summarizer = ChatModelSummarizer(Recording(asked=[], error=error))
    with pytest.raises(BackendError, match="summariser") as caught:
        summarizer.send(ASKED)
    assert caught.value.kind == kind
    with pytest.raises(BackendError):
        await summarizer.asend(ASKED)


def test_a_runnable_that_gives_text_will_do() -> None:
    assert ChatModelSummarizer(RunnableLambda(lambda m: f"{len(m)} messages")).send(ASKED).message.text == "2 messages"
    with pytest.raises(BackendError, match="gave a int"):
        ChatModelSummarizer(RunnableLambda(lambda m: len(m))).send(ASKED)


def test_when_it_fails_the_extractive_summary_takes_over() -> None:
    model = Recording(asked=[], error=RuntimeError("boom"))
    with CtxChatMessageHistory("s", context_window=700, summarizer=model) as history:
        for number in range(15):
            history.add_messages([HumanMessage(words(number)), AIMessage("ok")])
        assert history.context.usage().compactions > 0
        assert model.asked


def test_a_chatctx_summarises_outside_of_its_own_session() -> None:
    with (
        ModelServer(model="m", script=lambda _: Scripted("So far: notes.")) as server,
        ChatCtx(model="m", base_url=server.base_url, api_key="x", session="own", context_window=9_000) as chat,
        CtxChatMessageHistory("s", context_window=700, summarizer=chat) as history,
    ):
        for number in range(15):
            history.add_messages([HumanMessage(words(number)), AIMessage("ok")])
        assert history.context.usage().compactions > 0
        assert server.requests
        assert chat.context().view().messages == ()


class Watching(BaseCallbackHandler):
    """Counts the model runs that a caller's callbacks hear of."""

    def __init__(self) -> None:
        self.runs = 0

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.runs += 1


def test_the_callers_callbacks_hear_of_it_and_the_callers_session_does_not_reach_it() -> None:
    watching, model = Watching(), Recording(asked=[])
    seen: list[Any] = []

    def answer(_: Any) -> AIMessage:
        seen.append(ensure_config()["configurable"])
        return AIMessage("short")

    def run(_: Any) -> str:
        assert ensure_config()["configurable"] == {"session_id": "callers"}
        ChatModelSummarizer(RunnableLambda(answer)).send(ASKED)
        return ChatModelSummarizer(model).send(ASKED).message.text

    chain = RunnableLambda(run) | FakeListChatModel(responses=["mine"])
    chain.invoke("x", {"callbacks": [watching], "configurable": {"session_id": "callers"}})
    assert seen == [{}]
    assert watching.runs == 2, "the summary and the answer"
