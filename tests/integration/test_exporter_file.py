"""The file `.exporter` in a folder of recordings, and what else may be in this folder."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from exporting import exporter, of, scraped
from recorded_process import command

from running import ended, ready, start_command, until


def hard_link(marker: Path, victim: Path) -> None:
    os.link(victim, marker)


def file_of_another_user(marker: Path, victim: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    marker.write_text("theirs")
    os.chown(marker, 12345, 12345)


def fifo(marker: Path, victim: Path) -> None:
    os.mkfifo(marker)


@pytest.mark.parametrize("make", [hard_link, file_of_another_user, fifo])
def test_a_file_that_may_not_be_the_exporters_is_refused(
    make: Callable[[Path, Path], None], folder: Path
) -> None:
    victim = folder.with_name(f"{folder.name}-victim")
    victim.write_text("of root")
    victim.chmod(0o640)
    marker = folder / ".exporter"
    try:
        make(marker, victim)
        before = victim.stat(), marker.lstat()
        done = command("export", "--prometheus", "0")
        # THEN it refuses in one sentence, and changes neither content, owner nor mode
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert "remove it" in done.stderr
        after = victim.stat(), marker.lstat()
        for old, new in zip(before, after, strict=True):
            assert (old.st_size, old.st_uid, old.st_mode) == (new.st_size, new.st_uid, new.st_mode)
        assert victim.read_text() == "of root"
    finally:
        victim.unlink()


def test_recordings_are_counted_as_lost_after_a_line_that_is_too_long(folder: Path) -> None:
    with exporter() as (_, port), (folder / ".exporter").open("ab", buffering=0) as file:

        def lost() -> float | None:
            return of(scraped(port), "stagespan_lost_total", cause="recording")

        # GIVEN a line of more than 2 MiB, which is written in two parts
        file.write(b"x" * (5 << 19))
        assert lost() == 0
        file.write(b"y" * (1 << 19))
        file.write(b"\n1-1.stagespan\n2-2.stagespan\n")
        until(lambda: lost() == 2)
        file.write(b"3-3.stagespan\n")
        until(lambda: lost() == 3)


def test_many_files_that_are_not_recordings_give_one_warning(folder: Path, tmp_path: Path) -> None:
    for number in range(100):
        name = folder / f"{os.getpid()}-{number}.stagespan"
        if number % 3 == 0:
            name.write_bytes(os.urandom(5000))
        elif number % 3 == 1:
            os.mkfifo(name)
        else:
            name.symlink_to("nowhere")
    with (tmp_path / "errors").open("w+") as errors:
        export = (sys.executable, "-m", "stagespan", "export", "--prometheus", "0")
        process = start_command(export, stderr=errors)
        port = int(ready(process).partition("/metrics")[0].rpartition(":")[2])
        lost = "stagespan_lost_total"
        until(lambda: (of(scraped(port), lost, cause="unreadable") or 0) == 100)
        (folder / f"{os.getpid()}-1000.stagespan").write_bytes(b"x")
        until(lambda: of(scraped(port), lost, cause="unreadable") == 101)
        process.send_signal(signal.SIGTERM)
        ended(process, 0)
        errors.seek(0)
        lines = errors.read().splitlines()
    assert len(lines) == 1, lines
    assert "other recordings cannot be read" in lines[0]
