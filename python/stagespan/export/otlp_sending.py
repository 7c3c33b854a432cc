"""Hands spans and figures to the official exporters of OTLP, and counts what is not delivered."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from stagespan.errors import StagespanError
from stagespan.pages.escaping import one_line
from stagespan.process.messages import message_of

_LOGGER = logging.getLogger("stagespan")
LONGEST_END_S = 1.0
_LONGEST_CALL_S = 10.0
_MOST_ITEMS = 20_000
_BATCH_ITEMS = 512
_MOST_STUCK = 3
_SAME_MESSAGE_S = 3600.0
_LONGEST_REASON = 200
_PAGE = re.compile(rb"\s*<(!doctype|html)", re.IGNORECASE)
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


def address(signal: str, url: str | None) -> str:
    """Return the address to which "traces" or "metrics" are sent.

    Raises StagespanError if the URL is not an address.
    """
    protocol = _protocol(signal.upper(), url)
    if url is not None:
        parts = _parts_of(url)
        return url.rstrip("/") if protocol == "grpc" else f"{_base(parts)}/v1/{signal}"
    of_signal = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    common = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if protocol == "grpc":
        return (of_signal or common or f"http://localhost:{_GRPC_PORT}").rstrip("/")
    return of_signal or f"{(common or 'http://localhost:4318').rstrip('/')}/v1/{signal}"


def is_disabled() -> bool:
    """Return whether the environment forbids to send anything, and log that."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
        return False
    _LOGGER.warning("OTEL_SDK_DISABLED is true, so stagespan sends nothing to a collector.")
    return True


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
        """Pass a message on, unless one from the same place was passed on lately.

        What is wrong with an answer was logged when it was read.
        """
        if isinstance(record.args, tuple) and any(
            isinstance(one, NotDelivered) for one in record.args
        ):
            return
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


class NotDelivered(Exception):
    """A collector's address has answered, and has not taken what it was sent."""


class Answers:
    """What a collector answers to the requests of an exporter."""

    def __init__(self, told: set[str] | None = None) -> None:
        """``told`` are the messages that were logged; several objects can share it."""
        self.rejected = 0
        """How many spans and data points it has rejected (OTLP's "partial success")."""
        self.calls = 0
        """How many requests were made."""
        self.are_seen = False
        """Whether `calls` counts all of them."""
        self._told = set() if told is None else told

    def tell(self, text: str) -> None:
        """Log a message once."""
        if text not in self._told:
            self._told.add(text)
            _LOGGER.warning("%s", text)

    def note(self, answer: Any) -> None:
        """Count what the answer to an export request names as rejected."""
        success = answer.partial_success
        rejected = getattr(success, "rejected_spans", 0)
        rejected += getattr(success, "rejected_data_points", 0)
        self.rejected += max(rejected, 0)
        if rejected > 0 or success.error_message:
            reason = one_line(success.error_message)[:_LONGEST_REASON]
            self.tell(f"The collector has not taken everything. It says: {reason}")

    def read(self, response: Any, kind: Any) -> None:
        """Read an answer over HTTP. Raises NotDelivered if it is not one of a collector."""
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError

        status, body = response.status_code, response.content
        place = _plain(response.url)
        if 300 <= status < 400:
            location = response.headers.get("Location")
            leads = f", and leads to {_plain(urljoin(response.url, location))}" if location else ""
            advice = "that address" if location else "the address of a collector"
            self.refuse(f"{place} answers with the status {status}{leads}", advice)
        if not 200 <= status < 300 or not body:
            return
        form = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if form in ("text/html", "application/xhtml+xml") or _PAGE.match(body):
            self.refuse(f"{place} answers with a page of HTML", "the address of a collector")
        try:
            if form == "application/json":
                self.note(json_format.Parse(body, kind(), ignore_unknown_fields=True))
            elif form in ("", "application/x-protobuf", "application/octet-stream"):
                self.note(kind.FromString(body))
        except (DecodeError, json_format.ParseError):
            self.refuse(f"{place} does not answer with OTLP", "the address of a collector")

    def refuse(self, what: str, advice: str) -> None:
        """Log once that nothing is delivered, and what to do. Raises NotDelivered."""
        self.tell(f"{what}, so nothing is delivered: pass {advice}.")
        raise NotDelivered(what)


def _plain(url: str) -> str:
    """Return an address without the path of a signal, and without what may be a secret."""
    parts = urlsplit(url)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return one_line(_base(plain))[:_LONGEST_REASON]


def _one(_: Any) -> int:
    return 1


def deliver(
    export: Callable[[Any], Any],
    items: list[Any],
    answers: Answers,
    size: Callable[[Any], int] = _one,
) -> int:
    """Hand items to an exporter, and return the size of those that were not delivered.

    If they cannot be encoded, their halves are handed over, so that one item spoils no other.
    """
    before = answers.calls
    try:
        if getattr(export(items), "name", "") == "SUCCESS":
            return 0
    except Exception:  # what the exporter's libraries raise is not known
        pass
    was_sent = not answers.are_seen or answers.calls != before
    if was_sent or len(items) == 1:
        return sum(map(size, items))
    half = len(items) // 2
    halves = items[:half], items[half:]
    return sum(deliver(export, some, answers, size) for some in halves)


def _answer_of(signal: str) -> Any:
    """Return the class of a collector's answers for "traces" or "metrics"."""
    if signal == "traces":
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

        return trace_service_pb2.ExportTraceServiceResponse
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    return metrics_service_pb2.ExportMetricsServiceResponse


def _session() -> Any:
    """Return a session for the official exporter, which keeps its connection."""
    import requests
    from requests.utils import get_auth_from_url, get_netrc_auth

    class Session(requests.Session):  # type: ignore[misc, unused-ignore]
        # What the environment says of an address is looked up once, and a request is the same as
        # the one before but for its body.
        auth: Any
        prepared: tuple[Any, Any] = None, None
        merged: tuple[Any, Any] = None, None

        def prepare_request(self, request: Any) -> Any:
            if self.auth is None:
                of_url = get_auth_from_url(request.url)
                known = get_netrc_auth(request.url) or (of_url if any(of_url) else None)
                self.auth = known or _unchanged
            of = request.url, request.headers
            if self.prepared[0] != of or self.cookies or self.auth is not _unchanged:
                self.prepared = of, super().prepare_request(request)
                return self.prepared[1]
            prepared = self.prepared[1].copy()
            prepared.prepare_body(request.data, None)
            return prepared

        def merge_environment_settings(
            self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
        ) -> Any:
            # Otherwise REQUESTS_CA_BUNDLE is preferred to OTEL_EXPORTER_OTLP_CERTIFICATE.
            verify = self.verify if verify is None else verify
            of = url, proxies, stream, verify, cert
            if self.merged[0] != of:
                self.merged = of, super().merge_environment_settings(*of)
            return dict(self.merged[1])

    return Session()


def _unchanged(request: Any) -> Any:
    return request


def _for_encoded(official: Any) -> Any:
    """Return the official class of an exporter of spans, with encoded ones as what it exports.

    It calls `encode_spans`, which its module has imported, and takes the bytes of what that
    returns. Here, its methods call `Call` instead; all else is as it was. Raises StagespanError if
    it does not do so.
    """
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    from stagespan.export.otlp_spans import Call

    def message(call: Call) -> Any:
        encoded = call.SerializePartialToString()
        return trace_service_pb2.ExportTraceServiceRequest.FromString(encoded)

    changed: dict[str, Any] = {}
    for name, method in vars(official).items():
        if isinstance(method, FunctionType) and "encode_spans" in method.__code__.co_names:
            encode = message if "grpc" in official.__module__ else _unchanged
            names = {**method.__globals__, "encode_spans": encode}
            changed[name] = FunctionType(
                method.__code__, names, name, method.__defaults__, method.__closure__
            )
    if not changed:
        raise StagespanError(
            "This version of OpenTelemetry's exporters is not known: install another one with `pip "
            "install 'opentelemetry-exporter-otlp-proto-http<2'`."
        )
    adapted: Any = type(official.__name__, (official,), changed)
    export = adapted.export

    class Exporter(adapted):  # type: ignore[misc, unused-ignore]
        def export(self, messages: Any) -> Any:
            return export(self, Call(messages))

    return Exporter


def _watch_http(signal: str, session: Any, answers: Answers) -> None:
    """Read the answers to what a session sends, which the official exporter ignores."""
    kind, send = _answer_of(signal), session.send

    def counted(*arguments: Any, **options: Any) -> Any:
        answers.calls += 1
        return send(*arguments, **options)

    session.send = counted
    session.hooks["response"].append(lambda response, **_: answers.read(response, kind))
    answers.are_seen = True


def _session_of(exporter: Any) -> Any:
    """Return the session of an exporter, which has no public name; None if it is not found."""
    if (found := getattr(exporter, "_session", None)) is not None:
        return found
    transport = getattr(getattr(exporter, "_client", None), "_transport", None)
    return getattr(transport, "_session", None)


def _watch_grpc(exporter: Any, answers: Answers) -> None:
    """Read the answers, which the official exporter ignores. It has no public way to do that."""
    make, channel = getattr(exporter, "_stub", None), getattr(exporter, "_channel", None)
    if make is None or channel is None or not hasattr(exporter, "_client"):
        return

    def stub(channel: Any) -> Any:
        made = make(channel)
        export = made.Export

        def call(*arguments: Any, **options: Any) -> Any:
            answers.calls += 1
            answer = export(*arguments, **options)
            answers.note(answer)
            return answer

        made.Export = call
        return made

    exporter._stub = stub  # also called when it connects again
    exporter._client = stub(channel)
    answers.are_seen = True


_CREDENTIALS = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}CREDENTIAL_PROVIDER"


def exporter_for(signal: str, url: str | None, answers: Answers) -> Any:
    """Return the official exporter for ``"traces"`` or ``"metrics"``.

    What the collector answers is noted in ``answers``.

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
    if not any(os.environ.get(variable) for variable in timeouts):
        options["timeout"] = _LONGEST_CALL_S
    if url is not None:
        options["endpoint"] = address(signal, url)
        if protocol == "grpc":
            options["insecure"] = _parts_of(url).scheme == "http"
    if protocol != "grpc":
        # With one of these variables, the exporter makes a session with the user's credentials.
        credentials = (_CREDENTIALS.format(""), _CREDENTIALS.format(f"{signal.upper()}_"))
        if not any(os.environ.get(variable) for variable in credentials):
            options["session"] = _session()
    try:
        official = getattr(exporters, name)
        exporter = (_for_encoded(official) if signal == "traces" else official)(**options)
    except Exception as error:  # the classes differ from variable to variable
        raise StagespanError(
            f"OpenTelemetry's exporter refuses its settings ({message_of(error)}): correct the "
            "variables OTEL_EXPORTER_OTLP_*."
        ) from error
    if protocol == "grpc":
        _watch_grpc(exporter, answers)
    elif (session := _session_of(exporter)) is not None:
        _watch_http(signal, session, answers)
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
        export: Callable[[Any, Any], int],
        batch: int = _BATCH_ITEMS,
        longest_call_s: float = _LONGEST_CALL_S,
        size: Callable[[Any], int] = _one,
        weight: Callable[[Any], int] = _one,
        most: int = _MOST_ITEMS,
    ) -> None:
        """``export`` takes what ``make`` returns, and items whose weight is at most ``batch``.

        It returns how many of them were not delivered. A call that takes longer than
        ``longest_call_s`` is given up. An item counts as ``size`` says if it is lost, and those in
        the queue weigh at most ``most``.
        """
        self._make, self._export, self._size = make, export, size
        self._batch, self._weight, self._most = batch, weight, most
        self._waiting = 0  # the weight of the items in the queue
        self._exporter = make()
        self._items: deque[tuple[Any, Callable[[], object] | None]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._stuck: list[threading.Thread] = []
        self._is_told = False
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
            last = None
            for item in items:
                weight = self._weight(item)
                if self._waiting + weight > self._most:
                    self.lost["otlp_queue"] += self._size(item)
                    continue
                self._waiting += weight
                last = item, None
                self._items.append(last)
            if last is not None:
                self._items[-1] = (last[0], done)
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
                batch = [self._items.popleft()]
                weight = self._weight(batch[0][0])
                while self._items:
                    weight += self._weight(self._items[0][0])
                    if weight > self._batch:
                        break
                    batch.append(self._items.popleft())
                self._waiting -= sum(self._weight(item) for item, _ in batch)
            self._call([item for item, _ in batch])
            for _, done in batch:
                if done is not None:
                    done()

    def _call(self, batch: list[Any]) -> None:
        total = sum(map(self._size, batch))
        self._stuck = [one for one in self._stuck if one.is_alive()]
        if len(self._stuck) >= _MOST_STUCK:
            self.lost["otlp_timeout"] += total
            return
        failed: list[int] = []
        exporter = self._exporter

        def call() -> None:
            try:
                failed.append(self._export(exporter, batch))
            except Exception:  # what the exporter's libraries raise is not known
                failed.append(total)

        thread = threading.Thread(target=call, name="stagespan-otlp-call", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads, or the interpreter ends
            failed.append(total)
        else:
            thread.join(self._deadline_s)
        if failed:
            self.sent += total - failed[0]
            self.lost["otlp_failed"] += failed[0]
            return
        self.lost["otlp_timeout"] += total
        self._stuck.append(thread)
        try:
            self._exporter = self._make()
        except Exception as error:  # such as a certificate that is being replaced
            if not self._is_told:
                self._is_told = True
                _LOGGER.warning("No new connection to a collector is possible: %s", error)

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
            self.lost["otlp_end"] += sum(self._size(item) for item, _ in self._items)
            self._items.clear()
            self._waiting = 0
