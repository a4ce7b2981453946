"""Lets the engine ask LangChain's chat models, embeddings and retrievers, and lends LangChain the engine's token counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, MessageLikeRepresentation, ToolMessage, convert_to_messages
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.vectorstores import VectorStore

from ctxfold import Item, Query, Section
from ctxfold.adapters.calls import BorrowedModel, Invoke
from ctxfold.adapters.sessions import checked_embedder, found_item
from ctxfold.connect import message_counter
from ctxfold.effects import Flow
from ctxfold.errors import ConfigError, MessageError
from ctxfold.protocols import BackendCapabilities, ContextBackend, Embedder, Reply, Request, TokenCounter
from ctxfold.tokens.text import TextCounter
from ctxfold.validation import is_a, kind_of
from langchain_ctx.errors import as_backend_error
from langchain_ctx.inner_model import ForeignChunks, offered, window_for
from langchain_ctx.messages import from_langchain, reply_of
from langchain_ctx.models import capabilities, check_model, may_think, model_name, model_window
from langchain_ctx.tools import counted

# nothing of a call reaches the callbacks or the stream of a run around it; summaries are such calls too
_ALONE: RunnableConfig = {"callbacks": [], "tags": ["nostream"], "run_name": "ctxfold", "configurable": {}}


class LangChainBackend(BorrowedModel):
    """A backend over a LangChain chat model: text, tools, and reasoning where the model returns it.

    `max_tokens`, `temperature`, `thinking` and `model` are passed on where the model has a field of that name, `extra` as
    `extra_body` where it has that. `config` is passed with every call; the default keeps calls out of the callbacks and the
    stream of a surrounding run. The window is `context_window`, or the value in the model's profile. `close` does not close the
    model.
    """

    def __init__(
        self, model: BaseChatModel, *, context_window: int | None = None, config: RunnableConfig | None = None
    ) -> None:
        check_model("LangChainBackend", model)
        if getattr(model, "session", None) is not None:
            raise ConfigError(
                "this model keeps a session of its own: give LangChainBackend one without session, or use its context_backend"
            )
        self._model = model
        self._config = _ALONE if config is None else config
        self._window = context_window

    @property
    def model(self) -> str:
        return model_name(self._model)

    @property
    def context_window(self) -> int | None:
        return self._window or model_window(self._model)

    @property
    def capabilities(self) -> BackendCapabilities:
        return replace(capabilities(self._model), sparing=self._sparing)

    def _sparing(self, request: Request) -> Request:
        """Returns the request without `max_tokens` where the model thinks, because its thinking counts as output."""
        return replace(request, max_tokens=None) if may_think(self._model) else request

    def answer(self, request: Request) -> Flow[Reply]:
        model, messages, options = self._call(request)
        with self.translated():
            answer = yield from Invoke(model.invoke, model.ainvoke, messages, self._config.copy(), **options)
        return reply_of(answer, answer)

    def stream(self, request: Request) -> Flow[Any]:
        model, messages, options = self._call(request)
        source = yield from Invoke(model.stream, model.astream, messages, self._config.copy(), **options)
        return (yield from self.read_stream(source, ForeignChunks()))

    def translated(self) -> AbstractContextManager[None]:
        return as_backend_error(self.model)

    def _call(
        self, request: Request
    ) -> tuple[Runnable[LanguageModelInput, AIMessage], list[BaseMessage], dict[str, Any]]:
        return offered(self._model, request), window_for(self._model, request), self._options(request)

    def _options(self, request: Request) -> dict[str, Any]:
        fields = type(self._model).model_fields
        names = {*fields, *(f.alias for f in fields.values() if f.alias)}
        settings: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "thinking": request.thinking if getattr(self._model, "context_backend", None) is not None else None,
            "model": request.model if request.model != self.model else None,
        }
        options = {name: value for name, value in settings.items() if value is not None and name in names}
        if request.stop:
            options["stop"] = list(request.stop)
        if request.extra:
            options |= {"extra_body": dict(request.extra)} if "extra_body" in names else dict(request.extra)
        return options


_SOURCES = ("source", "file_path", "url", "title")
# a retriever may ask a model: nothing of that reaches the callbacks or the stream of the run around it
_APART: RunnableConfig = {"callbacks": [], "tags": ["nostream", "ctxfold:section"], "run_name": "ctxfold section"}


def section_from(
    source: BaseRetriever | VectorStore, *, kind: str = "documents", limit: int = 8, **terms: Any
) -> Section:
    """Returns a section with the documents that a retriever finds for the newest user message, or the `limit` nearest of a
    vector store.

    ```python
    model = with_context(chat, session_id="s", context_window=64_000, sections=[section_from(vector_store)])
    ```
    Documents are shown as data, each once, with source and page. When the retriever fails or is too slow, the request goes
    without the section. `terms` are keyword arguments of `ctxfold.Section`: place, lifetime, share, min_free_ratio, timeout_s.
    """
    candidate: Any = source  # or whatever else a caller hands over
    retriever: Any = (
        candidate.as_retriever(search_kwargs={"k": limit}) if isinstance(candidate, VectorStore) else candidate
    )
    if not isinstance(retriever, BaseRetriever):
        raise ConfigError(f"{kind_of(candidate)} cannot be the source of a section: give a retriever or a vector store")

    def found(query: Query) -> list[Item]:  # async code calls it in a worker thread
        return [_item(document) for document in retriever.invoke(query.text, _APART.copy())]

    return Section(kind, found, **terms)


def _item(document: Document) -> Item:
    metadata = cast("Mapping[str, object]", document.metadata)
    return found_item(document.page_content, metadata, sources=_SOURCES, page="page", id=document.id)


class LangChainEmbedder:
    """Adapts `Embeddings` to `AgentContext(embedder=...)`; the classes of langchain_ctx take `Embeddings` directly."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return self._embeddings.embed_documents(list(texts))

    async def aembed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return await self._embeddings.aembed_documents(list(texts))


def as_embedder(embedder: Any) -> Embedder | None:
    """Returns an embedder for LangChain's `Embeddings`, or one of the engine's kind as it is. ConfigError for anything else."""
    if isinstance(embedder, Embeddings):
        return LangChainEmbedder(embedder)
    return checked_embedder(embedder, "LangChain Embeddings")


REMEMBERED = 100_000  # counts; each takes about 100 bytes
_PLAIN = (str, int, float)


def token_counter(
    model: BaseChatModel | str | None = None,
    *,
    counter: TokenCounter | TextCounter | None = None,
    tools: Sequence[Any] = (),
    count_reasoning: bool = True,
) -> MessageTokens:
    """Returns a function that counts the tokens of messages as ctxfold does.

    ```python
    trim_messages(messages, max_tokens=4_000, token_counter=token_counter(model))
    ```
    It counts text in every script, reasoning, tool calls with their arguments, tool results and media. Counts are cached by
    message. `tools` are added to every count; `counter` replaces the model's encoding.
    """
    if model is not None and not is_a(model, (str, BaseChatModel)):
        raise ConfigError(
            f"the model of token_counter is {kind_of(model)}: give a LangChain chat model, or a model's name"
        )
    name = model_name(model) if isinstance(model, BaseChatModel) else model
    return MessageTokens(message_counter(counter, model=name, count_reasoning=count_reasoning), tools)


class MessageTokens:
    """The counter that `token_counter` returns. It is safe across threads.

    It takes messages in any order, and any message that LangChain converts.
    """

    def __init__(self, counter: TokenCounter, tools: Sequence[Any]) -> None:
        self._counter = counter
        self._tools_tokens = counter.count_tools(counted(tools))
        self._known: dict[int, int] = {}

    def __call__(self, messages: Iterable[MessageLikeRepresentation], *, tools: Sequence[Any] | None = None) -> int:
        known, total = self._known, self._tools_tokens
        for item in messages:
            message = item if isinstance(item, BaseMessage) else convert_to_messages([item])[0]
            # by 64 bits of what is counted, not by id: a trimmed copy keeps the id, and no content is kept alive
            key = hash(_counted(message))
            tokens = known.get(key)
            total += self._count(key, message) if tokens is None else tokens
        return total + (self._counter.count_tools(counted(tools)) if tools else 0)

    def _count(self, key: int, message: BaseMessage) -> int:
        try:
            tokens = self._counter.count(from_langchain(message, new_id=str))
        except MessageError:  # what no model is sent, such as a role of one's own, still has a text
            tokens = self._counter.count_text(message.text)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = tokens
        return tokens


def _counted(message: BaseMessage) -> tuple[object, ...]:
    """Returns all that the count of a message depends on, as a hashable value; strings are shared and cache their hash."""
    content, kwargs = message.content, message.additional_kwargs
    content_key = content if isinstance(content, str) else _frozen(content)
    rest = _frozen(kwargs) if kwargs else None
    if isinstance(message, AIMessage):
        return message.type, content_key, rest, _frozen(message.tool_calls) if message.tool_calls else None
    return message.type, content_key, rest, message.tool_call_id if isinstance(message, ToolMessage) else None


def _frozen(value: object) -> object:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return tuple([(name, item if isinstance(item, str) else _frozen(item)) for name, item in items])
    if isinstance(value, list | tuple):
        return tuple([_frozen(item) for item in cast("Sequence[object]", value)])
    return repr(value)


if TYPE_CHECKING:
    from langchain_core.language_models import FakeListChatModel

    _: ContextBackend = LangChainBackend(FakeListChatModel(responses=[]))
    _embedder: type[Embedder] = LangChainEmbedder
