"""Running a script or a module as ``__main__``, as the interpreter itself would."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import traceback
import zipimport
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn, cast

from stagespan.errors import SettingsError

Prepare = Callable[[ast.Module, str], tuple[ast.Module, dict[str, Any]]]
"""Changes the syntax tree of a program, which is a module of that name or has none. Returns it with
the names that its code needs."""

_OWN_FILES = (str(Path(__file__).parent), ast.__file__)


_is_interrupted = False
"""Whether this process ends as after an interrupt."""


class Interrupted(SystemExit):
    """The program has ended by a KeyboardInterrupt, which has been shown."""


def end_interrupted() -> NoReturn:
    """End this process as the interpreter does after an interrupt: by SIGINT, at the very end.

    Call it where nothing catches the KeyboardInterrupt that it raises.
    """
    global _is_interrupted
    _is_interrupted = True
    sys.excepthook = lambda *shown: None
    raise KeyboardInterrupt


def repeat_interrupt() -> None:
    """Make the interpreter end by SIGINT also if exit handlers have run code from text.

    It forgets the interrupt when it runs such code, as for a named tuple. Call it in the last exit
    handler.
    """
    if _is_interrupted:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


@dataclass
class Program:
    """A script or a module, found and read but not run yet."""

    called: str
    file: str
    source: bytes | str
    name: str = ""
    spec: Any = None
    package: str | None = None

    @staticmethod
    def script(path: str) -> Program:
        """Read the file ``path``, or ``__main__`` in it if it is a folder or a zip file.

        Raises SettingsError if it cannot be read.
        """
        if is_folder(path):
            spec: Any = importlib.machinery.PathFinder.find_spec("__main__", [path])
            if spec is None:
                raise SettingsError(f"{path} has no __main__.py: pass the script in it.")
            source = spec.loader.get_source("__main__")
            return Program(path, spec.origin, source, spec=spec, package="")
        try:
            source = Path(path).read_bytes()
        except FileNotFoundError:
            raise SettingsError(f"There is no script {path}: check the path.") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(f"The script {path} cannot be read: {reason}.") from None
        return Program(path, os.path.abspath(path), source)

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
        where = spec.origin
        return Program(where, where, source, name=name, spec=spec, package=spec.parent)

    def run(self, arguments: Sequence[str], prepare: Prepare) -> None:
        """Run as ``__main__``, with ``prepare`` applied to its syntax tree.

        Exceptions are shown as the interpreter shows them, without the frames of this package, and
        become the exit status. Raises Interrupted after a KeyboardInterrupt.
        """
        module = ModuleType("__main__")
        loader = importlib.machinery.SourceFileLoader("__main__", self.file)
        module.__dict__.update(
            __file__=self.file,
            __builtins__=builtins,
            __spec__=self.spec,
            __package__=self.package,
            __loader__=self.spec.loader if self.spec is not None else loader,
            __cached__=None,
        )
        sys.modules["__main__"] = module
        sys.argv[:] = [self.called, *arguments]
        try:
            tree, names = prepare(ast.parse(self.source, self.file), self.name)
            module.__dict__.update(names)
            exec(compile(tree, self.file, "exec", dont_inherit=True), module.__dict__)
        except SystemExit:
            raise
        except BaseException as error:
            _show(error)
            raise (
                Interrupted(130) if isinstance(error, KeyboardInterrupt) else SystemExit(1)
            ) from None


# --- the program that this interpreter runs by itself --------------------------------------------


def prepare_main(prepare: Prepare, *, scripts: bool) -> None:
    """Apply ``prepare`` to the program that this interpreter is about to run.

    That is a module (``-m``), or what a worker of multiprocessing or loky imports as its main
    module, and with ``scripts`` also a script. Call it before the interpreter has begun to run it.
    """
    import runpy

    runs: Any = runpy
    run_code = runs._run_code

    def prepared(
        code: CodeType,
        run_globals: dict[str, Any],
        init_globals: dict[str, Any] | None = None,
        mod_name: str | None = None,
        mod_spec: Any = None,
        *more: Any,
    ) -> dict[str, Any]:
        if isinstance(getattr(mod_spec, "loader", None), _ScriptFinder):
            mod_spec.loader.run(prepare)
        elif mod_name in ("__main__", "__mp_main__"):
            module = "" if mod_spec is None else mod_spec.name.removesuffix(".__main__")
            with contextlib.suppress(OSError, SyntaxError, ValueError):  # it has no source
                tree = ast.parse(Path(code.co_filename).read_bytes(), code.co_filename)
                tree, names = prepare(tree, module)
                if names:
                    code = compile(tree, code.co_filename, "exec", dont_inherit=True)
                    init_globals = {**(init_globals or {}), **names}
        found: dict[str, Any] = run_code(code, run_globals, init_globals, mod_name, mod_spec, *more)
        return found

    runs._run_code = prepared
    if scripts and sys.argv and os.path.isfile(sys.argv[0]) and not sys.flags.inspect:
        # After the finders of real folders and zip files.
        sys.path_hooks.append(_ScriptFinder(sys.argv[0]).hook)


class _ScriptFinder(importlib.abc.PathEntryFinder):
    """Makes the interpreter run a script through `runpy`, as it runs a zip file.

    The interpreter asks `sys.path_hooks` whether the script is something that contains a module
    `__main__`.
    """

    def __init__(self, called: str) -> None:
        self._called = called
        self._path = os.path.abspath(called)
        self._entry = called
        """The script in `sys.path`, where the interpreter puts it."""

    def hook(self, path: str) -> _ScriptFinder:
        """Answer for the script among `sys.path_hooks`. Raises ImportError for other paths."""
        if os.path.abspath(path) != self._path:
            raise ImportError
        self._entry = path
        return self

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the script, which is asked for once."""
        if fullname != "__main__":
            return None
        return ModuleSpec("__main__", cast(Any, self), origin=self._path)

    def get_code(self, fullname: str) -> CodeType:
        """Return no code, because `run` does everything."""
        return compile("", self._path, "exec")

    def run(self, prepare: Prepare) -> None:
        """Run the script as the main program."""
        sys.path_hooks.remove(self.hook)
        sys.path_importer_cache.pop(self._entry, None)
        if getattr(sys.flags, "safe_path", False):
            sys.path.remove(self._entry)
        else:
            set_search_path(str(Path(self._path).resolve().parent))
        try:
            Program.script(self._called).run(sys.argv[1:], prepare)
        except Interrupted:
            end_interrupted()


def is_folder(path: str) -> bool:
    """Whether a program is a folder or a zip file, which the interpreter searches for modules."""
    if os.path.isdir(path):
        return True
    try:
        zipimport.zipimporter(path)
    except (OSError, ImportError):
        return False
    return True


def set_search_path(first: str) -> None:
    """Put ``first`` in front of the search path, as the interpreter does for its script."""
    if not getattr(sys.flags, "safe_path", False):  # with this flag, the interpreter adds no folder
        sys.path[0] = first


def _show(error: BaseException) -> None:
    """Show an exception as the interpreter does, without the frames of this package."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        frames = frames.tb_next
    error.__traceback__ = frames
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # the script's own hook fails
        traceback.print_exception(type(error), error, error.__traceback__)
