"""Step 7, C: what summaries cost is heard by the callbacks of the call that needed them, and said by `usage()`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler, get_usage_metadata_callback
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tracers import BaseTracer, Run
from langchain_core.tracers.context import register_configure_hook
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.testing import ErrorReply, ModelServer, Scripted
from langchain_ctx import ChatCtx, ContextMiddleware, CtxChatMessageHistory, with_context
from tests.langchain.faces import Agents, closed, model_settings
from tests.langchain.running import T

TURNS = 7


def answer(body: Any) -> Scripted:
    """A long answer, or a short summary."""
    if any(str(m["content"]).startswith("Story") for m in body["messages"]):
        return Scripted("It is a long story. " * 60)
    return Scripted("They asked for one story after the other.")


class Counted(UsageMetadataCallbackHandler):
    """LangChain's own count of usage, and of how many answers it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        before = sum(u["total_tokens"] for u in self.usage_metadata.values())
        super().on_llm_end(response, **kwargs)
        self.calls += sum(u["total_tokens"] for u in self.usage_metadata.values()) > before


class Tokens(BaseCallbackHandler):
    """Every token, as an application shows them, and the runs."""

    def __init__(self) -> None:
        self.text, self.runs = "", 0

    def on_llm_new_token(self, token: str, **_: Any) -> None:
        self.text += token

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.runs += 1


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("face", ["middleware", "with_context", "with_context alone", "ChatCtx alone", "history"])
async def test_a_summary_counts(face: str, how: str, store_url: str) -> None:
    with ModelServer(model="m", script=answer, context_window=None) as server:
        made = Agents(face, server)
        settings = {**model_settings(server.base_url), "stream_usage": True}
        plain = ChatOpenAI(**settings)
        closing: list[Any] = []
        match face:
            case "with_context alone":
                app: Any = with_context(plain, context_window=1_500, store=store_url)
                closing.append(app)
            case "ChatCtx alone":
                app = ChatCtx(
                    **model_settings(server.base_url), context_window=1_500, store=store_url, summarizer=plain
                )
                closing.append(app)
            case "history":
                history = CtxChatMessageHistory("t", store_url, 1_500, summarizer=plain)
                closing.append(history)

                def told(text: str) -> Any:
                    found = plain.invoke([*history.messages, HumanMessage(text)])
                    history.add_messages([HumanMessage(text), found])
                    return found

                async def atold(text: str) -> Any:
                    found = await plain.ainvoke([*await history.aget_messages(), HumanMessage(text)])
                    await history.aadd_messages([HumanMessage(text), found])
                    return found

                app = RunnableLambda(told, atold)
            case _:
                app = made.agent(store_url, InMemorySaver(), context_window=1_500)
        usage, tokens = Counted(), Tokens()
        config: Any = {**T, "callbacks": [usage, tokens]}
        for number in range(TURNS):
            text = f"Story {number}?"
            given: Any = (
                text
                if face in ("history", "with_context alone", "ChatCtx alone")
                else {"messages": [HumanMessage(text)]}
            )
            match how:
                case "invoke":
                    app.invoke(given, config)
                case "ainvoke":
                    await app.ainvoke(given, config)
                case "stream":
                    _ = [*app.stream(given, config)]
                case _:
                    _ = [piece async for piece in app.astream(given, config)]
        assert tokens.runs == len(server.requests) > TURNS, "the callbacks hear of every request"
        assert "one story after the other" not in tokens.text
        if how in ("invoke", "ainvoke"):
            assert usage.calls == len(server.requests)
        for one in closing:
            await one.aclose()
        await closed(plain)
        await made.aclose()


class Tracing(BaseTracer):
    """A tracer as LangSmith's and OpenInference's are: it keeps each run, and takes tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[Run] = []
        self.began: list[Any] = []

    def _persist_run(self, run: Run) -> None:
        self.roots.append(run)

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> Any:
        self.began.append(kwargs["run_id"])
        return super().on_chat_model_start(*args, **kwargs)

    def models(self) -> list[Run]:
        found, pending = list[Run](), [*self.roots]
        while pending:
            run = pending.pop()
            pending += run.child_runs
            found += [run] if run.run_type in ("llm", "chat_model") else []
        return found


HOOKED: ContextVar[Any] = ContextVar("hooked", default=None)
register_configure_hook(HOOKED, inheritable=True)


@pytest.mark.parametrize("writer", ["the model", "another"])
@pytest.mark.parametrize("face", ["middleware", "with_context"])
async def test_h3_each_summary_is_counted_and_traced_once(
    face: str, writer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`get_usage_metadata_callback()` and a tracer, which LangChain adds to a run that lacks the very object.

    The model streams its summaries too; what shows tokens to a user hears those of the answers.
    """
    story = Scripted("Fine. " + "It is a long story. " * 20)
    with ModelServer(model="m", script=lambda _: story, context_window=1_500) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="x", streaming=True, stream_usage=True)  # type: ignore[arg-type]
        other = ChatOpenAI(model="m", base_url=server.base_url, api_key="x")  # type: ignore[arg-type]
        settings: Any = {"context_window": 1_500, "summarizer": None if writer == "the model" else other}
        tracer, tokens = Tracing(), Tokens()
        ask: Any
        if face == "middleware":
            given: Any = ContextMiddleware(**settings, history_tools=False)
            agent: Any = create_agent(model, middleware=[given], checkpointer=InMemorySaver())
            ask = lambda text, config: agent.invoke({"messages": [HumanMessage(text)]}, config)  # noqa: E731
        else:
            given = with_context(model, **settings)
            ask = (given | RunnablePassthrough()).invoke
        hooked = Tracing()
        HOOKED.set(hooked)
        with get_usage_metadata_callback() as counting:
            for number in range(16):
                ask(f"Question {number}", {"callbacks": [tracer, tokens], "configurable": {"thread_id": "t"}})
        asked = len(server.requests)
        runs = tracer.models()
        assert given.context("t").usage().summary_calls > 0
        assert len(runs) == len(tracer.began) == len({*tracer.began}) == asked
        assert len(tracer.roots) == 16, "a summary hangs in the tree of the call that needed it"
        assert len(hooked.began) == len({*hooked.began}) == asked
        assert "Error in" not in caplog.text
        assert tokens.text.count("Fine.") == 16
        reported = sum(
            r.outputs["generations"][0][0]["message"]["kwargs"]["usage_metadata"]["output_tokens"] for r in runs
        )  # type: ignore[index]
        assert sum(u["output_tokens"] for u in counting.usage_metadata.values()) == reported
        await closed(given)
        await closed(model)
        await closed(other)


class Ends(BaseCallbackHandler):
    """How the runs of summaries began and ended."""

    def __init__(self) -> None:
        self.began, self.ends = 0, list[str]()

    def on_chat_model_start(self, *_: Any, tags: Any = None, **__: Any) -> None:
        self.began += "ctxfold:summary" in (tags or ())

    def on_llm_end(self, *_: Any, tags: Any = None, **__: Any) -> None:
        self.ends += ["written"] if "ctxfold:summary" in (tags or ()) else []

    def on_llm_error(self, *_: Any, tags: Any = None, **__: Any) -> None:
        self.ends += ["failed"] if "ctxfold:summary" in (tags or ()) else []


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("end", ["written", "failed"])
async def test_each_summary_by_a_chat_model_of_ours_is_a_run_that_ends(end: str, how: str) -> None:
    told = Scripted("So far: fillers.") if end == "written" else ErrorReply(400, {"error": {"message": "no"}})
    with (
        ModelServer(model="m", script=lambda _: Scripted("Yes. " * 40)) as server,
        ModelServer(model="w", script=lambda _: told) as other,
    ):
        async with (
            ChatCtx(model="w", base_url=other.base_url, api_key="x", context_window=8_000) as writer,
            ChatCtx(
                model="m", base_url=server.base_url, api_key="x", session="t", context_window=1_500, summarizer=writer
            ) as chat,
        ):
            heard = Ends()
            for number in range(16):
                text, config = f"Question {number}. " + "filler " * 40, {"callbacks": [heard]}
                _ = chat.invoke(text, config) if how == "invoke" else await chat.ainvoke(text, config)
            assert heard.began > 0
            assert heard.ends == [end] * heard.began
