"""Signature files with any content: read and replayed, or refused in one sentence; no crash."""

from __future__ import annotations

import collections
import fractions
import functools
import inspect
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.errors import StagespanError
from stagespan.harness import HarnessConfig
from stagespan.harness.adapters import CallAdapter, DenoiseAdapter
from stagespan.signature import SignatureFile, StageSignature, capture, describe

torch = pytest.importorskip("torch")

from stagespan.harness.script import script_and_module  # noqa: E402
from stagespan.signature.mock import make_inputs  # noqa: E402

WORDS = """
    $type unreplayable shape dtype device items fields class name value values value_range strides
    length of data hex args size tuple list dict dataclass enum ndarray image float32 int64 cpu
    torch.dtype torch.Generator bytes range slice set userdict str x
"""
words = st.sampled_from(WORDS.split())
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-4, 9), st.floats(), words, st.text(max_size=6)
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(words, st.text(max_size=4)), inner, max_size=5),
    ),
    max_leaves=20,
)
typed = st.fixed_dictionaries({"$type": words}, optional={"items": trees, "fields": trees}).flatmap(
    lambda node: st.dictionaries(words, trees, max_size=4).map(lambda more: {**more, **node})
)
tensors = st.fixed_dictionaries(
    {"shape": st.lists(st.integers(-1, 5), max_size=4), "dtype": words},
    optional={"device": words, "strides": trees, "values": trees, "value_range": trees},
)
nodes = st.one_of(trees, typed, tensors)
# Half of them contain characters that would end or change a literal in Python.
texts = st.one_of(st.text(max_size=20), st.text("'\"\\\n\r{}#", min_size=1, max_size=4))
QUIET = settings(
    max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def refusal(action: Callable[[], object]) -> str:
    """Return the message if the action is refused, else None; other exceptions pass."""
    try:
        action()
    except StagespanError as error:
        return str(error)
    return ""


@QUIET
@example(inputs={"": {"$type": "\n"}})
@example(inputs={"\r": {"$type": "class", "class": "\u2028:\x85"}})
@given(inputs=st.dictionaries(st.text(max_size=8), nodes, max_size=3))
def test_any_nodes_are_replayed_or_refused(inputs: dict[str, Any]) -> None:
    stage = StageSignature("s", inputs)

    # WHEN they are described and created THEN that works, or raises an error for the user
    for node in inputs.values():
        assert describe(node).isprintable()
    refused = refusal(lambda: make_inputs(stage))
    assert not refused or refused.isprintable()


@QUIET
@given(
    inputs=st.dictionaries(texts, nodes, max_size=3),
    name=texts,
    step=st.sampled_from(["loop", "call", None]),
)
def test_any_script_compiles(inputs: dict[str, Any], name: str, step: str | None) -> None:
    stage = StageSignature(name, inputs, metadata={name: name}, context={name: [name]})
    if refusal(lambda: make_inputs(StageSignature(name, inputs))):
        return

    steps = {
        "loop": DenoiseAdapter().script(None, inputs),
        "call": CallAdapter().script(len, inputs),
    }
    text = script_and_module(stage, steps.get(step or ""), HarnessConfig(), stem="s")[0]

    compile(text, "profile_s.py", "exec")


@QUIET
@given(content=st.one_of(st.binary(max_size=200), trees.map(lambda t: json.dumps(t).encode())))
def test_any_file_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(content)

    refused = refusal(lambda: SignatureFile.read(path))

    # THEN that works, or the sentence contains the name of the file
    assert not refused or str(path) in refused


@QUIET
@given(stages=trees, version=st.sampled_from([None, 1, 2, "1"]))
def test_any_stages_are_read_or_refused(stages: Any, version: Any, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps({"schema_version": version, "stages": stages}))

    def replay_all() -> None:
        for stage in SignatureFile.read(path).stages.values():
            make_inputs(stage)

    refusal(replay_all)


@functools.cache
def whole_nodes() -> list[Any]:
    """Return one node of each kind, as captures write them; callers do not change them."""
    pair = collections.namedtuple("pair", "x y")
    values = [
        (torch.zeros(30, 4).t(), torch.arange(100), torch.rand(100) > 0.5, torch.arange(3)),
        (torch.float16, torch.device("cpu"), torch.Generator(), torch.channels_last),
        (pair(1, torch.zeros(2, 20)), collections.UserDict(a=1), {1: 2, (1, 2): 3}, {1, 2}),
        ((1, [2]), list(range(900)), "x" * 5000, b"ab", 1 + 2j, slice(1, None), range(3)),
        (float("nan"), Path("a"), inspect.Parameter.VAR_KEYWORD, fractions.Fraction(1)),
    ]
    return [capture(value) for row in values for value in row]


def damaged(node: Any, chance: random.Random) -> Any:
    """Return the node with one part replaced, removed or added."""
    junk = [None, True, -1, 10**30, 2.5, "x", "cuda:0", "a\0b", [], [1, 2], [[1]], {}, {"a": 1}]
    if isinstance(node, list) and node and chance.random() < 0.9:
        at = chance.randrange(len(node))
        return [*node[:at], damaged(node[at], chance), *node[at + 1 :]]
    if isinstance(node, dict) and node and chance.random() < 0.9:
        name = chance.choice(list(node))
        rest = {k: v for k, v in node.items() if k != name}
        what = chance.random()
        if what < 0.15:
            return rest
        if what < 0.3:
            return {**node, chance.choice(WORDS.split()): chance.choice(junk)}
        return {**rest, name: damaged(node[name], chance)}
    return chance.choice(junk)


@settings(max_examples=examples(400))
@given(chance=st.randoms(use_true_random=False))
def test_damaged_nodes_are_replayed_or_refused(chance: random.Random) -> None:
    node = chance.choice(whole_nodes())
    for _ in range(chance.randint(1, 2)):
        node = damaged(node, chance)

    stage = StageSignature("s", {"x": node})
    refused = refusal(lambda: make_inputs(stage))

    # THEN that works, and so does its script, or one sentence says why not
    assert "\n" not in refused
    if not refused:
        text, _ = script_and_module(stage, None, HarnessConfig(), stem="s")
        compile(text, "profile_s.py", "exec")
