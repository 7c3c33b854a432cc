"""Metrics for Prometheus, by the collector interface of ``prometheus_client``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from email.message import Message
from typing import NamedTuple

from stagespan.errors import StagespanError
from stagespan.export.figures import BOUNDS_NS, Figures
from stagespan.export.node import Node
from stagespan.export.own import Own
from stagespan.export.serving import Answer, HttpServer
from stagespan.export.totals import LABEL_SEPARATOR, Exemplar, Exemplars, Gauges, Group

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import (
        REGISTRY,
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.samples import Exemplar as OpenMetricsExemplar
except ImportError as error:
    raise StagespanError(
        "Metrics for Prometheus need prometheus_client (the extra 'export'): install it with "
        "`pip install prometheus_client`."
    ) from error

_GROUP = ("service", "pipeline", "rank")
_BOUNDS = (*(repr(bound / 1e9) for bound in BOUNDS_NS), "+Inf")


class _Family(NamedTuple):
    key: str
    name: str
    text: str
    labels: tuple[str, ...] = ("stage",)


_DURATIONS = (
    _Family("stage", "stagespan_stage_duration_seconds", "Host time of the runs of a stage."),
    _Family(
        "device",
        "stagespan_stage_device_duration_seconds",
        "Time from begin to end of the runs of a stage on its device.",
    ),
    _Family("queue", "stagespan_stage_queue_duration_seconds", "Waits inside a process."),
    _Family(
        "batch",
        "stagespan_batch_duration_seconds",
        "Host time of runs that serve several requests.",
    ),
    _Family(
        "part_first_chunk",
        "stagespan_part_time_to_first_chunk_seconds",
        "Time from the begin of a request's part in a process to the part's first chunk.",
    ),
    _Family(
        "per_token",
        "stagespan_request_time_per_token_seconds",
        "Time from one chunk to the next, divided by the tokens of the second one.",
    ),
    _Family(
        "request",
        "stagespan_request_duration_seconds",
        "Time from begin to end of requests.",
        ("status",),
    ),
    _Family(
        "handoff",
        "stagespan_handoff_duration_seconds",
        "Time from sent to received of requests that cross to another process.",
        ("from", "to"),
    ),
)


class RecordingCollector:
    """Reads recordings each time Prometheus asks, and yields what they contain as metrics."""

    def __init__(self, source: Node | Own) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry does not have to read recordings to check names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the recordings, and yield their figures."""
        self._source.read()
        source = self._source
        yield from families(source.totals(), source.lost(), source.gauges(), source.exemplars())


def register(registry: CollectorRegistry = REGISTRY) -> RecordingCollector:
    """Add the figures of this process to a registry of ``prometheus_client``.

    They are read from the process's recording each time the registry is collected, also in a forked
    child. Nothing is started, and no port is opened. ``registry.unregister`` takes the returned
    collector. In a service of several processes, use ``stagespan export`` instead, which adds them.

    Raises:
        StagespanError: If this process has no recording, because STAGESPAN_RECORDING is off.

    Example:
        ```python
        from prometheus_client import start_http_server
        from stagespan.export import prometheus

        prometheus.register()
        start_http_server(9464, addr="127.0.0.1")
        ```
    """
    collector = RecordingCollector(Own())
    registry.register(collector)
    return collector


def families(
    totals: dict[Group, Figures], lost: dict[str, int], gauges: Gauges, exemplars: Exemplars
) -> Iterator[Metric]:
    """Yield figures as metrics. Exemplars are shown where OpenMetrics is asked for."""
    for key, name, text, labels in _DURATIONS:
        durations = HistogramMetricFamily(name, text, labels=(*labels, *_GROUP))
        for group, figures in totals.items():
            for label, histogram in figures.durations.get(key, {}).items():
                values = label.split(LABEL_SEPARATOR) if len(labels) > 1 else [label]
                known = exemplars.get((group, key, label), {})
                buckets = [
                    (bound, below, _exemplar(known.get(i)))
                    for i, (bound, below) in enumerate(zip(_BOUNDS, histogram.below, strict=True))
                ]
                durations.add_metric((*values, *group), buckets, histogram.sum_ns / 1e9)
        yield durations
    errors = CounterMetricFamily(
        "stagespan_stage_errors_total",
        "Runs of a stage that have raised an exception.",
        labels=("stage", *_GROUP),
    )
    work = CounterMetricFamily(
        "stagespan_stage_work_total",
        "Work that runs of a stage have counted.",
        labels=("stage", "unit", *_GROUP),
    )
    losses = CounterMetricFamily(
        "stagespan_lost_total",
        "What was lost, by cause.",
        labels=("cause", *_GROUP),
    )
    for cause, number in lost.items():
        losses.add_metric((cause, "", "", ""), number)
    for group, figures in totals.items():
        for family, name, unit, amount in figures.numbers():
            if family == "errors":
                errors.add_metric((name, *group), amount)
            elif family == "work":
                work.add_metric((name, unit, *group), amount)
            else:
                losses.add_metric((name, *group), amount)
    yield from (errors, work, losses)
    yield from _gauges(gauges)


def _exemplar(of: Exemplar | None) -> OpenMetricsExemplar | None:
    if of is None:
        return None
    return OpenMetricsExemplar({"trace_id": of.trace_id}, of.duration_ns / 1e9, of.end_ns / 1e9)


def _gauges(gauges: Gauges) -> Iterator[Metric]:
    running = GaugeMetricFamily(
        "stagespan_stage_running", "Runs of a stage that have not ended.", labels=("stage", *_GROUP)
    )
    for (group, stage), number in gauges.running.items():
        running.add_metric((stage, *group), number)
    waiting = GaugeMetricFamily(
        "stagespan_queue_waiting",
        "Waits in a queue that have not ended.",
        labels=("stage", *_GROUP),
    )
    for (group, stage), number in gauges.waiting.items():
        waiting.add_metric((stage, *group), number)
    oldest = GaugeMetricFamily(
        "stagespan_oldest_request_age_seconds",
        "Age of the oldest request that has not ended.",
        labels=_GROUP,
    )
    for group, age_ns in gauges.oldest_ns.items():
        oldest.add_metric(group, age_ns / 1e9)
    up = GaugeMetricFamily(
        "stagespan_process_up", "Live processes of a service that record.", labels=("service",)
    )
    for service, number in gauges.up.items():
        up.add_metric((service,), number)
    unnamed = GaugeMetricFamily(
        "stagespan_stages_not_named",
        "Stages that are summed as (other), because there are too many.",
        value=gauges.unnamed,
    )
    yield from (running, waiting, oldest, up, unnamed)


class Server:
    """Serves metrics by HTTP until `close`."""

    def __init__(self, node: Node, host: str, port: int) -> None:
        """Open the port. Raises StagespanError if that is not possible."""
        registry = CollectorRegistry()
        registry.register(RecordingCollector(node))
        self._application = make_wsgi_app(registry)
        self._reading = threading.Lock()
        self._server = HttpServer(
            host, port, self._answer, what="Metrics", option="--prometheus 127.0.0.1:9465"
        )
        self.port: int = self._server.port
        """The port; a free one if 0 was asked for."""

    def _answer(self, path: str, headers: Message) -> Answer:
        """Return the metrics in the format that the headers ask for, one answer at a time."""
        place, _, query = path.partition("?")
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": place, "QUERY_STRING": query}
        for name in ("Accept", "Accept-Encoding"):
            if (value := headers.get(name)) is not None:
                environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
        begun: list[tuple[str, list[tuple[str, str]]]] = []
        with self._reading:
            body = self._application(environ, lambda *arguments: begun.append(arguments))
        status, fields = begun[0]
        return Answer(int(status.partition(" ")[0]), dict(fields), b"".join(body))

    def close(self) -> None:
        """Close the port."""
        self._server.close()
