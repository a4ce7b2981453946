"""Store URLs and provider names become Ports: the only module that knows stores and backends by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from ctxfold.budget import LEAST_BUDGET_TOKENS, MessageCounter, Policy, check_least, policy
from ctxfold.compaction.strategy import Strategy, Summarizer, as_strategy
from ctxfold.compaction.tiers import BUILT_IN
from ctxfold.errors import BackendError, ConfigError, WindowTooSmallError
from ctxfold.given import check_has, is_a, kind_of, whole_number
from ctxfold.messages import Message, ToolSpec
from ctxfold.ports import ContextBackend, Ports, Store, TokenCounter
from ctxfold.prices import Prices
from ctxfold.tasks import LocalTasks
from ctxfold.tokens import TextCounter, text_counter
from ctxfold.vectors import Embedder

OPENAI = "openai_chat"
STORES = "sqlite:///file.db, postgresql+psycopg://..., memory://, or a Store object"
MODELS = (
    "give a backend such as OpenAIChatBackend; a model of LangChain goes into langchain_ctx.LangChainBackend, an LLM of LlamaIndex "
    "into llamaindex_ctx.LlamaIndexBackend"
)

if TYPE_CHECKING:
    from ctxfold.backends.http_backend import HttpBackend
    from ctxfold.stores.memory import MemoryStore

__all__ = [
    "LineCodec",
    "check_overhead",
    "foreign_failure",
    "message_counter",
    "open_backend",
    "open_store",
    "ports",
    "session_rules",
]


def open_store(store: str | Store | None) -> Store:
    """A store from `sqlite:///file.db`, `postgresql+psycopg://...`, `memory://`, a Store object, or None for memory."""
    if store is None or store == "memory://":
        return _memory()
    if not isinstance(store, str):
        written = f"'sqlite:///{os.fspath(store)}', a URL" if isinstance(store, os.PathLike) else STORES
        check_has("store", store, ("head", "append"), f"use {written}")
        return store
    scheme, colon, _ = store.partition(":")
    if scheme.partition("+")[0] not in {"sqlite", "postgresql", "postgres"} or not colon:
        file = f"'sqlite:///{store}' for a file of that name, or " if store and not colon else ""
        raise ConfigError(f"store {scheme[:40]!r} is no URL that ctxfold knows: use {file}{STORES}")
    from ctxfold.stores.sql import SqlStore

    return SqlStore(store)


def _memory() -> MemoryStore:
    from ctxfold.stores.memory import MemoryStore

    return MemoryStore()


def open_backend(provider: str, model: str, **settings: Any) -> HttpBackend:
    """A backend for a provider's built-in row, or for the one in `profile=`, on the wire that the row names."""
    from ctxfold.backends.profile import load_profile

    row = load_profile(settings.pop("profile", None) or provider)
    if row.wire == "anthropic_messages":
        from ctxfold.backends.anthropic import AnthropicBackend

        return AnthropicBackend(model=model, profile=row, **settings)
    from ctxfold.backends.openai_chat import OpenAIChatBackend

    return OpenAIChatBackend(model=model, profile=row, **settings)


def foreign_failure(error: Exception, name: str, *, kind: str | None = None) -> BackendError:
    """What another library's model client raised, as the engine knows failures; `kind` is what its class says of it."""
    from ctxfold.backends.foreign import foreign_failure as translated

    return translated(error, name, kind=kind)


def message_counter(
    counter: TokenCounter | TextCounter | None,
    *,
    model: str | None = None,
    count_reasoning: bool = True,
    backend: ContextBackend | None = None,
) -> TokenCounter:
    """A counter of messages: the one given, one over the text counter given, that of the backend's row, or of the model."""
    if counter is None:
        return MessageCounter(_of_row(backend) or text_counter(model), count_reasoning=count_reasoning)
    given: Any = counter
    if not isinstance(counter, type) and hasattr(given, "count_tools"):
        return cast("TokenCounter", given)
    check_has("counter", given, ("count",), "give one with an id and count(text), such as ctxfold.text_counter(model)")
    if not isinstance(getattr(given, "id", None), str):
        raise ConfigError(
            f"counter, {kind_of(given)}, has no id: name it (id = 'mine'), because sessions store its counts"
        )
    return MessageCounter(cast("TextCounter", given), count_reasoning=count_reasoning)


def _of_row(backend: ContextBackend | None) -> TextCounter | None:
    profile = getattr(backend, "profile", None)
    if profile is None:
        return None
    from ctxfold.backends.counting import counter_for
    from ctxfold.backends.profile import Profile

    return counter_for(profile) if isinstance(profile, Profile) else None


def session_rules(
    context_window: int | None,
    backend: ContextBackend | None,
    *,
    strategy: str | Strategy | Summarizer | None = None,
    counter: TokenCounter | TextCounter | None = None,
    prices: Prices | None = None,
    **rules: object,
) -> Policy:
    """Returns the rules for a window: the one given, else the window of the backend's row.

    Raises ConfigError when neither knows the window, for an object that is no backend, counter or prices, and for a strategy
    that is not built in; WindowTooSmallError for a window in which not even a short question fits.
    """
    if counter is not None:
        message_counter(counter)
    _check_prices(prices)
    if backend is not None:
        check_has("backend", backend, ("send", "asend"), MODELS)
    window = context_window if context_window is not None else backend.context_window if backend else None
    if window is None:
        name = f" of {backend.model!r}" if backend else ""
        raise ConfigError(f"the context window{name} is not known: give context_window=... in tokens")
    if strategy is not None:
        rules["strategy"] = _built_in(strategy) if isinstance(strategy, str) else as_strategy(strategy).name
    found = policy(window, **rules)  # type: ignore[arg-type]
    check_least(found)
    return found


def check_overhead(
    rules: Policy, counter: TokenCounter, *, tools: Sequence[ToolSpec] = (), overhead_tokens: int = 0
) -> None:
    """Checks what every request will hold beside its messages.

    Raises ConfigError for an overhead that is no number of tokens, and WindowTooSmallError when not even a short question fits
    beside it.
    """
    if overhead_tokens != 0:
        advice = "give what each request holds beside its messages in tokens, 0 or more, as a number"
        overhead_tokens = whole_number("overhead_tokens", overhead_tokens, advice)
    tools_tokens = counter.count_tools(tools) if tools else 0
    left = rules.budget_tokens - overhead_tokens - tools_tokens
    if left < LEAST_BUDGET_TOKENS:
        raise WindowTooSmallError(
            f"overhead_tokens is {overhead_tokens} and the tools have {tools_tokens} tokens; a window of {rules.context_window} "
            f"has {rules.budget_tokens} for the prompt: {max(0, left)} are left, and a short question needs {LEAST_BUDGET_TOKENS}; "
            "lower overhead_tokens, give fewer tools or raise context_window"
        )


def _built_in(name: str) -> str:
    if name in BUILT_IN:
        return name
    near = get_close_matches(name, BUILT_IN)
    known = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(BUILT_IN)}; or give an object of your own"
    raise ConfigError(f"there is no strategy {name!r}: {known}")


def _check_prices(prices: object) -> None:
    if prices is not None and not is_a(prices, Prices):
        raise ConfigError(f"prices is {kind_of(prices)}: give ctxfold.Prices(...), or Prices.relative()")


def ports(
    *,
    store: str | Store | None,
    backend: ContextBackend | None = None,
    summarizer: ContextBackend | None = None,
    counter: TokenCounter | TextCounter | None = None,
    count_reasoning: bool = True,
    prices: Prices | None = None,
    embedder: Embedder | None = None,
) -> Ports:
    """Ports from what a user gives, looked at; without a summariser the backend itself writes summaries."""
    if summarizer is not None:
        check_has("summarizer", summarizer, ("send", "asend"), MODELS)
    _check_prices(prices)
    if embedder is not None:
        check_has("embedder", embedder, ("embed", "aembed"), "give an object with embed(texts) and aembed(texts)")
    model = backend.model if backend else None
    return Ports(
        store=open_store(store),
        counter=message_counter(counter, model=model, count_reasoning=count_reasoning, backend=backend),
        backend=backend,
        summarizer=summarizer or backend,
        tasks=LocalTasks(),
        prices=prices,
        embedder=embedder,
    )


@dataclass(frozen=True, slots=True)
class LineCodec:
    """Messages as lines in the shape of a backend's wire, or of the wire that a message's own model speaks."""

    backend: ContextBackend | None = None

    def wires(self, messages: Sequence[Message], *, native: bool) -> list[str]:
        """The wire of each message: a reply's by its model, another message's by the next reply; "openai_chat" if not native."""
        wire = self._wire(self.backend.model if self.backend else None) if native else OPENAI
        found: list[str] = []
        for message in reversed(messages):
            if native and message.model is not None:
                wire = self._wire(message.model)
            found.append(wire)
        return found[::-1]

    def write(self, message: Message, wire: str) -> str:
        from ctxfold.backends.native_jsonl import to_line

        return to_line(message, wire)

    def read(self, line: str, new_id: Callable[[], str]) -> Message:
        """The message of a line, whatever wire wrote it; MessageError when it is none."""
        from ctxfold.backends.native_jsonl import from_line

        return from_line(line, getattr(self.backend, "wire", OPENAI), new_id)

    def _wire(self, model: str | None) -> str:
        """The backend's own for its model, else that of the built-in row that names the model."""
        from ctxfold.backends.profile import load_profile, provider_names

        own: str = getattr(self.backend, "wire", OPENAI)
        mine = self.backend.model if self.backend is not None else model
        if model is None or mine is None or model.startswith(mine) or mine.startswith(model):
            return own
        rows = (load_profile(name) for name in provider_names())
        return next((row.wire for row in rows if any(model.lower().startswith(p.lower()) for p in row.models)), OPENAI)
