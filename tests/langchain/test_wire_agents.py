"""`create_agent` on every wire: many turns with reasoning and tools past the window, on servers that refuse lost reasoning."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import date
from typing import Any, Literal

import anthropic
import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from ctxfold import ConfigError
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from langchain_ctx import ChatCtx, ContextMiddleware, CtxChatMessageHistory
from tests.support.wires import TOUR, WIRES, Lookups

WIRE = pytest.mark.parametrize("wire", WIRES)
ROUNDS = 8
TURNS, WINDOW = 8, 2_000  # past the window, twice
MANY: Any = {"recursion_limit": 500}


@tool
def look(key: int) -> str:
    """Looks an entry up."""
    return f"Entry {key} says that the heron is at weir {key}. " + "Nothing else to report. " * 12


class Song(BaseModel):
    """A song."""

    title: str
    seconds: int


def ask(number: int, rounds: int = 2) -> list[Any]:
    return [HumanMessage(f"Question {number}: look it up in {rounds} rounds.")]


async def run(agent: Any, given: list[Any], how: str) -> str:
    match how:
        case "invoke":
            return str(agent.invoke({"messages": given}, MANY)["messages"][-1].text)
        case "ainvoke":
            return str((await agent.ainvoke({"messages": given}, MANY))["messages"][-1].text)
        case "stream":
            pieces = [m for m, _ in agent.stream({"messages": given}, MANY, stream_mode="messages")]
        case _:
            pieces = [m async for m, _ in agent.astream({"messages": given}, MANY, stream_mode="messages")]
    return "".join(m.text for m in pieces if isinstance(m, AIMessage))


@WIRE
@pytest.mark.parametrize("how", ["invoke", "astream"])
async def test_a_stateless_loop_sends_every_thought_back(wire: str, how: str) -> None:
    """Without any help of ours but the model: the state of the graph is the only memory."""
    script = Lookups()
    with ModelServer(script=script, strict=WIRES[wire].strict, reasoning=True) as server:
        chat = ChatCtx(**WIRES[wire].settings(server))
        assert await run(create_agent(chat, [look]), ask(1, rounds=ROUNDS), how) == f"Answer after {ROUNDS}."
        assert len(server.requests) == script.answered == ROUNDS + 1
        assert [WIRES[wire].sent_back(request) for request in server.requests] == list(range(ROUNDS + 1))
        chat.close()


@WIRE
@pytest.mark.parametrize(
    ("kept", "how"),
    [("session", "invoke"), ("session", "astream"), ("middleware", "ainvoke"), ("middleware", "stream")],
)
async def test_turns_go_past_the_window_and_nothing_is_refused(wire: str, how: str, kept: str) -> None:
    script = Lookups()
    with ModelServer(script=script, strict=WIRES[wire].strict, reasoning=True) as server:
        window: Any = {"context_window": WINDOW}
        chat = ChatCtx(**WIRES[wire].settings(server), **({"session": "s", **window} if kept == "session" else {}))
        middleware = [] if kept == "session" else [ContextMiddleware(session_id="s", **window)]
        agent = create_agent(chat, [look], middleware=middleware)
        for number in range(TURNS):
            before = len(server.requests)
            assert await run(agent, ask(number), how) == "Answer after 2."
            asked = [WIRES[wire].sent_back(r) for r in server.requests[before:] if "tools" in str(r.body)][-2:]
            assert asked[0] >= 1
            assert asked[1] >= 2
        context = chat.context() if kept == "session" else middleware[0].context("s")
        assert context.usage().turns == TURNS
        assert context.usage().compactions > 1
        assert len(server.requests) == script.answered
        for made in (*middleware, chat):
            made.close()


async def test_a_session_goes_from_every_wire_to_every_other(tmp_path: Any) -> None:
    script = Lookups()
    store = f"sqlite:///{tmp_path / 'chat.db'}"
    with ExitStack() as stack:
        servers = {w: ModelServer(script=script, strict=WIRES[w].strict, reasoning=True) for w in WIRES}
        chats = {w: ChatCtx(**WIRES[w].settings(stack.enter_context(server))) for w, server in servers.items()}
        middleware = stack.enter_context(ContextMiddleware(session_id="s", store=store, context_window=WINDOW))
        for number, wire in enumerate(TOUR):
            agent = create_agent(chats[wire], [look], middleware=[middleware])
            assert await run(agent, ask(number, 1), "invoke") == "Answer after 1.", TOUR[number - 1 : number + 1]
            assert sum(len(server.requests) for server in servers.values()) == script.answered
        assert middleware.context("s").usage().compactions > 1
        for chat in chats.values():
            chat.close()


@WIRE
async def test_reasoning_and_text_stream_live(wire: str) -> None:
    """What is thought and said comes piece by piece, in the chunks and in the events of an agent."""
    with ModelServer(script=Lookups(), strict=WIRES[wire].strict, reasoning=True) as server:
        chat = ChatCtx(**WIRES[wire].settings(server))
        agent = create_agent(chat, [look])
        thoughts: list[str] = []
        texts: list[str] = []
        async for event in agent.astream_events({"messages": ask(1, rounds=1)}, version="v2"):
            if event["event"] == "on_chat_model_stream":
                chunk = event["data"]["chunk"]
                thoughts.append(chunk.additional_kwargs.get("reasoning_content", ""))
                texts.append(chunk.text)
        assert "".join(thoughts) == "".join(
            f"Thought {n} of it, long enough to come in several pieces." for n in (1, 2)
        )
        assert "".join(texts) == "Answer after 1."
        assert sum(map(bool, thoughts)) > 2
        chat.close()


@WIRE
@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_structured_output_in_every_way_that_the_wire_has(wire: str, method: Any) -> None:
    answer = '{"title": "Blue", "seconds": 183}'
    calls = (ScriptedCall("Song", answer),)
    script = [Scripted("", tool_calls=calls) if method == "function_calling" else Scripted(answer)]
    with ModelServer(script=script, strict=WIRES[wire].strict) as server:
        chat = ChatCtx(**WIRES[wire].settings(server), thinking=False)
        asked = chat.with_structured_output(Song, method=method)
        if wire in ("anthropic_messages", "bedrock_converse") and method == "json_mode":
            with pytest.raises(ConfigError, match=f"{wire} has no JSON mode: .*json_schema"):
                asked.invoke("A song.")
        else:
            assert asked.invoke("A song.") == Song(title="Blue", seconds=183)
            body = server.requests[0].body
            match wire, method:
                case "openai_responses", "json_schema":
                    form = body["text"]["format"]
                    assert (form["type"], form["name"], form["schema"]["required"]) == (
                        "json_schema",
                        "Song",
                        ["title", "seconds"],
                    )
                case "gemini", "json_schema":
                    assert body["generationConfig"]["responseJsonSchema"]["required"] == ["title", "seconds"]
                case "anthropic_messages", "json_schema":
                    form = body["output_config"]["format"]
                    assert (form["type"], form["schema"]["required"]) == ("json_schema", ["title", "seconds"])
                case "bedrock_converse", "json_schema":
                    form = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
                    assert (form["name"], json.loads(form["schema"])["required"]) == ("Song", ["title", "seconds"])
                case "gemini", "json_mode":
                    assert body["generationConfig"]["responseMimeType"] == "application/json"
                case _:
                    pass
        chat.close()


CLAUDES = [("anthropic_messages", "claude-opus-4-6"), ("bedrock_converse", "us.anthropic.claude-opus-4-6")]


@pytest.mark.parametrize(("wire", "model"), CLAUDES, ids=[wire for wire, _ in CLAUDES])
@pytest.mark.parametrize("thinking", [None, "low"])
def test_an_agent_that_answers_in_a_schema(wire: str, model: str, thinking: Any) -> None:
    """`create_agent` has the provider enforce the schema for the models that it knows by name."""
    with ModelServer(script=[Scripted('{"title": "Blue", "seconds": 183}')], strict=WIRES[wire].strict) as server:
        with ChatCtx(**{**WIRES[wire].settings(server), "model": model, "thinking": thinking}) as chat:
            agent = create_agent(chat, [look], response_format=Song)
            assert agent.invoke({"messages": ask(1)})["structured_response"] == Song(title="Blue", seconds=183)
        body = server.requests[0].body
        if wire == "anthropic_messages":
            effort = {} if thinking is None else {"effort": thinking}
            assert {n: v for n, v in body["output_config"].items() if n != "format"} == effort, (
                "one does not replace the other"
            )


class Shelf(BaseModel):
    """A shelf."""

    songs: list[Song] = Field(max_length=9, min_length=1)
    best: Song | None = Field(default=None, description="the best one")
    since: date = date(2020, 1, 1)
    place: Literal["left", "right"] = "left"
    height: int = Field(ge=1, description="in centimetres")


def test_the_schema_is_one_that_claude_takes() -> None:
    """As the `anthropic` package makes it, except for what is allowed anyway."""
    form = {"type": "json_schema", "json_schema": {"schema": Shelf.model_json_schema()}}
    with ModelServer(script=[Scripted("{}")], strict="anthropic") as server:
        with ChatCtx(**WIRES["anthropic_messages"].settings(server)) as chat:
            chat.bind(response_format=form).invoke("Hi")
        own = server.requests[0].body["output_config"]["format"]["schema"]
    theirs = anthropic.transform_schema(Shelf)
    theirs["properties"]["place"]["type"] = "string"
    assert own == theirs
    assert own["properties"]["height"]["description"] == "in centimetres\n\n{minimum: 1}"


def test_a_schema_of_an_earlier_draft_keeps_its_definitions_and_is_closed() -> None:
    """As many dicts are written: with `definitions` and `oneOf`, and objects that say so by their properties or may be null."""
    song = {"type": ["object", "null"], "properties": {"title": {"type": "string"}}}
    best, kinds = {"$ref": "#/definitions/Song"}, [{"type": "string"}, {"type": "null"}]
    schema = {"properties": {"best": best, "kind": {"oneOf": kinds}}, "definitions": {"Song": song}}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    with ModelServer(script=[Scripted("{}")], strict="anthropic") as server:
        with ChatCtx(**WIRES["anthropic_messages"].settings(server)) as chat:
            chat.bind(response_format=form).invoke("Hi")
        own = server.requests[0].body["output_config"]["format"]["schema"]
    closed = {**song, "additionalProperties": False}
    properties = {"best": best, "kind": {"anyOf": kinds}}
    assert own == {"properties": properties, "definitions": {"Song": closed}, "additionalProperties": False}


class Counts(BaseModel):
    """Counts things."""

    by_name: dict[str, int]


class Nothing(BaseModel):
    """Nothing."""


class Box(BaseModel):
    """A box."""

    lists: list[dict[str, Any]]


class Room(BaseModel):
    """A room."""

    counts: Counts | None


OPEN: dict[str, Any] = {"type": "object", "additionalProperties": True}
CLOSING = pytest.mark.parametrize("wire", ["anthropic_messages", "bedrock_converse"])


@CLOSING
@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (Counts, "by_name"),
        (Box, r"lists\[\]"),
        (Room, r"[cC]ounts\.by_name"),
        ({"title": "A", "type": "object", "properties": {"a": {"type": ["object", "null"]}}}, "a"),
        ({"title": "A", "type": "object", "properties": {"a": {**OPEN, "properties": {}}}}, "a"),
    ],
    ids=["dict", "list of dicts", "nested", "may be null", "no fields of its own"],
)
def test_a_field_with_any_keys_is_refused_where_the_service_closes_objects(wire: str, schema: Any, field: str) -> None:
    """Closed, as the API demands, it could only be {}. A tool call may have it."""
    refused = pytest.raises(ConfigError, match=f"^{field} is an object with any keys.*function_calling.*ToolStrategy")
    with ModelServer(script=[], strict=WIRES[wire].strict) as server, ChatCtx(**WIRES[wire].settings(server)) as chat:
        for strict in (None, True):
            with refused:
                chat.with_structured_output(schema, method="json_schema", strict=strict)
        chat.with_structured_output(schema)
        agent = create_agent(chat, [], response_format=ProviderStrategy(schema))
        with refused:
            agent.invoke({"messages": [("user", "Hi")]})
        with pytest.raises(ConfigError, match="the schema itself is"):
            chat.bind(response_format={"type": "json_schema", "json_schema": {"schema": OPEN}}).invoke("Hi")
        assert server.requests == []


def test_an_agent_answers_with_any_keys_in_a_tool_call() -> None:
    answer = ScriptedCall("Counts", '{"by_name": {"screws": 7}}')
    with ModelServer(script=[Scripted(tool_calls=(answer,))], strict="anthropic") as server:
        with ChatCtx(**WIRES["anthropic_messages"].settings(server)) as chat:
            agent = create_agent(chat, [], response_format=ToolStrategy(Counts))
            state = agent.invoke({"messages": [("user", "How many?")]})
        assert state["structured_response"] == Counts(by_name={"screws": 7})


@CLOSING
def test_a_class_without_fields_is_closed_as_it_is(wire: str) -> None:
    served = ModelServer(script=[Scripted("{}")], strict=WIRES[wire].strict)
    with served as server, ChatCtx(**WIRES[wire].settings(server)) as chat:
        assert chat.with_structured_output(Nothing, method="json_schema").invoke("Hi") == Nothing()


@CLOSING
def test_a_schema_may_have_booleans_in_place_of_schemas(wire: str) -> None:
    """`true` takes any value and `false` none; `additionalProperties` beside fields says what the API does not allow."""
    fields = {"any": True, "never": False, "either": {"anyOf": [{"type": "string"}, False]}, "rows": {"items": True}}
    schema = {"title": "A", "type": "object", "properties": fields, "additionalProperties": True}
    with ModelServer(script=[Scripted("{}")], strict=WIRES[wire].strict) as server:
        with ChatCtx(**WIRES[wire].settings(server)) as chat:
            assert chat.with_structured_output(schema, method="json_schema").invoke("Hi") == {}
        body = server.requests[0].body
    config = body.get("output_config") or body["outputConfig"]
    form = config.get("format") or config["textFormat"]["structure"]["jsonSchema"]
    own = form["schema"] if isinstance(form["schema"], dict) else json.loads(form["schema"])
    taken = {"any": {}, "either": {"anyOf": [{"type": "string"}]}, "rows": {"description": "{items: True}"}}
    assert own == {"title": "A", "type": "object", "properties": taken, "additionalProperties": False}


@WIRE
def test_a_document_of_plain_text_is_read_on_every_wire(wire: str) -> None:
    """LangChain's block `text-plain` went to the service as it is, or as a note that it cannot be shown."""
    document = {"type": "text-plain", "text": "The gate code is 7731.", "mime_type": "text/plain", "title": "Gates"}
    asked = HumanMessage([{"type": "text", "text": "What does it say?"}, document])
    with ModelServer(script=[Scripted("Noted.")], strict=WIRES[wire].strict) as server:
        with ChatCtx(**WIRES[wire].settings(server), session_id="s", context_window=8_000) as chat:
            chat.invoke([asked])
            assert [hit.role for hit in chat.context().search("gate code")] == ["user"]
        sent = json.dumps(server.requests[0].body)
        assert "The gate code is 7731." in sent
        assert "text-plain" not in sent
    with CtxChatMessageHistory("s", context_window=8_000) as history:
        history.add_messages([asked])
        assert history.messages[0].content == asked.content, "a model of LangChain gets the block itself"
