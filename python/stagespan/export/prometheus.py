"""Metrics for Prometheus, by the collector interface of ``prometheus_client``."""

from __future__ import annotations

import gzip
import math
import threading
from collections.abc import Iterable, Iterator
from email.message import Message
from functools import lru_cache
from typing import NamedTuple

from stagespan.errors import StagespanError
from stagespan.export.families import COUNTERS, FAMILIES, GAUGES, HISTOGRAMS, Family
from stagespan.export.figures import BUCKETS, AnyBuckets, Buckets, Counts, buckets_named
from stagespan.export.node import Node
from stagespan.export.serving import Answer, HttpServer
from stagespan.export.this_process import ThisProcess
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
    from prometheus_client.exposition import choose_encoder, gzip_accepted
    from prometheus_client.samples import Exemplar as OpenMetricsExemplar
except ImportError as error:
    raise StagespanError(
        "Metrics for Prometheus need prometheus_client (the extra 'export'): install it with "
        "`pip install prometheus_client`."
    ) from error


_METRICS = {
    "histogram": HistogramMetricFamily,
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}
_GZIP_LEVEL = 3
"""The higher ones take several times as long, for a tenth less."""
_MOST_EXACT = 1 << 53
"""Up to here, a double is a whole number exactly."""


class RecordingCollector:
    """Reads recordings each time Prometheus asks, and yields what they contain as metrics."""

    def __init__(self, source: Node | ThisProcess, buckets: AnyBuckets = "coarse") -> None:
        self._source = source
        self._buckets = buckets_named(buckets)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry does not have to read recordings to check names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the recordings, and yield their figures."""
        yield from families(*self._read(), self._buckets)

    def text(self, *, is_open: bool) -> str:
        """Read the recordings, and return the same figures as text or as OpenMetrics."""
        return text(*self._read(), self._buckets, is_open=is_open)

    def _read(self) -> tuple[dict[Group, Counts], dict[str, int], Gauges, Exemplars]:
        self._source.read()
        source = self._source
        return source.totals(), source.lost(), source.gauges(), source.exemplars()


def register(
    registry: CollectorRegistry = REGISTRY, *, buckets: AnyBuckets = "coarse"
) -> RecordingCollector:
    """Add the figures of this process to a registry of ``prometheus_client``.

    They are read from the process's recording each time the registry is collected, also in a forked
    child. Nothing is started, and no port is opened. ``registry.unregister`` takes the returned
    collector. In a service of several processes, use ``stagespan export`` instead, which adds them.
    The histograms have one bucket an octave, or four if ``buckets`` is ``"fine"``.

    Raises:
        StagespanError: If this process has no recording, because STAGESPAN_RECORDING is off.
        ValueError: If ``buckets`` is neither ``"coarse"`` nor ``"fine"``.

    Example:
        ```python
        from prometheus_client import start_http_server
        from stagespan.export import prometheus

        prometheus.register()
        start_http_server(9464, addr="127.0.0.1")
        ```
    """
    collector = RecordingCollector(ThisProcess(), buckets)
    registry.register(collector)
    return collector


class _Distribution(NamedTuple):
    """The durations, or amounts, of a series."""

    below: list[int]
    """Those below each bound, and all."""
    sum: float
    requests: dict[int, Exemplar]
    """The latest one of each bucket."""


_Series = tuple[tuple[str, ...], float | _Distribution]
"""The values of the labels of `_labels`, and what the series has."""


def _shown(
    totals: dict[Group, Counts],
    lost: dict[str, int],
    gauges: Gauges,
    exemplars: Exemplars,
    buckets: Buckets,
) -> Iterator[tuple[Family, list[_Series]]]:
    """Yield each family with its series."""
    for family in HISTOGRAMS:
        rows: list[_Series] = []
        for group, figures in totals.items():
            of_group = _of_group(family, group)
            for label, histogram in figures.durations.get(family.key, {}).items():
                requests = _latest(exemplars.get((group, family.key, label), {}), buckets)
                total = family.sum(histogram.sum)
                of = _Distribution(buckets.below(histogram), total, requests)
                rows.append(((*family.values(label), *of_group), of))
        yield family, rows
    amounts: dict[str, list[_Series]] = {family.key: [] for family in COUNTERS}
    for cause, number in lost.items():
        amounts["lost"].append(((cause, "", "", ""), number))
    for group, figures in totals.items():
        for key, name, unit, amount in figures.numbers():
            values = (name, unit)[: len(FAMILIES[key].labels)]
            amounts[key].append(((*values, *group), amount))
    for family in COUNTERS:
        yield family, amounts[family.key]
    for family in GAUGES:
        rows = []
        for values, value in gauges.series[family.key].items():
            labels, group_values = values[: len(family.labels)], values[len(family.labels) :]
            named = _of_group(family, Group(*group_values)) if family.has_group else ()
            rows.append(((*labels, *named), value))
        yield family, rows


def families(
    totals: dict[Group, Counts],
    lost: dict[str, int],
    gauges: Gauges,
    exemplars: Exemplars,
    buckets: Buckets = BUCKETS["coarse"],
) -> Iterator[Metric]:
    """Yield figures as metrics. Exemplars are shown where OpenMetrics is asked for."""
    for family, series in _shown(totals, lost, gauges, exemplars, buckets):
        bounds = _bounds(family, buckets)
        metric = _METRICS[family.type](family.prometheus, family.help, labels=_labels(family))
        for labels, value in series:
            if isinstance(value, _Distribution):
                rows = [
                    (bound, below, _exemplar(value.requests.get(i)))
                    for i, (bound, below) in enumerate(zip(bounds, value.below, strict=True))
                ]
                metric.add_metric(labels, rows, value.sum)
            else:
                metric.add_metric(labels, value)
        yield metric


def text(
    totals: dict[Group, Counts],
    lost: dict[str, int],
    gauges: Gauges,
    exemplars: Exemplars,
    buckets: Buckets = BUCKETS["coarse"],
    *,
    is_open: bool = False,
) -> str:
    """Return what ``prometheus_client`` writes for `families`, as its text or as OpenMetrics.

    It takes a tenth of the time, since the labels of a series are the same in all its lines.
    """
    lines: list[str] = []
    for family, series in _shown(totals, lost, gauges, exemplars, buckets):
        name = family.prometheus
        titled = name.removesuffix("_total") if is_open else name
        lines.append(f"# HELP {titled} {family.help}\n# TYPE {titled} {family.type}\n")
        names = _labels(family)
        in_order = sorted(range(len(names)), key=names.__getitem__)
        heads = [f'{name}_bucket{{le="{bound}",' for bound in _bounds(family, buckets)]
        for values, value in series:
            labels = ",".join([f'{names[i]}="{_escaped(values[i])}"' for i in in_order])
            if not isinstance(value, _Distribution):
                braced = f"{{{labels}}}" if labels else ""
                lines.append(f"{name}{braced} {_number(value)}\n")
                continue
            rows = [
                f"{head}{labels}}} {below}" for head, below in zip(heads, value.below, strict=True)
            ]
            if is_open:
                for i, of in value.requests.items():
                    rows[i] += (
                        f' # {{trace_id="{of.trace_id}"}} {of.duration_ns / 1e9} {of.end_ns / 1e9}'
                    )
            rows.append(f"{name}_count{{{labels}}} {value.below[-1]}")
            rows.append(f"{name}_sum{{{labels}}} {_number(value.sum)}\n")
            lines.append("\n".join(rows))
    if is_open:
        lines.append("# EOF\n")
    return "".join(lines)


@lru_cache(maxsize=4096)
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    is_whole = value == int(value) and abs(value) < _MOST_EXACT
    return str(int(value)) if is_whole else repr(float(value))


def _bounds(family: Family, buckets: Buckets) -> tuple[str, ...]:
    return (*(repr(family.bound(bound)) for bound in buckets.bounds_ns), "+Inf")


def _labels(family: Family) -> tuple[str, ...]:
    return (*family.labels, *_of_group(family, Group(*Group._fields)))


def _of_group(family: Family, group: Group) -> list[str]:
    """Return what a group says beside the labels of a family, such as the pipeline of requests."""
    named = zip(Group._fields, group, strict=True) if family.has_group else ()
    return [value for name, value in named if name not in family.labels]


def _latest(requests: dict[int, Exemplar], buckets: Buckets) -> dict[int, Exemplar]:
    """Return the latest request of each bucket that is exported."""
    in_order = sorted(requests.items(), key=lambda one: one[1].end_ns)
    return {buckets.containing(counted): one for counted, one in in_order}


def _exemplar(of: Exemplar | None) -> OpenMetricsExemplar | None:
    if of is None:
        return None
    return OpenMetricsExemplar({"trace_id": of.trace_id}, of.duration_ns / 1e9, of.end_ns / 1e9)


class Server:
    """Serves metrics by HTTP until `close`."""

    def __init__(self, node: Node, host: str, port: int, buckets: AnyBuckets = "coarse") -> None:
        """Open the port. Raises StagespanError if that is not possible."""
        registry = CollectorRegistry()
        self._collector = RecordingCollector(node, buckets)
        registry.register(self._collector)
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
        if query or place == "/favicon.ico":
            return self._chosen(place, query, headers)
        _, content_type = choose_encoder(headers.get("Accept", ""))
        with self._reading:
            is_open = content_type.startswith("application/openmetrics-text")
            body = self._collector.text(is_open=is_open).encode()
            fields = {"Content-Type": content_type}
            if gzip_accepted(headers.get("Accept-Encoding", "")):
                body = gzip.compress(body, _GZIP_LEVEL)
                fields["Content-Encoding"] = "gzip"
        return Answer(200, fields, body)

    def _chosen(self, place: str, query: str, headers: Message) -> Answer:
        """Return the metrics that a query names, as ``prometheus_client`` does."""
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
