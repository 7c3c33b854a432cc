"""Shared by all tests: a clean environment, and a report of what was skipped and why."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that tests in several folders use

import preloaded
import properties
import running

# `make test` draws the same examples in each run, so that it passes or fails for a reason in the
# change. `make test-all` draws new ones; keep an example that failed there with @example.
# Tests do not check speed, so a busy machine must not make a test fail.
settings.register_profile(
    "stagespan",
    deadline=None,
    max_examples=properties.examples(100),
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not properties.FULL,
    print_blob=True,
)
settings.load_profile("stagespan")

# Variables that are set in the user's shell do not reach a test, and no test downloads anything.
_OWN = {
    "STAGESPAN_CLAIMS",
    "STAGESPAN_TEST_FULL",
    "STAGESPAN_TEST_WHEEL",
    "STAGESPAN_TRACES",
    "STAGESPAN_TRACES_MORE",
}
for _name in set(os.environ) - _OWN:
    if _name.startswith(("STAGESPAN_", "TELEFUSER_")) or _name == "ENABLE_PROFILER_NAMES":
        del os.environ[_name]
os.environ["HF_HUB_OFFLINE"] = "1"

_frozen_modules = 0
"""The number of modules that no collection of garbage examines."""


def pytest_configure(config: pytest.Config) -> None:
    """Let the workers share the servers of `preloaded`, and let tests interrupt programs.

    If a shell runs the tests in the background, they ignore interrupts at first.
    """
    if not hasattr(config, "workerinput"):
        preloaded.share()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def programs_of_fixtures() -> Iterator[None]:
    """End the programs that fixtures of modules have started."""
    with running.ending():
        yield


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    """End the programs that a test has started, also if it fails."""
    with running.ending():
        yield


def _freeze() -> None:
    """Exclude all objects that exist now from later collections of garbage."""
    global _frozen_modules
    _frozen_modules = len(sys.modules)
    gc.freeze()


def pytest_collection_finish() -> None:
    """Make the programs that tests start write no bytecode, and collections of garbage short.

    Tests rewrite modules within a second, but Python considers a module's bytecode current if the
    source has the same size and second.
    """
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    _freeze()


def pytest_runtest_logfinish() -> None:
    """Exclude what a test has imported, such as torch's compiler, from later collections."""
    if len(sys.modules) > _frozen_modules + 50:
        gc.collect()
        _freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the parts that tests left out: `record_property("skipped_part", reason)`."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "skipped_part" and report.when == "call":
                    terminalreporter.write_line(f"SKIPPED PART {value}")
