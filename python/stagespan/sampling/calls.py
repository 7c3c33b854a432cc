"""Makes a tree of calls that say something to a user from the stacks of processes.

Of each stack, these frames stay: functions of the user's code, the first frame of each package that
is called from another one, modules of torch by their class, and imports. Everything else belongs to
the frame that stays above it.
"""

from __future__ import annotations

import linecache
import opcode
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from stagespan.process.sampler import CELL, MAIN
from stagespan.sampling.stacks import Code, Node, Process

OUTSIDE = "(outside of functions)"
_TORCH_CALLS = (
    "Module._call_impl",
    "Module._wrapped_call_impl",
    "_call_impl",
    "_wrapped_call_impl",
)
# It is called in place of a function that has to be compiled and has no frame of its own then.
_COMPILING = "torch._dynamo.convert_frame"
# Packages that only pass calls on.
_PASSING = frozenset(
    (
        *("_weakrefset", "abc", "anyio", "asyncio", "collections", "concurrent", "contextlib"),
        *("dataclasses", "enum", "functools", "importlib", "multiprocessing", "queue", "runpy"),
        *("selectors", "socketserver", "threading", "types", "typing", "weakref"),
    )
)
# Functions of decorators, which only call the function that they decorate.
_WRAPPERS = frozenset({"wrapper", "wrapped", "inner", "_wrapper", "decorate_context"})
# Modules, and the packages of modules, in which threads wait for work.
_WAITING = (
    *("asyncio.", "concurrent.futures.", "gevent.", "multiprocessing.", "queue.", "selectors."),
    *("socketserver.", "threading.", "trio.", "uvloop."),
)
# Packages that run the cells of a notebook and show their values.
_KERNEL = frozenset({"IPython", "ipykernel"})
_EVENT_LOOPS = ("asyncio.", "gevent.", "trio.", "uvloop.")
# After these operations, the interpreter looks whether another thread wants its lock.
_OF_PYTHON = ("JUMP", "POP_JUMP", "RESUME", "NOP", "CACHE", "YIELD", "RETURN", "LOAD_", "STORE_")


Kind = Literal["call", "import", "wait", "gc", "native"]
"""What takes time: `Call` has all of them but waiting and native code."""


TimeKind = Literal["Python", "native code", "waiting"]
"""What a thread does: compute in Python, or outside of it, or wait."""


@dataclass(eq=False)
class Call:
    """A function, a class of torch or an import, below its callers. Times include what it calls."""

    name: str
    kind: Kind = "call"
    place: str | None = None
    """MODULE:FUNCTION, if the function can be named so."""
    code: Code | None = None
    parent: Call | None = None
    children: dict[str, Call] = field(default_factory=dict)
    wall_ns: int = 0
    cpu_ns: int = 0
    waiting_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The time in which it waited itself, by line of the user's code; "" for other code."""
    python_ns: int = 0
    """The time in which it computed in Python itself, or was ready to."""
    native_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The same for computing outside of Python, or being ready to."""
    own_cpu_ns: int = 0

    @property
    def is_of_user(self) -> bool:
        """Whether it is a function of the user's code."""
        return self.code is not None and self.code.owner == "user"

    def child(
        self, name: str, kind: Kind, place: str | None = None, code: Code | None = None
    ) -> Call:
        """Return the call of this name below this one; this one or one above it if it recurs."""
        above: Call | None = self
        while above is not None:
            if above.name == name and (above.place or place) == (place or above.place):
                break
            above = above.parent
        call = above or self.children.get(name)
        if call is None:
            call = self.children[name] = Call(name, kind, place, code, self)
        call.place, call.code = call.place or place, call.code or code
        return call

    def own_ns(self) -> dict[TimeKind, int]:
        """Return what it did in the time that no call below it has."""
        return {
            "Python": self.python_ns,
            "native code": sum(self.native_ns.values()),
            "waiting": sum(self.waiting_ns.values()),
        }

    def by_time(self) -> list[Call]:
        """Return the calls below this one, imports first, then those with the most time."""
        return sorted(
            self.children.values(), key=lambda call: (call.name != IMPORTS, -call.wall_ns)
        )

    def everything(self) -> Iterator[Call]:
        """Yield this call and all below it, each before those below it."""
        left = [self]
        while left:
            call = left.pop()
            yield call
            left.extend(call.children.values())


IMPORTS = "imports"
COLLECTIONS = "garbage collection"
COMPILATION = "compilation"


@dataclass
class Role:
    """Processes of one kind."""

    name: str
    processes: int
    top: Call
    """A node above all calls, whose time is the sum of theirs."""
    idle_ns: dict[str, int]
    """The time in which threads waited for work, by what they waited in; not in the tree."""


def roles_of(processes: Iterable[Process]) -> list[Role]:
    """Return a tree of the calls of all processes of each role: the main process, then by time."""
    members: dict[str, list[Process]] = defaultdict(list)
    for process in processes:
        members[process.role].append(process)
    roles = []
    for name, alike in members.items():
        role = Role(name, len(alike), Call(""), defaultdict(int))
        for process in alike:
            _Stacks(process, role).add()
        for call in reversed(list(role.top.everything())):
            below = call.children.values()
            call.wall_ns = sum(call.own_ns().values()) + sum(child.wall_ns for child in below)
            call.cpu_ns = call.own_cpu_ns + sum(child.cpu_ns for child in below)
        roles.append(role)
    return sorted(roles, key=lambda role: (role.name not in (MAIN, CELL), -role.top.wall_ns))


@dataclass
class _Place:
    """Where the frames below a node belong to."""

    call: Call
    package: str = ""
    is_import: bool = False
    is_in_loop: bool = False
    is_other_thread: bool = False
    is_in_worker: bool = False
    """Whether the frames are below the start of a worker."""
    is_outside: bool = False
    """Whether the frames run a cell of a notebook, and do not belong to it."""


class _Stacks:
    """Adds the stacks of one process to the tree of its role."""

    def __init__(self, process: Process, role: Role) -> None:
        self._process = process
        self._role = role

    def add(self) -> None:
        """Add all of them."""
        top = self._role.top
        in_main_thread = _Place(top, is_outside=self._process.is_cell)
        places = [in_main_thread, replace(in_main_thread, is_other_thread=True)]
        for node in self._process.nodes[2:]:
            assert node is not None
            above = places[node.parent]
            if node.line >= 0:
                self._add_times(node, above)
                places.append(above)
            else:
                places.append(self._place(node, above))
        if self._process.collected_ns:
            collections = top.child(COLLECTIONS, "gc")
            collections.python_ns += self._process.collected_ns
            collections.own_cpu_ns += self._process.collected_ns

    def _place(self, node: Node, above: _Place) -> _Place:
        code, owner = node.code, node.code.owner
        is_script = code.is_top_level and code.module in _MAIN_MODULES
        if is_script or code.module == "stagespan.process.script":  # below it is what starts them
            return _Place(self._role.top, "user" if is_script else "")
        if self._is_start_of_worker(code, above):
            return _Place(self._role.top, is_in_worker=True)
        is_in_loop = above.is_in_loop or f"{code.module}.".startswith(_EVENT_LOOPS)
        if self._process.is_cell and (
            owner in _KERNEL or code.module == "stagespan.notebook"
        ):  # the code of cells calls it, too
            return _Place(
                self._role.top,
                is_in_loop=is_in_loop,
                is_other_thread=above.is_other_thread,
                is_outside=True,
            )
        same = replace(above, is_in_loop=is_in_loop)
        if above.is_outside and owner != "user":
            return same
        same.is_outside = False
        if code.file.startswith("<frozen importlib"):
            same.call = above.call if above.is_import else above.call.child(IMPORTS, "import")
            return same
        if above.is_import or owner in ("", "stagespan") or owner in _PASSING:
            return same
        if code.is_top_level:
            return self._import(code, owner, same)
        if code.module == _COMPILING:
            same.call, same.package = above.call.child(COMPILATION, "call"), owner
            return same
        name = _name(node)
        last = name.rpartition(".")[2]
        if owner != "user" and "<locals>" in name:
            return same
        if last.startswith("<") or last in _WRAPPERS or last in ("__getattr__", "__getattribute__"):
            return same
        if owner == "torch" and name in _TORCH_CALLS:
            if not node.class_name:
                return same
            same.call, same.package = above.call.child(node.class_name, "call"), owner
            return same
        is_class = last in ("forward", "__call__") and bool(node.class_name)
        label = node.class_name if is_class else name.replace(".<locals>", "")
        place = None if "<" in name else f"{_module(code.module)}:{name}"
        if owner == "user" or owner != above.package or (is_class and above.call.name == label):
            same.call = above.call.child(label, "call", place, code)
        same.package = owner
        return same

    def _is_start_of_worker(self, code: Code, above: _Place) -> bool:
        """Whether the frames above are what the parent was doing when it forked a worker."""
        if code.module == "multiprocessing.process":
            return code.name.endswith("_bootstrap")
        # It calls _bootstrap in the worker, after the functions of the program that follow a fork.
        return (
            self._process.is_worker
            and not above.is_in_worker
            and code.module == "multiprocessing.popen_fork"
            and code.name.endswith("_launch")
        )

    def _import(self, code: Code, owner: str, same: _Place) -> _Place:
        above = same.call.child(IMPORTS, "import")
        module = code.module if owner == "user" else ".".join(code.module.split(".")[:2])
        same.call, same.package = above.child(f"import {module}", "import"), owner
        # What is imported by packages says less than which package it was.
        same.is_import = owner != "user"
        return same

    def _add_times(self, node: Node, place: _Place) -> None:
        call, code = place.call, node.code
        waiting_ns, active_ns = node.waiting_ns, node.wall_ns - node.waiting_ns
        if place.is_outside and (place.is_other_thread or not place.is_in_loop):
            return
        runs_loop = waiting_ns > 0 and _runs_event_loop(code, node.line)
        if runs_loop or self._is_idle(code, place):
            is_in_loop = runs_loop or place.is_in_loop
            where = "event loop" if is_in_loop else "threads without work"
            self._role.idle_ns[where] += waiting_ns
            waiting_ns = 0
        if place.is_outside:
            return
        if call is self._role.top and (waiting_ns or active_ns):
            call = call.child(OUTSIDE, "call")
        line = self._line(code, node.line)
        call.waiting_ns[line] += waiting_ns
        call.own_cpu_ns += node.cpu_ns
        if opcode.opname[node.operation].startswith(_OF_PYTHON):
            call.python_ns += active_ns
        else:
            call.native_ns[line] += active_ns

    def _line(self, code: Code, line: int) -> str:
        if code.owner != "user":
            return ""
        if self._process.is_cell and code.module in _MAIN_MODULES:
            return f"line {line}"  # of a cell, whose file has a number as name
        return f"{os.path.basename(code.file)}:{line}"

    def _is_idle(self, code: Code, place: _Place) -> bool:
        """Whether a thread that waits there has no work."""
        if not f"{code.module}.".startswith(_WAITING):
            has_no_work = place.call is self._role.top or code.name.endswith("accept")
            return place.is_other_thread and has_no_work
        # What the main thread waits for is part of its time, unless that is the next event.
        return place.is_other_thread or not self._process.is_main or place.is_in_loop


_MAIN_MODULES = ("__main__", "__mp_main__")


def _runs_event_loop(code: Code, line: int) -> bool:
    """Whether a line calls an event loop, which has no frames if it is compiled, as uvloop's."""
    text = linecache.getline(code.file, line)
    return ".run_until_complete(" in text or ".run_forever(" in text


def _module(name: str) -> str:
    return "__main__" if name in _MAIN_MODULES else name


def _name(node: Node) -> str:
    if node.class_name and "." not in node.code.name and not node.code.name.startswith("<"):
        return f"{node.class_name}.{node.code.name}"  # Python 3.10
    return node.code.name
