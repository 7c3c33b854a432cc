"""Creates mock inputs of a stage from its signature. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagespan.errors import HarnessError, SignatureError
from stagespan.signature import dtypes, values
from stagespan.signature.kinds import kind_of, tensors_of
from stagespan.signature.kinds.base import Builder, top
from stagespan.signature.kinds.tensors import content_of
from stagespan.signature.model import TYPE, StageSignature, TensorSignature
from stagespan.signature.resources import check_device, check_memory


def make_inputs(
    signature: StageSignature,
    device: str | None = None,
    seed: int = 0,
    *,
    dtype: str | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return values for all arguments of a stage by name; ``*args`` is a list under ``"*args"``.

    ``device`` replaces the captured device, ``dtype`` the type of floating-point tensors.
    ``inputs`` replace captured inputs and are returned unchanged. The same seed gives the same
    values.

    Raises SignatureError if an entry is not valid, and HarnessError if an argument cannot be
    replayed, a device is missing, or there is too little memory.
    """
    replaced = dict(inputs or {})
    if dtype is not None:
        dtype = dtypes.canonical(dtype)
        if not dtypes.is_floating(dtype) or dtype not in dtypes.ELEMENT_BYTES:
            known = filter(dtypes.is_floating, dtypes.ELEMENT_BYTES)
            raise HarnessError(
                f"dtype {dtype!r} is not a floating-point type; "
                f"{dtypes.unknown_dtype(dtype, known)}."
            )
    nodes = {name: node for name, node in signature.arguments.items() if name not in replaced}
    _check_memory(signature.stage_name, nodes, device, dtype)
    builder = _Builder(values.MockInputs(seed, device, captured_device(signature), dtype))
    try:
        made = {name: builder.build(node, name) for name, node in nodes.items()}
    except RecursionError:
        raise SignatureError(
            f"The inputs of stage {signature.stage_name!r} are nested too deeply to be replayed."
        ) from None
    except MemoryError as error:  # for values other than tensors, such as a long list
        raise no_memory(f"the inputs of stage {signature.stage_name!r}") from error
    return {**made, **replaced}


def captured_device(signature: StageSignature) -> str:
    """Return the device of the stage: the first accelerator among its inputs, otherwise ``cpu``."""
    for _, node in tensors_of(signature.arguments):
        device = node.get("device", "cpu")
        if isinstance(device, str) and not device.startswith("cpu") and TYPE not in node:
            return device
    return "cpu"


def _check_memory(stage: str, nodes: dict[str, Any], device: str | None, dtype: str | None) -> None:
    place = values.MockInputs(
        device=device, captured_device=captured_device(StageSignature(stage, nodes))
    )
    needed: dict[str, int] = {}
    storages: set[tuple[str, str]] = set()
    largest, most, working = "", -1, 0
    for path, node in tensors_of(nodes):
        tensor = TensorSignature.from_json(node, f"input {path!r} of stage {stage!r}")
        target = place.place(tensor.device)
        if target not in needed:
            check_device(target, f"Input {path!r} of stage {stage!r}")
        size = tensor.storage_bytes
        if tensor.storage is not None:
            name, size, _ = tensor.storage
            size = 0 if (target, name) in storages else size
            storages.add((target, name))
        needed[target] = needed.get(target, 0) + size
        working = max(working, _working_bytes(tensor, target))
        if size > most:
            largest, most = f"{path!r} with shape {list(tensor.shape)}", size
    if working:
        needed["cpu"] = needed.get("cpu", 0) + working
    check_memory(needed, largest)


def _working_bytes(tensor: TensorSignature, target: str) -> int:
    """Return the bytes of host memory that are needed only while a tensor is created."""
    if tensor.content is not None:  # several times as int64
        return 3 * 8 * tensor.numel
    return 0 if target.startswith("cpu") else tensor.storage_bytes


def no_memory(what: str) -> HarnessError:
    """Return the error for inputs that did not fit although the memory seemed to be sufficient."""
    return HarnessError(
        f"There is not enough memory for {what}: make the shape smaller in the signature file, "
        f"choose a smaller signature with --variant, or make the inputs on another device with "
        f"HarnessConfig(device=...) (or --device)."
    )


class _Builder(Builder):
    module = values

    def __init__(self, mock: values.MockInputs) -> None:
        self.values = mock

    def build(self, node: Any, path: str) -> Any:
        kind = kind_of(node)
        if not isinstance(node, dict) or TYPE not in node:
            return kind.build(node, path, self)
        try:
            return kind.build(node, path, self)
        except KeyError as error:
            raise SignatureError(
                f"Input {path!r}: its entry of type {node[TYPE]!r} has no {error}."
            ) from None
        except LookupError as error:
            raise HarnessError(
                f"Input {path!r} cannot be created: {error}, or pass it with "
                f"HarnessConfig(inputs={{{top(path)!r}: ...}})."
            ) from None
        except SignatureError:
            raise
        except (TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            if isinstance(error, (HarnessError, RecursionError)):
                raise
            if values.is_out_of_memory(error):
                raise no_memory(f"input {path!r}") from error
            raise SignatureError(
                f"Input {path!r}: its entry of type {node[TYPE]!r} is wrong ({error})."
            ) from None

    def tensor(self, node: dict[str, Any], path: str) -> Any:
        tensor = TensorSignature.from_json(node, f"input {path!r}")
        content = content_of(tensor)
        try:
            if TYPE in node:
                return self.values.array(path, tensor.shape, tensor.dtype, **content)
            return self.values.tensor(path, tensor.shape, tensor.dtype, tensor.device, **content)
        except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
            shown = f"input {path!r} with shape {list(tensor.shape)} and dtype {tensor.dtype}"
            if values.is_out_of_memory(error):
                raise no_memory(shown) from error
            raise SignatureError(
                f"I{shown[1:]} cannot be created: {str(error).partition(chr(10))[0]}"
            ) from None

    def check_device(self, device: str, path: str) -> None:
        check_device(device, f"Input {path!r}")
