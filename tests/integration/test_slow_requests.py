"""Tests of what kept requests say about why they were slow."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_process import command_here, start

from running import PROGRAMS, ended
from stagespan import _core
from stagespan.errors import SettingsError, StagespanError
from stagespan.export import keeping
from stagespan.signature import watch

REQUESTING = PROGRAMS / "requesting.py"

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture
def watching() -> Iterator[None]:
    """Watch no longer than the test."""
    yield
    watch.stop()


@pytest.mark.usefixtures("watching")
def test_collections_are_noted_only_while_it_is_on() -> None:
    garbage = [[n] for n in range(200_000)]
    before = list(gc.callbacks)
    with pytest.raises(StagespanError, match="not watched"):
        watch.noted(0, 1)
    watch.start(60)
    begin_ns = _core.now_ns()
    gc.collect()
    answer = watch.noted(begin_ns, _core.now_ns())
    (pause,) = answer["collections"]
    assert 0 < pause["end_ns"] - pause["begin_ns"] == answer["collected_ns"]
    # A request that has seen half of it.
    middle_ns = (pause["begin_ns"] + pause["end_ns"]) // 2
    assert watch.noted(begin_ns, middle_ns)["collected_ns"] == middle_ns - pause["begin_ns"]
    watch.stop()
    assert gc.callbacks == before
    assert len(garbage) == 200_000


def test_a_watch_ends_by_itself_and_hides_no_collection_from_others() -> None:
    before = list(gc.callbacks)
    watch.start(0.001)
    time.sleep(0.002)
    phases: list[str] = []

    def see(phase: str, _: dict[str, int]) -> None:
        phases.append(phase)

    # WHEN another function is called after the one of the watch THEN it misses nothing
    gc.callbacks.append(see)
    gc.collect()
    gc.callbacks.remove(see)
    assert phases == ["start", "stop"]
    with pytest.raises(StagespanError, match="not watched"):
        watch.noted(0, 1)
    # AND nothing is left after the next collection
    gc.collect()
    assert gc.callbacks == before
    with pytest.raises(StagespanError, match="at most 3600 s"):
        watch.start(1e6)


def test_a_limit_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a factor and a percentile"):
        keeping.start(tmp_path, "fast")


PLANTED = (
    *("collection", "waited", "page_faults", "more_work"),
    *("collection+waited", "nothing"),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the figures of what a service has kept of its slow requests."""
    kept = tmp_path_factory.mktemp("kept")
    process = start(REQUESTING, "planted_causes", str(kept), *PLANTED, STAGESPAN_SYSTEM="true")
    ended(process, 0, timeout_s=300)
    figures: dict[str, Any] = json.loads(
        command_here("requests", str(kept), "--json", "--slowest", "1000").stdout
    )
    jsonschema.validate(figures, json.loads(command_here("requests", "--json-schema").stdout))
    return {"kept": kept, **figures}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_causes_are_named(page: dict[str, Any], planted: str) -> None:
    (request,) = (one for one in page["requests"] if one["request_id"] == planted)
    slow = request["slow"]
    named = {cause["code"] for cause in slow["causes"]}
    must_name = set(planted.split("+")) - {"nothing"}
    assert must_name <= named, slow
    # Another process may have had the processor; then the CPU time says so too.
    span = request["segments"][0]["spans"][0]
    if named != must_name:
        assert named - must_name <= {"waited", "switched_out"}
        assert span["cpu_ns"] < 0.9 * span["duration_ns"]
    assert slow["ratio"] > 3
    assert slow["limit"]["compared"] >= 100
    # A block has no signature.
    assert all("the signature of" in text for text in slow["missing"]), slow["missing"]
    assert span["median_ns"] < span["duration_ns"]


def test_without_counts_of_the_kernel_it_is_not_known_why_a_thread_did_not_run(
    tmp_path: Path,
) -> None:
    process = start(
        REQUESTING, "planted_causes", str(tmp_path), "waited", STAGESPAN_CPU_TIME="true"
    )
    ended(process, 0, timeout_s=300)
    page = json.loads(command_here("requests", str(tmp_path), "--json", "--slowest", "1000").stdout)
    (request,) = (one for one in page["requests"] if one["request_id"] == "waited")
    (cause,) = (one for one in request["slow"]["causes"] if one["code"] == "off_cpu")
    assert cause["sentence"].startswith("the thread did not run for ")
    assert not {"waited", "switched_out"} & {one["code"] for one in request["slow"]["causes"]}


def test_other_requests_that_were_open_are_counted(page: dict[str, Any]) -> None:
    open_meanwhile = {one["request_id"]: one["open_meanwhile"] for one in page["requests"]}
    assert (open_meanwhile["nothing"], open_meanwhile["neighbour"]) == (0, 1)


def test_the_page_says_it_in_words(page: dict[str, Any]) -> None:
    done = command_here("requests", str(page["kept"]), "--id", "collection+waited")
    shown = " ".join(done.stdout.split())
    assert "x its p50; " in shown
    assert "GC ran for" in shown
    assert re.search(
        r"the thread (waited|was switched out)[a-z ]* for \d+ % of it, in '\w+'", shown
    )
    assert "kept because it took more than 3 x the p50" in shown
    done = command_here("requests", str(page["kept"]), "--id", "page_faults")
    assert re.search(r"; 1[67],\d+ page faults, in 'allocates'", " ".join(done.stdout.split()))
    assert "requests of its pipeline, whose median is" in shown
