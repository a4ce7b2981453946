"""Finds the session that a call is for, from LangChain's config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast
from uuid import UUID

from langchain_core.messages import convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import RunnableConfig, ensure_config

from ctxfold.engine.attach import BRANCH
from ctxfold.errors import ConfigError
from ctxfold.history.records import SessionKey
from ctxfold.validation import check_name, kind_of

WITHIN = "|"  # between a thread and a place in its graph, as LangGraph parts such places
RUN = ":"  # between a node of such a place and its run
WINDOW = "context_window"  # of one call, among its arguments and in its config
MADE_FROM = "run-"  # how the name begins of a conversation that nobody named


@dataclass(frozen=True, slots=True)
class Address:
    """A session's key. `anonymous`: no user gave it that name. `place`: it stands for all runs in one place of a graph, each of
    which begins with nothing but its list of messages. `parsed`: a parser reads the calls of the reply, and no result follows.
    """

    key: SessionKey
    anonymous: bool = False
    place: bool = False
    parsed: bool = False

    def as_argument(self) -> list[str]:
        """Returns the session as an argument of a call."""
        kinds = ["place"] if self.place else ["run"] if self.anonymous else []
        return [self.key.session, self.key.owner, *kinds, *(["parsed"] if self.parsed else [])]

    @classmethod
    def of(cls, argument: Sequence[str]) -> Address:
        session, owner, *kinds = argument
        place = "place" in kinds
        return cls(
            session_key(session, owner), anonymous=place or "run" in kinds, place=place, parsed="parsed" in kinds
        )


def session_key(session: object, owner: object) -> SessionKey:
    """Returns the key for names as they come: a session may be named by a number or a UUID too, as LangGraph's threads are.

    ConfigError for None, an empty name or anything else: nobody shares a nameless session by accident.
    """
    for what, name in (("owner", owner), ("session id", session)):
        if name is None:
            raise ConfigError(f"the {what} is missing: give each conversation a name of its own")
    return SessionKey(check_name("owner", owner), checked_session_id(session))


def key_or_own(session: object, owner: object, own_session: str | None, own_owner: str) -> SessionKey:
    """Returns the key for the names of a call; None alone stands for what the object was made with."""
    return session_key(own_session if session is None else session, own_owner if owner is None else owner)


def checked_session_id(session: object) -> str:
    """Returns the name of a session or thread as text; ConfigError for what cannot name one."""
    if isinstance(session, bool) or not isinstance(session, str | int | UUID):
        raise ConfigError(f"the session id is {kind_of(session)}: give a string, a number or a UUID")
    return check_name("session id", str(session))


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raises ConfigError for an empty session or owner among the fields of a chat model, in place of pydantic's own error."""
    if fields.get("session") is not None:
        check_name("session", fields["session"])
    if "owner" in fields:
        check_name("owner", fields["owner"])


class Names(NamedTuple):
    """The names that the program gives: one session for all calls, the owner, and the key of `configurable` with the owner.

    In a run of a graph, `configurable` is written by whoever asked for the run: on LangGraph's server, by its client. So nothing
    there chooses a session but the thread, which the server sets, and no owner but what stands under the program's own key. In
    a plain chain the program writes the configuration, and "session_id" and "owner" in it take precedence.
    """

    session: str | None
    owner: str
    owner_key: str | None = None

    def session_in(self, config: RunnableConfig) -> object:
        """Returns the name of the session for a call; None where nothing names one."""
        configurable = config.get("configurable", {})
        if _is_run(configurable):
            return configurable.get("thread_id") if self.session is None else self.session
        if "thread_id" in configurable:
            return configurable["thread_id"]
        return configurable.get("session_id", self.session)

    def owner_in(self, config: RunnableConfig) -> object:
        """Returns the owner for a call; ConfigError where the program's key names none."""
        configurable = config.get("configurable", {})
        if self.owner_key is not None:
            if configurable.get(self.owner_key) is None:
                raise ConfigError(f"nobody owns this run: its config has no {self.owner_key!r}, which owner_key names")
            return configurable[self.owner_key]
        return self.owner if is_in_graph(configurable) else configurable.get("owner", self.owner)


def is_in_graph(configurable: Mapping[str, Any]) -> bool:
    """Returns True for the configuration of a graph's run, or of a thread."""
    return "thread_id" in configurable or _is_run(configurable)


def _is_run(configurable: Mapping[str, Any]) -> bool:
    return any(name.startswith("__pregel_") for name in configurable)  # LangGraph's own keys


def check_not_from_run(**names: object) -> None:
    """Raises ConfigError for a name that the config of the graph's run has under the same key: its client may have chosen it."""
    configurable = ensure_config().get("configurable", {})
    for key, name in names.items() if is_in_graph(configurable) else ():
        if name is not None and configurable.get(key) == name:
            raise ConfigError(
                f"{key} {name!r} comes from the config of this graph's run, which its client may have written: name it in the "
                'program, or by history_factory_config=[ConfigurableFieldSpec(id="thread_id", annotation=str)]'
            )


def address_in_graph(name: object, config: RunnableConfig, names: Names, first: str | None = None) -> Address:
    """Returns the address of a graph's session.

    A sub-graph runs on its caller's thread: what names its session is its place there. LangGraph names such a place anew for each
    run, unless it has a memory of its own. So the id of the conversation's `first` message stands for the run: messages that the
    caller shares keep theirs, and what is asked of an isolated sub-agent gets a new one.
    """
    place = place_of_graph(config)
    of_a_run = RUN in place
    if first and of_a_run:
        place = WITHIN.join([*(part.partition(RUN)[0] for part in place.split(WITHIN)), first])
    key = session_key(name, names.owner_in(config))
    if place:
        key = key._replace(session=f"{key.session}{WITHIN}{place}")
    return Address(key, anonymous=of_a_run, place=of_a_run and first is not None)


def place_of_graph(config: RunnableConfig) -> str:
    """Returns the place in its thread of the graph that is running, "" for the outermost one.

    LangGraph's name of a place ends with the node that runs, and with each `@task` that the node has called: they are no
    sub-graphs. Such a task says so at the end of its path, in the metadata of the run.
    """
    place = str(config.get("configurable", {}).get("checkpoint_ns") or "").rpartition(WITHIN)[0]
    path = cast("Sequence[Any]", config.get("metadata", {}).get("langgraph_path") or ())
    while path and path[-1] is True:
        place, path = place.rpartition(WITHIN)[0], path[1]
    return place


def address_of_call(config: RunnableConfig, names: Names, prompt: object, kwargs: Mapping[str, Any]) -> Address | None:
    """Returns the session that the call or the model's field names. In a graph, its place there follows the name.

    `kwargs` are the arguments of the call: those of `with_structured_output` say who reads the reply.
    """
    name = names.session_in(config)
    if name is None:
        return None
    return replace(address_in_graph(name, config, names, first_id(prompt)), parsed=_is_parsed(kwargs))


def _is_parsed(kwargs: Mapping[str, Any]) -> bool:
    """Returns True for a call of `with_structured_output` whose answer is a tool call; LangChain describes it to its tracers."""
    match kwargs.get("ls_structured_output_format"):
        case {"kwargs": {"method": "function_calling"}}:
            return True
        case _:
            return False


def first_id(prompt: object) -> str | None:
    """Returns the id of a conversation's first message that is not a system message."""
    messages: Any = prompt.to_messages() if isinstance(prompt, PromptValue) else prompt
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return None
    converted = (convert_to_messages([one])[0] for one in cast("list[Any]", messages))
    return next((m.id for m in converted if m.type != "system"), None)


def sessions_of(thread: str, names: Iterable[str]) -> list[str]:
    """Returns the sessions of a thread among these: its own, its branches, and those of its sub-agents."""
    branch = rf"({BRANCH}[0-9a-f]{{8}})*"
    pattern = re.compile(rf"{re.escape(thread)}{branch}({re.escape(WITHIN)}.+)?", re.DOTALL)
    return [name for name in names if pattern.fullmatch(name)]
