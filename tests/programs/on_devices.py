"""Programs that use the stand-in for an accelerator: see tests/integration/device/conftest.py."""

from __future__ import annotations

import json
import logging
import os
import sys
import types
from typing import Any

import stagespan
from stagespan import _core


def show(*values: object) -> None:
    print(json.dumps(values), flush=True)


def device_in_use() -> Any:
    """Return the device after its application has initialised it."""
    from standin import Standin

    from stagespan.device import times as wiring

    device = Standin.of_environment()
    device.set_up()
    wiring.watch()
    return device


def starts_with_the_device() -> None:
    from standin import Standin

    device = Standin.of_environment()

    sys.modules["torch_npu"] = types.ModuleType("torch_npu")
    from stagespan.device import times as wiring

    wiring._torch_is_there()  # as at the end of torch_npu's import
    with stagespan.span("before"):
        pass
    show(wiring.is_attached(), device.is_initialized, device.counts()["records"])
    device.set_up()
    with stagespan.span("after"):
        device.kernel(1)
    stagespan.flush(20)
    stats: Any = stagespan.stats()
    show(
        wiring.is_attached(),
        stats["before"].device_elapsed_ns is None,
        stats["after"].device_elapsed_ns.count,
    )


def imports_torch_later() -> None:
    from stagespan.device import times as wiring

    show("torch" in sys.modules, sorted(wiring._asked))
    import torch

    show(torch.cuda.is_initialized(), {"cuda", "xpu"} <= wiring._asked)
    finders: list[Any] = list(sys.meta_path)
    of_torch = (f for f in finders if type(f).__name__ == "ImportFinder" and f._name == "torch")
    print(json.dumps(any(of_torch)))


def turned_off() -> None:
    from stagespan.device import times as wiring

    device = device_in_use()
    with stagespan.span("stage"):
        device.kernel(1)
    show(
        stagespan.flush(5),
        wiring.is_attached(),
        device.counts()["records"],
        stagespan.stats()["stage"].device_elapsed_ns,
    )


def without_events() -> None:
    logging.basicConfig(format="%(message)s")
    import torch
    from standin import Standin

    from stagespan.device import times as wiring

    device = Standin.of_environment()
    del torch.Event
    device.set_up()
    for _ in range(3):
        wiring.watch()
    with stagespan.span("stage"):
        device.kernel(1)
    show(wiring.is_attached(), stagespan.stats()["stage"].count)


def forks() -> None:
    from stagespan.device import times as wiring

    device = device_in_use()
    device.hold()
    with stagespan.span("parent"):
        device.kernel(5)
    child = os.fork()
    if child == 0:
        before = device.counts()["records"]
        with stagespan.span("child"):
            pass
        with stagespan.ProfilingContext("child"):
            pass
        stats = stagespan.stats()["child"]
        wiring.watch()
        show(
            stagespan.flush(5),
            stats.count,
            stats.device_elapsed_ns,
            device.counts()["records"] - before,
            _core.device_info()["attached"],
            "parent" in stagespan.stats(),
        )
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    device.hold(False)
    stagespan.flush(20)
    of_parent: Any = stagespan.stats()["parent"]
    print(json.dumps(of_parent.device_elapsed_ns.count))


def ends_after_work() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    device = device_in_use()
    with stagespan.ProfilingContext("last"):
        device.kernel(200)


def ends_on_a_hanging_device() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    device = device_in_use()
    device.hold()
    with stagespan.ProfilingContext("stuck"):
        device.kernel(1)
    stuck = stagespan.spans()[-1]
    print(int(stuck["end_ns"] - stuck["begin_ns"]))


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
