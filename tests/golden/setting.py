"""What a golden session is run in: its trace, its service, its loop, and the settings that its seed has drawn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from openai import APIError

from ctxfold import CtxError, open_backend
from ctxfold.tokens.text import RatioCounter
from tests.golden.service import BASE_URL, Service
from tests.golden.story import Author, Step
from tests.golden.trace import Trace

PROVIDERS = {
    "anthropic": "claude-sonnet-4-5",
    "dashscope": "qwen3-max",
    "deepseek": "deepseek-reasoner",
    "gemini": "gemini-2.5-pro",
    "generic": "golden",
    "generic_think_tags": "golden",
    "litellm": "golden",
    "llamacpp": "golden",
    "moonshot": "kimi-k2-thinking",
    "ollama": "golden",
    "openai": "gpt-4.1",
    "openrouter": "golden",
    "sglang": "golden",
    "vllm": "golden",
    "zhipu": "glm-4.6",
}
WINDOWS = (900, 1_200, 1_600, 2_400)


@dataclass(slots=True)
class Setting:
    """The surroundings of one session; a face's runner draws the rest of its settings from `rng`."""

    seed: int
    rng: random.Random
    trace: Trace
    resources: ExitStack
    provider: str
    window: int
    is_async: bool
    streams: bool
    service: Service
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    @classmethod
    def of(cls, seed: int, resources: ExitStack) -> Setting:
        rng = random.Random(seed)
        provider, window = rng.choice(sorted(PROVIDERS)), rng.choice(WINDOWS)
        is_async, streams = rng.random() < 0.5, rng.random() < 0.5
        limit = rng.choice((None, None, None, window * 3))
        trace = Trace()
        service = Service(trace, limit_chars=limit, think_tags=provider == "generic_think_tags")
        setting = cls(seed, rng, trace, resources, provider, window, is_async, streams, service)
        resources.callback(setting._end_loop)
        resources.callback(lambda: setting.loop.run_until_complete(service.async_client.aclose()))
        resources.callback(service.close)
        return setting

    def _end_loop(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def backend(self) -> Any:
        """A backend of the provider's row on the session's service."""
        made = open_backend(
            self.provider,
            PROVIDERS[self.provider],
            base_url=BASE_URL,
            api_key="x",
            http_client=self.service.client,
            async_http_client=self.service.async_client,
            max_retries=0,
        )
        self.resources.callback(made.close)
        return made

    def rules(self) -> dict[str, Any]:
        """The settings that every face takes, with counts that are equal on every machine."""
        strategies = ("tiered", "tiered", "tiered", "summarize", "truncate", "sliding_window", "clear_tools")
        rules: dict[str, Any] = {"strategy": self.rng.choice(strategies)}
        if self.rng.random() < 0.2:
            rules["recall_ratio"] = self.rng.choice((0.0, 0.1))
        if self.rng.random() < 0.2:
            rules["keep_last"] = self.rng.choice((2, 4, 10))
        return rules

    def fixed(self) -> dict[str, Any]:
        return {"context_window": self.window, "counter": RatioCounter()}

    def steps(self, acts: Sequence[str], *, count: int = 0, pictures: bool = True, scratch: bool = False) -> list[Step]:
        author = Author(self.rng, tuple(acts), reasoning=self.rng.random() < 0.6, pictures=pictures, scratch=scratch)
        return author.steps(count or self.rng.randint(8, 14))

    def call(self, on: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method, such as "send" or "edit.insert", or its async form on the session's loop."""
        *parts, name = name.split(".")
        on = reduce(getattr, parts, on)
        if not self.is_async:
            return getattr(on, name)(*args, **kwargs)

        async def awaited() -> Any:
            return await getattr(on, f"a{name}")(*args, **kwargs)

        return self.loop.run_until_complete(awaited())

    def read(self, on: Any, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """All that a streaming method, or its async form, gives."""
        if not self.is_async:
            return list(getattr(on, name)(*args, **kwargs))

        async def awaited() -> list[Any]:
            stream = getattr(on, f"a{name}")(*args, **kwargs)
            if not hasattr(stream, "__aiter__"):
                stream = await stream
            return [part async for part in stream]

        return self.loop.run_until_complete(awaited())

    def attempt(self, work: Callable[[], Any]) -> Any:
        """The result, or None with the kind of error in the trace; the next reply is another turn's."""
        try:
            return work()
        except (CtxError, APIError, ValueError, LookupError) as error:
            # the builtin that it also is: class names may change where behaviour does not
            builtin = next(c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins")
            self.trace.see("error", f"CtxError {builtin}" if isinstance(error, CtxError) else builtin)
            self.service.replies.clear()
            return None
