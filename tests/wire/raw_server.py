"""A loopback server that plays byte frames, one network write each, and keeps what it was sent."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Play:
    """One connection's answer; `then` is eof, abort or hang, or keep for a response with a length."""

    frames: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    then: str = "eof"
    pause_s: float = 0.0
    head: bool = True


HANG_S = 60  # then the server ends a connection that its peer has not left


class RawServer:
    """Plays one entry per request, the last one again and again. `gone` is set when a peer leaves before its answer's end."""

    def __init__(self, *plays: Play) -> None:
        self.plays = list(plays)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.raw_heads: list[bytes] = []
        self.paths: list[str] = []
        self.connections = 0
        self.gone = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._stop = False
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def __enter__(self) -> RawServer:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _run(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        self._listener.settimeout(0.05)
        while not self._stop:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            self._run(self._serve, sock)

    @property
    def played(self) -> bool:
        """Whether all answers so far have been sent to their end."""
        return self.connections > 0 and not self._open

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._read(sock):
                play = self.plays[min(len(self.bodies), len(self.plays)) - 1]
                if not self._play(sock, play):
                    return
        except OSError:
            self.gone.set()
        finally:
            self._open.discard(sock)
            sock.close()

    def _read(self, sock: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            more = sock.recv(65536)
            if not more:
                return False
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")[1:]
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        while len(body) < int(headers["content-length"]):
            body += sock.recv(65536)
        self.raw_heads.append(head)
        self.paths.append(head.split(b" ", 2)[1].decode("latin-1"))
        self.headers.append(headers)
        self.bodies.append(json.loads(body))
        return True

    def _play(self, sock: socket.socket, play: Play) -> bool:
        keep = play.then == "keep"
        if play.head:
            length = f"content-length: {sum(map(len, play.frames))}\r\n" if keep else "connection: close\r\n"
            fields = "".join(f"{name}: {value}\r\n" for name, value in play.headers.items())
            sock.sendall(f"HTTP/1.1 {play.status} X\r\n{fields}{length}\r\n".encode("latin-1"))
        for frame in play.frames:
            sock.sendall(frame)
            time.sleep(play.pause_s)
        if play.then == "hang":
            sock.settimeout(HANG_S)
            with contextlib.suppress(TimeoutError):
                if not sock.recv(1):
                    self.gone.set()
        if play.then == "abort":
            time.sleep(0.05)  # a reset overtakes bytes the peer has not read yet
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return keep


def event(content: str | None = None, *, finish: str | None = None, **delta: Any) -> bytes:
    """One chunk of a chat stream as a server-sent event."""
    if content is not None:
        delta["content"] = content
    body = {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def reply(content: str = "ok", finish: str = "stop", **more: Any) -> bytes:
    message = {"role": "assistant", "content": content, **more}
    return json.dumps({"model": "m", "choices": [{"message": message, "finish_reason": finish}]}).encode()
