"""Files that are written completely or not at all; devices and pipes are never replaced."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagespan.process.files import (
    compact_json,
    module_name,
    safe_name,
    whole_file,
    write_whole,
)


def test_a_file_is_replaced_completely(tmp_path: Path) -> None:
    # GIVEN a file in a folder that exists, and in one that does not
    old = tmp_path / "old"
    old.write_text("before")
    with old.open() as reader:
        assert write_whole(old, "after") == old
        write_whole(tmp_path / "a" / "b" / "new", b"\xff")
        assert reader.read() == "before"
    assert old.read_text() == "after"
    assert (tmp_path / "a" / "b" / "new").read_bytes() == b"\xff"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "old"]


def test_a_failed_write_leaves_no_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fails() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    # THEN it is unchanged, and there are no other files; a folder is never replaced
    assert path.read_text() == "before"
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "x")
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", "x")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through")
    reader.join(30)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_not_replaced() -> None:
    write_whole("/dev/null", "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_standard_output_that_is_a_file_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as out:
        opened = os.fstat(out.fileno()).st_ino
        program = (
            "from stagespan.process.files import write_whole; write_whole('/dev/stdout', 'written')"
        )
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert path.read_text() == "written"
    assert path.stat().st_ino == opened


@pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK), reason="/dev/shm is not writable: mount a tmpfs there"
)
def test_a_file_in_shared_memory_is_replaced_completely() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "file"
        write_whole(path, "before")
        with path.open() as reader:
            write_whole(path, "after")
            assert reader.read() == "before"
        assert path.read_text() == "after"


def test_a_long_name_of_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 120)
    write_whole(path, "x")
    assert path.read_text() == "x"


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    # GIVEN a file that only its owner can read, and one that everybody can read
    for mode in (0o600, 0o666):
        path = tmp_path / f"{mode:o}"
        path.write_text("before")
        path.chmod(mode)

        write_whole(path, "after")

        assert stat.S_IMODE(path.stat().st_mode) == mode
        # and a private file is readable only by its owner, whatever was there
        write_whole(path, "secret", private=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_private_file_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with whole_file(tmp_path / "file", private=True) as file:
            # Also while it is being written.
            (temporary,) = tmp_path.iterdir()
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
            file.write(b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "stages",
    [
        ("a.b", "a_b", "a-b", "a b", "a/b"),
        ("Pipeline.__call__", "Pipeline___call__", "Pipeline.__call"),
        ("去噪", "去.噪", "stage"),
        ("a" * 300, "a" * 299 + ".", "a" * 301),
    ],
)
def test_the_name_of_a_module_can_be_imported_and_is_unique(stages: tuple[str, ...]) -> None:
    names = [module_name(stage) for stage in stages]
    assert len(set(names)) == len(stages)
    for name in names:
        assert f"profile_{name}".isidentifier()
    # AND a name that needs no change is the same as in other files
    assert module_name("denoise_2") == safe_name("denoise_2") == "denoise_2"


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_compact_json_is_the_same_value(value: object) -> None:
    assert json.loads(compact_json(value)) == value


def test_what_fits_into_a_line_is_not_broken() -> None:
    # GIVEN an entry as in a signature file, and a list that is too long for one line
    tensor = {"shape": [1, 16, 21, 60, 104], "dtype": "bfloat16", "device": "cuda:0"}
    inputs = dict.fromkeys(("latents", "positive", "negative"), tensor)
    value = {"inputs": inputs, "values": [*range(100)]}

    lines = compact_json(value).splitlines()

    assert lines[2] == f'    "latents": {json.dumps(tensor)},'
    assert len(lines) <= 13
    assert all(len(line) <= 110 for line in lines)
