"""The chaos backend: failures by a seed, and none where none are asked for."""

from __future__ import annotations

import pytest

from ctxfold import BackendError, ConfigError, Request, ScriptedBackend
from ctxfold.backends.scripted import ChaosBackend
from ctxfold.protocols import Chunk
from tests.backends.openai_backend import ROUND


async def outcomes(backend: ChaosBackend, count: int) -> list[str]:
    seen: list[str] = []
    for number in range(count):
        chunks: list[Chunk] = []
        try:
            if number % 4 == 0:
                seen.append(backend.send(Request(ROUND)).message.text)
            elif number % 4 == 1:
                seen.append((await backend.asend(Request(ROUND))).message.text)
            elif number % 4 == 2:
                chunks += backend.open_stream(Request(ROUND))
                seen.append("".join(c.content for c in chunks))
            else:
                async for chunk in await backend.aopen_stream(Request(ROUND)):
                    chunks.append(chunk)
                seen.append("".join(c.content for c in chunks))
        except BackendError as error:
            seen.append(f"{error.kind} {error.retryable} after {len(chunks)}")
    return seen


async def test_chaos_is_the_same_for_the_same_seed() -> None:
    def chaos(seed: int) -> ChaosBackend:
        inner = ScriptedBackend([lambda _: "a reply of some length"] * 200)
        return ChaosBackend(
            inner, seed=seed, error_rate=0.3, truncate_rate=0.3, kinds=("server", "auth"), delay_s=0.0001
        )

    first, again, other = await outcomes(chaos(1), 80), await outcomes(chaos(1), 80), await outcomes(chaos(2), 80)
    assert first == again != other
    kinds = {line.split(" after")[0] for line in first}
    assert kinds == {"a reply of some length", "server True", "auth False", "stream_truncated True"}
    assert any(line.startswith("stream_truncated") and not line.endswith("after 0") for line in first)


async def test_calm_chaos_changes_nothing_and_bad_rates_are_told() -> None:
    inner = ScriptedBackend(["x", "y", "z", "w"], "mm", 5)
    with_chaos = ChaosBackend(inner)
    assert await outcomes(with_chaos, 4) == ["x", "y", "z", "w"]
    assert (with_chaos.model, with_chaos.context_window, with_chaos.scratch_role) == ("mm", 5, "system")
    stream = ChaosBackend(ScriptedBackend(["x"]), truncate_rate=1).open_stream(Request(ROUND))
    stream.close()
    with_chaos.close()
    await with_chaos.aclose()
    for settings in ({"error_rate": 2}, {"truncate_rate": -1}, {"error_rate": 0.5, "kinds": ()}):
        with pytest.raises(ConfigError):
            ChaosBackend(inner, **settings)
