"""The table of metrics is what is exported, shown, alerted on and documented."""

from __future__ import annotations

import bisect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stagespan.export import dashboard
from stagespan.export.families import (
    COUNTERS,
    FAMILIES,
    GAUGES,
    HISTOGRAMS,
    LABEL_SEPARATOR,
    Family,
)
from stagespan.export.figures import BOUNDS_NS, BUCKETS, Counts
from stagespan.export.totals import Exemplar, Exemplars, Gauges, Group

IN_NO_PANEL = {"device", "device_quantile", "unnamed"}
"""The dashboard shows host times, and counts of what is lost by cause."""
IN_NO_RULE = {
    *("device", "first_chunk", "part_first_chunk", "per_token", "handoff"),
    *("errors", "work", "running", "gauge", "up", "unnamed", "device_quantile", "sent", "unknown"),
    *(f"{key}_quantile" for key in ("first_chunk", "part_first_chunk", "per_token", "handoff")),
    *(of for key in ("batch_size", "run_work", "request_work") for of in (key, f"{key}_quantile")),
}
"""How much of these is too much depends on the service."""

GROUP = Group("svc", "default", "0")


def everything(of: Group = GROUP) -> tuple[dict[Group, Counts], dict[str, int], Gauges]:
    """Return totals, losses and gauges with a value in each family."""
    figures = Counts({}, {})
    for family in HISTOGRAMS:
        figures.observe(family.key, LABEL_SEPARATOR.join(family.labels), 1000)
    for family in COUNTERS:
        figures.amounts[family.key] = {"a": {"b": 1.0}}
    gauges = Gauges()
    for family in GAUGES:
        group = of if family.has_group else ()
        gauges.add(family.key, (*family.labels, *group), 1)
    return {of: figures}, {"recording": 1}, gauges


def described(family: Family) -> str:
    """Return the row of a family in the documentation."""
    of = "histogram" if family in HISTOGRAMS else "counter" if family in COUNTERS else "gauge"
    names = (family.prometheus, family.otlp, *family.labels)
    prometheus, otlp, *labels = (f"`{name}`" if name else "" for name in names)
    cells = (prometheus, otlp, of, ", ".join(labels), family.help)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def test_prometheus_gets_each_family_with_its_labels() -> None:
    prometheus = pytest.importorskip("stagespan.export.prometheus", exc_type=ImportError)
    metrics = {one.name: one for one in prometheus.families(*everything(), {})}
    names = {family.prometheus.removesuffix("_total"): family for family in FAMILIES.values()}
    assert [*metrics] == [*names]
    for name, family in names.items():
        labels = frozenset((*family.labels, *(Group._fields if family.has_group else ())))
        assert {frozenset(one.labels) - {"le"} for one in metrics[name].samples} == {labels}


def read(text: str) -> list[tuple[str, ...]]:
    """Return the lines of a scrape, each with its numbers written in the same way."""
    return [
        tuple(
            " ".join((*part.split(" ")[:-1], repr(float(part.rpartition(" ")[2]))))
            for part in line.split(" # ")
        )
        if line[0] != "#"
        else (line,)
        for line in text.splitlines()
    ]


TEXTS = st.text('ab\\"\n\u00e9\u6f22{},=', max_size=6)
VALUES = st.one_of(st.floats(), st.integers(0, 1 << 63), st.just(1e22))


@settings(max_examples=20, phases=(Phase.explicit, Phase.generate))
@given(st.data())
def test_the_text_is_what_the_client_of_prometheus_writes(data: st.DataObject) -> None:
    prometheus = pytest.importorskip("stagespan.export.prometheus", exc_type=ImportError)
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.openmetrics import exposition

    group = Group(*data.draw(st.tuples(TEXTS, TEXTS, TEXTS)))
    totals, lost, gauges = everything(group)
    figures = totals[group]
    exemplars: Exemplars = {}
    for family in HISTOGRAMS:
        label = LABEL_SEPARATOR.join(data.draw(TEXTS) for _ in family.labels)
        for duration_ns in data.draw(st.lists(st.integers(0, 1 << 42), min_size=1, max_size=3)):
            figures.observe(family.key, label, duration_ns)
            bucket = bisect.bisect_right(BOUNDS_NS, duration_ns)
            of = exemplars.setdefault((group, family.key, label), {})
            of[bucket] = Exemplar("1" * 32, duration_ns, data.draw(st.integers(0, 1 << 60)))
    for family in GAUGES:
        labels = (*(data.draw(TEXTS) for _ in family.labels), *(group if family.has_group else ()))
        gauges.add(family.key, labels, data.draw(VALUES))
    figures.amounts["work"] = {data.draw(TEXTS): {data.draw(TEXTS): data.draw(st.floats(0, 1e300))}}
    shown = totals, lost, gauges, exemplars, BUCKETS[data.draw(st.sampled_from(sorted(BUCKETS)))]

    class Shown:
        def describe(self) -> tuple[()]:
            return ()

        def collect(self) -> Any:
            return prometheus.families(*shown)

    registry = CollectorRegistry()
    registry.register(Shown())
    for is_open, encoded in ((False, generate_latest), (True, exposition.generate_latest)):
        text, expected = prometheus.text(*shown, is_open=is_open), encoded(registry).decode()
        for line, expected_line in zip(read(text), read(expected), strict=True):
            assert line == expected_line


def test_otlp_gets_each_family_with_its_unit() -> None:
    otlp = pytest.importorskip("stagespan.export.otlp", exc_type=ImportError)
    data = otlp.metrics_of(*everything(), 0, "chat")
    sent = {
        (metric.name, metric.unit)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    families = {(one.otlp, one.unit) for one in FAMILIES.values() if one.otlp is not None}
    assert sent == families | {(one.genai, one.unit) for one in HISTOGRAMS if one.genai is not None}


def test_each_family_is_in_a_panel_or_is_listed_as_not() -> None:
    shown = json.dumps(dashboard.dashboard()["panels"])
    missing = {key for key, family in FAMILIES.items() if family.prometheus not in shown}
    assert missing == IN_NO_PANEL


def test_each_family_is_in_a_rule_or_is_listed_as_not() -> None:
    rules = dashboard.alerts()
    missing = {key for key, family in FAMILIES.items() if family.prometheus not in rules}
    assert missing == IN_NO_RULE


def test_earlier_dashboards_find_what_they_show() -> None:
    # the names of a dashboard that was written before there were ages
    of_chunks = {"request_time_per_token_seconds", "request_time_to_first_chunk_seconds"}
    of_stages = {"duration_seconds", "errors_total", "queue_duration_seconds", "running"}
    names = {f"stage_{name}" for name in (*of_stages, "work_total")} | of_chunks
    names |= {"handoff_duration_seconds", "request_duration_seconds", "lost_total"}
    names |= {"oldest_request_age_seconds", "process_up", "queue_waiting"}
    assert {f"stagespan_{name}" for name in names} <= {one.prometheus for one in FAMILIES.values()}


def test_the_documentation_has_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| `stagespan_")]
    assert rows == [described(family) for family in (*HISTOGRAMS, *COUNTERS, *GAUGES)]
