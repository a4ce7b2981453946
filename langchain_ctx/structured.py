"""Structured output in LangChain's three ways."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal, TypeAlias

from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from ctxfold.errors import ConfigError
from langchain_ctx.tools import bound_tools

__all__ = ["Method", "call_settings", "parsed"]

Method: TypeAlias = Literal["function_calling", "json_schema", "json_mode"]


def call_settings(schema: Any, method: Method, *, strict: bool | None) -> dict[str, Any]:
    """What is bound to the model so that it answers in the schema."""
    told = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    if method == "json_mode":
        told = {"kwargs": {"method": method}, "schema": schema}
        return {"response_format": {"type": "json_object"}, "ls_structured_output_format": told}
    if schema is None:
        raise ConfigError(f"method {method!r} needs a schema: give a pydantic class, a TypedDict or a JSON schema")
    if method == "function_calling":
        tools = bound_tools([schema], strict=strict)
        return {"tools": tools, "tool_choice": tools[0]["function"]["name"], "ls_structured_output_format": told}
    if method == "json_schema":
        function = convert_to_openai_tool(schema, strict=strict)["function"]
        body: dict[str, Any] = {"name": function["name"], "schema": _json_schema(schema, strict=strict)}
        if strict is not None:
            body["strict"] = strict
        form = {"type": "json_schema", "json_schema": body}
        return {"response_format": form, "ls_structured_output_format": told}
    raise ConfigError(f"method {method!r}: use 'function_calling', 'json_schema' or 'json_mode'")


def _json_schema(schema: Any, *, strict: bool | None) -> dict[str, Any]:
    return convert_to_json_schema(schema, strict=strict)


def parsed(model: Runnable[Any, Any], schema: Any, method: Method, *, include_raw: bool) -> Runnable[Any, Any]:
    """The model's answer read as the schema says; with `include_raw`, beside the message and any parsing error."""
    parser = _parser(schema, method)
    if not include_raw:
        return model | parser
    attempt: Runnable[Any, Any] = RunnablePassthrough.assign(
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
