"""Effects, and the two drivers that perform them.

Engine logic is written once as a generator (`Flow`) that yields effects and receives their results, such as
`records = yield from StoreCall(Store.read, key)`. `run` drives it synchronously and `arun` on an event loop. An exception of an
effect is thrown into the flow, so flows use `try` as usual.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast

from ctxfold.errors import BackendError, ConfigError
from ctxfold.history.records import SessionKey
from ctxfold.protocols import (
    AsyncChunkStream,
    ChunkStream,
    ContextBackend,
    Ports,
    Reply,
    Request,
    Store,
    capabilities_of,
)
from ctxfold.telemetry import OptionalSpan, record_lease, record_reply, request_span, traced, traced_async
from ctxfold.validation import unpacked


class LocalTasks:
    """Runs the background work of one engine: in threads with the sync driver, on an event loop with the async one.

    A thread cannot be stopped from outside: it stops before its next step once it is told to, and its unfinished work is dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Returns how many pieces of work are running."""
        with self._lock:
            return len(self._threads) + len(self._tasks)

    def start(self, work: Callable[[Callable[[], bool]], None]) -> bool:
        """Runs `work` in a new thread, with a function that tells it to stop. Returns False once closed."""
        context = copy_context()

        def body() -> None:
            try:
                context.run(work, self._stop.is_set)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=body, name="ctxfold-background", daemon=True)
        with self._lock:
            if self._stop.is_set():
                return False
            self._threads.add(thread)
        thread.start()
        return True

    def start_on_loop(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs `work` as a task of the running loop. Returns False once closed."""
        with self._lock:
            if self._stop.is_set():
                work.close()
                return False
            task = asyncio.get_running_loop().create_task(work, name="ctxfold-background")
            self._tasks.add(task)
        task.add_done_callback(self._done)
        return True

    def _done(self, task: asyncio.Task[None]) -> None:
        with self._lock:
            self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that the loop does not warn: the flow has reported it

    def close(self, *, wait: bool) -> None:
        """Ends all work: waits for threads, or tells them to stop, and cancels tasks of event loops."""
        threads, tasks = self._running_work(stop=not wait)
        for task in tasks:
            loop = task.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        for thread in threads if wait else ():
            thread.join()
        self._stop.set()

    async def aclose(self, *, wait: bool) -> None:
        """Ends all work without blocking the loop; waits for the running loop's own tasks, or cancels them."""
        threads, tasks = self._running_work(stop=not wait)
        here = asyncio.get_running_loop()
        tasks_here = [t for t in tasks if t.get_loop() is here]
        for task in tasks:
            if task.get_loop() is here:
                if not wait:
                    task.cancel()
            elif not task.get_loop().is_closed():
                task.get_loop().call_soon_threadsafe(task.cancel)
        await asyncio.gather(*tasks_here, return_exceptions=True)
        for thread in threads if wait else ():
            await asyncio.to_thread(thread.join)
        self._stop.set()

    def _running_work(self, *, stop: bool) -> tuple[list[threading.Thread], list[asyncio.Task[None]]]:
        with self._lock:
            if stop:
                self._stop.set()
            return list(self._threads), list(self._tasks)


T = TypeVar("T")
P = ParamSpec("P")
LONG_CHARS = 20_000  # from here on work on a text leaves the event loop


class Effect(ABC, Generic[T]):
    """A request to the outside world: `result = yield from effect`."""

    __slots__ = ()

    @abstractmethod
    def perform(self, ports: Ports) -> T: ...

    @abstractmethod
    async def aperform(self, ports: Ports) -> T: ...

    def __iter__(self) -> Flow[T]:
        result: T = yield self
        return result


Flow: TypeAlias = Generator[Effect[Any], Any, T]


def run(flow: Flow[T], ports: Ports) -> T:
    """Drives a flow to its end on this thread and returns its result."""
    try:
        effect = next(flow)
        while True:
            try:
                result = effect.perform(ports)
            except BaseException as error:  # noqa: BLE001 - the flow decides, also on cancellation
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        flow.close()


async def arun(flow: Flow[T], ports: Ports) -> T:
    """Drives a flow to its end on the running loop; returns its result, and throws cancellation into the flow."""
    try:
        effect = next(flow)
        while True:
            try:
                result = await effect.aperform(ports)
            except BaseException as error:  # noqa: BLE001 - the flow decides, also on cancellation
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        flow.close()


class FlowMethods(ABC):
    """Lets a class write a public method once, as a flow, and offer it in a sync and an async form.

    `@sync_method` turns a method that returns `Flow[T]` into one that returns T; `apin = async_method(pin)` adds the coroutine.
    Type checkers and editors see parameters and results of both; both have the docstring.
    """

    @property
    @abstractmethod
    def _ports(self) -> Ports: ...

    def _run(self, flow: Flow[T]) -> T:
        return run(flow, self._ports)

    async def _arun(self, flow: Flow[T]) -> T:
        return await arun(flow, self._ports)


Owner = TypeVar("Owner", bound=FlowMethods)
# the flow behind each sync method of a class, filled at import
_FLOWS: dict[Callable[..., Any], Callable[..., Any]] = {}


def _describe(method: Callable[..., Any], flow: Callable[..., Any], name: str) -> None:
    """Gives a form of a flow the name, the docstring and the signature that `help` shows."""
    signature = inspect.signature(flow)
    result = str(signature.return_annotation).removeprefix("Flow[").removesuffix("]")
    described: Any = method
    described.__module__, described.__doc__ = flow.__module__, flow.__doc__
    described.__name__, described.__qualname__ = name, f"{flow.__qualname__.rpartition('.')[0]}.{name}"
    described.__signature__ = signature.replace(return_annotation=result)
    described.__annotations__ = {**flow.__annotations__, "return": result}


def sync_method(flow: Callable[Concatenate[Owner, P], Flow[T]]) -> Callable[Concatenate[Owner, P], T]:
    """Returns the sync form of a method that is written as a flow."""

    def method(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(flow(self, *args, **kwargs), self._ports)  # pyright: ignore[reportPrivateUsage] - a part of the class

    _describe(method, unpacked(flow), flow.__name__)
    _FLOWS[method] = flow
    return method


def flow_of(method: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], Flow[T]]:
    """Returns the flow behind a method that `sync_method` has made, for a flow that consists of several such calls."""
    return cast("Callable[Concatenate[Owner, P], Flow[T]]", _FLOWS[method])


def async_method(method: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
    """Returns the coroutine form of a method that `sync_method` has made."""
    flow = flow_of(method)

    async def coroutine(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(flow(self, *args, **kwargs), self._ports)  # pyright: ignore[reportPrivateUsage]

    _describe(coroutine, flow, f"a{flow.__name__}")
    return coroutine


@dataclass(frozen=True, slots=True)
class All(Effect[tuple[Any, ...]]):
    """Runs several flows: concurrently when driven on a loop, one after the other when driven synchronously.

    With `threads`, they run concurrently there too, each in its own thread. When one fails, the others are cancelled where that
    is possible, and awaited.
    """

    flows: tuple[Flow[Any], ...]
    threads: bool = False

    def perform(self, ports: Ports) -> tuple[Any, ...]:
        if not self.threads or len(self.flows) < 2:
            return tuple(run(flow, ports) for flow in self.flows)
        with ThreadPoolExecutor(len(self.flows), "ctxfold-all") as pool:
            futures = [pool.submit(copy_context().run, run, flow, ports) for flow in self.flows]
        return tuple(future.result() for future in futures)

    async def aperform(self, ports: Ports) -> tuple[Any, ...]:
        tasks = [asyncio.ensure_future(arun(flow, ports)) for flow in self.flows]
        try:
            return tuple(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


@dataclass(frozen=True, slots=True)
class Deadline(Effect[T]):
    """Performs an effect with a time limit; raises BackendError of kind "timeout" after `timeout_s`.

    On a loop the effect is cancelled then. A synchronous call cannot be cancelled: it goes on in a daemon thread, and its result
    is dropped.
    """

    effect: Effect[T]
    timeout_s: float

    def perform(self, ports: Ports) -> T:
        return _result_within(_in_daemon_thread(lambda: self.effect.perform(ports)), self.timeout_s)

    async def aperform(self, ports: Ports) -> T:
        scope = asyncio.timeout(self.timeout_s)
        try:
            async with scope:
                return await self.effect.aperform(ports)
        except TimeoutError:
            if not scope.expired():
                raise
            raise _expired(self.timeout_s) from None


def limited(effect: Effect[T], timeout_s: float | None) -> Effect[T]:
    """Returns the effect with a deadline; None waits for ever."""
    return effect if timeout_s is None else Deadline(effect, timeout_s)


@dataclass(frozen=True, slots=True)
class DetachedCall(Effect[T]):
    """Calls a function that may never return, in a daemon thread: neither the caller's loop nor the end of the program waits
    for it. Raises BackendError of kind "timeout" after `timeout_s`; None waits for ever.

    An awaitable result is awaited on the loop, within the same time. When driven synchronously it is awaited on a new loop in
    the thread if `own_loop` is set; otherwise it is a ConfigError, raised before a coroutine function is called.
    """

    function: Callable[[], T | Awaitable[T]]
    timeout_s: float | None = None
    own_loop: bool = False

    def perform(self, ports: Ports) -> T:
        if self.own_loop:
            return _result_within(_in_daemon_thread(self._call_and_await), self.timeout_s)
        if inspect.iscoroutinefunction(self.function):
            raise self._not_callable_sync()
        result = _result_within(_in_daemon_thread(self.function), self.timeout_s)
        if not inspect.isawaitable(result):
            return result
        if inspect.iscoroutine(result):
            result.close()
        raise self._not_callable_sync()

    async def aperform(self, ports: Ports) -> T:
        scope = asyncio.timeout(self.timeout_s)
        try:
            async with scope:
                plain = not inspect.iscoroutinefunction(self.function)
                result: Any = await asyncio.wrap_future(_in_daemon_thread(self.function)) if plain else self.function()
                value: T = await result if inspect.isawaitable(result) else result
                return value
        except TimeoutError:
            if not scope.expired():
                raise
            raise _expired(self.timeout_s or 0.0) from None

    def _call_and_await(self) -> T:
        result: Any = self.function()
        if not inspect.isawaitable(result):
            return cast("T", result)

        async def awaited() -> T:
            value: T = await result
            return value

        return asyncio.run(awaited())

    def _not_callable_sync(self) -> ConfigError:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return ConfigError(
            f"{name} is async: call the async methods (asend, ...), or give one that can be called plainly"
        )


def _in_daemon_thread(function: Callable[[], T]) -> Future[T]:
    """Starts a call in a daemon thread, for which the end of the process does not wait; returns its future."""
    future: Future[T] = Future()
    context = copy_context()

    def work() -> None:
        future.set_running_or_notify_cancel()  # from here on it cannot be cancelled: whoever waits leaves it behind
        try:
            future.set_result(context.run(function))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)

    threading.Thread(target=work, name="ctxfold-detached", daemon=True).start()
    return future


def _result_within(future: Future[T], timeout_s: float | None) -> T:
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():
            raise  # the call itself raised it
        raise _expired(timeout_s or 0.0) from None


def _expired(timeout_s: float) -> BackendError:
    return BackendError(f"no answer within {timeout_s:g} s: given up", kind="timeout", retryable=True)


@dataclass(frozen=True, slots=True)
class Call(Effect[T]):
    """Calls a plain function that takes long; when driven on a loop, in a worker thread, so that the loop stays free."""

    function: Callable[[], T]

    def perform(self, ports: Ports) -> T:
        return self.function()

    async def aperform(self, ports: Ports) -> T:
        return await in_thread(self.function)


def off_loop(function: Callable[[], T], chars: int) -> Flow[T]:
    """Returns the function's result. Work on `LONG_CHARS` characters or more runs in a worker thread when driven on a loop."""
    if chars < LONG_CHARS:
        return function()
    return (yield from Call(function))


async def in_thread(function: Callable[[], T]) -> T:
    """Returns the function's result; the event loop stays free meanwhile."""
    return await asyncio.to_thread(function)


class StoreCall(Effect[T]):
    """Calls one method of the store: `records = yield from StoreCall(Store.read, key, after=seq)`.

    The method is named by the protocol, so that type checkers see its parameters and its result. On a loop its async form is
    called.
    """

    __slots__ = ("args", "kwargs", "method")

    def __init__(self, method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> None:
        self.method = method.__name__
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs

    def __repr__(self) -> str:
        return f"StoreCall({self.method!r})"  # the arguments may hold the text of messages

    def perform(self, ports: Ports) -> T:
        result: T = getattr(ports.store, self.method)(*self.args, **self.kwargs)
        return result

    async def aperform(self, ports: Ports) -> T:
        result: T = await getattr(ports.store, f"a{self.method}")(*self.args, **self.kwargs)
        return result


@dataclass(frozen=True, slots=True)
class StoreQuery(Effect[T]):
    """Runs a flow that asks nothing but the store, and returns its result.

    On an event loop the flow runs in one thread where each call of the store would take one. It goes on to its end when the caller
    is cancelled.
    """

    flow: Flow[T]

    def perform(self, ports: Ports) -> T:
        return run(self.flow, ports)

    async def aperform(self, ports: Ports) -> T:
        if ports.store.capabilities.blocking:
            return await asyncio.to_thread(run, self.flow, ports)
        return await arun(self.flow, ports)


def _required(backend: ContextBackend | None) -> ContextBackend:
    if backend is None:
        raise ConfigError("this session has no backend: give one (backend=OpenAIChatBackend(...)) to send messages")
    return backend


@dataclass(frozen=True, slots=True)
class Complete(Effect[Reply]):
    """Sends a request to the backend, or to the summariser, and returns the whole reply.

    The summariser's request is changed by `sparing`, so that it answers briefly; a request on the live prefix is not, because
    another thinking setting would lose the cached prefix.
    """

    request: Request
    summarizer: bool = False

    def _adapted(self, backend: ContextBackend) -> Request:
        if not self.summarizer or self.request.live_prefix:
            return self.request
        sparing = capabilities_of(backend).sparing
        return self.request if sparing is None else sparing(self.request)

    def _span(self, backend: ContextBackend) -> AbstractContextManager[OptionalSpan]:
        operation = "summarize" if self.summarizer else "compact" if self.request.compact else "chat"
        return request_span(self.request, backend, operation)

    def perform(self, ports: Ports) -> Reply:
        backend = _required(ports.summarizer if self.summarizer else ports.backend)
        with self._span(backend) as open_span:
            reply = backend.send(self._adapted(backend))
            record_reply(open_span, reply)
        return reply

    async def aperform(self, ports: Ports) -> Reply:
        backend = _required(ports.summarizer if self.summarizer else ports.backend)
        with self._span(backend) as open_span:
            reply = await backend.asend(self._adapted(backend))
            record_reply(open_span, reply)
        return reply


@dataclass(frozen=True, slots=True)
class OpenStream(Effect["ChunkStream | AsyncChunkStream"]):
    """Opens a streamed reply once its first event has arrived: a ChunkStream, or an AsyncChunkStream when driven on a loop."""

    request: Request

    def perform(self, ports: Ports) -> ChunkStream:
        backend = _required(ports.backend)
        return traced(backend.open_stream, self.request, backend)

    async def aperform(self, ports: Ports) -> AsyncChunkStream:
        backend = _required(ports.backend)
        return await traced_async(backend.aopen_stream, self.request, backend)


@dataclass(frozen=True, slots=True)
class Start(Effect[bool]):
    """Starts a flow in the background, with the driver that performs this effect; returns False where that is not possible.

    The flow handles its own errors.
    """

    flow: Flow[None]

    def perform(self, ports: Ports) -> bool:
        if ports.tasks is None:
            self.flow.close()
            return False
        return ports.tasks.start(lambda stopped: run(_until(self.flow, stopped), ports))

    async def aperform(self, ports: Ports) -> bool:
        if ports.tasks is None:
            self.flow.close()
            return False
        return ports.tasks.start_on_loop(arun(self.flow, ports))


def _until(flow: Flow[None], stopped: Callable[[], bool]) -> Flow[None]:
    """Runs the flow, and ends it before its next effect once `stopped()` is true."""
    result: Any = None
    error: BaseException | None = None
    try:
        while not stopped():
            effect = flow.send(result) if error is None else flow.throw(error)
            result, error = None, None
            try:
                result = yield effect
            except GeneratorExit:
                raise
            except BaseException as raised:  # noqa: BLE001 - the flow decides
                error = raised
    except StopIteration:
        return
    finally:
        flow.close()


@dataclass(frozen=True, slots=True)
class TakeLease(Effect[bool]):
    """Takes the named lease of a session for `ttl_s` seconds; False while another holder has it, in any process."""

    key: SessionKey
    name: str
    holder: str
    ttl_s: float

    def perform(self, ports: Ports) -> bool:
        acquired = ports.store.lease(self.key, self.name, self.holder, now_s=ports.clock.now_s(), ttl_s=self.ttl_s)
        record_lease(taken=acquired)
        return acquired

    async def aperform(self, ports: Ports) -> bool:
        acquired = await ports.store.alease(
            self.key, self.name, self.holder, now_s=ports.clock.now_s(), ttl_s=self.ttl_s
        )
        record_lease(taken=acquired)
        return acquired


def release_after(work: Flow[T], key: SessionKey, name: str, holder: str) -> Flow[T]:
    """Runs the work that a lease was taken for, and releases the lease however it ends.

    Work that is closed where it stands leaves the lease to end by itself.
    """
    try:
        result = yield from work
    except GeneratorExit:
        raise
    except BaseException:
        yield from StoreCall(Store.release, key, name, holder)
        raise
    yield from StoreCall(Store.release, key, name, holder)
    return result


@dataclass(frozen=True, slots=True)
class Pause(Effect[None]):
    """Waits for some seconds; an event loop goes on meanwhile."""

    seconds: float

    def perform(self, ports: Ports) -> None:
        time.sleep(self.seconds)

    async def aperform(self, ports: Ports) -> None:
        await asyncio.sleep(self.seconds)
