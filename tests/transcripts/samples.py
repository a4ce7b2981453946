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
            origin={"kind": "human"},
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
        claude("x2", "u1", "attachment", attachment={"type": "task_reminder", "content": "Consider the task tools."}),
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
        claude("b1", None, "system", subtype="compact_boundary", content="Conversation compacted"),
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

# claude.ai

ROOT = "00000000-0000-4000-8000-000000000000"
UNSUPPORTED = "```\nThis block is not supported on your current device yet.\n```"


def ai(
    uuid: str, parent: str, sender: str, content: list[dict[str, Any]], text: str = "", **fields: Any
) -> dict[str, Any]:
    stamp = "2026-03-01T10:00:00.000000Z"
    row = {"uuid": uuid, "text": text, "content": content, "sender": sender, "created_at": stamp, "updated_at": stamp}
    return {**row, "attachments": [], "files": [], "parent_message_uuid": parent, **fields}


def ai_chat(name: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "uuid": f"c-{name}",
        "name": name,
        "summary": "",
        "account": {"uuid": "me"},
        "chat_messages": [*messages],
        **fields,
    }


CLAUDE_AI_TOOLS = Sample(
    "results within the assistant's message, thinking and a budget",
    "claude-ai",
    json.dumps(
        [
            ai_chat(
                "Weather",
                ai("m1", ROOT, "human", said("How is it in Oslo?"), "How is it in Oslo?"),
                ai(
                    "m2",
                    "m1",
                    "assistant",
                    [
                        {"type": "thinking", "thinking": "I search.", "summaries": [{"summary": "Searching the web."}]},
                        *said("I look it up."),
                        {
                            "type": "tool_use",
                            "id": None,
                            "name": "web_search",
                            "input": {"query": "oslo"},
                            "message": "Searching the web",
                        },
                        {
                            "type": "tool_result",
                            "tool_use_id": "",
                            "name": "web_search",
                            "content": [{"type": "knowledge", "title": "Weather in Oslo", "text": "Rain and wind"}],
                            "is_error": False,
                        },
                        *said("It rains."),
                        {"type": "token_budget", "remaining": None},
                    ],
                    f"I look it up.{UNSUPPORTED}It rains.",
                ),
            ),
            ai_chat("", ai("e", ROOT, "human", [], "Only a text here.")),
            ai_chat("Empty"),
        ]
    ),
    (
        [
            "user: How is it in Oslo?",
            'assistant: (I search.) I look it up. web_search({"query": "oslo"})',
            'tool: {"type": "knowledge", "title": "Weather in Oslo", "text": "Rain and wind"}',
            "assistant: It rains.",
        ],
        ["user: Only a text here."],
        [],
    ),
    left_out={"a block of the type 'token_budget'": 1},
    title="Weather",
)
CLAUDE_AI_TREE = Sample(
    "retried answers one after the other, and attachments",
    "claude-ai",
    json.dumps(
        [
            ai_chat(
                "Poem",
                ai(
                    "m1",
                    ROOT,
                    "human",
                    said("Shorten this."),
                    attachments=[
                        {
                            "file_name": "poem.txt",
                            "file_size": 20,
                            "file_type": "txt",
                            "extracted_content": "Rose is a rose.",
                        }
                    ],
                    files=[{"file_name": "cover.png"}],
                ),
                ai("m2", "m1", "assistant", said("A rose.")),
                ai("m3", "m1", "assistant", said("Rose.")),
                ai("m4", "m3", "human", said("Shorter.")),
                ai("m5", "m4", "assistant", said("R.")),
                ai("m6", "m4", "assistant", said("Ro.")),
            )
        ]
    ),
    (["user: Shorten this. poem.txt\nRose is a rose. [file]", "assistant: Rose.", "user: Shorter.", "assistant: Ro."],),
    branches=2,
    title="Poem",
)
CLAUDE_AI_LEAF = Sample(
    "a leaf that is named",
    "claude-ai",
    json.dumps(
        [
            ai_chat(
                "Leaf",
                ai("m1", ROOT, "human", said("How many herons?")),
                ai("m2", "m1", "assistant", said("Two.")),
                ai("m3", "m1", "assistant", said("Three.")),
                current_leaf_message_uuid="m2",
            )
        ],
        indent=2,
    ),
    (["user: How many herons?", "assistant: Two."],),
    branches=1,
    title="Leaf",
)

# Codex


def rollout(line: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-07-01T08:00:00.000Z", "type": line, "payload": payload}


def item(kind: str, **payload: Any) -> dict[str, Any]:
    return rollout("response_item", type=kind, **payload)


def codex_said(role: str, *told: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": text} for text in told])


META = rollout(
    "session_meta",
    id="0199-abc",
    timestamp="2026-07-01T08:00:00Z",
    cwd="/home/ann",
    originator="codex_cli",
    cli_version="0.160.1",
)
ENVIRONMENT = "<environment_context>\n  <cwd>/home/ann</cwd>\n</environment_context>"
CODEX_TURNS = Sample(
    "events that repeat, injected texts, and turns taken back",
    "codex",
    lines(
        META,
        rollout("turn_context", cwd="/home/ann", model="gpt-5-codex", approval_policy="never", summary="auto"),
        codex_said("developer", "<permissions instructions>Sandbox is on.</permissions instructions>"),
        codex_said(
            "user", "# AGENTS.md instructions for /home/ann\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>", ENVIRONMENT
        ),
        codex_said("user", "List the files."),
        rollout("event_msg", type="user_message", message="List the files.", kind="plain"),
        item(
            "reasoning",
            summary=[{"type": "summary_text", "text": "**Listing** files"}],
            encrypted_content="gAAAA",
            content=None,
        ),
        rollout("event_msg", type="agent_reasoning", text="**Listing** files"),
        item("function_call", name="shell", arguments='{"command": ["ls"]}', call_id="c1", id="fc1"),
        item("function_call", name="shell", arguments='{"command": ["pwd"]}', call_id="c2"),
        item("function_call_output", call_id="c1", output="a.py"),
        item("function_call_output", call_id="c2", output={"content": "/home/ann", "success": True}),
        codex_said("assistant", "One file."),
        rollout("event_msg", type="agent_message", message="One file."),
        codex_said("user", "Delete it."),
        codex_said("assistant", "Done."),
        rollout("event_msg", type="thread_rolled_back", num_turns=1),
        codex_said("user", "Read it."),
        codex_said("user", "<turn_aborted>\nThe user interrupted the turn.\n</turn_aborted>"),
    ),
    (
        [
            "user: List the files.",
            'assistant: (**Listing** files) shell({"command": ["ls"]})',
            "tool: a.py",
            'assistant: shell({"command": ["pwd"]})',
            "tool: /home/ann",
            "assistant: One file.",
            "user: Read it.",
        ],
    ),
    left_out={"texts of the program": 4, "messages that were taken back": 2},
)
CODEX_TOOLS = Sample(
    "one tool in JavaScript, pictures, a search, and a compaction",
    "codex",
    lines(
        META,
        rollout("session_meta", id="0199-parent"),
        item(
            "message",
            role="user",
            content=[
                {"type": "input_text", "text": "<image name=[Image #1]>"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
                {"type": "input_text", "text": "</image>"},
                {"type": "input_text", "text": "What is this?"},
            ],
        ),
        item("custom_tool_call", name="exec", input="await tools.view('a.png')", call_id="x1", status="completed"),
        item(
            "custom_tool_call_output",
            call_id="x1",
            output=[{"type": "input_text", "text": "Script completed"}, {"type": "input_text", "text": "64 x 48"}],
        ),
        item("web_search_call", status="completed", action={"type": "search", "query": "logo"}),
        item("tool_search_call", call_id="s1", execution="client", arguments={"query": "draw"}),
        item("tool_search_output", call_id="s1", tools=[{"name": "draw", "description": "Draws a line"}]),
        item("local_shell_call", call_id="l1", status="completed", action={"type": "exec", "command": ["ls"]}),
        item("function_call_output", call_id="l1", output="b.png"),
        item("reasoning", summary=[], encrypted_content="gAAAA"),
        codex_said("assistant", "A logo."),
        rollout("compacted", message="", replacement_history=[{"type": "message", "role": "user", "content": []}]),
        {
            **rollout(
                "event_msg",
                type="item_completed",
                item={"type": "AgentMessage", "content": [{"type": "Text", "text": "A logo."}]},
            ),
            "ordinal": 9,
        },
        codex_said("user", "Thanks."),
    ),
    (
        [
            "user: What is this? [image]",
            'assistant: exec({"input": "await tools.view(\'a.png\')"})',
            "tool: Script completed\n64 x 48",
            'assistant: web_search({"type": "search", "query": "logo"})',
            "tool: (no result: the transcript has none for this call)",
            'assistant: tool_search({"query": "draw"})',
            'tool: [{"name": "draw", "description": "Draws a line"}]',
            'assistant: local_shell({"type": "exec", "command": ["ls"]})',
            "tool: b.png",
            "assistant: A logo.",
            "user: Thanks.",
        ],
    ),
    left_out={
        "reasonings that are encrypted": 1,
        "summaries of compactions, whose messages are all here": 1,
        "calls without a result, with a note in its place": 1,
    },
)
CODEX_CUT = Sample(
    "a call without its output at the end",
    "codex",
    lines(META, codex_said("user", "Run it."), item("function_call", name="exec", arguments="{}", call_id="c9")),
    (["user: Run it.", "assistant: exec({})", "tool: (no result: the transcript has none for this call)"],),
    left_out={"calls without a result, with a note in its place": 1},
)

# Gemini CLI


def gem(identity: str, kind: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"id": identity, "timestamp": "2026-08-21T10:00:00.000Z", "type": kind, "content": content, **fields}


GEMINI_META = {
    "sessionId": "g-1",
    "projectHash": "abc",
    "startTime": "2026-08-21T10:00:00Z",
    "lastUpdated": "2026-08-21T10:09:00Z",
}
GEMINI_CALL = {
    "id": "ls-1",
    "name": "list_directory",
    "args": {"path": "."},
    "status": "success",
    "timestamp": "2026-08-21T10:00:01Z",
    "displayName": "ReadFolder",
    "description": "Lists the folder",
    "resultDisplay": "Listed 2 items.",
}
GEMINI_ANSWER = [{"functionResponse": {"id": "ls-1", "name": "list_directory", "response": {"output": "a.md b.md"}}}]
GEMINI_LOG = Sample(
    "a log of upserts, with a rewind",
    "gemini-cli",
    lines(
        {**GEMINI_META, "kind": "main"},
        {"$set": {"messages": [gem("p", "user", "<session_context>\nToday is Friday.\n</session_context>")]}},
        gem("m1", "user", [{"text": "What is here?"}]),
        gem("m2", "gemini", "", model="gemini-3-pro"),
        gem("m2", "gemini", "I look.", toolCalls=[{**GEMINI_CALL, "status": "executing"}], model="gemini-3-pro"),
        gem(
            "m2",
            "gemini",
            "I look.",
            thoughts=[{"subject": "Listing", "description": "I list the folder.", "timestamp": "x"}],
            toolCalls=[{**GEMINI_CALL, "result": GEMINI_ANSWER}],
            tokens={"input": 10, "output": 5, "cached": 2, "thoughts": 1, "total": 16},
            model="gemini-3-pro",
        ),
        gem("m3", "user", GEMINI_ANSWER),
        gem("m4", "gemini", "Two files."),
        gem("m5", "info", "Request cancelled."),
        gem("m6", "user", "Wrong question"),
        gem("m7", "gemini", "Wrong answer"),
        {"$rewindTo": "m6"},
        gem("m8", "user", "Read @a.md\n--- Content of a.md ---\nHello", displayContent="Read @a.md"),
    ),
    (
        [
            "user: What is here?",
            'assistant: (Listing\nI list the folder.) I look. list_directory({"path": "."})',
            "tool: a.md b.md",
            "assistant: Two files.",
            "user: Read @a.md",
        ],
    ),
    left_out={
        "texts of the program": 1,
        "notices of the program": 1,
        "messages that were taken back": 2,
        "files that a question names": 1,
    },
)
GEMINI_COMPRESSED = Sample(
    "a compression: a snapshot, and the newest turn again under other ids",
    "gemini-cli",
    lines(
        GEMINI_META,
        gem("m1", "user", "The code is 4711."),
        gem("m2", "gemini", "Noted."),
        gem("m3", "user", "And the door?"),
        gem("m4", "gemini", "Green."),
        {
            "$set": {
                "messages": [
                    gem("n1", "user", "<state_snapshot>The code is known.</state_snapshot>"),
                    gem("n2", "gemini", "Got it. Thanks for the additional context!"),
                    gem("n3", "user", "And the door?"),
                    gem("n4", "gemini", "Green."),
                ]
            }
        },
        gem("n4", "gemini", "Green.", tokens={"input": 3, "output": 1, "cached": 0, "total": 4}),
        gem("m5", "user", "Who asked?"),
    ),
    (["user: The code is 4711.", "assistant: Noted.", "user: And the door?", "assistant: Green.", "user: Who asked?"],),
    left_out={"summaries of compactions, whose messages are all here": 1},
)
GEMINI_OBJECT = Sample(
    "one object, with a picture and a tool that failed",
    "gemini-cli",
    json.dumps(
        {
            **GEMINI_META,
            "summary": "A red square",
            "messages": [
                gem("m1", "user", [{"text": "What colour?"}, {"inlineData": {"mimeType": "image/png", "data": PNG}}]),
                gem(
                    "m2",
                    "gemini",
                    "",
                    toolCalls=[{**GEMINI_CALL, "status": "error", "resultDisplay": "No such folder"}],
                ),
                gem("m3", "gemini", [{"text": "Red."}]),
            ],
        },
        indent=2,
    ),
    (
        [
            "user: What colour? [image]",
            'assistant: list_directory({"path": "."})',
            "tool: No such folder",
            "assistant: Red.",
        ],
    ),
    title="A red square",
)

# ShareGPT, OpenAI, Ollama

SHAREGPT = Sample(
    "roles, calls, tools and images beside the conversation",
    "sharegpt",
    json.dumps(
        [
            {
                "conversations": [
                    {"from": "human", "value": "<image>What is the weather in Bern?"},
                    {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Bern"}}'},
                    {"from": "observation", "value": '{"sky": "clear"}'},
                    {"from": "gpt", "value": "Clear."},
                ],
                "system": "Be short.",
                "tools": '[{"name": "weather", "description": "The weather of a city"}]',
                "images": ["images/bern.png"],
            },
            {"id": "two", "conversations": [{"from": "user", "value": "Hi"}, {"from": "chatgpt", "value": "Hello"}]},
        ]
    ),
    (
        [
            "system: Be short.",
            "user: <image>What is the weather in Bern? [image]",
            'assistant: weather({"city": "Bern"})',
            'tool: {"sky": "clear"}',
            "assistant: Clear.",
        ],
        ["user: Hi", "assistant: Hello"],
    ),
    left_out={"descriptions of tools": 1},
)
SHAREGPT_LINES = Sample(
    "lines, and two answers that are compared",
    "sharegpt",
    lines(
        {
            "conversations": [{"from": "human", "value": "Name a tree."}],
            "chosen": {"from": "gpt", "value": "Oak."},
            "rejected": {"from": "gpt", "value": "Stone."},
        },
        {
            "conversations": [
                {"from": "system", "value": "S."},
                {"from": "human", "value": "Q?"},
                {"from": "gpt", "value": "A."},
            ]
        },
    ),
    (["user: Name a tree.", "assistant: Oak."], ["system: S.", "user: Q?", "assistant: A."]),
    branches=1,
)
SHAREGPT_CALLS = Sample(
    "two calls at once",
    "sharegpt",
    json.dumps(
        [
            {
                "conversations": [
                    {"from": "human", "value": "Both."},
                    {
                        "from": "function_call",
                        "value": '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]',
                    },
                    {"from": "observation", "value": "first"},
                    {"from": "observation", "value": "second"},
                    {"from": "gpt", "value": "Done."},
                ]
            }
        ]
    ),
    (["user: Both.", "assistant: a({}) b({})", "tool: first", "tool: second", "assistant: Done."],),
)
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
FINETUNING = Sample(
    "lines with calls, weights and pictures",
    "openai-finetuning",
    lines(
        {
            "messages": [
                {"role": "system", "content": "Add."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "1?"},
                        {"type": "image_url", "image_url": {"url": "http://x/1.png"}},
                    ],
                },
                {"role": "assistant", "tool_calls": [CALLED], "weight": 0},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                {"role": "assistant", "content": "Two.", "weight": 1},
            ],
            "tools": [{"type": "function", "function": {"name": "add", "description": "Adds two numbers"}}],
        },
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": None, "refusal": "I may not."},
            ]
        },
    ),
    (
        ["system: Add.", "user: 1? [image]", 'assistant: add({"a": 1})', "tool: 2", "assistant: Two."],
        ["user: Hi", "assistant: I may not."],
    ),
    left_out={"descriptions of tools": 1},
)
PREFERENCES = Sample(
    "preferences",
    "openai-finetuning",
    lines(
        {
            "input": {"messages": [{"role": "user", "content": "Greet me."}], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [{"role": "assistant", "content": "Good morning."}],
            "non_preferred_output": [{"role": "assistant", "content": "Hm."}],
        }
    ),
    (["user: Greet me.", "assistant: Good morning."],),
    branches=1,
)
FUNCTIONS = Sample(
    "functions of before tools",
    "openai-finetuning",
    lines(
        {
            "messages": [
                {"role": "user", "content": "Time?"},
                {"role": "assistant", "content": None, "function_call": {"name": "clock", "arguments": "{}"}},
                {"role": "function", "name": "clock", "content": "noon"},
                {"role": "assistant", "content": "Noon."},
            ],
            "functions": [{"name": "clock"}],
        }
    ),
    (["user: Time?", "assistant: clock({})", "tool: noon", "assistant: Noon."],),
    left_out={"descriptions of tools": 1},
)


def answered(name: str, body: Any, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"batch_{name}",
        "custom_id": name,
        "response": body and {"status_code": 200, "request_id": "r", "body": body},
        "error": None,
        **fields,
    }


BATCH_OUTPUT = Sample(
    "answers without questions, and failures",
    "openai-batch",
    lines(
        answered(
            "b",
            {
                "id": "x",
                "model": "gpt-5",
                "created": 1_780_000_000,
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "Second."}}],
            },
        ),
        answered("a", {"error": {"message": "Rate limit reached", "code": "429"}}),
        answered("c", None, error={"code": "batch_expired", "message": "This request expired."}),
    ),
    (["assistant: Second."], [], []),
    title="b",
)
BATCH_INPUT = Sample(
    "requests",
    "openai-batch",
    lines(
        {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
        },
        {"custom_id": "b", "method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": "Hello there"}},
    ),
    (["user: Hi"], ["user: Hello there"]),
    title="a",
)
BATCH_ITEMS = Sample(
    "answers of Responses, with choices",
    "openai-batch",
    lines(
        answered(
            "r",
            {
                "object": "response",
                "created_at": 1_780_000_000,
                "output": [
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Thinking of it."}]},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "A heron.", "annotations": []}],
                    },
                ],
            },
        ),
        answered(
            "s",
            {
                "choices": [
                    {"message": {"role": "assistant", "content": "One"}},
                    {"message": {"role": "assistant", "content": "Other"}},
                ]
            },
        ),
    ),
    (["assistant: (Thinking of it.) A heron."], ["assistant: One"]),
    title="r",
)
OLLAMA_REQUEST = Sample(
    "a request, with bare pictures and arguments that are objects",
    "ollama",
    json.dumps(
        {
            "model": "qwen3",
            "messages": [
                {"role": "user", "content": "What is in it?", "images": [PNG]},
                {
                    "role": "assistant",
                    "content": "",
                    "thinking": "I look.",
                    "tool_calls": [{"function": {"name": "see", "arguments": {"n": 1}}}],
                },
                {"role": "tool", "content": "a cat", "tool_name": "see"},
                {"role": "assistant", "content": "A cat."},
            ],
            "stream": True,
            "options": {"temperature": 0},
        }
    ),
    (["user: What is in it? [image]", 'assistant: (I look.) see({"n": 1})', "tool: a cat", "assistant: A cat."],),
)
OLLAMA_STREAM = Sample(
    "a request and the pieces of its answer",
    "ollama",
    lines(
        {"model": "qwen3", "messages": [{"role": "user", "content": "Count."}]},
        {
            "model": "qwen3",
            "created_at": "2026-08-21T10:00:00Z",
            "message": {"role": "assistant", "content": "", "thinking": "An easy one"},
            "done": False,
        },
        {
            "model": "qwen3",
            "created_at": "2026-08-21T10:00:01Z",
            "message": {"role": "assistant", "content": "One, "},
            "done": False,
        },
        {
            "model": "qwen3",
            "created_at": "2026-08-21T10:00:02Z",
            "message": {"role": "assistant", "content": "two."},
            "done": False,
        },
        {
            "model": "qwen3",
            "created_at": "2026-08-21T10:00:03Z",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "eval_count": 5,
        },
    ),
    (["user: Count.", "assistant: (An easy one) One, two."],),
)
OLLAMA_LINES = Sample(
    "messages, one a line",
    "ollama",
    lines({"role": "user", "content": "See.", "images": [PNG]}, {"role": "assistant", "content": "Seen."}),
    (["user: See. [image]", "assistant: Seen."],),
)

# LangChain, LangSmith, LlamaIndex


def constructor(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": kwargs}


USED = {"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
LANGCHAIN_DUMPED = Sample(
    "constructors, of which fields with defaults are absent",
    "langchain",
    json.dumps(
        [
            constructor("SystemMessage", content="Add.", type="system"),
            constructor("HumanMessage", content="1 and 1?", type="human"),
            constructor(
                "AIMessage",
                content=[
                    {"type": "thinking", "thinking": "Add.", "signature": "x"},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                ],
                type="ai",
                tool_calls=[USED],
            ),
            constructor("ToolMessage", content="2", type="tool", tool_call_id="c1", status="success"),
            constructor("AIMessageChunk", content="Two.", type="AIMessageChunk"),
        ]
    ),
    (["system: Add.", "user: 1 and 1?", 'assistant: (Add.) add({"a": 1})', "tool: 2", "assistant: Two."],),
)
LANGCHAIN_DICTS = Sample(
    "messages_to_dict",
    "langchain",
    json.dumps(
        [
            {
                "type": "human",
                "data": {"content": "Hi", "additional_kwargs": {}, "type": "human", "name": None, "id": None},
            },
            {
                "type": "ai",
                "data": {"content": "Hello", "tool_calls": [], "usage_metadata": None, "id": "run-1", "type": "ai"},
            },
        ]
    ),
    (["user: Hi", "assistant: Hello"],),
)
LANGCHAIN_STATE = Sample(
    "a state with messages",
    "langchain",
    json.dumps(
        {"messages": [constructor("HumanMessage", content="Hi"), constructor("AIMessage", content="Ho")]}, indent=1
    ),
    (["user: Hi", "assistant: Ho"],),
)


def run(
    identity: str, kind: str, inputs: Any, outputs: Any, parent: str | None = None, trace: str = "t1", **fields: Any
) -> dict[str, Any]:
    at = fields.pop("at", "2026-05-01T10:00:00")
    return {
        "id": identity,
        "name": identity,
        "run_type": kind,
        "start_time": at,
        "end_time": at,
        "inputs": inputs,
        "outputs": outputs,
        "parent_run_id": parent,
        "trace_id": trace,
        **fields,
    }


ASKED, REPLIED = (
    constructor("HumanMessage", content="Hi", type="human"),
    constructor("AIMessage", content="Ho", type="ai"),
)
LANGSMITH_GRAPH = Sample(
    "a graph with its steps, in a thread of two traces",
    "langsmith",
    lines(
        run(
            "g",
            "chain",
            {"messages": [["user", "Hi"]]},
            {"messages": [ASKED, REPLIED]},
            extra={"metadata": {"thread_id": "th"}},
        ),
        run("s", "chain", {"messages": [ASKED]}, {"update": {"messages": [REPLIED]}, "goto": "end"}, parent="g"),
        run("m", "llm", {"messages": [[ASKED]]}, {"generations": [[{"text": "Ho", "message": REPLIED}]]}, parent="s"),
        run(
            "g2",
            "chain",
            {"messages": [["user", "And the heron?"]]},
            {
                "messages": [
                    ASKED,
                    REPLIED,
                    {"type": "human", "content": "And the heron?"},
                    {"type": "ai", "content": "No."},
                ]
            },
            trace="t2",
            at="2026-05-01T11:00:00",
            extra={"metadata": {"thread_id": "th"}},
        ),
    ),
    (["user: Hi", "assistant: Ho", "user: And the heron?", "assistant: No."],),
    title="g",
)
LANGSMITH_MODELS = Sample(
    "models under a chain that has no messages",
    "langsmith",
    json.dumps(
        [
            run("c", "chain", {"topic": ["x"]}, {"done": True}),
            run(
                "m1",
                "llm",
                {"messages": [[ASKED]]},
                {"generations": [[{"text": "Ho", "message": REPLIED}]]},
                parent="c",
            ),
            run(
                "m2",
                "llm",
                {"messages": [[ASKED, REPLIED, constructor("HumanMessage", content="More")]]},
                {"generations": [[{"text": "No", "message": constructor("AIMessage", content="No")}]]},
                parent="c",
                at="2026-05-01T10:00:09",
            ),
        ]
    ),
    (["user: Hi", "assistant: Ho", "user: More", "assistant: No"],),
    title="c",
)
LANGSMITH_OPENAI = Sample(
    "wrap_openai",
    "langsmith",
    lines(
        run(
            "o",
            "llm",
            {"messages": [{"role": "user", "content": "Add."}], "model": "gpt-5"},
            {
                "choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [CALLED]}}],
                "usage": {},
            },
        ),
        run("p", "chain", {"input": "What?"}, {"output": "That."}, trace="t2", at="2026-05-02T10:00:00"),
    ),
    (
        ["user: Add.", 'assistant: add({"a": 1})', "tool: (no result: the transcript has none for this call)"],
        ["user: What?", "assistant: That."],
    ),
    left_out={"calls without a result, with a note in its place": 1},
    title="o",
)
LLAMA_STORE = {
    "store": {
        "ann": [
            {
                "role": "user",
                "additional_kwargs": {},
                "blocks": [
                    {"block_type": "text", "text": "Add."},
                    {"block_type": "image", "image": PNG, "path": None, "url": None, "image_mimetype": "image/png"},
                ],
            },
            {
                "role": "assistant",
                "additional_kwargs": {},
                "blocks": [
                    {"block_type": "thinking", "content": "Easy.", "num_tokens": None},
                    {"block_type": "tool_call", "tool_call_id": "c1", "tool_name": "add", "tool_kwargs": {"a": 1}},
                ],
            },
            {
                "role": "tool",
                "additional_kwargs": {"tool_call_id": "c1", "name": "add"},
                "blocks": [{"block_type": "text", "text": "2"}],
            },
        ],
        "bob": [{"role": "user", "content": "Old.", "additional_kwargs": {}}],
    },
    "class_name": "SimpleChatStore",
}
LLAMA_TOLD = (["user: Add. [image]", 'assistant: (Easy.) add({"a": 1})', "tool: 2"], ["user: Old."])
LLAMAINDEX = Sample("a chat store", "llamaindex", json.dumps(LLAMA_STORE), LLAMA_TOLD, title="ann")
LLAMAINDEX_OLD = Sample(
    "a chat store as JSON in a text", "llamaindex", json.dumps(json.dumps(LLAMA_STORE)), LLAMA_TOLD, title="ann"
)
LLAMAINDEX_BARE = Sample(
    "messages alone",
    "llamaindex",
    lines(*LLAMA_STORE["store"]["ann"]),  # type: ignore[index]
    (LLAMA_TOLD[0],),
)

# Vercel and OpenTelemetry

VERCEL = Sample(
    "steps with tools in every state",
    "vercel",
    json.dumps(
        [
            {
                "id": "m1",
                "role": "user",
                "parts": [
                    {"type": "text", "text": "Weather?"},
                    {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA"},
                ],
            },
            {
                "id": "m2",
                "role": "assistant",
                "metadata": {"createdAt": 1_780_000_000_000},
                "parts": [
                    {"type": "step-start"},
                    {"type": "reasoning", "text": "I ask.", "state": "done"},
                    {
                        "type": "tool-weather",
                        "toolCallId": "c1",
                        "state": "output-available",
                        "input": {"city": "Bern"},
                        "output": {"sky": "clear"},
                    },
                    {
                        "type": "dynamic-tool",
                        "toolName": "wind",
                        "toolCallId": "c2",
                        "state": "output-error",
                        "input": {},
                        "errorText": "no wind",
                    },
                    {"type": "text", "text": "Clear.", "state": "done"},
                    {"type": "step-start"},
                    {"type": "data-weather", "data": {"text": "for the page"}},
                    {"type": "tool-pay", "toolCallId": "c3", "state": "approval-requested", "input": {"sum": 1}},
                ],
            },
        ]
    ),
    (
        [
            "user: Weather? [image]",
            'assistant: (I ask.) weather({"city": "Bern"})',
            'tool: {"sky": "clear"}',
            "assistant: wind({})",
            "tool: no wind",
            "assistant: Clear.",
            'assistant: pay({"sum": 1})',
            "tool: (no result: the transcript has none for this call)",
        ],
    ),
    left_out={"parts of the type 'data-weather'": 1, "calls without a result, with a note in its place": 1},
)
VERCEL_CHAT = Sample(
    "a chat with an id",
    "vercel",
    json.dumps({"id": "chat-1", "messages": [{"id": "a", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}),
    (["user: Hi"],),
)
VERCEL_OLD = Sample(
    "tool invocations of before",
    "vercel",
    lines(
        {"id": "a", "role": "user", "content": "Hi", "parts": [{"type": "text", "text": "Hi"}]},
        {
            "id": "b",
            "role": "assistant",
            "content": "Ho",
            "parts": [
                {
                    "type": "tool-invocation",
                    "toolInvocation": {
                        "state": "result",
                        "toolCallId": "c",
                        "toolName": "f",
                        "args": {},
                        "result": "r",
                    },
                },
                {"type": "text", "text": "Ho"},
            ],
        },
    ),
    (["user: Hi", "assistant: f({})", "tool: r", "assistant: Ho"],),
)


def otel_text(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def otlp(name: str, start: int, attributes: dict[str, Any], trace: str = "aa", **fields: Any) -> dict[str, Any]:
    held = [
        {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}
        for key, value in attributes.items()
    ]
    return {
        "traceId": trace,
        "spanId": name,
        "name": name,
        "startTimeUnixNano": str(1_780_000_000_000_000_000 + start),
        "attributes": held,
        **fields,
    }


def exported(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [*spans]}]}]}


OTEL_CALL = {
    "role": "assistant",
    "parts": [
        {"type": "reasoning", "content": "I add."},
        {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}},
    ],
}
OTEL_RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "2"}]}
OTEL_SPANS = Sample(
    "spans that repeat the history",
    "opentelemetry",
    lines(
        exported(
            otlp(
                "two",
                20,
                {
                    "gen_ai.system_instructions": [{"type": "text", "content": "Add."}],
                    "gen_ai.input.messages": [otel_text("user", "1 and 1?"), OTEL_CALL, OTEL_RESULT],
                    "gen_ai.output.messages": [{**otel_text("assistant", "Two."), "finish_reason": "stop"}],
                    "gen_ai.conversation.id": "conv",
                },
            ),
            otlp(
                "one",
                10,
                {
                    "gen_ai.system_instructions": [{"type": "text", "content": "Add."}],
                    "gen_ai.input.messages": [otel_text("user", "1 and 1?")],
                    "gen_ai.output.messages": [{**OTEL_CALL, "finish_reason": "tool_call"}],
                    "gen_ai.conversation.id": "conv",
                },
            ),
            otlp("http", 5, {"url.full": "http://x", "user_agent.original": "python and more words"}),
        )
    ),
    (["system: Add.", "user: 1 and 1?", 'assistant: (I add.) add({"a": 1})', "tool: 2", "assistant: Two."],),
)


def event(name: str, **body: Any) -> dict[str, Any]:
    attributes = {key: value if isinstance(value, str) else json.dumps(value) for key, value in body.items()}
    return {"name": name, "timestamp": "2026-05-01T10:00:01Z", "attributes": {"gen_ai.system": "openai", **attributes}}


OTEL_EVENTS = Sample(
    "events of the older conventions, as the console shows a span",
    "opentelemetry",
    json.dumps(
        {
            "name": "chat gpt-4",
            "context": {"trace_id": "0xaa", "span_id": "0x1", "trace_state": "[]"},
            "kind": "SpanKind.CLIENT",
            "parent_id": None,
            "start_time": "2026-05-01T10:00:00.000000Z",
            "attributes": {"gen_ai.request.model": "gpt-4"},
            "events": [
                event("gen_ai.system.message", content="Be brief."),
                event("gen_ai.user.message", content="Time?"),
                event(
                    "gen_ai.assistant.message",
                    tool_calls=[{"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}],
                ),
                event("gen_ai.tool.message", id="c1", content="noon"),
                event(
                    "gen_ai.choice",
                    index="0",
                    finish_reason="stop",
                    message={"role": "assistant", "content": "It is noon."},
                ),
            ],
        },
        indent=4,
    ),
    (["system: Be brief.", "user: Time?", "assistant: clock({})", "tool: noon", "assistant: It is noon."],),
)
OTEL_LOGS = Sample(
    "events as logs",
    "opentelemetry",
    lines(
        {
            "resourceLogs": [
                {
                    "scopeLogs": [
                        {
                            "logRecords": [
                                {
                                    "timeUnixNano": "1780000000000000000",
                                    "traceId": "bb",
                                    "spanId": "1",
                                    "eventName": f"gen_ai.{name}",
                                    "body": {
                                        "kvlistValue": {"values": [{"key": "content", "value": {"stringValue": text}}]}
                                    }
                                    if name != "choice"
                                    else {
                                        "kvlistValue": {
                                            "values": [
                                                {
                                                    "key": "message",
                                                    "value": {
                                                        "kvlistValue": {
                                                            "values": [
                                                                {"key": "content", "value": {"stringValue": text}}
                                                            ]
                                                        }
                                                    },
                                                }
                                            ]
                                        }
                                    },
                                }
                                for name, text in (("user.message", "Ping?"), ("choice", "Pong."))
                            ]
                        }
                    ]
                }
            ]
        }
    ),
    (["user: Ping?", "assistant: Pong."],),
)
CHAT_ROWS = Sample(
    "an array of messages",
    "chat",
    json.dumps([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]),
    (["user: Hi", "assistant: Ho"],),
)
SAMPLES: Sequence[Sample] = tuple(value for value in [*globals().values()] if isinstance(value, Sample))
