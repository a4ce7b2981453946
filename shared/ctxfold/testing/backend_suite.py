"""Defines BackendSuite, the tests that every backend passes; the backends of ctxfold run it too.

```python
class TestMyBackend(BackendSuite):
    def open_backend(self, place: str) -> ContextBackend:
        return MyBackend(url=place)
```

The fixture `place` gives the base URL of a scripted model server that answers every request with the text `ANSWER`; a backend for
another wire overrides it. Needs pytest."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, get_args

import pytest

from ctxfold.errors import BackendError
from ctxfold.messages import Message, Role, ToolSpec, system, user
from ctxfold.protocols import BackendCapabilities, Chunk, ContextBackend, Reply, Request, capabilities_of
from ctxfold.stream import Fold
from ctxfold.testing.script import ErrorReply, Scripted
from ctxfold.testing.server import ModelServer

ANSWER = "The ferry leaves at noon."
ASKED: tuple[Message, ...] = (system("Be brief.", id="s"), user("When does the ferry leave?", id="u"))


def _folded(chunks: list[Chunk]) -> Reply:
    fold = Fold("m", "model")
    for chunk in chunks:
        list(fold.feed(chunk))
    return fold.close()


class BackendSuite(ABC):
    """Subclass it as `Test...`, write `open_backend`, and run pytest."""

    @abstractmethod
    def open_backend(self, place: Any) -> ContextBackend:
        """Returns a backend that asks the service at `place`, without retries."""

    @pytest.fixture
    def place(self) -> Iterator[Any]:
        """Gives the place of a service that answers every request with `ANSWER`."""
        with ModelServer(script=[Scripted(ANSWER)] * 64) as server:
            yield server.base_url

    @pytest.fixture
    def failing_place(self) -> Iterator[Any]:
        """Gives the place of a service that refuses every request."""
        with ModelServer(script=[ErrorReply(500, "broken")] * 64) as server:
            yield server.base_url

    @pytest.fixture
    def backend(self, place: Any) -> Iterator[ContextBackend]:
        with closing(self.open_backend(place)) as backend:
            yield backend

    def test_it_says_what_it_is(self, backend: ContextBackend) -> None:
        assert backend.model
        assert backend.context_window is None or backend.context_window > 0
        assert backend.scratch_role in get_args(Role)
        assert isinstance(backend.capabilities, BackendCapabilities)
        assert capabilities_of(backend) == backend.capabilities

    def test_a_reply_is_an_assistant_message(self, backend: ContextBackend) -> None:
        self._check(backend.send(Request(ASKED)))
        self._check(asyncio.run(backend.asend(Request(ASKED))))

    def test_every_reply_has_an_id_of_its_own(self, backend: ContextBackend) -> None:
        ids = {backend.send(Request(ASKED)).message.id for _ in range(3)}
        assert len(ids) == 3
        assert "" not in ids

    def test_a_stream_brings_the_same_reply(self, backend: ContextBackend) -> None:
        with closing(backend.open_stream(Request(ASKED))) as stream:
            self._check(_folded(list(stream)))

        async def read() -> list[Chunk]:
            stream = await backend.aopen_stream(Request(ASKED))
            try:
                return [chunk async for chunk in stream]
            finally:
                await stream.aclose()

        self._check(_folded(asyncio.run(read())))

    def test_a_stream_that_is_left_can_be_closed(self, backend: ContextBackend) -> None:
        stream = backend.open_stream(Request(ASKED))
        assert next(iter(stream)) is not None
        stream.close()
        stream.close()

        async def leave() -> None:
            stream = await backend.aopen_stream(Request(ASKED))
            chunks: AsyncIterator[Chunk] = aiter(stream)
            assert await anext(chunks) is not None
            await stream.aclose()
            await stream.aclose()

        asyncio.run(leave())
        self._check(backend.send(Request(ASKED)))

    def test_the_request_stays_as_it_is(self, backend: ContextBackend) -> None:
        messages, tools = list(ASKED), (ToolSpec("look", "Looks something up."),)
        request = Request(messages, tools=tools, max_tokens=50, stop=("END",))
        self._check(backend.send(request))
        assert (messages, request) == (list(ASKED), Request(messages, tools=tools, max_tokens=50, stop=("END",)))

    def test_threads_and_tasks_ask_at_once(self, backend: ContextBackend) -> None:
        with ThreadPoolExecutor(4) as pool:
            for reply in pool.map(backend.send, [Request(ASKED)] * 8):
                self._check(reply)

        async def ask() -> list[Reply]:
            return await asyncio.gather(*(backend.asend(Request(ASKED)) for _ in range(8)))

        for reply in asyncio.run(ask()):
            self._check(reply)

    def test_a_cancelled_call_leaves_a_usable_backend(self, backend: ContextBackend) -> None:
        async def cancel() -> None:
            task = asyncio.ensure_future(backend.asend(Request(ASKED)))
            await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(outcome, (asyncio.CancelledError, Reply))
            self._check(await backend.asend(Request(ASKED)))

        asyncio.run(cancel())

    def test_a_sparing_request_is_answered(self, backend: ContextBackend) -> None:
        sparing = backend.capabilities.sparing
        if sparing is None:
            pytest.skip("the backend sends a summariser's request as it is")
        self._check(backend.send(sparing(Request(ASKED, max_tokens=500, thinking=False))))

    def test_a_failure_is_a_backend_error(self, failing_place: Any) -> None:
        with closing(self.open_backend(failing_place)) as backend:
            with pytest.raises(BackendError):
                backend.send(Request(ASKED))
            with pytest.raises(BackendError):
                list(backend.open_stream(Request(ASKED)))

            async def ask() -> None:
                with pytest.raises(BackendError):
                    await backend.asend(Request(ASKED))
                with pytest.raises(BackendError):
                    [chunk async for chunk in await backend.aopen_stream(Request(ASKED))]

            asyncio.run(ask())

    def test_it_closes_twice(self, place: Any) -> None:
        backend = self.open_backend(place)
        backend.close()
        backend.close()
        other = self.open_backend(place)

        async def close() -> None:
            await other.aclose()
            await other.aclose()

        asyncio.run(close())

    def _check(self, reply: Reply) -> None:
        assert reply.message.role == "assistant"
        assert reply.message.text == ANSWER
        assert reply.finish_reason
        assert reply.usage is None or reply.usage.output_tokens >= 0
