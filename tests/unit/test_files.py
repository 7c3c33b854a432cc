"""Files that are written whole or not at all; what is no file is written to, never replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from stagespan.files import whole_file, write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    # GIVEN a file, in a folder that is there, and one that is not
    old = tmp_path / "old"
    old.write_text("before")
    with old.open() as reader:
        # WHEN they are written
        assert write_whole(old, "after") == old
        write_whole(tmp_path / "a" / "b" / "new", b"\xff")
        # THEN who reads the old one has all of it
        assert reader.read() == "before"
    assert old.read_text() == "after"
    assert (tmp_path / "a" / "b" / "new").read_bytes() == b"\xff"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "old"]


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    # GIVEN a file
    path = tmp_path / "file"
    path.write_text("before")

    def fails() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise KeyError

    # WHEN writing it fails in the middle
    with pytest.raises(KeyError):
        fails()
    # THEN it is as before, and alone; a folder is never replaced
    assert path.read_text() == "before"
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "x")
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    # GIVEN a umask
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", "x")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    # GIVEN a pipe with a name, and somebody who reads it
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    # WHEN it is written
    write_whole(pipe, "through")
    reader.join(30)
    # THEN it was written to
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device() -> None:
    write_whole("/dev/null", "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_standard_output_that_is_a_file_is_written_to(tmp_path: Path) -> None:
    # GIVEN a program whose output goes to a file
    path = tmp_path / "out"
    with path.open("w") as out:
        opened = os.fstat(out.fileno()).st_ino
        # WHEN it writes to its standard output by name
        program = "from stagespan.files import write_whole; write_whole('/dev/stdout', 'told')"
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    # THEN that very file has it
    assert path.read_text() == "told"
    assert path.stat().st_ino == opened


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm here")
def test_a_file_in_shared_memory_is_replaced_whole() -> None:
    # GIVEN a file in a folder below /dev, and somebody who reads it
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "file"
        write_whole(path, "before")
        with path.open() as reader:
            # WHEN it is written anew
            write_whole(path, "after")
            # THEN the reader has all of the old one
            assert reader.read() == "before"
        assert path.read_text() == "after"


def test_a_long_name_of_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 120)
    write_whole(path, "x")
    assert path.read_text() == "x"


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    # GIVEN a file that its owner has closed to others, and one that is open to all
    for mode in (0o600, 0o666):
        path = tmp_path / f"{mode:o}"
        path.write_text("before")
        path.chmod(mode)

        write_whole(path, "after")

        assert stat.S_IMODE(path.stat().st_mode) == mode
        # and a private one is closed, whatever was there
        write_whole(path, "secret", private=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_private_file_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with whole_file(tmp_path / "file", private=True) as file:
            # Also while it is written.
            (temporary,) = tmp_path.iterdir()
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
            file.write(b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
