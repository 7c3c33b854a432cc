"""Metrics for Prometheus, by the collector interface of ``prometheus_client``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from email.message import Message

from stagespan.errors import StagespanError
from stagespan.export.families import COUNTERS, FAMILIES, GAUGES, HISTOGRAMS, Family
from stagespan.export.figures import BOUNDS_NS, Counts
from stagespan.export.node import Node
from stagespan.export.own import Own
from stagespan.export.serving import Answer, HttpServer
from stagespan.export.totals import Exemplar, Exemplars, Gauges, Group

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

_BOUNDS = (*(repr(bound / 1e9) for bound in BOUNDS_NS), "+Inf")


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
    totals: dict[Group, Counts], lost: dict[str, int], gauges: Gauges, exemplars: Exemplars
) -> Iterator[Metric]:
    """Yield figures as metrics. Exemplars are shown where OpenMetrics is asked for."""
    for family in HISTOGRAMS:
        durations = HistogramMetricFamily(family.prometheus, family.help, labels=_labels(family))
        for group, figures in totals.items():
            for label, histogram in figures.durations.get(family.key, {}).items():
                requests = exemplars.get((group, family.key, label), {})
                buckets = [
                    (bound, below, _exemplar(requests.get(i)))
                    for i, (bound, below) in enumerate(zip(_BOUNDS, histogram.below, strict=True))
                ]
                values = (*family.values(label), *_of_group(family, group))
                durations.add_metric(values, buckets, histogram.sum_ns / 1e9)
        yield durations
    amounts = {
        family.key: CounterMetricFamily(family.prometheus, family.help, labels=_labels(family))
        for family in COUNTERS
    }
    for cause, number in lost.items():
        amounts["lost"].add_metric((cause, "", "", ""), number)
    for group, figures in totals.items():
        for key, name, unit, amount in figures.numbers():
            values = (name, unit)[: len(FAMILIES[key].labels)]
            amounts[key].add_metric((*values, *group), amount)
    yield from amounts.values()
    for family in GAUGES:
        gauge = GaugeMetricFamily(family.prometheus, family.help, labels=_labels(family))
        for values, value in gauges.series[family.key].items():
            gauge.add_metric(values, value)
        yield gauge


def _labels(family: Family) -> tuple[str, ...]:
    return (*family.labels, *_of_group(family, Group(*Group._fields)))


def _of_group(family: Family, group: Group) -> list[str]:
    """Return what a group says beside the labels of a family, such as the pipeline of requests."""
    named = zip(Group._fields, group, strict=True) if family.has_group else ()
    return [value for name, value in named if name not in family.labels]


def _exemplar(of: Exemplar | None) -> OpenMetricsExemplar | None:
    if of is None:
        return None
    return OpenMetricsExemplar({"trace_id": of.trace_id}, of.duration_ns / 1e9, of.end_ns / 1e9)


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
