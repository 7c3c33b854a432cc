"""Receives OTLP over HTTP and counts the spans of each sender, for `benchmarks.service`.

    python -m benchmarks.sink FOLDER

Prints its port. What is sent to ``/NAME/v1/traces`` is appended to the file NAME in FOLDER, and is
read after the measurement.
"""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_LENGTH_BYTES = 8


def main(folder: Path) -> None:
    """Serve until standard input ends."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # exporters keep their connection

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            name, _, kind = self.path.strip("/").partition("/")
            if kind == "v1/traces":
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                with lock, (folder / name).open("ab") as file:
                    file.write(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


def span_names(file: Path) -> Iterator[str]:
    """Yield the names of the spans in a file of the sink."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    if not file.exists():
        return
    data, at = file.read_bytes(), 0
    while at < len(data):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin], "little")
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(data[begin:at])
        for of_resource in request.resource_spans:
            for of_scope in of_resource.scope_spans:
                yield from (span.name for span in of_scope.spans)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
