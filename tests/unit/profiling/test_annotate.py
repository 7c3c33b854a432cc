"""Stages as ranges in the application's own profiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stagespan
from stagespan import ProfilingContext, annotate, profile_window
from stagespan.errors import SettingsError
from stagespan.trace import read_trace

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    annotate([])


def ranges(profiler: Any) -> list[str]:
    return [event.name for event in profiler.events() if event.is_user_annotation]


def run() -> None:
    with ProfilingContext("denoise"):
        torch.ones(4).sum()
    decode()


@ProfilingContext("decode")
def decode() -> None:
    torch.ones(4).sum()


def test_contexts_are_ranges_in_a_profiler_of_the_application_where_asked() -> None:
    # WHEN a profiler of the application runs, before and after it is asked for
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as before:
        run()
    annotate()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as after:
        run()

    # THEN the stages are ranges around their operators, and only then
    assert ranges(before) == []
    assert sorted(ranges(after)) == ["decode", "denoise"]
    (denoise,) = (event for event in after.events() if event.name == "denoise")
    assert "aten::ones" in {child.name for child in denoise.cpu_children}


def test_stages_can_be_chosen_and_the_choice_replaced() -> None:
    annotate("denoise, other")
    with torch.profiler.profile() as first:
        run()
    annotate(["decode"])
    with torch.profiler.profile() as second:
        run()
    annotate([])
    with torch.profiler.profile() as third:
        run()

    assert [ranges(first), ranges(second), ranges(third)] == [["denoise"], ["decode"], []]


def test_a_stage_that_raises_closes_its_range() -> None:
    annotate()

    with torch.profiler.profile() as profiler:
        with pytest.raises(ValueError, match="no weights"), ProfilingContext("load"):
            raise ValueError("no weights")
        run()

    (load,) = (event for event in profiler.events() if event.name == "load")
    assert load.cpu_children == []


def test_traces_of_stagespan_have_each_span_once(tmp_path: Path) -> None:
    annotate()

    with profile_window("window") as window:
        run()

    trace = read_trace(window.export(tmp_path / "trace.json.gz"))
    names = [trace.names[code] for code in trace.events.name]
    assert names.count("denoise") == 1


def test_the_environment_asks_for_it_too() -> None:
    program = (
        "import torch, stagespan\n"
        "with torch.profiler.profile() as profiler:\n"
        "    with stagespan.ProfilingContext('denoise'):\n"
        "        torch.ones(4).sum()\n"
        "print([event.name for event in profiler.events() if event.is_user_annotation])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "STAGESPAN_ANNOTATE": "*", "KINETO_LOG_LEVEL": "6"},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.stdout == "['denoise']\n", done.stderr


def test_names_that_are_not_text_are_refused() -> None:
    with pytest.raises(SettingsError, match="3 is not the name of a stage"):
        annotate([3])  # type: ignore[list-item]

    assert stagespan.annotate is annotate
