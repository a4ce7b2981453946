"""`ChatCtx` with summaries that the service writes on its own side."""

from __future__ import annotations

from pathlib import Path

from ctxfold.testing import ModelServer, Scripted
from langchain_ctx import ChatCtx
from tests.support.wires import WIRES


async def test_the_service_writes_the_summaries_of_a_chat_model(tmp_path: Path) -> None:
    def clerk(body: object) -> Scripted:
        return Scripted("Noted. " + "The jars stand in the cold. " * 40)

    with ModelServer(script=clerk, strict="openai") as server:
        settings = WIRES["openai_responses"].settings(server)
        with ChatCtx(
            **settings,
            context_window=6_000,
            store=f"sqlite:///{tmp_path / 'chat.db'}",
            session_id="ann",
            policy={"strategy": "provider"},
        ) as chat:
            for number in range(24):
                if number % 2:
                    await chat.ainvoke(f"Question {number}?")
                else:
                    chat.invoke(f"Question {number}?")
        requests = server.requests
    asked = [number for number, request in enumerate(requests) if request.path.endswith("/responses/compact")]
    assert asked
    assert len(requests) == 24 + len(asked), "none was refused"
    for request in requests[asked[0] + 1 :]:
        assert "compaction" in [item.get("type") for item in request.body["input"]]
