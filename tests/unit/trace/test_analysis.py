"""Which analyses run on a trace."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from device_programs import device_only

from stagespan.pages.result import Unavailable
from stagespan.trace.analysis import ANALYSES, ASCEND, analyze, result_types


def test_an_unknown_analysis_is_refused(tmp_path: Path) -> None:
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600))
    # THEN it is refused; a single known one runs alone
    with pytest.raises(KeyError, match="no analysis 'idel'"):
        analyze(trace, ["idel"])
    assert list(analyze(trace, ["idle"]).results) == ["idle"]
    assert not isinstance(analyze(trace, ["idle"]).results["idle"], Unavailable)


def test_results_are_attributes_of_their_types(tmp_path: Path) -> None:
    # GIVEN the classes that the functions of the analyses return
    functions = {
        name: get_args(get_type_hints(each)["return"]) for name, each in (ANALYSES | ASCEND).items()
    }
    # THEN the attributes have them
    assert [name for name, each in functions.items() if result_types()[name] not in each] == []
    # THEN each result is one, and others are missing
    analysis = analyze(device_only(tmp_path, ("gemm", "kernel", 7, 0, 600)))
    for name, result in analysis.results.items():
        assert getattr(analysis, name) is result
        assert isinstance(result, (result_types()[name], Unavailable))
    assert not hasattr(analysis, "ascend_steps")


def test_the_repr_of_an_analysis_is_its_headline(tmp_path: Path) -> None:
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600))
    analysis = analyze(trace)
    assert not isinstance(analysis.verdict, Unavailable)
    assert repr(analysis) == f"<Analysis of {analysis.name()}: {analysis.verdict.sentence}>"
    # THEN a page without sentences says how much there is
    assert repr(analyze(trace, ["launches"])) == (
        f"<Analysis of {analysis.name()}: {analysis.summary()}>"
    )
