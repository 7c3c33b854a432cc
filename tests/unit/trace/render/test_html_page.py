"""The HTML page as text: its content, what it cannot contain, and its size."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from html_pages import HOSTILE, a_program
from hypothesis import given
from hypothesis import strategies as st
from planted import Program

from page_data import data_of, rows_of
from stagespan.pages import html
from stagespan.pages import timeline as rows
from stagespan.pages.html import data as contents
from stagespan.pages.markdown import markdown
from stagespan.pages.result import Table
from stagespan.trace import Trace, read_trace
from stagespan.trace.analysis import analyze
from stagespan.trace.derived.idle_causes import BETWEEN_STEPS, SYNCHRONISATION, colour_of


def hostile_trace(folder: Path) -> Trace:
    return a_program(HOSTILE).trace(folder)


def test_only_the_scripts_of_the_page_may_run(tmp_path: Path) -> None:
    page = html.html_page(analyze(a_program().trace(tmp_path)))
    texts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    policy = dict(each.strip().split(" ", 1) for each in found[1].split(";"))
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts}
    assert set(policy["script-src"].split()) == {f"'sha256-{each}'" for each in hashes}
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == "data: blob:"
    assert not {"connect-src", "font-src", "frame-src"} & policy.keys()
    urls = re.findall(r"https?://[^\"]*|//cdn|@import|url\(", page)
    assert set(urls) == {"http://www.w3.org/2000/svg"}


def test_hostile_names_are_only_in_the_data(tmp_path: Path) -> None:
    # GIVEN names that would end a script, open tags, or replace a placeholder of the page
    analysis = analyze(hostile_trace(tmp_path))
    page = html.html_page(analysis)
    # THEN it only has its own scripts, no tag is opened, and the data is plain ASCII
    assert len(re.findall(r"<script\b", page)) == 2
    start = page.index('id="data">') + len('id="data">')
    block = page[start : page.index("</script>", start)]
    assert "<" not in block
    assert block.isascii()
    # AND the names are complete up to their limit, without control characters and bidi marks
    data = data_of(page)
    texts = json.dumps(data, ensure_ascii=False)
    assert "</script><script>window.hostile" in texts
    assert "\x1b" not in texts
    assert "\u202e" not in texts
    assert "{{ data }}" in texts
    assert max(map(len, re.findall(r"x+", texts))) <= contents.LONGEST_TEXT
    assert len(page) < 3_000_000


def test_all_results_are_in_the_page(tmp_path: Path) -> None:
    analysis = analyze(a_program().trace(tmp_path))
    data = data_of(html.html_page(analysis))
    assert analysis.findings()
    texts = [(each["sentence"], each["rest"]) for each in data["findings"]]
    assert texts == [(each.first_line, each.explanation) for each in analysis.findings()]
    assert [line[:13] for line in data["lines"]] == ["Time goes to:"]
    opened = {each["name"] for each in data["sections"] if each["open"]}
    assert opened == {"kernels", "critical_path"}
    for shown, finding in zip(data["findings"], analysis.findings(), strict=True):
        assert shown["evidence"] == [
            [each.event, each.time_ns, each.figure, each.unit] for each in finding.evidence
        ]
    assert [each["name"] for each in data["sections"]] == list(analysis.results)
    for shown, result in zip(data["sections"], analysis.results.values(), strict=True):
        assert shown["unknown"] == getattr(result, "reason", None)
        assert [t["title"] for t in shown["tables"]] == [t.title for t in result.tables()]
        for written, table in zip(shown["tables"], result.tables(), strict=True):
            assert written["rows"] == [list(row) for row in table.rows]
            assert written["columns"] == [list(column) for column in table.columns]
    whole = analysis.to_dict()["verdict"]["whole_us"]
    assert sum(time for _, time, _ in data["bar"]["parts"]) == whole * 1000


def test_the_bar_of_several_devices_shows_their_sums(tmp_path: Path) -> None:
    program = Program()
    for device in (0, 1):
        program.launch("gemm", 80)
        program.events[-1]["args"]["device"] = device
    data = data_of(html.html_page(analyze(program.trace(tmp_path))))
    assert data["bar"]["parts"] == [["computing", 160_000, "computing"], ["idle", 176_000, "idle"]]
    assert data["bar"]["count"] == 2


def test_the_timeline_has_every_row_and_its_times(tmp_path: Path) -> None:
    analysis = analyze(a_program().trace(tmp_path))
    found = rows_of(contents.page_data(analysis))
    assert list(found) == [
        *("steps", "stages", "critical path", "stream 20", "stream 7", "idle", "main thread 100")
    ]
    assert [len(found[name]["bars"]) for name in ("steps", "stages", "stream 7")] == [12, 24, 24]
    # It is launched for 5 µs, and begins 3 later; the other stream ends at 213 µs, the wait 150 µs
    # after that, and the next kernel begins 8 µs later.
    assert found["stream 7"]["bars"][0] == (8_000, 88_000, "kernel one", {"computing": 80_000}, 1)
    assert found["stream 20"]["bars"][0][3] == {"communicating": 200_000}
    assert found["idle"]["bars"][0][:2] == (213_000, 371_000)
    assert {key for bar in found["idle"]["bars"] for key in bar[3]} >= {
        colour_of(SYNCHRONISATION),
        colour_of(BETWEEN_STEPS),
    }
    idle = analysis.to_dict()["idle"]["idle_us"]
    assert sum(end - begin for begin, end, *_ in found["idle"]["bars"]) == idle * 1000
    assert all(row["note"] == "" for row in found.values())


def test_annotated_steps_have_their_row(tmp_path: Path) -> None:
    program = Program()
    for step in range(4):
        with program.within(f"iteration {step}", "user_annotation"):
            program.operator()
            program.wait()
    analysis = analyze(program.trace(tmp_path))
    found = rows_of(contents.page_data(analysis))
    steps = analysis.to_dict()["steps"]["steps"]
    assert len(steps) == 4
    assert next(iter(found)) == "steps"
    assert [(begin, end - begin, words) for begin, end, words, *_ in found["steps"]["bars"]] == [
        (step["time_us"] * 1000, step["step_us"] * 1000, step["name"]) for step in steps
    ]


def test_no_time_is_lost_if_there_are_more_events_than_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_BARS", 600)
    program = Program()
    for number in range(1_500):
        program.operator(us=2 if number % 3 else 9, before=5 + number % 7)
        if number % 5 == 0:
            program.launch("Memcpy HtoD", 3, cat="gpu_memcpy")
    analysis = analyze(program.trace(tmp_path))
    found = rows_of(contents.page_data(analysis))
    assert sum(len(row["bars"]) for row in found.values()) <= 600
    stream = found["stream 7"]
    assert sum(bar[4] for bar in stream["bars"]) == 1_800
    assert stream["note"] == f"stream 7: 1,800 events in {len(stream['bars'])} bars."
    device = analysis.to_dict()["device_use"]
    busy: dict[str, int] = {}
    for bar in stream["bars"]:
        assert sum(bar[3].values()) <= bar[1] - bar[0]
        for key, time in bar[3].items():
            busy[key] = busy.get(key, 0) + time
    assert busy == {
        "computing": device["compute_union_us"] * 1000,
        "copying": device["memcpy_union_us"] * 1000,
    }
    causes: dict[str, int] = {}
    for bar in found["idle"]["bars"]:
        for key, time in bar[3].items():
            causes[key] = causes.get(key, 0) + time
    assert sum(causes.values()) == device["idle_us"] * 1000


@pytest.mark.parametrize("name", ["ProfilerStep#{}", "iteration {}"])
@pytest.mark.parametrize("steps", [600, 601, 2_100])
def test_any_number_of_steps_gets_a_page(steps: int, name: str, tmp_path: Path) -> None:
    program = Program()
    for number in range(steps):
        with program.within(name.format(number), "user_annotation"):
            program.operator(us=20)
            program.wait()
    data = data_of(html.html_page(analyze(program.trace(tmp_path))))
    assert data["rows"][0] == "steps"
    assert sum(bar[4] for bar in rows_of(data)["steps"]["bars"]) == steps


def test_a_row_is_split_at_its_largest_gaps() -> None:
    # GIVEN five events with gaps of 1, 30, 2 and 20, the second the longest of its part
    begin = np.array([0, 6, 46, 58, 88])
    end = np.array([5, 16, 56, 68, 98])
    # THEN these are separated at 30 and 20
    bars = rows.summed_up(begin, end, 3)
    assert bars.begin.tolist() == [0, 46, 88]
    assert bars.end.tolist() == [16, 68, 98]
    assert bars.count.tolist() == [2, 2, 1]
    assert bars.longest.tolist() == [1, 2, 4]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60)), min_size=1, max_size=80),
    st.integers(2, 30),
)
def test_parts_of_a_row_cover_their_events(times: list[tuple[int, int]], most: int) -> None:
    # GIVEN events that do not overlap, by the gap before each and its length
    edges = np.cumsum([each for pair in times for each in pair])
    begin, end = edges[::2], edges[1::2]
    bars = rows.summed_up(begin, end, most)
    # THEN there are at most as many as requested, and each event is in one, within its bounds
    assert len(bars.begin) == min(most, len(begin))
    assert bars.count.sum() == len(begin)
    assert (np.diff(bars.of) >= 0).all()
    assert (bars.begin[bars.of] <= begin).all()
    assert (bars.end[bars.of] >= end).all()
    for number, at in enumerate(bars.longest):
        assert bars.of[at] == number
        assert end[at] - begin[at] == (end - begin)[bars.of == number].max()
    gaps = begin[1:] - end[:-1]
    chosen = np.sort(gaps[np.flatnonzero(np.diff(bars.of))])[::-1]
    assert chosen.tolist() == np.sort(gaps)[::-1][: most - 1].tolist()


def test_a_page_contains_no_folder_of_the_machine(tmp_path: Path) -> None:
    analysis = analyze(a_program().trace(tmp_path))
    # THEN they contain only the name of the file
    page = html.html_page(analysis)
    assert "planted.json" in page
    assert str(tmp_path) not in page
    assert str(tmp_path) not in markdown(analysis).replace("\\", "")


def test_figures_that_json_or_a_browser_cannot_represent() -> None:
    table = Table("t", (("a", ""), ("b", "ns")), [(2**60 + 1, math.nan), (None, -math.inf)], "n")
    written = contents.written_table(table)
    # THEN they are unknown, and the integer is exact as text
    assert written["rows"] == [["1,152,921,504,606,846,977", None], [None, None]]
    json.dumps(written, allow_nan=False)


def test_long_tables_are_cut_and_say_so() -> None:
    rows = [(number,) for number in range(contents.MOST_ROWS + 7)]
    written = contents.written_table(Table("t", (("a", ""),), rows, "A note."))
    assert len(written["rows"]) == contents.MOST_ROWS
    assert written["note"].startswith("A note. The first 5,000 of 5,007 rows are here")


@pytest.mark.parametrize("content", [b"[]", b'[{"ph":"X","name":"a","ts":1,"dur":2}]'])
def test_an_almost_empty_trace_gets_a_page(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_bytes(content)
    data = data_of(html.html_page(analyze(read_trace(path))))
    assert data["verdict"]["word"] == "cannot tell"
    assert data["findings"] == []
