"""Reads what ChatGPT and claude.ai export: a list of conversations, each of them a tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ctxfold.errors import MessageError
from ctxfold.messages import MediaPart, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolResultPart, check_role
from ctxfold.transcripts.chat_messages import add_parts, parts_of
from ctxfold.transcripts.conversation import (
    Conversation,
    ConversationBuilder,
    Row,
    arguments_text,
    branches_beside,
    check_fields,
    media,
    need,
    path_to,
    placeholder,
    rows,
    seconds,
    texts,
    words,
)
from ctxfold.validation import as_dict, as_dicts, as_text

# ChatGPT

_CITATION = re.compile("\ue200(?:file)?cite\ue202[^\ue201]*\ue201")
_HIDDEN = words("user_editable_context model_editable_context")
_CONTENT_FIELDS = {  # with text, of the types of content that have no parts
    "code": "text",
    "execution_output": "text",
    "system_error": "name text",
    "tether_browsing_code": "text",
    "tether_browsing_display": "summary result",
    "tether_quote": "title url text",
    "sonic_webpage": "title url snippet text",
    "reasoning_recap": "content",
}
_MEDIA = {
    "image_asset_pointer": "image",
    "audio_asset_pointer": "audio",
    "video_container_asset_pointer": "video",
    "real_time_user_audio_video_asset_pointer": "audio",
}
_MEDIA_FIELDS = "metadata audio_asset_pointer frames_asset_pointers video_container_asset_pointer"


def chatgpt(number: int, value: Row) -> Conversation:
    """Reads the branch of `current_node`. Hidden messages are left out."""
    identity = value.get("conversation_id") or value.get("id")
    builder = ConversationBuilder("chatgpt", number, identity, value.get("title"))
    nodes = {name: as_dict(node) for name, node in value["mapping"].items()}
    parents = {name: as_text(node.get("parent")) or None for name, node in nodes.items()}
    for name, parent in parents.items():
        if "message" not in nodes[name] or (parent is not None and parent not in nodes):
            raise MessageError(f"node {name!r} has no message, or a parent that is not there ({parent!r})")
    leaf = as_text(value.get("current_node"))
    if leaf not in nodes:
        raise MessageError(f"its current_node {leaf!r} is not among its {len(nodes)} nodes")
    path = path_to(leaf, parents)
    messages = {name: as_dict(node["message"]) for name, node in nodes.items() if node["message"] is not None}
    builder.branches = branches_beside(
        path, parents, [name for name, message in messages.items() if not _hidden(message)]
    )
    open_call = ""
    for name in path:
        if name in messages:
            open_call = _add_node(builder, name, messages[name], open_call)
    started = seconds(value.get("create_time"))
    builder.rows = [
        (m, started if at_s is None and not place else at_s) for place, (m, at_s) in enumerate(builder.rows)
    ]
    return builder.conversation()


def _hidden(message: Row) -> bool:
    """Returns True for what the program put there."""
    hidden = as_dict(message.get("metadata")).get("is_visually_hidden_from_conversation") is True
    injected = as_dict(message.get("content")).get("content_type") in _HIDDEN
    return injected or (hidden and as_dict(message.get("author")).get("role") in ("system", "user"))


def _add_node(builder: ConversationBuilder, name: str, message: Row, open_call: str) -> str:
    """Adds the message of a node, and returns the call that waits for a result then, "" for none."""
    check_fields(message, "author content metadata", "a message")
    author, content = need(message, "author", dict, "a message"), need(message, "content", dict, "a message")
    role, metadata = check_role(author.get("role")), as_dict(message.get("metadata"))
    if _hidden(message):
        builder.left_out["hidden messages of the program"] += 1
        return open_call
    fields: dict[str, Any] = {"id": name, "at": message.get("create_time")}
    parts = _content_parts(content)
    parts += [
        media(placeholder("file", as_text(file.get("name"))))
        for file in as_dicts(metadata.get("attachments"))
        if not as_text(file.get("mime_type") or file.get("mimeType")).startswith("image/")  # these are in the content
    ]
    said = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    others = [part for part in parts if not isinstance(part, TextPart)]
    recipient = as_text(message.get("recipient")) or "all"
    fields |= {"model": metadata.get("model_slug")} if role == "assistant" else {}
    if role == "tool":
        _add_output(builder, ToolResultPart(open_call or name, said, as_text(author.get("name"))), others, fields)
        return ""
    if role == "assistant" and recipient != "all":
        builder.add(role, [*others, ToolCallPart(name, recipient, arguments_text(said))], **fields)
        return name
    builder.add(role, parts, **fields)
    return open_call


def _add_output(
    builder: ConversationBuilder, result: ToolResultPart, others: Sequence[Part], fields: dict[str, Any]
) -> None:
    """Adds what a tool said, which joins its result before where no call is open: calls have no ids."""
    last = builder.rows[-1][0] if builder.rows else None
    if last and last.tool_results and last.tool_results[0].name == result.name:
        before = last.tool_results[0]
        result = ToolResultPart(before.call_id, "\n".join(filter(None, (before.content, result.content))), result.name)
        others, fields = [*last.parts[1:], *others], {"id": last.id, "at": builder.rows.pop()[1]}
    builder.add("tool", [result, *(part for part in others if isinstance(part, MediaPart))], **fields)


def _content_parts(content: Row) -> list[Part]:
    kind = need(content, "content_type", str, "a content")
    what = f"a content of the type {kind!r}"
    if kind in ("text", "multimodal_text"):
        check_fields(content, "parts", what)
        return [part for item in need(content, "parts", list, what) for part in _part(item)]
    if kind == "thoughts":
        check_fields(content, "thoughts", what)
        thoughts = rows(need(content, "thoughts", list, what), what)
        for thought in thoughts:
            check_fields(thought, "summary content chunks", "a thought")
        said = [f"{as_text(t.get('summary'))}\n{need(t, 'content', str, 'a thought')}".strip() for t in thoughts]
        return [ReasoningPart("\n\n".join(said))] if any(said) else []
    if kind not in _CONTENT_FIELDS:
        raise MessageError(f"{what} is not known (fields: {', '.join(content)})")
    names = _CONTENT_FIELDS[kind].split()
    check_fields(content, f"domain {_CONTENT_FIELDS[kind]}", what)
    need(content, names[-1], str, what)
    told = "\n".join(text for name in names if (text := as_text(content.get(name))))
    return [ReasoningPart(told)] if kind == "reasoning_recap" and told else texts(told)


def _part(item: object) -> list[Part]:
    if isinstance(item, str):
        return texts(_CITATION.sub("", item))
    row = as_dict(item)
    kind = as_text(row.get("content_type"))
    if kind == "audio_transcription":
        return texts(need(row, "text", str, "a transcription"))
    if kind not in _MEDIA:
        raise MessageError(f"a part of a content is not known: {str(item)[:80]}")
    check_fields(row, _MEDIA_FIELDS, "a part of a content")
    pointer = as_text(row.get("asset_pointer") or as_dict(row.get("audio_asset_pointer")).get("asset_pointer"))
    return [media(placeholder(_MEDIA[kind], pointer.rpartition("/")[2], asset_pointer=pointer))]


# claude.ai

_ROOT = "00000000-"
_CLAUDE_ROLES: dict[str, Role] = {"human": "user", "assistant": "assistant"}


def claude_ai(number: int, value: Row) -> Conversation:
    """Reads the branch of the current leaf, which is the last message where the export names none."""
    builder = ConversationBuilder("claude-ai", number, value.get("uuid"), value.get("name"))
    messages = {need(m, "uuid", str, "a message"): m for m in rows(value["chat_messages"], "chat_messages")}
    names = [*messages]
    parents: dict[str, str | None] = dict(zip(names, [None, *names], strict=False))
    if any("parent_message_uuid" in message for message in messages.values()):
        parents = {name: as_text(m.get("parent_message_uuid")) or None for name, m in messages.items()}
    lost = next((p for p in parents.values() if p and p not in messages and not p.startswith(_ROOT)), None)
    if lost is not None:
        raise MessageError(f"the parent {lost!r} of a message is not there")
    leaf = value.get("current_leaf_message_uuid")
    path = path_to(leaf if leaf in messages else next(reversed(names), None), parents)
    builder.branches = branches_beside(path, parents, names)
    for name in path:
        _add_claude_message(builder, name, messages[name])
    return builder.conversation()


def _add_claude_message(builder: ConversationBuilder, name: str, message: Row) -> None:
    check_fields(message, "attachments content files files_v2 metadata sync_sources text", "a message")
    sender = need(message, "sender", str, "a message")
    if sender not in _CLAUDE_ROLES or not message.keys() & {"content", "text"}:
        raise MessageError(
            f"a message of {sender!r} is of nobody who is known, or has no content (fields: {', '.join(message)})"
        )
    blocks = rows(message.get("content"), "the content of a message")
    if all(
        block.get("type") == "token_budget" or block.get("text") == "" for block in blocks
    ):  # older ones have a text alone
        blocks = [
            {"type": "text", "text": as_text(message.get("text"))},
            *(b for b in blocks if b.get("type") != "text"),
        ]
    for file in rows(message.get("attachments"), "the attachments of a message"):
        check_fields(file, "extracted_content file_name", "an attachment")
        told = (as_text(file.get("file_name")), as_text(file.get("extracted_content")))
        blocks.append({"type": "text", "text": "\n".join(filter(None, told))})
    blocks += [placeholder("file", as_text(file.get("file_name"))) for file in as_dicts(message.get("files"))]
    fields = {"id": name, "at": message.get("created_at")}
    add_parts(builder, _CLAUDE_ROLES[sender], parts_of(builder, blocks), fields)
