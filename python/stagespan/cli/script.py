"""Running a script or a module as ``__main__``, as the interpreter itself would."""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from stagespan.errors import SettingsError

Prepare = Callable[[ast.Module], ast.Module]

_OWN_FILES = (str(Path(__file__).parent), ast.__file__)


class Program:
    """A script or a module, found and read but not run yet."""

    def __init__(
        self, called: str, file: str, source: bytes | str, spec: Any, package: str | None
    ) -> None:
        self._called = called
        self._file = file
        self._source = source
        self._spec = spec
        self._package = package

    @staticmethod
    def script(path: str) -> Program:
        """Read the file ``path``. Raises SettingsError if it cannot be read."""
        if os.path.isdir(path):
            raise SettingsError(f"{path} is a folder: pass the script in it.")
        try:
            source = Path(path).read_bytes()
        except FileNotFoundError:
            raise SettingsError(f"There is no script {path}: check the path.") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(f"The script {path} cannot be read: {reason}.") from None
        return Program(path, os.path.abspath(path), source, None, None)

    @staticmethod
    def module(name: str) -> Program:
        """Find the module ``name``, or ``__main__`` of a package. May raise SettingsError."""
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
        except (ImportError, ValueError) as error:
            raise SettingsError(f"The module {name} cannot be imported: {error}.") from None
        source = getattr(spec.loader, "get_source", lambda _: None)(spec.name) if spec else None
        if spec is None or source is None or spec.origin is None:
            raise SettingsError(
                f"The module {name} does not exist or cannot be run: check its name and the search "
                f"path (PYTHONPATH)."
            )
        return Program(spec.origin, spec.origin, source, spec, spec.parent)

    def run(self, arguments: Sequence[str], prepare: Prepare, more_globals: dict[str, Any]) -> None:
        """Run as ``__main__``, with ``prepare`` applied to its syntax tree.

        Exceptions are shown as the interpreter shows them, without the frames of this package, and
        become the exit status.
        """
        module = ModuleType("__main__")
        loader = importlib.machinery.SourceFileLoader("__main__", self._file)
        module.__dict__.update(
            __file__=self._file,
            __builtins__=builtins,
            __spec__=self._spec,
            __package__=self._package,
            __loader__=self._spec.loader if self._spec is not None else loader,
            __cached__=None,
            **more_globals,
        )
        sys.modules["__main__"] = module
        sys.argv[:] = [self._called, *arguments]
        try:
            tree = prepare(ast.parse(self._source, self._file))
            exec(compile(tree, self._file, "exec", dont_inherit=True), module.__dict__)
        except SystemExit:
            raise
        except BaseException as error:
            _show(error)
            raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


def set_search_path(first: str) -> None:
    """Put ``first`` in front of the search path, as the interpreter does for its script."""
    if not getattr(sys.flags, "safe_path", False):  # with this flag, the interpreter adds no folder
        sys.path[0] = first


def _show(error: BaseException) -> None:
    """Show an exception as the interpreter does, without the frames of this package."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        found = found.tb_next
    error.__traceback__ = found
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # the script's own hook fails
        traceback.print_exception(type(error), error, error.__traceback__)
