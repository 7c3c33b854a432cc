"""Spans around and inside CUDA graphs and torch.compile: nothing breaks, and results are equal."""

from __future__ import annotations

from typing import Any

import pytest

import stagespan


def model_of(torch: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)
    ).cuda()


@pytest.mark.parametrize("capture_error_mode", ["global", "thread_local", "relaxed"])
def test_spans_in_and_around_a_capture(cuda: Any, capture_error_mode: str, figures: Any) -> None:
    import torch

    # GIVEN a model, and its result without a graph
    model, x = model_of(torch), torch.randn(64, 256, device="cuda")
    with torch.no_grad():
        expected = model(x)
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            model(x)
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with (
            stagespan.span("capture"),
            cuda.graph(graph, capture_error_mode=capture_error_mode),
            stagespan.span("inside"),
        ):
            y = x
            for i, layer in enumerate(model):
                with stagespan.span(f"layer {i}"):
                    y = layer(y)
    for _ in range(50):
        with stagespan.span("replay"):
            graph.replay()
    cuda.synchronize()
    assert torch.equal(y, expected)
    assert stagespan.flush(30)
    replay = stagespan.stats()["replay"].device_elapsed_ns
    assert replay is not None
    assert replay.count == 50
    figures(replay_p50_ns=replay.p50_ns)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_spans_in_compiled_code(cuda: Any, mode: str, figures: Any) -> None:
    import torch

    model, x = model_of(torch), torch.randn(64, 256, device="cuda")

    def step(x: Any, *, timed: bool) -> Any:
        if not timed:
            return model(x).relu() + 1
        with stagespan.span("inside"):
            y = model(x)
        with stagespan.ProfilingContext4Debug("debug inside"):
            return y.relu() + 1

    with torch.no_grad():
        expected = torch.compile(lambda x: step(x, timed=False), mode=mode, fullgraph=True)(x)
        expected = expected.clone()
        compiled = torch.compile(lambda x: step(x, timed=True), mode=mode, fullgraph=True)
        for _ in range(10):
            with stagespan.span("around"):
                y = compiled(x)
        # THEN no graph is broken (fullgraph raises otherwise), and the result is the same
        assert torch.equal(y, expected)
    assert torch._dynamo.explain(lambda x: step(x, timed=True))(x).graph_break_count == 0
    assert stagespan.flush(30)
    around = stagespan.stats()["around"].device_elapsed_ns
    assert around is not None
    figures(around_p50_ns=around.p50_ns)


def test_a_decorated_function_is_compiled(cuda: Any) -> None:
    import torch

    @stagespan.span("decorated")
    def step(x: Any) -> Any:
        return torch.sin(x) * 2

    x = torch.randn(1000, device="cuda")
    compiled = torch.compile(step, fullgraph=True)
    assert torch.allclose(compiled(x), torch.sin(x) * 2)
