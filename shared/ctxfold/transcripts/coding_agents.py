"""Reads the sessions of coding agents: Claude Code, Codex and Gemini CLI. Each file holds one conversation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ctxfold.errors import MessageError
from ctxfold.messages import MediaPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart, Usage
from ctxfold.transcripts.chat_messages import add_message, add_parts, parts_of, result_parts
from ctxfold.transcripts.conversation import (
    Conversation,
    ConversationBuilder,
    Numbered,
    Row,
    arguments_text,
    branches_beside,
    check_fields,
    json_text,
    need,
    numbered,
    path_to,
    rows,
    texts,
    words,
)
from ctxfold.validation import as_dict, as_dicts, as_list, as_text, is_a

PROGRAM = "texts of the program"
_SUMMARY = "summaries of compactions, whose messages are all here"
_NOTICE = "notices of the program"
_TAKEN_BACK = "messages that were taken back"
Lines: TypeAlias = dict[str, tuple[int, Row]]  # by their ids


def without_elements(text: str, names: str) -> str:
    """Returns a text without the elements of these names (`a|b`) at its beginning and at its end."""
    element = rf"<({names})\b[^>]*>.*?</\{{}}>\s*"
    return re.sub(rf"\A(?:\s*{element.format(1)})+|\s*{element.format(2)}\Z", "", text, flags=re.DOTALL)


def spoken(builder: ConversationBuilder, blocks: Iterable[Row], names: str) -> list[dict[str, Any]]:
    """Returns the blocks of a user's message without the texts that a program put there, as elements of these names."""
    found = [(b, without_elements(b["text"], names) if isinstance(b.get("text"), str) else "-") for b in blocks]
    builder.left_out[PROGRAM] += sum(b.get("text", text) != text for b, text in found)
    return [{**b, "text": text} if "text" in b else {**b} for b, text in found if text.strip()]


def text_blocks(content: object, what: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else rows(content, what)


# Claude Code

_CLAUDE_TAGS = (
    "command-[a-z]+|local-command-[a-z]+|bash-[a-z]+|task-notification|system-reminder|ide_[a-z_]+|new-diagnostics"
    "|user-prompt-submit-hook|user-memory-input"
)
_CLAUDE_NOTES = words(
    "agent-color agent-name agent-setting ai-title custom-title file-history-delta file-history-snapshot last-prompt mode "
    "permission-mode pr-link queue-operation summary tag worktree-state"
)
_CLAUDE_CHAIN = words("assistant attachment progress system user")
_CLAUDE_MESSAGE = "content stop_sequence usage context_management container diagnostics"


def claude_code(values: Numbered) -> Iterator[Conversation]:
    """Reads a session: the branch of the last line, with what stands before a compaction. Sub-agents are left out."""
    builder, lines, agents = ConversationBuilder("claude-code", 1), Lines(), dict[str, Lines]()
    for number, line in values:
        with numbered(number, "claude-code"):
            kind = need(line, "type", str, "the line")
            builder.id = builder.id or as_text(line.get("sessionId"))
            if kind in _CLAUDE_NOTES:
                named = line.get("customTitle") or line.get("aiTitle") or line.get("summary")
                builder.title = as_text(named) or builder.title
            elif kind not in _CLAUDE_CHAIN:
                builder.unknown(line, "", f"lines of the unknown type {kind!r}")
            elif line.get("isSidechain") is True:
                agent = agents.setdefault(as_text(line.get("agentId")), {})
                agent[need(line, "uuid", str, "the line")] = (number, line)
            else:
                lines.setdefault(need(line, "uuid", str, "the line"), (number, line))
    lines = lines or agents.popitem()[1] if agents else lines  # a file of a sub-agent
    builder.left_out["conversations of sub-agents"] = len(agents)
    parents = _claude_parents(lines)
    said = [u for u, (_, line) in lines.items() if line["type"] in ("user", "assistant") and not _injected(line)]
    # notes and late results hang beside what was said last
    leaves = [uuid for uuid in said if not any(block.get("type") == "tool_result" for block in _blocks(lines[uuid][1]))]
    leaf = next(reversed(leaves or [*parents]), None)
    with numbered(lines[leaf][0] if leaf in lines else 1, "claude-code"):
        branch = _claude_branch(path_to(leaf, parents), lines)
    builder.branches = branches_beside(branch, parents, said)
    for uuid, (number, line) in lines.items():
        with numbered(number, "claude-code"):
            _add_claude_line(builder if uuid in branch else ConversationBuilder(builder.form, 0), line)
    kept = bool(builder.rows) and builder.rows[0][0].kind == "summary"
    builder.left_out[_SUMMARY] = sum(bool(line.get("isCompactSummary")) for _, line in lines.values()) - kept
    yield builder.conversation()


def _claude_parents(lines: Lines) -> dict[str, str | None]:
    """Returns the parent of each line; of one whose parent is not in the file, and of a compaction, the line before it."""
    parents: dict[str, str | None] = {}
    for uuid, (_, line) in lines.items():
        parent = as_text(line.get("parentUuid") or line.get("logicalParentUuid"))
        root = "parentUuid" in line and not parent and line.get("subtype") != "compact_boundary"
        parents[uuid] = parent if parent in lines else None if root else next(reversed(parents), None)
    return parents


def _claude_branch(path: Sequence[str], lines: Lines) -> set[str]:
    """Returns the lines of a branch, and those of its replies and results that hang beside it: parallel calls branch the file."""
    branch = set(path)
    replies = {_message(lines[uuid][1]).get("id") for uuid in path} - {None}
    branch |= {uuid for uuid, (_, line) in lines.items() if _message(line).get("id") in replies}
    blocks = {uuid: _blocks(line) for uuid, (_, line) in lines.items()}
    calls = {b.get("id") for uuid in branch for b in blocks[uuid] if b.get("type") == "tool_use"}
    open_calls = calls - {b.get("tool_use_id") for uuid in branch for b in blocks[uuid]}
    for uuid in lines:
        results = {b.get("tool_use_id") for b in blocks[uuid] if b.get("type") == "tool_result"}
        if results and results <= open_calls:
            branch.add(uuid)
            open_calls -= results
    return branch


def _message(line: Row) -> Mapping[str, Any]:
    return as_dict(line.get("message"))


def _blocks(line: Row) -> list[dict[str, Any]]:
    return as_dicts(_message(line).get("content"))


def _injected(line: Row) -> bool:
    other = as_dict(line.get("origin")).get("kind", "human") != "human"
    return bool(
        line.get("isMeta") or line.get("isCompactSummary") or other or _message(line).get("model") == "<synthetic>"
    )


def _add_claude_line(builder: ConversationBuilder, line: Row) -> None:
    fields: dict[str, Any] = {"id": line["uuid"], "at": line.get("timestamp")}
    kind, queued = line["type"], as_dict(line.get("attachment"))
    if queued.get("type") == "queued_command" and queued.get("commandMode", "prompt") == "prompt":
        add_parts(builder, "user", parts_of(builder, queued.get("prompt")), fields)
    if kind not in ("user", "assistant"):
        return
    message = need(line, "message", dict, f"a line of the type {kind!r}")
    check_fields(message, _CLAUDE_MESSAGE, "the message")
    content = text_blocks(need(message, "content", object, "the message"), "the content")
    if line.get("isCompactSummary"):
        if not builder.rows:  # what it stands for is not in the file
            builder.add("user", texts(*(as_text(block.get("text")) for block in content)), kind="summary", **fields)
    elif _injected(line):
        builder.left_out[_NOTICE if kind == "assistant" else PROGRAM] += 1
    elif kind == "user":
        said = spoken(builder, content, _CLAUDE_TAGS) or (
            content if "origin" in line else []
        )  # tags that the user typed
        kept = [block for block in said if not as_text(block.get("text")).startswith("[Request interrupted by user")]
        builder.left_out[PROGRAM] += len(said) - len(kept)
        add_parts(builder, "user", parts_of(builder, kept), fields)
    else:
        spent = as_dict(message.get("usage"))
        read, written = (int(spent.get(f"cache_{name}_input_tokens") or 0) for name in ("read", "creation"))
        usage = Usage(
            int(spent.get("input_tokens") or 0) + read + written, int(spent.get("output_tokens") or 0), read, written
        )
        fields |= {"model": message.get("model"), "reply": message.get("id"), "usage": usage if spent else None}
        add_parts(builder, "assistant", parts_of(builder, content), fields)


# Codex

_CODEX_TAGS = (
    "environment_context|user_instructions|INSTRUCTIONS|turn_aborted|user_shell_command|subagent_notification|hook_prompt"
    "|codex_internal_context|skill|goal_context|permissions instructions"
)
_AGENTS_FILE = re.compile(r"\A\s*# AGENTS\.md instructions\b[^\n]*\s*(?=<INSTRUCTIONS>)")
_IMAGE_MARK = re.compile(r"<image(?: [^<>]*)?>|</image>")
_CODEX_SILENT = words("compaction compaction_summary context_compaction ghost_snapshot")
_ARGUMENTS = ("arguments", "input", "action", "revised_prompt")


def codex(values: Numbered) -> Iterator[Conversation]:
    """Reads a rollout: what the model saw, without the turns that were taken back."""
    builder, turns, model = ConversationBuilder("codex", 1), list[int](), ""
    for number, line in values:
        with numbered(number, "codex"):
            kind, payload = need(line, "type", str, "the line"), need(line, "payload", dict, "the line")
            before, at = len(builder.rows), line.get("timestamp")
            if kind == "session_meta":
                builder.id = builder.id or as_text(payload.get("id"))
                builder.left_out["beginnings that are in another rollout"] += "history_base" in payload
            elif kind == "turn_context":
                model = as_text(payload.get("model")) or model
            elif kind == "response_item" or (kind == "compacted" and not before):  # else what it replaces is above
                for item in [payload] if kind == "response_item" else as_dicts(payload.get("replacement_history")):
                    add_item(builder, item, at, model)
                if not builder.rows and kind == "compacted":
                    builder.add("user", texts(as_text(payload.get("message"))), at=at, kind="summary")
                turns += [before] if before < len(builder.rows) and builder.rows[-1][0].role == "user" else []
            elif kind == "compacted":
                builder.left_out[_SUMMARY] += 1
            elif payload.get("type") == "thread_rolled_back":
                count = min(int(payload["num_turns"]), len(turns))
                start = turns[len(turns) - count] if count else before
                builder.left_out[_TAKEN_BACK] += before - start
                del builder.rows[start:], turns[len(turns) - count :]
            elif kind != "event_msg":
                builder.unknown(line, "timestamp", f"lines of the unknown type {kind!r}")
    yield builder.conversation()


def add_item(builder: ConversationBuilder, item: Row, at: object, model: str) -> None:
    """Adds an item of the Responses API, as Codex keeps them."""
    item = {"type": "message", **item} if "role" in item else item
    kind, call = need(item, "type", str, "an item"), as_text(item.get("call_id") or item.get("id"))
    what = f"an item of the type {kind!r}"
    if kind == "message":
        _codex_message(builder, item, at, model)
    elif kind == "reasoning":
        check_fields(item, "summary content encrypted_content", what)
        blocks = rows(item.get("summary"), what) + rows(item.get("content"), what)
        thought = "\n\n".join(need(block, "text", str, "a reasoning") for block in blocks)
        builder.left_out["reasonings that are encrypted"] += not thought
        if thought:
            builder.add("assistant", [ReasoningPart(thought)], at=at, model=model)
    elif kind.endswith("_call"):
        name = next((field for field in _ARGUMENTS if field in item), "arguments")
        check_fields(item, f"{name} name result", what)
        arguments = arguments_text(need(item, name, object, what))
        tool = as_text(item.get("name")) or kind.removesuffix("_call")
        builder.add("assistant", [ToolCallPart(call, tool, arguments)], at=at, model=model)
    elif kind.endswith("_output"):
        name = "tools" if "tools" in item else "output"
        check_fields(item, f"{name} name", what)
        told = need(item, name, object, what)
        told = as_dict(told).get("content") if set(as_dict(told)) == {"content", "success"} else told
        builder.add("tool", result_parts(ToolResultPart(call, ""), told), at=at)
    elif kind in _CODEX_SILENT:
        builder.left_out[f"items of the type {kind!r}"] += 1
    else:
        builder.unknown(item, "", f"items of the unknown type {kind!r}")


def _codex_message(builder: ConversationBuilder, item: Row, at: object, model: str) -> None:
    role = need(item, "role", str, "a message")
    blocks = text_blocks(need(item, "content", object, "a message"), "a content")
    check_fields(item, "content metadata", "a message")
    for block in blocks:
        check_fields(block, "text image_url annotations logprobs", "a part of a message")
        if as_text(block.get("type")) in ("input_text", "output_text", "text"):
            need(block, "text", str, "a part of a message")
    if role == "developer":
        builder.left_out[PROGRAM] += 1
        return
    if role == "user":
        said = [b for b in blocks if not _IMAGE_MARK.fullmatch(as_text(b.get("text")).strip())]
        said = [{**b, "text": _AGENTS_FILE.sub("", b["text"])} if "text" in b else b for b in said]
        blocks = spoken(builder, said, _CODEX_TAGS)
    if blocks:
        fields: dict[str, Any] = {"id": item.get("id"), "at": at, "model": model if role == "assistant" else ""}
        add_message(builder, {"role": role, "content": blocks}, **fields)


# Gemini CLI

_GEMINI_TAGS = "session_context|hook_context|state_snapshot"
_GEMINI_META = "directories summary startTime lastUpdated kind activeExtensionName sessionId projectHash messages"


def gemini_cli(values: Numbered) -> Iterator[Conversation]:
    """Reads a session of either form: one object, or a log in which the last version of a message counts."""
    builder, again = ConversationBuilder("gemini-cli", 1), dict[str, str]()
    messages = Lines()
    for number, line in values:
        with numbered(number, "gemini-cli"):
            change = as_dict(line.get("$set")) or line
            if "$rewindTo" in line:
                name: str = need(line, "$rewindTo", str, "the line")
                name, names = again.get(name, name), [*messages]
                start = names.index(name) if name in messages else 0
                builder.left_out[_TAKEN_BACK] += len(names) - start
                messages = {kept: messages[kept] for kept in names[:start]}  # an unknown id clears all
            elif "sessionId" in line or "$set" in line:
                check_fields(change, _GEMINI_META, "the line")
                builder.id = as_text(change.get("sessionId")) or builder.id
                builder.title = as_text(change.get("summary")) or builder.title
                if "messages" in change:
                    found = rows(change["messages"], "the messages")
                    told = [(str(need(m, "id", str, "a message")), (number, m)) for m in found]
                    messages, again = _replaced(builder, messages, told)
            else:
                name = str(need(line, "id", str, "a message"))
                messages[again.get(name, name)] = (number, line)
    for name, (number, message) in messages.items():
        with numbered(number, "gemini-cli"):
            _add_gemini(builder, name, message)
    yield builder.conversation()


def _replaced(
    builder: ConversationBuilder, before: Lines, found: Sequence[tuple[str, tuple[int, Row]]]
) -> tuple[Lines, dict[str, str]]:
    """Returns the messages once their list was replaced, and the names of those that stand there again under other ids.

    A compression leaves a snapshot of what it removed, and the newest turns again: what it removed stays, the snapshot goes.
    """
    compressed = [place for place, (_, (_, m)) in enumerate(found) if "<state_snapshot>" in json_text(m.get("content"))]
    if not compressed or not before:
        return dict(found), {}
    builder.left_out[_SUMMARY] += 1
    said = {_gemini_key(message): name for name, (_, message) in before.items()}
    newest = found[compressed[0] + 2 :]  # behind it the model says that it has read it
    again = {name: said[_gemini_key(m)] for name, (_, m) in newest if _gemini_key(m) in said}
    return {**before, **{name: line for name, line in newest if name not in again}}, again


def _gemini_key(message: Row) -> str:
    calls = [call.get("id") for call in as_dicts(message.get("toolCalls"))]
    return json_text([message.get("type"), message.get("content"), calls])


def _add_gemini(builder: ConversationBuilder, name: str, message: Row) -> None:
    kind, what = need(message, "type", str, "a message"), "a message"
    check_fields(message, "content displayContent toolCalls thoughts tokens model", what)
    fields: dict[str, Any] = {"id": name, "at": message.get("timestamp")}
    content = _gemini_items(need(message, "content", object, what))
    if kind in ("info", "warning", "error"):
        builder.left_out[_NOTICE] += 1
    elif kind == "user":
        shown = _gemini_items(message.get("displayContent")) or content
        builder.left_out["files that a question names"] += shown != content
        # results are with their calls
        asked = [b for b in spoken(builder, shown, _GEMINI_TAGS) if "functionResponse" not in b]
        add_parts(builder, "user", parts_of(builder, asked), fields)
    elif kind == "gemini":
        pairs = [
            [need(t, k, str, "a thought") for k in ("subject", "description")]
            for t in rows(message.get("thoughts"), what)
        ]
        thoughts = [ReasoningPart("\n\n".join("\n".join(filter(None, pair)) for pair in pairs))] if pairs else []
        calls = rows(message.get("toolCalls"), "calls")
        said = parts_of(builder, [block for block in content if not calls or "functionCall" not in block])
        made = [
            {"functionCall": {key: need(call, key, object, "a call") for key in ("id", "name", "args")}}
            for call in calls
        ]
        spent = {key: count for key, count in as_dict(message.get("tokens")).items() if is_a(count, int)}
        usage = Usage(spent.get("input", 0), spent.get("output", 0) + spent.get("thoughts", 0), spent.get("cached", 0))
        fields |= {"model": message.get("model"), "usage": usage if spent else None}
        builder.add("assistant", [*thoughts, *said, *parts_of(builder, made)], **fields)
        for call in calls:
            _add_gemini_result(builder, call, fields["at"])
    else:
        raise MessageError(f"the type {kind!r} of a message is not known: user, gemini, info, warning and error are")


def _add_gemini_result(builder: ConversationBuilder, call: Row, at: object) -> None:
    check_fields(call, "args result resultDisplay displayName description", "a call")
    parts = parts_of(builder, call.get("result")) or texts(as_text(call.get("resultDisplay")))
    told = [
        part.content if isinstance(part, ToolResultPart) else part.text
        for part in parts
        if isinstance(part, TextPart | ToolResultPart)
    ]
    failed = call.get("status") in ("error", "cancelled") or any(getattr(part, "is_error", False) for part in parts)
    if parts:
        result = ToolResultPart(as_text(call.get("id")), "\n".join(told), as_text(call.get("name")), failed)
        builder.add("tool", [result, *(part for part in parts if isinstance(part, MediaPart))], at=at)


def _gemini_items(content: object) -> list[dict[str, Any]]:
    items = as_list(content) if is_a(content, list) else [content] if content else []
    return rows([{"text": item} if isinstance(item, str) else item for item in items], "a content")
