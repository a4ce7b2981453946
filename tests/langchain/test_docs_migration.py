"""The examples for LangChain in docs/migration.md run, the old ones too, and after the change all is remembered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from ctxfold.testing import ModelServer
from langchain_ctx import ChatCtx
from tests.support.pages import examples, page, section

PAGE = section(page("migration.md"), "## From LangChain")
SECTIONS = {name.strip("`"): section(PAGE, f"### {name}") for name in re.findall(r"^### (\S+)$", PAGE, flags=re.M)}
CHATTER = "We also spoke about the weather in the old town for a while, and about the boats. " * 3
ASKED = "What is the code of locker 3?"


def example(name: str, number: int) -> str:
    return examples(SECTIONS[name])[number]


def told(number: int) -> str:
    return f"The code of locker {number} is {number}{number}-{number * 37}. {CHATTER}"


def past(count: int = 30) -> list[BaseMessage]:
    found: list[BaseMessage] = []
    for number in range(count):
        found += [HumanMessage(told(number), id=f"h{number}"), AIMessage("Noted.", id=f"a{number}")]
    return found


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a reader brings: a model that answers from what it is shown, tools, a checkpointer, a conversation."""
    monkeypatch.chdir(tmp_path)
    with (
        ModelServer(model="lookup", context_window=8_000) as server,
        ChatCtx(model="lookup", base_url=server.base_url, api_key="x") as model,
    ):
        yield {"model": model, "tools": [], "saver": InMemorySaver(), "messages": past(3), "server": server}


def run(names: dict[str, Any], name: str, number: int) -> dict[str, Any]:
    exec(compile(example(name, number), "migration.md", "exec", dont_inherit=True), names)
    return names


def thread(name: str = "t") -> Any:
    return {"configurable": {"thread_id": name, "session_id": name}}


def test_every_section_has_its_examples() -> None:
    assert {name: body.count("```python") for name, body in SECTIONS.items()} == {
        "ConversationSummaryBufferMemory": 2,
        "trim_messages": 3,
        "SummarizationMiddleware": 3,
        "ContextEditingMiddleware": 2,
        "langmem": 2,
    }


def test_conversation_summary_buffer_memory(names: dict[str, Any]) -> None:
    with (
        pytest.warns(DeprecationWarning, match="`ConversationChain"),
        pytest.warns(DeprecationWarning, match="BufferMemory"),
    ):
        run(names, "ConversationSummaryBufferMemory", 0)
    old = names["chain"]
    for number in range(40):
        old.invoke({"input": told(number)})
    assert names["memory"].moving_summary_buffer
    run(names, "ConversationSummaryBufferMemory", 1)
    config: Any = {"configurable": {"session_id": "ann"}}
    context = names["sessions"]("ann").context
    assert len(context.messages()) == 1 + len(names["memory"].chat_memory.messages) + 2
    for number in range(40, 110):
        names["chain"].invoke({"input": told(number)}, config)
    assert context.usage().compactions > 0
    assert "5050-1850" in names["chain"].invoke({"input": "What is the code of locker 50?"}, config).text
    names["sessions"].close()


def test_trim_messages(names: dict[str, Any]) -> None:
    run(names, "trim_messages", 0)
    conversation = [*past(), HumanMessage(ASKED)]
    assert "33-111" not in names["chain"].invoke(conversation).text
    run(names, "trim_messages", 1)
    assert "33-111" in names["chain"].invoke(conversation, thread()).text
    assert names["fit"].context("t").usage().compactions > 0
    names["fit"].close()
    run(names, "trim_messages", 2)
    counted = names["token_counter"](names["model"])
    assert 1_500 < counted(names["trimmer"].invoke(conversation)) <= 2_000


@pytest.mark.parametrize("number", [0, 1, 2])
def test_summarization_middleware(names: dict[str, Any], number: int) -> None:
    run(names, "SummarizationMiddleware", 0)
    run(names, "SummarizationMiddleware", number)
    agent = names["agent"]
    agent.update_state(thread(), {"messages": past()})
    state = agent.invoke({"messages": [HumanMessage(ASKED)]}, thread())
    assert "33-111" in state["messages"][-1].text
    assert len(state["messages"]) == (62 if number == 1 else 6)


@pytest.mark.parametrize("number", [0, 1])
def test_context_editing_middleware(names: dict[str, Any], number: int) -> None:
    """Of two tools with large outputs the excluded one stays whole in every request."""
    run(names, "ContextEditingMiddleware", 0)
    run(names, "ContextEditingMiddleware", number)
    state: list[BaseMessage] = []
    for count, name in enumerate(("read_memory", *["browse"] * 11)):
        call = {"name": name, "args": {"page": count}, "id": f"c{count}"}
        output = ToolMessage(f"{name} {count}: " + CHATTER * 5, tool_call_id=f"c{count}", name=name, id=f"t{count}")
        state += [HumanMessage("Look.", id=f"h{count}"), AIMessage("", tool_calls=[call], id=f"a{count}"), output]
        state.append(AIMessage("Seen.", id=f"z{count}"))
    names["agent"].update_state(thread(), {"messages": state})
    for question in (ASKED, "And of locker 4?"):
        names["agent"].invoke({"messages": [HumanMessage(question)]}, thread())
    outputs = [m["content"] for m in names["server"].requests[-1].body["messages"] if m["role"] == "tool"]
    assert [o for o in outputs if o.startswith("read_memory")] == [f"read_memory 0: {CHATTER * 5}"]
    assert len([o for o in outputs if CHATTER * 5 not in o]) >= 1


@pytest.mark.parametrize("number", [0, 1])
def test_langmem(names: dict[str, Any], number: int) -> None:
    run(names, "langmem", number)
    app = names["app"]
    for count in range(30):
        app.invoke({"messages": [HumanMessage(told(count))]}, thread())
    state = app.invoke({"messages": [HumanMessage(ASKED)]}, thread())
    assert len(state["messages"]) == 62
    saved = names["saver"].get_tuple(thread()).checkpoint["channel_values"]
    if number == 0:
        assert "context" in saved
    else:
        assert "33-111" in state["messages"][-1].text
        assert "llm_input_messages" not in saved
