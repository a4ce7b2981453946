"""Makes Ports from store URLs and provider names; the only module that knows stores and backends by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Unpack, cast

from ctxfold.compaction.built_in import BUILT_IN
from ctxfold.compaction.strategy import StrategyLike, as_strategy
from ctxfold.effects import LocalTasks
from ctxfold.errors import BackendError, ConfigError, ContextOverflowError, WindowTooSmallError
from ctxfold.messages import Message, ToolSpec
from ctxfold.policy.prices import Prices
from ctxfold.policy.settings import (
    LEAST_BUDGET_TOKENS,
    Policy,
    PolicyFields,
    check_least,
    check_settings,
    meant_by,
    policy_for,
    policy_from,
    session_limit,
)
from ctxfold.protocols import BackendCapabilities, ContextBackend, Embedder, Ports, Request, Store, TokenCounter, Wire
from ctxfold.sections.section import Section
from ctxfold.tokens.text import MessageCounter, TextCounter, text_counter
from ctxfold.validation import check_has, is_a, kind_of, whole_number

OPENAI = "openai_chat"
STORES = "sqlite:///file.db, postgresql+psycopg://..., valkey://host:6379/0, memory://, or a Store object"
VALKEY = frozenset({"valkey", "valkeys", "redis", "rediss"})
ENCRYPTED, KEYS_VARIABLE = "encrypted+", "CTXFOLD_KEYS"
MODELS = (
    "give a backend such as OpenAIChatBackend; a model of LangChain goes into langchain_ctx.backend.LangChainBackend, "
    "an LLM of LlamaIndex into llamaindex_ctx.backend.LlamaIndexBackend"
)

if TYPE_CHECKING:
    from ctxfold.backends.http_backend import HttpBackend
    from ctxfold.stores.encrypted import EncryptedStore
    from ctxfold.stores.memory import MemoryStore
    from ctxfold.stores.sealing import KeySource


def open_store(store: str | Store | None) -> Store:
    """Opens a store from `sqlite:///file.db`, `postgresql+psycopg://...`, `valkey://...`, `memory://`, a Store object, or None."""
    if store is None or store == "memory://":
        return _memory()
    if not isinstance(store, str):
        check_store(store)
        return store
    if store.startswith(ENCRYPTED):
        if not (keys := os.environ.get(KEYS_VARIABLE)):
            raise ConfigError(f"an encrypted store needs its keys: name the key file in the variable {KEYS_VARIABLE}")
        return encrypted(store.removeprefix(ENCRYPTED), keys=keys)
    scheme, colon, _ = store.partition(":")
    if scheme in VALKEY and colon:
        from ctxfold.stores.valkey import ValkeyStore

        return ValkeyStore(store)
    if scheme.partition("+")[0] not in {"sqlite", "postgresql", "postgres"} or not colon:
        drive = len(scheme) == 1  # C:\data\chat.db
        file = f"'sqlite:///{store}' for a file of that name, or " if store and (drive or not colon) else ""
        raise ConfigError(f"store {scheme[:40]!r} is not a URL that ctxfold supports: use {file}{STORES}")
    from ctxfold.stores.sql import SqlStore

    return SqlStore(store)


def encrypted(store: str | Store, *, keys: KeySource, hide_names: bool | None = None) -> EncryptedStore:
    """Returns a store that encrypts what the given one keeps; see `EncryptedStore` for the arguments."""
    from ctxfold.stores.encrypted import EncryptedStore

    return EncryptedStore(open_store(store), keys=keys, hide_names=hide_names)


def check_store(store: str | Store) -> None:
    """Raises ConfigError for what is neither text, which may be a URL, nor a store."""
    if not isinstance(store, str):
        accepted = f"'sqlite:///{os.fspath(store)}', a URL" if isinstance(store, os.PathLike) else STORES
        check_has("store", store, ("head", "append"), f"use {accepted}")


def _memory() -> MemoryStore:
    from ctxfold.stores.memory import MemoryStore

    return MemoryStore()


def open_backend(provider: str, model: str, *, wire: Wire | None = None, **settings: Any) -> HttpBackend:
    """Returns a backend for a built-in provider, or for `profile=`. It speaks the profile's wire format, or `wire`.

    Raises ConfigError when the provider does not speak that wire.
    """
    from ctxfold.backends.profile import load_profile
    from ctxfold.backends.services import BACKENDS

    row = load_profile(settings.pop("profile", None) or provider).for_wire(wire)
    return BACKENDS[row.wire](model=model, profile=row, **settings)


def named_backend(what: str, named: str | ContextBackend | None) -> ContextBackend | None:
    """Returns the backend; for a name such as "openai:gpt-5-mini" a new one, with the key in the provider's variable.

    Raises ConfigError for a name without a provider.
    """
    if not isinstance(named, str):
        return named
    provider, model = named_provider(named)
    if provider == "generic":
        raise ConfigError(f"{what} is a str without a provider: give 'openai:gpt-5-mini', for example, or {MODELS}")
    return open_backend(provider, model)


def reasoning_rules(provider: str, model: str, *, thinks: bool, wire: Wire | None = None) -> BackendCapabilities:
    """Returns what a built-in provider does with the reasoning of this model, for another package's client of the service.

    A model that does not think, by its row and by `thinks`, has no reasoning to bind.
    """
    from ctxfold.backends.profile import load_profile

    row = load_profile(provider).for_wire(wire).for_model(model)
    bound = row.reasoning_out.prefix_bound
    return BackendCapabilities(
        binds_reasoning=bound and (thinks or row.thinking.default_on is True),
        reasoning_optional=bound or row.reasoning_out.optional,
    )


def named_provider(model: str, provider: str | None = None) -> tuple[str, str]:
    """Returns the provider and the model's name; without a provider, a name such as "gemini:gemini-3-pro" begins with it.

    Only the name of a built-in provider is taken from the model's: other names have colons of their own. Without any, the
    provider is "generic".
    """
    from ctxfold.backends.profile import provider_names

    first, _, rest = model.partition(":") if is_a(model, str) else ("", "", "")
    if provider is None and rest and first in provider_names():
        return first, rest
    return provider or "generic", model


def foreign_failure(error: Exception, name: str, *, kind: str | None = None) -> BackendError:
    """Translates an error of another library's model client into a BackendError; `kind` overrides the classification."""
    from ctxfold.backends.errors import foreign_failure as translated

    return translated(error, name, kind=kind)


def check_fits(request: Request, context_window: int, counter: TokenCounter) -> None:
    """Raises ContextOverflowError for a request without a session that does not fit the window."""
    used = sum(map(counter.count, request.messages)) + counter.count_tools(request.tools)
    reply = request.max_tokens or 0
    if used + reply > context_window:
        raise ContextOverflowError(
            f"the request needs {used} tokens and {reply} for its reply, its window is {context_window}: "
            "shorten the messages, keep them in a session, or raise context_window"
        )


def message_counter(
    counter: TokenCounter | TextCounter | None,
    *,
    model: str | None = None,
    count_reasoning: bool = True,
    backend: ContextBackend | None = None,
) -> TokenCounter:
    """Returns a message counter: `counter` itself, one over a text counter, or that of the backend's profile or the model."""
    if counter is None:
        return MessageCounter(_profile_counter(backend) or text_counter(model), count_reasoning=count_reasoning)
    custom: Any = counter
    if not isinstance(counter, type) and hasattr(custom, "count_tools"):
        return cast("TokenCounter", custom)
    check_has(
        "counter",
        custom,
        ("count",),
        "give one with an id and count(text), such as ctxfold.tokens.text.text_counter(model)",
    )
    if not isinstance(getattr(custom, "id", None), str):
        raise ConfigError(
            f"counter, {kind_of(custom)}, has no id: name it (id = 'mine'), because sessions store its counts"
        )
    return MessageCounter(cast("TextCounter", custom), count_reasoning=count_reasoning)


def _profile_counter(backend: ContextBackend | None) -> TextCounter | None:
    profile = getattr(backend, "profile", None)
    if profile is None:
        return None
    from ctxfold.backends.profile import Profile, counter_for

    return counter_for(profile) if isinstance(profile, Profile) else None


class SessionSettings(PolicyFields, total=False):
    """The keyword arguments of `AgentContext` other than the session, its store and its backend."""

    context_window: int | None
    system: str | Sequence[str] | None
    owner: str
    summarizer: str | ContextBackend | None
    counter: TokenCounter | TextCounter | None
    reply_reserve_tokens: int | None
    create: bool
    strategy: StrategyLike | None
    prices: Prices | None
    sections: Sequence[Section]
    embedder: Embedder | None
    policy: Policy | None
    max_sessions: int | None


# the arguments that all constructors of sessions share, beside the fields of a policy
OF_EVERY_SESSION = (
    "session_id",
    "owner",
    "store",
    "summarizer",
    "counter",
    "sections",
    "embedder",
    "prices",
    "max_sessions",
)


def session_rules(
    context_window: int | None,
    backend: ContextBackend | None,
    *,
    policy: Policy | None = None,
    reply_reserve_tokens: int | None = None,
    strategy: StrategyLike | None = None,
    counter: TokenCounter | TextCounter | None = None,
    prices: Prices | None = None,
    max_sessions: int | None = None,
    **settings: Unpack[PolicyFields],
) -> Policy:
    """Returns the policy of a session: `policy` with the given settings, or the defaults with them.

    Without `policy` and `context_window`, the backend's profile names the window. Raises ConfigError when nothing names it, for an
    unknown setting, for an object that is no backend, counter or prices, for a number of sessions below 1, and for a strategy that
    is not built in;
    WindowTooSmallError for a window in which not even a short question fits.
    """
    check_settings(settings, PolicyFields.__annotations__, ("backend", "system", *OF_EVERY_SESSION))
    if counter is not None:
        message_counter(counter)
    _check_prices(prices)
    session_limit(max_sessions)
    if backend is not None:
        check_has("backend", backend, ("send", "asend"), MODELS)
    name = _built_in(strategy) if isinstance(strategy, str) else as_strategy(strategy).name if strategy else None
    if policy is not None:
        if not is_a(policy, Policy):
            raise ConfigError(f"policy is {kind_of(policy)}: give a ctxfold.Policy, or its fields as keyword arguments")
        rules = policy_from(
            policy,
            context_window=context_window,
            reply_reserve_tokens=reply_reserve_tokens,
            strategy=name,
            **settings,
        )
    else:
        window = context_window if context_window is not None else backend.context_window if backend else None
        if window is None:
            of_model = f" of {backend.model!r}" if backend else ""
            raise ConfigError(f"the context window{of_model} is not known: give context_window=... in tokens")
        rules = policy_for(window, reply_reserve_tokens=reply_reserve_tokens, strategy=name, **settings)
    check_least(rules)
    return rules


def check_overhead(rules: Policy, counter: TokenCounter, *, tools: Sequence[ToolSpec], overhead_tokens: int) -> None:
    """Checks the tools and the overhead that every request carries in addition to its messages.

    Raises ConfigError for an overhead that is not a number of tokens, and WindowTooSmallError when not even a short message fits
    in addition.
    """
    if overhead_tokens != 0:
        advice = "give the tokens that each request holds in addition to its messages, 0 or more, as a number"
        overhead_tokens = whole_number("overhead_tokens", overhead_tokens, advice)
    tools_tokens = counter.count_tools(tools) if tools else 0
    left_tokens = rules.budget_tokens - overhead_tokens - tools_tokens
    if left_tokens < LEAST_BUDGET_TOKENS:
        raise WindowTooSmallError(
            f"overhead_tokens is {overhead_tokens} and the tools have {tools_tokens} tokens; a window of {rules.context_window} "
            f"has {rules.budget_tokens} for the prompt: {max(0, left_tokens)} are left, and a short question "
            f"needs {LEAST_BUDGET_TOKENS}; lower overhead_tokens, give fewer tools or raise context_window"
        )


def _built_in(name: str) -> str:
    if name in BUILT_IN:
        return name
    near = [meant] if (meant := meant_by(name, BUILT_IN)) in BUILT_IN else get_close_matches(name, BUILT_IN)
    advice = f"did you mean {near[0]!r}?" if near else f"use {', '.join(BUILT_IN)}, or an object of your own"
    raise ConfigError(f"there is no strategy {name!r}: {advice}")


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
    """Makes Ports from the arguments of a constructor, after checking them; without a summarizer the backend writes summaries."""
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
    """Reads and writes messages as lines in the wire format of a backend, or of the model that wrote a message."""

    backend: ContextBackend | None = None

    def wires(self, messages: Sequence[Message], *, native: bool) -> list[str]:
        """Returns the wire of each message: a reply's by its model, another's by the next reply; "openai_chat" if not native."""
        wire = self._wire(self.backend.model if self.backend else None) if native else OPENAI
        wires: list[str] = []
        for message in reversed(messages):
            if native and message.model is not None:
                wire = self._wire(message.model)
            wires.append(wire)
        return wires[::-1]

    def write(self, message: Message, wire: str) -> str:
        from ctxfold.backends.jsonl import to_line

        return to_line(message, wire)

    def read(self, line: str, new_id: Callable[[], str]) -> Message:
        """Parses a line of any wire format; raises MessageError when it is not a message."""
        from ctxfold.backends.jsonl import from_line

        return from_line(line, getattr(self.backend, "wire", OPENAI), new_id)

    def _wire(self, model: str | None) -> str:
        """Returns the backend's wire for its own model, else that of the built-in profile that lists the model."""
        from ctxfold.backends.profile import load_profile, provider_names

        own_wire: str = getattr(self.backend, "wire", OPENAI)
        own_model = self.backend.model if self.backend is not None else model
        if model is None or own_model is None or model.startswith(own_model) or own_model.startswith(model):
            return own_wire
        rows = (load_profile(name) for name in provider_names())
        return next((row.wire for row in rows if row.prefix_of(model) is not None), OPENAI)
