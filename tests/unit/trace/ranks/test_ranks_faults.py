"""The analysis of ranks with a fault planted in it: its tests show it."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_ranks as planted
import test_ranks_bad_input as bad
import test_ranks_groups as grouped
import test_ranks_late as lateness
import test_ranks_merge as merged
import test_ranks_npu as npus
from planted_faults import Fault, each, must_be_found

from stagespan.trace.ranks import (
    clocks,
    collectives,
    folder,
    groups,
    late,
    match,
    merge,
    npu,
    usage,
    waits,
    words,
)

aligned = planted.test_clocks_are_aligned_by_ends_of_collectives
straggler = planted.test_a_straggler
shifted = planted.test_windows_that_begin_at_another_collective
beside = planted.test_waiting_beside_computing_is_not_lost
apart = planted.test_groups_are_matched_apart
imbalance = planted.test_imbalance_of_computing
late_ends = planted.test_some_ends_are_late
one_host = planted.test_one_host_has_one_clock
in_turn = planted.test_ranks_that_come_last_in_turn_are_no_stragglers
disagree = planted.test_collectives_that_do_not_agree_are_not_matched
sends = planted.test_sends_between_two_ranks_are_left_out
elsewhen = bad.test_a_rank_recorded_at_another_time
stages = bad.test_several_stages_of_each_rank
several = bad.test_several_files_of_a_rank
jobs = bad.test_traces_of_other_jobs
missing = bad.test_missing_ranks_are_named
one_clock = merged.test_every_event_on_one_clock
no_id = merged.test_no_id_is_shared
sorted_by_rank = merged.test_processes_are_named_and_sorted_by_rank

custom = lateness.test_communication_of_other_libraries_is_matched
races = lateness.test_who_sleeps_once_a_step_is_named_beside_many_short_races
later = lateness.test_a_rank_whose_step_begins_later
second = lateness.test_later_steps_are_compared_from_the_collective_before
computes = lateness.test_a_rank_that_computes_longer
chart = lateness.test_the_chart_equals_the_table
absent = npus.test_ranks_that_wait_for_missing_ones
tables = npus.test_ranks_of_tables_alone
with_kernels = npus.test_a_rank_with_its_kernels_tells_what_it_computed
no_transit = npus.test_a_transit_of_nothing_says_nothing


def members(folder: Path) -> None:
    grouped.test_the_collectives_name_missing_ranks({"Process Group Ranks": "[0, 1, 2]"}, folder)


FAULTS: list[Fault] = [
    (clocks._relaxed, "offset += step", "offset -= step", aligned),
    (clocks._relaxed, "np.median(each) if", "np.mean(each) if", late_ends),
    (clocks._residuals, "end - offset", "end + offset", aligned),
    (clocks.align, "== count > 1", "== count > 9", one_host),
    (clocks.align, "- np.median(each)", "- 1e6", aligned),
    (waits.waits, "latest - begin, 0", "begin - latest, 0", straggler),
    (waits.waits, "wait - block.computed_in_ns", "wait", beside),
    (waits.waits, "np.minimum(late, idle", "np.maximum(late, idle", beside),
    (waits.waits, "order[-1], order[-2]", "order[-1], order[0]", straggler),
    (waits.waits, "np.argmax(come", "np.argmin(come", straggler),
    (waits.waits, "block.begin_ns - clocks", "block.begin_ns + clocks", aligned),
    (waits._widen, "at[-1]] - block.computed_ns", "at[-1]] + block.computed_ns", imbalance),
    (match._shift, "base_end[low:high]\n", "base_end[:high - low]\n", shifted),
    (match._shift, "< _LEAST_ALIKE", "> 2", disagree),
    (match._at_one_time, "return spread <=", "return True or spread <=", elsewhen),
    (match._block, "slice(shift - first,", "slice(0 * first,", shifted),
    (match.match, "(found.group == group) &", "", apart),
    (match.match, "& ~private", "", sends),
    (collectives.work_of, "kind == COMPUTE", "kind == COMMUNICATION", imbalance),
    (
        collectives.work_of,
        "np.where(custom_communication(trace), COMMUNICATION, work.kind)",
        "work.kind",
        custom,
    ),
    (late._of_columns, "np.where(initial, of_step,", "np.where(initial, took,", later),
    (
        late._of_columns,
        "busy = block.busy_ns[:, at] - block.busy_ns[:, before] - ran",
        "busy = block.busy_ns[:, at] - block.busy_ns[:, before]",
        computes,
    ),
    (
        late._of_columns,
        "shown = computing_known[:, np.newaxis] & computing_known[last]",
        "shown = True",
        tables,
    ),
    (late._in_first_step, "(step <= 1)", "(step <= 9)", second),
    (waits._still, "- block.transit_ns", "", absent),
    (waits._positions, "number + 1 if step == last else 0", "number + 1", races),
    (groups._of_ranks, "int(each) + 1", "int(each)", members),
    (npu.collectives_of_files, "e.begin_ns + e.elapse_ns", "e.begin_ns", tables),
    (npu.collectives_of_files, "e.transit_ns or -1", "e.transit_ns", no_transit),
    (usage.usage_of, "talk - compute", "talk", chart),
    (words._late, "by_chance > _CHANCE", "by_chance < _CHANCE", straggler),
    (words._late, "by_chance > _CHANCE", "by_chance > 1", in_turn),
    (folder._one_of_each, "abs(each.begin_ns - about))", "-abs(each.begin_ns - about))", several),
    (folder._one_of_each, "-len(of_name[_stage(each)])", "0", stages),
    (folder._one_job, "len(ranks[size]), size", "-len(ranks[size]), size", jobs),
    (folder.ranks_of, "- set(numbers)", "", missing),
    (merge._Rank._rewrite, "time + shift_ns", "time - shift_ns", one_clock),
    (merge._Rank._id, "value + self._move", "value", no_id),
    (merge._Rank._process, "numbers.process += 1", "numbers.process = 1", no_id),
    (merge._Rank._thread, "numbers.thread += 1", "numbers.thread = 1", no_id),
    (merge._Rank._about_processes, "self._rank * _PER_RANK", "-self._rank", sorted_by_rank),
    (merge._time_ns, 'rest.ljust(3, b"0")', "rest", one_clock),
]


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@each(FAULTS)
def test_a_fault_in_the_ranks_is_found(fault: Fault, tmp_path: Path) -> None:
    must_be_found(fault, tmp_path)
