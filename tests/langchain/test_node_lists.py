"""`ContextNode` shows what the list says now: edits, removals, other branches, and a list that was rewritten."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from ctxfold import MemoryStore, user
from ctxfold.errors import EmptyMessagesError
from langchain_ctx import ContextNode

T: Any = {"configurable": {"thread_id": "t"}}
HOW = pytest.mark.parametrize("how", ["invoke", "ainvoke"])


async def shown(fit: ContextNode, messages: Any, how: str = "invoke") -> list[str]:
    found = fit.invoke(messages, T) if how == "invoke" else await fit.ainvoke(messages, T)
    return [m.text for m in found]


def talk(count: int) -> list[BaseMessage]:
    turns = [(HumanMessage(f"Q{n}", id=f"q{n}"), AIMessage(f"A{n}", id=f"a{n}")) for n in range(count)]
    return [message for turn in turns for message in turn][:-1]


@HOW
@pytest.mark.parametrize("restart", [False, True])
async def test_edits_and_removals_are_followed(restart: bool, how: str, store_url: str) -> None:
    """Also those of the newest question, which was asked and whose answer the node has not seen; also in a new process."""
    fit = ContextNode(context_window=8_000, store=store_url)

    async def ask(messages: Any) -> list[str]:
        nonlocal fit
        if restart:
            await fit.aclose()
            fit = ContextNode(context_window=8_000, store=store_url)
        return await shown(fit, messages, how)

    said = talk(4)
    assert await ask(said) == ["Q0", "A0", "Q1", "A1", "Q2", "A2", "Q3"]
    said[1] = AIMessage("BETTER", id="a0")
    said[2] = HumanMessage("REALLY", id="q1")
    assert await ask(said) == ["Q0", "BETTER", "REALLY", "A1", "Q2", "A2", "Q3"]
    said[6] = HumanMessage("NEW Q3", id="q3")
    assert await ask(said) == ["Q0", "BETTER", "REALLY", "A1", "Q2", "A2", "NEW Q3"]
    said = [*said[:4], *said[5:], AIMessage("A3", id="a3"), HumanMessage("Q4", id="q4")]
    assert await ask(said) == ["Q0", "BETTER", "REALLY", "A1", "A2", "NEW Q3", "A3", "Q4"]
    said = said[1:]
    assert await ask(said) == ["BETTER", "REALLY", "A1", "A2", "NEW Q3", "A3", "Q4"]
    assert fit.context("t").handle.store.sessions("default") == ("t",)
    await fit.aclose()


@HOW
async def test_a_call_whose_result_was_lost_at_a_handoff_has_a_note(how: str) -> None:
    """In each later list too, where the session knows the round and its answer is new."""
    fit = ContextNode(context_window=8_000)
    calls: Any = [{"name": name, "args": {}, "id": name} for name in ("look", "to_desk")]
    said = [*talk(1), AIMessage("", id="c0", tool_calls=calls), ToolMessage("Handed over.", tool_call_id="to_desk")]
    sent = ["Q0", "", "Handed over.", "(no result: the conversation went on before this call returned)"]
    for _ in range(2):
        assert await shown(fit, said, how) == sent
    said += [AIMessage("A0", id="a0"), HumanMessage("Q1", id="q1")]
    assert await shown(fit, said, how) == [*sent, "A0", "Q1"]
    await fit.aclose()


@HOW
async def test_a_message_that_comes_back_has_its_old_place(how: str) -> None:
    async with ContextNode(context_window=8_000) as fit:
        whole = talk(4)
        await shown(fit, whole, how)
        less = [m for m in whole if m.id not in ("q1", "a1")]
        assert await shown(fit, less, how) == ["Q0", "A0", "Q2", "A2", "Q3"]
        assert await shown(fit, whole, how) == ["Q0", "A0", "Q1", "A1", "Q2", "A2", "Q3"]
        assert await shown(fit, less, how) == ["Q0", "A0", "Q2", "A2", "Q3"]


@HOW
async def test_a_list_that_was_rewritten_begins_anew(how: str) -> None:
    """The session is a branch then; `context` finds it by the name that was asked for."""
    async with ContextNode(context_window=8_000) as fit:
        await shown(fit, talk(3), how)
        other: list[BaseMessage] = [HumanMessage("What we said, in short.", id="s"), AIMessage("Right.", id="r")]
        assert await shown(fit, [*other, HumanMessage("On.", id="o")], how) == [
            "What we said, in short.",
            "Right.",
            "On.",
        ]
        assert [m.text for m in fit.context("t").messages()] == ["What we said, in short.", "Right.", "On."]
        more = [*other, HumanMessage("On.", id="o"), AIMessage("Yes.", id="y"), HumanMessage("And?", id="n")]
        assert (await shown(fit, more, how))[-3:] == ["On.", "Yes.", "And?"]
        assert [m.text for m in fit.context("t").messages()][-3:] == ["On.", "Yes.", "And?"]
        names = fit.context("t").handle.store.sessions("default")
        assert [n.partition("~")[0] for n in names] == ["t", "t"]


async def test_without_ids_a_list_is_known_by_what_it_says() -> None:
    """An edit makes another message of it, and of all that follow."""
    async with ContextNode(context_window=8_000) as fit:
        said = [type(m)(m.content) for m in talk(3)]
        await shown(fit, said)
        said[2] = HumanMessage("Q1 again")
        assert await shown(fit, said) == ["Q0", "A0", "Q1 again", "A1", "Q2"]
        said[0] = HumanMessage("Q0 again")
        assert await shown(fit, said) == ["Q0 again", "A0", "Q1 again", "A1", "Q2"]


async def test_a_note_stays() -> None:
    """One for the model only is known for the session's own in a new process, too."""
    store = MemoryStore()
    fit = ContextNode(context_window=8_000, store=store)
    await shown(fit, talk(2))
    context = fit.context("t")
    await context.aadd(user("A note."))
    await context.aadd(user("STANDING"), visibility="model")
    said = talk(4)
    said[0] = HumanMessage("EDITED", id="q0")
    found = await shown(fit, said)
    assert found == ["EDITED", "A0", "A note.", "STANDING", "Q1", "A1", "Q2", "A2", "Q3"]
    fit = ContextNode(context_window=8_000, store=store)
    assert await shown(fit, said) == [text for text in found if text != "A note."]


async def test_an_excerpt_is_no_edit() -> None:
    """A tool's output that is too large is shown in part; the list has it whole, in a new process too."""
    store = MemoryStore()
    call = {"name": "f", "args": {}, "id": "c1"}
    output = "\n".join(f"Line {n} of a long story." for n in range(3_000))
    said = [HumanMessage("Q", id="q"), AIMessage("", id="a", tool_calls=[call])]
    said += [ToolMessage(output, id="t", tool_call_id="c1"), AIMessage("A", id="b"), HumanMessage("Q2", id="q2")]
    first: list[str] = []
    for _ in range(3):
        fit = ContextNode(context_window=8_000, store=store)
        found = await shown(fit, said)
        first = first or found
        assert found == first
        assert len(found[2]) < len(output)
    assert store.sessions("default") == ("t",)


async def test_an_empty_list_changes_nothing() -> None:
    async with ContextNode(context_window=8_000) as fit:
        await shown(fit, talk(2))
        with pytest.raises(EmptyMessagesError):
            await shown(fit, [])
        assert await shown(fit, talk(2)) == ["Q0", "A0", "Q1"]


def test_in_a_graph() -> None:
    """As the middleware does: a message that was taken out of the state, or edited there, is not sent any more."""
    asked: list[list[str]] = []
    with ContextNode(context_window=8_000) as fit:

        def answer(state: MessagesState) -> Any:
            asked.append([m.text for m in fit.invoke(state["messages"])])
            return {"messages": [AIMessage(f"A{len(asked)}")]}

        graph: Any = StateGraph(MessagesState).add_node("ask", answer).add_edge(START, "ask")
        app = graph.compile(checkpointer=InMemorySaver())
        for number in range(3):
            app.invoke({"messages": [HumanMessage(f"Q{number}", id=f"q{number}")]}, T)
        app.update_state(T, {"messages": [RemoveMessage("q1"), HumanMessage("EDITED", id="q2")]})
        app.invoke({"messages": [HumanMessage("Q3", id="q3")]}, T)
        assert asked[-1] == ["Q0", "A1", "A2", "EDITED", "A3", "Q3"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "again", "tools", "edit", "remove", "back", "restart"]), st.integers(0, 99)),
    max_size=14,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_what_fits_is_shown_as_the_list_has_it(steps: list[tuple[str, int]]) -> None:
    """However the list comes to be what it is, and in whichever process."""
    store = MemoryStore()
    fit = ContextNode(context_window=100_000, store=store)
    said: list[BaseMessage] = []
    for number, (step, place) in enumerate([*steps, ("ask", 0)]):
        if step == "restart":
            fit = ContextNode(context_window=100_000, store=store)
        elif step == "ask":
            said = [*said, HumanMessage(f"Q{number}", id=f"q{number}")]
        elif step == "tools" and said and said[-1].type == "human":
            call = {"name": "f", "args": {"n": number}, "id": f"c{number}"}
            said = [*said, AIMessage("Looking.", id=f"l{number}", tool_calls=[call])]
            said = [*said, ToolMessage(f"R{number}", id=f"r{number}", tool_call_id=f"c{number}")]
        elif step == "edit" and said:
            at = place % len(said)
            if said[at].type == "human":
                said = [*said[:at], HumanMessage(f"E{number}", id=said[at].id), *said[at + 1 :]]
        elif step == "remove" and said:
            gone = [m for m in said if m.type == "human"]
            said = [m for m in said if m is not gone[place % len(gone)]] if len(gone) > 1 else said
        elif step == "back" and said:
            ends = [i for i, m in enumerate(said) if m.type == "human"]
            said = said[: ends[place % len(ends)] + 1]
        if step == "again" or not said or said[-1].type not in ("human", "tool"):
            continue
        found = fit.invoke(said, T)
        assert [(m.type, m.text) for m in found] == [(m.type, m.text) for m in said]
        if step == "ask" and place % 2:
            said = [*said, AIMessage(f"A{number}", id=f"a{number}")]


@pytest.mark.parametrize("how", ["erase", "aerase"])
async def test_a_thread_is_erased_with_all_that_was_made_of_it(how: str, store_url: str) -> None:
    async with ContextNode(context_window=8_000, store=store_url) as fit:
        for number in range(3):  # rewritten each time
            await shown(fit, [HumanMessage(f"The word is albatross {number}.", id=f"w{number}")])
        inner: Any = StateGraph(MessagesState).add_node("fit", lambda s: {"messages": fit.invoke(s["messages"])[:0]})
        placed: Any = (
            StateGraph(MessagesState).add_node("ag", inner.add_edge(START, "fit").compile()).add_edge(START, "ag")
        )
        placed.compile(checkpointer=InMemorySaver()).invoke({"messages": [HumanMessage("albatross", id="q")]}, T)
        fit.invoke([HumanMessage("another thread's", id="x")], {"configurable": {"thread_id": "t2"}})
        store = fit.context("t").handle.store
        names = [n for n in store.sessions("default") if n != "t2"]
        assert [len(n) for n in names if "|" not in n] == [1, 10, 10]
        assert "t|ag|q" in names
        gone = fit.erase("t") if how == "erase" else await fit.aerase("t")
        assert sorted(gone) == sorted(names)
        assert store.sessions("default") == ("t2",)
        assert await shown(fit, talk(2)) == ["Q0", "A0", "Q1"]
