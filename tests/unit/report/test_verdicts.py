"""What a verdict is about: computing and waiting apart, errors, work, totals, and tracers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from stagespan.cli import command
from stagespan.report.baseline import read_baseline, write_baseline
from stagespan.report.changes import TimingChange, Tolerance, judge, judge_repeated
from stagespan.report.noise import Times

FIXED_NS = 150_000


def run_times(
    seed: int,
    computing_ms: float = 10.0,
    waiting_ms: float = 2.0,
    *,
    speed: float = 1.0,
    spread: float = 0.01,
    disturbed: bool = False,
) -> Times:
    """Return runs of a stage of one thread, on a processor of some speed."""
    random = np.random.default_rng(seed)
    cpu = computing_ms / speed * np.exp(np.abs(random.normal(0, spread, 200)))
    waiting = waiting_ms * np.exp(np.abs(random.normal(0, spread, 200)))
    if disturbed:  # other programs make most runs wait, but not all
        waiting = waiting + np.where(random.random(200) < 0.8, random.exponential(8, 200), 0)
    fixed_ns = FIXED_NS / speed * random.normal(1, 0.002, 200)
    relative = cpu * 1e6 / fixed_ns
    samples_ms, relative_ms, cpu_ms = ((cpu + waiting).tolist(), relative.tolist(), cpu.tolist())
    return Times.of(samples_ms, disturbed, FIXED_NS / speed, relative_ms, cpu_ms)


def judged(before: Times, after: Times) -> TimingChange:
    return judge("s", before, after, Tolerance(), same_speed_unit=True)


# --- computing and waiting ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("computing_ms", "waiting_ms", "verdict", "told"),
    [
        (10.0, 2.0, "same", ""),
        (14.0, 2.0, "slower", "computing takes 14."),
        (10.0, 3.5, "slower", "waiting takes 3."),
        (14.0, 3.5, "slower", "; waiting takes 3."),
        # as long as before, but it computes for longer
        (11.5, 0.5, "slower", "computing takes 11."),
        (7.0, 2.0, "faster", ""),
        (10.0, 1.0, "faster", ""),
    ],
)
def test_a_stage_that_is_slower_in_either_part_is_slower(
    computing_ms: float, waiting_ms: float, verdict: str, told: str
) -> None:
    change = judged(run_times(1), run_times(2, computing_ms, waiting_ms))
    assert change.verdict == verdict, change.reason
    assert told in change.reason
    assert change.after_ms == pytest.approx(computing_ms + waiting_ms, rel=0.02)


def test_computing_is_found_slower_on_a_busy_machine() -> None:
    # GIVEN a stage that computes for 3 x as long, while other programs make most runs wait
    unchanged = [
        judged(run_times(seed), run_times(100 + seed, disturbed=True)) for seed in range(20)
    ]
    tripled = [
        judged(run_times(seed), run_times(200 + seed, 30.0, disturbed=True)) for seed in range(20)
    ]
    # THEN it is slower, by about 3 x, and the unchanged one is not
    assert not [change for change in unchanged if change.verdict in ("slower", "faster")]
    assert {change.verdict for change in tripled} == {"slower"}
    for change in tripled:
        computing = next(part for part in change.parts if part.name == "computing")
        low_ms, high_ms = computing.interval_ms
        assert low_ms < 20 < high_ms
        assert change.reason.startswith("computing takes 30.")


@pytest.mark.parametrize("speed", [0.7, 1.4])
def test_only_computing_depends_on_the_speed_of_the_processor(speed: float) -> None:
    unchanged = judged(run_times(1), run_times(2, speed=speed))
    waits = judged(run_times(1), run_times(2, waiting_ms=4.0, speed=speed))
    assert (unchanged.verdict, waits.verdict) == ("same", "slower")
    assert waits.reason.startswith("waiting takes 4.")
    assert "at the same speed of the processor" in waits.reason


def test_a_little_computing_of_a_stage_that_waits_is_not_judged_alone() -> None:
    before = run_times(1, 0.2, 20.0)
    # THEN half as much more is 0.5 % of a run, but four times as much is 3 %
    assert judged(before, run_times(2, 0.3, 20.0)).verdict == "same"
    assert judged(before, run_times(2, 0.8, 20.0)).verdict == "slower"


def test_a_slower_part_is_confirmed_by_a_new_process() -> None:
    before, slow, usual = run_times(1), run_times(2, 11.5, 0.5), run_times(3)
    again = [
        judge_repeated("s", before, Times.of_sessions([slow, fresh]), Tolerance())
        for fresh in (usual, run_times(4, 11.5, 0.5))
    ]
    assert [change.verdict for change in again] == ["unknown", "slower"]


def test_a_baseline_keeps_computing_and_waiting(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    for seed in range(3):
        write_baseline(path, {"s": run_times(seed), "t": Times.of([1.0] * 30, relative=[5.0] * 40)})
    stored = read_baseline(path).times
    assert [len(session.cpu_ms) for session in stored["s", None].each_session] == [200] * 3
    assert stored["t", None].cpu_ms == ()
    change = judged(stored["s", None], run_times(9, 12.0))
    assert (change.verdict, change.reason.split()[0]) == ("slower", "computing")


def bench(times: Times, **more: Any) -> dict[str, Any]:
    """Return a bench result whose thread also waited 5 ms for a core in each run."""
    return {
        "stage": "s",
        "device": "cpu",
        "times_ms": [ms + 5 for ms in times.samples_ms],
        "core_waits_ms": [5.0] * len(times.samples_ms),
        "cpu_times_ms": list(times.cpu_ms),
        "timing_ms": {"one_thread": True},
        **more,
    }


def compared(folder: Path, before: Any, after: Any, *options: str) -> tuple[int, str]:
    paths = [folder / "before.json", folder / "after.json"]
    for path, content in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(content))
    done = CliRunner().invoke(
        command, ["compare", *map(str, paths), *options], env={"COLUMNS": "200"}
    )
    return done.exit_code, done.output


def test_bench_results_are_compared_by_computing_and_waiting(tmp_path: Path) -> None:
    # WHEN a replay computes for 30 % longer, or other threads did a part of the work
    status, output = compared(tmp_path, bench(run_times(1)), bench(run_times(2, 13.0)))
    assert status == 1
    assert "'s' is slower: computing takes 13." in output
    assert "±" not in output
    status, output = compared(tmp_path, bench(run_times(1)), bench(run_times(2)))
    assert (status, "1 unchanged" in output) == (0, True)
    several = {"timing_ms": {"one_thread": False}}
    _, output = compared(
        tmp_path, bench(run_times(1), **several), bench(run_times(2, 13.0), **several)
    )
    assert "computing takes" not in output


# --- errors, work and totals ----------------------------------------------------------------------


def stage(ms: float, count: int = 400, **more: Any) -> dict[str, Any]:
    return {
        "duration_ms": ms * count,
        "count": count,
        "mean_ms": ms,
        "p25_ms": 0.99 * ms,
        "p50_ms": ms,
        "p75_ms": 1.01 * ms,
        "p99_ms": 1.02 * ms,
        "errors": 0,
        **more,
    }


SLOW_TAIL = {"p95_ms": 90.0, "p99_ms": 95.0, "max_ms": 99.0, "mean_ms": 15.0, "duration_ms": 6000.0}


@pytest.mark.parametrize(
    ("before", "after", "status", "sentence"),
    [
        (
            stage(20),
            stage(2, errors=300),
            1,
            "'s' is worse: faster, but 300 of 400 runs failed (0 of 400 before)",
        ),
        (stage(20), stage(20, errors=3, count=9), 1, "unchanged, but 3 of 9 runs failed"),
        (stage(20), stage(10, errors=1), 0, "'s': 1 of 400 runs failed (0 of 400 before)."),
        (stage(2, errors=300), stage(20), 0, "slower, but 300 of 400 runs failed before"),
        (stage(20, errors=300), stage(10, errors=300), 0, "1 faster"),
        (
            stage(20, work_per_s={"images": 400.0}),
            stage(10, work_per_s={"images": 80.0}),
            1,
            "faster, but 80 images/s instead of 400 (-80.0 %)",
        ),
        (
            stage(20, work={"images": 3200}),
            stage(10),
            0,
            "faster, but no images are counted any more (400 images/s before)",
        ),
        (
            stage(20, work_per_s={"images": 400.0}),
            stage(30, work_per_s={"images": 900.0}),
            0,
            "slower, but 900 images/s instead of 400 (+125 %)",
        ),
        (
            stage(10, max_ms=10.5),
            stage(10, **SLOW_TAIL),
            1,
            "unchanged, but on average, a run takes 15.0 ms instead of 10.0 ms (+50.0 %)",
        ),
        (
            stage(0.002, 100_000),
            stage(0.009, 100_000),
            0,
            "100,000 runs take 900 ms in all, and 100,000 took 200 ms before",
        ),
    ],
)
def test_errors_work_and_totals_are_part_of_a_verdict(
    tmp_path: Path, before: Any, after: Any, status: int, sentence: str
) -> None:
    files = [{"stages": {"s": each}} for each in (before, after)]
    found, output = compared(tmp_path, *files)
    assert (found, sentence in output) == (status, True), output
    data = json.loads(compared(tmp_path, *files, "--json", "-")[1])
    assert data["worse"] == (status == 1)
    assert compared(tmp_path, *files, "--markdown", "-")[0] == status


def test_what_is_too_short_to_judge_is_not_unchanged(tmp_path: Path) -> None:
    files = [{"stages": {"s": stage(ms, 1000)}} for ms in (0.003, 0.006)]
    status, output = compared(tmp_path, *files)
    assert status == 0
    assert "1 not known" in output
    assert "too short to judge: the change of +" in output
    # but with a tolerance that is short enough it is slower
    assert compared(tmp_path, *files, "--tolerance-ms", "0.001")[0] == 1


# --- tracers --------------------------------------------------------------------------------------


def test_nothing_is_known_of_times_under_a_tracer(tmp_path: Path) -> None:
    traced = Times.of([20.0] * 30, tracers=["cProfile"])
    plain = Times.of([10.0] * 30)
    assert judged(plain, traced).verdict == "unknown"
    assert judged(plain, traced).reason == "cProfile was active"
    assert judged(traced, plain).reason == "cProfile was active in the measurement before"
    # also of one of several sessions in a file
    path = tmp_path / "baseline.json"
    for session in (plain, traced):
        write_baseline(path, {"s": session})
    assert read_baseline(path).times["s", None].tracers == ("cProfile",)
    # and of replays
    files = [bench(run_times(1)), bench(run_times(2, 20.0), tracers=["viztracer"])]
    status, output = compared(tmp_path, *files)
    assert status == 0
    assert "It is not known whether 's' has changed: viztracer was active." in output
    assert "To reduce the noise" not in output
    assert compared(tmp_path, *files, "--noise-limit", "50%")[0] == 2
