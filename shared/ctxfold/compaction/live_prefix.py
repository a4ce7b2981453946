"""Decides whether a summary is asked for on the live prefix: the conversation's last request with one instruction behind it.

The provider's prompt cache serves such a request, where a transcript of the span is new to it and costs about ten times as much.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ctxfold.compaction.strategy import CompactionInput, Plan
from ctxfold.compaction.transcript import (
    live_request,
    prompt_for,
)
from ctxfold.history.cuts import alternating, legal_cuts
from ctxfold.history.prefix import begins_with
from ctxfold.history.prompt_safety import strip_control_chars
from ctxfold.history.view import Entry
from ctxfold.messages import Message, is_final, says_something
from ctxfold.policy.settings import Policy
from ctxfold.protocols import Ports, Request, capabilities_of
from ctxfold.state import SentRequest, Session

CACHE_S = 300.0  # the shortest time for which the large providers keep a prefix
CACHEABLE_TOKENS = 1_024  # the shortest prefix that they cache
CACHED_PRICE = 0.1  # of a token that is read from the cache, where no prices are known
MAX_FAILURES = 2  # more than successes, of which as many count; then this model does better with a transcript
FOREIGN_SHARE = 0.2  # of the span: messages within it that stay, such as pinned ones
QUOTE_CHARS = 72
# fields of a request body that give the reply another form than text
_FORMS = ("format", "grammar", "guided", "json_schema", "response", "structured", "tool_choice", "tool_required")


@dataclass(frozen=True, slots=True)
class LivePrefix:
    """A request that repeats the conversation, and the words that name the span to summarise in it.

    `messages` are the conversation as it was sent, as far as it is repeated; `thinks` says that the model's reasoning counts as
    output.
    """

    request: Request
    messages: tuple[Message, ...]
    span: str
    thinks: bool

    def asking(self, limit_tokens: int, rules: Policy) -> Request:
        """Returns the request for a summary of at most `limit_tokens`; a model that thinks is not limited to them."""
        prompt = prompt_for(limit_tokens, rules.summary_prompt)
        request = live_request(self.request, self.messages, self.span, prompt=prompt)
        messages = alternating(request.messages) if rules.alternating_roles else request.messages
        return replace(request, messages=messages, max_tokens=self.request.max_tokens if self.thinks else limit_tokens)


def live_prefix(session: Session, plan: Plan, case: CompactionInput) -> LivePrefix | None:
    """Returns the live prefix for the plan's summary; None where a transcript of the span is cheaper, safer or the only way."""
    sent = session.sent_request
    if sent is None or session.live_prefix_failures >= MAX_FAILURES or not _may_continue(sent.request, session.ports):
        return None
    if session.ports.clock.now_s() - sent.at_s > CACHE_S or not begins_with(case.view, sent.view):
        return None
    entries = [*case.view]
    known, counter = len(sent.view), session.ports.counter
    # the instruction and the summary take the place of a reply
    reply_tokens = min(case.rules.reply_reserve_tokens, case.rules.summary_tokens + 512)
    room = case.rules.context_window - counter.count_tools(sent.request.tools) - reply_tokens
    upto = known + _finished(entries[known:], room - sum(e.tokens for e in entries[:known]))
    prefix = [e for e in entries[:upto] if says_something(e.message)]
    shown = [e for e in plan.covered if e.message.kind != "section" and says_something(e.message)]
    span = _span(prefix, {e.id for e in shown})
    if span is None or sum(e.tokens for e in prefix) > room:
        return None
    new_tokens = sum(e.tokens for e in entries[known:upto])
    repeated_tokens = counter.count_tools(sent.request.tools) + sum(e.tokens for e in entries[:known])
    if new_tokens + _cached_price(sent, session.ports) * repeated_tokens >= sum(e.tokens for e in plan.covered):
        return None
    usage = sent.usage
    thinks = bool(sent.request.thinking or (usage and usage.reasoning_tokens)) or any(
        e.message.reasoning for e in prefix
    )
    return LivePrefix(sent.request, tuple(e.message for e in prefix), span, thinks)


def answers_freely(names: Collection[str]) -> bool:
    """Tells whether fields of these names leave a model free to answer in plain text."""
    return not any(form in name for name in names for form in _FORMS)


def _may_continue(request: Request, ports: Ports) -> bool:
    """Tells whether the summariser is the model that answered this request, and may answer it in plain text."""
    summarizer = ports.summarizer
    if summarizer is None or request.tool_choice not in (None, "auto", "none"):
        return False
    continues = capabilities_of(summarizer).continues
    if continues is not None:
        return continues(request)
    same = summarizer is ports.backend and request.model in (None, summarizer.model)
    return same and answers_freely(request.extra)


def _cached_price(sent: SentRequest, ports: Ports) -> float:
    """Returns the price of a cached token in plain input tokens: 1 where the provider has reported that it cached nothing."""
    usage = sent.usage
    cached = usage is None or not usage.input_tokens or usage.cache_read_tokens or usage.cache_write_tokens
    if not cached and sent.repeated_tokens >= CACHEABLE_TOKENS:
        return 1.0
    prices = ports.prices
    if prices is None or not prices.input_per_mtok:
        return CACHED_PRICE
    return prices.cache_read_per_mtok / prices.input_per_mtok


def _finished(entries: Sequence[Entry], room_tokens: int) -> int:
    """Returns how many of the entries after the last request can be sent with it: a legal conversation that ends with a reply.

    They are new to the cache, and put the instruction where the user speaks next.
    """
    cuts, used, best = legal_cuts(entries), 0, 0
    for index, entry in enumerate(entries, 1):
        used += entry.tokens
        if used > room_tokens:
            break
        if is_final(entry.message) and index in cuts:
            best = index
    return best


# naming the span


def _span(entries: Sequence[Entry], covered_ids: Collection[str]) -> str | None:
    """Returns the words that name the covered entries; None where they do not all stand there, or not in one piece."""
    places = [i for i, e in enumerate(entries) if e.id in covered_ids]
    if not places or len(places) < len(covered_ids):
        return None
    first, last = places[0], places[-1]
    between = [e for e in entries[first : last + 1] if e.id not in covered_ids]
    if sum(e.tokens for e in between) > FOREIGN_SHARE * sum(entries[i].tokens for i in places):
        return None
    begins = all(e.message.role == "system" or e.message.kind == "section" for e in entries[:first])
    start = "above" if begins else f"above from (and with) {_named(entries, first)}"
    if last + 1 == len(entries):
        return f"{start}, to its end"
    end, rest = _named(entries, last + 1), len(entries) - last - 1
    return f"{start}, up to but without {end}; that message and what follows it ({rest} in all) stay as they are"


def _named(entries: Sequence[Entry], index: int) -> str:
    """Returns words that name a message by its beginning, with that of the next one where others begin alike."""
    message, quote = entries[index].message, _quote(entries[index].message)
    named = f"the message of the {message.role} that begins with {quote}"
    same = [i for i, e in enumerate(entries) if _quote(e.message) == quote]
    if len(same) == 1:
        return named
    if index + 1 < len(entries):
        named += f" and is followed by one that begins with {_quote(entries[index + 1].message)}"
    return f"{named} (number {same.index(index) + 1} of {len(same)} with this beginning)"


def _quote(message: Message) -> str:
    """Returns the beginning of a message in quotation marks; of one without text, that of its first call."""
    calls = "; ".join(f"{c.name} {c.arguments}" for c in message.tool_calls)
    text = " ".join((message.text or calls)[: 4 * QUOTE_CHARS].split())
    return json.dumps(strip_control_chars(text)[:QUOTE_CHARS], ensure_ascii=False)
