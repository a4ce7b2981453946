"""Long sessions of agents on generateContent against a server as strict as Gemini 3, and sessions that change the wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    Completed,
    GeminiBackend,
    Message,
    ReasoningPart,
    Request,
    ToolCallPart,
    ToolSpec,
    assistant,
    open_backend,
    tool_result,
    user,
)
from ctxfold.testing import ErrorReply, ModelServer, Scripted, ScriptedCall

MODEL = "gemini-3.1-pro-preview"
DUMMY = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
TOOL = ToolSpec("look", "Looks into lockers.", {"type": "object", "properties": {"locker": {"type": "integer"}}})
TURNS, WINDOW = 30, 6_000
FINDING = "holds a red umbrella, two books and a note about the ferry at noon. " * 6


def plays(body: Mapping[str, Any]) -> Scripted | None:
    """Two steps of calls, the first of two at once, then an answer; anything without tools is a summary."""
    if not body.get("tools"):
        return None
    steps = 0
    for message in reversed(body["messages"]):
        if message["role"] == "user":
            break
        steps += message["role"] == "assistant"
    number = sum(len(str(message)) for message in body["messages"])
    why = f"Step {steps} at {number}: the lockers are looked into one after the other."
    if steps == 0:
        pair = (ScriptedCall("look", '{"locker": 1}'), ScriptedCall("look", '{"locker": 2}'))
        return Scripted("Let me look.", why, pair)
    if steps == 1:
        return Scripted("", why, (ScriptedCall("look", '{"locker": 3}'),))
    return Scripted("All three hold umbrellas.", why)


class Driver:
    """One agent turn, in each of the four ways of asking."""

    def __init__(self, context: AgentContext, *, streamed: bool) -> None:
        self.context, self.streamed = context, streamed

    def turn(self, question: str) -> Message:
        answer = self._ask(question)
        while answer.tool_calls:
            answer = self._ask(self._results(answer))
        return answer

    async def aturn(self, question: str) -> Message:
        answer = await self._aask(question)
        while answer.tool_calls:
            answer = await self._aask(self._results(answer))
        return answer

    def _results(self, answer: Message) -> list[Message]:
        # tools that run at once end in any order
        made = [tool_result(c.id, f"{c.arguments} {FINDING}", name=c.name) for c in answer.tool_calls]
        return made[::-1]

    def _ask(self, content: Any) -> Message:
        if not self.streamed:
            return self.context.send(content, tools=(TOOL,)).message
        *_, last = self.context.send_stream(content, tools=(TOOL,))
        assert isinstance(last, Completed)
        return last.reply.message

    async def _aask(self, content: Any) -> Message:
        if not self.streamed:
            return (await self.context.asend(content, tools=(TOOL,))).message
        events = [event async for event in self.context.asend_stream(content, tools=(TOOL,))]
        assert isinstance(events[-1], Completed)
        return events[-1].reply.message


def check_requests(server: ModelServer, minimum: int) -> None:
    """No request was refused, and the calls of the open turn carry the signatures of their own steps."""
    bodies = [dict(one.body) for one in server.requests]
    agents = [body for body in bodies if body.get("tools")]
    assert len(agents) >= minimum
    for body in agents:
        contents = body["contents"]
        opened = max(i for i, c in enumerate(contents) if c["role"] == "user" and "text" in c["parts"][0])
        steps = [c["parts"] for c in contents[opened:] if c["role"] == "model"]
        for parts in steps:
            assert parts[0].get("thought"), "the thoughts of the open turn go back"
            first = next(part for part in parts if "functionCall" in part)
            assert first["thoughtSignature"] != DUMMY


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("way", ["sync", "async"])
async def test_turns_with_tools_past_the_window(way: str, streamed: bool) -> None:
    with (
        ModelServer(script=plays, strict="gemini", context_window=WINDOW) as server,
        GeminiBackend(model=MODEL, base_url=server.base_url, api_key="k", max_retries=0) as backend,
        AgentContext(backend, session_id="s", store="memory://", context_window=WINDOW) as context,
    ):
        driver = Driver(context, streamed=streamed)
        for number in range(TURNS):
            question = f"What is in the lockers of corridor {number}?"
            answer = driver.turn(question) if way == "sync" else await driver.aturn(question)
            assert answer.text == "All three hold umbrellas."
        assert context.usage().compactions > 0
        check_requests(server, 3 * TURNS)


def test_a_session_changes_its_wire_and_comes_back(tmp_path: Path) -> None:
    """Text, calls and results cross; signatures come back to the model that made them, and go to no other."""
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    with ModelServer(script=plays, strict="gemini") as server:
        settings: dict[str, Any] = {"base_url": server.base_url, "api_key": "k", "max_retries": 0}
        gemini = open_backend("gemini", MODEL, wire="gemini", **settings)
        chat = open_backend("openai", "gpt-6", **settings)
        with gemini, chat:
            for number, backend in enumerate((gemini, chat, gemini)):
                with AgentContext(backend, session_id="s", store=store, context_window=50_000) as context:
                    Driver(context, streamed=number == 1).turn(f"question {number}")
                    assert len(context.messages("model")) == 7 * (number + 1)
        last = server.requests[-1].body["contents"]
        signatures = [p["thoughtSignature"] for c in last for p in c["parts"] if "thoughtSignature" in p]
        assert signatures.count(DUMMY) == 2, "the two steps of the other model"
        assert len(signatures) == 7
        told = [dict(r.body) for r in server.requests if r.path.endswith("/chat/completions")]
        assert told
        assert "thoughtSignature" not in json.dumps(told)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "deepseek", "openrouter", "gemini", "vllm"])
def test_a_reply_can_be_sent_on_every_other_wire(provider: str) -> None:
    """Also to a model of the same name, whose wire reads none of the fields."""
    script = [Scripted("So.", "hm", (ScriptedCall("look", '{"locker": 1}'),))]
    with (
        ModelServer(script=script) as server,
        GeminiBackend(model="m", base_url=server.base_url, api_key="k") as service,
    ):
        reply = service.send(Request((user("q", id="u"),), tools=(TOOL,))).message
    (call,) = reply.tool_calls
    assert call.extra is not None
    sealed = ReasoningPart("", None, '[{"executableCode": {"code": "1"}}]')
    reply = replace(reply, parts=(sealed, *reply.parts))
    with open_backend(provider, "m", api_key="k") as other:
        messages = (user("q", id="u"), reply, tool_result(call.id, "x", id="t"), user("and?", id="u2"))
        body = json.dumps(other.request_body(Request(messages, tools=(TOOL,)), stream=False))
    assert "thoughtSignature" not in body
    assert "executableCode" not in body
    assert "So." in body
    assert '"look"' in body


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        ("signature", r"Function call is missing a thought_signature in functionCall parts.*`default_api:look`"),
        ("changed", "Corrupted thought signature"),
        ("missing", "number of function response parts is equal to the number of function call parts"),
        ("empty", r"contents\[0\].parts: contents.parts must not be empty"),
        ("blank", r"parts\[0\].data: required oneof field 'data' must have one initialized field"),
        ("order", "function call turn comes immediately after a user turn"),
        ("answer", "function response turn comes immediately after a function call turn"),
        ("none", "contents is not specified"),
    ],
)
def test_the_strict_server_refuses_in_the_services_words(spoiled: str, words: str) -> None:
    script = [Scripted("", "hm", (ScriptedCall("look", "{}"),)), Scripted("done")]
    with (
        ModelServer(script=script, strict="gemini") as server,
        Spoiling(spoiled, server.base_url) as backend,
    ):
        asked = user("q", id="u")
        reply = GeminiBackend.send(backend, Request((asked,), tools=(TOOL,))).message
        backend.spoils = True
        results = [tool_result(call.id, "x", id="t") for call in reply.tool_calls]
        with pytest.raises(BackendError, match=words) as caught:
            backend.send(Request((asked, reply, *results), tools=(TOOL,)))
        backend.spoils = False
        assert caught.value.status == 400
        assert caught.value.code == "INVALID_ARGUMENT"
        assert backend.send(Request((asked, reply, *results), tools=(TOOL,))).message.text == "done"


class Spoiling(GeminiBackend):
    """A client with one fault."""

    def __init__(self, fault: str, base_url: str) -> None:
        super().__init__(model=MODEL, base_url=base_url, api_key="k", max_retries=0)
        self.fault, self.spoils = fault, False

    def request_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        body = super().request_body(request, stream=stream)
        contents: list[dict[str, Any]] = body["contents"]
        if not self.spoils:
            return body
        match self.fault:
            case "signature":
                del contents[1]["parts"][-1]["thoughtSignature"]
            case "changed":
                contents[1]["parts"][-1]["thoughtSignature"] = "QUJD"
            case "missing":
                contents.append({"role": "user", "parts": [contents.pop()["parts"][0], {"text": "and?"}]})
            case "empty":
                contents[0]["parts"] = []
            case "blank":
                contents[0]["parts"] = [{"text": ""}]
            case "order":
                contents.insert(1, {"role": "model", "parts": [{"text": "I will look."}]})
            case "answer":
                contents[1]["parts"] = [{"text": "I will not look."}]
            case _:
                body["contents"] = []
        return body


def test_the_server_words_an_overflow_as_the_service_does() -> None:
    with (
        ModelServer(strict="gemini", context_window=100) as server,
        GeminiBackend(model=MODEL, base_url=server.base_url, api_key="k") as backend,
        pytest.raises(BackendError, match="input token count") as caught,
    ):
        backend.send(Request((user("word " * 300, id="u"),)))
    error = caught.value
    assert (error.kind, error.limit_tokens) == ("context_overflow", 100)
    assert (error.requested_tokens or 0) > 300


def test_what_a_script_says_reaches_the_client_as_it_is() -> None:
    error = ErrorReply(503, {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}})
    script = [error, Scripted("x", finish_reason="length"), Scripted(tool_calls=(ScriptedCall("look", "no json"),))]
    with (
        ModelServer(script=script) as server,
        GeminiBackend(model=MODEL, base_url=server.base_url, api_key="k", max_retries=0) as backend,
    ):
        request = Request((user("q", id="u"),))
        with pytest.raises(BackendError, match="overloaded") as caught:
            backend.send(request)
        assert caught.value.kind == "overloaded"
        assert backend.send(request).finish_reason == "length"
        with pytest.raises(BackendError, match="MALFORMED_FUNCTION_CALL"):
            backend.send(request)


def test_calls_that_no_gemini_model_made_pass_the_strict_server() -> None:
    calls = [ToolCallPart("toolu_1", "look", "{}"), ToolCallPart("toolu_2", "look", "{}")]
    asked = (user("q", id="u"), assistant("", id="a", reasoning="hm", calls=calls))
    results = [tool_result(call.id, "x", id=f"t{call.id}") for call in calls]
    with (
        ModelServer(script=[Scripted("done")], strict="gemini") as server,
        GeminiBackend(model=MODEL, base_url=server.base_url, api_key="k") as backend,
    ):
        assert backend.send(Request((*asked, *results))).message.text == "done"
