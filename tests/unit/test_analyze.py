"""`stagespan.analyze`: whatever a path names, also in an object store or an archive."""

from __future__ import annotations

import gzip
import inspect
import io
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stagespan
import stagespan.trace.ascend
import stagespan.trace.ranks
from running import ran
from stagespan import recording, trace
from stagespan.errors import StagespanError, TraceError
from stagespan.trace import paths
from stagespan.trace.ranks import find
from stagespan.trace.ranks.summary import summarise

TRACE = b"""{"traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 10},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1,
   "dur": 2, "args": {"correlation": 1}},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5, "dur": 40,
   "args": {"correlation": 1, "device": 0, "stream": 7}}]}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(TRACE)
    return path


def computed_us(analysis: Any) -> float:
    """Return the device's time for computing."""
    found: float = analysis.to_dict()["device_use"]["compute_union_us"]
    return found


def zipped(path: Path) -> Path:
    target = path.parent / "run.zip"
    with zipfile.ZipFile(target, "w") as archive:
        archive.write(path, "run/trace.json")
    return target


def tarred(path: Path) -> Path:
    target = path.parent / "run.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        archive.add(path, "run/trace.json")
    return target


@pytest.mark.parametrize("kind", [str, Path, zipped, tarred, lambda path: str(zipped(path))])
def test_a_trace_is_analysed(kind: Callable[[Path], Any], path: Path) -> None:
    assert computed_us(stagespan.analyze(kind(path))) == 40


def test_a_trace_in_an_object_store_is_analysed(path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://runs/trace.json", "wb") as file:
        file.write(TRACE)
    assert computed_us(stagespan.analyze("memory://runs/trace.json")) == 40
    # A folder of one trace is this trace.
    assert computed_us(stagespan.analyze("memory://runs")) == 40


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://nothing/here.json", "cannot be read: "),
        ("no-such-store://bucket/trace.json", "cannot be read: Protocol not known"),
    ],
)
def test_a_url_that_cannot_be_read(url: str, reason: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(TraceError, match=f"{url} {reason}"):
        stagespan.analyze(url)


def test_an_archive_that_is_damaged(path: Path) -> None:
    whole = zipped(path)
    content = bytearray(whole.read_bytes())
    content[40:60] = bytes(20)
    whole.write_bytes(content)
    with pytest.raises(TraceError, match=r"The archive .*run.zip cannot be unpacked: "):
        stagespan.analyze(whole)


def test_the_files_of_an_archive_stay_when_a_forked_child_exits(path: Path) -> None:
    program = f"""
import os, sys
from stagespan.trace.read.remote import local_path

found = local_path({str(zipped(path))!r})
if os.fork() == 0:
    sys.exit(0)  # with its exit handlers
os.wait()
print(found.exists(), found)
"""
    done = ran([sys.executable, "-c", program], status=0)
    is_there, _, found = done.stdout.strip().partition(" ")
    assert is_there == "True"
    assert not Path(found).exists()


def zip_of_zeros(path: Path) -> Path:
    target = path.parent / "zeros.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(6):
            archive.writestr(f"{number}.json", bytes(100 << 20))
    return target


def zip_of_many_files(path: Path) -> Path:
    target = path.parent / "many.zip"
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("0.json", b"")
        # The same entry again and again, so that the archive is made quickly.
        archive.filelist *= 140_000
    return target


def tar_of(path: Path, kind: bytes, size: int) -> Path:
    """Return an archive that says that it contains a large file, or a header of this size."""
    member = tarfile.TarInfo("trace.json")
    member.type, member.size = kind, size
    target = path.parent / "large.tar.gz"
    with gzip.open(target, "wb", 1) as file:
        file.write(member.tobuf())
        file.write(bytes(1 << 20))
    return target


@pytest.mark.parametrize(
    "kind",
    [
        zip_of_zeros,
        zip_of_many_files,
        lambda path: tar_of(path, tarfile.REGTYPE, 600 << 20),
        lambda path: tar_of(path, tarfile.XHDTYPE, 700 << 20),
    ],
)
def test_an_archive_out_of_proportion_to_its_size_is_refused(
    kind: Callable[[Path], Path], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an archive whose content is far larger than 50 times its size
    archive = kind(path)
    assert archive.stat().st_size < 16 << 20
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(TraceError, match=r"contains more than [\d,]+ MiB"):
        stagespan.analyze(archive)
    assert list(temporary.iterdir()) == []


def test_files_outside_of_an_archive_are_not_written(path: Path) -> None:
    target = path.parent / "bad.tar"
    with tarfile.open(target, "w") as archive:
        outside = tarfile.TarInfo("../../outside.json")
        outside.size = len(TRACE)
        archive.addfile(outside, io.BytesIO(TRACE))
        link = tarfile.TarInfo("passwd.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        archive.add(path, "trace.json")

    analysis = stagespan.analyze(target)

    assert computed_us(analysis) == 40
    unpacked = Path(analysis.trace.path)
    assert not (unpacked.parent.parent / "outside.json").exists()
    assert [each.name for each in unpacked.parent.iterdir()] == ["trace.json"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StagespanError, match=r"nothing\.json"):
        stagespan.analyze(str(tmp_path / "nothing.json"))


def test_two_traces_are_compared(path: Path) -> None:
    other = shutil.copy(path, path.parent / "before.json")
    analysis = stagespan.analyze(str(path), against=str(other))
    assert "against" in analysis.results


def functions() -> list[Any]:
    """The public functions with a parameter for a path."""
    found = [find.traces_in, summarise, *(getattr(paths, name) for name in ("open_trace",))]
    modules: list[Any] = [
        stagespan, trace, recording, paths, stagespan.trace.ranks, stagespan.trace.ascend,
    ]  # fmt: skip
    for module in modules:
        names = getattr(module, "__all__", None) or [
            name for name in vars(module) if not name.startswith("_")
        ]
        found += [
            function
            for name in names
            if inspect.isfunction(function := getattr(module, name))
            and function.__module__.startswith("stagespan.")
        ]
    return list(dict.fromkeys(found))


def test_each_public_function_takes_a_path_as_text() -> None:
    for function in functions():
        for name, annotation in function.__annotations__.items():
            kinds = set(re.findall(r"\w+", str(annotation)))
            if name != "return" and kinds & {"Path", "PathLike"}:
                assert "str" in kinds, f"{function.__module__}.{function.__name__}({name})"
