"""What all tests share: a clean environment, and a list of what was skipped and why."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test is about speed: a busy machine must not make one fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Nothing that the user has switched on in his shell reaches a test, and no test downloads.
for _name in set(os.environ) - {"STAGESPAN_TEST_SKIPS", "STAGESPAN_TEST_WHEEL", "STAGESPAN_TRACES"}:
    if _name.startswith(("STAGESPAN_", "TELEFUSER_")) or _name == "ENABLE_PROFILER_NAMES":
        del os.environ[_name]
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the reasons of skips, with their counts, where `make test` asks for them."""
    target = os.environ.get("STAGESPAN_TEST_SKIPS")
    if not target:
        return
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    for reports in terminalreporter.stats.values():
        for report in reports:
            # A test may leave out a part of itself: record_property("skipped_part", reason).
            for name, value in getattr(report, "user_properties", ()):
                if name == "skipped_part":
                    reasons[str(value)] += 1
    Path(target).write_text(json.dumps(reasons))
