"""How often the gate is right, on recorded measurements of unchanged stages in many processes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import preloaded
from running import ended, ready, start_command
from stagespan.report.baseline import read_baseline, write_baseline
from stagespan.report.changes import Tolerance, judge, judge_repeated
from stagespan.report.noise import Times

# Written by `python -m benchmarks.gate_samples`, which says how.
RECORDED = Path(__file__).with_name("gate_samples.json.gz")
ROUNDS = 1000
TOLERANCE = Tolerance(0.05)


def times_of(recorded: dict[str, Any], slowdown: float = 1.0) -> Times:
    return Times.of(
        [slowdown * sample for sample in recorded["samples_ms"]],
        recorded["disturbed"],
        recorded["fixed_ns"],
        [slowdown * ratio for ratio in recorded["relative"]],
    )


def verdict_of(before: Times, now: Times, fresh: Times) -> str:
    """Return the verdict of the gate, which repeats a slow-down in a new process."""
    found = judge("stage", before, now, TOLERANCE, same_speed_unit=True)
    if found.verdict != "slower":
        return found.verdict
    both = Times.of_sessions([now, fresh])
    return judge_repeated("stage", before, both, TOLERANCE, same_speed_unit=True).verdict


@pytest.mark.full
def test_on_calm_and_busy_machines_there_are_few_false_alarms() -> None:
    series = json.loads(gzip.decompress(RECORDED.read_bytes()))["series"]
    assert {"calm", "busy"} <= series.keys()
    random = np.random.default_rng(22)
    unchanged, slower = [], []
    for number in range(ROUNDS):
        recorded = series[random.choice(list(series))]
        stage = random.choice(["tokenize", "encode"])
        drawn = [
            recorded[at][stage]
            for at in random.choice(len(recorded), 3 + number % 3, replace=False)
        ]
        baseline = Times.of_sessions([times_of(each) for each in drawn[2:]])
        unchanged.append(verdict_of(baseline, *map(times_of, drawn[:2])))
        if number % 4 == 0:
            slower.append(verdict_of(baseline, *(times_of(each, 1.1) for each in drawn[:2])))

    assert unchanged.count("slower") <= ROUNDS / 60
    # THEN a stage that is 10 % slower never counts as unchanged, and fails more often
    assert "same" not in slower
    assert slower.count("slower") / len(slower) > 5 * unchanged.count("slower") / ROUNDS


def test_a_stage_that_varies_little_is_found_unchanged_or_slower() -> None:
    def session(seed: int, slowdown: float = 1.0) -> Times:
        random = np.random.default_rng(seed)
        process = random.normal(1, 0.005)
        return Times.of(list(10 * slowdown * process * random.normal(1, 0.01, 200)), False)

    baseline = Times.of_sessions([session(seed) for seed in range(5)])
    found = [judge("s", baseline, session(seed), TOLERANCE).verdict for seed in range(100, 150)]
    assert found == ["same"] * 50
    slow = [judge("s", baseline, session(seed, 1.1), TOLERANCE).verdict for seed in range(200, 250)]
    assert slow == ["slower"] * 50


def test_sessions_that_differ_widen_the_noise() -> None:
    def baseline(spread: float) -> Times:
        random = np.random.default_rng(5)
        return Times.of_sessions(
            [
                Times.of(list(10 * random.normal(1, spread) * random.normal(1, 0.01, 100)))
                for _ in range(8)
            ]
        )

    now = Times.of(list(10 * np.random.default_rng(6).normal(1, 0.01, 100)))
    steady, varying = (judge("s", baseline(spread), now, TOLERANCE) for spread in (0.01, 0.08))

    assert (steady.verdict, varying.verdict) == ("same", "unknown")
    assert (varying.noise or 0) > 3 * (steady.noise or 1)
    assert varying.reason.endswith(" %, too wide for the tolerance of 5 %")


def test_a_slow_process_is_not_confirmed_by_a_fast_one() -> None:
    baseline = Times.of([10.0 + 0.01 * (n % 5) for n in range(60)])
    slow, fast = (Times.of([f * sample for sample in baseline.samples_ms]) for f in (1.09, 1.045))
    assert judge("s", baseline, slow, TOLERANCE).verdict == "slower"
    again = [
        judge_repeated("s", baseline, Times.of_sessions([slow, fresh]), TOLERANCE)
        for fresh in (fast, slow)
    ]
    assert [each.verdict for each in again] == ["unknown", "slower"]
    assert again[0].reason == "+9.0 % in one process, but +4.5 % in a new one"
    assert again[1].reason.endswith("also in a new process")


@pytest.mark.parametrize("spread", [0.0, 0.2, 1.0])
def test_the_noise_of_a_change_is_never_hidden(spread: float) -> None:
    # GIVEN times that vary by so much, and a stage that may be slower
    random = np.random.default_rng(3)
    before, after = (Times.of(list(10 * np.exp(random.normal(0, spread, 40)))) for _ in range(2))
    change = judge("s", before, after, TOLERANCE)
    assert change.noise is not None
    # THEN unchanged means that the noise is at most the tolerance
    assert (change.verdict == "same") == (spread == 0.0)
    assert change.verdict == "same" or change.noise > 0.05


# --- baselines of several sessions --------------------------------------------------------------


def test_a_baseline_adds_up_over_sessions(tmp_path: Path) -> None:
    # GIVEN sessions with different numbers of runs, one of them on a busy machine
    path = tmp_path / "baseline.json"
    sessions = [
        Times.of([1.0, 1.1, 1.2] * 10, False, 100.0, [5.0] * 40),
        Times.of([1.0] * 700, True, 90.0, [5.0] * 700),
        Times.of([1.0] * 900, None, None, [5.0] * 3),
    ]
    for session in sessions:
        write_baseline(path, {"stage": session})

    # THEN the file contains them apart, with at most 1,000 runs in all
    (times,) = read_baseline(path).times.values()
    assert [session.count for session in times.each_session] == [30, 333, 333]
    assert [len(session.relative) for session in times.each_session] == [40, 333, 3]
    assert [session.disturbed for session in times.each_session] == [False, True, None]
    assert [session.fixed_ns for session in times.each_session] == [100.0, 90.0, None]
    entry = json.loads(path.read_text())["stages"]["stage"]
    assert (entry["count"], entry["disturbed"], entry["fixed_ns"]) == (696, True, 90.0)
    write_baseline(path, {"stage": sessions[0]}, replace=True)
    (times,) = read_baseline(path).times.values()
    assert (times.sessions, times.count) == ((), 30)


def test_a_baseline_keeps_its_latest_sessions(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    for number in range(1, 31):
        write_baseline(path, {"stage": Times.of([1 + number / 1000] * 60)})
    (times,) = read_baseline(path).times.values()
    medians = [round(1000 * session.median_ms) - 1000 for session in times.each_session]
    assert medians == list(range(11, 31))
    assert times.count == 20 * 50


def test_processes_that_write_one_baseline_lose_no_session(tmp_path: Path) -> None:
    path, writers, sessions = tmp_path / "shared" / "baseline.json", 4, 10
    code = (
        "import sys\n"
        "from stagespan.report.baseline import write_baseline\n"
        "from stagespan.report.noise import Times\n"
        "path, writer = sys.argv[1:]\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        f"for number in range({sessions}):\n"
        "    write_baseline(path, {f'{writer} {number}': Times.of([1.0] * 9)})\n"
        "    write_baseline(path, {'all': Times.of([1.0] * 9)})\n"
    )
    command = [*preloaded.python("numpy"), "-c", code, str(path)]
    processes = [start_command([*command, str(number)]) for number in range(writers)]
    for process in processes:
        ready(process)
    for process in processes:
        ended(process, 0, input="\n", timeout_s=300)

    times = read_baseline(path).times
    names = {f"{writer} {number}" for writer in range(writers) for number in range(sessions)}
    assert times.keys() == {(name, None) for name in (*names, "all")}
    assert len(times["all", None].each_session) == 20
    # THEN nothing is left beside it
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_that_has_been_killed_does_not_stop_others(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    (tmp_path / ".baseline.json.lock").touch()
    write_baseline(path, {"stage": Times.of([1.0] * 9)})
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "sessions",
    [5, [], [5], [{}], [{"runs": 1, "relative": 0}], [{"runs": 70, "relative": 0}] * 2]
    + [[{"runs": runs, "relative": ratios}] * 2 for runs, ratios in ((30, 1), (True, 0))]
    + [[{"runs": 61, "relative": 0}, {"runs": -1, "relative": 0}]],
)
def test_sessions_that_do_not_fit_the_runs_are_one_session(tmp_path: Path, sessions: Any) -> None:
    path = tmp_path / "baseline.json"
    stage = {"samples_ms": [1.0] * 60, "sessions": sessions}
    path.write_text(json.dumps({"kind": "stagespan baseline", "stages": {"s": stage}}))
    (times,) = read_baseline(path).times.values()
    assert (times.count, times.sessions) == (60, ())


def test_another_version_of_a_stage_in_a_baseline_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert write_baseline(path, {"stage": Times.of([1.0] * 60)}) == []
    assert write_baseline(path, {"stage": Times.of([1.01] * 60)}) == []
    (sentence,) = write_baseline(path, {"stage": Times.of([0.5] * 60)})
    assert "'stage' is 50" in sentence
    assert "faster than in the earlier sessions" in sentence
    assert "--stage-baseline-replace" in sentence
