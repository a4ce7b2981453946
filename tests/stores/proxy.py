"""A loopback proxy before a PostgreSQL server that drops or delays what a test chooses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

__all__ = ["Proxy", "proxied"]


class Proxy:
    """Forwards bytes. `on_request` sees what a client sends; when it returns True, the server gets it, but its answer is lost
    and both connections are cut."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.on_request: Callable[[bytes], bool] = lambda _: False
        self.cuts = 0

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            lost = threading.Event()
            threading.Thread(target=self._requests, args=(client, server, lost), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, server, lost), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.on_request(data):
                    lost.set()
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answers(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with client, server:
            with suppress(OSError):
                while data := server.recv(65536):
                    if lost.is_set():
                        self.cuts += 1
                        break
                    client.sendall(data)
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def proxied(port: int) -> Generator[Proxy, None, None]:
    proxy = Proxy(port)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
