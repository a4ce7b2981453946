"""Implements the commands that change a store. Each prints its result."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import Progress, TaskID, track
from rich.text import Text

from ctxfold.cli.common import (
    OWNER,
    AsJson,
    Name,
    Owner,
    StoreUrl,
    age,
    is_stdout,
    opened,
    output,
    output_file,
    print_json,
    print_result,
    print_rows,
    progress,
    session,
    session_in,
    shown,
    within,
)
from ctxfold.connect import LineCodec, named_provider, open_backend
from ctxfold.engine.erase import Erasure
from ctxfold.engine.retention import Pruned, Retention
from ctxfold.errors import ConfigError, ImportLineError, MessageError, MessageNotFoundError, SessionNotFoundError
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.prompt_safety import neutral
from ctxfold.protocols import Store, UuidIds, Wire
from ctxfold.session.files import Zone, file_rules, parse_lines
from ctxfold.transcripts.conversation import Conversation

IMPORTED_WINDOW = 128_000  # tokens, of sessions with conversations of other programs
Zones = ("all", "window", "immutable", "compressed", "incremental")
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]


def compact(
    name: Name,
    store: StoreUrl,
    owner: Owner = OWNER,
    model: Annotated[
        str | None, typer.Option("--model", help="the model that writes the summary; without it, an extractive summary")
    ] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="the model's provider; generic if unset")] = None,
    wire: Annotated[str | None, typer.Option("--wire", help="its wire format, for a provider with several")] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", help="its URL, for a provider without one")] = None,
    force: Annotated[bool, typer.Option("--force", help="also while half of the budget is free")] = False,
    as_json: AsJson = False,
) -> None:
    """Compact a session now. The API key of the provider is read from the environment.

    Example: ctxfold compact chat-1 --force
    """
    with within(as_json=as_json), ExitStack() as stack:
        settings: dict[str, Any] = {}
        if model is not None:
            named, name_there = named_provider(model, provider)
            chosen_wire = cast("Wire | None", wire)  # `open_backend` checks it
            settings["summarizer"] = stack.enter_context(
                open_backend(named, name_there, wire=chosen_wire, base_url=base_url)
            )
        context = stack.enter_context(session(store, name, owner, **settings))
        with progress().status("compacting"):
            event = context.compact(force=force).event
        assert event is not None
        if as_json:
            print_json(asdict(event))
        else:
            output().print(
                f"{event.strategy} ({event.fallback_level or 'no summary'}): {event.tokens_before} -> {event.tokens_after} tokens, "
                f"{event.archived} messages archived"
            )
            for problem in event.problems:
                progress().print(shown(problem), markup=False, soft_wrap=True)


def undo(name: Name, store: StoreUrl, owner: Owner = OWNER, as_json: AsJson = False) -> None:
    """Undo the last compaction or edit.

    Example: ctxfold undo chat-1
    """
    with within(as_json=as_json), session(store, name, owner) as context:
        before = context.view()
        context.undo()
        after = context.view()
        payload = {"messages": [len(before), len(after)], "tokens": [before.tokens, after.tokens]}
        text = f"{len(before)} -> {len(after)} messages, {before.tokens} -> {after.tokens} tokens"
        print_result(payload, text, as_json=as_json)


def pin(
    name: Name,
    store: StoreUrl,
    references: Annotated[list[str], typer.Argument(metavar="MESSAGE...", help="ids or references such as #17")],
    owner: Owner = OWNER,
    off: Annotated[bool, typer.Option("--off", help="unpin them")] = False,
) -> None:
    """Keep messages word for word through every compaction, or end that.

    Example: ctxfold pin chat-1 '#17'
    """
    with within(), session(store, name, owner) as context:
        (context.unpin if off else context.pin)(*references)


def fork(
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="the new session's name")],
    store: StoreUrl,
    owner: Owner = OWNER,
    at: Annotated[str | None, typer.Option("--at", help="the last message to copy: an id or #17")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a new session with the history of this one.

    Example: ctxfold fork chat-1 what-if --at '#17'
    """
    with within(as_json=as_json), session(store, name, owner) as context:
        view = context.fork(new, at=at).view()
        payload = {"session": new, "messages": len(view), "tokens": view.tokens}
        print_result(payload, f"{shown(new)}: {len(view)} messages, {view.tokens} tokens", as_json=as_json)


def export(
    name: Name,
    file: Annotated[
        Path, typer.Argument(help="the file to write; it appears only when complete. - writes to the output")
    ],
    store: StoreUrl,
    owner: Owner = OWNER,
    zone: Annotated[str, typer.Option("--zone", help=", ".join(Zones))] = "all",
    native: Annotated[bool, typer.Option("--native", help="write each message in its provider's format")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a session as JSON lines; zone "all" writes the whole session, which `import` restores.

    Example: ctxfold export chat-1 chat-1.jsonl
    """
    with within(as_json=as_json), session(store, name, owner) as context:
        with output_file(file) as path, progress().status("writing"):
            lines = context.files.export_jsonl(path, zone=cast("Zone", zone), native=native)
        if is_stdout(file):
            return
        print_result({"file": str(file), "lines": lines}, f"{lines} lines in {file}", as_json=as_json)


def import_(
    name: Name,
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="an export of ctxfold, or what another program wrote; also a zip archive"
        ),
    ],
    store: StoreUrl,
    owner: Owner = OWNER,
    form: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="messages (JSON lines of ctxfold or in a provider's format), or the format of another program, such as chatgpt",
        ),
    ] = "auto",
    context_window: Annotated[
        int | None,
        typer.Option(
            "--context-window",
            min=1,
            help=f"in tokens, for a new session when the file sets none; {IMPORTED_WINDOW:,} for those of other programs",
        ),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="leave out conversations that cannot be read, and name them")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import messages, all or none. A missing session is created; a whole session can only be imported into a new one.

    A file of another program with several conversations fills a session for each, named SESSION/TITLE and the end of its id.

    Example: ctxfold import copy chat-1.jsonl
    """
    from ctxfold.transcripts.reading import MESSAGES, transcript_format  # no other command needs the readers

    with within(as_json=as_json):
        if form == "auto":
            form = transcript_format(file)
        if form != MESSAGES:
            _import_transcripts(name, file, store, owner, form, context_window, skip_bad=skip_bad, as_json=as_json)
            return
        with opened(store, new=True) as place:
            new = name not in place.sessions(owner)
        rules: dict[str, Any] = file_rules(file) if new else {}
        if context_window is not None:
            rules["context_window"] = context_window
        if new and "context_window" not in rules:
            raise ConfigError(f"session {name!r} is new and {file} has no rules: give --context-window")
        if new:  # a bad line leaves no empty session
            parse_lines(file, LineCodec(), UuidIds().new)
        with session(store, name, owner, create=new, **rules) as context:
            with progress().status("reading"):
                count = context.files.import_jsonl(file)
            payload = {"session": name, "messages": count}
            print_result(payload, f"{count} messages into {shown(name)}", as_json=as_json)


def _import_transcripts(
    name: str, file: Path, url: str, owner: str, form: str, context_window: int | None, *, skip_bad: bool, as_json: bool
) -> None:
    """Reads the file twice: to check it whole, and to write one conversation after the other."""
    from ctxfold.transcripts.reading import read_transcripts

    refused: list[str] = []
    with Progress(console=progress(), transient=True) as bar:
        tasks = [bar.add_task(text, total=None) for text in (f"checking ({form})", "importing")]

        def conversations(task: TaskID, on_refused: Callable[[ImportLineError], None]) -> Iterator[Conversation]:
            def report(done: int, size: int) -> None:
                bar.update(task, completed=done, total=size)

            found = read_transcripts(file, format=form, on_progress=report, on_refused=on_refused if skip_bad else None)
            return (conversation for conversation in found if conversation.messages)

        count = sum(1 for _ in conversations(tasks[0], lambda error: refused.append(error.problem)))
        with opened(url, new=True) as place:
            names = set(place.sessions(owner))
            done: dict[str, dict[str, Any]] = {}
            for conversation in conversations(tasks[1], lambda error: None):
                target = name if count == 1 else _session_name(name, conversation, done)
                window = context_window or (None if target in names else IMPORTED_WINDOW)
                rules = {"context_window": window} if window else {}
                with session_in(place, target, owner, create=target not in names, **rules) as context:
                    try:
                        added = context.files.import_conversation(conversation)
                    except MessageError as error:
                        if not skip_bad:
                            raise
                        refused.append(str(error))
                        continue
                row = {"session": target, "title": conversation.title, "id": conversation.id, "messages": added}
                done[target] = {**row, "branches": conversation.branches, "left_out": dict(conversation.left_out)}
    total = sum(row["messages"] for row in done.values())
    for problem in refused:
        progress().print(f"left out: {shown(problem)}", markup=False, soft_wrap=True)
    payload = {"session": name, "format": form, "messages": total, "sessions": [*done.values()], "refused": refused}
    where = shown(name) if count == 1 else f"{len(done)} sessions, {shown(name)}/..."
    print_result(
        payload, "\n".join([f"{total} messages into {where} ({form})", *_left_out(done.values())]), as_json=as_json
    )


def _session_name(name: str, conversation: Conversation, taken: Collection[str]) -> str:
    """Returns a name that the conversation has in every import of it: its title, and the end of its id or its number."""
    title = neutral(" ".join(conversation.title.split())).replace("/", "-")[:60].strip()
    mark = conversation.id[-8:] or str(conversation.number)
    found = f"{name}/{title} {mark}" if title else f"{name}/{mark}"
    return f"{found} {conversation.number}" if found in taken else found


def _left_out(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns what was left out, in words, added up."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts += Counter({"other branches": row["branches"], **row["left_out"]})
    return [f"left out: {'; '.join(f'{number} {what}' for what, number in counts.items())}"] if counts else []


def erase(
    store: StoreUrl,
    name: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="the session")] = None,
    references: Annotated[list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="ids or #17")] = None,
    owner: Owner = OWNER,
    every: Annotated[
        bool, typer.Option("--all", help="every session of the owner, and all other data of the owner")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="only older messages: 12h, 30d, 6w, 1y")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase messages, a session, or everything of an owner for good, from log, index, summaries and forks.

    Example: ctxfold erase chat-1 '#17'
    """
    with within(as_json=as_json), opened(store) as place:
        oldest = None if older_than is None else age("--older-than", older_than)
        if references and oldest is not None:
            raise ConfigError("messages by name cannot be combined with --older-than: give one of them")
        if (name is None) is not every:
            raise ConfigError("say what to erase: either a session, or --all for everything of the owner")
        _confirm(_description(name, references, older_than, owner), yes=yes)
        if name is None and oldest is None:
            done = [Erasure(removed=place.sessions(owner), settled=place.erase_owner(owner))]
        else:
            names = [name] if name is not None else place.sessions(owner)
            done = _erase_in(place, owner, names, references or (), oldest)
        _print_erasure(done, as_json=as_json)


def prune(
    store: StoreUrl,
    name: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="only this session")] = None,
    owner: Owner = OWNER,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="erase older messages: 12h, 30d, 6w, 1y")
    ] = None,
    unused_for: Annotated[
        str | None,
        typer.Option("--unused-for", help="remove sessions in which nothing was stored for this long, such as 90d"),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", min=1, help="keep at most this number of messages per session")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=1, help="keep at most this number of bytes per session")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase for good what exceeds these limits in every session of the owner; sessions that are older are removed.

    Example: ctxfold prune --older-than 30d
    """
    with within(as_json=as_json), opened(store) as place:
        given = (older_than, unused_for, max_messages, max_bytes)
        if all(limit is None for limit in given):
            raise ConfigError("no limit is given: use --older-than, --unused-for, --max-messages or --max-bytes")
        limits = Retention(
            max_age=_span("--older-than", older_than),
            max_idle=_span("--unused-for", unused_for),
            max_messages=max_messages,
            max_bytes=max_bytes,
        )
        names = place.sessions(owner)
        if name is not None and name not in names:
            raise SessionNotFoundError(
                f"session {name!r} of owner {owner!r} does not exist in this store: check the name, or create it"
            )
        where = f"every session of owner {owner!r}" if name is None else f"session {name!r}"
        _confirm(f"what is beyond the limits in {where}", yes=yes)
        done = _pruned(place, owner, names, limits if name is None else None, {} if name is None else {name: limits})
        if as_json:
            print_json(asdict(done))
            return
        if done.busy:
            output().print("another worker is pruning for this owner: run this again later")
        _print_erasure(
            [Erasure(sessions=done.sessions, removed=done.removed, settled=done.settled)], count=done.messages
        )


def _span(option: str, text: str | None) -> timedelta | None:
    span = None if text is None else age(option, text)
    if span is not None and not span:
        raise ConfigError(f"{option} {text!r} names no span of time: give one above zero, such as 30d")
    return span


def _pruned(
    store: Store, owner: str, names: Sequence[str], limits: Retention | None, by_session: dict[str, Retention | None]
) -> Pruned:
    if not names:
        return Pruned()
    with (
        session_in(store, names[0], owner) as context,
        Progress(console=progress(), transient=True, disable=len(names) < 2) as bar,
    ):
        task = bar.add_task("pruning", total=len(names))
        return context.erasure.prune(
            limits, by_session=by_session, on_progress=lambda done: bar.update(task, completed=done.done)
        )


def _erase_in(
    store: Store, owner: str, names: Sequence[str], references: Sequence[str], oldest: timedelta | None
) -> list[Erasure]:
    done: list[Erasure] = []
    for name in track(names, "erasing", console=progress(), transient=True, disable=len(names) < 2):
        with session_in(store, name, owner) as context:
            if oldest is not None:
                done.append(context.erasure.erase_older_than(oldest))
            else:
                done.append(context.erasure.erase(*references) if references else context.erasure.erase_session())
    return done


def _description(name: str | None, references: Sequence[str] | None, older_than: str | None, owner: str) -> str:
    if references:
        return f"{len(references)} messages of session {name!r}"
    where = f"session {name!r}" if name is not None else f"every session of owner {owner!r}"
    return where if older_than is None else f"what is older than {older_than} in {where}"


def _confirm(what: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"erasing {what} cannot be undone: add --yes")
    typer.confirm(f"Erase {shown(what)}? This cannot be undone.", abort=True)


def _print_erasure(done: Sequence[Erasure], *, as_json: bool = False, count: int | None = None) -> None:
    settled = all(e.settled for e in done)
    ids, removed = [i for e in done for i in e.ids], [s for e in done for s in e.removed]
    forks = sorted({s for e in done for s in e.sessions})
    if as_json:
        print_json({"messages": ids, "sessions": forks, "removed": removed, "settled": settled})
        return
    count = len(ids) if count is None else count
    parts = [f"{count} messages"] if count or not removed else []
    parts += [f"{len(removed)} sessions ({shown(', '.join(removed))})"] if removed else []
    place = f" in {shown(', '.join(forks))}" if forks else ""
    output().print(f"erased: {' and '.join(parts)}{place}")
    if not settled:
        output().print("another process is reading the file: run this again later, so that nothing is left in it")


def policy(
    name: Name,
    store: StoreUrl,
    changes: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="such as keep_last=8")] = None,
    owner: Owner = OWNER,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a session, or change some of them for good, for every program that opens it.

    Example: ctxfold policy chat-1 context_window=16000
    """
    with within(as_json=as_json), session(store, name, owner) as context:
        pairs, before = _pairs("the change", changes or (), "context_window=8000"), context.policy
        rules = context.set_policy(**{name: _value(text) for name, text in pairs.items()}) if pairs else before
        settings, old = rules.model_dump(mode="json"), {} if not pairs else before.model_dump(mode="json")
        lines = (f"{name:<22} {value}" for name, value in settings.items() if not pairs or value != old[name])
        print_result(settings, shown("\n".join(lines)), as_json=as_json)


def _value(text: str) -> Any:
    """Returns the value that text is in Python or JSON, and text that is neither as it is."""
    try:
        return ast.literal_eval({"true": "True", "false": "False", "null": "None"}.get(text, text))
    except (SyntaxError, ValueError):
        return text


EXAMPLE = 'Example: ctxfold memory add chat-1 facts "The locker is 47-B."'
memory = typer.Typer(help=f"List, add and forget the memory items of an owner.\n\n{EXAMPLE}", no_args_is_help=True)
MOST = 1_000_000
RESERVED = frozenset({"kind", "text", "key", "shared", "confidence", "sources", "self"})


@memory.command("list")
def list_(
    store: StoreUrl,
    owner: Owner = OWNER,
    kind: Annotated[str | None, typer.Option("--kind", help="facts, corrections, persona, graph, ...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="also replaced items")] = False,
    as_json: AsJson = False,
) -> None:
    """List memory items, newest first."""
    with within(as_json=as_json), opened(store) as place:
        items = place.memories(owner, kinds=None if kind is None else [kind], newest=MOST, everything=everything)
        items = tuple(item for item in items if not item.forgotten)
        if as_json:
            print_json([asdict(item) for item in items])
            return
        print_rows(map(_item, items), wide=("session",))


def _item(item: MemoryItem) -> dict[str, object]:
    text = f"{item.text} (replaced)" if item.superseded_by else item.text
    return {"id": item.id[:8], "kind": item.kind, "about": item.key, "session": item.session, "text": text}


@memory.command()
def add(
    name: Name,
    kind: Annotated[str, typer.Argument(help="facts, corrections, persona, graph, trajectory, strategy, ...")],
    store: StoreUrl,
    text: Annotated[str, typer.Argument(help="the text that a model is shown")] = "",
    owner: Owner = OWNER,
    about: Annotated[str, typer.Option("--about", help="its subject; replaces the item with the same subject")] = "",
    data: Annotated[list[str] | None, typer.Option("--data", metavar="NAME=VALUE", help="such as subject=Ann")] = None,
    as_json: AsJson = False,
) -> None:
    """Add a memory item on behalf of session SESSION."""
    with within(as_json=as_json), session(store, name, owner) as context:
        added = context.memory.add(kind, text, key=about, **_named(data or ()))
        if as_json:
            print_json(asdict(added))
            return
        outcome = (
            f"replaced: {added.replaced.text}"
            if added.replaced is not None
            else "new"
            if added.new
            else "known already"
        )
        output().print(Text(f"{added.item.id[:8]} {shown(outcome)}"))


def _named(pairs: Sequence[str]) -> dict[str, Any]:
    reserved = next((pair for pair in pairs if pair.partition("=")[0] in RESERVED), None)
    if reserved is not None:
        raise ConfigError(f"--data {reserved!r}: that name is reserved: choose another one")
    return _pairs("--data", pairs, "subject=Ann")


def _pairs(what: str, pairs: Sequence[str], example: str) -> dict[str, str]:
    bare = next((pair for pair in pairs if "=" not in pair), None)
    if bare is not None:
        raise ConfigError(f"{what} {bare!r}: give a name and a value, such as {example}")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


@memory.command()
def forget(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="as `memory list` shows them, or in full")],
    store: StoreUrl,
    owner: Owner = OWNER,
    as_json: AsJson = False,
) -> None:
    """Forget items for good: their text is erased, and their sources do not bring them back."""
    with within(as_json=as_json), opened(store) as place:
        items = place.memories(owner, newest=MOST, everything=True)
        chosen: list[str] = []
        for start in ids:
            matches = [i.id for i in items if i.id.startswith(start) and not i.forgotten]
            if len(matches) != 1:
                raise MessageNotFoundError(
                    f"{len(matches)} items begin with {start!r}: look at `ctxfold memory list --all`"
                )
            chosen += matches
        forgotten = place.forget(owner, chosen)
        place.erase(())  # removes the text from the file as well
        payload = {"forgotten": [i.id for i in forgotten]}
        print_result(payload, f"forgotten: {len(forgotten)} items", as_json=as_json)
