"""Samples of transcripts, written after the public descriptions of their formats, each with what has to be read from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}


@dataclass(frozen=True)
class Sample:
    """`told` are its conversations, each as a list of `speaker: text`; `left_out` is what the first of them counts."""

    name: str
    format: str
    text: str
    told: tuple[list[str], ...]
    branches: int = 0
    left_out: dict[str, int] | None = None
    title: str = ""


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


# Claude Code


def claude(
    uuid: str, parent: str | None, kind: str, content: Any = None, *, reply: str = "", **fields: Any
) -> dict[str, Any]:
    line: dict[str, Any] = {
        "parentUuid": parent,
        "isSidechain": False,
        "userType": "external",
        "cwd": "/home/ann/shop",
        "sessionId": "7f1c",
        "version": "2.1.281",
        "gitBranch": "main",
        "type": kind,
        "uuid": uuid,
        "timestamp": "2026-09-26T03:00:00.000Z",
    }
    if kind == "user":
        line["message"] = {"role": "user", "content": content}
    if kind == "assistant":
        line["requestId"] = f"req_{reply}"
        line["message"] = {
            "id": reply or uuid,
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-4-5",
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 4,
                "cache_creation_input_tokens": 100,
                "cache_read_input_tokens": 200,
                "output_tokens": 9,
            },
        }
    return {**line, **fields}


def said(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def use(call: str, name: str, **arguments: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": call, "name": name, "input": arguments, "caller": {"type": "direct"}}]


def result(call: str, content: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call, "content": content, **fields}]


CLAUDE_PARALLEL = Sample(
    "parallel calls, an image and what the program adds",
    "claude-code",
    lines(
        {"type": "mode", "mode": "default", "sessionId": "7f1c"},
        {
            "type": "file-history-snapshot",
            "messageId": "u1",
            "snapshot": {"trackedFileBackups": {}},
            "isSnapshotUpdate": False,
        },
        claude(
            "u1",
            None,
            "user",
            [
                {"type": "text", "text": "<system-reminder>The date has changed.</system-reminder>"},
                {"type": "text", "text": "<ide_opened_file>The user opened shop.py</ide_opened_file>"},
                {"type": "text", "text": "Why does the shop's total differ?"},
                IMAGE,
            ],
        ),
        claude("u1m", "u1", "user", said("[Image: source: /tmp/1.png]"), isMeta=True),
        claude("x1", "u1m", "attachment", attachment={"type": "todo_reminder", "content": [], "itemCount": 0}),
        claude("a1", "x1", "assistant", [{"type": "thinking", "thinking": "", "signature": "Eo8B"}], reply="msg_1"),
        claude("a2", "a1", "assistant", said("I look at both files."), reply="msg_1"),
        claude("a3", "a2", "assistant", use("t1", "Read", file_path="shop.py"), reply="msg_1"),
        claude("a4", "a3", "assistant", use("t2", "Read", file_path="tax.py"), reply="msg_1"),
        claude(
            "r1",
            "a3",
            "user",
            result("t1", "total = net"),
            toolUseResult={"type": "text", "file": {"content": "total = net"}},
        ),
        claude("r2", "a4", "user", result("t2", [*said("rate = 0.19"), IMAGE]), toolUseResult="rate = 0.19"),
        claude("a5", "r2", "assistant", use("t3", "Bash", command="pytest"), reply="msg_1"),
        claude("r3", "a5", "user", result("t3", "1 failed", is_error=True)),
        claude("s1", "r3", "system", subtype="turn_duration", content="", durationMs=1200),
        claude("a6", "s1", "assistant", said("The tax is never added."), reply="msg_2"),
        claude(
            "n1",
            "a6",
            "user",
            "<task-notification>\n<summary>Agent done</summary>\n</task-notification>",
            origin={"kind": "task-notification"},
        ),
        claude("u2", "n1", "user", "<command-name>/model</command-name>\n<command-args>opus</command-args>"),
        claude("u3", "u2", "user", said("[Request interrupted by user]")),
        claude("e1", "u3", "assistant", said("API Error: 529 overloaded"), reply="msg_3") | {"isApiErrorMessage": True},
        {"type": "queue-operation", "operation": "enqueue", "content": "Add the tax then.", "sessionId": "7f1c"},
        claude("u4", "e1", "user", "Add the tax then."),
        {"type": "custom-title", "customTitle": "The tax of the shop", "sessionId": "7f1c"},
    ).replace(
        '"model": "claude-opus-4-5", "content": [{"type": "text", "text": "API',
        '"model": "<synthetic>", "content": [{"type": "text", "text": "API',
    ),
    (
        [
            "user: Why does the shop's total differ? [image]",
            'assistant: I look at both files. Read({"file_path": "shop.py"}) Read({"file_path": "tax.py"})',
            "tool: total = net",
            "tool: rate = 0.19 [image]",
            'assistant: Bash({"command": "pytest"})',
            "tool: 1 failed",
            "assistant: The tax is never added.",
            "user: Add the tax then.",
        ],
    ),
    left_out={"texts of the program": 6, "notices of the program": 1},
    title="The tax of the shop",
)
CLAUDE_COMPACTED = Sample(
    "a rewound prompt, a manual and an automatic compaction, a sub-agent",
    "claude-code",
    lines(
        claude("u1", None, "user", "What is in the cellar?"),
        claude("a1", "u1", "assistant", said("Twelve barrels."), reply="m1"),
        claude("u2", "a1", "user", "And in the attic"),
        claude("a2", "u2", "assistant", said("Nothing there."), reply="m2"),
        claude("u3", "a1", "user", "And in the attic of the barn?"),
        claude(
            "a3",
            "u3",
            "assistant",
            [{"type": "thinking", "thinking": "The barn, not the house.", "signature": "x"}],
            reply="m3",
        ),
        claude("a4", "a3", "assistant", said("Hay."), reply="m3"),
        claude("g1", None, "user", "Look for owls.", isSidechain=True, agentId="a7"),
        claude("g2", "g1", "assistant", said("Two owls."), isSidechain=True, agentId="a7"),
        claude(
            "b1", None, "system", subtype="compact_boundary", content="Conversation compacted", logicalParentUuid="a4"
        ),
        claude("c1", "b1", "user", "This session is being continued from a previous one.", isCompactSummary=True),
        claude("u4", "c1", "user", "How many barrels were there?"),
        claude("a5", "u4", "assistant", said("Twelve of them."), reply="m4"),
        claude(
            "b2",
            None,
            "system",
            subtype="compact_boundary",
            content="Conversation compacted",
            logicalParentUuid="a5",
            compactMetadata={
                "trigger": "auto",
                "preservedSegment": {"headUuid": "u4", "anchorUuid": "c2", "tailUuid": "a5"},
            },
        ),
        claude("c2", "b2", "user", "This session is being continued again.", isCompactSummary=True),
        claude("u5", "a5", "user", "Sell three."),
        {"type": "last-prompt", "leafUuid": "u4", "sessionId": "7f1c"},
    ),
    (
        [
            "user: What is in the cellar?",
            "assistant: Twelve barrels.",
            "user: And in the attic of the barn?",
            "assistant: (The barn, not the house.) Hay.",
            "user: How many barrels were there?",
            "assistant: Twelve of them.",
            "user: Sell three.",
        ],
    ),
    branches=1,
    left_out={"conversations of sub-agents": 1, "summaries of compactions, whose messages are all here": 2},
)
CLAUDE_CUT = Sample(
    "a session that ends while its tools run",
    "claude-code",
    lines(
        claude(
            "b1",
            None,
            "system",
            subtype="compact_boundary",
            content="Conversation compacted",
            logicalParentUuid="elsewhere",
        ),
        claude("c1", "b1", "user", "Before: the harbour has two cranes.", isCompactSummary=True),
        claude("u1", "c1", "user", "Check the cranes."),
        claude("a1", "u1", "assistant", use("t1", "Bash", command="crane 1"), reply="m1"),
        claude("a2", "a1", "assistant", use("t2", "Bash", command="crane 2"), reply="m1"),
        claude("r1", "a1", "user", result("t1", "")),
    ),
    (
        [
            "user: Before: the harbour has two cranes.",
            "user: Check the cranes.",
            'assistant: Bash({"command": "crane 1"}) Bash({"command": "crane 2"})',
            "tool:",
            "tool: (no result: the transcript has none for this call)",
        ],
    ),
    left_out={"calls without a result, with a note in its place": 1},
)

# ChatGPT


def node(identity: str, parent: str | None, role: str = "", content: Any = None, **fields: Any) -> dict[str, Any]:
    message = None
    if role:
        content = {"content_type": "text", "parts": [content]} if isinstance(content, str) else content
        author = {"role": role, "name": fields.pop("name", None), "metadata": {}}
        message = {
            "id": identity,
            "author": author,
            "create_time": 1_700_000_000.5,
            "update_time": None,
            "content": content,
            "status": "finished_successfully",
            "end_turn": None,
            "weight": 1.0,
            "metadata": {},
            "recipient": "all",
            "channel": None,
            **fields,
        }
    return {"id": identity, "message": message, "parent": parent, "children": []}


def chat(title: str, current: str, *nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    mapping = {each["id"]: each for each in nodes}
    for each in nodes:
        if each["parent"] in mapping:
            mapping[each["parent"]]["children"].append(each["id"])
    identity = f"6890a1b2-{title.lower().replace(' ', '')}"
    return {
        "title": title,
        "create_time": 1_700_000_000.1,
        "update_time": 1_700_000_100.1,
        "mapping": mapping,
        "moderation_results": [],
        "current_node": current,
        "conversation_id": identity,
        "id": identity,
        **fields,
    }


HIDDEN = {"is_visually_hidden_from_conversation": True}
CHATGPT_TREE = Sample(
    "a retried answer that was given up, hidden messages, and a second conversation",
    "chatgpt",
    json.dumps(
        [
            chat(
                "Bread",
                "a1",
                node("root", None),
                node("s", "root", "system", "", weight=0.0, metadata=HIDDEN, create_time=None),
                node(
                    "e",
                    "s",
                    "user",
                    {"content_type": "user_editable_context", "user_profile": "I bake."},
                    metadata=HIDDEN,
                ),
                node("u1", "e", "user", "How much salt for a kilo of flour?"),
                node(
                    "a1",
                    "u1",
                    "assistant",
                    "Twenty grams. \ue200cite\ue202turn0search1\ue201",
                    metadata={"model_slug": "gpt-5"},
                ),
                node("a2", "u1", "assistant", "About a spoon.", metadata={"model_slug": "gpt-5"}),
                node("u2", "a2", "user", "Which spoon?"),
            ),
            chat("Empty", "root", node("root", None)),
            chat(
                "Rye",
                "b2",
                node("b0", None),
                node("b1", "b0", "user", "Is rye heavier?"),
                node("b2", "b1", "assistant", "Yes."),
            ),
        ]
    ),
    (
        ["user: How much salt for a kilo of flour?", "assistant: Twenty grams."],
        [],
        ["user: Is rye heavier?", "assistant: Yes."],
    ),
    branches=1,
    left_out={"hidden messages of the program": 2},
    title="Bread",
)
CHATGPT_TOOLS = Sample(
    "calls without ids, reasoning, code, canvas and a second output",
    "chatgpt",
    json.dumps(
        [
            chat(
                "Primes",
                "a9",
                node("root", None),
                node("u1", "root", "user", "Plot the primes below 100."),
                node(
                    "a1",
                    "u1",
                    "assistant",
                    {
                        "content_type": "thoughts",
                        "thoughts": [{"summary": "Sieve", "content": "A sieve will do.", "chunks": []}],
                    },
                ),
                node(
                    "a2",
                    "a1",
                    "assistant",
                    {"content_type": "code", "language": "python", "text": "sieve(100)"},
                    recipient="python",
                ),
                node("t1", "a2", "tool", {"content_type": "execution_output", "text": "25 primes"}, name="python"),
                node(
                    "t2",
                    "t1",
                    "tool",
                    {
                        "content_type": "multimodal_text",
                        "parts": [
                            {
                                "content_type": "image_asset_pointer",
                                "asset_pointer": "sediment://file_0001",
                                "width": 64,
                            }
                        ],
                    },
                    name="python",
                ),
                node("a3", "t2", "assistant", {"content_type": "reasoning_recap", "content": "Thought for 12s"}),
                node("a4", "a3", "assistant", "There are 25."),
                node("u2", "a4", "user", "Write it down."),
                node(
                    "a5",
                    "u2",
                    "assistant",
                    {"content_type": "code", "language": "json", "text": '{"name": "primes", "type": "document"}'},
                    recipient="canmore.create_textdoc",
                ),
                node("t3", "a5", "tool", "Successfully created text document", name="canmore.create_textdoc"),
                node("a9", "t3", "assistant", "Done."),
            )
        ]
    ),
    (
        [
            "user: Plot the primes below 100.",
            'assistant: (Sieve\nA sieve will do.) python({"input": "sieve(100)"})',
            "tool: 25 primes [image]",
            "assistant: (Thought for 12s) There are 25.",
            "user: Write it down.",
            'assistant: canmore.create_textdoc({"name": "primes", "type": "document"})',
            "tool: Successfully created text document",
            "assistant: Done.",
        ],
    ),
    title="Primes",
)
CHATGPT_MEDIA = Sample(
    "pictures, voice and files",
    "chatgpt",
    json.dumps(
        [
            chat(
                "Garden",
                "a1",
                node("root", None),
                node(
                    "u1",
                    "root",
                    "user",
                    {
                        "content_type": "multimodal_text",
                        "parts": [
                            {
                                "content_type": "image_asset_pointer",
                                "asset_pointer": "file-service://file-abc",
                                "size_bytes": 10,
                            },
                            {"content_type": "audio_transcription", "text": "What is this flower?", "direction": "in"},
                            {
                                "content_type": "real_time_user_audio_video_asset_pointer",
                                "audio_asset_pointer": {"asset_pointer": "sediment://file_9"},
                            },
                        ],
                    },
                    metadata={
                        "attachments": [
                            {"name": "soil.csv", "mime_type": "text/csv"},
                            {"name": "p.png", "mime_type": "image/png"},
                        ]
                    },
                ),
                node("a1", "u1", "assistant", "A foxglove."),
            )
        ],
        indent=1,
    ),
    (["user: What is this flower? [image] [audio] [file]", "assistant: A foxglove."],),
    title="Garden",
)
SAMPLES: Sequence[Sample] = (CLAUDE_PARALLEL, CLAUDE_COMPACTED, CLAUDE_CUT, CHATGPT_TREE, CHATGPT_TOOLS, CHATGPT_MEDIA)
