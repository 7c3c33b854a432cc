"""Separate programs, and a process without settings, for the tests of settings and runs."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from running import ran
from stagespan import settings
from stagespan.process import run


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all variables, everything set by calls, and the record of warnings."""
    for variable in settings.VARIABLES:
        for spelling in (variable.name, *variable.aliases):
            monkeypatch.delenv(spelling, raising=False)
    for spelling in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(spelling, raising=False)
    monkeypatch.setattr(run, "_output_dir", None)
    monkeypatch.setattr(run, "_pipeline_name", None)
    monkeypatch.setattr(settings, "_warned", set())


def python(code: str, *, cwd: Path, **variables: str) -> dict[str, object]:
    """Run ``code`` in a fresh interpreter and read the JSON that it prints last."""
    environment = {k: v for k, v in os.environ.items() if "STAGESPAN" not in k}
    done = ran(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        env={**environment, **variables},
        status=0,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer
