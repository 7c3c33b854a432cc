"""All commands that show figures have the same forms of output, which show the same figures."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import click
import pytest
from recorded_process import command_here

from page_data import data_of
from running import ran
from stagespan import cli
from stagespan.cli.output import Output
from stagespan.pages.escaping import escaped, one_line
from stagespan.pages.page import Page
from stagespan.pages.result import Result, Table, texts_of

jsonschema = pytest.importorskip("jsonschema")

# Commands that write what others read.
WITHOUT_PAGES = {"capture", "dump", "export"}
# What runs a program has its own test: test_samples_in_all_forms.
IN_OTHER_TESTS = {"run"}


def analyzed(folder: Path, _: Path) -> list[str]:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1}
    events = [{**event, "ts": 20 * number, "dur": 10 + number} for number in range(9)]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return [str(folder / "trace.json")]


def benched(folder: Path, _: Path) -> list[str]:
    torch = pytest.importorskip("torch")
    from stagespan.signature.capture import capture
    from stagespan.signature.model import SignatureFile, StageSignature

    (folder / "outputs_pipeline.py").write_text("def get_stage():\n    return lambda x: x @ x.T\n")
    signature = StageSignature("denoise", {"x": capture(torch.zeros(8, 32))}, count=3)
    SignatureFile({"denoise": signature}, "r").write(folder / "signatures.json")
    factory = ["--factory", "outputs_pipeline:get_stage", "--output", str(folder / "out")]
    steps = ["--warmup", "1", "--timing-steps", "3", "--any-callable"]
    return [str(folder / "signatures.json"), *factory, *steps]


def replayed(folder: Path) -> str:
    assert command_here("bench", *benched(folder, folder)).returncode == 0
    return str(folder / "out" / "denoise_bench.json")


def compared(folder: Path, _: Path) -> list[str]:
    for name, ms in (("before", 10.0), ("after", 12.0)):
        stage = {"duration_ms": 20 * ms, "count": 20, "p25_ms": ms, "p50_ms": ms, "p75_ms": ms}
        report = {"stages": {"denoise": stage}, "environment": {"torch": name}}
        (folder / f"{name}.json").write_text(json.dumps(report))
    return [str(folder / "before.json"), str(folder / "after.json")]


def measured(folder: Path, _: Path) -> list[str]:
    head = '"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"'
    metrics = {
        "gpu__time_duration.sum": ("nsecond", "1,200"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "80.00"),
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "20.00"),
    }
    rows = [
        f'"0","gemm","(256, 1, 1)","(64, 2, 1)","{name}","{unit}","{value}"'
        for name, (unit, value) in metrics.items()
    ]
    (folder / "ncu.csv").write_text("\n".join([head, *rows]) + "\n")
    return ["--ncu", "--csv", str(folder / "ncu.csv")]


def listed(_: Path, file: Path) -> list[str]:
    shutil.copy(file, Path(os.environ["STAGESPAN_RECORDING_DIR"], "4194300-1.stagespan"))
    return ["--all"]


# The first word is the verb.
ARGUMENTS: dict[str, Callable[[Path, Path], list[str]]] = {
    "analyze": analyzed,
    "bench": benched,
    "compare": compared,
    "doctor": lambda _, __: ["--no-device"],
    "bench --ncu": measured,
    "ps": listed,
    "requests": lambda _, file: [str(file)],
    "show": lambda _, file: [str(file)],
    "show --stages": lambda _, file: [str(file), "--stages"],
    "show timing.json": lambda folder, _: compared(folder, _)[:1],
    "show bench.json": lambda folder, _: [replayed(folder)],
    "show signatures": lambda folder, _: benched(folder, _)[:1],
    "top": lambda _, file: [str(file), "--interval", "0.1"],
}


def test_no_command_is_forgotten() -> None:
    context = click.Context(cli.command)
    verbs = set(cli.command.list_commands(context))
    with_pages = {*IN_OTHER_TESTS, *(arguments.split()[0] for arguments in ARGUMENTS)}
    assert verbs == {*with_pages, *WITHOUT_PAGES}
    for verb in verbs:
        found = cli.command.get_command(context, verb)
        assert found is not None
        options = {option for param in found.params for option in param.opts}
        shared = {"--json", "--markdown", "--html", "-o", "--json-schema"}
        assert (options >= shared) == (verb in with_pages), verb


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """Return the pages that commands show from now on."""
    shown: list[Page] = []
    show = Output.show

    def kept(self: Output, page: Page, **options: bool) -> None:
        shown.append(page)
        show(self, page, **options)

    monkeypatch.setattr(Output, "show", kept)
    return shown


def texts(tables: list[Table]) -> set[str]:
    """Return the texts of all cells of tables, with at most 12 rows of each."""
    rows = (row for table in tables for row in texts_of(table.selected(12))[1])
    return {one_line(cell) for row in rows for cell in row if cell.strip()}


@pytest.mark.parametrize("verb", sorted({case.split(maxsplit=1)[0] for case in ARGUMENTS}))
def test_schemas_need_no_torch(verb: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch')\n")
    command = [sys.executable, "-m", "stagespan", verb, "--json-schema"]
    schema = json.loads(ran(command, PYTHONPATH=str(tmp_path), status=0).stdout)
    jsonschema.validators.validator_for(schema).check_schema(schema)


@pytest.mark.parametrize("case", ARGUMENTS)
def test_all_forms_show_the_same_figures(
    case: str,
    pages: list[Page],
    real_file: Path,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    verb = case.split(maxsplit=1)[0]
    arguments = [verb, *ARGUMENTS[case](tmp_path, real_file)]

    def run(*options: str) -> str:
        done = command_here(*arguments, *options)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    # JSON has the schema that the command prints, also if - follows the option
    schema = json.loads(command_here(verb, "--json-schema").stdout)
    for options in (["--json"], ["--json", "-"], ["-o", "figures.json"]):
        text = run(*options) or Path("figures.json").read_text()
        figures = json.loads(text)
        jsonschema.validate(figures, schema)
        assert figures["schema_version"] >= 1
    # Markdown has all tables
    markdown = run("--markdown")
    expected = texts([table for tables in pages[-1].tables.values() for table in tables])
    assert {cell for cell in expected if escaped(cell) not in markdown} == set()
    # the page has the same tables
    run("--html", "page.html")
    data = data_of(Path("page.html").read_text())
    tables = [table for section in data["sections"] for table in section["tables"]]
    own = [table for of_result in pages[-1].tables.values() for table in of_result]
    assert [(table["title"], len(table["rows"])) for table in tables] == [
        (one_line(table.title), min(len(table.rows), 5000)) for table in own
    ]
    for table, written in zip(own, tables, strict=True):
        assert [cells[1:] for cells in written["rows"]] == [
            [as_written(cell) for cell in row[1:]] for row in table.rows[:5000]
        ]
    # and a notebook shows the tables of the first screen
    for result in pages[-1].results.values():
        if isinstance(result, Result):
            in_notebook = unescape(result._repr_html_())
            head = [block for block in result.head() if isinstance(block, Table)]
            assert {cell for cell in texts(head) if cell not in in_notebook} == set()
    assert one_line(pages[-1].name()) in unescape(pages[-1]._repr_html_())
    assert expected
    # what the terminal shows is not empty
    assert run().strip()


def as_written(cell: Any) -> Any:
    return one_line(cell) if isinstance(cell, str) else cell
