"""Reads the files of samplers (`process/sampler.py`), one for each process."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path

from stagespan.process.sampler import CELL, MAIN, SUFFIX

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
_STANDARD = tuple(
    os.path.join(path, "") for path in {*_LIBRARIES, *map(os.path.realpath, _LIBRARIES)}
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclass(frozen=True)
class Code:
    """The code of a function or of a module's top level."""

    module: str
    name: str
    """The qualified name. Python 3.10 knows only the function's own name."""
    file: str
    line: int

    @cached_property
    def owner(self) -> str:
        """Whose code it is: "user", "stagespan", a package, or "" for generated code."""
        if self.file.startswith("<"):
            return "user" if self.module == "__main__" and "frozen" not in self.file else ""
        if self.file.startswith(_PACKAGE):
            return "stagespan"
        if any(part in self.file for part in _INSTALLED) or self.file.startswith(_STANDARD):
            return self.module.partition(".")[0]
        return "user"

    @property
    def is_top_level(self) -> bool:
        """Whether it is that of a module, which runs when the module is imported."""
        return self.name == "<module>" or self.name.startswith("<cell line:")  # of a notebook


@dataclass(frozen=True)
class Node:
    """A function below its callers, or a line of the function that is its parent."""

    parent: int
    code: Code
    class_name: str
    line: int
    operation: int
    wall_ns: int
    cpu_ns: int
    waiting_ns: int


@dataclass
class Process:
    """What the sampler of one process has seen."""

    role: str
    interval_ns: int
    samples: int
    wall_ns: int
    collected_ns: int
    """The time of garbage collections, in all threads."""
    nodes: list[Node | None] = field(default_factory=list)
    """The first two are None, and stand for the main thread and the others."""
    is_worker: bool = False
    """Whether multiprocessing has started it."""

    @property
    def is_main(self) -> bool:
        """Whether it is the process that the user started."""
        return self.role in (MAIN, CELL)

    @property
    def is_cell(self) -> bool:
        """Whether it is a process of a notebook, in which a cell has run."""
        return self.role == CELL


def read_processes(folder: Path) -> list[Process]:
    """Return what all samplers have written to a folder."""
    processes = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            processes.append(read_process(path.read_text(errors="replace")))
        except (OSError, ValueError, IndexError):  # it is being written, or the disk was full
            continue
    return processes


def read_process(text: str) -> Process:
    """Return what is in the file of a sampler."""
    first, *lines = text.split("\n")
    _, role, worker, *numbers = first.split("\t")
    interval, samples, wall, main_collected, others_collected = map(int, numbers)
    collected = main_collected + others_collected
    process = Process(worker or role, interval, samples, wall, collected, is_worker=bool(worker))
    codes: list[Code] = []
    classes: list[str] = []
    for line in lines:
        kind, *fields = line.split("\t")
        if kind == "code":
            module, name, file, at = fields
            codes.append(Code(module, name, file, int(at)))
        elif kind == "class":
            classes.append(fields[0])
        elif kind == "node":
            parent, code, class_, *place_and_times = map(int, fields)
            of_class = classes[class_] if class_ >= 0 else ""
            process.nodes.append(
                None if code < 0 else Node(parent, codes[code], of_class, *place_and_times)
            )
    return process


def since(before: Process, after: Process) -> Process:
    """Return what a sampler has seen between two readings. Nodes keep their numbers."""
    nodes: list[Node | None] = []
    for node, earlier in zip(after.nodes, chain(before.nodes, repeat(None)), strict=False):
        if node is None or earlier is None:
            nodes.append(node)
            continue
        nodes.append(
            replace(
                node,
                wall_ns=node.wall_ns - earlier.wall_ns,
                cpu_ns=node.cpu_ns - earlier.cpu_ns,
                waiting_ns=node.waiting_ns - earlier.waiting_ns,
            )
        )
    return replace(
        after,
        samples=after.samples - before.samples,
        wall_ns=after.wall_ns - before.wall_ns,
        collected_ns=after.collected_ns - before.collected_ns,
        nodes=nodes,
    )
