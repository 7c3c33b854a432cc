"""Which differences count as a change: larger than the tolerance and than the noise of both."""

from __future__ import annotations

import gzip
import json
import os
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from stagespan.cli import command
from stagespan.errors import ReportError
from stagespan.report.baseline import read_baseline, write_baseline
from stagespan.report.changes import Tolerance, compare_files, judge
from stagespan.report.changes_pages import ComparisonFigures
from stagespan.report.noise import Times, interval_of_change, relative_noise

LINUX = {"cpu": "EPYC", "cpu_count": 2, "platform": "cpu", "device": None, "torch": "2.13"}


def samples(seed: int, slowdown: float = 1.0, runs: int = 60, spread: float = 0.06) -> list[float]:
    """Return the times of a typical stage: never much shorter than usual, sometimes much longer."""
    random = np.random.default_rng(seed)
    times = 10 * slowdown * np.exp(np.abs(random.normal(0, spread, runs)))
    late = random.random(runs) < 0.03
    return list(times * np.where(late, 1 + random.exponential(1.0, runs), 1))


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def report(**stages: Any) -> dict[str, Any]:
    return {"schema_version": 1, "environment": LINUX, "stages": stages}


def stage(p50: float, runs: int = 100, spread: float = 0.02, **more: Any) -> dict[str, Any]:
    return {
        "duration_ms": p50 * runs,
        "count": runs,
        "p25_ms": p50 * (1 - spread / 2),
        "p50_ms": p50,
        "p75_ms": p50 * (1 + spread / 2),
        **more,
    }


def verdicts(before: Any, after: Any, folder: Path) -> dict[tuple[str, str | None], str]:
    found = compare_files(write(folder / "a.json", before), write(folder / "b.json", after))
    return {(change.name, change.signature): change.verdict for change in found.changes}


def measured(kind: str, slowdown: float, fixed_ns: Any, **environment: Any) -> dict[str, Any]:
    """A baseline or a bench result of a stage, from a time when the processor was so fast."""
    times = samples(round(100 * slowdown), slowdown)
    here = {"environment": {**LINUX, **environment}}
    if kind == "bench":
        timing = {} if fixed_ns is None else {"fixed_ns": fixed_ns}
        return {**here, "stage": "s", "times_ms": times, "timing_ms": timing}
    entry = {"samples_ms": times} | ({} if fixed_ns is None else {"fixed_ns": fixed_ns})
    return {**here, "kind": "stagespan baseline", "stages": {"s": entry}}


@pytest.mark.parametrize("kind", ["baseline", "bench"])
@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (100_000, 120_000, r"was slower after than before: .* 's', .* took 1\.20 x as long"),
        (120_000, 100_000, r"was slower before than after: .* 1\.20 x .*measure both again"),
        (100_000, 104_000, None),
        (None, 120_000, None),
        (100_000, None, None),
        (100_000, "fast", None),
    ],
)
def test_a_machine_of_another_speed_is_warned_of(
    tmp_path: Path, kind: str, before: Any, after: Any, sentence: str | None
) -> None:
    # WHEN a stage takes 20 % longer
    found = compare_files(
        write(tmp_path / "a.json", measured(kind, 1.0, before)),
        write(tmp_path / "b.json", measured(kind, 1.2, after)),
    )
    assert found.is_slower
    if sentence is None:
        assert found.warnings == []
    else:
        (warning,) = found.warnings
        assert re.search(sentence, warning)
        figures = json.loads(json.dumps(ComparisonFigures.of(found).to_dict()))
        assert figures["changes"][0]["slowdown"] == after / before


def test_the_speed_of_another_python_is_not_compared(tmp_path: Path) -> None:
    found = compare_files(
        write(tmp_path / "a.json", measured("bench", 1.0, 100_000, python="3.11.9")),
        write(tmp_path / "b.json", measured("bench", 1.2, 150_000, python="3.13.1")),
    )
    assert found.warnings == []


@pytest.mark.parametrize("more", [{"percentile_runs": 512}, {}])
def test_the_noise_of_a_signature_is_that_of_the_runs_behind_its_percentiles(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    # GIVEN a million runs of two signatures, of which the times of the latest 512 are known
    def signatures(p50: float) -> list[dict[str, Any]]:
        row = {"count": 1_000_000, "p50_ms": p50, "p25_ms": 0.6 * p50, "p75_ms": 1.4 * p50, **more}
        return [{"key": key, **row} for key in ("a", "b")]

    before, after = (
        report(s=stage(p50, 2_000_000, signatures=signatures(p50))) for p50 in (10.0, 10.6)
    )

    # WHEN their medians differ by less than the noise of 512 runs
    found = verdicts(before, after, tmp_path)

    # THEN it is not known whether they have changed
    assert set(found.values()) == {"unknown"}


# --- noise --------------------------------------------------------------------------------------


def test_a_slowdown_of_ten_percent_is_caught_in_nineteen_of_twenty() -> None:
    baseline = Times.of(samples(0))
    caught = [
        judge("s", baseline, Times.of(samples(seed, 1.1)), Tolerance()).verdict == "slower"
        for seed in range(1, 21)
    ]
    assert sum(caught) >= 19


@pytest.mark.parametrize(("spread", "verdict"), [(0.02, "same"), (0.06, "unknown")])
def test_an_unchanged_stage_passes_fifty_of_fifty(spread: float, verdict: str) -> None:
    baseline = Times.of(samples(0, spread=spread))
    found = [
        judge("s", baseline, Times.of(samples(seed, spread=spread)), Tolerance()).verdict
        for seed in range(100, 150)
    ]
    assert found == [verdict] * 50


@pytest.mark.full
def test_without_a_tolerance_the_noise_decides() -> None:
    # GIVEN 400 unchanged pairs, whose medians differ a little
    none = Tolerance(0.0, 0.0)
    wrong = sum(
        judge("s", Times.of(samples(2 * n)), Times.of(samples(2 * n + 1)), none).verdict
        != "unknown"
        for n in range(400)
    )
    # THEN about one in a thousand is reported as a change
    assert wrong <= 4


def test_the_interval_contains_the_change() -> None:
    before, after = (Times.of(samples(*each, spread=0.04)) for each in ((1, 1.0), (2, 1.2)))
    low, high = interval_of_change(before, after) or (0, 0)
    assert 1 < low < 2 < high < 3
    # the same from quartiles only
    before, after = (Times(t.median_ms, t.count, t.quartiles_ms) for t in (before, after))
    low, high = interval_of_change(before, after) or (0, 0)
    assert 1 < low < 2 < high < 3
    assert before.basis == "quartiles"


def test_the_same_times_give_the_same_interval() -> None:
    first, second = Times.of(samples(1)), Times.of(samples(2))
    assert interval_of_change(first, second) == interval_of_change(first, second)


@pytest.mark.parametrize("times", [Times(10.0), Times.of([10.0] * 4), Times(10.0, 3, (9, 11))])
def test_the_noise_of_few_runs_is_not_known(times: Times) -> None:
    assert interval_of_change(times, Times.of(samples(1))) is None
    assert relative_noise(times) is None
    # so the tolerance decides, and the reason says so
    change = judge("s", times, Times.of([20.0] * 50), Tolerance())
    assert change.interval_ms is None
    if times.samples_ms:  # single runs are known, but they are too few
        assert (change.verdict, "fewer than 5 runs" in change.reason) == ("unknown", True)
    else:
        assert (change.verdict, "not known" in change.reason) == ("slower", True)
    # AND times within the tolerance do not show that nothing has changed
    within = judge("s", times, Times.of([10.1] * 50), Tolerance())
    assert (within.verdict, "noise is not known" in within.reason) == ("unknown", True)
    # unlike the noise of other times
    known = judge("s", Times.of([10.0] * 50), Times.of([20.0] * 50), Tolerance())
    assert known.interval_ms is not None
    assert "not known" not in known.reason


def test_a_small_stage_is_judged_by_the_absolute_tolerance() -> None:
    before, after = Times.of([0.010] * 50), Times.of([0.015] * 50)
    # A change that is too small to count does not show that nothing has changed.
    change = judge("s", before, after, Tolerance())
    assert (change.verdict, change.label) == ("unknown", "too short")
    assert change.reason.startswith("too short to judge: the change of +4")
    assert change.reason.endswith(" % is at most 0.01 ms")
    assert judge("s", before, before, Tolerance()).verdict == "same"
    assert judge("s", before, after, Tolerance(0.05, 0.001)).verdict == "slower"
    assert judge("s", after, before, Tolerance(0.05, 0.001)).verdict == "faster"


# --- files --------------------------------------------------------------------------------------


def test_reports_are_compared_by_stage(tmp_path: Path) -> None:
    before = report(a=stage(10), b=stage(10), c=stage(10, runs=6, spread=1.0), gone=stage(1))
    after = report(a=stage(12), b=stage(10.2), c=stage(12, runs=6, spread=1.0), new=stage(1))
    assert verdicts(before, after, tmp_path) == {
        ("a", None): "slower",
        ("b", None): "same",
        ("c", None): "unknown",
        ("gone", None): "removed",
        ("new", None): "added",
    }


def test_a_stage_with_several_signatures_is_compared_by_signature(tmp_path: Path) -> None:
    # GIVEN more runs with large inputs in the second report, so that the median of all runs is
    # higher
    small, large = (
        {"key": key, "p50_ms": p50, "p25_ms": 0.99 * p50, "p75_ms": 1.01 * p50}
        for key, p50 in (("s", 10.0), ("l", 100.0))
    )
    before = stage(10, signatures=[{**small, "count": 90}, {**large, "count": 10}])
    after = stage(100, signatures=[{**small, "count": 10}, {**large, "count": 90}])
    slower = stage(100, signatures=[{**small, "p50_ms": 12.0, "p75_ms": 12.1, "count": 10}])
    assert verdicts(report(a=before), report(a=after), tmp_path) == {
        ("a", "s"): "same",
        ("a", "l"): "same",
    }
    assert verdicts(report(a=before), report(a=slower), tmp_path)["a", "s"] == "slower"


def test_the_noise_of_a_signature_comes_from_its_quartiles(tmp_path: Path) -> None:
    def rows(slowdown: float) -> list[dict[str, Any]]:
        return [
            {"key": key, "p50_ms": 10 * slowdown, "count": 20}
            | {"p25_ms": (10 - spread) * slowdown, "p75_ms": (10 + spread) * slowdown}
            for key, spread in (("steady", 0.2), ("noisy", 4.0))
        ]

    before, after = stage(10, signatures=rows(1.0)), stage(12, signatures=rows(1.2))
    assert verdicts(report(a=before), report(a=after), tmp_path) == {
        ("a", "steady"): "slower",
        ("a", "noisy"): "unknown",
    }


def test_other_inputs_are_not_a_slowdown(tmp_path: Path) -> None:
    before = stage(10, signatures=[{"key": "s", "p50_ms": 10.0, "count": 100}])
    after = stage(100, signatures=[{"key": "l", "p50_ms": 100.0, "count": 100}])
    paths = (
        write(tmp_path / "a.json", report(a=before)),
        write(tmp_path / "b.json", report(a=after)),
    )
    found = compare_files(*paths)
    (change,) = found.changes
    assert (change.verdict, found.is_slower, found.summary) == ("unknown", False, "1 not known")
    # AND not because 90 ms are within the noise
    assert (change.change_ms, change.interval_ms) == (90.0, None)
    assert "no signature in common" in change.reason
    assert found.notes == []


def test_breakdowns_are_compared_by_kernel_and_step(tmp_path: Path) -> None:
    rows = [{"name": "gemm", "ms": 10.0}, {"name": "copy", "ms": 1.0}]
    twice = [{"name": "gemm", "ms": 24.0}, {"name": "copy", "ms": 2.0}]
    before = {"name": "decode", "top_kernels": rows, "profile_steps": 1}
    after = {"name": "decode", "top_kernels": twice, "profile_steps": 2}
    found = {("gemm", None): "slower", ("copy", None): "unknown"}
    assert verdicts(before, after, tmp_path) == found


def test_a_disturbed_breakdown_shows_no_slower_kernel(tmp_path: Path) -> None:
    rows = [{"name": "gemm", "ms": 10.0}], [{"name": "gemm", "ms": 30.0}]
    before, after = ({"name": "decode", "top_kernels": each} for each in rows)
    for ratio, verdict in ((1.9, "slower"), (3.1, "unknown")):
        disturbed = {**after, "profiled_ratio": ratio}
        assert verdicts(before, disturbed, tmp_path) == {("gemm", None): verdict}
    output = (
        CliRunner()
        .invoke(command, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
        .output
    )
    assert "b.json took 3.10 x its median time." in " ".join(output.split())


@pytest.mark.parametrize("key", ["times_ms", "timing_ms"])
def test_bench_results_are_compared_by_their_samples(key: str, tmp_path: Path) -> None:
    name = "stage" if key == "times_ms" else "stage_name"
    before, after = {name: "decode", key: samples(1)}, {name: "decode", key: samples(2, 1.2)}
    assert verdicts(before, after, tmp_path) == {("decode", None): "slower"}


def test_a_report_of_telefuser_can_be_compared(tmp_path: Path) -> None:
    old = {"stages": {"dit": {"duration_ms": 100.0, "percentage": 100.0}}}
    new = {"stages": {"dit": {"duration_ms": 150.0, "percentage": 100.0}}}
    assert verdicts(old, new, tmp_path) == {("dit", None): "slower"}


def test_another_machine_gives_a_warning(tmp_path: Path) -> None:
    after = report(a=stage(10))
    after["environment"] = {**LINUX, "cpu": "Xeon", "torch": "2.14"}
    found = compare_files(
        write(tmp_path / "a.json", report(a=stage(10))), write(tmp_path / "b.json", after)
    )
    assert found.warnings == [
        "The machines differ, so the times are not comparable: cpu EPYC before and Xeon after."
    ]
    assert found.notes == ["The software differs: torch 2.13 before and 2.14 after."]


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (report(), report(a=stage(1)), "contains no times: record it again with stages that run."),
        (report(a=stage(1)), report(b=stage(1)), "have no stage in common: 'a' before, 'b' after."),
        (report(a=stage(1)), {"top_kernels": []}, "compare two files of one kind."),
        ([1, 2], report(a=stage(1)), "a.json contains no times: pass a timing report,"),
        (report(a=stage(1)), {"stage": "a", "times_ms": []}, "b.json contains no times: pass a"),
        (report(a=stage(1)), {"top_kernels": 5}, 'b.json is not a kernel breakdown: "top_k'),
        (report(a=stage(1)), {"traceEvents": []}, "b.json is a trace, not a timing report:"),
    ],
)
def test_files_that_cannot_be_compared_are_refused(
    before: Any, after: Any, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ReportError) as caught:
        compare_files(write(tmp_path / "a.json", before), write(tmp_path / "b.json", after))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("changed gzip", "cannot be read: "),
        ("short gzip", "cannot be read: Compressed file ended"),
        ("short json", "is not valid JSON"),
    ],
)
def test_a_damaged_file_is_refused_in_a_sentence(
    damage: str, sentence: str, tmp_path: Path
) -> None:
    whole = json.dumps(report(a=stage(1))).encode()
    packed = gzip.compress(whole)
    content = {
        "changed gzip": packed[:10] + b"\xff" * 30 + packed[40:],
        "short gzip": packed[:-9],
        "short json": whole[:-9],
    }
    damaged = tmp_path / "a.json"
    damaged.write_bytes(content[damage])

    with pytest.raises(ReportError) as caught:
        compare_files(damaged, write(tmp_path / "b.json", report(a=stage(1))))

    assert f"{damaged} {sentence}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_compressed_reports_and_pipes_can_be_compared(tmp_path: Path) -> None:
    content = json.dumps(report(a=stage(10))).encode()
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(content))
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)

    found = compare_files(packed, f"/dev/fd/{reading}")

    os.close(reading)
    assert [change.verdict for change in found.changes] == ["same"]


def test_differences_do_not_control_the_terminal(tmp_path: Path) -> None:
    texts = ("EPYC", "\x1b[2J")
    bench = [
        {"times_ms": [1.0] * 9, "adapter": text, "environment": {"cpu": text, "torch": text}}
        for text in texts
    ]

    found = compare_files(*(write(tmp_path / f"{i}.json", each) for i, each in enumerate(bench)))

    sentences = [*found.warnings, *found.notes]
    assert len(sentences) == 3
    assert all(sentence.isprintable() for sentence in sentences)


def test_a_name_that_is_too_long_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 300 + ".json")
    with pytest.raises(ReportError, match="cannot be read: File name too long"):
        compare_files(path, path)
    with pytest.raises(ReportError, match="cannot be written: File name too long"):
        write_baseline(path, {"stage": Times.of([1.0] * 5)})


@pytest.mark.parametrize("wrong", [5, "text", {"p50_ms": 1}, [5, None], [{"p50_ms": "1"}]])
def test_signatures_that_are_not_a_list_of_figures_are_ignored(wrong: Any, tmp_path: Path) -> None:
    before, after = report(a=stage(10)), report(a=stage(20, signatures=wrong))
    assert verdicts(before, after, tmp_path) == {("a", None): "slower"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"{}\n",
        b'{"kind": "stagespan baseline"}',
        b'{"kind": "stagespan baseline", "stages": {}}',
        b'{"stages": {"a": {"samples_ms": []}}}',
    ],
)
def test_an_empty_baseline_is_refused_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    # GIVEN a file without times, and a baseline
    empty, full = tmp_path / "empty.json", tmp_path / "full.json"
    empty.write_bytes(content)
    write(full, {"kind": "stagespan baseline", "stages": {"a": {"samples_ms": samples(1)}}})

    for pair in ((empty, full), (full, empty)):
        done = CliRunner().invoke(command, ["compare", *map(str, pair)])
        assert done.exit_code == 2
        assert f"{empty} is " in done.output
        assert "--stage-baseline-write" in done.output
        assert done.output.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"stages": {"a": {"samples_ms": [1', " is not valid JSON"),
        (json.dumps(report(a=stage(1))), " is not a baseline: write one with --stage-baseline-"),
        ("[]", " contains no times: pass a timing report,"),
    ],
)
def test_a_file_that_is_not_a_baseline_is_refused_and_not_overwritten(
    content: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(ReportError, match=re.escape(f"{path}{sentence}")):
        read_baseline(path)
    with pytest.raises(ReportError, match=re.escape(f"{path}{sentence}")):
        write_baseline(path, {"stage": Times.of([1.0] * 5)})
    assert path.read_text() == content


def test_a_baseline_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="none does not exist: write it with --stage-baseline-w"):
        read_baseline(tmp_path / "none")
    with pytest.raises(ReportError, match="is a folder: pass the file of a baseline"):
        read_baseline(tmp_path)


# --- the command --------------------------------------------------------------------------------


def test_the_exit_status_says_whether_anything_is_slower(tmp_path: Path) -> None:
    before = write(tmp_path / "a.json", report(a=stage(10), gone=stage(1)))
    slower = write(tmp_path / "b.json", report(a=stage(12)))
    same = write(tmp_path / "c.json", report(a=stage(10)))

    def status(*arguments: str | Path) -> int:
        return CliRunner().invoke(command, ["compare", *map(str, arguments)]).exit_code

    assert status(before, slower) == 1
    assert status(before, slower, "--tolerance", "30%") == 0
    assert status(before, slower, "--tolerance-ms", "3") == 0
    assert status(before, same) == 0
    assert status(before, same, "--fail-on-missing") == 1
    assert status(before, tmp_path / "none.json") == 2
    assert status(before, same, "--tolerance", "lots") == 2


def test_noise_that_hides_the_tolerance_can_fail_the_comparison(tmp_path: Path) -> None:
    before, after = (
        write(tmp_path / f"{n}.json", report(a=stage(10), b=stage(p50, spread=1.0), c=one_run))
        for n, p50, one_run in ((1, 10, {"duration_ms": 5.0}), (2, 13, {"duration_ms": 5.1}))
    )

    def run(*options: str) -> Any:
        return CliRunner().invoke(command, ["compare", str(before), str(after), *options])

    done = run()
    assert done.exit_code == 0
    assert "1 unchanged, 2 not known" in " ".join(done.output.split())
    assert "It is not known whether 'b' has changed: the change is -" in done.output
    assert " %, too wide for the tolerance of 5 %; on average, a run takes 13.0 ms" in " ".join(
        done.output.split()
    )
    assert "To reduce the noise (from the quartiles of the runs, at 99.9 %), measure" in done.output
    assert "±" not in done.output
    assert "| not known |" in run("--markdown", "-").output
    found = json.loads(run("--json", "-").output)
    assert found["unknown"] is True
    noise = {change["name"]: change["noise"] for change in found["changes"]}
    assert (noise["a"] <= 0.05, noise["b"] > 0.2, noise["c"]) == (True, True, None)
    done = run("--noise-limit", "20%")
    assert done.exit_code == 2
    assert re.search(r"the noise of 'b', 'c' is up to [\d.]+ % of the time before", done.output)
    assert "--noise-limit allows 20 %" in done.output
    assert run("--noise-limit", "much").exit_code == 2


def test_the_comparison_as_table_markdown_and_json(tmp_path: Path) -> None:
    before = write(tmp_path / "a.json", report(**{"a|b": stage(10)}))
    after = write(tmp_path / "b.json", report(**{"a|b": stage(12)}))

    def output(*arguments: str) -> str:
        return CliRunner().invoke(command, ["compare", str(before), str(after), *arguments]).output

    assert "1 slower" in " ".join(output().split())
    assert "| a\\|b | 10.0 | 12.0 | +20.0 % |" in output("--markdown", "-")
    found = json.loads(output("--json", "-"))
    assert (found["slower"], found["changes"][0]["verdict"]) == (True, "slower")
    assert found["changes"][0]["change"] == pytest.approx(0.2)


# --- a busy machine -----------------------------------------------------------------------------


def busy(seed: int, slowdown: float = 1.0) -> Times:
    """Return times on a machine whose cores are busy: most runs take much longer, a few do not."""
    random = np.random.default_rng(seed)
    times = np.array(samples(seed, slowdown, runs=300))
    return Times.of(list(times * np.where(random.random(300) < 0.8, 1.7, 1.0)), disturbed=True)


def test_on_a_busy_machine_the_fastest_runs_are_judged() -> None:
    baseline = Times.of(samples(0, runs=300))
    unchanged = [judge("s", baseline, busy(seed), Tolerance()) for seed in range(1, 51)]
    assert {change.verdict for change in unchanged} == {"unknown"}
    assert {change.statistic for change in unchanged} == {"fastest"}
    slower = [judge("s", baseline, busy(seed, 1.1), Tolerance()) for seed in range(1, 21)]
    assert [change.verdict for change in slower].count("slower") >= 19
    assert slower[0].reason.endswith("by the fastest runs, because other programs used the machine")


def computed(kind: str, slowdown: float, speed: float, share: float = 1.0) -> dict[str, Any]:
    """A baseline or a bench result of a stage that computes, on a processor of another speed."""
    times = [time / speed for time in samples(round(100 * slowdown), slowdown, spread=0.02)]
    fixed = [150_000 / speed] * len(times)
    if kind == "baseline":
        entry = {"samples_ms": times, "fixed_ns": fixed[0]}
        if share == 1.0:
            entry["relative"] = [1e6 * time / one for time, one in zip(times, fixed, strict=True)]
        return {"kind": "stagespan baseline", "environment": LINUX, "stages": {"stage": entry}}
    return {
        "stage": "stage",
        "environment": LINUX,
        "device": "cpu",
        "timing_ms": {"fixed_ns": fixed[0], "busy": None},
        "times_ms": times,
        "cpu_times_ms": [share * time for time in times],
        "fixed_times_ns": fixed,
    }


@pytest.mark.parametrize("kind", ["baseline", "bench"])
@pytest.mark.parametrize("speed", [0.8, 1.0, 1.25])
def test_computing_stages_are_compared_at_one_speed(
    kind: str, speed: float, tmp_path: Path
) -> None:
    before = computed(kind, 1.0, 1.0)

    same = verdicts(before, computed(kind, 1.0, speed), tmp_path)
    slower = verdicts(before, computed(kind, 1.1, speed), tmp_path)
    assert (list(same.values()), list(slower.values())) == (["same"], ["slower"])

    waiting = verdicts(computed(kind, 1.0, 1.0, 0.5), computed(kind, 1.0, speed, 0.5), tmp_path)
    assert list(waiting.values()) == [{0.8: "slower", 1.0: "same", 1.25: "faster"}[speed]]


def test_a_baseline_contains_1000_runs_from_the_whole_measurement(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    runs = [float(number) for number in range(1, 2501)]

    write_baseline(path, {"stage": Times.of(runs, False, 100.0, [2 * run for run in runs])})

    times = read_baseline(path).times["stage", None]
    assert len(times.samples_ms) == len(times.relative) == 1000
    assert times.samples_ms[:3] == (1, 3, 6)
    assert times.relative[-2:] == (2 * 2496, 2 * 2498)
    write_baseline(path, {"stage": Times.of(runs[:999])}, replace=True)
    assert read_baseline(path).times["stage", None].samples_ms == tuple(runs[:999])


def test_writing_another_stage_does_not_change_the_entries_of_a_baseline(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    runs = [1 + number**2 / 7e6 for number in range(2500)]
    write_baseline(path, {"stage": Times.of(runs, False, 100.0, runs)})
    before = json.loads(path.read_text())["stages"]["stage"]

    write_baseline(path, {"other": Times.of([2.0] * 50)})

    stages = json.loads(path.read_text())["stages"]
    assert stages["stage"] == before
    assert stages["other"]["count"] == 50
    assert before["count"] == len(before["samples_ms"]) == 1000
    assert before["median_ms"] == pytest.approx(statistics.median(before["samples_ms"]), abs=1e-6)
