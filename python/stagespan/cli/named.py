"""Stages named on the command line, ``pkg.mod:Class.method``, and the timers put around them."""

from __future__ import annotations

import ast
import difflib
import importlib.abc
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from stagespan.errors import SettingsError

Decorator = Callable[[Any], Any]

_PATTERN = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<module>\w+(?:\.\w+)*):(?P<path>\w+(?:\.\w+)*)")
_HOOK_NAME = "__stagespan_stage__"


class NamedStage:
    """A callable that is to be timed, and what became of it."""

    def __init__(self, text: str) -> None:
        """Read ``[NAME=]pkg.mod:Class.method``. Raises SettingsError when it is something else."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise SettingsError(
                f"the stage {text!r} must be written as pkg.mod:Class.method or pkg.mod:function, "
                "with NAME= before it to give it a name of its own"
            )
        self.module: str = match["module"]
        self.path: str = match["path"]
        self.name: str = (match["name"] or self.path).strip()
        self.found = False
        self.problem: str | None = None
        self.note: str | None = None

    @property
    def target(self) -> str:
        """Where the callable is, ``pkg.mod:Class.method``."""
        return f"{self.module}:{self.path}"


def named_stages(texts: Iterable[str]) -> list[NamedStage]:
    """Read all stages; two that would share a name are told apart by their module."""
    stages = {stage.target: stage for stage in map(NamedStage, texts)}
    taken: dict[str, NamedStage] = {}
    for stage in stages.values():
        other = taken.setdefault(stage.name, stage)
        if other is not stage:
            stage.name = stage.target
    return list(stages.values())


class Wrapper:
    """Puts the stages' timers around their callables, whenever a module with some is loaded."""

    def __init__(
        self, stages: Sequence[NamedStage], decorator_for: Callable[[str], Decorator], main: str
    ) -> None:
        """``main`` is the module's name, besides ``__main__``, that the script runs under."""
        self._decorator_for = decorator_for
        self._by_module: dict[str, list[NamedStage]] = {}
        for stage in stages:
            module = "__main__" if stage.module in ("__main__", main) else stage.module
            self._by_module.setdefault(module, []).append(stage)
        self._main_stages = self._by_module.pop("__main__", [])

    def install(self) -> None:
        """Wrap what is loaded already, and be told of what will be."""
        for name in self._by_module:
            if name in sys.modules:
                self.loaded(name)
        sys.meta_path.insert(0, _Finder(frozenset(self._by_module), self.loaded))

    def loaded(self, module_name: str) -> None:
        """Wrap the stages of a module that has just been loaded."""
        module = sys.modules.get(module_name)
        for stage in self._by_module[module_name]:
            try:
                _wrap_in(module, stage, self._decorator_for)
            except Exception as error:  # the script must not notice
                stage.problem = _reason(error)

    def prepare_main(self, tree: ast.Module) -> ast.Module:
        """Put decorators on the script's own stages; its line numbers stay what they were."""
        _Decorating({stage.path for stage in self._main_stages}).visit(tree)
        return tree

    def main_globals(self) -> dict[str, Any]:
        """What the script's namespace needs so that `prepare_main`'s decorators work."""
        return {_HOOK_NAME: self._decorate_main} if self._main_stages else {}

    def _decorate_main(self, path: str) -> Decorator:
        stage = next(stage for stage in self._main_stages if stage.path == path)

        def decorate(defined: Any) -> Any:
            try:
                wrapped = _timed_once(defined, stage, self._decorator_for)
            except Exception as error:
                stage.problem = _reason(error)
                return defined
            stage.found = True
            return wrapped

        return decorate

    def has_stages(self) -> bool:
        """Whether any were named."""
        return bool(self._by_module or self._main_stages)

    def missing(self) -> list[str]:
        """A sentence for each stage that was never found, with what is close."""
        places = (*self._by_module.items(), ("__main__", self._main_stages))
        return [
            _why_missing(module, stage)
            for module, stages in places
            for stage in stages
            if not stage.found
        ]

    def notes(self) -> list[str]:
        """A sentence for each stage that is not timed as the command line asked."""
        stages = (stage for found in self._by_module.values() for stage in found)
        return [stage.note for stage in (*stages, *self._main_stages) if stage.note is not None]


# --- wrapping -----------------------------------------------------------------------------------


def _wrap_in(module: Any, stage: NamedStage, decorator_for: Callable[[str], Decorator]) -> None:
    owner = module
    *parts, last = stage.path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    # A class would bind its methods, a lazy module only answers when it is asked.
    find = inspect.getattr_static if isinstance(owner, type) else getattr
    raw = find(owner, last)
    timed = _timed_once(raw, stage, decorator_for)
    if timed is not raw:
        setattr(owner, last, timed)
    stage.found = True


def _timed_once(raw: Any, stage: NamedStage, decorator_for: Callable[[str], Decorator]) -> Any:
    """``raw`` with the stage's timer; as it is if the program times it by this name already."""
    from stagespan.decorators import contexts_of

    wanted = decorator_for(stage.name)
    getter = raw.fget if isinstance(raw, property) else raw
    own = [context.kind for context in contexts_of(getter) if context.name == stage.name]
    if not own:
        return _wrapped(raw, wanted)
    if getattr(wanted, "kind", None) == "debug" and "debug" not in own:
        stage.note = (
            f"{stage.target} is timed as {stage.name!r} by the program itself, without its inputs "
            "and outputs: decorate it with ProfilingContext4Debug to capture them"
        )
    return raw


def _wrapped(raw: Any, decorator: Decorator) -> Any:
    """``raw``, as it stands in a module or a class, with the timer around what it calls."""
    if isinstance(raw, (staticmethod, classmethod)):
        return type(raw)(decorator(raw.__func__))
    if isinstance(raw, property) and raw.fget is not None:
        return property(decorator(raw.fget), raw.fset, raw.fdel, raw.__doc__)
    if isinstance(raw, type):
        methods = [
            name
            for name, value in vars(raw).items()
            if inspect.isfunction(value) and not name.startswith("_")
        ]
        example = f", for example {raw.__qualname__}.{methods[0]}" if methods else ""
        raise TypeError(f"{raw.__qualname__} is a class: name one of its methods{example}")
    if not callable(raw):
        raise TypeError(f"{type(raw).__name__} objects cannot be called: name a function or method")
    return decorator(raw)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets the others find, and says when a wanted module is loaded."""

    def __init__(self, wanted: frozenset[str], loaded: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._loaded = loaded
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._wanted or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = None
            for finder in sys.meta_path:
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(fullname, path, target)
                    if spec is not None:
                        break
        finally:
            self._asking.now = False
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = getattr(loader, "exec_module", None)

        def exec_module(module: ModuleType) -> None:
            assert execute is not None
            execute(module)
            if getattr(module, "__name__", None) == fullname:
                self._loaded(fullname)

        # The loader itself stays, because tools ask modules for it; only this instance is changed.
        if execute is not None and not isinstance(loader, type):
            try:
                loader.exec_module = exec_module
            except AttributeError:
                return spec
        return spec


class _Decorating(ast.NodeTransformer):
    """Adds a decorator to the functions and classes whose qualified names are wanted.

    A class cannot be timed, but the decorator can say so.
    """

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self._within: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._decorate(node)
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._decorate(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        self._decorate(node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node

    def _decorate(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        path = ".".join((*self._within, node.name))
        if path not in self._wanted:
            return
        first = node.decorator_list[0] if node.decorator_list else node
        call = ast.Call(ast.Name(_HOOK_NAME, ast.Load()), [ast.Constant(path)], [])
        for new in ast.walk(call):
            ast.copy_location(new, first)
            if isinstance(new, ast.expr):
                # A definition's own end would stretch the decorator over the whole body.
                new.end_lineno, new.end_col_offset = first.lineno, first.col_offset + 1
        node.decorator_list.insert(0, call)


# --- what was not found -------------------------------------------------------------------------


def _why_missing(module_name: str, stage: NamedStage) -> str:
    sentence = f"stage {stage.target} was not timed: "
    module = sys.modules.get(module_name)
    if module is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        if Path(script).stem == module_name:
            return sentence + f"{module_name} is the script itself; write __main__:{stage.path}"
        close = difflib.get_close_matches(module_name, list(sys.modules), n=3)
        return sentence + f"the module {module_name} was never imported" + _suggest(close)
    owner: Any = module
    for depth, part in enumerate(parts := stage.path.split(".")):
        try:
            owner = getattr(owner, part)
        except Exception:
            where = ".".join((module_name, *parts[:depth]))
            close = difflib.get_close_matches(part, dir(owner), n=3, cutoff=0.5)
            prefix = ".".join(parts[:depth])
            names = [f"{prefix}.{name}" if prefix else name for name in close]
            return sentence + f"{where} has no {part!r}" + _suggest(names)
    return sentence + (stage.problem or "it was defined after its module had been loaded")


def _suggest(close: Sequence[str]) -> str:
    return f"; close to it: {', '.join(close)}" if close else ""
