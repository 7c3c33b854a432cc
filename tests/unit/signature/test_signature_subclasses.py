"""Subclasses of containers and tensors, dates and numbers: made again, or the loss is said."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
import logging
import time
import types
import uuid
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import stagespan
from scripts import names_of
from stagespan.cli import command
from stagespan.errors import HarnessError, SignatureError, StagespanError
from stagespan.signature import StageSignature, capture, describe
from stagespan.signature.capture import capture_arguments
from stagespan.signature.value_kinds import losses

torch = pytest.importorskip("torch")

from stagespan.harness import HarnessConfig, StageBenchHarness  # noqa: E402
from stagespan.harness.script import script_and_module  # noqa: E402
from stagespan.signature import make_inputs  # noqa: E402


class Bag(list):  # type: ignore[type-arg]
    def __init__(self, owner: str) -> None:
        raise AssertionError("a replay runs no code of the class")

    def __iter__(self) -> Any:
        raise AssertionError("a capture runs no code of the class")


class Labels(frozenset):  # type: ignore[type-arg]
    __slots__ = ("language",)


class Table(dict):  # type: ignore[type-arg]
    def __init__(self, name: str, **items: Any) -> None:
        super().__init__(**items)
        self.name = name


class Ordered(collections.OrderedDict):  # type: ignore[type-arg]
    pass


def bag() -> Bag:
    made = Bag.__new__(Bag)
    list.extend(made, [1, "two"])
    made.owner = "someone"  # type: ignore[attr-defined]
    return made


def labels() -> Labels:
    made = Labels(["a", "b"])
    made.language = "en"
    return made


def counted(value: Any) -> dict[str, Any]:
    """Return what distinguishes a value, with its class and the attributes that it has."""
    held = getattr(value, "__dict__", {}) if isinstance(value, (list, tuple, dict)) else {}
    return {"class": type(value), "attributes": dict(held), "value": value}


VALUES: dict[str, Any] = {
    "torch.Size": torch.Size([2, 3]),
    "result of an operator": torch.ones(2, 3).max(0),
    "structure of the system": time.gmtime(0),
    "deque": collections.deque([1, 2, 3]),
    "bounded deque": collections.deque([1, 2, 3], maxlen=3),
    "long deque": collections.deque([7] * 1000, maxlen=2000),
    "frozenset": frozenset({1, 2}),
    "list": bag(),
    "set": labels(),
    "ordered dict": collections.OrderedDict(b=1, a=2),
    "subclass of an ordered dict": Ordered(b=1, a=[2]),
    "default dict": collections.defaultdict(list, a=[1]),
    "default dict of a function": collections.defaultdict(bag, {3: 4}),
    "counter": collections.Counter("abca"),
    "dict with other arguments": Table("t", x=1),
    "bytearray": bytearray(b"ab"),
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    "datetime with an offset": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
    "datetime in a zone": datetime.datetime(2026, 6, 1, tzinfo=zoneinfo.ZoneInfo("UTC"), fold=1),
    "date": datetime.date(2026, 1, 2),
    "time": datetime.time(1, 2, fold=1),
    "timedelta": datetime.timedelta(days=-1, microseconds=5),
    "timezone": datetime.timezone(datetime.timedelta(hours=2)),
    "decimal": decimal.Decimal("1.50"),
    "fraction": fractions.Fraction(1, 3),
    "uuid": uuid.UUID(int=5),
    "several": [collections.deque([torch.Size([1])]), {"a": frozenset({("x", 1)})}],
}


def makers(node: Any) -> list[Any]:
    """Create an input from a node, by the harness and by a generated script."""
    signature = StageSignature("s", {"x": json.loads(json.dumps(node))})
    names = names_of(script_and_module(signature, None, HarnessConfig(), stem="s")[0])
    return [make_inputs(signature)["x"], names["create_inputs"]()["x"]]


@pytest.mark.parametrize("what", VALUES)
def test_values_come_back_as_what_they_were(what: str) -> None:
    value = VALUES[what]
    node = capture(value)

    assert describe(node)
    assert list(losses({"x": node})) == []
    for made in makers(node):
        if what == "result of an operator":
            assert type(made) is type(value)
            assert made.indices.tolist() == value.indices.tolist()
            continue
        if isinstance(value, (list, collections.OrderedDict)):
            assert list.__eq__ if isinstance(value, list) else list(made) == list(value)
        assert counted(made) == counted(value)
        assert getattr(made, "maxlen", None) == getattr(value, "maxlen", None)
        assert getattr(made, "default_factory", None) == getattr(value, "default_factory", None)
        assert getattr(made, "language", None) == getattr(value, "language", None)
        assert getattr(made, "fold", None) == getattr(value, "fold", None)


def test_a_stage_gets_a_size_and_not_a_tuple(tmp_path: Path) -> None:
    class Stage:
        def process(self, x: Any, size: Any) -> Any:
            return x.reshape(size) * size.numel()

    nodes = capture_arguments({"x": torch.ones(6), "size": torch.Size([2, 3])})
    config = HarnessConfig(output_dir=tmp_path, warmup=0, timing_steps=1)

    StageBenchHarness(StageSignature("s", nodes), Stage(), config).profile()


# --- tensors --------------------------------------------------------------------------------------


class Latents(torch.Tensor):  # type: ignore[misc]
    pass


@pytest.mark.parametrize("kind", [Latents, torch.nn.Parameter])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_of_a_subclass_are_made_again(kind: Any, requires_grad: bool) -> None:
    values = torch.arange(6.0).reshape(2, 3).as_subclass(kind).requires_grad_(requires_grad)
    nodes = capture_arguments({"x": values, "y": values})

    made = make_inputs(StageSignature("s", json.loads(json.dumps(nodes))))

    assert made["y"] is made["x"]
    for each in (made["x"], *makers(nodes["x"])):
        assert type(each) is kind
        assert (each.requires_grad, each.is_leaf) == (requires_grad, True)
        assert each.tolist() == values.tolist()
    assert list(losses(nodes)) == []


def test_integers_of_a_subclass_keep_their_content() -> None:
    offsets = (torch.arange(200) * 3).as_subclass(Latents)

    for made in makers(capture(offsets)):
        assert made.tolist() == offsets.tolist()


def test_jagged_tensors_know_the_bounds_of_their_lengths_as_before() -> None:
    parts = [torch.ones(n, 4) for n in (3, 9, 5)]
    known = torch.nested.nested_tensor(parts, layout=torch.jagged)
    unknown = torch.nested.nested_tensor_from_jagged(known.values(), known.offsets())
    bounded = torch.nested.nested_tensor_from_jagged(
        known.values(), known.offsets(), min_seqlen=1, max_seqlen=64
    )

    def bounds(value: Any) -> tuple[Any, Any]:
        return value._maybe_min_seqlen, value._maybe_max_seqlen

    for value in (known, unknown, bounded):
        for made in makers(capture(value)):
            assert bounds(made) == bounds(value)
    # AND bounds that do not hold for the lengths of the replay are not kept
    node = capture(known)
    node["max_seqlen"], node["min_seqlen"] = 4, 8
    assert bounds(makers(node)[0]) == (3, 9)


# --- losses and refusals --------------------------------------------------------------------------


def local_bag() -> Any:
    class Local(list):  # type: ignore[type-arg]
        pass

    return Local([1, 2])


def with_attribute() -> Any:
    made = torch.ones(2).as_subclass(Latents)
    made.scale = 3
    return made


LOSSES: dict[str, tuple[Any, type, str]] = {
    "local class": (local_bag(), list, "its class test_signature_subclasses.local_bag"),
    "attribute": (Ordered(a=1), Ordered, "its attributes lock"),
    "tensor's attribute": (with_attribute(), Latents, "its attributes scale"),
    "matrix": (np.matrix([[1, 2]]), np.ndarray, "its class numpy.matrix"),
    "masked array": (np.ma.masked_array([1, 2], [0, 1]), np.ndarray, "its class numpy.ma"),
}
LOSSES["attribute"][0].lock = __import__("threading").Lock()


@pytest.mark.parametrize("what", LOSSES)
def test_what_a_replay_loses_is_said(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    value, kind, lost = LOSSES[what]
    signature = StageSignature("s", capture_arguments({"a": 1, "x": [value]}))
    config = HarnessConfig(output_dir=tmp_path, warmup=0, timing_steps=1)

    with caplog.at_level(logging.INFO, "stagespan"):
        harness = StageBenchHarness(signature, lambda a, x: a, config)
        harness.setup()

    assert type(harness.inputs["x"][0]) is kind
    (line,) = [line for line in caplog.messages if "without" in line]
    assert line.startswith(f"[Harness] Input 'x[0]' is replayed without {lost}")
    assert lost in script_and_module(signature, None, HarnessConfig(), stem="s")[0]


def zoo() -> dict[str, Any]:
    return {
        "x": torch.ones(2),
        "act": lambda x: x,
        "odd": torch.quantize_per_tensor(torch.rand(4), 0.1, 0, torch.quint8),
        "view": {"inner": memoryview(b"x")},
        "steps": 3,
        "kind": types.MappingProxyType({}),
    }


def test_all_inputs_that_cannot_be_made_are_named_at_once(tmp_path: Path) -> None:
    signature = StageSignature("s", json.loads(json.dumps(capture_arguments(zoo()))))
    signature.inputs["gone"] = {"$type": "function", "name": "not_loaded:f"}
    signature.inputs["wrong"] = {"$type": "enum"}
    missing = ["act", "odd", "view", "kind", "gone", "wrong"]

    with pytest.raises(HarnessError) as caught:
        make_inputs(signature)

    # THEN one sentence names all of them, with the reason and what to pass
    said = str(caught.value)
    assert said.isprintable()
    for part in (
        "'act' (a function (a lambda))",
        "'odd' (a quantized tensor (quint8))",
        "'view' (view.inner is a memoryview)",
        "'kind' (a mappingproxy)",
        "'gone' (the function 'not_loaded:f' is not loaded; import 'not_loaded' first)",
        "'wrong' (its entry of type 'enum' has no 'class')",
        f"HarnessConfig(inputs={{{', '.join(f'{name!r}: ...' for name in missing)}}})",
    ):
        assert part in said
    # AND its note has a function that returns them, to be completed
    (note,) = caught.value.__notes__
    names: dict[str, Any] = {}
    exec(note[note.index("def inputs") :], names)
    assert names["inputs"]() == dict.fromkeys(missing, ...)
    given = dict.fromkeys(missing, 1)
    assert make_inputs(signature, inputs=given)["x"].shape == (2,)
    # AND the script names all of them, except for those that another program may have loaded
    del signature.inputs["gone"]
    missing.remove("gone")
    script = names_of(script_and_module(signature, None, HarnessConfig(), stem="s")[0])
    with pytest.raises(ValueError, match="the inputs 'act' ") as refused:
        script["profile_stage"](lambda **inputs: None)
    assert all(repr(name) in str(refused.value) for name in missing)
    assert script["profile_stage"](
        lambda **inputs: None, inputs=given, warmup=0, steps=0, timing_steps=1,
        step_fn=lambda stage, inputs: None,
    )["times_ms"]  # fmt: skip


@pytest.mark.parametrize("name", ["act", "odd", "view", "kind"])
def test_each_refusal_has_the_same_form(name: str) -> None:
    signature = StageSignature("s", capture_arguments({name: zoo()[name]}))

    with pytest.raises(StagespanError, match=f"^Input '{name}.*is a ") as caught:
        make_inputs(signature)

    assert type(caught.value).__mro__[1] is HarnessError
    assert ", which cannot be created from its signature; pass it with" in str(caught.value)
    assert "def inputs():" in caught.value.__notes__[0]


def test_several_wrong_entries_are_named_at_once() -> None:
    wrong = {"shape": [-1], "dtype": "float32"}
    signature = StageSignature("s", {"a": wrong, "b": {"$type": "\n"}, "c": 1})

    with pytest.raises(SignatureError) as caught:
        make_inputs(signature)

    said = str(caught.value)
    assert said.isprintable()
    assert said.startswith("Inputs 'a' (shape [-1] has the negative size -1")


def test_a_tensor_that_is_also_an_input_that_is_passed_in_is_that_one() -> None:
    odd = zoo()["odd"]
    signature = StageSignature("s", capture_arguments({"a": odd, "b": odd, "c": 1}))
    signature.inputs["b"] = {"$type": "shared", "of": "a"}

    with pytest.raises(HarnessError, match=r"^Input 'a' is a quantized"):
        make_inputs(signature)
    made = make_inputs(signature, inputs={"a": odd})
    assert made["b"] is odd


def test_the_command_prints_the_function(tmp_path: Path) -> None:
    path = tmp_path / "timing_io_signature.json"
    file = stagespan.signature.SignatureFile({"s": StageSignature("s", capture_arguments(zoo()))})
    file.write(path)

    done = CliRunner().invoke(
        command,
        ["bench", str(path), "--stage", "s", "--factory", "builtins:dict", "--any-callable",
         "--output", str(tmp_path)],
    )  # fmt: skip

    assert done.exit_code == 2
    assert "'act': ..., 'odd': ..." in done.output
    function = '\n\ndef inputs():\n    return {\n        "act": ...,  # a function (a lambda)\n'
    assert function in done.output
