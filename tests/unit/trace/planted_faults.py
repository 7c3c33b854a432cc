"""Faults that are planted in one function while a scenario plays, and must make it fail."""

from __future__ import annotations

import inspect
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

Fault = tuple[Any, str, str, Callable[[Path], None]]
"""A function, what stands in it, what is put there, and the scenario that must then fail."""


def each(faults: Sequence[Fault]) -> pytest.MarkDecorator:
    """One test a fault, given as `fault`."""
    return pytest.mark.parametrize(
        "fault",
        faults,
        ids=[f"{f.__qualname__}: {right} -> {wrong}" for f, right, wrong, _ in faults],
    )


def must_be_found(fault: Fault, folder: Path) -> None:
    """Play the scenario without the fault, with it and without, each in a folder of its own."""
    function, right, wrong, scenario = fault
    assert isinstance(function, FunctionType)

    def play() -> None:
        scenario(Path(tempfile.mkdtemp(dir=folder)))

    # GIVEN a scenario that holds
    play()
    # WHEN one expression is changed
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) == 1
    changed: dict[str, Any] = {}
    exec(  # the module's own names, so that the function finds what it uses
        compile(f"from __future__ import annotations\n{source.replace(right, wrong)}", "x", "exec"),
        function.__globals__,
        changed,
    )
    code = function.__code__
    function.__code__ = changed[function.__name__].__code__
    try:
        # THEN it does not
        with pytest.raises((AssertionError, IndexError, ValueError, KeyError)):
            play()
    finally:
        function.__code__ = code
    play()
