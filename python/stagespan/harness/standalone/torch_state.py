"""Sets torch as it was in the live runs, seeds random numbers, and waits for devices."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from stagespan.harness.standalone.machine import DEVICE_TYPES, used_devices


def synchronize(device: str) -> None:
    """Wait for ``device`` and for the current device of each kind; creates no device context."""
    for wait in waits_for(device):
        wait()


def waits_for(device: str) -> list[Callable[[], Any]]:
    """Return functions that wait for ``device`` and the current devices that are in use."""
    waits: list[Callable[[], Any]] = []
    for kind in used_devices():
        module = getattr(torch, kind)
        waits.append(module.synchronize)
        if device.startswith(f"{kind}:"):
            waits.append(functools.partial(module.synchronize, device))
    return waits


def seed_all(seed: int, *, again: bool = False) -> None:
    """Seed the generators of torch, Python and numpy.

    Devices that are not in use are seeded when they are. torch stores each such request with the
    stack of its caller, so do not repeat it: pass ``again`` after the first call.
    """
    (torch.default_generator if again else torch).manual_seed(seed)
    for kind in used_devices():
        getattr(torch, kind).manual_seed_all(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the program's own random state at the end of the block."""
    numpy = sys.modules.get("numpy")
    before = random.getstate()
    numpy_before = numpy.random.get_state() if numpy is not None else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))  # always includes the CPU
        for kind in used_devices():
            devices = range(getattr(torch, kind).device_count())
            stack.enter_context(torch.random.fork_rng(devices=devices, device_type=kind))
        try:
            yield
        finally:
            random.setstate(before)
            if numpy is not None and numpy_before is not None:
                numpy.random.set_state(numpy_before)


@contextlib.contextmanager
def threads_set(wanted: int | str | None, captured: Any) -> Iterator[str | None]:
    """Set the number of torch's threads in the block, see `HarnessConfig.threads`.

    ``captured`` is the number in the live runs; anything but an int if it is not known. Yields a
    sentence if the number was changed, or could not be that of the live runs; otherwise None.
    """
    before, number = torch.get_num_threads(), wanted
    if wanted == "captured" and not os.environ.get("OMP_NUM_THREADS"):
        number = captured
    if type(number) is not int or number == before or number < 1:
        yield None
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not isinstance(wanted, int) and number > (cores or 1):
        yield (
            f"torch uses {_threads(before)}: it used {number} in the live runs, which is more than "
            f"the {cores} cores available here."
        )
        return
    torch.set_num_threads(number)
    try:
        as_live = ", as in the live runs" if number == captured else ""
        yield (
            f"torch uses {_threads(number)}{as_live}. The default here is {before} (--threads "
            f"machine)."
        )
    finally:
        torch.set_num_threads(before)


def _threads(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


@contextlib.contextmanager
def run_context(context: Mapping[str, Any]) -> Iterator[None]:
    """Set torch as it was at the capture; gradients are off if that is not known."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(bool(context.get("grad", False))))
        if context.get("inference"):
            stack.enter_context(torch.inference_mode())
        autocast = context.get("autocast")
        for device, name in (autocast if isinstance(autocast, dict) else {}).items():
            dtype = getattr(torch, str(name), None)
            if isinstance(dtype, torch.dtype) and device in ("cpu", *DEVICE_TYPES):
                stack.enter_context(torch.autocast(device_type=device, dtype=dtype))
        for is_set, set_to, captured in kernel_settings(context):
            before = is_set()
            if before != captured:
                stack.callback(set_to, before)
                set_to(captured)
        yield


def kernel_settings(context: Mapping[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (getter, setter, captured value) of each captured setting that selects kernels."""
    sdpa: Any = context.get("sdpa")
    for name in ("flash", "mem_efficient", "math", "cudnn") if isinstance(sdpa, list) else ():
        enabled = getattr(torch.backends.cuda, f"{name}_sdp_enabled", None)
        enable = getattr(torch.backends.cuda, f"enable_{name}_sdp", None)
        if enabled is not None and enable is not None:
            yield enabled, enable, name in sdpa
    precision = context.get("matmul_precision")
    if precision in ("highest", "high", "medium"):
        yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision
    if isinstance(context.get("deterministic"), bool):
        is_on = torch.are_deterministic_algorithms_enabled
        # The capture shows that no operator raised an exception, so a warning is enough here.
        only_warns = not is_on() or torch.is_deterministic_algorithms_warn_only_enabled()

        def set_deterministic(on: bool) -> None:
            torch.use_deterministic_algorithms(on, warn_only=on and only_warns)

        yield is_on, set_deterministic, context["deterministic"]
