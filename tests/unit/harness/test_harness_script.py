"""The generated script: it runs without stagespan, in both ways, and does what the harness does."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import preloaded
from properties import examples
from running import ran
from scripts import names_of
from stagespan.device.environment import machine
from stagespan.harness import HarnessConfig, StageBenchHarness
from stagespan.harness.adapters import CallAdapter, DenoiseAdapter, ScriptStep
from stagespan.signature import StageSignature, capture
from stagespan.signature.capture import capture_arguments

torch = pytest.importorskip("torch")

from stagespan.harness.bundle import replay_file_of, replay_module  # noqa: E402
from stagespan.harness.output import write_replay_module, write_script  # noqa: E402
from stagespan.harness.script import script_and_module  # noqa: E402

STAGES = '''
import dataclasses
import hashlib
import torch


@dataclasses.dataclass
class Options:
    latents: object
    scale: float = 1.0


class Scheduler:
    def set_timesteps(self, count):
        self.timesteps = torch.linspace(1000, 500, count)

    def step(self, noise, timestep, sample):
        return sample - noise


class Denoiser:
    """Has the names that the harness looks for, and notes what its model was given."""

    def __init__(self):
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 64)
        self.scheduler = Scheduler()

    def transformer(self, hidden_states, timestep, encoder_hidden_states):
        note(hidden_states, timestep, encoder_hidden_states)
        return self.layer(hidden_states) + encoder_hidden_states.mean()


class Encoder:
    def process(self, ids, mask, options, text, pair=None):
        note(ids, mask, options.latents, torch.tensor(len(text)), torch.rand(1))
        return ids.float().mean() * options.latents


def note(*tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
                      if tensor.dim() else repr(tensor).encode())
    seen.append(digest.hexdigest())


seen = []


def get_denoiser():
    return Denoiser()


def get_encoder():
    return Encoder()


def fails():
    raise RuntimeError("no weights")


def step(stage, inputs):
    stage.process(**inputs)
'''
# Runs a script both ways and prints the inputs of its stage; stagespan cannot be imported.
WATCH = """
import json, runpy, sys
sys.modules["stagespan"] = None
import stages
told = {{}}

def take(name):
    told[name] = list(stages.seen)
    stages.seen.clear()

sys.argv = ["{script}.py", "--factory", "{factory}", "--timing-steps", "2"]
try:
    runpy.run_path("{script}.py", run_name="__main__")
except SystemExit as done:
    assert done.code == 0, done.code
take("by_factory")

from {script} import profile_stage
stage = getattr(stages, "{factory}".partition(":")[2])()
told["timing_ms"] = profile_stage(stage, timing_steps=2)["timing_ms"]
take("by_import")
profile_stage(stage, timing_steps=2, seed=9)
take("other_seed")
told["loaded"] = [name for name in sys.modules if name.startswith("stagespan.")]
print(json.dumps(told))
"""


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "stages.py").write_text(STAGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("stages", None)
    import stages as module

    yield module
    sys.modules.pop("stages", None)


def harness_of(stages: Any, name: str, folder: Path, **config: Any) -> StageBenchHarness:
    given: dict[str, Any] = {
        "denoise": {
            "latents": torch.randn(2, 64),
            "prompt_embeds": torch.randn(2, 30),
            "num_inference_steps": 40,
        },
        "encode": {
            "ids": torch.arange(900).reshape(9, 100),
            "mask": torch.rand(9, 100) > 0.5,
            "options": stages.Options(torch.randn(0, 7)),
            "text": "a \"dog\"\nand 'cat'",
        },
    }[name]
    stage = stages.get_denoiser() if name == "denoise" else stages.get_encoder()
    signature = StageSignature(name, {key: capture(value) for key, value in given.items()})
    settings = {"warmup": 1, "timing_steps": 2, "output_dir": folder, **config}
    return StageBenchHarness(signature, stage, HarnessConfig(**settings))


@pytest.mark.parametrize(
    ("name", "factory"), [("denoise", "get_denoiser"), ("encode", "get_encoder")]
)
def test_both_ways_pass_the_harnesss_inputs_to_the_stage(
    stages: Any, tmp_path: Path, name: str, factory: str
) -> None:
    result = harness_of(stages, name, tmp_path, seed=5).profile()
    given = set(stages.seen)
    assert len(given) == 1

    program = WATCH.format(script=f"profile_{name}", factory=f"stages:{factory}")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = ran([*preloaded.python(), "-c", program], cwd=tmp_path, env=environment, status=0)

    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told["by_factory"]) == set(told["by_import"]) == given
    assert len(set(told["other_seed"])) == 1
    assert not set(told["other_seed"]) & given
    assert told["loaded"] == []
    assert told["timing_ms"]["mean"] > 0
    assert (tmp_path / f"{name}_script_trace.json.gz").stat().st_size > 100
    assert result.script_path == tmp_path / f"profile_{name}.py"


def run_script(path: Path, *arguments: str) -> int:
    """Run the script as a program in this process; return its exit status."""
    before = sys.argv
    sys.argv = [str(path), *arguments]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as done:
        return int(done.code or 0)
    finally:
        sys.argv = before
    return 0


def test_modules_of_scripts_do_not_define_the_same_name() -> None:
    names: list[str] = []
    for part in ast.parse(replay_module().text).body:
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            names.append(part.name)
        elif isinstance(part, ast.Assign):
            names += [each.id for each in ast.walk(part.targets[0]) if isinstance(each, ast.Name)]

    assert len(names) > 20
    assert sorted(names) == sorted(set(names))


@pytest.fixture(scope="module")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a script that the harness wrote for a stage of `STAGES`, for all tests."""
    folder = tmp_path_factory.mktemp("script")
    module = types.ModuleType("stages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "stages", module)
        exec(STAGES, module.__dict__)
        return harness_of(module, "denoise", folder).profile().script_path


@pytest.fixture
def script(written_once: Path, stages: Any, tmp_path: Path) -> Path:
    """Return a copy of that script and its module, next to its stages."""
    for path in written_once.parent.glob("*.py"):
        shutil.copy(path, tmp_path)
    return tmp_path / written_once.name


def test_without_profiled_steps_no_profiler_runs(
    stages: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harness_of(stages, "denoise", tmp_path).profile()
    given = list(stages.seen)
    stages.seen.clear()
    capsys.readouterr()
    status = run_script(
        tmp_path / "profile_denoise.py", "--factory", "stages:get_denoiser",
        "--warmup", "1", "--timing-steps", "1", "--steps", "0",
    )  # fmt: skip
    # THEN the stage ran twice, on the same inputs, and nothing was traced
    assert status == 0
    assert stages.seen == given[:2]
    out = capsys.readouterr().out
    assert "aten::" not in out
    assert not (tmp_path / "denoise_script_trace.json.gz").exists()


def test_the_script_knows_the_environment_in_which_it_was_written(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_in = runpy.run_path(str(script))["MADE_IN"]
    assert made_in == machine()
    version = f'"torch": "{torch.__version__}"'
    script.write_text(script.read_text().replace(version, '"torch": "1.0"'))

    status = run_script(
        script, "--factory", "stages:get_denoiser", "--warmup=0", "--timing-steps=1", "--no-profile"
    )

    assert status == 0
    (line,) = (row for row in capsys.readouterr().out.splitlines() if "made with" in row)
    assert "torch 1.0" in line
    assert torch.__version__ in line


@pytest.mark.parametrize("option", ["--timing-steps=0", "--steps=-1", "--warmup=-1"])
def test_too_few_iterations_are_refused(
    option: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a script
    # THEN a sentence says which number is valid
    assert run_script(script, "--factory", "stages:get_denoiser", option) == 2
    assert "is too few: give" in capsys.readouterr().err


def test_the_script_counts_what_the_breakdown_counts(
    stages: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = harness_of(stages, "denoise", tmp_path).profile()
    capsys.readouterr()

    status = run_script(
        result.script_path, "--factory", "stages:get_denoiser", "--timing-steps", "2"
    )

    out = capsys.readouterr().out
    table = [line.split() for line in out.splitlines() if "aten::" in line]
    counts = {row[3]: int(row[2]) for row in table}
    expected = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert status == 0
    assert counts.items() <= expected.items()
    assert counts["aten::addmm"] == 1
    assert "2 iterations" in out


def test_arguments_that_cannot_be_replayed_have_to_be_passed_in(
    stages: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = harness_of(stages, "encode", tmp_path, inputs={"pair": object()})
    bench.signature.inputs["pair"] = {"unreplayable": "pkg.Engine"}
    path = bench.profile().script_path

    without = run_script(path, "--factory", "stages:get_encoder")
    told = capsys.readouterr().err
    profile_stage = runpy.run_path(str(path))["profile_stage"]
    result = profile_stage(stages.get_encoder(), timing_steps=1, inputs={"pair": 3})

    assert without == 2
    assert "input 'pair' is a object" in told
    assert "profile_stage(stage, inputs={'pair': ...})" in told
    assert result["timing_ms"]["iterations"] == 1


def test_a_users_step_is_required(
    stages: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = harness_of(stages, "encode", tmp_path, step_fn=stages.step).profile().script_path
    given = set(stages.seen)
    stages.seen.clear()

    factory = ("--factory", "stages:get_encoder")
    without = run_script(path, *factory)
    told = capsys.readouterr().err
    by_name = run_script(path, *factory, "--step", "stages:step", "--timing-steps", "1")
    profile_stage = runpy.run_path(str(path))["profile_stage"]
    profile_stage(stages.get_encoder(), timing_steps=1, step_fn=stages.step)

    assert (without, by_name) == (2, 0)
    assert "--step MODULE:CALLABLE" in told
    assert set(stages.seen) == given


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("stages:fails", "raised RuntimeError: no weights"),
        ("stages:nothing", "has no attribute 'nothing'"),
        ("nowhere:x", "No module named 'nowhere'"),
        ("stages", "must be written as module:name"),
    ],
)
def test_a_wrong_factory_is_reported_in_one_sentence(
    script: Path, capsys: pytest.CaptureFixture[str], factory: str, says: str
) -> None:
    status = run_script(script, "--factory", factory)

    told = capsys.readouterr().err
    assert status == 2
    assert says in told
    assert len(told.splitlines()) == 1


def script_of_a_number(folder: Path) -> Path:
    """Write the script of a stage ``s`` that is called with one number; return its path."""
    step = CallAdapter().script(lambda x: x, {})
    script = script_and_module(StageSignature("s", {"x": 1}), step, HarnessConfig(), stem="s")
    return write_script(folder / "profile_s.py", *script)


def test_a_stage_that_runs_out_of_memory_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(
        "import torch\n\n\nclass Stage:\n    def process(self, x):\n"
        "        return torch.empty(1 << 48, dtype=torch.uint8)\n"
    )
    script = script_of_a_number(tmp_path)

    done = ran(
        [*preloaded.python(), script.name, "--factory", "large:Stage"],
        cwd=tmp_path,
        timeout_s=300,
        status=2,
    )

    assert done.stderr.startswith("There is not enough memory: end other programs")
    assert len(done.stderr.splitlines()) == 1


def test_a_stage_with_its_own_profiler_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "profiled.py").write_text(
        "import torch\n\n\nclass Stage:\n    def process(self, x):\n"
        "        with torch.profiler.profile():\n            return torch.zeros(4) + x\n"
    )
    script = script_of_a_number(tmp_path)
    options = ["--factory", "profiled:Stage", "--timing-steps", "2"]
    command = [*preloaded.python(), script.name, *options]

    done, without = (
        ran([*command, *more], cwd=tmp_path, timeout_s=300) for more in ((), ("--no-profile",))
    )

    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if "profiler" in line]
    assert errors[-1].endswith("or measure with --no-profile.")
    assert without.returncode == 0


def test_the_script_is_formatted(stages: Any, tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="ruff is not installed")
    for name in ("denoise", "encode"):
        harness_of(stages, name, tmp_path).profile()
    paths = sorted({*tmp_path.glob("*.py")} - {tmp_path / "stages.py"})
    assert len(paths) == 4  # each script has a module of its own

    options = ["--isolated", "--line-length", "100", "--target-version", "py310"]
    ruff = [sys.executable, "-m", "ruff"]
    linted = ran([*ruff, "check", *options, "--select", "E,F,I,B,UP", *paths])
    for indent, start in (("tab", "_"), ("space", "profile")):
        some = [path for path in paths if path.name.startswith(start)]
        style = ["--config", f"format.indent-style='{indent}'"]
        formatted = ran([*ruff, "format", "--check", *options, *style, *some])

        assert len(some) == 2
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr
    assert linted.returncode == 0, linted.stdout


@settings(max_examples=examples(60))
@given(
    name=st.text(max_size=30),
    argument=st.text(max_size=30),
    value=st.one_of(st.text(max_size=40), st.floats(), st.integers()),
    seed=st.integers(0, 2**63 - 1),
    kind=st.sampled_from(["denoise", "call", "function of the user"]),
)
def test_nothing_of_a_signature_becomes_code(
    name: str, argument: str, value: Any, seed: int, kind: str
) -> None:
    stage = StageSignature(name, {argument: capture(value)}, context={"grad": value})

    steps = {"denoise": DenoiseAdapter().script(None, {}), "call": CallAdapter().script(len, {})}
    text = script_and_module(stage, steps.get(kind), HarnessConfig(seed=seed), stem="s")[0]

    # THEN it is valid Python, and contains what it was given as values
    names = names_of(text)
    assert names["STAGE"] == name
    assert names["SEED"] == seed
    made = names["create_inputs"]()
    assert list(made) == [argument]
    assert repr(made[argument]) == repr(value)


def test_the_script_takes_a_variant_compiles_and_prints_json(
    stages: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = harness_of(stages, "denoise", tmp_path)
    bench.signature.key = "aaaa"
    bench.signature.variants = [
        StageSignature(
            "denoise",
            {"latents": capture(torch.zeros(7, 64)), "prompt_embeds": capture(torch.zeros(7, 3))},
            key="bbbb",
        )
    ]
    path = bench.profile().script_path
    stages.seen.clear()
    capsys.readouterr()

    arguments = ("--factory", "stages:get_denoiser", "--timing-steps", "1", "--warmup", "0")
    status = run_script(path, *arguments, "--variant", "bbbb", "--no-profile", "--json")
    done = capsys.readouterr()
    result = json.loads(done.out)

    assert status == 0
    assert result["timing_ms"]["iterations"] == 1
    assert result["trace_path"] is None
    assert (result["profiled_ms"], result["profiled_ratio"]) == (None, None)
    assert "1 iteration" in done.err
    create = runpy.run_path(str(path))["create_inputs"]
    assert create()["latents"].shape == (2, 64)
    assert create(variant="bbbb")["latents"].shape == (7, 64)
    assert run_script(path, *arguments, "--variant", "cccc") == 2
    capsys.readouterr()

    assert run_script(path, *arguments, "--json") == 0
    done = capsys.readouterr()
    result = json.loads(done.out)
    assert result["profiled_ms"] > 0
    ratio = result["profiled_ms"] / result["timing_ms"]["p50"]
    assert result["profiled_ratio"] == pytest.approx(ratio)
    assert f" {ratio:.2f} x " in done.err


def test_the_script_compiles_the_modules_of_a_stage(tmp_path: Path) -> None:
    seen = []

    class Stage:
        def __init__(self) -> None:
            self.model = torch.nn.Identity()

        def process(self, x: Any) -> Any:
            seen.append(self.model._compiled_call_impl is not None)
            return x

    signature = StageSignature("s", {"x": capture(torch.zeros(3))})
    config = HarnessConfig(output_dir=tmp_path, warmup=1, timing_steps=1)
    path = StageBenchHarness(signature, Stage(), config).profile().script_path
    profile_stage = runpy.run_path(str(path))["profile_stage"]
    seen.clear()

    profile_stage(Stage(), timing_steps=1, steps=0)
    profile_stage(Stage(), timing_steps=1, steps=0, compiled=True)

    assert set(seen[: len(seen) // 2]) == {False}
    assert seen[-1] is True


class FailsLater:
    """Raises an exception in its fourth run."""

    runs = 0

    def process(self, x: Any) -> Any:
        self.runs += 1
        if self.runs == 4:
            raise ValueError("the device is lost")
        return x @ x


def test_a_script_whose_stage_fails_ends_its_profiler(tmp_path: Path) -> None:
    signature = StageSignature("s", {"x": capture(torch.zeros(4, 4))})
    step = CallAdapter().script(None, {})
    text, _ = script_and_module(signature, step, HarnessConfig(), stem="s")
    profile_stage = names_of(text)["profile_stage"]
    with pytest.raises(ValueError, match="the device is lost"):
        profile_stage(FailsLater(), warmup=1, timing_steps=2, output_dir=tmp_path)
    # THEN no profiler records the rest of the program
    assert not torch.autograd._profiler_enabled()


# --- the script and the module beside it ----------------------------------------------------------


def module_name_of(script: Path) -> str:
    """Return the name of the file that a script imports."""
    name = replay_file_of(script.read_text())
    assert name is not None
    return name


ELSEWHERE = """
import runpy, sys
sys.modules["stagespan"] = None
script, stages, *arguments = sys.argv[1:]
sys.path.append(stages)
sys.argv[:] = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


def run_elsewhere(script: Path, stages: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in another folder, in a process that cannot import stagespan."""
    words = [script, stages, "--factory", "stages:get_denoiser", "--timing-steps", "2"]
    return ran([*preloaded.python(), "-c", ELSEWHERE, *map(str, words)], cwd=folder, timeout_s=300)


def test_both_files_run_in_another_folder(script: Path, tmp_path: Path) -> None:
    moved, working = tmp_path / "moved", tmp_path / "working"
    moved.mkdir()
    working.mkdir()
    module = script.with_name(module_name_of(script))
    for path in (script, module):
        path.rename(moved / path.name)

    done = run_elsewhere(moved / script.name, tmp_path, working)

    assert done.returncode == 0, done.stderr
    assert "Median iteration time: " in done.stdout
    written = {path.name for path in moved.iterdir()} - {"__pycache__"}
    assert written == {script.name, module.name, "denoise_script_trace.json.gz"}
    assert list(working.iterdir()) == []


def test_a_missing_module_is_reported_in_one_sentence(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_name = module_name_of(script)
    monkeypatch.delitem(sys.modules, file_name.removesuffix(".py"), raising=False)
    script.with_name(file_name).unlink()
    sentence = f"{file_name} is missing in {tmp_path}: copy it from"
    before = list(sys.path)

    done = run_elsewhere(script, tmp_path, tmp_path)
    with pytest.raises(ModuleNotFoundError) as caught:
        runpy.run_path(str(script))

    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.splitlines()) == 1
    assert str(caught.value).startswith(sentence)
    assert sys.path == before


def test_scripts_of_two_versions_run_in_one_process(
    stages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steps_of_mine.py").write_text(
        "from stagespan.harness.standalone.steps import CallStep, function_of\n\n\n"
        "class MyStep(CallStep):\n"
        "    def says(self):\n"
        "        return 'a step of mine'\n"
    )
    import steps_of_mine

    monkeypatch.delitem(sys.modules, "steps_of_mine")
    expression = "MyStep(function_of(stage), inputs)"
    steps = {"one": CallAdapter().script(None, {}), "two": ScriptStep(expression, (steps_of_mine,))}
    for stem, step in steps.items():
        script = script_and_module(StageSignature("s", {"x": 1}), step, HarnessConfig(), stem=stem)
        write_script(tmp_path / f"profile_{stem}.py", *script)
    modules = [*tmp_path.glob("_stagespan_replay_*.py")]
    assert len(modules) == 2

    loaded = {stem: runpy.run_path(str(tmp_path / f"profile_{stem}.py")) for stem in steps}
    results = {
        stem: names["profile_stage"](lambda x: x, warmup=0, timing_steps=1, steps=0)
        for stem, names in loaded.items()
    }

    assert {names["Replay"].__module__ for names in loaded.values()} == {p.stem for p in modules}
    assert [result["timing_ms"]["iterations"] for result in results.values()] == [1, 1]
    made = loaded["two"]["make_step"](lambda x: x, {"x": 1})
    assert made.says() == "a step of mine"


def test_the_module_is_replaced_as_a_whole(tmp_path: Path) -> None:
    # GIVEN a module of which a disk had kept only a part, which another process reads
    module = replay_module()
    path = write_replay_module(tmp_path, module)
    path.write_text(module.text[:500])

    with path.open() as reader:
        write_replay_module(tmp_path, module)

        # THEN the reader never gets a mixture, and the file is complete
        assert reader.read() == module.text[:500]
    assert path.read_text() == module.text
    assert [each.name for each in tmp_path.iterdir()] == [module.file_name]
    # AND a complete one is left alone
    before = path.stat()
    write_replay_module(tmp_path, module)
    assert path.stat() == before


def test_the_name_of_the_module_depends_only_on_its_text() -> None:
    # GIVEN processes that order sets differently
    program = "from stagespan.harness.bundle import replay_module; print(replay_module().name)"
    names = {
        ran([sys.executable, "-c", program], status=0, PYTHONHASHSEED=seed).stdout.strip()
        for seed in ("1", "2")
    }
    assert names == {replay_module().name}


@pytest.mark.parametrize("name", ["denoise", "encode"])
def test_the_module_has_only_what_its_script_needs(stages: Any, tmp_path: Path, name: str) -> None:
    # GIVEN the scripts of a step of a model and its scheduler, and of a whole call
    script = harness_of(stages, name, tmp_path).profile().script_path
    text = script.with_name(module_name_of(script)).read_text()
    defined = {part.name for part in ast.parse(text).body if hasattr(part, "name")}

    needed = {"denoise": {"DenoiseStep"}, "encode": {"CallStep", "instance", "make_content"}}
    others = set().union(*(names for key, names in needed.items() if key != name))
    assert needed[name] <= defined
    assert not defined & (others | {"LoopStep", "sparse_tensor", "jagged_tensor"})
    # THEN nothing in it is unused
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert defined <= used | set(re.findall(r"\w+", script.read_text()))
    assert len(text.encode()) <= 60_000


@pytest.mark.parametrize("kind", ["loop", "generate"])
def test_the_module_of_a_step_of_a_loop_has_only_what_its_script_needs(kind: str) -> None:
    arguments = {"latents": torch.randn(2, 64), "mask": torch.rand(2, 9) > 0.5, "prompt": "a dog"}
    signature = StageSignature("s", capture_arguments(arguments))
    step = ScriptStep(f"{kind}_step(stage, inputs, step, OPTIONAL)")

    _, module = script_and_module(signature, step, HarnessConfig(), stem="s")

    others = {"DenoiseStep", "CallStep", "sparse_tensor", "Missing", "load_stage_of", "with_method"}
    assert f"{kind}_step" in module.defined
    assert not module.defined & others
    assert "def make_frequent" not in module.text
    assert "def draw_complex" not in module.text
    assert len(module.text.encode()) <= 60_000


def test_many_numbers_take_few_lines() -> None:
    # GIVEN inputs with many numbers, which a formatter would write one below the other
    arguments = {
        "ids": torch.randperm(64) * 99_991, "list": [*range(256)], "levels": (0.1, -1e-30) * 60,
        "runs": torch.arange(100).repeat_interleave(3),
    }  # fmt: skip
    signature = StageSignature("s", capture_arguments(arguments))
    step = CallAdapter().script(None, {})
    text, _ = script_and_module(signature, step, HarnessConfig(), stem="s")

    made = names_of(text)["create_inputs"]()

    assert len(text.splitlines()) <= 250
    assert made["list"] == arguments["list"]
    assert made["levels"] == arguments["levels"]
    assert torch.equal(made["ids"], arguments["ids"])
    assert torch.equal(made["runs"], arguments["runs"])
