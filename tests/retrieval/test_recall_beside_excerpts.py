"""A tool's output that is shown as an excerpt is recalled for questions that name what was asked, or called, to get it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ctxfold import MemoryStore, Message, ToolCallPart, assistant, tool_result, user
from ctxfold.history.records import Draft, Record, SessionKey
from tests.support.driven import Driven, scripted

Make = Callable[..., Driven]
MODULES = ("falcon", "heron", "osprey", "kestrel", "plover", "curlew", "dunlin", "avocet", "whimbrel", "godwit")


def outline(place: int) -> str:
    """Returns the lines of a module's functions; each module has the same ones, at lines of its own."""
    return "\n".join(f"{1_000 * place + 7 * n}: def step_{n}(value)" for n in range(120))


def reads(place: int, name: str = "", times: int = 1) -> list[Message]:
    name = name or MODULES[place]
    call = ToolCallPart(f"c{place}", "outline", json.dumps({"path": f"src/{name}.py"}))
    return [
        user(f"Look at the functions of {name}.", id=f"u{place}"),
        assistant("", id=f"t{place}", calls=[call]),
        tool_result(call.id, times * outline(place), id=f"r{place}"),
        assistant("I have looked at them.", id=f"a{place}"),
    ]


def filled(make: Make, *backend: object) -> Driven:
    ctx = make(*backend, context_window=6_000)
    for place in range(len(MODULES)):
        ctx.add(reads(place))
    shown = {m.id: m.text for m in ctx.window().messages}
    assert set(shown) == {f"{kind}{place}" for kind in "utra" for place in range(len(MODULES))}, "nothing is summarised"
    assert "step_60" not in shown["r1"], "the output is an excerpt"
    return ctx


def test_an_output_is_found_by_the_words_of_its_call(make: Make) -> None:
    ctx = filled(make)
    recalled = ctx.window(recall=True, question="At which line of src/heron.py does step_60 begin?").recalled
    assert "1420: def step_60(value)" in recalled


def test_an_output_is_found_by_the_words_of_the_question_before_it(make: Make) -> None:
    ctx = filled(make)
    recalled = ctx.window(recall=True, question="What is the line of step_60 among the functions of osprey?").recalled
    assert "2420: def step_60(value)" in recalled


def test_words_of_every_command_and_call_bring_no_output(make: Make) -> None:
    ctx = filled(make)
    assert ctx.window(recall=True, question="Look at the functions of src/sanderling.py.").recalled == ""


def test_the_question_is_no_reason_to_recall_what_it_asks_for(make: Make) -> None:
    """The command stands in the conversation when it is sent, beside what its own tools return."""
    call = ToolCallPart("c", "outline", '{"path": "src/sanderling.py"}')
    backend = scripted(assistant("", id="t", calls=[call]), "I have looked at them.")
    ctx = filled(make, backend)
    ctx.send("Look at the functions of src/sanderling.py.")
    ctx.send(tool_result("c", outline(50), id="r"))
    assert not any("Passages recalled" in m.text for each in backend.requests for m in each.messages)


def test_a_question_does_not_speak_for_the_outputs_before_it(make: Make) -> None:
    """What is recalled is the same whether the question is asked about the window, or sent and stands in it."""
    question = "At which line of src/heron.py and src/plover.py does step_60 begin?"
    backend = scripted("I have looked it up.")
    ctx = filled(make, backend)
    expected = ctx.window(recall=True, question=question).recalled
    ctx.send(question)
    assert [m.text for m in backend.requests[-1].messages if "Passages recalled" in m.text] == [expected]


def test_nobody_but_the_output_is_recalled(make: Make) -> None:
    """The call and the question are in the window already."""
    ctx = filled(make)
    recalled = ctx.window(recall=True, question="At which line of src/heron.py does step_60 begin?").recalled
    assert {line.split()[2] for line in recalled.splitlines()[1:]} == {"tool:"}


def test_an_output_is_found_among_many_that_have_the_same_words(make: Make) -> None:
    """More outputs have them than are looked up at first: in those behind the call that has the path they are looked up too."""
    ctx = make(context_window=48_000)
    for place in range(80):
        ctx.add(reads(place, f"module{place}"))
    shown = {m.id: m.text for m in ctx.window().messages}
    assert len(shown) == 320, "nothing is summarised"
    assert "step_60" not in shown["r7"], "the output is an excerpt"
    recalled = ctx.window(recall=True, question="At which line of src/module7.py does step_60 begin?").recalled
    assert "7420: def step_60(value)" in recalled


def test_an_output_of_many_calls_at_once_is_found_by_the_words_of_its_call(make: Make) -> None:
    """The last results stand further from their calls than what counts for every message: three places."""
    ctx = make(context_window=6_000)
    for start in (0, 7):
        paths = {place: f"src/module{place}.py" for place in range(start, start + 7)}
        calls = [ToolCallPart(f"c{place}", "outline", json.dumps({"path": path})) for place, path in paths.items()]
        results = [tool_result(f"c{place}", outline(place), id=f"r{place}") for place in paths]
        ctx.add([user("Look at them.", id=f"u{start}"), assistant("", id=f"t{start}", calls=calls), *results])
        ctx.add(assistant("I have looked at them.", id=f"a{start}"))
    shown = {m.id: m.text for m in ctx.window().messages}
    assert len(shown) == 20, "nothing is summarised"
    for place in (10, 13):
        assert "step_60" not in shown[f"r{place}"], "the output is an excerpt"
        recalled = ctx.window(
            recall=True, question=f"At which line of src/module{place}.py does step_60 begin?"
        ).recalled
        assert f"{1_000 * place + 420}: def step_60(value)" in recalled
    assert ctx.window(recall=True, question="Look at src/sanderling.py.").recalled == ""


def test_what_follows_a_question_does_not_speak_for_its_own_outputs(make: Make) -> None:
    """They are the answer that the agent has just got, and stand in the window as excerpts."""
    ctx = filled(make)
    call = ToolCallPart("c", "outline", '{"path": "src/sanderling.py"}')
    ctx.add([user("Look at the functions of src/sanderling.py.", id="u"), assistant("", id="t", calls=[call])])
    ctx.add(tool_result("c", 8 * outline(50), id="r"))
    window = ctx.window(recall=True)
    assert "step_60" not in next(m.text for m in window.messages if m.id == "r"), "the output is an excerpt"
    assert window.recalled == ""


def test_a_question_that_only_visible_messages_match_recalls_nothing(make: Make) -> None:
    """No output is near enough to be found beside them."""
    ctx = filled(make)
    for place in range(8):
        ctx.add([user("And now?", id=f"later{place}"), assistant("Noted.", id=f"noted{place}")])
    ctx.add([user("Zoe likes marmalade.", id="u"), assistant("Noted.", id="a")])
    assert ctx.window(recall=True, question="What about marmalade?").recalled == ""


class EndsAfter(MemoryStore):
    """A store whose process ends before its `end`th append; with `meanwhile`, that is called first, and nothing ends."""

    def __init__(self, end: int = 0, meanwhile: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.end = end
        self.meanwhile = meanwhile

    def append(self, key: SessionKey, drafts: Sequence[Draft], **options: Any) -> tuple[Record, ...]:
        self.end -= 1
        if self.end == 0 and self.meanwhile is not None:
            self.meanwhile()
        elif self.end == 0:
            raise KeyboardInterrupt
        return super().append(key, drafts, **options)


@pytest.mark.parametrize("end", range(1, 5))
def test_an_excerpt_is_found_whenever_the_process_has_ended(make: Make, end: int) -> None:
    """The original of an excerpt can only be read back through the index: it is stored together with its entry there."""
    store = EndsAfter()
    ctx = make(store=store, context_window=2_000)
    store.end = end
    try:
        for message in reads(1, times=8):
            ctx.add(message)
    except KeyboardInterrupt:
        store.end = 0
    later = make(store=store, context_window=2_000)
    later.add(reads(1, times=8))  # with the same ids
    assert "step_60" not in next(m.text for m in later.window().messages if m.id == "r1"), "the output is an excerpt"
    assert [hit.message_id for hit in later.search("step_60")] == ["r1"]


@pytest.mark.parametrize("known", [False, True])
def test_an_excerpt_is_found_where_another_writer_comes_first(make: Make, known: bool) -> None:
    """The other one stores something else, or one of the same results: then it is not known where the output will stand."""
    calls = [ToolCallPart(name, "outline", "{}") for name in ("c1", "c2")]
    backend = scripted(assistant("", id="t", calls=calls), assistant("I have looked at them.", id="a"))
    store = EndsAfter()
    ctx, other = make(backend, store=store, context_window=2_000), make(store=store, context_window=2_000)
    ctx.send([user("Look at both.", id="u")])
    results = [tool_result("c1", "Nothing.", id="r1"), tool_result("c2", 8 * outline(1), id="r2")]
    store.meanwhile = lambda: other.ctx.add(results[:1] if known else "Something else.")
    store.end = 1
    ctx.send(results)
    assert [hit.message_id for hit in ctx.search("step_60 1420")] == ["r2"]
    assert [m.id for m in ctx.messages() if m.text != "Something else."] == ["u", "t", "r1", "r2", "a"]


class CountsExcerpt:
    """A counter that calls `meanwhile` when it counts an excerpt: so far the messages are not stored, but were looked for."""

    id = "letters"
    meanwhile: Callable[[], object] | None = None

    def count(self, text: str) -> int:
        meanwhile = self.meanwhile
        if meanwhile is not None and "step_1(" in text and len(text) < len(outline(1)):
            self.meanwhile = None
            meanwhile()
        return len(text) // 4


def test_an_excerpt_is_found_where_another_thread_stores_a_part_of_its_round(make: Make) -> None:
    """Both work with one open session: the log ends where this one believes, but a part of its messages stands there already."""
    counter = CountsExcerpt()
    calls = [ToolCallPart(name, "outline", "{}") for name in ("c1", "c2")]
    backend = scripted(assistant("", id="t", calls=calls), assistant("I have looked at them.", id="a"))
    ctx = make(backend, counter=counter, context_window=2_000)
    ctx.send([user("Look at both.", id="u")])
    results = [tool_result("c1", "Nothing.", id="r1"), tool_result("c2", 8 * outline(1), id="r2")]
    counter.meanwhile = lambda: ctx.ctx.add(results[:1])
    ctx.send(results)
    assert counter.meanwhile is None
    assert [m.id for m in ctx.messages()] == ["u", "t", "r1", "r2", "a"]
    assert [hit.message_id for hit in ctx.search("step_60 1420")] == ["r2"]


class FindsFirst(MemoryStore):
    """A store that calls `meanwhile` once, right after it has looked for something."""

    meanwhile: Callable[[], object] | None = None

    def find(self, key: SessionKey, ids: Sequence[str]) -> tuple[Record, ...]:
        records = super().find(key, ids)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return records


def test_an_excerpt_is_found_where_another_thread_stores_a_part_of_a_file(make: Make, tmp_path: Path) -> None:
    store = FindsFirst()
    ctx = make(store=store, context_window=2_000)
    path = tmp_path / "turn.jsonl"
    messages = reads(1, times=8)
    whole = make(context_window=100_000)
    whole.add(messages)
    whole.files.export_jsonl(path, zone="window")
    store.meanwhile = lambda: ctx.ctx.add(messages[:1])
    ctx.files.import_jsonl(path)
    assert store.meanwhile is None
    assert [m.id for m in ctx.messages()] == ["u1", "t1", "r1", "a1"]
    assert [hit.message_id for hit in ctx.search("step_60 1420")] == ["r1"]


@pytest.mark.parametrize("recognise", [False, True])
def test_the_originals_of_excerpts_are_found_in_a_conversation_that_was_set(make: Make, recognise: bool) -> None:
    """Also where only its end is changed."""
    ctx = make(context_window=2_000)
    begin = [user("Hello.", id="u"), assistant("Hello.", id="a")]
    ctx.add(begin)
    ctx.edit.set_messages([*begin, *reads(1, times=8)], prompts=True, recognise=recognise)
    assert "step_60" not in next(m.text for m in ctx.window().messages if m.id == "r1"), "the output is an excerpt"
    assert [hit.message_id for hit in ctx.search("step_60")] == ["r1"]
    assert "1420: def step_60(value)" in ctx.window(recall=True, question="Where does step_60 of heron begin?").recalled
