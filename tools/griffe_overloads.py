"""An extension of griffe, which reads the package for the API reference (mkdocs.yml).

Griffe attaches overloads to the function that follows them. A stub file has no such function, so a
name with overloads would be missing. Here the first overload, which has the docstring, replaces it.
"""

from __future__ import annotations

import copy
from typing import Any

import griffe


class Overloads(griffe.Extension):
    """Creates a function from overloads without an implementation."""

    def on_module_members(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Add the missing functions of a module."""
        for name, overloads in mod.overloads.items():
            if name not in mod.members:
                function = copy.copy(overloads[0])
                function.overloads = list(overloads)
                mod.set_member(name, function)
