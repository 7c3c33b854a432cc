"""Any layout of parameters: calls, signatures and errors are those of the function itself."""

from __future__ import annotations

import inspect
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan import _core
from stagespan.contexts.decorators import decorate


@st.composite
def definitions(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Return the text of a parameter list, and the names that can be passed by keyword."""
    names = [f"p{number}" for number in range(draw(st.integers(0, 7)))]
    slash = draw(st.integers(0, len(names)))
    star = draw(st.integers(slash, len(names)))
    first_default = draw(st.integers(0, star))
    parts = [f"{name}={i}" if i >= first_default else name for i, name in enumerate(names[:star])]
    if slash:
        parts.insert(slash, "/")
    starred = draw(st.sampled_from(["", "*args"]))
    if starred or star < len(names):
        parts.append(starred or "*")
    parts.extend(name + draw(st.sampled_from(["", "='default'"])) for name in names[star:])
    if draw(st.booleans()):
        parts.append("**kwargs")
    return ", ".join(parts), names[slash:]


def outcome(function: Any, args: list[int], kwargs: dict[str, int]) -> tuple[str, Any]:
    try:
        return "returned", function(*args, **kwargs)
    except TypeError as error:
        return "raised", str(error)


@settings(max_examples=examples(150))
@given(
    definition=definitions(),
    free=st.lists(st.sampled_from(["run", "target", "__class__", "kept", "spans"]), unique=True),
    args=st.lists(st.integers(), max_size=8),
    data=st.data(),
)
def test_any_layout(
    definition: tuple[str, list[str]], free: list[str], args: list[int], data: st.DataObject
) -> None:
    text, by_keyword = definition
    namespace: dict[str, Any] = {}
    source = (
        f"def outer({', '.join(free)}):\n"
        f"    def function({text}):\n"
        f"        return locals(), ({''.join(f'{name}, ' for name in free)})\n"
        f"    return function\n"
    )
    exec(source, namespace)
    original = namespace["outer"](*free)
    timed = decorate(_core.ProfilingContext4Debug("layout"), original)

    names = st.sampled_from([*by_keyword, "unknown", "self"])
    kwargs = data.draw(st.dictionaries(names, st.integers(), max_size=4))

    assert outcome(timed, args, kwargs) == outcome(original, args, kwargs)
    assert inspect.signature(timed) == inspect.signature(original)
    assert timed.__code__.co_freevars == original.__code__.co_freevars
