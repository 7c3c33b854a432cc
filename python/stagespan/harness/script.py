"""Writes the script that reproduces a replay without stagespan.

It holds, as text, the very modules that the harness itself runs, so both do the same; before them
come the parts that belong to the stage: its inputs, its step, and the function that profiles it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagespan.device_table import DEVICE_TYPES
from stagespan.errors import SignatureError
from stagespan.harness.adapters import ScriptStep
from stagespan.harness.bundle import bundle
from stagespan.harness.config import HarnessConfig
from stagespan.signature import source
from stagespan.signature.capture import capture
from stagespan.signature.kinds import KINDS
from stagespan.signature.kinds.base import source_of
from stagespan.signature.model import UNREPLAYABLE, StageSignature
from stagespan.signature.target import method_name

MOST_VARIANTS = 8
"""Signatures of a stage in its script; each has inputs of its own."""

_HEAD = '''"""Profiles one step of a stage on mock inputs: warm-up, times, trace and table.

Made by stagespan. Needs torch and the stage's own program, not stagespan. Either way:

    python {module}.py --factory my_pipeline:get_stage
    {load}; profile_stage(stage)
"""
'''

_CREATE = '''

def create_inputs(
    seed: int = SEED, device: str | None = None, variant: str = VARIANT
) -> dict[str, Any]:
    """The inputs by name, from a captured signature: same seed, same values."""
    mock = MockInputs(seed, device, CAPTURED_DEVICE, DTYPE)
{inputs}
'''

_STEP = '''

def make_step(
    stage: Any, inputs: dict[str, Any], step: int | str | None = STEP
) -> Callable[[], Any]:
    """What one iteration runs."""
    stage = with_method(stage, METHOD)
    {body}
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
    """Profile one step of a loaded stage; returns its times in milliseconds and the trace's path.

    `inputs` replaces mock inputs by name, `step_fn(stage, inputs)` what one iteration runs; `step`
    is the number of a loop's step from 1, or "first", "second", "middle", "last". `variant` is the
    key of a captured signature; with `compiled`, torch.compile is applied to the stage's modules.
    """
    if compiled:
        stage = with_compiled_modules(with_method(stage, METHOD))

    def step_of(made: dict[str, Any]) -> Callable[[], Any]:
        return FunctionStep(step_fn, stage, made) if step_fn else make_step(stage, made, step)

    def inputs_of() -> dict[str, Any]:
        return without_missing({{**create_inputs(seed, device, variant), **(inputs or {{}})}})

    replay = Replay(
        inputs_of, step_of, context=CONTEXT, seed=seed, device=device or CAPTURED_DEVICE
    )
    folder = Path(__file__).parent if output_dir is None else Path(output_dir)
    return profile_replay(
        replay,
        warmup=warmup,
        steps=steps,
        timing_steps=timing_steps,
        trace_path=folder / f"{{FILE_STEM}}_script_trace.json.gz",
        live=LIVE if variant == VARIANT else None,
    )
'''

_TAIL = """

if __name__ == "__main__":
    sys.exit(main(profile_stage, STAGE, VARIANTS))
"""

_NO_STEP = """raise ReplayError(
        "this stage's step is a function of the user's: pass step_fn= or --step module:function"
    )"""


def script_text(
    signature: StageSignature,
    step: ScriptStep | None,
    config: HarnessConfig,
    *,
    stem: str,
    module: str | None = None,
    live: Mapping[str, Any] | None = None,
) -> str:
    """The script. ``stem`` is the stage's name as a part of a file name.

    ``module`` is the name of the script's own file without its suffix, by default with ``stem``.

    Nothing of the signature becomes code: names and strings are literals, values are calls of known
    functions. Raises SignatureError for a signature that no inputs could be made from.
    """
    from stagespan.harness import fidelity, loading, missing, program, replay, steps
    from stagespan.signature import contents, fit, values
    from stagespan.signature.mock import captured_device

    made = config.inputs() if callable(config.inputs) else config.inputs
    given = {name: capture(value) for name, value in (made or {}).items()}
    variants = {signature.key or "0": signature}
    for other in signature.variants[: MOST_VARIANTS - 1]:
        variants.setdefault(other.key or str(len(variants)), other)
    extra = step.modules if step is not None else ()
    shared = (steps, missing, replay, fidelity, loading, program)
    modules = dict.fromkeys((contents, values, fit, *extra, *shared))
    constants = {
        "STAGE": signature.stage_name,
        "FILE_STEM": stem,
        "SEED": config.seed,
        "CAPTURED_DEVICE": captured_device(signature),
        "DEVICE": config.device,
        "DTYPE": config.dtype,
        "CONTEXT": signature.context,
        "DEVICE_TYPES": list(DEVICE_TYPES),
        "VARIANT": next(iter(variants)),
        "VARIANTS": list(variants),
        "STEP": config.step,
        "METHOD": method_name(signature.target),
        "LIVE": {k: v for k, v in (live or {}).items() if k in ("p50_ms", "count", "missing")},
        "OPTIONAL": list(config.optional),
    }
    if step is None or "OPTIONAL" not in step.expression:
        del constants["OPTIONAL"]
    body = _NO_STEP if step is None else f"return {step.expression}"
    own = (
        _CREATE.format(inputs=_variants_source(variants, given)),
        _STEP.format(body=body),
        _PROFILE.format(
            warmup=config.warmup, steps=config.profile_steps, timing_steps=config.timing_steps
        ),
    )
    functions = [function for kind in KINDS for function in kind.helpers]
    imports, helpers = bundle(modules, "".join((*own, _TAIL)), functions)
    module = module or f"profile_{stem}"
    load = f"from {module} import profile_stage"
    if not module.isidentifier():  # a name that `import` cannot say
        load = f'profile_stage = runpy.run_path("{module}.py")["profile_stage"]'
    return "".join(
        (
            _HEAD.format(module=module, load=load),
            f"\nfrom __future__ import annotations\n\n{imports}\n",
            *(f"\n{_constant(name, value)}" for name, value in constants.items()),
            "\n",
            *own,
            f"\n\n{helpers}\n",
            _TAIL,
        )
    )


def _variants_source(variants: Mapping[str, StageSignature], given: Mapping[str, Any]) -> str:
    """The body of `create_inputs`: the inputs of each variant, the first one's last."""
    lines = []
    for at, (key, signature) in enumerate(reversed(list(variants.items()))):
        nodes = {**signature.arguments, **given}
        inputs = [(f"{source.quoted(name)}: ", _input(node, name)) for name, node in nodes.items()]
        indent = 8 if at < len(variants) - 1 else 4
        if indent == 8:
            lines.append(f"    if variant == {source.quoted(key)}:")
        made = source.render(source.Group("{", inputs, "}"), indent, indent + 7)
        lines.append(f"{' ' * indent}return {made}")
    return "\n".join(lines)


def _input(node: Any, name: str) -> source.Source:
    if _has_unreplayable(node):  # the whole argument is the user's to give
        kind = node.get(UNREPLAYABLE, "value") if isinstance(node, dict) else "value"
        node = {UNREPLAYABLE: kind}
    try:
        return source_of(node, name)
    except (SignatureError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        # Not of a capture: the harness has refused it, or it is of a variant that was not made.
        return source_of({UNREPLAYABLE: "value that its entry does not describe"}, name)


def _has_unreplayable(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_has_unreplayable, node))
    if isinstance(node, dict):
        return UNREPLAYABLE in node or any(map(_has_unreplayable, node.values()))
    return False


def _constant(name: str, value: Any) -> str:
    prefix = f"{name}: dict[str, Any] = " if isinstance(value, dict) else f"{name} = "
    return prefix + source.render(source.literal(value), 0, len(prefix))
