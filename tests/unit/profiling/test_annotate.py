"""Stages as ranges in the application's own profiler."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import preloaded
import stagespan
from running import ran
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


def test_contexts_are_ranges_in_a_profiler_of_the_application_after_annotate() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as before:
        run()
    annotate()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as after:
        run()

    # THEN the stages are ranges around their operators, and only after the call
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


def test_several_names_can_be_separate_arguments() -> None:
    annotate("denoise", ["decode"])
    with torch.profiler.profile() as profiler:
        run()
    assert sorted(ranges(profiler)) == ["decode", "denoise"]


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


def test_the_environment_variable_annotates_too() -> None:
    program = (
        "import torch, stagespan\n"
        "with torch.profiler.profile() as profiler:\n"
        "    with stagespan.ProfilingContext('denoise'), stagespan.span('inside'):\n"
        "        torch.ones(4).sum()\n"
        "print([event.name for event in profiler.events() if event.is_user_annotation])\n"
    )

    done = ran([*preloaded.python(), "-c", program], STAGESPAN_ANNOTATE="*", KINETO_LOG_LEVEL="6")

    assert done.stdout == "['denoise', 'inside']\n", done.stderr


def test_names_that_are_not_text_are_refused() -> None:
    with pytest.raises(SettingsError, match="3 is not the name of a stage"):
        annotate([3])  # type: ignore[list-item]

    assert stagespan.annotate is annotate


def test_spans_made_after_the_call_are_ranges() -> None:
    @stagespan.span("decorated before")
    def before() -> None:
        torch.ones(4).sum()

    annotate("block, decorated, decorated before, suspended")

    @stagespan.span("decorated")
    def after() -> None:
        torch.ones(4).sum()

    @stagespan.span("suspended")
    def numbers() -> Iterator[int]:
        yield 1

    with torch.profiler.profile() as profiler:
        with stagespan.span("block"):
            torch.ones(4).sum()
        before()
        after()
        list(numbers())
        with stagespan.span("not named"):
            torch.ones(4).sum()
    annotate([])
    with torch.profiler.profile() as off, stagespan.span("block"):
        after()

    assert sorted(ranges(profiler)) == ["block", "decorated", "suspended"]
    (block,) = (event for event in profiler.events() if event.name == "block")
    assert "aten::ones" in {child.name for child in block.cpu_children}
    assert ranges(off) == []


def test_annotated_spans_stay_spans(caplog: pytest.LogCaptureFixture) -> None:
    annotate()
    before = stagespan.stats().get("annotated spans")
    assert before is None
    with stagespan.span("annotated spans") as opened:
        with pytest.raises(KeyError), stagespan.span("annotated spans"):
            raise KeyError
        opened.add(tokens=3)
    stagespan.flush()

    made = stagespan.span("annotated spans")
    assert made.kind == "span"
    assert repr(made) == repr(pickle.loads(pickle.dumps(made))) == "span('annotated spans')"
    row = stagespan.stats()["annotated spans"]
    assert (row.count, row.errors) == (2, 1)
    assert not [record for record in caplog.records if "annotated spans" in record.getMessage()]


def test_named_spans_run_without_a_profiler_of_stagespan(tmp_path: Path) -> None:
    annotate("both")
    stagespan.set_profiler_output_dir(tmp_path)
    stagespan.enable_profiler_for_names("both")

    with stagespan.span("both"):
        torch.ones(4).sum()

    # THEN it was not profiled, because spans are never profiled
    assert list(tmp_path.iterdir()) == []
