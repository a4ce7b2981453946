"""The page's activities in Temporal's environment for them, and its workflow in Temporal's sandbox and replayer; no server runs."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from ctxfold import (
    AgentContext,
    MediaPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolSpec,
    Usage,
    open_backend,
    tool_result,
    user,
)
from ctxfold.testing import ModelServer
from tests.durable.journals import QUESTIONS, REQUESTS, WINDOW, Reader, read_log, tokens_of
from tests.support.pages import examples, page, section

(PROGRAM,) = examples(section(page("scaling.md"), "### Temporal"))
CONVERTERS = {"default": DataConverter.default, "pydantic": pydantic_data_converter}
PARAMETERS = {"type": "object", "properties": {"hour": {"type": "integer"}}}
A_REQUEST = 2_048  # bytes


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The page's program as a module, which the sandbox imports anew."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "temporal_page.py").write_text(PROGRAM, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        spec = importlib.util.find_spec("temporal_page")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "temporal_page", module)
        spec.loader.exec_module(module)
        module.specs = [ToolSpec("read_log", "Reads a log.", PARAMETERS)]  # type: ignore[attr-defined]
        module.tools = {"read_log": lambda arguments: read_log(**json.loads(arguments))}  # type: ignore[attr-defined]
        yield module


class History:
    """Writes down what Temporal's server would: the input and the result of each activity, as payloads of a converter."""

    def __init__(self, converter: DataConverter, workflow_id: str, *arguments: Any) -> None:
        self.events: list[HistoryEvent] = []
        self._payloads = converter.payload_converter
        self._workflow_id, self._last_task = workflow_id, 0
        started = self._add("EVENT_TYPE_WORKFLOW_EXECUTION_STARTED").workflow_execution_started_event_attributes
        started.workflow_type.name, started.task_queue.name = "Turn", "agents"
        started.original_execution_run_id = started.first_execution_run_id = "run-1"
        started.attempt, started.workflow_id = 1, workflow_id
        started.input.CopyFrom(self._written(*arguments))
        self._decide()

    def run(self, activity: Callable[..., Any], hints: list[Any], result: Any, *arguments: Any) -> Any:
        """Runs an activity with arguments that have been through the converter, and returns its result, which has too."""
        given = self._written(*arguments)
        scheduled = self._add("EVENT_TYPE_ACTIVITY_TASK_SCHEDULED")
        about = scheduled.activity_task_scheduled_event_attributes
        about.activity_id = str(scheduled.event_id)
        about.activity_type.name, about.task_queue.name = activity.__name__, "agents"
        about.workflow_task_completed_event_id = self._last_task
        about.start_to_close_timeout.seconds = 600
        about.input.CopyFrom(given)
        begun = self._add("EVENT_TYPE_ACTIVITY_TASK_STARTED")
        begun.activity_task_started_event_attributes.scheduled_event_id = scheduled.event_id
        returned = self._written(
            ActivityEnvironment().run(activity, *self._payloads.from_payloads(list(given.payloads), hints))
        )
        done = self._add("EVENT_TYPE_ACTIVITY_TASK_COMPLETED").activity_task_completed_event_attributes
        done.scheduled_event_id, done.started_event_id = scheduled.event_id, begun.event_id
        done.result.CopyFrom(returned)
        self._decide()
        return self._payloads.from_payloads(list(returned.payloads), [result])[0]

    def end(self, result: Any) -> WorkflowHistory:
        ended = self._add("EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED").workflow_execution_completed_event_attributes
        ended.workflow_task_completed_event_id = self._last_task
        ended.result.CopyFrom(self._written(result))
        return WorkflowHistory(self._workflow_id, self.events)

    def _decide(self) -> None:
        """A task in which the workflow says what comes next."""
        scheduled = self._add("EVENT_TYPE_WORKFLOW_TASK_SCHEDULED")
        scheduled.workflow_task_scheduled_event_attributes.task_queue.name = "agents"
        begun = self._add("EVENT_TYPE_WORKFLOW_TASK_STARTED")
        begun.workflow_task_started_event_attributes.scheduled_event_id = scheduled.event_id
        done = self._add("EVENT_TYPE_WORKFLOW_TASK_COMPLETED")
        done.workflow_task_completed_event_attributes.scheduled_event_id = scheduled.event_id
        done.workflow_task_completed_event_attributes.started_event_id = begun.event_id
        self._last_task = done.event_id

    def _written(self, *values: Any) -> Payloads:
        return Payloads(payloads=self._payloads.to_payloads(values))

    def _add(self, kind: str) -> HistoryEvent:
        number = len(self.events) + 1
        event = HistoryEvent(
            event_id=number, event_type=EventType.Value(kind), event_time=Timestamp(seconds=1_000 + number)
        )
        self.events.append(event)
        return event


def turn(program: ModuleType, context: AgentContext, converter: DataConverter, run: str, text: str) -> WorkflowHistory:
    """Runs a turn's activities in the order of the page's workflow."""
    history, steps = History(converter, run, "long", text), program.Steps(context)
    new: list[Message] = [user(text, id=f"{run}-question")]
    results: list[str] = []
    while True:
        asked = (str, list[Message], list[str])
        reply_id, calls = history.run(steps.ask, list(asked), tuple[str, int], "long", new, results)
        if not calls:
            return history.end(reply_id)
        new = []
        results = [
            history.run(steps.call_tool, [str, str, int], str, "long", reply_id, number) for number in range(calls)
        ]


async def test_turns_are_replayed_from_a_history_of_ids(program: ModuleType, tmp_path: Path) -> None:
    play, store_url = Reader(), f"sqlite:///{tmp_path / 'sessions.db'}"
    written = 0
    with ModelServer(model="m", script=play, strict="openai") as model:
        backend = open_backend("generic", "m", base_url=model.base_url, api_key="x")
        with AgentContext(backend, context_window=WINDOW, store=store_url, session_id="all") as context:
            for number, text in enumerate(QUESTIONS):
                converter = list(CONVERTERS.values())[number % 2]
                history = turn(program, context, converter, f"turn-{number}", text)
                replayer = Replayer(workflows=[program.Turn], data_converter=converter)
                await replayer.replay_workflow(history)
                written += sum(event.ByteSize() for event in history.events)
    assert play.requests == REQUESTS
    assert tokens_of(store_url, "long") > 200_000
    assert written / REQUESTS < A_REQUEST


async def test_a_history_of_another_workflow_is_refused(program: ModuleType) -> None:
    replayer = Replayer(workflows=[program.Turn])
    history = History(DataConverter.default, "turn-0", "long", "Hi.")
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow(history.end("no reply was asked for"))


@pytest.mark.parametrize("name", CONVERTERS)
def test_messages_come_back_as_they_were(name: str) -> None:
    parts = (
        ReasoningPart("Let me see.", "signature", '{"type": "thinking"}'),
        TextPart("Café\u2028😀", '{"cited": true}'),
        MediaPart("image", '{"url": "https://example.org/a.png"}', "image/png"),
        ToolCallPart("c1", "look", '{"a": 1.0}'),
    )
    reply = Message("r", "assistant", parts, model="m", usage=Usage(3, 2, 1), finish_reason="tool_calls")
    messages = [user("Hi.", id="q"), reply, tool_result("c1", "42", name="look", id="r.0", is_error=True)]
    converter = CONVERTERS[name].payload_converter
    payloads = converter.to_payloads([messages, reply, ("r", 1)])
    assert converter.from_payloads(payloads, [list[Message], Message, tuple[str, int]]) == [messages, reply, ("r", 1)]


def test_langchain_messages_keep_their_class_by_their_annotation() -> None:
    call: Any = {"id": "c", "name": "look", "args": {"a": 1}}
    messages = [
        HumanMessage("Hi.", id="q"),
        AIMessage("", tool_calls=[call], id="r"),
        ToolMessage("42", tool_call_id="c", id="t"),
    ]
    converter = pydantic_data_converter.payload_converter
    payloads = converter.to_payloads([messages])
    assert converter.from_payloads(payloads, [list[AnyMessage]]) == [messages]
    (plain,) = converter.from_payloads(payloads, [list[BaseMessage]])
    assert {type(message) for message in plain} == {BaseMessage}
