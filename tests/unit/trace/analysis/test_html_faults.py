"""The HTML page with a fault planted in what makes it: a test of the page shows each."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_html_page as pages
import test_html_pictures as drawn
import test_screen
from planted_faults import Fault, each, must_be_found

from stagespan.trace.analysis import facts, html, terminal
from stagespan.trace.analysis.html import data, lanes, pictures

pytest.importorskip("plotly", reason="plotly, whose charts the page has, is not installed")


def cells(_: Path) -> None:
    pages.test_figures_that_json_or_a_browser_lacks()


def long_tables(_: Path) -> None:
    pages.test_long_tables_are_cut_and_say_so()


def stretches(_: Path) -> None:
    pages.test_a_lane_is_parted_at_its_largest_gaps()


def many_bars(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        many(folder, patch)


def small_screen(folder: Path) -> None:
    test_screen.test_a_trace_with_every_analysis_fits(24, 80, folder)


hostile = pages.test_hostile_names_stay_in_the_data
scripts = pages.test_only_the_scripts_of_the_page_may_run
everything = pages.test_everything_that_was_found_is_in_the_page
timeline = pages.test_the_timeline_has_every_lane_and_its_times
many = pages.test_of_more_events_than_a_page_holds_no_time_is_lost
figures = drawn.test_pictures_hold_the_figures_of_the_analyses
change = drawn.test_a_change_is_drawn_from_before_to_after
a_line_each = test_screen.test_where_there_is_room_each_analysis_has_a_line

FAULTS: list[Fault] = [
    # (function, what stands in it, what is put there, the test that must fail)
    (html._json, '"\\\\u003c"', '"<"', hostile),
    (html.filled, "default-src 'none';", "", scripts),
    (html.filled, "{_sha256(script)}", "{_sha256(script + ' ')}", scripts),
    (data._cell, "not math.isfinite", "math.isfinite", cells),
    (data._cell, "abs(cell) >= _EXACT", "abs(cell) < _EXACT", cells),
    (data.written_table, "table.rows[:MOST_ROWS]", "table.rows", long_tables),
    (data._device, "if time]", "if not time]", everything),
    (data.written_finding, "each.time_ns", "None", everything),
    (lanes.summed_up, "begin - end, of", "end - begin, of", stretches),
    (lanes.summed_up, "most - 1]) + 1", "most - 1])", stretches),
    (lanes._several, "int(bars.count[at])", "1", many_bars),
    (lanes._several, "bars.of * kinds + key", "bars.of * kinds", many_bars),
    (lanes._part, "bars.end - bars.begin", "bars.end", timeline),
    (lanes._idle, "gaps.begin_ns - window", "gaps.begin_ns + window", timeline),
    (lanes._streams, "number_of[work.kind[here]]", "0 * work.kind[here]", timeline),
    (lanes._annotations, "~is_step[events", "is_step[events", timeline),
    (lanes._of_events, "events.begin_ns[rows] - window", "events.begin_ns[rows]", timeline),
    (pictures._flame, "(child, number,", "(child, parent,", figures),
    (pictures._steps, "times.items() if any(of)", "list(times.items())[1:]", figures),
    (pictures._memory, "_ns(time), size", "size, _ns(time)", figures),
    (pictures._idle_causes, '_ns(each["idle_us"])', 'each["gaps"]', figures),
    (pictures._change, "-abs(part[1])", "part[1]", change),
    (pictures._change, "after - before -", "before - after -", change),
    (facts._steps, "step['median']", "step['max']", a_line_each),
    (facts._memory, "device['peak_bytes']", "device['last_bytes']", a_line_each),
    (terminal.print_page, "left -= _heights([block], console)", "left -= 1", small_screen),
]


@each(FAULTS)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    must_be_found(fault, tmp_path)
