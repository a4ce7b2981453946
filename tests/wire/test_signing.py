"""Requests to Bedrock signed by botocore, compared with examples that botocore itself made; and what works without it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ctxfold import BackendError, BedrockBackend, ConfigError, Request, user
from ctxfold.backends.services import Signer
from ctxfold.backends.transport import Open

EXAMPLES = json.loads((Path(__file__).parent / "sigv4.json").read_text(encoding="utf-8"))
OPEN = Open("https://x.test/model/m/converse", {"content-type": "application/json"}, b"{}", 1.0)


def credentials(monkeypatch: pytest.MonkeyPatch, access: str, secret: str, token: str | None = None) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    if token is None:
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    else:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    credentials(monkeypatch, example["access_key"], example["secret_key"], example["session_token"])
    now = datetime.strptime(example["now"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    headers = {"content-type": "application/json", "accept": "not signed"}
    made = Signer(example["region"], now=lambda: now)(Open(example["url"], headers, example["body"].encode(), 1.0))
    assert made == {name.lower(): value for name, value in example["headers"].items()}


def test_each_attempt_has_its_own_date(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials(monkeypatch, "SYNTHETICKEYID", "secret-of-tests")
    times = [datetime(2026, 1, 2, tzinfo=UTC) + timedelta(minutes=n) for n in range(2)]
    signer = Signer("us-east-1", now=iter(times).__next__)
    first, second = signer(OPEN), signer(OPEN)
    assert [made["x-amz-date"] for made in (first, second)] == ["20260102T000000Z", "20260102T000100Z"]
    assert first["authorization"] != second["authorization"]


def test_the_credentials_are_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials(monkeypatch, "SYNTHETICKEYID", "secret-of-tests", "token-of-tests")
    signer = Signer("us-east-1")
    made = signer(OPEN)
    shown = f"{signer!r} {signer.hide('secret-of-tests token-of-tests SYNTHETICKEYID')} {OPEN!r}"
    assert "of-tests" not in shown
    assert "SYNTHETICKEYID" not in shown
    assert made["authorization"].partition("Signature=")[2] not in shown


def test_no_credentials_and_half_a_profile_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with (
        BedrockBackend(model="m", region="us-east-1", base_url="http://127.0.0.1:9") as backend,
        pytest.raises(ConfigError, match="no AWS credentials were found"),
    ):
        backend.send(Request((user("hi", id="u"),)))
    (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text("[default]\naws_access_key_id = x\n", encoding="utf-8")
    with pytest.raises(BackendError, match="cannot be used") as caught:
        Signer("us-east-1")(OPEN)
    assert caught.value.kind == "auth"


def test_a_missing_extra_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigError, match=r"pip install 'ctxfold\[bedrock\]'"):
        BedrockBackend(model="m", region="us-east-1")
    BedrockBackend(model="m", region="us-east-1", api_key="k").close()
    BedrockBackend(model="m", region="us-east-1", headers={"Authorization": "Bearer k"}).close()


def test_the_way_with_a_key_does_not_import_botocore() -> None:
    program = (
        "import sys\n"
        "from ctxfold import Request, open_backend, user\n"
        "backend = open_backend('bedrock', 'm', region='us-east-1', api_key='k')\n"
        "backend.request_body(Request((user('hi', id='u'),)), stream=True)\n"
        "print('botocore' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.split() == ["False"]
