"""The pages of `ctxfold ui` over a session of 1,000 messages: CPU of the server and size, when everything is read anew."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.sheets import Cell, Sheet
from tests.cli.test_ui import TABS, Site, served
from tests.support.driven import context, scripted


def run(*, quick: bool = False) -> list[Sheet]:
    turns = 50 if quick else 500
    with TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'chat.db'}"
        replies = [f"Reply {n} about pumps and valves. " * 8 for n in range(2 * turns)]
        with context(scripted(*replies), store=store, session_id="large", context_window=64_000) as ctx:
            for n in range(turns):
                ctx.send(f"Question {n}: what about valve {n} in building {n % 7}? " * 4)
        with served(store) as site:
            rows = [_row(site, store, tab, {"tab": tab}, 1 if quick else 5) for tab in TABS]
            rows.append(_row(site, store, "search", {"tab": "search", "q": "valve 7"}, 1 if quick else 5))
    title = f"pages of {2 * turns:,} messages, read anew"
    return [Sheet(title, ("page", "server CPU ms, least", "kB"), tuple(rows))]


def _row(site: Site, store: str, name: str, given: dict[str, str], rounds: int) -> tuple[Cell, ...]:
    spent: list[float] = []
    size = 0
    for _ in range(rounds):
        with context(store=store, session_id="large", create=False) as ctx:  # nothing that was read before is used
            ctx.pin(newest := ctx.view().messages[-1].id)
            ctx.unpin(newest)
        began = site.cpu_s()
        size = len(site.page(session="large", **given).content)
        spent.append(site.cpu_s() - began)
    return name, 1_000 * min(spent), size / 1_000
