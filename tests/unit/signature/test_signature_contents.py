"""Integers with the original kind of content: ranges, offsets, masks, permutations, few values."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stagespan
from properties import examples
from stagespan.errors import SignatureError
from stagespan.signature import SignatureFile, StageSignature, capture
from stagespan.signature.capture import capture_arguments

torch = pytest.importorskip("torch")

from stagespan.harness.standalone.contents import make_content  # noqa: E402
from stagespan.signature.contents import describe_content  # noqa: E402
from stagespan.signature.mock import make_inputs  # noqa: E402


def made(**arguments: Any) -> dict[str, Any]:
    """Return the arguments, captured and created again."""
    return make_inputs(StageSignature("s", capture_arguments(arguments)))


def prefix_mask(lengths: list[int], width: int, left: bool = False) -> Any:
    at = torch.arange(width)
    rows = [(at >= width - n) if left else (at < n) for n in lengths]
    return torch.stack(rows).long()


def causal(size: int) -> Any:
    """Return an additive mask for attention."""
    return torch.full((size, size), float("-inf")).triu(1)


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
        torch.ones(5, 40),
        prefix_mask([80, 3, 50], 80).to(torch.bfloat16),
        causal(40),
        torch.cat([torch.zeros(2, 30), torch.full((2, 30), torch.finfo(torch.float16).min)]).half(),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_ranges_constants_and_masks_are_reproduced_exactly(exact: Any) -> None:
    again = made(x=exact)["x"]
    assert torch.equal(again, exact)
    assert again.dtype == exact.dtype


def test_offsets_are_sorted_and_have_the_same_ends_and_about_the_same_steps() -> None:
    lengths = torch.randint(1, 20, (300,))
    lengths[::50] = 400
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])

    again = made(x=offsets)["x"]

    assert (int(again[0]), int(again[-1])) == (int(offsets[0]), int(offsets[-1]))
    assert bool((again[1:] >= again[:-1]).all())
    assert (again - offsets).abs().max() < 500


def test_a_permutation_is_a_permutation() -> None:
    again = made(x=torch.stack([torch.randperm(200) for _ in range(3)]))["x"]

    assert torch.equal(again.sort(-1).values, torch.arange(200).expand(3, 200))
    assert not torch.equal(again[0], torch.arange(200))


def test_few_distinct_values_have_their_counts() -> None:
    # GIVEN routing to four of eight experts, one of which is used most
    experts = torch.multinomial(torch.tensor([0.7, 0.1, 0.1, 0.1]), 900, replacement=True) * 2

    again = made(x=experts.reshape(300, 3))["x"]

    assert torch.equal(again.flatten().bincount(), experts.bincount())
    assert again.shape == (300, 3)


def test_image_tokens_keep_their_number_and_position() -> None:
    ids = torch.randint(0, 30_000, (1, 600))
    ids[0, 20:340] = 32_000

    again = made(ids=ids)["ids"]

    assert torch.equal(again == 32_000, ids == 32_000)
    assert again.max() == 32_000
    assert len(again.unique()) > 100


@pytest.mark.parametrize("padding", [-(2**63), 2**62, 2**63 - 1])
def test_the_largest_integers_as_padding_are_kept(padding: int) -> None:
    ids = torch.cat([torch.arange(40), torch.full((24,), padding)])
    assert torch.equal(made(x=ids)["x"], ids)


@settings(max_examples=examples(40))
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=150), st.booleans())
def test_any_integers_can_be_captured_and_reproduced(values: list[int], twice: bool) -> None:
    tensor = torch.tensor(values * (2 if twice else 1))

    again = made(x=tensor)["x"]
    assert again.shape == tensor.shape
    assert tensor.min() <= again.min()
    assert again.max() <= tensor.max()


def boxes(count: int, low: int, high: int) -> Any:
    """Boxes of two corners, x0 y0 x1 y1, of which the last third are padding."""
    corners = torch.randint(low, high + 1, (count, 2, 2)).sort(1).values.reshape(count, 4)
    corners[count * 2 // 3 :] = low
    return corners.expand(2, count, 4).contiguous()


@pytest.mark.parametrize(("count", "high"), [(512, 1000), (512, 20), (20, 1000), (120, 1000)])
def test_the_corners_of_boxes_stay_ordered(count: int, high: int) -> None:
    captured = boxes(count, 0, high)
    again = made(x=captured)["x"]
    assert again.shape == captured.shape
    assert bool((again[..., 2:] >= again[..., :2]).all())
    assert 0 <= int(again.min()) <= int(again.max()) <= high
    assert bool((again[..., 2:] > again[..., :2]).any())


@settings(max_examples=examples(30))
@given(width=st.integers(2, 8), seed=st.integers(0, 1 << 30), data=st.data())
def test_columns_keep_any_order(width: int, seed: int, data: st.DataObject) -> None:
    # GIVEN columns of which some are sums of others and positive numbers
    rows = torch.randint(0, 1 << 20, (200, width), generator=torch.Generator().manual_seed(seed))
    for column in range(1, width):
        for earlier in data.draw(st.sets(st.integers(0, column - 1), max_size=2)):
            rows[:, column] += rows[:, earlier]
    rows = rows[:, data.draw(st.permutations(range(width)))]
    again = made(x=rows)["x"]
    for one in range(width):
        for other in range(width):
            if bool((rows[:, one] <= rows[:, other]).all()):
                assert bool((again[:, one] <= again[:, other]).all())


def test_columns_without_an_order_get_none() -> None:
    node = capture(torch.randint(0, 1000, (300, 4)))
    assert "content" not in node


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
        {"kind": "ordered", "low": [0], "high": [10], "of": None},
        {"kind": "ordered", "low": [0], "high": [1, 2], "of": None},
        {"kind": "ordered", "low": [0], "high": [1], "of": {"kind": "ordered"}},
        {"kind": "ordered", "low": [0] * 5000, "high": [1] * 5000, "of": None},
        {"kind": "of a later version"},
    ],
)
def test_a_hostile_content_is_refused_or_harmless(content: Any) -> None:
    signature = StageSignature("s", {"x": {**NODE, "content": content}})
    said, shape = "", None

    try:
        shape = make_inputs(signature)["x"].shape
    except SignatureError as error:
        said = str(error)

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
    # GIVEN a cache, and one with an additional value that cannot be created
    with_lock = Cache(5)
    with_lock.lock = __import__("threading").Lock()  # type: ignore[attr-defined]

    again = made(cache=Cache(5))["cache"]

    # THEN the first is created without its __init__, and the other is reported
    assert type(again) is Cache
    assert [tuple(layer.keys.shape) for layer in again.layers] == [(1, 2, 5, 8)] * 2
    assert (again.seen, again.layers[0].kind) == (5, Layer)
    assert "unreplayable" in capture(with_lock)
    assert "unreplayable" in capture(Deleting(3))
    assert "unreplayable" in capture(type("Local", (), {"x": torch.zeros(2)})())


def test_a_namespace_is_captured_as_a_structure() -> None:
    given = SimpleNamespace(hidden=torch.zeros(2, 3), scale=2.5)

    again = made(given=given)["given"]

    assert type(again) is SimpleNamespace
    assert (tuple(again.hidden.shape), again.scale) == ((2, 3), 2.5)


def test_a_cache_of_transformers_is_reproduced() -> None:
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8), 0)

    again = made(past=cache)["past"]

    assert again.get_seq_length() == 5
    keys, _ = again.update(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8), 0)
    assert keys.shape == (1, 2, 6, 8)


def test_a_tensor_that_is_passed_twice_is_one_in_the_replay(tmp_path: Path) -> None:
    shared = torch.randn(2, 30)

    def stage(a: Any, b: Any, c: Any) -> Any:
        return a

    stagespan.set_debug()
    stagespan.reset_timing_registry()
    stagespan.ProfilingContext4Debug("twice")(stage)(shared, {"inner": [shared]}, shared.clone())
    path = stagespan.dump_io_signatures(tmp_path / "s.json")
    stagespan.set_debug(False)

    again = make_inputs(SignatureFile.read(path).stage("twice"))

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
    with pytest.raises((SignatureError, stagespan.errors.HarnessError)) as caught:
        make_inputs(StageSignature("s", {"x": node}))

    assert len(str(caught.value).splitlines()) == 1
    assert "antigravity" not in __import__("sys").modules


def test_a_configuration_is_captured_as_a_structure() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GenerationConfig(max_new_tokens=6, temperature=0.5)

    again = made(config=config)["config"]

    assert type(again) is transformers.GenerationConfig
    assert again.to_dict() == config.to_dict()


def test_floats_with_few_values_have_as_many_of_each() -> None:
    exact = (torch.rand(50, 50, generator=torch.Generator().manual_seed(0)) < 0.2).double()
    again = made(x=exact)["x"]
    assert again.sum() == exact.sum()
    assert set(again.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_from_0_to_1_and_others_with_a_bound_stay_within_it(dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    image = torch.rand(3, 40, 40, generator=generator).to(kind)
    sigmas = (5 + 80 * torch.rand(400, generator=generator)).to(kind)
    pixels = (2 * torch.rand(3, 40, 40, generator=generator) - 1).to(kind)
    embeddings = torch.randn(20, 64, generator=generator).to(kind)

    again = made(image=image, sigmas=sigmas, pixels=pixels, embeddings=embeddings)

    for name, exact in (("image", image), ("sigmas", sigmas), ("pixels", pixels)):
        assert again[name].min() >= exact.min()
        assert again[name].max() <= exact.max()
        assert len(again[name].unique()) > 100
    # Values around 0 without a bound stay as they were made before.
    assert again["embeddings"].abs().max() > 2


def test_arrays_of_floats_stay_within_their_bounds() -> None:
    np = pytest.importorskip("numpy")
    image = np.random.default_rng(0).random((40, 40, 3), dtype=np.float32)
    again = made(image=image)["image"]
    assert 0 <= again.min() <= again.max() <= 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"content": {"kind": "levels", "levels": [], "of": {"kind": "permutation"}}},
        {"content": {"kind": "levels", "levels": ["nan"], "of": {"kind": "permutation"}}},
        {"content": {"kind": "levels", "levels": [0.0, 1.0], "of": [1]}},
        {"content": {"kind": "levels", "levels": [0.0], "of": {"kind": "levels"}}},
        {"value_range": [0.5, float("nan")]},
        {"value_range": [1.0, 0.0]},
    ],
)
def test_wrong_contents_of_floats_are_refused_in_a_sentence(wrong: dict[str, Any]) -> None:
    node = {"shape": [4, 40], "dtype": "float32", **wrong}
    with pytest.raises(SignatureError, match="Input 'x'"):
        make_inputs(StageSignature("s", {"x": node}))


@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("block", [0, 700])
def test_frequent_values_keep_counts_places_and_the_number_of_others(
    spread: float, block: int
) -> None:
    generator = torch.Generator().manual_seed(5)
    live = (torch.randn(3000, generator=generator) * 100 * spread).long()
    live[40 : 40 + block] = 151_655
    live[::8] = -7000
    content = describe_content(live)
    assert content is not None
    assert content["kind"] == "frequent"
    assert min(len(content["values"]), content["distinct"]) > 0

    value_range = (int(live.min()), int(live.max()))
    made = make_content(content, live.shape, value_range, generator)

    assert describe_content(made) == content
    assert (int(made.min()), int(made.max())) == value_range
