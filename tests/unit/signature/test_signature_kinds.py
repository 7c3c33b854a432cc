"""Every kind of value: captured, written as JSON, described, made again, and written into a script.

A new kind needs an example here, and nothing else outside of its own class.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from stagespan.signature import SignatureFile, StageSignature, capture, describe
from stagespan.signature.capture import capture_arguments
from stagespan.signature.key import key_of
from stagespan.signature.kinds import KINDS, kind_of
from stagespan.signature.kinds.base import source_of
from stagespan.signature.source import render

torch = pytest.importorskip("torch")
image = pytest.importorskip("PIL.Image")

from stagespan.signature import make_inputs, values  # noqa: E402


class Mode(enum.Enum):
    FAST = 1


class Words(dict):  # type: ignore[type-arg]
    pass


@dataclasses.dataclass
class Options:
    scale: float


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
    "object": Cache(),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_every_kind_is_captured_described_made_and_written_into_a_script(kind: Any) -> None:
    # GIVEN an example of the kind, captured and written as JSON
    value = EXAMPLES[kind.name]
    node = json.loads(json.dumps(capture_arguments({"x": value})["x"]))

    # THEN the node is of this kind, or has one within it
    assert kind.name is None or kind.name in json.dumps(node)
    assert describe(node)
    assert len(key_of({"x": node})) == 12

    # WHEN it is made again, by the harness and by a script
    made = make_inputs(StageSignature("s", {"x": node}))["x"]
    names = {name: getattr(values, name) for name in dir(values)}
    names.update(mock=values.MockInputs(), torch=torch, Path=pathlib.Path)
    names.update({helper.__name__: helper for helper in kind.helpers})
    written = eval(render(source_of(node, "x"), 4), names)

    # THEN both have the form of the example
    assert type(made) is type(value)
    assert capture(made, read_values=False) == capture(value, read_values=False)
    assert capture(written, read_values=False) == capture(value, read_values=False)


def test_the_helpers_of_a_kind_are_written_into_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a kind whose source calls a function of its own
    from stagespan.harness import HarnessConfig
    from stagespan.harness.script import script_text

    kind = kind_of({"$type": "range"})
    monkeypatch.setattr(kind, "helpers", (made_by_a_helper,), raising=False)
    monkeypatch.setattr(kind, "source", lambda node, path: "made_by_a_helper()", raising=False)
    signature = StageSignature("s", {"x": {"$type": "range", "args": [3]}})

    # WHEN a script is written
    names: dict[str, Any] = {"__name__": "script"}
    exec(script_text(signature, None, HarnessConfig(), stem="s"), names)

    # THEN it has the function, and scripts that do not need it leave it out
    assert names["create_inputs"]() == {"x": [0, 1, 2]}
    assert "made_by_a_helper" not in script_text(
        StageSignature("s"), None, HarnessConfig(), stem="s"
    )


def made_by_a_helper() -> list[int]:
    return list(range(3))


def test_kinds_have_names_of_their_own() -> None:
    names = [kind.name for kind in KINDS if kind.name is not None]

    assert len(set(names)) == len(names)
    assert all(kind_of({"$type": kind.name}) is kind for kind in KINDS if kind.name is not None)


# --- tensors that share memory -------------------------------------------------------------------


def remade(*tensors: Any, **options: Any) -> list[Any]:
    nodes = capture_arguments({f"x{at}": tensor for at, tensor in enumerate(tensors)})
    nodes = json.loads(json.dumps(nodes))
    return list(make_inputs(StageSignature("s", nodes), **options).values())


def test_tensors_that_share_memory_share_it_in_the_replay() -> None:
    # GIVEN the three parts of a projection, and its transpose
    whole = torch.randn(4, 12)
    parts = (*whole.chunk(3, -1), whole.t())

    # WHEN they are made again
    made = remade(*parts)

    # THEN they lie in one memory, in the same places
    assert [tensor.stride() for tensor in made] == [tensor.stride() for tensor in parts]
    begin = made[3].data_ptr()
    assert [tensor.data_ptr() - begin for tensor in made] == [0, 16, 32, 0]
    made[1].fill_(7)
    assert bool((made[3][4:8] == 7).all())
    assert not bool((made[3][:4] == 7).any())


def test_only_the_part_of_the_memory_that_is_used_is_made() -> None:
    # GIVEN two neighbouring slices of a large buffer, of different types
    buffer = torch.zeros(1 << 20, dtype=torch.uint8)
    first, second = buffer[4096:4224].view(torch.float32), buffer[4160:4288]

    # WHEN / THEN
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
    whole = torch.zeros(1 << 20)
    monkeypatch.setattr("stagespan.signature.resources.free_host_bytes", lambda: 6 << 20)

    # WHEN / THEN
    assert len(remade(*(whole[at:] for at in range(10)))) == 10


def test_tensors_of_another_type_than_captured_do_not_share_memory() -> None:
    whole = torch.zeros(8)

    made = remade(whole[:4], whole[4:], dtype="float16")

    assert [tensor.dtype for tensor in made] == [torch.float16] * 2


# --- sparse and nested tensors -------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_sparse_tensors_keep_their_layout_and_the_elements_of_each_row(layout: str) -> None:
    # GIVEN a sparse tensor in which rows have different numbers of elements
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(60, 120, generator=generator)
    dense = dense * (dense < torch.linspace(0, 0.2, 60)[:, None])
    options = {"blocksize": (4, 4)} if layout in ("bsr", "bsc") else {}
    value = getattr(dense, "to_sparse" if layout == "coo" else f"to_sparse_{layout}")(**options)

    # WHEN it is made again
    (made,) = remade(value)

    # THEN layout, shape and number of elements are the same, and rows are filled alike
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
    # GIVEN a file that asks for more elements than the tensor has places
    from stagespan.errors import SignatureError

    node = capture(torch.eye(4).to_sparse_csr())
    node["shape"] = [4, 0]

    # WHEN / THEN no tensor is made that would read outside of its memory
    with pytest.raises(SignatureError, match=r"'torch\.sparse' is wrong"):
        make_inputs(StageSignature("s", {"x": node}))


def test_nested_tensors_keep_their_parts() -> None:
    (made,) = remade(torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)]))

    assert [part.shape for part in made.unbind()] == [(3, 4), (5, 4)]


def test_jagged_tensors_keep_their_lengths() -> None:
    (made,) = remade(jagged())

    assert made.layout == torch.jagged
    assert [part.shape for part in made.unbind()] == [(3, 4), (5, 4)]


def test_the_parts_of_several_tensors_are_told_apart() -> None:
    # GIVEN tensors whose parts exist only while they are captured
    given = {f"x{at}": torch.eye(at + 2).to_sparse() for at in range(20)}
    given.update({f"y{at}": jagged() for at in range(20)})

    # WHEN / THEN none of the parts is taken for another
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

    # GIVEN a signature file of a stage that was called with such a value
    path = tmp_path / "signatures.json"
    SignatureFile({"s": StageSignature("s", capture_arguments({"x": make()}))}).write(path)

    # WHEN / THEN
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

    # GIVEN a file in which a tensor is the same as itself
    path = tmp_path / "signatures.json"
    SignatureFile({"s": StageSignature("s", nodes)}).write(path)

    # WHEN / THEN one sentence names the input, and how to pass it in
    with pytest.raises(StagespanError) as caught:
        make_inputs(SignatureFile.read(path).stage("s"))
    sentence = str(caught.value)
    assert sentence.startswith("Input 'x")
    assert "not made before it" in sentence
    assert "HarnessConfig(inputs={'x': ...})" in sentence
