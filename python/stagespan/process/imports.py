"""Imports on first use, which forks wait for, and callbacks after the import of a module."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from stagespan.errors import StagespanError
from stagespan.process import forks

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_LONGEST_FORK_WAIT_S = 1.0
"""How long a fork waits for an import of this package, once per module and process."""
_LONGEST_WAIT_FOR_FORKS_S = 1.0


# --- imports on first use -------------------------------------------------------------------------

_importing: dict[object, int] = {}
"""The imports in progress, each with its thread. This is not a lock: threads that import the same
module wait in the interpreter's own import locks, which detect deadlocks."""
_loading: dict[object, int] = {}
"""The imports that `load` has begun, which do not run code of the application."""


def loaded(name: str) -> Any:
    """Return the module of that name if its import is complete, otherwise None."""
    module = sys.modules.get(name)
    is_partial = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_partial else module


def load(name: str) -> Any:
    """Import a module on first use, and prevent forks from interrupting the import.

    Raises StagespanError if this thread is already in such an import. A signal handler or a
    finalizer has interrupted it then, and the import cannot continue before the handler returns.
    """
    module = loaded(name)
    if module is not None:
        return module
    if is_loading():
        raise StagespanError(
            f"{name} cannot be imported now, because this signal handler or finalizer has"
            " interrupted an import of stagespan. Call the function once when the program starts,"
            " or call it again later."
        )
    token = object()
    try:
        _loading[token] = threading.get_ident()
        with importing():
            return importlib.import_module(name)
    finally:
        _loading.pop(token, None)


class _Noted(NamedTuple):
    """A name that a module has, in the place of its value."""

    module: str
    name: str


class OnFirstUse:
    """The names of a package that are imported when they are first used.

    Inside its `with` block, `from module import name` notes the module and imports nothing. Type
    checkers, editors and packers see ordinary imports. Afterwards the object is the `__getattr__`
    of the package:

        with OnFirstUse(globals()) as _lazy:
            from stagespan.harness.bench import StageBenchHarness as StageBenchHarness
        if not TYPE_CHECKING:
            __getattr__ = _lazy
    """

    _replacing = threading.RLock()
    """Held while `builtins.__import__` is replaced, so that each thread restores the real one. A
    signal handler can import another package meanwhile, in the thread that holds it."""

    def __init__(self, package: dict[str, Any]) -> None:
        self._package = package
        self._noted: dict[str, _Noted] = {}

    def __enter__(self) -> OnFirstUse:
        self._replacing.acquire()
        self._import = builtins.__import__
        builtins.__import__ = self._note
        return self

    def __exit__(self, *error: object) -> None:
        builtins.__import__ = self._import
        self._replacing.release()
        self._noted = {
            name: value for name, value in [*self._package.items()] if isinstance(value, _Noted)
        }
        for name in self._noted:
            del self._package[name]

    def _note(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if globals is not self._package:  # an import of another thread, for example
            return self._import(name, globals, locals, fromlist or (), level)
        return SimpleNamespace(**{each: _Noted(name, each) for each in fromlist or ()})

    def __iter__(self) -> Iterator[str]:
        return iter(self._noted)

    def __call__(self, name: str) -> object:
        """Import a name, and keep it in the package. Raises AttributeError for an unknown one."""
        if name not in self._noted:
            package = self._package["__name__"]
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        noted = self._noted[name]
        value = self._package[name] = getattr(load(noted.module), noted.name)
        return value


def is_loading() -> bool:
    """Whether a signal handler or a finalizer has interrupted a `load` in this thread."""
    return threading.get_ident() in _loading.copy().values()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Wrap an import inside a function, so that a fork in another thread waits for it."""
    token, until_s = object(), time.monotonic() + _LONGEST_WAIT_FOR_FORKS_S
    try:
        _importing[token] = threading.get_ident()
        # In this order, either this thread sees the fork, or the forking thread sees the import.
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
    was_interrupted = any(thread != me for thread in _importing.values())
    for imports in (_loading, _importing):
        for token, thread in imports.copy().items():
            if thread != me:
                del imports[token]
    if not was_interrupted:
        return
    # The modules whose import the fork interrupted are imported again.
    bootstrap: Any = sys.modules.get("_frozen_importlib")
    for name, reference in dict(getattr(bootstrap, "_module_locks", {})).items():
        owner = getattr(reference(), "owner", None)
        if owner is not None and owner != me and loaded(name) is None:
            sys.modules.pop(name, None)
            bootstrap._module_locks.pop(name, None)


forks.around(_before_fork, lambda: None, _after_fork_in_child)


# --- callbacks after the import of a module -------------------------------------------------------


class ImportFinder:
    """Waits for the import of one module, which the real finders do, and then calls back.

    An exception here is passed to ``failed`` and does not affect the import. If ``once`` is False,
    it also waits for the next import, for example by `importlib.reload`. Modules of Python's own
    that are built in or frozen are not waited for.
    """

    def __init__(
        self,
        name: str,
        callback: Callable[[], None],
        failed: Callable[[Exception], None],
        *,
        once: bool = True,
    ) -> None:
        self._name = name
        self._callback = callback
        self._failed = failed
        self._once = once
        self._asking: set[int] = set()  # threads that are calling the real finders

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of the real finders, with a watched loader."""
        thread = threading.get_ident()
        if fullname != self._name or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            others = [finder for finder in sys.meta_path if finder is not self]
            finds = (getattr(finder, "find_spec", None) for finder in others)
            specs = (find(fullname, path, target) for find in finds if find is not None)
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._asking.discard(thread)
        if spec is not None and not isinstance(spec.loader, type):
            try:
                self._watch(spec.loader)
            except Exception as error:
                self._remove()
                self._failed(error)
        return spec

    def _watch(self, loader: Any) -> None:
        """Replace `exec_module` of this loader object for one call."""
        real = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            real(module)
            if self._once:
                self._remove()
            try:
                self._callback()
            except Exception as error:
                self._failed(error)

        loader.exec_module = exec_module

    def _remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
