"""Loads the object of a name such as ``package.module:name``."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from typing import Any

from stagespan.harness.standalone.fit import ReplayError
from stagespan.harness.standalone.loaded import (
    WRAPPED_AS,
    is_of,
    owner_of,
    parts_of,
    parts_of_class,
)


def load(target: str) -> Any:
    """Return the object. Modules in the working folder are found too. Raises ReplayError.

    A function or class that has no such attribute is called, so ``module:get_pipeline.stage`` is an
    attribute of what it returns.
    """
    module, _, name = target.partition(":")
    if not module or not name:
        raise ReplayError(
            f"{target!r} must be written as module:name, such as my_pipeline:get_stage"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        thing: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            hint = "; start in its folder, or set PYTHONPATH"
        raise ReplayError(f"{target!r} cannot be loaded: {described(error)}{hint}") from error
    for part in name.split("."):
        if _is_factory(thing) and not hasattr(thing, part):
            thing = _made_by(thing, target)
        try:
            parts = parts_of(thing)  # which also include the items of lists and dictionaries
            key: str | int = int(part) if part.isdecimal() else part
            thing = parts[key] if key in parts else getattr(thing, part)
        except Exception as error:
            raise ReplayError(
                f"{target!r} cannot be loaded: {described(error)}; check the name"
            ) from error
    return thing


def load_stage(target: str, kind: str | None = None) -> Any:
    """Return the stage from a factory, which is of the class ``kind`` if that is not None."""
    return load_made(target) if kind is None else load_stage_of(kind, target)


def load_made(target: str) -> Any:
    """Return what a factory returns. An object that is not a function or class is returned."""
    found = load(target)
    return _made_by(found, target) if _is_factory(found) else found


def load_stage_of(kind: str, target: str) -> Any:
    """Return the stage of a class, written as ``module:Class``, from a factory.

    If the object from the factory is not of the class, but one of its attributes is, or one of
    theirs, this is the stage. Raises ReplayError if several are.
    """
    stage = load_made(target)
    if is_of(owner_of(stage), kind) or any(hasattr(stage, name) for name in WRAPPED_AS):
        return stage
    inside = parts_of_class(stage, kind)
    if len(inside) > 1:
        names = ", ".join(".".join((target, *map(str, path))) for path, _ in inside)
        raise ReplayError(
            f"{target!r} leads to {len(inside)} objects of the class {kind.partition(':')[2]!r}, "
            f"one of which is the stage: choose one of {names}"
        )
    return inside[0][1] if inside else stage


def _is_factory(found: Any) -> bool:
    return inspect.isroutine(found) or isinstance(found, type)


def _made_by(factory: Any, target: str) -> Any:
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise ReplayError(f"the factory {target!r} raised {described(error)}") from error
    if made is None:
        raise ReplayError(f"the factory {target!r} returned None; it must return the loaded stage")
    return made


def described(error: BaseException) -> str:
    """Return an exception on one line, with its position if that is in a file of the user."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    file = frames[-1].filename if frames else __file__
    is_users = file != __file__ and not file.startswith("<")
    where = f" ({file}, line {frames[-1].lineno})" if is_users else ""
    return f"{type(error).__name__}: {message[:300]}{where}"
