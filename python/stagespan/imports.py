"""Imports on first use, which forks wait for, and calls when a module has been imported."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stagespan import forks
from stagespan.errors import StagespanError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_LONGEST_FORK_WAIT_S = 1.0
"""How long a fork waits for an import of ours. It happens once per module and process."""
_LONGEST_WAIT_FOR_FORKS_S = 1.0


# --- imports on first use -------------------------------------------------------------------------

_importing: dict[object, int] = {}
"""The imports that are going on, each with its thread. Not a lock: importers wait for each other in
the interpreter's own locks of modules, which notice when two threads wait for each other."""
_loading: dict[object, int] = {}
"""The same of those that `load` has begun, which run no code of the application's."""


def loaded(name: str) -> Any:
    """The module of that name if it has been imported, and completely; else None."""
    module = sys.modules.get(name)
    is_partial = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_partial else module


def load(name: str) -> Any:
    """Import a module on its first use, and keep forks from interrupting that.

    Raises StagespanError where this thread is in the middle of such an import, which means that a
    signal handler or a finalizer has interrupted it: the import cannot go on before that returns.
    """
    module = loaded(name)
    if module is not None:
        return module
    if is_loading():
        raise StagespanError(
            f"{name} is not imported yet, and cannot be now: this signal handler or finalizer has"
            " interrupted an import of stagespan's. Call the function once when the program starts,"
            " or call it again later."
        )
    token = object()
    try:
        _loading[token] = threading.get_ident()
        with importing():
            return importlib.import_module(name)
    finally:
        _loading.pop(token, None)


def is_loading() -> bool:
    """Whether a signal handler or a finalizer has interrupted a `load` of this thread's."""
    return threading.get_ident() in _loading.copy().values()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Put this around an import inside a function: a fork in another thread waits for it."""
    token, until_s = object(), time.monotonic() + _LONGEST_WAIT_FOR_FORKS_S
    try:
        _importing[token] = threading.get_ident()
        # In this order: either this thread sees the fork, or the one that forks sees the import.
        while forks.is_forking_elsewhere() and time.monotonic() < until_s:
            del _importing[token]
            time.sleep(0.0005)
            _importing[token] = threading.get_ident()
        yield
    finally:
        _importing.pop(token, None)


def _before_fork() -> None:
    me, until_s = threading.get_ident(), time.monotonic() + _LONGEST_FORK_WAIT_S
    while any(thread != me for thread in _importing.copy().values()):
        if time.monotonic() >= until_s:
            break
        time.sleep(0.0005)


def _after_fork_in_child() -> None:
    me = threading.get_ident()
    was_interrupted = False
    for token, thread in _loading.copy().items():
        if thread != me:
            del _loading[token]
    for token, thread in _importing.copy().items():
        if thread != me:
            was_interrupted = True
            del _importing[token]
    if was_interrupted:
        _forget_interrupted()


def _forget_interrupted() -> None:
    """Have modules imported anew whose import the fork has cut off, instead of waited for."""
    bootstrap: Any = sys.modules.get("_frozen_importlib")
    me = threading.get_ident()
    for name, reference in dict(getattr(bootstrap, "_module_locks", {})).items():
        owner = getattr(reference(), "owner", None)
        if owner is not None and owner != me and loaded(name) is None:
            sys.modules.pop(name, None)
            bootstrap._module_locks.pop(name, None)


forks.around(_before_fork, lambda: None, _after_fork_in_child)


# --- being called when a module has been imported -------------------------------------------------


class ImportFinder:
    """Sees one module being imported, leaves that to the real finders, then calls back.

    ``failed`` is told what goes wrong here; the import itself goes on.
    """

    def __init__(
        self, name: str, callback: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self._name = name
        self._callback = callback
        self._failed = failed
        self._asking: set[int] = set()  # threads in which the real finders are being asked

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The real finders' answer; for the module that is waited for, with its loader watched."""
        thread = threading.get_ident()
        if fullname != self._name or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            spec = self._real_spec(fullname, path, target)
        finally:
            self._asking.discard(thread)
        if spec is not None:
            try:
                self._watch(spec.loader)
            except Exception as error:
                self._remove()
                self._failed(error)
        return spec

    def _real_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        """Shadow `exec_module` on the loader itself, for one call; all else stays its own."""
        real = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            real(module)
            self._remove()
            try:
                self._callback()
            except Exception as error:
                self._failed(error)

        loader.exec_module = exec_module

    def _remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
