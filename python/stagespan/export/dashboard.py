"""A dashboard for Grafana and alert rules for Prometheus, for the metrics that are exported."""

from __future__ import annotations

from typing import Any, NamedTuple

from stagespan.export.families import AGES, FAMILIES, OF_QUANTILES, Family
from stagespan.live.span_kinds import TITLES

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


def _quantile(q: float, family: str, suffix: str = "", *, exemplar: bool = False) -> _Query:
    metric, labels = FAMILIES[family].prometheus, FAMILIES[family].labels
    shown = labels if FAMILIES[family].is_amount else labels[-1:]
    label, legend = ", ".join(shown), " ".join(f"{{{{{one}}}}}" for one in shown)
    exact = f'max by ({label}) ({OF_QUANTILES[family].prometheus}{{quantile="{q}", {_WHERE}}})'
    machines = f"count(count by (instance) ({FAMILIES['up'].prometheus}{{{_OF_SERVICE}}}))"
    expression = (
        f"({exact} and on() ({machines} == 1)) or histogram_quantile({q}, sum by ({label}, le) "
        f"(rate({metric}_bucket{{{_WHERE}}}[$__rate_interval])))"
    )
    return _Query(expression, f"{legend}{suffix}", exemplar)


def _quantiles(family: str, *, exemplars: bool = False) -> tuple[_Query, ...]:
    return tuple(
        _quantile(q, family, f" {name}", exemplar=exemplars and name == "p99")
        for q, name in _QUANTILES
    )


def _rate(family: str, suffix: str = "", *, of: str = "") -> _Query:
    metric, labels = FAMILIES[family].prometheus, FAMILIES[family].labels
    return _Query(
        f"sum by ({labels[-1]}) (rate({metric}{of}{{{_WHERE}}}[$__rate_interval]))",
        f"{{{{{labels[-1]}}}}}{suffix}",
    )


def _now(family: str, suffix: str = "") -> _Query:
    metric = FAMILIES[family].prometheus
    return _Query(f"sum by (stage) ({metric}{{{_WHERE}}})", f"{{{{stage}}}}{suffix}")


def _age(family: Family) -> _Query:
    labels = family.labels or ("service", "pipeline")
    kind = FAMILIES[family.age_of or ""].kind
    title = f" ({TITLES[kind]})" if kind in ("batch", "queue") else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    if not family.labels:
        title = f" ({TITLES['remote']})"
    return _Query(
        f"max by ({', '.join(labels)}) ({family.prometheus}{{{_WHERE}}})", f"{legend}{title}"
    )


_STAGE, _BATCH = FAMILIES["stage"].prometheus, FAMILIES["batch"].prometheus
_WORK, _LOST, _WAITING, _UP, _ENDED = (
    FAMILIES[key].prometheus for key in ("work", "lost", "waiting", "up", "ended")
)
_BATCHES, _QUEUES, _HAND_OFFS = (f" ({TITLES[kind]})" for kind in ("batch", "queue", "handoff"))
_NO_REQUESTS = "No request has ended"
_EXACT = (
    " On one machine, each is the quantile of the last minute within 3 %, that of the service, "
    "pipeline and rank with the longest. On several, it is estimated from the buckets of the "
    "histograms, which may be an octave wide."
)
_PANELS = (
    _Panel(
        "Time of requests",
        "s",
        _quantiles("request", exemplars=True),
        "By status. The points are single requests. They have links to traces if the data source "
        "says for its exemplars where the traces are." + _EXACT,
        if_empty=_NO_REQUESTS,
    ),
    _Panel(
        "Requests per second",
        "reqps",
        (_rate("request", of="_count"),),
        "Requests that have ended, by status.",
        style=_AREA,
        if_empty=_NO_REQUESTS,
    ),
    *(
        _Panel(
            f"Time of stages, {name}",
            "s",
            (
                _quantile(q, "stage", exemplar=name == "p99"),
                _quantile(q, "batch", _BATCHES),
            ),
            "Host time of the runs of each stage; a batch serves several requests." + _EXACT,
            width=_COLUMNS // 3,
        )
        for q, name in _QUANTILES
    ),
    _Panel(
        "Stages, queues and hand-offs at a time",
        "none",
        (
            _rate("stage", of="_sum"),
            _rate("batch", _BATCHES, of="_sum"),
            _rate("queue", _QUEUES, of="_sum"),
            _rate("handoff", _HAND_OFFS, of="_sum"),
        ),
        "The time that has passed in each of them per second, which is how many there were at a "
        "time on average. A stage that contains others includes their time.",
        style=_AREA,
    ),
    _Panel(
        "Runs of stages per second",
        "ops",
        (_rate("stage", of="_count"), _rate("batch", _BATCHES, of="_count")),
        "Runs that have ended.",
    ),
    _Panel(
        "Time in queues",
        "s",
        _quantiles("queue"),
        "Waits inside a process." + _EXACT,
        if_empty="No wait has ended",
    ),
    _Panel(
        "Hand-offs between processes",
        "s",
        _quantiles("handoff"),
        "From sent to received, by queue. It includes the time in the queue." + _EXACT,
        if_empty="No request was handed to another process",
    ),
    _Panel(
        "Running and waiting now",
        "none",
        (_now("running"), _now("waiting", _QUEUES)),
        "What was open when Prometheus asked.",
        is_whole=True,
    ),
    _Panel(
        "Oldest open",
        "s",
        tuple(map(_age, AGES)),
        "How long the oldest request is open, the oldest wait lasts, and a run of a stage is open "
        "without that anything inside of it begins or ends.",
        if_empty="Nothing was open",
    ),
    _Panel(
        "Time to first chunk",
        "s",
        _quantiles("first_chunk"),
        "Since the request began, where that is known on the clock of the process that made the "
        "chunk." + _EXACT,
        if_empty="No request has chunks",
    ),
    _Panel(
        "Time to first chunk of parts",
        "s",
        _quantiles("part_first_chunk"),
        "Since the part of the request was entered in the process that made the chunk, so it lacks "
        "the time before, such as that in the queue." + _EXACT,
        if_empty="No request has chunks",
    ),
    _Panel(
        "Time per token",
        "s",
        _quantiles("per_token"),
        "From one chunk to the next, divided by the tokens of the second one." + _EXACT,
        if_empty="No request has chunks",
    ),
    _Panel(
        "Work per second",
        "short",
        (
            _Query(
                f"sum by (stage, unit) (rate({_WORK}{{{_WHERE}}}[$__rate_interval]))",
                "{{stage}} {{unit}}",
            ),
        ),
        "What the stages have counted with span.add, such as tokens.",
        if_empty="No stage counts work",
    ),
    _Panel(
        "Requests a batch serves",
        "none",
        _quantiles("batch_size"),
        "The numbers of requests that single batches have served." + _EXACT,
        if_empty="No batch has run",
    ),
    *(
        _Panel(f"Work of a {of}", "short", _quantiles(family), text + _EXACT, if_empty=empty)
        for of, family, text, empty in (
            (
                "run",
                "run_work",
                "What single runs of stages have counted with span.add, such as tokens.",
                "No stage counts work",
            ),
            (
                "request",
                "request_work",
                "What single requests have counted in one process, or the tokens of their chunks.",
                "No request counts work",
            ),
        )
    ),
    _Panel(
        "Errors per second",
        "short",
        (_rate("errors"),),
        "Runs of stages that have raised an exception.",
    ),
    _Panel(
        "Messages per second",
        "short",
        (_rate("sent"), _rate("unknown", " (unknown)")),
        "What requests have sent to each queue. unknown: no process of this node had received it "
        "when its request ended.",
        if_empty="No request has sent a message",
    ),
    _Panel(
        "Live processes",
        "none",
        (_Query(f"sum by (service) ({_UP}{{{_OF_SERVICE}}})", "{{service}}"),),
        "Processes that record, by service.",
        is_whole=True,
    ),
    _Panel(
        "Processes that have ended",
        "none",
        (
            _Query(
                f"sum by (service, how) (increase({_ENDED}{{{_WHERE}}}[$__rate_interval])) > 0",
                "{{service}} {{how}}",
            ),
        ),
        "exit: by themselves; signal: by SIGTERM, SIGHUP or SIGINT; killed: by SIGKILL, as for a "
        "lack of memory; crashed: by another signal.",
        style=_BARS,
        is_whole=True,
        if_empty="No process has ended",
    ),
    _Panel(
        "Gauges of programs",
        "short",
        (_Query(f"sum by (name) ({FAMILIES['gauge'].prometheus}{{{_WHERE}}})", "{{name}}"),),
        "The latest values that programs have passed to `stagespan.gauge`.",
        if_empty="No program has gauges",
    ),
    _Panel(
        "Losses",
        "none",
        (
            _Query(
                f'sum by (cause) (increase({_LOST}{{service=~"$service|", '
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
                _variable("service", "Service", _UP, source),
                _variable("pipeline", "Pipeline", count, source),
                _variable("rank", "Rank", count, source),
                _variable("instance", "Machine", _UP, source),
            ]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


class Rule(NamedTuple):
    """An alert rule: it fires while the expression has a value."""

    name: str
    expression: str
    wait: str
    summary: str


_LEAST_AGE_S = 600
_LEAST_RUNS = 100
"""The slowest hundredth of fewer runs is one run."""
_LEAST_FAILED = 5
"""Fewer failed requests in ten minutes are no rate."""


def _by(family: Family) -> tuple[str, ...]:
    """Return the labels by which something is alerted on."""
    return ("service", *(label for label in family.labels if label == "stage"))


def _named(family: Family) -> str:
    """Return what an alert calls one of a family, in the text of a rule."""
    if "stage" in family.labels:
        return "{{ $labels.stage }} of {{ $labels.service }}"
    return "{{ $labels.service }}"


def _p99(family: Family) -> str:
    # Those that are known exactly: two that the buckets of a histogram show can be the same, or
    # twice each other, by the width of an octave.
    return f'{OF_QUANTILES[family.key].prometheus}{{quantile="0.99"}}'


def _stalled(family: Family) -> Rule:
    """Return the rule for what is older than it usually gets."""
    durations = FAMILIES[family.age_of or ""]
    by = ", ".join(_by(family))
    age = f"max by ({by}) ({family.prometheus})"
    # Durations that came while no exporter was scraped are in the sums only.
    sums = (f"sum by ({by}) (rate({durations.prometheus}_{of}[1d]))" for of in ("sum", "count"))
    p99 = f"max by ({by}) (quantile_over_time(0.99, {_p99(durations)}[1d]))"
    expression = f"({age} > {_LEAST_AGE_S})"
    for value in (p99, " / ".join(sums)):  # NaN, or no value, if none has ended in the last day
        expression += f" unless ({age} <= 3 * ({value}))"
    what = {
        "stage": "has stood still for {{ $value | humanizeDuration }}",
        "batch": "has a batch that has stood still for {{ $value | humanizeDuration }}",
        "queue": "has a wait of {{ $value | humanizeDuration }}",
        "request": "has a request that is open for {{ $value | humanizeDuration }}",
    }[durations.key]
    name = f"Stagespan{durations.key.title()}Stalled"
    return Rule(name, expression, "1m", f"{_named(family)} {what}.")


def _doubled(family: Family) -> Rule:
    by = ", ".join(_by(family))
    # The middle of the minutes' p99, so that a single run does not count. Not the latest hours: a
    # stage that became slow in them would be compared with itself.
    now = f"quantile_over_time(0.5, {_p99(family)}[10m])"
    before = f"quantile_over_time(0.5, {_p99(family)}[6h] offset 1h)"
    expression = (
        f"(max by ({by}) ({now} / {before}) > 2) and "
        f"sum by ({by}) (increase({family.prometheus}_count[10m])) >= {_LEAST_RUNS}"
    )
    return Rule(
        f"Stagespan{'' if family.key == 'stage' else family.key.title()}P99Doubled",
        expression,
        "10m",
        f"The p99 of {_named(family)} is {{{{ $value | humanize }}}} times that of the 6 hours "
        "until an hour ago.",
    )


def _failing() -> Rule:
    """Return the rule for requests of which more fail than before."""
    count = f"{FAMILIES['request'].prometheus}_count"
    failed = 'status=~"error|abandoned"'

    def part(window: str, offset: str = "") -> str:
        rates = (
            f"sum by (service) (rate({count}{of}[{window}]{offset}))"
            for of in (f"{{{failed}}}", "")
        )
        return " / ".join(rates)

    expression = (
        f"({part('10m')} > 0.05) unless ({part('10m')} <= 2 * ({part('6h', ' offset 1h')})) "
        f"and sum by (service) (increase({count}{{{failed}}}[10m])) >= {_LEAST_FAILED}"
    )
    return Rule(
        "StagespanRequestsFailing",
        expression,
        "5m",
        "{{ $value | humanizePercentage }} of the requests of {{ $labels.service }} fail.",
    )


RULES = (
    *map(_stalled, AGES),
    Rule(
        "StagespanQueueGrowing",
        f"sum by (service, stage) (deriv({_WAITING}[10m])) * 60 > 1",
        "10m",
        "{{ $labels.stage }} of {{ $labels.service }}: {{ $value | humanize }} more a minute.",
    ),
    _failing(),
    *(_doubled(FAMILIES[key]) for key in ("stage", "batch", "request")),
    Rule(
        "StagespanProcessKilled",
        f'sum by (service, how) (increase({_ENDED}{{how=~"killed|crashed"}}[10m])) > 0',
        "0m",
        "{{ $value | humanize }} processes of {{ $labels.service }} were {{ $labels.how }}.",
    ),
    Rule(
        "StagespanLosses",
        # A service with senders that are not trusted counts the other cause all the time.
        f'sum by (cause) (increase({_LOST}{{cause!="first_chunk_clock"}}[10m])) > 0',
        "0m",
        "{{ $value | humanize }} were lost in 10 minutes: {{ $labels.cause }}.",
    ),
)


def alerts() -> str:
    """Return the alert rules as a file of Prometheus."""
    lines = ["groups:", "- name: stagespan", "  rules:"]
    for rule in RULES:
        lines += [
            f"  - alert: {rule.name}",
            f"    expr: {rule.expression}",
            f"    for: {rule.wait}",
            "    annotations:",
            f"      summary: '{rule.summary}'",
        ]
    return "\n".join(lines) + "\n"
