"""What a signature keeps of values: always the form, and content only if a mock needs it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import json
import pathlib
import sys
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

from running import ran
from stagespan.signature import capture

torch = pytest.importorskip("torch")


class Mode(enum.Enum):
    FAST = "fast"


@dataclasses.dataclass
class Options:
    steps: int
    latents: Any = None


class Pair(NamedTuple):
    first: Any
    second: Any


def test_tensors_are_kept_as_the_files_of_telefuser_have_them() -> None:
    # GIVEN a contiguous tensor of the usual kind
    latents = torch.randn(1, 16, 21, 6, 10, dtype=torch.bfloat16)

    node = capture(latents)

    assert node == {"shape": [1, 16, 21, 6, 10], "dtype": "bfloat16", "device": "cpu"}


def test_gradient_and_strides_are_kept_only_when_not_the_default() -> None:
    tensor = torch.randn(40, 30).t().requires_grad_()

    node = capture(tensor)

    assert node["strides"] == [1, 30]
    assert node["requires_grad"] is True


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.uint16])
def test_integer_tensors_keep_their_range(dtype: Any) -> None:
    ids = torch.arange(5, 105).to(dtype)

    assert capture(ids)["value_range"] == [5, 104]


def test_small_tensors_keep_their_values() -> None:
    # GIVEN values that stages compute with: lengths, a timestep, a mask
    assert capture(torch.tensor([0, 7, 19]))["values"] == [0, 7, 19]
    assert capture(torch.tensor(999.0))["values"] == [999.0]
    assert capture(torch.tensor([True, False]))["values"] == [True, False]
    assert "values" not in capture(torch.tensor([float("nan")]))


def test_large_masks_keep_the_part_that_is_true() -> None:
    mask = torch.zeros(4, 100, dtype=torch.bool)
    mask[:, :25] = True

    assert capture(mask)["true_fraction"] == 0.25


def test_values_are_not_read_unless_asked() -> None:
    assert set(capture(torch.arange(100), read_values=False)) == {"shape", "dtype", "device"}


def test_values_are_not_read_under_a_dispatch_mode() -> None:
    # GIVEN a mode that sees every operator, such as a user's counter
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    ids = torch.arange(100)

    with Watch():
        node = capture(ids)

    assert seen == []
    assert node == {"shape": [100], "dtype": "int64", "device": "cpu"}


@pytest.mark.parametrize("value", [None, True, 3, -1, 2.5, "text", "", [1, "a"], {"a": {"b": 1}}])
def test_plain_values_are_kept_as_they_are(value: Any) -> None:
    assert capture(value) == value


def test_structures_keep_their_kind() -> None:
    tensor = torch.randn(20, 20)
    options = Options(3, tensor)

    kept = {"shape": [20, 20], "dtype": "float32", "device": "cpu"}
    assert capture((1, [tensor])) == {"$type": "tuple", "items": [1, [kept]]}
    assert capture(options) == {
        "$type": "dataclass",
        "class": f"{__name__}:Options",
        "fields": {"steps": 3, "latents": kept},
    }
    assert capture(Pair(1, 2))["$type"] == "namedtuple"
    assert capture({1: "a"}) == {"$type": "dict", "items": [[1, "a"]]}
    assert capture(collections.OrderedDict(a=1))["class"] == "collections:OrderedDict"
    assert capture(collections.UserDict(a=1))["$type"] == "userdict"


def test_dictionaries_that_look_like_nodes_are_distinguished() -> None:
    # WHEN / THEN none of them is mistaken for a tensor or a mark
    for value in ({"shape": [1], "dtype": "x"}, {"$type": "tuple"}, {"unreplayable": "x"}):
        assert capture(value)["$type"] == "dict"


def test_constants_of_torch_and_python_are_kept_by_name() -> None:
    assert capture(torch.float16) == {"$type": "torch.dtype", "value": "float16"}
    assert capture(torch.device("cuda", 1)) == {"$type": "torch.device", "value": "cuda:1"}
    assert capture(torch.channels_last)["value"] == "channels_last"
    assert capture(torch.Generator()) == {"$type": "torch.Generator", "device": "cpu"}
    assert capture(Mode.FAST) == {"$type": "enum", "class": f"{__name__}:Mode", "name": "FAST"}
    assert capture(pathlib.Path("a/b")) == {"$type": "path", "value": "a/b"}
    assert capture(float("inf")) == {"$type": "float", "value": "inf"}
    assert capture(np.float32(0.5)) == 0.5
    assert capture(np.zeros((2, 70), dtype=np.int16))["value_range"] == [0, 0]


def test_unreplayable_values_are_named_with_their_type() -> None:
    assert capture(object()) == {"unreplayable": "object"}
    assert capture(torch.nn.Linear(1, 1)) == {"unreplayable": "torch.nn.modules.linear.Linear"}
    assert capture(lambda: 1) == {"unreplayable": "function", "reason": "a lambda"}
    assert capture(np.array([object()])) == {"unreplayable": "numpy.ndarray"}
    assert capture(torch.eye(3).to_sparse())["layout"] == "sparse_coo"


def test_generators_and_iterators_are_not_advanced() -> None:
    generator, iterator = (i for i in range(3)), iter([1, 2])

    nodes = capture([generator, iterator])

    # THEN only their types are known, and they have not been advanced
    assert nodes == [{"unreplayable": "generator"}, {"unreplayable": "list_iterator"}]
    assert list(generator) == [0, 1, 2]
    assert list(iterator) == [1, 2]


def test_overridden_methods_of_subclasses_are_not_called() -> None:
    class Name(str):
        def __str__(self) -> str:
            raise AssertionError

    class Table(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise AssertionError

    # WHEN / THEN their content is kept nevertheless
    assert capture(Name("x")) == "x"
    assert capture(Table(a=1))["items"] == [["a", 1]]


def test_an_object_that_raises_on_access_is_unreplayable() -> None:
    @dataclasses.dataclass
    class Broken:
        @property
        def size(self) -> int:
            raise RuntimeError("no")

        def __getattribute__(self, name: str) -> Any:
            raise KeyError(name)

    node = capture([Broken()])

    assert "Broken" in node[0]["unreplayable"]


def test_cycles_depth_and_size_are_bounded() -> None:
    # GIVEN a list that contains itself, a list nested a thousand deep, and long and wide values
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    wide = [[[0.5, torch.zeros(1)] for _ in range(200)] for _ in range(200)]

    # THEN the nodes are small and say what is left out
    assert capture(cycle)[0]["reason"] == "refers to itself"
    assert "deeper" in json.dumps(capture(deep))
    assert len(json.dumps(capture(wide))) < 2_000_000
    assert capture(list(range(10_000)))["length"] == 10_000
    assert capture("x" * 10_000)["length"] == 10_000
    assert "unreplayable" in capture({str(i): i for i in range(10_000)})
    assert "unreplayable" in capture(10**1000)
    assert "unreplayable" in capture(b"x" * 1000)


def test_shared_values_are_not_a_cycle() -> None:
    # GIVEN one dictionary twice in a list
    shared = {"a": 1}

    assert capture([shared, shared]) == [shared, shared]


def test_no_tensor_is_kept_alive() -> None:
    tensor = torch.randn(100)
    gone = weakref.ref(tensor)

    node = capture({"a": [tensor]})
    del tensor
    gc.collect()

    assert gone() is None
    assert node["a"][0]["shape"] == [100]


def test_any_node_is_json() -> None:
    values = [float("nan"), 1 + 2j, b"ab", range(3), slice(1, None), {1, 2}, "\ud800", Options(1)]

    node = capture(values)
    assert json.loads(json.dumps(node, allow_nan=False)) == node


def test_capture_works_without_torch() -> None:
    program = (
        "import sys; from stagespan.signature import capture, get_io_signatures\n"
        "assert capture({'a': (1, 2.5)}) == {'a': {'$type': 'tuple', 'items': [1, 2.5]}}\n"
        "assert get_io_signatures() == {}\n"
        "assert 'torch' not in sys.modules"
    )

    ran([sys.executable, "-c", program], status=0)
