"""Names that are not strings, empty, too long, unprintable or too many."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from pathlib import Path

import pytest
from recording import count, lost, python, recorded

import stagespan
from running import PROGRAMS
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, begin, end, record, span

REQUESTING = PROGRAMS / "requesting.py"

pytestmark = pytest.mark.usefixtures("fresh")

INVALID = "(invalid name)"


class Named(str):
    """A string with its own comparison and hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise AssertionError("nobody may ask for this")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody may ask for this")


class Unprintable:
    """An object whose repr() raises."""

    def __repr__(self) -> str:
        raise AssertionError("nobody may ask for this")


@pytest.mark.parametrize("make", [span, ProfilingContext, ProfilingContext4Debug])
@pytest.mark.parametrize("name", ["", None, 42, b"bytes", ("a",), Unprintable(), 1.5, []], ids=type)
@pytest.mark.filterwarnings("ignore:stagespan")
def test_objects_that_are_not_names(make: type[_core.Span], name: object) -> None:
    stagespan.set_debug(True)

    context = make(name)  # type: ignore[call-arg]
    with context:
        pass

    def double(value: int) -> int:
        return 2 * value

    assert make(name)(double)(4) == 8  # type: ignore[call-arg]
    assert count(INVALID) == 2
    assert lost()["invalid_names"] >= 2
    assert context.name == INVALID
    assert repr(context).endswith(f"({INVALID!r})")


@pytest.mark.filterwarnings("ignore:stagespan")
def test_tokens_and_records_without_a_name() -> None:
    end(begin(None))  # type: ignore[arg-type]
    record("", time.time_ns(), time.time_ns())

    assert count(INVALID) == 2


def test_it_is_reported_once(tmp_path: Path) -> None:
    # GIVEN a program with many bad names that shows warnings, ignores them, or makes them errors
    for how in ("always", "ignore", "error"):
        script = tmp_path / how
        script.mkdir()

        try:
            done = python((REQUESTING, "invalid_names"), script, "-W", how)
            stderr = ""
        except AssertionError as error:
            stderr = str(error)
        # THEN there is one warning, at the program's line, and never an error
        if how == "always":
            assert stderr.count("RuntimeWarning") == 1
            place = r"requesting\.py:\d+: RuntimeWarning: stagespan: a stage was named by an object"
            assert re.search(place, stderr)
            assert "with stagespan.span(name):" in stderr
            assert "'NoneType'" in stderr
            assert "pass a string that is not empty" in stderr
        else:
            assert done.stdout.split() == ["4"]


def test_a_subclass_of_str_is_a_name() -> None:
    with span(Named("subclass")) as context, span("subclass"):
        pass

    assert count("subclass") == 2
    assert str.__eq__(context.name, "subclass")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("two\nlines", "two\nlines"),
        ("nul\0inside", "nul\0inside"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("quotes '\"", "quotes '\""),
        ("解码", "解码"),
        ("🙂" * 20, "🙂" * 20),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ("\x1b[31mred", "\x1b[31mred"),
        (" ", " "),
    ],
)
def test_unusual_names(name: str, shown: str) -> None:
    with span(name) as context:
        assert _core.open_spans()[0]["stage"] == shown
    end(begin(name))
    # THEN they are kept as they are, except that parts without UTF-8 are escaped
    assert count(shown) == 2
    assert context.name == shown
    assert [one.stage for one in recorded()] == [shown] * 2
    str(stagespan.stats())


def test_long_names() -> None:
    names = [f"{'x' * 1_000_000}{i}" for i in range(3)]

    contexts = [span(name) for name in (*names, *names)]
    for context in contexts:
        with context:
            pass
    # THEN they are cut, and their ends differ
    stages = _core.snapshot().stages()
    assert len(stages) == 3
    for name, stage in stages.items():
        assert name.startswith("xxx")
        assert len(name.encode()) <= 255
        assert stage.count == 2
    assert {context.name for context in contexts} == set(stages)


def test_long_names_are_cut_between_characters() -> None:
    for shift in range(4):
        with span("x" * shift + "解" * 1000):
            pass

    names = [name for name in _core.snapshot().stages() if "解" in name]
    assert len(names) == 4
    assert all("\ufffd" not in name for name in names)


@pytest.mark.slow
def test_endless_names_cost_no_memory(tmp_path: Path) -> None:
    # GIVEN a program that creates a new name of a megabyte each time
    done = python((REQUESTING, "endless_names"), tmp_path)

    grown_mb, spans = map(int, done.stdout.split())
    assert grown_mb < 150  # of the 500 MB that the names of the second run contain
    assert spans == 1000


def test_ten_thousand_names(tmp_path: Path) -> None:
    # GIVEN a program with more names than fit into the table
    done = python((REQUESTING, "ten_thousand_names"), tmp_path)
    # THEN each name that fits has its own figures, and the others are counted together and shown
    own, is_shown = done.stdout.split()
    assert 4000 <= int(own) < 4096
    assert is_shown == "True"


def test_names_from_the_command_line(tmp_path: Path) -> None:
    # GIVEN bytes that are not UTF-8, as Python decodes them to strings
    name = os.fsdecode(b"caf\xe9")
    assert "\udce9" in name

    with ProfilingContext(name):
        pass
    assert stagespan.flush()

    assert count("caf\\udce9") == 1


def test_names_are_not_leaked() -> None:
    parts = ["fresh", "name"]
    for _ in range(100):
        name = " ".join(parts)
        before = sys.getrefcount(name)
        with span(name):
            pass
        # THEN at most the table and the cache of names keep one
        assert sys.getrefcount(name) <= before + 2


def test_warnings_do_not_reach_the_code(recwarn: pytest.WarningsRecorder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with span(None):  # type: ignore[arg-type]
            pass
