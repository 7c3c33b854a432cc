"""Measures what the page about benchmarks shows, and writes its tables.

    python -m benchmarks.page [SECTION...] [--against FOLDER] [--peers PYTHON] [--page FILE]
                              [--quick]

A table of the page is between `<!-- SECTION -->` and `<!-- end -->`. Without names all tables are
written, else those of these sections; the rest of the page stays. FOLDER has an earlier stagespan,
as `pip install --target` installs it, and PYTHON is an interpreter with HolisticTraceAnalysis and
TraceLens. Each row compares a figure with another one of the same run, by CPU time or by minima of
turns. A row is measured again while its reference is disturbed: while the two least figures of the
reference differ by more than `_SPREAD`.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import cases, native, otlp_spans, reading_recordings, traces
from benchmarks.enlarge import enlarge
from benchmarks.used import Used, used

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "internals" / "benchmarks.md"
_SPREAD = 1.1
# The finder of an editable installation comes before all folders.
_OTHER = """
import runpy, sys
is_editable = lambda one: type(one).__module__.startswith("_editable")
sys.meta_path[:] = [one for one in sys.meta_path if not is_editable(one)]
sys.path[:0] = [sys.argv[1], ""]
sys.argv[:3] = sys.argv[2:3]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class Row(NamedTuple):
    """A figure beside another one of the same run."""

    what: str
    figure: str
    reference: str
    of_reference: str
    ratio: float
    asked: float | None
    """The largest ratio that is asked for."""
    load: float
    is_disturbed: bool = False
    """Whether the reference was still disturbed in the last round."""


class Run(NamedTuple):
    """What is measured for all sections."""

    against: Path | None
    quick: bool
    rounds: int
    """How often a row is measured at most."""
    peers: str | None = None
    """An interpreter that has other tools for traces."""

    def earlier(self, *module: str) -> list[str]:
        """Return the command that runs a module with the earlier version."""
        return [sys.executable, "-c", _OTHER, str(self.against), *module]


def _is_disturbed(references: list[float]) -> bool:
    least, *others = sorted(references)
    return not others or others[0] > _SPREAD * least


class Pair(NamedTuple):
    """A command and its reference."""

    what: str
    command: list[str]
    reference: str
    other: list[str]
    asked: float | None = None
    asked_mb: float | None = None
    """The largest ratio of the memory at the peak that is asked for."""
    less: list[str] | None = None
    """What both do besides, which is subtracted from both CPU times."""


def pairs_measured(pairs: list[Pair], run: Run) -> Iterator[Row]:
    """Measure pairs in turns, and yield a row for the CPU time of each, and one for its memory."""
    for pair in pairs:
        new: list[Used] = []
        other: list[Used] = []
        less_s: list[float] = []
        for _ in range(run.rounds):
            for _ in range(1 if run.quick else 2):
                new.append(used(pair.command))
                other.append(used(pair.other))
                less_s.append(0.0 if pair.less is None else used(pair.less).cpu_s)
            if not _is_disturbed([one.cpu_s for one in other]):
                break
        load = os.getloadavg()[0]
        is_disturbed = _is_disturbed([one.cpu_s for one in other])
        own_s, other_s = (min(one.cpu_s for one in of) - min(less_s) for of in (new, other))
        yield Row(
            *(pair.what, f"{own_s:.2f} s", pair.reference, f"{other_s:.2f} s"),
            *(own_s / max(other_s, 1e-9), pair.asked, load, is_disturbed),
        )
        if pair.asked_mb is not None:
            own_mb, other_mb = (min(one.mb for one in of) for of in (new, other))
            yield Row(
                *(f"{pair.what}: memory", f"{own_mb:.0f} MB", pair.reference, f"{other_mb:.0f} MB"),
                *(own_mb / other_mb, pair.asked_mb, load),
            )


# --- spans ----------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A row about a case of `benchmarks.cases`."""

    what: str
    case: str
    reference: str
    of: str
    less: str = ""
    """What is subtracted from the case and from its reference."""
    asked: float | None = None
    """Beside the earlier version; beside its reference, `cases.MOST` has it."""


_CLOCK = "two readings of the clock"
_PAIR, _HAND = "hand-written pair", "hand-timed coroutine"
_SPANS = (
    Line("C++ span", "cpp on", _CLOCK, "cpp floor"),
    Line("C++ span, recorder off", "cpp off", _CLOCK, "cpp floor"),
    Line("C++ span, timed on a fake device", "cpp device span", "two events", "cpp two records"),
    Line("`with` a span, reused", "with span, reused", "`threading.Lock`", "with threading.Lock"),
    Line("`with span(name)`", "with span, new", "hand-written pair", _PAIR),
    Line("in a task: outermost", "in an asyncio task", "hand-written pair", _PAIR),
    Line("in a task: nested", "nested in a task", "hand-written pair", _PAIR),
    Line("in a task and a request", "in a task and a request", "hand-written pair", _PAIR),
    Line(
        "`async with` a span",
        "async with span, reused",
        "an empty class",
        "async with an empty Python class",
    ),
    Line(
        "decorated function", "decorated call", "timed C callable", "timed C callable", "bare call"
    ),
    Line(
        "decorated function, recorder off",
        "decorated call, recorder off",
        "timed C callable",
        "timed C callable",
        "bare call",
    ),
    Line("decorated coroutine", "decorated coroutine", "hand-timed one", _HAND, "bare coroutine"),
    Line(
        "with `sleep(0)`",
        "decorated coroutine, sleep",
        "hand-timed one",
        f"{_HAND}, sleep",
        "bare coroutine, sleep",
    ),
    Line(
        "with `sleep(0)`, uvloop",
        "decorated coroutine, uvloop",
        "hand-timed one",
        f"{_HAND}, uvloop",
        "bare coroutine, uvloop",
    ),
    Line(
        "decorated generator, read once",
        "decorated generator, once",
        "bare one",
        "bare generator, once",
    ),
    Line(
        "debug context off", "with debug context off, new", "`nullcontext`", "with nullcontext, new"
    ),
    Line("`request()`", "with request()", "hand-written pair", _PAIR),
    Line("`extract()` and `with`", "extract() and with", "hand-written pair", _PAIR),
    Line("`inject()`", "inject()", "hand-written pair", _PAIR),
    Line("`batch` of one request", "with batch of 1", "hand-written pair", _PAIR),
    Line("`chunk()`", "chunk()", "hand-written pair", _PAIR),
    Line("torch `record_function`", "torch record_function", "`with span(name)`", "with span, new"),
    Line(
        "prometheus `Histogram.time`",
        "prometheus Histogram.time",
        "`with span(name)`",
        "with span, new",
    ),
    Line("OpenTelemetry SDK", "OpenTelemetry SDK", "`with span(name)`", "with span, new"),
)
_AGAINST = (
    Line(
        "decorated async generator, a turn",
        "decorated async generator, a turn",
        "",
        "",
        "bare async generator, a turn",
        asked=0.5,
    ),
    Line("decorated function, recorder off", "decorated call, recorder off", "", "", "bare call"),
    Line("`with span(name)`", "with span, new", "", "", asked=1.01),
)


def _cases(command: list[str], run: Run) -> dict[str, float]:
    """Return the least time of each case in a process, in ns."""
    turns, chunk_us = ("3", "50") if run.quick else ("61", "150")
    done = subprocess.run([*command, turns, chunk_us], stdout=subprocess.PIPE, check=True, cwd=ROOT)
    return {name: min(of) for name, of in json.loads(done.stdout)["ns"].items()}


def spans(run: Run) -> Iterator[Row]:
    """Yield what spans cost: the least of a case and of its reference in all processes."""
    new: list[dict[str, float]] = []
    earlier: list[dict[str, float]] = []
    try:
        programs = native.build()
    except native.SkipError as error:
        print(f"Without C++ spans: {error}", file=sys.stderr)
        programs = None
    for _ in range(2 * run.rounds):
        new.append(_cases([sys.executable, "-m", "benchmarks.measure"], run))
        if programs is not None:
            found = native.measure(programs, 3_000 if run.quick else 12_000, 3 if run.quick else 61)
            new[-1] |= {name: min(of) for name, of in found["ns"].items()}
        if run.against is not None:
            earlier.append(_cases(run.earlier("benchmarks.measure"), run))
        used_of = {one.of for one in _SPANS if one.of in new[0]}
        if not any(_is_disturbed([process[name] for process in new]) for name in used_of):
            break
    load = os.getloadavg()[0]
    for line in _SPANS:
        if line.case not in new[0] or line.of not in new[0]:
            continue  # the other tool is not installed
        is_disturbed = _is_disturbed([one[line.of] for one in new])
        ns, of_ns = (_least(new, name, line.less) for name in (line.case, line.of))
        yield Row(
            *(line.what, _ns(ns), line.reference, _ns(of_ns)),
            *(ns / max(of_ns, 0.1), cases.MOST.get(line.case), load, is_disturbed),
        )
    for line in _AGAINST if earlier else ():
        ns, of_ns = (_least(processes, line.case, line.less) for processes in (new, earlier))
        yield Row(
            *(line.what, _ns(ns), "the earlier version", _ns(of_ns)),
            *(ns / max(of_ns, 0.1), line.asked, load),
        )


def _least(processes: list[dict[str, float]], case: str, less: str) -> float:
    least = [min(one[name] for one in processes) for name in (case, less) if name]
    return least[0] - sum(least[1:])


def _ns(ns: float) -> str:
    return f"{ns:,.0f} ns" if ns >= 10 else f"{ns:.2f} ns"


# --- commands -------------------------------------------------------------------------------------

_STAGE = """
import torch
from stagespan import ProfilingContext4Debug
class Stage:
    def __init__(self):
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    @ProfilingContext4Debug("forward")
    @torch.inference_mode()
    def process(self, x):
        return self.layers(x)
def get_stage():
    return Stage()
if __name__ == "__main__":
    Stage().process(torch.randn(64, 256))
"""
_SCRAPES = "benchmarks.reading_recordings"
_COMMAND = [sys.executable, "-m", "stagespan"]


def commands(run: Run) -> Iterator[Row]:
    """Yield what commands take that read recordings and kept requests, and that start programs."""
    part = 100 if run.quick else 1
    requests = reading_recordings.REQUESTS // part
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        kept = Path(folder, "kept")
        make = f"from {_SCRAPES} import Path, keep; import sys; keep(Path(sys.argv[1]), {requests})"
        used([sys.executable, "-c", make, str(kept)])
        live = str(reading_recordings.recording_of("requests", requests, folder))
        trace = str(Path(folder, "trace.json"))
        decode = [sys.executable, "-c", reading_recordings.DECODE, str(kept)]
        verb = [*_COMMAND, "requests"]
        pairs = [
            Pair(
                *(f"`requests DIR`, {requests:,} kept", [*verb, str(kept)]),
                *("gunzip and msgspec", decode, 5.0, 3.0),
            )
        ]
        help_ = [*_COMMAND, "--help"]
        pairs += [
            Pair(f"`{name} --help`", [*_COMMAND, name, "--help"], "`--help`", help_, 2.0)
            for name in ("analyze", "export")
        ]
        if run.against is not None:
            made = run.earlier(_SCRAPES)
            earlier = f"{folder}/earlier"
            of = reading_recordings.recording_of("requests", requests, earlier, made)
            the, other = "the earlier version", run.earlier("stagespan", "requests", str(of))
            spans = reading_recordings.SPANS // part
            live_spans = str(reading_recordings.recording_of("spans", spans, folder))
            of = reading_recordings.recording_of("spans", spans, earlier, made)
            pairs.append(
                Pair(
                    *(f"`analyze`, {spans:,} recorded spans", [*_COMMAND, "analyze", live_spans]),
                    *(the, run.earlier("stagespan", "analyze", str(of)), 0.7),
                )
            )
            pairs.append(
                Pair(f"`requests`, {requests:,} live", [*verb, live], the, other, 0.3, 0.3)
            )
            perfetto = ["--perfetto", trace]
            pairs.append(
                Pair(
                    *("the same, `--perfetto`", [*verb, live, *perfetto]),
                    *(the, [*other, *perfetto], 0.3, 0.3),
                )
            )
            doctor = run.earlier("stagespan", "doctor")
            pairs.append(Pair("`doctor`", [*_COMMAND, "doctor"], the, doctor))
            pairs.append(_harness(run, Path(folder)))
        yield from pairs_measured(pairs, run)


def _harness(run: Run, folder: Path) -> Pair:
    (folder / "pipe.py").write_text(_STAGE)
    variables = {"STAGESPAN_DEBUG": "true", "STAGESPAN_OUTPUT_DIR": str(folder / "out")}
    used([sys.executable, str(folder / "pipe.py")], **variables)
    (signature,) = (folder / "out").rglob("*signature*.json")
    bench = ["bench", str(signature), "--stage", "forward", "--factory", "pipe:get_stage"]
    # A stage with several threads takes much longer if other programs delay one of them.
    there = ["env", "OMP_NUM_THREADS=1", f"PYTHONPATH={folder}"]
    there.append(f"STAGESPAN_OUTPUT_DIR={folder / 'replayed'}")
    return Pair(
        *("`bench`, beside importing torch", [*there, *_COMMAND, *bench]),
        *("the earlier version", [*there, *run.earlier("stagespan", *bench)], 0.35),
        less=[sys.executable, "-c", "import torch"],
    )


def scrapes(run: Run) -> Iterator[Row]:
    """Yield what a scrape of 1,000 stages takes, and one of 200 processes."""
    part = 100 if run.quick else 1
    new, earlier = _scraped("stages", reading_recordings.STAGES // part, run)
    load = os.getloadavg()[0]
    if earlier:
        count = reading_recordings.STAGES // part
        yield _scrape_row(f"a scrape of {count:,} stages", new, earlier, 0.35)
    line = min(one[1] for one in new)
    yield Row(
        *("a line of a scrape", f"{line:.2f}", "a line of `prometheus_client`", "1"),
        *(line, 0.8, load),
    )
    if run.against is not None:
        count = reading_recordings.PROCESSES // part
        what = f"a scrape of {count:,} nearly empty processes"
        yield _scrape_row(what, *_scraped("empty", count, run), 0.7)


def _scraped(what: str, count: int, run: Run) -> tuple[list[list[float]], list[list[float]]]:
    """Return what `reading_recordings.scraped` returns in turns for both versions."""
    new: list[list[float]] = []
    earlier: list[list[float]] = []
    for _ in range(run.rounds):
        new.append(reading_recordings.scraped([sys.executable, "-m", _SCRAPES], what, count))
        if run.against is not None:
            earlier.append(reading_recordings.scraped(run.earlier(_SCRAPES), what, count))
        if len(new) > 1 and not _is_disturbed([one[0] for one in earlier or new]):
            break
    return new, earlier


def _scrape_row(what: str, new: list[list[float]], earlier: list[list[float]], asked: float) -> Row:
    least, of = (min(one[0] for one in of) for of in (new, earlier))
    return Row(
        *(what, f"{least * 1e3:.0f} ms", "the earlier version", f"{of * 1e3:.0f} ms"),
        *(least / of, asked, os.getloadavg()[0]),
    )


# --- exports --------------------------------------------------------------------------------------


def exports(run: Run) -> Iterator[Row]:
    """Yield what spans cost that are sent by OTLP, and how many arrive."""
    seconds = 1.0 if run.quick else 8.0
    for rate in (1_000.0, 1_500.0, 6_667.0):
        sent = otlp_spans.compared(rate, seconds)
        load = os.getloadavg()[0]
        stages = f"{rate * otlp_spans.STAGES:,.0f} stages/s"
        yield Row(
            *(f"{stages}: side-car, a span", f"{sent.own_us:.2f} µs"),
            *("SDK of OpenTelemetry", f"{sent.peer_us:.1f} µs", sent.own_us / sent.peer_us),
            *(0.1, load),
        )
        if rate == 1_000:
            yield Row(
                *(f"{stages}: service and side-car", f"{sent.node:.2f}", "SDK of OpenTelemetry"),
                *("1", sent.node, 0.5, load),
            )
        else:
            yield Row(
                *(f"{stages}: arrived", f"{sent.arrived:.1%}, {sent.lost:,.0f} lost"),
                *("SDK of OpenTelemetry", f"{sent.peer_arrived:.1%}"),
                *(sent.arrived / max(sent.peer_arrived, 1e-9), None, load),
            )
    kept = otlp_spans.run("stagespan", 3_000.0, seconds, keep=True)
    arrived = kept.arrived / otlp_spans.STAGES
    yield Row(
        *("3,000 requests/s, also `--keep`: read", f"{arrived:,.0f}", "requests"),
        *(f"{kept.requests:,}", arrived / kept.requests, None, os.getloadavg()[0]),
    )


# --- traces ---------------------------------------------------------------------------------------


class Analysed(NamedTuple):
    """A trace that is analysed, and the ratios that are asked for beside the earlier version."""

    name: str
    size_bytes: int
    """The trace is copied until it has this size; with 1 it is as it was recorded."""
    asked: float | None
    asked_mb: float | None


_ANALYSED = (
    Analysed("rocm_mi250_toy", 1, None, None),
    Analysed("rocm_mi300_xdit_sd35", 1, 0.6, None),
    # Some of its Python frames overlap without nesting.
    Analysed("rocm_mi300_xdit_sd35", 600_000_000, 0.5, 0.65),
    Analysed("rocm_mi300_owlv2", 250_000_000, 0.5, 0.65),
    Analysed("cuda_v100_nccl_train", 1_000_000_000, 0.6, 0.6),
)
_READ, _BESIDE_PEERS = "rocm_mi300_owlv2", ("rocm_mi300_xdit_sd35", 1)
_JOB, _RANKS = "nccl_dlrm_8rank", 100
_HTA = """
import os, sys
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: os.path.abspath(sys.argv[1])}, trace_dir="")
trace.get_temporal_breakdown(visualize=False)
trace.get_gpu_kernel_breakdown(visualize=False)
trace.get_idle_time_breakdown(ranks=[0], visualize=False)
"""
_TRACE_LENS = """
import os, runpy, sys
out = sys.argv[1] + ".csvs"
os.makedirs(out, exist_ok=True)
sys.argv[1:] = ["--profile_json_path", sys.argv[1], "--output_csvs_dir", out]
runpy.run_module("TraceLens.Reporting.generate_perf_report_pytorch", run_name="__main__")
"""
# How a peer analyses a trace, and the most of its CPU time that is asked for.
_PEERS = {"HTA": (_HTA, 1 / 6), "TraceLens": (_TRACE_LENS, 1 / 10)}


def _made(source: Path, target: Path, size_bytes: int) -> str:
    """Write copies of a trace to a file, and return their number and size in words."""
    copies = enlarge(source, target, size_bytes)
    name, mb = source.name.removesuffix(".json.gz"), target.stat().st_size / 1e6
    return f"{f'{copies} x ' if copies > 1 else ''}{name}, {mb:,.1f} MB"


def _written_ranks(source: Path, target: Path, count: int) -> None:
    """Write the traces of a job again as those of more ranks."""
    files = sorted(source.glob("*.json.gz"))
    target.mkdir()
    for rank in range(count):
        content = gzip.decompress(files[rank % len(files)].read_bytes())
        content = re.sub(rb'"rank": *\d+', b'"rank": %d' % rank, content, count=1)
        content = re.sub(rb'"world_size": *\d+', b'"world_size": %d' % count, content)
        (target / f"rank{rank}.json.gz").write_bytes(gzip.compress(content, 1))


def analyses(run: Run) -> Iterator[Row]:
    """Yield what reading and analysing traces takes."""
    the = "the earlier version"
    analyze, read = [*_COMMAND, "analyze"], [sys.executable, "-m", "benchmarks.read_trace"]
    for trace in _ANALYSED:
        source = traces.folder() / f"{trace.name}.json.gz"
        if not source.is_file():
            continue
        pairs: list[Pair] = []
        with tempfile.TemporaryDirectory() as temporary:
            path = str(Path(temporary, "trace.json"))
            what = _made(source, Path(path), 1 if run.quick else trace.size_bytes)
            if trace.name == _READ:
                own, other = [*read, "stagespan", path, "1"], [*read, "json", path, "1"]
                pairs.append(Pair(f"read {what}", own, "`json`", other, None, 1.0))
            if run.against is not None:
                other = run.earlier("stagespan", "analyze", path)
                pair = Pair(f"`analyze` {what}", [*analyze, path], the, other, trace.asked)
                pairs.append(pair._replace(asked_mb=trace.asked_mb))
            if trace[:2] == _BESIDE_PEERS and run.peers is not None:
                pairs += [
                    Pair(
                        f"`analyze` {what}",
                        [*analyze, path],
                        peer,
                        [run.peers, "-c", code, path],
                        asked,
                    )
                    for peer, (code, asked) in _PEERS.items()
                ]
            yield from pairs_measured(pairs, run)
    job = traces.folder() / _JOB
    if run.against is None or not job.is_dir():
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "job")
        _written_ranks(job, folder, 2 if run.quick else _RANKS)
        arguments = ["analyze", str(folder), "--jobs", "1"]
        other = run.earlier("stagespan", *arguments)
        what = f"`analyze` {_RANKS} ranks of {_JOB}"
        pair = Pair(what, [*_COMMAND, *arguments], the, other, 0.6)
        yield from pairs_measured([pair], run)


# --- kept requests, and torch.profiler ------------------------------------------------------------


def queries(run: Run) -> Iterator[Row]:
    """Yield what queries of many kept requests take."""
    if any(importlib.util.find_spec(name) is None for name in ("pyarrow", "duckdb")):
        return
    count = 200 if run.quick else 100_000
    with tempfile.TemporaryDirectory() as folder:
        module = [sys.executable, "-m", "benchmarks.kept_requests"]
        make = "import sys; from benchmarks import kept_requests as kept; from pathlib import Path;"
        make += "at = Path(sys.argv[1]); kept.write(at, int(sys.argv[2])); kept.convert(at)"
        used([sys.executable, "-c", make, folder, str(count)])
        query = [*module, "--folder", folder, "--query"]
        least = [*query, "Python, JSON lines"]
        yield from pairs_measured(
            [
                Pair(
                    *(f"query of {count:,} kept, Parquet", [*query, "DuckDB, Parquet"]),
                    *("of JSON lines in Python", least),
                )
            ],
            run,
        )


def _json_of(module: str, *arguments: str) -> Any:
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json", *arguments]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)


def profilers(run: Run) -> Iterator[Row]:
    """Yield what torch.profiler costs, and spans that are shown in its traces."""
    medians_us = _json_of("profiler", "--rounds", "1" if run.quick else "15")
    load = os.getloadavg()[0]
    for case, reference in (
        ("model under the profiler", "model"),
        ("model under the profiler with shapes", "model"),
        ("span, named for annotate", "span"),
        ("span, named for annotate, under the profiler", "span"),
        ("span under the profiler", "span"),
    ):
        us, of_us = medians_us[case], medians_us[reference]
        yield Row(
            *(case, f"{us:.2f} µs", reference, f"{of_us:.2f} µs", us / of_us, None, load),
        )


def windows(run: Run) -> Iterator[Row]:
    """Yield what the end of a window costs for each event."""
    costs = _json_of("windows", "--calls", "5" if run.quick else "500", "--rounds", "2")
    load = os.getloadavg()[0]
    us = {
        case: min((stop_ms + export_ms) * 1e3 / events for events, stop_ms, export_ms, *_ in of)
        for case, of in costs.items()
    }
    least = "trace only"
    for case in ("with sums of events", "trace only, shapes", "stacks"):
        yield Row(
            *(
                f"end of a window, an event: {case}",
                f"{us[case]:.1f} µs",
                least,
                f"{us[least]:.1f} µs",
            ),
            *(us[case] / us[least], None, load),
        )


SECTIONS: dict[str, tuple[Callable[[Run], Iterator[Row]], ...]] = {
    "spans": (spans,),
    "commands": (commands, scrapes, queries),
    "exports": (exports,),
    "traces": (analyses,),
    "profiler": (profilers, windows),
}


def table(rows: list[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = ["| what | figure | beside | its figure | ratio | asked | load |"]
    lines.append("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        asked = "" if row.asked is None else f"{row.asked:.2g}"
        if row.asked is not None and row.ratio > row.asked:
            asked = f"**{asked}**"
        ratio = f"{'≈ ' if row.is_disturbed else ''}{row.ratio:.2f}"
        cells = (row.what, row.figure, row.reference, row.of_reference, ratio, asked)
        lines.append(f"| {' | '.join(cells)} | {row.load:.1f} |")
    return "\n".join(lines)


def filled(page: str, section: str, text: str) -> str:
    """Return a page with another table in a section. Raises ValueError if it has none there."""
    pattern = rf"(<!-- {section} -->\n).*?(<!-- end -->)"
    if re.search(pattern, page, re.DOTALL) is None:
        raise ValueError(f"The page has no `<!-- {section} -->` with an `<!-- end -->` after it.")
    return re.sub(pattern, lambda of: f"{of[1]}{text}\n{of[2]}", page, count=1, flags=re.DOTALL)


def main() -> None:
    """Measure, and write each row when it is complete."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="an earlier stagespan")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with HTA and TraceLens")
    parser.add_argument("--quick", action="store_true", help="little; the figures mean nothing")
    parser.add_argument("--rounds", type=int, default=4, help="how often a row is measured at most")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args()
    unknown = set(options.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"There is no section {min(unknown)}: choose from {', '.join(SECTIONS)}.")
    against = options.against and options.against.resolve()
    rounds = 1 if options.quick else options.rounds
    run = Run(against, options.quick, rounds, options.peers)
    for section in options.sections or SECTIONS:
        print(f"measuring {section}", file=sys.stderr, flush=True)
        rows = []
        for row in (row for measured in SECTIONS[section] for row in measured(run)):
            rows.append(row)
            options.page.write_text(filled(options.page.read_text(), section, table(rows)))


if __name__ == "__main__":
    main()
