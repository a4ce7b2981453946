"""Whose session a call is for: what names it, and what of that name is its place in a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from langchain_core.messages import convert_to_messages
from langchain_core.prompt_values import PromptValue

from ctxfold.errors import ConfigError
from ctxfold.follow import BRANCH
from ctxfold.given import check_name, kind_of
from ctxfold.history.records import SessionKey

__all__ = [
    "MADE_FROM",
    "WITHIN",
    "Address",
    "called",
    "check_fields",
    "checked_session_id",
    "first_id",
    "key_or_own",
    "placed",
    "session_key",
    "sessions_of",
]

WITHIN = "|"  # between a thread and a place in its graph, as LangGraph parts such places
RUN = ":"  # between a node of such a place and its run
MADE_FROM = "run-"  # how the name begins of a conversation that nobody named


@dataclass(frozen=True, slots=True)
class Address:
    """A session's key. `made_up`: no user gave it that name. `place`: it stands for all runs in one place of a graph, each of
    which begins with nothing but its list of messages.
    """

    key: SessionKey
    made_up: bool = False
    place: bool = False

    def told(self) -> list[str]:
        """As an argument of a call."""
        kind = "place" if self.place else "run" if self.made_up else None
        return [self.key.session, self.key.owner, *([] if kind is None else [kind])]

    @classmethod
    def of(cls, told: Sequence[str]) -> Address:
        session, owner, *kind = told
        return cls(session_key(session, owner), made_up=bool(kind), place=kind == ["place"])


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
    """ConfigError for a session or an owner among the fields of a chat model that names none: pydantic has an error of its own."""
    if fields.get("session") is not None:
        check_name("session", fields["session"])
    if "owner" in fields:
        check_name("owner", fields["owner"])


def placed(name: object, configurable: Mapping[str, Any], owner: str, first: str | None = None) -> Address:
    """The address of a graph's session; `configurable["owner"]` beats `owner`.

    A sub-graph runs on its caller's thread: what names its session is its place there, less the node that is running. LangGraph
    names such a place anew for each run, unless it has a memory of its own. So the id of the conversation's `first` message
    stands for the run: messages that the caller shares keep theirs, and what is asked of an isolated sub-agent gets a new one.
    """
    place = str(configurable.get("checkpoint_ns") or "").rpartition(WITHIN)[0]
    of_a_run = RUN in place
    if first and of_a_run:
        place = WITHIN.join([*(part.partition(RUN)[0] for part in place.split(WITHIN)), first])
    key = session_key(name, configurable.get("owner", owner))
    if place:
        key = key._replace(session=f"{key.session}{WITHIN}{place}")
    return Address(key, made_up=of_a_run, place=of_a_run and first is not None)


def called(configurable: Mapping[str, Any], session: str | None, owner: str, given: object) -> Address | None:
    """What the call of a model names, or its field does; a thread's has its place in the graph, other names are whole."""
    if "session_id" not in configurable and "thread_id" in configurable:
        thread = configurable["thread_id"]
        return None if thread is None else placed(thread, configurable, owner, first_id(given))
    name = configurable.get("session_id", session)
    return None if name is None else Address(session_key(name, configurable.get("owner", owner)))


def first_id(given: object) -> str | None:
    """The id that a conversation's first message came with, system messages aside."""
    messages: Any = given.to_messages() if isinstance(given, PromptValue) else given
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return None
    found = (convert_to_messages([one])[0] for one in cast("list[Any]", messages))
    return next((m.id for m in found if m.type != "system"), None)


def sessions_of(thread: str, names: Iterable[str]) -> list[str]:
    """Of these sessions those of a thread: its own, its branches', its sub-agents' and their branches'."""
    branch = rf"({BRANCH}[0-9a-f]{{8}})*"
    pattern = re.compile(rf"{re.escape(thread)}{branch}({re.escape(WITHIN)}.+)?", re.DOTALL)
    return [name for name in names if pattern.fullmatch(name)]
