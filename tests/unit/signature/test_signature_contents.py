"""Integers are made as they were: ranges, offsets, masks, permutations, few distinct values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stagespan
from stagespan.errors import SignatureError
from stagespan.signature import SignatureFile, StageSignature, capture
from stagespan.signature.capture import capture_arguments

torch = pytest.importorskip("torch")

from stagespan.signature.mock import make_inputs  # noqa: E402


def made(**arguments: Any) -> dict[str, Any]:
    """The arguments, captured and made again."""
    return make_inputs(StageSignature("s", capture_arguments(arguments)))


def prefix_mask(lengths: list[int], width: int, left: bool = False) -> Any:
    at = torch.arange(width)
    rows = [(at >= width - n) if left else (at < n) for n in lengths]
    return torch.stack(rows).long()


@pytest.mark.parametrize(
    "exact",
    [
        torch.full((5, 40), 7),
        torch.arange(200),
        torch.arange(100, 0, -1).int(),
        torch.arange(90).expand(4, 90),
        prefix_mask([80, 3, 50], 80),
        prefix_mask([80, 3, 50], 80, left=True),
        prefix_mask([80, 3, 50], 80).bool(),
        torch.repeat_interleave(torch.tensor([3, 9, 1]), 50),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_ranges_constants_and_masks_are_made_exactly(exact: Any) -> None:
    # GIVEN / WHEN / THEN
    again = made(x=exact)["x"]
    assert torch.equal(again, exact)
    assert again.dtype == exact.dtype


def test_offsets_are_sorted_and_have_the_same_ends_and_about_the_same_steps() -> None:
    # GIVEN offsets of sequences, of which a few are long
    lengths = torch.randint(1, 20, (300,))
    lengths[::50] = 400
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])

    # WHEN
    again = made(x=offsets)["x"]

    # THEN
    assert (int(again[0]), int(again[-1])) == (int(offsets[0]), int(offsets[-1]))
    assert bool((again[1:] >= again[:-1]).all())
    assert (again - offsets).abs().max() < 500


def test_a_permutation_is_a_permutation() -> None:
    # GIVEN / WHEN
    again = made(x=torch.stack([torch.randperm(200) for _ in range(3)]))["x"]

    # THEN each row is one
    assert torch.equal(again.sort(-1).values, torch.arange(200).expand(3, 200))
    assert not torch.equal(again[0], torch.arange(200))


def test_few_distinct_values_have_their_counts() -> None:
    # GIVEN routing to four experts of eight, one of them taken most
    experts = torch.multinomial(torch.tensor([0.7, 0.1, 0.1, 0.1]), 900, replacement=True) * 2

    # WHEN
    again = made(x=experts.reshape(300, 3))["x"]

    # THEN
    assert torch.equal(again.flatten().bincount(), experts.bincount())
    assert again.shape == (300, 3)


def test_the_tokens_of_an_image_are_as_many_and_where_they_were() -> None:
    # GIVEN token ids with a stretch of image tokens
    ids = torch.randint(0, 30_000, (1, 600))
    ids[0, 20:340] = 32_000

    # WHEN
    again = made(ids=ids)["ids"]

    # THEN
    assert torch.equal(again == 32_000, ids == 32_000)
    assert again.max() == 32_000
    assert len(again.unique()) > 100


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=150), st.booleans())
def test_any_integers_can_be_captured_and_made(values: list[int], twice: bool) -> None:
    # GIVEN
    tensor = torch.tensor(values * (2 if twice else 1))

    # WHEN / THEN
    again = made(x=tensor)["x"]
    assert again.shape == tensor.shape
    assert tensor.min() <= again.min()
    assert again.max() <= tensor.max()


NODE = {"shape": [10], "dtype": "int64", "device": "cpu", "value_range": [0, 9]}


@pytest.mark.parametrize(
    "content",
    [
        3,
        {},
        {"kind": 4},
        {"kind": "runs", "values": [1], "lengths": [1 << 61]},
        {"kind": "runs", "values": [1, 2], "lengths": [10]},
        {"kind": "runs", "values": [1], "lengths": [-10]},
        {"kind": "counts", "values": [1], "counts": [9]},
        {"kind": "counts", "values": list(range(5000)), "counts": [1] * 5000},
        {"kind": "range", "start": "__import__('os')", "step": 1},
        {"kind": "range", "start": 1 << 70, "step": 1},
        {"kind": "sorted", "knots": []},
        {"kind": "permutation", "extra": 1},
        {"kind": "frequent", "values": [1], "counts": [1 << 60], "first": [1], "distinct": 1 << 60},
        {"kind": "of a later version"},
    ],
)
def test_a_hostile_content_is_refused_or_harmless(content: Any) -> None:
    # GIVEN
    signature = StageSignature("s", {"x": {**NODE, "content": content}})
    said, shape = "", None

    # WHEN
    try:
        shape = make_inputs(signature)["x"].shape
    except SignatureError as error:
        said = str(error)

    # THEN
    assert shape == (10,) or len(said.splitlines()) == 1


class Layer:
    def __init__(self, length: int) -> None:
        self.keys = torch.zeros(1, 2, length, 8)
        self.dtype = torch.float32
        self.kind = Layer


class Cache:
    def __init__(self, length: int) -> None:
        self.layers = [Layer(length), Layer(length)]
        self.seen = length


class Deleting(Cache):
    def __del__(self) -> None: ...


def test_objects_that_hold_tensors_are_captured_as_structures() -> None:
    # GIVEN a cache, and one that also holds what cannot be made
    with_lock = Cache(5)
    with_lock.lock = __import__("threading").Lock()  # type: ignore[attr-defined]

    # WHEN
    again = made(cache=Cache(5))["cache"]

    # THEN the first is made without its __init__, the other is named
    assert type(again) is Cache
    assert [tuple(layer.keys.shape) for layer in again.layers] == [(1, 2, 5, 8)] * 2
    assert (again.seen, again.layers[0].kind) == (5, Layer)
    assert "unreplayable" in capture(with_lock)
    assert "unreplayable" in capture(Deleting(3))
    assert "unreplayable" in capture(type("Local", (), {"x": torch.zeros(2)})())


def test_a_cache_of_transformers_is_made_again() -> None:
    # GIVEN
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8), 0)

    # WHEN
    again = made(past=cache)["past"]

    # THEN it works as one
    assert again.get_seq_length() == 5
    keys, _ = again.update(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8), 0)
    assert keys.shape == (1, 2, 6, 8)


def test_a_tensor_that_is_passed_twice_is_one_in_the_replay(tmp_path: Path) -> None:
    # GIVEN
    shared = torch.randn(2, 30)

    def stage(a: Any, b: Any, c: Any) -> Any:
        return a

    stagespan.set_debug()
    stagespan.reset_timing_registry()
    stagespan.ProfilingContext4Debug("twice")(stage)(shared, {"inner": [shared]}, shared.clone())
    path = stagespan.dump_io_signatures(tmp_path / "s.json")
    stagespan.set_debug(False)

    # WHEN
    again = make_inputs(SignatureFile.read(path).stage("twice"))

    # THEN
    assert again["a"] is again["b"]["inner"][0]
    assert again["a"] is not again["c"]


@pytest.mark.parametrize(
    "node",
    [
        {"$type": "object", "class": "subprocess:Popen", "fields": {}},
        {"$type": "object", "class": "tempfile:_TemporaryFileCloser", "fields": {}},
        {"$type": "object", "class": "torch.nn:Linear", "fields": {}},
        {"$type": "object", "class": "antigravity:x", "fields": {}},
        {"$type": "object", "class": "os:system", "fields": {}},
        {"$type": "object", "class": 3, "fields": {}},
        {"$type": "object", "fields": {}},
        {"$type": "class", "class": "not_there:X"},
        {"$type": "shared", "of": "nothing"},
        {"$type": "shared"},
    ],
)
def test_a_hostile_object_is_refused_in_one_sentence(node: Any) -> None:
    # GIVEN / WHEN
    with pytest.raises((SignatureError, stagespan.errors.HarnessError)) as caught:
        make_inputs(StageSignature("s", {"x": node}))

    # THEN nothing was imported for it
    assert len(str(caught.value).splitlines()) == 1
    assert "antigravity" not in __import__("sys").modules


def test_a_configuration_is_captured_as_a_structure() -> None:
    # GIVEN an object without tensors
    transformers = pytest.importorskip("transformers")
    config = transformers.GenerationConfig(max_new_tokens=6, temperature=0.5)

    # WHEN
    again = made(config=config)["config"]

    # THEN
    assert type(again) is transformers.GenerationConfig
    assert again.to_dict() == config.to_dict()
