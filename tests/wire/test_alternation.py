"""Step 7, item B15: user and assistant take turns where the service applies a model's own template."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, Template
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike

from ctxfold import (
    AgentContext,
    BackendError,
    MediaPart,
    Message,
    Request,
    TextPart,
    ToolCallPart,
    assistant,
    open_backend,
    system,
    tool_result,
    user,
)
from ctxfold.history.cuts import NOBODY_ASKED, NOT_ANSWERED
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import with_context as langchain_with_context
from langchain_ctx.backend import LangChainBackend
from llamaindex_ctx import with_context as llamaindex_with_context
from llamaindex_ctx.backend import LlamaIndexBackend

ROWS = ["vllm", "sglang", "llamacpp", "ollama"]
CALL = ToolCallPart("c1", "ls", "{}")
# the rules of the published templates, written anew; what they refuse, and what a prompt made by them looks like
GEMMA = """{%- if messages[0].role == 'system' -%}
{%- set loop_messages = messages[1:] -%}{%- set first = messages[0].content + '\n\n' -%}
{%- else -%}{%- set loop_messages = messages -%}{%- set first = '' -%}{%- endif -%}
{%- for m in loop_messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ refuse('Conversation roles must alternate') }}{%- endif -%}
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}
{{ m.content|trim + '<end_of_turn>\n' }}
{%- endfor -%}"""
MISTRAL = """{%- if messages[0].role == 'system' -%}{{ '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}
{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- set ns = namespace(index=0) -%}
{%- for m in loop_messages -%}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) -%}
{%- if (m.role == 'user') != (ns.index % 2 == 0) -%}
{{ refuse('roles must alternate except for tool calls and results') }}{%- endif -%}
{%- set ns.index = ns.index + 1 -%}{%- endif -%}
{%- endfor -%}
{%- for m in loop_messages -%}
{%- if m.role == 'user' -%}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' and m.tool_calls -%}
{{ m.content + '[TOOL_CALLS]' + m.tool_calls|map(attribute='id')|join(',') + '</s>' }}
{%- elif m.role == 'assistant' -%}{{ m.content + '</s>' }}
{%- elif m.role == 'tool' -%}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- else -%}{{ refuse('only user, assistant and tool roles after the system message') }}{%- endif -%}
{%- endfor -%}"""


class RefusedError(Exception):
    """What a template raises."""


def refuse(reason: str) -> str:
    raise RefusedError(reason)


@cache
def compiled(template: str) -> Template:
    return Environment().from_string(template)


def prompt(template: str, rows: Sequence[dict[str, Any]]) -> str:
    return compiled(template).render(messages=rows, refuse=refuse)


def sent(provider: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    with open_backend(provider, "m") as backend:
        rows: list[dict[str, Any]] = backend.request_body(Request(messages), stream=False)["messages"]
        return rows


@st.composite
def conversations(draw: st.DrawFn, tools: bool = True) -> list[Message]:
    """Any legal conversation: neighbours of one role, an assistant that begins, late system messages, tool rounds."""
    found: list[Message] = [system("S", id="s")] * draw(st.integers(0, 1))
    kinds = ["user", "assistant", "system", "summary", *(["round"] if tools else [])]
    for n, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=14))):
        match kind:
            case "user":
                found.append(user(f"u{n}", id=f"m{n}"))
            case "assistant":
                found.append(assistant(f"a{n}", id=f"m{n}", reasoning=draw(st.sampled_from(["", f"r{n}"]))))
            case "system":
                found.append(system(f"s{n}", id=f"m{n}"))
            case "summary":
                found.append(Message(f"m{n}", "user", (TextPart(f"y{n}"),), kind="summary"))
            case _:
                said = draw(st.sampled_from(["", f"c{n}"]))
                found.append(assistant(said, id=f"m{n}", calls=[ToolCallPart(f"k{n}", "ls", "{}")]))
                found.append(tool_result(f"k{n}", f"t{n}", id=f"t{n}"))
    return found


def told(rows: Sequence[dict[str, Any]]) -> str:
    """What a model is told, in order: each change of speaker, and the text."""
    return "".join(f"<{row['role']}>{row['content']}" for row in rows)


@settings(max_examples=200, deadline=None)
@given(provider=st.sampled_from(ROWS), messages=conversations())
def test_mistrals_template_takes_every_conversation(provider: str, messages: list[Message]) -> None:
    """Step 7, item B15: with all that was said in it, in order, and nothing said twice."""
    rows = sent(provider, messages)
    text = prompt(MISTRAL, rows)
    places = [text.index(m.text) for m in messages if m.text and m.role != "system"]
    assert places == sorted(places)
    assert [c["id"] for row in rows for c in row.get("tool_calls", ())] == [
        c.id for m in messages for c in m.tool_calls
    ]
    assert "".join(row.get("reasoning") or row.get("reasoning_content") or "" for row in rows).count("r") == sum(
        bool(m.reasoning) for m in messages
    )


@settings(max_examples=200, deadline=None)
@given(provider=st.sampled_from(ROWS), messages=conversations(tools=False))
def test_gemmas_template_takes_every_conversation_without_tools(provider: str, messages: list[Message]) -> None:
    """Step 7, item B15: Gemma's template knows no tools, and counts each message."""
    text = prompt(GEMMA, sent(provider, [*messages, user("last", id="last")]))
    assert all(m.text in text for m in messages)


@settings(max_examples=150, deadline=None)
@given(provider=st.sampled_from(ROWS), messages=conversations(), at=st.integers(1, 14))
def test_a_longer_conversation_begins_as_the_shorter_one(provider: str, messages: list[Message], at: int) -> None:
    """Step 7, item B15: joining keeps the prefix, in the text that the model sees and in the bytes that breaks are told by."""
    leading = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    shorter = messages[: max(at, leading)]
    assert told(sent(provider, messages)).startswith(told(sent(provider, shorter)))
    with open_backend(provider, "m") as backend:
        whole, part = (backend.canonical_bytes(Request(found)) for found in (messages, shorter))
    assert whole.startswith(part)


def test_what_is_joined_and_what_is_put_in_between() -> None:
    """Step 7, item B15: each of the cases by itself."""
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
    shown = Message("i", "user", (TextPart("see"), MediaPart("image", json.dumps(image))), name="ann")
    cases: list[tuple[list[Message], list[tuple[str, Any]]]] = [
        ([user("a", id="1"), user("b", id="2"), user("", id="3")], [("user", "a\n\nb")]),
        ([assistant("hi", id="1"), user("b", id="2")], [("user", NOBODY_ASKED), ("assistant", "hi"), ("user", "b")]),
        (
            [user("q", id="1"), assistant("", id="2", calls=[CALL]), tool_result("c1", "r", id="3"), user("w", id="4")],
            [("user", "q"), ("assistant", ""), ("tool", "r"), ("assistant", NOT_ANSWERED), ("user", "w")],
        ),
        ([user("q", id="1"), assistant("x", id="2"), assistant("y", id="3")], [("user", "q"), ("assistant", "x\n\ny")]),
        (
            [user("q", id="1"), shown],
            [("user", [*({"type": "text", "text": t} for t in ("q", "\n\n", "see")), image])],
        ),
    ]
    for messages, wanted in cases:
        for provider in ROWS:
            rows = sent(provider, messages)
            assert [(row["role"], row["content"]) for row in rows] == wanted
            assert all("name" not in row for row in rows)
    assert len(sent("generic", cases[0][0])) == 3, "a service that nobody knows gets what was said"
    alone = {"name": "own", "base_url": "http://localhost:9", "request": {"alternating_roles": True}}
    with open_backend("own", "m", profile=alone) as backend:
        rows = backend.request_body(
            Request([system("s", id="s"), system("t", id="t"), user("q", id="1")]), stream=False
        )
        assert [row["content"] for row in rows["messages"]] == ["s\n\nt", "q"]
        assert backend.scratch_role == "user"


def test_the_model_server_refuses_what_such_templates_refuse() -> None:
    """Step 7, item B15: strict="alternating", so that a test sees it."""
    wrong: list[list[Message]] = [
        [user("a", id="1"), user("b", id="2")],
        [assistant("a", id="1"), user("b", id="2")],
        [user("a", id="1"), assistant("b", id="2"), assistant("c", id="3")],
        [user("a", id="1"), system("b", id="2")],
        [user("q", id="1"), assistant("", id="2", calls=[CALL]), tool_result("c1", "r", id="3"), user("w", id="4")],
    ]
    right = [
        [system("s", id="s"), user("a", id="1"), assistant("b", id="2"), user("c", id="3")],
        [user("q", id="1"), assistant("", id="2", calls=[CALL]), tool_result("c1", "r", id="3")],
    ]
    with ModelServer(strict="alternating") as server, open_backend("generic", "m", base_url=server.base_url) as backend:
        for messages in wrong:
            with pytest.raises(BackendError, match="must alternate"):
                backend.send(Request(messages))
        for messages in right:
            backend.send(Request(messages))
        for messages in wrong:
            for provider in ROWS:
                with open_backend(provider, "m", base_url=server.base_url) as joined:
                    joined.send(Request(messages))


def answer(body: Any) -> Scripted | None:
    """Calls a tool where the newest user message asks for it."""
    last = body["messages"][-1]
    if last["role"] == "user" and "USE A TOOL" in str(last["content"]):
        return Scripted(tool_calls=(ScriptedCall("look", '{"q": "x"}'),))
    return None


@pytest.mark.parametrize(("provider", "seed"), [*zip(ROWS, (1, 2, 3, 5), strict=True)])
def test_no_session_asks_out_of_turn(provider: str, seed: int) -> None:
    """Step 7, item B15: 106 of 159 requests to vllm were `user, user` from the first summary or recalled passage on."""
    chance = random.Random(seed)
    with (
        ModelServer(strict="alternating", script=answer, context_window=1400) as server,
        open_backend(provider, "lookup", base_url=server.base_url) as backend,
        AgentContext(
            backend, session_id="s", system="Be brief.", store="memory://", context_window=1400, references=True
        ) as context,
    ):
        if seed % 2:
            context.add(assistant("Welcome! What may I do?", id="hello"))
        for n in range(36):
            fact = f"Locker {n} belongs to Ann number {n}. " + "It is as plain as a day in May. " * chance.randint(
                2, 12
            )
            scratch = f"It is {n} o'clock." if chance.random() < 0.4 else None
            if chance.random() < 0.2:
                context.add(user(f"Also note: {fact}", id=f"extra{n}"))
            if chance.random() < 0.3:
                reply = context.send(f"{fact} USE A TOOL", scratch=scratch)
                results = [tool_result(c.id, f"Result {n}. {fact}", id=f"r{n}") for c in reply.message.tool_calls]
                context.send(results, scratch=scratch)
            else:
                context.send(f"{fact} Who has locker {chance.randint(0, n)}?", scratch=scratch)
        assert context.usage().compactions > 0
        assert len(server.requests) > 36
        for request in server.requests:  # a summary that is refused would be written in another way
            prompt(MISTRAL, request.body["messages"])


def test_foreign_models_take_turns_where_the_setting_says_so() -> None:
    """Step 7, item B15: a ChatOpenAI or an OpenAILike behind such a server, through every face that wraps one."""
    fact = "Locker {n} belongs to Ann number {n}. " + "It is as plain as a day in May. " * 8

    def chat(url: str) -> ChatOpenAI:
        return ChatOpenAI(model="lookup", base_url=url, api_key="x", max_retries=0)  # type: ignore[arg-type]

    def llm(url: str) -> OpenAILike:
        return OpenAILike(
            model="lookup", api_base=url, api_key="x", is_chat_model=True, context_window=1400, max_retries=0
        )

    rules: dict[str, Any] = {"context_window": 1400, "alternating_roles": True}
    with ModelServer(strict="alternating", context_window=1400) as server:
        url = server.base_url
        wrapped = langchain_with_context(chat(url), session_id="a", store="memory://", **rules)
        talking = llamaindex_with_context(llm(url), session_id="b", store="memory://", **rules)
        contexts = [
            AgentContext(made, session_id=f"c{k}", system="Be brief.", store="memory://", **rules)
            for k, made in enumerate((LangChainBackend(chat(url)), LlamaIndexBackend(llm(url))))
        ]
        for n in range(14):
            said = fact.format(n=n) + f"Who has locker {n // 2}?"
            wrapped.invoke(said)
            talking.complete(said)
            for context in contexts:
                context.send(said, scratch="It is noon.")
        for context in contexts:
            assert context.usage().compactions > 0
            context.close()
        wrapped.close()
        talking.close()
