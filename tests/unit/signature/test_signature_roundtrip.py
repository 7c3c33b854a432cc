"""Any structure keeps its form if it is captured, written as JSON, read, and created again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.signature import SignatureFile, StageSignature, capture
from stagespan.signature.value_kinds.base import key_of

torch = pytest.importorskip("torch")

from stagespan.signature.mock import make_inputs  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@st.composite
def tensors(draw: Any) -> Any:
    shape = draw(st.lists(st.integers(0, 9), max_size=4))
    made = (torch.randn(shape) * 50).to(draw(st.sampled_from(DTYPES)))
    order = draw(st.permutations(range(len(shape))))
    made = made.permute(order)
    if made.dim() and draw(st.booleans()):
        made = made[::2]
    if made.is_floating_point() and draw(st.booleans()):
        made.requires_grad_()
    return made


leaves = st.one_of(
    tensors(),
    st.none(),
    st.booleans(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=8),
    st.complex_numbers(),
    st.sampled_from(DTYPES),
)
keys = st.one_of(st.text(max_size=8), st.sampled_from(["shape", "dtype", "$type", "unreplayable"]))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.integers(), inner, max_size=3),
    ),
    max_leaves=12,
)


def test_form(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("signatures") / "f.json"

    @settings(max_examples=examples(150))
    @given(st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=4))
    def same_form(arguments: dict[str, Any]) -> None:
        nodes = {name: capture(value) for name, value in arguments.items()}

        SignatureFile({"s": StageSignature("s", nodes)}).write(path)
        read = SignatureFile.read(path).stage("s")
        made = make_inputs(read)
        again = {name: capture(value) for name, value in made.items()}

        # THEN the file contains what was captured, and the new values have the same form
        assert json.dumps(read.inputs) == json.dumps(nodes)
        assert key_of(again) == key_of(nodes)
        assert without_content(again) == without_content(nodes)

    same_form()


def without_content(node: Any) -> str:
    """Return a node without the parts in which mock values may differ."""
    if isinstance(node, dict):
        free = ("value_range", "true_fraction") if "dtype" in node else ()
        return str({k: without_content(v) for k, v in node.items() if k not in free})
    if isinstance(node, list):
        return str([without_content(item) for item in node])
    return repr(node)
