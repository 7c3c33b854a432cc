"""Mock inputs: valid, seeded, with the right form; invalid signatures are refused."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagespan.errors import HarnessError, SignatureError
from stagespan.signature import SignatureFile, StageSignature, capture
from stagespan.signature.dtypes import ELEMENT_BYTES

torch = pytest.importorskip("torch")

from stagespan.signature.mock import make_inputs  # noqa: E402


class Mode(enum.Enum):
    FAST = "fast"


@dataclasses.dataclass(frozen=True)
class Options:
    latents: Any
    steps: int = 3


Pair = collections.namedtuple("Pair", "first second")


def stage(**inputs: Any) -> StageSignature:
    return StageSignature("denoise", inputs)


def tensor(shape: list[int], dtype: str = "float32", **more: Any) -> dict[str, Any]:
    return {"shape": shape, "dtype": dtype, "device": "cpu", **more}


def same(a: Any, b: Any) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
def test_every_known_dtype_can_be_created(dtype: str) -> None:
    signature = stage(x=tensor([4, 6], dtype), empty=tensor([0, 3], dtype))

    first, second = make_inputs(signature), make_inputs(signature)
    other = make_inputs(signature, seed=1)

    # THEN they have the requested form, and the seed decides the values
    made = first["x"]
    assert (list(made.shape), made.dtype) == ([4, 6], getattr(torch, dtype))
    assert made.element_size() == ELEMENT_BYTES[dtype]
    assert list(first["empty"].shape) == [0, 3]
    assert same(made, second["x"])
    assert not same(made, other["x"])


def test_normal_values_are_neither_zero_nor_equal() -> None:
    made = make_inputs(stage(x=tensor([300, 400], "bfloat16")))["x"].float()

    assert abs(made.mean()) < 0.05
    assert 0.9 < made.std() < 1.1


def test_integers_stay_within_their_range() -> None:
    # GIVEN token ids of a vocabulary, and integers without known content
    signature = stage(ids=tensor([8, 77], "int64", value_range=[3, 900]), n=tensor([99], "int32"))

    made = make_inputs(signature)

    assert made["ids"].min() >= 3
    assert 500 < made["ids"].max() <= 900
    assert set(made["n"].tolist()) == {0, 1}


def test_masks_have_the_captured_fraction_of_true() -> None:
    made = make_inputs(
        stage(
            most=tensor([100, 100], "bool", true_fraction=0.9),
            all=tensor([500], "bool", true_fraction=1.0),
            none=tensor([500], "bool", true_fraction=0.0),
        )
    )

    assert 0.88 < made["most"].float().mean() < 0.92
    assert made["all"].all()
    assert not made["none"].any()


@pytest.mark.parametrize(
    "original",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.randn(1, 5).expand(4, 5),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(8, 8)[::2, 1:],
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0, 4).t(),
    ],
)
def test_strides_are_those_of_the_captured(original: Any) -> None:
    # GIVEN a tensor that is not contiguous
    made = make_inputs(stage(x=capture(original)))["x"]

    assert made.shape == original.shape
    if original.numel():
        assert made.stride() == original.stride()


def test_kept_values_are_reproduced_exactly() -> None:
    small = {
        "cu_seqlens": torch.tensor([0, 7, 19], dtype=torch.int32),
        "timestep": torch.tensor(999.0, dtype=torch.bfloat16),
        "mask": torch.tensor([[True, False]]),
        "big": torch.tensor([2**63 + 5], dtype=torch.uint64),
        "rows": torch.tensor([1, 2]).expand(3, 2),
    }

    made = make_inputs(stage(**{name: capture(value) for name, value in small.items()}))

    for name, value in small.items():
        assert made[name].dtype == value.dtype
        assert made[name].tolist() == value.tolist()


def test_structures_and_constants_are_reproduced() -> None:
    # GIVEN arguments of many kinds
    given = {
        "options": Options(torch.zeros(30), 5),
        "pair": Pair(1, [2.5, None]),
        "mode": Mode.FAST,
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "layout": torch.channels_last,
        "table": {"a": (1, {"b": "x"}), "c": [True]},
        "keys": {1: "x", (2, 3): "y"},
        "tokens": collections.UserDict(ids=[1, 2]),
        "text": "x" * 5000,
        "numbers": list(range(3000)),
        "inf": float("-inf"),
        "z": 1 - 2j,
        "raw": b"ab",
        "part": slice(1, None, 2),
        "some": {1, 2},
    }

    made = make_inputs(stage(**{name: capture(value) for name, value in given.items()}))

    # THEN everything is equal except content that is too long
    assert made["options"].latents.shape == (30,)
    assert made["options"].steps == 5
    assert type(made["tokens"]) is collections.UserDict
    assert len(made["numbers"]) == 3000
    exact = set(given) - {"options", "numbers"}
    assert {name: made[name] for name in exact} == {name: given[name] for name in exact}


def test_numpy_arrays_images_and_generators_are_reproduced() -> None:
    image_module = pytest.importorskip("PIL.Image")
    given = {
        "array": np.arange(200, dtype=np.uint8).reshape(2, 100),
        "image": image_module.new("RGB", (8, 6)),
        "generator": torch.Generator(),
    }

    made = make_inputs(stage(**{name: capture(value) for name, value in given.items()}))

    assert made["array"].shape == (2, 100)
    assert made["array"].dtype == np.uint8
    assert made["image"].size == (8, 6)
    assert made["image"].getextrema()[0][1] > 100  # noise, not black
    assert torch.rand(1, generator=made["generator"]).item() >= 0


def test_an_input_passed_in_changes_no_other() -> None:
    signature = stage(a=tensor([50]), b=tensor([50]))
    mine = torch.ones(3)

    made = make_inputs(signature, inputs={"a": mine, "new": 1})

    assert made["a"] is mine
    assert made["new"] == 1
    assert torch.equal(made["b"], make_inputs(signature)["b"])


def test_arguments_that_are_only_in_metadata_are_passed() -> None:
    # GIVEN a stage as in TeleFuser's page
    signature = StageSignature("denoise", {"cfg_scale": 5.0}, metadata={"num_inference_steps": 40})

    assert make_inputs(signature) == {"cfg_scale": 5.0, "num_inference_steps": 40}


def test_dtype_changes_floating_point_inputs_only() -> None:
    made = make_inputs(stage(x=tensor([9]), n=tensor([9], "int64")), dtype="torch.bfloat16")

    assert made["x"].dtype == torch.bfloat16
    assert made["n"].dtype == torch.int64


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (tensor([2, -3]), "negative size -3"),
        (tensor([1 << 70]), "more than any tensor"),
        (tensor([1 << 40, 4]), "GiB on cpu"),
        (tensor([1 << 61, 1 << 61]), "EiB on cpu"),
        (tensor([2], "float33"), "the closest is float3"),
        (tensor([2], "qint8"), "is a quantized tensor (qint8), which cannot be created"),
        (tensor([2], "__class__"), "known types are"),
        ({"shape": 3, "dtype": "float32"}, "not a list of integers"),
        ({"shape": [2.5], "dtype": "float32"}, "not a list of integers"),
        ({"shape": [2], "dtype": ["float32"]}, "known types are"),
        ({"shape": [2], "dtype": "float32", "device": 7}, "not a string such as 'cuda:0'"),
        (tensor([2, 2], strides=[1]), "1 strides do not fit"),
        (tensor([2, 2], strides=[-1, 1]), "negative"),
        (tensor([2, 2], strides=[1 << 60, 1]), "on cpu"),
        (tensor([2], "int64", value_range=[5, 1]), "value_range"),
        (tensor([2], "int64", values=[1]), "list of the 2 values"),
        (tensor([2], "int8", values=["a", 1]), "cannot be created"),
        (tensor([2], "bool", true_fraction=2), "true_fraction"),
        (tensor([3], layout="sparse_coo"), "sparse_coo"),
        ({"$type": "enum", "class": "os:system", "name": "x"}, "not loaded"),
        ({"$type": "dataclass", "class": "builtins:object", "fields": {}}, "neither a dataclass"),
        ({"$type": "dataclass", "class": "nowhere:X", "fields": {}}, "import 'nowhere' first"),
        ({"$type": "enum"}, "entry of type 'enum' has no 'class'"),
        ({"$type": "enum", "class": f"{__name__}:Mode", "name": "SLOW"}, "no member 'SLOW'"),
        ({"$type": "dataclass", "class": f"{__name__}:Options"}, "has no 'fields'"),
        ({"$type": "list", "items": [1]}, "has no 'length'"),
        ({"$type": "ndarray", "shape": [2]}, "has no 'dtype'"),
        ({"$type": "nonsense"}, "nonsense"),
        ({"$type": "torch.dtype", "value": "nn"}, "does not know the torch.dtype"),
        ({"$type": "list", "length": 1 << 40, "items": [1]}, "length"),
        ({"$type": "image", "size": [1 << 30, 1 << 30], "mode": "RGB"}, "size"),
        ({"unreplayable": "pkg.Pipe", "reason": "why"}, "is a pkg.Pipe (why)"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_sentence(node: Any, says: str) -> None:
    with pytest.raises((SignatureError, HarnessError)) as caught:
        make_inputs(stage(x=node))

    message = str(caught.value)
    assert says in message
    assert "'x'" in message
    assert "\n" not in message


def test_unreplayable_values_are_named_with_advice() -> None:
    # GIVEN an argument with an object deep inside
    node = capture({"cache": [object()]})

    with pytest.raises(HarnessError) as caught:
        make_inputs(stage(state=node))

    assert "'state.cache[0]' is a object" in str(caught.value)
    assert "HarnessConfig(inputs={'state': ...})" in str(caught.value)


@pytest.mark.parametrize(
    "device", ["cuda:0", "cuda:99", "npu:0", "xpu", "meta", "nonsense", "cuda:x"]
)
def test_a_missing_device_is_reported_with_advice(device: str) -> None:
    if device == "cuda:0" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    signature = stage(latents={**tensor([2]), "device": device})

    with pytest.raises(HarnessError) as caught:
        make_inputs(signature)

    # THEN the sentence says what to do, and doing so works
    assert "HarnessConfig(device='cpu')" in str(caught.value)
    assert make_inputs(signature, device="cpu")["latents"].device.type == "cpu"


def test_host_tensors_stay_on_the_host() -> None:
    signature = stage(
        latents={**tensor([2]), "device": "cuda:0"},
        lengths=tensor([1]),
        where=capture(torch.device("cuda:0")),
    )

    from stagespan.harness.standalone.values import MockInputs

    mock = MockInputs(device="meta", captured_device="cuda:0")

    assert mock.place("cuda:0") == "meta"
    assert mock.place("cpu") == "cpu"
    assert make_inputs(signature, device="cpu")["where"] == torch.device("cpu")


def test_a_large_file_is_read_whole(tmp_path: Path) -> None:
    inputs = {f"x{at}": at for at in range(100_000)}
    path = tmp_path / "large.json"
    path.write_text(
        json.dumps({"schema_version": 1, "stages": {"s": {"input_signatures": inputs}}})
    )

    made = make_inputs(SignatureFile.read(path).stage("s"))

    assert list(made.items()) == list(inputs.items())
