"""Code objects that time a function where not all of its calls can be intercepted.

That is on Python 3.11, on 3.13 and later for what can become an `__init__`, and on 3.14 for what
can become the getter of a property.

They time what a wrapper (`wrapper`) cannot: debug contexts, which must cost nothing when they are
off. A trampoline replaces the `__code__` of a function. It has the
same parameters, the same free variables and the same kind (function, coroutine, generator, async
generator), and it contains the original code as a constant. Each call creates the timed function
from this constant:

    def denoise(self, latents, /, *, steps, **options):
        try: import stagespan.contexts.trampoline as here
        except Exception: here = None           # a finalizer at the end of the interpreter
        def target(): ...                       # the original code, with the same closure
        return (
            target(self, latents, steps=steps, **options)
            if here is None or here.compiling()
            else here.call_timed(
                here.spans[KEY], target, self, latents, steps=steps, **options
            )
        )

Therefore nothing outside the function refers to it, so it is freed like any other function. The
function keeps its own defaults, torch.compile finds only plain Python to inline, and a copy made by
cloudpickle works in another process. KEY contains the parameters of the context, not its identity.
"""

from __future__ import annotations

import collections
import contextlib
from types import CodeType
from typing import TYPE_CHECKING

from stagespan import _core
from stagespan.contexts import dynamo
from stagespan.contexts.layouts import CALLS, Layout, codes_in

if TYPE_CHECKING:
    from stagespan._core import Span

dynamo.leave_alone(dynamo.compiling)

# Trampolines use these names when they run.
compiling = dynamo.compiling
call_timed = _core.call_timed
timed_coroutine = _core.timed_coroutine
timed_generator = _core.timed_generator
timed_async_generator = _core.timed_async_generator

# "stagespan.contexts.trampoline:debug:10:name", with the digits of reset_peak_memory and
# capture_memory. It is a string, because strings cache their hash.
Key = str

_MARK = "stagespan.contexts.trampoline:"
_MOST_KEPT = 1024


class _Spans(dict[Key, "Span"]):
    """The contexts of this process by key. A key from another process creates a new context."""

    def __missing__(self, key: Key) -> Span:
        _, kind, digits, name = key.split(":", 3)
        reset_peak_memory, capture_memory = (digit == "1" for digit in digits)
        made: Span
        if kind == "span":
            made = _core.span(name)
        else:
            make = _core.ProfilingContext if kind == "profiling" else _core.ProfilingContext4Debug
            made = make(name, reset_peak_memory, capture_memory=capture_memory)
        return self.setdefault(key, made)


spans = _Spans()


def key_of(span: Span) -> Key:
    """Return the constant that identifies `span` in a trampoline, and store `span` under it."""
    digits = f"{span.reset_peak_memory:d}{span.capture_memory:d}"
    key = f"{_MARK}{span.kind}:{digits}:{span.name}"
    spans.setdefault(key, span)
    return key


def timed_code(code: CodeType, key: Key) -> CodeType:
    """Return the trampoline that runs `code` under the context of `key`.

    The same arguments give the same object while it is among the latest 1,024. torch.compile
    identifies code objects by identity, so it does not have to compile again.
    """
    # The cached trampoline refers to `code`, so no other object can get its id meanwhile.
    recent = (id(code), key)
    kept = _kept.get(recent)
    if kept is None:
        # If another thread has made the same one meanwhile, that one is used.
        kept = _kept.setdefault(recent, _compile(code, key))
        dynamo.skip_frame(kept)
    with contextlib.suppress(KeyError):  # another thread removed it meanwhile
        _kept.move_to_end(recent)
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return kept


def layers(code: CodeType) -> tuple[CodeType, tuple[Key, ...]]:
    """Return the code below all trampolines, and their keys from the innermost outwards."""
    keys: list[Key] = []
    while True:
        texts = (const for const in code.co_consts if isinstance(const, str))
        key = next((text for text in texts if text.startswith(_MARK)), None)
        below = next(codes_in(code), None)
        if key is None or below is None:
            return code, tuple(reversed(keys))
        keys.append(key)
        code = below


_kept: collections.OrderedDict[tuple[int, Key], CodeType] = collections.OrderedDict()


def _source(layout: Layout, key: Key) -> str:
    target, here = layout.unused("target"), layout.unused("here")
    untimed = f"{target}({layout.call}) if {here} is None or {here}.compiling()"
    named = f"{here}.spans[{key!r}], {target}"
    timed = f"{here}.{CALLS[layout.kind]}({named}, {layout.timed_call})"
    lines = [
        f"def outer({', '.join(layout.free)}):",
        f"  def function({layout.definition}):",
        # This costs a third of `from ... import`.
        f"    try: import {__name__} as {here}",
        # If a finalizer runs the function while the interpreter ends, it runs untimed.
        f"    except Exception: {here} = None",
        # This only names the free variables. The original code replaces the code of this function.
        f"    def {target}(): {'; '.join(layout.free) or 'pass'}",
        f"    return ({layout.before}({untimed} else {timed}))",
    ]
    return "\n".join(lines)


def _compile(code: CodeType, key: Key) -> CodeType:
    layout = Layout(code)
    made = layout.compiled(_source(layout, key))
    placeholder = next(codes_in(made))
    made = layout.renamed(made)
    consts = (code if const is placeholder else const for const in made.co_consts)
    return made.replace(co_consts=tuple(consts))
