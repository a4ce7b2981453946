"""Tools between LangChain and the engine: their counting, the choice among them, a session's history tools; structured output."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias, cast

from langchain_core import exceptions as lc
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.block_translators import get_translator, register_translator
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from ctxfold.adapters.history_tools import HistoryTool, reading_media
from ctxfold.adapters.history_tools import history_tools as neutral_tools
from ctxfold.errors import ConfigError
from ctxfold.messages import Message, ToolSpec
from ctxfold.protocols import Wire
from ctxfold.session.context import AgentContext
from langchain_ctx.content import Content, plain_content

# since langchain-core 1.7.5
ModelRefusalError: Final[type[Exception]] = getattr(lc, "ModelRefusalError", lc.OutputParserException)
_REFUSED: Final = "content_filter"  # the finish reason of a refused reply, whatever its provider calls it
_OF_LANGCHAIN: Final = ("anthropic", "bedrock", "groq", "openai")  # whose own packages return other messages
_OF_CTXFOLD: Final = ("azure", "gemini", "vertex")  # names that no package of LangChain has


def provider_label(provider: str) -> str:
    """Returns the provider's name for metadata, or another where LangChain expects messages of that provider's own package."""
    return f"ctx-{provider}" if provider not in _OF_CTXFOLD and get_translator(provider) else provider


def refusal_block(message: BaseMessage) -> dict[str, Any] | None:
    """Returns LangChain's standard block for a refused reply of ChatCtx, which may be without text; None for other messages."""
    if message.response_metadata.get("finish_reason") != _REFUSED:
        return None
    return {"type": "refusal", "refusal": message.additional_kwargs.get("refusal") or ""}


def unless_refused() -> Runnable[Any, Any]:
    """Returns a step that passes on a model's reply, also in chunks, or a mapping with a reply as its `raw`.

    It raises ModelRefusalError where the model refused.
    """
    return _step(_is_accepted, lambda _: None)


def unless_no_call() -> Runnable[Any, Any]:
    """Returns a step that passes on a model's reply, also in chunks. It raises OutputParserException for one without a call."""
    return _step(_calls, _check_called)


def _step(check: Callable[[Any], bool], check_end: Callable[[bool], None]) -> Runnable[Any, Any]:
    """Returns a step that passes on replies; `check_end` is told at the end whether `check` was true for one of them."""

    def passed(replies: Iterator[Any]) -> Iterator[Any]:
        found = False
        for reply in replies:
            found = check(reply) or found
            yield reply
        check_end(found)

    async def apassed(replies: AsyncIterator[Any]) -> AsyncIterator[Any]:
        found = False
        async for reply in replies:
            found = check(reply) or found
            yield reply
        check_end(found)

    return RunnableGenerator(passed, apassed)


def _calls(reply: BaseMessage) -> bool:
    return bool(getattr(reply, "tool_call_chunks", None) or getattr(reply, "tool_calls", None)) or (
        refusal_block(reply) is not None
    )


def _check_called(calls: bool) -> None:
    if not calls:
        raise lc.OutputParserException(
            "the model answered without the tool call of the schema, and cannot be forced to make it: ask for it in the prompt, "
            "or use method='json_schema'"
        )


def _is_accepted(reply: Any) -> bool:
    message: BaseMessage = reply if isinstance(reply, BaseMessage) else reply["raw"]
    if (block := refusal_block(message)) is not None:
        reason = f": {block['refusal']}" if block["refusal"] else ""
        error = ModelRefusalError(f"the model refused to answer{reason}")
        error.raw_message = message  # type: ignore[attr-defined]
        raise error
    return True


def _content_blocks(message: AIMessage | AIMessageChunk) -> list[Any]:
    block = refusal_block(message)
    if block is None:
        raise NotImplementedError  # LangChain goes on with its best-effort parsing
    parsed = message.model_copy(update={"response_metadata": {}}).content_blocks
    return [*parsed, block]


for _label in (*map(provider_label, _OF_LANGCHAIN), *_OF_CTXFOLD):
    register_translator(_label, _content_blocks, _content_blocks)


def bound_tools(tools: Iterable[Any], *, strict: bool | None) -> list[dict[str, Any]]:
    """Tools as chat completions take them, from a dict, a pydantic class, a callable or a BaseTool."""
    return [convert_to_openai_tool(tool, strict=strict) for tool in tools]


def specs(tools: Sequence[Any] | None) -> tuple[ToolSpec, ...]:
    return tuple(_spec(tool) for tool in tools or ())


def with_answer_format(wire: Wire, body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a request with the format that its answer is to have, which chat completions call `response_format`.

    Raises ConfigError for a format without a schema on a wire that has no field for that.
    """
    if wire == "openai_chat":
        return dict(body)
    form = cast("Mapping[str, Any]", body["response_format"])
    rest = {name: value for name, value in body.items() if name != "response_format"}
    json_schema = cast("Mapping[str, Any]", form.get("json_schema") or {})
    if wire in ("anthropic_messages", "bedrock_converse") and "schema" not in json_schema:
        raise ConfigError(f"the wire {wire} has no JSON mode: use with_structured_output(method='json_schema')")
    match wire:
        case "openai_responses":
            text = cast("Mapping[str, Any]", rest.get("text") or {})
            return {**rest, "text": {**text, "format": {"type": form.get("type"), **json_schema}}}
        case "gemini":
            schema = {"responseJsonSchema": json_schema["schema"]} if "schema" in json_schema else {}
            generation = cast("Mapping[str, Any]", rest.get("generationConfig") or {})
            fields = {"responseMimeType": "application/json", **schema}
            return {**rest, "generationConfig": {**generation, **fields}}
        case "anthropic_messages":
            config = cast("Mapping[str, Any]", rest.get("output_config") or {})
            own = {"type": "json_schema", "schema": _closed(json_schema["schema"])}
            return {**rest, "output_config": {**config, "format": own}}
        case "bedrock_converse":
            config = cast("Mapping[str, Any]", rest.get("outputConfig") or {})
            names = {name: json_schema[name] for name in ("name", "description") if name in json_schema}
            written = json.dumps(_closed(json_schema["schema"]), ensure_ascii=False)
            own = {"type": "json_schema", "structure": {"jsonSchema": {"schema": written, **names}}}
            return {**rest, "outputConfig": {**config, "textFormat": own}}


# of JSON schema, what Claude's API takes; a schema with anything else is refused
_DEFINITIONS = ("$defs", "definitions")
_SAME = frozenset({"$ref", "const", "description", "enum", "required", "title", "type"})
_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})


def _closed(schema: Mapping[str, Any] | bool, place: str = "") -> dict[str, Any]:
    """Returns the schema in the part of JSON schema that Claude's API takes, as the `anthropic` package makes it.

    Objects are closed. The limits that the API refuses, such as `minimum`, are told to the model in the description. Raises
    ConfigError for an object that may have any keys, as closed it could have none. `place` names the field in that error.
    """
    if isinstance(schema, bool):
        return {}  # True takes any value; those that take none are left out
    _check_named(schema, place)
    closed: dict[str, Any] = {}
    told: dict[str, Any] = {}
    # what stands beside a reference is refused, other than the definitions of the whole schema
    for name, value in ((n, v) for n, v in schema.items() if "$ref" not in schema or n in ("$ref", *_DEFINITIONS)):
        match name:
            case "properties":
                fields = {key: one for key, one in value.items() if one is not False}
                closed[name] = {key: _closed(one, f"{place}.{key}" if place else key) for key, one in fields.items()}
            case "$defs" | "definitions":
                closed[name] = {key: _closed(one, key) for key, one in value.items()}
            case "anyOf" | "oneOf" | "allOf":
                variants = [_closed(one, place) for one in value if one is not False]
                closed["allOf" if name == "allOf" else "anyOf"] = variants
            case "items" if isinstance(value, Mapping):
                closed[name] = _closed(cast("Mapping[str, Any]", value), f"{place}[]")
            case "additionalProperties":
                pass
            case _ if (
                name in _SAME or (name == "format" and value in _FORMATS) or (name == "minItems" and value in (0, 1))
            ):
                closed[name] = value
            case _:
                told[name] = value
    if "properties" in closed or _is_object(schema):
        closed["additionalProperties"] = False
    if told:
        limits = "{" + ", ".join(f"{name}: {value}" for name, value in told.items()) + "}"
        closed["description"] = "\n\n".join(text for text in (closed.get("description"), limits) if text)
    return closed


def _is_object(schema: Mapping[str, Any]) -> bool:
    types: object = schema.get("type")
    return types == "object" or (isinstance(types, list) and "object" in types)


def _check_named(schema: Mapping[str, Any], place: str) -> None:
    """Raises ConfigError for an object without fields that is not closed: a `dict`, as Python's types call it."""
    others = schema.get("additionalProperties", "properties" not in schema)
    if not _is_object(schema) or schema.get("properties") or others is False:
        return
    raise ConfigError(
        f"{place or 'the schema itself'} is an object with any keys, and structured output of this service has named fields "
        "only: name the fields, make it a list of objects with a key and a value, or have the answer come as a tool call "
        "(method='function_calling', in create_agent response_format=ToolStrategy(...))"
    )


def counted(tools: Sequence[Any] | None) -> tuple[ToolSpec, ...]:
    """Tools for what they cost alone: those that run at the provider, or that are in a form of its own, by their description."""
    tool_specs: list[ToolSpec] = []
    for tool in tools or ():
        try:
            tool_specs.append(_spec(tool))
        except (ConfigError, ValueError):
            tool_specs.append(ToolSpec("provider", json.dumps(tool, default=str), {}))
    return tuple(tool_specs)


def _spec(tool: Any) -> ToolSpec:
    body = convert_to_openai_tool(tool)
    function = body.get("function")
    if body.get("type") != "function" or not isinstance(function, Mapping):
        raise ConfigError(
            f"tool of type {body.get('type')!r}: chat completions take functions only: "
            "give a function, a pydantic class or a BaseTool"
        )
    fields = cast("Mapping[str, Any]", function)
    return ToolSpec(fields["name"], fields.get("description", ""), fields.get("parameters", {}))


def is_free(value: object) -> bool:
    """Returns True when this tool choice, in whichever form a package binds it, lets a model answer without a call."""
    kind: object = cast("Mapping[str, object]", value).get("type") if isinstance(value, Mapping) else value
    return kind in (None, False, "auto", "none")


def choice(value: object) -> str | None:
    """Converts LangChain's forms of `tool_choice` to "auto", "none", "required" or a tool's name."""
    match value:
        case None | False:
            return None
        case True | "any":
            return "required"
        case str():
            return value
        case {"function": {"name": str(name)}}:
            return name
        case {"name": str(name)}:
            return name
        case _:
            raise ConfigError(f"tool_choice {value!r}: use 'auto', 'none', 'any', 'required' or a tool's name")


_TAKEN = frozenset({"image", "image_url", "document", "file"})  # blocks that a ToolMessage may hold beside text


def history_tools(context: AgentContext, *, media: bool = False) -> list[BaseTool]:
    """Returns the tools read_message, search_history, pin_message, unpin_message and compact_history, as LangChain tools.

    read_message describes images and files by type and size. With `media` it also returns them as content blocks, for models
    that accept them in tool results, such as Anthropic's; chat completions services refuse them there.
    """
    return [_tool(context, tool, media and tool.name == "read_message") for tool in neutral_tools(context)]


def _tool(context: AgentContext, tool: HistoryTool, media: bool) -> BaseTool:
    call, acall = reading_media(context, tool, _with_media) if media else (tool.call, tool.acall)
    return structured_tool(tool.spec, call, acall)


def structured_tool(spec: ToolSpec, use: Callable[..., Any], ause: Callable[..., Any]) -> BaseTool:
    return StructuredTool.from_function(
        func=use, coroutine=ause, name=spec.name, description=spec.description, args_schema=dict(spec.parameters)
    )


def _with_media(text: str, message: Message) -> Content:
    content = plain_content(message)
    if message.visibility == "user" or isinstance(content, str):
        return text
    blocks: list[Any] = [b for b in content if isinstance(b, dict) and b.get("type") in _TAKEN]
    return [{"type": "text", "text": text}, *blocks] if blocks else text


# structured output

Method: TypeAlias = Literal["function_calling", "json_schema", "json_mode"]


def call_settings(schema: Any, method: Method, *, strict: bool | None) -> dict[str, Any]:
    """Returns the arguments to bind to the model so that it answers in the schema."""
    output_format = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    if method == "json_mode":
        output_format = {"kwargs": {"method": method}, "schema": schema}
        return {"response_format": {"type": "json_object"}, "ls_structured_output_format": output_format}
    if schema is None:
        raise ConfigError(f"method {method!r} needs a schema: give a pydantic class, a TypedDict or a JSON schema")
    if method == "function_calling":
        tools = bound_tools([schema], strict=strict)
        return {
            "tools": tools,
            "tool_choice": tools[0]["function"]["name"],
            "ls_structured_output_format": output_format,
        }
    if method == "json_schema":
        function = convert_to_openai_tool(schema, strict=strict)["function"]
        body: dict[str, Any] = {"name": function["name"], "schema": convert_to_json_schema(schema, strict=strict)}
        if strict is not None:
            body["strict"] = strict
        form = {"type": "json_schema", "json_schema": body}
        return {"response_format": form, "ls_structured_output_format": output_format}
    raise ConfigError(f"method {method!r}: use 'function_calling', 'json_schema' or 'json_mode'")


def parsed(model: Runnable[Any, Any], schema: Any, method: Method, *, include_raw: bool) -> Runnable[Any, Any]:
    """Returns a chain that parses the model's answer by the schema; `include_raw` adds the message and any parsing error."""
    parser = _parser(schema, method)
    if not include_raw:
        return model | unless_refused() | parser
    # a refusal is seen before the first piece: from then on LangChain takes no fallback
    attempt: Runnable[Any, Any] = unless_refused() | RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed: Runnable[Any, Any] = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | attempt.with_fallbacks([failed], exception_key="parsing_error")


def _parser(schema: Any, method: Method) -> Runnable[Any, Any]:
    pydantic = isinstance(schema, type) and is_basemodel_subclass(schema)
    if method != "function_calling":
        whole: Runnable[Any, Any] = (
            PydanticOutputParser[Any](pydantic_object=schema) if pydantic else JsonOutputParser()
        )
        return whole
    if pydantic:
        return PydanticToolsParser(tools=[schema], first_tool_only=True)
    return JsonOutputKeyToolsParser(key_name=convert_to_openai_tool(schema)["function"]["name"], first_tool_only=True)
