"""Writes the script that reproduces a replay without stagespan.

The script contains what belongs to the stage, for people to read and to change: its inputs, its
step, and the function that profiles it. The rest is in the module beside it, see `replay_module`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagespan.device.environment import machine
from stagespan.errors import StagespanError
from stagespan.harness.adapters import ScriptStep
from stagespan.harness.bundle import ReplayModule, import_of, names_used, replay_module
from stagespan.harness.config import HarnessConfig
from stagespan.signature import source
from stagespan.signature.capture import capture
from stagespan.signature.hiding import without_secrets
from stagespan.signature.model import UNREPLAYABLE, StageSignature
from stagespan.signature.target import class_of, method_name
from stagespan.signature.value_kinds import losses
from stagespan.signature.value_kinds.base import source_of

MOST_VARIANTS = 8
"""The most signatures of a stage in its script. Each has its own inputs."""

_HEAD = '''"""Profiles one step of a stage on mock inputs: warm-up, times, trace and table.

Written by stagespan, to be read and changed. It needs torch, the stage's own program, and
{replay}.py in the same folder, but not stagespan. Usage:

    python {module}.py --factory my_pipeline:get_stage
    {load}; profile_stage(stage)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent))
try:
{from_replay}
except ModuleNotFoundError as error:
    if error.name != "{replay}":
        raise
    sentence = (
        f"{{error.name}}.py is missing in {{Path(__file__).parent}}: copy it from the folder in "
        "which stagespan wrote this script, or run stagespan bench again."
    )
    if __name__ == "__main__":
        sys.stderr.write(f"{{sentence}}\\n")
        sys.exit(2)
    raise ModuleNotFoundError(sentence, name=error.name) from None
finally:
    sys.path.pop()
'''

_CREATE = '''

def create_inputs(
    seed: int = SEED, device: str | None = None, variant: str = VARIANT, stage: Any = None
) -> dict[str, Any]:
    """Return the inputs by name. The same seed gives the same values.

    Methods of the stage, or of its parts, can only be inputs if `stage` is given.
    """
{inputs}
'''

_MOCK = "    mock = MockInputs(seed, device, CAPTURED_DEVICE, DTYPE, owner_of(stage))\n"

_STEP = '''

{loop}def make_step(
    stage: Any, inputs: dict[str, Any], step: int | str | None = STEP
) -> Callable[[], Any]:
    """Return a callable that runs one iteration{what}.

    To run something else, return it, such as `lambda: stage.process(**inputs)`.
    """
{method}    {body}
'''

_PROFILE = '''

def profile_stage(
    stage: Any,
    warmup: int | None = {warmup},
    steps: int = {steps},
    timing_steps: int | None = {timing_steps},
    device: str | None = DEVICE,
    output_dir: str | Path | None = None,
    seed: int = SEED,
    inputs: dict[str, Any] | None = None,
    step_fn: Callable[[Any, dict[str, Any]], Any] | None = None,
    step: int | str | None = STEP,
    variant: str = VARIANT,
    compiled: bool = False,
) -> dict[str, Any]:
    """Profile one step of a loaded stage. Returns its times in ms and the path of the trace.

    `warmup`, `steps` and `timing_steps` are the iterations before the measurement, under the
    profiler, and in the measurement; None means until the times are stable. `inputs` replaces mock
    inputs by name. `step_fn(stage, inputs)` runs one iteration instead of the generated step.
    `step` is the number of a loop's step from 1, or "first", "second", "middle" or "last".
    `variant` is the key of a captured signature. If `compiled` is true, torch.compile is applied to
    the stage's modules.
    """
    if compiled:
        stage = with_compiled_modules({stage})

    def new_inputs() -> dict[str, Any]:
        made = {{**create_inputs(seed, device, variant, stage), **(inputs or {{}})}}
        return {made}

    def new_step(made: dict[str, Any]) -> Callable[[], Any]:
        return FunctionStep(step_fn, stage, made) if step_fn else make_step(stage, made, step)

    say_differences(MADE_IN, LOSSES)
    # Each iteration starts with the same inputs, random numbers and state of the stage.
    replay = Replay(
        new_inputs, new_step, context=CONTEXT, seed=seed, device=device or CAPTURED_DEVICE
    )
    trace_path = None
    with random_state_kept():
        say("Warming up..." if warmup is None else f"Running {{warmup}} warmup iteration(s)...")
        first = replay.warm_up(warmup)
        runs = replay.measure(timing_steps)
        if steps:
            say(f"Running {{steps}} profile iteration(s)...")
            folder = Path(__file__).parent if output_dir is None else Path(output_dir)
            folder.mkdir(parents=True, exist_ok=True)

            def new_profiler() -> torch.profiler.profile:
                return torch.profiler.profile(
                    activities=torch.profiler.supported_activities(), record_shapes=True
                )

            # It runs again if other work on the machine disturbed it.
            profiler = run_under(new_profiler, replay, steps, runs)
            trace_path = folder / f"{{FILE_STEM}}_script_trace.json.gz"
            profiler.export_chrome_trace(str(trace_path))
    live = LIVE if variant == VARIANT else None
    return report(replay, first, runs, trace_path, live=live)
'''

_TAIL = """

if __name__ == "__main__":
    sys.exit(main(profile_stage, STAGE, VARIANTS, CONTEXT.get("threads")))
"""

_TAIL_OF_CLASS = """

def find_stage(target: str) -> Any:
    \"\"\"Return the stage that a factory returns, or of which it returns the owner.\"\"\"
    return load_stage_of(CLASS, target)


if __name__ == "__main__":
    sys.exit(main(profile_stage, STAGE, VARIANTS, CONTEXT.get("threads"), find_stage))
"""

_NO_STEP = """raise ReplayError(
        "the step of this stage is a function of the user: pass step_fn= or --step MODULE:CALLABLE"
    )"""


def script_and_module(
    signature: StageSignature,
    step: ScriptStep | None,
    config: HarnessConfig,
    *,
    stem: str,
    module: str | None = None,
    live: Mapping[str, Any] | None = None,
) -> tuple[str, ReplayModule]:
    """Return the source of the script, and the module that it imports.

    ``stem`` is the stage's name as a part of file names. ``module`` is the name of the script's
    file without its suffix; the default contains ``stem``. Text of the signature never becomes
    code: names and strings become literals, and values become calls of known functions. Raises
    SignatureError if no inputs can be created from the signature.
    """
    from stagespan.signature.mock import captured_device

    made = config.inputs() if callable(config.inputs) else config.inputs
    overrides = {name: capture(value, name=name) for name, value in (made or {}).items()}
    variants = {signature.key or "0": signature}
    for other in signature.variants[: MOST_VARIANTS - 1]:
        variants.setdefault(other.key or str(len(variants)), other)
    constants = {
        "STAGE": signature.stage_name,
        "FILE_STEM": stem,
        "SEED": config.seed,
        "CAPTURED_DEVICE": captured_device(signature),
        "DEVICE": config.device,
        "DTYPE": config.dtype,
        "CONTEXT": signature.context,
        "VARIANT": next(iter(variants)),
        "VARIANTS": list(variants),
        "STEP": config.step,
        "LOSSES": list(losses(nodes_of(signature, overrides))),
        "METHOD": method_name(signature.target),
        "CLASS": class_of(signature.target),
        "LIVE": _live(live or {}),
        "MADE_IN": machine(),
        "OPTIONAL": list(config.optional),
    }
    if step is None or "OPTIONAL" not in step.expression:
        del constants["OPTIONAL"]
    body = _NO_STEP if step is None else f"return {step.expression}"
    stage = "stage" if constants["METHOD"] is None else "with_method(stage, METHOD)"
    what = "" if step is None or not step.what else f": {step.what}"
    inputs = _variants_source(variants, overrides)
    if "mock." in inputs:
        inputs = _MOCK + inputs
    body = "".join(
        (
            *(f"\n{_constant(name, value)}" for name, value in constants.items()),
            "\n",
            _CREATE.format(inputs=inputs),
            _STEP.format(
                loop="" if step is None else step.loop,
                what=what,
                method=f"    stage = {stage}\n" if stage != "stage" else "",
                body=body,
            ),
            _PROFILE.format(
                warmup=config.warmup,
                steps=config.profile_steps,
                timing_steps=config.timing_steps,
                stage=stage,
                made="without_missing(made, bound_by(stage))" if "Missing(" in inputs else "made",
            ),
            _TAIL if constants["CLASS"] is None else _TAIL_OF_CLASS,
        )
    )
    module = module or f"profile_{stem}"
    load = f"from {module} import profile_stage"
    if not module.isidentifier():  # the name is not an identifier, so `import` cannot be used
        load = f'profile_stage = runpy.run_path("{module}.py")["profile_stage"]'

    def head(name: str, from_replay: str) -> str:
        return _HEAD.format(module=module, load=load, replay=name, from_replay=from_replay)

    beside = replay_module(head("", "    pass") + body, () if step is None else step.modules)
    names = names_used(body) & beside.defined
    return head(beside.name, import_of(beside.name, names, indent=" " * 4)) + body, beside


_LIVE = ("p50_ms", "cpu_p50_ms", "count", "missing")


def _live(live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of the live runs with which a script compares its own."""
    return {key: value for key, value in live.items() if key in _LIVE}


def _variants_source(variants: Mapping[str, StageSignature], overrides: Mapping[str, Any]) -> str:
    """Return the body of `create_inputs`: the inputs of each variant, with the first one last."""
    lines = []
    for at, (key, signature) in enumerate(reversed(list(variants.items()))):
        nodes = nodes_of(signature, overrides)
        inputs = [(f"{source.quoted(name)}: ", _input(node, name)) for name, node in nodes.items()]
        indent = 8 if at < len(variants) - 1 else 4
        if indent == 8:
            lines.append(f"    if variant == {source.quoted(key)}:")
        made = source.render(source.Brackets("{", inputs, "}"), indent, indent + 7)
        lines.append(f"{' ' * indent}return {made}")
    return "\n".join(lines)


def nodes_of(signature: StageSignature, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nodes of all arguments, with those that the user passes in."""
    return {**signature.arguments, **overrides}


def _input(node: Any, name: str) -> source.Source:
    node = without_secrets(name, node)
    if has_unreplayable(node):  # the user must pass the whole argument
        kind = node.get(UNREPLAYABLE, "value") if isinstance(node, dict) else "value"
        node = {UNREPLAYABLE: kind}
    try:
        return source_of(node, name)
    except (StagespanError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        # No capture writes this, and the harness refuses it for the replayed variant.
        return source_of({UNREPLAYABLE: "value that its entry does not describe"}, name)


def has_unreplayable(node: Any) -> bool:
    """Whether a value of a signature, or one within it, cannot be created again."""
    if isinstance(node, list):
        return any(map(has_unreplayable, node))
    if isinstance(node, dict):
        return UNREPLAYABLE in node or any(map(has_unreplayable, node.values()))
    return False


_COMMENTS = {
    "FILE_STEM": "The beginning of the names of files.",
    "CAPTURED_DEVICE": "The device of the stage in the live runs.",
    "DEVICE": "Instead of the captured device and of the captured floating-point type, if set.",
    "CONTEXT": "The settings of torch in the live runs.",
    "VARIANT": "The signature that is replayed by default, and all that create_inputs() makes.",
    "STEP": "The step of the stage's loop; None for the second one, or if there is no loop.",
    "LOSSES": "What the inputs do not have of the captured ones.",
    "METHOD": "The captured method of the stage; None if it was a function.",
    "CLASS": "The class of the captured stage; None if it was a function.",
    "LIVE": "The times of the live runs.",
    "MADE_IN": "The environment in which this script was made.",
    "OPTIONAL": "Inputs that are left out if the stage has no such parameter.",
}
"""Comments above the constants of a script."""


def _constant(name: str, value: Any) -> str:
    comment = f"# {_COMMENTS[name]}\n" if name in _COMMENTS else ""
    prefix = f"{name}: dict[str, Any] = " if isinstance(value, dict) else f"{name} = "
    return comment + prefix + source.render(source.literal(value), 0, len(prefix))
