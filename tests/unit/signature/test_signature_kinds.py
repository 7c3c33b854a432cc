"""Every kind of value: captured, written as JSON, described, made again, and written into a script.

A new kind needs an example here, and nothing else outside of its own class.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import json
import math
import pathlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from stagespan.errors import SignatureError
from stagespan.harness.standalone import loaded
from stagespan.signature import SignatureFile, StageSignature, capture, describe
from stagespan.signature.capture import capture_arguments
from stagespan.signature.source import render
from stagespan.signature.value_kinds import KINDS, kind_of
from stagespan.signature.value_kinds.base import form_of, key_of, source_of

torch = pytest.importorskip("torch")
image = pytest.importorskip("PIL.Image")

from stagespan.harness.standalone import values  # noqa: E402
from stagespan.signature import make_inputs  # noqa: E402


class Mode(enum.Enum):
    FAST = 1


class Words(dict):  # type: ignore[type-arg]
    pass


@dataclasses.dataclass
class Options:
    scale: float

    def scaled(self, x: Any) -> Any:
        return self.scale * x


class Pair(NamedTuple):
    first: Any
    second: Any


class Cache:
    def __init__(self) -> None:
        self.keys = torch.zeros(2, 3)
        self.layer = Options


def jagged() -> Any:
    return torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged)


EXAMPLES: dict[str | None, Any] = {
    None: 3,
    "torch.sparse": torch.eye(4).to_sparse_csr(),
    "torch.nested": torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)]),
    "shared": [torch.ones(2)] * 2,
    "torch.dtype": torch.bfloat16,
    "torch.memory_format": torch.channels_last,
    "torch.layout": torch.strided,
    "torch.device": torch.device("cpu"),
    "torch.Generator": torch.Generator(),
    "ndarray": np.arange(4, dtype=np.int16),
    "enum": Mode.FAST,
    "dataclass": Options(1.5),
    "namedtuple": Pair(1, "two"),
    "tuple": (1, 2),
    "list": list(range(300)),
    "dict": {1: "one"},
    "userdict": collections.UserDict(a=1),
    "set": {1, 2},
    "str": "word " * 1000,
    "float": math.inf,
    "complex": 1 + 2j,
    "path": pathlib.Path("/weights"),
    "bytes": b"\x00\x01",
    "range": range(1, 9, 2),
    "slice": slice(1, None),
    "image": image.new("RGB", (4, 3)),
    "class": Cache(),
    "container": collections.deque([1, "two", torch.ones(2)], maxlen=5),
    "moment": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc),
    "function": torch.nn.functional.gelu,
    "partial": functools.partial(torch.nn.functional.softmax, dim=-1),
    "method": Options(2.0).scaled,
    "object": Cache(),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_every_kind_is_captured_described_created_and_written_into_a_script(kind: Any) -> None:
    value = EXAMPLES[kind.name]
    node = json.loads(json.dumps(capture_arguments({"x": value})["x"]))

    assert kind.name is None or kind.name in json.dumps(node)
    assert describe(node)
    assert len(key_of({"x": node})) == 12

    made = make_inputs(StageSignature("s", {"x": node}))["x"]
    names = {name: getattr(values, name) for name in dir(values)}
    names.update(mock=values.MockInputs(), torch=torch, Path=pathlib.Path)
    names.update({name: getattr(loaded, name) for name in dir(loaded)})
    written = eval(render(source_of(node, "x"), 4), names)

    assert type(made) is type(value)
    assert capture(made, read_values=False) == capture(value, read_values=False)
    assert capture(written, read_values=False) == capture(value, read_values=False)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ([1, 2, 3, 4], "[1, 2, 3, 4]"),
        ([1, 2, 3, 4, 5], "[5 values]"),
        ([[[1]]], "[[[1 values]]]"),
        (dict.fromkeys("abcdef", 0), "{a: 0, b: 0, c: 0, d: 0, e: 0, f: 0}"),
        (dict.fromkeys("abcdefg", 0), "{7 values}"),
        ({"a": {"b": {"c": 1}}}, "{a: {b: {1 values}}}"),
        ("x" * 58, repr("x" * 58)),
        ("x" * 59, "'" + "x" * 56 + "..."),
        (capture(threading.Lock()), "_thread.lock (cannot be replayed)"),
    ],
)
def test_descriptions_are_short(node: Any, text: str) -> None:
    assert describe(node) == text


@pytest.mark.parametrize("value", [(), (1,), (1, 2), [], [1], [1, 2]])
def test_sources_of_tuples_and_lists_are_as_python_writes_them(value: Any) -> None:
    assert render(source_of(capture(value), "x"), 0) == repr(value)


@pytest.mark.parametrize(
    ("node", "form"),
    [
        (True, ["True"]),
        (None, ["None"]),
        (3, ["int"]),
        ("text", ["str"]),
        ([1, [2.5]], ["[2", "int", "[1", "float"]),
        ({"class": 1, "length": 2}, ["{", "class", "int", "length", "int"]),
        (capture((1, "a")), ["{tuple", "items", "[2", "int", "str"]),
        (capture(torch.float32), ["{torch.dtype", "value", "float32"]),
        (
            {"$type": "enum", "class": "package:Mode", "name": "FAST", "value": 1, "more": 1},
            ["{enum", "class", "package:Mode", "name", "FAST", "value", "1", "more", "int"],
        ),
        (capture(threading.Lock()), ["_thread.lock"]),
        (capture(torch.ones(2, 3)), ["float32[2, 3]cpu"]),
    ],
)
def test_what_distinguishes_a_value_in_a_key(node: Any, form: list[str]) -> None:
    assert form_of(node, True) == form


def test_keys_stay_the_same_between_versions() -> None:
    inputs = {"x": capture(torch.ones(2, 3)), "mode": capture(torch.float32)}
    swapped = dict(reversed(inputs.items()))

    assert key_of(inputs) == key_of(swapped) == "17541b24effc"
    assert key_of(inputs, sizes=False) == "c4700ccd0267"
    assert key_of(inputs | {"x": capture(torch.ones(4, 5))}, sizes=False) == "c4700ccd0267"


@pytest.mark.parametrize(("length", "made"), [(0, []), (3, [1, 1, 1]), (-1, None), (True, None)])
def test_lengths_of_long_lists(length: int, made: list[int] | None) -> None:
    signature = StageSignature("s", {"x": {"$type": "list", "length": length, "items": [1]}})
    if made is None:
        with pytest.raises(SignatureError, match="length"):
            make_inputs(signature)
    else:
        assert make_inputs(signature) == {"x": made}


def test_numbers_of_subclasses_are_captured_as_numbers() -> None:
    class Count(int):
        pass

    class Rate(float):
        pass

    captured = [capture(Count(5)), capture(Rate(0.5)), capture(Count(1 << 2_000))]
    assert captured[:2] == [5, 0.5]
    assert [type(each) for each in captured] == [int, float, dict]


def test_the_largest_values_that_are_captured_completely() -> None:
    longest, largest = list(range(256)), (1 << 1_024) - 1

    assert capture([longest, largest]) == [longest, largest]
    assert capture([*longest, 256])["length"] == 257
    assert capture(largest + 1) == {
        "unreplayable": "int",
        "reason": "1025 bits, more than 1024",
    }


def test_kinds_have_distinct_names() -> None:
    names = [kind.name for kind in KINDS if kind.name is not None]

    assert len(set(names)) == len(names)
    assert all(kind_of({"$type": kind.name}) is kind for kind in KINDS if kind.name is not None)


# --- objects with slots --------------------------------------------------------------------------


class Sized:
    __slots__ = ("_size", "x")

    def __init__(self, size: int) -> None:
        self._size = size  # x is not set

    @property
    def size(self) -> int:
        return self._size


class Request(Sized):
    """Has slots from its base, a private one, and other attributes."""

    __slots__ = ("__dict__", "__key", "__weakref__")

    def __init__(self, x: Any) -> None:
        super().__init__(2)
        self.x, self.mode, self.__key = x, Mode.FAST, "secret"

    @property
    def key(self) -> str:
        return self.__key

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in ("x", "mode", "_size", "_Request__key"), "a replay runs no code of the class"
        super().__setattr__(name, value)


def test_objects_with_slots_are_made_again() -> None:
    node = json.loads(json.dumps(capture(Request(torch.ones(2, 3)))))

    made = make_inputs(StageSignature("s", {"x": node, "y": capture(Sized(4))}))

    assert made["x"].x.shape == (2, 3)
    assert (made["x"].size, made["x"].mode, made["x"].key) == (2, Mode.FAST, "secret")
    assert made["y"].size == 4
    assert not hasattr(made["y"], "x")


def test_models_of_pydantic_are_made_again() -> None:
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("Settings", steps=(int, 2), size=(int, 8), __module__=__name__)
    globals()["Settings"] = kind
    try:
        node = json.loads(json.dumps(capture(kind(size=16))))
        made = make_inputs(StageSignature("s", {"x": node}))["x"]
    finally:
        del globals()["Settings"]

    assert made == kind(size=16)
    assert made.model_dump(exclude_unset=True) == {"size": 16}


# --- tensors that share memory -------------------------------------------------------------------


def remade(*tensors: Any, **options: Any) -> list[Any]:
    nodes = capture_arguments({f"x{at}": tensor for at, tensor in enumerate(tensors)})
    nodes = json.loads(json.dumps(nodes))
    return list(make_inputs(StageSignature("s", nodes), **options).values())


def test_tensors_that_share_memory_share_it_in_the_replay() -> None:
    # GIVEN the three parts of a projection, and its transpose
    whole = torch.randn(4, 12)
    parts = (*whole.chunk(3, -1), whole.t())

    made = remade(*parts)

    assert [tensor.stride() for tensor in made] == [tensor.stride() for tensor in parts]
    begin = made[3].data_ptr()
    assert [tensor.data_ptr() - begin for tensor in made] == [0, 16, 32, 0]
    made[1].fill_(7)
    assert bool((made[3][4:8] == 7).all())
    assert not bool((made[3][:4] == 7).any())


def test_only_the_used_part_of_the_memory_is_allocated() -> None:
    # GIVEN two neighbouring slices of a large buffer, of different types
    buffer = torch.zeros(1 << 20, dtype=torch.uint8)
    first, second = buffer[4096:4224].view(torch.float32), buffer[4160:4288]

    made = remade(first, second)
    assert made[0].untyped_storage().nbytes() == 192
    assert made[1].data_ptr() - made[0].data_ptr() == 64


def test_integers_in_shared_memory_keep_their_values() -> None:
    offsets = torch.arange(8)

    made = remade(offsets[:-1], offsets[1:])

    assert made[0].tolist() == list(range(7))
    assert made[1].tolist() == list(range(1, 8))


def test_memory_that_is_shared_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN ten views of 4 MB, and 6 MB of memory
    whole = torch.randn(1 << 20)
    monkeypatch.setattr("stagespan.signature.resources.free_host_bytes", lambda: 6 << 20)

    assert len(remade(*(whole[at:] for at in range(10)))) == 10


def test_tensors_of_another_type_than_captured_do_not_share_memory() -> None:
    whole = torch.zeros(8)

    made = remade(whole[:4], whole[4:], dtype="float16")

    assert [tensor.dtype for tensor in made] == [torch.float16] * 2


# --- tensor classes ------------------------------------------------------------------------------


class Dispatching(torch.Tensor):  # type: ignore[misc]
    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


class Overriding(torch.Tensor):  # type: ignore[misc]
    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


class Named(torch.Tensor):  # type: ignore[misc]
    pass


@pytest.mark.parametrize("kind", [Dispatching, Overriding])
def test_tensors_that_replace_operators_are_refused(kind: Any) -> None:
    value = torch.ones(3).as_subclass(kind)

    # THEN nothing is replayed in its place, also if it is passed twice
    for node in capture_arguments({"x": value, "y": value}).values():
        assert node["unreplayable"].endswith(kind.__name__)


def test_tensors_with_the_usual_operators_are_plain_tensors() -> None:
    plain = capture(torch.ones(3))

    assert capture(torch.ones(3).as_subclass(Named))["shape"] == plain["shape"]
    assert capture(torch.nn.Parameter(torch.ones(3)))["values"] == plain["values"]


# --- sparse and nested tensors -------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_sparse_tensors_keep_their_layout_and_the_elements_of_each_row(layout: str) -> None:
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(60, 120, generator=generator)
    dense = dense * (dense < torch.linspace(0, 0.2, 60)[:, None])
    options = {"blocksize": (4, 4)} if layout in ("bsr", "bsc") else {}
    value = getattr(dense, "to_sparse" if layout == "coo" else f"to_sparse_{layout}")(**options)

    (made,) = remade(value)

    assert made.layout == value.layout
    assert made.shape == value.shape
    assert made.values().shape == value.values().shape
    if layout in ("coo", "csr"):
        before, after = ((sparse.to_dense() != 0).sum(1) for sparse in (value, made))
        assert torch.equal(before, after)


def test_full_sparse_tensors_of_many_rows_can_be_made() -> None:
    value = torch.ones(500, 7).to_sparse_csr()

    (made,) = remade(value)

    assert made.values().shape == value.values().shape


def test_wrong_offsets_of_a_sparse_tensor_are_refused() -> None:
    # GIVEN a file that requests more elements than the tensor has places
    from stagespan.errors import SignatureError

    node = capture(torch.eye(4).to_sparse_csr())
    node["shape"] = [4, 0]

    # WHEN / THEN no tensor is created that would read outside of its memory
    with pytest.raises(SignatureError, match=r"'torch\.sparse' is wrong"):
        make_inputs(StageSignature("s", {"x": node}))


def test_nested_tensors_keep_their_parts() -> None:
    (made,) = remade(torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)]))

    assert [part.shape for part in made.unbind()] == [(3, 4), (5, 4)]


def test_jagged_tensors_keep_their_lengths() -> None:
    (made,) = remade(jagged())

    assert made.layout == torch.jagged
    assert [part.shape for part in made.unbind()] == [(3, 4), (5, 4)]


def test_the_parts_of_several_tensors_are_distinguished() -> None:
    given = {f"x{at}": torch.eye(at + 2).to_sparse() for at in range(20)}
    given.update({f"y{at}": jagged() for at in range(20)})

    text = json.dumps(capture_arguments(given))
    assert "shared" not in text
    assert "storage" not in text


@pytest.mark.parametrize(
    ("make", "figure"),
    [
        (lambda: torch.rand(4, 4).to_mkldnn(), "mkldnn"),
        (lambda: torch.quantize_per_tensor(torch.rand(4, 4), 0.1, 0, torch.quint8), "(quint8)"),
        (
            lambda: torch.quantize_per_channel(
                torch.rand(4, 4), torch.ones(4), torch.zeros(4), 0, torch.qint8
            ),
            "(qint8)",
        ),
        (lambda: torch.rand(2, 3, 4).to_sparse_csr(), "batch of sparse_csr"),
        (lambda: torch.rand(2, 3, 4).to_sparse_csc(), "batch of sparse_csc"),
        (lambda: torch.rand(2, 4, 4).to_sparse_bsr((2, 2)), "batch of sparse_bsr"),
        (lambda: torch.nested.nested_tensor([torch.ones(1)] * 257), "257 nested tensors"),
    ],
    ids=["mkldnn", "quantized", "by channel", "csr", "csc", "bsr", "257 parts"],
)
def test_tensors_that_cannot_be_made_are_refused_in_a_sentence(
    make: Callable[[], Any], figure: str
) -> None:
    from stagespan.errors import StagespanError

    with pytest.raises(StagespanError) as caught:
        remade(make())
    sentence = str(caught.value)
    assert "nput 'x0'" in sentence
    assert figure in sentence
    assert "HarnessConfig(inputs=" in sentence
    assert "\n" not in sentence


def test_nested_tensors_of_256_parts_can_be_made() -> None:
    (made,) = remade(torch.nested.nested_tensor([torch.ones(1)] * 256))

    assert len(made.unbind()) == 256


# --- cycles --------------------------------------------------------------------------------------


def list_in_itself() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


def dict_in_itself() -> Any:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


@pytest.mark.parametrize(("make", "place"), [(list_in_itself, "x[1]"), (dict_in_itself, "x.again")])
def test_a_value_that_refers_to_itself_is_refused_by_its_place_in_the_file(
    make: Callable[[], Any], place: str, tmp_path: pathlib.Path
) -> None:
    from stagespan.errors import StagespanError

    path = tmp_path / "signatures.json"
    SignatureFile({"s": StageSignature("s", capture_arguments({"x": make()}))}).write(path)

    with pytest.raises(StagespanError) as caught:
        make_inputs(SignatureFile.read(path).stage("s"))
    assert f"'{place}'" in str(caught.value)
    assert "refers to itself" in str(caught.value)


@pytest.mark.parametrize(
    "nodes",
    [
        {"x": {"$type": "shared", "of": "x"}},
        {"x": [{"$type": "shared", "of": "x"}]},
        {"x": [1, {"$type": "shared", "of": "x[1]"}]},
        {"x": {"$type": "shared", "of": "y"}, "y": {"$type": "shared", "of": "x"}},
    ],
    ids=["itself", "its list", "its place", "each other"],
)
def test_a_signature_file_with_a_cycle_of_shared_tensors_is_refused(
    nodes: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    from stagespan.errors import StagespanError

    path = tmp_path / "signatures.json"
    SignatureFile({"s": StageSignature("s", nodes)}).write(path)

    with pytest.raises(StagespanError) as caught:
        make_inputs(SignatureFile.read(path).stage("s"))
    sentence = str(caught.value)
    assert sentence.startswith("Input 'x")
    assert "not created before it" in sentence
    assert "HarnessConfig(inputs={'x': ...})" in sentence
