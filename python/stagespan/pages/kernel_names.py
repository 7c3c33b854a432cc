"""Shortens the C++ names of kernels, so that they stay distinct in a table."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import msgspec

from stagespan.pages.escaping import one_line

# The parts of a name that are written: its functor, its own template arguments, those of nested
# names, and its parameters.
_FUNCTOR, _OWN_ARGUMENTS, _ARGUMENTS, _PARAMETERS, _FULL = range(5)
_LONGEST = 8_000
_FEWEST_WORDS = 4
_DEEPEST = 40
# Anonymous namespaces, and suffixes that compilers add.
_NO_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|\{anonymous\}|<unnamed>)::")
_ENDING = re.compile(r"(?:\.kd|\s*\[clone [^\]]*\]|\s+const)+$")
_CPP = re.compile(r"^(?:void |[\w:~]+(?:<.*>)?\(|[\w:~]+<)", re.DOTALL)
_MANGLED = re.compile(r"^_Z(?:N\d|\d)")
# Template arguments that describe how a kernel runs, and not its function.
_HOW = re.compile(
    r"^(?:-?\d+u?l{0,2}|true|false|\(.*\)-?\d+|(?:unsigned )?(?:int|long)"
    r"|(?:Array|array)<char\*.*|(?:Trivial)?OffsetCalculator\b.*"
    r"|(?:Load|Store)With(?:out)?Cast\b.*|\w*TensorListMetadata<.*)$"
)
# Functions and templates that only forward to their arguments.
_FORWARDING = re.compile(r"^(?:gpu_kernel_impl\w*|Kernel2?|ReduceOp|device_kernel)$")
_SUFFIX = re.compile(r"(?<=\w)_(?:kernel|kernel_cuda|kernel_impl)$")


class _Part(msgspec.Struct):
    """A name between two `::` with the brackets after it."""

    name: str = ""
    groups: list[tuple[str, list[list[_Part]]]] = msgspec.field(default_factory=list)

    def group(self, bracket: str) -> list[list[_Part]] | None:
        """Return the arguments in the first group of these brackets."""
        return next((of for opened, of in self.groups if opened == bracket), None)


def kernel_label(name: str) -> str:
    """Return a short name of a kernel, such as `vectorized_elementwise<CUDAFunctor_add<float>>`.

    Other names, such as those of operators, are not changed.
    """
    return _label(name, _FUNCTOR)


def labels(names: Iterable[str], most: int = 60) -> dict[str, str]:
    """Return a label of at most `most` characters for each name, or twice that for sentences.

    Different names have different labels.
    """
    distinct = list(dict.fromkeys(names))
    detail = dict.fromkeys(distinct, _FUNCTOR)
    shown_as = {name: one_line(_label(name, _FUNCTOR)) for name in distinct}
    for _ in range(_FULL):
        ambiguous = [
            each for group in _same_labels(shown_as) for each in group if detail[each] < _FULL
        ]
        if not ambiguous:
            break
        for name in ambiguous:
            detail[name] += 1
            shown_as[name] = one_line(_label(name, detail[name]))
    return _cut(shown_as, most)


def _same_labels(shown_as: dict[str, str]) -> list[list[str]]:
    """Return the groups of names with the same label."""
    groups: dict[str, list[str]] = {}
    for name, label in shown_as.items():
        groups.setdefault(label, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _cut(shown_as: dict[str, str], most: int) -> dict[str, str]:
    """Return labels that fit. If several begin and end alike, they show the difference."""
    texts = {name: _ends(label, most) for name, label in shown_as.items()}
    for group in _same_labels(texts):
        at = _first_difference([shown_as[name] for name in group])
        for name in group:
            texts[name] = _around(shown_as[name], at, most)
    for group in _same_labels(texts):
        for number, name in enumerate(group[1:], 2):
            ending = f" ({number})"
            texts[name] = texts[name][: most - len(ending)] + ending
    return texts


def _ends(label: str, most: int) -> str:
    # Unlike names, sentences can be broken into lines.
    if label.count(" ") > _FEWEST_WORDS and "<" not in label:
        most *= 2
    if len(label) <= most:
        return label
    tail = most // 3
    return f"{label[: most - 3 - tail]}...{label[len(label) - tail :]}"


def _first_difference(texts: list[str]) -> int:
    first, last = min(texts), max(texts)
    shorter = min(len(first), len(last))
    return next((at for at in range(shorter) if first[at] != last[at]), shorter)


def _around(label: str, at: int, most: int) -> str:
    """Return the beginning of a label, and the text at a position in it."""
    head = most // 3
    begin = max(at - 4, head)
    width_left = most - head - 6
    rest = label[begin : begin + width_left]
    behind = "..." if begin + width_left < len(label) else ""
    return f"{label[:head]}{'...' if begin > head else ''}{rest}{behind}"


@functools.lru_cache(maxsize=4096)
def _label(name: str, detail: int) -> str:
    if detail == _FULL or len(name) > _LONGEST:
        return name
    if _MANGLED.match(name):
        return _unmangled(name)
    text = _ENDING.sub("", _NO_NAMESPACE.sub("", name)).replace("operator()", "operator_call")
    if _CPP.match(text) is None or (text[-1] not in ")>" and not text.startswith("void ")):
        return name
    arguments = _parsed(text)
    if arguments is None or len(arguments) != 1:
        return name
    parts = _without_return_type(arguments[0])
    if not parts or " " in parts[-1].name.strip():
        return name
    return _written(parts, detail, top=True) or name


def _unmangled(name: str) -> str:
    """Return the innermost name in a mangled name, with its templates."""
    at, longest = (3 if name[2] == "N" else 2), ""
    while (length := re.match(r"\d{1,3}", name[at:])) is not None:
        at += length.end()
        word = name[at : at + int(length[0])]
        at += int(length[0])
        longest = longest if word.startswith("_GLOBAL__N") else word
    return longest or name


def _parsed(text: str) -> list[list[_Part]] | None:
    """Return the arguments, each as the parts of a qualified name; None for unclosed brackets."""
    stack: list[tuple[str, list[list[_Part]]]] = [("", [[_Part()]])]
    at = 0
    while at < len(text):
        letter = text[at]
        opened, arguments = stack[-1]
        part = arguments[-1][-1]
        if letter in "<({":
            if len(stack) > _DEEPEST:
                return None
            stack.append((letter, [[_Part()]]))
        elif letter in ">)}" and opened and letter == {"<": ">", "(": ")", "{": "}"}[opened]:
            stack.pop()
            stack[-1][1][-1][-1].groups.append((opened, arguments))
        elif letter in ")}":
            return None
        elif letter == "," and opened:
            arguments.append([_Part()])
        elif text.startswith("::", at):
            arguments[-1].append(_Part())
            at += 1
        elif part.groups and letter != " ":
            # The text after brackets, such as the number of a lambda or a `const&`.
            part.groups.append(("", [[_Part(letter)]]))
        elif letter != " " or part.name:
            part.name += letter
        at += 1
    return stack[0][1] if len(stack) == 1 else None


def _without_return_type(parts: list[_Part]) -> list[_Part]:
    """Return `a::b` for `void a::b` or `std::enable_if<...>::type a::b`."""
    for at in range(len(parts) - 1, -1, -1):
        name = parts[at].name.strip()
        if " " in name and not name.endswith(" const"):
            kept = _Part(name.rsplit(" ", 1)[1], parts[at].groups)
            return [kept, *parts[at + 1 :]]
    return parts


def _written(parts: list[_Part], detail: int, top: bool = False) -> str:
    lambdas = [part for part in parts if part.group("{") is not None]
    if lambdas and not top:
        return _functor(parts, lambdas, detail)
    last = parts[-1]
    name = last.name.strip()
    inner = last.group("<")
    inner_detail = _FUNCTOR if detail == _OWN_ARGUMENTS else detail
    arguments = [text for part in inner or [] if (text := _written(part, inner_detail))]
    if detail == _FUNCTOR:
        passed = [text for text in arguments if _HOW.match(text) is None] or arguments[:1]
        if _FORWARDING.match(name) and passed:
            return max(passed, key=lambda text: ("<" in text or "(" in text, len(text)))
        arguments = list(dict.fromkeys(passed))
        name = _SUFFIX.sub("", name) if arguments else name
    text = f"{name}<{', '.join(arguments)}>" if arguments else name
    if detail > _FUNCTOR:
        around = [
            _written([part], inner_detail) for part in parts[:-1] if part.group("<") is not None
        ]
        text = "::".join([*around, text])
        if not top:
            text += "".join(of[0][0].name for opened, of in last.groups if not opened)
    if top and detail == _PARAMETERS:
        parameters = [_written(part, detail) for part in last.group("(") or []]
        text += f"({', '.join(parameters)})"
    return text.strip()


def _functor(parts: list[_Part], lambdas: list[_Part], detail: int) -> str:
    """Return a label for a lambda: the enclosing function and the types of its parameters."""
    outer = [p for p in parts if p.name.strip() and not p.name.startswith("operator_call")]
    if not outer:
        return ""
    owner = outer[-1]
    name = owner.name.strip()
    taken = lambdas[-1].group("{") or []
    inside = taken[0][0].group("(") if taken and taken[0] else None
    types = [_written(part, detail) for part in inside or []]
    arguments = [_written(part, detail) for part in owner.group("<") or []]
    if detail == _FUNCTOR:
        if _FORWARDING.match(name) and arguments:
            return arguments[0]
        name = _SUFFIX.sub("", name)
        types, arguments = list(dict.fromkeys(types)), list(dict.fromkeys(arguments))
        return f"{name}({', '.join(types or arguments)})"
    numbers = "".join(_number(part) for part in lambdas)
    template = f"<{', '.join(arguments)}>" if arguments else ""
    return f"{name}{template}{numbers}({', '.join(types)})"


def _number(part: _Part) -> str:
    """Return `#2` for `{lambda()#2}`."""
    inside = part.group("{") or [[_Part()]]
    return "".join(of[0][0].name for opened, of in inside[0][0].groups if not opened)
