"""Code objects that time a function on Python 3.10 and 3.11, where calls cannot be intercepted.

A trampoline replaces the `__code__` of a function. It has the same parameters, the same free
variables and the same kind (function, coroutine, generator, async generator), and it contains the
original code as a constant. Each call creates the timed function from this constant:

    def denoise(self, latents, /, *, steps, **options):
        try: import stagespan.trampoline as here
        except Exception: here = None           # a finalizer at the end of the interpreter
        def target(): ...                       # the original code, with the same closure
        return (
            target(self, latents, steps=steps, **options)
            if here is None or here.compiling()
            else here.call_timed(
                here.spans[KEY], target, (self, latents), {"steps": steps, **options}
            )
        )

Therefore nothing outside the function refers to it, so it is freed like any other function. The
function keeps its own defaults, torch.compile finds only plain Python to inline, and a copy made by
cloudpickle works in another process. KEY contains the parameters of the context, not its identity.
"""

from __future__ import annotations
import __future__

import ast
import collections
import contextlib
import inspect
import keyword
import sys
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING

from stagespan import _core, dynamo

if TYPE_CHECKING:
    from stagespan._core import Span

# Trampolines use these names when they run.
compiling = dynamo.compiling
call_timed = _core.call_timed
timed_coroutine = _core.timed_coroutine
timed_generator = _core.timed_generator
timed_async_generator = _core.timed_async_generator
anything = BaseException
exhausted = StopAsyncIteration

# "stagespan.trampoline:debug:100:name", with the digits of reset_peak_memory, capture_memory and
# compile_safe. It is a string, because strings cache their hash.
Key = str

_MARK = "stagespan.trampoline:"
_KINDS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_INHERITED = inspect.CO_ITERABLE_COROUTINE
for _feature in __future__.all_feature_names:
    _INHERITED |= getattr(__future__, _feature).compiler_flag
_MOST_KEPT = 1024


class _Spans(dict[Key, "Span"]):
    """The contexts of this process by key. A key from another process creates a new context."""

    def __missing__(self, key: Key) -> Span:
        _, kind, digits, name = key.split(":", 3)
        reset_peak_memory, capture_memory, compile_safe = (digit == "1" for digit in digits)
        made: Span
        if kind == "debug":
            made = _core.ProfilingContext4Debug(
                name, reset_peak_memory, capture_memory=capture_memory
            )
        elif kind == "profiling":
            made = _core.ProfilingContext(
                name, reset_peak_memory, capture_memory=capture_memory, compile_safe=compile_safe
            )
        else:
            made = _core.span(name, compile_safe=compile_safe)
        return self.setdefault(key, made)


spans = _Spans()


def key_of(span: Span) -> Key:
    """Return the constant that identifies `span` in a trampoline, and store `span` under it."""
    digits = (span.reset_peak_memory, span.capture_memory, span.compile_safe)
    key = f"{_MARK}{span.kind}:{''.join(str(int(digit)) for digit in digits)}:{span.name}"
    spans.setdefault(key, span)
    return key


def can_time(code: CodeType) -> bool:
    """Return whether a trampoline can be written for `code`: its names must be identifiers."""
    names = (*_parameters(code), *code.co_freevars)
    return code.co_freevars == tuple(sorted(code.co_freevars)) and all(
        name.isidentifier() and not keyword.iskeyword(name) for name in names
    )


def timed_code(code: CodeType, qualname: str, key: Key) -> CodeType:
    """Return the trampoline that runs `code` under the context of `key`.

    The same arguments give the same object while it is among the latest 1,024. torch.compile
    identifies code objects by identity, so it does not have to compile again.
    """
    # The cached trampoline refers to `code`, so no other object can get its id meanwhile.
    recent = (id(code), qualname, key)
    kept = _kept.get(recent)
    if kept is None:
        # If another thread has made the same one meanwhile, that one is used.
        kept = _kept.setdefault(recent, _compile(code, qualname, key))
    with contextlib.suppress(KeyError):  # another thread removed it meanwhile
        _kept.move_to_end(recent)
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return kept


def layers(code: CodeType) -> tuple[CodeType, tuple[Key, ...]]:
    """Return the code below all trampolines, and their keys from the innermost outwards."""
    keys: list[Key] = []
    while True:
        key = next((const for const in code.co_consts if _is_key(const)), None)
        below = next(_codes(code), None)
        if key is None or below is None:
            return code, tuple(reversed(keys))
        keys.append(key)
        code = below


_kept: collections.OrderedDict[tuple[int, str, Key], CodeType] = collections.OrderedDict()


def _is_key(const: object) -> bool:
    return isinstance(const, str) and const.startswith(_MARK)


def _parameters(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


class _Layout:
    """The parameters of a code object as source text, for a definition and for a call."""

    def __init__(self, code: CodeType) -> None:
        rest = iter(_parameters(code))

        def take(count: int) -> list[str]:
            return [next(rest) for _ in range(count)]

        before_slash = take(code.co_posonlyargcount)
        positional = take(code.co_argcount - code.co_posonlyargcount)
        keyword_only = take(code.co_kwonlyargcount)
        star = [f"*{name}" for name in take(bool(code.co_flags & inspect.CO_VARARGS))]
        stars = [f"**{name}" for name in take(bool(code.co_flags & inspect.CO_VARKEYWORDS))]

        slash = ["/"] if before_slash else []
        bare_star = ["*"] if keyword_only and not star else []
        definition = [*before_slash, *slash, *positional, *star, *bare_star, *keyword_only, *stars]
        ordered = [*before_slash, *positional, *star]
        self.definition = ", ".join(definition)
        self.call = ", ".join([*ordered, *(f"{name}={name}" for name in keyword_only), *stars])
        self.args = f"({''.join(f'{name}, ' for name in ordered)})"
        by_name = ", ".join([*(f"{name!r}: {name}" for name in keyword_only), *stars])
        self.kwargs = f"{{{by_name}}}"


class _Names:
    """Local names for the trampoline that the function itself does not use."""

    def __init__(self, code: CodeType) -> None:
        self._taken = {*_parameters(code), *code.co_freevars}

    def __getitem__(self, name: str) -> str:
        while name in self._taken:
            name = f"_{name}"
        return name


def _source(code: CodeType, key: Key) -> str:
    layout, own = _Layout(code), _Names(code)
    target, here = own["target"], own["here"]
    kind = code.co_flags & _KINDS
    run = {
        inspect.CO_COROUTINE: "timed_coroutine",
        inspect.CO_GENERATOR: "timed_generator",
        inspect.CO_ASYNC_GENERATOR: "timed_async_generator",
    }.get(kind, "call_timed")
    call = (
        f"{target}({layout.call}) if {here} is None or {here}.compiling() else "
        f"{here}.{run}({here}.spans[{key!r}], {target}, {layout.args}, {layout.kwargs})"
    )
    if kind == inspect.CO_ASYNC_GENERATOR:
        body = _async_delegation(call, own)
    else:
        before = {inspect.CO_COROUTINE: "await ", inspect.CO_GENERATOR: "yield from "}
        body = [f"return ({before.get(kind, '')}({call}))"]
    is_async = kind in (inspect.CO_COROUTINE, inspect.CO_ASYNC_GENERATOR)
    lines = [
        f"def outer({', '.join(code.co_freevars)}):",
        f"  {'async ' if is_async else ''}def function({layout.definition}):",
        # This costs a third of `from ... import`.
        f"    try: import {__name__} as {here}",
        # If a finalizer runs the function while the interpreter ends, it runs untimed.
        f"    except Exception: {here} = None",
        # This only names the free variables. The original code replaces the code of this function.
        f"    def {target}(): {'; '.join(code.co_freevars) or 'pass'}",
        *(f"    {line}" for line in body),
    ]
    return "\n".join(lines)


def _async_delegation(call: str, own: _Names) -> list[str]:
    """Return the source of what `yield from` would do in an async generator.

    The error is passed on outside of `except`, so that it does not become the context of later
    exceptions of the function. It is dropped at once, because its traceback refers to this frame.
    """
    here, source, value, error = own["here"], own["source"], own["value"], own["error"]
    anything, exhausted = own["anything"], own["exhausted"]
    return [
        f"{anything} = BaseException if {here} is None else {here}.anything",
        f"{exhausted} = StopAsyncIteration if {here} is None else {here}.exhausted",
        f"{source} = {call}",
        "try:",
        f"  {value} = await {source}.__anext__()",
        "  while True:",
        f"    {error} = None",
        "    try:",
        f"      {value} = yield {value}",
        f"    except {anything} as {own['caught']}:",
        f"      {error} = {own['caught']}",
        f"    if {error} is None:",
        f"      {value} = await {source}.asend({value})",
        "    else:",
        "      try:",
        f"        {value} = await {source}.athrow({error})",
        # An event loop that shuts down may have closed it first. On 3.10, athrow then returns None.
        f"        if {source}.ag_frame is None: raise {error}",
        "      finally:",
        f"        {error} = None",
        f"except {exhausted}:",
        "  return",
    ]


def _compile(code: CodeType, qualname: str, key: Key) -> CodeType:
    tree = ast.parse(_source(code, key))
    line = code.co_firstlineno
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            # Everything is on the line of the definition, which tracebacks show.
            vars(node).update(lineno=line, end_lineno=line, col_offset=-1, end_col_offset=-1)
    module = compile(tree, code.co_filename, "exec", dont_inherit=True)
    outer = next(_codes(module))
    trampoline = next(_codes(outer))
    placeholder = next(_codes(trampoline))
    if trampoline.co_freevars != code.co_freevars or placeholder.co_freevars != code.co_freevars:
        raise ValueError(f"the free variables of {qualname} are in an order that cannot be kept")
    consts: list[object] = []
    for const in trampoline.co_consts:
        if const is placeholder:
            consts.append(code)
        elif isinstance(const, str) and const.startswith("outer.<locals>."):
            consts.append(qualname)  # where 3.10 stores the qualified name of a nested function
        else:
            consts.append(const)
    flags = trampoline.co_flags & ~_INHERITED | code.co_flags & _INHERITED
    made = trampoline.replace(
        co_consts=tuple(consts),
        co_name=code.co_name,
        co_firstlineno=code.co_firstlineno,
        co_flags=flags,
    )
    if sys.version_info >= (3, 11):
        made = made.replace(co_qualname=code.co_qualname)
    return made


def _codes(code: CodeType) -> Iterator[CodeType]:
    return (const for const in code.co_consts if isinstance(const, CodeType))
