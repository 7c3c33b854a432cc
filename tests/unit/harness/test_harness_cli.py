"""The verbs `bench` and `stages`."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import preloaded
import stagespan
from running import on_terminal
from stagespan.cli import command
from stagespan.harness import StageBenchHarness
from stagespan.harness.bundle import replay_file_of
from stagespan.signature import SignatureFile, StageSignature, capture

torch = pytest.importorskip("torch")

PROGRAM = """
import sys

class Stage:
    def process(self, x, scale=1.0):
        return x @ x.T * scale

def get_stage():
    return Stage()

def fails():
    raise RuntimeError("no weights")

def leaves():
    sys.exit(3)

def nothing():
    return None

def not_a_stage():
    return 5

def one_step(stage, inputs):
    stage.process(inputs["x"])

stage = Stage()
"""


SINE = "(Tensor x) -> Tensor"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_pipeline.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "needy.py").write_text("import no_such_module")
    sys.modules.pop("my_pipeline", None)
    stages = {
        "denoise": StageSignature(
            "denoise",
            {"x": capture(torch.zeros(8, 32)), "scale": 0.5},
            capture(torch.zeros(8, 8)),
            count=3,
        ),
        "vae_decode": StageSignature("vae_decode", {"engine": {"unreplayable": "pkg.Engine"}}),
    }
    stages["denoise"].variants = [
        StageSignature("denoise", {"x": capture(torch.zeros(2, 32))}, count=1)
    ]
    SignatureFile(stages, "req_7").write("signatures.json")
    yield tmp_path
    sys.modules.pop("my_pipeline", None)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command, list(arguments), prog_name="stagespan")


def bench(*arguments: str, stage: str = "denoise", factory: str = "my_pipeline:get_stage") -> Any:
    chosen = ["--stage", stage] if stage else []
    if "--output" not in arguments:
        chosen += ["--output", "out"]
    return run("bench", "signatures.json", *chosen, "--factory", factory, *arguments)


@pytest.mark.parametrize(
    "factory", ["my_pipeline:get_stage", "my_pipeline:Stage", "my_pipeline:stage"]
)
def test_bench_writes_the_files_and_prints_the_breakdown(folder: Path, factory: str) -> None:
    # GIVEN a signature file, and a factory, a class, or the stage itself
    done = bench("--warmup", "2", "--steps", "2", "--timing-steps", "3", factory=factory)

    assert done.exit_code == 0, done.output
    assert "aten::mm" in done.stdout
    assert "[Harness] Running 2 warmup iteration(s)...\n" in done.stderr
    assert f"[Harness] Test script saved to: {Path('out', 'profile_denoise.py')}\n" in done.stderr
    assert sorted(path.name for path in Path("out").iterdir()) == [
        replay_file_of(Path("out", "profile_denoise.py").read_text()),
        "denoise_bench.json",
        "denoise_breakdown.json",
        "denoise_trace.json.gz",
        "profile_denoise.py",
    ]
    assert "\x1b" not in done.output
    content = json.loads(Path("out/denoise_breakdown.json").read_text())
    assert content["profile_steps"] == 2
    assert len(json.loads(Path("out/denoise_bench.json").read_text())["times_ms"]) == 3
    assert f" {content['profiled_ratio']:.2f} x " in done.stdout


def test_the_files_of_a_replay_are_beside_its_signature(folder: Path) -> None:
    run_folder = folder / "runs" / "20270115_0800"
    SignatureFile.read("signatures.json").write(run_folder / "timing_io_signature.json")
    chosen = ("--stage", "denoise", "--factory", "my_pipeline:get_stage")
    fast = ("--warmup", "1", "--timing-steps", "2")

    first = run("bench", "runs/20270115_0800/timing_io_signature.json", *chosen, *fast)
    written = {path.name: path.read_bytes() for path in run_folder.iterdir()}
    second = run("bench", "runs/20270115_0800", *chosen, *fast, "--json")

    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    kinds = ("{}_trace.json.gz", "{}_breakdown.json", "{}_bench.json", "profile_{}.py")
    assert {name.format("denoise") for name in kinds} < written.keys()
    assert {name: (run_folder / name).read_bytes() for name in written} == written
    assert {name.format("denoise_2") for name in kinds} == {
        path.name for path in run_folder.iterdir()
    } - written.keys()
    result = json.loads(second.stdout)
    assert result["script_path"] == "runs/20270115_0800/profile_denoise_2.py"

    (run_folder / "timing_2_io_signature.json").write_bytes(b"{}")
    for path, says in (("runs/20270115_0800", "pass one of 'timing_2_io_"), ("runs", "no signatu")):
        done = run("bench", path, *chosen)
        assert done.exit_code == 2
        assert says in done.stderr


def test_a_signature_in_a_folder_that_cannot_be_written(folder: Path) -> None:
    with open("signatures.json") as file:
        path = f"/proc/self/fd/{file.fileno()}"
        harness = StageBenchHarness.from_signature_file(path, "denoise")
        assert harness.output_dir == stagespan.get_profiler_output_dir()


def test_two_results_of_bench_are_compared(folder: Path) -> None:
    for output in ("before", "after"):
        done = bench("--warmup", "1", "--timing-steps", "5", "--output", output)
        assert done.exit_code == 0, done.output
    before, after = Path("before/denoise_bench.json"), Path("after/denoise_bench.json")

    def compare() -> Any:
        done = run("compare", str(before), str(after), "--json", "-")
        return done.exit_code, json.loads(done.stdout)

    def with_times(path: Path, factor: float, **more: Any) -> None:
        content = json.loads(path.read_text())
        times = [factor * (10 + 0.01 * (number % 7)) for number in range(60)]
        content["timing_ms"].update(busy=None, fixed_ns=150_000)
        path.write_text(json.dumps({**content, "times_ms": times, **more}))

    with_times(before, 1.0)
    with_times(after, 1.01)
    status, found = compare()
    # THEN nothing is slower, and there is no warning, because the machine is the same
    assert (status, found["kind"], found["summary"]) == (0, "bench", "1 unchanged")
    assert (found["warnings"], found["notes"]) == ([], [])

    with_times(after, 1.1)
    status, found = compare()
    assert (status, found["summary"]) == (1, "1 slower")
    assert [change["name"] for change in found["changes"]] == ["denoise"]

    with_times(after, 1.1, timing_ms={"busy": "The machine was busy."})
    status, found = compare()
    assert (status, found["changes"][0]["statistic"]) == (1, "fastest")


def test_results_of_different_replays_are_not_reported_as_a_change(folder: Path) -> None:
    done = bench("--warmup", "1", "--timing-steps", "3")
    assert done.exit_code == 0, done.output
    content = json.loads(Path("out/denoise_bench.json").read_text())
    times = [10.0] * 30

    def compare(before: dict[str, Any], after: dict[str, Any]) -> Any:
        for name, more in (("a.json", before), ("b.json", after)):
            Path(name).write_text(json.dumps({**content, **more}))
        done = run("compare", "a.json", "b.json", "--json", "-")
        return done.exit_code, json.loads(done.stdout)

    status, found = compare(
        {"times_ms": times, "signature": {"key": "aa"}},
        {"times_ms": [20.0] * 30, "signature": {"key": "bb"}},
    )
    assert status == 0
    assert found["changes"][0]["reason"] == "ran with other inputs: no signature in common"

    environment = {**content["environment"], "cpu": "another"}
    _, found = compare(
        {"times_ms": times, "step": {"number": 2}, "settings": {"dtype": None}},
        {"times_ms": times, "environment": environment, "settings": {"dtype": "float16"}},
    )
    machines, replays = found["warnings"]
    assert "another" in machines
    assert replays == (
        "The replays differ, so the times may not be comparable: step 2 before and whole after, "
        "dtype as captured before and float16 after."
    )


def test_bench_shows_which_adapters_were_tried(folder: Path) -> None:
    done = bench("--explain", "--timing-steps", "1", "--warmup", "1")

    assert done.exit_code == 0, done.output
    for text in ("How the step was found", "has no scheduler", "the stage can be called"):
        assert text in done.stdout
    assert "Stage.process (adapter call)" in done.stdout
    assert "CPU time of its thread" in done.stdout


def test_a_long_name_does_not_widen_the_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "graph_" + "f3" * 60
    operator = torch.library.custom_op(f"bench::{name}", torch.sin, mutates_args=(), schema=SINE)
    module = types.ModuleType("long_names")
    module.get_stage = lambda: lambda x, scale: operator(x)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "long_names", module)
    done = bench("--any-callable", "--timing-steps", "1", factory="long_names:get_stage")

    assert done.exit_code == 0, done.output
    (row,) = (line for line in done.stdout.splitlines() if "bench::graph" in line)
    assert "..." in row
    assert len(row) < len(name)


def test_bench_takes_the_step_of_a_loop(folder: Path) -> None:
    assert bench("--step", "whole", "--timing-steps", "1", "--warmup", "1").exit_code == 0
    done = bench("--step", "third")
    assert done.exit_code == 2
    assert "step='third'" in done.stderr


def test_a_file_without_stages_is_refused(folder: Path) -> None:
    Path("empty.json").write_text('{"stages": {}}')
    done = run("bench", "empty.json", "--factory", "my_pipeline:get_stage")
    assert done.exit_code == 2
    assert "'empty.json' contains no stage" in done.stderr


def test_bench_takes_seed_device_dtype_threads_and_step(folder: Path) -> None:
    threads = torch.get_num_threads() + 1
    done = bench(
        *("--seed", "4", "--device", "cpu", "--dtype", "float64", "--threads", str(threads)),
        *("--step", "my_pipeline:one_step", "--timing-steps", "1"),
    )

    assert done.exit_code == 0, done.output
    assert "SEED = 4" in Path("out/profile_denoise.py").read_text()
    settings = json.loads(Path("out/denoise_bench.json").read_text())["settings"]
    assert settings == {"dtype": "float64", "seed": 4, "threads": threads}


@pytest.mark.parametrize(
    ("arguments", "given", "says"),
    [
        ([], {"factory": "my_pipeline:fails"}, "raised RuntimeError: no weights ("),
        ([], {"factory": "my_pipeline:leaves"}, "raised SystemExit: 3"),
        ([], {"factory": "my_pipeline:nothing"}, "returned None"),
        ([], {"factory": "my_pipeline:not_a_stage"}, "has no step to run"),
        ([], {"factory": "my_pipeline:absent"}, "has no attribute 'absent'; check the name.\n"),
        ([], {"factory": "no_such_module:x"}, "'no_such_module'; start in its folder"),
        ([], {"factory": "needy:x"}, "needy.py, line 1).\n"),
        ([], {"factory": "my_pipeline"}, "must be written as module:name"),
        ([], {"stage": "denoize"}, "did you mean 'denoise'?"),
        ([], {"stage": ""}, "choose one of 'denoise', 'vae_decode'"),
        ([], {"stage": "vae_decode"}, "is a pkg.Engine, which cannot be created"),
        (["--device", "cuda:77"], {}, "--device cpu"),
        (["--device", "nonsense"], {}, "is not a device"),
        (["--dtype", "int8"], {}, "not a floating-point type; the known types are float64"),
        (["--dtype", "flaot16"], {}, "x2; the closest is float16.\n"),
        (["--warmup", "-1"], {}, "warmup=-1"),
        (["--steps", "0"], {}, "profile_steps=0"),
        (["--seed", "-5"], {}, "seed=-5"),
        (["--output", "my_pipeline.py"], {}, "cannot be written"),
        (["--step", "my_pipeline:absent"], {}, "has no attribute"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(
    folder: Path, arguments: list[str], given: dict[str, str], says: str
) -> None:
    done = bench(*arguments, **given)

    assert done.exit_code == 2
    assert says in done.stderr
    sentence = done.stderr.partition("\n\nTo pass what is missing on the command line")[0]
    errors = [line for line in sentence.splitlines() if not line.startswith("[Harness]")]
    assert len(errors) == 1
    assert errors[0].startswith("Error: ")
    assert "Traceback" not in done.output
    assert not Path("out").exists() or list(Path("out").iterdir()) == []


def test_a_terminal_shows_the_progress(folder: Path) -> None:
    # GIVEN a terminal for the messages, and a pipe for the figures
    arguments = ["--stage", "denoise", "--factory", "my_pipeline:get_stage", "--output", "out"]
    arguments += ["--timing-steps", "1"]

    figures, told = on_terminal(
        [*preloaded.python(), "-m", "stagespan", "bench", "signatures.json", *arguments],
        TERM="xterm",
        COLUMNS="200",
    )

    # THEN a bar moved below complete log lines, and is not mixed with the figures
    assert "\x1b" in told
    assert "\u2501" in told
    assert "loading the stage" in told
    assert "[Harness] Setup complete for stage 'denoise'\r\n" in told
    assert "\x1b" not in figures
    assert "One iteration takes" in figures


@pytest.mark.parametrize("verb", ["show", "bench"])
@pytest.mark.parametrize("content", [None, "{", "[]", '{"stages": {"a": 3}}'])
def test_missing_or_invalid_files_are_reported(
    folder: Path, verb: str, content: str | None
) -> None:
    if content is not None:
        Path("broken_io_signature.json").write_text(content)
    more = ["--stage", "a", "--factory", "my_pipeline:get_stage"] if verb == "bench" else []

    done = run(verb, "broken_io_signature.json", *more)

    assert done.exit_code == 2
    assert "broken_io_signature.json" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_show_lists_inputs_and_outputs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a file with two stages, one with a variant, and a page wide enough for one line each
    monkeypatch.setenv("COLUMNS", "160")
    done = run("show", "signatures.json")

    assert done.exit_code == 0
    for text in ("denoise", "variant 1", "x: float32[8, 32] cpu", "scale: 0.5", "float32[8, 8] cpu",
                 "engine: pkg.Engine (cannot be replayed)", "2 stages of req_7"):  # fmt: skip
        assert text in done.stdout


def test_hostile_names_do_nothing_to_the_terminal(folder: Path) -> None:
    # GIVEN names with control characters and markup
    stage = StageSignature("\x1b[31mred", {"[bold]\x07": "\x1b[2J"})
    SignatureFile({"\x1b[31mred": stage}, "\x1b]0;x\x07").write("hostile.json")

    done = run("show", "hostile.json")

    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
    assert "[bold]" in done.stdout
