"""Names of kernels as the profiler and ncu write them, and which of them are the same kernel."""

from __future__ import annotations

import re

# ncu writes `(int)32` for a template's argument that the profiler writes as `32`.
_CAST = re.compile(r"\((?:unsigned |signed )?(?:int|long|long long|short|char|bool)\)(?=-?\w)")
_RETURNS = re.compile(r"^(?:void|auto)\s+")


def base_name(name: str) -> str:
    """The function's own name: no return type, namespaces, template arguments and parameters.

    It is what ncu compares with `--kernel-name-base function`, its default.
    """
    name = name.replace("(anonymous namespace)", "_anonymous_").replace(
        "{anonymous}", "_anonymous_"
    )
    kept: list[str] = []
    depth = 0
    for letter in _RETURNS.sub("", name.strip()):
        if letter in "<(":
            if letter == "(" and depth == 0 and kept:
                break
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif depth <= 0:
            kept.append(letter)
    parts = "".join(kept).split("::")
    return parts[-1].strip() or parts[0].strip() or name


def one_way(name: str) -> str:
    """The whole name in one way of writing it: without blanks, casts and return type."""
    name = name.strip().replace("<unnamed>", "(anonymous namespace)")
    return re.sub(r"\s+", "", _CAST.sub("", _RETURNS.sub("", name)))


def without_parameters(name: str) -> str:
    """`one_way` without the function's parameters, which ncu or the profiler may leave out."""
    name = one_way(name)
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            return name[:at] if name[at] == "(" and at else name
    return name
