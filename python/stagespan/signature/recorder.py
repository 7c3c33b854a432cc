"""The hook that captures signatures of debug contexts: inputs before the run, output after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagespan import _core
from stagespan.contexts.context import Call, Hook
from stagespan.device.table import DEVICE_TYPES
from stagespan.harness.standalone.loaded import owner_of
from stagespan.process import imports
from stagespan.signature.bind import bind_arguments, receiver_of, undecorated
from stagespan.signature.capture import capture, capture_arguments
from stagespan.signature.cost import cpu_time_ns, was_profiled
from stagespan.signature.model import StageSignature
from stagespan.signature.store import SCALARS, STORE
from stagespan.signature.target import callable_of
from stagespan.signature.value_kinds.base import key_of


class SignatureHook(Hook):
    """Hook ``signature`` of every debug context. It keeps nodes of values, never the values."""

    name = "signature"

    def wants(self, call: Call) -> bool:
        """Whether this is a debug context, and torch.jit.trace does not record what is read."""
        torch = imports.loaded("torch")
        return call.kind == "debug" and not (torch is not None and torch.jit.is_tracing())

    def enter(self, call: Call) -> None:
        """Describe the arguments before the clock starts. A `with` block sets its values later."""
        if call.function is not None:
            arguments = bind_arguments(call.function, call.args, call.kwargs)
            call.state[self.name] = _begin(call.stage, arguments, call)

    def exit(self, call: Call) -> None:
        """Describe the result if this signature has none yet, and count the run's time."""
        begun = call.state.pop(self.name, None)
        if begun is None:
            begun = _begin(call.stage, call.inputs or {})
        key, first = begun
        if first:
            call.flags |= _core.FLAG_FIRST_OF_SHAPE
        if call.error is not None:
            return
        inside = _mode_inside(call.result)
        if inside:
            STORE.ran_inside(call.stage, key, inside)
        described = call.result is not _core.MISSING and STORE.needs_output(call.stage, key)
        output = capture(call.result, read_values=False) if described else None
        took_ns = None if was_profiled(call) else call.end_ns - call.begin_ns
        STORE.end(call.stage, key, took_ns, output, described, cpu_time_ns(call))


def _begin(stage: str, arguments: dict[str, Any], call: Call | None = None) -> tuple[str, bool]:
    """Store the signature of these arguments. Returns its key, and whether its shape is new."""
    stage_object = None if call is None else stage_of(call.function, call.args)
    nodes = capture_arguments(arguments, read_values=False, stage=stage_object)
    form = key_of(nodes)
    key = STORE.key_for(stage, form, key_of(nodes, sizes=False))
    target: dict[str, str] = {}
    # Only for new signatures, because reading values may wait for a device.
    if not STORE.knows(stage, key):
        nodes = capture_arguments(arguments, stage=stage_object)
        if call is not None:
            function = undecorated(call.function)
            target = callable_of(function, receiver_of(call.function, call.args))
    signature = StageSignature(
        stage_name=stage,
        inputs=nodes,
        metadata={name: node for name, node in nodes.items() if type(node) in SCALARS},
        context=torch_settings(),
        key=key,
        target=target,
    )
    return key, STORE.begin(signature, form)


def stage_of(function: Callable[..., Any] | None, args: tuple[Any, ...]) -> Any:
    """Return the object whose method was called, or the callable object; None for a block."""
    if function is None:
        return None
    receiver = receiver_of(function, args)
    return owner_of(undecorated(function)) if receiver is None else receiver


def _mode_inside(result: Any) -> dict[str, bool]:
    """Return the mode in which a result was made, which a decorator may have set."""
    torch = imports.loaded("torch")
    tensor = getattr(torch, "Tensor", None)
    for value in (result, *(result[:1] if type(result) in (list, tuple) else ())):
        if tensor is not None and isinstance(value, tensor) and value.is_inference():
            return {"inference": True, "grad": False}
    return {}


def signature_key(call: Call) -> str:
    """Return a short hash of a call's inputs: shapes, dtypes, kinds of device, structure."""
    arguments = (
        bind_arguments(call.function, call.args, call.kwargs)
        if call.function is not None
        else call.inputs or {}
    )
    return key_of(
        capture_arguments(arguments, read_values=False, stage=stage_of(call.function, call.args))
    )


def torch_settings() -> dict[str, Any]:
    """Return torch's settings on this thread, which a replay restores; empty without torch."""
    torch = imports.loaded("torch")
    if torch is None or not hasattr(torch, "is_grad_enabled"):
        return {}
    context: dict[str, Any] = {
        "grad": bool(torch.is_grad_enabled()),
        "inference": bool(torch.is_inference_mode_enabled()),
    }
    autocast: dict[str, str] = {}
    for device in ("cpu", *DEVICE_TYPES) if has_autocast(torch) else ():
        try:
            if torch.is_autocast_enabled(device):
                dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
                autocast[device] = dtype
        except (RuntimeError, TypeError, AttributeError):  # this torch does not know the device
            continue
    if autocast:
        context["autocast"] = autocast
    context.update(_settings(torch))
    return context


def has_autocast(torch: Any) -> bool:
    """Whether autocast may be on for a kind of device on this thread."""
    ask = getattr(getattr(torch, "_C", None), "_is_any_autocast_enabled", None)
    return ask is None or bool(ask())


def _settings(torch: Any) -> dict[str, Any]:
    """Return the settings of torch that decide which kernels run."""
    settings: dict[str, Any] = {}
    try:
        backends = torch.backends.cuda
        settings["sdpa"] = [
            name
            for name in ("flash", "mem_efficient", "math", "cudnn")
            if getattr(backends, f"{name}_sdp_enabled", bool)()
        ]
        settings["matmul_precision"] = str(torch.get_float32_matmul_precision())
        settings["deterministic"] = bool(torch.are_deterministic_algorithms_enabled())
        settings["threads"] = int(torch.get_num_threads())
    except (AttributeError, RuntimeError, TypeError):
        pass
    return settings
