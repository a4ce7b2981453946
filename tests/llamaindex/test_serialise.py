"""A memory survives workflow contexts: pure JSON out, the same session back."""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from pathlib import Path

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import MockLLM
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.workflow import Context, JsonSerializer, StartEvent, StopEvent, Workflow, step
from pydantic import BaseModel, ValidationError
from workflows.context.serializers import PickleSerializer

from ctxfold import ConfigError, MemoryStore, SqlStore
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxChatStore, CtxMemory
from llamaindex_ctx.store_registry import MADE_UP, register_store
from tests.llamaindex.loopback_llm import Made

pytestmark = [
    # agents read all attributes of their own class, deprecated ones of pydantic too
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),
]


def said(memory: CtxMemory) -> list[str | None]:
    return [m.content for m in memory.get_all()]


def test_to_dict_is_json_without_url_or_password(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'secret.db'}"
    with CtxMemory.from_defaults("s1", store=url, context_window=2_000, owner="ann", recall=False) as memory:
        memory.put(ChatMessage(role="user", content="hello"))
        text = json.dumps(memory.to_dict())
        assert "secret.db" not in text
        assert json.loads(memory.to_json()) == json.loads(text) == json.loads(memory.to_string())
        again = CtxMemory.from_dict(json.loads(text))
        assert (again.session_id, again.owner, again.recall) == ("s1", "ann", False)
        assert again.context is memory.context
        assert said(CtxMemory.from_string(memory.to_string())) == ["hello"]


def test_another_process_finds_the_store_by_its_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    register_store("chats", url)
    with CtxMemory.from_defaults(
        "s1", store="chats", owner="ann", token_limit=1_200, hard_ratio=0.7, recall=False
    ) as memory:
        memory.put(ChatMessage(role="user", content="hello"))
        data, rules = memory.to_dict(), memory.context.policy
    assert data["store"] == "chats"
    del memory
    gc.collect()  # as in a new process: the engine is gone, the name is registered
    with CtxMemory.from_dict(json.loads(json.dumps(data)), llm=MockLLM()) as again:
        assert (again.owner, again.recall, said(again)) == ("ann", False, ["hello"])
        assert again.context.policy == rules


def test_a_memory_over_another_chat_store_is_restored_with_that_alone() -> None:
    chat_store = SimpleChatStore()
    memory = CtxMemory.from_defaults("s1", chat_store=chat_store, token_limit=1_200)
    memory.put(ChatMessage(role="user", content="hello"))
    data = memory.to_dict()
    memory.close()
    del memory
    gc.collect()
    with pytest.raises(ConfigError, match="the messages of this memory are in a SimpleChatStore"):
        CtxMemory.from_dict(data)
    assert said(CtxMemory.from_dict(data, chat_store=chat_store)) == ["hello"]


def test_a_url_that_was_registered_goes_by_its_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'b.db'}"
    register_store("named", url)
    with CtxMemory.from_defaults("s1", store=url, context_window=2_000) as memory:
        assert memory.to_dict()["store"] == "named"


def test_of_two_names_of_one_url_a_memory_keeps_its_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'two.db'}"
    register_store("two-chats", url)
    register_store("two-support", url, llm=MockLLM())
    with CtxMemory.from_defaults("s1", store="two-support") as memory:
        assert memory.to_dict()["store"] == "two-support"
        register_store("two-support", url, llm=MockLLM())  # as a module that is loaded again does
        assert memory.to_dict()["store"] == "two-support"
        register_store("two-support", MemoryStore())
        assert memory.to_dict()["store"] == "two-chats"


def test_a_url_may_be_registered_after_it_was_serialised(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'late.db'}"
    with CtxMemory.from_defaults("s1", store=url, context_window=2_000) as memory:
        before = memory.to_dict()
        register_store("late", url)
        assert memory.to_dict()["store"] == "late"
        with CtxMemory.from_defaults("s2", store="late", context_window=2_000) as other:
            assert other.to_dict()["store"] == "late"
        memory.put(ChatMessage(role="user", content="hello"))
        with CtxMemory.from_dict({**before, "engine": ""}) as again:  # what was said before holds
            assert said(again) == ["hello"]


def test_an_unknown_store_name_says_what_to_call() -> None:
    memory = CtxMemory.from_defaults("s1", context_window=2_000)
    data = {**memory.to_dict(), "store": "elsewhere", "engine": ""}
    with pytest.raises(ConfigError, match=r"register_store\('elsewhere'"):
        CtxMemory.from_dict(data)


@pytest.mark.parametrize("store", ["sqlite:///{}/planted.db", "memory://", None])
def test_a_url_in_a_dict_is_not_opened(store: str | None, tmp_path: Path) -> None:
    memory = CtxMemory.from_defaults("s1", context_window=2_000)
    data = {**memory.to_dict(), "store": store and store.format(tmp_path), "engine": ""}
    with pytest.raises(ConfigError, match="not trusted"):
        CtxMemory.from_dict(data)
    assert list(tmp_path.iterdir()) == []
    with CtxMemory.from_dict(data, store=f"sqlite:///{tmp_path / 'mine.db'}") as again:
        assert again.session_id == "s1"


def test_a_store_name_is_not_a_url() -> None:
    with pytest.raises(ConfigError) as caught:
        register_store("postgresql://me:secret@host/db", MemoryStore())
    assert "secret" not in str(caught.value)


def test_store_objects_get_a_name_for_this_process(tmp_path: Path) -> None:
    with SqlStore(f"sqlite:///{tmp_path / 'c.db'}") as store:
        one = CtxMemory.from_defaults("s1", store=store, context_window=2_000)
        two = CtxMemory.from_defaults("s2", store=store, context_window=2_000)
        assert one.to_dict()["store"] == two.to_dict()["store"]
        one.put(ChatMessage(role="user", content="hello"))
        data = one.to_dict()
        del one
        gc.collect()
        assert said(CtxMemory.from_dict(data)) == ["hello"]
        two.close()
        with pytest.raises(ConfigError, match="register_store"):
            CtxMemory.from_dict({**data, "engine": ""})


def test_what_was_only_serialised_is_found_again_until_too_many_are() -> None:
    store = MemoryStore()
    gone = weakref.ref(store)
    memory = CtxMemory.from_defaults("s1", store=store, context_window=2_000, llm=MockLLM())
    memory.put(ChatMessage(role="user", content="hello"))
    histories = CtxChatStore(store)
    data = memory.to_dict()
    assert data["store"] in repr(histories)
    del store, memory, histories
    gc.collect()
    assert said(CtxMemory.from_dict(data)) == ["hello"]
    for n in range(MADE_UP):
        CtxMemory.from_defaults(f"other {n}", context_window=2_000).to_dict()
    gc.collect()
    assert gone() is None
    with pytest.raises(ConfigError, match=f"older than the newest {MADE_UP} unregistered ones"):
        CtxMemory.from_dict(data)


def test_a_store_in_memory_is_found_while_any_session_of_it_is_held() -> None:
    one = CtxMemory.from_defaults("s1", context_window=2_000)
    one.put(ChatMessage(role="user", content="hello"))
    data, other = one.to_dict(), one.at("s2")
    del one
    gc.collect()
    assert said(CtxMemory.from_dict(data)) == ["hello"]
    assert other.to_dict()["store"] == data["store"]
    for n in range(MADE_UP):
        CtxMemory.from_defaults(f"other {n}", context_window=2_000).to_dict()
    assert CtxMemory.from_dict(other.to_dict()).context is other.context


def test_a_closed_memory_ends_the_other_sessions_of_its_store(tmp_path: Path) -> None:
    register_store("siblings", f"sqlite:///{tmp_path / 'e.db'}")
    one = CtxMemory.from_defaults("s1", store="siblings", context_window=2_000)
    other = one.at("s2")
    other.put(ChatMessage(role="user", content="hello"))
    data = other.to_dict()
    one.close()
    with CtxMemory.from_dict(data) as again:
        assert again.context is not other.context
        assert said(again) == ["hello"]


@pytest.mark.parametrize("serializer", [JsonSerializer(), PickleSerializer()], ids=["json", "pickle"])
def test_serialisers(serializer: JsonSerializer) -> None:
    memory = CtxMemory.from_defaults("s1", context_window=2_000, tokenizer_fn=lambda text: text.split())
    memory.put(ChatMessage(role="user", content="hello"))
    again = serializer.deserialize(serializer.serialize({"memory": memory}))["memory"]
    assert isinstance(again, CtxMemory)
    assert said(again) == ["hello"]
    assert again.tokenizer_fn is memory.tokenizer_fn


def test_pickle() -> None:
    memory = CtxMemory.from_defaults("s1", context_window=2_000, llm=MockLLM())
    memory.put(ChatMessage(role="user", content="hello"))
    assert said(pickle.loads(pickle.dumps(memory))) == ["hello"]


@pytest.mark.parametrize("url", [None, "file"], ids=["memory", "sqlite"])
async def test_a_context_is_serialised_between_runs_and_the_history_goes_on(
    url: str | None, tmp_path: Path, llms: Made
) -> None:
    store = f"sqlite:///{tmp_path / 'd.db'}" if url else None
    with ModelServer(model="lookup") as server:
        flow = AgentWorkflow(agents=[FunctionAgent(name="a", description="d", tools=[], llm=llms(server))])
        memory = CtxMemory.from_defaults("s1", store=store, context_window=2_000)
        context = Context(flow)
        await flow.run(user_msg="My locker number is 4711.", ctx=context, memory=memory)
        await flow.run(user_msg="I like tea.", ctx=context)
        restored = Context.from_dict(flow, json.loads(json.dumps(context.to_dict())))
        answer = await flow.run(user_msg="What is my locker number?", ctx=restored)
        assert "4711" in str(answer)
        assert len(memory.get_all()) == 6
        memory.close()


async def test_editing_the_state_of_a_workflow_shares_the_engine(llms: Made) -> None:
    with ModelServer(model="lookup") as server:
        flow = AgentWorkflow(agents=[FunctionAgent(name="a", description="d", tools=[], llm=llms(server))])
        memory = CtxMemory.from_defaults("s1", context_window=2_000)
        context = Context(flow)
        await flow.run(user_msg="My locker number is 4711.", ctx=context, memory=memory)
        async with context.store.edit_state() as state:
            state["memory"].put(ChatMessage(role="user", content="more"))
        held = await context.store.get("memory")
        assert said(held)[-1] == said(memory)[-1] == "more"


class Conversation(BaseModel):
    """The typed state of a workflow."""

    memory: CtxMemory | None = None
    turns: int = 0


class Greeter(Workflow):
    @step
    async def greet(self, ctx: Context[Conversation], ev: StartEvent) -> StopEvent:
        async with ctx.store.edit_state() as state:
            state.turns += 1
            state.memory = state.memory or CtxMemory.from_defaults("ann", store="typed", token_limit=1_200)
            await state.memory.aput(f"hello {state.turns}")
            return StopEvent(result=said(state.memory))


@pytest.mark.parametrize("serialiser", [JsonSerializer(), PickleSerializer()], ids=["json", "pickle"])
async def test_the_typed_state_of_a_workflow_holds_a_memory(
    serialiser: JsonSerializer | PickleSerializer, tmp_path: Path
) -> None:
    register_store("typed", f"sqlite:///{tmp_path / 'typed.db'}")
    flow = Greeter()
    context = Context(flow)
    assert await flow.run(ctx=context) == ["hello 1"]
    data = json.dumps(context.to_dict(serializer=serialiser))
    assert "sqlite" not in data
    held = (await context.store.get_state()).memory
    held.close()
    del context, held
    gc.collect()  # as in a new process
    restored = Context.from_dict(flow, json.loads(data), serializer=serialiser)
    assert await flow.run(ctx=restored) == ["hello 1", "hello 2"]
    (await restored.store.get_state()).memory.close()


def test_a_field_of_a_model_does_not_open_a_url(tmp_path: Path) -> None:
    with CtxMemory.from_defaults("ann", store=f"sqlite:///{tmp_path / 'a.db'}", token_limit=1_200) as memory:
        data = Conversation(memory=memory).model_dump(mode="json")
        again = Conversation.model_validate(data)
        assert again.memory is not None
        assert again.memory.context is memory.context
    data["memory"]["store"] = f"sqlite:///{tmp_path / 'other.db'}"
    with pytest.raises(ValidationError, match="a URL in a dict is not trusted"):
        Conversation.model_validate(data)
    with pytest.raises(ValidationError, match="there is no setting 'rules'"):
        Conversation.model_validate({"memory": {"session_id": "ann", "rules": {}}})
