"""Numbers and units as ncu prints them, in whichever country's notation."""

from __future__ import annotations

import re
from collections.abc import Iterable

_BLANKS = " \u00a0\u202f\u2009'\u2019"
_NUMBER = re.compile(rf"[+-]?\d[\d.,{_BLANKS}]*(?:[eE][+-]?\d+)?")
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LEAST, _MOST = 1e-30, 1e30
_BASES = {
    "second": "second",
    "s": "second",
    "sec": "second",
    "byte": "byte",
    "bytes": "byte",
    "B": "byte",
    "hz": "hz",
    "Hz": "hz",
    "cycle": "cycle",
    "inst": "inst",
}
_WHOLE = {"%": ("%", 1.0), "": ("", 1.0), "Ghz": ("hz", 1e9), "Mhz": ("hz", 1e6)}


def decimal_sign(values: Iterable[str]) -> str:
    """Which sign, "." or ",", parts the fraction in a file's numbers; "." where none tells.

    A sign that occurs twice in a number parts thousands, and so does the first of two different
    ones; one that stands before other than three digits, or behind a lone 0, parts the fraction.
    Where the numbers contradict each other the majority counts.
    """
    votes = {".": 0, ",": 0}
    other = {".": ",", ",": "."}
    for value in values:
        value = value.strip().rstrip("%").strip()
        if _NUMBER.fullmatch(value) is None:
            continue
        digits = value.lstrip("+-").split("e")[0].split("E")[0]
        signs = [letter for letter in digits if letter in ".,"]
        if not signs:
            continue
        last = signs[-1]
        if len(set(signs)) == 2:
            votes[last] += 1
        elif len(signs) > 1:
            votes[other[last]] += 1
        else:
            before, after = digits.split(last)
            if len(after) != 3 or before == "0" or len(before.strip(_BLANKS)) > 3:
                votes[last] += 1
    return "," if votes[","] > votes["."] else "."


def number(text: str, decimal: str = ".") -> float | int | None:
    """A number as ncu prints it, an integer where it is one; None for what is no number."""
    text = text.strip().rstrip("%").strip()
    if _NUMBER.fullmatch(text) is None:
        return None
    for sign in _BLANKS + ("." if decimal == "," else ","):
        text = text.replace(sign, "")
    text = text.replace(decimal, ".")
    try:
        value = float(text) if "." in text or "e" in text.lower() else int(text)
    except ValueError:
        return None
    # No counter of a device is beyond these: a damaged number must not become a figure.
    return value if value == 0 or _LEAST < abs(value) < _MOST else None


def in_base_unit(value: float, unit: str) -> tuple[float, str]:
    """A value in seconds, bytes, hertz, or its unit without a prefix: 1.5 "Kbyte" is 1500 "byte".

    ncu's prefixes are powers of 1000. Units that are not known stay as they are.
    """
    factor, names = 1.0, []
    for at, part in enumerate(unit.strip().split("/")):
        name, size = _base(part.strip())
        factor = factor * size if at == 0 else factor / size
        names.append(name)
    named = "/".join(names)
    if named == "cycle/second":
        named = "hz"
    scaled = value if factor == 1.0 else value * factor
    return scaled, named


def _base(unit: str) -> tuple[str, float]:
    if unit in _WHOLE:
        return _WHOLE[unit]
    if unit in _BASES:
        return _BASES[unit], 1.0
    if unit[:1] in _PREFIXES and unit[1:] in _BASES:
        return _BASES[unit[1:]], _PREFIXES[unit[0]]
    return unit, 1.0
