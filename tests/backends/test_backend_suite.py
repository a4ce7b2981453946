"""The conformance suite on the backends of ctxfold and on one from outside, and mutants of that one which it must find."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ctxfold import AgentContext, BackendError, ContextBackend, Reply, Request, ScriptedBackend, assistant, open_backend
from ctxfold.backends.base import BaseBackend
from ctxfold.backends.scripted import ChaosBackend
from ctxfold.protocols import BackendCapabilities, capabilities_of
from ctxfold.stream import PlayedStream
from ctxfold.testing import ErrorReply, ModelServer, Scripted
from ctxfold.testing.backend_suite import ANSWER, BackendSuite


class UrlBackend(BaseBackend):
    """A backend as somebody outside of ctxfold would write it: one method, on another HTTP client."""

    model = "outside"

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls = 0

    def send(self, request: Request) -> Reply:
        messages = [{"role": m.role, "content": m.text} for m in request.messages]
        body = json.dumps({"model": self.model, "messages": messages}).encode()
        asked = urllib.request.Request(f"{self.url}/chat/completions", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=30) as response:
                choice = json.load(response)["choices"][0]
        except urllib.error.HTTPError as error:
            error.close()
            raise BackendError(f"the service answered {error.code}", kind="server") from error
        self.calls += 1
        return Reply(
            assistant(choice["message"]["content"], id=f"r{self.calls}"), finish_reason=choice["finish_reason"]
        )


class TestOutsideBackend(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return UrlBackend(place)


class TestOpenAIChat(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return open_backend("generic", "lookup", base_url=place, max_retries=0)


class TestDeepSeekRow(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return open_backend("deepseek", "deepseek-v4-pro", base_url=place, api_key="k", max_retries=0)


class TestGemini(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return open_backend(
            "gemini", "gemini-3-flash-preview", wire="gemini", base_url=place, api_key="k", max_retries=0
        )


class TestOpenAIResponses(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return open_backend("openai", "m", wire="openai_responses", base_url=place, api_key="k", max_retries=0)


class TestAnthropic(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return open_backend("anthropic", "claude-sonnet-4-5", base_url=place, api_key="k", max_retries=0)


class TestBedrock(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return open_backend("bedrock", "anthropic.claude-sonnet-4-5", base_url=place, api_key="k", max_retries=0)


class TestChaos(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return ChaosBackend(open_backend("generic", "lookup", base_url=place, max_retries=0))


class TestScripted(BackendSuite):
    @pytest.fixture
    def place(self) -> Sequence[str | BackendError]:
        return [ANSWER] * 64

    @pytest.fixture
    def failing_place(self) -> Sequence[str | BackendError]:
        return [BackendError("broken", kind="server")] * 64

    def open_backend(self, place: Sequence[str | BackendError]) -> ContextBackend:
        return ScriptedBackend(place)


def test_an_outside_backend_holds_a_conversation() -> None:
    with (
        ModelServer(script=[Scripted(ANSWER)] * 2) as server,
        UrlBackend(server.base_url) as backend,
        AgentContext(backend, context_window=8_000) as ctx,
    ):
        assert ctx.send("When?").message.text == ANSWER
        assert [type(e).__name__ for e in ctx.send_stream("Really?")][-1] == "Completed"
        assert [m.text for m in ctx.messages()] == ["When?", ANSWER, "Really?", ANSWER]


class WithoutCapabilities:
    """A backend of version 0.1."""

    model, context_window, scratch_role, binds_reasoning = "old", None, "user", True


def test_a_backend_that_declares_nothing_has_the_defaults() -> None:
    backend: Any = WithoutCapabilities()
    assert capabilities_of(backend) == capabilities_of(None) == BackendCapabilities()


class OtherError(UrlBackend):
    def send(self, request: Request) -> Reply:
        try:
            return super().send(request)
        except BackendError as error:
            raise OSError(str(error)) from error


class SameId(UrlBackend):
    def send(self, request: Request) -> Reply:
        reply = super().send(request)
        return replace(reply, message=replace(reply.message, id="r"))


class Forgetful(UrlBackend):
    async def asend(self, request: Request) -> Reply:
        return Reply(assistant("", id="x"), finish_reason="stop")


class Silent(UrlBackend):
    def open_stream(self, request: Request) -> PlayedStream:
        self.send(request)
        return PlayedStream(())


class Careless(UrlBackend):
    def send(self, request: Request) -> Reply:
        assert isinstance(request.messages, list)
        request.messages.append(request.messages[0])
        return super().send(request)


class OnceClosed(UrlBackend):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


# the test of the suite that finds each mutant
MUTANTS = [
    (OtherError, "test_a_failure_is_a_backend_error"),
    (SameId, "test_every_reply_has_an_id_of_its_own"),
    (Forgetful, "test_a_reply_is_an_assistant_message"),
    (Silent, "test_a_stream_brings_the_same_reply"),
    (Careless, "test_the_request_stays_as_it_is"),
    (OnceClosed, "test_it_closes_twice"),
]


@pytest.mark.parametrize(("mutant", "killer"), MUTANTS)
def test_the_suite_finds_a_mutant(mutant: type[UrlBackend], killer: str) -> None:
    class Suite(BackendSuite):
        def open_backend(self, place: str) -> ContextBackend:
            return mutant(place)

    test = getattr(Suite(), killer)
    fails = killer == "test_a_failure_is_a_backend_error"
    errors = (AssertionError, OSError, RuntimeError, BackendError)
    with (
        ModelServer(script=[ErrorReply(500, "broken") if fails else Scripted(ANSWER)] * 8) as server,
        pytest.raises(errors),
    ):
        test(server.base_url if fails or killer == "test_it_closes_twice" else mutant(server.base_url))
