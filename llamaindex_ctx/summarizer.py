"""Any LlamaIndex LLM as the backend that writes summaries."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, MessageRole
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms.llm import LLM
from llama_index_instrumentation.dispatcher import active_instrument_tags, instrument_tags

from ctxfold.adapters.calls import BorrowedModel, Invoke, as_backend_error
from ctxfold.effects import Flow
from ctxfold.engine.request import LIMITS, limit_among
from ctxfold.errors import ConfigError
from ctxfold.messages import assistant
from ctxfold.protocols import BackendCapabilities, ContextBackend, Reply, Request
from ctxfold.validation import kind_of
from llamaindex_ctx.replies import usage_of


def check_llm(what: str, candidate: object) -> None:
    """Raises ConfigError for anything but a LlamaIndex LLM, such as a model's name or another framework's model."""
    if not isinstance(candidate, LLM):
        raise ConfigError(
            f"{what} is {kind_of(candidate)}: give a LlamaIndex LLM, such as CtxLLM(model=..., provider=...) of llamaindex_ctx"
        )


class UnknownWindow(LLMMetadata):
    """Metadata of a model whose window is not known: reading `context_window` raises ConfigError."""

    def __getattribute__(self, name: str) -> Any:
        if name == "context_window":
            raise ConfigError(_unknown("CtxLLM", self.model_name))
        return super().__getattribute__(name)


def told_window(llm: LLM) -> int | None:
    """Returns the LLM's window in tokens; None where it is only LlamaIndex's default."""
    metadata = llm.metadata
    if isinstance(metadata, UnknownWindow):
        return None
    window, fields = metadata.context_window, type(llm).model_fields
    assumed = "context_window" in fields and "context_window" not in llm.model_fields_set
    return None if window == DEFAULT_CONTEXT_WINDOW and assumed else window or None


def known_window(llm: LLM) -> int:
    """Returns the LLM's window in tokens. ConfigError where nobody has given it."""
    window = told_window(llm)
    if window is None:
        raise ConfigError(_unknown(type(llm).__name__, llm.metadata.model_name))
    return window


def reply_limit(llm: LLM | None) -> int | None:
    """Returns the most tokens that the LLM is set to answer with; None where it is not told."""
    further: object = getattr(llm, "additional_kwargs", None)
    settings = {name: value for name in LIMITS if (value := getattr(llm, name, None)) is not None}
    return limit_among({**(cast("dict[str, object]", further) if isinstance(further, dict) else {}), **settings})


def _unknown(kind: str, model: str) -> str:
    return (
        f"{kind} was not told its context window, and none is known for the model {model!r} (LlamaIndex would assume "
        f"{DEFAULT_CONTEXT_WINDOW}): give context_window=... in tokens"
    )


def marked(what: str) -> dict[str, Any]:
    """Adds the tag `ctxfold: what` to the caller's instrumentation tags, for a call outside the conversation."""
    return {**active_instrument_tags.get(), "ctxfold": what}


class LlmSummarizer(BorrowedModel):
    """A backend that asks a LlamaIndex LLM for summaries only, without streaming: nothing of them reaches a user's stream.

    Its instrumentation events have the tag `ctxfold: summary`. The prompt states the length of a summary in words, because LLM
    classes have different names for a token limit.
    """

    capabilities = BackendCapabilities()

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @property
    def model(self) -> str:
        return self.llm.metadata.model_name

    @property
    def context_window(self) -> int | None:
        return told_window(self.llm)

    def answer(self, request: Request) -> Flow[Reply]:
        """Returns the summary; every exception of the LLM is raised as BackendError."""
        messages = [ChatMessage(role=MessageRole(m.role), content=m.text) for m in request.messages]
        with self.marked():
            response: ChatResponse = yield from Invoke(self.llm.chat, self.llm.achat, messages)
            summary = assistant(response.message.content or "", id="summary")
            return Reply(summary, usage_of(response), raw=response.raw)

    @contextmanager
    def marked(self) -> Generator[None]:
        """Tags the LLM's events within the block as a summary's, and raises every exception of the LLM as BackendError."""
        with as_backend_error(f"the summariser {self.model}"), instrument_tags(marked("summary")):
            yield


if TYPE_CHECKING:
    from llama_index.core.llms.mock import MockLLM

    _: ContextBackend = LlmSummarizer(MockLLM())
