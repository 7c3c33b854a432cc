"""The benchmark runs and counts every span that it timed; its figures are not checked."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import preloaded
from running import ran

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_quick_benchmark_prints_a_row_for_every_budget_and_loses_no_span(
    tmp_path: Path,
) -> None:
    pytest.importorskip("rich")
    target = tmp_path / "figures.json"

    # WHEN it runs for a few seconds (its figures are not checked)
    done = ran(
        [sys.executable, "-m", "benchmarks", "--quick", "--json", target], cwd=ROOT, timeout_s=280
    )

    # THEN it has printed all rows, and stats() counted each span (otherwise it fails)
    assert done.returncode == 0, done.stderr
    for row in (
        "with span, reused",
        "decorated call",
        "with ProfilingContext, new",
        "with debug context off, new",
        "memory, a span",
        "import stagespan",
        "on a worker thread",
        "in an asyncio task",
        "with threading.Lock",
        "hand-written pair",
    ):
        assert row in done.stdout
    for row in ("C++ span, on", "C++ span, timed on the device"):
        assert row in done.stdout or "Skipped: C++ spans" in done.stdout
    for peer in ("nvtx", "codetiming", "prometheus", "OpenTelemetry SDK", "record_function"):
        assert peer in done.stdout  # measured, or listed as skipped
    assert max(map(len, done.stdout.splitlines())) <= 100

    found = json.loads(target.read_text())
    assert found["spans"] > 10_000
    (process,) = found["processes"]
    assert len(process["ns"]["with span, reused"]) == found["turns"]
    assert found["machine"]["python"]
    assert found["versions"]["stagespan"]


@pytest.mark.slow
def test_the_benchmark_of_recordings_loses_no_span(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    arguments = ["--turns", "3", "--minutes", "0.015", "--json", target]
    done = ran([sys.executable, "-m", "benchmarks.recordings", *arguments], cwd=ROOT, timeout_s=280)
    if "The writer of spans is missing" in done.stderr:
        pytest.skip(done.stderr.strip())
    # THEN the statistics had every span (otherwise it fails), and each watched one is in a bucket
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    watched = sum(sum(found["watched"][name]["spans"]) for name in ("file", "memory"))
    assert 0 < watched < found["spans"]
    assert "file, read" in done.stdout


@pytest.mark.slow
def test_the_benchmark_of_profilers_prints_each_case() -> None:
    pytest.importorskip("torch")
    done = ran(
        [*preloaded.python(), "-m", "benchmarks.profiler", "--rounds", "1", "--calls", "20"],
        cwd=ROOT,
        timeout_s=280,
        status=0,
    )
    rows = [line.split(" µs")[0].rsplit(maxsplit=1) for line in done.stdout.splitlines()]
    figures = {case: float(figure) for case, figure in rows}
    assert {"span, named for annotate", "model under the profiler with shapes"} <= figures.keys()
    assert min(figures.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), pytest.param(("--export",), marks=pytest.mark.full)])
def test_the_benchmark_of_a_service_loses_no_record(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    target = tmp_path / "figures.json"
    arguments = ["--turns", "1", "--requests", "16", "--json", target, *options]
    done = ran([sys.executable, "-m", "benchmarks.service", *arguments], cwd=ROOT, timeout_s=280)
    # THEN the recordings had every request and chunk (otherwise it fails)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert {"no records", "stagespan, off", "stagespan"} <= found.keys()
    assert "OpenTelemetry" in done.stdout  # measured, or named as skipped
    for of in found.values():
        assert min(of["turns"][0][name] for name in ("requests_per_s", "p99_ms", "cpu_ms")) > 0
        assert of["memory_mb"] > 0
    if options and "stagespan, 100 %" in found:
        assert found["stagespan, 100 %"]["delivered"] == 1


@pytest.mark.slow
def test_the_benchmark_of_kept_requests_gets_equal_answers(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    arguments = ["--requests", "300", "--rounds", "1", "--json", target]
    done = ran(
        [sys.executable, "-m", "benchmarks.kept_requests", *arguments], cwd=ROOT, timeout_s=280
    )
    # THEN all engines that are installed have the same answer (otherwise it fails)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())["figures"]
    assert "Python, JSON lines" in found
    assert all(one["cpu_s"] > 0 for (one,) in found.values())


@pytest.mark.slow
def test_gains_are_predicted_for_programs_with_known_problems(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("rich")
    target = tmp_path / "gains.json"
    command = [sys.executable, "-m", "benchmarks.gains", "--turns", "1", "--steps", "3"]

    done = ran([*command, "--json", target, "float64", "recompilation"], cwd=ROOT, timeout_s=280)

    # THEN the findings have a gain (whether it is close depends on the machine's load)
    assert done.returncode in (0, 1), done.stderr
    found = {each["name"]: each for each in json.loads(target.read_text())}
    assert found.keys() == {"float64", "recompilation"}
    for each in found.values():
        assert each["predicted_ms"] > 0
        assert each["before_ms"] > 0


@pytest.mark.slow
def test_the_benchmark_of_an_idle_exporter_measures_each_reading() -> None:
    done = ran(
        [sys.executable, "-m", "benchmarks.idle_exporter", "--processes", "2", "--readings", "2"],
        cwd=ROOT,
        timeout_s=280,
        status=0,
    )
    _, figures, requests = done.stdout.splitlines()
    for line, name in ((figures, "figures"), (requests, "figures and requests")):
        assert line.split(maxsplit=1)[1].startswith(name)
        assert all(float(number) > 0 for number in line.split()[-2:])


@pytest.mark.slow
def test_the_benchmark_of_reading_recordings_compares_two_interpreters() -> None:
    options = ["--quick", "--turns", "1", "--against", sys.executable]
    done = ran(
        [sys.executable, "-m", "benchmarks.reading_recordings", *options],
        cwd=ROOT,
        timeout_s=280,
        status=0,
    )
    analyze, requests, scrape, stages, line, kept = done.stdout.splitlines()
    assert "analyze, 1,800 spans" in analyze
    assert "requests, 200 requests" in requests
    assert "scrape, 2 processes" in scrape
    assert "scrape, 10 stages" in stages
    assert all(" s of the other" in row for row in (analyze, requests, scrape, stages))
    assert re.search(r"in lines of prometheus_client: \d+\.\d\d x$", line)
    assert re.search(r"200 kept: \d+\.\d\d x the CPU of .* \d+\.\d\d x their memory$", kept)


@pytest.mark.slow
def test_the_page_gets_the_rows_of_a_section_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    rest = "<!-- kept -->\nkept\n<!-- end -->\n"
    page.write_text(f"before\n<!-- spans -->\nold\n<!-- end -->\n{rest}")
    command = [sys.executable, "-m", "benchmarks.page", "--quick", "--page", str(page)]
    # WHEN one section is measured
    ran([*command, "spans"], cwd=ROOT, timeout_s=280, status=0)
    # THEN each of its rows has a figure, that of its reference, their ratio and the load
    assert "old" not in page.read_text()
    found = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("|")]
    for row in found[2:]:
        assert len(row) == 7
        assert float(row[4].removeprefix("≈ ")) > 0
        assert float(row[6].rstrip(" |")) >= 0
    assert {"| `request()`", "| in a task: nested"} <= {row[0] for row in found}
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith(f"<!-- end -->\n{rest}")
    # WHEN a section is unknown THEN those that there are are named
    done = ran([*command, "span"], cwd=ROOT, status=2)
    assert "choose from spans, commands" in done.stderr


def test_the_memory_of_a_command_is_without_that_of_its_parent() -> None:
    program = (
        "import sys; from benchmarks.used import used; own = b'x' * (300 << 20);"
        "print(used([sys.executable, '-I', '-S', '-c', 'pass']).mb)"
    )
    done = ran([sys.executable, "-c", program], cwd=ROOT, status=0)
    assert 1 < float(done.stdout) < 100
