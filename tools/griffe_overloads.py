"""An extension of griffe, which reads the package for the API reference (mkdocs.yml).

Griffe attaches overloads to the function that follows them. A stub file has none, so that a name
with overloads would be missing: here the first overload, which has the docstring, stands for it.
"""

from __future__ import annotations

import copy
from typing import Any

import griffe


class Overloads(griffe.Extension):
    """Make a function of overloads that have no implementation."""

    def on_module_members(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Add what a module lacks."""
        for name, overloads in mod.overloads.items():
            if name not in mod.members:
                function = copy.copy(overloads[0])
                function.overloads = list(overloads)
                mod.set_member(name, function)
