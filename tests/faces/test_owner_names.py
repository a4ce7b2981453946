"""Step 7, item A2: an empty owner or session is a mistake at every entry point, and never somebody else's.

Only None stands for what an object was made with. The last tests read the signatures of all public names, so that an entry
point that is added later has to be added here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import ConfigurableFieldSpec, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import MockLLM
from typer.testing import CliRunner

import ctxfold
import langchain_ctx
import llamaindex_ctx
from ctxfold import AgentContext, ConfigError, MemoryStore, ScriptedBackend, SqlStore, assistant, user
from ctxfold.cli.app import app
from ctxfold.connect import encrypted
from ctxfold.history.memory_items import MemoryItem
from ctxfold.history.records import SessionKey
from ctxfold.session.context import aload_snapshot, load_snapshot
from ctxfold.tokens.text import RatioCounter
from langchain_ctx import ChatCtx, ContextMiddleware, ContextNode, CtxChatMessageHistory
from langchain_ctx.history import HistoryFactory
from langchain_ctx.wrapper import ContextChatModel
from llamaindex_ctx import CtxChatStore, CtxMemory, CtxMemoryBlock
from llamaindex_ctx.chat_store import CtxAsyncChatStore
from llamaindex_ctx.wrapper import ContextLLM
from tests.support.public_names import public_names

WINDOW = 8_000
OWNERS = ("default", "ann")
NAMES: tuple[object, ...] = ("", False, [], ["x"], b"t", 1.5, ("t",))  # what names neither an owner nor a session
NUMBERS: tuple[object, ...] = (0, 7)  # these name no owner; LangGraph's threads may be called so


@dataclass(frozen=True)
class World:
    """A store that holds session "t" of two owners, and the folder for snapshots."""

    store: MemoryStore
    context: AgentContext
    folder: Path

    def stored(self) -> dict[str, dict[str, int]]:
        """Where the log of every session ends."""
        found: dict[str, dict[str, int]] = {}
        for owner in (*OWNERS, "", "0", "7", "['x']", "[]", "False", "1.5", "None"):
            names = self.store.sessions(owner)
            heads = ((name, self.store.head(SessionKey(owner, name))) for name in names)
            found[owner] = {name: head.seq for name, head in heads if head is not None}
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with MemoryStore() as store, AgentContext(**settings(store), session_id="t") as context:
        for owner in OWNERS:
            context.at("t", owner=owner).add([user(f"{owner}'s locker is 47", id="u"), assistant("noted", id="a")])
        yield World(store, context, tmp_path)


def settings(store: MemoryStore) -> dict[str, Any]:
    return {"backend": ScriptedBackend(["ok"] * 9), "store": store, "context_window": WINDOW, "counter": RatioCounter()}


def done(result: object) -> object:
    """The result of a call, of an async one too; a stream is read to its end."""
    if isinstance(result, AsyncIterator):
        return asyncio.run(_read(result))
    if inspect.isawaitable(result):
        return asyncio.run(_awaited(result))
    return list(result) if isinstance(result, Iterator) else result


async def _read(stream: AsyncIterator[object]) -> list[object]:
    return [one async for one in stream]


async def _awaited(result: Awaitable[object]) -> object:
    return await result


# the objects of the faces, over the world's store


def chat(w: World, **fields: Any) -> ChatCtx:
    backend = ScriptedBackend(["ok"] * 9)
    return ChatCtx(model="m", backend=backend, **{"store": w.store, "context_window": WINDOW, **fields})


def fake() -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage("ok")] * 9))


def configurable(w: World, **given: Any) -> Any:
    model: Any = init_chat_model(configurable_fields=("model", "model_provider"))
    return langchain_ctx.with_context(model, store=w.store, context_window=WINDOW, **given)


def wrapped(w: World, **given: Any) -> ContextChatModel:
    return langchain_ctx.with_context(fake(), store=w.store, context_window=WINDOW, **given)


def middleware(w: World, **given: Any) -> ContextMiddleware:
    return ContextMiddleware(context_window=WINDOW, store=w.store, history_tools=False, **given)


def agent(w: World, **given: Any) -> Any:
    return create_agent(fake(), [], middleware=[middleware(w, **given)])


def node(w: World, **given: Any) -> ContextNode:
    return ContextNode(context_window=WINDOW, store=w.store, **given)


def factory(w: World) -> HistoryFactory:
    return CtxChatMessageHistory.factory(store=w.store, context_window=WINDOW)


def chain(w: World) -> Any:
    fields = [ConfigurableFieldSpec(id=name, annotation=str, is_shared=True) for name in ("session_id", "owner")]
    answers: Any = RunnableLambda(lambda _: AIMessage("ok"))
    return RunnableWithMessageHistory(answers, factory(w), history_factory_config=fields)


def llm(w: World, **given: Any) -> ContextLLM:
    return llamaindex_ctx.with_context(MockLLM(max_tokens=2), store=w.store, context_window=WINDOW, **given)


def memory(w: World, session_id: Any = "t", **given: Any) -> CtxMemory:
    return CtxMemory.from_defaults(session_id, store=w.store, context_window=WINDOW, **given)


def block(w: World) -> CtxMemoryBlock:
    return CtxMemoryBlock(memory(w))


def config(**names: object) -> Any:
    return {"configurable": names}


HI = [HumanMessage("hi", id="h")]
LIST = {"messages": HI}
MESSAGE = ChatMessage(role="user", content="hi")

Entry = Callable[[World, Any], object]

SERVICE: dict[str, dict[str, Any]] = {
    name: {} for name, _ in inspect.getmembers(ctxfold.ContextService, inspect.isfunction) if not name.startswith("_")
}
for prefix in ("", "a"):
    SERVICE[f"{prefix}trim_messages_to_budget"] = {"budget_tokens": 1}
    SERVICE[f"{prefix}inject"] = {"kind": "documents", "items": ["x"]}
    SERVICE[f"{prefix}prepare_context"] = {"question": "why?"}
NO_SESSION = {"disambiguate_skills", "adisambiguate_skills"}  # these look at no session


def service(name: str, parameter: str) -> Entry:
    arguments = SERVICE[name]
    return lambda w, value: getattr(w.context.service, name)(**arguments, **{parameter: value})


def saved(w: World) -> Path:
    path = w.folder / "t.json"
    w.context.files.save_snapshot(path)
    return path


def snapshot(**given: Any) -> Entry:
    """A snapshot that is loaded into another store: there is no session "t" yet."""

    def load(w: World, value: Any) -> object:
        names = {name: value if told is None else told for name, told in given.items()}
        return load_snapshot(saved(w), store=MemoryStore(), **names)

    return load


STORE_KINDS: dict[str, Callable[[], Any]] = {
    "MemoryStore": MemoryStore,
    "SqlStore": lambda: SqlStore("sqlite://"),
    "EncryptedStore": lambda: encrypted("sqlite://", keys=lambda name: (name or "main", b"m" * 32)),
}


def store_entry(kind: str, name: str, *arguments: Any, **keywords: Any) -> Entry:
    def call(w: World, owner: Any) -> object:
        with STORE_KINDS[kind]() as store:
            return done(getattr(store, name)(owner, *arguments, **keywords))

    return call


ITEM = MemoryItem(id="m1", kind="fact", text="The locker is 47.")
STORES = {
    f"ctxfold.{kind}.{prefix}{name}": store_entry(kind, f"{prefix}{name}", *arguments)
    for kind in STORE_KINDS
    for prefix in ("", "a")
    for name, *arguments in (("sessions",), ("erase_owner",), ("remember", [ITEM]), ("memories",), ("forget", ["m1"]))
} | {
    f"ctxfold.{kind}.{name}": store_entry(kind, name, ["word"], newest=1)
    for kind in ("SqlStore", "EncryptedStore")
    for name in ("owner_postings", "aowner_postings")
}

# by the name of the public callable; what stands in brackets behind it tells ways of calling apart

OWNED: dict[str, Entry] = {
    "ctxfold.AgentContext": lambda w, owner: AgentContext(**settings(w.store), session_id="t", owner=owner),
    "ctxfold.AgentContext.at": lambda w, owner: w.context.at("t", owner=owner),
    "ctxfold.AgentContext.at [erase]": lambda w, owner: w.context.at("t", owner=owner).erasure.erase_owner(),
    "ctxfold.load_snapshot [owner]": snapshot(owner=None),
    "ctxfold.aload_snapshot [owner]": lambda w, name: aload_snapshot(saved(w), owner=name, store=MemoryStore()),
    **{f"ctxfold.ContextService.{name}": service(name, "owner") for name in SERVICE if name not in NO_SESSION},
    "langchain_ctx.ChatCtx": lambda w, owner: chat(w, session="t", owner=owner),
    "langchain_ctx.ChatCtx [copied]": lambda w, owner: (
        chat(w, session="t").model_copy(update={"owner": owner}).invoke("hi")
    ),
    "langchain_ctx.ChatCtx.context": lambda w, owner: chat(w, session="t").context(owner=owner),
    "langchain_ctx.ChatCtx.erase": lambda w, owner: chat(w).erase("t", owner=owner),
    "langchain_ctx.ChatCtx.aerase": lambda w, owner: chat(w).aerase("t", owner=owner),
    "langchain_ctx.with_context": lambda w, owner: wrapped(w, session_id="t", owner=owner),
    "langchain_ctx.ConfigurableContextModel": lambda w, owner: configurable(w, session_id="t", owner=owner),
    "langchain_ctx.ConfigurableContextModel.context": lambda w, owner: configurable(w, session_id="t").context(
        owner=owner
    ),
    "langchain_ctx.ConfigurableContextModel.erase": lambda w, owner: configurable(w).erase("t", owner=owner),
    "langchain_ctx.ConfigurableContextModel.aerase": lambda w, owner: configurable(w).aerase("t", owner=owner),
    "langchain_ctx.ContextChatModel": lambda w, owner: ContextChatModel(inner=fake(), owner=owner),
    "langchain_ctx.ContextChatModel.context": lambda w, owner: wrapped(w, session_id="t").context(owner=owner),
    "langchain_ctx.ContextChatModel.erase": lambda w, owner: wrapped(w).erase("t", owner=owner),
    "langchain_ctx.ContextChatModel.aerase": lambda w, owner: wrapped(w).aerase("t", owner=owner),
    "langchain_ctx.ContextMiddleware": lambda w, owner: middleware(w, owner=owner),
    "langchain_ctx.ContextMiddleware.context": lambda w, owner: middleware(w).context("t", owner=owner),
    "langchain_ctx.ContextMiddleware.erase": lambda w, owner: middleware(w).erase("t", owner=owner),
    "langchain_ctx.ContextMiddleware.aerase": lambda w, owner: middleware(w).aerase("t", owner=owner),
    "langchain_ctx.ContextNode": lambda w, owner: node(w, owner=owner),
    "langchain_ctx.ContextNode.context": lambda w, owner: node(w, session_id="t").context(owner=owner),
    "langchain_ctx.ContextNode.erase": lambda w, owner: node(w).erase("t", owner=owner),
    "langchain_ctx.ContextNode.aerase": lambda w, owner: node(w).aerase("t", owner=owner),
    "langchain_ctx.CtxChatMessageHistory": lambda w, owner: CtxChatMessageHistory("t", w.store, WINDOW, owner=owner),
    "langchain_ctx.HistoryFactory.__call__": lambda w, owner: factory(w)("t", owner),
    "llamaindex_ctx.with_context": lambda w, owner: llm(w, session_id="t", owner=owner),
    "llamaindex_ctx.ContextLLM": lambda w, owner: ContextLLM(inner=MockLLM(), window=WINDOW, owner=owner),
    "llamaindex_ctx.ContextLLM.at": lambda w, owner: llm(w).at("t", owner=owner),
    "llamaindex_ctx.ContextLLM.context": lambda w, owner: llm(w).context("t", owner=owner),
    "llamaindex_ctx.CtxMemory.from_defaults": lambda w, owner: memory(w, owner=owner),
    "llamaindex_ctx.CtxMemory.at": lambda w, owner: memory(w).at("t", owner=owner),
    "llamaindex_ctx.CtxMemory.from_dict": lambda w, owner: CtxMemory.from_dict(
        {**memory(w).to_dict(), "owner": owner}, store=w.store
    ),
    "llamaindex_ctx.CtxChatStore": lambda w, owner: CtxChatStore(w.store, owner=owner),
    "llamaindex_ctx.CtxChatStore.from_dict": lambda w, owner: CtxChatStore.from_dict(
        {**CtxChatStore(w.store).to_dict(), "owner": owner}
    ),
    "llamaindex_ctx.CtxAsyncChatStore": lambda w, owner: CtxAsyncChatStore(w.store, owner=owner),
}

KEYED: dict[str, Callable[[CtxChatStore, Any], object]] = {
    "add_message": lambda s, key: s.add_message(key, MESSAGE),
    "add_message [at]": lambda s, key: s.add_message(key, MESSAGE, 0),
    "add_messages": lambda s, key: s.add_messages(key, [MESSAGE]),
    "adelete_last_message": lambda s, key: s.adelete_last_message(key),
    "adelete_message": lambda s, key: s.adelete_message(key, 0),
    "adelete_messages": lambda s, key: s.adelete_messages(key),
    "aget_messages": lambda s, key: s.aget_messages(key),
    "aset_messages": lambda s, key: s.aset_messages(key, [MESSAGE]),
    "async_add_message": lambda s, key: s.async_add_message(key, MESSAGE),
    "context": lambda s, key: s.context(key),
    "delete_last_message": lambda s, key: s.delete_last_message(key),
    "delete_message": lambda s, key: s.delete_message(key, 0),
    "delete_messages": lambda s, key: s.delete_messages(key),
    "get_messages": lambda s, key: s.get_messages(key),
    "move_oldest": lambda s, key: s.move_oldest(key, 1),
    "set_messages": lambda s, key: s.set_messages(key, [MESSAGE]),
}
AKEYED: dict[str, Callable[[CtxAsyncChatStore, Any], object]] = {
    "add_message": lambda s, key: s.add_message(key, MESSAGE),
    "add_messages": lambda s, key: s.add_messages(key, [MESSAGE]),
    "archive_oldest_messages": lambda s, key: s.archive_oldest_messages(key, 1),
    "count_messages": lambda s, key: s.count_messages(key),
    "delete_message": lambda s, key: s.delete_message(key, 0),
    "delete_messages": lambda s, key: s.delete_messages(key),
    "delete_oldest_messages": lambda s, key: s.delete_oldest_messages(key, 1),
    "get_messages": lambda s, key: s.get_messages(key),
    "set_messages": lambda s, key: s.set_messages(key, [MESSAGE]),
}

NAMED: dict[str, Entry] = {
    "ctxfold.AgentContext": lambda w, name: AgentContext(**settings(w.store), session_id=name),
    "ctxfold.AgentContext.at": lambda w, name: w.context.at(name),
    "ctxfold.AgentContext.fork": lambda w, name: w.context.fork(name),
    "ctxfold.AgentContext.afork": lambda w, name: w.context.afork(name),
    "ctxfold.load_snapshot": snapshot(session_id=None),
    "ctxfold.aload_snapshot": lambda w, name: aload_snapshot(saved(w), session_id=name, store=MemoryStore()),
    **{f"ctxfold.ContextService.{name}": service(name, "session") for name in SERVICE if name not in NO_SESSION},
    "langchain_ctx.ChatCtx": lambda w, name: chat(w, session=name),
    "langchain_ctx.ChatCtx.context": lambda w, name: chat(w, session="t").context(name),
    "langchain_ctx.ChatCtx.erase": lambda w, name: chat(w, session="t").erase(name),
    "langchain_ctx.ChatCtx.aerase": lambda w, name: chat(w, session="t").aerase(name),
    "langchain_ctx.with_context": lambda w, name: wrapped(w, session_id=name),
    "langchain_ctx.ConfigurableContextModel": lambda w, name: configurable(w, session_id=name),
    "langchain_ctx.ConfigurableContextModel.context": lambda w, name: configurable(w, session_id="t").context(name),
    "langchain_ctx.ConfigurableContextModel.erase": lambda w, name: configurable(w, session_id="t").erase(name),
    "langchain_ctx.ConfigurableContextModel.aerase": lambda w, name: configurable(w, session_id="t").aerase(name),
    "langchain_ctx.ContextChatModel": lambda w, name: ContextChatModel(inner=fake(), session=name),
    "langchain_ctx.ContextChatModel.context": lambda w, name: wrapped(w, session_id="t").context(name),
    "langchain_ctx.ContextChatModel.erase": lambda w, name: wrapped(w, session_id="t").erase(name),
    "langchain_ctx.ContextChatModel.aerase": lambda w, name: wrapped(w, session_id="t").aerase(name),
    "langchain_ctx.ContextMiddleware": lambda w, name: middleware(w, session_id=name),
    "langchain_ctx.ContextMiddleware.context": lambda w, name: middleware(w, session_id="t").context(name),
    "langchain_ctx.ContextMiddleware.erase": lambda w, name: middleware(w, session_id="t").erase(name),
    "langchain_ctx.ContextMiddleware.aerase": lambda w, name: middleware(w, session_id="t").aerase(name),
    "langchain_ctx.ContextNode": lambda w, name: node(w, session_id=name),
    "langchain_ctx.ContextNode.context": lambda w, name: node(w, session_id="t").context(name),
    "langchain_ctx.ContextNode.erase": lambda w, name: node(w, session_id="t").erase(name),
    "langchain_ctx.ContextNode.aerase": lambda w, name: node(w, session_id="t").aerase(name),
    "langchain_ctx.CtxChatMessageHistory": lambda w, name: CtxChatMessageHistory(name, w.store, WINDOW),
    "langchain_ctx.HistoryFactory.__call__": lambda w, name: factory(w)(name),
    "llamaindex_ctx.with_context": lambda w, name: llm(w, session_id=name),
    "llamaindex_ctx.ContextLLM": lambda w, name: ContextLLM(inner=MockLLM(), window=WINDOW, session_id=name),
    "llamaindex_ctx.ContextLLM.at": lambda w, name: llm(w, session_id="t").at(name),
    "llamaindex_ctx.ContextLLM.context": lambda w, name: llm(w, session_id="t").context(name),
    "llamaindex_ctx.CtxMemory.from_defaults": memory,
    "llamaindex_ctx.CtxMemory.at": lambda w, name: memory(w).at(name),
    "llamaindex_ctx.CtxMemoryBlock.session": lambda w, name: block(w).session(name),
    "llamaindex_ctx.CtxMemoryBlock.aget": lambda w, name: block(w).aget([MESSAGE], session_id=name),
    "llamaindex_ctx.CtxMemoryBlock.aput": lambda w, name: block(w).aput(
        [ChatMessage(role="user", content="hi")], session_id=name
    ),
    **{
        f"llamaindex_ctx.CtxChatStore.{way}": lambda w, key, act=act: act(CtxChatStore(w.store), key)  # type: ignore[misc]
        for way, act in KEYED.items()
    },
    **{
        f"llamaindex_ctx.CtxAsyncChatStore.{way}": lambda w, key, act=act: act(CtxAsyncChatStore(w.store), key)  # type: ignore[misc]
        for way, act in AKEYED.items()
    },
}

# what comes with a call: LangChain's config, in all forms of calling

Calls = dict[str, Callable[[World, Any], object]]
CALLED: Calls = {
    **{
        f"{kind} {way}": lambda w, names, make=make, way=way: getattr(make(w), way)("hi", names)  # type: ignore[misc]
        for kind, make in {"ChatCtx": chat, "with_context": wrapped}.items()
        for way in ("invoke", "ainvoke", "stream", "astream")
    },
    **{
        f"{kind} {way}": lambda w, names, make=make, way=way: getattr(make(w), way)(["hi"], names)  # type: ignore[misc]
        for kind, make in {"ChatCtx": chat, "with_context": wrapped}.items()
        for way in ("batch", "abatch")
    },
    **{
        f"agent {way}": lambda w, names, way=way: getattr(agent(w), way)(LIST, names)  # type: ignore[misc]
        for way in ("invoke", "ainvoke", "stream", "astream")
    },
    **{
        f"node {way}": lambda w, names, way=way: getattr(node(w), way)(HI, names)  # type: ignore[misc]
        for way in ("invoke", "ainvoke", "stream", "astream")
    },
    **{
        f"chain {way}": lambda w, names, way=way: getattr(chain(w), way)(HI, names)  # type: ignore[misc]
        for way in ("invoke", "ainvoke")
    },
}


def refused(w: World, act: Callable[[], object]) -> None:
    """ConfigError, and neither read nor written was what is stored."""
    before = w.stored()
    with pytest.raises(ConfigError):
        done(act())
    assert w.stored() == before


@pytest.mark.parametrize("entry", OWNED)
def test_no_entry_point_takes_what_names_no_owner(world: World, entry: str) -> None:
    for owner in (*NAMES, *NUMBERS):
        refused(world, lambda owner=owner: OWNED[entry](world, owner))  # type: ignore[misc]


@pytest.mark.parametrize("entry", NAMED)
def test_no_entry_point_takes_what_names_no_session(world: World, entry: str) -> None:
    for name in NAMES:
        if isinstance(name, list | tuple) and entry == "llamaindex_ctx.CtxMemory.from_defaults":
            continue  # as in LlamaIndex's own memories, a list in the first place is the history
        refused(world, lambda name=name: NAMED[entry](world, name))  # type: ignore[misc]


@pytest.mark.parametrize("entry", STORES)
def test_no_store_takes_what_names_no_owner(entry: str, world: World) -> None:
    """A store is below these checks: it still finds the sessions that an older version stored under an empty name."""
    for owner in (*NAMES, *NUMBERS):
        if owner != "" or "remember" in entry:
            refused(world, lambda owner=owner: STORES[entry](world, owner))  # type: ignore[misc]


@pytest.mark.parametrize("entry", CALLED)
def test_no_call_takes_what_names_no_owner_or_session(world: World, entry: str) -> None:
    """In a graph the thread names the session, and no owner is read from the config: its client may have written that."""
    in_graph = entry.startswith(("agent", "node"))
    for value in NAMES:
        names = [config(thread_id=value)] if in_graph else [config(session_id="t", owner=value)]
        names += [] if in_graph else [config(session_id=value, owner="ann")]
        for given in names:
            refused(world, lambda given=given: CALLED[entry](world, given))  # type: ignore[misc]
    for number in () if in_graph else (*NUMBERS, None):
        refused(world, lambda number=number: CALLED[entry](world, config(session_id="t", owner=number)))  # type: ignore[misc]


def test_none_stands_for_what_the_object_was_made_with(world: World) -> None:
    def own(context: AgentContext) -> tuple[str, str]:
        return context.owner, context.session

    ann = world.context.at("t", owner="ann")
    mine = ("ann", "t")
    assert own(ann.at("t")) == own(ann.at("t", owner=None)) == mine
    ann.service.inject("documents", ["the yard opens at nine"], session=None, owner=None)
    assert [m.text for m in ann.view().messages if m.kind == "section"]
    assert not [m for m in world.context.view().messages if m.kind == "section"]
    assert own(chat(world, session="t", owner="ann").context(None, owner=None)) == mine
    assert own(wrapped(world, session_id="t", owner="ann").context(None, owner=None)) == mine
    assert own(middleware(world, owner="ann").context("t", owner=None)) == mine
    assert own(node(world, session_id="t", owner="ann").context(None, owner=None)) == mine
    assert own(llm(world, session_id="t", owner="ann").context(None, owner=None)) == mine
    assert own(llm(world, owner="ann").at("t", owner=None).context()) == mine
    assert own(memory(world, owner="ann").at("t", owner=None).context) == mine
    assert chat(world, owner="ann").erase("t", owner=None) == ("t",)
    assert world.stored()["ann"] == {}
    assert world.stored()["default"] == {"t": world.stored()["default"]["t"]}


def test_a_thread_may_be_called_by_a_number_or_a_uuid(world: World) -> None:
    """LangGraph takes both; each is the session of that text, for a call as for a look and for an erasure."""
    for thread in (0, 7, UUID(int=5)):
        with wrapped(world) as model:
            model.invoke("hi", config(thread_id=thread))
            assert model.context(thread).session == str(thread)  # type: ignore[arg-type]
            assert model.erase(thread) == (str(thread),)


OWNER_COMMANDS = {
    "sessions": [],
    "show": ["t"],
    "window": ["t"],
    "search": ["t", "locker"],
    "inspect": ["t"],
    "compact": ["t"],
    "undo": ["t"],
    "fork": ["t", "u"],
    "export": ["t", "out.jsonl"],
    "import": ["t", "chat.db"],
    "erase": ["--all", "--yes"],
    "prune": ["--max-messages", "1", "--yes"],
    "mcp": [],
    "watch": ["t", "--once"],
    "why": ["t", "#1"],
    "diff": ["t", "1", "2"],
    "policy": ["t"],
    "pin": ["t", "#1"],
    "ui": [],
    "doctor": [],
    "memory list": [],
    "memory add": ["t", "a fact"],
    "memory forget": ["m1"],
}


def commands() -> Iterable[tuple[str, Callable[..., Any]]]:
    for group, typer_app in (("", app), *((f"{g.name} ", g.typer_instance) for g in app.registered_groups)):
        assert typer_app is not None
        for command in typer_app.registered_commands:
            assert command.callback is not None
            yield f"{group}{command.name or command.callback.__name__}", command.callback


@pytest.mark.parametrize("command", OWNER_COMMANDS)
def test_no_command_takes_an_empty_owner(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an empty variable: click takes one for a variable that is not set, and `erase --all` went on with the default."""
    monkeypatch.chdir(tmp_path)
    with (
        SqlStore("sqlite:///chat.db") as store,
        AgentContext(store=store, session_id="t", context_window=WINDOW) as context,
    ):
        context.add([user("the locker is 47", id="u"), assistant("noted", id="a")])
        before = store.head(SessionKey("default", "t"))
    arguments = [*command.split(), *OWNER_COMMANDS[command], "--store", "chat.db"]
    for given, variable in ((["--owner", ""], None), ([], "")):
        found = CliRunner().invoke(app, [*arguments, *given], env={"CTXFOLD_OWNER": variable})
        assert found.exit_code == 2, found.output
        assert "owner is empty" in found.stderr.replace("\n", " ")
    named = CliRunner().invoke(app, ["sessions", "--store", "chat.db", "--owner", "default"], env={"CTXFOLD_OWNER": ""})
    assert named.exit_code == 0, named.output
    with SqlStore("sqlite:///chat.db") as store:
        assert store.head(SessionKey("default", "t")) == before


# completeness

PARAMETERS = {"owner": OWNED, "session": NAMED, "session_id": NAMED, "thread": NAMED, "key": NAMED}
NO_ENTRY = {
    "ctxfold.BaseStore": "a base class; the store suite tests what it checks, on the built-in stores and on others",
    "ctxfold.ContextService": "made by `context.service`",
    "ctxfold.KeyValueStore": "a base class; the store suite tests it through a store on top of it",
    "ctxfold.KeyValueTransaction": "what a store on top of `KeyValueStore` implements, below the names",
    "ctxfold.OwnerIndex": "a protocol; its implementation is tested",
    "ctxfold.VectorIndex": "a protocol; its implementation is tested",
    "ctxfold.PolicyChanges": "a typed dictionary",
    "ctxfold.PolicyFields": "a typed dictionary",
    "ctxfold.RequestOptions": "a typed dictionary, whose methods take a key of the dictionary",
    "ctxfold.SessionSettings": "a typed dictionary",
    **{f"ctxfold.Session{part}": "made by a context" for part in ("Archive", "Editing", "Erasure", "Files", "Memory")},
    "ctxfold.SessionHandle": "made by a context",
    "ctxfold.SessionKey": "a value that a store's methods take; these are tested",
    "ctxfold.Store": "a protocol; its implementations are tested",
    "langchain_ctx.CtxChatMessageHistory.over": "for the factory, with a key that was checked",
    "llamaindex_ctx.CtxMemory": "made by `from_defaults`, from a session that is open",
    "llamaindex_ctx.SessionEvent": "a value that LlamaIndex's listeners receive",
}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public callable of the three packages: functions, classes, and their public methods."""
    for package in ("ctxfold", "langchain_ctx", "llamaindex_ctx"):
        for name, found in public_names(package).items():
            if not callable(found):
                continue
            if not (inspect.isclass(found) and is_dataclass(found)):  # values that are given out
                yield f"{package}.{name}", found
            if inspect.isclass(found):
                for method, act in inspect.getmembers(found, callable):
                    if not method.startswith("_") or method == "__call__":
                        yield f"{package}.{name}.{method}", act


def parameters(act: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(act).parameters)
    except (TypeError, ValueError):
        return set()


def test_every_entry_point_is_tested() -> None:
    """A new public callable that takes an owner or a session has to be added to the lists above."""
    seen = {entry.partition(" ")[0] for entry in (*OWNED, *NAMED, *STORES)}
    missing: list[str] = []
    for name, act in public():
        wanted = parameters(act) & PARAMETERS.keys()
        stores = name.startswith(tuple(f"ctxfold.{kind}." for kind in STORE_KINDS))
        if stores:
            wanted &= {"owner"}
        if not wanted or name in NO_ENTRY or name.rpartition(".")[0] in NO_ENTRY.keys() - {"ctxfold.ContextService"}:
            continue
        tables = [STORES] if stores else [PARAMETERS[one] for one in wanted]
        known = [{entry.partition(" ")[0] for entry in table} for table in tables]
        missing += [name] * any(name not in table for table in known)
    assert missing == []
    assert seen <= {name for name, _ in public()} | {"llamaindex_ctx.CtxMemoryBlock.aget"}
    assert {name for name, command in commands() if "owner" in parameters(command)} == set(OWNER_COMMANDS)
