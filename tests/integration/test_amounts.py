"""Tests of distributions of amounts: of single runs, of requests, and the sizes of batches."""

from __future__ import annotations

import asyncio
import contextvars
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from exporting import exporter, of, quantile, scraped
from recorded_process import start, started

import stagespan
from running import PROGRAMS, end, in_threads, ready, until
from stagespan import batch, recording, request, span, stats
from stagespan.live.statistics import Amounts

COUNTING = PROGRAMS / "counting.py"

pytestmark = pytest.mark.usefixtures("fresh")


def lost() -> int:
    return stagespan.lost().get("work", 0)


def test_a_run_counts_the_sum_of_what_was_added() -> None:
    drawn = random.Random(1)
    totals = []
    for _ in range(1_000):
        parts = [drawn.randrange(200) for _ in range(drawn.randrange(1, 6))]
        with span("decode") as decode:
            for part in parts:
                decode.add(tokens=part)
        totals.append(sum(parts))
    with span("decode"):
        pass  # it has counted nothing
    tokens = stats()["decode"].amounts["tokens"]
    assert (tokens.count, tokens.total) == (1_000, sum(totals))
    assert (tokens.min, tokens.max) == (min(totals), max(totals))
    for q in (0.01, 0.5, 0.95, 1):
        assert tokens.quantile(q) == pytest.approx(quantile(totals, q), rel=0.032)
    assert stats()["decode"].work == {"tokens": sum(totals)}


@pytest.mark.parametrize("whole", [0, 1, 7, 31, 32])
def test_small_whole_numbers_are_exact(whole: int) -> None:
    for other in (0, whole, 1_000_000):
        with span("s") as s:
            s.add(n=other)
    assert stats()["s"].amounts["n"].p50 == whole


def test_amounts_of_every_size() -> None:
    for amount in (0, 0.37, 1e-300, 10**15, 10**30, 1e308):
        with span("s") as s:
            s.add(n=amount)
    n = stats()["s"].amounts["n"]
    assert (n.count, n.min, n.max) == (6, 0, 1e308)
    assert n.quantile(0.5) == pytest.approx(0.37, rel=0.032)
    assert lost() == 0
    # THEN what is not an amount is lost, and the others are not
    for wrong in (float("nan"), float("inf"), -1, -0.5):
        with span("s") as s:
            s.add(n=wrong)
    assert (stats()["s"].amounts["n"].count, lost()) == (6, 4)
    with span("s") as s:
        s.add(n=5)
        s.add(n=-2)
    assert stats()["s"].amounts["n"].total == pytest.approx(1e308)


def test_a_batch_counts_its_requests() -> None:
    requests = [request(f"r{i}") for i in range(9)]
    for size in (0, 1, 8, 8, 9):
        with batch("forward", requests[:size]) as forward:
            forward.add(tokens=100 * size)
    forward_stats = stats(kind="batch")["forward"]
    sizes = forward_stats.batch_size
    assert sizes is not None
    assert (sizes.count, sizes.total, sizes.p50, sizes.max) == (5, 26, 8, 9)
    assert forward_stats.amounts["tokens"].count == 5
    assert "requests 8, p95 9" in str(stats(kind="batch"))


def of_requests(unit: str, pipeline: str = "chat") -> Amounts:
    return stats(kind="request")[pipeline].amounts[unit]


def test_a_request_counts_what_its_spans_have_added() -> None:
    for number in range(1, 101):
        with request(f"r{number}") as r:
            r.pipeline = "chat"
            with span("prefill") as prefill:
                prefill.add(tokens=number)
            with span("decode") as decode:
                decode.add(tokens=1, images=2)
            with request("inner"), span("decode") as decode:  # it is a part of the outer one
                decode.add(tokens=1)
    tokens = of_requests("tokens")
    assert (tokens.count, tokens.total, tokens.min, tokens.max) == (100, 5050 + 200, 3, 102)
    assert of_requests("images").p50 == 2
    assert stats()["decode"].amounts["tokens"].count == 200


def test_work_outside_of_a_run_is_that_of_the_request() -> None:
    decode = span("decode")
    decode.add(tokens=1_000)  # nobody's
    with request("outer") as r:
        r.pipeline = "chat"
        decode.add(tokens=1)
        with span("another"):
            decode.add(tokens=2)
        with span("decode"):
            decode.add(tokens=4)

        async def task() -> None:
            await asyncio.sleep(0)
            decode.add(tokens=8)

        asyncio.run(task())
        context = contextvars.copy_context()
        in_threads(lambda: context.run(decode.add, tokens=16))
        in_threads(lambda: decode.add(tokens=2_000))  # in a thread without a request
        with request("inner"):
            decode.add(tokens=32)
    assert (of_requests("tokens").count, of_requests("tokens").total) == (1, 63)
    assert stats()["decode"].work == {"tokens": 3_063}
    runs = stats()["decode"].amounts["tokens"]
    assert (runs.count, runs.total) == (1, 4)


def test_the_tokens_of_chunks_are_those_of_the_request() -> None:
    with request("r") as r:
        r.pipeline = "chat"
        for _ in range(5):
            r.chunk(tokens=3)
    with request("counts itself") as r:
        r.pipeline = "chat"
        r.chunk(tokens=3)
        with span("decode") as decode:
            decode.add(tokens=100)
    assert (of_requests("tokens").count, of_requests("tokens").total) == (2, 115)


def test_requests_that_fail_count_as_the_others() -> None:
    with suppress(ZeroDivisionError), request("fails") as r:
        r.pipeline = "failing"
        with span("decode") as decode:
            decode.add(tokens=4)
        _ = 1 / 0
    assert of_requests("tokens", "failing").total == 4
    assert stats(kind="request_error")["failing"].amounts == {}


def test_work_of_tasks_and_threads_belongs_to_the_span_around_them() -> None:
    async def part(whole: Any) -> None:
        await asyncio.sleep(0)
        whole.add(n=10)

    async def main() -> None:
        async with span("whole") as whole:
            await asyncio.gather(*(part(whole) for _ in range(5)))

    asyncio.run(main())
    n = stats()["whole"].amounts["n"]
    assert (n.count, n.total) == (1, 50)

    @span("turns")
    async def turns() -> None:
        for _ in range(3):
            span("turns").add(n=1)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(turns(), turns())

    asyncio.run(both())
    assert (stats()["turns"].amounts["n"].count, stats()["turns"].amounts["n"].total) == (2, 6)

    def work() -> None:
        with span("of thread") as s:
            s.add(n=2)

    in_threads(*[work] * 20)
    assert stats()["of thread"].amounts["n"].count == 20


def test_a_span_that_is_left_by_an_exception_counts() -> None:
    with suppress(ZeroDivisionError), span("fails") as fails:
        fails.add(n=3)
        _ = 1 / 0
    assert stats()["fails"].amounts["n"].total == 3


def test_further_keys_are_counted_together(folder: Path) -> None:
    process = start(COUNTING, "many_keys")
    others = range(255, 6_000)
    words = ready(process).split()
    assert words == ["256", "256", f"{sum(others)}.0", *[str(len(others))] * 2]
    with exporter() as (_, port):
        found = scraped(port)
        assert of(found, "stagespan_lost_total", cause="work") == len(others)
        run_work = "stagespan_stage_run_work_count"
        assert of(found, run_work, stage="s", unit="key0") == 1
        # THEN what the exporter does not name is a part of the others, too
        assert of(found, run_work, stage="s", unit="(other)") == 6_000 - 100


def test_amounts_survive_a_kill_and_a_restart_of_the_exporter(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    names = {
        "batch": ("stagespan_batch_size", {"stage": "forward"}),
        "request": ("stagespan_request_work", {"pipeline": "chat", "unit": "tokens"}),
    }

    def figures(port: int) -> dict[str, list[float]]:
        page = scraped(port)
        return {
            key: [of(page, f"{name}_{part}", **labels) for part in ("count", "sum")]
            for key, (name, labels) in names.items()
        }

    with exporter("--state", str(state)) as (_, port):
        processes = [started(COUNTING, "adds", STAGESPAN_JOB="svc") for _ in range(2)]
        until(lambda: figures(port)["request"] == [200, 10_100])
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            process.wait(20)
        until(lambda: of(scraped(port), "stagespan_process_up", service="svc") == 0)
        page = scraped(port)
        name, labels = names["request"]
        at_most = {2**k: of(page, f"{name}_bucket", le=f"{2.0**k}", **labels) for k in range(8)}
        assert at_most == {bound: 2 * min(bound, 100) for bound in at_most}
        before = figures(port)
        assert before["batch"][0] >= 200
    with exporter("--state", str(state)) as (_, port):
        assert figures(port) == before


def test_a_recording_of_a_killed_process_has_its_amounts(folder: Path) -> None:
    process = started(COUNTING, "adds")
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.wait(20)
    found = recording.open(process.pid)
    tokens = found.stats(kind="request")["chat"].amounts["tokens"]
    assert (tokens.count, tokens.total, tokens.max) == (100, 5050, 100)
    decode = found.stats()["decode"]
    # THEN the threads that were killed have each left at most one run between the figures
    assert abs(decode.count - decode.amounts["tokens"].count) <= 4


def test_a_recording_without_work_does_not_grow(folder: Path) -> None:
    program = """
        from stagespan import span
        with span("s") as s:
            pass
            {}
        print("ready", flush=True)
        input()
    """
    sizes = []
    for more in ("", "s.add(n=1)"):
        process = started(program.format(more))
        path = Path(recording.open(process.pid).path)
        sizes.append(path.stat().st_blocks * 512)
        end(process)
    assert 0 < sizes[1] - sizes[0] <= 64 << 10
