"""`CtxLLM` on the loopback server, with the message lists that it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from llama_index.core.base.llms.types import ChatMessage
from pydantic import PrivateAttr

from ctxfold import Request
from ctxfold.testing import ModelServer
from llamaindex_ctx import CtxLLM

Made: TypeAlias = "Callable[..., LoopbackLLM]"


class LoopbackLLM(CtxLLM):
    """Asks the server; `sent` are the lists of its calls, summaries among them."""

    _sent: list[list[ChatMessage]] = PrivateAttr(default_factory=list)

    def __init__(self, server: ModelServer, *, window: int = 8_000) -> None:
        super().__init__(
            model=server.model, base_url=server.base_url, api_key="x", context_window=window, max_tokens=200
        )

    @property
    def sent(self) -> list[list[ChatMessage]]:
        return self._sent

    def _request(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> Request:
        self._sent.append(list(messages))
        return super()._request(messages, options)
