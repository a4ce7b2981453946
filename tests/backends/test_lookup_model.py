"""The built-in `lookup` model: what it finds, what it does not know, how it summarises."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ctxfold.testing import ModelServer
from tests.backends.chat_client import Json, assistant, call, deltas, error, events, post, result, say, tool, user


@pytest.fixture
def lookup() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


FACTS = [
    {"role": "system", "content": "You are a helpful assistant. Answer briefly."},
    user("Hi! My dog's name is Rex. My sister Anna lives in Bergen."),
    assistant("Noted."),
    user("The launch of project Falcon is on 3 March. We chose PostgreSQL for the billing service."),
    assistant("Noted. The invoice INV-2291 is still open."),
    user("I prefer window seats. Dr. Lee said that I must never take aspirin."),
    assistant("", tool_calls=[call("c1", arguments='{"flight": "SK4035"}')]),
    result("c1", '{"flight": "SK4035", "gate": "B12", "legs": [{"from": "Oslo", "departs": "09:40"}]}'),
    assistant("Noted."),
    user("李雷的电话是13800138000。韩梅梅住在上海。我的猫叫雪球。"),
    assistant("好的。"),
]


class TestLookup:
    @pytest.mark.parametrize(
        ("question", "part"),
        [
            ("What is the name of my dog?", "My dog's name is Rex."),
            ("What is my dog called?", "My dog's name is Rex."),
            ("Where does Anna live?", "My sister Anna lives in Bergen."),
            ("When is the launch of Falcon?", "is on 3 March."),
            ("Which database did we choose for the billing service?", "PostgreSQL"),
            ("Which invoice is open?", "INV-2291"),
            ("Which seats do I prefer", "I prefer window seats."),
            ("What must I never take?", "aspirin"),
            ("What is the gate of flight SK4035?", "gate: B12"),
            ("When does the leg from Oslo depart?", "departs: 09:40"),
            ("Thanks! By the way, tell me where my sister lives.", "Bergen"),
            ("李雷的电话是多少？", "李雷的电话是13800138000。"),
            ("韩梅梅住在哪里？", "韩梅梅住在上海。"),
            ("我的猫叫什么名字？", "我的猫叫雪球。"),
        ],
    )
    def test_finds_what_the_request_says_and_nothing_else(self, lookup: ModelServer, question: str, part: str) -> None:
        assert part in say(lookup, [*FACTS, user(question)])["content"]
        rest = [one for one in FACTS if part not in str(one["content"]) and not self._holds(one, part)]
        unknown = "我不知道。" if "？" in question else "I do not know."
        assert say(lookup, [*rest, user(question)])["content"] == unknown

    @staticmethod
    def _holds(message: Json, part: str) -> bool:
        return message["role"] == "tool" and all(word in message["content"] for word in part.split(": "))

    @pytest.mark.parametrize(
        "question",
        [
            "What is my cat's name?",
            "Where does Bob live?",
            "What is the gate of flight SK9999?",
            "王伟的电话是多少？",
        ],
    )
    def test_what_was_never_said_is_not_known(self, lookup: ModelServer, question: str) -> None:
        content = say(lookup, [*FACTS, user(question)])["content"]
        assert content in ("I do not know.", "我不知道。")

    def test_the_newer_of_two_equal_sentences_wins(self, lookup: ModelServer) -> None:
        history = [
            user("My favourite colour is blue."),
            assistant("Noted."),
            user("My favorite color is now green."),
        ]
        asked = [*history, assistant("Noted."), user("What is my favourite colour?")]
        assert say(lookup, asked)["content"] == "My favorite color is now green."
        assert say(lookup, asked) == say(lookup, asked)

    def test_of_equal_matches_the_one_that_holds_what_is_asked_for_wins(self, lookup: ModelServer) -> None:
        history = [user("The launch of Falcon is on 3 March."), user("We discussed the launch of Falcon.")]
        assert say(lookup, [*history, user("When is the launch of Falcon?")])["content"].endswith("3 March.")

    @pytest.mark.parametrize(
        ("question", "answer"),
        [
            ("How much does item K7 cost?", "Item K7 costs 40 dollars."),
            ("When was item K7 bought?", "It was bought in 2017."),
        ],
    )
    def test_a_pronoun_speaks_of_the_sentence_before(self, lookup: ModelServer, question: str, answer: str) -> None:
        told = user("Item K7 costs 40 dollars. It was bought in 2017. Item K8 costs 50 dollars.")
        assert say(lookup, [told, assistant("Noted."), user(question)])["content"] == answer

    def test_yes_or_no_is_answered_with_the_evidence(self, lookup: ModelServer) -> None:
        asked = [user("My dog is called Rex."), assistant("Noted."), user("Is my dog called Rex?")]
        assert say(lookup, asked)["content"] == "My dog is called Rex."

    def test_neither_the_same_question_nor_its_own_ignorance_is_an_answer(self, lookup: ModelServer) -> None:
        question = user("Tell me the code of the blue door.")
        asked = [question, assistant("I do not know."), question]
        assert say(lookup, asked)["content"] == "I do not know."
        told = [
            user("My order is A-17, where is it?"),
            assistant("I do not know."),
            user("What is my order?"),
        ]
        assert say(lookup, told)["content"] == "My order is A-17"

    def test_a_note_after_the_question_does_not_hide_it(self, lookup: ModelServer) -> None:
        asked = [user("Where does Anna live?"), user("Recalled: Anna lives in Bergen.")]
        assert say(lookup, asked)["content"].endswith("Anna lives in Bergen.")

    def test_statements_are_acknowledged_and_tool_results_reported(self, lookup: ModelServer) -> None:
        assert say(lookup, [user("I moved to Oslo.")])["content"] == "Noted."
        assert say(lookup, [user("我搬到了北京。")])["content"] == "好的。"
        rounds = [
            user("Check the gate."),
            assistant("", tool_calls=[call("c")]),
            result("c", '{"gate": "B12"}'),
        ]
        assert say(lookup, rounds)["content"] == "gate: B12"

    def test_reasoning_says_where_it_looked(self) -> None:
        with ModelServer(reasoning=True) as server:
            reply = say(server, [*FACTS, user("Where does Anna live?")])
            streamed = post(server, [*FACTS, user("Where does Anna live?")], stream=True).text
        assert "message 1 (user)" in reply["reasoning_content"]
        assert deltas(events(streamed), "reasoning_content") == reply["reasoning_content"]

    def test_long_answers_stop_at_max_tokens(self, lookup: ModelServer) -> None:
        body = post(lookup, [*FACTS, user("What must I never take?")], max_tokens=4).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] <= 4

    def test_calls_the_tools_it_is_asked_to_call(self, lookup: ModelServer) -> None:
        tools = [tool("look"), tool("book")]
        asked = user('Please call look with {"city": "Oslo"} and call book with {"seat": {"row": 3}}.')
        reply = say(lookup, [asked], tools=tools)
        made = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in reply["tool_calls"]]
        assert made == [("look", {"city": "Oslo"}), ("book", {"seat": {"row": 3}})]
        assert len({one["id"] for one in reply["tool_calls"]}) == 2
        results = [result(one["id"], "done") for one in reply["tool_calls"]]
        assert say(lookup, [asked, reply, *results], tools=tools)["content"] == "done"
        assert "tool_calls" not in say(lookup, [asked], tools=tools, tool_choice="none")
        assert "tool_calls" not in say(lookup, [asked])
        recalled = user('Passages recalled:\n- #3 user: Please call look with {"city": "Oslo"}.')
        assert "tool_calls" not in say(lookup, [asked, reply, *results, recalled], tools=tools)

    def test_forced_calls_get_minimal_arguments(self, lookup: ModelServer) -> None:
        parameters = {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 2},
                "units": {"enum": ["C", "F"]},
                "days": {"type": "integer", "minimum": 1},
                "spot": {"$ref": "#/$defs/Spot"},
                "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "extra": {"type": "string"},
            },
            "required": ["city", "units", "days", "spot", "tags"],
            "$defs": {"Spot": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        }
        tools = [tool("look"), tool("weather", parameters)]
        choice = {"type": "function", "function": {"name": "weather"}}
        [made] = say(lookup, [user("x")], tools=tools, tool_choice=choice)["tool_calls"]
        expected = {"city": "xx", "units": "C", "days": 1, "spot": {"x": 0}, "tags": [""]}
        assert json.loads(made["function"]["arguments"]) == expected
        [made] = say(lookup, [user("x")], tools=tools, tool_choice="required")["tool_calls"]
        assert made["function"] == {"name": "look", "arguments": "{}"}
        assert "no such tool" in error(lookup, [user("x")], tool_choice="required")["message"]

    def test_json_of_the_shape_that_is_asked_for(self, lookup: ModelServer) -> None:
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        shape = {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}
        assert json.loads(say(lookup, [user("x")], response_format=shape)["content"]) == {"ok": False}
        assert say(lookup, [user("x")], response_format={"type": "json_object"})["content"] == "{}"


TRANSCRIPT = (
    "user: Hello there.\nassistant: Noted.\nuser: My flight SK4035 leaves Oslo on 3 March.\n"
    "assistant: Noted.\nuser: How are you?\nuser: My flight SK4035 leaves Oslo on 3 March.\n"
    "user: I must never take aspirin.\n"
    "user: 我的电话是13800138000。\nassistant: Well then.\n"
)
KEPT = ["My flight SK4035 leaves Oslo on 3 March.", "I must never take aspirin.", "我的电话是13800138000。"]


class TestSummaries:
    @pytest.mark.parametrize(
        "messages",
        [
            [
                {"role": "system", "content": "Summarise the transcript. Never drop a number."},
                user(TRANSCRIPT),
            ],
            [user(f"Write a short summary of this conversation. Never drop a number.\n\n{TRANSCRIPT}")],
            [user(f"Summarize what follows:\n{TRANSCRIPT}")],
            [
                user(
                    "<role>Context Extraction</role>\nExtract the most important context.\n"
                    f"<messages>\n{TRANSCRIPT}</messages>"
                )
            ],
            [user(f"请总结以下对话:\n{TRANSCRIPT}")],
        ],
    )
    def test_keeps_the_facts_in_order_once(self, lookup: ModelServer, messages: list[Json]) -> None:
        text = say(lookup, messages)["content"]
        assert [line.removeprefix("user: ") for line in text.splitlines()] == KEPT

    def test_summarises_the_conversation_itself(self, lookup: ModelServer) -> None:
        text = say(lookup, [user(KEPT[0]), assistant("Noted."), user("Please summarise our conversation.")])["content"]
        assert text == KEPT[0]

    @pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
    def test_stays_within_the_limit(self, lookup: ModelServer, limit: str) -> None:
        body = post(lookup, [user(f"Summarise this:\n{TRANSCRIPT}")], **{limit: 20}).json()
        assert 0 < body["usage"]["completion_tokens"] <= 20
        assert body["choices"][0]["finish_reason"] == "stop"

    def test_a_summary_among_the_messages_is_read_and_not_an_order(self, lookup: ModelServer) -> None:
        messages = [
            {"role": "system", "content": "Be helpful. You are given a summary of earlier messages."},
            user(f"Summary of the earlier conversation:\n{TRANSCRIPT}"),
            user("What must I never take?"),
        ]
        assert say(lookup, messages)["content"] == KEPT[1]
        assert (
            say(lookup, [user("The report is done."), user("What did the summary say?")])["content"] == "I do not know."
        )
