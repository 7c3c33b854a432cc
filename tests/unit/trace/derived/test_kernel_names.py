"""Short names of kernels: the differences between them are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_real

from stagespan.pages.kernel_names import kernel_label, labels
from stagespan.pages.result import Table, Unavailable, shortened, texts_of
from stagespan.trace.analyses import kernels
from stagespan.trace.derived.device import device_work

_ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>,"
    " at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>,"
    " at::detail::Array<char*, 3>)"
)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (_ADD, "vectorized_elementwise<CUDAFunctor_add<float>>"),
        (
            ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#4}::operator()()"
            " const::{lambda(long)#1}, std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1,"
            " unsigned int>, at::native::memory::LoadWithCast<1> >(int, char)"),
            "unrolled_elementwise<direct_copy(long)>",
        ),
        (
            ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16,"
            " at::native::MeanOps<c10::BFloat16, float, float, c10::BFloat16>, unsigned int,"
            " c10::BFloat16, 4> >(int)"),
            "reduce<MeanOps<BFloat16, float>>",
        ),
        (
            ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>("
            "cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4::Params)"),
            "cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(float*)",
            "kernel<float>",
        ),
        (
            "void (anonymous namespace)::softmax_warp_backward<float, float, 10, true>(float*)",
            "softmax_warp_backward<float>",
        ),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
         "ncclKernel_AllReduce_RING_LL_Sum_float"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi256EEEvPT_", "add_rmsnorm_quant_kernel"),
        # Names that are not C++ kernels are unchanged.
        ("volta_sgemm_128x32_tn", "volta_sgemm_128x32_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("aten::add_", "aten::add_"),
        ("train.py(7): forward", "train.py(7): forward"),
        ("enumerate(DataLoader)#_Iter.__next__", "enumerate(DataLoader)#_Iter.__next__"),
        ("the host did (as it seems) nothing", "the host did (as it seems) nothing"),
        ("<built-in function linear>", "<built-in function linear>"),
        ("a < b > c (", "a < b > c ("),
    ],
)  # fmt: skip
def test_a_kernel_is_named_by_what_it_runs(name: str, label: str) -> None:
    assert kernel_label(name) == label


def test_similar_kernels_have_different_labels() -> None:
    # GIVEN kernels that differ in how they run, in what they run, or only in their parameters
    names = [
        _ADD,
        _ADD.replace("<4,", "<2,"),
        _ADD.replace("Functor_add<float>", "Functor_add<double>"),
        _ADD.replace("(int,", "(long,"),
        "void f<1>(int)",
        "void f<2>(int)",
        "x" * 500 + "a" + "y" * 500,
        "x" * 500 + "b" + "y" * 500,
    ]
    told = labels(names, 60)
    assert len(set(told.values())) == len(names)
    assert max(map(len, told.values())) <= 60
    assert told[names[2]] == "vectorized_elementwise<CUDAFunctor_add<double>>"


@given(
    st.lists(st.text("ab<>(){}:, *&#1vx_\x1b", min_size=0, max_size=90), unique=True, max_size=12),
    st.integers(30, 60),
)
def test_different_names_never_share_a_label(names: list[str], most: int) -> None:
    # GIVEN any names, including ones that look like C++ and are not
    told = labels(names, most)
    assert told.keys() == set(names)
    assert len(set(told.values())) == len(told)
    assert all(label.isprintable() for label in told.values())
    assert all(len(label) <= 2 * most for label in told.values())


@pytest.mark.parametrize("text", ["<" * 5_000, "f" + "<a" * 5_000 + ">" * 5_000, "void " * 3_000])
def test_hostile_names_are_only_cut(text: str) -> None:
    assert len(shortened(text)) <= 60
    assert len(labels([text], 60)[text]) <= 120


def test_times_of_a_column_have_one_unit() -> None:
    # GIVEN times of a fifth of a microsecond to seconds
    table = Table("t", (("what", ""), ("at", "ns"), ("a", "ns"), ("b", "ns")), [
        ("x", 90_000_000_000, 1_500, 2_000_000), ("y", 5_000, 200, 3_000_000_000),
    ])  # fmt: skip
    # THEN each column has the unit that its heading names, so that short times keep their digits
    heads, rows = texts_of(table)
    assert heads == ["what", "at (ms)", "a (µs)", "b (ms)"]
    assert rows[0] == ["x", "90,000.000", "1.50", "2.00"]


def test_real_kernels_have_different_labels(traces: Path) -> None:
    for path in sorted(traces.glob("*.json.gz")):
        trace = read_real(path)
        codes = np.unique(trace.events.name[device_work(trace).rows])
        names = [trace.names[code] for code in codes.tolist()]
        told = labels(names, 60)
        assert len(set(told.values())) == len(names), path.name
        found = kernels.analyze(trace)
        if not isinstance(found, Unavailable):
            for table in found.tables():
                first = {row[0] for row in table.rows}
                written = {row[0] for row in texts_of(table)[1]}
                assert len(first) == len(written), (path.name, table.title)
