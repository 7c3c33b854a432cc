"""The pytest plugin: the fixture ``stage_bench`` and the mark ``stage_limit``.

A test that measures a stage fails if the stage takes longer than the mark allows, or is slower than
in a baseline file, beyond the tolerance and the noise of both measurements. Before it fails because
of the baseline, it is repeated in a new process.
"""

from __future__ import annotations

import inspect
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from stagespan.report.changes import TimingChange, Tolerance
    from stagespan.report.noise import Times
    from stagespan.report.timed import Timed

_MORE_MEASUREMENTS = 4
_REPEAT_TIMEOUT_S = 600
"""A test that takes longer is not repeated."""
_FIGURES = attrgetter("samples_ms", "disturbed", "fixed_ns", "relative", "cpu_ms", "tracers")
"""What a measurement is made of, as `Times.of` takes it."""
_SHARED = "stagespan_baseline_times"
_SHARED_VERDICTS = "stagespan_verdicts"
_SHARED_COMMAND = "stagespan_command"
_NOT_RUN_BY_A_CALL = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)
_MARK = (
    "stage_limit(ms=None, regress=None, regress_ms=0.01, noise=None): a stage measured with"
    ' stage_bench may take at most "ms" milliseconds, and may be slower than in the baseline by at'
    ' most "regress", such as "5%", or by "regress_ms" milliseconds if that is more; the noise of a'
    ' comparison that does not find it slower may be at most "noise", such as "20%"'
)


class BaselineWarning(UserWarning):
    """A limit was not checked, or was checked against times of another machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the baseline."""
    group = parser.getgroup("stagespan")
    group.addoption(
        "--stage-baseline", metavar="FILE", help="Baseline with which stages are compared."
    )
    group.addoption(
        "--stage-baseline-write",
        action="store_true",
        help="Add the measured times to the file of --stage-baseline instead of comparing them.",
    )
    group.addoption(
        "--stage-baseline-replace",
        action="store_true",
        help="Like --stage-baseline-write, but remove the earlier times of the measured stages.",
    )
    group.addoption(
        "--stage-noise-limit",
        metavar="PERCENT",
        help="Fail a test that compares a stage if its noise is larger, so that it is not known "
        "whether the stage is slower. stage_limit(noise=) sets it for one test. [default: none]",
    )
    group.addoption(
        "--stage-repeats",
        metavar="N",
        type=int,
        default=1,
        help="Number of new processes that repeat a test before it fails because its stage is "
        "slower than in the baseline. [default: 1]",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and the session, which writes the times at the end."""
    config.addinivalue_line("markers", _MARK)
    if config.getoption("--stage-baseline") == "":
        raise pytest.UsageError("--stage-baseline names no file: pass --stage-baseline=FILE.")
    for option in ("--stage-baseline-write", "--stage-baseline-replace"):
        if config.getoption(option) and not config.getoption("--stage-baseline"):
            raise pytest.UsageError(f"{option} needs a file: pass --stage-baseline=FILE.")
    if config.getoption("--stage-repeats") < 0:
        raise pytest.UsageError("--stage-repeats is below 0: pass the number of new processes.")
    if config.getoption("--stage-noise-limit") is not None:
        from stagespan.pages.amounts import share

        try:
            share(config.getoption("--stage-noise-limit"))
        except ValueError as error:
            raise pytest.UsageError(f"--stage-noise-limit: {error}") from None
    session = config.stash[_SESSION] = _Session(config)
    config.pluginmanager.register(session, "stagespan-session")


class _Session:
    """The baseline and the measured times of a test run."""

    def __init__(self, config: pytest.Config) -> None:
        self.path: str | None = config.getoption("--stage-baseline")
        # Tests can change the working directory.
        self._absolute_path = os.path.abspath(self.path or "")
        self.is_replacing = bool(config.getoption("--stage-baseline-replace"))
        self.is_writing = self.is_replacing or bool(config.getoption("--stage-baseline-write"))
        self.noise_limit: str | None = config.getoption("--stage-noise-limit")
        self.repeats: int = config.getoption("--stage-repeats")
        self._command = _command_of(config)
        self.verdicts: dict[str, tuple[str, str]] = {}
        """The verdict and the reason for it, by the key of the measurement.

        While a baseline is written, only of times whose noise hides the tolerance.
        """
        self.measured: dict[str, Times] = {}
        self.sentences: list[str] = []
        self._baseline: Timed | None = None

    @property
    def baseline(self) -> Timed | None:
        """The baseline with which stages are compared. It is read once; a test fails without it."""
        if self.path is None or self.is_writing:
            return None
        if self._baseline is None:
            from stagespan.device.environment import machine
            from stagespan.errors import ReportError
            from stagespan.report.baseline import read_baseline
            from stagespan.report.differences import machine_differences

            try:
                self._baseline = read_baseline(self._absolute_path)
            except ReportError as error:
                _fail(f"--stage-baseline: {error}")
            for difference in machine_differences(self._baseline.environment, machine()):
                warnings.warn(f"{self.path}: {difference}", BaselineWarning, stacklevel=2)
        return self._baseline

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the baseline. A worker of pytest-xdist sends its times to the main process."""
        shared = getattr(session.config, "workeroutput", None)
        if shared is not None:
            shared[_SHARED_VERDICTS] = self.verdicts
            shared[_SHARED] = {name: _FIGURES(times) for name, times in self.measured.items()}
        elif self.is_writing and not self.measured:
            self.sentences = ["no measurements were written: no test has measured a stage"]
        elif self.is_writing:
            from stagespan.errors import ReportError
            from stagespan.report.baseline import disturbance, traced, write_baseline

            try:
                self.sentences = write_baseline(
                    self._absolute_path, self.measured, replace=self.is_replacing
                )
            except ReportError as error:
                self.sentences = [f"no measurements were written: {error}"]
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
                return
            self.sentences.append(f"measurements written to {self.path}: {len(self.measured)}")
            warnings_ = (disturbance(self.measured), traced(self.measured))
            self.sentences += [warning for warning in warnings_ if warning is not None]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of pytest-xdist the command of this process, which repeats its tests."""
        node.workerinput[_SHARED_COMMAND] = self._command

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Add the times that a worker of pytest-xdist has measured."""
        from stagespan.report.noise import Times

        output = getattr(node, "workeroutput", {})
        self.verdicts.update(output.get(_SHARED_VERDICTS, {}))
        shared = output.get(_SHARED, {})
        for name, figures in shared.items():
            self.measured[name] = Times.of(*figures)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Report the written file, or the verdicts of the compared stages."""
        for sentence in (*self.sentences, *self._summary()):
            terminalreporter.write_line(f"stagespan: {sentence}")

    def _summary(self) -> list[str]:
        """Return the number of stages with each verdict, and a line for each that is not known."""
        if not self.verdicts:
            return []
        if self.is_writing:
            return [
                f"warning: this session of {key} alone cannot show a change: {reason}; add sessions"
                for key, (_, reason) in sorted(self.verdicts.items())
            ]
        from stagespan.report.changes import WORDS

        found = [verdict for verdict, _ in self.verdicts.values()]
        counts = [f"{found.count(v)} {word}" for v, word in WORDS.items() if v in found]
        return [
            f"compared with {self.path}: {', '.join(counts)}",
            *(
                f"not known whether {key} is slower: {reason}"
                for key, (verdict, reason) in sorted(self.verdicts.items())
                if verdict == "unknown"
            ),
        ]

    def measure_again(self, item: pytest.Item, key: str) -> Times | str:
        """Run a test in a new process. Returns the times of a measurement, or why there are none.

        The process gets the options of this one, but a cache and temporary folders of its own.
        """
        from stagespan.errors import ReportError
        from stagespan.report.baseline import read_baseline

        arguments, folder = self._command
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST_")}
        has = item.config.pluginmanager.hasplugin
        with tempfile.TemporaryDirectory(prefix="stagespan-repeat-") as name:
            test_folder = Path(name)
            command = [
                *(sys.executable, "-m", "pytest", *arguments),
                *(f"--rootdir={item.config.rootpath}", "-o", f"cache_dir={test_folder / 'cache'}"),
                # pytest empties a folder that --basetemp names, and a log file.
                *([f"--basetemp={test_folder / 'tmp'}"] if has("tmpdir") else []),
                *([f"--log-file={os.devnull}"] if has("logging") else []),
                *(["-n0"] if has("xdist") else []),
                *(f"--stage-baseline={test_folder / 'times.json'}", "--stage-baseline-replace"),
                str(item.config.rootpath / item.nodeid),
            ]
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=_REPEAT_TIMEOUT_S,
                    check=False,
                )
                times = read_baseline(test_folder / "times.json").times.get((key, None))
            except subprocess.TimeoutExpired:
                return f"it took more than {_REPEAT_TIMEOUT_S} s"
            except OSError as error:
                return f"it did not start: {error.strerror or error}"
            except ReportError:
                times = None
        return times or f"it measured nothing, and its exit status was {done.returncode}"


def _command_of(config: pytest.Config) -> tuple[list[str], str]:
    """Return the options of this test run, without the selected tests, and its folder."""
    shared = getattr(config, "workerinput", {}).get(_SHARED_COMMAND)
    if shared is not None:
        return list(shared[0]), str(shared[1])
    arguments = [str(argument) for argument in config.invocation_params.args]
    # pytest --help ends the parsing of the command before the selected tests.
    for selected in reversed(getattr(config.option, "file_or_dir", None) or ()):
        if selected in arguments:  # not if it comes from addopts
            # The last one, because an option before it can have the same value.
            del arguments[len(arguments) - 1 - arguments[::-1].index(selected)]
    return arguments, str(config.invocation_params.dir)


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """After a test has passed: fail it if it has limits but measured nothing."""
    session = item.config.stash[_SESSION]
    if item.get_closest_marker("stage_limit") is None:
        return
    if not any(f"{key}[".startswith(f"{item.nodeid}[") for key in session.measured):
        _fail(f"{item.nodeid} has a stage_limit but measured nothing: call stage_bench in it.")


_SESSION = pytest.StashKey[_Session]()


class StageBench:
    """Measures stages in a test, and checks the limits of the test's mark."""

    def __init__(self, item: pytest.Item, session: _Session) -> None:
        self._item = item
        self._session = session
        self._keys: set[str] = set()

    def __call__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        name: str | None = None,
        most_seconds: float | None = None,
        **keywords: Any,
    ) -> Times:
        """Measure ``function(*arguments, **keywords)`` and check the limits.

        Args:
            function: Runs the stage once. It is run at least 25 times, unless that takes more than
                six times ``most_seconds``.
            *arguments: Its arguments.
            name: Distinguishes several measurements in one test.
            most_seconds: Time after which a measurement ends, by default 5 s.
            **keywords: Its keyword arguments.

        Returns:
            The times: ``median_ms``, ``quartiles_ms``, ``samples_ms``, ``count``.
        """
        from stagespan.report.measure import MOST_SECONDS, measure, pooled

        key = self._new_key(name)
        seconds = MOST_SECONDS if most_seconds is None else _number(most_seconds)
        if seconds is None or not 0 < seconds < math.inf:
            _fail(f"{key}: most_seconds={most_seconds!r} is not a time in seconds above 0.")
        if not callable(function):
            _fail(f"{key}: {function!r} cannot be called: pass a function and its arguments.")
        if any(is_kind(function) for is_kind in _NOT_RUN_BY_A_CALL):
            _fail(
                f"{key}: a call of {function!r} does not run it, but returns a coroutine or"
                " generator: pass a function that also awaits or consumes it."
            )
        run = partial(function, *arguments, **keywords)
        times = measure(run, most_seconds=seconds)
        measurements = [times]
        for _ in range(_MORE_MEASUREMENTS):
            is_baseline = self._session.is_writing and times.disturbed
            if not is_baseline and self._is_clear(key, times):
                break
            # A stage that has not changed is slow while the machine is busy, so measure again.
            measurements.append(measure(run, most_seconds=seconds))
            times = pooled(measurements)
        return self._check(times, key)

    def check(self, samples_ms: Iterable[float], *, name: str | None = None) -> Times:
        """Check the limits for other times, such as those of a replay.

        The test fails if there are no times, or if one of them is negative or not finite.
        """
        from stagespan.report.noise import Times

        key = self._new_key(name)
        if not isinstance(samples_ms, Iterable):
            _fail(f"{key} cannot be checked: {samples_ms!r} is not a list of times in ms.")
        samples = []
        for value in samples_ms:
            sample = _number(value)
            if sample is None or not 0 <= sample < math.inf:
                _fail(f"{key} cannot be checked: {value!r} is not a time in ms.")
            samples.append(sample)
        if not samples:
            _fail(f"{key} cannot be checked: there are no times.")
        return self._check(Times.of(samples), key)

    def _new_key(self, name: str | None) -> str:
        """Return the key of a measurement. Fails if two would be compared with the same times."""
        key = self._item.nodeid if name is None else f"{self._item.nodeid}[{name}]"
        if self._limits.get("regress") is not None and key in self._keys:
            _fail(f"{key} is measured twice: pass another name= to stage_bench.")
        self._keys.add(key)
        return key

    def _check(self, times: Times, key: str) -> Times:
        self._session.measured[key] = times
        problem = self._above_limit(key, times)
        if problem is not None:
            _fail(problem)
        at_most_ms = self._limits.get("ms")
        if times.tracers and at_most_ms is not None and times.median_ms > at_most_ms:
            warnings.warn(
                f"{key} takes more than {at_most_ms:,.3f} ms, but it is not known how long it takes"
                f" by itself: {' and '.join(times.tracers)} was active.",
                BaselineWarning,
                stacklevel=3,
            )
        is_limited = self._limits.get("regress") is not None
        if is_limited and self._session.path is None:
            warnings.warn(
                f"{key} was not compared: pass --stage-baseline=FILE.",
                BaselineWarning,
                stacklevel=3,
            )
        if is_limited and self._session.is_writing:
            self._check_noise(key, times)
        elif is_limited and self._session.baseline is not None:
            self._compare(key, times)
        for sentence in self._speed_differences(key, times) if is_limited else ():
            warnings.warn(f"{self._session.path}: {sentence}", BaselineWarning, stacklevel=3)
        return times

    def _check_noise(self, key: str, times: Times) -> None:
        """Note times of a baseline whose own noise hides the tolerance."""
        from stagespan.report.changes import judge

        change = judge(key, times, times, self._tolerance(), same_speed_unit=True)
        if change.verdict == "unknown":
            self._session.verdicts[key] = (change.verdict, change.reason)

    def _above_limit(self, key: str, times: Times) -> str | None:
        """Return a sentence if the times exceed the limit in milliseconds, or None."""
        at_most_ms = self._limits.get("ms")
        if at_most_ms is None or times.median_ms <= at_most_ms or times.tracers:
            return None  # with tracers, the stage's own time is not known
        return (
            f"{key} takes {times.median_ms:,.3f} ms (median of {times.count} runs), more than"
            f" the limit of {at_most_ms:,.3f} ms."
        )

    def _compare(self, key: str, times: Times) -> None:
        """Compare with the baseline. Fails, after a repetition, if the stage is slower."""
        change = self._change(key, times)
        if change is None:
            _fail(
                f"{key} is not in the baseline {self._session.path}: add it with"
                " --stage-baseline-write."
            )
        for _ in range(self._session.repeats):
            if self._problem(key, times, change) is None:
                break
            times, change = self._repeated(key, times, change)
        self._session.verdicts[key] = (change.verdict, change.reason)
        problem = self._problem(key, times, change)
        if problem is not None:
            _fail(problem)

    def _repeated(self, key: str, times: Times, change: TimingChange) -> tuple[Times, TimingChange]:
        """Return the times and the change with those of the test in a new process."""
        from stagespan.report.noise import Times

        fresh = self._session.measure_again(self._item, key)
        if isinstance(fresh, str):
            reason = f"{change.reason} (not repeated in a new process: {fresh})"
            return times, replace(change, reason=reason)
        times = Times.of_sessions((*times.each_session, *fresh.each_session))
        self._session.measured[key] = times
        return times, self._change(key, times) or change

    def _problem(self, key: str, times: Times, change: TimingChange) -> str | None:
        """Return a sentence about why a comparison fails the test, or None."""
        from stagespan.pages.amounts import percent, share

        if change.verdict == "slower":
            speed = "".join(f" {sentence}" for sentence in self._speed_differences(key, times))
            bounds = f" ({change.bounds})" if change.bounds else ""
            return (
                f"{key} takes {change.after_ms:,.3f} ms, {change.change or 0:+.1%} against the"
                f" baseline's {change.before_ms:,.3f} ms{bounds}: {change.reason}.{speed}"
            )
        limit = self._limits.get("noise")
        if limit is None and self._session.noise_limit is not None:
            limit = share(self._session.noise_limit)
        if limit is None or not change.exceeds_noise(limit):
            return None
        if change.tracers:
            return f"{key} cannot be compared: {change.reason}. Run the test without it."
        noise = "is not known" if change.noise is None else f"is {percent(change.noise)}"
        return (
            f"{key} cannot be compared: the noise {noise}, but the limit of the noise is"
            f" {percent(limit)}. Measure it on a calmer machine or for longer (most_seconds=), or"
            " add sessions to the baseline with --stage-baseline-write."
        )

    @cached_property
    def _limits(self) -> dict[str, Any]:
        from stagespan.pages.amounts import milliseconds, share

        mark = self._item.get_closest_marker("stage_limit")
        limits = dict(mark.kwargs) if mark is not None else {}
        parse = {"ms": milliseconds, "regress": share, "regress_ms": milliseconds, "noise": share}
        unknown = sorted(limits.keys() - parse.keys())
        if unknown or (mark is not None and mark.args):
            wrong = ", ".join([*map(repr, mark.args if mark else ()), *(f"{n}=" for n in unknown)])
            _fail(f"stage_limit takes ms=, regress=, regress_ms= and noise=, not {wrong}.")
        try:
            return {key: parse[key](value) for key, value in limits.items() if value is not None}
        except ValueError as error:
            _fail(f"stage_limit: {error}")

    def _is_clear(self, key: str, times: Times) -> bool:
        """Whether the times are within all limits, and precise enough to be sure."""
        if self._above_limit(key, times) is not None:
            return False
        limits = self._limits
        change = None if limits.get("regress") is None else self._change(key, times)
        if change is None:
            return True
        if self._problem(key, times, change) is not None:
            return False
        return bool(change.tracers) or not change.exceeding(self._tolerance())

    def _tolerance(self) -> Tolerance:
        from stagespan.report.changes import Tolerance

        limits = self._limits
        return Tolerance(limits["regress"], limits.get("regress_ms", Tolerance.absolute_ms))

    def _change(self, key: str, times: Times) -> TimingChange | None:
        """Return the change against the baseline; None without one, or if it lacks the stage.

        If the processor's speed decides the times, they are compared at one speed, because it
        changes on many machines.
        """
        from stagespan.device.environment import machine
        from stagespan.report.changes import judge_repeated
        from stagespan.report.differences import have_same_speed_unit

        baseline = self._session.baseline
        before = None if baseline is None else baseline.times.get((key, None))
        if baseline is None or before is None:
            return None
        same_unit = have_same_speed_unit(baseline.environment, machine())
        return judge_repeated(key, before, times, self._tolerance(), same_speed_unit=same_unit)

    def _speed_differences(self, key: str, times: Times) -> list[str]:
        """Return sentences if the processor's speed has changed and the times depend on it."""
        from stagespan.device.environment import machine
        from stagespan.report.changes import TimingChange
        from stagespan.report.differences import speed_differences

        baseline = self._session.baseline
        if baseline is None or (key, None) not in baseline.times:
            return []
        if times.relative and baseline.times[key, None].relative:
            return []  # they are compared at one speed
        change = TimingChange(key, None, "same", baseline.times[key, None], times)
        sides = ("for the baseline", "now")
        ratios = {} if change.slowdown is None else {key: change.slowdown}
        return speed_differences(ratios, baseline.environment, machine(), sides)


@pytest.fixture
def stage_bench(request: pytest.FixtureRequest) -> StageBench:
    """Measure a stage and check the limits of `stage_limit`: ``stage_bench(function, *args)``."""
    return StageBench(request.node, request.config.stash[_SESSION])


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _fail(sentence: str) -> NoReturn:
    # Not pytest.fail(): in an except block, it would also print the exception that is handled.
    raise pytest.fail.Exception(sentence, pytrace=False) from None
