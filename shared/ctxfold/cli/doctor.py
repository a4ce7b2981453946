"""Implements `ctxfold doctor`: reports what works on this machine and what does not, one line per check."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Literal

import typer
from rich.text import Text

from ctxfold.cli.common import OWNER, AsJson, Owner, opened, output, print_json, session_in, shown
from ctxfold.connect import named_provider, open_backend
from ctxfold.errors import CtxError
from ctxfold.messages import user
from ctxfold.policy.prices import CostLine
from ctxfold.protocols import Request
from ctxfold.tokens.text import EncodingNotFoundError, TiktokenCounter
from ctxfold.validation import shown_url

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
