"""Which analyses run on a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_programs import device_only

from stagespan.pages.result import Unavailable
from stagespan.trace.analysis import analyze


def test_an_unknown_analysis_is_refused(tmp_path: Path) -> None:
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600))
    # THEN it is refused; a single known one runs alone
    with pytest.raises(KeyError, match="no analysis 'idel'"):
        analyze(trace, ["idel"])
    assert list(analyze(trace, ["idle"]).results) == ["idle"]
    assert not isinstance(analyze(trace, ["idle"]).results["idle"], Unavailable)
