"""Defines providers as data: one profile per provider, validated by pydantic and loaded on first use.

The functions at the end say what a profile allows in a request; all wires use them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ctxfold.errors import ConfigError
from ctxfold.messages import Message, ProviderSummary, ToolCallPart, ToolSpec, is_question
from ctxfold.protocols import Request, Wire
from ctxfold.tokens.text import RatioCounter, TextCounter, text_counter
from ctxfold.validation import json_object, strict_json

Keep: TypeAlias = Literal["none", "all", "current_round", "tool_rounds"]
DETAILS = ("reasoning_details", "thinking_blocks")  # of chat completions: a provider's own blocks, which may be signed
WIRES: frozenset[str] = frozenset(get_args(Wire))


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


Pattern: TypeAlias = Annotated[str, AfterValidator(_pattern)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReasoningIn(_Row):
    """Locates reasoning in a reply of chat completions: fields in order of preference, or tags inside the text.

    Lists of blocks (`DETAILS`), and thinking chunks in the content, are read for every provider.
    """

    fields: tuple[str, ...] = ("reasoning_content", "reasoning")
    tags: tuple[str, str] | None = None
    starts_open: bool = False


class ReasoningOut(_Row):
    """Selects the reasoning that later requests send back, in the message's `field`; in chat completions, `content` stands for
    thinking chunks among the texts of a list, and a field of `DETAILS` for all of these, with `text_field` where there are no
    blocks; `placeholder` fills the field of assistant turns without any.

    The provider refuses `prefix_bound` reasoning once anything before it has changed, see `Request.unbound_before`. It accepts
    turns without `optional` reasoning, so that a request that it refuses for its reasoning is sent once more without.
    """

    keep: Keep = "none"
    field: str | None = None
    text_field: str | None = None
    placeholder: str | None = None
    placeholder_on: Literal["never", "all", "tool_calls"] = "never"
    prefix_bound: bool = False
    optional: bool = False
    same_model_only: bool = False


class ThinkingRules(_Row):
    """The body fields that turn thinking on, off or to an effort; `drops` lists parameters refused while thinking.

    For a model that always thinks, `off` is its lowest effort.
    """

    default_on: bool | None = None
    on: dict[str, Any] = Field(default_factory=dict)
    off: dict[str, Any] | None = None
    effort: dict[str, dict[str, Any]] = Field(default_factory=dict)
    drops: tuple[str, ...] = ()


class UsagePaths(_Row):
    """Dotted paths into the usage object; the first path that is present applies."""

    input: tuple[str, ...] = ("prompt_tokens", "input_tokens")
    output: tuple[str, ...] = ("completion_tokens", "output_tokens")
    cache_read: tuple[str, ...] = (
        "prompt_tokens_details.cached_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "input_tokens_details.cached_tokens",
    )
    cache_write: tuple[str, ...] = (
        "prompt_tokens_details.cache_write_tokens",
        "input_tokens_details.cache_write_tokens",
    )
    reasoning: tuple[str, ...] = (
        "completion_tokens_details.reasoning_tokens",
        "reasoning_tokens",
        "output_tokens_details.reasoning_tokens",
    )
    input_includes_cache: bool = True


class ErrorRule(_Row):
    """Matches one kind of error. Either code or type must match, and in addition status and message.

    `status` holds numbers and [first, last] ranges. `message` is a regular expression; its groups `limit` and `requested` are
    token counts, and `reply` is the room for the reply where `requested` leaves that out.
    """

    kind: str
    code: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    status: tuple[int | tuple[int, int], ...] = ()
    message: Pattern | None = None


class RequestRules(_Row):
    """The rules for writing a request body; parameters in `refuses` are left out, because the model never accepts them.

    `instructions`: the Responses API takes leading system messages in a field of their own.
    `one_leading_system`: leading system messages are sent as one, later ones as user messages.
    `alternating_roles`: in addition, user and assistant must alternate, as the templates of Gemma and Mistral demand; adjacent
    messages of one role are sent as one.
    `call_extra` names fields that a provider adds to tool calls and expects back whichever model made them (other fields go back
    only to the model that made them); `call_placeholder` is set on the first call of a turn that has none. `malformed_arguments`
    says how to send a call whose arguments are not a JSON object: as the model wrote it, or wrapped in an object. Servers that
    parse the history for a chat template (vllm, sglang, llama.cpp) refuse every later request with the former.
    `message_extra` names fields beside the content of a reply's message that go back to the model that sent them, `message_kept`
    those that are stored with it and not sent, as annotations, images and audio always are.
    `short_call_ids`: ids of calls are nine letters and digits; others are replaced, equally in call and result.
    `call_ids` is a regular expression for the ids of calls that the service accepts; other ids are rewritten. `result_status`: the
    model accepts the status of a tool's result. Converse reads both.
    """

    max_tokens_field: str = "max_tokens"
    include_usage: bool = True
    system_role: str = "system"
    instructions: bool = True
    one_leading_system: bool = False
    alternating_roles: bool = False
    empty_content: Literal["empty_string", "null"] = "empty_string"
    forced_tool_choice: bool | Literal["not_while_thinking"] = True
    refuses: tuple[str, ...] = ()
    call_extra: tuple[str, ...] = ()
    message_extra: tuple[str, ...] = ()
    message_kept: tuple[str, ...] = ()
    short_call_ids: bool = False
    call_placeholder: dict[str, Any] | None = None
    malformed_arguments: Literal["as_received", "wrapped"] = "wrapped"
    call_ids: Pattern = "[a-zA-Z0-9_-]+"
    result_status: bool = False
    extra_body: dict[str, Any] = Field(default_factory=dict)
    extra_body_with_tools: dict[str, Any] = Field(default_factory=dict)

    @property
    def system_leads(self) -> bool:
        """Returns True when system messages are allowed at the beginning only."""
        return self.one_leading_system or self.alternating_roles


class CacheRules(_Row):
    """The cache controls of a request: `mark` as `mark_field` of blocks, the session key as `key_field` of the body.

    On Converse the mark is a block of its own behind the one that it marks. `marks_tools`: tools may be marked.
    """

    mark_field: str | None = None
    mark: dict[str, Any] = Field(default_factory=dict)
    max_marks: int = Field(default=4, ge=0)
    marks_tools: bool = True
    key_field: str | None = None


class TokenRules(_Row):
    """The method of counting tokens before a request. `name` is an encoding, or the path of an endpoint.

    `field` is the field of the endpoint's body that holds the request, where the request is not the body itself.
    """

    kind: Literal["ratio", "tiktoken", "endpoint"] = "ratio"
    name: str | None = None
    field: str | None = None
    ascii_per_token: float = Field(default=4.0, gt=0)
    cjk_tokens_per_char: float = Field(default=0.6, gt=0)


class CompactionRules(_Row):
    """The way to ask a service for its own summary of a conversation: at `path`, if it has a separate one, with `body` added.

    It writes one from `min_tokens` of input on. `ask` is the user's text that ends the conversation, where one has to.
    """

    path: str | None = None
    body: dict[str, Any] = Field(default_factory=dict)
    min_tokens: int = Field(default=0, ge=0)
    ask: str | None = None


class Profile(_Row):
    """The properties of one provider. `models` overrides whole fields for models whose names begin with a prefix.

    `wires` overrides whole fields, including `models`, for wire formats that the provider speaks beside `wire`; some wires have
    their own defaults. In `path`, and in `stream_path` for streams, `{model}` is replaced by the name of the model.
    `model_prefix` is a regular expression for text that may precede those prefixes, such as a region. `error_header` is the
    response header with the name of an error, up to a colon. `betas` maps kinds of context edits to the beta features that
    Anthropic requires for them. `compaction` is None for a service without summaries of its own. `verified_on` is the month in
    which the profile was last compared with its `source`.
    """

    name: str
    verified_on: str | None = Field(default=None, pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    source: str | None = None
    base_url: str = Field(default="", repr=False)  # both may hold a password or a key
    wire: Wire = "openai_chat"
    wires: dict[Wire, dict[str, Any]] = Field(default_factory=dict[Wire, dict[str, Any]])
    path: str = "/chat/completions"
    stream_path: str | None = None
    key_env: str | None = None
    headers: dict[str, str] = Field(default_factory=lambda: {"Authorization": "Bearer {key}"}, repr=False)
    reasoning_in: ReasoningIn = ReasoningIn()
    reasoning_out: ReasoningOut = ReasoningOut()
    thinking: ThinkingRules = ThinkingRules()
    usage: UsagePaths = UsagePaths()
    errors: tuple[ErrorRule, ...] = ()
    finish: dict[str, str] = Field(default_factory=dict)
    finish_reason_optional: bool = False
    silent_truncation: bool = False
    request: RequestRules = RequestRules()
    tokens: TokenRules = TokenRules()
    cache: CacheRules = CacheRules()
    betas: dict[str, str] = Field(default_factory=dict)
    compaction: CompactionRules | None = None
    error_header: str | None = None
    model_prefix: Pattern = ""
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    context_window: int | None = Field(default=None, gt=0)
    max_output: int | None = Field(default=None, gt=0)
    first_event_timeout: float = Field(default=600.0, gt=0)
    idle_timeout: float = Field(default=120.0, gt=0)

    def for_wire(self, wire: Wire | None) -> Profile:
        """Returns the profile with the override of a wire format; raises ConfigError when the provider does not speak it."""
        if wire is None or wire == self.wire:
            return self
        if wire not in self.wires:
            wire_names = ", ".join((self.wire, *self.wires))
            raise ConfigError(f"provider {self.name!r} speaks {wire_names}, and not {wire}: use one of these wires")
        own = {**self.model_dump(exclude_unset=True), **common_rules().wires.get(wire, {}), **self.wires[wire]}
        return _checked({**own, "wire": wire, "wires": {}}, self.name)

    def for_model(self, model: str | None) -> Profile:
        """Returns the profile with the override of the longest matching prefix of the model name."""
        prefix = self.prefix_of(model)
        if prefix is None:
            return self
        return _checked({**self.model_dump(exclude_unset=True), **self.models[prefix], "models": {}}, self.name)

    def can_force(self, thinking: bool | str | None) -> bool:
        """Returns True where a request with this `thinking` may force a tool call."""
        forced = self.request.forced_tool_choice
        return not thinks(self, thinking) if forced == "not_while_thinking" else forced

    def prefix_of(self, model: str | None) -> str | None:
        """Returns the longest prefix in `models` that the model name begins with; None when there is none."""
        name = re.sub(f"^(?:{self.model_prefix})", "", (model or "").lower())
        return max((p for p in self.models if name and name.startswith(p.lower())), key=len, default=None)


class CommonRules(_Row):
    """The rules of all profiles: error rules that are tried after the profile's own, finish reasons, retryable kinds.

    `advice` ends the message of an error by its kind. `client_errors` has the kind of an exception by the name of its class, which
    the clients in use share (openai, anthropic, httpx, requests, Python itself). `wires` has fields that a wire sets by default.
    """

    error_rules: tuple[ErrorRule, ...]
    finish: dict[str, str]
    finish_error_kind: dict[str, str]
    retryable: frozenset[str]
    advice: dict[str, str]
    client_errors: dict[str, str]
    wires: dict[str, dict[str, Any]]


@cache
def common_rules() -> CommonRules:
    return CommonRules.model_validate_json((files("ctxfold.backends") / "profiles" / "common.json").read_bytes())


@cache
def provider_names() -> tuple[str, ...]:
    """Returns the sorted names of the built-in profiles."""
    rows = (p.name for p in (files("ctxfold.backends") / "profiles").iterdir())
    return tuple(sorted(name[:-5] for name in rows if name.endswith(".json") and name != "common.json"))


def load_profile(provider: str | Path | Profile | Mapping[str, Any], model: str | None = None) -> Profile:
    """Returns the profile of a provider and model: defaults, then the profile, then the override of the model.

    `provider` is a built-in name, a custom profile (Profile or mapping), or the path of a .toml or .json file with one profile.
    Raises ConfigError for an unknown name or an invalid profile.
    """
    if isinstance(provider, Profile):
        row = provider
    elif isinstance(provider, Mapping):
        row = _checked(dict(provider), str(provider.get("name", "given as a mapping")))
    elif isinstance(provider, Path) or provider.endswith((".toml", ".json")):
        row = _from_file(Path(provider))
    else:
        row = _built_in(provider)
    return row.for_model(model)


@cache
def _built_in(name: str) -> Profile:
    if name not in provider_names():
        raise ConfigError(
            f"unknown provider {name!r}: use one of {', '.join(provider_names())}, or give a profile of your own"
        )
    return _checked(json.loads((files("ctxfold.backends") / "profiles" / f"{name}.json").read_bytes()), name)


def _from_file(path: Path) -> Profile:
    try:
        text = path.read_text(encoding="utf-8")
        row: object = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read profile file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"profile file {path} is not valid {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"profile file {path} has no table at the top level: write the fields of one profile")
    return _checked(cast("dict[str, Any]", row), str(path))


def _checked(row: dict[str, Any], source: str) -> Profile:
    try:
        return Profile.model_validate({**common_rules().wires.get(str(row.get("wire")), {}), **row})
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False)
        first = problems[0]
        where = ".".join(str(part) for part in first["loc"]) or "the profile"
        raise ConfigError(
            f"profile {source!r} has {len(problems)} wrong field(s), first {where}: {first['msg']}"
        ) from None


def counter_for(profile: Profile) -> TextCounter:
    """Returns the counter of a profile: its encoding or its ratios. A counting endpoint is not used, as it costs a request."""
    rules = profile.tokens
    if rules.kind == "tiktoken":
        return text_counter(encoding=rules.name)
    return RatioCounter(ascii_per_token=rules.ascii_per_token, cjk_tokens_per_char=rules.cjk_tokens_per_char)


# requests under a profile


def arguments_object(call: ToolCallPart) -> Mapping[str, Any]:
    """Returns the arguments of a call as an object, which most services demand.

    Malformed text is wrapped, so that it stays visible, under the key that Anthropic's documentation recommends.
    """
    value = json_object(call.arguments, strict_json)
    if value is not None:
        return value
    return {"INVALID_JSON": call.arguments} if call.arguments.strip() else {}


def arguments_text(call: ToolCallPart, malformed: Literal["as_received", "wrapped"]) -> str:
    """Returns the arguments of a call as the text that the model wrote, or an object around it where it is not one."""
    wrapped = malformed == "wrapped" and json_object(call.arguments, strict_json) is None
    return json.dumps(arguments_object(call), ensure_ascii=False) if wrapped else call.arguments


def check_extra(request: Request, reserved: frozenset[str]) -> None:
    """Raises ConfigError when `extra` sets a field that the request has itself."""
    clash = sorted(reserved & request.extra.keys())
    if clash:
        raise ConfigError(f"extra may not set {', '.join(clash)}: use the request's own fields for that")


def thinks(profile: Profile, thinking: bool | str | None) -> bool:
    """Returns True when request and profile turn thinking on."""
    return bool(thinking) if thinking is not None else profile.thinking.default_on is True


def thinking_fields(profile: Profile, thinking: bool | str | None) -> Mapping[str, Any]:
    """Returns the body fields that set thinking as requested; raises ConfigError when the profile has none."""
    rules = profile.thinking
    if thinking is None:
        return rules.on if rules.default_on else {}
    if thinking is True:
        return rules.on
    if thinking is False:
        if rules.off is None and rules.default_on:
            raise ConfigError(
                f"provider {profile.name!r} cannot switch thinking off for this model: leave thinking unset"
            )
        return rules.off or {}
    if thinking not in rules.effort:
        levels = ", ".join(rules.effort) or "none"
        raise ConfigError(
            f"provider {profile.name!r} has no thinking effort {thinking!r} (levels: {levels}): use one of these, True or False"
        )
    return {**rules.on, **rules.effort[thinking]}


def tool_choice(profile: Profile, request: Request) -> str | None:
    """Returns auto, none, required or a tool's name, checked against tools and profile; None to leave the field out."""
    choice = request.tool_choice
    if choice is None:
        return None
    names = [tool.name for tool in request.tools]
    if choice in ("auto", "none"):
        return choice if names else None
    if choice != "required" and choice not in names:
        raise ConfigError(
            f"tool_choice {choice!r} is not a tool of this request ({', '.join(names) or 'it has none'}): "
            "use auto, none, required or a tool's name"
        )
    if not names:
        raise ConfigError("tool_choice 'required' needs tools, the request has none")
    forced = profile.request.forced_tool_choice
    if forced is False:
        raise ConfigError(f"provider {profile.name!r} cannot force a tool call: use tool_choice='auto'")
    if forced == "not_while_thinking" and thinks(profile, request.thinking):
        raise ConfigError(
            f"provider {profile.name!r} cannot force a tool call while thinking: use tool_choice='auto' or thinking=False"
        )
    return choice


def sampling(request: Request, limit: str | None = None, stop: str | None = None) -> dict[str, Any]:
    """Returns the request's maximum of tokens, temperature and stop sequences, under the names that the wire has for them."""
    fields = {limit: request.max_tokens, "temperature": request.temperature, stop: list(request.stop) or None}
    return {name: value for name, value in fields.items() if name is not None and value is not None}


def settings(profile: Profile, request: Request, *, with_tools: bool) -> dict[str, Any]:
    """Returns the fields that the profile adds to a body: its own, those with tools, the cache key and those of thinking."""
    rules, key_field = profile.request, profile.cache.key_field
    keyed = {} if key_field is None or request.cache_key is None else {key_field: request.cache_key}
    for_tools = rules.extra_body_with_tools if with_tools else {}
    return {**rules.extra_body, **for_tools, **keyed, **thinking_fields(profile, request.thinking)}


def function_fields(tool: ToolSpec, schema_field: str) -> dict[str, Any]:
    """Returns the name, the description if any, and the schema of a tool; one without parameters has an empty object."""
    about = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **about, schema_field: dict(tool.parameters) or {"type": "object", "properties": {}}}


def without_refused(profile: Profile, body: Mapping[str, Any], thinking: bool | str | None) -> dict[str, Any]:
    """Returns the body without the parameters that the model refuses, always or while thinking."""
    drops = {*profile.request.refuses, *(profile.thinking.drops if thinks(profile, thinking) else ())}
    return {name: value for name, value in body.items() if name not in drops}


def json_lines(rows: Iterable[object]) -> bytes:
    """Returns one JSON object a line with sorted keys, so that requests can be compared by their bytes."""
    text = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n" for row in rows)
    return text.encode("utf-8", "surrogatepass")


def block_lines(
    tools: Iterable[object],
    system: Iterable[Mapping[str, Any]],
    rows: Iterable[tuple[str, Iterable[Mapping[str, Any]]]],
) -> bytes:
    """Returns tools, then system, then the blocks of the rows (role, blocks), each with its role, as `json_lines` does."""
    blocks = [{"role": role, **block} for role, blocks in (("system", system), *rows) for block in blocks]
    return json_lines([*tools, *blocks])


def provider_summary(
    profile: Profile, messages: Sequence[Message], *, model: str, refused_before: int
) -> tuple[int, list[dict[str, Any]]]:
    """Returns the place of the summary that this model wrote on its own side, and its blocks; (-1, []) without one.

    It stands for what was before it, so that only system prompts may lead it. Every other model, and one whose service has refused
    the blocks, reads the text beside them.
    """
    place = next((i for i, message in enumerate(messages) if message.role != "system"), -1)
    kept = ProviderSummary.of(messages[place]) if place >= refused_before else None
    if kept is None or (kept.wire, kept.provider, kept.model) != (profile.wire, profile.name, model):
        return -1, []
    return place, [dict(block) for block in kept.blocks]


def kept_reasoning(
    rules: ReasoningOut, messages: Sequence[Message], *, model: str, unbound_before: int = 0
) -> list[bool]:
    """Returns for each message whether its reasoning is sent back, as the message itself says, else the profile.

    Reasoning that the provider would refuse is never sent: that of another model when the profile demands its own, and reasoning
    that has lost its prefix, before index `unbound_before`. Beside tool calls the profile decides, because some providers demand
    reasoning there.
    """
    start = max((i for i, m in enumerate(messages) if is_question(m)), default=-1)
    kept: list[bool] = []
    for index, message in enumerate(messages):
        calls = bool(message.tool_calls)
        keeps = {"none": False, "all": True, "current_round": index > start, "tool_rounds": calls}[rules.keep]
        if message.preserve_reasoning is not None and not (calls and keeps):
            keeps = message.preserve_reasoning
        foreign = rules.same_model_only and message.model not in (None, model)
        kept.append(keeps and not foreign and (index >= unbound_before or not rules.prefix_bound))
    return kept
