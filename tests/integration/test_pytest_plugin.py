"""The pytest plugin, in separate test runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import preloaded
from running import ran

# Without the plugins of others, whose imports take most of the time of a short test run.
OPTIONS = ["-q", "-p", "no:cacheprovider"]
for other in ("hypothesispytest", "anyio", "xdist", "xdist.looponfail"):
    OPTIONS += ["-p", f"no:{other}"]
TEST = """
    import json, pathlib
    import pytest

    @pytest.mark.stage_limit(ms={ms}, regress={regress!r})
    def test_decode(stage_bench):
        times = stage_bench.check(json.loads(pathlib.Path("samples.json").read_text()))
        assert times.count == 60
"""
MEASURED = """
    def test_measured(stage_bench):
        times = stage_bench(sum, range(1000), most_seconds=0.05)
        assert times.count >= 20 and times.median_ms > 0
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process that has not imported stagespan yet."""
    return ran(
        [*preloaded.python("pytest", "numpy"), "-m", "pytest", *OPTIONS, *arguments], cwd=folder
    )


class Project:
    """A folder with one test file, and the options of its run."""

    def __init__(
        self,
        folder: Path,
        ms: float | None = None,
        regress: Any = "5%",
        *,
        measures: bool = False,
    ) -> None:
        self.folder = folder
        self.baseline = folder / "baseline.json"
        text = textwrap.dedent(TEST).format(ms=ms, regress=regress)
        if measures:
            text += textwrap.dedent(MEASURED)
        (folder / "test_stage.py").write_text(text)

    def replace_tests(self, text: str) -> None:
        (self.folder / "test_stage.py").write_text(textwrap.dedent(text))

    def run(self, slowdown: float, *arguments: str) -> tuple[int, str]:
        random = np.random.default_rng(round(slowdown * 100))
        times = 10 * slowdown * np.exp(np.abs(random.normal(0, 0.06, 60)))
        (self.folder / "samples.json").write_text(json.dumps(list(times)))
        done = run_pytest(self.folder, *arguments)
        return done.returncode, done.stdout + done.stderr

    def write(self, *arguments: str) -> str:
        status, output = self.run(
            1.0, f"--stage-baseline={self.baseline}", "--stage-baseline-write", *arguments
        )
        assert status == 0, output
        return output


class ComputingProject(Project):
    """A folder with a test of a stage that only computes, and the baseline of that stage."""

    def __init__(self, folder: Path, numbers: int) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        self.replace_tests(
            f"""
            import pytest

            @pytest.mark.stage_limit(regress="400%", regress_ms=0)
            def test_measured(stage_bench):
                stage_bench(sum, range({numbers}), most_seconds=0.05)
            """
        )
        self.write()
        self.content = json.loads(self.baseline.read_text())
        self.entry = self.content["stages"]["test_stage.py::test_measured"]

    def compare(self) -> tuple[int, str]:
        """Run the test against the baseline with the changed `content`."""
        self.baseline.write_text(json.dumps(self.content))
        return self.run(1.0, f"--stage-baseline={self.baseline}")


def test_a_slower_stage_fails_and_an_unchanged_one_passes(tmp_path: Path) -> None:
    project = Project(tmp_path, measures=True)
    assert "baseline.json: 2" in project.write()
    assert project.run(1.001, f"--stage-baseline={project.baseline}")[0] == 0
    status, output = project.run(1.1, f"--stage-baseline={project.baseline}")
    assert status == 1
    assert "test_stage.py::test_decode takes 11." in output
    assert "against the baseline's 10." in output
    # AND the reason is a change beyond both the tolerance and the noise
    assert re.search(r"\+(9|10|11)\.\d% against .*: .*\btolerance\b.*\bnoise\b", output)


def test_the_baseline_names_its_version_and_machine(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write()
    content = json.loads(project.baseline.read_text())
    assert (content["schema_version"], content["kind"]) == (1, "stagespan baseline")
    assert {"cpu", "cpu_count", "platform", "torch"} <= content["environment"].keys()
    assert "hostname" not in content["environment"]
    assert len(content["stages"]["test_stage.py::test_decode"]["samples_ms"]) == 60


def test_a_baseline_of_another_machine_is_warned_of_and_replaced(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write()
    content = json.loads(project.baseline.read_text())
    content["environment"]["cpu"] = "another one"
    content["stages"]["gone"] = {"samples_ms": [1.0]}
    project.baseline.write_text(json.dumps(content))
    status, output = project.run(1.0, f"--stage-baseline={project.baseline}")
    assert status == 0
    assert "The machines differ, so the times are not comparable: cpu another one before" in output
    assert "from another machine and were removed" in project.write()
    assert "gone" not in json.loads(project.baseline.read_text())["stages"]


def test_a_limit_in_milliseconds_needs_no_baseline(tmp_path: Path) -> None:
    assert Project(tmp_path, ms=11.0).run(1.0)[0] == 0
    status, output = Project(tmp_path, ms=9.0).run(1.0)
    assert status == 1
    assert "9.000 ms" in output


def test_without_a_baseline_the_comparison_is_left_out_with_a_warning(tmp_path: Path) -> None:
    status, output = Project(tmp_path).run(1.0)
    assert status == 0
    assert "was not compared: pass --stage-baseline=FILE." in output


def test_each_warning_is_printed_once(tmp_path: Path) -> None:
    # GIVEN tests that measure a function, so that their limits are checked before and after
    project = Project(tmp_path)
    project.replace_tests(
        """
        import pytest

        @pytest.mark.stage_limit(regress="900%")
        @pytest.mark.parametrize("number", [1, 2])
        def test_measured(stage_bench, number):
            stage_bench(sum, range(1000), most_seconds=0.05)
        """
    )
    status, output = project.run(1.0)
    assert status == 0, output
    assert output.count("was not compared") == 2
    project.write()
    content = json.loads(project.baseline.read_text())
    content["environment"]["cpu"] = "another one"
    project.baseline.write_text(json.dumps(content))
    status, output = project.run(1.0, f"--stage-baseline={project.baseline}")
    assert status == 0, output
    assert output.count("The machines differ") == 1


@pytest.mark.parametrize("slowdown", [0.5, 2.0])
def test_a_baseline_of_a_machine_of_another_speed_is_explained(
    tmp_path: Path, slowdown: float
) -> None:
    # GIVEN a baseline in which the stage is much faster
    project = ComputingProject(tmp_path, numbers=1000)
    entry = project.entry
    entry["samples_ms"] = [sample / 10 for sample in entry["samples_ms"]]
    # AND in which the processor was twice or half as fast, without its speed during each run
    entry["fixed_ns"] /= slowdown
    del entry["relative"]

    status, output = project.compare()

    # THEN the stage fails all the same, and the sentence says how fast the machine was
    assert status == 1
    slower = "now than for the baseline" if slowdown > 1 else "for the baseline than now"
    assert f"The machine was slower {slower}" in output
    # AND with the old times it passes, with a warning
    entry["samples_ms"] = [sample * 1000 for sample in entry["samples_ms"]]
    status, output = project.compare()
    assert status == 0
    assert output.count(f"The machine was slower {slower}") == 1


# The factors are so large that no pause of the machine changes a result. On a busy machine, a run
# may not show that the speed of the processor decides its times, so up to five runs are made.
@pytest.mark.parametrize("slowdown", [1 / 20, 20])
def test_times_are_compared_at_one_speed_of_the_processor(tmp_path: Path, slowdown: float) -> None:
    # GIVEN a baseline of a stage that only computes
    project = next(
        project
        for number in range(5)
        if "relative" in (project := ComputingProject(tmp_path / str(number), 10_000)).entry
    )
    entry = project.entry
    assert len(entry["relative"]) >= entry["count"]
    # AND in which the processor was 20 times faster or slower
    for times in ("samples_ms", "cpu_ms"):
        entry[times] = [sample / slowdown for sample in entry[times]]
    entry["fixed_ns"] /= slowdown

    # THEN the unchanged stage passes
    assert any(project.compare()[0] == 0 for _ in range(5))
    entry["relative"] = [ratio / 25 for ratio in entry["relative"]]
    assert any(
        status == 1 and "at the same speed of the processor" in output
        for status, output in (project.compare() for _ in range(5))
    )


def test_a_stage_that_the_baseline_lacks_fails(tmp_path: Path) -> None:
    project = Project(tmp_path, measures=True)
    project.write("-k", "measured")
    status, output = project.run(1.0, f"--stage-baseline={project.baseline}")
    assert status == 1
    assert "is not in the baseline" in output


@pytest.mark.parametrize(
    "content", ["", "{}", '{"kind": "stagespan baseline"}', '{"stages": {"a": {"samples_ms": []}}}']
)
def test_an_empty_baseline_fails_in_a_sentence_and_is_written_over(
    content: str, tmp_path: Path
) -> None:
    project = Project(tmp_path)
    project.baseline.write_text(content)
    status, output = project.run(1.0, f"--stage-baseline={project.baseline}")
    assert status == 1
    assert re.search(r"baseline\.json is (empty|a baseline without times): write it again", output)
    assert "Traceback" not in output
    assert "Error" not in output
    assert "baseline.json: 1" in project.write()


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.baseline.write_text('{"answer": 42}')
    status, output = project.run(
        1.0, f"--stage-baseline={project.baseline}", "--stage-baseline-write"
    )
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "no measurements were written" in output
    assert project.baseline.read_text() == '{"answer": 42}'


def test_a_missing_baseline_fails_in_a_sentence(tmp_path: Path) -> None:
    status, output = Project(tmp_path).run(1.0, "--stage-baseline=none.json")
    assert status == 1
    line = f"\n--stage-baseline: {tmp_path}/none.json does not exist: write it with --stage-"
    assert output.count(line) == 1  # the summary at the end may contain the sentence, too
    assert "During handling" not in output


def test_a_baseline_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    project = Project(tmp_path)
    file = "/proc/stagespan/baseline.json"
    status, output = project.run(1.0, f"--stage-baseline={file}", "--stage-baseline-write")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert f"no measurements were written: the baseline {file} cannot be written" in output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--stage-baseline="], "--stage-baseline names no file: pass --stage-baseline=FILE."),
        (["--stage-baseline-write"], "--stage-baseline-write needs a file: pass --stage-baseline="),
    ],
)
def test_options_without_a_file_are_refused(
    options: list[str], sentence: str, tmp_path: Path
) -> None:
    status, output = Project(tmp_path).run(1.0, *options)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert sentence in output


def test_a_run_that_measures_nothing_writes_no_baseline(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.replace_tests("def test_other(): pass")
    assert "no test has measured a stage" in project.write()
    assert not project.baseline.exists()


def test_a_test_can_change_the_working_directory(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.replace_tests(
        """
        import pytest

        @pytest.mark.stage_limit(regress="5%")
        def test_elsewhere(stage_bench, tmp_path, monkeypatch):
            monkeypatch.chdir(tmp_path)
            stage_bench.check([1.0] * 30)
        """
    )
    for options in (["--stage-baseline-write"], []):
        status, output = project.run(1.0, "--stage-baseline=baseline.json", *options)
        assert status == 0, output
    assert project.baseline.exists()


def test_wrong_limits_and_calls_are_refused_in_one_sentence(tmp_path: Path) -> None:
    # GIVEN tests with invalid marks, and with invalid arguments of the fixture
    project = Project(tmp_path)
    project.replace_tests(
        """
        import pytest

        mark = pytest.mark.stage_limit
        marks = [
            mark(5), mark(limit=5), mark(5, limit=5), mark(ms=-1), mark(ms="5 s"), mark(ms=[1]),
            mark(regress="much"), mark(regress=5), mark(regress="-5%"), mark(regress_ms="x"),
        ]

        @pytest.mark.parametrize("number", [pytest.param(i, marks=m) for i, m in enumerate(marks)])
        def test_mark(stage_bench, number):
            stage_bench(pytest.exit, "the stage ran before its limits were checked")

        @pytest.mark.parametrize("times", [
            [float("nan")] * 9, [1, float("inf")], [-1, 2], [], ["a"], [None], 3.0
        ])
        def test_times(stage_bench, times):
            stage_bench.check(times)

        @pytest.mark.parametrize("seconds", [0, -1, "x", float("nan")])
        def test_seconds(stage_bench, seconds):
            stage_bench(sum, [], most_seconds=seconds)

        async def coroutine(): pass
        def generator(): yield

        @pytest.mark.parametrize("function", [5, coroutine, generator])
        def test_functions(stage_bench, function):
            stage_bench(function)

        @mark(regress="5%")
        def test_twice(stage_bench):
            stage_bench.check([1.0] * 30)
            stage_bench.check([1.0] * 30, name="part")
            stage_bench.check([9.0] * 30)
        """
    )

    status, output = project.run(1.0)

    assert status == 1
    assert "25 failed" in output
    pages = re.split(r"^_+ (test_\S+) _+$", output.split("= FAILURES =")[1], flags=re.MULTILINE)
    failures = dict(zip(pages[1::2], pages[2::2], strict=True))
    takes = "stage_limit takes ms=, regress=, regress_ms= and noise=, not"
    not_ms = "is not a time in milliseconds: write for example 2 or 0.5."
    not_share = "is not a percentage or a fraction: write 5% or 0.05."
    marks = [
        *(f"{takes} 5.", f"{takes} limit=.", f"{takes} 5, limit=."),
        *(f"stage_limit: {value} {not_ms}" for value in ("-1", "'5 s'", "[1]")),
        *(f"stage_limit: {value} {not_share}" for value in ("'much'", "5", "'-5%'")),
        f"stage_limit: 'x' {not_ms}",
    ]
    for number, sentence in enumerate(marks):
        assert failures[f"test_mark[{number}]"].strip() == sentence
    times = [name for name in failures if name.startswith("test_times")]
    values = ("nan", "inf", "-1", None, "'a'", "None", "3.0")
    for name, value in zip(times, values, strict=True):
        problem = "there are no times." if value is None else f"{value} is not a "
        assert f"test_stage.py::{name} cannot be checked: {problem}" in failures[name]
        assert failures[name].strip().count("\n") == 0
    for name in ("0", "-1", "x", "nan"):
        assert "is not a time in seconds above 0." in failures[f"test_seconds[{name}]"]
    assert "]: 5 cannot be called: pass a function" in failures["test_functions[5]"]
    for name in ("coroutine", "generator"):
        problem = "does not run it, but returns a coroutine or generator: pass a function that"
        assert problem in failures[f"test_functions[{name}]"]
    assert "test_stage.py::test_twice is measured twice: pass another name=" in output


def test_a_limit_without_a_measurement_fails(tmp_path: Path) -> None:
    (tmp_path / "test_stage.py").write_text(
        "import pytest\n"
        "limit = pytest.mark.stage_limit(ms=5000)\n"
        "@limit\ndef test_without_the_fixture(): pass\n"
        "@limit\ndef test_without_a_call(stage_bench): pass\n"
        "@limit\ndef test_named(stage_bench): stage_bench.check([1.0] * 30, name='part')\n"
        "@limit\ndef test_skipped(): pytest.skip('no device')\n"
        "@limit\n@pytest.mark.parametrize('n', [1])\ndef test_with_cases(stage_bench, n):\n"
        "    stage_bench.check([1.0] * 30)\n"
    )

    done = run_pytest(tmp_path, "test_stage.py")

    assert "2 failed, 2 passed, 1 skipped" in done.stdout
    failed = re.findall(r"^FAILED test_stage.py::(\w+)", done.stdout, re.MULTILINE)
    assert failed == ["test_without_the_fixture", "test_without_a_call"]


def test_workers_of_xdist_write_one_baseline(tmp_path: Path) -> None:
    project = Project(tmp_path, measures=True)
    project.write("-p", "xdist", "-n", "2")
    assert len(json.loads(project.baseline.read_text())["stages"]) == 2


# --- what is not known --------------------------------------------------------------------------

VARYING = """
    import json, pathlib, random
    import pytest

    @pytest.mark.stage_limit(regress="5%"{more})
    def test_varying(stage_bench):
        slowdown = float(pathlib.Path("slowdown.txt").read_text())
        stage_bench.check([slowdown * random.uniform(1, 9) for _ in range(60)])

    @pytest.mark.stage_limit(regress="5%")
    def test_steady(stage_bench):
        stage_bench.check([random.uniform(1, 1.01) for _ in range(60)])
"""


class VaryingProject(Project):
    """A folder with a stage whose runs vary by more than the tolerance, and a steady one."""

    def __init__(self, folder: Path, more: str = "") -> None:
        super().__init__(folder)
        self.replace_tests(VARYING.format(more=more))
        (folder / "slowdown.txt").write_text("1")
        self.write()
        (folder / "slowdown.txt").write_text("1.3")

    def compare(self, *arguments: str) -> tuple[int, str]:
        return self.run(1.0, f"--stage-baseline={self.baseline}", *arguments)


def test_noise_that_hides_the_tolerance_is_reported_and_can_fail(tmp_path: Path) -> None:
    project = VaryingProject(tmp_path)

    # WHEN a stage is 30 % slower, and its noise is larger
    status, output = project.compare()

    assert status == 0
    assert f"stagespan: compared with {project.baseline}: 1 unchanged, 1 not known" in output
    (line,) = (line for line in output.splitlines() if "not known whether" in line)
    assert "test_stage.py::test_varying is slower: the change is -" in line
    assert line.endswith(" %, too wide for the tolerance of 5 %")
    status, output = project.compare("--stage-noise-limit=10%")
    assert (status, "1 failed, 1 passed" in output) == (1, True)
    assert "test_varying cannot be compared: the noise is " in output
    assert "but the limit of the noise is 10 %" in output


def test_a_test_can_set_its_own_limit_of_the_noise(tmp_path: Path) -> None:
    project = VaryingProject(tmp_path, more=', noise="10%"')
    status, output = project.compare("--stage-noise-limit=900%")
    assert (status, "1 failed, 1 passed" in output) == (1, True)
    assert "but the limit of the noise is 10 %" in output


def test_workers_of_xdist_report_what_is_not_known(tmp_path: Path) -> None:
    project = VaryingProject(tmp_path)
    status, output = project.compare("-p", "xdist", "-n", "2")
    assert status == 0
    assert output.count("1 unchanged, 1 not known") == 1
    assert output.count("not known whether test_stage.py::test_varying") == 1


def test_a_baseline_adds_up_over_test_runs(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for count in (1, 2, 3):
        project.write()
        entry = json.loads(project.baseline.read_text())["stages"]["test_stage.py::test_decode"]
        assert len(entry.get("sessions", [0])) == count
    project.write("--stage-baseline-replace")
    entry = json.loads(project.baseline.read_text())["stages"]["test_stage.py::test_decode"]
    assert len(entry["samples_ms"]) == 60


REPEATED = """
    import os, pathlib
    import pytest

    @pytest.mark.stage_limit(regress="5%")
    @pytest.mark.parametrize("case", ["a b", "c::d"])
    def test_first_process(stage_bench, tmp_path, case):
        pids = pathlib.Path({folder!r}, case)
        pids.mkdir(exist_ok=True)
        (pids / str(os.getpid())).touch()
        processes = len(list(pids.iterdir()))
        slow = 1.2 if processes in {slow!r} else 1.0
        stage_bench.check([slow * (1 + number % 5 / 1000) for number in range(60)])
"""


@pytest.mark.parametrize("options", [[], ["-p", "xdist", "-n", "2"]])
@pytest.mark.parametrize(("slow", "status"), [([2], 0), ([2, 3], 1)])
def test_a_slow_test_is_repeated_in_a_new_process(
    tmp_path: Path, slow: list[int], status: int, options: list[str]
) -> None:
    # GIVEN a baseline, and a stage that is slow in the next process, or in the next two
    project = Project(tmp_path)
    project.replace_tests(REPEATED.format(folder=str(tmp_path), slow=slow))
    (tmp_path / "pytest.ini").write_text("[pytest]\nlog_file = log.txt\n")
    project.write()

    found, output = project.run(
        1.0,
        f"--stage-baseline={project.baseline}",
        f"--basetemp={tmp_path / 'temporary'}",
        "test_stage.py",
        *options,
    )

    assert [len(list((tmp_path / case).iterdir())) for case in ("a b", "c::d")] == [3, 3]
    assert found == status, output
    assert ("also in a new process" in output) == (status == 1)
    assert ("not known whether test_stage.py::test_first_process[a b]" in output) == (status == 0)
    assert list((tmp_path / "temporary").iterdir())


def test_the_repetition_can_be_turned_off_and_may_fail(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write()
    compare = f"--stage-baseline={project.baseline}"
    status, output = project.run(1.2, compare, "--stage-repeats=0")
    assert (status, "new process" in output) == (1, False)
    (tmp_path / "conftest.py").write_text(
        "import os, pytest\n"
        "if not os.path.exists('began'): open('began', 'w').close()\n"
        "else: pytest.exit('no device', 3)\n"
    )
    status, output = project.run(1.2, compare)
    assert status == 1
    assert "(not repeated in a new process: it measured nothing, and its exit status was" in output


def test_a_baseline_of_a_busy_machine_is_warned_of(tmp_path: Path) -> None:
    # GIVEN a stage that keeps other processes busy while it is measured
    project = Project(tmp_path)
    project.replace_tests(
        """
        import subprocess, sys

        def test_busy(stage_bench):
            others = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(4)]
            try:
                stage_bench(sum, range(1000), most_seconds=0.3)
            finally:
                for other in others:
                    other.kill()
                    other.wait()
        """
    )
    output = project.write()
    entry = json.loads(project.baseline.read_text())["stages"]["test_stage.py::test_busy"]
    assert entry["disturbed"] in (True, None)
    if entry["disturbed"] is None:
        pytest.skip("this system does not report the load of the machine")
    assert "warning: other programs used the machine while 'test_stage.py::test_busy' was" in output
    assert output.index("warning: other programs") > output.index("measurements written to")


@pytest.mark.parametrize("options", [[], ["-p", "xdist", "-n", "2"]])
def test_a_baseline_whose_noise_hides_the_tolerance_is_warned_of(
    tmp_path: Path, options: list[str]
) -> None:
    output = VaryingProject(tmp_path).write(*options)
    (line,) = (line for line in output.splitlines() if "cannot show a change" in line)
    assert "this session of test_stage.py::test_varying alone" in line
    assert " %, too wide for the tolerance of 5 %; add sessions" in line


# --- tracers ------------------------------------------------------------------------------------

LOOP = "def work():\n    total = 0\n    for number in range(3000):\n        total += number\n"
TRACED = """
    import cProfile, sys, threading
    import pytest
    import stage

    profiler = cProfile.Profile()

    def none(frame, event, argument): return None

    def every_line(frame, event, argument): return every_line

    @pytest.mark.stage_limit(regress="30%", ms={ms})
    def test_work(stage_bench):
        {before}
        try:
            stage_bench(stage.work, most_seconds=0.1)
        finally:
            {after}
        stage.after()
"""


class TracedProject(Project):
    """A folder with a test that measures Python code, and its baseline without a tracer."""

    def __init__(self, folder: Path, before: str, after: str) -> None:
        super().__init__(folder)
        (folder / "stage.py").write_text(f"{LOOP}\n\ndef after():\n    return 1\n")
        self.replace_tests(TRACED.format(before="pass", after="pass", ms=None))
        self.write()
        self.replace_tests(TRACED.format(before=before, after=after, ms=1e-6))

    def compare(self, *arguments: str) -> tuple[int, str]:
        return self.run(1.0, f"--stage-baseline={self.baseline}", *arguments)


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("sys.settrace(every_line)", "sys.settrace(None)", "a trace function of test_stage"),
        ("sys.setprofile(none)", "sys.setprofile(None)", "a profiler of test_stage"),
        ("profiler.enable()", "profiler.disable()", "cProfile"),
        (
            "threading.settrace(every_line)",
            "threading.settrace(None)",
            "a trace function of test_stage",
        ),
    ],
)
def test_nothing_is_known_under_a_tracer_which_stays(
    tmp_path: Path, before: str, after: str, name: str
) -> None:
    project = TracedProject(tmp_path, before, after)
    status, output = project.compare()
    assert status == 0, output
    assert f"not known whether test_stage.py::test_work is slower: {name} was active" in output
    # AND the limit in milliseconds is not judged either, but told
    assert f"not known how long it takes by itself: {name} was active" in output
    project.replace_tests(TRACED.format(before=before, after=after, ms=None))
    assert f"warning: {name} was active while 'test_stage.py::test_work' was" in project.write()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has sys.monitoring from 3.12 on")
def test_a_tool_of_sys_monitoring_is_named(tmp_path: Path) -> None:
    project = TracedProject(
        tmp_path,
        "sys.monitoring.use_tool_id(4, 'a tool')",
        "sys.monitoring.free_tool_id(4)",
    )
    status, output = project.compare()
    assert status == 0
    assert "test_work is slower: a tool was active" in output


def test_the_tracer_of_coverage_is_suspended_and_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("pytest_cov")
    project = TracedProject(tmp_path, "pass", "pass")
    project.replace_tests(
        TRACED.format(before="pass", after="pass", ms=None).replace("30%", "9900%")
    )
    environment = tmp_path / ".coveragerc"
    environment.write_text("[run]\ncore = ctrace\nbranch = true\n")
    status, output = project.compare(
        "--cov=stage", "--cov-report=json", f"--cov-config={environment}", "--stage-repeats=0"
    )
    assert status == 0, output
    assert "was active" not in output
    # AND what runs after the measurement is in its report, but not what was measured
    file = json.loads((tmp_path / "coverage.json").read_text())["files"]["stage.py"]
    assert {1, 8}.issubset(file["executed_lines"])
    assert {2, 3, 4}.issubset(file["missing_lines"])
