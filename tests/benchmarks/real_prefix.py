"""What a real server's prefix cache serves: sessions on llama.cpp, cached tokens as it counts them, and plain trimming."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ctxfold import AgentContext, Message, OpenAIChatBackend, Reply, Request, Role, TextPart, system, user
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import text_counter
from tests.benchmarks.sheets import Cell, Sheet
from tests.benchmarks.tau_peers import Encoder, llama_message
from tests.realmodel.llama import ANSWER, LlamaServer, one_layer_model, unsupported

__all__ = ["run"]

WINDOW, REPLY_TOKENS = 2048, 16
BUDGET = WINDOW - WINDOW // 5  # what ctxfold, too, leaves for the prompt
FLUSH_TOKENS = 400
TEXT_SHARE = 0.85  # of it, for memories that count text only: the rest is what stands around each message
SYSTEM = "You keep the log of a sailing ship. Answer in one short sentence, and never invent a harbour. " * 4
PLACES = ("Bergen", "Leith", "Ostend", "Vigo", "Cadiz", "Genoa", "Split", "Chania")
ROLES: dict[str, Role] = {"system": "system", "human": "user", "ai": "assistant"}


@dataclass(frozen=True, slots=True)
class Turn:
    """What the server counted for one request, and whether the engine says that it broke the prefix."""

    prompt: int
    cached: int
    breaks: int = 0


def run(*, quick: bool = False) -> list[Sheet]:
    """Two tables: a short session turn by turn, and a long one with compactions beside trimming."""
    reason = unsupported()
    if reason is not None:
        return [Sheet("Prefix reuse on a real server", ("not run",), ((reason,),))]
    with tempfile.TemporaryDirectory() as folder, LlamaServer(one_layer_model(Path(folder)), context=WINDOW) as server:
        return [_short(server, 2 if quick else 12), _long(server, 2 if quick else 60)]


def told(number: int) -> str:
    """A message of some 45 tokens."""
    place, other = PLACES[number % len(PLACES)], PLACES[(number * 3 + 1) % len(PLACES)]
    return (
        f"Day {number}: we left {place} at {number % 12 + 1} o'clock with {number * 17} casks of oil, bound for {other}. "
        f"The glass stood at {980 + number} and the pilot asked {number * 3} crowns. What do you note?"
    )


def _short(server: LlamaServer, turns: int) -> Sheet:
    with _session(server) as context:
        rows = _turns(context, turns)
    return Sheet(
        f"Cached tokens on llama.cpp, {turns} turns",
        ("turn", "prompt tokens", "cached", "share"),
        tuple(
            (n + 1, row.prompt, row.cached or "none", f"{row.cached / row.prompt:.1%}") for n, row in enumerate(rows)
        ),
        "As the server reports them (cached_tokens). The chat template writes a few tokens before each answer that it does not "
        "write again in the next request.",
    )


def _long(server: LlamaServer, turns: int) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for name, recall in (("ctxfold", False), ("ctxfold, with recalled passages at the end", True)):
        with _session(server) as context:
            folded = _turns(context, turns, recall=recall)
            rows.append(_sums(name, folded, str(context.usage().compactions)))
        if not recall:
            rows.append(_sums("ctxfold, requests that extend the one before", [t for t in folded if not t.breaks], "-"))
    rows.append(_sums("LangChain trim_messages", _trimmed(server, turns), "-"))
    rows.append(_sums("LlamaIndex ChatMemoryBuffer", _remembered(server, turns, _buffer), "-"))
    rows.append(_sums("LlamaIndex Memory", _remembered(server, turns, _memory), "-"))
    small = partial(_memory, token_flush_size=FLUSH_TOKENS)
    rows.append(_sums(f"LlamaIndex Memory, flush size {FLUSH_TOKENS}", _remembered(server, turns, small), "-"))
    return Sheet(
        f"The same, {turns} turns in a window of {WINDOW:,} tokens",
        ("how", "requests", "prompt tokens", "cached", "share", "read anew", "compactions"),
        tuple(rows),
        "trim_messages and ChatMemoryBuffer drop the oldest messages once the window is full: from then on each request is "
        "new to the server after the system prompt. LlamaIndex's Memory drops as much as its flush size at once: by default "
        "all but the newest message here. None of them keeps a summary.",
    )


def _sums(name: str, turns: Sequence[Turn], compactions: Cell) -> tuple[Cell, ...]:
    prompt, cached = sum(t.prompt for t in turns), sum(t.cached for t in turns)
    return name, len(turns), prompt, cached, f"{cached / prompt:.1%}", prompt - cached, compactions


@contextmanager
def _session(server: LlamaServer) -> Iterator[AgentContext]:
    """Its summaries come from the test server: a model of one layer writes none that would be kept."""
    with (
        ModelServer() as writer,
        OpenAIChatBackend(provider="generic", model="lookup", base_url=writer.base_url) as summarizer,
        server.backend() as backend,
        AgentContext(backend, session_id="log", system=SYSTEM, context_window=WINDOW, summarizer=summarizer) as context,
    ):
        yield context


def _turns(context: AgentContext, turns: int, *, recall: bool = False) -> list[Turn]:
    rows: list[Turn] = []
    for number in range(turns):
        before = _breaks(context)
        reply = context.send(told(number), max_tokens=REPLY_TOKENS, temperature=0.0, extra=ANSWER, recall=recall)
        rows.append(_counted(reply, _breaks(context) - before))
    return rows


def _breaks(context: AgentContext) -> int:
    return sum(count for _, count in context.usage().prefix.breaks)


def _counted(reply: Reply, breaks: int = 0) -> Turn:
    usage = reply.usage
    if usage is None:
        raise RuntimeError("the server reported no usage: is this llama.cpp?")
    return Turn(usage.input_tokens, usage.cache_read_tokens, breaks)


def _trimmed(server: LlamaServer, turns: int) -> list[Turn]:
    """The same questions; what is sent is what `trim_messages` leaves of them."""
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, trim_messages

    count = text_counter().count
    history: list[AnyMessage] = [SystemMessage(SYSTEM)]
    rows: list[Turn] = []
    with server.backend() as backend:
        for number in range(turns):
            history.append(HumanMessage(told(number)))
            kept = trim_messages(
                history,
                max_tokens=BUDGET,
                token_counter=lambda listed: sum(4 + count(m.text) for m in listed),
                start_on="human",
                include_system=True,
            )
            messages = [Message(str(n), ROLES[m.type], (TextPart(m.text),)) for n, m in enumerate(kept)]
            reply = backend.send(Request(messages, max_tokens=REPLY_TOKENS, temperature=0.0, extra=ANSWER))
            history.append(AIMessage(reply.message.text))
            rows.append(_counted(reply))
    return rows


Memory = tuple[Callable[[Any], None], Callable[[], list[Any]]]


def _remembered(server: LlamaServer, turns: int, make: Callable[[int, asyncio.Runner], Memory]) -> list[Turn]:
    """The same questions; what is sent is what one of LlamaIndex's memories hands out, after the system prompt."""
    first = system(SYSTEM, id="system")
    known: dict[str, Message] = {}
    rows: list[Turn] = []
    with server.backend() as backend, asyncio.Runner() as runner:
        put, get = make(int(TEXT_SHARE * BUDGET) - text_counter().count(SYSTEM), runner)
        for number in range(turns):
            asked = user(told(number), id=f"u{number}")
            known[asked.id] = asked
            put(llama_message(asked))
            shown = [known[m.additional_kwargs["number"]] for m in get()]
            reply = backend.send(Request([first, *shown], max_tokens=REPLY_TOKENS, temperature=0.0, extra=ANSWER))
            answered = replace(reply.message, id=f"a{number}")
            known[answered.id] = answered
            put(llama_message(answered))
            rows.append(_counted(reply))
    return rows


def _buffer(limit: int, _runner: asyncio.Runner) -> Memory:
    from llama_index.core.memory import ChatMemoryBuffer

    buffer = ChatMemoryBuffer.from_defaults(token_limit=limit, tokenizer_fn=Encoder().encode)
    return buffer.put, buffer.get


def _memory(limit: int, runner: asyncio.Runner, **settings: int) -> Memory:
    from llama_index.core.memory import Memory

    memory = Memory.from_defaults(session_id="log", token_limit=limit, tokenizer_fn=Encoder().encode, **settings)
    return lambda message: runner.run(memory.aput(message)), lambda: runner.run(memory.aget())
