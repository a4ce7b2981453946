"""Mistakes that a user makes end in a typed error which says what was given and what to give, and change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from ctxfold import (
    AgentContext,
    BackendError,
    ConfigError,
    CtxError,
    Item,
    Message,
    MessageError,
    OpenAIChatBackend,
    ScriptedBackend,
    Section,
    TextPart,
    TokensTrigger,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    Usage,
    assistant,
    history_tools,
    open_backend,
    user,
)
from ctxfold.errors import (
    HeadMovedError,
    ImportLineError,
    MessageIndexError,
    MessageNotFoundError,
    MissingExtraError,
    NotEnoughHistoryError,
    PinBudgetError,
    UnknownRoleError,
)
from ctxfold.testing import ErrorReply, ModelServer
from langchain_ctx.errors import ChatRateLimitError

Use = Callable[[Any], object]


def made(**settings: Any) -> AgentContext:
    return AgentContext(**{"context_window": 8_000, **settings})


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"context_window": "8000"}, "context_window is '8000': give the model's window in tokens"),
    ({"context_window": 0}, "context_window is 0"),
    ({"context_window": True}, "context_window is True"),
    ({"reply_reserve_tokens": "100"}, "reply_reserve_tokens is '100'"),
    ({"reply_reserve_tokens": 0}, "reply_reserve_tokens is 0: .*None for a fifth"),
    (
        {"backend": "gpt-4o"},
        "backend is a str without a provider: .*openai:gpt-5-mini.*LangChainBackend.*LlamaIndexBackend",
    ),
    ({"backend": len}, "backend is a builtin_function_or_method: .*OpenAIChatBackend"),
    ({"backend": OpenAIChatBackend}, "backend is the class OpenAIChatBackend"),
    ({"summarizer": "gpt-4o"}, "summarizer is a str without a provider: give 'openai:gpt-5-mini'"),
    ({"store": Path("chat.db")}, "store is a PosixPath: use 'sqlite:///chat.db', a URL"),
    ({"store": "chat.db"}, "'chat.db' is not a URL.*'sqlite:///chat.db' for a file of that name"),
    ({"store": "sqllite:///chat.db"}, "store 'sqllite' is not a URL"),
    ({"store": "sqlite://chat.db"}, "names a server, 'chat.db'.*three slashes"),
    ({"store": 5}, "store is an int"),
    ({"session_id": ""}, "session name is empty"),
    ({"owner": ""}, "owner name is empty"),
    ({"session_id": None}, "session name is None"),
    ({"session_id": 5}, "session name is an int"),
    ({"token_limit": 3_000}, "there is no setting 'token_limit': ctxfold calls it context_window"),
    ({"hard_ration": 0.8}, "no setting 'hard_ration': did you mean hard_ratio"),
    ({"sotre": "sqlite:///chat.db"}, "no setting 'sotre': did you mean store"),
    ({"window": 8_000}, "no setting 'window': ctxfold calls it context_window"),
    ({"zebra": 1}, "no setting 'zebra': there are context_window, reply_reserve_tokens"),
    ({"hard_ratio": 90}, "hard_ratio is 90: .*less than or equal to 1"),
    ({"trigger": 4_000}, r"trigger is 4000: give 0\.8, .*\('tokens', 4_000\)"),
    ({"trigger": ("token", 4_000)}, r"trigger is \('token', 4000\): give 0\.8, .*\('tokens', 4_000\)"),
    ({"trigger": ("fraction", 80)}, "trigger.ratio.at is 80: .*less than or equal to 1"),
    ({"keep": ("turns", 4)}, r"keep is \('turns', 4\): .*\('messages', 4\)"),
    ({"keep": ("tokens", 9_000)}, r"keep is \('tokens', 9000\): .*less than the budget of 6400 tokens"),
    ({"memory": "fact"}, "memory.0 is 'fact'"),
    ({"strategy": "last"}, "no strategy 'last': did you mean 'truncate'"),
    ({"strategy": "tierd"}, "there is no strategy 'tierd': did you mean 'tiered'"),
    ({"system": 5}, "system is an int"),
    ({"system": [5]}, "system is an int"),
    ({"counter": len}, r"counter is a builtin.*text_counter\(model\)"),
    ({"counter": "gpt-4o"}, "counter, a str, has no id"),
    ({"prices": {"input": 1}}, "prices is a dict: give ctxfold.Prices"),
    ({"sections": ["documents"]}, "sections hold a str"),
    ({"sections": Section("documents", lambda _: [])}, "sections is a Section: give a list"),
    ({"embedder": "bge"}, r"embedder is a str: .*aembed\(texts\)"),
]


@pytest.mark.parametrize(("settings", "words"), SETTINGS, ids=[repr(s)[:40] for s, _ in SETTINGS])
def test_settings(settings: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        made(**settings)
    assert not list(tmp_path.iterdir()), "nothing is made on the way"


def test_what_a_setting_may_be() -> None:
    with made(context_window=8_000.0, trigger=TokensTrigger(at=4_000), counter=None) as ctx:
        assert ctx.policy.context_window == 8_000
    with made(reply_reserve_tokens=500) as ctx, made(**ctx.policy.model_dump()) as again:
        assert again.policy == ctx.policy, "all rules by their own names, too"


USES: list[tuple[str, type[CtxError], str, Use]] = [
    ("a dict", MessageError, r"a message is a dict: .*ctxfold.user", lambda c: c.add({"role": "user"})),
    ("a list of dicts", MessageError, "is a dict", lambda c: c.add([{"role": "user"}])),
    ("a tuple", MessageError, "is a str", lambda c: c.add(("user", "hi"))),
    ("nothing", MessageError, "is None", lambda c: c.add(None)),
    ("a number", MessageError, "is an int", lambda c: c.add(5)),
    ("another role", UnknownRoleError, "'human': use one of", lambda c: c.add(Message("m", "human", ()))),  # type: ignore[arg-type]
    ("who sees it", MessageError, "visibility 'admin': use 'user'", lambda c: c.add("x", visibility="admin")),
    ("a kind", MessageError, "kind 'note': use one of", lambda c: c.add(Message("m", "user", (), kind="note"))),  # type: ignore[arg-type]
    ("an id", MessageError, "5 holds an int", lambda c: c.add(Message(5, "user", ()))),  # type: ignore[arg-type]
    ("a part", MessageError, "'m' holds a str", lambda c: c.add(Message("m", "user", ("hi",)))),  # type: ignore[arg-type]
    ("text for a list", MessageError, "is a str", lambda c: c.edit.set_messages("hi")),
    ("strings made of it", MessageError, "is a str", lambda c: c.edit.revise(lambda _: ["hi"])),
    ("text in place", MessageError, "is a str", lambda c: c.edit.update(0, "hi")),
    ("no index", MessageIndexError, "index 1.5 is outside", lambda c: c.edit.update(1.5, user("hi"))),  # type: ignore[arg-type]
    ("index", MessageIndexError, "index 99 is outside a conversation of 2", lambda c: c.edit.remove(99)),
    ("a role to keep", UnknownRoleError, "'human': use one of", lambda c: c.edit.retain("human")),
    ("by number", MessageNotFoundError, r"an int names no message: .*message.id.*'#17'", lambda c: c.archive.get(5)),
    (
        "the message itself",
        MessageNotFoundError,
        "a Message names no message",
        lambda c: c.archive.get(c.messages()[0]),
    ),
    ("a list of pins", MessageNotFoundError, "a list names no message", lambda c: c.pin(["a1"])),
    ("a number to pin", MessageNotFoundError, "'#99' is not in session 's'", lambda c: c.pin("#99")),
    ("a number that no store takes", MessageNotFoundError, "is not in session 's'", lambda c: c.pin("#" + "9" * 5_000)),
    ("audience", ConfigError, "'assistant': use one of all, user, model", lambda c: c.messages(audience="assistant")),
    ("days", ConfigError, r"age is an int: give timedelta\(days=30\)", lambda c: c.erasure.erase_older_than(30)),
    (
        "strategy",
        ConfigError,
        "'tierd', which is not built in",
        lambda c: c.set_policy(strategy="tierd"),
    ),
    (
        "setting",
        ConfigError,
        "'max_tokens': context_window limits the whole conversation",
        lambda c: c.set_policy(max_tokens=9),
    ),
    ("subscriber", ConfigError, "the subscriber is None", lambda c: c.subscribe(None)),
    ("no fork's name", ConfigError, "session name is empty", lambda c: c.fork("")),
    ("no name", ConfigError, "session name is empty", lambda c: c.at("").messages()),
    ("goal", MessageError, "goal: Input should be a valid string", lambda c: c.edit.set_goal(5)),
    ("unpinned", MessageNotFoundError, "a list names no message", lambda c: c.unpin(["a1"])),
    ("a fact", ConfigError, "text is an int", lambda c: c.memory.add("facts", 5)),
    ("confidence", ConfigError, "confidence is 'high'", lambda c: c.memory.add("facts", "x", confidence="high")),
    ("items", ConfigError, "are a str: give a list", lambda c: c.service.inject("documents", "abc")),
    ("one item", ConfigError, "are an Item: give a list", lambda c: c.service.inject("documents", Item("abc"))),
    ("assembly", ConfigError, "'memory-first'", lambda c: c.service.prepare_context("q", assembly="memory-first")),
    ("per cent", ConfigError, "threshold_ratio is 75", lambda c: c.service.maybe_proactive_compress(75)),
    ("tools of", ConfigError, "a str is no session: give an AgentContext", lambda c: history_tools("s")),  # type: ignore[arg-type]
    ("no words", ConfigError, "the query is an int", lambda c: c.search(5)),
    ("no words for all", ConfigError, "the query is None", lambda c: c.archive.search_owner(None)),
    (
        "no question",
        ConfigError,
        "the question is an int: give it as text",
        lambda c: c.window(recall=True, question=5),
    ),
    (
        "a text to stream",
        ConfigError,
        "a str: .* send_stream and asend_stream take",
        lambda c: list(c.handle.stream("Hi")),
    ),
    ("a text to ask", ConfigError, "a str: .* send, send_stream", lambda c: c.handle.complete("Hi")),
    ("a text's request", ConfigError, "the question is a str", lambda c: c.handle.request_for("Hi")),
    (
        "too early",
        NotEnoughHistoryError,
        "nothing needs the room; to compact all the same, force it",
        lambda c: c.compact(),
    ),
]


@pytest.mark.parametrize(("kind", "words", "use"), [u[1:] for u in USES], ids=[u[0] for u in USES])
def test_calls(kind: type[CtxError], words: str, use: Use) -> None:
    with made(session_id="s") as ctx:
        ctx.add("Hello.")
        ctx.add(assistant("Good morning.", id="a1"))
        before = ctx.messages(), ctx.view().messages, ctx.policy, ctx.memory.list()
        with pytest.raises(kind, match=words):
            use(ctx)
        assert (ctx.messages(), ctx.view().messages, ctx.policy, ctx.memory.list()) == before


async def test_calls_in_a_loop() -> None:
    async with made(session_id="s") as ctx:
        for use in (
            lambda: ctx.aadd({"role": "user"}),
            lambda: ctx.edit.aretain("human"),
            lambda: ctx.archive.aget(5),
            lambda: anext(aiter(ctx.handle.astream("Hi"))),
        ):  # type: ignore[arg-type]
            with pytest.raises(CtxError):
                await use()
        with pytest.raises(ConfigError, match="the question is a str"):
            await anext(aiter(ctx.handle.astream("Hi")))  # type: ignore[arg-type]


def test_options() -> None:
    with ModelServer(model="lookup", context_window=8_000) as server:
        backend = OpenAIChatBackend(model="lookup", base_url=server.base_url, api_key="x")
        with backend, made(backend=backend) as ctx:
            told: list[tuple[dict[str, Any], str]] = [
                ({"max_tokens": -5}, "max_tokens is -5: give the largest number of tokens in a reply"),
                ({"max_tokens": "100"}, "max_tokens is '100'"),
                ({"temp": 1}, "there is no option 'temp': use max_tokens, temperature"),
                ({"on_abort": "keep"}, "'keep': use one of discard, keep_partial"),
                ({"tools": ({"name": "look"},)}, "a tool is a dict: give ctxfold.ToolSpec"),
            ]
            for options, words in told:
                with pytest.raises(ConfigError, match=words):
                    ctx.send("Hello.", **options)
                with pytest.raises(ConfigError, match=words):
                    list(ctx.send_stream("Hello.", **options))
            assert ctx.messages() == ()
            ctx.send("Hello.", stop="END", tools=(ToolSpec("look"),))  # type: ignore[arg-type]
            assert server.requests[-1].body["stop"] == ["END"], "one text to stop at, not its letters"


@pytest.mark.parametrize(
    "content", [{"role": "user", "content": "Hi"}, [{"role": "user"}], None, 5, ["Hi"], ("user", "Hi")]
)
async def test_what_is_sent(content: Any) -> None:
    with made(backend=ScriptedBackend(["Good morning."])) as ctx:
        for send in (ctx.send, lambda given: list(ctx.send_stream(given))):
            with pytest.raises(MessageError, match=r"a message is .*ctxfold.user\('...'\)"):
                send(content)
        with pytest.raises(MessageError, match="give text, or"):
            await ctx.asend(content)
        assert ctx.messages() == ()


def test_services_that_cannot_be_used() -> None:
    with open_backend("generic", "gpt-5-mini") as nowhere, made(backend=nowhere) as ctx:
        with pytest.raises(ConfigError, match=r"'generic' has no address, for the model 'gpt-5-mini': give base_url="):
            ctx.send("Hello.")
        assert ctx.messages() == ()
    with (
        OpenAIChatBackend(model="m", base_url="http://127.0.0.1:9/v1", max_retries=0) as nobody,
        made(backend=nobody) as ctx,
    ):
        with pytest.raises(
            BackendError, match=r"cannot connect to http://127.0.0.1:9 .*are provider and base_url right"
        ):
            ctx.send("Hello.")
        assert ctx.messages() == ()
    refusal = ErrorReply(status=401, body={"error": {"message": "No such key."}})
    with (
        ModelServer(model="m", script=[refusal]) as server,
        OpenAIChatBackend(model="m", base_url=server.base_url, api_key="x", max_retries=0) as backend,
        made(backend=backend) as ctx,
    ):
        with pytest.raises(
            BackendError, match="No such key: check the API key: api_key=, or the provider's environment"
        ):
            ctx.send("Hello.")
        assert ctx.messages() == ()


def test_a_file_that_cannot_be_made_is_named_as_the_user_names_it(tmp_path: Path) -> None:
    path = tmp_path / "no" / "file.jsonl"
    with made() as ctx, pytest.raises(FileNotFoundError, match=re.escape(f"No such file or directory: '{path}'")):
        ctx.files.export_jsonl(path)


def test_pins_go_by_reference_too() -> None:
    with made(session_id="s") as ctx:
        ctx.add("Hello.")
        ctx.add(assistant("Good morning.", id="a1"))
        ctx.pin("#2", ctx.messages()[0].id)
        pins = [b.reference for b in ctx.explain().blocks if b.why == "pinned"]
        assert pins == ["#1", "#2"]
        ctx.unpin("#2")
        pins = [b.reference for b in ctx.explain().blocks if b.why == "pinned"]
        assert pins == ["#1"]
        assert ctx.edit.update("#2", assistant("Good evening.", id="a2")).text == "Good morning."
        with pytest.raises(MessageNotFoundError, match="#9"):
            ctx.edit.update("#9", assistant("Good night.", id="a3"))
        assert [(m.id, m.text) for m in ctx.edit.remove("#2")] == [("a1", "Good evening.")]


UNREADABLE: list[tuple[str, Use]] = [
    ("visibility", lambda c: c.add("x", visibility="admin")),
    ("kind", lambda c: c.add(Message("m", "user", (TextPart("x"),), kind="note"))),  # type: ignore[arg-type]
    ("usage", lambda c: c.add(Message("m", "assistant", (TextPart("x"),), usage=Usage(input_tokens="many")))),  # type: ignore[arg-type]
    (
        "error",
        lambda c: c.add(
            [
                Message("m", "assistant", (ToolCallPart("c", "look", "{}"),)),
                Message("n", "tool", (ToolResultPart("c", "x", None, "oh"),)),  # type: ignore[arg-type]
            ]
        ),
    ),
    ("goal", lambda c: c.edit.set_goal(5)),
    ("step", lambda c: c.edit.set_subgoal(["a"])),
    ("unpin", lambda c: c.unpin(5)),
    ("strategy", lambda c: c.set_policy(strategy="mine")),
]


@pytest.mark.parametrize("use", [u for _, u in UNREADABLE], ids=[name for name, _ in UNREADABLE])
def test_no_call_makes_a_stored_session_unreadable(use: Use, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with made(store=url, session_id="s") as ctx:
        ctx.add("My locker is 47-B.")
        with pytest.raises(CtxError):
            use(ctx)
        ctx.add(assistant("Noted.", id="a1"))
        shown = ctx.messages()
    with made(store=url, session_id="s") as again:
        assert again.messages() == shown
        assert [m.text for m in shown] == ["My locker is 47-B.", "Noted."]


def test_a_value_that_reads_the_same_is_stored(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    with made(store=url, session_id="s") as ctx:
        ctx.add(Message("m", "assistant", (TextPart("x"),), usage=Usage(input_tokens=5.0)))  # type: ignore[arg-type]
    with made(store=url, session_id="s") as again:
        (message,) = again.messages()
        assert message.usage == Usage(input_tokens=5)


def test_a_nameless_session_of_an_older_version_opens(tmp_path: Path) -> None:
    """Only making one is refused: what is there can be read, and erased."""
    from ctxfold import SqlStore
    from ctxfold.history.records import Draft, PolicyChanged, SessionKey

    with SqlStore(f"sqlite:///{tmp_path / 'chat.db'}") as store, made(session_id="named") as other:
        rules = PolicyChanged(other.policy.model_dump_json(), other.handle.counter.id)
        store.append(SessionKey("", ""), [Draft("r1", rules)])
        with made(store=store, session_id="", owner="") as ctx:
            ctx.add("Hello.")
            assert ctx.erasure.erase_older_than(timedelta(0)).ids
        assert store.erase_owner("")


CARRIED = {
    BackendError("x", kind="rate_limit", status=429, retry_after_s=2.0),
    ChatRateLimitError("x", kind="rate_limit", status=429),
    HeadMovedError(3, 4),
    ImportLineError(7, "no role"),
    MissingExtraError("x"),
    PinBudgetError("x"),
}


def test_errors_come_back_from_a_worker_process() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for error in CARRIED:
            with pytest.raises(type(error), match=re.escape(str(error))) as found:
                pool.submit(raising, error).result()
            assert {k: v for k, v in vars(found.value).items() if not k.startswith("__")} == vars(error)


def raising(error: Exception) -> None:
    raise error
