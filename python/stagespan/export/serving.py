"""A small HTTP server for the figures of an exporter, which no client can keep busy for long."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from stagespan.errors import StagespanError

_LOGGER = logging.getLogger("stagespan")
_LONGEST_SILENCE_S = 10.0
"""How long a client may send nothing, or take nothing of its answer."""
_LONGEST_S = 30.0
"""How long a connection may last."""
_MOST_CONNECTIONS = 64
_BACKLOG = 128
_LONGEST_PLACE_S = 1.0
"""How long a new connection waits for the end of another one if there are too many."""
_PAUSE_S = 0.1


class Answer(NamedTuple):
    """An answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes


def text(status: int, kind: str, content: str) -> Answer:
    """Return an answer of a text of a kind such as "text/html"."""
    return Answer(status, {"Content-Type": f"{kind}; charset=utf-8"}, content.encode())


class HttpServer:
    """Answers GET requests until `close`.

    A connection ends after a time, however slowly its client sends or reads. If there are too many,
    those end first that have not sent a request yet. On a loopback address, only requests are
    answered whose ``Host`` names this machine: otherwise a page of any site could read the figures,
    by a name that leads here.
    """

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[str, Message], Answer],
        *,
        what: str,
        option: str,
    ) -> None:
        """Open the port. ``answer`` gets the path and the headers of a request.

        Raises StagespanError if that is not possible; it says what cannot be served, and the option
        with another address.
        """
        try:
            family, *_, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = _Server(family, address, answer, host)
        except OSError as error:
            raise StagespanError(
                f"{what} cannot be served at {host}:{port}: {error.strerror}. Pass another "
                f"address, as in {option}."
            ) from None
        self.port: int = self._server.server_port
        """The port; a free one if 0 was asked for."""
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1)


class _Server(ThreadingHTTPServer):
    request_queue_size = _BACKLOG
    daemon_threads = True

    def __init__(
        self, family: int, address: Any, answer: Callable[[str, Message], Answer], host: str
    ) -> None:
        self.address_family = family
        self.answer = answer
        self._host = host.lower()
        self._connections: dict[socket.socket, float] = {}
        """When each connection began, the earliest first."""
        self._waiting: set[socket.socket] = set()
        """Those that have not sent a request yet."""
        self._changing = threading.Condition()
        self._failures: set[type[BaseException]] = set()
        super().__init__(address, _Handler)
        self._is_loopback = ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def server_bind(self) -> None:
        """Bind the port, and ask no name server for the name of this machine."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    # --- connections ------------------------------------------------------------------------------

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)  # without free descriptors, it would be tried again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to handle a connection; one that is idle may have to end for it."""
        with self._changing:
            if not self._has_place():
                self.shutdown_request(request)
                return
            self._connections[request] = time.monotonic()
            self._waiting.add(request)
        super().process_request(request, client_address)

    def _has_place(self) -> bool:
        if len(self._connections) < _MOST_CONNECTIONS:
            return True
        idle = next((one for one in self._connections if one in self._waiting), None)
        if idle is not None:
            self._waiting.discard(idle)
            _end(idle)
        return self._changing.wait_for(
            lambda: len(self._connections) < _MOST_CONNECTIONS, _LONGEST_PLACE_S
        )

    def note_request(self, connection: socket.socket) -> None:
        """Note that a connection has sent its request."""
        with self._changing:
            self._waiting.discard(connection)

    def service_actions(self) -> None:
        """End the connections that last for too long. It is called twice a second."""
        end = time.monotonic() - _LONGEST_S
        with self._changing:
            for one, began in self._connections.items():
                if began < end:
                    _end(one)

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        with self._changing:
            self._connections.pop(request, None)
            self._waiting.discard(request)
            self._changing.notify()
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a client has left, or was too slow."""

    # --- requests ---------------------------------------------------------------------------------

    def accepts(self, hosts: list[str]) -> bool:
        """Return whether requests with these values of the header ``Host`` are answered."""
        return not self._is_loopback or all(map(self._is_own, hosts))

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host.strip()}").hostname or ""
        except ValueError:
            return False
        if name == self._host or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def answer_of(self, path: str, headers: Message) -> Answer:
        """Return the answer to a request. What goes wrong is logged once."""
        if not self.accepts(headers.get_all("Host", [])):
            return text(403, "text/plain", "The address in Host is not one of this machine.\n")
        try:
            return self.answer(path, headers)
        except Exception as error:  # the next request may be answered
            if type(error) not in self._failures:
                self._failures.add(type(error))
                _LOGGER.warning("A request for %s has failed: %r.", path[:100], error)
            return text(500, "text/plain", "It could not be answered.\n")


def _end(connection: socket.socket) -> None:
    """Let the thread of a connection see its end."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _LONGEST_SILENCE_S

    def do_GET(self) -> None:
        """Answer a request."""
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        """Answer a request for the headers alone."""
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        self.server.note_request(self.connection)
        status, headers, body = self.server.answer_of(self.path, self.headers)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write nothing."""
