"""The former names of commands go on working for a release, and say what stands for them now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from click_runner import cli_runner
from stagespan.cli import VERBS, command
from stagespan.cli.former import FORMER


def run(*arguments: str) -> tuple[int, str, list[str]]:
    result = cli_runner().invoke(command, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr.splitlines()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, ms in (("before", 10.0), ("after", 12.0)):
        stage = {"duration_ms": 20 * ms, "count": 20, "p25_ms": ms, "p50_ms": ms, "p75_ms": ms}
        Path(f"{name}.json").write_text(json.dumps({"stages": {"denoise": stage}}))
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1}
        events = [{**event, "ts": 20 * number, "dur": ms} for number in range(9)]
        Path(f"{name}_trace.json").write_text(json.dumps({"traceEvents": events}))
    call = {"stage_name": "call", "input_signatures": {"x": 1}}
    Path("signatures.json").write_text(json.dumps({"schema_version": 1, "stages": {"call": call}}))
    Path("ncu.csv").write_text(
        '"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
        '"0","gemm","(256, 1, 1)","(64, 2, 1)","gpu__time_duration.sum","nsecond","1,200"\n'
    )


@pytest.mark.parametrize(
    ("former", "now"),
    [
        (["report", "before.json"], ["show", "before.json"]),
        (["report", "before.json", "--json"], ["show", "before.json", "--json"]),
        (
            ["report", "--against=before.json", "after.json"],
            ["compare", "before.json", "after.json"],
        ),
        (["stages", "signatures.json"], ["show", "signatures.json"]),
        (["recover", "--job", "no job"], ["show", "--job", "no job"]),
        (["recover", "4194304"], ["show", "4194304"]),
        (["ncu", "--csv", "ncu.csv"], ["bench", "--ncu", "--csv", "ncu.csv"]),
        (["ncu", "--csv", "ncu.csv"], ["show", "ncu.csv"]),
        (["report", "4194304"], ["show", "4194304", "--stages"]),
        (["merge-spans", "missing.json"], ["dump", "--into", "missing.json"]),
        (
            ["merge-spans", "-o", "x.json", "--recording", "4194304", "after_trace.json"],
            ["dump", "4194304", "--into", "after_trace.json", "-o", "x.json"],
        ),
        (
            ["analyze", "after_trace.json", "--against", "before_trace.json"],
            ["compare", "before_trace.json", "after_trace.json"],
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("files")
def test_a_former_name_has_the_output_and_status_of_the_present_one(
    former: Sequence[str], now: Sequence[str]
) -> None:
    status, out, error = run(*former)
    status_now, out_now, error_now = run(*now)
    assert (status, out) == (status_now, out_now)
    assert status == 2 or out
    # one line on standard error, whose first words say what to type
    notes = [line for line in error if "will be removed in the next release" in line]
    assert [line for line in error if line not in notes] == error_now
    assert f"is `stagespan {now[0]} " in notes[-1] or now[0] == "show"


def test_former_names_are_in_no_list() -> None:
    assert len(VERBS) == 12
    _, listed, _ = run("--help")
    for name in FORMER:
        assert f"  {name} " not in listed
    for verb, option in (("analyze", "--against"), ("export", "--page")):
        assert option not in run(verb, "--help")[1]
