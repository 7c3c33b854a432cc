"""Complete synthetic folders of Ascend, and the output of analysing a folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from commands import fits, resolved
from synthetic_ascend import SyntheticAscend

from stagespan.trace.analysis import ANALYSES, result_types
from stagespan.trace.json_schema import json_schema
from stagespan.trace.paths import analyze_path

OUTPUT = "ASCEND_PROFILER_OUTPUT"


def analysed(path: Path) -> dict[str, Any]:
    """Return the output of --json; it fits the schema, which describes every key."""
    written: dict[str, Any] = json.loads(json.dumps(analyze_path(path).to_dict()))
    schema = json_schema()
    fits(written, schema)
    for name in result_types().keys() - ANALYSES.keys() & written.keys():
        described = resolved(schema["properties"][name]["anyOf"][-1])
        if "unknown" not in written[name]:
            assert described["properties"].keys() == written[name].keys(), name
    return written


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{key: cell.strip() for key, cell in row.items()} for row in csv.DictReader(file)]


def synthetic(folder: Path, level: int = 1) -> Path:
    """Create a complete synthetic folder."""
    it = SyntheticAscend(level)
    it.host("ProfilerStep#1", 0, 2_000_000)
    it.host("aten::mm", 5_000, 60_000)
    executed = it.call(100_000)
    it.kernel(
        "a_MatMulV2", executed + 5_000, executed + 200_000, launched=(executed + 1, executed + 2)
    )
    it.kernel("b_TransData", 900_000, 1_100_000, launched=(870_000, 880_000), core="AI_VECTOR_CORE")
    it.kernel("c_Nonzero", 1_200_000, 1_300_000, launched=(890_000, 895_000), core="AI_CPU")
    it.collective("hcom_allReduce__1", 1_250_000, 1_500_000)
    begin = executed + 5_000
    free = 900_000 - executed - 200_000 + 100_000
    computing, stage = 195_000 + 200_000 + 100_000, 1_500_000 - begin
    times = (computing, 200_000, 50_000, 250_000, free, stage, 0, 200_000, begin)
    root = it.write(folder, {"1": times})
    output = root / OUTPUT
    (output / "api_statistic.csv").write_text(
        "Device_id,Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance\n"
        '0,acl,aclnnAdd,"1,200.50",3,400.167,100.5,"1,000",0\n'
    )
    (output / "operator_details.csv").write_text(
        "Name,Input Shapes,Call Stack,Host Self Duration(us),Host Total Duration(us),"
        "Device Self Duration(us),Device Total Duration(us)\n"
        'aten::mm,"2,3;3,4","a.py(1): f;\nb.py(2): g;\n",10.5,20.25,1,2\naten::mm,,,1,2,3,4\n'
    )
    (output / "memory_record.csv").write_text(
        "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type\n"
        "PTA,100.000\t,10.5,64,NPU:0\nPTA,150.000\t,32,3072,NPU:0\nAPP,160.000\t,,4096,NPU:0\n"
    )
    (output / "operator_memory.csv").write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us)\n"
        "aten::empty,1024,1,2,1\naten::empty,512,3,,\n"
    )
    operation = {"Communication Time Info": {"Elapse Time(ms)": 0.25, "Wait Time(ms)": 0.2}}
    content = {"collective": {"hcom_allReduce__1@9": operation, "Total Op Info": operation}}
    (output / "communication.json").write_text(json.dumps({"step1": content}))
    link = {"Transport Type": "HCCS", "Transit Size(MB)": 20.0, "Transit Time(ms)": 2.0}
    matrix = {"collective": {"allreduce-total@9": {"0-1": link, "0-0": link}}}
    (output / "communication_matrix.json").write_text(json.dumps({"step1": matrix}))
    return root
