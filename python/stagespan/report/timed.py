"""Reads files of times: timing reports, kernel breakdowns, bench results and baselines."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagespan.errors import ReportError
from stagespan.report.noise import Times, relative_times
from stagespan.report.outcomes import Outcome
from stagespan.report.reader import (
    count_of,
    number,
    read_json,
    read_timing_report,
    report_of,
    reports_in,
)

BASELINE = "stagespan baseline"
"""The value of ``kind`` in a baseline."""
_PERCENTILE_RUNS = 512
"""The number of runs of a signature's percentiles, for reports that do not contain it."""
_WRITE_AGAIN = "write it again (a baseline with --stage-baseline-write), or pass another file."


@dataclass(frozen=True)
class Timed:
    """A file of times."""

    path: str
    kind: str
    times: dict[tuple[str, str | None], Times]
    """The times by stage or kernel, and by signature, which is None if there is only one."""
    environment: dict[str, Any] = field(default_factory=dict)
    replayed: dict[str, Any] = field(default_factory=dict)
    """The adapter and similar facts of a bench result, which must agree in both files."""
    totals_ms: dict[str, float | None] = field(default_factory=dict)
    """Times that are not those of one stage with one signature, by name."""
    request: str | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """The errors, the work and the mean of all runs of a stage, from a timing report."""
    profiled_ratio: float | None = None
    """How many times its median time the iteration of a breakdown took; None if unknown."""


class NoTimesError(ReportError):
    """A file is empty, or is a baseline without times."""


def read(path: str | os.PathLike[str]) -> Timed:
    """Read a file of times. Its keys show its kind. Raises ReportError."""
    file = Path(path)
    if os.path.isdir(file):
        results = sorted(file.glob("*_bench.json"))
        if results and not reports_in(file):
            return _of_folder(str(path), results)
        return _of_report(str(path), read_timing_report(file))
    content = read_json(file)
    if content == {}:
        raise NoTimesError(f"{path} is empty: {_WRITE_AGAIN}")
    if not isinstance(content, dict):
        content = {}
    if "top_kernels" in content:
        return _of_breakdown(str(path), content)
    if _is_baseline(content):
        return _of_baseline(str(path), content)
    if _samples(content):
        return _of_bench(str(path), content)
    if "stages" not in content and "traceEvents" not in content:
        raise ReportError(
            f"{path} contains no times: pass a timing report, a kernel breakdown, a bench result or"
            " a baseline."
        )
    return _of_report(str(path), report_of(content, file))


def _of_folder(path: str, results: list[Path]) -> Timed:
    """Return the bench results in a folder, one for each stage."""
    all_timed = [read(result) for result in results]
    times: dict[tuple[str, str | None], Times] = {}
    for timed, result in zip(all_timed, results, strict=True):
        if timed.kind != "bench" or times.keys() & timed.times.keys():
            raise ReportError(
                f"{path} contains several results of one stage, or files that are not bench "
                f"results, such as {result.name}: pass two files."
            )
        times |= timed.times
    # What differs between the stages of one folder cannot differ between two folders.
    same = {
        key: value
        for key, value in all_timed[0].replayed.items()
        if all(timed.replayed.get(key) == value for timed in all_timed)
    }
    return Timed(path, "bench", times, all_timed[0].environment, same)


def _is_baseline(content: dict[str, Any]) -> bool:
    if content.get("kind") == BASELINE:
        return True
    stages = content.get("stages")
    if not isinstance(stages, dict):
        return False
    return bool(stages) and all(isinstance(s, dict) and "samples_ms" in s for s in stages.values())


def _of_baseline(path: str, content: dict[str, Any]) -> Timed:
    times: dict[tuple[str, str | None], Times] = {}
    stages = content.get("stages")
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        samples = _numbers(stage.get("samples_ms")) if isinstance(stage, dict) else ()
        if samples:
            times[name, None] = _of_sessions(stage, samples, _numbers(stage.get("relative")))
    if not times:
        raise NoTimesError(f"{path} is a baseline without times: {_WRITE_AGAIN}")
    return Timed(path, "baseline", times, _environment(content))


def _of_sessions(
    stage: dict[str, Any], samples: tuple[float, ...], relative: tuple[float, ...]
) -> Times:
    """Return the times of a stage of a baseline, of which ``sessions`` says how they divide."""
    cpu = _numbers(stage.get("cpu_ms"))
    listed = stage.get("sessions")
    rows = [row for row in (listed if isinstance(listed, list) else ()) if isinstance(row, dict)]
    counts = [(row.get("runs"), row.get("relative")) for row in rows]
    sizes = [(n, m) for n, m in counts if type(n) is int and type(m) is int and n > 0 and m >= 0]
    totals = sum(n for n, _ in sizes), sum(m for _, m in sizes)
    if len(sizes) < len(rows) or totals != (len(samples), len(relative)):
        # One session, or a file that another program has changed.
        rows, sizes = [stage], [(len(samples), len(relative))]
    # A session without CPU times has no entries in their list.
    with_cpu = [row.get("cpu") is True for row in rows] if len(rows) > 1 else [bool(cpu)]
    if sum(n for (n, _), has_cpu in zip(sizes, with_cpu, strict=True) if has_cpu) != len(cpu):
        with_cpu = [False] * len(rows)
    sessions = []
    for row, (count, ratio_count), has_cpu in zip(rows, sizes, with_cpu, strict=True):
        disturbed = row.get("disturbed")
        sessions.append(
            Times.of(
                samples[:count],
                disturbed if isinstance(disturbed, bool) else None,
                number(row.get("fixed_ns")),
                relative[:ratio_count],
                cpu[:count] if has_cpu else (),
                _texts(row.get("tracers")),
            )
        )
        samples, relative = samples[count:], relative[ratio_count:]
        cpu = cpu[count:] if has_cpu else cpu
    return Times.of_sessions(sessions)


def _of_bench(path: str, content: dict[str, Any]) -> Timed:
    name = str(content.get("stage") or content.get("stage_name") or "stage")
    timing = content.get("timing_ms")
    disturbed = bool(timing.get("busy")) if isinstance(timing, dict) else None
    fixed_ns = number(timing.get("fixed_ns")) if isinstance(timing, dict) else None
    times_ms, cpu_ms, relative = _runs_of_bench(content)
    tracers = _texts(content.get("tracers"))
    samples = Times.of(times_ms, disturbed, fixed_ns, relative, cpu_ms, tracers)
    signature = content.get("signature")
    key = signature.get("key") if isinstance(signature, dict) else None
    times: dict[tuple[str, str | None], Times] = {
        (name, key if isinstance(key, str) else None): samples
    }
    return Timed(path, "bench", times, _environment(content), _replayed(content))


def _runs_of_bench(
    content: dict[str, Any],
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return the times of the runs of a replay, their CPU times and their relative times.

    As in a baseline, the time in which the thread waited for a core is left out, and the relative
    times are those of the CPU times if these are known.
    """
    times, waits = _samples(content), content.get("core_waits_ms")
    known = [number(wait) for wait in waits] if isinstance(waits, list) else []
    if len(known) == len(times):
        rows = zip(times, known, strict=True)
        times = tuple(max(time_ms - (wait_ms or 0.0), 0.0) for time_ms, wait_ms in rows)
    cpu, fixed = (_numbers(content.get(key)) for key in ("cpu_times_ms", "fixed_times_ns"))
    if content.get("device") != "cpu" or len(cpu) != len(times):
        return times, (), ()
    following = [*fixed[1:], *fixed[-1:]]
    is_known = len(fixed) == len(times) and min(fixed, default=0) > 0
    if not _did_one_thread_work(content):
        whole = relative_times(times, sum(cpu), [*fixed, *fixed[-1:]]) if is_known else ()
        return times, (), whole
    cpu = tuple(map(min, cpu, times))
    relative = (
        [2e6 * ms / (a + b) for ms, a, b in zip(cpu, fixed, following, strict=True)]
        if is_known
        else ()
    )
    return times, cpu, tuple(relative)


def _did_one_thread_work(content: dict[str, Any]) -> bool:
    """Whether one thread did the work of a replay; files of an earlier version do not say it."""
    timing, settings = content.get("timing_ms"), content.get("settings")
    said = timing.get("one_thread") if isinstance(timing, dict) else None
    if isinstance(said, bool):
        return said
    return isinstance(settings, dict) and settings.get("threads") == 1


def _replayed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about one iteration of a bench result; unknown ones are None."""
    step, device, settings = (content.get(key) for key in ("step", "device", "settings"))
    number_of = step.get("number") if isinstance(step, dict) else None
    return {
        "adapter": content.get("adapter"),
        "step": "whole" if step is None and "step" in content else number_of,
        "inputs on": device.partition(":")[0] if isinstance(device, str) else None,
        "dtype": settings.get("dtype") or "as captured" if isinstance(settings, dict) else None,
        "threads": settings.get("threads") if isinstance(settings, dict) else None,
    }


def _samples(content: dict[str, Any]) -> tuple[float, ...]:
    """Return the times of single runs in a bench result of stagespan or TeleFuser."""
    return _numbers(content.get("times_ms")) or _numbers(content.get("timing_ms"))


def _numbers(values: object) -> tuple[float, ...]:
    found = [number(value) for value in values] if isinstance(values, list) else []
    return tuple(value for value in found if value is not None and value >= 0)


def _texts(values: object) -> tuple[str, ...]:
    return tuple(map(str, values)) if isinstance(values, list) else ()


def _of_breakdown(path: str, content: dict[str, Any]) -> Timed:
    steps = number(content.get("profile_steps")) or 1.0
    rows = content["top_kernels"]
    if not isinstance(rows, list):
        raise ReportError(f'{path} is not a kernel breakdown: "top_kernels" is not a list.')
    times: dict[tuple[str, str | None], Times] = {}
    for row in rows:
        ms = number(row.get("ms")) if isinstance(row, dict) else None
        if ms is not None:
            times[str(row.get("name")), None] = Times(ms / steps)
    ratio = number(content.get("profiled_ratio"))
    return Timed(path, "breakdown", times, _environment(content), profiled_ratio=ratio)


def _of_report(path: str, report: dict[str, Any]) -> Timed:
    times: dict[tuple[str, str | None], Times] = {}
    totals = {
        label: number(report.get(key))
        for label, key in (("wall clock", "wall_clock_ms"), ("all stages", "total_stages_ms"))
    }
    for name, stage in report["stages"].items():
        listed = stage.get("signatures")
        signatures = [
            signature
            for signature in (listed if isinstance(listed, list) else ())
            if _of_signature(signature) is not None
        ]
        whole = _of_stage(stage)
        if len(signatures) == 1:
            # All runs had this signature, so the quartiles of the stage are those of the signature.
            times[name, str(signatures[0].get("key"))] = whole
        elif not signatures:
            times[name, None] = whole
        for signature in signatures if len(signatures) > 1 else ():
            known = _of_signature(signature)
            if known is not None:
                times[name, str(signature.get("key"))] = known
            totals |= {f"total of {name}": whole.total_ms, f"mean of {name}": whole.mean_ms}
    request = report.get("request_id")
    return Timed(
        path,
        "report",
        times,
        _environment(report),
        totals_ms=totals,
        request=str(request) if request else None,
        outcomes={name: Outcome.of(stage) for name, stage in report["stages"].items()},
    )


def _of_signature(signature: object) -> Times | None:
    if not isinstance(signature, dict):
        return None
    median = number(signature.get("p50_ms"))
    if median is None:
        return None
    counts = [count_of(signature), number(signature.get("percentile_runs", _PERCENTILE_RUNS))]
    known = [int(count) for count in counts if count is not None]
    return Times(median, min(known) if len(known) == 2 else None, _quartiles(signature))


def _of_stage(stage: dict[str, Any]) -> Times:
    count, total = count_of(stage), number(stage["duration_ms"]) or 0.0
    mean, median = number(stage.get("mean_ms")), number(stage.get("p50_ms"))
    if mean is None and count:
        mean = total / count
    if median is None:  # a file of TeleFuser, with a single run
        median = total / (count or 1)
    return Times(median, count, _quartiles(stage), mean_ms=mean, total_ms=total)


def _quartiles(entry: dict[str, Any]) -> tuple[float, float] | None:
    low, high = number(entry.get("p25_ms")), number(entry.get("p75_ms"))
    return None if low is None or high is None else (low, high)


def _environment(content: dict[str, Any]) -> dict[str, Any]:
    found = content.get("environment")
    return found if isinstance(found, dict) else {}
