"""Figures of OTLP as differences to those that were delivered before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.metrics import export as points

from stagespan.errors import StagespanError

_PREFERENCE = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"

_Key = tuple[Any, ...]
"""What identifies a series: the attributes of its resource, its metric, and its attributes."""


def are_wanted() -> bool:
    """Return whether the environment asks for differences.

    Raises StagespanError if it asks for something that there is not.
    """
    aggregation = os.environ.get(_AGGREGATION, "").strip()
    if aggregation.lower() not in ("", "explicit_bucket_histogram"):
        raise StagespanError(
            f"{_AGGREGATION} is {aggregation!r}, but histograms have fixed bounds: remove it, or "
            "set it to explicit_bucket_histogram."
        )
    preference = os.environ.get(_PREFERENCE, "").strip()
    if preference.lower() not in ("", "cumulative", "delta", "lowmemory"):
        raise StagespanError(
            f"{_PREFERENCE} is {preference!r}: set it to cumulative, delta or lowmemory."
        )
    return preference.lower() in ("delta", "lowmemory")


def without_empty(data: points.MetricsData) -> points.MetricsData:
    """Return figures without metrics that have no data points."""
    return _changed(data, lambda _, metric: metric)


class Deltas:
    """Makes differences of sums and histograms that only rise."""

    def __init__(self) -> None:
        self._before: dict[_Key, Any] = {}

    def accept(self, data: points.MetricsData) -> None:
        """Note that these figures, or their differences to the earlier ones, were delivered."""
        for resource, metric in _metrics(data):
            if not isinstance(metric.data, points.Gauge):
                for point in metric.data.data_points:
                    self._before[_key(resource, metric, point)] = point

    def of(self, data: points.MetricsData) -> points.MetricsData:
        """Return the differences to what was delivered. Points without one are left out."""

        def changed(resource: points.ResourceMetrics, metric: points.Metric) -> points.Metric:
            if isinstance(metric.data, points.Gauge):
                return metric
            rows = [
                _difference(point, self._before.get(_key(resource, metric, point)))
                for point in metric.data.data_points
            ]
            delta = points.AggregationTemporality.DELTA
            rest = [one for one in rows if one is not None]
            return replace(
                metric, data=replace(metric.data, data_points=rest, aggregation_temporality=delta)
            )

        return _changed(data, changed)


def _changed(data: points.MetricsData, change: Any) -> points.MetricsData:
    """Return figures whose metrics were changed, without those that have no data points."""
    resources = []
    for resource in data.resource_metrics:
        scopes = []
        for scope in resource.scope_metrics:
            metrics = [change(resource, metric) for metric in scope.metrics]
            metrics = [metric for metric in metrics if metric.data.data_points]
            if metrics:
                scopes.append(replace(scope, metrics=metrics))
        if scopes:
            resources.append(replace(resource, scope_metrics=scopes))
    return points.MetricsData(resources)


def _metrics(data: points.MetricsData) -> Iterator[tuple[points.ResourceMetrics, points.Metric]]:
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield resource, metric


def _key(resource: points.ResourceMetrics, metric: points.Metric, point: Any) -> _Key:
    own = frozenset((resource.resource.attributes or {}).items())
    return own, metric.name, frozenset((point.attributes or {}).items())


def _difference(point: Any, before: Any) -> Any:
    """Return what a point counts since an earlier one of its series; None if that is nothing."""
    if isinstance(point, points.HistogramDataPoint):
        if before is None or before.count > point.count:
            return point if point.count else None
        if before.count == point.count:
            return None
        pairs = zip(point.bucket_counts, before.bucket_counts, strict=True)
        return replace(
            point,
            start_time_unix_nano=before.time_unix_nano,
            count=point.count - before.count,
            sum=point.sum - before.sum,
            bucket_counts=[max(now - earlier, 0) for now, earlier in pairs],
        )
    if before is None or before.value > point.value:
        return point if point.value else None
    if before.value == point.value:
        return None
    value = point.value - before.value
    return replace(point, start_time_unix_nano=before.time_unix_nano, value=value)
