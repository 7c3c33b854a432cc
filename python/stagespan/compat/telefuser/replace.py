"""Replaces TeleFuser's profiling modules when the program imports them, without a change to it."""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from stagespan.process import command

MODULES = {
    f"telefuser.{name}": f"stagespan.compat.telefuser.{name.rpartition('.')[2]}"
    for name in (
        "utils.profiler",
        "utils.stage_bench_harness",
        "utils.memory_snapshot",
        "platforms",
    )
}
"""TeleFuser's modules, and those that replace them."""


def replacement(name: str) -> str | None:
    """Return the module that replaces one of TeleFuser's, or a part of it; None for others."""
    for theirs, ours in MODULES.items():
        if name == theirs or name.startswith(f"{theirs}."):
            return ours + name.removeprefix(theirs)
    return None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the replacements before the import system finds TeleFuser's own modules."""

    def __init__(self) -> None:
        self.has_replaced = False
        self.is_wanted = False
        """Whether the program has imported TeleFuser, or tried to."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the replacement, or None for other modules."""
        self.is_wanted = self.is_wanted or fullname == "telefuser"
        return None if replacement(fullname) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None, because `exec_module` replaces the module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the replacement into `sys.modules`, from where the import system returns it."""
        name = module.__name__
        ours = replacement(name)
        assert ours is not None
        sys.modules[name] = importlib.import_module(ours)
        has_replaced()
        command.tell("replaced")


_finder = _Finder()


def install() -> None:
    """Replace TeleFuser's modules in this process."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def has_replaced() -> None:
    """Note that the program has imported one of the modules, in this process or another one."""
    _finder.has_replaced = True


def not_used() -> list[str]:
    """Return a sentence if the program has imported none of the modules."""
    if _finder not in sys.meta_path or _finder.has_replaced:
        return []
    if _finder.is_wanted and "telefuser" not in sys.modules:
        why = (
            "TeleFuser cannot be imported here: install it, or import from "
            "stagespan.compat.telefuser instead of telefuser.utils"
        )
        return [f"--telefuser replaced nothing, because {why}"]
    return [
        f"--telefuser replaced nothing, because the program imported none of {', '.join(MODULES)}"
    ]
