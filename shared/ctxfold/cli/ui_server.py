"""Serves the pages of `ctxfold ui` on 127.0.0.1: to who has the token, under the server's own name, and live."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from html import escape
from typing import cast
from urllib.parse import parse_qs, urlencode

import uvicorn
from anyio import sleep
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ctxfold.cli import ui_pages as pages
from ctxfold.cli.common import session_in
from ctxfold.cli.ui_pages import Place
from ctxfold.engine.archive import Hit
from ctxfold.errors import ConfigError, CtxError, SessionNotFoundError
from ctxfold.history.records import SessionKey
from ctxfold.inspect.explain import Explanation
from ctxfold.inspect.report import Inspection, TurnFigures
from ctxfold.lru import LruCache
from ctxfold.protocols import Store
from ctxfold.session.context import AgentContext
from ctxfold.stores.sql import SqlStore
from ctxfold.tokens.media import images_of, inline_data

HOST = "127.0.0.1"
FEW = 5  # owners whose sessions are on the first page
LISTED = 50  # sessions of an owner, those that changed last
HITS = 50
KEPT = 8  # sessions whose last report is kept, until they change
POLL_S = 0.2
PAUSE = 3  # times what the last report took, where that is longer
PING_POLLS = 75  # after so many polls without a change, a line keeps the connection alive
MOST_FORM_BYTES = 10_000
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # no SVG: it may hold scripts
HEADERS = {
    "content-security-policy": pages.POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


def serve(store: Store, owner: str | None, port: int, told: Callable[[str], None]) -> None:
    """Serves the pages until Ctrl-C; `told` gets the address. Raises ConfigError where the port is in use."""
    token = secrets.token_urlsafe(24)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen()  # who opens the address at once waits, and is not refused
        except OSError as error:
            raise ConfigError(
                f"port {port} of {HOST} cannot be used ({error.strerror}): choose another --port"
            ) from None
        port = listener.getsockname()[1]
        site = Pages(Reader(store, owner), token)
        config = uvicorn.Config(
            Guard(site.app(), token, port), log_level="warning", lifespan="off", ws="none", proxy_headers=False
        )
        server = uvicorn.Server(config)
        site.stopping = lambda: server.should_exit
        told(f"http://{HOST}:{port}/?token={token}")
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


class Guard:
    """Lets through what comes with the token, under the server's own name, and changes from its own pages alone."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = (f"{HOST}:{port}", f"localhost:{port}")
        self._cookie = f"ctxfold-{port}"  # cookies are shared by all ports of a machine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        host, given = request.headers.get("host", ""), request.query_params.get("token")
        allowed = host in self._hosts and (
            request.method in ("GET", "HEAD") or request.headers.get("origin") == f"http://{host}"
        )
        known = given if given is not None else request.cookies.get(self._cookie, "")
        if not secrets.compare_digest(known.encode(), self._token) or not allowed:
            await PlainTextResponse("forbidden", 403)(scope, receive, send)
            return
        if given is not None and request.method == "GET":  # out of the address, and of the browser's history
            rest = urlencode([(k, v) for k, v in request.query_params.multi_items() if k != "token"])
            moved = RedirectResponse(f"/{request.url.path.lstrip('/')}{'?' if rest else ''}{rest}", 303, HEADERS)
            moved.set_cookie(self._cookie, given, httponly=True, samesite="lax")
            await moved(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)


@dataclass(slots=True)
class Report:
    """A session as it was last read; `state` names that moment, `windows` are those of its requests, by record."""

    state: str
    inspection: Inspection
    windows: dict[int, Explanation] = field(default_factory=dict[int, Explanation])
    took_s: float = 0.0

    def row(self, turn: str) -> tuple[TurnFigures | None, int]:
        """Returns the turn that an address names (`12`, `12.2`), else the newest, and the place of its request."""
        name, _, request = turn.partition(".")
        rows = self.inspection.turns
        row = next((r for r in rows if str(r.turn) == name), rows[-1] if rows else None)
        count = 0 if row is None else len(row.requests)
        return row, pages.number(request) - 1 if 0 < pages.number(request) <= count else count - 1


class Reader:
    """Reads the sessions of a store, of one owner where that is fixed. Safe across threads."""

    def __init__(self, store: Store, owner: str | None) -> None:
        self._store = cast("SqlStore", store)
        self._owner = owner
        self._any: AgentContext | None = None
        self._reports: LruCache[SessionKey, Report] = LruCache(KEPT)
        self._lock = threading.Lock()

    def owners(self) -> tuple[str, ...]:
        return self._store.owners() if self._owner is None else (self._owner,)

    def place(self, given: Mapping[str, str]) -> Place:
        """Returns the place that an address or a form names.

        Raises SessionNotFoundError for another owner than the one whose sessions are shown, where that is fixed.
        """
        place = Place(**{f.name: given[f.name] for f in fields(Place) if f.name in given})
        if self._owner is not None and place.owner not in ("", self._owner):
            raise SessionNotFoundError("only one owner's sessions are shown here: check the address")
        return replace(place, owner=self._owner or place.owner)

    def context(self, place: Place) -> AgentContext:
        """Returns the session; raises SessionNotFoundError where it is not there."""
        with self._lock:
            if self._any is None:
                self._any = session_in(self._store, place.session, place.owner)
            return self._any.at(place.session, owner=place.owner, create=False)

    def state(self, place: Place) -> str:
        """Returns a name for what a page shows now: another one after each change, by whichever process."""
        if place.session:
            keys = [SessionKey(place.owner, place.session)]
        else:
            owners = [o for o in self.owners() if place.owner in ("", o)]
            keys = [SessionKey(o, name) for o in owners for name in self._store.sessions(o)]
        heads = [(key, self._store.head(key)) for key in keys[: 4 * LISTED]]
        return sha256(repr((len(keys), heads)).encode()).hexdigest()[:16]

    def pause_s(self, place: Place) -> float:
        """Returns how long an open page waits for the next change: of a long session, it takes a part of the time only."""
        known = self._reports.get(SessionKey(place.owner, place.session))
        return POLL_S if known is None else max(POLL_S, PAUSE * known.took_s)

    def report(self, place: Place) -> Report:
        """Returns the report on a session, read anew when its log has changed."""
        key, state, context = SessionKey(place.owner, place.session), self.state(place), self.context(place)
        known = self._reports.get(key)
        if known is None or known.state != state:
            began_s = time.thread_time()
            known = Report(state, context.archive.inspect())
            known.took_s = time.thread_time() - began_s
            self._reports.put(key, known)
        return known

    def window(self, place: Place, report: Report, turn: str) -> tuple[Explanation, TurnFigures | None, int]:
        """Returns the window of a turn's request, and which that is; before the first turn, the window as it is."""
        row, at = report.row(turn)
        seq = 0 if row is None else row.requests[at] if row.requests else row.seq
        if seq not in report.windows:
            context = self.context(place)
            report.windows[seq] = context.archive.window_at(seq) if seq else context.explain()
        return report.windows[seq], row, at

    def listed(self, owner: str) -> str:
        """Returns the table of the sessions of an owner that changed last."""
        names = self._store.sessions(owner)
        newest = sorted(((self._changed_s(SessionKey(owner, name)), name) for name in names), reverse=True)[:LISTED]
        usages = [(name, at_s, self.context(Place(owner, name)).usage()) for at_s, name in newest]
        return pages.sessions_html(owner, usages, len(names) - len(usages))

    def search(self, place: Place) -> tuple[Hit, ...]:
        """Returns what the address searches for, in its session or in all of its owner."""
        names = (place.session,) if place.session else self._store.sessions(place.owner)
        context = self.context(replace(place, session=names[0])) if names else None
        return () if context is None else context.archive.search_owner(place.q, HITS, sessions=names)

    def _changed_s(self, key: SessionKey) -> float:
        head = self._store.head(key)
        records = () if head is None else self._store.fetch(key, [head.seq])
        return records[0].at_s if records else 0.0


class Pages:
    """The pages by their addresses."""

    def __init__(self, reader: Reader, token: str) -> None:
        self._reader = reader
        self._token = token
        self.stopping: Callable[[], bool] = lambda: False

    def app(self) -> Starlette:
        get = {
            "/": self.index,
            "/session": self.session,
            "/message": self.message,
            "/prompt": self.prompt,
            "/image": self.image,
            "/events": self.events,
        }
        post = {"/pin": self.pin, "/undo": self.undo}
        routes = [Route(path, page) for path, page in get.items()]
        routes += [Route(path, page, methods=["POST"]) for path, page in post.items()]
        return Starlette(routes=routes, exception_handlers={CtxError: _refused})

    def index(self, request: Request) -> Response:
        place = self._reader.place(request.query_params)
        feed = place.to("/events", seen=self._reader.state(place))
        owners = [o for o in self._reader.owners() if place.owner in ("", o)]
        content = "".join(map(self._reader.listed, owners)) if len(owners) <= FEW else pages.owners_html(owners)
        if place.q and place.owner:
            content = pages.search_html(place, self._reader.search(place))
        return HTMLResponse(pages.whole(place, "sessions", content, feed=feed))

    def session(self, request: Request) -> Response:
        place = self._reader.place(request.query_params)
        report = self._reader.report(place)
        inspection, turns = report.inspection, report.inspection.turns
        window, row, at = self._reader.window(place, report, place.turn)
        match place.tab:
            case "search":
                content = pages.search_html(place, self._reader.search(place), inspection)
            case "messages":
                oldest = (
                    f"<p>Not listed: the oldest {inspection.left_out:,}. Search finds them.</p>"
                    if inspection.left_out
                    else ""
                )
                content = oldest + pages.rows_html(place, pages.message_rows(place, inspection))
            case "diff" if row is not None:
                before = place.against or str(turns[max(0, turns.index(row) - 1)].turn)
                earlier, _, _ = self._reader.window(place, report, before)
                content = pages.diff_html(place, inspection, earlier, window, (before, place.turn or str(row.turn)))
            case "summaries":
                content = pages.summaries_html(place, inspection, inspection.window)
            case "changes":
                content = pages.changes_html(place, inspection, self._token)
            case "prompt":
                content = pages.turn_html(place, turns, row, at) + pages.prompt_html(place, window)
            case _:
                content = pages.window_html(place, inspection, window, row, at)
        feed = place.to("/events", seen=report.state)
        head = pages.head_html(place, len(turns), turns.index(row) + 1 if row is not None else 0)
        return HTMLResponse(pages.whole(place, place.session, content, feed=feed, head=head))

    def message(self, request: Request) -> Response:
        place = self._reader.place(request.query_params)
        report = self._reader.report(place)
        told = self._reader.context(place).archive.explain(place.ref)
        content = pages.message_html(place, told, report.inspection, self._token)
        head = pages.head_html(replace(place, tab="", ref=""))
        feed = place.to("/events", seen=report.state)
        return HTMLResponse(pages.whole(place, place.ref, content, feed=feed, head=head))

    def prompt(self, request: Request) -> Response:
        place = self._reader.place(request.query_params)
        window, _, _ = self._reader.window(place, self._reader.report(place), place.turn)
        return PlainTextResponse(pages.prompt_text(window))

    def image(self, request: Request) -> Response:
        place = self._reader.place(request.query_params)
        images = images_of(self._reader.context(place).archive.get(place.ref))
        at = pages.number(place.page)
        data = inline_data(images[at - 1]) if 0 < at <= len(images) else None
        if data is None or data[0] not in IMAGES:
            raise HTTPException(404)
        return Response(data[1], media_type=data[0])

    async def events(self, request: Request) -> Response:
        place, seen = self._reader.place(request.query_params), request.query_params.get("seen", "")

        async def changes() -> AsyncIterator[str]:
            known, polls = seen, 0
            while not self.stopping() and not await request.is_disconnected():
                state, polls = await run_in_threadpool(self._reader.state, place), polls + 1
                if state != known or polls % PING_POLLS == 0:
                    yield f"data: {state}\n\n" if state != known else ":\n\n"
                    known = state
                await sleep(self._reader.pause_s(place))

        return StreamingResponse(changes(), media_type="text/event-stream")

    async def pin(self, request: Request) -> Response:
        place, form = await self._form(request)
        context = self._reader.context(place)
        change = context.unpin if form.get("verb") == "unpin" else context.pin
        await run_in_threadpool(change, place.ref)
        return RedirectResponse(place.url("/message", tab=""), 303)

    async def undo(self, request: Request) -> Response:
        place, _ = await self._form(request)
        await run_in_threadpool(self._reader.context(place).undo)
        return RedirectResponse(place.url(tab="changes"), 303)

    async def _form(self, request: Request) -> tuple[Place, dict[str, str]]:
        """Returns what a form of these pages says; it carries the token too."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MOST_FORM_BYTES:
                raise HTTPException(413)
        form = {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}
        if not secrets.compare_digest(form.get("token", "").encode(), self._token.encode()):
            raise HTTPException(403)
        return self._reader.place(form), form


def _refused(request: Request, error: Exception) -> Response:
    content = f"<p>{escape(str(error))}</p>"
    return HTMLResponse(pages.whole(Place(), "refused", content), 404 if isinstance(error, LookupError) else 400)
