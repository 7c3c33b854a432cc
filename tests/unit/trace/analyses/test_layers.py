"""Layers of synthetic models: from modules, or without modules from repetition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from commands import checked
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planted import Program
from real_traces import read_real

from properties import examples
from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import layers
from stagespan.trace.analyses.layers import Layers, Module, Spread
from stagespan.trace.derived.step_ranges import Repeat, all_repeats, longest_repeat

US = 1_000


def layers_of(trace: Trace) -> Layers:
    found = checked(layers.analyze(trace), Layers)
    modules = found.modules
    if modules is not None and modules.device_ns is not None:
        roots = [module for module in modules.modules if len(module.path) == 1]
        held = sum((m.device_ns or 0) + (m.backward_ns or 0) for m in roots)
        assert held + modules.outside_ns == modules.device_ns
    return found


def by_path(found: Layers) -> dict[str, Module]:
    assert found.modules is not None
    return {"/".join(module.path): module for module in found.modules.modules}


class Model(Program):
    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        with self.within(f"nn.Module: {name}", "python_function"):
            self.work(1)
            yield


def transformer(tmp_path: Path, slow: int = 50) -> Layers:
    program = Model()
    program.operator("aten::embedding", us=9)
    with program.module("Model_0"):
        for number in range(6):
            with program.module(f"Block_{number}"):
                with program.module(f"Linear_{2 * number}"):
                    program.operator("aten::mm", us=slow if number == 4 else 50)
                with program.module(f"Linear_{2 * number + 1}"):
                    program.operator("aten::mm", us=30)
                program.operator("aten::add", us=4)
    return layers_of(program.trace(tmp_path))


def test_modules_with_self_time_and_total_time(tmp_path: Path) -> None:
    # GIVEN a model of six blocks with two layers each, and an operator outside
    found = transformer(tmp_path)
    # THEN every figure is as computed by hand
    modules = by_path(found)
    assert modules.keys() == {"Model", "Model/Block", "Model/Block/Linear"}
    block, linear = modules["Model/Block"], modules["Model/Block/Linear"]
    assert (block.instances, block.calls) == (6, 6)
    assert (linear.instances, linear.calls) == (12, 12)
    assert (block.device_ns, block.device_self_ns) == (6 * 84 * US, 6 * 4 * US)
    assert (linear.device_ns, linear.launched) == (6 * 80 * US, 12)
    assert block.host_ns == 6 * (3 * 15 + 3) * US
    assert block.host_self_ns == 6 * (15 + 1) * US
    assert block.call_ns == Spread(84 * US, 84 * US, 84 * US)
    assert linear.call_ns == Spread(30 * US, 40 * US, 50 * US)
    assert found.modules is not None
    assert (found.modules.outside, found.modules.outside_ns) == (1, 9 * US)
    assert found.findings() == []
    assert found.blocks is None
    assert found.to_dict()["inferred"] is False


def test_a_layer_that_takes_longer_than_similar_ones(tmp_path: Path) -> None:
    found = transformer(tmp_path, slow=500)
    # THEN the finding is about the module inside the layer, the only cause
    (linear,) = found.findings()
    assert linear.code == "layers.slow_module"
    assert linear.evidence[0].event == "nn.Module: Linear_8"
    assert linear.numbers["call_ns"] == 500 * US


def test_backward_counts_to_the_module_of_its_forward(tmp_path: Path) -> None:
    program = Model()
    with program.module("Linear_0"):
        program.work(2)
        forward = program.now
        program.operator("aten::mm", us=10)
    program.thread = 200
    with program.within("autograd::engine::evaluate_function: MmBackward0"):
        program.work(1)
        backward = program.now
        with program.within("MmBackward0"):
            program.operator("aten::mm", us=25)
    program.operator("aten::add_", us=3)
    arrow = {"cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 100}
    program.events.append(arrow | {"ph": "s", "ts": forward, "tid": 100})
    program.events.append(arrow | {"ph": "f", "bp": "e", "ts": backward, "tid": 200})
    found = layers_of(program.trace(tmp_path))
    linear = by_path(found)["Linear"]
    assert (linear.device_ns, linear.backward_ns) == (10 * US, 25 * US)
    assert found.modules is not None
    assert (found.modules.outside, found.modules.outside_ns) == (1, 3 * US)


def repeated_kernels(tmp_path: Path, names: str) -> Layers | Unavailable:
    program = Program()
    for name in names:
        program.launch(f"kernel_{name}", 10 + ord(name) % 7)
    return layers.analyze(program.trace(tmp_path))


def test_a_block_of_kernels_that_repeats(tmp_path: Path) -> None:
    found = checked(repeated_kernels(tmp_path, "xyz" + "abcad" * 8 + "pq"), Layers)
    assert found.blocks is not None
    (block,) = found.blocks.blocks
    assert (block.length, block.times, block.first) == (5, 8, "kernel_a")
    assert block.block_ns.median == sum(10 + ord(name) % 7 for name in "abcad") * US
    assert block.total_ns == 8 * block.block_ns.median
    assert found.to_dict()["inferred"] is True
    assert "Inferred" in found.tables()[0].note


def test_the_median_layer_has_its_kernels_in_order_with_collectives(tmp_path: Path) -> None:
    # GIVEN nine layers, of which each is 10 µs longer than the one before, with a collective beside
    program = Program()
    for number in range(9):
        program.launch("gemm", 100 + 10 * number)
        for _ in range(2):
            program.launch("softmax", 30)
        program.launch("ncclDevKernel_AllReduce", 20, stream=20, after=7)
        program.launch("gelu", 40)
        program.wait()
    found = layers_of(program.trace(tmp_path))
    layer = found.median_layer
    assert layer is not None
    assert (layer.number, layer.times) == (5, 9)
    parts = [(part.name, part.kind, part.stream, part.count, part.time_ns) for part in layer.parts]
    assert parts == [
        ("gemm", "matmul", 7, 1, 140 * US),
        ("softmax", "reduction", 7, 2, 60 * US),
        ("gelu", "elementwise", 7, 1, 40 * US),
        ("ncclDevKernel_AllReduce", "communication", 20, 1, 20 * US),
    ]
    assert [part.percent for part in layer.parts] == pytest.approx(
        [100 * time / 260 for time in (140, 60, 40, 20)]
    )
    assert [row[:4] for row in found.tables()[-1].rows] == [
        (name, stream, count, time) for name, _, stream, count, time in parts
    ]


@pytest.mark.parametrize("turn", [0, 10])
def test_calls_of_a_model_are_divided_into_its_layers(turn: int, tmp_path: Path) -> None:
    # GIVEN five calls of a model of 12 layers and a head, and no steps; the trace begins with a
    # layer, or in the middle of one
    calls = ("abcdefgh" * 12 + "xy") * 5
    found = checked(repeated_kernels(tmp_path, calls[turn:]), Layers)
    (block,) = found.repeated
    assert (block.length, found.median_layer is not None) == (8, True)
    # THEN incomplete layers count as well
    assert block.layers == 5 * 12 - turn // 8


def test_what_interrupts_the_layers_does_not_make_two_of_them(tmp_path: Path) -> None:
    # GIVEN ten layers, and something else behind the fourth
    found = checked(repeated_kernels(tmp_path, "abcd" * 4 + "x" + "abcd" * 6), Layers)
    assert found.blocks is not None
    assert [(block.length, block.times) for block in found.blocks.blocks] == [(4, 10)]


@pytest.mark.parametrize(
    ("names", "times", "expected"),
    [
        # The first layer begins with another kernel, the last one ends with another.
        ("xbcdef" + "abcdef" * 7, 7, 8),
        ("x" + "abcdef" * 9 + "abcdey", 9, 10),
        # Layers with two sorts of attention take turns.
        (("abcdefghijks" + "abcdefghijkt") * 6, 6, 12),
        # Inexact times exchanged kernels of three pairs of layers.
        ("abcdef" * 6 + "abcdaebfcdef" * 3 + "abcdef" * 5, 11, 17),
        # What follows the layers has one of their kernels, too.
        ("abcdef" * 8 + "af", 8, 8),
        # What precedes them has as many of their most frequent kernel as some layers.
        ("c" + "a" * 12 + "d" + ("a" * 4 + "b") * 6, 6, 6),
    ],
)
def test_layers_are_counted_by_their_common_kernels(
    names: str, times: int, expected: int, tmp_path: Path
) -> None:
    found = checked(repeated_kernels(tmp_path, names), Layers)
    assert found.blocks is not None
    (block,) = found.blocks.blocks
    assert (block.times, block.layers) == (times, expected)
    assert found.to_dict()["blocks"][0]["layers"] == expected


@pytest.mark.parametrize(
    "names", ["a" * 40, "ab" * 30, "abcdefghijklmnop", "abcabcabc", "a" * 30 + "bcd" + "a" * 30]
)
def test_sequences_that_are_not_layers(names: str, tmp_path: Path) -> None:
    assert isinstance(repeated_kernels(tmp_path, names), Unavailable)


@pytest.mark.parametrize("parts", [1, 4])
def test_parts_that_accumulate_gradients_are_not_layers(parts: int, tmp_path: Path) -> None:
    # GIVEN two steps on the host, each with several forward and backward passes of one layer
    program = Program()

    def run(name: str, us: int) -> None:
        with program.within(name):
            program.work(us)

    for step in range(2):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            for _ in range(parts):
                for name in ("aten::embedding", "aten::linear", "aten::relu", "aten::mean"):
                    run(name, 20)
                for name in ("MeanBackward0", "ReluBackward0", "AddmmBackward0"):
                    run(f"autograd::engine::evaluate_function: {name}", 30)
            run("aten::add_", 5)
    # THEN the passes are not taken for layers
    assert isinstance(layers.analyze(program.trace(tmp_path)), Unavailable)


def test_layers_within_a_step(tmp_path: Path) -> None:
    program = Program()
    for number in range(3):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.launch("embedding", 5)
            for _ in range(5):
                for name in ("norm", "attention", "mlp"):
                    program.launch(name, 20)
            program.launch("head", 5)
    found = checked(layers.analyze(program.trace(tmp_path)), Layers)
    assert found.blocks is not None
    assert found.blocks.step == "ProfilerStep#1"
    assert [(b.length, b.times) for b in found.blocks.blocks] == [(3, 5)]


@pytest.mark.parametrize("in_step", [False, True])
def test_repetitions_without_a_step_around_them_can_be_iterations(
    in_step: bool, tmp_path: Path
) -> None:
    # GIVEN ten rounds of three kernels, in a step or in a trace without steps
    program = Program()
    begin = program.now
    for _ in range(10):
        for name in ("randn", "mul", "add"):
            program.launch(name, 20)
    program.wait()
    if in_step:
        program.event("ProfilerStep#1", "user_annotation", begin, program.now)
    found = layers_of(program.trace(tmp_path))
    # THEN only those in a step are layers and nothing else
    assert found.may_be_iterations is not in_step
    assert found.line().startswith("10, by 10" if in_step else "10 layers or iterations, by 10")
    words = [text for table in found.tables() for text, _ in table.columns]
    words += [table.title for table in found.tables()]
    assert all("iteration" in each for each in words if "layer" in each) is not in_step


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(2, 4), st.integers(1, 3))
@example([1, 0, 0, 1, 1, 0, 0, 1], 2, 1)  # a block that holds all its elements twice
def test_repetitions_are_those_of_a_slow_search(codes: list[int], times: int, length: int) -> None:
    def holds(begin: int, size: int, count: int) -> bool:
        block = codes[begin : begin + size]
        return codes[begin : begin + size * count] == block * count

    def trivial(begin: int, size: int) -> bool:
        block = codes[begin : begin + size]
        return any(size % d == 0 and block[:d] * (size // d) == block for d in range(1, length))

    best = 0
    for begin in range(len(codes)):
        for size in range(length, len(codes) // times + 1):
            count = times
            while begin + size * count <= len(codes) and holds(begin, size, count):
                if not trivial(begin, size):
                    best = max(best, size * count)
                count += 1
    array = np.array(codes, dtype=np.int64)
    found = longest_repeat(array, times, length)
    assert (0 if found is None else found.length * found.times) == best
    if found is not None:
        assert holds(found.begin, found.length, found.times)
    # THEN several repetitions never overlap
    every = all_repeats(array, times, length, 5)
    assert all(a.end <= b.begin for a, b in pairwise(every))


def test_the_shortest_of_equal_blocks() -> None:
    codes = np.array([1, 2] * 6, dtype=np.int64)
    assert longest_repeat(codes) == Repeat(0, 2, 6)


def test_real_models(traces: Path) -> None:
    said = {}
    for path in sorted(traces.glob("*.json.gz")):
        trace = read_real(path)
        # THEN the sums of device time are correct, and no layer is called slow
        if not isinstance(layers.analyze(trace), Unavailable):
            said[path.name.split(".")[0]] = found = layers_of(trace)
            assert found.findings() == []
    # AND the models are known: their configurations contain the number of layers
    assert (
        by_path(said["cuda_h100_bert"])["BertLMHeadModel/BertModel/BertEncoder/BertLayer"].calls
        == 4
    )
    blocks = by_path(said["cuda_b200_vllm_eager"])["GptOssForCausalLM/TransformerBlock"]
    assert blocks.instances == 36
    decode = said["rocm_mi300_sglang_decode"].blocks
    assert decode is not None
    assert [(block.length, block.times) for block in decode.blocks] == [(15, 36)]
    prefill = said["rocm_mi300_vllm_piecewise"].blocks
    assert prefill is not None
    assert [block.layers for block in prefill.blocks] == [24]
    # AND the backward pass of a ResNet takes about twice its forward pass
    resnet = by_path(said["rocm_mi300_ddp_resnet"])["ResNet"]
    assert 1.8 < (resnet.backward_ns or 0) / (resnet.device_ns or 1) < 2.3


def test_torch_names_modules(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: object) -> object:
            return self.linear(x)

    model = torch.nn.Sequential(*(Block() for _ in range(5)))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True
    ) as profile:
        model(torch.ones(2, 8))
    path = tmp_path / "torch.json"
    profile.export_chrome_trace(str(path))
    modules = by_path(layers_of(read_trace(path)))
    assert {name: (m.instances, m.calls) for name, m in modules.items()} == {
        "Sequential": (1, 1),
        "Sequential/Block": (5, 5),
        "Sequential/Block/Linear": (5, 5),
    }
    assert modules["Sequential"].device_ns is None
