"""Amounts, lists of names, and tables as text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagespan.pages import amounts
from stagespan.pages.escaping import escaped
from stagespan.pages.tables import Column, markdown_table, plain_table


@pytest.mark.parametrize(
    ("ns", "short", "in_words"),
    [
        (0, "0 µs", "0 µs"),
        (1_234, "1.2 µs", "1.23 µs"),
        (1_234_567, "1.2 ms", "1.23 ms"),
        (340_000_000, "340 ms", "340 ms"),
        (42_100_000_000, "42.1 s", "42.1 s"),
        (200_000_000_000, "3 min 20 s", "200 s"),
        (7_500_000_000_000, "2 h 5 min", "7,500 s"),
    ],
)
def test_times_have_at_most_three_digits(ns: int, short: str, in_words: str) -> None:
    assert amounts.duration(ns) == short
    assert amounts.in_words(ns, "ns") == in_words


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0, "0"), (-0.0, "0"), (0.0631, "0.0631"), (-1.2, "-1.20"), (12.3456, "12.3")),
        *((9.994, "9.99"), (9.996, "10.0"), (99.96, "100"), (999.6, "1,000"), (12345.6, "12,346")),
    ],
)
def test_three_digits(number: float, text: str) -> None:
    assert amounts.three_digits(number) == text


@pytest.mark.parametrize(
    ("percent", "text"),
    [(0.04, "0.0 %"), (8.53, "8.5 %"), (99.94, "99.9 %"), (99.96, "100 %"), (1234.5, "1,234 %")],
)
def test_shares_have_one_digit_after_the_point(percent: float, text: str) -> None:
    assert amounts.in_percent(percent) == amounts.in_words(percent, "%") == text
    assert amounts.signed_percent(percent / 100) == f"+{text}"


def test_a_time_has_the_unit_that_it_is_rounded_to() -> None:
    assert amounts.in_words(999_499, "ns") == "999 µs"
    assert amounts.in_words(999_600, "ns") == "1.00 ms"
    assert amounts.in_words(5, "ns") == "0.005 µs"
    # A place in a trace has all the digits that people need to find it.
    assert amounts.point_in_time(12_892_227_279) == "12.892 s"
    assert amounts.point_in_time(0) == "0.000 µs"


def test_figures_have_units() -> None:
    assert amounts.in_words(None, "ns") == "unknown"
    assert amounts.in_words(-3 * 2**20, "bytes") == "-3.00 MiB"
    assert amounts.in_words(512, "bytes") == "512 bytes"
    assert amounts.in_words(12.345, "%") == "12.3 %"
    rates = [amounts.in_words(rate, "bytes/s") for rate in (2.5e12, 3e7, 400)]
    assert rates == ["2,500 GB/s", "30.0 MB/s", "0.400 kB/s"]
    assert amounts.in_words(1, "calls") == "1 call"
    assert amounts.counted(1, "process", "processes") == "1 process"
    assert amounts.counted(1200, "process", "processes") == "1,200 processes"
    assert amounts.counted(0, "stage") == "0 stages"
    assert (amounts.signed_percent(0.05), amounts.signed_percent(-1e-9)) == ("+5.0 %", "+0.0 %")


def test_amounts_have_all_digits_of_an_integer() -> None:
    assert amounts.amount(2**53 + 1) == "9,007,199,254,740,993"
    assert amounts.amount(1234.5678) == "1,234.57"
    assert (amounts.amount(300.0), amounts.amount(0.25)) == ("300", "0.25")


def test_lists_name_the_first_and_count_the_others() -> None:
    assert amounts.listed([]) == ""
    assert amounts.listed(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert amounts.listed(range(1500), 2) == "0, 1 and 1,498 more"
    assert amounts.quoted([]) == "none"
    assert amounts.quoted(["a", "b's", "c"], 2) == "'a', \"b's\" and 1 more"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("vae_decode2_x", "vae_decode2_x"),
        ("_private", r"\_private"),
        ("__init__", r"\_\_init\_\_"),
        ("a|b", r"a\|b"),
        ("<lambda> [0] $x$ `y` *z*", r"\<lambda\> \[0\] \$x\$ \`y\` \*z\*"),
        ("two\nlines\x1b", r"two lines\\x1b"),
    ],
)
def test_names_are_shown_as_they_are_in_markdown(text: str, shown: str) -> None:
    assert escaped(text) == shown


TEXTS = st.lists(st.text(max_size=40), min_size=3, max_size=3)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_every_row_of_a_markdown_table_has_every_cell(cells: list[list[str]]) -> None:
    columns = [Column(f"c{i}", column, is_number=i > 0) for i, column in enumerate(cells)]

    lines = markdown_table(columns)

    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)
    bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
    assert bars == {len(columns) + 1}


@given(
    st.lists(TEXTS.map(lambda texts: [ascii(text) for text in texts]), min_size=2, max_size=6),
    st.integers(40, 120),
)
def test_a_table_fits_if_columns_can_be_cut_and_left_out(
    cells: list[list[str]], width: int
) -> None:
    columns = [
        Column(f"c{i}", column, is_flexible=i < 2, optional=i > 1) for i, column in enumerate(cells)
    ]
    for is_ruled in (False, True):
        lines = plain_table(columns, width, is_ruled=is_ruled).splitlines()
        assert all(len(line.rstrip()) <= width for line in lines)
        assert all(f"c{i}" in " ".join(lines) for i in range(2))


def test_a_name_is_cut_only_if_no_number_can_be_left_out() -> None:
    names = ["x" * 40, "y"]
    columns = [
        Column("name", names, is_flexible=True),
        *(Column(f"n{i}", ["1" * 9, "2"], is_number=True, optional=i) for i in range(5)),
    ]
    for width in (100, 80, 64):
        table = plain_table(columns, width)
        assert names[0] in table
        assert "…" not in table
    # No number is ever cut, whatever the width.
    for width in range(20, 100):
        shown = plain_table(columns, width).splitlines()[1].split()
        assert set(shown[1:]) <= {"1" * 9}
        assert shown[1:]


def test_titles_continue_on_the_next_line_before_a_column_is_left_out() -> None:
    columns = [
        Column("stage", ["decode latents"], is_flexible=True),
        Column("execution ms", ["1.5"], is_number=True),
        Column("time in queue", ["2.5"], is_number=True, optional=1),
    ]
    assert plain_table(columns, 45).splitlines() == [
        "stage           execution ms  time in queue",
        "decode latents           1.5            2.5",
    ]
    assert plain_table(columns, 34).splitlines() == [
        "                            time",
        "                execution     in",
        "stage                  ms  queue",
        "decode latents        1.5    2.5",
    ]


def test_a_ruled_table_has_a_line_below_the_titles() -> None:
    columns = [
        Column("stage", ["decode", "文字" * 4, "文字" * 9], is_flexible=True),
        Column("ms", ["1.5", "2", "3"], is_number=True),
    ]
    assert plain_table(columns, 25, is_ruled=True).splitlines() == [
        " stage               ms",
        " ──────────────────────",
        " decode             1.5",
        " 文字文字文字文字     2",
        " 文字文字文字文…      3",
    ]


def test_columns_without_a_text_are_left_out() -> None:
    columns = [
        Column("stage", ["a", "b"]),
        Column("errors", ["", ""], is_number=True),
        Column("queue ms", ["", "1"], is_number=True),
    ]
    assert plain_table(columns).splitlines()[0].split() == ["stage", "queue", "ms"]


def test_the_least_important_column_is_left_out_first() -> None:
    columns = [
        Column("name", ["x" * 30], is_flexible=True),
        Column("p50", ["1" * 10], is_number=True, optional=1),
        Column("max", ["2" * 10], is_number=True, optional=2),
    ]
    assert plain_table(columns).splitlines()[0].split() == ["name", "p50", "max"]
    assert plain_table(columns, 30).splitlines()[0].split() == ["name", "p50"]
    assert plain_table(columns, 16).splitlines() == ["name", "x" * 13 + "…"]
