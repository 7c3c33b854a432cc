"""Hands finished requests and figures to the official OTLP exporters of OpenTelemetry."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from stagespan.contexts import opentelemetry, requests
from stagespan.device.environment import version
from stagespan.errors import StagespanError
from stagespan.export import genai, otlp_deltas
from stagespan.export.families import FAMILIES, Family
from stagespan.export.figures import (
    BUCKETS,
    AnyBuckets,
    Buckets,
    Counts,
    Histogram,
    buckets_named,
)
from stagespan.export.otlp_sending import (
    CAUSES,
    LONGEST_END_S,
    Answers,
    Sender,
    address,
    deliver,
    exporter_for,
    is_disabled,
)
from stagespan.export.otlp_spans import (
    BYTES_OF_A_CALL,
    BYTES_OF_QUEUE,
    encoded,
    number_of_bytes,
    number_of_spans,
    with_own,
)
from stagespan.export.parts import AWAITED_OTLP, Part, Parts, by_reading
from stagespan.export.this_process import ThisProcess
from stagespan.export.totals import Exported, Gauges, Group, Series
from stagespan.export.traces import Rules
from stagespan.process import forks, termination

try:
    from opentelemetry.sdk.metrics import export as points
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as error:
    raise StagespanError(
        "OpenTelemetry needs its SDK and exporters (the extra 'export'): install them with `pip "
        "install opentelemetry-exporter-otlp-proto-http`."
    ) from error

_LOGGER = logging.getLogger("stagespan")
_SCOPE = InstrumentationScope("stagespan", version())


# --- metrics --------------------------------------------------------------------------------------

_LABELS = {"cause": "cause", "unit": "unit", "service": "service.name"}
"""The names of labels in OTLP, if they do not follow from those in Prometheus."""
_ENCODED_AT_ONCE = 256
"""Parts of requests, before it is looked whether the exporter has to end."""
_CUMULATIVE = points.AggregationTemporality.CUMULATIVE


def metrics_of(
    totals: dict[Group, Counts],
    lost: dict[str, int],
    gauges: Gauges,
    begin_ns: int,
    operation: str | None = None,
    instance: str | None = None,
    buckets: Buckets = BUCKETS["coarse"],
) -> points.MetricsData:
    """Return all figures, with the same counts as the recordings. They count from ``begin_ns``.

    With an operation, those that the conventions for generative AI name are added. ``instance`` is
    the process if the figures are only of one: its forked children send figures of their own.
    """
    of_instance = {} if instance is None else {"service.instance.id": instance}
    now_ns, host = time.time_ns(), os.uname().nodename
    distribution = partial(_distribution, begin_ns, now_ns, buckets)
    series = gauges.series
    messages = []
    for group in dict.fromkeys((*totals, *sorted(gauges.groups()))):
        figures = totals.get(group) or Counts({}, {})
        attributes: dict[str, Any] = {
            "service.name": group.service,
            "host.name": host,  # several machines can have the same service
            "stagespan.pipeline": group.pipeline,
            **of_instance,
        }
        if group.rank:
            attributes["stagespan.rank"] = int(group.rank)
        made = _metrics_of_group(figures, series, group, begin_ns, now_ns, distribution)
        if operation is not None:
            of_genai: dict[str, list[points.HistogramDataPoint]] = {}
            for one in genai.durations(figures, group, operation):
                point = distribution(FAMILIES["request"], one.attributes, one.histogram)
                of_genai.setdefault(one.name, []).append(point)
            made += [
                points.Metric(name, None, "s", points.Histogram(rows, _CUMULATIVE))
                for name, rows in of_genai.items()
            ]
        messages.append(_resource_metrics(attributes, made))
    of_exporter = [_metric(FAMILIES["up"], _numbers("up", series["up"], begin_ns, now_ns))]
    if lost:
        by_cause: Series = {(cause,): number for cause, number in lost.items()}
        of_exporter.append(_metric(FAMILIES["lost"], _numbers("lost", by_cause, begin_ns, now_ns)))
    exporter = {"service.name": "stagespan-export", "host.name": host, **of_instance}
    messages.append(_resource_metrics(exporter, of_exporter))
    return points.MetricsData(messages)


def _resource_metrics(
    attributes: dict[str, Any], made: list[points.Metric]
) -> points.ResourceMetrics:
    scope = points.ScopeMetrics(_SCOPE, made, "")
    return points.ResourceMetrics(with_own(attributes), [scope], "")


def _metrics_of_group(
    figures: Counts,
    gauges: dict[str, Series],
    group: Group,
    begin_ns: int,
    now_ns: int,
    distribution: Callable[[Family, dict[str, str], Histogram], points.HistogramDataPoint],
) -> list[points.Metric]:
    rows: dict[str, list[Any]] = {key: [] for key in FAMILIES}
    for key, label, histogram in figures.histograms():
        attributes = _attributes(key, FAMILIES[key].values(label))
        rows[key].append(distribution(FAMILIES[key], attributes, histogram))
    for key, name, unit, amount in figures.numbers():
        rows[key] += _numbers(key, {(name, unit): amount}, begin_ns, now_ns)
    for key, series in gauges.items():
        if FAMILIES[key].has_group:
            mine = {values: value for values, value in series.items() if values[-3:] == group}
            rows[key] = _numbers(key, mine, begin_ns, now_ns)
    return [_metric(FAMILIES[key], of) for key, of in rows.items() if of]


def _numbers(key: str, series: Series, begin_ns: int, now_ns: int) -> list[points.NumberDataPoint]:
    return [
        points.NumberDataPoint(_attributes(key, values), begin_ns, now_ns, value)
        for values, value in series.items()
    ]


def _metric(family: Family, rows: list[Any]) -> points.Metric:
    data: Any
    if family.type == "gauge":
        data = points.Gauge(rows)
    elif family.type == "counter":
        data = points.Sum(rows, _CUMULATIVE, True)
    else:
        data = points.Histogram(rows, _CUMULATIVE)
    return points.Metric(family.otlp or "", None, family.unit, data)


def _attributes(key: str, values: Iterable[str]) -> dict[str, str]:
    labels = FAMILIES[key].labels
    return {_LABELS.get(x, f"stagespan.{x}"): y for x, y in zip(labels, values, strict=False)}


def _distribution(
    begin_ns: int,
    now_ns: int,
    buckets: Buckets,
    family: Family,
    attributes: dict[str, str],
    histogram: Histogram,
) -> points.HistogramDataPoint:
    below = buckets.below(histogram)
    return points.HistogramDataPoint(
        attributes,
        begin_ns,
        now_ns,
        below[-1],
        family.sum(histogram.sum),
        [now - before for before, now in zip([0, *below], below, strict=False)],
        [family.bound(bound) for bound in buckets.bounds_ns],
        math.nan,
        math.nan,
    )


# --- sending --------------------------------------------------------------------------------------


def _interval_s() -> float:
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    text = os.environ.get(name, "").strip() or "60000"
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise StagespanError(f"{name} is {text!r}: set it to a number of milliseconds.")
    return int(text) / 1000


class Otlp:
    """Sends requests and figures to a collector."""

    def __init__(
        self, url: str | None, operation: str | None = None, buckets: AnyBuckets = "coarse"
    ) -> None:
        """With an operation, add what the conventions for generative AI name.

        Raises StagespanError if the URL is not one, or if an exporter is not installed.
        """
        self._begin_ns = time.time_ns()
        self._figures_at, self._interval_s = -math.inf, _interval_s()
        self._operation = operation
        self._buckets = buckets_named(buckets)
        self._lost_spans = 0
        self._deltas = otlp_deltas.Deltas() if otlp_deltas.are_wanted() else None
        told: set[str] = set()
        self._of_traces, self._of_metrics = Answers(told), Answers(told)
        self._traces = Sender(
            lambda: exporter_for("traces", url, self._of_traces),
            lambda exporter, batch: deliver(
                exporter.export, batch, self._of_traces, number_of_spans
            ),
            BYTES_OF_A_CALL,
            size=number_of_spans,
            weight=number_of_bytes,
            most=BYTES_OF_QUEUE,
        )
        try:
            self._metrics = Sender(
                lambda: exporter_for("metrics", url, self._of_metrics), self._export_figures
            )
        except BaseException:
            self._traces.close(0)  # whose thread would wait for ever
            raise

    def begin(self, source: Exported) -> None:
        """Take what a source already has as delivered, if differences are sent.

        An earlier exporter has sent it.
        """
        if self._deltas is not None:
            figures = source.totals(), source.lost(), Gauges()
            data = metrics_of(*figures, self._begin_ns, self._operation, buckets=self._buckets)
            self._deltas.accept(data)

    def _export_figures(self, exporter: Any, batch: list[points.MetricsData]) -> int:
        """Export the latest figures. If that fails, all of ``batch`` count as not delivered."""

        def export(rows: list[points.ResourceMetrics]) -> Any:
            data = otlp_deltas.without_empty(points.MetricsData(rows))
            sent = data if self._deltas is None else self._deltas.of(data)
            if not sent.resource_metrics:
                return points.MetricExportResult.SUCCESS
            result = exporter.export(sent)
            if self._deltas is not None and result is points.MetricExportResult.SUCCESS:
                self._deltas.accept(data)
            return result

        rows = list(batch[-1].resource_metrics)
        return len(batch) if deliver(export, rows, self._of_metrics) else 0

    def step(self, source: Exported, *, at_end: bool = False) -> None:
        """Send the figures of a source that was just read, once a minute."""
        now = time.monotonic()
        if at_end or now - self._figures_at >= self._interval_s:
            data = metrics_of(
                source.totals(),
                source.lost(),
                source.gauges(),
                self._begin_ns,
                self._operation,
                source.identity if isinstance(source, ThisProcess) else None,
                self._buckets,
            )
            self._metrics.put([data])
            self._figures_at = now

    def put_requests(
        self, chosen: Iterable[list[Part]], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Send requests, until ``is_over`` returns True; the next exporter sends the others."""
        requests = list(chosen)
        more: defaultdict[Parts, dict[int, dict[str, Any]]] = defaultdict(dict)
        if self._operation is not None:
            for parts in requests:
                of_root = genai.attributes_of(parts, self._operation)
                for part in parts:
                    if part.is_root:
                        more[part.of][part.at] = of_root
        for of, indices in by_reading([part for parts in requests for part in parts]):
            for first in range(0, len(indices), _ENCODED_AT_ONCE):
                if is_over():
                    return
                some = indices[first : first + _ENCODED_AT_ONCE]
                self._put(of, some, more[of])

    def _put(self, of: Parts, indices: list[int], more: dict[int, dict[str, Any]]) -> None:
        try:
            messages, ends, left_out = encoded(of, indices, more)
        except Exception as error:  # whatever a process has recorded, the others are sent
            if len(indices) > 1:
                for at in indices:
                    self._put(of, [at], more)
                return
            self._of_traces.tell(f"A request cannot be sent, and counts as lost: {error!r}.")
            messages, ends, left_out = [], [], 1 + len(of.rows(indices[0]))
        self._lost_spans += left_out
        first = 0
        for message, end in zip(messages, ends, strict=True):
            done = partial(of.done, indices[first:end], AWAITED_OTLP)
            self._traces.put([message], done)
            first = end
        of.done(indices[first:], AWAITED_OTLP)  # those of which nothing can be sent

    def lost(self) -> dict[str, int]:
        """Return what was not delivered, by cause: spans, and times that figures were sent."""
        found = {cause: self._traces.lost[cause] + self._metrics.lost[cause] for cause in CAUSES}
        found["otlp_failed"] += self._lost_spans
        return {**found, "otlp_rejected": self._of_traces.rejected + self._of_metrics.rejected}

    def close(self, longest_s: float = LONGEST_END_S) -> None:
        """Deliver what is in the queues, for at most ``longest_s``, and at most 1 s."""
        ends = (partial(thread.close, longest_s) for thread in (self._traces, self._metrics))
        closing = [threading.Thread(target=thread) for thread in ends]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


# --- in one process -------------------------------------------------------------------------------

_READ_INTERVAL_S = 0.5


class Running:
    """Sends the requests and figures of this process, from a thread; what `start` returns.

    It goes on in a forked child, once the first request of the child has ended: many children have
    none, and need no thread and no connection.
    """

    def __init__(
        self,
        url: str | None,
        rules: Rules,
        operation: str | None,
        buckets: AnyBuckets,
        before: Running | None = None,
    ) -> None:
        """``before`` had the same address and was closed; what it has sent is not sent again."""
        self.options = (rules, operation, buckets)
        """What `start` was given besides the address."""
        self._make = partial(Otlp, url, operation, buckets)
        self._of_parents: list[object] = []
        self._is_closed = self._is_told = False
        self._source: ThisProcess = ThisProcess(rules) if before is None else before._source
        if before is not None and before.options[0] != rules:
            self._source.choose(rules)
        self._prepare()
        self._connected()
        if rules.one_in == 1:  # each request is sent, so that it can be a parent
            opentelemetry.add_exporter(self)
        self._begin()

    def _prepare(self) -> None:
        self._otlp: Otlp | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Not one lock for both: who ends waits for the thread, which connects.
        self._connecting, self._ending = threading.Lock(), threading.RLock()

    def _connected(self) -> Otlp:
        with self._connecting:
            if self._otlp is None:
                self._otlp = self._make()
                self._source.losses = [self._otlp.lost]
            return self._otlp

    def _begin(self) -> None:
        if self._is_closed:
            return
        self._thread = threading.Thread(target=self._run, name="stagespan-export", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        otlp = self._connected()
        while not self._stop.wait(min(_READ_INTERVAL_S, self._source.longest_pause_s())):
            try:
                self._source.read()
                otlp.put_requests(self._source.complete())
                otlp.step(self._source)
            except Exception as error:  # the next reading may succeed
                if not self._is_told:
                    self._is_told = True
                    _LOGGER.warning("A reading for the collector has failed: %r.", error)

    def go_on_in_child(self) -> None:
        """Send what this forked child records. What its parent has recorded, the parent sends."""
        # Closing the parent's connections here could end them in the parent, or wait for a thread
        # that does not exist here.
        self._of_parents.append(self._otlp)
        self._prepare()
        if not self._is_closed:
            requests.when_one_has_ended(self._begin)

    @property
    def is_closed(self) -> bool:
        """Whether nothing is sent any more."""
        return self._is_closed

    def lost(self) -> dict[str, int]:
        """Return what was not delivered, by cause."""
        return {} if self._otlp is None else self._otlp.lost()

    def close(self) -> None:
        """Deliver what has ended, for at most 1 s, and stop."""
        with self._ending:  # by the exit handler, or by the thread that handles SIGTERM
            if self._is_closed:
                return
            self._is_closed = True
            opentelemetry.remove_exporter(self)
            self._stop.set()
            if self._thread is None:  # a child without requests
                return
            self._thread.join(LONGEST_END_S)
            otlp = self._connected()
            self._source.read(at_end=True)
            otlp.put_requests(self._source.complete(at_end=True))
            otlp.step(self._source, at_end=True)
            otlp.close()


class Disabled(Running):
    """Sends nothing, because OTEL_SDK_DISABLED is true."""

    def __init__(self) -> None:
        self._otlp = None
        self._is_closed = True

    def close(self) -> None:
        """Do nothing."""


_running: dict[tuple[str, str], Running] = {}
"""What `start` has started, by the addresses of traces and of metrics."""


def _close_all() -> None:
    for one in tuple(_running.values()):
        one.close()


def _go_on_in_child() -> None:
    for one in tuple(_running.values()):
        one.go_on_in_child()


# Before the exit handlers of the service and of the recording, which are registered earlier.
atexit.register(_close_all)
forks.at_worker_exit(_close_all, priority=2)
forks.after_in_child(_go_on_in_child)


def start(
    url: str | None = None,
    *,
    one_in: int = 1,
    slowest: int = 0,
    failed: bool = True,
    genai: str | None = None,
    buckets: AnyBuckets = "coarse",
) -> Running:
    """Send the requests and figures of this process to a collector, from a thread of its own.

    No ``TracerProvider`` is made or replaced. The variables ``OTEL_EXPORTER_OTLP_*`` hold. In a
    service of several processes, use ``stagespan export --otlp`` instead, which also sends what
    processes have recorded that were killed.

    A forked child goes on: it sends its own requests and figures, with a thread and connections of
    its own, from its first request on. It may also call ``start`` itself. A second call with the
    same address returns the object of the first one. With ``OTEL_SDK_DISABLED=true``, nothing is
    sent, and a line of the log says so.

    Args:
        url: The address of the collector; by default that of the environment, or of this machine.
        one_in: Send one of so many requests; 0 for none.
        slowest: Send so many of each minute's requests, the slowest of those not chosen otherwise.
        failed: Send all requests that do not end as ok.
        genai: Add what OpenTelemetry's conventions for generative AI name. The operation, such as
            "chat" or "generate_content".
        buckets: "coarse" for histograms with one bucket an octave, "fine" for four.

    Returns:
        An object whose ``close()`` delivers what is left and stops; it is called at exit, and when
        SIGTERM ends the process.

    Raises:
        StagespanError: If this process has no recording, or the URL is not an address.
        ValueError: If ``buckets`` is neither "coarse" nor "fine".

    Example:
        ```python
        from stagespan.export import otlp

        running = otlp.start("http://127.0.0.1:4318", one_in=10)
        ```
    """
    buckets_named(buckets)
    options = (Rules(one_in, slowest, failed), genai, buckets)
    if is_disabled():
        return Disabled()
    addresses = (address("traces", url), address("metrics", url))
    before = _running.get(addresses)
    if before is not None and not before.is_closed:
        if before.options != options:
            _LOGGER.warning(
                "otlp.start was called again for %s with other options: those of the first call "
                "hold. Close what it returned before you start again.",
                addresses[0],
            )
        return before
    running = _running[addresses] = Running(url, *options, before)
    termination.watch(_close_all)
    return running
