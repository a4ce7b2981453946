"""One engine and one store for many sessions and owners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from ctxfold import Section
from ctxfold.connect import check_overhead, message_counter, open_store, session_rules
from ctxfold.follow import Line, Listed, Trail
from ctxfold.given import all_of
from ctxfold.history.records import SessionKey
from ctxfold.history.view import View
from ctxfold.messages import ToolSpec
from ctxfold.ports import ContextBackend, Store, TokenCounter
from ctxfold.session import AgentContext
from ctxfold.tokens import TextCounter
from langchain_ctx.embedding import as_embedder
from langchain_ctx.keys import Address, checked_session_id, sessions_of
from langchain_ctx.listing import unbroken
from langchain_ctx.made_up import MadeUp
from langchain_ctx.places import Places, Taken, beside, goes_on, may_go_on
from langchain_ctx.summarizer import as_summarizer

__all__ = ["Sessions", "Visit"]

_NO_RULES = ("embedder", "prices", "sections", "strategy")  # what an AgentContext takes beside the fields of a policy


@dataclass(frozen=True, slots=True)
class Visit:
    """A list in its session. `root` has the name that was asked for, `session` serves the list as `line` says; `left` is
    where the run before has left it."""

    root: AgentContext
    session: AgentContext
    line: Line
    left: Trail | None
    sessions: Sessions
    address: Address

    def leave(self, listed: Listed, *, lasting: Listed | None = None, waiting: bool = False) -> Trail:
        """What the list, as it is now, is to go on from. `lasting` is what of it the next list will have, if that is not all;
        `waiting` says that the next one will bring the results of tools."""
        left = self.root.trail(self.line.key, listed)
        self._leave(left, left if lasting is None else self.root.trail(self.line.key, lasting), waiting)
        return left

    async def aleave(self, listed: Listed, *, lasting: Listed | None = None, waiting: bool = False) -> Trail:
        left = await self.root.atrail(self.line.key, listed)
        self._leave(left, left if lasting is None else await self.root.atrail(self.line.key, lasting), waiting)
        return left

    def _leave(self, left: Trail, lasting: Trail, waiting: bool) -> None:
        self.sessions.made_up.waits(self.line.key, waiting)
        if self.address.place:
            self.sessions.places.put(self.address.key, left, lasting)


class Sessions:
    """Hands out sessions over one engine, which is made with the first of them; safe across threads and tasks.

    `policy` holds fields of `Policy`, and `embedder`, `prices`, `sections` and `strategy` as `AgentContext` takes them; an
    embedder may be LangChain's `Embeddings`.
    `tools` and `overhead_tokens`, what each request will hold beside the messages, are checked against the window alone.
    Settings are checked at once: ConfigError, WindowTooSmallError. A store given as a URL is opened here and closed by `close`.
    """

    def __init__(
        self,
        *,
        store: str | Store | None,
        context_window: int | None,
        backend: ContextBackend | None = None,
        summarizer: Any = None,
        counter: TokenCounter | TextCounter | None = None,
        max_tokens: int | None = None,
        tools: Sequence[ToolSpec] = (),
        overhead_tokens: int = 0,
        policy: Mapping[str, Any],
    ) -> None:
        rules = dict(policy)
        more = {name: rules.pop(name) for name in _NO_RULES if name in rules}
        if more.get("embedder") is not None:
            more["embedder"] = as_embedder(more["embedder"])
        advice = "make a section of it, section_from(...), or ctxfold.Section"
        more["sections"] = all_of("sections", more.get("sections", ()), Section, advice)
        reserve = rules.pop("reply_reserve_tokens", max_tokens)
        checked: dict[str, Any] = {"strategy": more.get("strategy"), "counter": counter, "prices": more.get("prices")}
        found = session_rules(context_window, backend, reply_reserve_tokens=reserve, **checked, **rules)
        model = backend.model if backend else None
        counts = message_counter(counter, model=model, backend=backend)
        check_overhead(found, counts, tools=tools, overhead_tokens=overhead_tokens)
        self._settings: dict[str, Any] = {
            "backend": backend,
            "context_window": context_window,
            "summarizer": as_summarizer(summarizer),
            "counter": counter,
            "max_tokens": reserve,
            **rules,
            **more,
        }
        self.store = open_store(store)
        self._owns_store = store is None or isinstance(store, str)
        self._forgets = store is None or store == "memory://"
        self.places = Places()
        self.made_up = MadeUp(lambda key: self.store.erase((), gone=(key,)))
        self._first: AgentContext | None = None
        self._lock = threading.Lock()

    def at(self, session: str, owner: str, *, create: bool = True) -> AgentContext:
        """The session; the first one asked for is opened at once, any other at its first use."""
        with self._lock:
            if self._first is None:
                self._first = AgentContext(
                    session=session, owner=owner, store=self.store, create=create, **self._settings
                )
            first = self._first
        return first.at(session, owner=owner, create=create)

    async def aat(self, session: str, owner: str) -> AgentContext:
        """`at`, without holding up the loop."""
        if self._first is None:
            return await asyncio.to_thread(self.at, session, owner)
        return self.at(session, owner)

    @contextmanager
    def visit(
        self, address: Address, listed: Listed, *, left: Trail | None = None, answered: Listed | None = None
    ) -> Generator[Visit, None, None]:
        """The list in the session that goes with it, in line with it but for what is new at its end.

        `left` is what the list's keeper kept; in a place where it kept nothing, it is what the newest run has left that the list
        goes on from. Who learns answers from the next list only says with `answered` how this one will look then: it may be
        asked again, and in a session that only this list goes on with, nothing is compared with what was left. What fails in
        the block is as if it had not been.
        """
        with self._entered(address, listed if answered is None else answered, left) as (taken, found):
            root = self.at(taken.root.session, taken.root.owner)
            if taken.new:
                root = root.at(may_go_on(address.key, root.view(), listed).session)
            start, trail = root, taken.left
            if taken.alone and trail is not None:
                mine = root.at(trail.session)
                if answered is not None or _led_on(trail, mine.view(), listed):
                    start, trail = mine, None
            line = start.follow(listed, trail)
            if address.place and trail is None and not unbroken(listed.ids, line.known):
                root = root.at(beside(address.key).session)
                line = root.follow(listed, None)
            found(line.key)
            yield Visit(root, root.at(line.key.session), line, taken.left, self, address)

    @asynccontextmanager
    async def avisit(
        self, address: Address, listed: Listed, *, left: Trail | None = None, answered: Listed | None = None
    ) -> AsyncGenerator[Visit, None]:
        with self._entered(address, listed if answered is None else answered, left) as (taken, found):
            root = await self.aat(taken.root.session, taken.root.owner)
            if taken.new:
                root = root.at(may_go_on(address.key, await root.aview(), listed).session)
            start, trail = root, taken.left
            if taken.alone and trail is not None:
                mine = root.at(trail.session)
                if answered is not None or _led_on(trail, await mine.aview(), listed):
                    start, trail = mine, None
            line = await start.afollow(listed, trail)
            if address.place and trail is None and not unbroken(listed.ids, line.known):
                root = root.at(beside(address.key).session)
                line = await root.afollow(listed, None)
            found(line.key)
            yield Visit(root, root.at(line.key.session), line, taken.left, self, address)

    @contextmanager
    def _entered(
        self, address: Address, asked: Listed, left: Trail | None
    ) -> Generator[tuple[Taken, Callable[[SessionKey], None]], None, None]:
        """Where the list may go on, and what is to be told which session that was."""
        with ExitStack() as stack:
            if address.place and left is None:
                taken = stack.enter_context(self.places.taking(address.key, asked))
            else:
                taken = Taken(address.key, left)
            if not (address.made_up and self._forgets):
                yield taken, lambda _: None
                return
            before = None if taken.left is None else SessionKey(address.key.owner, taken.left.session)
            yield taken, stack.enter_context(self.made_up.entering(taken.root, before))

    def erase(self, thread: object, owner: str) -> tuple[str, ...]:
        """Erase all that is stored of a thread past recovery: its session, branches, and those of its places; their names."""
        names = sessions_of(checked_session_id(thread), self.store.sessions(owner))
        for name in names:
            self.at(name, owner).erase_session()
        return tuple(names)

    async def aerase(self, thread: object, owner: str) -> tuple[str, ...]:
        names = sessions_of(checked_session_id(thread), await self.store.asessions(owner))
        for name in names:
            await (await self.aat(name, owner)).aerase_session()
        return tuple(names)

    def close(self) -> None:
        if self._first is not None:
            self._first.close()  # ends what runs in the background
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        if self._first is not None:
            await self._first.aclose()
        if self._owns_store:
            await self.store.aclose()


def _led_on(left: Trail, view: View, listed: Listed) -> bool:
    """Whether another process has taken the session on from there, with the same list as it has come to be now."""
    newest = view.live[-1].id if view.live else ""
    return newest not in left.handed and newest in listed.ids and goes_on(view, listed)
