"""``stagespan analyze``: one screen, complete files, and one sentence for unreadable input."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import pytest
from ascend_folders import synthetic
from commands import fits, resolved, run
from kernel_programs import operator
from planted import Program
from rich.console import Console

from stagespan.pages.markdown import markdown
from stagespan.pages.terminal import print_page
from stagespan.trace import read_trace
from stagespan.trace.analysis import analyze
from stagespan.trace.derived.device import device_work
from stagespan.trace.paths import analyze_path


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A program with several faults."""
    program = Program()
    for step in range(20):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            with program.within("enumerate(DataLoader)#x", "user_annotation"):
                program.work(800)
            program.operator(us=100)
            with program.within("aten::item"):
                program.wait(tail=200)
            program.launch("ncclKernel", 500, stream=20)
            program.work(700)
    program.trace(tmp_path)
    return tmp_path / "planted.json"


def test_the_page_names_verdict_causes_and_evidence(planted: Path) -> None:
    status, out, error = run(planted)
    assert (status, error) == (0, "")
    assert out.startswith("planted.json: ")
    out = " ".join(out.split())
    # The page has the sentences of the result, and the codes show what the faults are.
    analysis = analyze(read_trace(planted))
    assert analysis.to_dict()["verdict"]["sentence"] in out
    findings = analysis.findings()
    assert {each.code for each in findings[:4]} == {
        "idle.data_loader", "idle.between_steps", "idle.synchronisation",
        "device_use.exposed_communication",
    }  # fmt: skip
    assert all(each.first_line in out for each in findings[:4])
    assert "aten::item (cudaStreamSynchronize)" in out


@pytest.mark.parametrize(("height", "width"), [(24, 80), (30, 100), (50, 200), (10, 40)])
def test_the_page_fits_the_screen(height: int, width: int, planted: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, height=height)
    print_page(analyze(read_trace(planted)), console)
    lines = text.getvalue().splitlines()
    # THEN it is no longer than the terminal (or twenty lines), and says what is left out
    assert len(lines) < max(height, 24) or width < 80
    assert "Host-bound" in text.getvalue()


def test_pages_share_what_the_analyses_derived(planted: Path, tmp_path: Path) -> None:
    for path in (planted, synthetic(tmp_path)):
        trace = analyze_path(path).trace
        assert device_work(trace) is device_work(trace)


def test_json_contains_everything(planted: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "analysis.json"
    status, out, _ = run(planted, "-o", target)
    assert (status, out) == (0, "")
    written = json.loads(target.read_text())
    assert written["schema_version"] == 1
    assert written["trace"]["path"] == str(planted)
    assert written["device_use"]["span_us"] == (
        written["device_use"]["compute_union_us"]
        + written["device_use"]["exposed_comm_us"]
        + written["device_use"]["exposed_memcpy_us"]
        + written["device_use"]["idle_us"]
    )
    assert sum(c["idle_us"] for c in written["idle"]["by_cause"].values()) == pytest.approx(
        written["device_use"]["idle_us"], abs=1e-6
    )
    keys = {"code", "severity", "sentence", "figures", "evidence", "gain", "no_gain"}
    texts = {"action", "details", "caveat"}
    assert written["findings"][0].keys() == keys | texts
    assert written["findings"][0]["evidence"][0].keys() == {"event", "time_us", "figure", "unit"}


def test_json_fits_its_schema(planted: Path, tmp_path: Path) -> None:
    status, text, _ = run("--json-schema")
    assert status == 0
    schema = json.loads(text)
    _, full, _ = run(planted, "--json", "-")
    none = tmp_path / "none.json"
    none.write_text("[]")
    _, empty, _ = run(none, "--json", "-")
    none.write_text('[{"ph":"X","name":"aten::mm","cat":"cpu_op","ts":1,"dur":2,"pid":1,"tid":1}]')
    _, without_device, _ = run(none, "--json", "-")
    fits(json.loads(without_device), schema)
    described = resolved(schema["properties"]["host"]["anyOf"][1])["properties"]
    assert described.keys() == json.loads(without_device)["host"].keys()
    fits(json.loads(full), schema)
    fits(json.loads(empty), schema)
    for where, wrong in ((("verdict", "verdict"), "fast"), (("idle", "idle_us"), "1")):
        changed = json.loads(full)
        changed[where[0]][where[1]] = wrong
        with pytest.raises(AssertionError):
            fits(changed, schema)
    for name in ("verdict", "device_use", "idle", "launches"):
        described = resolved(schema["properties"][name]["anyOf"][1])["properties"]
        assert described.keys() == json.loads(full)[name].keys(), name


def test_a_dash_is_only_standard_output(planted: Path) -> None:
    _, text, _ = run(planted, "--json", "-")
    assert json.loads(text)["verdict"]["verdict"] == "host-bound"
    _, page, _ = run(planted, "--markdown", "-")
    assert page == markdown(analyze(read_trace(planted)))


def test_hostile_names_do_not_affect_terminal_or_markdown(tmp_path: Path) -> None:
    # GIVEN events whose names contain escape codes, markup, tables and new lines
    name = "\x1b[31mred\n| a | **b** | [bold]c[/bold] <script>alert(1)</script> `d`" * 3
    program = Program()
    for _ in range(20):
        program.operator(f"{name}aten::mm", us=2)
        with program.within(name):
            program.wait(call=f"cudaStreamSynchronize{name}")
    path = tmp_path / "planted.json"
    program.trace(tmp_path)
    status, out, _ = run(path)
    page = markdown(analyze(read_trace(path)))
    assert status == 0
    assert "\x1b" not in out + page
    assert "<script" not in page.replace("\\<script", "")
    tables = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    assert len(tables) > 5
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(cells) == 1, table
    assert "[bold]" in out or "red" in out


def test_input_that_cannot_be_analysed_gives_one_sentence(planted: Path, tmp_path: Path) -> None:
    whole = planted.read_bytes()
    bad = {
        "missing.json": None,
        "empty.json": b"",
        "text.json": b"hello",
        "other.json": b'{"a": 1}',
        "numbers.json": b"[1, 2]",
        "binary.json": bytes(range(256)),
        "cut.json.gz": gzip.compress(whole)[:20],
    }
    for name, content in bad.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        status, out, error = run(path)
        assert (status, out) == (2, ""), name
        assert error.startswith("Error: "), name
        assert error.count("\n") == 1, name
    # THEN so does a folder without a trace, and a target that cannot be written
    (tmp_path / "folder").mkdir()
    assert run(tmp_path / "folder")[0] == 2
    status, _, error = run(planted, "-o", tmp_path / "text.json" / "x.json")
    assert (status, error.count("\n")) == (2, 1)


@pytest.mark.parametrize("content", [b"[]", b'{"traceEvents": []}'])
def test_an_empty_list_of_events(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_bytes(content)
    status, out, _ = run(path)
    assert status == 0
    assert "Cannot tell: the trace contains no device events, operators or stages" in out


def test_a_truncated_trace_is_reported(planted: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(planted.read_bytes()[: planted.stat().st_size // 2])
    status, out, _ = run(path)
    assert status == 0
    assert "is incomplete: the file ends in the middle of its events" in " ".join(out.split())


def test_the_device_of_a_trace_that_does_not_name_it(tmp_path: Path) -> None:
    program = Program()
    for _ in range(4):
        types = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
        operator(program, "aten::mm", "gemm", 1_000, [[4096, 4096], [4096, 4096]], **types)
    program.trace(tmp_path)
    file = tmp_path / "planted.json"
    _, out, _ = run(file, "--json")
    assert json.loads(out)["rates"]["by_shape"][0]["peak_percent"] is None
    status, out, error = run(file, "--json", "--device", "NVIDIA H100 80GB HBM3")
    assert (status, error) == (0, "")
    tflop_s = 2 * 4096**3 / 1e-3 / 1e12
    percent = json.loads(out)["rates"]["by_shape"][0]["peak_percent"]
    assert percent == pytest.approx(100 * tflop_s / 989.4, rel=1e-3)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--device", "Foo 9000"), "The peaks of 'Foo 9000' are unknown"),
        (("--device", "NVIDIA H100 80GB HBM3", "--against", "."), "omit either of them"),
    ],
)
def test_a_device_that_cannot_be_used(planted: Path, more: tuple[str, ...], message: str) -> None:
    status, _, error = run(planted, *more)
    assert status != 0
    assert message in " ".join(error.split())
