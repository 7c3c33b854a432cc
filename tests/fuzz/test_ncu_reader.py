"""Broken CSV files of ncu: whatever the bytes, the reader returns figures or one sentence."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.errors import TraceError
from stagespan.pages.markdown import markdown_of
from stagespan.trace.nsight import Reading, read_ncu, report

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "trace" / "ncu"))

from ncu_files import KERNELS, long_file, wide_file

_SEEDS = [
    layout(KERNELS, decimal, parted_by).encode()
    for layout in (long_file, wide_file)
    for decimal, parted_by in ((".", ","), (",", "."), (",", "\u202f"))
]
_PIECES = [b'"', b",", b";", b"\n", b"\r\n", b"\x00", b'"ID"', b"==PROF== x\n", b"1,234", b"e999",
           b"9" * 400, b"\xff\xfe", b'"Kernel Name"', b"nan", b"-", b"0", b"%"]  # fmt: skip


def check(data: bytes) -> Reading | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ncu.csv"
        path.write_bytes(data)
        try:
            reading = read_ncu(path)
        except TraceError as error:
            said = str(error)
            reading = None
    if reading is None:
        assert "\n" not in said
        return None
    found = report(reading)
    markdown_of(found, found.findings())
    return reading


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    check(data)


@settings(max_examples=examples(300))
@given(
    st.sampled_from(_SEEDS),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 30), st.sampled_from(_PIECES)),
             min_size=1, max_size=4),
)  # fmt: skip
def test_files_with_pieces_put_in_and_cut_out(
    seed: bytes, changes: list[tuple[int, int, bytes]]
) -> None:
    for at, length, piece in changes:
        at %= len(seed) + 1
        seed = seed[:at] + piece + seed[at + length :]
    check(seed)


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\x00\r\n", exclude_categories=["Cs"]),
                    min_size=1, max_size=40).filter(lambda name: name.strip() and name[0] != "="),
            st.integers(0, 2**62), st.floats(0, 1e9),
        ),
        min_size=1, max_size=5,
    ),
    st.sampled_from([(".", ","), (",", "."), (",", " "), (".", "'")]),
    st.sampled_from([long_file, wide_file]),
)  # fmt: skip
def test_what_is_written_is_read(
    kernels: list[tuple[str, int, float]], signs: tuple[str, str], layout: object
) -> None:
    # GIVEN kernels of any name with a count, a share, and a number that shows the notation
    assert callable(layout)
    names = ("a__count.sum", "b__share.pct", "c__sign.sum")
    figures = [
        (name, {names[0]: count, names[1]: share, names[2]: 1234.5})
        for name, count, share in kernels
    ]
    reading = check(layout(figures, *signs).encode())
    # THEN every figure is the one that was written
    assert reading is not None
    assert len(reading.kernels) == len(kernels)
    for kernel, (name, count, share) in zip(reading.kernels, kernels, strict=True):
        assert kernel.name == name.strip()
        assert kernel.metrics[names[0]] == float(count)  # exact up to 2**53
        assert abs(kernel.metrics[names[1]] - share) <= 0.005 + 1e-9 * share
