"""Faults planted in the look-up of waits."""

from __future__ import annotations

from pathlib import Path

import test_waits
from planted_faults import Fault, each, must_be_found

from stagespan.trace.analysis.waits import Waits

named = test_waits.test_a_dependency_names_what_the_stream_was_told_to_wait_for
earlier = test_waits.test_a_wait_for_earlier_work_of_the_stream_is_not_this_ones

FAULTS: list[Fault] = [
    (Waits.before, "told <= launch", "told > launch", named),
    (Waits.before, "& (told > self", "& (told < self", earlier),
    (Waits._launched_before, "launched < time", "launched > time", earlier),
    (Waits._awaited, "launched <= events", "launched > events", named),
    (Waits._awaited, "record < 0", "record > 0", named),
    (Waits._on_stream, "others == stream", "others != stream", named),
]


@each(FAULTS)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    must_be_found(fault, tmp_path)
