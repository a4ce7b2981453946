"""Plays the bundled conversation through both faces, without key or network, or against a real endpoint."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from ctxfold import AgentContext, CtxError
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import text_counter
from examples.demo.application import Application, Settings, Tool
from examples.demo.examine import ask_memory, ask_trimmed
from examples.demo.report import Run, print_event, print_start, print_table
from examples.demo.story import Question, Story, Turn, load_story, playing

__all__ = ["main"]

WINDOW_SHARE = 10


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console()
    story = load_story()
    folder = Path(options.store_dir or tempfile.mkdtemp(prefix="ctxfold-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    window = options.context_window or conversation_tokens(story) // WINDOW_SHARE
    with _server(options, story, window) as server:
        settings = Settings(
            provider=options.provider,
            model=options.model,
            base_url=server.base_url if server else options.base_url,
            api_key=os.environ.get(options.api_key_env, "") if options.api_key_env else "not-needed",
            context_window=window,
            store=f"sqlite:///{folder / 'session.db'}",
            session=f"exhibition-{int(time.time())}",
        )
        try:
            run = play(settings, story, console, turns=options.turns)
        except CtxError as error:
            console.print(f"[red]{type(error).__name__}[/]: {error}", highlight=False)
            return 1
    print_table(console, run)
    return 0


def play(settings: Settings, story: Story, console: Console, *, turns: int | None = None) -> Run:
    """Plays the conversation through LangChain, then asks the questions through LlamaIndex."""
    started = time.perf_counter()
    application = Application.make(settings, story.system, story.tools)
    context = application.model.context()
    tokens, requests, unmanaged = 0, 0, 0
    played = story.turns[:turns]
    print_start(console, len(played), settings.context_window)
    with Progress(console=console, transient=True) as progress:
        unsubscribe = context.subscribe(lambda event: print_event(progress.console, event))
        task = progress.add_task("conversation", total=len(played))
        for index, turn in enumerate(played):
            before = len(application.messages)
            application.turn(turn.user, _tool(turn))
            if index in story.pins:
                context.pin(_newest_user(context))
            for message in application.messages[before:]:
                if message.type == "ai":
                    requests += 1
                    unmanaged += tokens
                tokens += application.model.get_num_tokens_from_messages([message])
            progress.advance(task)
        unsubscribe()
        usage = context.usage()
        asked = [q for q in story.questions if q.turn < len(played)]
        visible = "\n".join(m.text for m in context.view().messages if m.kind == "message")
        task = progress.add_task("questions", total=len(asked))

        def compacted(question: Question) -> bool:
            return not question.pinned and not all(text in visible for text in question.expect)

        managed = ask_memory(settings, asked, compacted, lambda: progress.advance(task))
        trimmed = ask_trimmed(settings, application.messages, story.system, asked, compacted)
    application.model.close()
    return Run(
        turns=len(played),
        requests=requests,
        seconds=time.perf_counter() - started,
        window=settings.context_window,
        conversation_tokens=tokens,
        unmanaged_tokens=unmanaged,
        reasoning_characters=application.streamed.reasoning,
        usage=usage,
        managed=managed,
        trimmed=trimmed,
        store=settings.store,
        session=settings.session,
    )


def conversation_tokens(story: Story) -> int:
    """Size of the conversation with everything that travels: text, reasoning, tool calls and outputs."""
    counter = text_counter("gpt-4o", allow_download=False)
    pieces = [p for turn in story.turns for p in (turn.user, turn.reasoning or "", turn.answer)]
    for step in (step for turn in story.turns for step in turn.rounds):
        pieces += [
            step.reasoning or "",
            *step.results,
            *(json.dumps(c.arguments, ensure_ascii=False) for c in step.calls),
        ]
    return sum(map(counter.count, pieces))


def _tool(turn: Turn) -> Tool:
    outputs = {call.id: result for step in turn.rounds for call, result in zip(step.calls, step.results, strict=True)}
    by_name = {call.name: result for step in turn.rounds for call, result in zip(step.calls, step.results, strict=True)}
    return lambda call_id, name: outputs.get(call_id) or by_name.get(name) or "No record found."


def _newest_user(context: AgentContext) -> str:
    return next(e.id for e in reversed(context.view().live) if e.message.role == "user" and e.message.kind == "message")


def _server(options: argparse.Namespace, story: Story, window: int) -> AbstractContextManager[ModelServer | None]:
    if options.base_url:
        return nullcontext()
    return ModelServer(script=playing(story), context_window=window, strict="openai")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--base-url", help="a real OpenAI-compatible endpoint instead of the built-in loopback server")
    parser.add_argument("--model", default="lookup")
    parser.add_argument(
        "--provider", default="generic", help="the provider's row: deepseek, openai, ollama, llamacpp, ..."
    )
    parser.add_argument("--api-key-env", help="name of the environment variable that holds the key")
    parser.add_argument("--context-window", type=int, help="tokens; default: a tenth of the conversation")
    parser.add_argument("--turns", type=int, help="only the first N turns")
    parser.add_argument("--store-dir", help="folder for the session file; default: a new temporary one")
    return parser
