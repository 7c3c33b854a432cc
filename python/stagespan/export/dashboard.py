"""A dashboard for Grafana and alert rules for Prometheus, for the metrics that are exported."""

from __future__ import annotations

from typing import Any, NamedTuple

_MACHINE = 'instance=~"$instance"'
_OF_SERVICE = f'service=~"$service", {_MACHINE}'
_WHERE = f'{_OF_SERVICE}, pipeline=~"$pipeline", rank=~"$rank"'
_QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
_COLUMNS = 24
_HEIGHT = 9
_LINE = {"showPoints": "never"}
_AREA = {"fillOpacity": 30, "showPoints": "never", "stacking": {"mode": "normal", "group": "A"}}
_BARS = {"drawStyle": "bars", "fillOpacity": 80, "lineWidth": 0}


class _Query(NamedTuple):
    expression: str
    legend: str
    exemplar: bool = False


class _Panel(NamedTuple):
    title: str
    unit: str
    queries: tuple[_Query, ...]
    text: str
    """What it shows, in the tooltip of the title."""
    width: int = _COLUMNS // 2
    style: dict[str, Any] = _LINE
    is_whole: bool = False
    """Whether the values are whole numbers."""
    if_empty: str | None = None
    """What is written if there is nothing to draw, and that is normal."""


def _quantile(q: float, metric: str, label: str, legend: str, *, exemplar: bool = False) -> _Query:
    expression = (
        f"histogram_quantile({q}, sum by ({label}, le) "
        f"(rate({metric}_bucket{{{_WHERE}}}[$__rate_interval])))"
    )
    return _Query(expression, legend, exemplar)


def _quantiles(metric: str, label: str, *, exemplars: bool = False) -> tuple[_Query, ...]:
    return tuple(
        _quantile(q, metric, label, f"{{{{{label}}}}} {name}", exemplar=exemplars and name == "p99")
        for q, name in _QUANTILES
    )


def _rate(metric: str, label: str, suffix: str = "") -> _Query:
    return _Query(
        f"sum by ({label}) (rate({metric}{{{_WHERE}}}[$__rate_interval]))",
        f"{{{{{label}}}}}{suffix}",
    )


_STAGE = "stagespan_stage_duration_seconds"
_BATCH = "stagespan_batch_duration_seconds"
_REQUEST = "stagespan_request_duration_seconds"
_NO_REQUESTS = "No request has ended"
_PANELS = (
    _Panel(
        "Time of requests",
        "s",
        _quantiles(_REQUEST, "status", exemplars=True),
        "By status. The points are single requests. They have links to traces if the data source "
        "says for its exemplars where the traces are.",
        if_empty=_NO_REQUESTS,
    ),
    _Panel(
        "Requests per second",
        "reqps",
        (_rate(f"{_REQUEST}_count", "status"),),
        "Requests that have ended, by status.",
        style=_AREA,
        if_empty=_NO_REQUESTS,
    ),
    *(
        _Panel(
            f"Time of stages, {name}",
            "s",
            (
                _quantile(q, _STAGE, "stage", "{{stage}}", exemplar=name == "p99"),
                _quantile(q, _BATCH, "stage", "{{stage}} (batch)"),
            ),
            "Host time of the runs of each stage; a batch serves several requests.",
            width=_COLUMNS // 3,
        )
        for q, name in _QUANTILES
    ),
    _Panel(
        "Stages, queues and hand-offs at a time",
        "none",
        (
            _rate(f"{_STAGE}_sum", "stage"),
            _rate(f"{_BATCH}_sum", "stage", " (batch)"),
            _rate("stagespan_stage_queue_duration_seconds_sum", "stage", " (queue)"),
            _rate("stagespan_handoff_duration_seconds_sum", "to", " (hand-off)"),
        ),
        "The time that has passed in each of them per second, which is how many there were at a "
        "time on average. A stage that contains others includes their time.",
        style=_AREA,
    ),
    _Panel(
        "Runs of stages per second",
        "ops",
        (_rate(f"{_STAGE}_count", "stage"), _rate(f"{_BATCH}_count", "stage", " (batch)")),
        "Runs that have ended.",
    ),
    _Panel(
        "Time in queues",
        "s",
        _quantiles("stagespan_stage_queue_duration_seconds", "stage"),
        "Waits inside a process.",
        if_empty="No wait has ended",
    ),
    _Panel(
        "Hand-offs between processes",
        "s",
        _quantiles("stagespan_handoff_duration_seconds", "to"),
        "From sent to received, by queue. It includes the time in the queue.",
        if_empty="No request was handed to another process",
    ),
    _Panel(
        "Running and waiting now",
        "none",
        (
            _Query(f"sum by (stage) (stagespan_stage_running{{{_WHERE}}})", "{{stage}}"),
            _Query(f"sum by (stage) (stagespan_queue_waiting{{{_WHERE}}})", "{{stage}} (queue)"),
        ),
        "What was open when Prometheus asked.",
        is_whole=True,
    ),
    _Panel(
        "Oldest open request",
        "s",
        (
            _Query(
                f"max by (service, pipeline) (stagespan_oldest_request_age_seconds{{{_WHERE}}})",
                "{{service}} {{pipeline}}",
            ),
        ),
        "The age of the oldest request that has not ended.",
        if_empty="No request was open",
    ),
    _Panel(
        "Time to first chunk of parts",
        "s",
        _quantiles("stagespan_part_time_to_first_chunk_seconds", "stage"),
        "Since the part of the request was entered in the process that made the chunk, so it lacks "
        "the time before, such as that in the queue.",
        if_empty="No request has chunks",
    ),
    _Panel(
        "Time per token",
        "s",
        _quantiles("stagespan_request_time_per_token_seconds", "stage"),
        "From one chunk to the next, divided by the tokens of the second one.",
        if_empty="No request has chunks",
    ),
    _Panel(
        "Work per second",
        "short",
        (
            _Query(
                "sum by (stage, unit) "
                f"(rate(stagespan_stage_work_total{{{_WHERE}}}[$__rate_interval]))",
                "{{stage}} {{unit}}",
            ),
        ),
        "What the stages have counted with span.add, such as tokens.",
        if_empty="No stage counts work",
    ),
    _Panel(
        "Errors per second",
        "short",
        (_rate("stagespan_stage_errors_total", "stage"),),
        "Runs of stages that have raised an exception.",
    ),
    _Panel(
        "Live processes",
        "none",
        (_Query(f"sum by (service) (stagespan_process_up{{{_OF_SERVICE}}})", "{{service}}"),),
        "Processes that record, by service.",
        is_whole=True,
    ),
    _Panel(
        "Losses",
        "none",
        (
            _Query(
                'sum by (cause) (increase(stagespan_lost_total{service=~"$service|", '
                f"{_MACHINE}}}[$__rate_interval])) > 0",
                "{{cause}}",
            ),
        ),
        "What was not recorded, read or delivered, by cause.",
        style=_BARS,
        is_whole=True,
        if_empty="Nothing was lost",
    ),
)


def _variable(name: str, label: str, of: str, source: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": label,
        "datasource": source,
        "query": f"label_values({of}, {name})",
        "refresh": 2,
        "sort": 7,  # natural, so that rank 2 comes before rank 10
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: _Panel, x: int, y: int, source: dict[str, str]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": panel.style}
    if panel.is_whole:
        defaults["decimals"] = 0
    if panel.if_empty is not None:
        defaults["noValue"] = panel.if_empty
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "gridPos": {"h": _HEIGHT, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
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


def dashboard() -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = []
    x = y = 0
    for number, panel in enumerate(_PANELS, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + _HEIGHT
        panels.append(_panel(number, panel, x, y, source))
        x += panel.width
    up = "stagespan_process_up"
    runs = f'__name__=~"({_STAGE}|{_BATCH})_count"'
    count = f'{{{runs}, service=~"$service"}}'
    return {
        "title": "stagespan",
        "uid": "stagespan",
        "schemaVersion": 39,
        "version": 1,
        "tags": ["stagespan"],
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "graphTooltip": 1,  # one cursor in all panels
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                    "label": "Source",
                },
                _variable("service", "Service", up, source),
                _variable("pipeline", "Pipeline", count, source),
                _variable("rank", "Rank", count, source),
                _variable("instance", "Machine", up, source),
            ]
        },
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


_P99 = f"histogram_quantile(0.99, sum by (service, stage, le) (rate({_STAGE}_bucket%s)))"
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
        # Not the latest hours: the slow runs of a few minutes are the slowest hundredth of them.
        f"{_P99 % '[5m]'} / {_P99 % '[6h] offset 1h'}",
        "> 2",
        "10m",
        "The p99 of {{ $labels.stage }} of {{ $labels.service }} is {{ $value | humanize }} times "
        "that of the 6 hours until an hour ago.",
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
