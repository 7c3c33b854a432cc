"""Special methods and forms of call, each in a warm loop: all calls are counted.

Python specialises instructions that run often, and some of those run the code of a function without
calling it. What is counted therefore does not show in a few calls.
"""

from __future__ import annotations

import copy
import functools
import textwrap
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import pytest
from decorating import always, plain, runs

from stagespan import _core
from stagespan.contexts.decorators import decorate

CALLS = 300
SOURCE = """
class Base:
    def __init__(self, value=1):
        self.value = value

class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args)

class Made(metaclass=Meta):
    def __new__(cls, value=1):
        return object.__new__(cls)
    def __init__(self, value=1):
        self.value = value

class Child(Base):
    pass

class Grandchild(Child):
    def __init__(self, value):
        super().__init__(value)

class WithoutParameters:
    def __init__(self):
        pass

class Slots:
    __slots__ = ("value",)
    def __init__(self, value):
        self.value = value

class Descriptor:
    def __get__(self, instance, owner=None):
        return 5
    def __set__(self, instance, value):
        pass

class Everything:
    descriptor = Descriptor()
    def __init__(self):
        self.left = 3
    def __call__(self, value=1):
        return value
    def __getitem__(self, key):
        return key
    def __setitem__(self, key, value):
        pass
    def __delitem__(self, key):
        pass
    def __contains__(self, key):
        return True
    def __len__(self):
        return 4
    def __bool__(self):
        return True
    def __eq__(self, other):
        return True
    def __lt__(self, other):
        return True
    def __hash__(self):
        return 1
    def __add__(self, other):
        return other
    def __radd__(self, other):
        return other
    def __iadd__(self, other):
        return self
    def __neg__(self):
        return self
    def __enter__(self):
        return self
    def __exit__(self, *error):
        return None
    def __iter__(self):
        self.left = 3
        return self
    def __next__(self):
        self.left -= 1
        if not self.left:
            raise StopIteration
        return self.left
    def __repr__(self):
        return "everything"
    def __format__(self, spec):
        return spec
    def __index__(self):
        return 2
    def __copy__(self):
        return self
    def method(self, value):
        return value
    def varied(self, *args, **named):
        return args
    def named(self, *, value):
        return value
    @property
    def prop(self):
        return 1
    @prop.setter
    def prop(self, value):
        pass
    @staticmethod
    def static(value):
        return value
    @classmethod
    def of_class(cls, value):
        return value

class Attributes:
    def __getattr__(self, name):
        return name
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

class AllAttributes:
    def __getattribute__(self, name):
        return name

def setup(self, value):
    self.value = value

class Renamed:
    __init__ = setup

class Lambda:
    __init__ = lambda self, value: None

def function(value, more=2):
    return value
"""
FORMS = {
    "class": "Base(1)",
    "class, default": "Base()",
    "class, keyword": "Base(value=1)",
    "class, star": "Base(*one)",
    "subclass": "Child(1)",
    "super": "Grandchild(1)",
    "metaclass": "Made(1)",
    "no parameters": "WithoutParameters()",
    "slots": "Slots(1)",
    "another name": "Renamed(1)",
    "lambda": "Lambda(1)",
    "partial": "functools.partial(Base, 1)()",
    "map": "list(map(Base, one))",
    "explicit": "Base.__init__(kept, 3)",
    "call": "it(1), it()",
    "items": "it[1]; it[1] = 2; del it[1]",
    "contains": "1 in it",
    "truth": "not it; len(it)",
    "compare": "it == 1; it < 1; sorted([it, it])",
    "hash": "{it: 1}",
    "numbers": "it + 1; 1 + it; -it; list(range(it)); one[it:]",
    "with": "\nwith it: pass",
    "iterate": "\nfor _ in it: pass",
    "text": "repr(it); f'{it}'; f'{it:5}'",
    "copy": "copy.copy(it)",
    "descriptor": "it.descriptor; it.descriptor = 1",
    "property": "it.prop; it.prop = 1",
    "method": "it.method(1); bound(1); it.varied(1, a=1); it.named(value=1)",
    "static": "it.static(1); Everything.static(1); it.of_class(1); Everything.of_class(1)",
    "attributes": "some.name; some.value = 1; some.value; every.name",
    "function": "function(1); function(1, 3); function(value=1); function(*one)",
    "in place": "\nother = it\nother += 1",
}


def forms_in(scope: dict[str, Any]) -> list[Callable[[], None]]:
    """Return a function for each form, which runs it in a loop."""
    made = []
    for statement in FORMS.values():
        body = textwrap.indent(statement.strip(), "        ")
        exec(f"def loop():\n    for _ in range({CALLS}):\n{body}\n", scope)
        made.append(scope.pop("loop"))
    return made


def make_scope() -> dict[str, Any]:
    """Run the source, and make the objects that the forms use."""
    scope: dict[str, Any] = {"functools": functools, "copy": copy, "__name__": "forms"}
    exec(SOURCE, scope)
    scope.update(one=[1], kept=scope["Base"](), it=scope["Everything"]())
    scope.update(some=scope["Attributes"](), every=scope["AllAttributes"]())
    return scope


def decorate_all(scope: dict[str, Any], decorate: Callable[[str, FunctionType], Any]) -> None:
    """Replace all functions of the source by decorated ones, each under its own name."""
    for name, value in list(scope.items()):
        if type(value) is FunctionType:
            scope[name] = decorate(name, value)
        if not isinstance(value, type):
            continue
        for attribute, method in list(vars(value).items()):
            path = f"{name}.{attribute}"
            if type(method) is FunctionType:
                setattr(value, attribute, decorate(path, method))
            elif isinstance(method, (staticmethod, classmethod)):
                kind: Any = type(method)
                setattr(value, attribute, kind(decorate(path, method.__func__)))
            elif isinstance(method, property):
                getter, setter = (
                    decorate(f"{path} {what}", cast(FunctionType, accessor))
                    for what, accessor in (("get", method.fget), ("set", method.fset))
                )
                setattr(value, attribute, property(getter, setter))
    scope["bound"] = scope["it"].method


def run_all(scope: dict[str, Any]) -> None:
    for loop in forms_in(scope):
        loop()


def expected_counts() -> Counter[str]:
    """Return how often each function runs, counted by plain wrappers."""
    counts: Counter[str] = Counter()

    def counting(name: str, function: FunctionType) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*args, **named)

        return call

    scope = make_scope()
    decorate_all(scope, counting)
    run_all(scope)
    return counts


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("context", [plain, always])
def test_each_call_is_counted(context: Callable[[str], _core.Span], is_warm: bool) -> None:
    # GIVEN special methods and functions, some of whose calls have run before they are decorated
    scope = make_scope()
    scope["bound"] = scope["it"].method
    loops = forms_in(scope)
    for loop in loops if is_warm else ():
        loop()
    made: dict[str, str] = {}

    def timed(name: str, function: FunctionType) -> FunctionType:
        made[name] = f"{context.__name__} {is_warm} {name}"
        return decorate(context(made[name]), function)

    decorate_all(scope, timed)
    for loop in loops:
        loop()
    expected = expected_counts()
    assert len(expected) > 40
    assert min(expected.values()) >= CALLS
    assert {name: runs(stage) for name, stage in made.items() if runs(stage)} == expected
