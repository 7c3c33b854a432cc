"""Stages named on the command line: parsing the names, finding and wrapping the callables."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import inspect
import sys
import textwrap
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagespan.contexts.named import NamedStage, Wrapper, named_stages
from stagespan.errors import SettingsError

MODULE = """
    import functools

    def plain(x):
        return x + 1

    class Base:
        def inherited(self):
            return "inherited"

    class Model(Base):
        scale = 3

        def run(self, x):
            return x * self.scale

        @classmethod
        def build(cls):
            return cls()

        @staticmethod
        def double(x):
            return 2 * x

        @property
        def size(self):
            return 7

        class Inner:
            def deep(self):
                return "deep"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a new module that can be imported and has not been imported."""
    name = f"wrapped_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield name
    sys.meta_path[:] = finders
    sys.modules.pop(name, None)


class Counting:
    """A timer that only counts the calls of each stage."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, name: str) -> Callable[[Any], Any]:
        def decorator(function: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                self.calls[name] += 1
                return function(*args, **kwargs)

            return wrapper

        return decorator


def wrapper_of(*texts: str, main: str = "") -> tuple[Wrapper, Counting]:
    counting = Counting()
    return Wrapper(named_stages(texts), counting, main), counting


# --- names ----------------------------------------------------------------------------------------


def test_a_name_is_read() -> None:
    stage = NamedStage("pkg.mod:Class.method")
    assert (stage.module, stage.path, stage.name) == ("pkg.mod", "Class.method", "Class.method")
    assert NamedStage("denoise step=pkg:f").name == "denoise step"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("m:UNet.forward", "UNet"),
        ("m:Outer.Inner.__call__", "Outer.Inner"),
        ("m:forward", "forward"),
        ("m:Block.forward_step", "Block.forward_step"),
        ("mine=m:UNet.forward", "mine"),
    ],
)
def test_a_class_names_the_stage_of_its_calls(text: str, name: str) -> None:
    assert NamedStage(text).name == name


def test_two_methods_of_a_class_are_distinguished() -> None:
    names = [stage.name for stage in named_stages(["m:Net.forward", "m:Net.__call__"])]
    assert names == ["Net", "m:Net.__call__"]


@pytest.mark.parametrize(
    "text", ["", "f", "pkg.mod", ":f", "pkg:", "pkg:f()", "pkg..mod:f", "a b:f"]
)
def test_values_that_are_not_names_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"pkg\.mod:Class\.method"):
        NamedStage(text)


def test_two_of_one_name_are_distinguished() -> None:
    first, second, third = named_stages(["a:run", "b:run", "a:run", "x=c:run"])
    assert (first.name, second.name, third.name) == ("run", "b:run", "x")


@given(st.text())
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    refused = pytest.raises(SettingsError, match="must be written as")
    if _looks_right(text):
        assert NamedStage(text).target == text.rpartition("=")[2]
    else:
        with refused:
            NamedStage(text)


def _looks_right(text: str) -> bool:
    name, equals, target = text.partition("=")
    module, colon, path = (target if equals else name).partition(":")
    words = [*module.split("."), *path.split(".")]
    return bool(colon and (name or not equals)) and all(
        word and all(c.isalnum() or c == "_" for c in word) for word in words
    )


# --- modules --------------------------------------------------------------------------------------


def test_callables_are_wrapped_once_their_module_is_loaded(package: str) -> None:
    paths = ["plain", "Model.run", "Model.build", "Model.double", "Model.size", "Model.Inner.deep"]
    wrapper, counting = wrapper_of(*(f"{package}:{path}" for path in paths))
    wrapper.install()

    module = importlib.import_module(package)
    model = module.Model.build()
    assert module.plain(1) == 2
    assert model.run(2) == 6
    assert (model.double(4), module.Model.double(5)) == (8, 10)
    assert model.size == 7
    assert module.Model.Inner().deep() == "deep"
    # and each call was counted
    assert counting.calls == {**dict.fromkeys(paths, 1), "Model.double": 2}
    assert wrapper.missing() == []


def test_the_kinds_of_attributes_do_not_change(package: str) -> None:
    wrapper, _ = wrapper_of(*(f"{package}:Model.{n}" for n in ("build", "double", "size")))
    wrapper.install()
    model = importlib.import_module(package).Model
    assert isinstance(inspect.getattr_static(model, "build"), classmethod)
    assert isinstance(inspect.getattr_static(model, "double"), staticmethod)
    assert isinstance(inspect.getattr_static(model, "size"), property)


def test_an_inherited_method_is_timed_only_in_the_named_class(package: str) -> None:
    wrapper, counting = wrapper_of(f"{package}:Model.inherited")
    wrapper.install()
    module = importlib.import_module(package)
    module.Base().inherited()
    assert counting.calls == {}
    assert module.Model().inherited() == "inherited"
    assert counting.calls == {"Model.inherited": 1}


def test_a_module_that_is_loaded_already_is_wrapped_too(package: str) -> None:
    module = importlib.import_module(package)
    wrapper, counting = wrapper_of(f"{package}:plain")
    wrapper.install()
    module.plain(1)
    assert counting.calls == {"plain": 1}


def test_the_loader_and_the_source_do_not_change(package: str) -> None:
    wrapper, counting = wrapper_of(f"{package}:plain")
    wrapper.install()
    module = importlib.import_module(package)
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert "class Model" in inspect.getsource(module)
    # and the function of a module that is loaded again is timed again
    assert importlib.reload(module).plain(1) == 2
    assert counting.calls == {"plain": 1}


@pytest.mark.usefixtures("package")
def test_a_frozen_module_is_loaded_as_usual() -> None:
    loader = importlib.machinery.FrozenImporter
    before = loader.exec_module
    wrapper, _ = wrapper_of("__hello__:main")
    wrapper.install()
    importlib.import_module("__hello__")
    # THEN the class is unchanged, and the stage is reported
    assert loader.exec_module is before
    assert len(wrapper.missing()) == 1


def test_a_module_that_raises_while_loading_still_raises(tmp_path: Path, package: str) -> None:
    (tmp_path / f"{package}.py").write_text("1 / 0")
    wrapper, _ = wrapper_of(f"{package}:plain")
    wrapper.install()
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(package)
    assert "never imported" in wrapper.missing()[0]


# --- the script's own -----------------------------------------------------------------------------

SCRIPT = """
    from __future__ import annotations
    import functools

    log = []

    def outer(x):
        def inner():
            return x
        return inner()

    if True:
        async def waits():
            return 1

    class Pipe:
        @staticmethod
        def denoise(x: Undefined) -> Nowhere:
            return x

        @functools.lru_cache
        def cached(self):
            return 3

    result = [outer(1), Pipe.denoise(2), Pipe().cached()]
"""


@pytest.mark.parametrize("module", ["__main__", "my.script"])
def test_functions_of_the_script_itself(module: str) -> None:
    paths = ["outer", "Pipe.denoise", "Pipe.cached", "waits"]
    wrapper, counting = wrapper_of(*(f"{module}:{path}" for path in paths), main="my.script")
    tree, names = wrapper.prepare_main(ast.parse(textwrap.dedent(SCRIPT)), "my.script")
    namespace: dict[str, Any] = {"__name__": "__main__", **names}

    exec(compile(tree, "script.py", "exec", dont_inherit=True), namespace)

    assert namespace["result"] == [1, 2, 3]
    assert counting.calls == {"outer": 1, "Pipe.denoise": 1, "Pipe.cached": 1}
    assert wrapper.missing() == []


def test_line_numbers_of_the_script_do_not_change() -> None:
    source = textwrap.dedent(SCRIPT)
    plain = compile(source, "s", "exec", dont_inherit=True)
    wrapper, _ = wrapper_of("__main__:outer", "__main__:Pipe.denoise", "__main__:waits")
    tree, _ = wrapper.prepare_main(ast.parse(source))
    timed = compile(tree, "s", "exec", dont_inherit=True)

    def first_lines(code: Any) -> list[tuple[str, int]]:
        found = [(code.co_name, code.co_firstlineno)]
        for constant in code.co_consts:
            if inspect.iscode(constant):
                found += first_lines(constant)
        return found

    assert first_lines(plain) == first_lines(timed)


def test_a_function_within_a_function_is_not_a_stage() -> None:
    wrapper, _ = wrapper_of("__main__:inner", "__main__:outer.inner")
    wrapper.prepare_main(ast.parse(textwrap.dedent(SCRIPT)))
    assert len(wrapper.missing()) == 2


# --- what was not found ---------------------------------------------------------------------------


def test_similar_names_are_suggested(package: str) -> None:
    wrapper, _ = wrapper_of(f"{package}:plane", f"{package}:Model.runs", "jsom:loads")
    wrapper.install()
    importlib.import_module(package)

    plane, runs, jsom = wrapper.missing()

    assert f"{package} has no 'plane'; similar names: plain" in plane
    assert "has no 'runs'" in runs
    assert "Model.run" in runs
    assert "was never imported" in jsom
    assert "json" in jsom


def test_callables_that_cannot_be_timed_are_reported(package: str) -> None:
    wrapper, _ = wrapper_of(f"{package}:Model", f"{package}:Model.scale", "builtins:len.__call__")
    wrapper.install()
    importlib.import_module(package)
    model, scale, builtin = wrapper.missing()
    assert "Model is a class: name one of its methods" in model
    assert "int objects cannot be called: name a function or method" in scale
    assert "builtins:len.__call__" in builtin


def test_torch_may_still_be_importing_its_compiler_at_the_end(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a module of torch that another thread is importing, and a stage that never ran
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", types.ModuleType("utils"))
    importlib.import_module(package)
    wrapper, _ = wrapper_of(f"{package}:plain")
    with wrapper.timed_meanwhile():
        assert len(wrapper.never_ran([])) == 1
