"""``%%stagespan``: cells of notebooks in a real kernel."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

pytestmark = pytest.mark.slow

BUSY = """
import threading, time
def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
def main():
    busy(0.4)
"""


def executed(*sources: str, folder: Path) -> list[Any]:
    """Return the cells with these sources, run in a kernel after the extension was loaded."""
    cells = ["%load_ext stagespan", *sources]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    nbclient.NotebookClient(
        notebook,
        allow_errors=True,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    first, *others = notebook.cells
    assert first.outputs == []
    return others


def texts_of(cell: Any) -> list[str]:
    """Return the outputs of a cell as text."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append(output.text)
        elif output.output_type == "error":
            found.append(f"{output.ename}: {output.evalue}")
        else:
            found.append(output.data["text/plain"])
    return found


def html_of(cell: Any) -> str:
    """Return what a browser shows below a cell."""
    return "".join(output.data.get("text/html", "") for output in cell.outputs if "data" in output)


def test_a_cell_shows_its_value_and_where_its_time_went(tmp_path: Path) -> None:
    # GIVEN a notebook whose function takes the time
    _, cell = executed(BUSY, "%%stagespan\nmain()\n6 * 7", folder=tmp_path)
    # WHEN a cell with the magic has run THEN it has its value and a table of functions
    value, table = texts_of(cell)
    assert value == "42"
    assert re.search(r"main > busy +\d+(\.\d)? % +0\.\d+ s +\w", table), table
    # AND the command for the next cell
    assert table.endswith("%%stagespan --stage busy")
    # AND a browser shows a verdict, a bar and the table
    shown = html_of(cell)
    assert re.search(r"<b>main &gt; busy takes \d+(\.\d)? % of the time, mostly \w+", shown), shown
    assert shown.count("<svg ") == 1
    assert ">main &gt; busy</td>" in shown
    # AND nothing of the kernel is in it
    assert not re.search("ipykernel|IPython|zmq|tornado", table + shown)


def test_threads_of_a_cell_are_sampled_and_those_of_the_kernel_are_not(tmp_path: Path) -> None:
    cell = executed(
        BUSY,
        """%%stagespan
        threads = [threading.Thread(target=busy, args=(0.3,)) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """.replace("\n        ", "\n"),
        folder=tmp_path,
    )[1]
    rows = [line for line in texts_of(cell)[-1].splitlines() if " % " in line]
    assert [row.split("  ")[0].strip() for row in rows] == ["busy", "(outside of functions)"]


def test_stages_are_timed_while_the_cell_runs(tmp_path: Path) -> None:
    # GIVEN a function of an earlier cell, one of this cell, and one of a module
    _, timed, later = executed(
        BUSY,
        "%%stagespan --stage busy --stage inner --stage json:dumps --stage missing\n"
        "import json\n"
        "def inner():\n    busy(0.01)\n"
        "for _ in range(3): inner()\n"
        "busy(0.02)",
        "import stagespan\ninner(); busy(0.01); json.dumps(1)\n"
        "{name: stage.count for name, stage in stagespan.stats().items()}",
        folder=tmp_path,
    )
    # WHEN the cell has run THEN each of them that ran is in its table
    table, *sentences = texts_of(timed)
    assert re.search(r"^busy +4 ", table, re.MULTILINE), table
    assert re.search(r"^inner +3 ", table, re.MULTILINE), table
    # AND the others are named
    assert any("__main__:missing was not timed" in sentence for sentence in sentences)
    assert any("json:dumps never ran" in sentence for sentence in sentences)
    # AND a later cell does not time them
    assert texts_of(later) == ["{'busy': 4, 'inner': 3}"]


def test_a_cell_that_fails_shows_its_error_and_its_time(tmp_path: Path) -> None:
    cell = executed(BUSY, "%%stagespan\nbusy(0.2)\n1 / 0", folder=tmp_path)[1]
    table, error = texts_of(cell)
    assert "busy" in table
    assert error == "ZeroDivisionError: division by zero"
    # The frames are those of the cell alone.
    assert "stagespan" not in "".join(cell.outputs[-1].traceback)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--sample-ms 0", "must be from 1 to 1000"),
        ("--nothing", "unrecognized arguments: --nothing"),
        ("--stage a:b:c", "must be written as"),
        ("--stage 'open", "No closing quotation"),
        ("-h", "--profile STAGE"),
    ],
)
def test_options_that_are_wrong_are_named(line: str, sentence: str) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shell.extension_manager.load_extension("stagespan")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        result = shell.run_cell(f"%%stagespan {line}\nran = True")
    assert sentence in f"{output.getvalue()}{result.error_in_exec}"
    assert "ran" not in shell.user_ns


def test_a_cell_with_await_is_refused(tmp_path: Path) -> None:
    cell = executed("%%stagespan\nimport asyncio\nawait asyncio.sleep(0)", folder=tmp_path)[0]
    assert "a cell with `await` outside of functions cannot be sampled" in texts_of(cell)[0]


def test_a_cell_that_ends_at_once_says_so(tmp_path: Path) -> None:
    (cell,) = executed("%%stagespan --sample-ms 1000\n1", folder=tmp_path)
    assert texts_of(cell)[1:] == ["No sample was taken, because the cell ended within 1000 ms."]


def test_a_profiled_function_has_a_trace_and_its_verdict(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # GIVEN a function that the cell itself defines
    cell, after = executed(
        "%%stagespan --profile step\n"
        "import torch\n"
        "x = torch.randn(200, 200)\n"
        "def step():\n    return (x @ x).sum().item()\n"
        "for _ in range(4): step()",
        "%%stagespan --profile nothing\n1",
        folder=tmp_path,
    )
    # WHEN it was profiled THEN the verdict about its trace and the path of the trace stand below
    table, verdict, path = texts_of(cell)
    assert re.search(r"^step +4 ", table, re.MULTILINE), table
    assert re.match(r"<Analysis of step_trace\.json\.gz: [\w-]+", verdict), verdict
    assert (tmp_path / path.removeprefix("The trace is ")).is_file()
    assert "<svg " in html_of(cell)
    # AND a stage that does not run is named
    assert "The stage nothing was not profiled" in texts_of(after)[-1]


def test_debug_mode_writes_no_lines_into_cells_unless_logging_is_configured(
    tmp_path: Path,
) -> None:
    quiet, shown = executed(
        "import stagespan, time\n"
        "stagespan.set_debug(True)\n"
        "def run():\n"
        "    with stagespan.ProfilingContext4Debug('step'): time.sleep(0.01)\n"
        "    stagespan.flush()\n"
        "run()",
        "import logging, sys\nlogging.basicConfig(level=logging.INFO, stream=sys.stdout)\nrun()",
        folder=tmp_path,
    )
    assert texts_of(quiet) == []
    assert "[Profile] step cost" in texts_of(shown)[0]
