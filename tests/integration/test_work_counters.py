"""Work counters: sums by stage and key, exact for whole numbers."""

from __future__ import annotations

import fractions
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from recording import lost, python

import stagespan
from running import in_threads
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span

pytestmark = pytest.mark.usefixtures("fresh")


def work(stage: str) -> dict[str, float]:
    """Return the counters of a stage."""
    found = _core.snapshot().stages().get(stage)
    return {} if found is None else dict(found.work)


def test_amounts_add_up() -> None:
    for tokens in (230, 0, -30):
        with span("decode") as context:
            context.add(tokens=tokens, steps=1)
    with span("other") as context:
        context.add(tokens=7)

    assert work("decode") == {"tokens": 200, "steps": 3}
    assert work("other") == {"tokens": 7}


def test_numbers_of_every_kind() -> None:
    with span("kinds") as context:
        context.add(a=1.5, b=True, c=np.int64(3), d=np.float32(0.25), e=fractions.Fraction(1, 2))
        context.add(a=1)

    assert work("kinds") == {"a": 2.5, "b": 1, "c": 3, "d": 0.25, "e": 0.5}


def test_whole_numbers_stay_exact() -> None:
    # GIVEN amounts whose sums have more digits than a float
    with span("exact") as context:
        for amount in (2**53, 1, 1, -(2**53)):
            context.add(n=amount)
        context.add(huge=2**70, negative=-(2**40))

    assert work("exact")["n"] == 2
    assert work("exact")["huge"] == float(2**70)
    assert work("exact")["negative"] == -(2**40)


def test_sums_beyond_64_bits_stay_above_zero() -> None:
    # GIVEN ten seconds at 400 TFLOP/s per step
    operations = 4_000_000_000_000_000
    # WHEN a stage counts for 6.7 hours
    for _ in range(2400):
        with span("train") as train:
            train.add(flops=operations, spare=-operations)
    total = 2400 * operations
    assert work("train")["flops"] == pytest.approx(total)
    assert work("train")["spare"] == pytest.approx(-total)
    assert stagespan.stats()["train"].work["flops"] == pytest.approx(total)
    assert "flops 9.6e+18" in str(stagespan.stats())
    rate = stagespan.timing_report()["stages"]["train"]["work_per_s"]["flops"]
    assert rate > 0
    # THEN only the distribution of `spare` lacks them
    assert _core.lost()["work"] == 2400
    assert [*stagespan.stats()["train"].amounts] == ["flops"]


def test_sums_beyond_a_float_stay_numbers() -> None:
    for _ in range(3):
        with span("huge") as context:
            context.add(n=1e308, down=-1e308)
    assert work("huge") == {"n": sys.float_info.max, "down": -sys.float_info.max}
    report = stagespan.timing_report()["stages"]["huge"]
    json.dumps(report, allow_nan=False)
    assert "inf" not in str(stagespan.stats())


def test_threads_add_at_once() -> None:
    def add() -> None:
        with span("together") as context:
            for _ in range(20_000):
                context.add(n=1, x=0.5)

    in_threads(*[add] * 4)

    assert work("together") == {"n": 80_000, "x": 40_000.0}


@pytest.mark.parametrize("value", ["230", None, [1], object(), 1j])
def test_values_that_are_not_numbers_are_refused(value: object) -> None:
    with (
        span("no number") as context,
        pytest.raises(TypeError, match="counter 'tokens' of stage 'no number' must be a number"),
    ):
        context.add(tokens=value)  # type: ignore[arg-type]

    assert "tokens" not in work("no number")


def test_an_interrupt_in_a_conversion_passes() -> None:
    class Slow:
        def __float__(self) -> float:
            raise KeyboardInterrupt

    with span("interrupted") as context, pytest.raises(KeyboardInterrupt):
        context.add(tokens=Slow())  # type: ignore[arg-type]


def test_counters_have_names() -> None:
    with pytest.raises(TypeError, match="by name"):
        span("nameless").add(230)  # type: ignore[call-arg]
    span("nothing").add()
    assert work("nothing") == {}


def test_keys_of_every_kind() -> None:
    keys = ["", "Wörter", "a b", "x" * 63, "y" * 500, "令牌" * 40]
    for key in keys:
        with span("keys") as context:
            context.add(**{key: 1})
    # THEN long ones are cut between characters
    found = work("keys")
    assert sum(found.values()) == len(keys)
    assert {"", "Wörter", "a b", "x" * 63, "y" * 63, "令牌" * 10 + "令"} == set(found)


def test_more_keys_than_fit(tmp_path: Path) -> None:
    done = python(
        """
        import stagespan
        with stagespan.span("many") as context:
            for i in range(1000):
                context.add(**{f"key {i}": 1})
        stats = stagespan.stats()
        print(sum(stats["many"].work.values()), stats.lost["work"])
        """,
        tmp_path,
    )
    total, together = map(float, done.stdout.split())
    assert total == 1000
    assert 700 <= together <= 800


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    with span("extreme") as context:
        context.add(loss=0.5, tiny=5e-324)
        context.add(loss=math.nan)
        context.add(loss=math.inf, other=-math.inf)

    assert work("extreme") == {"loss": 0.5, "tiny": 5e-324}
    assert lost() == {"work": 3}


def test_nothing_is_added_while_off() -> None:
    with ProfilingContext4Debug("debug") as context:
        context.add(n=1)
    stagespan.disable()
    with ProfilingContext("off") as context:
        context.add(n=1)

    assert work("debug") == work("off") == {}


def test_a_snapshot_difference_has_the_work_in_between() -> None:
    with span("between") as context:
        context.add(n=5)
    earlier = _core.snapshot()

    with span("between") as context:
        context.add(n=7, new=1)

    assert _core.snapshot().since(earlier).stages()["between"].work == {"n": 7, "new": 1}
