"""Loads the object of a name such as ``package.module:name``."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from typing import Any

from stagespan.harness.standalone.fit import ReplayError


def load(target: str) -> Any:
    """Return the object. Modules in the working folder are found too. Raises ReplayError."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ReplayError(
            f"{target!r} must be written as module:name, such as my_pipeline:get_stage"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            hint = "; start in its folder, or set PYTHONPATH"
        raise ReplayError(f"{target!r} cannot be loaded: {described(error)}{hint}") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ReplayError(
            f"{target!r} cannot be loaded: {described(error)}; check the name"
        ) from error
    return found


def load_stage(target: str) -> Any:
    """Return the stage from a factory. An object that is not a function or class is the stage."""
    factory = load(target)
    if not (inspect.isroutine(factory) or isinstance(factory, type)):
        return factory
    try:
        stage = factory()
    except (Exception, SystemExit) as error:
        raise ReplayError(f"the factory {target!r} raised {described(error)}") from error
    if stage is None:
        raise ReplayError(f"the factory {target!r} returned None; it must return the loaded stage")
    return stage


def described(error: BaseException) -> str:
    """Return an exception on one line, with its position if that is in a file of the user."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    file = frames[-1].filename if frames else __file__
    is_users = file != __file__ and not file.startswith("<")
    where = f" ({file}, line {frames[-1].lineno})" if is_users else ""
    return f"{type(error).__name__}: {message[:300]}{where}"
