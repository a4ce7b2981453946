"""Transcripts of other programs: each text once, in order, with its calls; what is left out is counted; nothing is emptied."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from ctxfold import (
    AgentContext,
    ConfigError,
    MediaPart,
    MemoryStore,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user,
)
from ctxfold.errors import ImportLineError, MessageConflictError
from ctxfold.history.records import Record, SessionKey
from ctxfold.transcripts.conversation import Conversation
from ctxfold.transcripts.reading import read_transcripts, transcript_format
from tests.support.driven import context
from tests.transcripts.samples import (
    CHATGPT_TREE,
    CLAUDE_PARALLEL,
    OTEL_SPANS,
    SAMPLES,
    VERCEL,
    Sample,
    chat,
    claude,
    lines,
    node,
    run,
)


def told(conversation: Conversation) -> list[str]:
    """Each message as `speaker: text`, reasoning in round brackets, media in square ones behind the text."""
    found: list[str] = []
    for message in conversation.messages:
        said: list[str] = []
        for part in sorted(message.parts, key=lambda part: isinstance(part, MediaPart)):
            match part:
                case TextPart():
                    said.append(part.text.strip())
                case ReasoningPart():
                    said.append(f"({part.text})")
                case ToolCallPart():
                    said.append(f"{part.name}({part.arguments})")
                case ToolResultPart():
                    said.append(part.content)
                case MediaPart():
                    said.append(f"[{part.kind}]")
                case _:
                    raise AssertionError(part)
        found.append(f"{message.role}: {' '.join(said)}".strip())
    return found


def written(folder: Path, text: str, name: str = "file") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.format}: {s.name}")
def test_a_sample_is_read_as_it_was_said(sample: Sample, tmp_path: Path) -> None:
    path = written(tmp_path, sample.text)
    assert transcript_format(path) == sample.format
    found = list(read_transcripts(path))
    assert [told(c) for c in found] == list(sample.told)
    first = found[0]
    assert (first.format, first.title, first.branches) == (sample.format, sample.title, sample.branches)
    assert dict(first.left_out) == (sample.left_out or {})
    assert [c.messages for c in read_transcripts(path, format=sample.format)] == [c.messages for c in found], "ids stay"
    assert len({m.id for m in first.messages}) == len(first.messages)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.format}: {s.name}")
def test_a_file_that_is_cut_off_is_refused_by_its_number(sample: Sample, tmp_path: Path) -> None:
    """Everywhere: within a text, behind a value, and before the end of an array; what is cut at a line's end is whole."""
    text = sample.text.rstrip()
    for length in (int(len(text) * 0.35), int(len(text) * 0.6), len(text) - 9, len(text) - 1):
        path = written(tmp_path, text[:length])
        with pytest.raises(ImportLineError, match=r"^(line|item) \d+: .*nothing was imported") as caught:
            list(read_transcripts(path, format=sample.format))
        assert caught.value.line >= 1


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.format}: {s.name}")
def test_each_sample_goes_into_a_session_at_its_times(sample: Sample, tmp_path: Path) -> None:
    for number, conversation in enumerate(read_transcripts(written(tmp_path, sample.text))):
        with context(context_window=100_000) as ctx:
            assert ctx.files.import_conversation(conversation) == len(conversation.messages)
            assert ctx.files.import_conversation(conversation) == 0
            assert tuple(ctx.messages()) == conversation.messages
            entries = ctx.view()
            known = [t for t in conversation.times_s if t is not None]
            assert [e.at_s for e in entries][: len(known)] == known, number


class CountingStore(MemoryStore):
    reads = 0

    def read(self, key: SessionKey, *, after: int = 0, upto: int | None = None) -> tuple[Record, ...]:
        self.reads += 1
        return super().read(key, after=after, upto=upto)


def test_a_search_reads_no_log_of_an_imported_session(tmp_path: Path) -> None:
    """It finds the same as where the messages were added, also when the session goes on."""
    store = CountingStore()
    texts = (CHATGPT_TREE.text, CLAUDE_PARALLEL.text, VERCEL.text)
    found = [c for n, text in enumerate(texts) for c in read_transcripts(written(tmp_path, text, str(n))) if c.messages]
    with context(store=store, context_window=100_000) as ctx, context(context_window=100_000) as plain:
        for number, conversation in enumerate(found):
            ctx.at(f"s{number}").files.import_conversation(conversation)
            plain.at(f"s{number}").add(conversation.messages)
        words = " ".join(m.text for c in found for m in c.messages).split()

        def asked(each: AgentContext) -> list[tuple[str, str, float]]:
            hits = [*each.archive.search_owner(" ".join(words[::3]), 50), *each.at("s0").search(" ".join(words), 50)]
            return [(hit.session, hit.message_id, round(hit.score, 9)) for hit in hits]

        assert asked(ctx) == asked(plain)
        store.reads = 0
        assert ctx.archive.search_owner(" ".join(words), 50)
        assert store.reads == 1, "the context's own session, which has no message"
        for each in (ctx, plain):
            each.at("s0").add([user(f"And this later: {' '.join(words)}", id="later")])
        assert asked(ctx) == asked(plain), "each message counts once"
        assert "later" in {name for _, name, _ in asked(ctx)}
        updated = found[0].messages[0]
        for each in (ctx, plain):
            each.at("s0").edit.update(updated.id, user("The mill stands still."))
        for query in (updated.text, "mill"):
            hits = [hit for hit in ctx.at("s0").search(query, 50) if hit.message_id == updated.id]
            assert [hit.excerpt for hit in hits] == ["The mill stands still."][: query == "mill"]


def test_times_of_every_kind(tmp_path: Path) -> None:
    for sample, at_s in (
        (CLAUDE_PARALLEL, 1_790_391_600.0),
        (CHATGPT_TREE, 1_700_000_000.5),
        (OTEL_SPANS, 1_780_000_000.0),
        (VERCEL, 1_780_000_000.0),
    ):
        conversation = next(read_transcripts(written(tmp_path, sample.text)))
        assert all(found == pytest.approx(at_s, abs=1) for found in conversation.times_s)


def test_times_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    text = CHATGPT_TREE.text.replace("1700000000.5", '"yesterday"')
    conversation = next(read_transcripts(written(tmp_path, text)))
    assert dict(conversation.left_out) == {**(CHATGPT_TREE.left_out or {}), "times that cannot be read": 2}
    assert len(conversation.messages) == len(next(read_transcripts(written(tmp_path, CHATGPT_TREE.text))).messages)


def test_a_reply_on_several_lines_has_one_usage(tmp_path: Path) -> None:
    conversation = next(read_transcripts(written(tmp_path, CLAUDE_PARALLEL.text)))
    usages = [m.usage for m in conversation.messages if m.usage is not None]
    assert [(u.input_tokens, u.output_tokens, u.cache_read_tokens) for u in usages] == [(304, 9, 200)] * 2
    assert [m.id for m in conversation.messages if m.usage] == ["a5", "a6"], (
        "the reply goes on behind its first results"
    )


def test_a_session_that_grew_adds_what_is_new_and_one_that_was_rewound_is_refused(tmp_path: Path) -> None:
    rows = [claude("u1", None, "user", "One."), claude("a1", "u1", "assistant", [{"type": "text", "text": "Two."}])]
    more = [claude("u2", "a1", "user", "Three."), claude("a2", "u2", "assistant", [{"type": "text", "text": "Four."}])]
    with context() as ctx:
        for wanted, lined in ((2, rows), (2, [*rows, *more])):
            conversation = next(read_transcripts(written(tmp_path, lines(*lined))))
            assert ctx.files.import_conversation(conversation) == wanted
        before = ctx.messages()
        rewound = [*rows, *more, claude("u3", "a1", "user", "Another.")]
        first = [
            claude("u0", None, "user", "Zero."),
            *({**row, "parentUuid": row["parentUuid"] or "u0"} for row in rows),
        ]
        for changed in (rewound, first):
            conversation = next(read_transcripts(written(tmp_path, lines(*changed))))
            with pytest.raises(MessageConflictError, match="2 messages of this conversation"):
                ctx.files.import_conversation(conversation)
        assert ctx.messages() == before


def test_a_damaged_line_is_named_with_the_format_that_it_resembles(tmp_path: Path) -> None:
    good = [claude("u1", None, "user", "One."), claude("a1", "u1", "assistant", [{"type": "text", "text": "Two."}])]
    for bad, problem in (
        ({**good[1], "uuid": None}, "no text in its field 'uuid'"),
        ({**good[1], "type": "answer"}, "unknown type 'answer'.*Two"),
        ({**good[1], "message": {"role": "assistant", "text": "Two."}}, "a field 'text' that is not known"),
        ({**good[1], "message": {"role": "assistant", "content": [{"type": "text", "body": "Two."}]}}, "'text'"),
        (
            {**good[1], "message": {"role": "assistant", "content": [{"type": "note", "text": "Two more words."}]}},
            "type 'note'",
        ),
    ):
        with pytest.raises(ImportLineError, match=rf"(?s)line 2: .*claude-code.*{problem}") as caught:
            list(read_transcripts(written(tmp_path, lines(good[0], bad))))
        assert caught.value.line == 2
    damaged = written(tmp_path, f'{json.dumps(good[0])}\n\n{{"type": "user", "message: 1}}\n{json.dumps(good[1])}\n')
    with pytest.raises(ImportLineError, match="line 3: it is not JSON"):
        list(read_transcripts(damaged))


def test_a_conversation_that_cannot_be_read_is_refused_or_left_out(tmp_path: Path) -> None:
    rows = [
        chat("One", "u1", node("r", None), node("u1", "r", "user", "A.")),
        chat(
            "Two",
            "u1",
            node("r", None),
            node("u1", "r", "user", {"content_type": "hologram", "layers": ["Some words."]}),
        ),
        chat("Three", "gone", node("r", None)),
        chat("Four", "u1", node("r", None), node("u1", "r", "user", "D.")),
    ]
    path = written(tmp_path, json.dumps(rows))
    with pytest.raises(ImportLineError, match=r"item 2: it resembles chatgpt, but .*hologram") as caught:
        list(read_transcripts(path))
    assert caught.value.line == 2
    refused: list[ImportLineError] = []
    assert [c.title for c in read_transcripts(path, on_refused=refused.append)] == ["One", "Four"]
    assert [error.line for error in refused] == [2, 3]


def test_an_archive_with_numbered_files_and_one_within_another(tmp_path: Path) -> None:
    first, second = (json.dumps([chat(n, "u1", node("r", None), node("u1", "r", "user", n))]) for n in ("One", "Two"))
    inner = tmp_path / "conversations-002.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(
            "conversations.json", json.dumps([chat("Three", "u1", node("r", None), node("u1", "r", "user", "3"))])
        )
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("export/conversations-001.json", second)
        archive.writestr("export/conversations-000.json", first)
        archive.writestr("export/chat.html", "<html>")
        archive.write(inner, "conversations-002.zip")
    assert transcript_format(path) == "chatgpt"
    read: list[tuple[int, int]] = []
    found = list(read_transcripts(path, on_progress=lambda done, total: read.append((done, total))))
    assert sorted(c.title for c in found) == ["One", "Three", "Two"]
    assert [c.number for c in found] == [1, 2, 3]
    assert all(0 < done <= total for done, total in read)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "nothing")
    with pytest.raises(ConfigError, match=r"no conversations\.json.*notes\.txt"):
        transcript_format(path)


def test_a_damaged_archive(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", "[" + " " * 5_000 + "]")
    whole = path.read_bytes()
    encrypted = whole[: (flags := whole.index(b"PK\1\2") + 8)] + b"\1" + whole[flags + 1 :]
    for damaged in (whole[: len(whole) // 2], whole.replace(b"json", b"json\xff", 1), encrypted):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"no readable zip archive \(.*: export or unpack it again"):
            list(read_transcripts(path))


def test_what_is_no_transcript(tmp_path: Path) -> None:
    for text, kind, problem in (
        ("", ConfigError, "is empty"),
        ("words that are no JSON", ImportLineError, "line 1: it is not JSON"),
        ('{"title": "x", "current_node": "y", "tree": {}}', ImportLineError, "resembles chatgpt most.*name it"),
        ('{"a": 1}', ImportLineError, "resembles none"),
        ("[1, 2]", ImportLineError, "item 1: .*fields: none"),
        ('[{"messages": []}] 1', ImportLineError, "more behind the file's array"),
        ('{"mapping": ' + "[" * 100_000, ImportLineError, "nested too deeply"),
        ("(\udce9", ImportLineError, "not UTF-8"),
        ('[{"a": ' + "9" * 5_000, ImportLineError, "item 1: .*4300 digits"),
        ("PK\x03\x04 and no archive", ConfigError, "no readable zip .*unpack it"),
        ("(\udcb5/\udcfd and more", ConfigError, "zstd -d"),
    ):
        path = tmp_path / "file"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(kind, match=rf"(?s){problem}"):
            list(read_transcripts(path))
    with pytest.raises(ConfigError, match="format is 'pdf': use auto, chatgpt"):
        list(read_transcripts(path, format="pdf"))
    assert transcript_format(written(tmp_path, '{"role": "user", "content": "x"}')) == "messages"
    with pytest.raises(ConfigError, match=r"files\.import_jsonl"):
        list(read_transcripts(path, format="messages"))


def test_traces_without_a_thread_that_repeat_the_history_are_one_conversation(tmp_path: Path) -> None:
    history: list[dict[str, str]] = []
    runs: list[dict[str, object]] = []
    for number, (question, answer) in enumerate((("Ping?", "Pong."), ("Again?", "Pang."))):
        history.append({"role": "user", "content": question})
        reply = {"role": "assistant", "content": answer}
        runs.append(
            run(f"r{number}", "llm", {"messages": [*history]}, {"choices": [{"message": reply}]}, trace=f"t{number}")
        )
        history.append(reply)
    other = {"messages": [{"role": "user", "content": "Else?"}]}
    runs.append(run("x", "llm", other, {"choices": [{"message": {"role": "assistant", "content": "No."}}]}, trace="t9"))
    found = [told(c) for c in read_transcripts(written(tmp_path, lines(*runs)))]
    assert found == [
        ["user: Ping?", "assistant: Pong.", "user: Again?", "assistant: Pang."],
        ["user: Else?", "assistant: No."],
    ]


def test_the_calls_of_an_agent_stand_in_its_models(tmp_path: Path) -> None:
    """Where the root has a question and an answer alone."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    asked = [{"role": "user", "content": "1 and 1?"}]
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    answered = [*asked, called, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
    runs = [
        run("root", "chain", {"input": "1 and 1?"}, {"output": "Two."}),
        run(
            "m1",
            "llm",
            {"messages": asked},
            {"choices": [{"message": called}]},
            parent="root",
            at="2026-05-01T10:00:01",
        ),
        run(
            "m2",
            "llm",
            {"messages": answered},
            {"choices": [{"message": {"role": "assistant", "content": "Two."}}]},
            parent="root",
            at="2026-05-01T10:00:02",
        ),
    ]
    found = [told(c) for c in read_transcripts(written(tmp_path, lines(*runs)))]
    assert found == [["user: 1 and 1?", "assistant: add({})", "tool: 2", "assistant: Two."]]


def test_the_file_of_a_sub_agent_is_a_conversation(tmp_path: Path) -> None:
    side = {"isSidechain": True, "agentId": "a7"}
    rows = [
        claude("u1", None, "user", "Look.", **side),
        claude("a1", "u1", "assistant", [{"type": "text", "text": "Seen."}], **side),
    ]
    assert [told(c) for c in read_transcripts(written(tmp_path, lines(*rows)))] == [["user: Look.", "assistant: Seen."]]


def test_halves_of_a_surrogate_pair_are_replaced(tmp_path: Path) -> None:
    """Programs cut texts within a sign; nobody could mend a file of years for that."""
    path = written(
        tmp_path, json.dumps([chat("Cut", "u1", node("r", None), node("u1", "r", "user", "cut \ud83d here"))])
    )
    assert [told(c) for c in read_transcripts(path)] == [["user: cut \ufffd here"]]


def test_a_ring_of_parents_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "ring.jsonl"
    steps = [claude("1", "2", "user", "Where?"), claude("2", "1", "assistant", [{"type": "text", "text": "There."}])]
    file.write_text("\n".join(map(json.dumps, steps)), encoding="utf-8")
    with pytest.raises(ImportLineError, match=r"line \d: it resembles claude-code, but .* is its own ancestor"):
        list(read_transcripts(file))


def test_a_file_under_another_formats_name_says_which_field_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([{"role": "user", "content": "hi"}]), encoding="utf-8")
    with pytest.raises(ImportLineError, match="it resembles chatgpt, but it has no field 'mapping'"):
        list(read_transcripts(file, format="chatgpt"))


@pytest.mark.parametrize("time", [1e300, -1, "yesterday", None])
def test_a_time_that_cannot_be_is_none(time: object, tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    message = {
        "id": "m",
        "author": {"role": "user"},
        "content": {"content_type": "text", "parts": ["hi"]},
        "create_time": time,
    }
    mapping = {"m": {"id": "m", "message": message, "parent": None, "children": []}}
    file.write_text(json.dumps([{"title": "t", "mapping": mapping, "current_node": "m"}]), encoding="utf-8")
    (conversation,) = read_transcripts(file)
    assert conversation.times_s == (None,)
