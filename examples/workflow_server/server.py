"""The server that `llama-agents-server` runs: a workflow that answers one question in one session, with tools."""

from __future__ import annotations

import os
import uuid
from typing import cast

from llama_agents.server import SqliteWorkflowStore, WorkflowServer
from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step  # pyright: ignore[reportUnknownVariableType]
from pydantic import Field

from llamaindex_ctx import CtxLLM, CtxMemory, with_context

__all__ = ["Answered", "Asked", "Pumps", "llm", "memories", "server"]


class Asked(StartEvent):
    """A user's message in a session. It is all that the server keeps of a session: the store has its messages."""

    session_id: str
    question: str
    request_id: str = Field(default_factory=lambda: uuid.uuid4().hex, description="the same when the run is resumed")


class Answered(StopEvent):
    """The answer, and how full the session's window is."""

    answer: str
    window_tokens: int
    budget_tokens: int
    compactions: int


def read_log(hour: int) -> str:
    """Reads the machine's log of one hour of the day, 0 to 23."""
    return "\n".join(f"{hour:02}:{minute:02} pump {minute % 7} reports {hour * minute} litres" for minute in range(60))


class Pumps(Workflow):
    """Answers with an agent, whose events are streamed to the client."""

    @step
    async def answer(self, ctx: Context, asked: Asked) -> Answered:
        """Runs the agent on the session's memory."""
        memory = memories.at(asked.session_id)
        agent = FunctionAgent(llm=fitting, tools=[read_log], system_prompt="You look after the pumps.")
        # a step that the server runs again, after it was killed, puts the same message: the memory keeps it once
        question = ChatMessage(role="user", content=asked.question, additional_kwargs={"ctxfold_id": asked.request_id})
        run = agent.run(user_msg=question, memory=memory)  # pyright: ignore[reportDeprecated]
        async for event in run.stream_events():
            if isinstance(event, AgentStream | ToolCallResult):
                ctx.write_event_to_stream(event)
        output = cast("object", await run)
        usage = memory.context.usage()
        return Answered(
            answer=str(output),
            window_tokens=usage.window_tokens,
            budget_tokens=usage.budget_tokens,
            compactions=usage.compactions,
        )


window = int(os.environ.get("CONTEXT_WINDOW", "32000"))
llm = CtxLLM(
    model=os.environ.get("MODEL", "openai:gpt-5-mini"),
    base_url=os.environ.get("OPENAI_BASE_URL"),
    context_window=window,
)
fitting = with_context(llm)  # keeps the rounds of one run in the window; a memory sees them only afterwards
memories = CtxMemory.from_defaults(
    store=os.environ.get("CTXFOLD_STORE", "sqlite:///sessions.db"), context_window=window, llm=llm
)
# the server's own store has the runs and their events; the sessions are in the store above
server = WorkflowServer(workflow_store=SqliteWorkflowStore(os.environ.get("RUNS", "runs.db")))
server.add_workflow("pumps", Pumps(timeout=300))
