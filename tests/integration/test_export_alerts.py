"""Tests of the alert rules with series of a real exporter, for what they must tell of and not."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from exporting import PROGRAMS, exporter, get, of, scraped
from recorded_process import start, started

from running import free_port, ran, until
from stagespan.export import dashboard

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

pytestmark = pytest.mark.slow

SITUATIONS = PROGRAMS / "alert_situations.py"
FIRES = {
    "first_run": "StagespanStageStalled",
    "one_of_eight": "StagespanStageStalled",
    "one_of_two_runs": "StagespanStageStalled",
    "hung_batch": "StagespanBatchStalled",
    "full_queue": "StagespanQueueStalled",
    "backlog": "StagespanQueueGrowing",
    "errors": "StagespanRequestsFailing",
    "request": "StagespanRequestStalled",
    "killed": "StagespanProcessKilled",
}
SILENT = ("main_span", "pool", "deployment", "restart")
SECONDS = 34
FASTER = 60
"""A second of the test is shown to the rules as a minute."""

_SAMPLE = re.compile(r"(stagespan_\w+)(?:\{(.*)\})? (\S+)")


def shown_faster(text: str) -> Iterator[tuple[str, float]]:
    """Yield each series of a scrape with its value, as if all that happened took longer."""
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        name, labels, value = found[1], found[2] or "", float(found[3])
        if name.endswith(("_seconds", "_seconds_sum")):
            value *= FASTER
        labels = re.sub(r'le="([\d.e+-]+)"', lambda at: f'le="{float(at[1]) * FASTER}"', labels)
        yield f"{name}{{{labels}}}", value


class Series:
    """The series of an exporter, with a sample a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._samples: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def scrape(self, port: int, seconds: float) -> None:
        """Scrape every second."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            at = round(now - self._began)
            for series, value in shown_faster(get(f"http://127.0.0.1:{port}/metrics")):
                self._samples[series][at] = value
            time.sleep(max(self._began + at + 1 - time.monotonic(), 0))

    def alerts(self, folder: Path) -> dict[str, set[str]]:
        """Return the names of the rules that fire at some time, by service."""
        minutes = 1 + max(at for samples in self._samples.values() for at in samples)
        text = {
            series: " ".join(str(samples.get(at, "_")) for at in range(minutes))
            for series, samples in self._samples.items()
        }
        test = {
            "interval": "1m",
            "input_series": [{"series": key, "values": values} for key, values in text.items()],
            "alert_rule_test": [
                {"eval_time": f"{minute}m", "alertname": rule.name, "exp_alerts": []}
                for rule in dashboard.RULES
                for minute in range(2, minutes, 2)
            ],
        }
        whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
        (folder / "rules.yml").write_text(dashboard.alerts())
        (folder / "test.yml").write_text(json.dumps(whole))
        done = ran(["promtool", "test", "rules", "test.yml"], cwd=folder)
        firing: defaultdict[str, set[str]] = defaultdict(set)
        for labels in re.findall(r"Labels:\{(.*)\}", done.stdout + done.stderr):
            named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            firing[named.get("service", "")].add(named["alertname"])
        assert firing or "SUCCESS" in done.stdout, done.stderr
        return dict(firing)


@contextmanager
def situation(name: str) -> Iterator[subprocess.Popen[str]]:
    process = started(SITUATIONS, name, STAGESPAN_JOB=name)
    yield process
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(30)


def test_rules_tell_of_what_hangs_fails_or_waits_and_of_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on PATH: install the Debian package prometheus")
    port = free_port()
    series = Series()
    # GIVEN services that get into each situation, one of which is restarted, as the exporter is
    for name in (*FIRES, *SILENT):
        if name != "restart":
            started(SITUATIONS, name, STAGESPAN_JOB=name)
    with exporter(port=port), situation("restart"):
        series.scrape(port, SECONDS / 2)
    with exporter(port=port), situation("restart"):
        series.scrape(port, SECONDS / 2)
    # THEN one rule fires for each that hangs, fails or waits, and none for the others
    assert series.alerts(tmp_path) == {name: {rule} for name, rule in FIRES.items()}


ENDS = """
import os, signal, sys
import stagespan
with stagespan.span("before"):
    pass
child = os.fork()
if child == 0:
    with stagespan.span("work"):
        print("ready", flush=True)
        sys.stdin.readline()
        exec(sys.argv[1])
        sys.exit()
os.waitpid(child, 0)
print("over", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("pass", "exit"),
        ("os._exit(3)", "exit"),
        ("signal.raise_signal(signal.SIGTERM)", "signal"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("os.abort()", "crashed"),
    ],
)
def test_processes_are_counted_by_how_they_have_ended(folder: Path, code: str, how: str) -> None:
    process = start(ENDS, code, STAGESPAN_JOB="svc")
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    with exporter() as (_, port):

        def ended() -> dict[str, float]:
            found = scraped(port)["stagespan_processes_ended_total"]
            return {dict(labels)["how"]: number for labels, number in found.items() if number}

        until(lambda: of(scraped(port), "stagespan_process_up", service="svc") == 2)
        # THEN each way to end has a series from the first process on
        assert len(scraped(port)["stagespan_processes_ended_total"]) == 5
        assert ended() == {}
        print(file=process.stdin, flush=True)
        assert until(ended) == {how: 1}
    with exporter() as (_, port):
        # THEN the next exporter goes on with the numbers
        assert ended() == {how: 1}
        print(file=process.stdin, flush=True)
        expected = {"exit": 2} if how == "exit" else {how: 1, "exit": 1}
        assert until(lambda: ended() == expected)


def test_a_process_that_ends_without_an_exporter_has_ended_in_an_unknown_way(
    folder: Path,
) -> None:
    process = started(
        "import stagespan\nwith stagespan.span('s'): pass\nprint('ready', flush=True)\ninput()",
        STAGESPAN_JOB="svc",
    )
    with exporter() as (_, port):
        until(lambda: of(scraped(port), "stagespan_process_up", service="svc") == 1)
    process.communicate("\n", timeout=30)
    with exporter() as (_, port):
        until(lambda: of(scraped(port), "stagespan_processes_ended_total", how="unknown") == 1)
