"""Signature files that no capture wrote: one sentence each, no imports, and no code is executed."""

from __future__ import annotations

import ast
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.errors import HarnessError, SignatureError
from stagespan.harness import HarnessConfig
from stagespan.signature import SignatureFile
from stagespan.signature.value_kinds.base import describe

torch = pytest.importorskip("torch")

from stagespan.harness.script import script_and_module  # noqa: E402
from stagespan.signature.mock import make_inputs  # noqa: E402

CLASSES = [
    "os:system",
    "subprocess:Popen",
    "antigravity:x",
    "builtins:object",
    "x",
    "",
    "a:b:c",
    3,
    "collections:deque",
    "collections:OrderedDict",
    "builtins:frozenset",
    "torch:Size",
]
KINDS = [
    "tuple", "set", "list", "dataclass", "namedtuple", "dict", "userdict", "object", "class",
    "shared", "enum", "str", "float", "complex", "path", "bytes", "range", "slice", "image",
    "function", "partial", "method", "container", "moment",
    "ndarray", "torch.Generator", "torch.sparse", "torch.nested", "torch.device", "torch.dtype",
    "no such kind", 5,
]  # fmt: skip
SIZES = [0, 1, 3, -1, 10**18, 1 << 70, 1.5, "2", None]

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=5),
    st.sampled_from(SIZES),
)  # fmt: skip


def tensors() -> Any:
    shapes = st.lists(st.sampled_from(SIZES), max_size=3)
    contents = st.fixed_dictionaries(
        {
            "kind": st.sampled_from(
                ["runs", "counts", "range", "sorted", "frequent", "ordered", "other", 1]
            )
        },
        optional={
            name: st.one_of(leaves, st.lists(st.integers(-(1 << 70), 1 << 70), max_size=4))
            for name in ("values", "lengths", "counts", "knots", "first", "distinct", "step")
        },
    )
    return st.fixed_dictionaries(
        {
            "shape": st.one_of(shapes, leaves),
            "dtype": st.sampled_from(["float32", "int64", "bool", "system", "", None, "Tensor"]),
        },
        optional={
            "device": st.sampled_from(["cpu", "cuda:0", "meta", "", "\n", 4]),
            "strides": shapes,
            "value_range": st.lists(st.integers(-(1 << 70), 1 << 70), max_size=3),
            "values": st.lists(leaves, max_size=4),
            "true_fraction": leaves,
            "requires_grad": leaves,
            "storage": st.one_of(st.tuples(leaves, leaves, leaves).map(list), leaves),
            "content": st.one_of(contents, leaves),
        },
    )


def specials(inner: Any) -> Any:
    return st.fixed_dictionaries(
        {"$type": st.sampled_from(KINDS)},
        optional={
            "items": st.lists(inner, max_size=3),
            "fields": st.one_of(inner, st.dictionaries(st.text(max_size=3), inner, max_size=2)),
            "class": st.sampled_from(CLASSES),
            "length": st.sampled_from(SIZES),
            "of": st.one_of(
                st.text(max_size=3), st.sampled_from(["Decimal", "Fraction", "UUID", "datetime"])
            ),
            "function": inner,
            "kwargs": st.dictionaries(st.text(max_size=3), inner, max_size=2),
            "self": inner,
            "part": st.one_of(leaves, st.lists(leaves, max_size=2)),
            "maxlen": leaves,
            "default": inner,
            "lost": leaves,
            "zone": st.sampled_from(["UTC", "..", "Europe", "\0", 3]),
            "min_seqlen": leaves,
            "layout": st.sampled_from(["sparse_coo", "sparse_csr", "sparse_bsc", "jagged", "x", 2]),
            "shape": st.lists(st.sampled_from(SIZES), max_size=3),
            "offsets": inner,
            "values": inner,
            "lengths": inner,
            "dim": leaves,
            "data": inner,
            "args": st.lists(inner, max_size=4),
            "name": st.one_of(leaves, st.sampled_from([*CLASSES, "math:sqrt", "__class__"])),
            "value": leaves,
            "size": st.lists(st.sampled_from(SIZES), max_size=3),
            "mode": leaves,
            "device": st.sampled_from(["cpu", "cuda:9", "x", 3]),
            "hex": st.text(max_size=3),
            "text": leaves,
            "real": leaves,
            "imag": leaves,
        },
    )


nodes = st.recursive(
    st.one_of(leaves, tensors()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
        specials(inner),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(80))
@given(name=st.text(max_size=8), inputs=st.dictionaries(st.text(max_size=6), nodes, max_size=3))
def test_any_node_is_made_or_refused(name: str, inputs: dict[str, Any]) -> None:
    stage = {"stage_name": name, "input_signatures": inputs, "output_signature": inputs}
    loaded = set(sys.modules)

    signature = SignatureFile.from_json({"schema_version": 1, "stages": {name: stage}}).stage(name)
    for node in signature.inputs.values():
        describe(node)
    said = ""
    try:
        make_inputs(signature)
    except (SignatureError, HarnessError) as error:
        said = str(error)
    ast.parse(script_and_module(signature, None, HarnessConfig(), stem="s")[0])

    # THEN there was at most one sentence, and no module was imported for a class
    assert len(said.splitlines()) <= 1
    assert "antigravity" not in set(sys.modules) - loaded


entries = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["stages", "stage_name", "input_signatures", "metadata", "context", "key", "count",
                 "variants", "callable", "qualname", "schema_version", "a"]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=15,
)  # fmt: skip


@settings(max_examples=examples(80))
@given(entries)
def test_any_file_is_read_or_refused(content: Any) -> None:
    said, stages = "", {}
    try:
        stages = SignatureFile.from_json(content).stages
    except SignatureError as error:
        said = str(error)

    assert len(said.splitlines()) <= 1
    assert all(stage.stage_name == name for name, stage in stages.items())
