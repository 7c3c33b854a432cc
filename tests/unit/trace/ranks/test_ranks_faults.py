"""The analysis of ranks with a fault planted in it: its tests show it."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_ranks as planted
import test_ranks_bad_input as bad
import test_ranks_merge as merged
from planted_faults import Fault, each, must_be_found

from stagespan.trace.ranks import clocks, collectives, folder, match, merge, waits, words

aligned = planted.test_clocks_are_aligned_by_ends_of_collectives
straggler = planted.test_a_straggler
shifted = planted.test_windows_that_begin_at_another_collective
beside = planted.test_waiting_beside_computing_is_not_lost
groups = planted.test_groups_are_matched_apart
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
    (match.match, "(found.group == group) &", "", groups),
    (match.match, "& ~private", "", sends),
    (collectives.collectives, "COMPUTE)", "COMMUNICATION)", imbalance),
    (words._stragglers, "by_chance > _CHANCE", "by_chance < _CHANCE", straggler),
    (words._stragglers, "by_chance > _CHANCE", "by_chance > 1", in_turn),
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
