"""``stagespan compare A B`` of traces: a page, files, and a sentence if nothing is compared."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import commands
import pytest
from planted import Program
from rich.console import Console
from training import training

from stagespan.pages.amounts import in_words
from stagespan.pages.terminal import print_page
from stagespan.trace.json_schema import json_schema
from stagespan.trace.paths import analyze_path

run = functools.partial(commands.run, verb="compare")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    training(tmp_path, "before")
    training(tmp_path, "after", load=100, gemm=140, extra=True, kernel="other_gemm")
    return tmp_path / "before" / "planted.json", tmp_path / "after" / "planted.json"


def test_the_page(pair: tuple[Path, Path]) -> None:
    before, after = pair
    status, out, error = run(before, after)
    assert (status, error) == (0, "")
    out = " ".join(out.split())
    assert "A step takes 340 µs, 230 µs less than before (570 µs, -40.4 %)." in out
    assert "-300 (-75.0 %)" in out
    assert "all 570 340 -230 (-40.4 %)" in out
    assert "other_gemm (was kernel_gemm)" in out


@pytest.mark.parametrize(("height", "width"), [(24, 80), (30, 100), (50, 200)])
def test_the_page_fits_the_screen(height: int, width: int, pair: tuple[Path, Path]) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, no_color=True, width=width, height=height)
    analysis = analyze_path(pair[1], pair[0])
    print_page(analysis, console)
    assert len(text.getvalue().splitlines()) < max(height, 30)
    (change,) = [each for each in analysis.findings() if each.code == "comparison.step"]
    assert in_words(-change.numbers["change_ns"], "ns") in text.getvalue()


def test_json_and_markdown(pair: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = pair
    files = {kind: tmp_path / f"page.{kind}" for kind in ("json", "markdown", "html")}
    # Until 0.1.0, --json and --markdown took the name of a file.
    options = [str(each) for kind, file in files.items() for each in (f"--{kind}", file)]
    status, out, error = run(before, after, *options)
    assert (status, out) == (0, "")
    assert [line.split("`")[3] for line in error.splitlines()] == [
        "--json -o FILE",
        "--markdown -o FILE",
    ]
    written = json.loads(files["json"].read_text())
    commands.fits(written, json_schema())
    against, compared = written["against"], analyze_path(after, before).results["against"]
    assert (against["before"]["path"], against["before"]["steps"]) == (str(before), 4)
    assert against["before"]["each_step_us"] == [570.0] * 4
    assert sum(part["change_us"] for part in against["parts"]) == pytest.approx(-230)
    assert against["renamed_kernels"][0]["old_name"] == "kernel_gemm"
    page = files["markdown"].read_text()
    (title, *_) = [each.title for each in compared.tables()]
    assert title in page
    assert "other_gemm, before: kernel_gemm" in page
    assert title in files["html"].read_text()


def test_parts_that_cannot_be_compared_are_listed_above_the_page(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    program = Program()
    with program.within("aten::mm"):
        program.work(10)
    (tmp_path / "host").mkdir()
    program.trace(tmp_path / "host")
    status, out, error = run(tmp_path / "host" / "planted.json", pair[1])
    assert (status, error) == (0, "")
    assert out.startswith("Only the second trace has device events")
    assert "planted.json: " in out


def test_no_trace_to_compare_with(pair: tuple[Path, Path], tmp_path: Path) -> None:
    status, out, error = run(tmp_path / "none.json", pair[0])
    assert (status, out) == (2, "")
    assert f"There is no file {tmp_path / 'none.json'}" in error


def test_folders(pair: tuple[Path, Path], traces: Path, tmp_path: Path) -> None:
    # A folder with one trace represents that trace.
    status, out, _ = run(pair[0].parent, pair[1].parent)
    assert status == 0
    assert "230 µs" in " ".join(out.split())
    # Ascend results are compared, and their additional figures are kept.
    ascend = [traces / "ascend_level1" / f"rank{rank}_ascend_pt" for rank in (1, 0)]
    target = tmp_path / "ascend.json"
    status, out, _ = run(ascend[1], ascend[0])
    status, _, _ = run(ascend[1], ascend[0], "-o", target)
    assert status == 0
    written = json.loads(target.read_text())
    parts = written["against"]["parts"]
    assert sum(part["change_us"] for part in parts) == pytest.approx(
        written["against"]["change_us"]
    )
    assert any(name.startswith("ascend") for name in written)
    names = [f"rank{n}_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json.gz" for n in (1, 0)]
    assert " ".join(out.split()).startswith(" against ".join(names))
    collectives = [k for k in written["against"]["kernels"] if k["name"].startswith("hcom")]
    assert [(k["name"], k["before_count"]) for k in collectives] == [("hcom_allReduce", 4)]
    # Folders with many ranks are not.
    ranks = traces / "nccl_dlrm_8rank"
    for paths in ((ranks, ranks / "rank0.json.gz"), (pair[1], ranks)):
        status, _, error = run(paths[1], paths[0])
        assert status == 2
        assert f"{ranks} contains the traces of many ranks: compare the trace of one rank" in error
