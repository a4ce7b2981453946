"""What every wire asks of a row before it writes a request; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctxfold.backends.profile import Profile, ReasoningOut
from ctxfold.errors import ConfigError
from ctxfold.messages import Message, ToolCallPart
from ctxfold.ports import Request

__all__ = [
    "check_extra",
    "keeps_reasoning",
    "round_start",
    "thinking_fields",
    "thinks",
    "tool_choice",
    "without_refused",
    "wrapped_arguments",
]


def wrapped_arguments(call: ToolCallPart) -> dict[str, Any]:
    """Returns a malformed call's text in an object, under the key that Anthropic's documentation gives for it."""
    return {"INVALID_JSON": call.arguments} if call.arguments.strip() else {}


def check_extra(request: Request, reserved: frozenset[str]) -> None:
    """ConfigError when `extra` sets a field that the request has itself."""
    clash = sorted(reserved & request.extra.keys())
    if clash:
        raise ConfigError(f"extra may not set {', '.join(clash)}: use the request's own fields for that")


def thinks(profile: Profile, thinking: bool | str | None) -> bool:
    """Whether the model will think, as far as request and row tell."""
    return bool(thinking) if thinking is not None else profile.thinking.default_on is True


def thinking_fields(profile: Profile, thinking: bool | str | None) -> Mapping[str, Any]:
    """The body fields that switch thinking as asked; ConfigError where the row cannot."""
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
            f"provider {profile.name!r} knows no thinking effort {thinking!r} (levels: {levels}): use one of these, True or False"
        )
    return {**rules.on, **rules.effort[thinking]}


def tool_choice(profile: Profile, request: Request) -> str | None:
    """auto, none, required or a tool's name, checked against tools and row; None when nothing is to be said."""
    choice = request.tool_choice
    if choice is None:
        return None
    names = [tool.name for tool in request.tools]
    if choice in ("auto", "none"):
        return choice if names else None
    if choice != "required" and choice not in names:
        raise ConfigError(
            f"tool_choice {choice!r} is no tool of this request ({', '.join(names) or 'it has none'}): "
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


def without_refused(profile: Profile, body: Mapping[str, Any], thinking: bool | str | None) -> dict[str, Any]:
    """The body without what the model does not take, ever or while it thinks."""
    drops = {*profile.request.refuses, *(profile.thinking.drops if thinks(profile, thinking) else ())}
    return {name: value for name, value in body.items() if name not in drops}


def round_start(messages: Sequence[Message]) -> int:
    """The index of the user message that began the current round, -1 when there is none."""
    return max((i for i, m in enumerate(messages) if m.role == "user" and m.kind == "message"), default=-1)


def keeps_reasoning(rules: ReasoningOut, message: Message, *, model: str, in_round: bool, bound: bool) -> bool:
    """Returns whether a turn's reasoning goes back: as the message itself says, else the row.

    What the provider would refuse never goes back: another model's where the row asks for its own, and what is no longer bound
    to its prefix. Beside tool calls the row decides, because some providers demand it there.
    """
    keeps = {"none": False, "all": True, "current_round": in_round, "tool_rounds": bool(message.tool_calls)}[rules.keep]
    if message.preserve_reasoning is not None and not (message.tool_calls and keeps):
        keeps = message.preserve_reasoning
    foreign = rules.same_model_only and message.model not in (None, model)
    return keeps and not foreign and (bound or not rules.prefix_bound)
