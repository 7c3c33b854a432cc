"""A dashboard for Grafana and alert rules for Prometheus, for the metrics that are exported."""

from __future__ import annotations

from typing import Any, NamedTuple

_WHERE = 'service=~"$service"'
_QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


class _Query(NamedTuple):
    expression: str
    legend: str
    exemplar: bool = False


class _Panel(NamedTuple):
    title: str
    unit: str
    queries: tuple[_Query, ...]


def _quantiles(metric: str, label: str, *, exemplar: bool = False) -> tuple[_Query, ...]:
    return tuple(
        _Query(
            f"histogram_quantile({q}, sum by ({label}, le) "
            f"(rate({metric}_bucket{{{_WHERE}}}[$__rate_interval])))",
            f"{{{{{label}}}}} {name}",
            exemplar,
        )
        for q, name in _QUANTILES
    )


def _rate(metric: str, label: str) -> _Query:
    return _Query(
        f"sum by ({label}) (rate({metric}{{{_WHERE}}}[$__rate_interval]))", f"{{{{{label}}}}}"
    )


_STAGE = "stagespan_stage_duration_seconds"
_PANELS = (
    _Panel("Time of stages", "s", _quantiles(_STAGE, "stage", exemplar=True)),
    _Panel("Runs of stages per second", "ops", (_rate(f"{_STAGE}_count", "stage"),)),
    _Panel(
        "Time in queues and in stages, per second",
        "s",
        (
            _rate("stagespan_stage_queue_duration_seconds_sum", "stage")._replace(
                legend="{{stage}} queue"
            ),
            _rate(f"{_STAGE}_sum", "stage"),
        ),
    ),
    _Panel(
        "Time of requests, the slowest with links to their traces",
        "s",
        _quantiles("stagespan_request_duration_seconds", "status", exemplar=True),
    ),
    _Panel(
        "Hand-offs between processes",
        "s",
        _quantiles("stagespan_handoff_duration_seconds", "to"),
    ),
    _Panel("Errors per second", "ops", (_rate("stagespan_stage_errors_total", "stage"),)),
    _Panel(
        "Waiting and running",
        "short",
        (
            _Query(f"sum by (stage) (stagespan_queue_waiting{{{_WHERE}}})", "{{stage}} waiting"),
            _Query(f"sum by (stage) (stagespan_stage_running{{{_WHERE}}})", "{{stage}} running"),
        ),
    ),
    _Panel(
        "Oldest open request",
        "s",
        (
            _Query(
                f"max by (pipeline) (stagespan_oldest_request_age_seconds{{{_WHERE}}})",
                "{{pipeline}}",
            ),
        ),
    ),
    _Panel(
        "Live processes",
        "short",
        (_Query(f"sum by (service) (stagespan_process_up{{{_WHERE}}})", "{{service}}"),),
    ),
    _Panel(
        "Losses",
        "short",
        (_Query("sum by (cause) (increase(stagespan_lost_total[$__range]))", "{{cause}}"),),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = [
        {
            "id": number,
            "type": "timeseries",
            "title": panel.title,
            "datasource": source,
            "gridPos": {
                "h": 8,
                "w": 12,
                "x": 12 * ((number - 1) % 2),
                "y": 8 * ((number - 1) // 2),
            },
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "options": {
                "legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi", "sort": "desc"},
            },
            "targets": [
                {
                    "refId": chr(ord("A") + i),
                    "expr": query.expression,
                    "legendFormat": query.legend,
                    "exemplar": query.exemplar,
                    "datasource": source,
                }
                for i, query in enumerate(panel.queries)
            ],
        }
        for number, panel in enumerate(_PANELS, 1)
    ]
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"},
        {
            "name": "service",
            "type": "query",
            "label": "Service",
            "datasource": source,
            "query": "label_values(stagespan_process_up, service)",
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "title": "stagespan",
        "uid": "stagespan",
        "schemaVersion": 39,
        "version": 1,
        "tags": ["stagespan"],
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels,
    }


class Rule(NamedTuple):
    """An alert rule: it fires while the condition holds for the value."""

    name: str
    value: str
    condition: str
    wait: str
    summary: str


_P99 = f"histogram_quantile(0.99, sum by (service, stage, le) (rate({_STAGE}_bucket[%s])))"
RULES = (
    Rule(
        "StagespanStageStalled",
        f"sum by (service, stage) (increase({_STAGE}_count[10m])) "
        "and sum by (service, stage) (min_over_time(stagespan_stage_running[10m])) > 0",
        "== 0",
        "5m",
        "{{ $labels.stage }} of {{ $labels.service }} runs, and has not ended for 10 minutes.",
    ),
    Rule(
        "StagespanQueueGrowing",
        "sum by (service, stage) (deriv(stagespan_queue_waiting[10m])) * 60",
        "> 1",
        "10m",
        "{{ $labels.stage }} of {{ $labels.service }}: {{ $value | humanize }} more a minute.",
    ),
    Rule(
        "StagespanP99Doubled",
        f"{_P99 % '5m'} / {_P99 % '6h'}",
        "> 2",
        "10m",
        "The p99 of {{ $labels.stage }} of {{ $labels.service }} is {{ $value | humanize }} times "
        "that of the last 6 hours.",
    ),
    Rule(
        "StagespanLosses",
        "sum by (cause) (increase(stagespan_lost_total[10m]))",
        "> 0",
        "0m",
        "{{ $value | humanize }} were lost in 10 minutes: {{ $labels.cause }}.",
    ),
    Rule(
        "StagespanProcessGone",
        "stagespan_process_up / max_over_time(stagespan_process_up[1h])",
        "< 1",
        "5m",
        "{{ $labels.service }} has fewer processes than in the last hour.",
    ),
)


def alerts() -> str:
    """Return the alert rules as a file of Prometheus."""
    lines = ["groups:", "- name: stagespan", "  rules:"]
    for rule in RULES:
        lines += [
            f"  - alert: {rule.name}",
            f"    expr: ({rule.value}) {rule.condition}",
            f"    for: {rule.wait}",
            "    annotations:",
            f"      summary: '{rule.summary}'",
        ]
    return "\n".join(lines) + "\n"
