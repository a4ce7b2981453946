"""What is known of a chat model: its name, window and thinking. The reasoning of its answers, which goes back to its service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar, cast

from langchain_core.language_models import BaseChatModel, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config

from ctxfold.adapters.calls import Replay, no_replay, replaying
from ctxfold.connect import reasoning_rules
from ctxfold.errors import ConfigError, MissingExtraError
from ctxfold.lru import lazy_pattern
from ctxfold.protocols import BackendCapabilities, ContextBackend, Request, Wire, capabilities_of
from ctxfold.validation import is_a, kind_of, warn_caller

_OWN_KEYS = frozenset({"context_window", "owner", "session_id", "thread_id"})
_GRAPH_KEYS = ("__pregel_", "checkpoint_")
# the settings of models in several packages that turn thinking on or off
_THINKING = ("reasoning", "reasoning_effort", "thinking_level", "thinking_budget")
# whose models answer in a schema
_SCHEMA_WIRES = frozenset({"anthropic_messages", "bedrock_converse"})
_NO_SETTING = object()
_DATE = lazy_pattern(r"[-@](?:\d{4}|\d{8}|\d{4}-\d{2}-\d{2})")


def model_name(model: object) -> str:
    """Returns the model's own name, under whichever field its class has it, else the name of its class."""
    names = (getattr(model, field, None) for field in ("model", "model_name"))
    return next((name for name in names if isinstance(name, str) and name), type(model).__name__)


def is_same_model(name: str, other: str) -> bool:
    """Tells whether two names are of one model: a service may report a name with its date."""
    shorter, longer = sorted((name, other), key=len)
    return longer.startswith(shorter) and (longer == shorter or _DATE.fullmatch(longer, len(shorter)) is not None)


def may_think(model: object) -> bool:
    """Tells whether a model thinks before it answers: by its settings, or by its profile where these leave it open.

    A model with a setting `thinking`, such as Claude's, does so only where that is set.
    """
    if (own := getattr(model, "thinking", _NO_SETTING)) is not _NO_SETTING:
        return _is_on(own)
    chosen = [value for name in _THINKING if (value := getattr(model, name, None)) is not None]
    profile: object = getattr(model, "profile", None)
    if chosen or not isinstance(profile, Mapping):
        return any(map(_is_on, chosen))
    return cast("Mapping[str, object]", profile).get("reasoning_output") is True


def _is_on(setting: object) -> bool:
    if isinstance(setting, Mapping):
        values = cast("Mapping[str, object]", setting)
        return values.get("type") != "disabled" and values.get("effort") != "none"
    return setting not in (None, False, 0, "none")


def model_window(model: object) -> int | None:
    """Returns `max_input_tokens` of the model's profile; None where the model has no profile or the profile lacks it."""
    profile: object = getattr(model, "profile", None)
    if not isinstance(profile, Mapping):
        return None
    tokens = cast("Mapping[str, object]", profile).get("max_input_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def unknown_window(model: object) -> ConfigError:
    """Returns the error for a model whose window nobody states."""
    return ConfigError(
        f"the context window of this {type(model).__name__} is not known, as its profile has no max_input_tokens: "
        "give context_window=... in tokens"
    )


def named_model(name: str, *, setting: str) -> BaseChatModel:
    """Returns the chat model that LangChain's `init_chat_model` makes of a name such as "openai:gpt-5-mini".

    MissingExtraError, which names `setting`, where LangChain or the provider's package is not installed; ConfigError for a name
    that `init_chat_model` does not know. What the provider's own class raises, such as for a missing key, is not changed.
    """
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise MissingExtraError(
            f'{setting}={name!r} is made by LangChain\'s init_chat_model: pip install "ctxfold[langchain]"'
        ) from error
    try:
        return init_chat_model(name)
    except ImportError as error:
        raise MissingExtraError(f"{setting}={name!r} needs the package of its provider: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{setting}={name!r} is not the name of a usable model: {error}") from error


def is_configurable(model: object) -> bool:
    """Returns True for what `init_chat_model(configurable_fields=...)` returns: its model is chosen by the config of a call."""
    # by name, as LangChain's class is private
    return type(model).__name__ == "_ConfigurableModel"


def chosen_model(model: Any, config: RunnableConfig | None) -> Runnable[Any, Any]:
    """Returns the model that this call's config chooses, with the tools or the schema that were bound to the configurable one.

    Names of sessions are not passed on as settings of the model, unless its fields name them.
    """
    fields: object = getattr(model, "_configurable_fields", "any")
    declared = frozenset(cast("list[str]", fields)) if isinstance(fields, list) else frozenset[str]()
    configurable = {
        name: value
        for name, value in ensure_config(config).get("configurable", {}).items()
        if name in declared or not (name in _OWN_KEYS or name.startswith(_GRAPH_KEYS))
    }
    chosen: Runnable[Any, Any] = model._model({"configurable": configurable})
    return chosen


def model_profile(backend: Any, *, context_window: int | None, max_tokens: int | None) -> ModelProfile:
    """Returns the provider's profile as a LangChain profile; values that neither it nor the user sets are left out.

    `context_window` and `max_tokens` are the user's values, which take precedence.
    """
    row = getattr(backend, "profile", None)
    profile: dict[str, Any] = {
        "name": backend.model,
        "text_inputs": True,
        "text_outputs": True,
        "max_input_tokens": context_window or backend.context_window,
        "max_output_tokens": max_tokens or getattr(row, "max_output", None),
    }
    if row is not None:
        thinking, rules = row.thinking, row.request
        profile |= {
            "tool_calling": True,
            "tool_call_streaming": True,
            "tool_choice": rules.forced_tool_choice is not False,
            "temperature": "temperature" not in rules.refuses,
            "mid_conversation_system_messages": not rules.system_leads,
            # of models that cannot be forced to call a tool: an agent has the provider enforce its schema then
            "structured_output": (rules.forced_tool_choice is False and row.wire in _SCHEMA_WIRES) or None,
            "reasoning_output": True if thinking.default_on or thinking.on else None,
            "reasoning_effort_levels": list(thinking.effort) or None,
        }
    known = ModelProfile.__annotations__  # an older LangChain knows fewer
    return cast("ModelProfile", {name: value for name, value in profile.items() if value is not None and name in known})


M = TypeVar("M", bound=BaseChatModel)
FIELD = "reasoning_content"
_INCOMING = (FIELD, "reasoning")  # as DeepSeek and many others call it; as OpenRouter and newer vLLM do
# packages whose own message format carries thoughts back, with the service and the wire that each of them calls
_NATIVE: Mapping[str, tuple[str, Wire]] = {
    "langchain_anthropic": ("anthropic", "anthropic_messages"),
    "langchain_aws": ("bedrock", "bedrock_converse"),
    "langchain_google_genai": ("gemini", "gemini"),
    "langchain_google_vertexai": ("vertex", "gemini"),
    "langchain_ollama": ("ollama", "openai_chat"),
}

# OpenAI's Responses: an answer may come back without its reasoning
_RESPONSES = BackendCapabilities(reasoning_optional=True)


def with_reasoning(model: M) -> M:
    """Returns a copy of the model that sends the reasoning of answers back; it shares the model's connections.

    It supports every model built on `langchain_openai` (ChatDeepSeek, ChatOpenAI with a base URL, ...). A model that sends
    reasoning back itself is returned unchanged. Raises ConfigError for a model that cannot be made to send it.
    """
    check_model("with_reasoning", model)
    match replay(model):
        case "sends":
            return model
        case "helped":
            return returning(model)
        case "unknown":
            raise _no_way(model)


def check_model(what: str, model: object) -> None:
    """Raises ConfigError for anything but a LangChain chat model, such as a model's name or a model with bound tools."""
    if isinstance(model, BaseChatModel):
        return
    advice = "a LangChain chat model, such as langchain_ctx.ChatCtx(model=...)"
    if is_a(model, Runnable):
        advice = "the chat model itself, and bind tools and settings to what comes back"
    raise ConfigError(f"the model of {what} is {kind_of(model)}: give {advice}")


@lru_cache(maxsize=64)
def warn_of_loss(model_class: type[BaseChatModel]) -> None:
    """Warns, once for each class, where its package is not known to send the thoughts of earlier answers."""
    if _replay(model_class) == "unknown":
        warn_caller(
            f"{model_class.__name__} is not known to send reasoning back, and models that think do worse without it: use "
            "ChatCtx(model=..., provider=...) from langchain_ctx in its place"
        )


def replay(model: BaseChatModel) -> Replay:
    """Returns whether the model sends reasoning back itself, can be made to, or is not known to do either."""
    return _replay(type(model))


@lru_cache(maxsize=64)
def _replay(model_class: type[BaseChatModel]) -> Replay:
    if issubclass(model_class, _ReturnsReasoning):
        return "sends"
    packages = {cls.__module__.partition(".")[0] for cls in model_class.__mro__}
    if "langchain_ctx" in packages or packages & _NATIVE.keys():
        return "sends"
    return "helped" if "langchain_openai" in packages and hasattr(model_class, "_get_request_payload") else "unknown"


def capabilities(model: Any) -> BackendCapabilities:
    """Returns what the service behind a model does with reasoning, and all that a ChatCtx says of its own service."""
    backend: ContextBackend | None = getattr(model, "context_backend", None)
    if backend is None:
        uses_responses: Callable[[dict[str, Any]], bool] | None = getattr(model, "_use_responses_api", None)
        responses = uses_responses is not None and uses_responses({})
        rules = _RESPONSES if responses else _rules(model.__class__, model_name(model), may_think(model))
        described: Callable[[], Mapping[str, Any]] | None = getattr(model, "_get_ls_params", None)
        return rules if described is None else replace(rules, provider=described().get("ls_provider"))
    # a message of LangChain has no place for the service's own summary
    return replace(capabilities_of(backend, model_name(model)), compacts_from=None, sparing=None, of_model=None)


@lru_cache(maxsize=64)
def _rules(model_class: type, name: str, thinks: bool) -> BackendCapabilities:
    packages = {cls.__module__.partition(".")[0] for cls in model_class.__mro__}
    service = next((called for package, called in _NATIVE.items() if package in packages), None)
    if service is None:
        return BackendCapabilities()
    return reasoning_rules(service[0], name, thinks=thinks, wire=service[1])


@lru_cache(maxsize=64)
def binds_thoughts(model: str | None) -> bool:
    """Tells whether a model, by its name in its answers, takes a thought back only behind all that it was made behind.

    That is for those who hand messages to a model that they do not know.
    """
    if model is None or "claude" not in model:
        return False
    return reasoning_rules("bedrock" if "anthropic." in model else "anthropic", model, thinks=True).binds_reasoning


def first_with_reasoning(model: object, request: Request) -> int:
    """Returns the index of the first message whose reasoning the model's service does not refuse."""
    refused, unbound = request.refused_before, request.unbound_before
    return unbound if unbound > refused and capabilities(model).binds_reasoning else refused


def returning(model: M) -> M:
    """Returns a copy of the model that sends reasoning back, or the model itself where that is not supported."""
    if replay(model) != "helped":
        return model
    return replaying(model, _ReturnsReasoning)


def _no_way(model: BaseChatModel) -> ConfigError:
    own = "ChatCtx(model=..., provider=..., base_url=...) from langchain_ctx"
    return no_replay(type(model).__name__, own, "a model of langchain_openai or langchain_deepseek")


class _ReturnsReasoning:
    """Methods that are laid over a class of `langchain_openai`'s family; the model keeps its fields and connections."""

    __slots__ = ()

    def _get_request_payload(self, input_: Any, *, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        base: Any = super()
        payload: dict[str, Any] = base._get_request_payload(input_, stop=stop, **kwargs)
        model: Any = self
        if isinstance(payload.get("messages"), list):  # the Responses API has `input`, and keeps reasoning itself
            _restore(payload["messages"], model._convert_input(input_).to_messages(), model)
        return payload

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        base: Any = super()
        result: ChatResult = base._create_chat_result(response, generation_info)
        typed = hasattr(response, "model_dump")
        body: dict[str, Any] = response.model_dump(warnings=False) if typed else response
        choices: Sequence[dict[str, Any]] = body.get("choices") or ()
        for generation, choice in zip(result.generations, choices, strict=False):
            _keep(generation.message, choice.get("message"))
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        base: Any = super()
        choices: Sequence[dict[str, Any]] = chunk.get("choices") or chunk.get("chunk", {}).get("choices") or ()
        first = [choice for choice in choices if not choice.get("index")]
        if len(first) < len(choices):  # of n=2 answers the first is kept, as without a stream
            chunk = {**chunk, "choices": first, "chunk": {}}
        generation: ChatGenerationChunk | None = base._convert_chunk_to_generation_chunk(
            chunk, default_chunk_class, base_generation_info
        )
        if generation is not None and first:
            _keep(generation.message, first[0].get("delta"))
        return generation


def _restore(sent: Sequence[dict[str, Any]], messages: Sequence[BaseMessage], model: BaseChatModel) -> None:
    """Puts reasoning into the request's assistant messages, in order. When one has it, services require the field in all.

    DeepSeek wants the field in every answer while it thinks, also in those without a thought, and ignores it else. What a model of
    another name has thought through another package is not sent: services that do not think refuse the field.
    """
    answers = [m for m in messages if isinstance(m, AIMessage) or getattr(m, "role", None) == "assistant"]
    places = [m for m in sent if m.get("role") == "assistant"]
    own_name = model_name(model)
    names: list[object] = [m.response_metadata.get("model_name") for m in answers]  # of the models that gave them
    of_others = [isinstance(name, str) and not is_same_model(name, own_name) for name in names]
    # packages built on that of OpenAI may leave its name as it was
    own_providers = (cast("Any", model)._get_ls_params().get("ls_provider"), "openai") if any(of_others) else ()
    thoughts = [
        None if of_other and m.response_metadata.get("model_provider") not in own_providers else _thought(m)
        for m, of_other in zip(answers, of_others, strict=True)
    ]
    packages = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    deepseek = "langchain_deepseek" in packages or "deepseek" in str(getattr(model, "openai_api_base", None) or "")
    if all(t is None for t in thoughts) and not deepseek:
        return
    if len(answers) != len(places):
        raise ConfigError(
            f"the request holds {len(places)} assistant messages, but {len(answers)} were given: reasoning cannot be sent back; "
            "use ChatCtx from langchain_ctx"
        )
    for place, thought in zip(places, thoughts, strict=True):
        place.setdefault(FIELD, thought or "")


def _thought(message: BaseMessage) -> str | None:
    known: object = message.additional_kwargs.get(FIELD)
    if isinstance(known, str):
        return known
    if isinstance(message.content, str):
        return None
    blocks = [b for b in message.content_blocks if b["type"] == "reasoning"]
    return "".join(b.get("reasoning", "") for b in blocks) if blocks else None


def _keep(message: BaseMessage, reply: object) -> None:
    """Stores the reasoning that the inner class did not take from the answer."""
    if not isinstance(reply, Mapping) or FIELD in message.additional_kwargs:
        return
    fields = cast("Mapping[str, object]", reply)
    thought = next((fields[name] for name in _INCOMING if isinstance(fields.get(name), str)), None)
    if thought is not None:
        message.additional_kwargs[FIELD] = thought
