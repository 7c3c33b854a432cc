"""Functions, partial functions and methods as inputs: found again by name, or refused."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import preloaded
import stagespan
from running import ran
from scripts import names_of
from stagespan.errors import HarnessError
from stagespan.signature import StageSignature, capture, describe
from stagespan.signature.capture import capture_arguments

torch = pytest.importorskip("torch")

from stagespan.harness import HarnessConfig  # noqa: E402
from stagespan.harness.script import script_and_module  # noqa: E402
from stagespan.signature import make_inputs  # noqa: E402


def doubled(x: Any) -> Any:
    return x * 2


@functools.wraps(doubled)
def replaced(x: Any) -> Any:
    return doubled(x)


@functools.lru_cache
def cached(x: int) -> int:
    return x + 1


@stagespan.span("timed")
def timed(x: Any) -> Any:
    return x


@dataclasses.dataclass
class Scale:
    by: float

    def apply(self, x: Any) -> Any:
        return x * self.by

    @classmethod
    def half(cls) -> Scale:
        return cls(0.5)

    @staticmethod
    def twice(x: Any) -> Any:
        return 2 * x


class Double(Scale):
    pass


def made_in(node: Any, **options: Any) -> list[Any]:
    """Create an input from a node, by the harness and by a generated script."""
    signature = StageSignature("s", {"f": json.loads(json.dumps(node))})
    names = names_of(script_and_module(signature, None, HarnessConfig(), stem="s")[0])
    made = [make_inputs(signature, **options), names["create_inputs"](**options)]
    return [inputs["f"] for inputs in made]


@pytest.mark.parametrize(
    "function",
    [
        *(doubled, cached, timed, Scale.twice, Scale.apply, Scale.half, Double.half),
        *(torch.nn.functional.gelu, torch.nn.functional.softmax, torch.add, torch.relu),
        *(torch.linalg.norm, torch.fft.fft, math.sqrt, operator.add, len, sorted, np.exp, np.sum),
        *(Scale, torch.nn.Linear, int, dict),
    ],
    ids=lambda function: f"{function.__module__}.{function.__name__}",
)
def test_functions_and_classes_are_found_by_name(function: Any) -> None:
    node = capture(function)

    assert describe(node)
    for made in made_in(node):
        assert made == function


def test_partial_functions_are_made_again() -> None:
    value = functools.partial(
        Scale.apply, Scale(3.0), functools.partial(torch.add, torch.ones(2), alpha=2)
    )
    for made in made_in(capture_arguments({"f": value})["f"]):
        assert (made.func, made.args[0], made.keywords) == (Scale.apply, Scale(3.0), {})
        assert made.args[1](torch.zeros(2)).tolist() == [1.0, 1.0]


def test_a_secret_among_the_arguments_of_a_partial_function_is_left_out() -> None:
    node = capture(functools.partial(doubled, api_key="sk-hidden", x=[("cookie", "sk-hidden")]))

    assert "sk-hidden" not in json.dumps(node)


def test_methods_of_objects_that_can_be_made_again() -> None:
    for made in made_in(capture(Scale(3.0).apply)):
        assert made(2) == 6.0
        assert made.__self__ == Scale(3.0)


# --- methods of the stage -------------------------------------------------------------------------


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.ReLU()])

    def velocity(self, x: Any) -> Any:
        return self.blocks[1](x)


class Stage:
    def __init__(self) -> None:
        self.net = Net()
        self.experts = {"low": [Net(), Net()]}

    def scaled(self, x: Any) -> Any:
        return x

    @stagespan.ProfilingContext4Debug("by method")
    def process(self, x: Any, velocity: Callable[[Any], Any]) -> Any:
        return velocity(x)


METHODS: dict[str, Callable[[Stage], Any]] = {
    "of the stage": lambda stage: stage.scaled,
    "of its module": lambda stage: stage.net.velocity,
    "of a submodule": lambda stage: stage.net.blocks[0].forward,
    "of an item": lambda stage: stage.experts["low"][1].velocity,
    "of a partial": lambda stage: functools.partial(stage.net.velocity, x=torch.ones(2)),
}


@pytest.mark.parametrize("which", METHODS)
def test_methods_of_parts_of_the_stage_belong_to_the_replayed_stage(which: str) -> None:
    find = METHODS[which]
    captured, replayed = Stage(), Stage()

    node = capture_arguments({"f": find(captured)}, stage=captured)["f"]

    expected = find(replayed)
    for made in made_in(node, stage=replayed):
        if isinstance(made, functools.partial):
            made, expected = made.func, getattr(expected, "func", expected)
        assert made == expected
    for other in (None, types.SimpleNamespace(scaled=3)):
        with pytest.raises(
            HarnessError, match=r"^Input 'f(.func)?' cannot be created: .*(stage|method)"
        ):
            make_inputs(StageSignature("s", {"f": node}), stage=other)


def test_a_stage_is_replayed_with_its_own_methods(tmp_path: Path) -> None:
    stagespan.reset_timing_registry()
    stagespan.set_debug()
    try:
        captured = Stage()
        captured.process(torch.ones(2, 2), captured.net.velocity)
    finally:
        stagespan.set_debug(False)
    path = stagespan.dump_io_signatures(tmp_path / "timing_io_signature.json")

    stage = Stage()
    harness = stagespan.StageBenchHarness.from_signature_file(
        path, "by method", stage, HarnessConfig(output_dir=tmp_path, warmup=0, timing_steps=1)
    )
    harness.profile()

    assert harness.inputs["velocity"] == stage.net.velocity
    script: dict[str, Any] = {"__name__": "script", "__file__": str(tmp_path / "script.py")}
    exec(next(tmp_path.glob("profile_*.py")).read_text(), script)
    assert script["create_inputs"](stage=stage.process)["velocity"] == stage.net.velocity


# --- what is refused ------------------------------------------------------------------------------


def closure() -> Callable[[], int]:
    number = 3

    def inside() -> int:
        return number

    return inside


hidden = doubled  # the name of the function leads to the original


@functools.wraps(Scale.apply)
def wrapper(self: Any, x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda x: x, "a lambda"),
        (closure(), "defined inside another function"),
        (functools.partial(closure()), "defined inside another function"),
        (functools.partial(doubled, lambda: 1), "a lambda"),
        (replaced, "not found under its name"),
        (wrapper, "not found under its name"),
        (torch.nn.Linear(1, 1).forward, "of a torch.nn.modules.linear.Linear, which is not a part"),
        ([].append, "not found under its name"),
        (os.system, "whose functions are not replayed"),
        (os.unlink, "whose functions are not replayed"),
        (Path("/tmp").unlink, "does not have it under its name"),
        (eval, "whose functions are not replayed"),
        (subprocess.Popen, "type"),
    ],
)
def test_other_callables_are_refused_in_a_sentence(value: Any, why: str) -> None:
    node = capture(value)

    with pytest.raises(HarnessError, match=f"^Input 'f.*{why}.*which cannot be created") as caught:
        make_inputs(StageSignature("s", {"f": node}))
    assert "HarnessConfig(inputs={'f': ...})" in str(caught.value)


def function(name: str) -> dict[str, Any]:
    return {"$type": "function", "name": name}


@pytest.mark.parametrize(
    "node",
    [
        *map(function, ["os:system", "posix:system", "shutil:rmtree", "builtins:eval", "x:y", ""]),
        *map(
            function, ["builtins:exec", "pathlib:Path.unlink", "subprocess:Popen", "antigravity:x"]
        ),
        *map(function, [f"{__name__}:os.system", f"{__name__}:subprocess.run", "torch:os.system"]),
        {"$type": "class", "class": "subprocess:Popen"},
        {"$type": "class", "class": "ctypes:CDLL"},
        {"$type": "partial", "function": function("os:system"), "args": ["true"], "kwargs": {}},
        {"$type": "method", "self": {"$type": "path", "value": "/x"}, "name": "unlink"},
        {"$type": "method", "self": "text", "name": "__class__"},
        {"$type": "method", "part": [], "name": "scaled"},
        {"$type": "method", "part": ["__class__"], "name": "__init__"},
        {"$type": "method", "part": 3, "name": "scaled"},
        {"$type": "partial", "function": 3, "args": [], "kwargs": {}},
        {"$type": "partial", "function": function("math:sqrt"), "args": 3, "kwargs": {}},
    ],
    ids=str,
)
def test_a_file_cannot_name_functions_that_are_not_loaded_or_change_the_system(node: Any) -> None:
    loaded = set(sys.modules)

    with pytest.raises((HarnessError, stagespan.errors.SignatureError)):
        make_inputs(StageSignature("s", {"f": node}))

    assert "antigravity" not in set(sys.modules) - loaded


PROGRAM = """
import dataclasses, torch
from stagespan import ProfilingContext4Debug

@dataclasses.dataclass
class Settings:
    scale: float

def on_step_end(x):
    return x + 1

class Stage:
    @ProfilingContext4Debug("stage")
    def process(self, x, callback, settings):
        return callback(x) * settings.scale

def get_stage():
    return Stage()

if __name__ == "__main__":
    get_stage().process(torch.ones(3), on_step_end, Settings(2.0))
"""


def test_functions_of_the_program_itself_are_found_in_its_module(tmp_path: Path) -> None:
    # GIVEN a program that passes a function and an object of a class that it defines itself
    (tmp_path / "my_program.py").write_text(PROGRAM)
    environment = {**os.environ, "STAGESPAN_OUTPUT_DIR": "out", "PYTHONPATH": "."}
    environment["STAGESPAN_DEBUG"] = "true"

    for arguments in (
        ["my_program.py"],
        ["-m", "stagespan", "bench", "out/timing_io_signature.json", "--stage", "stage", "--output",
         "out", "--factory", "my_program:get_stage", "--timing-steps", "1", "--warmup", "0"],
        ["out/profile_stage.py", "--factory", "my_program:get_stage", "--no-profile",
         "--timing-steps", "1", "--warmup", "0"],
    ):  # fmt: skip
        ran([*preloaded.python(), *arguments], cwd=tmp_path, env=environment, status=0)
    assert "my_program:on_step_end" in (tmp_path / "out" / "profile_stage.py").read_text()
