"""Reads conversations of training sets and batches: ShareGPT, and OpenAI's fine-tuning and batch files."""

from __future__ import annotations

from dataclasses import replace

from ctxfold.errors import MessageError
from ctxfold.transcripts.chat_messages import add_message
from ctxfold.transcripts.coding_agents import add_item
from ctxfold.transcripts.conversation import (
    Conversation,
    ConversationBuilder,
    Row,
    check_fields,
    media,
    need,
    placeholder,
    rows,
)
from ctxfold.validation import as_dict, as_list, as_text, is_a


def sharegpt(number: int, value: Row) -> Conversation:
    """Reads a conversation of ShareGPT; of two answers that are compared, the chosen one."""
    builder = ConversationBuilder("sharegpt", number, value.get("id"), value.get("title"))
    check_fields(
        value, "conversations system tools images videos audios chosen rejected title source", "a conversation"
    )
    if as_text(value.get("system")):
        add_message(builder, {"role": "system", "content": value["system"]})
    builder.left_out["descriptions of tools"] += bool(value.get("tools"))
    files = [as_text(path) for path in as_list(value.get("images"))]
    for message in need(value, "conversations", list, "a conversation"):
        row = as_dict(message)
        said = as_text(row.get("value") if "from" in row else row.get("content"))
        names, files = files[: said.count("<image>")], files[said.count("<image>") :]
        add_message(builder, message)
        if names:
            last, at_s = builder.rows[-1]
            pictures = (media(placeholder("image", name)) for name in names)
            builder.rows[-1] = (replace(last, parts=(*last.parts, *pictures)), at_s)
    return _compared(builder, value.get("chosen"), value.get("rejected"))


def openai_finetuning(number: int, value: Row) -> Conversation:
    """Reads a conversation of a fine-tuning file; of two answers that are compared, the preferred one."""
    builder = ConversationBuilder("openai-finetuning", number)
    check_fields(value, "messages input preferred_output non_preferred_output tools functions", "a conversation")
    held = value if "messages" in value else need(value, "input", dict, "a conversation")
    builder.left_out["descriptions of tools"] += bool(held.get("tools") or held.get("functions"))
    for message in need(held, "messages", list, "a conversation"):
        add_message(builder, message)
    return _compared(builder, value.get("preferred_output"), value.get("non_preferred_output"))


def _compared(builder: ConversationBuilder, chosen: object, other: object) -> Conversation:
    for message in as_list(chosen) if is_a(chosen, list) else [chosen] if chosen else []:
        add_message(builder, message)
    builder.branches += bool(other)
    return builder.conversation()


def openai_batch(number: int, value: Row) -> Conversation:
    """Reads a request or an answer of a batch. An answer comes without its question, and a request that failed without answer."""
    name = need(value, "custom_id", str, "a line")
    builder = ConversationBuilder("openai-batch", number, name, name)
    response = as_dict(value.get("response"))
    body = as_dict(response.get("body") if "response" in value else value.get("body"))
    if "response" in value and (value["response"] is None or value.get("error") or body.get("error")):
        builder.left_out["requests that failed"] += 1
        return builder.conversation()
    choices = rows(body.get("choices"), "the choices of an answer")
    builder.branches = max(len(choices) - 1, 0)
    messages = [need(choice, "message", dict, "a choice") for choice in choices[:1]] or body.get("messages")
    for message in rows(messages, "the messages of a line"):
        add_message(builder, message, at=body.get("created"))
    given = body.get("output" if "response" in value else "input") if messages is None else None
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else rows(given, "the items of a line"):
        add_item(builder, item, body.get("created_at"), as_text(body.get("model")))
    if not builder.rows:
        raise MessageError(f"its body has no messages (fields: {', '.join(body) or 'none'})")
    return builder.conversation()
