"""`stagespan.export.otlp.start` in processes that fork: each request arrives once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recorded_process import start, started

from running import PROGRAMS, end, ended

EXPORTED = PROGRAMS / "exported.py"

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="there is no OTLP exporter")
collector = pytest.importorskip("collector")

pytestmark = pytest.mark.slow

FORKS = PROGRAMS / "exporting_forks.py"


def ids(received: Any) -> Counter[str]:
    """Return how often the root of each request has arrived."""
    attributes = map(collector.attributes, received.spans())
    return Counter(one["stagespan.request.id"] for one in attributes if "stagespan.origin" in one)


@pytest.mark.parametrize(
    ("where", "how", "protocol"),
    [
        ("parent", "process", "http"),
        ("child", "process", "http"),
        ("both", "process", "http"),
        ("parent", "process", "grpc"),
        ("parent", "pool", "http"),
        ("child", "pool", "http"),
        ("both", "executor", "http"),
        ("parent", "fork", "http"),
        ("parent", "fork in a child", "http"),
    ],
)
def test_each_request_of_a_child_arrives_once(
    where: str, how: str, protocol: str, folder: Path, tmp_path: Path
) -> None:
    with collector.RECEIVERS[protocol]() as received:
        process = start(
            FORKS,
            *(received.url, where, how),
            OTEL_EXPORTER_OTLP_PROTOCOL=collector.PROTOCOLS[protocol],
        )
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
        processes = ["child0", "child1", "child2", *(["parent"] if where != "child" else [])]
        expected = Counter(f"{name}-{n}" for name in processes for n in range(5))
        assert ids(received) == expected
        assert len(received.spans("work")) == len(expected)


def test_a_child_without_requests_has_no_thread(folder: Path) -> None:
    with collector.http() as received:
        process = start(EXPORTED, "sending_child", received.url)
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
        assert ids(received) == {"parent": 1, "child": 1}


def test_figures_of_a_child_are_those_of_another_instance(folder: Path) -> None:
    with collector.http() as received:
        process = start(FORKS, received.url, "parent", "fork", STAGESPAN_JOB="svc")
        assert process.communicate(timeout=120) == ("", "")
        counts: dict[str, int] = {}
        for resource in [one for message in received.metrics for one in message.resource_metrics]:
            instance = collector.attributes(resource.resource)["service.instance.id"]
            for metric in resource.scope_metrics[0].metrics:
                if metric.name == "stagespan.stage.duration":
                    counts[instance] = metric.histogram.data_points[0].count
    assert sorted(counts.values()) == [5] * 4


def test_requests_are_sent_when_sigterm_ends_the_process(folder: Path) -> None:
    with collector.http() as received:
        process = started(EXPORTED, "sending_three", received.url)
        process.terminate()
        assert process.wait(60) == -15
        end(process)
        assert ids(received) == {"r0": 1, "r1": 1, "r2": 1}


def test_starting_twice_sends_once(folder: Path, tmp_path: Path) -> None:
    with collector.http() as received:
        process = start(
            EXPORTED, "starting_twice", received.url, OTEL_EXPORTER_OTLP_ENDPOINT=received.url
        )
        _, errors = ended(process, 0, timeout_s=120)
        assert ids(received) == {"r": 1, "again": 1, "failed": 1}
        assert errors.count("with other options: those of the first call hold") == 1


@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_a_disabled_sdk_sends_nothing_and_says_so(folder: Path, value: str) -> None:
    with collector.http() as received:
        process = start(EXPORTED, "disabled_sdk", received.url, OTEL_SDK_DISABLED=value)
        _, errors = ended(process, 0, timeout_s=120)
        assert errors.count("OTEL_SDK_DISABLED is true, so stagespan sends nothing") == 1
        assert received.paths == []
