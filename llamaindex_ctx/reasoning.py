"""Reasoning for LLMs that lose it: what a thinking service gave with an answer goes back to it with that answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    MessageRole,
    ThinkingBlock,
)
from llama_index.core.llms.llm import LLM

from ctxfold.adapters.calls import Replay, no_replay, replaying
from ctxfold.errors import ConfigError
from llamaindex_ctx.metadata import REASONING_KEY
from llamaindex_ctx.summarizer import check_llm

L = TypeVar("L", bound=LLM)
_MESSAGES = "ctxfold_messages"  # among the arguments of one call, from its entrance to where its body is put together
_FAMILY = "llama_index.llms.openai.base"
# integrations whose own message format carries thoughts back
_NATIVE = (
    "llama_index.llms.anthropic.",
    "llama_index.llms.bedrock_converse.",
    "llama_index.llms.google_genai.",
    "llama_index.llms.ollama.",
    "llama_index.llms.openai.responses",
    "llamaindex_ctx.",
)
_THINKS = ("thinking", "thinking_dict", "reasoning_effort")  # fields by which an LLM is told to think


def with_reasoning(llm: L) -> L:
    """Returns a copy of the LLM that sends the reasoning of answers back; it shares the LLM's connections.

    It supports every LLM built on `llama_index.llms.openai` (DeepSeek, OpenAILike, OpenAI with a base URL, ...). An LLM that
    sends reasoning back itself is returned unchanged. Raises ConfigError for an LLM that cannot be made to send it.
    """
    check_llm("the LLM of with_reasoning", llm)
    match replay(llm):
        case "sends":
            return llm
        case "helped":
            return returning(llm)
        case "unknown":
            raise _no_way(llm)


def check_reasoning(llm: LLM) -> None:
    """Raises ConfigError for an LLM that is set to think and whose reasoning cannot be sent back."""
    if replay(llm) == "unknown" and any(getattr(llm, name, None) for name in _THINKS):
        raise _no_way(llm)


def replay(llm: LLM) -> Replay:
    """Returns "sends" if the LLM sends reasoning back itself, "helped" if it can be made to, else "unknown"."""
    if isinstance(llm, _ReturnsReasoning):
        return "sends"
    modules = [cls.__module__ for cls in type(llm).__mro__]
    if any(f"{module}.".startswith(_NATIVE) for module in modules):
        return "sends"
    return "helped" if _FAMILY in modules and llm.metadata.is_chat_model else "unknown"


def returning(llm: L) -> L:
    """Returns a copy of the LLM that sends reasoning back, or the LLM itself where that is not supported."""
    if replay(llm) != "helped":
        return llm
    return replaying(llm, _ReturnsReasoning)


def _no_way(llm: LLM) -> ConfigError:
    name = type(llm).__name__
    if any(cls.__module__ == _FAMILY for cls in type(llm).__mro__):
        return ConfigError(
            f"this {name} has is_chat_model=False and sends one text, in which reasoning has no place: set "
            f"is_chat_model=True, or use CtxLLM(model=..., provider=..., base_url=...) from llamaindex_ctx"
        )
    own = "CtxLLM(model=..., provider=..., base_url=...) from llamaindex_ctx"
    return no_replay(name, own, "an LLM of llama-index-llms-openai-like or llama-index-llms-deepseek")


class _ReturnsReasoning:
    """Mixin for classes of `llama_index.llms.openai`'s family; fields and connections stay those of the LLM.

    The request is put together by the class below; its messages then go into the body once more, with their reasoning.
    """

    __slots__ = ()

    def _chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        base: Any = super()
        return _noted(base._chat(messages, **self._with_messages(messages, kwargs)))

    async def _achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        base: Any = super()
        return _noted(await base._achat(messages, **self._with_messages(messages, kwargs)))

    def _stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        base: Any = super()
        source = base._stream_chat(messages, **self._with_messages(messages, kwargs))
        return (_noted(response) for response in source)

    async def _astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        base: Any = super()
        source = await base._astream_chat(messages, **self._with_messages(messages, kwargs))
        return (_noted(response) async for response in source)

    def _with_messages(self, messages: Sequence[ChatMessage], kwargs: dict[str, Any]) -> dict[str, Any]:
        from llama_index.llms.openai.utils import to_openai_message_dicts

        llm: Any = self
        sent = cast("list[dict[str, Any]]", to_openai_message_dicts(messages, model=llm.model))
        is_deepseek = "deepseek" in f"{llm.class_name()} {llm.api_base}".lower()
        return {**kwargs, _MESSAGES: sent} if _restored(sent, messages, always=is_deepseek) else kwargs

    def _get_model_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        sent = kwargs.pop(_MESSAGES, None)
        base: Any = super()
        arguments: dict[str, Any] = base._get_model_kwargs(**kwargs)
        if sent is not None:
            # the client lays this over the body that it has written
            arguments["extra_body"] = {**(arguments.get("extra_body") or {}), "messages": sent}
        return arguments

    def __reduce__(self) -> tuple[Any, ...]:
        llm: Any = self
        plain = llm.model_copy()
        object.__setattr__(plain, "__class__", type(self).__mro__[2])
        return with_reasoning, (plain,)


def _restored(sent: Sequence[dict[str, Any]], messages: Sequence[ChatMessage], *, always: bool) -> bool:
    """Puts reasoning into the request's assistant messages. When one has it, services require the field in all.

    `always` is for DeepSeek's, which wants the field in every answer while it thinks, and ignores it else.
    """
    thoughts = [_thought(m) if m.role in (MessageRole.ASSISTANT, MessageRole.CHATBOT) else None for m in messages]
    if not always and all(t is None for t in thoughts):
        return False
    for place, thought in zip(sent, thoughts, strict=True):
        if place.get("role") == "assistant":
            place.setdefault(REASONING_KEY, thought or "")
    return True


def _thought(message: ChatMessage) -> str | None:
    blocks = [block.content or "" for block in message.blocks if isinstance(block, ThinkingBlock)]
    if blocks:
        return "".join(blocks)
    known: object = message.additional_kwargs.get(REASONING_KEY)
    return known if isinstance(known, str) else None


def _noted(response: ChatResponse) -> ChatResponse:
    """Adds the reasoning to `additional_kwargs` of the message, because streaming chat engines keep only those."""
    thought = _thought(response.message)
    if thought is not None:
        response.message.additional_kwargs[REASONING_KEY] = thought
    return response
