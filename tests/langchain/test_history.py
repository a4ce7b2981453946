"""`CtxChatMessageHistory` on its own: store, snapshot, recognition, errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from ctxfold import ConfigError, HistoryCompacted, MemoryStore
from ctxfold.errors import (
    EmptyMessagesError,
    InvalidTextError,
    MessageTooLargeError,
    PinBudgetError,
    SessionNotFoundError,
    StoreCorruptError,
    StoreUnavailableError,
    UnknownRoleError,
    WindowTooSmallError,
)
from ctxfold.history.records import Draft, Record, SessionKey
from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx, CtxChatMessageHistory, with_context

WORDS = "The quick brown fox jumps over the lazy dog and comes back home in the evening. " * 3


def words(number: int) -> str:
    return f"Note {number}. {WORDS}"


def contents(messages: list[BaseMessage]) -> list[str]:
    return [str(m.content) for m in messages]


def turn(number: int, *, ids: bool = False) -> list[BaseMessage]:
    tag = {"id": f"h{number}"} if ids else {}
    return [HumanMessage(words(number), **tag), AIMessage(f"Noted {number}.", id=f"a{number}")]


def test_what_is_added_is_read_and_kept(store_url: str) -> None:
    with CtxChatMessageHistory("s1", store=store_url, context_window=8_000) as history:
        history.add_user_message("hello")
        history.add_ai_message("hi")
        assert contents(history.messages) == ["hello", "hi"]
        assert all(m.id for m in history.messages)
    with CtxChatMessageHistory("s1", store_url, 8_000) as again:
        assert contents(again.messages) == ["hello", "hi"]
        again.clear()
        assert again.messages == []
        again.context.undo()
        assert contents(again.messages) == []  # a snapshot stands until the next add
        again.add_message(HumanMessage("more"))
        assert contents(again.messages) == ["hello", "hi", "more"]


async def test_the_same_in_async_code(store_url: str) -> None:
    async with CtxChatMessageHistory("s1", store=store_url, context_window=8_000) as history:
        await history.aadd_messages([HumanMessage("hello"), AIMessageChunk("hi", id="r1")])
        read = await history.aget_messages()
        assert contents(read) == ["hello", "hi"]
        assert type(read[1]) is AIMessage
        await history.apin(read[0].id or "")
        await history.aclear()
        assert await history.aget_messages() == []


def test_two_handles_on_one_session_see_each_other(store_url: str) -> None:
    with CtxChatMessageHistory.factory(store=store_url, context_window=8_000) as factory:
        factory("s").add_messages([HumanMessage("one")])
        with CtxChatMessageHistory("s", store_url, 8_000) as other:
            other.add_messages([HumanMessage("two")])
        assert contents(factory("s").messages) == ["one", "two"]


def test_owners_and_sessions_are_kept_apart() -> None:
    with CtxChatMessageHistory.factory(context_window=8_000) as factory:
        factory("s", "ann").add_messages([HumanMessage("ann's")])
        factory("s", "bob").add_messages([HumanMessage("bob's")])
        assert contents(factory("s", owner="ann").messages) == ["ann's"]
        assert factory("s").messages == []
        assert factory("t", "ann").messages == []
        with pytest.raises(ConfigError, match="session id is empty"):
            factory("")


def test_the_window_holds_and_the_summariser_is_asked() -> None:
    model = FakeListChatModel(responses=["The user told of many foxes, as in Note 2."])
    events: list[Any] = []
    with CtxChatMessageHistory("s", context_window=1_000, summarizer=model) as history:
        history.context.subscribe(events.append)
        first = turn(0, ids=True)
        history.add_messages(first)
        history.pin("h0")
        for number in range(1, 30):
            history.add_messages(turn(number))
            read = history.messages
            assert history.context.handle.counter.count_text(" ".join(contents(read))) < 1_000
        assert any(isinstance(e, HistoryCompacted) for e in events)
        summaries = [m for m in read if m.additional_kwargs.get("ctxfold", {}).get("kind") == "summary"]
        assert len(summaries) == 1
        assert isinstance(summaries[0], HumanMessage)
        assert "many foxes" in str(summaries[0].content)
        assert words(0) in contents(read)
        assert history.context.archive.get("a3").text == "Noted 3."


def test_a_snapshot_stands_until_the_next_add_on_the_same_handle() -> None:
    with CtxChatMessageHistory.factory(context_window=1_000) as factory:
        for number in range(4):
            factory("s").add_messages(turn(number))
        handle = factory("s")
        before = contents(handle.messages)
        for number in range(4, 12):
            factory("s").add_messages(turn(number))
        assert contents(handle.messages) == before
        handle.add_messages([HumanMessage("mine"), AIMessage("yes")])
        assert contents(handle.messages)[-2:] == ["mine", "yes"]
        assert contents(handle.messages) == contents(factory("s").messages)


def test_messages_are_recognised_by_id_and_kept_once() -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages(turn(1, ids=True))
        history.add_messages([*turn(1, ids=True), HumanMessage("next")])
        assert contents(history.messages) == [words(1), "Noted 1.", "next"]


@pytest.mark.parametrize("at_once", [True, False])
def test_l2_messages_that_all_have_one_id_are_each_stored(at_once: bool) -> None:
    """As LangChain's own histories store them."""
    said = [m for n in range(40) for m in (HumanMessage(f"q{n}", id="0"), AIMessage(f"a{n}", id="0"))]
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        for part in [said] if at_once else [said[i : i + 2] for i in range(0, len(said), 2)]:
            history.add_messages(part)
        assert [m.text for m in history.context.messages()] == contents(said)


def test_l2_a_late_result_with_the_id_of_its_call_is_stored() -> None:
    """The call's turn is over when the result comes, and one id names both."""
    call = {"name": "look", "args": {}, "id": "c"}
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        for message in (AIMessage("Looking", id="1", tool_calls=[call]), HumanMessage("Wait")):
            history.add_messages([message])
        history.add_messages([ToolMessage("found", id="1", tool_call_id="c"), HumanMessage("And?")])
        assert contents(history.messages) == ["Wait", "Looking", "found", "And?"]


def test_a_whole_conversation_handed_back_adds_only_what_is_new() -> None:
    """Agents return the full list; their input gets an id on the way."""
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages([HumanMessage("one"), AIMessage("1", id="a1")])
        shown = history.messages
        output = [*shown, HumanMessage("two", id="h2"), AIMessage("2", id="a2")]
        history.add_messages([HumanMessage("two"), *output])
        assert contents(history.messages) == ["one", "1", "two", "2"]


def test_a_whole_conversation_without_ids_adds_only_what_is_new() -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages([HumanMessage("one"), AIMessage("1")])
        bare = [type(m)(m.content) for m in history.messages]
        history.add_messages([*bare, HumanMessage("two"), AIMessage("2")])
        assert contents(history.messages) == ["one", "1", "two", "2"]


def test_the_same_words_said_again_are_new() -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        for _ in range(3):
            assert history.messages is not None
            history.add_messages([HumanMessage("hi"), AIMessage("hello")])
        assert contents(history.messages) == ["hi", "hello"] * 3


def test_a_shown_summary_never_comes_back_as_conversation() -> None:
    with CtxChatMessageHistory("s", context_window=1_000) as history:
        for number in range(20):
            history.add_messages(turn(number))
        shown = history.messages
        assert any("ctxfold" in m.additional_kwargs for m in shown)
        count = len(shown)
        history.add_messages([*shown, HumanMessage("new")])
        assert len(history.messages) == count + 1
    with CtxChatMessageHistory("copy", context_window=8_000) as copy:
        copy.add_messages(shown)
        assert contents(copy.messages) == contents(shown)


def test_tool_rounds_stay_private_until_they_are_whole() -> None:
    call = {"name": "t", "args": {}, "id": "c1"}
    with CtxChatMessageHistory.factory(context_window=8_000) as factory:
        one = factory("s")
        one.add_messages([HumanMessage("go"), AIMessage("", tool_calls=[call])])
        assert factory("s").messages == []
        assert len(one.messages) == 2
        factory("s").add_messages([ToolMessage("done", tool_call_id="c1"), AIMessage("it is done")])
        assert [m.type for m in factory("s").messages] == ["human", "ai", "tool", "ai"]


def test_system_messages_stand_first_and_survive_clear() -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages([SystemMessage("be brief"), HumanMessage("hi")])
        history.clear()
        assert contents(history.messages) == ["be brief"]


@pytest.mark.parametrize("message_id", [None, "0"])
def test_l3_a_result_of_no_call_is_shown_as_text(message_id: str | None) -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages([HumanMessage("before", id="0")])
        history.add_messages([ToolMessage("found", tool_call_id="nope", id=message_id)])
        shown = history.messages
        assert [(m.type, m.text) for m in shown] == [("human", "before"), ("human", "Result of a tool call:\nfound")]


@pytest.mark.parametrize(
    ("messages", "error", "says"),
    [
        ([], EmptyMessagesError, "at least one"),
        ([ChatMessage("x", role="critic")], UnknownRoleError, "critic"),
        ([HumanMessage("\ud800")], InvalidTextError, "U+D800"),
    ],
)
def test_bad_messages_leave_the_session_as_it_was(
    messages: list[BaseMessage], error: type[Exception], says: str
) -> None:
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages([HumanMessage("before")])
        with pytest.raises(error, match=says.replace("+", r"\+")):
            history.add_messages(messages)
        assert contents(history.messages) == ["before"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"context_window": 0}, ConfigError),
        ({"context_window": -1}, ConfigError),
        ({}, ConfigError),
        ({"context_window": 100, "hard_ratio": 7}, ConfigError),
        ({"context_window": 100, "no_such_rule": 7}, ConfigError),
        ({"context_window": 100, "reply_reserve_tokens": 100}, WindowTooSmallError),
        ({"context_window": 100, "store": "mysql://x"}, ConfigError),
        ({"context_window": 100, "summarizer": 7}, ConfigError),
        ({"context_window": 100, "create": False}, SessionNotFoundError),
    ],
)
def test_bad_settings_are_told_at_once(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        CtxChatMessageHistory("s", **settings)
    if "create" not in settings:
        with pytest.raises(error):
            CtxChatMessageHistory.factory(**settings)


def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "chat.db").write_bytes(b"no database at all, but long enough to be one" * 100)
    with pytest.raises(StoreCorruptError):
        CtxChatMessageHistory("s", f"sqlite:///{tmp_path}/chat.db", 8_000)


def test_a_message_too_large_is_stored_and_told_at_the_next_read() -> None:
    with CtxChatMessageHistory("s", context_window=500) as history:
        history.add_messages([HumanMessage(WORDS * 50, id="big")])
        with pytest.raises(MessageTooLargeError, match="window of 500"):
            history.messages  # noqa: B018
        assert history.context.archive.get("big").text == WORDS * 50
        history.context.edit.pop()
        assert history.messages == []


def test_pinning_beyond_the_share_is_refused() -> None:
    with CtxChatMessageHistory("s", context_window=300) as history:
        history.add_messages([HumanMessage(WORDS * 3, id="big")])
        with pytest.raises(PinBudgetError):
            history.pin("big")


class FailingStore(MemoryStore):
    """A store that can be told to fail its next append."""

    failing = False

    def append(self, key: SessionKey, drafts: Any, **options: Any) -> tuple[Record, ...]:
        if self.failing and any(isinstance(d, Draft) for d in drafts):
            raise StoreUnavailableError("the disk is full")
        return super().append(key, drafts, **options)

    async def aappend(self, key: SessionKey, drafts: Any, **options: Any) -> tuple[Record, ...]:
        return self.append(key, drafts, **options)


def test_a_storage_failure_is_raised_again_at_the_next_read() -> None:
    store = FailingStore()
    with CtxChatMessageHistory.factory(store=store, context_window=8_000) as factory:
        factory("s").add_messages([HumanMessage("one")])
        store.failing = True
        with pytest.raises(StoreUnavailableError):
            factory("s").add_messages([HumanMessage("two")])
        store.failing = False
        with pytest.raises(StoreUnavailableError, match="disk is full") as caught:
            factory("s").messages  # noqa: B018
        assert "1 message(s) of session 's' were not stored" in caught.value.__notes__[0]
        assert contents(factory("s").messages) == ["one"]


async def test_many_writers_on_one_session_lose_nothing(store_url: str) -> None:
    async with CtxChatMessageHistory.factory(store=store_url, context_window=100_000) as factory:

        async def write(writer: int) -> None:
            for number in range(5):
                handle = factory("s")
                await handle.aget_messages()
                await handle.aadd_messages([HumanMessage(f"{writer}-{number}"), AIMessage("ok")])

        await asyncio.gather(*(write(w) for w in range(8)))
        said = [c for c in contents(await factory("s").aget_messages()) if c != "ok"]
    assert sorted(said) == sorted(f"{w}-{n}" for w in range(8) for n in range(5))
    for writer in range(8):
        assert [s for s in said if s.startswith(f"{writer}-")] == [f"{writer}-{n}" for n in range(5)]


def test_importing_the_face_is_light_and_warns_of_nothing() -> None:
    code = (
        "import sys, warnings; warnings.simplefilter('error'); import langchain_ctx; "
        "assert not [m for m in sys.modules if m.startswith(('langchain_core', 'httpx', 'sqlalchemy', 'tiktoken'))]; "
        "[getattr(langchain_ctx, n) for n in langchain_ctx.__all__]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


async def test_room_is_left_for_what_the_chain_adds() -> None:
    async def tokens(overhead: int) -> int:
        with CtxChatMessageHistory.factory(
            context_window=2_000, overhead_tokens=overhead, hard_ratio=1.0, soft_ratio=1.0
        ) as factory:
            for number in range(18):
                factory("s").add_messages(turn(number))
            assert len(await factory("s").aget_messages()) == len(factory("s").messages)
            return factory("s").context.view().tokens

    assert await tokens(900) <= 1_600 - 900 < await tokens(0)


LOCKERS = [f"The code of locker {n} in hall {n * 3} is {n * 1_117 + 40}." for n in range(1, 61)]
ASKED = LOCKERS[:24:2]


def test_a_history_does_not_recall_and_a_wrapped_model_does() -> None:
    """Step 7, item B16: README and notebook 01 say so and lead to `with_context`."""

    def heard(body: Any) -> Scripted:
        return Scripted("Noted.")

    def run(*, wrapped: bool) -> int:
        """Returns how many of the codes are in the request that asks for them."""
        with ModelServer(model="m", script=heard) as server:
            settings: dict[str, Any] = {"context_window": 1_200, "store": "memory://"}
            chat = ChatCtx(model="m", base_url=server.base_url, api_key="x", max_retries=0)
            model: Any = with_context(chat, session_id="s", **settings) if wrapped else chat
            with CtxChatMessageHistory("s", **settings) as history:
                found = 0
                for text in [*(f"{fact} " + "We spoke of the weather. " * 12 for fact in LOCKERS), *ASKED]:
                    asks = text in ASKED
                    question = HumanMessage(
                        text.rpartition(" is ")[0].replace("The", "What was the", 1) + "?" if asks else text
                    )
                    if wrapped:
                        model.invoke([question])
                    else:
                        history.add_messages([question, model.invoke([*history.messages, question])])
                    found += asks and text.rpartition(" ")[2] in str(server.requests[-1].body["messages"])
                chat.close()
                return found

    assert run(wrapped=True) >= len(ASKED) - 1
    assert run(wrapped=False) < len(ASKED) // 2
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    notebook = (Path(__file__).parents[2] / "notebooks" / "01_langchain_chain.ipynb").read_text(encoding="utf-8")
    for text in (readme, notebook):
        assert "does not recall" in text
        assert "with_context" in text
