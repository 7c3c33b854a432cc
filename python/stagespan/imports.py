"""Being told when a module has been imported, without importing it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


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
