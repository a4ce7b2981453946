"""The pages of `ctxfold ui`: the sessions of a store, the window of any request, and why a message is in it or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from importlib.resources import files
from urllib.parse import urlencode

from ctxfold.engine.archive import Hit
from ctxfold.inspect.explain import Explanation, MessageExplanation, difference
from ctxfold.inspect.page import (
    COLOURS,
    NAMES,
    PAGE_STYLE,
    SHORT_NAMES,
    STYLE,
    age,
    bar_html,
    document,
    policy_of,
    time_text,
    window_chart,
)
from ctxfold.inspect.report import Inspection, Stored, TimelineEntry, TurnFigures
from ctxfold.session.context import SessionUsage
from ctxfold.tokens.media import images_of, shown_text

ROWS = 100  # of a page
MOST_OWNERS = 1_000
MOST_REFERENCES = 60  # in a line
_REFERENCE = re.compile(r"(?<![&\w])#\d{1,9}\b")
TEXT_CHARS = 60_000  # of a text in a page
TABS = {
    "window": "Window",
    "diff": "Difference",
    "messages": "Messages",
    "summaries": "Summaries",
    "changes": "Changes",
    "prompt": "Prompt",
}
_FILES = files("ctxfold.cli")
_ZONES = "".join(f".z-{zone}{{background:{colour}}}" for zone, colour in COLOURS.items())
LIVE_STYLE = f"{PAGE_STYLE}{STYLE}{_ZONES}{_FILES.joinpath('ui.css').read_text(encoding='utf-8')}"
LIVE_SCRIPT = _FILES.joinpath("ui.js").read_text(encoding="utf-8")
POLICY = policy_of(
    LIVE_SCRIPT,
    *("connect-src 'self'", "img-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """The address of a page; `turn` is a turn, or one of its requests (`12.2`), and the newest one where it is empty."""

    owner: str = ""
    session: str = ""
    tab: str = "window"
    turn: str = ""
    against: str = ""
    page: str = ""
    role: str = ""
    zone: str = ""
    tool: str = ""
    summary: str = ""
    q: str = ""
    ref: str = ""

    def to(self, path: str = "/session", **changes: object) -> str:
        """Returns the address with these changes, for an attribute of HTML; it begins at the first page."""
        return escape(self.url(path, **changes))

    def url(self, path: str = "/session", **changes: object) -> str:
        given = {**asdict(self), "page": "", **{name: str(value) for name, value in changes.items()}}
        return f"{path}?{urlencode({name: value for name, value in given.items() if value}, errors='replace')}"

    def here(self, path: str = "/session", **changes: object) -> str:
        """Returns the address of another page of the same session, for an attribute of HTML."""
        return Place(self.owner, self.session, tab="").to(path, **changes)

    def message(self, reference: str, label: str = "") -> str:
        """Returns a link to the page of a message."""
        return link(self.here("/message", ref=reference), label or escape(reference))


def number(text: str) -> int:
    """Returns the number that a part of an address is, 0 for anything else."""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def link(address: str, label: object) -> str:
    """Returns a link; both are HTML already."""
    return f'<a href="{address}">{label}</a>'


@dataclass(frozen=True, slots=True)
class Row:
    """A message in a list: `zone` is the one of the window, or its place now; `facts` stand behind its text."""

    reference: str
    zone: str
    role: str
    text: str
    facts: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    images: int = 0


FILTERS: Mapping[str, Callable[[Row], Sequence[str]]] = {
    "role": lambda row: (row.role,),
    "zone": lambda row: (row.zone,),
    "tool": lambda row: row.tools,
}


def whole(place: Place, title: str, content: str, *, feed: str = "", head: str = "") -> str:
    """Returns a document; `feed` is the address of the events that tell when the part below `head` has changed."""
    crumbs = [link("/", "ctxfold")]
    crumbs += [link(Place(place.owner, tab="").to("/"), escape(place.owner))] if place.owner else []
    crumbs += [link(place.here(), escape(place.session))] if place.session else []
    box = (
        f'<form action="{"/session" if place.session else "/"}">{_hidden(place, "owner", "session")}'
        f'<input type="hidden" name="tab" value="search"><input type="search" name="q" value="{escape(place.q)}" '
        f'aria-label="search messages" placeholder="search {"this session" if place.session else "all sessions"}"></form>'
    )
    body = (
        f'<div class="ctxfold" data-feed="{feed}"><header><h1>{" / ".join(crumbs)}</h1>{box if place.owner else ""}</header>'
        f'{head}<main id="live">{content}</main></div>'
    )
    return document(f"ctxfold: {title}", body, LIVE_STYLE, LIVE_SCRIPT, POLICY)


def _hidden(place: Place, *names: str) -> str:
    values = asdict(place)
    return "".join(f'<input type="hidden" name="{n}" value="{escape(values[n])}">' for n in names if values[n])


def sessions_html(owner: str, sessions: Iterable[tuple[str, float, SessionUsage]], more: int) -> str:
    """Returns the list of an owner's sessions; `more` is how many older ones it leaves out."""
    rows: list[str] = []
    for name, at_s, used in sessions:
        size, budget = used.window_tokens, used.budget_tokens
        rows.append(
            f'<div class="m"><b>{link(Place(owner, name).to(), escape(name))}</b> {size:,} of {budget:,} tokens '
            f'<progress max="{budget}" value="{min(size, budget)}"></progress> {used.turns:,} turns, {used.compactions:,} '
            f"compactions, changed {time_text(at_s, '%Y-%m-%d %H:%M')} UTC<br><small>{escape(str(used.cost))}</small></div>"
        )
    rest = f"<p>{more:,} more, which changed before these.</p>" if more else ""
    return f"<h3>Owner {escape(owner)}</h3>{''.join(rows) or '<p>There is no session.</p>'}{rest}"


def owners_html(owners: Sequence[str]) -> str:
    """Returns links to the sessions of each owner."""
    links = "".join(
        f'<div class="m">{link(Place(owner, tab="").to("/"), escape(owner))}</div>' for owner in owners[:MOST_OWNERS]
    )
    return f"<h3>{len(owners):,} owners</h3>{links}"


def head_html(place: Place, turns: int = 0, shown: int = 0) -> str:
    """Returns the tabs of a session and the slider over its turns."""
    tabs = "".join(
        f'<a href="{place.here(tab=tab, turn=place.turn)}"{" aria-current=page" if tab == place.tab else ""}>{name}</a>'
        for tab, name in TABS.items()
    )
    slider = (
        f'<div class="scrub"><label for="scrub">turn</label><input id="scrub" type="range" name="scrub" min="1" '
        f'max="{turns}" value="{shown}"></div>'
    )
    return f"<nav>{tabs}</nav>{slider if turns > 1 and place.tab in ('window', 'diff', 'prompt') else ''}"


def turn_html(place: Place, turns: Sequence[TurnFigures], row: TurnFigures | None, request: int) -> str:
    """Returns the line that says which request is shown, with the ones beside it."""
    if row is None:
        return '<p class="line">No request was made yet: the window as it is.</p>'
    at, count = turns.index(row), len(row.requests)
    earlier = link(place.to(turn=turns[at - 1].turn), "&#9664; earlier") if at else ""
    later = link(place.to(turn=turns[at + 1].turn), "later &#9654;") if row is not turns[-1] else ""
    each = " ".join(link(place.to(turn=f"{row.turn}.{n}"), n) for n in range(1, count + 1))
    several = f", request {request + 1} of {count}: {each}" if count > 1 else ""
    changed = link(place.here(tab="diff", turn=row.turn, against=turns[at - 1].turn), "what changed") if at else ""
    name = f"turn {row.turn} of {turns[-1].turn}{', open' if row.open else ''}{several}, {time_text(row.at_s)} UTC"
    return f'<p class="line">{earlier} <b>{name}</b> {later} &middot; {changed}</p>'


def window_line(window: Explanation) -> str:
    """Returns what the request held, in one line."""
    return (
        f'<p class="line"><span class="big">{window.used_tokens:,} of {window.budget_tokens:,} tokens</span>: {window.held}; '
        f"{window.gauge.room_tokens:,} left, and {window.context_window - window.budget_tokens:,} for the reply</p>"
    )


def window_html(place: Place, report: Inspection, window: Explanation, row: TurnFigures | None, request: int) -> str:
    """Returns the window of a request, in the order in which it was sent."""
    seq = row.requests[request] if row is not None and row.requests else 0
    reply = next((m for m in report.messages if seq and m.seq == seq), None)
    turns = [{f.name: getattr(t, f.name) for f in fields(t)} for t in report.turns]
    bar = {name: getattr(window, name) for name in ("budget_tokens", "used_tokens", "zones", "context_window")}
    sources = [m for m in report.messages if m.reference in window.recalled]
    recalled = [replace(_stored_row(m), zone="recalled", facts=(f"passages of it, turn {m.turn}",)) for m in sources]
    parts = [
        turn_html(place, report.turns, row, request),
        window_line(window),
        bar_html(bar),
        _references(place, "Recalled for this request from", window.recalled),
        _references(place, "Left out of this request, to make room for that:", window.gave_way),
        f"<p>Answered by {place.message(reply.reference)}: {escape(reply.preview)}</p>" if reply else "",
        rows_html(place, [*window_rows(report, window), *recalled]),
        window_chart(turns, window.budget_tokens, lambda turn: place.url(turn=turn["turn"])) if turns else "",
        f"<p>{escape(str(window.cost))}; {window.gauge.forecast}</p>",
    ]
    return "".join(parts)


def _references(place: Place, label: str, references: Sequence[str]) -> str:
    if not references:
        return ""
    links = " ".join(map(place.message, references[:MOST_REFERENCES]))
    more = f" and {len(references) - MOST_REFERENCES} more" if len(references) > MOST_REFERENCES else ""
    return f'<p class="refs">{label} {links}{more}</p>'


def window_rows(report: Inspection, window: Explanation) -> list[Row]:
    """Returns the messages of a window, in the order of its blocks."""
    tools = {m.id: m.tools for m in report.messages}
    rows: list[Row] = []
    for block, message in zip(window.blocks, window.messages, strict=True):
        facts = f"{block.tokens:,} tokens", age(window.now_s, block.at_s), block.why, block.source
        images = len(images_of(message))
        reference = block.reference or block.id
        rows.append(
            Row(
                reference,
                block.zone,
                block.role,
                block.preview,
                tuple(filter(None, facts)),
                tools.get(block.id, ()),
                images,
            )
        )
    return rows


def message_rows(place: Place, report: Inspection) -> list[Row]:
    """Returns the stored messages that the address asks for."""
    return [
        _stored_row(m, f"turn {m.turn}", age(report.window.now_s, m.at_s))
        for m in report.messages
        if place.summary in ("", m.summary) and place.turn.partition(".")[0] in ("", str(m.turn))
    ]


def _stored_row(m: Stored, *facts: str) -> Row:
    return Row(m.reference, m.where, m.role, m.preview, (m.where, *facts), m.tools, m.images)


def rows_html(place: Place, rows: Sequence[Row]) -> str:
    """Returns one page of the rows that pass the filters, and the filters; the newest page where none is named."""
    chosen = {name: value for name, value in asdict(place).items() if name in FILTERS and value}
    found = [row for row in rows if all(value in FILTERS[name](row) for name, value in chosen.items())]
    pages = max(1, -(-len(found) // ROWS))
    page = min(pages, number(place.page) or pages)
    selects = "".join(
        f'<select name="{name}" aria-label="{name}"><option value="">any {name}</option>{options}</select>'
        for name, of in FILTERS.items()
        if (options := _options({value for row in rows for value in of(row)}, chosen.get(name)))
    )
    turn = f'<input name="turn" value="{escape(place.turn)}" size="5" placeholder="turn" aria-label="turn">'
    form = (
        f'<form class="filters" action="/session">{_hidden(place, "owner", "session", "tab", "summary")}{selects}'
        f"{turn if place.tab == 'messages' else _hidden(place, 'turn')}<button>Filter</button> "
        f"{len(found):,} of {len(rows):,} messages</form>"
    )
    before = link(place.to(page=page - 1), "&#9664; before") if page > 1 else ""
    after = link(place.to(page=page + 1), "after &#9654;") if page < pages else ""
    pager = f"<p>{before} page {page} of {pages} {after}</p>" if pages > 1 else ""
    return form + pager + "".join(row_html(place, row) for row in found[(page - 1) * ROWS : page * ROWS]) + pager


def _options(values: Iterable[str], chosen: str | None) -> str:
    return "".join(
        f'<option{" selected" if value == chosen else ""} value="{escape(value)}">{escape(NAMES.get(value, value))}</option>'
        for value in sorted(values)
    )


def row_html(place: Place, row: Row, mark: str = "") -> str:
    """Returns a row: the reference as a link, role, pictures, tool and text, and facts; `mark` is a class of its style."""
    images = "".join(
        f'<img loading="lazy" alt="" src="{place.here("/image", ref=row.reference, page=n)}">'
        for n in range(1, row.images + 1)
    )
    tool = f"<b>{escape(', '.join(row.tools))}</b> " if row.role == "tool" else ""
    colour = row.zone if row.zone in COLOURS else "live" if row.zone.startswith("in the") else "free"
    return (
        f'<div class="r {mark}">{place.message(row.reference, "" if row.reference.startswith("#") else "&Sigma;")}'
        f'<span><i class="z-{colour}"></i>{escape(row.role)}</span><p>{images}{tool}{escape(row.text)}</p>'
        f"<small>{escape(', '.join(row.facts))}</small></div>"
    )


def linked(place: Place, text: str) -> str:
    """Returns a text as HTML, its references as links."""
    return _REFERENCE.sub(lambda found: place.message(found[0]), escape(text[:TEXT_CHARS]))


def diff_html(
    place: Place, report: Inspection, earlier: Explanation, later: Explanation, turns: tuple[str, str]
) -> str:
    """Returns what is different in the window of the later of two turns, and why messages left it."""
    diff = difference(earlier, later)
    zones = "".join(
        f"<tr><td>{name}</td><td class=n>{before:,}</td><td class=n>{after:,}</td><td class=n>{after - before:+,}</td></tr>"
        for name, before, after in (
            *((NAMES[zone], earlier.zones[zone], later.zones[zone]) for zone in later.zones),
            ("together", earlier.used_tokens, later.used_tokens),
        )
        if before or after
    )
    rows = {b.id: r for w in (earlier, later) for b, r in zip(w.blocks, window_rows(report, w), strict=True)}
    now = {m.id: m.where for m in report.messages}
    for block in diff.left:
        why = (
            "gave way to recalled passages"
            if block.reference in later.gave_way
            else f"now {now.get(block.id, 'replaced')}"
        )
        rows[block.id] = replace(rows[block.id], facts=(f"{block.tokens:,} tokens", why))
    parts = [
        f"<h3>{name}: {len(blocks):,}</h3>{''.join(row_html(place, rows[b.id], mark) for b in blocks[:ROWS])}"
        for name, mark, blocks in (
            ("Came into the window", "came", diff.came),
            ("Left the window", "left", diff.left),
            ("Shown otherwise", "other", [b for _, b in diff.changed]),
        )
        if blocks
    ]
    inputs = [
        f'<input name="{name}" size="5" value="{escape(turn)}" aria-label="turn">'
        for name, turn in zip(("against", "turn"), turns, strict=True)
    ]
    return (
        f'<form class="filters" action="/session">{_hidden(place, "owner", "session", "tab")}from turn {" to turn ".join(inputs)}'
        f"<button>Compare</button></form><table><thead><tr><th>tokens</th><th class=n>turn {escape(turns[0])}</th><th class=n>turn "
        f"{escape(turns[1])}</th><th class=n>difference</th></tr></thead><tbody>{zones}</tbody></table>"
        f"{''.join(parts) or '<p>The two windows have the same messages.</p>'}"
        f"{_references(place, 'Recalled in addition:', diff.recalled)}"
        f"{_references(place, 'No longer recalled:', diff.no_longer_recalled)}"
    )


def summaries_html(place: Place, report: Inspection, window: Explanation) -> str:
    """Returns each summary of the window beside the messages that it stands for."""
    parts: list[str] = []
    for block, message in zip(window.blocks, window.messages, strict=True):
        if block.zone != "summary":
            continue
        sources = [m for m in report.messages if m.summary == block.id]
        listed = "".join(row_html(place, _stored_row(m)) for m in sources[:ROWS])
        parts.append(
            f'<div class="pair"><div tabindex="0"><h4>Summary, {block.tokens:,} tokens, {escape(block.source)}</h4>'
            f'<pre>{linked(place, shown_text(message))}</pre></div><div tabindex="0"><h4>stands for '
            f"{link(place.here(tab='messages', summary=block.id), f'{len(sources):,} messages')}</h4>{listed}</div></div>"
        )
    return "".join(parts) or "<p>The window has no summary.</p>"


def changes_html(place: Place, report: Inspection, token: str) -> str:
    """Returns what changed the window, newest first: of a compaction what it freed, what it took, and what was missed since."""
    steps = "".join(_change(place, step) for step in report.timeline[-ROWS:][::-1])
    undo = (
        f'<form class="filters" method="post" action="/undo">{_hidden(place, "owner", "session")}{_token(token)}'
        f"<button>Undo the last compaction or edit</button></form>"
    )
    older = len(report.timeline) - ROWS
    more = f"<p>{older:,} older ones are left out.</p>" if older > 0 else ""
    return f"{undo}{steps}{more}" if steps else "<p>Nothing has been compacted or edited yet.</p>"


def _change(place: Place, step: TimelineEntry) -> str:
    before, after, calls, usage = step.tokens_before, step.tokens_after, step.calls, step.usage
    figures = [f"{before:,} &rarr; {after:,} tokens, {before - after:,} freed"] if before else []
    figures += [f"{calls} call{'' if calls == 1 else 's'} of the summariser"] if calls else []
    figures += [f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"] if usage else []
    link = f'<a href="{place.to(tab="diff", turn=step.turn, against=max(1, step.turn - 1))}">turn {step.turn}</a>'
    return (
        f'<div class="m{" undone" if step.undone else ""}"><b>{escape(step.what)}</b> {link}, {escape(time_text(step.at_s))} UTC'
        f"<br>{'; '.join(figures)}<br><small>{escape(step.detail)}</small>"
        f"{_references(place, 'Missed, by the replies:', step.missing)}{_references(place, 'Recalled since:', step.recalled)}</div>"
    )


def _token(token: str) -> str:
    return f'<input type="hidden" name="token" value="{escape(token)}">'


def prompt_text(window: Explanation) -> str:
    """Returns the messages of a window as text, as the model got them; passages and tools by their references and size."""
    parts = [
        f"[{' '.join(filter(None, (block.role, block.reference)))}, {block.tokens:,} tokens]\n{shown_text(message)}"
        for block, message in zip(window.blocks, window.messages, strict=True)
    ]
    for zone, references in (("recalled", window.recalled), ("tools", ())):
        named = "".join(f" {reference}" for reference in references)
        parts += [f"[{SHORT_NAMES[zone]}{named}, {window.zones[zone]:,} tokens]"] if window.zones[zone] else []
    return "\n\n".join(parts)


def prompt_html(place: Place, window: Explanation) -> str:
    text = prompt_text(window)
    cut = f"<p>{len(text) - TEXT_CHARS:,} more characters.</p>" if len(text) > TEXT_CHARS else ""
    return (
        f"{window_line(window)}<p>{link(place.to('/prompt'), 'as plain text')}</p><pre>{linked(place, text)}</pre>{cut}"
    )


def search_html(place: Place, hits: Sequence[Hit], report: Inspection | None = None) -> str:
    """Returns what a search has found, best first, and where that is now in the session of the report."""
    places = {} if report is None else {m.reference: m.where for m in report.messages}
    rows: list[str] = []
    for hit in hits:
        where = places.get(hit.reference, f"session {hit.session}")
        facts = where, time_text(hit.at_s, "%Y-%m-%d %H:%M")
        row = Row(hit.reference, where, hit.role, hit.excerpt, facts)
        rows.append(row_html(replace(place, session=hit.session), row))
    return f"<p>{len(hits)} found for <b>{escape(place.q)}</b>, best first</p>{''.join(rows)}"


def message_html(place: Place, told: MessageExplanation, report: Inspection, token: str) -> str:
    """Returns one message whole: where it is now and why, which requests recalled it, and its text."""
    stored = next((m for m in report.messages if m.id == told.id), None)
    turns = [t.turn for t in report.turns if told.reference in t.recalled][-MOST_REFERENCES:]
    links = " ".join(link(place.here(tab="window", turn=turn), turn) for turn in turns)
    there = f" of {link(place.here(tab='window', turn=stored.turn), f'turn {stored.turn}')}" if stored else ""
    summaries = " ".join(place.message(summary, str(n)) for n, summary in enumerate(told.summaries, 1))
    verb = "unpin" if told.why == "pinned" else "pin"
    form = (
        f'<form method="post" action="/pin">{_hidden(replace(place, ref=told.reference), "owner", "session", "ref")}'
        f'{_token(token)}<input type="hidden" name="verb" value="{verb}"><button>{verb.capitalize()} it</button></form>'
    )
    parts = [
        f"<h3>{escape(told.reference)} {told.message.role}{there}</h3><p><b>{told.where}</b>: {escape(told.why)}</p>",
        f"<p>Summaries that contain it, the oldest first: {summaries}</p>" if summaries else "",
        f"<p>Passages of it were in requests of the turns {links}</p>" if turns else "",
        row_html(place, _stored_row(stored)) if stored is not None and stored.images else "",
        form if told.where in ("visible", "excerpt") else "",
        f"<pre>{linked(place, shown_text(told.message))}</pre>",
    ]
    return "".join(parts)
