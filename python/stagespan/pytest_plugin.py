"""The pytest plugin: the fixture ``stage_bench`` and the mark ``stage_limit``.

A test that measures a stage fails if the stage takes longer than the mark allows, or is slower than
in a baseline file, beyond the tolerance and the noise of both measurements.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from stagespan.report.changes import Timed, Tolerance
    from stagespan.report.noise import Times

_MORE_MEASUREMENTS = 2
_SHARED = "stagespan_baseline_times"
_MARK = (
    'stage_limit(ms=None, regress=None): a stage measured with stage_bench may take at most "ms"'
    ' milliseconds, and may be slower than in the baseline by at most "regress", such as "5%"'
)


class BaselineWarning(UserWarning):
    """A limit was not checked, or was checked by times of another machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the baseline."""
    group = parser.getgroup("stagespan")
    group.addoption("--stage-baseline", metavar="FILE", help="Baseline that stages are judged by.")
    group.addoption(
        "--stage-baseline-write",
        action="store_true",
        help="Write what is measured to the file of --stage-baseline, and judge nothing by it.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and what is written at the end."""
    config.addinivalue_line("markers", _MARK)
    if config.getoption("--stage-baseline-write") and not config.getoption("--stage-baseline"):
        raise pytest.UsageError("--stage-baseline-write needs a file: pass --stage-baseline=FILE.")
    config.pluginmanager.register(_Session(config), "stagespan-session")


class _Session:
    """The baseline of a test run, and what was measured."""

    def __init__(self, config: pytest.Config) -> None:
        self.path: str | None = config.getoption("--stage-baseline")
        self.is_writing = bool(config.getoption("--stage-baseline-write"))
        self.measured: dict[str, Times] = {}
        self.sentences: list[str] = []
        self._baseline: Timed | None = None

    @property
    def baseline(self) -> Timed | None:
        """The baseline that stages are judged by; read once."""
        if self.path is None or self.is_writing:
            return None
        if self._baseline is None:
            from stagespan.report.baseline import read_baseline
            from stagespan.report.changes import machine_differences
            from stagespan.report.environment import machine

            self._baseline = read_baseline(self.path)
            for difference in machine_differences(self._baseline.environment, machine()):
                warnings.warn(f"{self.path}: {difference}", BaselineWarning, stacklevel=2)
        return self._baseline

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the baseline; a worker of pytest-xdist hands its times to the main process."""
        shared = getattr(session.config, "workeroutput", None)
        if shared is not None:
            shared[_SHARED] = {
                name: (list(times.samples_ms), times.disturbed)
                for name, times in self.measured.items()
            }
        elif self.is_writing and self.measured and self.path is not None:
            from stagespan.errors import ReportError
            from stagespan.report.baseline import write_baseline

            try:
                self.sentences = write_baseline(self.path, self.measured)
            except ReportError as error:
                self.sentences = [f"no measurements were written: {error}"]
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
                return
            self.sentences.append(f"measurements written to {self.path}: {len(self.measured)}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Take over what a worker of pytest-xdist has measured."""
        from stagespan.report.noise import Times

        shared = getattr(node, "workeroutput", {}).get(_SHARED, {})
        for name, (samples, disturbed) in shared.items():
            self.measured[name] = Times.of(samples, disturbed)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what was written."""
        for sentence in self.sentences:
            terminalreporter.write_line(f"stagespan: {sentence}")


class StageBench:
    """Measures stages in a test, and holds them to the limits of the test's mark."""

    def __init__(self, item: pytest.Item, session: _Session) -> None:
        self._item = item
        self._session = session

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
            function: Runs the stage once. It is run at least 25 times.
            *arguments: Its arguments.
            name: Tells the measurements of one test apart, if there are several.
            most_seconds: How long the measurement takes at most, 5 s by default.
            **keywords: Its keyword arguments.

        Returns:
            The times: ``median_ms``, ``quartiles_ms``, ``samples_ms``, ``count``.
        """
        from stagespan.report.measure import MOST_SECONDS, measure
        from stagespan.report.noise import Times

        seconds = MOST_SECONDS if most_seconds is None else most_seconds
        run = partial(function, *arguments, **keywords)
        times = measure(run, most_seconds=seconds)
        for _ in range(_MORE_MEASUREMENTS):
            is_baseline = self._session.is_writing and times.disturbed
            if not is_baseline and self._is_clear(self._key(name), times):
                break
            # A machine that is busy for a while makes an unchanged stage slow for a while.
            more = measure(run, most_seconds=seconds)
            disturbed = None if times.disturbed is None else times.disturbed or more.disturbed
            times = Times.of((*times.samples_ms, *more.samples_ms), disturbed)
        return self._check(times, name)

    def check(self, samples_ms: Iterable[float], *, name: str | None = None) -> Times:
        """Check the limits for times that were measured elsewhere, such as a replay's."""
        from stagespan.report.noise import Times

        return self._check(Times.of([float(sample) for sample in samples_ms]), name)

    def _key(self, name: str | None) -> str:
        return self._item.nodeid if name is None else f"{self._item.nodeid}[{name}]"

    def _check(self, times: Times, name: str | None) -> Times:
        key = self._key(name)
        self._session.measured[key] = times
        problem = self._problem(key, times)
        if problem is not None:
            _fail(problem)
        return times

    def _problem(self, key: str, times: Times) -> str | None:
        """Which limit the times exceed, as a sentence; None if they keep all of them."""
        limits = self._limits()
        at_most_ms = limits.get("ms")
        if at_most_ms is not None and times.median_ms > at_most_ms:
            return (
                f"{key} takes {times.median_ms:,.3f} ms (median of {times.count} runs), more than"
                f" the limit of {at_most_ms:,.3f} ms."
            )
        return None if limits.get("regress") is None else self._regress(key, times, limits)

    def _limits(self) -> dict[str, Any]:
        from stagespan.report.amounts import milliseconds, share

        mark = self._item.get_closest_marker("stage_limit")
        given = dict(mark.kwargs) if mark is not None else {}
        unknown = sorted(given.keys() - {"ms", "regress", "regress_ms"})
        if unknown or (mark is not None and mark.args):
            _fail(f"stage_limit takes ms=, regress= and regress_ms=, not {unknown or mark}.")
        parse = {"ms": milliseconds, "regress": share, "regress_ms": milliseconds}
        try:
            return {key: parse[key](value) for key, value in given.items() if value is not None}
        except ValueError as error:
            _fail(f"stage_limit: {error}")

    def _is_clear(self, key: str, times: Times) -> bool:
        """Whether the times keep all limits, and not only because they are too noisy to tell."""
        if self._problem(key, times) is not None:
            return False
        from stagespan.report.changes import judge

        baseline, limits = self._baseline(), self._limits()
        before = None if baseline is None else baseline.times.get((key, None))
        if before is None or limits.get("regress") is None:
            return True
        tolerance = self._tolerance(limits)
        change = judge(key, before, times, tolerance)
        limit_ms = tolerance.limit_ms(change.before_ms or 0.0)
        return (change.change_ms or 0.0) <= limit_ms

    def _baseline(self) -> Timed | None:
        from stagespan.errors import ReportError

        try:
            return self._session.baseline
        except ReportError as error:
            _fail(f"--stage-baseline: {error}")

    @staticmethod
    def _tolerance(limits: dict[str, Any]) -> Tolerance:
        from stagespan.report.changes import Tolerance

        return Tolerance(limits["regress"], limits.get("regress_ms", Tolerance.absolute_ms))

    def _regress(self, key: str, times: Times, limits: dict[str, Any]) -> str | None:
        from stagespan.report.changes import judge

        baseline = self._baseline()
        if baseline is None:
            if not self._session.is_writing:
                warnings.warn(
                    f"{key} was not compared: pass --stage-baseline=FILE.",
                    BaselineWarning,
                    stacklevel=3,
                )
            return None
        before = baseline.times.get((key, None))
        if before is None:
            _fail(
                f"{key} is not in the baseline {self._session.path}: add it with"
                " --stage-baseline-write."
            )
        change = judge(key, before, times, self._tolerance(limits))
        if change.verdict != "slower":
            return None
        return (
            f"{key} takes {change.after_ms:,.3f} ms, {change.change or 0:+.1%} against the"
            f" baseline's {change.before_ms:,.3f} ms: {change.reason}."
        )


@pytest.fixture
def stage_bench(request: pytest.FixtureRequest) -> StageBench:
    """Measure a stage and check the limits of `stage_limit`: ``stage_bench(function, *args)``."""
    session: _Session = request.config.pluginmanager.getplugin("stagespan-session")
    return StageBench(request.node, session)


def _fail(sentence: str) -> NoReturn:
    pytest.fail(sentence, pytrace=False)
