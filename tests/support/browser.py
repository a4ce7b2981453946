"""A Chromium that a test drives over the DevTools protocol: pages, clicks, pictures, and every address that was asked for."""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect


class Page:
    """A tab. Each method waits until the browser has answered."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(timeout=60))).get("id") != number:
            if answer.get("method") == "Network.requestWillBeSent":
                self.requested.append(answer["params"]["request"]["url"])
        assert "error" not in answer, answer
        return answer["result"]

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def wait(self, condition: str, timeout_s: float = 20.0) -> float:
        """Waits until an expression is true; returns the seconds that it took."""
        began = time.monotonic()
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() - began < timeout_s, f"never: {condition}"
            time.sleep(0.02)
        return time.monotonic() - began

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browsed(chromium: str, profile: Path) -> Generator[Page, None, None]:
    """Starts the browser with a profile of its own, and ends it."""
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    quiet = ["--disable-background-networking", "--no-first-run", f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen([*command, *quiet], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            lines = (re.search(r"ws://(\S+?)/", line) for line in process.stderr)
            address = next(found[1] for found in lines if found)
            tab = next(t for t in httpx.get(f"http://{address}/json").json() if t["type"] == "page")
            with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
