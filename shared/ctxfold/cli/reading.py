"""Implements the commands that only read."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import track
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ctxfold.cli.common import (
    OWNER,
    AsJson,
    Name,
    Owner,
    StoreUrl,
    is_stdout,
    moment,
    opened,
    output,
    output_file,
    print_json,
    progress,
    session,
    session_in,
    shown,
    within,
)
from ctxfold.connect import named_provider, open_backend
from ctxfold.engine.archive import Hit
from ctxfold.errors import ConfigError, CtxError, UnknownRoleError
from ctxfold.history.records import SessionKey
from ctxfold.inspect.explain import Explanation
from ctxfold.inspect.page import time_text
from ctxfold.inspect.report import TimelineEntry
from ctxfold.messages import Message, Role, check_role, user
from ctxfold.policy.prices import CostLine
from ctxfold.protocols import Request
from ctxfold.session.context import AgentContext
from ctxfold.session.files import write_lines
from ctxfold.tokens.media import shown_text
from ctxfold.tokens.text import EncodingNotFoundError, TiktokenCounter
from ctxfold.validation import shown_url

References = Annotated[list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="ids or references such as #17")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="largest number of results")]


def sessions(store: StoreUrl, owner: Owner = OWNER, as_json: AsJson = False) -> None:
    """List an owner's sessions."""
    with within(as_json=as_json), opened(store) as place:
        names = place.sessions(owner)
        rows: list[dict[str, Any]] = []
        if names:
            with session_in(place, names[0], owner) as first:
                shown_names = track(names, "reading", console=progress(), transient=True, disable=len(names) < 20)
                rows += [_row(first.at(name, create=False)) for name in shown_names]
        if as_json:
            print_json(rows)
            return
        if not rows:
            output().print(f"no sessions of owner {shown(owner)!r}")
            return
        table = Table("session", "turns", "tokens", "budget", "compactions", "forks", box=None)
        for row in rows:
            table.add_row(
                Text(shown(row["session"])),
                *(str(row[c]) for c in ("turns", "tokens", "budget", "compactions")),
                Text(shown(", ".join(row["forks"]))),
            )
        output().print(table)


def _row(context: AgentContext) -> dict[str, Any]:
    used = context.usage()
    return {
        "session": context.session,
        "turns": used.turns,
        "tokens": used.window_tokens,
        "budget": used.budget_tokens,
        "compactions": used.compactions,
        "forks": list(context.archive.forks()),
    }


def show(
    name: Name,
    store: StoreUrl,
    references: References = None,
    owner: Owner = OWNER,
    audience: Annotated[str, typer.Option("--audience", help="all, user, or model (the current window)")] = "all",
    last: Annotated[int | None, typer.Option("--last", min=1, help="only this number of newest messages")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a conversation, compacted messages included, or single messages by id or reference."""
    with within(as_json=as_json), session(store, name, owner) as context:
        if references:
            messages = [context.archive.get(reference) for reference in references]
        else:
            messages = list(context.messages(_audience(audience)))[-last if last else 0 :]
        if as_json:
            print_json([_message(m) for m in messages])
            return
        console = output()
        for message in messages:
            console.print(Text(f"{message.role} {shown(message.id)}", style="bold"))
            console.print(Text(shown(_text(message))))


def _audience(name: str) -> Literal["all", "user", "model"]:
    match name:
        case "all" | "user" | "model":
            return name
        case _:
            raise typer.BadParameter("use all, user or model", param_hint="--audience")


def _message(message: Message) -> dict[str, Any]:
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
    fields: dict[str, Any] = {"id": message.id, "role": message.role, "kind": message.kind, "text": message.text}
    return fields | ({"tool_calls": calls} if calls else {})


def _text(message: Message) -> str:
    return f"{shown_text(message)}\n"


def window(
    name: Name,
    store: StoreUrl,
    owner: Owner = OWNER,
    question: Annotated[
        str | None, typer.Option("--question", help="also show the passages that it would recall")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the window block by block, with the tokens of each block and the reason why it is there."""
    with within(as_json=as_json), session(store, name, owner) as context:
        explanation = context.explain()
        recalled = context.window(recall=True, question=question).recalled if question else ""
        if as_json:
            print_json(explanation.to_dict() | ({"recalled": recalled} if question else {}))
            return
        console = output()
        console.print(Text(shown(str(explanation).partition("\n")[0])))
        table = Table("zone", "role", "tokens", "why", "message", box=None)
        for block in explanation.blocks:
            table.add_row(block.zone, block.role, str(block.tokens), block.why, Text(shown(block.preview)))
        console.print(table)
        if question:
            console.print(Text(shown(recalled) or "nothing would be recalled"))


def search(  # noqa: PLR0913 - the options of a command
    words: Annotated[
        list[str], typer.Argument(metavar="[SESSION] QUERY...", help="the session, and words to search for")
    ],
    store: StoreUrl,
    owner: Owner = OWNER,
    every: Annotated[
        bool, typer.Option("--all", help="search all sessions of the owner; every word is part of the query")
    ] = False,
    only: Annotated[list[str] | None, typer.Option("--session", help="with --all: only in this session")] = None,
    roles: Annotated[list[str] | None, typer.Option("--role", help="only messages of this role")] = None,
    since: Annotated[str | None, typer.Option("--since", help="only later messages: 30d, or 2026-11-23")] = None,
    until: Annotated[str | None, typer.Option("--until", help="only earlier messages")] = None,
    limit: Limit = 10,
    as_json: AsJson = False,
) -> None:
    """Find messages, also compacted ones; `show SESSION '#17'` reads one in full."""
    with within(as_json=as_json), opened(store) as place:
        if not every and (only or len(words) < 2):
            raise ConfigError("say where to search: give a session and search words, or --all and search words")
        names = place.sessions(owner) if every else words[:1]
        hits: tuple[Hit, ...] = ()
        if names:
            with session_in(place, names[0], owner) as context:
                hits = context.archive.search_owner(
                    " ".join(words[0 if every else 1 :]),
                    limit,
                    sessions=(only or None) if every else names,
                    roles=None if not roles else [_role(role) for role in roles],
                    since=moment("--since", since),
                    until=moment("--until", until),
                )
        if as_json:
            print_json([asdict(hit) for hit in hits])
            return
        table = Table("session", "", "when", "role", "score", "best sentence", box=None)
        for hit in hits:
            when = time_text(hit.at_s, "%Y-%m-%d %H:%M")
            excerpt = Text(shown(hit.excerpt))
            table.add_row(Text(shown(hit.session)), hit.reference, when, hit.role, f"{hit.score:.2f}", excerpt)
        output().print(table if hits else "nothing found")


def _role(name: str) -> Role:
    try:
        return check_role(name)
    except UnknownRoleError:
        raise typer.BadParameter("use assistant, system, tool or user", param_hint="--role") from None


def inspect(
    name: Name,
    store: StoreUrl,
    owner: Owner = OWNER,
    html: Annotated[
        Path | None, typer.Option("--html", help="write one self-contained HTML page; - writes it to the output")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report on a session: its window, its events, and the place of every message."""
    with within(as_json=as_json), session(store, name, owner) as context:
        with progress().status("reading"):
            inspection = context.archive.inspect()
        if html is not None:
            with output_file(html) as path:
                write_lines(path, [inspection.page().rstrip()])
        if is_stdout(html):
            return
        if as_json:
            print_json(inspection.to_dict())
        else:
            output().print(f"written to {html}" if html is not None else Text(shown(str(inspection))))


RECENT = 5  # compactions that are shown
BAR_CHARS = 40


def watch(
    name: Name,
    store: StoreUrl,
    owner: Owner = OWNER,
    interval_s: Annotated[float, typer.Option("--interval", min=0.05, max=3_600, help="seconds between updates")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="show the window once and exit")] = False,
) -> None:
    """Watch a session's window: tokens by zone, room, the next compaction and recent ones. Ctrl-C ends it.

    Without a terminal, a line is printed for each change.
    """
    console = output()
    with within(), session(store, name, owner) as context:
        views = _views(context, interval_s)
        try:
            if once:
                console.print(_panel(*next(views)))
                return
            if not console.is_terminal:
                for window, _ in views:
                    console.print(Text(_line(window)))
            with Live(console=console, auto_refresh=False) as live:
                for window, timeline in views:
                    live.update(_panel(window, timeline), refresh=True)
        except KeyboardInterrupt:
            return


def _views(context: AgentContext, interval_s: float) -> Iterator[tuple[Explanation, tuple[TimelineEntry, ...]]]:
    """Yields the window and the compactions whenever the log has grown. The log is read whole only after a compaction."""
    key, head, compactions = SessionKey(context.owner, context.session), None, -1
    timeline: tuple[TimelineEntry, ...] = ()
    while True:
        now = context.handle.store.head(key)
        if head is None or now != head:
            head, window = now, context.explain()
            if window.compactions != compactions:
                compactions = window.compactions
                timeline = tuple(step for step in context.archive.inspect().timeline if step.what == "compaction")
            yield window, timeline
        time.sleep(interval_s)


def _line(window: Explanation) -> str:
    zones = ", ".join(f"{zone} {tokens:,}" for zone, tokens in window.zones.items() if tokens)
    stamp = time_text(window.now_s, "%H:%M:%S")
    return f"{stamp} {window.gauge} | {zones} | {window.compactions} compactions"


def _panel(window: Explanation, timeline: tuple[TimelineEntry, ...]) -> Group:
    zones = Table("zone", "tokens", "", box=None)
    for zone, tokens in window.zones.items():
        zones.add_row(zone, f"{tokens:,}", ProgressBar(window.budget_tokens, tokens, width=BAR_CHARS))
    recent = [
        Text(
            f"{time_text(step.at_s)}  {step.tokens_before:,} -> {step.tokens_after:,} tokens"
            f"{' (undone)' if step.undone else ''}"
        )
        for step in timeline[-RECENT:]
    ]
    return Group(
        Text(f"session {shown(window.session)}", style="bold"),
        ProgressBar(window.budget_tokens, window.used_tokens, width=BAR_CHARS + 20),
        Text(str(window.gauge)),
        zones,
        Text(f"{window.compactions} compactions{'; the newest:' if recent else ''}"),
        *recent,
    )


MOST_SESSIONS = 100  # whose cost is looked at
ENCODINGS = ("o200k_base", "cl100k_base")
_EXTRA = re.compile(r"([A-Za-z0-9._-]+)(?:[^A-Za-z0-9._;-][^;]*)?;.*extra\s*==\s*['\"]([\w-]+)['\"]")
_SUMS = frozenset({"all"})  # extras that only name others


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its verdict; "missing" means that an optional package is not installed."""

    verdict: Literal["ok", "missing", "failed"]
    what: str
    detail: str


def doctor(
    store: Annotated[str | None, typer.Option("--store", envvar="CTXFOLD_STORE", help="a store to open")] = None,
    owner: Owner = OWNER,
    model: Annotated[str | None, typer.Option("--model", help="ask this model for one word")] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="the model's provider; generic if unset")] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", help="its URL, for a provider without one")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation, the token counters, a store and a model. Ends with 1 when something failed.

    Nothing is sent anywhere without --model.
    """
    versions = f"{version('ctxfold')} on Python {platform.python_version()}, {platform.system()}"
    checks = [Check("ok", "ctxfold", versions), *_extras(), *map(_counter, ENCODINGS)]
    checks += [] if store is None else _store(store, owner)
    checks += [] if model is None else [_provider(model, provider, base_url)]
    failed = sum(check.verdict == "failed" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": checks})
    else:
        for check in checks:
            output().print(Text(f"{check.verdict:<8} {check.what:<22} {shown(check.detail)}"))
        if store is None:
            output().print("no store was checked: give --store")
        output().print(f"{failed} of {len(checks)} checks failed" if failed else "all is well")
    if failed:
        raise typer.Exit(1)


def _extras() -> Iterator[Check]:
    """Yields a check for each extra that the installed distribution declares."""
    packages: dict[str, list[str]] = {}
    for requirement in requires("ctxfold") or ():
        match = _EXTRA.match(requirement)
        if match is not None and match[1] != "ctxfold" and match[2] not in _SUMS:
            packages.setdefault(match[2], []).append(match[1])
    for extra, names in sorted(packages.items()):
        installed: list[str] = []
        missing: list[str] = []
        for name in dict.fromkeys(names):
            try:
                installed.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                missing.append(name)
        if missing:
            yield Check("missing", f"extra {extra}", f'no {", ".join(missing)}: pip install "ctxfold[{extra}]"')
        else:
            yield Check("ok", f"extra {extra}", ", ".join(installed))


def _counter(encoding: str) -> Check:
    what = f"encoding {encoding}"
    try:
        TiktokenCounter(encoding, allow_download=False)
    except EncodingNotFoundError as error:
        return Check("missing", what, f"not on this machine, tokens are estimated without it: {error}")
    return Check("ok", what, "loads without the network")


def _store(url: str, owner: str) -> list[Check]:
    try:
        with opened(url) as place:
            names = place.sessions(owner)
            cost = sum((session_in(place, n, owner).usage().cost for n in names[:MOST_SESSIONS]), CostLine())
    except (CtxError, OSError) as error:
        return [Check("failed", "store", str(error))]
    from ctxfold.stores.sql_schema import FORMAT_VERSION

    found = f"{shown_url(url)} opens, format {FORMAT_VERSION}, {len(names)} sessions of owner {owner!r}"
    looked_at = Check("ok", f"cost of {min(len(names), MOST_SESSIONS)} sessions", str(cost))
    return [Check("ok", "store", found), *([looked_at] if cost.with_economic else [])]


def _provider(model: str, provider: str | None, base_url: str | None) -> Check:
    what = f"model {model}"
    question = Request((user("Reply with the word OK.", id="doctor"),), max_tokens=64, thinking=False)
    try:
        named, name_there = named_provider(model, provider)
        with open_backend(named, name_there, base_url=base_url, max_retries=0) as backend:
            reply = backend.send(question)
    except CtxError as error:
        return Check("failed", what, f"{type(error).__name__}: {error}")
    usage = reply.usage
    counted = "no usage" if usage is None else f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
    return Check("ok", what, f"answered {reply.message.text[:40]!r}, {counted}")
