"""Times the stages that the command line names as ``pkg.mod:Class.method``."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from stagespan.errors import SettingsError
from stagespan.process.imports import ImportFinder

Decorator = Callable[[Any], Any]

_PATTERN = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<module>\w+(?:\.\w+)*):(?P<path>\w+(?:\.\w+)*)")
_HOOK_NAME = "__stagespan_stage__"


class NamedStage:
    """A callable to be timed, and whether it was found."""

    def __init__(self, text: str) -> None:
        """Read ``[NAME=]pkg.mod:Class.method``. Raises SettingsError for other texts."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise SettingsError(
                f"The stage {text!r} must be written as pkg.mod:Class.method or pkg.mod:function, "
                "optionally with NAME= in front to give the stage another name."
            )
        self.module: str = match["module"]
        self.path: str = match["path"]
        self.name: str = (match["name"] or self.path).strip()
        self.found = False
        self.problem: str | None = None
        self.note: str | None = None
        self.codes: set[CodeType] = set()
        """The code of the function, before and after it got a timer."""

    @property
    def target(self) -> str:
        """The path of the callable, ``pkg.mod:Class.method``."""
        return f"{self.module}:{self.path}"


def named_stages(texts: Iterable[str]) -> list[NamedStage]:
    """Read all stages. If two stages have the same name, the second gets its path as name."""
    stages = {stage.target: stage for stage in map(NamedStage, texts)}
    taken: dict[str, NamedStage] = {}
    for stage in stages.values():
        other = taken.setdefault(stage.name, stage)
        if other is not stage:
            stage.name = stage.target
    return list(stages.values())


class Wrapper:
    """Wraps the callables of the stages when their modules are loaded."""

    def __init__(
        self, stages: Sequence[NamedStage], decorator_for: Callable[[str], Decorator], main: str
    ) -> None:
        """``main`` is the name of the module that runs as ``__main__``, if it has one."""
        self._decorator_for = decorator_for
        self._by_module: dict[str, list[NamedStage]] = {}
        for stage in stages:
            module = "__main__" if stage.module in ("__main__", main) else stage.module
            self._by_module.setdefault(module, []).append(stage)
        self._main_stages = self._by_module.pop("__main__", [])

    def install(self) -> None:
        """Wrap the stages of loaded modules now, and of other modules when they are loaded."""
        for name in self._by_module:
            if name in sys.modules:
                self.loaded(name)
            callback = functools.partial(self.loaded, name)
            # If the import cannot be watched, `missing` reports the stages.
            finder = ImportFinder(name, callback, lambda error: None, once=False)
            sys.meta_path.insert(0, finder)

    def loaded(self, module_name: str) -> None:
        """Wrap the stages of a module that has just been loaded."""
        module = sys.modules.get(module_name)
        for stage in self._by_module[module_name]:
            try:
                _wrap_in(module, stage, self._decorator_for)
            except Exception as error:  # an error must not affect the script
                stage.problem = _reason(error)

    def prepare_main(self, tree: ast.Module) -> ast.Module:
        """Decorate the stages of the script itself. Its line numbers do not change."""
        _Decorating({stage.path for stage in self._main_stages}).visit(tree)
        return tree

    def main_globals(self) -> dict[str, Any]:
        """Return the names that the decorators of `prepare_main` need in the script."""
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
        """Whether any stages were named."""
        return bool(self._by_module or self._main_stages)

    def missing(self) -> list[str]:
        """Return a sentence for each stage that was not found, with similar names."""
        places = (*self._by_module.items(), ("__main__", self._main_stages))
        return [
            _why_missing(module, stage)
            for module, stages in places
            for stage in stages
            if not stage.found
        ]

    def compiled(self, ran: Collection[str]) -> list[str]:
        """Return a sentence for each stage that ran, if at all, only inside compiled code.

        ``ran`` are the names of all stages that ran. Spans do nothing inside graphs of
        torch.compile.
        """
        utils: Any = sys.modules.get("torch._dynamo.utils")
        graphs = 0 if utils is None else utils.counters["stats"]["unique_graphs"]
        if not graphs:
            return []
        stages = (stage for found in self._by_module.values() for stage in found)
        return [
            _only_compiled(stage, graphs)
            for stage in (*stages, *self._main_stages)
            if stage.found and stage.name not in ran
        ]

    def notes(self) -> list[str]:
        """Return a sentence for each stage that is timed in another way than requested."""
        stages = (stage for found in self._by_module.values() for stage in found)
        return [stage.note for stage in (*stages, *self._main_stages) if stage.note is not None]


# --- wrapping -----------------------------------------------------------------------------------


def _wrap_in(module: Any, stage: NamedStage, decorator_for: Callable[[str], Decorator]) -> None:
    owner = module
    *parts, last = stage.path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    # getattr would bind methods of a class, but lazy modules need it.
    find = inspect.getattr_static if isinstance(owner, type) else getattr
    raw = find(owner, last)
    timed = _timed_once(raw, stage, decorator_for)
    if timed is not raw:
        setattr(owner, last, timed)
    stage.found = True


def _timed_once(raw: Any, stage: NamedStage, decorator_for: Callable[[str], Decorator]) -> Any:
    """Return ``raw`` with the stage's timer, or unchanged if it already has this stage."""
    from stagespan.contexts.decorators import contexts_of

    wanted = decorator_for(stage.name)
    getter = raw.fget if isinstance(raw, property) else raw
    own = [context.kind for context in contexts_of(getter) if context.name == stage.name]
    if not own:
        timed = _wrapped(raw, wanted)
        stage.codes.update(_codes(raw), _codes(timed))
        return timed
    if getattr(wanted, "kind", None) == "debug" and "debug" not in own:
        stage.note = (
            f"the program itself times {stage.target} as {stage.name!r}, without its inputs "
            "and outputs: decorate it with ProfilingContext4Debug to capture them"
        )
    return raw


def _wrapped(raw: Any, decorator: Decorator) -> Any:
    """Return ``raw``, an attribute of a module or a class, with a timer around its calls."""
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


def _codes(function: Any) -> set[CodeType]:
    """Return the code of a function, or of the function of a static or class method."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return {code} if isinstance(code, CodeType) else set()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


class _Decorating(ast.NodeTransformer):
    """Adds a decorator to the functions and classes with the wanted qualified names.

    A class cannot be timed. Its decorator reports this.
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
                # With the end of the definition, the decorator would cover the whole body.
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
    if stage.problem is None and module_name == "__main__":
        return sentence + _why_not_decorated(module, stage.path)
    return sentence + (stage.problem or "it was defined after its module was loaded")


def _why_not_decorated(script: Any, path: str) -> str:
    """Return why `Wrapper.prepare_main` did not decorate something that the script contains."""
    owner = script
    *parts, last = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    if isinstance(owner, type) and last not in vars(owner):
        base = next((base for base in owner.__mro__ if last in vars(base)), owner)
        if base is not owner:
            place = f"{base.__module__}:{base.__qualname__}.{last}"
            return f"{owner.__qualname__} inherits it; write {place}"
    found = getattr(owner, last)
    module = getattr(found, "__module__", None)
    if not parts and isinstance(module, str) and module != "__main__":
        return f"the script imports it; write {module}:{getattr(found, '__qualname__', last)}"
    return "the script does not define it with `def`"


def _only_compiled(stage: NamedStage, graphs: int) -> str:
    """Return why a stage has no time although it was found, in a program with compiled graphs."""
    eval_frame: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    entries = getattr(eval_frame, "_debug_get_cache_entry_list", None)
    advice = (
        "time a function that is not compiled and calls it, or set TORCH_COMPILE_DISABLE=1 for this"
        " run"
    )
    if entries is not None and any(entries(code) for code in stage.codes):
        return (
            f"stage {stage.target} was compiled by torch.compile and ran inside a graph, where no"
            f" time is measured: {advice}"
        )
    return (
        f"stage {stage.target} did not run outside of graphs of torch.compile ({graphs:,} in this"
        f" program), and no time is measured inside them: if it ran in one, {advice}"
    )


def _suggest(close: Sequence[str]) -> str:
    return f"; similar names: {', '.join(close)}" if close else ""
