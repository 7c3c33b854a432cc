"""Recordings that are cut, changed or of another version."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_process import (
    command_here,
    copy_sparse,
    extents,
)

from properties import examples
from stagespan import recording
from stagespan.errors import StagespanError
from stagespan.pages.html import html_page
from stagespan.pages.markdown import markdown
from stagespan.pages.page import Page
from stagespan.pages.terminal import print_page
from stagespan.recording import dump
from stagespan.recording.analysis import trace_of
from stagespan.recording.process_page import ProcessPage
from stagespan.trace.analysis import analyze


def read_all(path: Path) -> None:
    found = recording.open(path)
    found.spans(), found.open_spans(), found.requests(), found.threads(), found.lost()
    str(found.stats())
    found.warnings()
    command_pages(found)


def command_pages(found: recording.Recording) -> None:
    page = ProcessPage(found)
    for show in (Page.to_dict, markdown, html_page, print_page):
        show(page)
    for write in dump.FORMATS.values():
        write(found)
    analyze(trace_of(found, found.path))


@settings(max_examples=examples(60))
@given(
    changes=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 30_000), st.integers(0, 1 << 21)),
            st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8), st.just(bytes(8))),
        ),
        min_size=1,
        max_size=6,
    ),
    length_bytes=st.one_of(st.none(), st.integers(0, 9_000_000)),
)
def test_a_damaged_file_is_read_or_refused_in_a_sentence(
    real_file: Path, changes: list[tuple[int, bytes]], length_bytes: int | None
) -> None:
    with tempfile.NamedTemporaryFile(suffix=".stagespan") as file:
        path = Path(file.name)
        copy_sparse(real_file, path)
        with path.open("r+b") as open_file:
            parts = extents(open_file.fileno())
            for offset, value in changes:
                # Only parts that are not holes.
                at = offset % sum(length for _, length in parts)
                for begin, length in parts:
                    if at < length:
                        os.pwrite(open_file.fileno(), value, begin + at)
                        break
                    at -= length
            if length_bytes is not None:
                open_file.truncate(length_bytes)
        with contextlib.suppress(StagespanError):
            read_all(path)


def test_what_is_not_a_recording_is_named(tmp_path: Path, real_file: Path) -> None:
    empty, text, link, pipe = (tmp_path / name for name in ("empty", "text", "link", "pipe"))
    empty.write_bytes(b"")
    text.write_text("x" * 100_000)
    link.symlink_to(real_file)
    os.mkfifo(pipe)
    with real_file.open("rb") as file:
        other = file.read(1 << 16)
    version, order = tmp_path / "version", tmp_path / "order"
    version.write_bytes(other[:8] + struct.pack("<I", 77) + other[12:])
    order.write_bytes(other[:8][::-1] + other[8:])
    missing = tmp_path / "missing"
    of_other_files = {text: "is not JSON", tmp_path: "no traces", missing: "neither a file nor"}
    for path, words in (
        (empty, "is empty"),
        (text, "is not a recording of stagespan"),
        (link, "is a link"),
        (pipe, "is not a file"),
        (tmp_path, "is not a file"),
        (missing, "There is no file"),
        (version, "layout 77"),
        (order, "other byte order"),
    ):
        with pytest.raises(StagespanError, match=words):
            recording.open(path)
        shown = command_here("show", str(path))
        assert shown.returncode == 2
        assert of_other_files.get(path, words) in shown.stderr
        assert "Traceback" not in shown.stderr
    with pytest.raises(StagespanError, match="There is no process"):
        recording.open(2**22 + 5)
