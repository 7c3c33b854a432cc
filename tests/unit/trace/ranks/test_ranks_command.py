"""``stagespan analyze FOLDER``: a page, files, a merged timeline, and sentences."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from commands import run
from planted_ranks import US, finding_in, ranks_in, together, write_rank
from rich.console import Console

from stagespan.pages.escaping import one_line
from stagespan.pages.terminal import print_result
from stagespan.trace import read_trace
from stagespan.trace.json_schema import json_schema


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve ranks of which rank 4 is late, and one with a hostile name."""
    arrivals = [[1_000.0 * n + (400 if rank == 4 else 0) for n in range(6)] for rank in range(12)]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path / "job", rank, calls, world=13)
    (tmp_path / "job" / "\x1b[31m<script>.json").write_text("{}")
    return tmp_path / "job"


def test_the_page(folder: Path) -> None:
    status, out, error = run(folder)
    assert (status, error) == (0, "")
    out = " ".join(out.split())
    # The page has the verdict, the remarks and the findings that the result has.
    found = ranks_in(folder)
    assert out.startswith("job: 12 ranks")
    assert found.to_dict()["verdict"]["sentence"] in out
    # A path that is longer than a line is broken, so blanks are not compared.
    text = "".join(out.split())
    assert all("".join(one_line(remark).split()) in text for remark in found.remarks)
    late = finding_in(found, "ranks.late")
    assert late.first_line in out
    assert (late.numbers["rank"], late.numbers["waited_percent"]) == (4, 100)
    assert (late.numbers["waited_ns"], late.numbers["late_ns"]) == (26_400 * US, 2_400 * US)
    assert (late.numbers["last"], late.numbers["of"]) == (6, 6)
    assert "\x1b" not in out


@pytest.mark.parametrize(("height", "width"), [(24, 80), (30, 100), (50, 200)])
def test_the_page_fits_the_screen(height: int, width: int, folder: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, height=height)
    print_result(ranks_in(folder), console)
    assert len(text.getvalue().splitlines()) < max(height, 36)


def test_no_word_of_the_ranks_is_cut_at_80_columns(tmp_path: Path) -> None:
    # GIVEN ranks with the longest verdict, and times with many digits
    arrivals = [[20_000.0 * n + 9_000 * (rank == 1) for n in range(60)] for rank in range(3)]
    for rank, calls in enumerate(together(arrivals, took=8_000)):
        write_rank(tmp_path, rank, calls, world=3)
    text = io.StringIO()
    print_result(ranks_in(tmp_path), Console(file=text, width=80, height=40, force_terminal=True))
    assert "communication-bound" in text.getvalue()
    assert "…" not in text.getvalue()
    # THEN the time by which the table is sorted is there
    assert re.search(r" 540\b", text.getvalue())


def test_files(folder: Path, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    files = {kind: tmp_path / f"page.{kind}" for kind in ("json", "markdown", "html")}
    for kind in ("json", "markdown"):
        status, _, error = run(folder, "--jobs", 1, f"--{kind}", "-o", files[kind])
        assert (status, error) == (0, "")
    assert run(folder, "--jobs", 1, "--html", files["html"])[0] == 0
    written = json.loads(files["json"].read_text())
    jsonschema.validate(written, json_schema())
    ranks = written["ranks"]
    assert (ranks["found"], ranks["missing"]) == (list(range(12)), [12])
    assert ranks["ranks"][4]["last_in"] == 6
    assert ranks["ranks"][4]["caused_wait_us"] == 2_400
    assert ranks["waited_us"] == 11 * 2_400
    assert ranks["collectives"][0]["most_often_last"] == 4
    assert ranks["collectives"][0]["most_waited_for"] == 4
    assert ranks["collectives"][0]["most_waited_for_us"] == 11 * 2_400
    assert ranks["verdict"]["verdict"] == "communication-bound"
    for row in ranks["ranks"]:
        assert sum(row["parts_us"].values()) == pytest.approx(row["time_us"])
    for finding in written["findings"]:
        assert finding["code"].startswith("ranks.")
        assert finding["evidence"]
    late = finding_in(ranks_in(folder), "ranks.late").sentence
    assert late in files["markdown"].read_text()
    page = files["html"].read_text()
    assert late in page
    assert '"verdict":{"word":"communication-bound"' in page
    assert "<script>.json" not in page


def test_merged(folder: Path, tmp_path: Path) -> None:
    status, _, error = run(folder, "--merge", tmp_path / "merged.json.gz")
    assert (status, error) == (0, "")
    assert len(read_trace(tmp_path / "merged.json.gz").events) == 12 * 7


def test_sentences(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    status, out, error = run(tmp_path / "none")
    assert (status, out) == (2, "")
    assert "contains no traces" in error
    status, _, error = run(folder / "rank0.json.gz", "--merge", tmp_path / "m.json")
    assert status == 2
    assert "Only the traces of several ranks can be merged" in error
    status, _, error = run(folder, "--jobs", "0")
    assert status == 2
    assert "0 is not allowed" in error
    status, _, error = run(folder, "--merge", folder / "rank0.json.gz" / "m.json")
    assert status == 2
    assert "cannot be written" in error
