"""Starts an exporter and a Prometheus, and workers whose durations are known."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from running import ended, ready, start_command, until

PROGRAMS = Path(__file__).parents[1] / "programs"
WORKERS = PROGRAMS / "known_durations.py"
TWO_PROCESSES = PROGRAMS / "handed_to_a_worker.py"
REQUESTS = PROGRAMS / "many_requests.py"


def documented(language: str) -> str:
    """Return the first block in a language of the pages about exporters."""
    docs = Path(__file__).parents[2] / "docs"
    text = "".join((docs / name).read_text("utf-8") for name in ("monitoring.md", "keep.md"))
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def durations_ns(seed: int, count: int) -> list[int]:
    """Return what a worker of `WORKERS` records as `decode`."""
    drawn = random.Random(seed)
    return [int(drawn.lognormvariate(15, 1)) for _ in range(count)]


def quantile(values: list[int], q: float) -> int:
    """Return the q quantile."""
    return sorted(values)[math.ceil(q * len(values)) - 1]


def innermost(pid: int) -> int:
    """Return the process that a chain of wrappers has started."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


@contextmanager
def exporting(
    *options: str, verb: str = "export", prefix: tuple[str, ...] = (), **variables: str
) -> Iterator[tuple[Any, str]]:
    """Run a server such as `stagespan export`; yield its process and the line it prints."""
    pipe = subprocess.PIPE
    process = start_command(
        [*prefix, sys.executable, "-m", "stagespan", verb, *options],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        **variables,
    )
    yield process, ready(process)
    if process.poll() is None:
        os.kill(innermost(process.pid), signal.SIGTERM)
    process.communicate(timeout=20)


@contextmanager
def exporter(
    *options: str, port: int = 0, prefix: tuple[str, ...] = (), **variables: str
) -> Iterator[tuple[Any, int]]:
    """Run an exporter with metrics for Prometheus; yield its process and its port."""
    with exporting("--prometheus", str(port), *options, prefix=prefix, **variables) as one:
        process, line = one
        found = re.search(r":(\d+)/metrics", line)
        assert found is not None
        yield process, int(found[1])


@contextmanager
def otlp_exporter(url: str, *options: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run an exporter to a collector; yield its process."""
    variables = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", **variables}
    with exporting("--otlp", url, *options, **variables) as (process, _):
        yield process


def get(url: str, accept: str = "text/plain") -> str:
    """Return the text at an address."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return str(reply.read().decode())


def scraped(port: int) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the samples of an exporter by name and by labels."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(get(f"http://127.0.0.1:{port}/metrics")):
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if v))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def of(
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]], metric: str, **labels: str
) -> float | None:
    """Return the sum of the samples that have these labels; None if there are none."""
    wanted = set(labels.items())
    values = [v for of_sample, v in samples.get(metric, {}).items() if wanted <= set(of_sample)]
    return sum(values) if values else None


class Prometheus:
    """A real Prometheus that scrapes one port."""

    def __init__(
        self, program: str, folder: Path, target: int, port: int, interval: str = "300ms"
    ) -> None:
        config = folder / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\n"
            "scrape_configs:\n"
            "- job_name: node\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
        )
        self.url = f"http://127.0.0.1:{port}"
        command = [
            *(program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
            *(f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"),
            "--log.level=error",
        ]
        null = subprocess.DEVNULL
        self._process = start_command(command, stdout=null, stderr=(folder / "log").open("w"))
        until(self._is_ready, 60)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus has ended"
        try:
            get(f"{self.url}/-/ready")
        except (OSError, urllib.error.HTTPError):
            return False
        return True

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series of an expression now."""
        address = f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        result = json.loads(get(address))["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def matrix(
        self, expression: str, begin_s: int, end_s: int, step_s: int
    ) -> list[dict[str, Any]]:
        """Return each series of an expression, with its labels and its values over a time."""
        asked = {"query": expression, "start": begin_s, "end": end_s, "step": step_s}
        address = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        found: list[dict[str, Any]] = json.loads(get(address))["data"]["result"]
        return found

    def exemplars(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of the exemplars of the series that an expression reads."""
        now = time.time()
        asked = {"query": expression, "start": now - 600, "end": now}
        address = f"{self.url}/api/v1/query_exemplars?{urllib.parse.urlencode(asked)}"
        data = json.loads(get(address))["data"]
        return [exemplar["labels"] for one in data for exemplar in one["exemplars"]]

    def series(self, expression: str, window: str = "10m") -> list[list[float]]:
        """Return all samples of each series that an expression selects."""
        address = f"{self.url}/api/v1/query?"
        address += urllib.parse.urlencode({"query": f"{expression}[{window}]"})
        result = json.loads(get(address))["data"]["result"]
        return [[float(value) for _, value in one["values"]] for one in result]

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        ended(self._process)
