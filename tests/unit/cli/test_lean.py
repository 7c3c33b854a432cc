"""Commands that read traces change nothing that lasts in a process which goes on."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from click_runner import cli_runner
from stagespan.cli import command

TRACE = '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 2}]}'


@pytest.mark.parametrize("threads", [None, "3"])
@pytest.mark.parametrize("verb", ["analyze", "compare"])
@pytest.mark.parametrize("content", [TRACE, "no trace"])
def test_the_collector_and_the_environment_are_as_before(
    verb: str, content: str, threads: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
    thresholds, variables = gc.get_threshold(), dict(os.environ)
    path = tmp_path / "trace.json"
    path.write_text(content)
    paths = [str(path)] * (2 if verb == "compare" else 1)
    done = cli_runner().invoke(command, [verb, *paths])
    assert (done.exit_code == 0) == (content == TRACE), done.output
    assert gc.get_threshold() == thresholds
    assert gc.isenabled()
    assert dict(os.environ) == variables
