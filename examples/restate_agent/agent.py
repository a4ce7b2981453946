"""An agent under Restate: each session is an object, and a turn goes on in another process where the last one ended.

The journal has the ids of messages. The messages themselves are in ctxfold's store, where each is kept once under its id.
"""

from __future__ import annotations

import asyncio
import os
from typing import TypedDict

import restate
from hypercorn.asyncio import serve  # pyright: ignore[reportUnknownVariableType]
from hypercorn.config import Config

from ctxfold import AgentContext, Message, ToolSpec, open_backend, tool_result, user

__all__ = ["agent", "app", "context"]


class Asked(TypedDict):
    """What the journal keeps of a request to the model: the id of its reply, and how many tools the reply calls."""

    reply_id: str
    calls: int


def read_log(hour: int) -> str:
    """Reads the machine's log of one hour of the day, 0 to 23."""
    lines = [
        f"{hour:02}:{minute:02} pump {minute % 7} reports {hour * minute} litres, "
        f"inlet {minute % 5 + 1} bar, outlet {hour % 4 + 2} bar"
        for minute in range(60)
    ]
    return "\n".join(lines)


TOOLS = {"read_log": read_log}
SPECS = (
    ToolSpec(
        "read_log",
        "Reads the machine's log of one hour of the day, 0 to 23.",
        {"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]},
    ),
)

window = int(os.environ.get("CONTEXT_WINDOW", "32000"))
provider, _, model = os.environ.get("MODEL", "openai:gpt-5-mini").partition(":")
backend = open_backend(provider, model, base_url=os.environ.get("OPENAI_BASE_URL"))
context = AgentContext(
    backend,
    store=os.environ.get("CTXFOLD_STORE", "sqlite:///sessions.db"),
    session_id="agents",
    context_window=window,
    system="You look after the pumps.",
)


async def ask(session: str, new: list[Message], stored: list[str]) -> Asked:
    """Asks the model with new messages and stored ones. Run again after it was answered, it returns the stored reply."""
    ctx = context.at(session)
    messages = [*new, *[await ctx.archive.aget(message_id) for message_id in stored]]
    reply = (await ctx.asend(messages, tools=SPECS)).message
    return {"reply_id": reply.id, "calls": len(reply.tool_calls)}


async def call_tool(session: str, reply_id: str, number: int) -> str:
    """Runs one tool call of a reply, and stores its result, whose id it returns."""
    ctx, result_id = context.at(session), f"{reply_id}.{number}"
    try:
        await ctx.archive.aget(result_id)  # an earlier run of the step stored it, and ended before Restate knew
    except LookupError:
        call = (await ctx.archive.aget(reply_id)).tool_calls[number]
        output = await asyncio.to_thread(TOOLS[call.name], **(call.parsed() or {}))
        await ctx.aadd(tool_result(call.id, output, name=call.name, id=result_id))
    return result_id


agent = restate.VirtualObject("agent")


@agent.handler()
async def turn(ctx: restate.ObjectContext, question: str) -> str:
    """Answers a question in the session that is the object's key."""
    session = ctx.key()
    new = [user(question, id=f"{ctx.request().id}-question")]
    asked = await ctx.run_typed("ask", ask, session=session, new=new, stored=[])
    while asked["calls"]:
        results = [
            await ctx.run_typed("call_tool", call_tool, session=session, reply_id=asked["reply_id"], number=number)
            for number in range(asked["calls"])
        ]
        asked = await ctx.run_typed("ask", ask, session=session, new=[], stored=results)
    return asked["reply_id"]  # the answer is in the session


app = restate.app([agent])

if __name__ == "__main__":
    config = Config()
    config.bind = [os.environ.get("BIND", "127.0.0.1:9080")]
    asyncio.run(serve(app, config))  # pyright: ignore[reportArgumentType]
