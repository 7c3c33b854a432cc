"""What findings about Ascend folders would win: exact on made folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ascend_folders import OUTPUT, synthetic
from synthetic_ascend import SyntheticAscend

from stagespan.pages.result import Finding
from stagespan.trace.paths import analyze_path

STEP_COLUMNS = (
    "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing"
)


def folder_of(folder: Path, **files: str) -> Path:
    """Create a folder without a trace from the contents of some files, by name."""
    root = folder / "node_ascend_pt"
    (root / OUTPUT).mkdir(parents=True)
    (root / "profiler_info.json").write_text("{}")
    for name, content in files.items():
        (root / OUTPUT / name.replace("__", ".")).write_text(content)
    return root


def found_in(folder: Path, code: str) -> Finding:
    (finding,) = [each for each in analyze_path(folder).findings() if each.code == code]
    return finding


def test_free_time_of_a_table_can_be_won_at_most_once(tmp_path: Path) -> None:
    steps = f"{STEP_COLUMNS}\n1,600,100,0,100,300,1000,0,100,0\n2,800,100,0,100,100,1000,0,100,0\n"
    finding = found_in(folder_of(tmp_path, step_trace_time__csv=steps), "ascend.free")
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (400_000, True)


def test_exposed_communication_wins_its_time(tmp_path: Path) -> None:
    steps = f"{STEP_COLUMNS}\n1,200,700,0,700,100,1000,0,700,0\n"
    folder = folder_of(tmp_path, step_trace_time__csv=steps)
    finding = found_in(folder, "ascend.exposed_communication")
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (700_000, True)
    assert finding.gain.how.startswith("200 µs of computation hide a part of it")


def test_collectives_that_wait_win_this_time(tmp_path: Path) -> None:
    operations = {
        f"hcom_allReduce__1_{number}@9": {
            "Communication Time Info": {"Elapse Time(ms)": took, "Wait Time(ms)": waited}
        }
        for number, (took, waited) in enumerate([(10, 6), (2, 1)])
    }
    content = json.dumps({"step1": {"collective": operations}})
    folder = folder_of(tmp_path, communication__json=content)
    finding = found_in(folder, "ascend.collectives_waited")
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (7_000_000, True)
    assert finding.gain.how == "all ranks arrive at the same time"


def test_conversions_and_operators_of_the_ai_cpu_win_their_time(tmp_path: Path) -> None:
    folder = synthetic(tmp_path)
    conversions, of_cpu = (
        found_in(folder, code) for code in ("ascend.conversions", "ascend.ai_cpu")
    )
    assert conversions.gain is not None
    assert of_cpu.gain is not None
    assert (conversions.gain.time_ns, conversions.gain.at_most) == (200_000, True)
    assert (of_cpu.gain.time_ns, of_cpu.gain.at_most) == (100_000, True)


@pytest.mark.parametrize("compiling_us", [150, 900])
def test_compiling_wins_no_more_than_the_idle_time(compiling_us: int, tmp_path: Path) -> None:
    # GIVEN a device that works for 700 of the 1,000 µs in which the host compiles operators
    it = SyntheticAscend()
    it.host("aten::mm", 0, 1_000_000)
    it.kernel("a_MatMul", 300_000, 1_000_000, launched=(1_000, 2_000))
    folder = it.write(tmp_path, {})
    (folder / OUTPUT / "api_statistic.csv").write_text(
        "Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance\n"
        f"acl,aclopCompileAndExecute,{compiling_us},1,1,1,1,0\n"
    )
    finding = found_in(folder, "ascend.compiled_while_running")
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (min(compiling_us, 300) * 1_000, True)


def test_waits_of_the_host_are_not_a_gain_without_a_trace(tmp_path: Path) -> None:
    calls = (
        "Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance\n"
        "acl,aclrtSynchronizeStream,900,1,900,900,900,0\nacl,aclnnAdd,100,1,100,100,100,0\n"
    )
    finding = found_in(folder_of(tmp_path, api_statistic__csv=calls), "ascend.host_waits")
    assert finding.gain is None
    assert finding.text.endswith(
        " The gain is unknown, because only the trace shows when the device waited."
    )
