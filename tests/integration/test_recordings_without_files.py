"""Recordings of processes that have no space for a file, or may not make one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from recorded_process import command_here, end, ready, start

from running import ran
from stagespan import recording
from stagespan.errors import StagespanError

PLACE = """
    import json, logging, sys, time
    logging.basicConfig()
    import stagespan
    from stagespan import _core
    with stagespan.span("outer"):
        for _ in range(50):
            with stagespan.span("inner"):
                pass
        place = _core.recording_place()
        print(json.dumps({**place, "count": stagespan.stats()["inner"].count}), flush=True)
        time.sleep(float(sys.argv[1]))
"""


def test_a_folder_on_a_disk_is_refused_and_the_memory_is_read_instead(tmp_path: Path) -> None:
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("the temporary folder is on a tmpfs: pass --basetemp with a folder on a disk")
    process = start(PLACE, "60", STAGESPAN_RECORDING_DIR=str(tmp_path))
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
        process = start(PLACE, "0", STAGESPAN_RECORDING_DIR=str(folder / name))
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
    process = start(PLACE, "60")
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
    process = start(PLACE, "0")
    out, errors = process.communicate(timeout=60)
    assert json.loads(out)["kind"] == "memfd"
    assert "belongs to the user with the id 12345" in errors


def test_off_means_that_nothing_can_be_read(folder: Path) -> None:
    process = start(PLACE, "60", STAGESPAN_RECORDING="off")
    place = json.loads(ready(process))
    assert place["kind"] == "off"
    assert place["count"] == 50
    assert list(folder.iterdir()) == []
    with pytest.raises(StagespanError, match="STAGESPAN_RECORDING=off"):
        recording.open(process.pid)


def test_a_full_tmpfs_loses_no_statistics_in_the_process(tmp_path: Path) -> None:
    mounted = ran(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(tmp_path)])
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: run as root ({mounted.stderr.strip()})")
    try:
        process = start(
            """
            import json, os, threading
            import stagespan
            from stagespan import _core
            gate = threading.Barrier(60)
            def work():
                gate.wait()
                for _ in range(500):
                    with stagespan.span("work"):
                        pass
                gate.wait()
            threads = [threading.Thread(target=work) for _ in range(60)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            place = _core.recording_place()
            print(json.dumps({**place, "count": stagespan.stats()["work"].count}), flush=True)
            os._exit(0)
            """,
            STAGESPAN_RECORDING_DIR=str(tmp_path),
            STAGESPAN_RING_SPANS="4096",
        )
        place = json.loads(ready(process))
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert place["kind"] == "file"
        assert place["count"] == 60 * 500
        assert place["refused_bytes"] > 0
        (path,) = tmp_path.glob("*.stagespan")
        found = recording.open(path)
        assert any("because the tmpfs was full" in warning for warning in found.warnings())
        assert 0 < len(found.spans()) < 60 * 500
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=False)
