"""What is replayed is what was captured, and how well its time agrees with the live one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import stagespan
from stagespan.cli import command
from stagespan.errors import HarnessError, SignatureError
from stagespan.harness import HarnessConfig, StageBenchHarness

torch = pytest.importorskip("torch")

from harness_stages import harness, signature_of  # noqa: E402


class Model(torch.nn.Module):  # type: ignore[misc]
    """``generate`` runs the layer once more than ``forward``, and takes other arguments as well."""

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
    """Run a function in debug mode, and write both files; returns the path of the signatures."""

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
    # GIVEN a method of a model, and a factory that returns the model
    model = Model()
    path = run_live(model.produce, (torch.zeros(2, 8),))

    # WHEN
    result = bench(path, model).profile()

    # THEN it is not the forward that runs
    assert launched(result, "aten::addmm") == 4
    assert "Model.produce" in result.iteration
    kept = json.loads(path.read_text())["stages"]["stage"]["callable"]
    assert kept["qualname"] == "Model.produce"
    assert kept["of"].endswith(":Model")


def test_another_callable_is_refused_unless_it_is_allowed(run_live: Any) -> None:
    # GIVEN a captured method, and another one
    model = Model()
    path = run_live(model.produce, (torch.zeros(2, 8),))

    # WHEN / THEN
    with pytest.raises(HarnessError) as caught:
        bench(path, model.forward).setup()
    for name in ("'Model.produce'", "'Model.forward'", "--any-callable"):
        assert name in str(caught.value)
    bench(path, model.forward, any_callable=True).setup()


def test_the_receiver_is_found_by_binding_and_not_by_its_name(run_live: Any) -> None:
    # GIVEN a method whose first parameter has a name of its own
    class Stage:
        def process(this, x: Any) -> Any:
            return x + 1

    stagespan.set_debug()
    Stage.process = stagespan.ProfilingContext4Debug("this")(Stage.process)  # type: ignore[method-assign]
    Stage().process(1)
    inputs = stagespan.get_io_signatures()["this"]["input_signatures"]
    stagespan.set_debug(False)

    # THEN
    assert inputs == {"x": 1}


def test_the_median_of_live_runs_is_shown_beside_the_replay(run_live: Any, tmp_path: Path) -> None:
    # GIVEN three live runs of one signature and one of another
    def stage(x: Any) -> Any:
        return x @ x

    path = run_live(stage, *([(torch.zeros(64, 64),)] * 3), (torch.zeros(8, 8),))

    # WHEN
    result = bench(path, stage).profile()

    # THEN
    found = result.fidelity
    row = json.loads((tmp_path / "timing.json").read_text())["stages"]["stage"]["signatures"][0]
    assert (found["live_p50_ms"], found["live_runs"]) == (row["p50_ms"], 3)
    assert found["ratio"] == pytest.approx(result.timing_ms["p50"] / row["p50_ms"])
    assert found["live_launches"] is None
    assert found["launches"] >= 2
    assert "(3 runs of this signature), replay " in found["line"]
    assert row["first_ms"] > 0
    # AND the script says the same of its own figures
    text = result.script_path.read_text()
    assert f'"p50_ms": {row["p50_ms"]!r}' in text


def test_the_whole_stage_is_put_together_of_its_steps(run_live: Any) -> None:
    # GIVEN a loop of four steps
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

    # WHEN
    result = bench(path, stage).profile()

    # THEN
    found = result.fidelity
    assert found["live_steps"] == 4
    took = result.step["before_ms"] + 3 * result.timing_ms["p50"]
    assert found["ratio"] == pytest.approx(took / found["live_p50_ms"])
    for figure in ("4 steps", "1 run", "step 2", "3 x"):
        assert figure in found["line"]


def test_without_live_times_the_line_says_why(tmp_path: Path, run_live: Any) -> None:
    # GIVEN no report beside the signatures, and one without this signature
    path = run_live(len, ("abc",))
    (tmp_path / "timing.json").unlink()
    absent = bench(path, len).profile().fidelity
    (tmp_path / "timing.json").write_text('{"stages": {"stage": {"signatures": [3, {"key": 1}]}}}')
    other = bench(path, len).profile().fidelity

    # THEN
    assert absent["ratio"] is None
    assert "there is no timing report" in absent["line"]
    assert "has no runs of this signature" in other["line"]


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

    # WHEN
    result = bench(path, stage).profile()

    # THEN
    assert set(seen) == {(False, "high")}
    assert launched(result, "aten::_scaled_dot_product_flash_attention_for_cpu") == 0
    assert torch.get_float32_matmul_precision() == before
    assert torch.backends.cuda.flash_sdp_enabled()


def test_the_mode_inside_of_the_function_is_kept(run_live: Any) -> None:
    # GIVEN inference mode set below the context's decorator
    @torch.inference_mode()  # type: ignore[misc]
    def stage(x: Any) -> Any:
        return x + 1

    # WHEN
    path = run_live(stage, (torch.zeros(2),))

    # THEN
    context = json.loads(path.read_text())["stages"]["stage"]["context"]
    assert (context["grad"], context["inference"]) == (False, True)


@pytest.mark.parametrize(
    ("variant", "rows"),
    [(None, 4), (0, 4), ("1", 2), ("largest", 9), ("smallest", 2), ("x=9", 9), ("key", 2)],
)
def test_a_variant_is_chosen(run_live: Any, variant: Any, rows: int) -> None:
    # GIVEN three signatures of one stage, the first of them ran most
    def stage(x: Any) -> Any:
        return x

    calls = [(torch.zeros(n, 3),) for n in (4, 4, 4, 9, 2, 2)]
    path = run_live(stage, *calls)
    if variant == "key":
        entry = json.loads(path.read_text())["stages"]["stage"]
        variant = entry["variants"][0]["key"][:6]

    # WHEN
    replayed = bench(path, stage, variant)
    replayed.setup()

    # THEN
    assert replayed.inputs["x"].shape == (rows, 3)


@pytest.mark.parametrize("variant", ["7", "zz", "x=3", "y=1", ""])
def test_a_variant_that_is_not_there_is_told(run_live: Any, variant: str) -> None:
    # GIVEN / WHEN / THEN
    path = run_live(lambda x: x, (torch.zeros(4, 3),), (torch.zeros(9, 3),))
    with pytest.raises(SignatureError, match="give a number or key of 0"):
        bench(path, len, variant)


class Cache:
    """Grows by what is written into it, as the caches of language models do."""

    def __init__(self) -> None:
        self.layers = [torch.zeros(1, 2)]
        self.length = 1


def test_objects_that_are_passed_in_are_made_anew_for_each_iteration(tmp_path: Path) -> None:
    # GIVEN a cache of the user's that a stage writes to, and a tensor that two inputs share
    mine, shared = Cache(), torch.zeros(3)
    seen = []

    def stage(cache: Any, a: Any, b: Any) -> None:
        seen.append((len(cache.layers[0]), a is b, a.sum().item()))
        cache.layers[0] = torch.cat([cache.layers[0], torch.ones(1, 2)])
        a.add_(1)

    # WHEN
    given = {"cache": mine, "a": shared, "b": shared}
    harness(stage, signature_of("s"), tmp_path, inputs=given, profile_steps=2).profile()

    # THEN each run had the same, and the user's own are as they were
    assert set(seen) == {(1, True, 0.0)}
    assert len(mine.layers[0]) == 1
    assert shared.sum() == 0


def test_a_function_makes_the_inputs(tmp_path: Path) -> None:
    # GIVEN a function whose cache a stage writes to
    made = []

    def make() -> dict[str, Any]:
        made.append(Cache())
        return {"cache": made[-1]}

    def stage(cache: Any) -> None:
        assert cache.length == 1
        cache.length += 1

    # WHEN
    harness(stage, signature_of("s"), tmp_path, inputs=make).profile()

    # THEN
    assert len(made) > 3
    with pytest.raises(HarnessError, match="returned a list, not a mapping"):
        harness(stage, signature_of("s"), tmp_path, inputs=list).setup()


def test_the_command_takes_inputs_a_variant_and_prints_json(
    tmp_path: Path, run_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a stage with an object among its inputs
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

    # WHEN
    done = CliRunner().invoke(
        command,
        ["bench", str(path), "--stage", "stage", "--factory", "cli_inputs:get_stage",
         "--warmup", "1",
         "--inputs", "cli_inputs:inputs", "--variant", "largest", "--timing-steps", "2", "--json",
         "--output", str(tmp_path / "out")],
    )  # fmt: skip

    # THEN
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["adapter"] == "call"
    assert result["timing_ms"]["iterations"] == 2
    assert result["fidelity"]["live_runs"] == 1
