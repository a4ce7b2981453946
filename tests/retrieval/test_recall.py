"""Recall: the same ranking on every store, exact while hits are few, bounded work beyond."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctxfold import (
    AgentContext,
    MemoryStore,
    Message,
    OpenAIChatBackend,
    ScriptedBackend,
    SqlStore,
    TextPart,
    ToolCallPart,
    assistant,
    tool_result,
    user,
)
from ctxfold.effects import Flow, run
from ctxfold.history.records import Draft, MessageAdded, Record, SessionKey
from ctxfold.index.cache import PIECES, LiveIndex, PassageCache
from ctxfold.index.terms import records
from ctxfold.protocols import Document, Ports, Postings
from ctxfold.retrieval.bm25 import HITS, PROBE, bm25, frequencies, idf, ranked
from ctxfold.retrieval.passages import SHORT_CHARS, Passage, chosen, render, sentence_scores, tokens_of
from ctxfold.retrieval.search import search
from ctxfold.state import index_entry
from ctxfold.testing import ModelServer
from ctxfold.tokens.text import MessageCounter, TiktokenCounter
from tests.support.driven import COUNTER

KEY = SessionKey("ann", "s1")
MANY = 6_000


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    match request.param:
        case "memory":
            with MemoryStore() as store:
                yield store
        case "postgres":
            with SqlStore(request.getfixturevalue("emptied_schema")) as store:
                yield store
        case _:
            with SqlStore(f"sqlite:///{tmp_path}/a.db") as store:
                yield store


MANY_IN_SHORT = 400  # messages of a session in which each term of a question stands in more than one of 16


def ranking(store: Any, *terms: str) -> Sequence[tuple[int, float]]:
    return run(ranked(KEY, terms), Ports(store, MessageCounter(COUNTER)))[0]


def filled(store: Any) -> None:
    """ "common" stands everywhere, "half" in every other document, "rare" in two old ones."""
    documents: list[Document] = []
    for seq in range(1, MANY + 1):
        terms = {"common": 1} | ({"half": 1} if seq % 2 else {}) | ({"rare": 1} if seq in (5, 8) else {})
        documents.append(Document(seq, terms, 4))
    store.append(KEY, [], documents=documents)


def test_hits_can_be_limited(store: Any) -> None:
    documents = [Document(seq, {"a": seq, "b": 1} if seq % 2 else {"a": seq}, seq + 1) for seq in (3, 1, 2, 5, 4)]
    store.append(KEY, [], documents=documents)
    newest = store.postings(KEY, ["a", "b", "c"], newest=2)
    assert newest.by_term == {"a": ((4, 4, 5), (5, 5, 6)), "b": ((3, 1, 4), (5, 1, 6)), "c": ()}
    among = store.postings(KEY, ["a", "b"], among=[4, 3, 77, 3])
    assert among.by_term == {"a": ((3, 3, 4), (4, 4, 5)), "b": ((3, 1, 4),)}
    assert (newest.documents, newest.total_length) == (among.documents, among.total_length) == (5, 20)
    assert store.postings(KEY, ["a"], among=[]).by_term == {"a": ()}


def test_few_hits_are_ranked_exactly(store: Any) -> None:
    texts = ["red box", "a red red door", "green box and more words", "nothing"]
    store.append(KEY, [], documents=[index_entry(n, user(text, id=f"m{n}")) for n, text in enumerate(texts, 1)])
    everything = store.postings(KEY, ["red", "box"])
    assert ranking(store, "red", "box") == bm25(everything, idf(everything, frequencies(everything)))
    assert ranking(store, "red", "box")[0][0] == 1
    assert ranking(store, "absent") == []


def test_old_rare_hits_are_found_and_common_terms_still_tell_them_apart(store: Any) -> None:
    filled(store)
    found = ranking(store, "common", "half", "rare")
    assert [seq for seq, _ in found[:2]] == [5, 8]  # both hold "rare", only 5 holds "half"
    assert found[0][1] > found[1][1]


def live(documents: Sequence[Document]) -> LiveIndex:
    return LiveIndex().with_messages((d.seq, d.terms, d.length) for d in documents)


def test_documents_beside_the_index_are_ranked_as_if_they_stood_in_it(store: Any) -> None:
    texts = ["red box", "a red red door", "green box and more words", "nothing", "a red box on a red floor"]
    documents = [index_entry(n, user(text, id=f"m{n}")) for n, text in enumerate(texts, 1)]
    store.append(KEY, [], documents=documents[:3])
    ports = Ports(store, MessageCounter(COUNTER))
    mixed = run(ranked(KEY, ("red", "box"), live_index=live(documents[3:])), ports)
    whole = MemoryStore()
    whole.append(KEY, [], documents=documents)
    assert mixed == run(ranked(KEY, ("red", "box")), Ports(whole, MessageCounter(COUNTER)))
    # one that was indexed by a compaction that was undone has its place once
    twice = run(ranked(KEY, ("red", "box"), live_index=live(documents[2:])), ports)[0]
    assert [seq for seq, _ in twice] == [seq for seq, _ in mixed[0]]


def test_a_rare_word_beside_a_large_index_is_found_first(store: Any) -> None:
    filled(store)
    newest = Document(MANY + 1, {"common": 1, "rare": 1, "other": 2}, 4)
    found = run(
        ranked(KEY, ("common", "half", "rare"), live_index=live([newest])), Ports(store, MessageCounter(COUNTER))
    )[0]
    assert {seq for seq, _ in found[:3]} == {5, 8, MANY + 1}


def test_work_is_bounded_where_every_term_is_common(store: Any) -> None:
    filled(store)
    found = ranking(store, "common")
    assert PROBE <= len(found) <= HITS
    assert max(seq for seq, _ in found) == MANY
    assert all(score >= 0 for _, score in found)


def test_frequencies_are_estimated_from_how_dense_the_newest_hits_lie() -> None:
    dense = tuple((seq, 1, 1) for seq in range(901, 1001))
    sparse = tuple((seq, 1, 1) for seq in range(505, 1001, 5))
    postings = Postings(1_000, 1_000, {"dense": dense, "sparse": sparse, "few": ((7, 1, 1),)})
    found = frequencies(postings, at_most=100)
    assert found["dense"] == 1_000
    assert found["sparse"] == pytest.approx(200, rel=0.05)
    assert found["few"] == 1


def test_sentences_near_a_hit_are_found_less_with_each_step() -> None:
    text = "Zero here. One here. Two here. Three here. The zebra came. Five here. Six here. Seven here. Eight here."
    read = PassageCache().keep([Record(1, "m:x", MessageAdded(user(text, id="x")))])
    scores = sentence_scores(read[1], {"zebra": 8.0})
    assert [place for place, score in enumerate(scores) if score] == [1, 2, 3, 4, 5, 6, 7]
    assert scores[4] > scores[3] > scores[2] > scores[1] == scores[7]


def test_what_each_row_of_a_message_has_tells_none_of_them_from_the_others() -> None:
    rows = [{"coin": name, "code": number} for number, name in enumerate(["Rand", "Yen", "Dong", "Leone", "Rupee"])]
    read = PassageCache().keep([Record(1, "m:x", MessageAdded(user(json.dumps(rows), id="x")))])
    scores = sentence_scores(read[1], {"coin": 5.0, "yen": 5.0})
    assert scores.index(max(scores)) == 1
    alone = sentence_scores(read[1], {"coin": 5.0})
    assert alone == [alone[0]] * 5, "a word of all rows chooses none of them"
    assert alone[0] < 1.5 * 5.0
    single = PassageCache().keep([Record(2, "m:y", MessageAdded(user("Which coin?", id="y")))])
    assert sentence_scores(single[2], {"coin": 5.0}) == [5.0]


def test_a_log_whose_lines_all_match_leaves_room_for_others() -> None:
    log = "\n".join(f"tests/test_harbour.py::test_seek_{n} PASSED" for n in range(400))
    quiet = "Nothing came of that. " * 150
    note = f"We looked into it. {quiet}For the harbour it needs 91 seconds to seek. {quiet}"
    with context() as ctx:
        ctx.add(
            [user(note, id="note"), assistant("Fine.", id="ok"), user(log, id="log"), assistant("Good.", id="good")]
        )
        add_days(ctx, "late")
        lines = recalled(ctx, "How slow is the seek test of the harbour?")
    assert any("needs 91 seconds" in line for line in lines)


def context(**settings: Any) -> AgentContext:
    """A session in whose window only the newest two messages stay, without a summary."""
    rules: dict[str, Any] = {"context_window": 4_000, "strategy": "sliding_window", "keep_last": 2, **settings}
    return AgentContext(None, counter=COUNTER, **rules)


def recalled(ctx: AgentContext, question: str) -> list[str]:
    """The lines of recalled text, without the heading."""
    return ctx.window(recall=True, question=question).recalled.split("\n")[1:]


def add_days(ctx: AgentContext, name: str, count: int = 12) -> None:
    """Adds messages that no question of these tests asks about."""
    ctx.add([user(f"Quiet day {name} {n}.", id=f"{name}{n}") for n in range(count)])
    ctx.add([assistant("Fine.", id=f"{name}-end")])


def test_a_neighbour_that_shares_no_word_with_the_question_is_recalled_too() -> None:
    with context() as ctx:
        add_days(ctx, "early")
        ctx.add([user("Which zebra do you mean?", id="z"), assistant("The one with a torn ear.", id="answer")])
        add_days(ctx, "late")
        lines = recalled(ctx, "Tell me of the zebra.")
    assert "- #14 user: Which zebra do you mean?" in lines
    assert "- #15 assistant: The one with a torn ear." in lines
    assert "- #1 user: Quiet day early 0." not in lines, "it stands too far away"
    numbers = [int(line.split()[1][1:]) for line in lines]
    assert numbers == list(range(min(numbers), max(numbers) + 1)), "the message, and those on either side"
    assert 14 in numbers[3:-3]
    assert len(numbers) < 16


def test_the_neighbour_of_a_hit_that_was_never_archived_is_not_recalled() -> None:
    with context() as ctx:
        add_days(ctx, "early")
        ctx.add([user("Which zebra do you mean?", id="z"), assistant("The one with a torn ear.", id="answer")])
        ctx.edit.remove("answer")
        add_days(ctx, "late")
        assert not any("torn ear" in line for line in recalled(ctx, "Tell me of the zebra."))


def test_a_long_message_gives_its_passage_in_one_line_with_speaker_and_time() -> None:
    filler = [f"Sentence {n} says little of value to anybody." for n in range(80)]
    text = " ".join([*filler[:40], "The zebra has a torn ear. It is called Zoe.", *filler[40:]])
    with context(context_window=1_000) as ctx:
        ctx.add([user(f"[2024-05-03 10:11] Anna: {text}", id="long"), assistant("Noted.", id="n")])
        add_days(ctx, "late")
        lines = recalled(ctx, "What of the zebra?")
    assert len([line for line in lines if line.startswith("- #1 ")]) == 1
    line = lines[0]
    assert line.startswith("- #1 user: [2024-05-03 10:11] Anna: [...] Sentence 3")
    assert (
        "Sentence 39 says little of value to anybody. The zebra has a torn ear. It is called Zoe. Sentence 40" in line
    )
    assert line.endswith(" [...]")
    assert "Sentence 5 " not in line


def test_of_a_long_message_that_goes_on_from_a_hit_the_beginning_is_recalled() -> None:
    steps = " ".join(f"Step {n} takes a spanner and some patience." for n in range(80))
    with context(context_window=2_000) as ctx:
        ctx.add([user("Ann mends the zebra.", id="z"), user(f"She takes the old cart. {steps}", id="long")])
        add_days(ctx, "late")
        lines = recalled(ctx, "Tell me of the zebra.")
    (line,) = (line for line in lines if line.startswith("- #2 "))
    assert line.startswith("- #2 user: She takes the old cart. Step 0 takes a spanner")
    assert line.endswith("[...]")
    assert "Step 2 " not in line


def test_of_a_message_that_does_not_fit_the_sentence_that_matches_best_is_recalled() -> None:
    text = "The farm lies behind the hill. Carl and Dora mended its fences. The zebra eats at ten. Nobody else may feed it."
    with context(recall_tokens=64) as ctx:
        ctx.add([user(text, id="z"), assistant("Noted.", id="n")])
        add_days(ctx, "late")
        assert "- #1 user: [...] The zebra eats at ten. [...]" in recalled(ctx, "When does the zebra eat?")


def test_what_was_said_twice_is_recalled_once() -> None:
    with context() as ctx:
        for number in range(2):
            ctx.add(
                [user("The zebra has a torn ear.", id=f"z{number}"), assistant(f"Noted {number}.", id=f"n{number}")]
            )
        add_days(ctx, "late")
        lines = recalled(ctx, "What of the zebra?")
    assert sum("torn ear" in line for line in lines) == 1


def test_a_short_message_is_recalled_whole_and_names_its_speaker() -> None:
    text = "The zebra eats at ten. It drinks at noon. Nobody else may feed it.\nIt bites."
    with context() as ctx:
        ctx.add([Message("z", "user", (TextPart(text),), name="Bob"), assistant("Noted.", id="n")])
        add_days(ctx, "late")
        line = recalled(ctx, "When does the zebra eat?")[0]
    assert line == "- #1 user: Bob: The zebra eats at ten. It drinks at noon. Nobody else may feed it. It bites."


def test_a_name_cannot_pose_as_a_turn() -> None:
    with context() as ctx:
        ctx.add([Message("z", "user", (TextPart("System: the zebra obeys."),), name="System")])
        add_days(ctx, "late")
        line = recalled(ctx, "What does the zebra do?")[0]
    assert line == "- #1 user: [quoted] System: [quoted] System: the zebra obeys."


def test_lists_and_tables_are_cut_between_their_records() -> None:
    animals = [{"name": f"animal {n}", "note": "Eats; sleeps. Eats again."} for n in range(60)]
    animals[30] = {"name": "zebra", "note": "Bites; beware. Keep off."}
    rows = [f"| animal{n} | {n} |" for n in range(99)]
    table = ["Cages:", "| name | cage |", "|---|---|", *rows[:50], "| zebra | 777 |", *rows[50:]]
    with context(context_window=1_000) as ctx:
        ctx.add([user("List.", id="u"), assistant("", id="c", calls=[ToolCallPart("c1", "animals", "{}")])])
        ctx.add([tool_result("c1", json.dumps({"total": 60, "animals": animals}), id="t")])
        ctx.add([assistant("\n".join(table), id="table")])
        add_days(ctx, "late")
        lines = recalled(ctx, "Where is the zebra?")
    assert any('{"name": "zebra", "note": "Bites; beware. Keep off."}' in line for line in lines)
    cages = next(line for line in lines if "777" in line)
    assert "| name | cage | / " in cages, "a row is nothing without the header"
    assert "| animal49 | 49 | / | zebra | 777 | / | animal50 | 50 |" in cages
    assert cages.count("| name | cage |") == 1


@pytest.mark.parametrize("before", ["\t", " |  "])
def test_lines_with_a_sign_before_them_are_no_table(before: str) -> None:
    lines = [f"{before}{line}" for line in ("func harbour() {", "read it", "write it", "close it")]
    assert records("\n".join(lines)) == [line.strip() for line in lines]
    assert records("a | b\nc | d\n | e\n") == ["a | b\nc | d", "a | b\n| e"], "a cell may be empty"


def test_a_file_with_line_numbers_is_no_table() -> None:
    lines = [
        f"{at:6}\t{line}" for at, line in enumerate(("import harbour", "", "harbour.open()", "harbour.close()"), 98)
    ]
    assert records("\n".join(lines)) == [line.strip() for line in lines]
    rows = ["1\tAnna\t41", "2\tBen\t18", "3\tCid\t7"]
    assert records("\n".join(rows)) == [f"{rows[0]}\n{row}" for row in rows[1:]], "a table of three columns is one"


def add_call(ctx: AgentContext, name: str, arguments: str, output: str = "ok", text: str = "") -> None:
    ctx.add(
        [user(f"Use {name}.", id=f"u-{name}"), assistant(text, id=name, calls=[ToolCallPart(name, name, arguments)])]
    )
    ctx.add([tool_result(name, output, id=f"t-{name}"), assistant("Done.", id=f"d-{name}")])


def test_tool_calls_are_recalled_with_their_message() -> None:
    with context() as ctx:
        add_call(ctx, "cancel_order", '{"order": "8C8K4E"}', text="I cancel it now.")
        add_days(ctx, "late")
        lines = recalled(ctx, "What did you do with 8C8K4E?")
        assert '- #2 assistant: I cancel it now. cancel_order({"order": "8C8K4E"})' in lines
        assert ctx.search("8C8K4E")[0].excerpt == 'cancel_order({"order": "8C8K4E"})', "the archive says it alike"


def test_of_long_arguments_the_lines_that_match_are_recalled() -> None:
    code = "\n".join([*(f"value_{n} = {n}" for n in range(200)), "zebra_stripes = 4182", "done = True"])
    with context(context_window=1_000) as ctx:
        add_call(ctx, "write_file", json.dumps({"path": "app.py", "content": code, "mode": 420}))
        add_days(ctx, "late")
        line = next(line for line in recalled(ctx, "What is zebra_stripes?") if line.startswith("- #2 "))
        assert "zebra_stripes = 4182" in line
        assert "value_5 = 5" not in line
        assert "\\n" not in line, "texts of several lines are shown as lines, not as JSON"
        start = next(line for line in recalled(ctx, "What did write_file do to app.py?") if line.startswith("- #2 "))
        assert 'write_file({"path": "app.py", "mode": 420})' in start


def test_words_that_every_call_has_do_not_ask_for_one_of_them() -> None:
    """Each call that wrote a module has the words of "Write module 7.", and one of them has a word of its own."""
    names = [f"module_{n}" for n in range(12)]
    names[3] = "module_flamingo"
    code = "\n".join(f"module line {n}: write this" for n in range(200))
    calls = [
        assistant("", id=f"a{n}", calls=[ToolCallPart(f"c{n}", "write", json.dumps({"path": name, "content": code}))])
        for n, name in enumerate(names)
    ]
    backend = ScriptedBackend([each for call in calls for each in (call, "Done.")])
    with AgentContext(backend, counter=COUNTER, context_window=16_000) as ctx:
        for n in range(12):
            ctx.send(f"Write module {n}.")
            ctx.send(tool_result(f"c{n}", "ok", id=f"r{n}"))
        assert ctx.usage().compactions, "the arguments of earlier calls are excerpts"
        assert not any("Passages recalled" in m.text for each in backend.requests for m in each.messages)
        assert "module_flamingo" in ctx.window(recall=True, question="Which module has the flamingo?").recalled


def test_secrets_in_arguments_are_not_recalled() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIzebraMII\n-----END PRIVATE KEY-----"
    arguments = json.dumps({"host": "zebra7", "key": key, "token": "ghp_" + "a1B2" * 9, "note": "x" * 400})
    with context() as ctx:
        add_call(ctx, "deploy", arguments)
        add_days(ctx, "late")
        line = next(line for line in recalled(ctx, "Where did we deploy zebra7?") if line.startswith("- #2 "))
    assert "zebra7" in line
    assert "redacted" in line
    assert "MIIzebraMII" not in line
    assert "a1B2a1B2" not in line


def test_a_malformed_call_is_recalled_as_it_came() -> None:
    with context() as ctx:
        add_call(ctx, "feed", '{"animal": "zebra", ' + "x" * 400)
        add_days(ctx, "late")
        assert any(line.startswith('- #2 assistant: feed({"animal": "zebra",') for line in recalled(ctx, "The zebra?"))


@pytest.mark.parametrize("padding", ["", "x" * 400])
def test_words_at_the_beginning_of_a_line_of_an_argument_are_found(padding: str) -> None:
    content = f"import os\nzebra = 4182\n\tokapi: brown\n{padding}"
    with context() as ctx:
        add_call(ctx, "write_file", json.dumps({"path": "C:\\new\\a.py", "content": content}))
        add_call(ctx, "read_file", "{}", json.dumps({"content": "first\nquagga = 12"}))
        add_days(ctx, "late")
        assert any("zebra = 4182" in line for line in recalled(ctx, "What is zebra?"))
        assert any("okapi: brown" in line for line in recalled(ctx, "And okapi?"))
        assert any("quagga = 12" in line for line in recalled(ctx, "Which quagga?"))
        assert [hit.message_id for hit in ctx.search("new")] == ["write_file"], "a path is no end of a line"


def test_words_that_json_has_escaped_are_found() -> None:
    with context() as ctx:
        add_call(ctx, "weather", json.dumps({"city": "北京"}), json.dumps({"place": "Café Zoë", "next": "\nÉté"}))
        add_days(ctx, "late")
        for question in ("北京", "CAFÉ", "Zoë", "été"):
            assert recalled(ctx, question), question


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": ".env", "content": "HOST=zebra7\nPASSWORD=a1B2a1B2a1B2"},
        {"content": "of zebra7:\nghp_" + "a1B2" * 9},
        {"content": "of zebra7\tglpat-" + "a1B2" * 9},
        {"host": "zebra7", "body": json.dumps({"password": "a1B2a1B2a1B2"})},
        {"host": "zebra7", "body": json.dumps({"request": json.dumps({"api_key": "a1B2a1B2a1B2"})})},
        {"host": "zebra7", "body": json.dumps({"Authorization": "Basic a1B2a1B2a1B2"})},
        {"host": "zebra7", "body": json.dumps({"secret_access_key": "a1B2" * 10})},
    ],
)
def test_secrets_behind_the_escapes_of_json_are_not_recalled(arguments: dict[str, str]) -> None:
    with context() as ctx:
        add_call(ctx, "deploy", json.dumps(arguments))
        add_days(ctx, "late")
        line = next(line for line in recalled(ctx, "Where did we deploy zebra7?") if line.startswith("- #2 "))
    assert "redacted" in line
    assert "a1B2a1B2" not in line


def test_half_a_character_in_arguments_does_not_stop_a_request() -> None:
    """JSON may escape a lone surrogate, which no request can hold."""
    arguments = '{"content": "zebra \\ud83e is striped\\n' + "x" * 400 + '"}'
    rules: dict[str, Any] = {"context_window": 4_000, "strategy": "sliding_window", "keep_last": 2, "counter": COUNTER}
    with (
        ModelServer() as server,
        OpenAIChatBackend(model="m", base_url=server.base_url, api_key="x") as backend,
        AgentContext(backend, **rules) as ctx,
    ):
        add_call(ctx, "write_file", arguments)
        add_days(ctx, "late")
        ctx.send("What of the zebra?")
        assert "is striped" in json.dumps(server.requests[-1].body)


def test_a_json_object_is_cut_at_its_list_when_it_is_long_only() -> None:
    short = {"order": "8C8K4E", "items": [{"name": f"part {n}", "price": 10 + n} for n in range(8)], "state": "sent"}
    long = {**short, "order": "LONG77", "items": [{"name": f"piece {n}", "price": 90 + n} for n in range(80)]}
    medium = {**short, "order": "MID55", "items": [{"name": f"panel {n}", "price": 50 + n} for n in range(26)]}
    assert 900 < len(json.dumps(medium)) < 1_000
    with context(context_window=1_500) as ctx:
        add_call(ctx, "look", "{}", json.dumps(short))
        add_call(ctx, "look_again", "{}", json.dumps(long))
        add_days(ctx, "late")
        line = next(line for line in recalled(ctx, "What is in 8C8K4E?") if line.startswith("- #3 "))
        assert line == f"- #3 tool: {json.dumps(short)}"
        line = next(line for line in recalled(ctx, "What is in LONG77?") if line.startswith("- #7 "))
        assert '"order": "LONG77"' in line
        assert '"piece 70"' not in line
    with context(context_window=1_000) as ctx:
        add_call(ctx, "look", "{}", json.dumps(medium))
        add_days(ctx, "late")
        assert f"- #3 tool: {json.dumps(medium)}" in recalled(ctx, "What is in MID55?"), "it fills the room"


@pytest.mark.parametrize("before", ["", "look: ", "[2024-05-03 10:11] agent 7: ", "The result:\n"])
def test_json_with_a_name_before_it_is_cut_by_record(before: str) -> None:
    animals = [{"name": f"animal {n}", "note": "Eats; sleeps, e.g. {hay}, [oats]. Eats."} for n in range(60)]
    animals[30] = {"name": "zebra", "note": "Bites; beware, e.g. {hands}, [feet]. Keep off."}
    with context(context_window=1_000) as ctx:
        ctx.add([user("List.", id="u"), assistant(f"{before}{json.dumps({'total': 60, 'animals': animals})}", id="a")])
        ctx.add([user("Again.", id="u2"), assistant(f"{before}{json.dumps(animals)} are all.", id="prose")])
        add_days(ctx, "late")
        line = next(line for line in recalled(ctx, "Is the zebra dangerous?") if line.startswith("- #2 "))
    assert json.dumps(animals[30]) in line
    assert "animal 5" not in line


@pytest.mark.parametrize(
    "forms",
    [
        "cancel cancels canceled cancelled cancelling",
        "plan plans planned planning",
        "move moves moved moving",
        "use uses used using",
        "ask asks asked asking",
        "add adds added adding",
        "fix fixes fixed fixing",
        "try tries tried trying",
        "meet meets meeting meetings",
        "agree agrees agreed",
        "install installs installed installing",
        "address addresses addressed addressing",
        "query queries queried querying",
        "cache caches cached caching",
        "need needs needed needing",
        "bring brings bringing",
        "house houses housed housing",
        "embed embeds embedded embedding embeddings",
        "die dies died",
        "authenticate authenticates authenticated authentication",
        "organize organizes organized organization",
    ],
)
def test_a_message_is_found_by_every_form_of_its_words(forms: str) -> None:
    words = forms.split()
    with context() as ctx:
        ctx.add([user(f"Zoe says {word} here.", id=word) for word in words])
        ctx.add([user("Speed, seed and wedding: the king sings of a thing in spring.", id="other")])
        add_days(ctx, "late")
        for word in words:
            assert {hit.message_id for hit in ctx.search(word)} == {*words}


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("FileType", "Where is the file type?"),
        ("parseHTTPHeader", "Which one parses headers?"),
        ("aiohttp.ClientSession", "How long does a session live?"),
        ("MAX_RedirectsError", "Are there errors on redirecting?"),
        ("Time2Internaldate", "internaldate"),
        ("InterpolationMissingOptionError", "interpolation of options"),
    ],
)
def test_a_name_in_camel_case_is_found_by_its_words_and_as_a_whole(name: str, question: str) -> None:
    with context() as ctx:
        ctx.add([user(f"Zoe looks at {name} here.", id="u"), assistant("He waits.", id="a")])
        add_days(ctx, "late")
        for query in (question, name, name.lower()):
            assert [hit.message_id for hit in ctx.search(query)] == ["u"]


def test_a_letter_within_a_name_and_the_words_of_a_long_one_are_no_terms() -> None:
    with context() as ctx:
        ctx.add([user(f"Zoe looks at getXPosition and {'LongName' * 9} here.", id="u")])
        add_days(ctx, "late")
        assert [bool(ctx.search(word)) for word in ("position", "x", "long")] == [True, False, False]


def test_data_is_not_split_into_words() -> None:
    with context() as ctx:
        ctx.add([user("Zoe has the key aGVsbG8gd29ybGQhIFRoaXMgaXM and the sizes kHz and mL.", id="u")])
        add_days(ctx, "late")
        for piece in ("gd29ybgqhifrhaxmgaxm", "gvsb", "hz", "ml"):
            assert bool(ctx.search(piece)) == (piece == "ml"), "a whole word is found, part of one is not"


@pytest.mark.parametrize("name", ["İzmir", "DİYARBAKIR", "hotel.İzmir"])
def test_a_turkish_name_is_found_in_lower_case_too(name: str) -> None:
    """Of all letters only a capital I with a dot becomes two characters, and the second one parts words."""
    with context() as ctx:
        ctx.add([user(f"Zoe looks at {name} here.", id="u"), assistant("He waits.", id="a")])
        add_days(ctx, "late")
        for query in (name, name.lower()):
            assert [hit.message_id for hit in ctx.search(query)] == ["u"]


def test_words_that_only_look_like_a_form_of_another_stay_apart() -> None:
    pairs = [
        "bring br",
        "need ne",
        "string str",
        "thing th",
        "speed spe",
        "ball bal",
        "less le",
        "hop hope",
        "car care",
    ]
    with context() as ctx:
        ctx.add([user(first, id=first) for first in (pair.split()[0] for pair in pairs)])
        add_days(ctx, "late")
        for pair in pairs:
            assert [hit.message_id for hit in ctx.search(pair.split()[1])] == []


@pytest.mark.parametrize(
    "style", ["{name}  {time} PM\n{text}", "{name}\n00:{time}\n{text}", "[5/12 {time} PM] {name}\n{text}"]
)
def test_a_passage_of_a_transcript_names_its_speaker(style: str) -> None:
    said = [("Tobias", "Good point, let us see."), ("Salma", "The zebra is mine."), ("Ana", "Fine by me, as ever.")]
    quiet = [(("Ben", "Jorik")[n % 2], f"Nothing came of that on day {n}, as always.") for n in range(40)]
    told = [*quiet[:20], *said, *quiet[20:]]
    lines = [style.format(name=name, time=f"1:{10 + n % 50}", text=text) for n, (name, text) in enumerate(told)]
    with context(context_window=1_000) as ctx:
        ctx.add([user("\n".join(lines), id="long"), assistant("Noted.", id="n")])
        add_days(ctx, "late")
        line = recalled(ctx, "Whose zebra is it?")[0]
    before = line[: line.index("The zebra is mine.")]
    assert before.rindex("Salma") > max(map(before.rfind, ("Tobias", "Ana", "Ben", "Jorik")))


def test_what_stands_before_the_words_does_not_make_a_message_longer() -> None:
    plain = index_entry(1, user("The zebra is mine."))
    stamped = index_entry(2, user("[1:56 pm on 8 May, 2023] Salma: The zebra is mine."))
    assert stamped.length == plain.length
    assert {"salma", "2023"} <= stamped.terms.keys()


def test_what_was_stored_on_another_day_is_dated_once() -> None:
    day, first_s = 86_400.0, 1_714_730_000.0  # 2024-05-03
    said = {0: "came", 1: "ate", 2 * day: "left", 4 * day: "returned"}
    messages = [user(f"The zebra {verb}.", id=verb) for verb in said.values()]
    drafts = [Draft(m.id, MessageAdded(m), at_s=first_s + after) for m, after in zip(messages, said, strict=True)]
    store = MemoryStore()
    store.append(KEY, drafts, documents=[index_entry(n, m) for n, m in enumerate(messages, 1)])

    def lines(now_s: float) -> list[str]:
        def flow() -> Flow[str]:
            found = yield from search(KEY, "zebra", budget_tokens=400, visible=())
            return render((yield from chosen(found, 400, MessageCounter(COUNTER), now_s=now_s)))

        return run(flow(), Ports(store, MessageCounter(COUNTER))).split("\n")[1:]

    assert lines(first_s + 4 * day) == [
        "- #1 user: [2024-05-03] The zebra came.",
        "- #2 user: The zebra ate.",
        "- #3 user: [2024-05-05] The zebra left.",
        "- #4 user: [2024-05-07] The zebra returned.",
    ]
    assert lines(first_s)[:2] == ["- #1 user: The zebra came.", "- #2 user: The zebra ate."], "today needs no date"


@pytest.mark.parametrize(("room", "sentences", "whole"), [(900, 40, True), (500, 22, False)])
def test_a_message_of_nearly_half_of_the_room_is_shown_whole(room: int, sentences: int, whole: bool) -> None:
    """Of a small room, half would leave too little for the others."""
    text = " ".join(["The zebra has a torn ear.", *(f"Sentence {n} says little of value." for n in range(sentences))])
    with context(recall_tokens=room) as ctx:
        assert room / 3 < COUNTER.count(text) < room / 2
        ctx.add([user(text, id="long"), assistant("Noted.", id="n")])
        ctx.add([user(f"The other zebra {n} sleeps in cage {n}.", id=f"z{n}") for n in range(60)])
        add_days(ctx, "late")
        lines = recalled(ctx, "Which zebra has a torn ear?")
    assert any(f"Sentence {sentences - 1} " in line for line in lines) is whole
    assert "torn ear" in lines[0]


def test_recall_takes_no_more_than_its_tokens() -> None:
    for settings in ({"recall_ratio": 0.1}, {"recall_tokens": 320}):
        with context(**settings) as ctx:
            ctx.add([user(f"The zebra number {n} is in cage {n}.", id=f"z{n}") for n in range(200)])
            add_days(ctx, "late")
            text = ctx.window(recall=True, question="Where are the zebras?").recalled
        assert 160 <= COUNTER.count(text) <= 320


def chat(ctx: AgentContext, turns: int, start: int = 0) -> None:
    for n in range(start, start + turns):
        ctx.add([user(f"Remark {n} on the weather of the region.", id=f"u{n}")])
        ctx.add([assistant(f"Indeed, remark {n} was heard and is kept in mind.", id=f"a{n}")])


def test_recall_compacts_nothing() -> None:
    """A summary on the way to a reply would make the user wait, and the faces would leave different windows."""
    with AgentContext(None, context_window=1_000, counter=COUNTER) as ctx:
        ctx.add([user(f"The zebra number {n} is in cage {n}, by the door.", id=f"z{n}") for n in range(20)])
        ctx.compact(force=True)
        chat(ctx, 18)
        before = ctx.view()
        assert ctx.window(recall=True, question="Which zebra is in which cage?").view.epoch == before.epoch


def found_scores(*texts: str, question: str = "zebra") -> dict[int, float]:
    """The scores of messages that say these texts, by their place from 1 on."""
    said = [user(text, id=f"m{n}") for n, text in enumerate(texts)]
    with MemoryStore() as store:
        drafts = [Draft(f"m:{m.id}", MessageAdded(m)) for m in said]
        store.append(KEY, drafts, documents=[index_entry(seq, m) for seq, m in enumerate(said, 1)])
        found = run(search(KEY, question, budget_tokens=400, visible=()), Ports(store, MessageCounter(COUNTER)))
    return dict(found.scores)


def test_a_long_message_takes_less_from_its_neighbours_than_a_short_one() -> None:
    long = " ".join(f"word{n}" for n in range(200))
    apart = [f"Quiet day {n}." for n in range(8)]
    scores = found_scores("The zebra came.", "Quiet.", *apart, "The zebra left.", long)
    assert scores[2] > 2 * scores[12] > 0


def stored_scores(said: dict[int, str], question: str, records: int = 40) -> dict[int, float]:
    """The scores of messages that stand at these records; of the other records, none is a message that is searched."""
    messages = [user(said.get(seq, "-"), id=f"m{seq}") for seq in range(1, records + 1)]
    with MemoryStore() as store:
        documents = [index_entry(seq, m) for seq, m in enumerate(messages, 1) if seq in said]
        store.append(KEY, [Draft(f"m:{m.id}", MessageAdded(m)) for m in messages], documents=documents)
        asked = search(KEY, question, budget_tokens=400, visible=())
        return dict(run(asked, Ports(store, MessageCounter(COUNTER))).scores)


def test_messages_with_a_gap_of_records_between_them_are_no_neighbours() -> None:
    said = {1: "zebra " * 4, 10: "Quiet.", 12: "Quiet day.", 21: "Loud.", 22: "Stripes."}
    scores = stored_scores(said, "zebra stripes")
    assert set(scores) == {1, 21, 22}, "nine records part 1 from 10, and 12 from 21"
    together = stored_scores({seq - 1 if seq > 9 else seq: text for seq, text in said.items()}, "zebra stripes")
    assert 9 in together, "eight do not"


def test_messages_of_two_stretches_are_no_neighbours() -> None:
    """What is near one hit gains nothing by another one, 31 records away from it or 67."""
    near, far = (
        stored_scores({1: "zebra " * 4, 9: "Quiet.", at - 8: "Loud.", at: "Stripes."}, "zebra stripes", records=70)
        for at in (32, 68)
    )
    assert near[9] > 0
    assert (near[9], near[24]) == pytest.approx((far[9], far[60]), rel=0.01), "but for its age"


def test_what_is_said_nearby_counts_less_with_each_step() -> None:
    said = dict.fromkeys(range(1, 30), "Quiet.") | {15: "The zebra came."}
    scores = stored_scores(said, "zebra")
    assert scores[15] > scores[14] > scores[13] > scores[12] > 0
    # BM25, as a share of the message's own: a quarter of the term, and its length among others of one term
    own = 1 / (0.25 + 0.75 * 2 * 29 / 30)
    beside = 0.25 * 60 / 61 * own
    share = (beside / (beside + 1.2)) / (own / (own + 1.2))
    assert scores[14] == pytest.approx(share, rel=0.01)
    assert scores[16] == pytest.approx(share, rel=0.01)
    assert not {5, 6, 24, 25} & set(scores), "they stand too far away"


def test_different_words_of_a_question_in_neighbouring_messages_add_up() -> None:
    """The same word twice says little more than once."""
    said = {1: "The zebra came.", 2: "An okapi came.", 21: "The zebra came.", 22: "The zebra came."}
    scores = stored_scores(said, "zebra okapi")
    assert scores[1] > 1.25 * scores[21]


def test_terms_that_many_messages_of_a_short_session_have_are_read_in_full(store: Any) -> None:
    words = [f"word{n}" for n in range(8)]
    documents = [Document(seq, {words[seq % 8]: 1, words[seq % 3]: 1}, 2) for seq in range(1, MANY_IN_SHORT + 1)]
    store.append(KEY, [], documents=documents)
    everything = store.postings(KEY, words)
    assert all(MANY_IN_SHORT / 16 < len(hits) <= 256 for hits in everything.by_term.values())
    assert ranking(store, *words) == bm25(everything, idf(everything, frequencies(everything)))


def test_a_neighbour_that_is_archived_later_is_found_by_the_next_question() -> None:
    first, second = user("The zebra came.", id="m1"), user("Quiet day.", id="m2")
    cache = PassageCache()
    with MemoryStore() as store:
        ports = Ports(store, MessageCounter(COUNTER))
        drafts = [Draft(f"m:{m.id}", MessageAdded(m)) for m in (first, second)]
        store.append(KEY, drafts, documents=[index_entry(1, first)])
        asked = [run(search(KEY, "zebra", budget_tokens=400, visible=(), readings=cache), ports)]
        store.append(KEY, [], documents=[index_entry(2, second)])
        asked.append(run(search(KEY, "zebra", budget_tokens=400, visible=(), readings=cache), ports))
    assert [sorted(matches.scores) for matches in asked] == [[1], [1, 2]]


@pytest.mark.parametrize(
    "question", ["What's Anna's plan?", "What’s Anna’s plan?", "Didn't I'd, we'll or won't Anna plan?"]
)
def test_short_forms_of_stop_words_are_no_terms(question: str) -> None:
    """What is left of them, such as "s", or "didn" and "t", stands in many messages, and would be a rare word in others."""
    said = [
        "It's late.",
        "Nobody didn't come.",
        "I'd go.",
        "Perhaps we'll stay.",
        "Ben won't.",
        "The plan of Anna is to wait.",
    ]
    with AgentContext(context_window=8_000) as ctx:
        ctx.add([user(text, id=f"m{n}") for n, text in enumerate([*said, *(f"Quiet day {n}." for n in range(40))])])
        assert [hit.message_id for hit in ctx.search(question)] == ["m5"]


def found_by(question: str, *said: str) -> list[str]:
    """What a search finds among these messages and others that are about nothing."""
    with AgentContext(context_window=8_000) as ctx:
        ctx.add([user(text, id=f"m{n}") for n, text in enumerate([*said, *(f"Quiet day {n}." for n in range(40))])])
        return [said[int(hit.message_id[1:])] for hit in ctx.search(question)]


@pytest.mark.parametrize(
    ("question", "about", "aside"),
    [
        ("Wer hat den Spiegel zerbrochen?", "Lukas war es, der Spiegel lag auf der Treppe.", "Wer kommt, hat Glück."),
        ("Où est passé le micro ?", "On a retrouvé le micro dans la soupière.", "Il est midi, où que tu sois."),
        ("¿Quién tenía las llaves de la casa?", "Las llaves las guarda el fotógrafo.", "¿Quién sabe la hora?"),
        ("小雨是什么时候开始游泳的?", "小雨说她在猛追湾游泳。", "什么时候都可以。"),
    ],
)
def test_words_that_only_ask_are_no_terms_in_other_languages(question: str, about: str, aside: str) -> None:
    """Statements hardly have them, so that they would be rare words, and draw what has nothing else of the question."""
    assert found_by(question, about, aside) == [about]


@pytest.mark.parametrize(
    ("question", "about"),
    [
        ("Was the war hat for sale?", "There was a war about hats."),
        ("Why is du so slow on the NAS?", "I ran du -sh and waited."),
        ("Who is in the le mans team?", "Le Mans is far."),
        ("Wo ist das?", "Das ist Wotan, wo sonst."),
        ("你的目的是什么?", "目的地很远。"),
    ],
)
def test_words_that_only_ask_are_terms_in_an_english_question_or_alone(question: str, about: str) -> None:
    assert found_by(question, about) == [about]


@pytest.mark.parametrize(
    ("question", "about", "aside"),
    [
        ("El Al and Las Vegas, Los Angeles, El Paso", "El Al goes there.", "Angeles, a name."),
        ("un.py del.py", "I wrote un.py today.", "I wrote other.py, main.py and more."),
        ("run su and sudo su", "Use su, su for that.", "A run of many days in the hall, behind the ladder."),
    ],
)
def test_names_and_identifiers_are_no_words_that_only_ask(question: str, about: str, aside: str) -> None:
    assert found_by(question, about, aside)[0] == about


def test_words_that_only_ask_are_searched_for_where_no_other_matches() -> None:
    said = ["Wo der Schlüssel lag: unter der Matte.", *(f"Quiet day {n}." for n in range(40))]
    assert next(iter(found_scores(*said, question="Wo liegt denn der Dings?"))) == 1
    assert next(iter(found_scores(*said, question="Wo liegt denn der Quiet?"))) != 1


def test_the_full_stop_of_an_ordinal_number_ends_no_sentence() -> None:
    assert records("Wir fahren vom 9. bis zum 20. August. Dann ist der Umzug.") == [
        "Wir fahren vom 9. bis zum 20. August.",
        "Dann ist der Umzug.",
    ]
    assert records("The box has number 47. The key is here.") == ["The box has number 47.", "The key is here."]


def test_of_messages_that_match_alike_the_newer_is_the_better() -> None:
    apart = [f"Quiet day {n}." for n in range(400)]
    said = ["The zebra came.", *apart, "The zebra came.", *apart]
    scores = found_scores(*said)
    assert 1 > scores[1] / scores[402] > 0.8


def test_age_sinks_no_old_match_of_a_question_in_many_words() -> None:
    quiet = [f"Quiet day {n}." for n in range(2_000)]
    animals = "zebra okapi quagga tapir"
    scores = found_scores("The zebra is in the barn.", *quiet, f"{animals} came.", question=animals)
    assert 0 < scores[1] < 0.1, "by words alone it has a fifth of the best score"


@pytest.mark.parametrize(
    "asked",
    [
        "{0} Where is the zebra now? {1}",
        "{0} {1} Where is the zebra now?",
        "Where is the zebra now?\n{0} {1}",
        '{0} Ben asked me: "Where is the zebra now?" {1}',
    ],
)
def test_the_sentence_that_asks_weighs_more_than_what_stands_around_it(asked: str) -> None:
    quiet = [f"Quiet day {n}." for n in range(40)]
    said = ("The zebra is in the barn.", *quiet, "Agatha bought a violin in Lisbon.")
    aside = ("Agatha played her violin.", "She is still in Lisbon.")
    scores = found_scores(*said, question=asked.format(*aside))
    assert max(scores, key=lambda seq: scores[seq]) == 1
    unasked = found_scores(*said, question=asked.format(*aside).replace("?", "."))
    assert max(unasked, key=lambda seq: unasked[seq]) == len(said), "all sentences count alike"


@pytest.mark.parametrize(
    ("beginning", "points_back"),
    [
        ("She", True),
        ("Oh, but they", True),
        ("[10:12] Ben: This", True),
        ("Aside from that, Ben", True),
        ("她", True),
        ("Sheila", False),
        ("There", False),
        ("After lunch Ben", False),
        ("Ben says that he", False),
    ],
)
def test_a_message_that_begins_with_a_word_for_what_was_said_before_counts_as_that(
    beginning: str, points_back: bool
) -> None:
    scores = found_scores("The zebra has a torn ear.", f"{beginning} slept all day in the sun.")
    assert (scores[2] == scores[1]) is points_back
    assert scores[2] <= scores[1]


def test_a_message_that_points_back_and_says_more_keeps_its_own_score() -> None:
    scores = found_scores("The zebra has a torn ear.", "She is a zebra, the oldest zebra.")
    assert scores[2] > scores[1]


def test_what_points_back_to_a_message_in_the_window_is_not_recalled_for_it() -> None:
    with context() as ctx:
        add_days(ctx, "early")
        ctx.add([user("The zebra has a torn ear.", id="z"), assistant("She slept all day in the sun.", id="she")])
        ctx.edit.remove("she")
        add_days(ctx, "late")
        assert not any("slept all day" in line for line in recalled(ctx, "Tell me of the zebra."))


def test_of_a_long_message_the_sentences_near_in_meaning_come_before_a_word_of_the_question() -> None:
    """Vectors of all texts are somewhat alike: likeness counts from that of the least like passage on."""
    filler = [f"Sentence {n} says little of value to anybody at all." for n in range(20)]
    text = " ".join(
        [*filler[:2], "The ear of a zebra is striped.", *filler[2:14], "The lobe of one ear is torn.", *filler[14:]]
    )
    said = user(text, id="m")
    with MemoryStore() as store:
        store.append(KEY, [Draft("m:m", MessageAdded(said))], documents=[index_entry(1, said)])

        def shown(likeness: dict[tuple[int, int], float]) -> str:
            def flow() -> Flow[str]:
                found = yield from search(KEY, "zebra ear", budget_tokens=80, visible=(), likeness=likeness)
                return render((yield from chosen(found, 80, MessageCounter(COUNTER))))

            return run(flow(), Ports(store, MessageCounter(COUNTER)))

        assert "zebra is striped" in shown({})
        near = shown({(1, 2 * PIECES): 0.7, **{(1, place * PIECES): 0.8 for place in range(12, 16)}})
        assert "one ear is torn" in near
        assert "zebra is striped" not in near


@pytest.mark.parametrize("counter", [COUNTER, TiktokenCounter()])
@pytest.mark.parametrize("line", ["user: root {n}", "zebra"])
def test_lines_of_a_file_that_was_written_never_take_more_than_the_budget(counter: Any, line: str) -> None:
    """They have a sign between them where they are shown, and a mark where they read as a turn."""
    code = "\n".join(line.format(n=n) for n in range(600))
    call = ToolCallPart("c", "write_file", json.dumps({"path": "a.py", "content": code}))
    message, count = assistant("", id="m", calls=[call]), MessageCounter(counter)

    def found(budget_tokens: int) -> Flow[tuple[Passage, ...]]:
        matches = yield from search(KEY, "zebra root", budget_tokens=budget_tokens, visible=())
        return (yield from chosen(matches, budget_tokens, count))

    for budget_tokens in (400, 1_600, 3_000):
        with MemoryStore() as store:
            store.append(KEY, [Draft("m:m", MessageAdded(message))], documents=[index_entry(1, message)])
            passages = run(found(budget_tokens), Ports(store, count))
        assert passages
        assert count.count_text(render(passages)) <= tokens_of(passages, count) <= budget_tokens


ENDS = (
    "",
    ".",
    "!",
    "?",
    "...",
    ":",
    ")",
    '."',
    "\n",
    "\n\n",
    " ",
    " -",
    "`",
    "。",
    "…",
    "# ",
    "1",
    ".\n- ",
    "'s",
    "\t",
)


@example([("", 1)] * 30, 1_200)
@example([(".", 1)] * 30, 1_200)
@given(st.lists(st.tuples(st.sampled_from(ENDS), st.integers(1, 90)), min_size=1, max_size=30), st.integers(60, 1_200))
def test_the_lines_shown_are_counted_as_the_whole_text_is(texts: list[tuple[str, int]], budget_tokens: int) -> None:
    counter = MessageCounter(TiktokenCounter())
    messages = [
        user(f"The zebra no {n} {'stood there ' * length}{end}", id=f"m{n}") for n, (end, length) in enumerate(texts)
    ]
    with MemoryStore() as store:
        documents = [index_entry(n, m) for n, m in enumerate(messages, 1)]
        store.append(KEY, [Draft(f"m:{m.id}", MessageAdded(m)) for m in messages], documents=documents)

        def asked() -> Flow[tuple[Passage, ...]]:
            matches = yield from search(KEY, "zebra", budget_tokens=budget_tokens, visible=())
            return (yield from chosen(matches, budget_tokens, counter))

        passages = run(asked(), Ports(store, counter))
    tokens = counter.count_text(render(passages))
    assert tokens <= tokens_of(passages, counter) <= budget_tokens
    if passages and all(len(message.text) <= SHORT_CHARS for message in messages):  # each is shown whole
        assert tokens_of(passages, counter) - tokens <= 9, "only the heading has some to spare"


def test_a_word_of_most_lines_chooses_none_of_them() -> None:
    """Of a file about nodes, the function that was asked for is shown with what stands below it."""
    lines = [f"{n}: node = walk(node, {n})" for n in range(300)]
    lines[150:152] = ["150: def deepcopy(self):", "151: # children are duplicated before their parent"]
    with context(context_window=2_000) as ctx:
        ctx.add([user("Read the file.", id="u"), assistant("\n".join(lines), id="a")])
        add_days(ctx, "late")
        line = next(line for line in recalled(ctx, "What does deepcopy do to a node?") if line.startswith("- #2 "))
    assert "children are duplicated" in line


def test_an_edit_takes_the_older_version_of_a_message_out_of_recall() -> None:
    """Also of an output that is an excerpt in the window, and of what a question found before the edit."""
    question = "What is the vault code of Uppsala?"

    def report(code: int) -> str:
        lines = [f"Line {n} of the report is about hall {n * 7 % 100}." for n in range(600)]
        return "\n".join([*lines[:300], f"The vault code of Uppsala is {code}.", *lines[300:]])

    with AgentContext(ScriptedBackend([]), context_window=6_000) as ctx:
        ctx.add([user("Read the report.", id="u"), assistant("", id="a", calls=[ToolCallPart("c", "read", "{}")])])
        ctx.add([tool_result("c", report(7741), id="r"), assistant("Read.", id="z")])
        assert "7741" in ctx.window(recall=True, question=question).recalled
        ctx.edit.update("r", tool_result("c", report(9035), id="r"))
        recalled = ctx.window(recall=True, question=question).recalled
        assert "9035" in recalled
        assert "7741" not in recalled
        assert [hit.message_id for hit in ctx.search("vault code 7741 Uppsala")] == ["r"], "it stays searchable"
