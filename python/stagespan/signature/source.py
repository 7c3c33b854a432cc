"""Formats Python source for the generated scripts, with line breaks like those of formatters."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LINE = 100
MOST_NUMBERS = 16
"""Longer lists of numbers are written as text, because a formatter gives each item a line."""
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Brackets:
    """Brackets with items, each of which can have a prefix such as ``"key": `` or ``name=``."""

    opening: str
    items: Sequence[tuple[str, Source]]
    closing: str
    one_tuple: bool = False

    @property
    def is_call(self) -> bool:
        """Whether all items may be on one line inside the brackets, as in formatted calls."""
        return self.opening[:1].isidentifier()


Source = str | Brackets


def flat(source: Source) -> str:
    """Return the source on one line."""
    if isinstance(source, str):
        return source
    inner = ", ".join(prefix + flat(item) for prefix, item in source.items)
    return source.opening + inner + ("," if source.one_tuple else "") + source.closing


def render(source: Source, indent: int, before: int = 0, after: int = 0) -> str:
    """Return the source with line breaks.

    ``before`` columns precede its first line, and ``after`` columns follow its last line, such as a
    comma.
    """
    line = flat(source)
    if isinstance(source, str) or not source.items or before + len(line) + after <= LINE:
        return line
    inside = " " * (indent + 4)
    body = ", ".join(prefix + flat(item) for prefix, item in source.items)
    if source.is_call and len(inside) + len(body) <= LINE:
        return f"{source.opening}\n{inside}{body}\n{' ' * indent}{source.closing}"
    lines = [source.opening]
    for prefix, item in source.items:
        text = render(item, indent + 4, indent + 4 + len(prefix), 1)
        lines.append(f"{inside}{prefix}{text},")
    lines.append(f"{' ' * indent}{source.closing}")
    return "\n".join(lines)


def quoted(text: str) -> str:
    """Return a string literal in double quotes, or in single quotes if these need fewer escapes."""
    # If the text begins with a double quote, repr always encloses it in single quotes.
    body = repr(f'"{text}')[2:-1]
    body = _ESCAPE.sub(lambda found: "'" if found[1] == "'" else found[0], body)
    quote = "'" if body.count('"') > body.count("'") else '"'
    return quote + body.replace(quote, f"\\{quote}") + quote


def literal(value: Any) -> Source:
    """Return a literal for a number, a string, None or a list of these."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (list, tuple)):
        if is_long(value):
            return numbers(value)
        return Brackets("[", [("", literal(item)) for item in value], "]")
    if isinstance(value, dict):
        return Brackets("{", [(f"{quoted(str(k))}: ", literal(v)) for k, v in value.items()], "}")
    if isinstance(value, float) and repr(value) in ("inf", "-inf", "nan"):
        return f'float("{value}")'
    return repr(value)


def is_long(values: Sequence[Any]) -> bool:
    """Whether values are written by `numbers`."""
    return len(values) > MOST_NUMBERS and all(type(value) in (int, float) for value in values)


def numbers(values: Sequence[float]) -> Brackets:
    """Return a call that makes a list of numbers from texts of several numbers each."""
    return call("numbers", *map(quoted, textwrap.wrap(" ".join(map(repr, values)), 64)))


def call(function: str, *arguments: Source, **named: Source) -> Brackets:
    """Return a call of a function."""
    items = [("", argument) for argument in arguments]
    return Brackets(f"{function}(", items + [(f"{k}=", v) for k, v in named.items()], ")")
