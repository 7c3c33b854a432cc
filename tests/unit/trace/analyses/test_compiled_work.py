"""Device work in compiled graphs: synthetic kernels, and public traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compiled_programs import GRAPH, compiled_of, inductor_graph, of, region, run
from planted import Program

from stagespan.pages.result import Finding
from stagespan.trace import read_trace


def works(found: dict[str, Any]) -> dict[tuple[str, str], tuple[int, float | None]]:
    return {
        (row["of"], row["name"]): (row["calls"], row["device_us"]) for row in found["in_graphs"]
    }


def test_kernels_of_inductor_of_libraries_and_of_the_user(tmp_path: Path) -> None:
    program = Program()
    for _ in range(2):
        inductor_graph(program)
    run(program, "aten::add", "vectorized_elementwise_kernel", 1_000)
    program.launch("another_triton_kernel", 10, call="cuLaunchKernel")
    with program.within("aten::cudnn_convolution"):
        program.launch("engine_of_cudnn", 10, call="cuLaunchKernel")
    found, findings = of(program, tmp_path)
    # THEN each has its class and its time; outside of graphs only Triton kernels are listed
    assert works(found) == {
        ("inductor_triton", "triton_poi_fused_add_0"): (2, 60),
        ("inductor_triton", "triton_red_fused_mean_1"): (2, 40),
        ("extern", "aten::mm"): (2, 800),
        ("user_triton", "my_rope_kernel"): (2, 30),
        ("custom", "my_library::moe"): (2, 50),
        ("copies", "aten::reshape"): (2, 10),
        ("user_triton", "another_triton_kernel"): (1, 10),
    }
    assert found["triton_kinds"] == {
        "poi": {"count": 2, "time_us": 60},
        "red": {"count": 2, "time_us": 40},
    }
    assert findings == []


def test_operators_that_inductor_left_to_aten(tmp_path: Path) -> None:
    # GIVEN a graph that sorts for three times as long as everything else
    program = Program()
    with region(program), program.within(GRAPH):
        run(program, "triton_poi_fused_add_0", "triton_poi_fused_add_0", 400, "cuLaunchKernel")
        run(program, "aten::mm", "ampere_gemm", 600)
        run(program, "aten::sort", "radix_sort_kernel", 3_000)
    found, findings = of(program, tmp_path)
    assert works(found)["fallback", "aten::sort"] == (1, 3_000)
    (finding,) = findings
    assert (finding.code, finding.severity) == ("compiled.fallback", "medium")
    assert finding.numbers == {"time_ns": 3_000_000, "percent": 75, "libraries_ns": 600_000}
    assert [each.event for each in finding.evidence] == ["aten::sort"]
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (3_000_000, True)


def test_a_backend_without_code_generation(tmp_path: Path) -> None:
    # GIVEN a graph of autograd that calls aten for each operator
    program = Program()
    with program.within("CompiledFunction"):
        run(program, "aten::mm", "ampere_gemm", 3_000)
        run(program, "aten::mul", "vectorized_elementwise_kernel", 1_000)
        run(program, "aten::add", "vectorized_elementwise_kernel", 1_000)
    _, findings = of(program, tmp_path)
    (finding,) = findings
    assert finding.code == "compiled.no_inductor"
    assert finding.numbers == {"time_ns": 2_000_000, "percent": 40}
    # THEN at most the time of the two kernels that are not of a library can be won
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (2_000_000, True)


def test_look_ups_that_take_long(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        with region(program, lookup=100), program.within(GRAPH):
            program.work(198)
    found, findings = of(program, tmp_path)
    assert found["cache_lookups"] == {"count": 20, "time_us": 2_000}
    (finding,) = findings
    assert finding.code == "compiled.guards"
    assert finding.numbers == {
        "time_ns": 2_000_000,
        "percent": pytest.approx(100 / 3),
        "lookups": 20,
    }
    assert finding.gain is not None
    assert finding.gain.time_ns == 2_000_000 + finding.gain.others_ns == 4 * 2_000_000 // 3


@pytest.mark.parametrize("kernel", [5_000, 10_000])
def test_look_ups_win_no_more_than_the_idle_time_of_the_device(kernel: int, tmp_path: Path) -> None:
    program = Program()
    begin = program.now
    program.launch("gemm", kernel)
    for _ in range(20):
        with region(program, lookup=100), program.within(GRAPH):
            program.work(198)
    _, findings = of(program, tmp_path)
    (finding,) = [each for each in findings if each.code == "compiled.guards"]
    end = max(program.now, *program.free.values())
    assert finding.gain is not None
    assert finding.gain.time_ns == min(2_000, end - begin - kernel) * 1_000


def test_many_breaks_on_a_device_are_no_more_than_medium(tmp_path: Path) -> None:
    program = Program()
    with region(program, ": 0/0"):
        with program.within(GRAPH):
            program.work(1)
        program.work(100)
        with region(program, ": 1/0"):
            run(program, "aten::mm", "gemm", 10)
    _, (finding,) = of(program, tmp_path)
    assert finding.severity == "medium"


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("cuda_a100_cudagraph_triton_nccl", []),
        ("cuda_b200_vllm_eager", []),
        ("rocm_mi300_triton_compile", []),
        ("rocm_mi300_vllm_piecewise", []),
        # CompiledFunction calls aten::t, mm, mul, add, ... and no Triton kernel ran.
        ("cuda_v100_nccl_train", ["compiled.no_inductor"]),
    ],
)
def test_findings_on_real_traces(name: str, codes: list[str], traces: Path) -> None:
    found: list[Finding] = compiled_of(read_trace(traces / f"{name}.json.gz")).findings()
    assert [finding.code for finding in found] == codes


def test_real_graphs(traces: Path) -> None:
    # GIVEN a compiled transformer layer on MI300, and five steps of a training on A100
    layer = compiled_of(read_trace(traces / "rocm_mi300_triton_compile.json.gz")).to_dict()
    training = compiled_of(read_trace(traces / "cuda_a100_cudagraph_triton_nccl.json.gz")).to_dict()
    # THEN Inductor's kernels, libraries and passes are distinguished as on the timeline
    assert {kind: row["count"] for kind, row in layer["triton_kinds"].items()} == {
        "poi": 2,
        "red": 2,
    }
    assert works(layer)["extern", "aten::mm"] == (7, 8_029.555)
    assert layer["graph_breaks"] == []
    assert training["graphs"] == {"forward": 35, "backward": 35, "backward_linked": 35}
    assert training["triton_kinds"]["unnamed"]["count"] == 81
    assert training["graph_breaks"] is None
