"""Recordings while readers die, folders disappear, clocks jump, and with thousands of leftovers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_process import command, command_here, recordings_in, start, started

import preloaded
from running import PROGRAMS, end, ended, ran, ready, tell, until
from stagespan import recording

LIVE = PROGRAMS / "live.py"

# --- thousands of leftovers -----------------------------------------------------------------------


def test_thousands_of_leftovers_are_read_in_part_and_removed(folder: Path) -> None:
    # GIVEN a live process, one that died, and 10,000 sparse copies of its file
    alive = started(LIVE, "inside", "alive")
    dies = "import os, stagespan\nwith stagespan.span('died'): os._exit(1)"
    start(dies).communicate(timeout=60)
    (path,) = (one for one in folder.iterdir() if not one.name.startswith(f"{alive.pid}-"))
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(1 << 12)
    names = [f"{2**22 + i}-{i}.stagespan" for i in range(1, 10_001)]
    for i, name in enumerate(names):
        copy = folder / name
        with copy.open("wb") as file:
            if i >= 9_000:  # the rest are holes, because a tmpfs may be small
                file.write(head)
            file.truncate(size)
        os.utime(copy, (i, i))
    found = recordings_in(folder)
    # THEN a bounded number of the newest is read, and every live process
    assert [one.pid for one in found if one.state == "alive"] == [alive.pid]
    ended = {Path(one.path).name for one in found if one.state != "alive"}
    assert ended == {path.name, *names[-255:]}
    # THEN the same is true for the command, which deletes nothing
    shown = json.loads(command("ps", "--json").stdout)["processes"]
    assert alive.pid in {row["pid"] for row in shown}
    assert command("show", str(alive.pid)).returncode == 0
    assert len(list(folder.iterdir())) == 10_002
    start(dies).communicate(timeout=60)
    assert len(list(folder.iterdir())) == 16 + 2
    assert path.exists()


# --- readers that are killed ----------------------------------------------------------------------


def test_a_reader_that_is_killed_leaves_nothing(folder: Path) -> None:
    writer = started(LIVE, "counting_threads")
    files = set(folder.iterdir())
    counts = []
    for i in range(5):
        reader = started(LIVE, "reader", str(writer.pid))
        time.sleep(0.02 * i)
        assert reader.poll() is None
        end(reader)
        counts.append(recording.open(writer.pid).stats()["outer"].count)
    # THEN the process continues, and the folder is unchanged
    until(lambda: recording.open(writer.pid).stats()["outer"].count > counts[-1])
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert set(folder.iterdir()) == files
    # THEN its figures are exact, in the process and outside
    written, *own = map(int, tell(writer).split())
    assert own == [written, written]

    def counted() -> list[int]:
        figures = recording.open(writer.pid).stats()
        return [figures[name].count for name in ("outer", "inner")]

    until(lambda: counted() == own)  # the ended threads have left
    # THEN it exits as cleanly as without readers
    ended(writer, 0, input="\n")
    assert list(folder.iterdir()) == []


# --- folders that vanish --------------------------------------------------------------------------


@pytest.fixture
def moved(folder: Path) -> Iterator[Path]:
    """Return a path to which the folder can be moved."""
    place = folder.with_name(folder.name + "-moved")
    yield place
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(place, ignore_errors=True)


def step(process: subprocess.Popen[str]) -> int:
    """Let the program write spans, and return how many it has counted itself."""
    return int(tell(process))


def doctor_page() -> str:
    """Return the page of the doctor, which imports torch if it is installed."""
    python = preloaded.python() if importlib.util.find_spec("torch") else [sys.executable]
    return ran([*python, "-m", "stagespan", "doctor"]).stdout


@pytest.mark.parametrize("way", ["the file vanishes", "the folder vanishes", "it becomes a link"])
def test_a_folder_that_is_taken_away_from_a_process(way: str, folder: Path, moved: Path) -> None:
    process = start(LIVE, "steps")
    assert step(process) == 500
    path = recording.open(process.pid).path
    assert Path(path).parent == folder
    alive = [one for one in recording.recordings() if one.state == "alive"]
    assert [one.path for one in alive if one.pid == process.pid] == [path]
    if way == "the file vanishes":
        os.unlink(path)
    elif way == "the folder vanishes":
        shutil.rmtree(folder)
    else:
        folder.rename(moved)
        folder.symlink_to(moved)
    assert step(process) == 1000
    assert step(process) == 1500
    # THEN it can still be read by its pid, with figures as exact as its own
    found = recording.open(process.pid)
    assert (found.pid, found.state) == (process.pid, "alive")
    assert found.stats()["step"].count == 1500
    assert [span["stage"] for span in found.open_spans()] == ["serve"]
    shown = command("ps")
    listed = json.loads(command_here("ps", "--json").stdout)["processes"]
    rows = [row for row in listed if row["pid"] == process.pid]
    if way == "it becomes a link":
        assert found.warnings() == []
        assert "links are not followed" in shown.stderr
        doctor = " ".join(doctor_page().split())
        assert "links are not followed" in doctor
    else:
        assert any("has been deleted" in warning for warning in found.warnings())
        (row,) = rows
        assert row["warnings"] == found.warnings()
        assert f"{process.pid}: The file has been deleted" in shown.stdout
    # THEN the process ends normally, and leaves no files
    _, errors = ended(process, 0)
    assert "Traceback" not in errors
    for place in (folder, moved):
        assert not place.exists() or list(place.iterdir()) == []


# --- clocks that jump -----------------------------------------------------------------------------


def check_durations(found: recording.Recording) -> None:
    """Compare the whole recording with what the program did."""
    counts = {name: stage.count for name, stage in found.stats().items()}
    assert counts == {"before": 1, "across": 1, "after": 1}
    spans = found.spans()
    assert len(spans) == 3
    assert (spans["end_ns"] >= spans["begin_ns"]).all()
    assert (spans["suspended_ns"] >= 0).all()
    for stage in found.stats().values():
        assert 0 <= stage.min_ns <= stage.max_ns <= stage.total_ns
        assert stage.total_ns < 600e9
    open_spans = found.open_spans()
    assert {span["stage"] for span in open_spans} == {"outer", "token", "inner"}
    assert all(span["elapsed_ns"] is None or span["elapsed_ns"] >= 0 for span in open_spans)


@pytest.mark.parametrize("source", ["auto", "monotonic"])
@pytest.mark.parametrize("stands_still", [False, True])
def test_a_process_whose_clock_jumps_is_read(
    source: str, stands_still: bool, clock: Path, folder: Path
) -> None:
    # GIVEN a process whose clock has been set back by an hour, or has stopped
    variables = {"CLOCK_STANDS_STILL": "1"} if stands_still else {}
    process = start(
        LIVE, "clock_set_back", LD_PRELOAD=str(clock), STAGESPAN_CLOCK=source, **variables
    )
    pages: list[subprocess.CompletedProcess[str]] = []
    ready(process)
    alive = recording.open(process.pid)
    name = str(process.pid)
    for again in (False, True):
        pages.append(command_here("show", name))
        pages.append(command_here("dump", name))
        pages.append(command_here("dump", name, "--format", "csv"))
        pages.append(command_here("ps", "--all"))
        if not again:
            pages.append(command_here("top", name, "--once", "--interval", "0.1"))
            pages.append(command_here("ps", "--stalled", "0"))
            assert process.poll() is None
            end(process)
    dead = recording.open(process.pid)
    end(process)
    assert (alive.state, dead.state) == ("alive", "died")
    check_durations(alive)
    check_durations(dead)
    for page in pages:
        assert page.returncode in (0, 1), page.stderr
        assert "Traceback" not in page.stderr
        if "dump" not in page.args:
            # Without the rows of other processes.
            shown = [
                line for line in page.stdout.splitlines() if "ps" not in page.args or name in line
            ]
            assert not re.search(r"[ (]-\d", "\n".join(shown)), page.stdout
        elif "csv" not in page.args:
            for event in json.loads(page.stdout)["traceEvents"]:
                assert event.get("dur", 0) >= 0


# --- readers without privileges -------------------------------------------------------------------

NOBODY = 65534
# The program may be in a folder that only root can read, so it is loaded before.
DROP = """
import os

def drop_privileges():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    assert os.geteuid() != 0
"""

STALLED = (
    DROP
    + """
import ctypes, signal
import stagespan
PR_SET_DUMPABLE = 4
drop_privileges()
assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0) == 0  # nobody but root may trace it
with stagespan.span("step"), stagespan.span("all_reduce"):
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
)

ASKING = (
    DROP
    + """
import sys
from stagespan.cli import main
sys.argv[1:] = ["ps", "--stalled", "0.5", "--json"]
try:
    main()  # loads what it needs
except SystemExit:
    pass
print("without privileges", flush=True)
drop_privileges()
main()
"""
)


def test_a_stalled_rank_is_named_without_privileges(folder: Path) -> None:
    # GIVEN a stalled rank of a user who is not root and may not trace it
    done = ran([sys.executable, "-c", DROP + "drop_privileges()"])
    if done.returncode != 0:
        pytest.skip(f"cannot drop privileges: {done.stderr.strip().splitlines()[-1]}")
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    victim = started(STALLED, RANK="3", WORLD_SIZE="8", TORCHELASTIC_RUN_ID="job-nobody")
    found: list[dict[str, object]] = []
    until_s = time.monotonic() + 60
    while not found and time.monotonic() < until_s:
        asking = start(ASKING)
        shown, errors = asking.communicate(timeout=60)
        _, mark, page = shown.partition("without privileges\n")
        assert mark, errors
        assert asking.returncode in (0, 1), errors
        found = [one for one in json.loads(page)["stalled"] if one["pid"] == victim.pid]
    assert asking.returncode == 1
    assert [one["rank"] for one in found] == [3]
    (row,) = found
    spans = row["open_spans"]
    assert isinstance(spans, list)
    assert [span["stage"] for span in spans] == ["all_reduce"]
