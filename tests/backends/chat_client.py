"""A plain client of the model server, for tests: messages as JSON, replies checked for their status."""

from __future__ import annotations

import json
from typing import Any

import httpx

from ctxfold.testing import ModelServer
from tests.timing import PATIENCE_S

Json = dict[str, Any]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> Json:
    return {"role": "assistant", "content": text, **more}


def call(call_id: str, name: str = "look", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: str = "ok") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def tool(name: str, parameters: Json | None = None) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}}}


def post(server: ModelServer, messages: list[Json], **more: Any) -> httpx.Response:
    body = {"model": "lookup", "messages": messages, **more}
    headers = {"Authorization": "Bearer k"}
    return httpx.post(f"{server.base_url}/chat/completions", json=body, headers=headers, timeout=PATIENCE_S)


def say(server: ModelServer, messages: list[Json], **more: Any) -> Json:
    response = post(server, messages, **more)
    assert response.status_code == 200, response.text
    message: Json = response.json()["choices"][0]["message"]
    return message


def error(server: ModelServer, messages: list[Json], **more: Any) -> Json:
    response = post(server, messages, **more)
    assert response.status_code == 400, response.text
    body: Json = response.json()["error"]
    return body


def events(text: str) -> list[Json]:
    frames = [frame.removeprefix("data: ") for frame in text.split("\n\n") if frame]
    assert frames[-1] == "[DONE]"
    return [json.loads(frame) for frame in frames[:-1]]


def deltas(chunks: list[Json], key: str) -> str:
    return "".join(chunk["choices"][0]["delta"].get(key) or "" for chunk in chunks if chunk["choices"])
