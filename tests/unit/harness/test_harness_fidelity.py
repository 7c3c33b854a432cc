"""A replay runs what was captured, and reports how well its time agrees with the live one."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import stagespan
from stagespan.cli import command
from stagespan.errors import HarnessError, SignatureError
from stagespan.harness import HarnessConfig, StageBenchHarness
from stagespan.harness.live import live_differences, live_runs
from stagespan.harness.standalone.fidelity import (
    differences,
    fidelity,
    fidelity_line,
    likely_reasons,
)
from stagespan.signature.model import SignatureFile

torch = pytest.importorskip("torch")

from harness_stages import harness, signature_of  # noqa: E402


class Model(torch.nn.Module):  # type: ignore[misc]
    """``generate`` runs the layer once more than ``forward``, and takes additional arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: Any, **more: Any) -> Any:
        return self.layer(x)

    def produce(self, x: Any, tokens: int = 4) -> Any:
        for _ in range(tokens):
            x = self.layer(x)
        return x


@pytest.fixture
def run_live(tmp_path: Path) -> Any:
    """Run a function in debug mode and write both files; return the path of the signatures."""

    def run(function: Any, *calls: tuple[Any, ...], around: Any = None) -> Path:
        stagespan.reset_timing_registry()
        stagespan.set_debug()
        try:
            stage = stagespan.ProfilingContext4Debug("stage")(function)
            for arguments in calls:
                stage(*arguments)
            path = tmp_path / "timing_io_signature.json"
            stagespan.dump_io_signatures(path)
            stagespan.dump_timing_report(tmp_path / "timing.json")
        finally:
            stagespan.set_debug(False)
            stagespan.reset_timing_registry()
        return path

    return run


def bench(path: Path, stage: Any, variant: Any = None, **config: Any) -> StageBenchHarness:
    settings = HarnessConfig(
        **{"warmup": 1, "timing_steps": 3, "output_dir": path.parent / "out", **config}
    )
    return StageBenchHarness.from_signature_file(path, "stage", stage, settings, variant=variant)


def launched(result: Any, name: str) -> int:
    counts = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    return int(counts.get(name, 0))


def test_the_method_that_was_captured_is_replayed(run_live: Any) -> None:
    model = Model()
    path = run_live(model.produce, (torch.zeros(2, 8),))

    result = bench(path, model).profile()

    assert launched(result, "aten::addmm") == 4
    assert "Model.produce" in result.iteration
    kept = json.loads(path.read_text())["stages"]["stage"]["callable"]
    assert kept["qualname"] == "Model.produce"
    assert kept["of"].endswith(":Model")


def test_another_callable_is_refused_unless_it_is_allowed(run_live: Any) -> None:
    model = Model()
    path = run_live(model.produce, (torch.zeros(2, 8),))

    with pytest.raises(HarnessError) as caught:
        bench(path, model.forward).setup()
    for name in ("'Model.produce'", "'Model.forward'", "--any-callable"):
        assert name in str(caught.value)
    bench(path, model.forward, any_callable=True).setup()


def test_a_stage_that_cannot_be_called_is_refused_as_such(run_live: Any) -> None:
    # GIVEN a captured method, and an object that has neither this method nor one to call
    path = run_live(Model().produce, (torch.zeros(2, 8),))

    with pytest.raises(HarnessError) as caught:
        bench(path, object()).setup()
    assert "'Model.produce', but the stage has no such method and cannot be called" in str(
        caught.value
    )


class Other:
    def produce(self, x: Any, tokens: int = 4) -> Any:
        return x


class Derived(Model):
    pass


def test_the_same_method_of_another_class_is_refused(run_live: Any) -> None:
    path = run_live(Model().produce, (torch.zeros(2, 8),))

    with pytest.raises(HarnessError) as caught:
        bench(path, Other()).setup()
    for name in ("'Model.produce'", "'Other.produce'", "--any-callable"):
        assert name in str(caught.value)
    bench(path, Other(), any_callable=True).setup()
    # THEN a subclass, and the class from which a captured subclass has the method, are replayed
    bench(path, Derived()).setup()
    bench(run_live(Derived().produce, (torch.zeros(2, 8),)), Model()).setup()


def test_a_wrapped_module_is_the_captured_one(run_live: Any) -> None:
    model = Model()
    path = run_live(model.forward, (torch.zeros(2, 8),))

    bench(path, torch.compile(model, backend="eager")).setup()
    bench(path, torch.nn.DataParallel(model)).setup()


def test_versions_and_machine_are_in_the_signature_file(run_live: Any, tmp_path: Path) -> None:
    path = run_live(len, ("abc",))
    (tmp_path / "timing.json").unlink()
    content = json.loads(path.read_text())
    assert content["environment"]["torch"] == torch.__version__
    content["environment"]["torch"] = "1.0"
    path.write_text(json.dumps(content))

    signature = SignatureFile.read(path)
    live = live_runs(path, signature.stage("stage"))

    assert signature.environment["cpu"] == content["environment"]["cpu"]
    assert live_differences(live, {}) == [
        (0, f"the live runs used torch 1.0, this one uses {torch.__version__}")
    ]


def test_the_receiver_is_found_by_binding_and_not_by_its_name(run_live: Any) -> None:
    # GIVEN a method whose first parameter is not called self
    class Stage:
        def process(this, x: Any) -> Any:
            return x + 1

    stagespan.set_debug()
    Stage.process = stagespan.ProfilingContext4Debug("this")(Stage.process)  # type: ignore[method-assign]
    Stage().process(1)
    inputs = stagespan.get_io_signatures()["this"]["input_signatures"]
    stagespan.set_debug(False)

    assert inputs == {"x": 1}


def test_the_median_of_live_runs_is_shown_with_the_replay(run_live: Any, tmp_path: Path) -> None:
    def stage(x: Any) -> Any:
        return x @ x

    path = run_live(stage, *([(torch.zeros(64, 64),)] * 3), (torch.zeros(8, 8),))

    result = bench(path, stage).profile()

    found = result.fidelity
    row = json.loads((tmp_path / "timing.json").read_text())["stages"]["stage"]["signatures"][0]
    assert (found["live_p50_ms"], found["live_runs"]) == (row["p50_ms"], 3)
    # GIVEN CPU times are compared, because other programs make wall times longer
    assert found["live_cpu_p50_ms"] == row["cpu_p50_ms"]
    assert found["ratio"] == pytest.approx(result.timing_ms["cpu"]["p50"] / row["cpu_p50_ms"])
    assert "Live median CPU time" in found["line"]
    assert found["live_launches"] is None
    assert found["launches"] >= 2
    assert "3 runs" in found["line"]
    assert row["first_ms"] > 0
    # AND the script prints the same comparison for its own figures
    text = result.script_path.read_text()
    assert f'"p50_ms": {row["p50_ms"]!r}' in text


def test_the_time_of_the_whole_stage_is_computed_from_its_steps(run_live: Any) -> None:
    class Scheduler:
        def set_timesteps(self, count: int) -> None:
            self.timesteps = list(range(count))

        def step(self, noise: Any) -> Any:
            return noise

    class Stage:
        scheduler = Scheduler()

        def process(self, x: Any) -> None:
            self.scheduler.set_timesteps(4)
            for _ in range(4):
                self.scheduler.step(x @ x)

    stage = Stage()
    path = run_live(stage.process, (torch.zeros(64, 64),))

    result = bench(path, stage).profile()

    found = result.fidelity
    assert found["live_steps"] == 4
    took = result.step["before_cpu_ms"] + 3 * result.timing_ms["cpu"]["p50"]
    assert found["ratio"] == pytest.approx(took / found["live_cpu_p50_ms"])
    for figure in ("4 steps", "1 run", "step 2", "3 x"):
        assert figure in found["line"]


@pytest.mark.parametrize(
    ("p50", "has_reasons"), [(10.5, False), (13.0, True), (7.0, True), (None, False)]
)
def test_a_replay_that_differs_from_live_has_a_reason(p50: float | None, has_reasons: bool) -> None:
    # GIVEN a live median of 10 ms, and an undisturbed replay in the same environment
    timing = {"p50": p50, "p25": p50, "p75": p50, "busy": None}

    found = fidelity({"p50_ms": 10.0, "count": 9}, timing)

    assert bool(likely_reasons(found, timing, [])) is has_reasons


SLOWER, FASTER = "slower: ", "faster: "


def compared(
    ratio: float, launches: tuple[int | None, int] = (None, 10), step: Any = None, **more: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return the fidelity of an undisturbed replay whose CPU time is 10 ms, and the reasons."""
    p50 = 10.0 if step is None else 10.0 / step["of"]
    one = {"p50": p50, "p25": p50, "p75": p50, "mean": p50}
    timing = {**one, "cpu": one, "busy": None, "slowdown": 1.0, "waited_ms": 0.0, "iterations": 9}
    timing |= more.pop("timing", {})
    live = {"p50_ms": 10 / ratio, "cpu_p50_ms": 10 / ratio, "count": 9, "launches": launches[0]}
    found = fidelity({**live, **more}, timing, step, launches[1], on_host=True)
    differing = more.get("differences", [])
    return found, likely_reasons(found, timing, differing, step)


def test_cpu_times_are_compared_on_a_host() -> None:
    # GIVEN a replay on a busy machine: it had a core for a tenth of the time
    timing = {"p50": 100.0, "mean": 100.0, "waited_ms": 810.0, "busy": "The machine was busy."}
    found, reasons = compared(1.04, timing=timing)
    # THEN the wall times do not matter
    assert (found["compared"], reasons) == ("cpu", [])
    assert found["ratio"] == pytest.approx(1.04)
    # AND those of a thread that waits for other threads do, because its CPU time lacks their work
    found, _ = compared(1.04, timing={**timing, "waited_ms": 0.0})
    assert found["compared"] == "wall"
    device = fidelity({"p50_ms": 10.0, "cpu_p50_ms": 1.0}, {"p50": 12.0, "cpu": {"p50": 9.0}})
    assert (device["compared"], device["ratio"]) == ("wall", 1.2)


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_equal_launches_strike_out_other_work(ratio: float) -> None:
    spread = {"p50": 10.0, "p25": 6.0, "p75": 14.0, "mean": 10.0}
    unknown, equal, different = (
        compared(ratio, (live, 10), timing={"cpu": spread})[1] for live in (None, 10, 20)
    )
    sign = SLOWER if ratio > 1 else FASTER
    assert [each.startswith(sign) for each in unknown] == [True, True]
    assert ["vary" in unknown[0], "STAGESPAN_LAUNCHES" in unknown[1]] == [True, True]
    assert equal == []
    assert different[0] == f"{FASTER}it makes 10 launches, a live run 20: other branches or shapes"
    assert len(different) == 1


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_there_are_at_most_two_reasons_that_explain_the_direction(ratio: float) -> None:
    sign = SLOWER if ratio > 1 else FASTER
    threads = differences({}, {}, (4, 1)), differences({}, {}, (1, 4))
    timing = {"slowdown": 1.5, "busy": "The machine was busy."}
    for count in (1, 9):
        for differing in (*threads, differences({"cpu": "A"}, {"cpu": "B"})):
            _, reasons = compared(ratio, timing=timing, count=count, differences=differing)
            assert 1 <= len(reasons) <= 2
            assert all(reason.startswith(sign) for reason in reasons)
            text = " ".join(reasons)
            assert ("used 4 threads" in text) <= (ratio > 1)
            assert ("used 1 thread " in text) <= (ratio < 1)
            assert ("1.50 x its fastest time" in text) <= (ratio > 1)
            assert ("a single run" in text) <= (ratio < 1)


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_step_of_a_loop_is_named_as_a_reason(ratio: float) -> None:
    # GIVEN a loop of eight steps, of which some may take their result from a cache
    step = {"number": 3, "of": 8, "before_ms": 8.0, "before_cpu_ms": 8.0, "run_with": {}}
    _, reasons = compared(ratio, step=step)
    assert "8 steps is estimated from step 3" in reasons[0]
    assert "--step" in reasons[0]


@pytest.mark.parametrize("p50", [0.05, 0.6])
def test_the_usual_ratio_of_a_short_run_is_stated(p50: float) -> None:
    one = {"p50": p50, "p25": p50, "p75": p50, "mean": p50}
    timing = {**one, "cpu": one, "busy": None}
    for ratio, is_usual in ((1.3, True), (2.0, False), (0.7, False)):
        found = fidelity({"p50_ms": p50 / ratio, "count": 9}, timing)
        reasons = likely_reasons(found, timing, [])
        assert "(below 1 ms: +10 to 40 % is usual)" in fidelity_line(found, reasons, timing)
        assert (reasons == []) == is_usual
    found, reasons = compared(1.3)
    assert "below 1 ms" not in fidelity_line(found, reasons, {"p50": 10.0})


def test_wall_times_of_old_files_are_compared_with_a_reason() -> None:
    found, reasons = compared(2.0, cpu_p50_ms=None)
    assert found["compared"] == "wall"
    assert any("the live runs have no CPU time" in reason for reason in reasons)


def test_the_live_runs_know_their_cpu_time() -> None:
    # GIVEN a stage that sleeps, and functions whose thread does other work meanwhile
    def rows(function: Any, call: Any) -> dict[str, Any]:
        stagespan.set_debug()
        try:
            for _ in range(3):
                call(stagespan.ProfilingContext4Debug("stage")(function))
            found = stagespan.timing_report()["stages"]["stage"]["signatures"]
        finally:
            stagespan.set_debug(False)
            stagespan.reset_timing_registry()
        assert len(found) == 1
        return dict(found[0])

    sleeping = rows(lambda: time.sleep(0.05), lambda stage: stage())
    assert 0 <= sleeping["cpu_p50_ms"] < sleeping["p50_ms"] / 2

    async def later() -> None:
        await asyncio.sleep(0)

    def several() -> Any:
        yield 1

    assert rows(later, lambda stage: asyncio.run(stage()))["cpu_p50_ms"] is None
    assert rows(several, lambda stage: list(stage()))["cpu_p50_ms"] is None


def test_debug_mode_counts_the_launches_of_a_warm_run(
    run_live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESPAN_LAUNCHES", "true")
    seen: set[int] = set()

    def stage(x: Any) -> Any:
        if len(x) not in seen:
            seen.add(len(x))
            x = x + x
        return x @ x if len(x) == 4 else (x @ x) @ x

    sizes = (4, 4, 4, 8, 8, 8, 8)
    path = run_live(stage, *((torch.zeros(n, n),) for n in sizes))

    rows = json.loads((tmp_path / "timing.json").read_text())["stages"]["stage"]["signatures"]
    assert [(row["count"], row["percentile_runs"]) for row in rows] == [(4, 3), (3, 2)]
    assert rows[0]["launches"] > rows[1]["launches"] > 0
    # THEN the replay compares them
    found = bench(path, stage).profile().fidelity
    assert found["live_launches"] == found["launches"] == rows[0]["launches"]
    assert f"launches {found['launches']} of {found['launches']}" in found["line"]


def test_a_stage_inside_another_one_is_counted_too(
    run_live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESPAN_LAUNCHES", "true")
    inner = stagespan.ProfilingContext4Debug("inner")(lambda x: x @ x)
    run_live(lambda x: inner(x) + inner(x), *[(torch.zeros(4, 4),)] * 4)
    stages = json.loads((tmp_path / "timing.json").read_text())["stages"]
    (outer,), (row,) = stages["stage"]["signatures"], stages["inner"]["signatures"]
    assert 0 < 2 * row["launches"] < outer["launches"]
    assert (row["count"], row["percentile_runs"]) == (8, 5)


def test_without_live_times_the_line_says_why(tmp_path: Path, run_live: Any) -> None:
    # GIVEN a folder of signatures without a report, and one with a report without this signature
    path = run_live(len, ("abc",))
    (tmp_path / "timing.json").unlink()
    absent = bench(path, len).profile().fidelity
    (tmp_path / "timing.json").write_text('{"stages": {"stage": {"signatures": [3, {"key": 1}]}}}')
    other = bench(path, len).profile().fidelity

    for found in (absent, other):
        assert [found[key] for key in ("ratio", "live_p50_ms", "live_runs")] == [None] * 3
    assert absent["line"] != other["line"]


def test_settings_that_choose_kernels_are_those_of_the_capture(run_live: Any) -> None:
    # GIVEN a stage that ran with one attention backend, and reduced precision
    seen = []

    def stage(q: Any) -> Any:
        seen.append((torch.backends.cuda.flash_sdp_enabled(), torch.get_float32_matmul_precision()))
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            path = run_live(stage, (torch.zeros(1, 2, 16, 8),))
    finally:
        torch.set_float32_matmul_precision(before)

    result = bench(path, stage).profile()

    assert set(seen) == {(False, "high")}
    assert launched(result, "aten::_scaled_dot_product_flash_attention_for_cpu") == 0
    assert torch.get_float32_matmul_precision() == before
    assert torch.backends.cuda.flash_sdp_enabled()


def test_deterministic_algorithms_that_only_warn_are_restored(run_live: Any) -> None:
    def stage(x: Any) -> Any:
        return x @ x

    path = run_live(stage, (torch.zeros(4, 4),))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        bench(path, stage).profile()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_environment_does_not_control_the_terminal(run_live: Any) -> None:
    # GIVEN a timing report with another processor's name, which clears the terminal
    def stage(x: Any) -> Any:
        return x @ x

    path = run_live(stage, (torch.zeros(4, 4),))
    report = path.with_name("timing.json")
    content = json.loads(report.read_text())
    content["environment"] |= {"cpu": "\x1b[2J", "python": {"version": "3"}}
    content["stages"]["stage"]["signatures"][0] |= {"p50_ms": 1e6, "cpu_p50_ms": 1e6}
    report.write_text(json.dumps(content))

    found = bench(path, stage).profile().fidelity

    # THEN it is a reason for another time, without control characters
    assert "the live runs used cpu" in found["line"]
    assert found["line"].isprintable()
    assert "the live runs used python" not in found["line"]


@pytest.mark.parametrize("p50", ["1e999", "9" * 400, "NaN", "-1", '"1"'])
def test_a_live_time_that_is_not_a_time_is_unknown(run_live: Any, p50: str) -> None:
    # GIVEN a timing report that another program has changed
    def stage(x: Any) -> Any:
        return x @ x

    path = run_live(stage, (torch.zeros(4, 4),))
    report = path.with_name("timing.json")
    content = json.loads(report.read_text())
    content["stages"]["stage"]["signatures"][0]["p50_ms"] = "HERE"
    report.write_text(json.dumps(content).replace('"HERE"', p50))

    found = bench(path, stage).profile().fidelity

    assert (found["live_p50_ms"], found["ratio"]) == (None, None)


def test_the_mode_inside_the_function_is_kept(run_live: Any) -> None:
    # GIVEN inference mode set below the context's decorator
    @torch.inference_mode()  # type: ignore[misc]
    def stage(x: Any) -> Any:
        return x + 1

    path = run_live(stage, (torch.zeros(2),))

    context = json.loads(path.read_text())["stages"]["stage"]["context"]
    assert (context["grad"], context["inference"]) == (False, True)


@pytest.mark.parametrize(
    ("variant", "rows"),
    [(None, 4), (0, 4), ("1", 2), ("largest", 9), ("smallest", 2), ("x=9", 9), ("key", 2)],
)
def test_a_variant_is_chosen(run_live: Any, variant: Any, rows: int) -> None:
    # GIVEN three signatures of one stage, of which the first ran most often
    def stage(x: Any) -> Any:
        return x

    calls = [(torch.zeros(n, 3),) for n in (4, 4, 4, 9, 2, 2)]
    path = run_live(stage, *calls)
    if variant == "key":
        entry = json.loads(path.read_text())["stages"]["stage"]
        variant = entry["variants"][0]["key"][:6]

    replayed = bench(path, stage, variant)
    replayed.setup()

    assert replayed.inputs["x"].shape == (rows, 3)


@pytest.mark.parametrize("variant", ["7", "zz", "x=3", "y=1", ""])
def test_a_missing_variant_is_reported(run_live: Any, variant: str) -> None:
    path = run_live(lambda x: x, (torch.zeros(4, 3),), (torch.zeros(9, 3),))
    with pytest.raises(SignatureError, match="pass a number or key of 0"):
        bench(path, len, variant)


class Cache:
    """Grows with what is written to it, like the caches of language models."""

    def __init__(self) -> None:
        self.layers = [torch.zeros(1, 2)]
        self.length = 1


def test_objects_that_are_passed_in_are_copied_for_each_iteration(tmp_path: Path) -> None:
    # GIVEN a user's cache that a stage writes to, and a tensor that two inputs share
    mine, shared = Cache(), torch.zeros(3)
    seen = []

    def stage(cache: Any, a: Any, b: Any) -> None:
        seen.append((len(cache.layers[0]), a is b, a.sum().item()))
        cache.layers[0] = torch.cat([cache.layers[0], torch.ones(1, 2)])
        a.add_(1)

    given = {"cache": mine, "a": shared, "b": shared}
    harness(stage, signature_of("s"), tmp_path, inputs=given, profile_steps=2).profile()

    # THEN each run had the same inputs, and the user's own objects are unchanged
    assert set(seen) == {(1, True, 0.0)}
    assert len(mine.layers[0]) == 1
    assert shared.sum() == 0


def test_a_function_creates_the_inputs(tmp_path: Path) -> None:
    # GIVEN a function whose cache a stage writes to
    made = []

    def make() -> dict[str, Any]:
        made.append(Cache())
        return {"cache": made[-1]}

    def stage(cache: Any) -> None:
        assert cache.length == 1
        cache.length += 1

    harness(stage, signature_of("s"), tmp_path, inputs=make).profile()

    assert len(made) > 3
    with pytest.raises(HarnessError, match="returned a list, not a mapping"):
        harness(stage, signature_of("s"), tmp_path, inputs=list).setup()


@pytest.mark.parametrize("is_tensor", [True, False])
def test_a_function_may_empty_one_cache_for_each_iteration(tmp_path: Path, is_tensor: bool) -> None:
    cache = {"filled": torch.zeros(4) if is_tensor else [0]}
    found = []

    def make() -> dict[str, Any]:
        cache["filled"][0] = 0
        return {"cache": cache}

    def stage(cache: Any) -> None:
        found.append(int(cache["filled"][0]))
        cache["filled"][0] += 1
        cache["last"] = len(found)  # a changed value, which would not show in a list only

    harness(stage, signature_of("s"), tmp_path, inputs=make, timing_steps=9).profile()

    assert len(found) > 9
    assert set(found) == {0}


def test_small_inputs_that_a_stage_modifies_are_created_for_several_runs_at_once(
    tmp_path: Path,
) -> None:
    order: list[str] = []

    def make() -> dict[str, Any]:
        order.append("make")
        return {"x": torch.zeros(4)}

    def stage(x: Any) -> None:
        assert x.sum() == 0
        order.append("run")
        x.add_(1)

    config = {"inputs": make, "warmup": 4, "timing_steps": 16}
    harness(stage, signature_of("s"), tmp_path, **config).profile()

    # THEN most of the timed runs directly follow another one
    pairs = list(itertools.pairwise(order))
    assert pairs.count(("run", "run")) >= 12


def test_the_command_takes_inputs_a_variant_and_prints_json(
    tmp_path: Path, run_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_inputs.py").write_text(
        "class Engine:\n    rows = 3\n\n"
        "def stage(engine, x):\n    return x + engine.rows\n\n"
        "def get_stage():\n    return stage\n\n"
        "def inputs():\n    return {'engine': Engine()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import cli_inputs  # type: ignore[import-not-found]

    engine = cli_inputs.Engine()
    path = run_live(cli_inputs.stage, (engine, torch.zeros(3)), (engine, torch.zeros(5)))

    done = CliRunner().invoke(
        command,
        ["bench", str(path), "--stage", "stage", "--factory", "cli_inputs:get_stage",
         "--warmup", "1",
         "--inputs", "cli_inputs:inputs", "--variant", "largest", "--timing-steps", "2", "--json",
         "--output", str(tmp_path / "out")],
    )  # fmt: skip

    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["adapter"] == "call"
    assert result["timing_ms"]["iterations"] == 2
    assert result["fidelity"]["live_runs"] == 1
