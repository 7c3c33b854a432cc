"""Finds classes, functions and attributes by their names, without imports and code of users."""

from __future__ import annotations

import collections
import functools
import os
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

# A file can name what the stage will call. Of the standard library, these modules have functions
# and classes that a stage may need, and none that runs a program or changes a file.
HARMLESS_FUNCTIONS = ("math", "cmath", "_operator", "statistics", "itertools", "random", "time")
HARMLESS_BUILTINS = (
    *("abs", "all", "any", "bin", "chr", "divmod", "format", "hash", "hex", "isinstance", "iter"),
    *("len", "max", "min", "next", "oct", "ord", "pow", "repr", "round", "sorted", "sum"),
)
HARMLESS_CLASSES = (
    *("array", "builtins", "collections", "_collections", "dataclasses", "datetime", "decimal"),
    *("enum", "fractions", "itertools", "numbers", "pathlib", "random", "threading", "types"),
    *("typing", "uuid", "zoneinfo"),
)
# Where torch.compile, torch.nn.parallel and peft keep the module that they wrap.
WRAPPED_AS = ("_orig_mod", "module", "base_model", "__wrapped__")
MOST_ATTRIBUTES = 4096
"""The most attributes of a stage and of its parts that are searched for one object."""


def main_name() -> str | None:
    """Return the name by which another program imports the running one; None if there is none."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    stem = os.path.splitext(os.path.basename(str(getattr(main, "__file__", "") or "")))[0]
    return stem if stem.isidentifier() else None


def loaded_modules(name: str) -> Iterator[Any]:
    """Yield the loaded modules of a name: at most one, and the running program if it has it."""
    if name in sys.modules:
        yield sys.modules[name]
    else:  # such as torch._C._nn
        above, _, last = name.rpartition(".")
        part = getattr(sys.modules.get(above), "__dict__", {}).get(last)
        if isinstance(part, types.ModuleType):
            yield part
    if name == main_name():
        yield sys.modules["__main__"]


def find_loaded(path: str) -> Any:
    """Return what a loaded module has under ``package.module:Outer.inner``, or None."""
    module, _, names = path.partition(":")
    first, *others = names.split(".")
    for holder in loaded_modules(module):
        # The attribute of a module or class itself: __getattr__ could import another module.
        found = getattr(holder, "__dict__", {}).get(first)
        for name in others:
            found = member_of(found, name) if isinstance(found, type) else None
        if found is not None:
            return found
    return None


def member_of(kind: type, name: str) -> Any:
    """Return a function or class that a class or one of its bases contains, or None."""
    for base in type.__dict__["__mro__"].__get__(kind):
        if name in vars(base):
            found = vars(base)[name]
            return found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
    return None


def path_of(value: Any) -> str | None:
    """Return the path under which `find_loaded` finds a class or function; None if it does not."""
    module = getattr(value, "__module__", None)
    # Operators of torch have a qualified name under which they are not found.
    for name in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)):
        if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
            continue
        if module in ("__main__", "__mp_main__"):
            module = main_name() or module
        path = f"{module}:{name}"
        if find_loaded(path) is value:
            return path
    return None


def is_standard(value: Any) -> bool:
    """Whether a class or function belongs to the standard library."""
    module = str(getattr(value, "__module__", None))
    return module.partition(".")[0] in sys.stdlib_module_names


def is_harmless(value: Any) -> bool:
    """Whether a signature file may name a class or function, which is then passed to the stage."""
    if not is_standard(value):
        return True
    module = value.__module__
    if isinstance(value, type):
        return module in HARMLESS_CLASSES
    if module == "builtins":
        return getattr(value, "__name__", None) in HARMLESS_BUILTINS
    return module in HARMLESS_FUNCTIONS


def find_function(path: str) -> Any:
    """Return a loaded function. Raises LookupError if it is not loaded, or must not be used."""
    function = find_loaded(path)
    if not callable(function) or isinstance(function, type):
        module = path.partition(":")[0]
        raise LookupError(f"the function {path!r} is not loaded; import {module!r} first")
    if not is_harmless(function):
        raise LookupError(f"the function {path!r} is not one that a signature file may name")
    return function


def bound_method(owner: Any, name: str) -> Any:
    """Return a method of an object or a class. Raises LookupError if it has no such method."""
    kind = owner if isinstance(owner, type) else type(owner)
    for base in type.__dict__["__mro__"].__get__(kind):
        member = vars(base).get(name)
        if member is None:
            continue
        is_function = callable(member) or isinstance(member, (classmethod, staticmethod))
        if not is_function or not hasattr(member, "__get__") or is_standard(base):
            break
        return member.__get__(None if owner is kind else owner, kind)
    raise LookupError(f"the class {kind.__qualname__!r} has no method {name!r}")


def attribute_path(owner: Any, wanted: Any) -> list[Any] | None:
    """Return the names and indexes that lead from an object to a part of it; None if none do."""
    waiting: collections.deque[tuple[Any, list[Any]]] = collections.deque()
    if owner is not None:
        waiting.append((owner, []))
    seen: set[int] = set()
    while waiting and len(seen) < MOST_ATTRIBUTES:
        value, path = waiting.popleft()
        if value is wanted:
            return path
        if id(value) in seen:
            continue
        seen.add(id(value))
        waiting.extend((part, [*path, name]) for name, part in parts_of(value).items())
    return None


def is_of(value: Any, kind: str) -> bool:
    """Whether an object is of a class ``module:Class``, or of one derived from it.

    A class of a program that ran as ``__main__`` can be in a module of any name.
    """
    module, _, name = kind.partition(":")
    modules = (module, "__main__", "__mp_main__")
    return any(
        base.__qualname__ == name and (base.__module__ in modules or module in modules[1:])
        for base in type.__dict__["__mro__"].__get__(type(value))
    )


def parts_of_class(owner: Any, kind: str) -> list[tuple[list[Any], Any]]:
    """Return the parts of an object that are of a class, each with the path that leads to it."""
    waiting: collections.deque[tuple[Any, list[Any]]] = collections.deque([(owner, [])])
    pairs: list[tuple[list[Any], Any]] = []
    seen: set[int] = set()
    while waiting and len(seen) < MOST_ATTRIBUTES:
        value, path = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if path and is_of(value, kind):
            pairs.append((path, value))
        else:
            waiting.extend((part, [*path, name]) for name, part in parts_of(value).items())
    return pairs


def part_at(owner: Any, path: Sequence[Any]) -> Any:
    """Return the part of an object to which a path leads. Raises LookupError if it has none."""
    part = owner
    for name in path:
        parts = parts_of(part)
        if not isinstance(name, (str, int)) or name not in parts:
            shown = ".".join(map(str, path))
            raise LookupError(f"the stage has no {shown!r}; pass the stage that was captured")
        part = parts[name]
    return part


def parts_of(value: Any) -> dict[Any, Any]:
    """Return attributes, items and submodules of an object. Runs no code of its class."""
    if type(value) in (list, tuple):
        return dict(enumerate(value))
    if type(value) is dict:
        return {name: part for name, part in value.items() if isinstance(name, (str, int))}
    if isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return {}
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is not dict:
        return {}
    modules = attributes.get("_modules")
    return {**attributes, **modules} if type(modules) is dict else dict(attributes)


def owner_of(stage: Any) -> Any:
    """Return the object whose method a stage is, or the stage itself."""
    while isinstance(stage, functools.partial):
        stage = stage.func
    return getattr(stage, "__self__", stage)
