"""Recordings of processes that have no space for a file, or may not make one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from recorded_process import command_here, skip_unless_works, start

from running import PROGRAMS, end, ended, ran, ready
from stagespan import recording
from stagespan.errors import StagespanError

LIVE = PROGRAMS / "live.py"


def test_a_folder_on_a_disk_is_refused_and_the_memory_is_read_instead(tmp_path: Path) -> None:
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("the temporary folder is on a tmpfs: pass --basetemp with a folder on a disk")
    process = start(LIVE, "place", "60", STAGESPAN_RECORDING_DIR=str(tmp_path))
    place = json.loads(ready(process))
    if "is not on a tmpfs" not in place["why"]:
        pytest.skip(f"pass --basetemp with a folder on a disk: {place['why']}")
    assert place["kind"] == "memfd"
    assert place["count"] == 50
    assert list(tmp_path.iterdir()) == []
    found = recording.open(process.pid)
    assert found.state == "alive"
    assert found.stats()["inner"].count == 50
    assert process.pid in {one.pid for one in recording.recordings()}
    end(process)
    assert process.stderr is not None
    with pytest.raises(StagespanError, match="no process"):
        recording.open(process.pid)


def test_an_unusable_folder_gives_a_warning(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(folder)
    (folder / "file").write_text("")
    for name, words in (
        ("link", "links are not followed"),
        ("file", "is not a folder"),
        ("no/folder", "cannot be made"),
    ):
        process = start(LIVE, "place", "0", STAGESPAN_RECORDING_DIR=str(folder / name))
        out, errors = process.communicate(timeout=60)
        assert json.loads(out)["kind"] == "memfd"
        assert json.loads(out)["count"] == 50
        assert words in errors, errors
        assert errors.count("STAGESPAN_RECORDING_DIR=") == 1


def test_the_name_of_the_folder_need_not_be_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a process whose recordings are in a folder with a byte that is not UTF-8
    inside = os.fsdecode(os.fsencode(folder) + b"/\xff")
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", inside)
    process = start(LIVE, "place", "60")
    assert json.loads(ready(process))["kind"] == "file"
    assert recording.open(process.pid).stats()["inner"].count == 50
    (found,) = (one for one in recording.recordings() if one.pid == process.pid)
    assert os.path.dirname(found.path) == inside
    assert str(process.pid) in command_here("ps").stdout.split()
    for verb in (("ps",), ("show", str(process.pid))):
        shown = command_here(*verb, "--json")
        assert shown.returncode == 0, shown.stderr
        assert r"\\udcff" in shown.stdout


def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("cannot give a folder to another user: run as root")
    os.chown(folder, 12345, 12345)
    process = start(LIVE, "place", "0")
    out, errors = process.communicate(timeout=60)
    assert json.loads(out)["kind"] == "memfd"
    assert "belongs to the user with the id 12345" in errors


def test_off_means_that_nothing_can_be_read(folder: Path) -> None:
    process = start(LIVE, "place", "60", STAGESPAN_RECORDING="off")
    place = json.loads(ready(process))
    assert place["kind"] == "off"
    assert place["count"] == 50
    assert list(folder.iterdir()) == []
    with pytest.raises(StagespanError, match="STAGESPAN_RECORDING=off"):
        recording.open(process.pid)


def test_a_full_tmpfs_loses_no_statistics_in_the_process(tmp_path: Path) -> None:
    skip_unless_works("mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(tmp_path))
    try:
        process = start(
            LIVE,
            "sixty_threads",
            STAGESPAN_RECORDING_DIR=str(tmp_path),
            STAGESPAN_RING_SPANS="4096",
        )
        place = json.loads(ready(process))
        ended(process, 0)
        assert place["kind"] == "file"
        assert place["count"] == 60 * 500
        assert place["refused_bytes"] > 0
        (path,) = tmp_path.glob("*.stagespan")
        found = recording.open(path)
        assert any("because the tmpfs was full" in warning for warning in found.warnings())
        assert 0 < len(found.spans()) < 60 * 500
    finally:
        ran(["umount", "-l", str(tmp_path)])
