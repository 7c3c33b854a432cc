"""The pages of `ps`, `top` and `recover`: errors, windows, widths, times of ranks."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from recorded_process import command_here, start, started

from running import PROGRAMS, end
from stagespan.recording.live_page import LivePage

LIVE = PROGRAMS / "live.py"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the terminal wide enough for all columns."""
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture
def failing(folder: Path) -> subprocess.Popen[str]:
    """Return a process in which every run of two stages has failed, and which is now idle."""
    return started(LIVE, "fails")


def cells(page: str, name: str) -> dict[str, str]:
    """Return the cells of a row by the titles of their columns; blank cells are left out."""
    lines = page.splitlines()
    (title,) = (line for line in lines if line.split()[:1] in (["stage"], ["pid"]))
    (row,) = (line for line in lines if line.split()[:1] == [name])
    found = {}
    right = 0
    for word in title.split():
        right = title.index(word, right) + len(word)
        found[word] = re.split(" {2,}", row[:right])[-1].strip() if right <= len(row) else ""
    return found


def test_errors_are_seen_in_the_live_page(failing: subprocess.Popen[str]) -> None:
    page = command_here("top", str(failing.pid), "--once", "--interval", "0.1").stdout
    assert cells(page, "decode")["errors"] == "40"
    assert cells(page, "serve")["errors"] == "40"
    assert cells(page, "tokenize")["errors"] == "0"
    assert float(cells(page, "decode")["errors/s"]) > 0


def test_errors_are_seen_in_the_list(failing: subprocess.Popen[str], folder: Path) -> None:
    page = command_here("ps").stdout
    assert cells(page, str(failing.pid))["errors"] == "80"
    rows = json.loads(command_here("ps", "--json").stdout)["processes"]
    assert [row["errors"] for row in rows if Path(row["path"]).parent == folder] == [80]


def test_a_page_without_errors_has_no_column_for_them(folder: Path) -> None:
    process = started(LIVE, "inside", "serve")
    assert "errors" not in command_here("top", str(process.pid), "--once").stdout


def test_one_page_shows_the_seconds_before_it(failing: subprocess.Popen[str]) -> None:
    # GIVEN a process that has run stages, and does nothing while the page observes it
    page = command_here("top", str(failing.pid), "--once", "--interval", "0.1").stdout
    found = cells(page, "decode")
    assert float(found["runs/s"]) >= 40 / 10
    assert found["p50"] != ""
    assert found["p99"] != ""
    assert float(cells(page, "serve")["share"].rstrip(" %")) > 0


def test_one_page_of_a_job_shows_the_seconds_before_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [started(LIVE, "fails", STAGESPAN_JOB="idle") for _ in range(2)]
    page = command_here("top", "--job", "idle", "--once", "--interval", "0.1").stdout
    for worker in workers:
        end(worker)
    _, rate, *figures = next(
        line.split() for line in page.splitlines() if line.startswith("decode ")
    )
    assert float(rate) >= 2 * 40 / 10
    assert "-" not in figures[:6]  # the percentiles with their units


def test_spans_before_the_last_seconds_are_not_counted(folder: Path) -> None:
    # GIVEN a process with spans that ended long ago, and some that ended now
    process = started(LIVE, "earlier_spans")
    page = command_here("top", str(process.pid), "--once", "--interval", "0.1").stdout
    end(process)
    assert float(cells(page, "earlier")["runs/s"]) == 0
    assert float(cells(page, "latest")["runs/s"]) >= 2


def test_a_page_of_a_process_that_ends_meanwhile(folder: Path) -> None:
    process = started(LIVE, "ten_spans")
    page = LivePage(str(process.pid), None)
    page.read()
    process.communicate("\n", timeout=60)
    page.read()
    title, message = (str(part) for part in page.render(100, 40)[:2])
    assert ": ended" in title
    assert "alive" not in title
    assert message == "The process has ended: this is its last known state."
    assert page.page().notes() == [message]


# --- what waits and runs --------------------------------------------------------------------------


def test_pages_show_what_waits_and_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setenv("STAGESPAN_JOB", "loaded")
    process = started(LIVE, "loaded")
    rows = json.loads(command_here("ps", "--json").stdout)["processes"]
    listed = command_here("ps").stdout
    job = json.loads(command_here("ps", "--job", "loaded", "--json").stdout)["load"]
    text = command_here("ps", "--job", "loaded").stdout
    page = command_here("top", str(process.pid), "--once", "--interval", "0.1").stdout
    of_job = command_here("top", "--job", "loaded", "--once", "--interval", "0.1").stdout
    end(process)
    (row,) = (row for row in rows if row["pid"] == process.pid)
    for load in (row, job):
        assert load["waiting"] == {"replica": 2, "tasks": 2, "default": 1}
        assert load["running"] == {"forward": 1, "inner": 1}
        # that of the carrier, and two that wait; r0 to r3 have ended, though not what came back
        assert load["open_requests"] == 3
        assert load["oldest_request_ns"] > load["longest_ns"]["replica"]
        assert load["oldest_waiter_ns"] == max(load["longest_ns"].values())
        assert load["longest_ns"]["tasks"] > load["longest_ns"]["replica"]
    found = cells(listed, str(process.pid))
    assert found["requests"] == "3"
    assert "  forward 1, inner 1  replica 2, tasks 2, default 1  " in listed
    assert "3 requests are open, the oldest for " in text
    assert "Waiting: replica 2 (the oldest for " in text
    for shown in (page, of_job):
        assert "3 requests are open, the oldest for " in shown
        assert cells(shown, "forward")["running"] == "1"
        assert cells(shown, "done")["running"] == "0"
        lines = [line.split()[:2] for line in shown.splitlines()]
        assert [*sorted(lines)].count(["tasks", "2"]) == 1
        assert ["replica", "2"] in lines
        assert ["scheduler", "0"] in lines


# --- widths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_pages_fit_into_a_terminal(
    width: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "a job with a long name"}
    process = start(LIVE, "wide", **job)
    process.communicate(timeout=60)
    monkeypatch.delenv("COLUMNS")
    unlimited = command_here("show", str(process.pid)).stdout
    monkeypatch.setenv("COLUMNS", str(width))
    pid = str(process.pid)
    for arguments in (
        *(("show", pid), ("ps", "--all"), ("show", "--job", job["TORCHELASTIC_RUN_ID"])),
        *(("top", pid, "--once", "--interval", "0.1"), ("show", pid, "--stages")),
    ):
        page = command_here(*arguments)
        assert page.returncode == 0, page.stderr
        # THEN no line is wider, and tables keep the column that production asks for
        assert max(map(len, page.stdout.splitlines())) <= width, page.stdout
        if arguments[0] in ("show", "top") and "--job" not in arguments:
            assert "p95" in page.stdout
    # THEN words are not broken: the page has those of the page without a limit, but for its age
    limited = command_here("show", pid).stdout
    words = [
        re.sub(r"\d+", "0", page.partition("Statistics")[0]).split()
        for page in (limited, unlimited)
    ]
    assert words[0] == words[1]


def test_a_list_that_is_too_wide_leaves_out_columns_before_it_cuts_names(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "serve_video.py"
    script.write_text("""if 1:
        import stagespan, time
        stagespan.set_pipeline_name("wan video")
        with stagespan.span("serve"):
            print("ready", flush=True)
            time.sleep(60)
    """)
    started(
        script,
        RANK="0",
        TORCHELASTIC_RUN_ID="a job of a name that is as long as names of jobs can be",
    )
    monkeypatch.setenv("COLUMNS", "80")
    page = command_here("ps").stdout
    # Other tests' processes can be in the list and make other columns wider.
    assert "python s" in page
    assert "a job of a name that is as long as names of jobs can be" not in page


def test_numbers_are_left_out_before_a_name_is_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, request_id = "UNetMotionModel encoder blocks", "0af7651916cd43dd8448eb211c80319c"
    process = started(LIVE, "request_of_two_stages", *(name, request_id), STAGESPAN_JOB="names")
    monkeypatch.setenv("COLUMNS", "80")
    pid = str(process.pid)
    pages = [
        command_here(*arguments).stdout
        for arguments in (
            *(("requests", pid), ("show", pid), ("show", pid, "--stages")),
            *(("top", pid, "--once", "--interval", "0.1"), ("ps", "--job", "names")),
        )
    ]
    end(process)
    assert request_id in pages[0]
    for page in pages:
        assert name in page
        assert "…" not in page
        assert max(map(len, page.splitlines())) <= 80


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        # In each rank, the stage that takes longer; the rank and stage that must be named.
        (["", "augment"], [("rank 1", "augment")]),
        (["", "", "load", ""], [("rank 2", "load")]),
        # The others wait for rank 0, which is no reason to name them.
        (["augment", "all_reduce"], [("rank 0", "augment")]),
        (["augment", "all_reduce", "all_reduce", "all_reduce"], [("rank 0", "augment")]),
        (["", "", ""], []),
    ],
)
def test_a_rank_that_takes_longer_in_a_stage_is_named(
    ranks: list[str], named: list[tuple[str, str]], folder: Path
) -> None:
    began = str(time.time_ns() - 10**10)
    stages = "augment,load,all_reduce"
    processes = [
        started(
            LIVE,
            "rank_with_a_slow_stage",
            slow,
            stages,
            began,
            RANK=str(rank),
            TORCHELASTIC_RUN_ID="times",
        )
        for rank, slow in enumerate(ranks)
    ]
    shown = command_here("show", "--job", "times").stdout
    page = json.loads(command_here("ps", "--job", "times", "--json").stdout)
    for process in processes:
        end(process)
    found = [line for line in page["findings"] if " as long in " in line]
    assert [(line.partition(" spent ")[0].lower(), line.split("`")[1]) for line in found] == named
    for line in found:
        assert "15x as long" in line
        assert line in " ".join(shown.split())
    # THEN the table has the mean time beside each count
    assert "20 x 1.0 ms" in shown
    assert page["mean_ns"]["load"]["rank 0"] == pytest.approx(1e6, rel=0.03)


def test_workers_without_ranks_are_not_compared(folder: Path) -> None:
    job = {"MASTER_ADDR": "service", "MASTER_PORT": "1"}
    [
        started(
            LIVE,
            "rank_with_a_slow_stage",
            slow,
            "augment,load",
            str(time.time_ns() - 10**10),
            **job,
        )
        for slow in ("", "augment")
    ]
    page = json.loads(command_here("ps", "--job", "service:1", "--json").stdout)
    assert not [line for line in page["findings"] if " as long in " in line]


@pytest.mark.parametrize("arguments", [["show"], ["show", "1", "--job", "x"]])
def test_show_says_which_argument_is_missing_or_too_many(arguments: list[str]) -> None:
    found = command_here(*arguments)
    assert found.returncode == 2
    assert "Pass one file, process id or job" in found.stderr
