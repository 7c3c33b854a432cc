"""Faults planted in the look-up of waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import pytest
import test_planted_faults as planted_faults
import test_waits

from stagespan.trace.analysis.waits import Waits

named = test_waits.test_a_dependency_names_what_the_stream_was_told_to_wait_for
earlier = test_waits.test_a_wait_for_earlier_work_of_the_stream_is_not_this_ones

FAULTS: list[tuple[FunctionType, str, str, Callable[[Path], None]]] = [
    (Waits.before, "told <= launch", "told > launch", named),
    (Waits.before, "& (told > self", "& (told < self", earlier),
    (Waits._launched_before, "launched < time", "launched > time", earlier),
    (Waits._awaited, "launched <= events", "launched > events", named),
    (Waits._awaited, "record < 0", "record > 0", named),
    (Waits._on_stream, "others == stream", "others != stream", named),
]


@pytest.mark.parametrize(
    ("function", "right", "wrong", "scenario"), FAULTS, ids=[wrong for _, _, wrong, _ in FAULTS]
)
def test_a_planted_fault_is_found(
    function: FunctionType,
    right: str,
    wrong: str,
    scenario: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    planted_faults.test_a_planted_fault_is_found(function, right, wrong, scenario, tmp_path)
