"""The source of mock inputs creates the same values as the harness, and is formatted."""

from __future__ import annotations

import collections
import dataclasses
import enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from scripts import names_of
from stagespan.harness import HarnessConfig
from stagespan.signature import StageSignature, capture
from stagespan.signature.capture import capture_arguments
from stagespan.signature.source import Brackets, flat, literal, quoted, render
from stagespan.signature.value_kinds.base import source_of

torch = pytest.importorskip("torch")

from stagespan.harness.script import script_and_module  # noqa: E402
from stagespan.harness.standalone import values  # noqa: E402
from stagespan.signature import make_inputs  # noqa: E402
from stagespan.signature import mock as mocks  # noqa: E402

Pair = collections.namedtuple("Pair", "first second")


class Mode(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class Options:
    x: Any


def evaluate(source: Any, seed: int = 0) -> Any:
    names = {name: getattr(values, name) for name in dir(values)}
    names.update(mock=values.MockInputs(seed), torch=torch, Path=Path)
    return eval(render(source, 4, 8, 1), names)


def checksum(value: Any) -> Any:
    """Return what two values must share to be equal, bit for bit."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().resolve_conj().clone(memory_format=torch.contiguous_format)
        content = raw.view(torch.uint8).tolist() if raw.numel() and raw.dim() else repr(raw)
        return (str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad, content)
    if isinstance(value, dict):
        return [(checksum(k), checksum(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [checksum(item) for item in value])
    if isinstance(value, Options):
        return checksum(value.x)
    return repr(value)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.binary(max_size=6),
    st.complex_numbers(),
    st.sampled_from([torch.float16, torch.device("cpu"), Path("a/b"), Mode.FAST, range(3)]),
    st.sampled_from(
        [
            torch.zeros(3, 50),
            torch.zeros(50, 3).t(),
            torch.arange(100),
            torch.arange(7),
            torch.rand(90) > 0.3,
            torch.zeros(2, 0),
            torch.zeros(30, requires_grad=True),
        ]
    ),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=6), inner, max_size=3),
        st.dictionaries(st.integers(), inner, max_size=2),
        inner.map(Options),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=10,
)


@settings(max_examples=examples(200))
@given(value=trees, name=st.text(min_size=1, max_size=6), seed=st.integers(0, 9))
def test_the_source_creates_what_the_harness_creates(value: Any, name: str, seed: int) -> None:
    node = capture(value)

    made = mocks.make_inputs(StageSignature("s", {name: node}), seed=seed)[name]
    written = evaluate(source_of(node, name), seed)

    assert checksum(written) == checksum(made)


@settings(max_examples=examples(200))
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
        max_leaves=8,
    )
)
def test_literals_evaluate_to_their_value(value: Any) -> None:
    assert evaluate(literal(value)) == value


@pytest.mark.parametrize(
    "text", ["", "a", "it's", 'a "b"', "\n", '"""', "\\", "\ud800", "名", "a'\"b"]
)
def test_strings_are_quoted(text: str) -> None:
    assert eval(quoted(text)) == text


def test_lines_are_broken_like_a_formatter_does() -> None:
    # GIVEN a call that fits on one line, one whose arguments fit on one, and one that fits on none
    def call(*arguments: str) -> Brackets:
        return Brackets("f(", [("", argument) for argument in arguments], ")")

    short, middle, long = call("a", "b"), call("a" * 40, "b" * 50), call("a" * 60, "b" * 60)

    assert render(short, 0) == "f(a, b)"
    assert render(middle, 0, 8) == f"f(\n    {'a' * 40}, {'b' * 50}\n)"
    assert render(long, 4) == f"f(\n        {'a' * 60},\n        {'b' * 60},\n    )"
    assert flat(Brackets("(", [("", "1")], ")", one_tuple=True)) == "(1,)"


class Held:
    def __init__(self) -> None:
        self.keys = torch.zeros(3, 4)
        self.kind = Held


def test_the_script_creates_structures_and_contents_like_the_harness() -> None:
    # GIVEN an object that holds tensors, a tensor that is passed twice, and integers of each kind
    shared = torch.randn(40)
    few = torch.randint(0, 9, (40, 9))
    arguments = {
        "held": Held(), "a": shared, "b": (shared,), "ids": torch.arange(300), "few": few,
        "order": torch.randperm(100), "offsets": torch.randint(0, 9, (300,)).cumsum(0),
    }  # fmt: skip
    signature = StageSignature("s", capture_arguments(arguments))

    ours = make_inputs(signature, seed=3)
    names = names_of(script_and_module(signature, None, HarnessConfig(seed=3), stem="s")[0])
    theirs = names["create_inputs"]()

    for name in ("a", "ids", "few", "order", "offsets"):
        assert torch.equal(ours[name], theirs[name]), name
    assert theirs["a"] is theirs["b"][0]
    assert type(theirs["held"]) is Held
    assert torch.equal(theirs["held"].keys, ours["held"].keys)
