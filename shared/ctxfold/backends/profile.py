"""Providers as data: one row per provider, checked by pydantic, loaded on first use."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ctxfold.errors import ConfigError

__all__ = [
    "CacheRules",
    "CommonRules",
    "ErrorRule",
    "Profile",
    "ReasoningIn",
    "ReasoningOut",
    "RequestRules",
    "Thinking",
    "TokenRules",
    "UsagePaths",
    "common_rules",
    "load_profile",
    "provider_names",
]

Keep: TypeAlias = Literal["none", "all", "current_round", "tool_rounds"]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReasoningIn(_Row):
    """Where reasoning stands in a reply: fields in order of preference, block arrays, or tags inside the text."""

    fields: tuple[str, ...] = ("reasoning_content", "reasoning")
    details_field: str | None = None
    tags: tuple[str, str] | None = None
    starts_open: bool = False


class ReasoningOut(_Row):
    """What of it later requests carry; `placeholder` fills the field of assistant turns that have none.

    `prefix_bound` reasoning is refused when anything before it has changed since, see `Request.unbound_before`.
    """

    keep: Keep = "none"
    field: str | None = None
    placeholder: str | None = None
    placeholder_on: Literal["never", "all", "tool_calls"] = "never"
    prefix_bound: bool = False
    same_model_only: bool = False


class Thinking(_Row):
    """How thinking is switched: body fields for on, off and each effort; `drops` are parameters refused meanwhile.

    Where a model cannot do without thinking, `off` is the least that it can do.
    """

    default_on: bool | None = None
    on: dict[str, Any] = Field(default_factory=dict)
    off: dict[str, Any] | None = None
    effort: dict[str, dict[str, Any]] = Field(default_factory=dict)
    drops: tuple[str, ...] = ()


class UsagePaths(_Row):
    """Dotted paths into the usage object, the first one present wins."""

    input: tuple[str, ...] = ("prompt_tokens",)
    output: tuple[str, ...] = ("completion_tokens",)
    cache_read: tuple[str, ...] = (
        "prompt_tokens_details.cached_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
    )
    cache_write: tuple[str, ...] = ("prompt_tokens_details.cache_write_tokens",)
    reasoning: tuple[str, ...] = ("completion_tokens_details.reasoning_tokens", "reasoning_tokens")
    input_includes_cache: bool = True


class ErrorRule(_Row):
    """One way an error reads. Code and type are alternatives; status and message must match beside them.

    `status` holds numbers and [first, last] ranges; `message` is a regular expression, groups `limit` and `requested` are tokens.
    """

    kind: str
    code: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    status: tuple[int | tuple[int, int], ...] = ()
    message: str | None = None

    @field_validator("message")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
        return value


class RequestRules(_Row):
    """How a request body is written; `refuses` are parameters that the model never takes: they are left out.

    `one_leading_system`: system messages stand at the beginning and travel as one, later ones as the user's.
    `alternating_roles`: besides, user and assistant have to take turns, as the templates of Gemma and Mistral demand;
    neighbours of one role travel as one message.
    `call_extra` names what a provider adds to tool calls and wants back whichever model made them (else it goes back to the
    model that made it); `call_placeholder` stands on the first call of a turn that has none of it. `malformed_arguments` says
    how a call goes back whose arguments are no JSON object: as the model wrote it, or wrapped in an object. Servers that parse
    the history for a chat template (vllm, sglang, llama.cpp) refuse every later request of a conversation with the former.
    """

    max_tokens_field: str = "max_tokens"
    include_usage: bool = True
    system_role: str = "system"
    one_leading_system: bool = False
    alternating_roles: bool = False
    empty_content: Literal["empty_string", "null"] = "empty_string"
    forced_tool_choice: bool | Literal["not_while_thinking"] = True
    refuses: tuple[str, ...] = ()
    call_extra: tuple[str, ...] = ()
    call_placeholder: dict[str, Any] | None = None
    malformed_arguments: Literal["as_received", "wrapped"] = "wrapped"
    extra_body: dict[str, Any] = Field(default_factory=dict)
    extra_body_with_tools: dict[str, Any] = Field(default_factory=dict)

    @property
    def system_leads(self) -> bool:
        """Whether a system message may stand at the beginning only."""
        return self.one_leading_system or self.alternating_roles


class CacheRules(_Row):
    """How a prompt cache is told what stays: `mark` as `mark_field` of blocks, the session key as `key_field` of the body."""

    mark_field: str | None = None
    mark: dict[str, Any] = Field(default_factory=dict)
    max_marks: int = Field(default=4, ge=0)
    key_field: str | None = None


class TokenRules(_Row):
    """How tokens are counted before a request."""

    kind: Literal["ratio", "tiktoken", "endpoint"] = "ratio"
    name: str | None = None
    ascii_per_token: float = Field(default=4.0, gt=0)
    cjk_tokens_per_char: float = Field(default=0.6, gt=0)


class Profile(_Row):
    """All that is particular to one provider; `models` overrides whole fields by model-name prefix.

    `verified_on` is the month in which the row was last compared with its `source`.
    """

    name: str
    verified_on: str | None = Field(default=None, pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    source: str | None = None
    base_url: str = Field(default="", repr=False)  # both may hold a password or a key
    wire: Literal["openai_chat", "anthropic_messages"] = "openai_chat"
    path: str = "/chat/completions"
    key_env: str | None = None
    headers: dict[str, str] = Field(default_factory=lambda: {"Authorization": "Bearer {key}"}, repr=False)
    reasoning_in: ReasoningIn = ReasoningIn()
    reasoning_out: ReasoningOut = ReasoningOut()
    thinking: Thinking = Thinking()
    usage: UsagePaths = UsagePaths()
    errors: tuple[ErrorRule, ...] = ()
    finish: dict[str, str] = Field(default_factory=dict)
    finish_reason_optional: bool = False
    silent_truncation: bool = False
    request: RequestRules = RequestRules()
    tokens: TokenRules = TokenRules()
    cache: CacheRules = CacheRules()
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    context_window: int | None = Field(default=None, gt=0)
    max_output: int | None = Field(default=None, gt=0)
    first_event_timeout: float = Field(default=600.0, gt=0)
    idle_timeout: float = Field(default=120.0, gt=0)

    def for_model(self, model: str | None) -> Profile:
        """This row with the override of the longest prefix that the model's name starts with."""
        name = (model or "").lower()
        prefix = max((p for p in self.models if name.startswith(p.lower())), key=len, default=None)
        if prefix is None or not name:
            return self
        return _checked({**self.model_dump(exclude_unset=True), **self.models[prefix], "models": {}}, self.name)


class CommonRules(_Row):
    """What holds for every row: error rules tried after the row's own, finish reasons, retryable kinds."""

    error_rules: tuple[ErrorRule, ...]
    finish: dict[str, str]
    finish_error_kind: dict[str, str]
    retryable: frozenset[str]


@cache
def common_rules() -> CommonRules:
    return CommonRules.model_validate_json((files("ctxfold.backends") / "profiles" / "common.json").read_bytes())


@cache
def provider_names() -> tuple[str, ...]:
    """Names of the built-in rows, sorted."""
    rows = (p.name for p in (files("ctxfold.backends") / "profiles").iterdir())
    return tuple(sorted(name[:-5] for name in rows if name.endswith(".json") and name != "common.json"))


def load_profile(provider: str | Path | Profile | Mapping[str, Any], model: str | None = None) -> Profile:
    """The row for a provider and model: defaults, then the row, then the model's override.

    `provider` is a built-in name, a row of one's own (Profile or mapping), or the path of a .toml or .json file with one row.
    An unknown name or a wrong row raises ConfigError.
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
            f"unknown provider {name!r}: use one of {', '.join(provider_names())}, or give a profile row of your own"
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
        raise ConfigError(f"profile file {path} holds no table at its top: write the fields of one row")
    return _checked(cast("dict[str, Any]", row), str(path))


def _checked(row: dict[str, Any], source: str) -> Profile:
    try:
        return Profile.model_validate(row)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        first = found[0]
        where = ".".join(str(part) for part in first["loc"]) or "the row"
        raise ConfigError(
            f"profile {source!r} has {len(found)} wrong field(s), first {where}: {first['msg']}"
        ) from None
