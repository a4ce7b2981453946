"""Calls of the Responses API's own tools that the client runs: each kind appears as a call and gets its own output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxfold import AgentContext, Completed, Message, OpenAIResponsesBackend, Reply
from ctxfold.messages import MediaPart, Part, ToolResultPart
from ctxfold.testing import ModelServer, RawReply, Scripted

PNG = "data:image/png;base64,iVBORw0KGgo="
CALLS: dict[str, dict[str, Any]] = {
    "custom": {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "sql", "input": "SELECT 1"},
    "shell": {
        "type": "shell_call",
        "id": "sh_1",
        "call_id": "call_1",
        "status": "completed",
        "action": {"commands": ["ls", "pwd"], "max_output_length": 900},
        "environment": {"type": "local"},
    },
    "local_shell": {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "call_1",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "env": {}},
    },
    "apply_patch": {
        "type": "apply_patch_call",
        "id": "apc_1",
        "call_id": "call_1",
        "status": "completed",
        "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+y"},
        "caller": {"type": "program", "caller_id": "prog_1"},
    },
    "computer": {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "call_1",
        "status": "completed",
        "action": {"type": "click", "button": "left", "x": 3, "y": 4},
        "pending_safety_checks": [{"id": "sc_1", "code": "malicious", "message": "Look"}],
    },
    "mcp_approval": {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "wiki",
        "name": "delete",
        "arguments": '{"page": 7}',
    },
    "tool_search": {
        "type": "tool_search_call",
        "id": "ts_1",
        "call_id": "call_1",
        "execution": "client",
        "arguments": {"query": "mail"},
        "status": "completed",
    },
}
# what each is called, with which arguments, and what answers it when the tool says "done"
CUT = {"type": "function", "name": "mail", "parameters": {"type": "object", "properties": {}}}
EXPECTED: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "custom": ("sql", {"input": "SELECT 1"}, "done", {"type": "custom_tool_call_output", "output": "done"}),
    "shell": (
        "shell",
        CALLS["shell"]["action"],
        "done",
        {
            "type": "shell_call_output",
            "max_output_length": 900,
            "output": [{"stdout": "done", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ),
    "local_shell": (
        "local_shell",
        CALLS["local_shell"]["action"],
        "done",
        {"type": "local_shell_call_output", "id": "call_1", "output": "done"},
    ),
    "apply_patch": (
        "apply_patch",
        CALLS["apply_patch"]["operation"],
        "done",
        {
            "type": "apply_patch_call_output",
            "status": "completed",
            "output": "done",
            "caller": {"type": "program", "caller_id": "prog_1"},
        },
    ),
    "computer": (
        "computer",
        {name: CALLS["computer"][name] for name in ("action", "pending_safety_checks")},
        "",
        {
            "type": "computer_call_output",
            "output": {"type": "computer_screenshot", "image_url": PNG},
            "acknowledged_safety_checks": CALLS["computer"]["pending_safety_checks"],
        },
    ),
    "mcp_approval": (
        "mcp_approval",
        {"server_label": "wiki", "name": "delete", "arguments": '{"page": 7}'},
        '{"approve": true}',
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    ),
    "tool_search": (
        "tool_search",
        {"query": "mail"},
        json.dumps([CUT]),
        {"type": "tool_search_output", "execution": "client", "tools": [CUT]},
    ),
}


def replied(item: dict[str, Any], *, stream: bool) -> RawReply:
    """Returns a reply with the item alone, as OpenAI sends it."""
    response = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [item]}
    if not stream:
        return RawReply(headers={"content-type": "application/json"}, frames=(json.dumps(response).encode(),))
    place = {"output_index": 0, "item_id": item["id"]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
        {"type": "response.custom_tool_call_input.delta", **place, "delta": "SELECT"},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    return RawReply(frames=tuple(f"data: {json.dumps(event)}\n\n".encode() for event in events))


def asked(context: AgentContext, content: Any, *, stream: bool, **options: Any) -> Reply:
    if not stream:
        return context.send(content, **options)
    *_, last = context.send_stream(content, **options)
    assert isinstance(last, Completed)
    return last.reply


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", CALLS)
def test_w1_a_client_run_tool_is_a_call_and_is_answered_in_its_own_output(kind: str, stream: bool) -> None:
    """W1: the reply said `stop` without calls, and each later turn was a 400 "No tool output found"."""
    item, (name, arguments, said, answer) = CALLS[kind], EXPECTED[kind]
    script: list[Any] = [replied(item, stream=stream), Scripted("So."), Scripted("Again."), Scripted("Another model.")]
    with (
        ModelServer(script=script, strict="openai") as server,
        OpenAIResponsesBackend(model="m", base_url=server.base_url, api_key="k", max_retries=0) as backend,
    ):
        context = AgentContext(backend, store="memory://", context_window=50_000)
        reply = asked(context, "Do it.", stream=stream, extra={"tools": [{"type": kind}]})
        (call,) = reply.message.tool_calls
        assert (reply.finish_reason, call.name, call.parsed()) == ("tool_calls", name, arguments)
        parts: list[Part] = [ToolResultPart(call.id, said)]
        if kind == "computer":
            parts.append(MediaPart("image", json.dumps({"type": "image_url", "image_url": {"url": PNG}})))
        results = [Message("r1", "tool", tuple(parts))]
        assert asked(context, results, stream=stream).message.text == "So."
        assert context.send("And then?").message.text == "Again."
        assert context.send("And for another model?", model="other").message.text == "Another model."
    bodies = [request.body["input"] for request in server.requests[1:]]
    for items in bodies[:2]:
        assert items[1] == item, "the call goes back as it came"
        assert answer.items() <= items[2].items()
    assert [one["type"] for one in bodies[2][1:3]] == ["function_call", "function_call_output"]


@pytest.mark.parametrize("kind", CALLS)
def test_w1_any_text_is_an_answer_that_the_service_takes(kind: str) -> None:
    """W1: a run that ended, or a tool that failed, leaves text and no screenshot."""
    script: list[Any] = [replied(CALLS[kind], stream=False), Scripted("So."), Scripted("Again.")]
    with (
        ModelServer(script=script, strict="openai") as server,
        OpenAIResponsesBackend(model="m", base_url=server.base_url, api_key="k", max_retries=0) as backend,
    ):
        context = AgentContext(backend, store="memory://", context_window=50_000)
        (call,) = context.send("Do it.").message.tool_calls
        failed = Message("r1", "tool", (ToolResultPart(call.id, "It failed: no display.", is_error=True),))
        assert context.send([failed]).message.text == "So."
        assert context.send("Go on.", extra={"previous_response_id": "resp_2"}).message.text == "Again."
    items = server.requests[1].body["input"]
    assert items[2].get("approve", False) is False
    assert items[2].get("status", "failed") == "failed"
    said = json.dumps(items[2:])
    assert ("It failed" in said) or kind == "tool_search"


def test_w1_with_a_stored_response_the_results_alone_are_in_the_form_of_their_calls() -> None:
    """W1: the service has the calls, and the request only their outputs."""
    script: list[Any] = [replied(CALLS["custom"], stream=False), Scripted("So.")]
    with (
        ModelServer(script=script) as server,
        OpenAIResponsesBackend(model="m", base_url=server.base_url, api_key="k", max_retries=0) as backend,
    ):
        context = AgentContext(backend, store="memory://", context_window=50_000)
        (call,) = context.send("Do it.", extra={"store": True}).message.tool_calls
        result = Message("r1", "tool", (ToolResultPart(call.id, "1 row"),))
        context.send([result], extra={"previous_response_id": "resp_1"})
    assert server.requests[1].body["input"] == [
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1 row"}
    ]


@pytest.mark.parametrize(
    "change", [{"environment": {"type": "container_reference", "container_id": "c"}}, {"type": "code_interpreter_call"}]
)
def test_w1_a_tool_that_the_service_runs_is_no_call(change: dict[str, Any]) -> None:
    """W1: a shell in the service's own container is answered there, and its items go back as they came."""
    item = {**CALLS["shell"], **change}
    script: list[Any] = [replied(item, stream=False), Scripted("So.")]
    with (
        ModelServer(script=script) as server,
        OpenAIResponsesBackend(model="m", base_url=server.base_url, api_key="k", max_retries=0) as backend,
    ):
        context = AgentContext(backend, store="memory://", context_window=50_000)
        assert not context.send("Do it.").message.tool_calls
        context.send("Go on.")
    assert server.requests[1].body["input"][1] == item
