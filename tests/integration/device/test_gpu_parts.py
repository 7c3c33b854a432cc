"""The parts of `make gpu`: on the stand-in and on a CPU, each runs or is skipped with a reason."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import standin
from benchmarks import device as cost

ROOT = Path(__file__).parents[3]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that runs the parts, which takes them from this checkout."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "gpu"))
    module = importlib.import_module("run")
    monkeypatch.setattr(module, "HERE", ROOT)
    return module


@pytest.fixture
def run(parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a part, with arguments that are added to its own."""
    for folder in ("logs", "traces", "work", "site"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run_part(name: str, *more: str) -> dict[str, Any]:
        part = parts.PARTS[name]
        part = part._replace(arguments=(*part.arguments, *more), limit_s=3 * part.limit_s)
        result: dict[str, Any] = parts.run_part(name, part, tmp_path, tmp_path / "site")
        return result

    return run_part


def outcomes(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test of a part, and why it was skipped."""
    return {
        name.partition("::")[2]: (found["outcome"], found.get("why", ""))
        for name, found in result["figures"].items()
    }


@pytest.mark.full
@pytest.mark.slow
def test_spans_run_on_the_stand_in(
    libraries: standin.Libraries, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (standin.LIBRARY, standin.ASCEND, standin.NAME):
        monkeypatch.setenv(variable, standin.environment(libraries)[variable])

    result = run("spans")

    assert result["status"] == "passed", result["log_tail"]
    found = outcomes(result)
    passed = {name for name, (outcome, _) in found.items() if outcome == "passed"}
    assert {
        "test_nested_spans_on_one_stream",
        "test_spans_of_all_streams_that_run_at_once",
        "test_threads",
        "test_100_000_pending_spans",
        "test_spans_that_are_pending_at_exit",
        "test_after_a_fork",
    } <= passed
    assert all("no GPU: " in why for outcome, why in found.values() if outcome != "passed")


@pytest.mark.full
@pytest.mark.slow
def test_the_cost_is_measured_on_the_stand_in(
    libraries: standin.Libraries, run: Any, tmp_path: Path
) -> None:
    result = run("cost", "--stand-in", str(tmp_path / "stand-in"))

    assert result["status"] == "passed", result["log_tail"]
    for count in (1, cost.MANY_STREAMS):
        figures = result["figures"][f"streams_{count}"]
        assert set(figures["host_ns"]) >= {cost.BARE, cost.SPAN}
        assert figures["above_two_records_ns"] == pytest.approx(
            figures["host_ns"][cost.SPAN] - figures["host_ns"][cost.BARE]
        )
    assert result["figures"]["limit_ns"] == cost.LIMIT_NS


@pytest.mark.parametrize(("above_ns", "status"), [(199.0, "passed"), (201.5, "failed")])
def test_a_span_that_costs_too_much_is_a_failed_part(
    parts: Any, above_ns: float, status: str
) -> None:
    # GIVEN what was measured on a GPU, where one number of streams is cheap
    figures = {
        "streams_1": {"streams": 1, "above_two_records_ns": 20.0},
        "streams_8": {"streams": 8, "above_two_records_ns": above_ns},
        "model_step_us": {"off": 700.0},
    }

    reason = cost.over_limit(figures)
    text = "" if reason is None else f"a table\nerror: {reason}\n"
    found = parts.judged(int(reason is not None), figures, text)

    # THEN it has failed if it is over the limit, and the reason names the figure
    assert found[0] == status
    if status == "failed":
        assert "202 ns (streams: 8)" in found[1]


@pytest.mark.full
@pytest.mark.slow
def test_the_demo_runs_on_a_cpu(run: Any) -> None:
    pytest.importorskip("torch")
    result = run("demo")
    assert result["status"] == "passed", result["log_tail"]
    assert result["figures"]["top_kernels"] is not None


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cost", "compiled", "kernel", "contexts", "traces", "ncu", "windows"]
)
def test_parts_that_need_a_gpu_are_skipped_with_that_reason(run: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = run(name)
    assert result["status"] == "skipped"
    assert result["reason"].lower().startswith("no gpu: ")
