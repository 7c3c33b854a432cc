"""Processes for whose recording there is no file: they say so, and the exporter counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting import exporter, of, scraped
from recorded_process import skip_unless_works, start

from running import PROGRAMS, ran, until

EXPORTED = PROGRAMS / "exported.py"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB with 40 inodes, which recordings are written to."""
    skip_unless_works(
        "mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=40,mode=0700", "tmpfs", str(tmp_path)
    )
    try:
        yield tmp_path
    finally:
        ran(["umount", "--lazy", str(tmp_path)], status=0)


def use_up_space(folder: Path) -> None:
    with (folder / "large").open("wb", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def use_up_inodes(folder: Path) -> None:
    for number in range(40):
        try:
            (folder / f"{number}").touch()
        except OSError:
            return


@pytest.mark.parametrize(
    ("use_up", "reason"), [(use_up_space, "has no space"), (use_up_inodes, "No space left")]
)
def test_processes_without_room_for_a_file_are_counted(
    use_up: object, reason: str, small: Path
) -> None:
    assert callable(use_up)
    folder = str(small)
    with exporter(STAGESPAN_RECORDING_DIR=folder) as (_, port):
        use_up(small)
        for number in (1, 2):
            process = start(EXPORTED, "worker_with_child", STAGESPAN_RECORDING_DIR=folder)
            _, errors = process.communicate(timeout=60)
            # THEN it says so in one sentence, and the child does not repeat it
            assert process.returncode == 0
            assert errors.count("\n") == 1, errors
            assert reason in errors
            until(
                lambda n=number: (
                    of(scraped(port), "stagespan_lost_total", cause="recording") == 2 * n
                )
            )


def test_a_recording_in_memory_beside_a_folder_of_recordings_is_counted(folder: Path) -> None:
    with exporter() as (_, port):
        process = start(EXPORTED, "worker_with_child", STAGESPAN_RECORDING="memfd")
        _, errors = process.communicate(timeout=60)
        # THEN it says that the exporter does not find it, and the exporter counts it
        assert errors.count("\n") == 1, errors
        assert "STAGESPAN_RECORDING_DIR" in errors
        until(lambda: of(scraped(port), "stagespan_lost_total", cause="recording") == 2)
        assert of(scraped(port), "stagespan_stage_duration_seconds_count") is None


def test_an_exporter_that_begins_later_learns_of_it_at_the_end(folder: Path) -> None:
    process = start(EXPORTED, "runs", "1", STAGESPAN_RECORDING="memfd")
    assert process.stdout is not None
    process.stdout.readline()
    with exporter() as (_, port):
        assert of(scraped(port), "stagespan_lost_total") == 0
        process.communicate("\n", timeout=60)
        # THEN the exporter that has begun since counts it
        until(lambda: of(scraped(port), "stagespan_lost_total", cause="recording") == 1)


def test_figures_that_do_not_fit_in_a_file_are_counted(small: Path) -> None:
    # GIVEN a process whose recording is in a file, before the rest of the tmpfs is used up
    folder = str(small)
    with exporter(STAGESPAN_RECORDING_DIR=folder) as (_, port):
        process = start(EXPORTED, "growing_names", STAGESPAN_RECORDING_DIR=folder)
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert of(scraped(port), "stagespan_lost_total") == 0
        use_up_space(small)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        # THEN the exporter counts once that something of it is missing
        until(lambda: of(scraped(port), "stagespan_lost_total", cause="recording") == 1)
        process.communicate("\n", timeout=60)
        assert of(scraped(port), "stagespan_lost_total", cause="recording") == 1
        assert os.path.exists(folder)
