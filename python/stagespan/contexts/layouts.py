"""The parameters and free variables of a code object, as source text for code that replaces it.

The source uses placeholders for the names, and `Layout.renamed` puts the names into the compiled
code. So any name works, also one that is not an identifier or that the source itself uses.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
from collections.abc import Iterator
from types import CodeType

CALLS = {
    0: "call_timed",
    inspect.CO_COROUTINE: "timed_coroutine",
    inspect.CO_GENERATOR: "timed_generator",
    inspect.CO_ASYNC_GENERATOR: "timed_async_generator",
}
"""The functions of `_core` that time the call of a function, by the flags of its kind."""
KINDS = sum(CALLS)
_INHERITED = inspect.CO_ITERABLE_COROUTINE
for _feature in __future__.all_feature_names:
    _INHERITED |= getattr(__future__, _feature).compiler_flag


class Layout:
    """The parameters and the free variables of `code`.

    Attributes:
        definition: The parameters as source text, for a `def`.
        call: The arguments as source text, for a call with the same arguments.
        kind: The flags of the kind of function, of `KINDS`.
        timed_call: The last arguments of the function in `CALLS` as source text.
        before: What has to be before its call as source text.
        parameters: The names of the parameters.
        free: Placeholders of the free variables. The compiler keeps their order, and sorts them
            before all names with a letter after ``_stagespan_``.
    """

    def __init__(self, code: CodeType) -> None:
        self._code = code
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & inspect.CO_VARARGS)
        count += bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.parameters = code.co_varnames[:count]
        self.free = tuple(f"_stagespan_{i:05}" for i in range(len(code.co_freevars)))
        placeholders = tuple(f"_stagespan_p{i}" for i in range(count))
        self._names = dict(zip(placeholders, self.parameters, strict=True))
        unused = iter(placeholders)

        def take(count: int) -> list[str]:
            return [next(unused) for _ in range(count)]

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
        self.kind = code.co_flags & KINDS
        self.timed_call = self.call
        if self.kind in (inspect.CO_GENERATOR, inspect.CO_ASYNC_GENERATOR):
            by_name = ", ".join([*(f"{name!r}: {name}" for name in keyword_only), *stars])
            self.timed_call = f"({''.join(f'{name}, ' for name in ordered)}), {{{by_name}}}"
        self.before = "yield from " if self.kind == inspect.CO_GENERATOR else ""

    def unused(self, name: str) -> str:
        """Return `name`, or a name like it that the code uses for nothing else."""
        while name in self.parameters or name in self._code.co_freevars:
            name = f"_{name}"
        return name

    def compiled(self, source: str) -> CodeType:
        """Return the code of the function that a function in `source` contains.

        Everything is on the line of the original's definition, which tracebacks show.
        """
        tree = ast.parse(source)
        line = self._code.co_firstlineno
        for node in ast.walk(tree):
            if hasattr(node, "lineno"):
                vars(node).update(lineno=line, end_lineno=line, col_offset=-1, end_col_offset=-1)
        module = compile(tree, self._code.co_filename, "exec", dont_inherit=True)
        return next(codes_in(next(codes_in(module))))

    def renamed(self, made: CodeType) -> CodeType:
        """Return what `compiled` returned with the names, place and flags of the original code.

        Its own free variables come after those of the original.
        """
        code = self._code
        made = made.replace(
            co_consts=tuple(self._named(const) for const in made.co_consts),
            co_varnames=self.parameters + made.co_varnames[len(self.parameters) :],
            co_freevars=code.co_freevars + made.co_freevars[len(self.free) :],
            co_name=code.co_name,
            co_firstlineno=code.co_firstlineno,
            co_flags=made.co_flags & ~_INHERITED | code.co_flags & (_INHERITED | KINDS),
        )
        if sys.version_info >= (3, 11):
            made = made.replace(co_qualname=code.co_qualname)
        return made

    def _named(self, const: object) -> object:
        if isinstance(const, tuple):  # the names of keyword arguments
            return tuple(self._named(part) for part in const)
        return self._names.get(const, const) if isinstance(const, str) else const


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects among the constants of `code`."""
    return (const for const in code.co_consts if isinstance(const, CodeType))
