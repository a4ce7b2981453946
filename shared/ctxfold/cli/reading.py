"""Implements the commands that only read."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any, Literal, cast

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
    print_rows,
    progress,
    session,
    session_in,
    shown,
    within,
)
from ctxfold.connect import named_provider, open_backend
from ctxfold.engine.archive import Hit
from ctxfold.errors import ConfigError, CtxError, MessageNotFoundError
from ctxfold.history.records import SessionKey
from ctxfold.history.snapshot import stored_message
from ctxfold.inspect.explain import PREVIEW_CHARS, Explanation, WindowBlock, difference
from ctxfold.inspect.page import time_text
from ctxfold.inspect.report import TimelineEntry
from ctxfold.messages import Message, Role, user
from ctxfold.policy.prices import CostLine
from ctxfold.protocols import Request
from ctxfold.retrieval.originals import Audience
from ctxfold.session.context import AgentContext
from ctxfold.session.files import write_lines
from ctxfold.tokens.media import row_text, shown_text
from ctxfold.tokens.text import EncodingNotFoundError, TiktokenCounter
from ctxfold.validation import shown_url

References = Annotated[list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="ids or references such as #17")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="largest number of results")]


def sessions(store: StoreUrl, owner: Owner = OWNER, as_json: AsJson = False) -> None:
    """List an owner's sessions.

    Example: ctxfold sessions
    """
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
        print_rows(row | {"forks": ", ".join(row["forks"])} for row in rows)


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
    """Print a conversation, compacted messages included, or single messages by id or reference.

    Example: ctxfold show chat-1 '#17'
    """
    with within(as_json=as_json), session(store, name, owner) as context:
        if references:
            messages = [context.archive.get(reference) for reference in references]
        else:
            messages = list(context.messages(cast("Audience", audience)))[-last if last else 0 :]
        if as_json:
            print_json([_message(m) for m in messages])
            return
        console, numbers = output(), _references(context, references)
        for message in messages:
            head = f"{numbers.get(message.id, '')} {message.role} {message.id}"
            console.print(Text(shown(head).strip(), style="bold"))
            console.print(Text(f"{shown(shown_text(message) or row_text(message, PREVIEW_CHARS))}\n"))


def _references(context: AgentContext, of: Sequence[str] | None) -> dict[str, str]:
    """Returns the references of these messages, or of all, by message id."""
    if of:
        return {e.id: e.reference for e in map(context.archive.explain, of)}
    records = context.handle.store.read(context.handle.key)
    return {m.id: f"#{r.number}" for r in records if r.number and (m := stored_message(r)) is not None}


def _message(message: Message) -> dict[str, Any]:
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
    fields: dict[str, Any] = {"id": message.id, "role": message.role, "kind": message.kind, "text": message.text}
    return fields | ({"tool_calls": calls} if calls else {})


def window(
    name: Name,
    store: StoreUrl,
    owner: Owner = OWNER,
    question: Annotated[
        str | None, typer.Option("--question", help="also show the passages that it would recall")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the window block by block, with the tokens of each block and the reason why it is there.

    Example: ctxfold window chat-1
    """
    with within(as_json=as_json), session(store, name, owner) as context:
        explanation = context.explain()
        recalled = context.window(recall=True, question=question).recalled if question else ""
        if as_json:
            print_json(explanation.to_dict() | ({"recalled": recalled} if question else {}))
            return
        _print_window(explanation)
        if question:
            output().print(Text(shown(recalled) or "nothing would be recalled"))


def _print_window(window: Explanation) -> None:
    output().print(Text(shown(str(window).partition("\n")[0])))
    print_rows(map(_block, window.blocks), wide=("why",))


def _block(block: WindowBlock) -> dict[str, object]:
    fields = {"zone": block.zone, "role": block.role, "tokens": block.tokens, "why": block.why}
    return {"#": block.reference, **fields, "message": block.preview}


def why(
    name: Name,
    reference: Annotated[str, typer.Argument(metavar="MESSAGE", help="a reference such as #17, or an id")],
    store: StoreUrl,
    owner: Owner = OWNER,
    as_json: AsJson = False,
) -> None:
    """Tell why a message is in the window or not: its zone, the compaction that took it out, recall.

    Example: ctxfold why chat-1 '#17'
    """
    with within(as_json=as_json), session(store, name, owner) as context:
        found, window = context.archive.explain(reference), context.explain()
        block = next((b for b in window.blocks if b.id == found.id), None)
        recalled, gave_way = (found.reference in refs for refs in (window.recalled, window.gave_way))
        if as_json:
            facts = {"zone": block and block.zone, "tokens": block and block.tokens, "message": _message(found.message)}
            print_json(asdict(found) | facts | {"recalled": recalled, "gave_way": gave_way})
            return
        place = "out of the window" if block is None else f"in the window, zone {block.zone}, {block.tokens} tokens"
        output().print(Text(shown(f"{found.reference} {found.message.role}: {row_text(found.message, PREVIEW_CHARS)}")))
        output().print(Text(shown(f"{place}: {found.where}, {found.why}")))
        if recalled or gave_way:
            output().print(f"the newest request {'recalled it' if recalled else 'left it out for recalled passages'}")


def diff(
    name: Name,
    earlier: Annotated[
        int, typer.Argument(metavar="TURN", help="its number, 1 for the first; `sessions` says how many")
    ],
    later: Annotated[int, typer.Argument(metavar="TURN", help="that of a later one")],
    store: StoreUrl,
    owner: Owner = OWNER,
    as_json: AsJson = False,
) -> None:
    """Compare the windows of two turns, each as its last request had it: + came, - left, ~ is shown otherwise.

    Example: ctxfold diff chat-1 3 9
    """
    with within(as_json=as_json), session(store, name, owner) as context:
        turns = {turn.turn: turn for turn in context.archive.inspect().turns}
        if missing := {earlier, later} - turns.keys():
            raise MessageNotFoundError(f"session {name!r} has no turn {min(missing)}: it has turns 1 to {len(turns)}")
        before, after = (
            context.archive.window_at((turns[n].requests or (turns[n].seq,))[-1]) for n in (earlier, later)
        )
        found = difference(before, after)
        if as_json:
            print_json(found)
            return
        zones = ", ".join(f"{zone} {tokens:+,}" for zone, tokens in found.zones.items() if tokens) or "no difference"
        output().print(
            f"turn {earlier} to turn {later}: {before.used_tokens:,} to {after.used_tokens:,} tokens ({zones})"
        )
        marked = {"+": found.came, "-": found.left, "~": [b for _, b in found.changed]}
        if blocks := [{"": mark} | _block(b) for mark, blocks in marked.items() for b in blocks]:
            print_rows(blocks, wide=("why",))
        recalled = {"recalled": found.recalled, "no longer recalled": found.no_longer_recalled}
        if told := "; ".join(f"{what}: {', '.join(references)}" for what, references in recalled.items() if references):
            output().print(told)


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
    """Find messages, also compacted ones; `show SESSION '#17'` reads one in full.

    Example: ctxfold search --all "locker code"
    """
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
                    roles=cast("list[Role] | None", roles or None),
                    since=moment("--since", since),
                    until=moment("--until", until),
                )
        if as_json:
            print_json([asdict(hit) for hit in hits])
            return
        print_rows(map(_hit, hits), wide=("time", "score") if every else ("session", "time", "score"))


def _hit(hit: Hit) -> dict[str, object]:
    when = {"date": time_text(hit.at_s, "%Y-%m-%d"), "time": time_text(hit.at_s, "%H:%M"), "role": hit.role}
    return {
        "session": hit.session,
        "#": hit.reference,
        **when,
        "score": f"{hit.score:.2f}",
        "best sentence": hit.excerpt,
    }


def inspect(
    name: Name,
    store: StoreUrl,
    owner: Owner = OWNER,
    html: Annotated[
        Path | None, typer.Option("--html", help="write one self-contained HTML page; - writes it to the output")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report on a session: its window, its events, and the place of every message.

    Example: ctxfold inspect chat-1 --html chat-1.html
    """
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
        elif html is None:
            _print_window(inspection.window)
            output().print(Text(shown(f"\n{str(inspection).removeprefix(str(inspection.window)).strip()}")))
        else:
            output().print(f"written to {html}")


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

    Example: ctxfold watch chat-1
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

    Example: ctxfold doctor
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
