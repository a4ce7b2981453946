"""A key, a header's credential and a signature's material stand in no log, error, repr, span or pickle, on any wire."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ctxfold import AgentContext, BackendError, open_backend
from ctxfold.backends.http_backend import HttpBackend
from tests.support.spans import collected_spans
from tests.support.wires import WIRES, ServedProvider
from tests.wire.raw_server import Play, RawServer

KEY, HEADER = "sk-very-secret-77-of-ann", "tok-of-the-gateway-42"
SIGNING = {
    "AWS_ACCESS_KEY_ID": "AKIASYNTHETIC77",
    "AWS_SECRET_ACCESS_KEY": "secret-of-ann-77",
    "AWS_SESSION_TOKEN": "sess-77",
}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return collected_spans()


async def failures(backend: HttpBackend, path: Path) -> list[BackendError]:
    """What a session raises in each of its four ways."""
    errors: list[BackendError] = []
    with AgentContext(backend, store=f"sqlite:///{path / 'chat.db'}", context_window=20_000) as context:
        with pytest.raises(BackendError) as caught:
            context.send("Hello?")
        errors.append(caught.value)
        with pytest.raises(BackendError) as caught:
            await context.asend("Hello?")
        errors.append(caught.value)
        with pytest.raises(BackendError) as caught:
            list(context.send_stream("Hello?"))
        errors.append(caught.value)
        with pytest.raises(BackendError) as caught:
            assert [event async for event in context.asend_stream("Hello?")]
        errors.append(caught.value)
    return errors


def shown(
    errors: list[BackendError], backend: HttpBackend, spans: InMemorySpanExporter, logged: str, path: Path
) -> str:
    """All that a session leaves behind: errors with their tracebacks, reprs, pickles, spans, logs, the store."""
    texts = ["".join(traceback.format_exception(error)) + repr(error) + repr(pickle.dumps(error)) for error in errors]
    texts += [repr(backend), repr(vars(backend)), logged]
    texts += [span.to_json() for span in spans.get_finished_spans()]
    return "\n".join([*texts, (path / "chat.db").read_bytes().decode(errors="replace")])


def opened(served: ServedProvider, url: str, **settings: Any) -> HttpBackend:
    named = {"provider": served.provider, "model": served.model, "wire": served.wire}
    return open_backend(**named, base_url=url.removesuffix("/v1") if served.rooted else url, max_retries=0, **settings)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("broken", [False, True])
async def test_no_credential_shows_on_any_wire(
    wire: str, broken: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    """The service quotes both in its refusal, or breaks off within a reply."""
    caplog.set_level(logging.DEBUG)
    words = f"no entry with {KEY} (Bearer {HEADER})"
    said = json.dumps({"error": {"message": words, "status": "UNAUTHENTICATED"}, "message": words, "type": "error"})
    play = Play([said[:20].encode()], then="abort") if broken else Play([said.encode()], status=401)
    with RawServer(play) as server:
        backend = opened(WIRES[wire], server.base_url, api_key=KEY, headers={"Proxy-Authorization": f"Bearer {HEADER}"})
        async with backend:
            errors = await failures(backend, tmp_path)
        heads = b"".join(server.raw_heads).decode()
        assert KEY in heads, "it was sent"
        assert HEADER in heads
        assert not any(KEY in path for path in server.paths), "a URL stands in many logs"
    left = shown(errors, backend, spans, caplog.text, tmp_path)
    assert "Hello?" in left
    assert broken or "no entry" in left
    assert len(spans.get_finished_spans()) >= 4
    for secret in (KEY, HEADER):
        assert secret not in left


async def test_no_part_of_a_signature_shows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amazon's refusals quote the canonical request, with the session's token and the signature."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    for name, value in SIGNING.items():
        monkeypatch.setenv(name, value)
    words = f"The request signature we calculated does not match: {' '.join(SIGNING.values())}"
    with RawServer(Play([json.dumps({"message": words}).encode()], status=403)) as server:
        backend = opened(WIRES["bedrock_converse"], server.base_url, region="us-east-1")
        async with backend:
            errors = await failures(backend, tmp_path)
        heads = b"".join(server.raw_heads).decode()
    assert "AKIASYNTHETIC77" in heads, "it was signed"
    assert "sess-77" in heads
    signatures = [part.partition(",")[0].split()[0] for part in heads.split("Signature=")[1:]]
    assert signatures
    left = shown(errors, backend, spans, caplog.text, tmp_path)
    for secret in ("secret-of-ann-77", "sess-77", *signatures):
        assert secret not in left
