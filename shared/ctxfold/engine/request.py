"""Builds a request from a window and the options of one call, and notes what it does to the prefix of the one before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from ctxfold.effects import Flow
from ctxfold.engine.fit import Window, newest_user_alone
from ctxfold.errors import BackendError, ConfigError
from ctxfold.events import PromptTruncated, RulesChanged
from ctxfold.history.calibration import observed, overflowed, prompt_limit, reported_size, was_truncated
from ctxfold.history.cuts import alternating
from ctxfold.history.records import Draft
from ctxfold.history.view import Entry, WindowTokens, roles_of
from ctxfold.messages import Message, Role, TextPart, ToolSpec, says_something
from ctxfold.policy.settings import Policy
from ctxfold.protocols import ContextBackend, Request, TokenCounter, capabilities_of
from ctxfold.state import WINDOW_FIELDS, Session
from ctxfold.validation import is_a, kind_of, whole_number

OnAbort: TypeAlias = Literal["discard", "keep_partial"]
SCRATCH_ID = "scratch"
PASSAGES_ID = "passages"
# of a reply: the names that models of LangChain and LlamaIndex have for it
LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "max_new_tokens")
LEFT_OUT = "[the rest is left out: the window has no room for it]"


@dataclass(frozen=True, slots=True)
class Options:
    """Holds the settings of one request: those of `RequestOptions`, and two for the framework packages.

    `overhead_tokens` is what the request will hold besides messages, scratch and tools. `passages` join the scratch, as far as
    they have room beside the question: a memory beside the session has found them, and made them fit a request without these tools.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    thinking: bool | str | None = None
    model: str | None = None
    scratch: str | None = None
    recall: bool = True
    auto_compact: bool | None = None
    context_window: int | None = None
    on_abort: OnAbort = "discard"
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overhead_tokens: int = 0
    passages: str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            advice = "give the largest number of tokens in a reply, 1 or more, or None"
            object.__setattr__(self, "max_tokens", whole_number("max_tokens", self.max_tokens, advice))
        if self.context_window is not None:
            advice = "give this request's window in tokens, 1 or more, or None for the session's own"
            object.__setattr__(self, "context_window", whole_number("context_window", self.context_window, advice))

    def may_compact(self, rules: Policy) -> bool:
        """Returns True when the request, or else the session, lets room be made by compaction."""
        return rules.auto_compact if self.auto_compact is None else self.auto_compact

    def request(self, messages: Sequence[Message], **marks: Any) -> Request:
        """Returns a request of these messages with what the options ask for; `marks` are its other fields."""
        return Request(
            messages=messages,
            tools=self.tools,
            tool_choice=self.tool_choice,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            stop=self.stop,
            thinking=self.thinking,
            model=self.model,
            extra=self.extra,
            **marks,
        )


NO_OPTIONS = Options()


def limit_among(arguments: Mapping[str, object]) -> int | None:
    """Returns the most tokens of a reply among a model's arguments; None where it is no limit, as -1 is to some services."""
    values = map(arguments.get, LIMITS)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


# fields of Policy that no service knows as a parameter of its own; "background" is one of OpenAI's
_OF_SESSIONS = {"policy", *Policy.model_fields} - {"context_window", "background"}


def check_call(arguments: Mapping[str, object]) -> None:
    """Raises ConfigError for a setting of sessions among a call's arguments, which would go to the service."""
    if name := next((n for n in arguments if n in _OF_SESSIONS), None):
        raise ConfigError(f"{name} is a setting of sessions, not of one call: give it where the model is made")


class RequestOptions(TypedDict, total=False):
    """The options of one `send` or `send_stream`.

    Attributes:
        max_tokens: the most tokens that the reply may have.
        temperature: how random the reply is; without it the service's own default holds.
        stop: texts at which the reply ends; a single text is taken too.
        tools: the tools that the model may call.
        tool_choice: "auto", "none", "required", or the name of the one tool to call.
        thinking: True, False, or an effort such as "high"; None is the backend's own setting.
        model: the model to ask, in place of the backend's.
        scratch: one message at the very end of this request that is never stored.
        recall: False sends neither recalled passages nor sections.
        auto_compact: False raises ContextOverflowError where the request does not fit; None follows the policy.
        context_window: the window for this request, and at the end of its turn where it is larger than the session's. A limit
            that the model has reported still holds.
        on_abort: what a stream that is cancelled or fails leaves behind: nothing, or with "keep_partial" the text that had
            arrived, without tool calls.
        extra: further fields of the request's body, as they are.
    """

    max_tokens: int | None
    temperature: float | None
    stop: tuple[str, ...]
    tools: tuple[ToolSpec, ...]
    tool_choice: str | None
    thinking: bool | str | None
    model: str | None
    scratch: str | None
    recall: bool
    auto_compact: bool | None
    context_window: int | None
    on_abort: Literal["discard", "keep_partial"]
    extra: Mapping[str, Any]


def options_from(values: Mapping[str, Any]) -> Options:
    """Returns the options of one call from keyword arguments. `stop` may be a single text.

    Raises ConfigError for an unknown option or a value of the wrong type.
    """
    known = [f.name for f in fields(Options)]
    if unknown := sorted(values.keys() - set(known)):
        raise ConfigError(
            f"there is no option {unknown[0]!r}: use {', '.join(known)}; other fields of a body go into extra"
        )
    chosen: dict[str, Any] = dict(values)
    if isinstance(chosen.get("stop"), str):
        chosen["stop"] = (chosen["stop"],)
    options = Options(**chosen)
    if options.on_abort not in get_args(OnAbort):
        raise ConfigError(f"on_abort is {options.on_abort!r}: use one of {', '.join(get_args(OnAbort))}")
    wrong = [tool for tool in options.tools if not is_a(tool, ToolSpec)]
    if wrong:
        raise ConfigError(f"a tool is {kind_of(wrong[0])}: give ctxfold.ToolSpec(name, description, parameters)")
    return options


@dataclass(frozen=True, slots=True)
class Scratch:
    """Text for this request only, and the role in which it is sent."""

    text: str
    role: Role = "system"

    def message(self) -> Message:
        return Message(SCRATCH_ID, self.role, (TextPart(self.text),), kind="section")


def scratch_tokens(text: str | None, role: Role, counter: TokenCounter) -> int:
    """Returns the tokens of the scratch message, 0 without one."""
    return counter.count(Scratch(text, role).message()) if text else 0


def with_passages(options: Options, room_tokens: int, count: Callable[[str], int]) -> Options:
    """Returns the options with the passages in front of the scratch, cut after the last line that has room."""
    texts = [_first_lines(options.passages or "", room_tokens, count), options.scratch]
    return replace(options, passages=None, scratch="\n\n".join(filter(None, texts)) or None)


def _first_lines(text: str, room_tokens: int, count: Callable[[str], int]) -> str:
    """Returns the lines that fit, and a note that others are missing; nothing where that would be a heading alone."""
    if count(text) <= room_tokens:
        return text
    lines: list[str] = []
    room_tokens -= count(LEFT_OUT)
    for line in text.split("\n"):
        room_tokens -= count(line) + 1
        if room_tokens < 0:
            break
        lines.append(line)
    return "\n".join([*lines, LEFT_OUT]) if len(lines) > 1 else ""


def place_scratch(messages: list[Message], scratch: Scratch, passages: str = "") -> list[Message]:
    """Returns the messages with the scratch at the very end, and the passages recalled for the newest question before it.

    They are one message, except in the user role where the question stands last: the passages then stand before the question.
    Behind it, they would be what the model answers to; the scratch is the caller's own words, and they chose the last place.
    """
    if passages and scratch.role == "user" and messages and messages[-1].role == "user":
        before = replace(Scratch(passages, scratch.role).message(), id=PASSAGES_ID)
        return place_scratch([*messages[:-1], before, messages[-1]], scratch)
    text = "\n\n".join(t for t in (passages, scratch.text) if t)
    return [*messages, Scratch(text, scratch.role).message()] if text else messages


def build_request(
    session: Session, window: Window, options: Options, *, model: str, rules: Policy, scratch_role: Role
) -> Request:
    """Returns the request that shows `model` this window, with the marks by which a backend sets its cache points."""
    view = list(window.view)
    if "" in window.view.live_roles | roles_of(window.view.turn):
        view = [entry for entry in view if says_something(entry.message) or entry is view[-1]]
    stored = [entry.message for entry in view]
    messages = place_scratch(stored, Scratch(options.scratch or "", scratch_role), window.recalled)
    refused_seq = session.refused_seqs.get(model, 0)
    unbound_before = _up_to(view, max(session.unbound_seq, refused_seq))
    refused_before = _up_to(view, refused_seq)
    # passages and scratch are among the last three: passages, question, scratch
    last = range(max(0, len(messages) - 3), len(messages))
    stable = next((i for i in last if messages[i].id in (SCRATCH_ID, PASSAGES_ID)), len(messages))
    if rules.alternating_roles:
        unbound_before = len(alternating(messages[:unbound_before]))
        refused_before = len(alternating(messages[:refused_before]))
        stable_messages, messages = alternating(messages[:stable]), alternating(messages)
        # the last of them is not stable where the scratch has joined it
        stable = sum(one == other for one, other in zip(stable_messages, messages, strict=False))
    return options.request(
        messages,
        unbound_before=unbound_before,
        refused_before=refused_before,
        stable_messages=stable,
        cache_key=hashlib.sha256(repr(session.key).encode()).hexdigest()[:32],
    )


def _up_to(view: Sequence[Entry], seq: int) -> int:
    """Returns the number of leading messages up to the last one that is no newer than the record `seq`; 0 is no record."""
    return seq and max((index + 1 for index, entry in enumerate(view) if entry.seq <= seq), default=0)


def note_prefix(
    session: Session,
    window: Window,
    options: Options,
    *,
    turn_id: str,
    tools_tokens: int,
    backend: ContextBackend | None,
) -> None:
    """Counts the request in the prefix statistics. Reasoning before a break of the prefix is no longer bound to it."""
    tools = json.dumps([(t.name, t.description, dict(t.parameters)) for t in options.tools], sort_keys=True)
    with session.lock:
        cause = session.tracker.sent(
            window.view,
            turn_id=turn_id,
            tools_tokens=tools_tokens,
            compactions=session.state.compactions,
            edits=session.state.edits,
            surroundings=(
                ("model", session.model),
                ("tools", hashlib.sha256(tools.encode()).hexdigest() if options.tools else ""),
                ("thinking", str(options.thinking)),
            ),
            reasoning_expires=capabilities_of(backend, session.model).reasoning_expires,
        )
    if cause is not None:
        session.unbound_seq = session.state.head


def calibrate_from_refusal(
    session: Session, error: BackendError, turn_id: str, model: str, options: Options
) -> Flow[bool]:
    """Learns what a refusal says of the model's window and of how it counts; returns True when the rules in force changed."""
    session.model = model
    window = options.context_window
    before, rules = session.window_rules(window), session.rules(window)
    limit, reply_tokens = error.limit_tokens, error.reply_tokens or 0
    if limit is not None and reply_tokens > max(before.reply_reserve_tokens, options.max_tokens or 0):
        # a setting of the model's own, which no call names
        tools = session.ports.counter.count_tools(options.tools)
        _, least_tokens = newest_user_alone(session.view(turn_id), tools)
        limit = prompt_limit(before, limit, reply_tokens=reply_tokens, least_tokens=least_tokens)
    learnt = overflowed(
        session.state.calibrations.get(model),
        model=model,
        estimated=session.sent_windows.get(turn_id, (model, WindowTokens()))[1].own_count,
        requested=error.requested_tokens,
        limit=limit,
        max_tokens=reply_tokens or options.max_tokens or 0,
    )
    if learnt is not None:
        yield from session.append((session.draft(learnt),))
    if session.window_rules(window) != before:
        session.events.emit(RulesChanged(session.key.session, WINDOW_FIELDS))
    return session.rules(window) != rules


def calibration_drafts(session: Session, turn_id: str, reply: Message) -> tuple[WindowTokens | None, list[Draft]]:
    """Returns the size of the request that a turn's reply answers, and what its usage teaches about our counts.

    That of a prompt which the server cut teaches nothing.
    """
    if turn_id not in session.sent_windows:
        return None, []
    session.model, window = session.sent_windows.pop(turn_id)
    model, estimated = session.model, window.own_count
    reported = reply.usage.input_tokens if reply.usage else 0
    if session.provider_compacts and reported < estimated:
        return window, []  # the service counted what it had left of the prompt
    known = session.state.calibrations.get(model)
    cuts = capabilities_of(session.ports.backend, model).truncates_silently
    if cuts and was_truncated(known, estimated=estimated, reported=reported):
        session.events.emit(PromptTruncated(session.key.session, model, estimated, reported))
        return window, []
    learnt = observed(known, model=model, estimated=estimated, reported=reported)
    return reported_size(window, reply.usage), [] if learnt is None else [session.draft(learnt)]
