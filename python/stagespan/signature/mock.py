"""Creates mock inputs of a stage from its signature. Imports torch."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from stagespan.errors import HarnessError, SignatureError
from stagespan.harness.standalone import loaded, values
from stagespan.pages.escaping import one_line
from stagespan.signature import dtypes
from stagespan.signature.model import (
    TYPE,
    UNREPLAYABLE,
    StageSignature,
    TensorSignature,
    Unreplayable,
    argument_of,
)
from stagespan.signature.resources import check_device, check_memory
from stagespan.signature.source import quoted
from stagespan.signature.value_kinds import Kind, kind_of, tensors_of
from stagespan.signature.value_kinds.tensors import SHARED, TENSOR


def make_inputs(
    signature: StageSignature,
    device: str | None = None,
    seed: int = 0,
    *,
    dtype: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    stage: Any = None,
) -> dict[str, Any]:
    """Return values for all arguments of a stage by name; ``*args`` is a list under ``"*args"``.

    ``device`` replaces the captured device, ``dtype`` the type of floating-point tensors.
    ``inputs`` replace captured inputs and are returned unchanged. ``stage`` is the object whose
    method is replayed, which methods among the inputs can belong to. The same seed gives the same
    values.

    Raises SignatureError if an entry is not valid, and HarnessError if an argument cannot be
    replayed, a device is missing, or there is too little memory. One error names all arguments that
    cannot be replayed, and its note is a function that returns them, to be completed.
    """
    replaced = dict(inputs or {})
    if dtype is not None:
        dtype = dtypes.canonical(dtype)
        if not dtypes.is_floating(dtype) or dtype not in dtypes.ELEMENT_BYTES:
            floating = filter(dtypes.is_floating, dtypes.ELEMENT_BYTES)
            raise HarnessError(
                f"dtype {dtype!r} is not a floating-point type; "
                f"{dtypes.unknown_dtype(dtype, floating)}."
            )
    nodes = {name: node for name, node in signature.arguments.items() if name not in replaced}
    refused: dict[str, HarnessError | SignatureError] = {}
    _check_memory(signature.stage_name, nodes, device, refused)
    mock = values.MockInputs(seed, device, captured_device(signature), dtype, stage)
    mock.made.update(replaced)  # a captured tensor can be one that is passed in
    builder = _Builder(mock, refused)
    made: dict[str, Any] = {}
    try:
        for name, node in nodes.items():
            with builder.refusals_of(name):
                made[name] = builder.node(node, name)
    except RecursionError:
        raise SignatureError(
            f"The inputs of stage {signature.stage_name!r} are nested too deeply to be replayed."
        ) from None
    except MemoryError as error:  # for values other than tensors, such as a long list
        raise no_memory(f"the inputs of stage {signature.stage_name!r}") from error
    # What is the same tensor as a refused one needs no refusal of its own.
    for name, node in reversed(nodes.items()):
        origin = argument_of(str(node.get("of"))) if kind_of(node) is SHARED else name
        if len(refused) > 1 and origin != name and origin in refused:
            refused.pop(name, None)
    if refused:
        raise _refusal({name: refused[name] for name in nodes if name in refused})
    return {**made, **replaced}


def _refusal(refused: Mapping[str, HarnessError | SignatureError]) -> HarnessError | SignatureError:
    """Return one error for all arguments that cannot be created, with a function to complete."""
    first, *others = refused.values()
    is_wrong = all(isinstance(error, SignatureError) for error in refused.values())
    if is_wrong and not others:
        return first
    reasons = {name: _reason(name, error) for name, error in refused.items()}
    lines = [f"        {quoted(name)}: ...,  # {one_line(why)}" for name, why in reasons.items()]
    note = (
        "To pass what is missing on the command line, complete this function in a module, and add "
        "--inputs MODULE:inputs:\n\ndef inputs():\n    return {\n" + "\n".join(lines) + "\n    }"
    )
    if not others:
        return first.with_note(note)
    passed = ", ".join(f"{name!r}: ..." for name in refused)
    listed = [f"{name!r} ({why})" for name, why in reasons.items()]
    return (SignatureError if is_wrong else HarnessError)(
        f"Inputs {', '.join(listed[:-1])} and {listed[-1]} cannot be created from their "
        f"signatures; pass them with HarnessConfig(inputs={{{passed}}})."
    ).with_note(note)


def _reason(name: str, error: HarnessError | SignatureError) -> str:
    """Return why an argument cannot be created, without its name and without the remedy."""
    if isinstance(error, Unreplayable):
        return error.what if error.path == name else f"{error.path} is {error.what}"
    reason = str(error).partition(", or pass it with")[0].rstrip(".")
    for begin in (f"Input {name!r} cannot be created: ", f"Input {name!r}: ", "Input "):
        reason = reason.removeprefix(begin)
    return reason


def captured_device(signature: StageSignature) -> str:
    """Return the device of the stage: the first accelerator among its inputs, otherwise ``cpu``."""
    for _, node in tensors_of(signature.arguments):
        device = node.get("device", "cpu")
        if isinstance(device, str) and not device.startswith("cpu") and TYPE not in node:
            return device
    return "cpu"


def _check_memory(
    stage: str,
    nodes: dict[str, Any],
    device: str | None,
    refused: dict[str, HarnessError | SignatureError],
) -> None:
    """Check devices and memory. Add tensors that cannot be created to ``refused``, by argument."""
    place = values.MockInputs(
        device=device, captured_device=captured_device(StageSignature(stage, nodes))
    )
    needed: dict[str, int] = {}
    storages: set[tuple[str, str]] = set()
    largest, most, working = "", -1, 0
    each = ((name, *found) for name, node in nodes.items() for found in tensors_of({name: node}))
    for name, path, node in each:
        try:
            tensor = TensorSignature.from_json(node, path)
        except (SignatureError, Unreplayable) as error:
            refused.setdefault(name, error)
            continue
        target = place.place(tensor.device)
        if target not in needed:
            check_device(target, f"Input {path!r} of stage {stage!r}")
        size = tensor.storage_bytes
        if tensor.storage is not None:
            storage, size, _ = tensor.storage
            size = 0 if (target, storage) in storages else size
            storages.add((target, storage))
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


class _NotLoaded(HarnessError):
    """A class or function that the program has not imported."""


def _not_loaded(path: str, error: LookupError) -> HarnessError:
    return _NotLoaded(
        f"Input {path!r} cannot be created: {error}, or pass it with "
        f"HarnessConfig(inputs={{{argument_of(path)!r}: ...}})."
    )


# What building from a wrong entry can raise.
_WRONG = (TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, OSError)


class _Builder:
    """Makes values, see `Maker`."""

    def __init__(
        self, mock: values.MockInputs, refused: dict[str, HarnessError | SignatureError]
    ) -> None:
        self.values = mock
        self.refused = refused
        functions = {**vars(builtins), **vars(loaded), **vars(values)}
        self._functions = SimpleNamespace(**{**functions, "mock": mock, "Path": Path})

    @contextlib.contextmanager
    def refusals_of(self, name: str) -> Iterator[None]:
        """Keep the error of an argument that cannot be created, to go on with the others."""
        try:
            yield
        except (SignatureError, Unreplayable, _NotLoaded) as error:
            self.refused.setdefault(name, error)

    def node(self, node: Any, path: str) -> Any:
        kind = kind_of(node)
        if kind is TENSOR:
            return self._tensor(kind, node, path)
        if not isinstance(node, dict) or TYPE not in node:
            return kind.make(node, path, self)
        try:
            if kind.name == "ndarray":
                return self._tensor(kind, node, path)
            return kind.make(node, path, self)
        except KeyError as error:
            raise SignatureError(
                f"Input {path!r}: its entry of type {node[TYPE]!r} has no {error}."
            ) from None
        except LookupError as error:
            raise _not_loaded(path, error) from None
        except SignatureError:
            raise
        except _WRONG as error:
            if isinstance(error, (HarnessError, RecursionError)):
                raise
            if values.is_out_of_memory(error):
                raise no_memory(f"input {path!r}") from error
            raise SignatureError(
                f"Input {path!r}: its entry of type {node[TYPE]!r} is wrong ({error})."
            ) from None

    def _tensor(self, kind: Kind, node: dict[str, Any], path: str) -> Any:
        tensor = TensorSignature.from_json(node, path)
        try:
            return kind.make(node, path, self)
        except LookupError as error:
            raise _not_loaded(path, error) from None
        except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
            described = f"input {path!r} with shape {list(tensor.shape)} and dtype {tensor.dtype}"
            if values.is_out_of_memory(error):
                raise no_memory(described) from error
            raise SignatureError(
                f"I{described[1:]} cannot be created: {str(error).partition(chr(10))[0]}"
            ) from None

    def items(self, nodes: list[Any], path: str) -> list[Any]:
        return [self.node(node, f"{path}[{at}]") for at, node in enumerate(nodes)]

    def fields(self, nodes: dict[str, Any], path: str) -> dict[str, Any]:
        return {name: self.node(node, f"{path}.{name}") for name, node in nodes.items()}

    def missing(self, node: dict[str, Any], path: str) -> NoReturn:
        reason = f" ({node['reason']})" if "reason" in node else ""
        raise Unreplayable(path, f"a {node[UNREPLAYABLE]}{reason}")

    def literal(self, value: Any) -> Any:
        return value

    def named(self, path: str, value: Any) -> Any:
        return value

    def list(self, made: Iterable[Any]) -> Any:
        return list(made)

    def tuple(self, made: Any) -> Any:
        return tuple(made)

    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        return attrgetter(function)(self._functions)(*arguments, **named)

    def method(self, made: Any, name: str) -> Any:
        return getattr(made, name)()

    def check_device(self, device: str, path: str) -> None:
        check_device(self.values.place(device), f"Input {path!r}")
