"""Hands spans and figures to the official exporters of OTLP, and counts what is not delivered."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from stagespan.errors import StagespanError
from stagespan.trace.read.remote import reason_of

_LOGGER = logging.getLogger("stagespan")
LONGEST_END_S = 1.0
_LONGEST_CALL_S = 10.0
_MOST_ITEMS = 20_000
_BATCH_ITEMS = 512
_MOST_STUCK = 3
_SAME_MESSAGE_S = 3600.0
_GRPC_PORT = 4317
"""The registered port of OTLP over gRPC."""
CAUSES = ("otlp_queue", "otlp_failed", "otlp_timeout", "otlp_end")
"""Why a `Sender` does not deliver what it was given."""


def _protocol(signal: str, url: str | None) -> str:
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if chosen := os.environ.get(name, "").strip():
            if chosen not in ("grpc", "http/protobuf"):
                raise StagespanError(f"{name} is {chosen!r}: set it to grpc or http/protobuf.")
            return chosen
    if url is not None:
        is_grpc = _parts_of(url).port == _GRPC_PORT
    else:
        is_grpc = endpoint(signal).rstrip("/").endswith(f":{_GRPC_PORT}")
    return "grpc" if is_grpc else "http/protobuf"


def endpoint(signal: str) -> str:
    """Return the address that the environment names for "TRACES" or "METRICS", or an empty text."""
    names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next(filter(None, map(os.environ.get, names)), "")


def _parts_of(url: str) -> SplitResult:
    """Return the parts of an address. Raises StagespanError if it is not one."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # such as a port that is not a number
        pass
    raise StagespanError(f"{url!r} is not an address for OTLP: pass http://HOST:PORT.")


def _check_files(signal: str) -> None:
    """Raise StagespanError if a file that a variable names cannot be read.

    An exporter would go on without it, and fail at each call.
    """
    for of in (f"{signal}_", ""):
        for what in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
            name = f"OTEL_EXPORTER_OTLP_{of}{what}"
            path = os.environ.get(name)
            if path and not (os.path.isfile(path) and os.access(path, os.R_OK)):
                raise StagespanError(
                    f"{name} is {path!r}, which cannot be read: name a file in PEM format."
                )


class _RateLimited(logging.Handler):
    """Logs what OpenTelemetry's exporters log, each kind of message once an hour, in one line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logged_at: dict[tuple[str, int], float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a message on, unless one from the same place was passed on lately."""
        place, now = (record.pathname, record.lineno), time.monotonic()
        if now - self._logged_at.get(place, -math.inf) >= _SAME_MESSAGE_S:
            self._logged_at[place] = now
            text = " ".join(record.getMessage().split()).rstrip(".")
            _LOGGER.warning("OpenTelemetry's exporter says: %s.", text)


def limit_logging() -> None:
    """Limit what OpenTelemetry's exporters log, in a process that does nothing but export."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C library writes lines of its own
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(_RateLimited())
    logger.propagate = False


class Rejected:
    """What a collector has rejected of what it was sent (OTLP's "partial success")."""

    def __init__(self) -> None:
        self.number = 0
        """Spans and data points."""
        self._is_told = False

    def note(self, answer: Any) -> None:
        """Count what the answer to an export request names."""
        success = answer.partial_success
        self.number += getattr(success, "rejected_spans", 0)
        self.number += getattr(success, "rejected_data_points", 0)
        if success.error_message and not self._is_told:
            self._is_told = True
            _LOGGER.warning(
                "The collector has not taken everything. It says: %s", success.error_message
            )


def _watch_http(signal: str, rejected: Rejected) -> Any:
    """Return a session that reads the answers, which the official exporter ignores."""
    import requests
    from google.protobuf.message import DecodeError

    if signal == "traces":
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceResponse as Answer,
        )
    else:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceResponse as Answer,
        )

    def read(response: requests.Response, **_: Any) -> None:
        if response.ok and response.content:
            with contextlib.suppress(DecodeError):  # some proxies answer with a text
                rejected.note(Answer.FromString(response.content))

    class Session(requests.Session):  # type: ignore[misc, unused-ignore]
        def merge_environment_settings(
            self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
        ) -> Any:
            # Otherwise REQUESTS_CA_BUNDLE is preferred to OTEL_EXPORTER_OTLP_CERTIFICATE.
            verify = self.verify if verify is None else verify
            return super().merge_environment_settings(url, proxies, stream, verify, cert)

    session = Session()
    session.hooks["response"].append(read)
    return session


def _watch_grpc(exporter: Any, rejected: Rejected) -> None:
    """Read the answers, which the official exporter ignores. It has no public way to do that."""
    make, channel = getattr(exporter, "_stub", None), getattr(exporter, "_channel", None)
    if make is None or channel is None or not hasattr(exporter, "_client"):
        return

    def stub(channel: Any) -> Any:
        made = make(channel)
        export = made.Export

        def call(*arguments: Any, **options: Any) -> Any:
            answer = export(*arguments, **options)
            rejected.note(answer)
            return answer

        made.Export = call
        return made

    exporter._stub = stub  # also called when it connects again
    exporter._client = stub(channel)


_CREDENTIALS = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}CREDENTIAL_PROVIDER"


def exporter_for(signal: str, url: str | None, rejected: Rejected) -> Any:
    """Return the official exporter for ``"traces"`` or ``"metrics"``.

    What the collector rejects is counted in ``rejected``.

    Without a URL, the endpoint is that of the environment. Raises StagespanError if the URL is not
    one, or if the exporter of the protocol is not installed.
    """
    protocol = _protocol(signal.upper(), url)
    name = "OTLPSpanExporter" if signal == "traces" else "OTLPMetricExporter"
    module = "trace_exporter" if signal == "traces" else "metric_exporter"
    package = "grpc" if protocol == "grpc" else "http"
    try:
        import importlib

        exporters = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{package}.{module}")
    except ImportError:
        raise StagespanError(
            f"OTLP over {protocol} needs opentelemetry-exporter-otlp-proto-{package}: install it "
            f"with `pip install opentelemetry-exporter-otlp-proto-{package}`."
        ) from None
    _check_files(signal.upper())
    options: dict[str, Any] = {}
    timeouts = ("OTEL_EXPORTER_OTLP_TIMEOUT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_TIMEOUT")
    if not any(os.environ.get(one) for one in timeouts):
        options["timeout"] = _LONGEST_CALL_S
    if url is not None:
        parts = _parts_of(url)
        if protocol == "grpc":
            options["endpoint"], options["insecure"] = url, parts.scheme == "http"
        else:
            options["endpoint"] = f"{_base(parts)}/v1/{signal}"
    if protocol != "grpc":
        # With one of these variables, the exporter makes a session with the user's credentials.
        credentials = (_CREDENTIALS.format(""), _CREDENTIALS.format(f"{signal.upper()}_"))
        if not any(os.environ.get(one) for one in credentials):
            options["session"] = _watch_http(signal, rejected)
    try:
        exporter = getattr(exporters, name)(**options)
    except Exception as error:  # the classes differ from variable to variable
        raise StagespanError(
            f"OpenTelemetry's exporter refuses its settings ({reason_of(error)}): correct the "
            "variables OTEL_EXPORTER_OTLP_*."
        ) from error
    if protocol == "grpc":
        _watch_grpc(exporter, rejected)
    return exporter


def _base(parts: SplitResult) -> str:
    """Return the address without the path of a signal, to which that of each signal is added."""
    path = re.sub(r"/v1/(traces|metrics)$", "", parts.path.rstrip("/"))
    return parts._replace(path=path, query="", fragment="").geturl()


class Sender:
    """Hands items to an exporter in a thread of its own, from a queue with a limit.

    The items of a call that takes too long are counted as lost. The call itself cannot be stopped.
    While 3 such calls go on, no other one is made, and all items are dropped and counted.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        export: Callable[[Any, Any], Any],
        batch: int = _BATCH_ITEMS,
        longest_call_s: float = _LONGEST_CALL_S,
    ) -> None:
        """``export`` takes what ``make`` returns, and at most ``batch`` items.

        A call that takes longer than ``longest_call_s`` is given up.
        """
        self._make, self._export, self._batch = make, export, batch
        self._exporter = make()
        self._items: deque[tuple[Any, Callable[[], object] | None]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._stuck: list[threading.Thread] = []
        self._deadline_s = longest_call_s
        self.lost: Counter[str] = Counter()
        """Items that were not delivered, by cause."""
        self.sent = 0
        """Items that were delivered."""
        self._thread = threading.Thread(target=self._run, name="stagespan-otlp", daemon=True)
        self._thread.start()

    def put(self, items: Iterable[Any], done: Callable[[], object] | None = None) -> None:
        """Add items; those that do not fit are dropped and counted.

        ``done`` is called once they are delivered or counted as lost.
        """
        with self._changed:
            all_items = list(items)
            kept = all_items[: _MOST_ITEMS - len(self._items)]
            if len(kept) < len(all_items):
                self.lost["otlp_queue"] += len(all_items) - len(kept)
            self._items += [(one, None) for one in kept]
            if done is not None and kept:
                self._items[-1] = (kept[-1], done)
            elif done is not None:
                done()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._items and not self._is_closed:
                    self._changed.wait()
                if not self._items:
                    return
                number = min(self._batch, len(self._items))
                batch = [self._items.popleft() for _ in range(number)]
            self._call([item for item, _ in batch])
            for _, done in batch:
                if done is not None:
                    done()

    def _call(self, batch: list[Any]) -> None:
        self._stuck = [one for one in self._stuck if one.is_alive()]
        if len(self._stuck) >= _MOST_STUCK:
            self.lost["otlp_timeout"] += len(batch)
            return
        outcome: list[bool] = []
        exporter = self._exporter

        def call() -> None:
            try:
                result = self._export(exporter, batch)
                outcome.append(getattr(result, "name", "") == "SUCCESS")
            except Exception:  # what the exporter's libraries raise is not known
                outcome.append(False)

        thread = threading.Thread(target=call, name="stagespan-otlp-call", daemon=True)
        thread.start()
        thread.join(self._deadline_s)
        if outcome:
            if outcome[0]:
                self.sent += len(batch)
            else:
                self.lost["otlp_failed"] += len(batch)
            return
        self.lost["otlp_timeout"] += len(batch)
        self._stuck.append(thread)
        self._exporter = self._make()

    def close(self, longest_s: float = LONGEST_END_S) -> None:
        """Deliver what is in the queue, for at most ``longest_s``, and at most 1 s.

        The rest is counted as lost.
        """
        end = time.monotonic() + min(longest_s, LONGEST_END_S)
        with self._changed:
            self._is_closed = True
            self._deadline_s = longest_s
            self._changed.notify()
        self._thread.join(max(end - time.monotonic(), 0))
        with self._changed:
            self.lost["otlp_end"] += len(self._items)
            self._items.clear()
