"""Times the stages that a command or STAGESPAN_STAGES names as ``pkg.mod:Class.method``."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from stagespan import _core, settings
from stagespan.errors import SettingsError
from stagespan.process import command, script
from stagespan.process.imports import ImportFinder

Decorator = Callable[[Any], Any]

_PATTERN = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<module>\w+(?:\.\w+)*):(?P<path>\w+(?:\.\w+)*)")
HOOK_NAME = "__stagespan_stage__"
"""What decorated functions of the main program call."""
_KINDS_OF_METHODS = ("staticmethod", "classmethod", "property")


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
        # That of a module class says enough without the method that every call of it runs.
        owner, _, method = self.path.rpartition(".")
        default = owner if owner and method in ("forward", "__call__") else self.path
        self.name: str = (match["name"] or default).strip()
        self.is_wrapped = False
        self.problem: str | None = None
        self.problem_elsewhere: str | None = None
        """A sentence of another process that has not found it."""
        self.file: str | None = None
        """The file of its module."""
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
        self.stages = stages
        self._decorator_for = decorator_for
        self._main = main
        self._undo: list[Callable[[], None]] = []
        """What makes functions again what they were before they were timed."""

    def _of_main(self) -> list[NamedStage]:
        return [stage for stage in self.stages if stage.module in ("__main__", self._main)]

    def install(self) -> None:
        """Wrap the stages of loaded modules now, and of other modules when they are loaded."""
        of_main = self._of_main()
        for name in dict.fromkeys(stage.module for stage in self.stages if stage not in of_main):
            if name in sys.modules:
                self.loaded(name)
            callback = functools.partial(self.loaded, name)
            # If the import cannot be watched, `missing` reports the stages.
            finder = ImportFinder(name, callback, lambda error: None, once=False)
            sys.meta_path.insert(0, finder)

    def loaded(self, module_name: str) -> None:
        """Wrap the stages of a module that has just been loaded."""
        module = sys.modules.get(module_name)
        for stage in self.stages:
            if stage.module == module_name:
                self._try(stage, functools.partial(wrap_in, module, stage, self._decorator_for))

    def _try(self, stage: NamedStage, wrap: Callable[[], Any]) -> Any:
        """Wrap a stage, and tell the command so. Returns None if it cannot be wrapped."""
        wrapped = None
        try:
            wrapped = wrap()
            stage.is_wrapped = True
        except Exception as error:  # an error must not affect the program
            stage.problem = str(error) or type(error).__name__
        module = sys.modules.get("__main__" if stage in self._of_main() else stage.module)
        stage.file = getattr(module, "__file__", None)
        why = None if stage.is_wrapped else self._why_missing(stage)
        command.tell("stage", stage.target, why, stage.note, stage.file)
        return wrapped

    def learn(self, target: str, problem: str | None, note: str | None, file: str | None) -> None:
        """Take over what another process has told of a stage."""
        for stage in self.stages:
            if stage.target == target:
                stage.is_wrapped = stage.is_wrapped or problem is None
                stage.problem_elsewhere = problem or stage.problem_elsewhere
                stage.note = stage.note or note
                stage.file = stage.file or file

    # --- the main program -----------------------------------------------------------------------

    def prepare_main(self, tree: ast.Module, name: str = "") -> tuple[ast.Module, dict[str, Any]]:
        """Decorate the stages of the main program, whose line numbers do not change.

        ``name`` is that of its module, if it has one. Returns the tree, and the names that the
        decorators need.
        """
        self._main = name
        wanted = {stage.path for stage in self._of_main()}
        _Decorating(wanted).visit(tree)
        return tree, {HOOK_NAME: self._decorate_main} if wanted else {}

    def _decorate_main(self, path: str) -> Decorator:
        stage = next(stage for stage in self._of_main() if stage.path == path)

        def decorate(defined: Any) -> Any:
            wrap = functools.partial(_timed_once, defined, stage, self._decorator_for)
            wrapped = self._try(stage, wrap)
            if wrapped is None:
                return defined

            def put_back() -> None:
                owner, last = owner_in(sys.modules["__main__"], path)
                if vars(owner).get(last) is wrapped:
                    setattr(owner, last, defined)

            self._undo.append(put_back)
            return wrapped

        return decorate

    # --- for a while ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def timed_meanwhile(self) -> Iterator[None]:
        """Time the stages that exist, or that `prepare_main` decorates, until the block ends."""
        self._undo = []
        try:
            for stage in self.stages:
                module = sys.modules.get("__main__" if stage in self._of_main() else stage.module)
                wrap = functools.partial(wrap_in, module, stage, self._decorator_for)
                if (undo := self._try(stage, wrap)) is not None:
                    self._undo.append(undo)
            yield
        finally:
            for undo in reversed(self._undo):
                with contextlib.suppress(Exception):  # the program has changed the owner
                    undo()

    # --- what became of the stages --------------------------------------------------------------

    def missing(self) -> list[str]:
        """Return a sentence for each stage that was not found, with similar names."""
        return [self._why_missing(stage) for stage in self.stages if not stage.is_wrapped]

    def _why_missing(self, stage: NamedStage) -> str:
        module = "__main__" if stage in self._of_main() else stage.module
        if stage.problem_elsewhere is not None and module not in sys.modules:
            return stage.problem_elsewhere
        return _why_missing(module, stage)

    def never_ran(self, ran: Collection[str]) -> list[str]:
        """Return a sentence for each stage that was found and did not run, with a likely reason.

        ``ran`` are the names of all stages that ran, in any process.
        """
        stages = [stage for stage in self.stages if stage.is_wrapped and stage.name not in ran]
        graphs = _graphs()  # in which spans do nothing
        return [_only_compiled(one, graphs) if graphs else _why_not_called(one) for one in stages]

    def notes(self) -> list[str]:
        """Return a sentence for each stage that is timed in another way than requested."""
        return [stage.note for stage in self.stages if stage.note is not None]


def timed(texts: Iterable[str], main: str = "") -> Wrapper:
    """Time stages from now on, in modules that are loaded or will be.

    They are debug contexts in debug mode, and spans if no stages are named for the profiler.
    Raises SettingsError if a text does not name a stage.
    """
    wrapper = Wrapper(named_stages(texts), decorator(), main)
    wrapper.install()
    return wrapper


def decorator() -> Callable[[str], Decorator]:
    """Return what times stages now, by their names."""
    if _core.is_debug():
        return _core.ProfilingContext4Debug
    is_profiled = settings.get("STAGESPAN_PROFILER_NAMES")
    return _core.ProfilingContext if is_profiled else _core.span


def install() -> None:
    """Time the stages of STAGESPAN_STAGES, also in the program that this process runs."""
    texts = []
    lines = (settings.get("STAGESPAN_STAGES") or "").splitlines()
    for text in filter(None, map(str.strip, lines)):
        try:
            NamedStage(text)
            texts.append(text)
        except SettingsError as error:
            settings.warn_once("STAGESPAN_STAGES", text, f"STAGESPAN_STAGES is not used: {error}")
    wrapper = timed(texts)
    of_scripts = any(stage.module == "__main__" for stage in wrapper.stages)
    script.prepare_main(wrapper.prepare_main, scripts=of_scripts)


# --- wrapping -----------------------------------------------------------------------------------


def wrap_in(
    module: Any, stage: NamedStage, decorator_for: Callable[[str], Decorator]
) -> Callable[[], None]:
    """Wrap a stage of a module. Returns what puts back what was there."""
    owner, last = owner_in(module, stage.path)
    # getattr would bind methods of a class, but lazy modules need it.
    find = inspect.getattr_static if isinstance(owner, type) else getattr
    raw = find(owner, last)
    timed = _timed_once(raw, stage, decorator_for)
    if timed is not raw:
        is_inherited = isinstance(owner, type) and last not in vars(owner)
        setattr(owner, last, timed)
        if is_inherited:
            return functools.partial(delattr, owner, last)
    return functools.partial(setattr, owner, last, raw)


def owner_in(module: Any, path: str) -> tuple[Any, str]:
    """Return the module or class that has a path's last name as an attribute, and that name."""
    owner = module
    *parts, last = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    return owner, last


def _timed_once(raw: Any, stage: NamedStage, decorator_for: Callable[[str], Decorator]) -> Any:
    """Return ``raw`` with the stage's timer, or unchanged if it already has this stage."""
    from stagespan.contexts.decorators import contexts_of

    wanted = decorator_for(stage.name)
    getter = raw.fget if isinstance(raw, property) else raw
    kinds = [context.kind for context in contexts_of(getter) if context.name == stage.name]
    if not kinds:
        timed = _wrapped(raw, wanted)
        stage.codes.update(_codes(raw), _codes(timed))
        return timed
    if getattr(wanted, "kind", None) == "debug" and "debug" not in kinds:
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


class _Definitions(ast.NodeVisitor):
    """Visits the code of a module that runs when it is loaded, and what it defines."""

    def __init__(self) -> None:
        self.scopes: list[str] = []
        """The names of the classes around what is visited."""

    def defined(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Visit a definition."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.defined(node)
        self.scopes.append(node.name)
        self.generic_visit(node)
        self.scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.defined(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Leave out what runs later."""


class _Decorating(_Definitions):
    """Adds a decorator to the functions and classes with the wanted qualified names.

    A class cannot be timed. Its decorator reports this.
    """

    def __init__(self, wanted: set[str]) -> None:
        super().__init__()
        self._wanted = wanted

    def defined(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        path = ".".join((*self.scopes, node.name))
        if path not in self._wanted:
            return
        first = node.decorator_list[0] if node.decorator_list else node
        call = ast.Call(ast.Name(HOOK_NAME, ast.Load()), [ast.Constant(path)], [])
        for new in ast.walk(call):
            ast.copy_location(new, first)
            if isinstance(new, ast.expr):
                # With the end of the definition, the decorator would cover the whole body.
                new.end_lineno, new.end_col_offset = first.lineno, first.col_offset + 1
        node.decorator_list.insert(0, call)


# --- what was not found -------------------------------------------------------------------------


def _why_missing(module_name: str, stage: NamedStage) -> str:
    import difflib  # nearly no program needs it

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
    owner, last = owner_in(script, path)
    if isinstance(owner, type) and last not in vars(owner):
        base = next((base for base in owner.__mro__ if last in vars(base)), owner)
        if base is not owner:
            place = f"{base.__module__}:{base.__qualname__}.{last}"
            return f"{owner.__qualname__} inherits it; write {place}"
    thing = getattr(owner, last)
    module = getattr(thing, "__module__", None)
    if owner is script and isinstance(module, str) and module != "__main__":
        return f"the script imports it; write {module}:{getattr(thing, '__qualname__', last)}"
    return "the script does not define it with `def`"


def _only_compiled(stage: NamedStage, graphs: int) -> str:
    """Return why a stage has no time although it was found, in a program with compiled graphs."""
    advice = (
        "time a function that is not compiled and calls it, or set TORCH_COMPILE_DISABLE=1 for this"
        " run"
    )
    if any(map(is_compiled, stage.codes)):
        return (
            f"stage {stage.target} was compiled by torch.compile and ran inside a graph, where no"
            f" time is measured: {advice}"
        )
    return (
        f"stage {stage.target} did not run outside of graphs of torch.compile ({graphs:,} in this"
        f" program), and no time is measured inside them: if it ran in one, {advice}"
    )


def is_compiled(code: CodeType) -> bool:
    """Whether torch.compile has compiled this code in this process."""
    eval_frame: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    entries = getattr(eval_frame, "_debug_get_cache_entry_list", None)
    return entries is not None and bool(entries(code))


def seen_by_torch(function: Any, owner: Any, *, is_replaced: bool) -> str | None:
    """Return what of torch has read a function of a module or class, so that it must stay as it is.

    If it is to be replaced (``is_replaced``), that is any use of torch.compile: it compiles again
    if a function that it has put into a graph is replaced.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    if is_compiled(code) or (is_replaced and _graphs()):
        return "torch.compile"
    scripts: Any = sys.modules.get("torch.jit._state")
    cached = getattr(scripts, "_try_get_jit_cached_function", None)
    types: Any = sys.modules.get("torch.jit._recursive")
    store = getattr(getattr(types, "concrete_type_store", None), "type_store", {})
    if (cached is not None and cached(function) is not None) or owner in store:
        return "torch.jit"
    symbolic: Any = sys.modules.get("torch.fx._symbolic_trace")
    names = [key[1] for key in list(getattr(symbolic, "_wrapped_fns_to_patch", ()))]
    return "torch.fx" if code.co_name in names else None


def _graphs() -> int:
    """Return how many graphs torch.compile has made."""
    # A thread may be importing the module, which has no counters then.
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return 0 if counters is None else int(counters["stats"]["unique_graphs"])


def _why_not_called(stage: NamedStage) -> str:
    """Return why a stage that was found has probably not run, from the source of its module."""
    sentence = f"stage {stage.target} never ran: "
    uses = _Uses(stage.file or "", stage.path)
    advice = "; name what it calls"
    if uses.decorators:
        return f"{sentence}@{uses.decorators[-1]} holds the function itself{advice}"
    if uses.lines:
        place = f"{Path(stage.file or '').name}:{uses.lines[0]}"
        return f"{sentence}{place} holds the function itself{advice}"
    return f"{sentence}nothing has called it"


def is_held(file: str, path: str) -> bool:
    """Whether the code of a module uses a function without a call, or decorates it."""
    uses = _Uses(file, path)
    return bool(uses.decorators or uses.lines)


class _Uses(_Definitions):
    """What holds a function before it can be timed, in the code that defines its module."""

    def __init__(self, file: str, path: str) -> None:
        super().__init__()
        *self._owners, self._name = path.split(".")
        self.decorators: list[str] = []
        """The function's decorators, as they are written without their arguments."""
        self.lines: list[int] = []
        """The lines that use the function without a call, such as ``ROUTES = {"/": function}``."""
        with contextlib.suppress(OSError, ValueError, SyntaxError):
            self.visit(ast.parse(Path(file).read_bytes()))

    def defined(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if (self.scopes, node.name) == (self._owners, self._name):
            calls = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
            names = map(ast.unparse, calls)
            self.decorators = [name for name in names if name not in _KINDS_OF_METHODS]

    def visit_Call(self, node: ast.Call) -> None:
        for part in (*node.args, *node.keywords):
            self.visit(part)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and (self.scopes, node.id) == (self._owners, self._name):
            self.lines.append(node.lineno)


def _suggest(close: Sequence[str]) -> str:
    return f"; similar names: {', '.join(close)}" if close else ""
