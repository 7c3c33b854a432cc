"""The generated script: runs without stagespan, either way, and does what the harness does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagespan.harness import HarnessConfig, StageBenchHarness
from stagespan.harness.adapters import CallAdapter, DenoiseAdapter
from stagespan.signature import StageSignature, capture

torch = pytest.importorskip("torch")

from stagespan.harness.script import script_text  # noqa: E402

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
# Runs a script as a user would and tells what its stage was given; stagespan cannot be imported.
WATCH = """
import json, sys
sys.modules["stagespan"] = None
import stages
{run}
loaded = [name for name in sys.modules if name.startswith("stagespan.")]
print(json.dumps({{"seen": stages.seen, "loaded": loaded}}))
"""


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "stages.py").write_text(STAGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("stages", None)
    import stages as module

    yield module
    sys.modules.pop("stages", None)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the folder, without anything that would lead it to stagespan's sources."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def harness_of(stages: Any, name: str, folder: Path, **config: Any) -> StageBenchHarness:
    given: dict[str, Any] = {
        "denoise": {
            "latents": torch.zeros(2, 64),
            "prompt_embeds": torch.zeros(2, 30),
            "num_inference_steps": 40,
        },
        "encode": {
            "ids": torch.arange(900).reshape(9, 100),
            "mask": torch.rand(9, 100) > 0.5,
            "options": stages.Options(torch.zeros(0, 7)),
            "text": "a \"dog\"\nand 'cat'",
        },
    }[name]
    stage = stages.get_denoiser() if name == "denoise" else stages.get_encoder()
    signature = StageSignature(name, {key: capture(value) for key, value in given.items()})
    settings = {"timing_steps": 2, "output_dir": folder, **config}
    return StageBenchHarness(signature, stage, HarnessConfig(**settings))


@pytest.mark.parametrize(
    ("name", "factory"), [("denoise", "get_denoiser"), ("encode", "get_encoder")]
)
def test_both_ways_give_the_stage_what_the_harness_gave_it(
    stages: Any, tmp_path: Path, name: str, factory: str
) -> None:
    # GIVEN a script that the harness wrote
    result = harness_of(stages, name, tmp_path, seed=5).profile()
    given = set(stages.seen)
    file = f"profile_{name}"

    # WHEN it is run with a factory, and imported and called with a loaded stage, without stagespan
    by_factory = WATCH.format(
        run=f"import runpy\nsys.argv = ['{file}.py', '--factory', 'stages:{factory}']\n"
        f"sys.argv += ['--timing-steps', '2']\n"
        f"try:\n    runpy.run_path('{file}.py', run_name='__main__')\n"
        f"except SystemExit as done:\n    assert done.code == 0, done.code"
    )
    by_import = WATCH.format(
        run=f"from {file} import profile_stage\n"
        f"result = profile_stage(stages.{factory}(), timing_steps=2)\n"
        f"assert result['timing_ms']['mean'] > 0"
    )

    # THEN both gave the stage the very same tensors, wrote a trace, and printed the figures
    for program in (by_factory, by_import):
        done = run(tmp_path, "-c", program)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert set(told["seen"]) == given
        assert told["loaded"] == []
        assert "Average iteration time: " in done.stdout
        assert "aten::" in done.stdout
        assert (tmp_path / f"{name}_script_trace.json.gz").stat().st_size > 100
    assert result.script_path == tmp_path / f"{file}.py"


def test_the_script_counts_what_the_breakdown_counts(stages: Any, tmp_path: Path) -> None:
    # GIVEN a profiled stage
    result = harness_of(stages, "denoise", tmp_path).profile()

    # WHEN its script runs as a program
    done = run(
        tmp_path, "profile_denoise.py", "--factory", "stages:get_denoiser", "--timing-steps", "1"
    )

    # THEN its table has the same operators as often
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines() if "aten::" in line]
    counts = {row[3]: int(row[2]) for row in table}
    expected = {row["name"]: row["count"] for row in result.breakdown["top_kernels"]}
    assert counts.items() <= expected.items()
    assert counts["aten::addmm"] == 1


def test_another_seed_gives_other_tensors(stages: Any, tmp_path: Path) -> None:
    # GIVEN a script
    harness_of(stages, "denoise", tmp_path).profile()
    given = set(stages.seen)

    # WHEN it runs with another seed
    program = WATCH.format(
        run="from profile_denoise import profile_stage\n"
        "profile_stage(stages.get_denoiser(), timing_steps=1, seed=9)"
    )
    done = run(tmp_path, "-c", program)

    # THEN
    assert not set(json.loads(done.stdout.splitlines()[-1])["seen"]) & given


def test_what_cannot_be_replayed_has_to_be_passed_in(stages: Any, tmp_path: Path) -> None:
    # GIVEN a stage whose captured argument was given to the harness by hand
    bench = harness_of(stages, "encode", tmp_path, inputs={"pair": object()})
    bench.signature.inputs["pair"] = {"unreplayable": "pkg.Engine"}
    bench.profile()

    # WHEN the script runs without it, and with it
    without = run(tmp_path, "profile_encode.py", "--factory", "stages:get_encoder")
    program = WATCH.format(
        run="from profile_encode import profile_stage\n"
        "profile_stage(stages.get_encoder(), timing_steps=1, inputs={'pair': 3})"
    )
    with_it = run(tmp_path, "-c", program)

    # THEN the first says how, in one sentence
    assert without.returncode == 2
    assert "input 'pair' is a object" in without.stderr
    assert "profile_stage(stage, inputs={'pair': ...})" in without.stderr
    assert "Traceback" not in without.stderr
    assert with_it.returncode == 0, with_it.stderr


def test_a_users_step_is_asked_for(stages: Any, tmp_path: Path) -> None:
    # GIVEN a harness with a step function
    harness_of(stages, "encode", tmp_path, step_fn=stages.step).profile()
    given = set(stages.seen)

    # WHEN the script runs without and with it
    without = run(tmp_path, "profile_encode.py", "--factory", "stages:get_encoder")
    program = WATCH.format(
        run="from profile_encode import profile_stage\n"
        "profile_stage(stages.get_encoder(), timing_steps=1, step_fn=stages.step)"
    )
    with_it = run(tmp_path, "-c", program)
    by_name = run(
        tmp_path, "profile_encode.py", "--factory", "stages:get_encoder", "--step", "stages:step"
    )

    # THEN
    assert (without.returncode, by_name.returncode) == (2, 0)
    assert "--step module:function" in without.stderr
    assert set(json.loads(with_it.stdout.splitlines()[-1])["seen"]) == given


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("stages:fails", "raised RuntimeError: no weights"),
        ("stages:nothing", "has no attribute 'nothing'"),
        ("nowhere:x", "No module named 'nowhere'"),
        ("stages", "must be written as module:name"),
    ],
)
def test_a_wrong_factory_is_told_in_one_sentence(
    stages: Any, tmp_path: Path, factory: str, says: str
) -> None:
    # GIVEN a script
    harness_of(stages, "denoise", tmp_path).profile()

    # WHEN it is given a factory that is none
    done = run(tmp_path, "profile_denoise.py", "--factory", factory)

    # THEN
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_looks_as_a_formatter_leaves_it(stages: Any, tmp_path: Path) -> None:
    # GIVEN scripts of each kind, with the inputs of each stage
    pytest.importorskip("ruff", reason="ruff is not installed")
    paths = [
        harness_of(stages, name, tmp_path).profile().script_path for name in ("denoise", "encode")
    ]

    # WHEN they are checked
    options = ["--isolated", "--line-length", "100", "--target-version", "py310"]
    ruff = [sys.executable, "-m", "ruff"]
    formatted = subprocess.run(
        [*ruff, "format", "--check", *options, *paths], capture_output=True, text=True
    )
    linted = subprocess.run(
        [*ruff, "check", *options, "--select", "E,F,I,B,UP", *paths], capture_output=True, text=True
    )

    # THEN there is nothing to change
    assert formatted.returncode == 0, formatted.stdout + formatted.stderr
    assert linted.returncode == 0, linted.stdout


@settings(max_examples=60, deadline=None)
@given(
    name=st.text(max_size=30),
    argument=st.text(max_size=30),
    value=st.one_of(st.text(max_size=40), st.floats(), st.integers()),
    seed=st.integers(0, 2**63 - 1),
)
def test_nothing_of_a_signature_becomes_code(
    name: str, argument: str, value: Any, seed: int
) -> None:
    # GIVEN a stage with any name, argument and value
    stage = StageSignature(name, {argument: capture(value)}, context={"grad": value})

    # WHEN scripts of each kind are written
    for step in (DenoiseAdapter().script(None, {}), CallAdapter().script(len, {}), None):
        text = script_text(stage, step, HarnessConfig(seed=seed), stem="s")

        # THEN each is Python, and has what it was given as values
        names: dict[str, Any] = {"__name__": "script"}
        exec(compile(text.encode("utf-8"), "profile_s.py", "exec"), names)
        assert names["STAGE"] == name
        assert names["SEED"] == seed
        made = names["create_inputs"]()
        assert list(made) == [argument]
        assert repr(made[argument]) == repr(value)
