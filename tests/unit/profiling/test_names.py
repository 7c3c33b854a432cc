"""Which stages are profiled: by the environment, and by call."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import preloaded
from running import ran
from stagespan.errors import SettingsError
from stagespan.profiling import names
from stagespan.profiling.names import enable_profiler_for_names, is_profiled, profiled_names


def test_names_of_the_environment_and_of_calls_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_PROFILER_NAMES", "denoise, vae_decode")
    enable_profiler_for_names("text_encoding, denoise,")
    enable_profiler_for_names(["a, b", "re"])
    assert profiled_names() == ("denoise", "vae_decode", "text_encoding", "a, b", "re")
    assert is_profiled("a, b")
    assert not is_profiled("a")
    assert not is_profiled("vae")


def test_the_new_spelling_has_priority_over_the_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_PROFILER_NAMES", "one")
    monkeypatch.setenv("STAGESPAN_PROFILER_NAMES", "two")
    names.update()
    assert profiled_names() == ("two",)


def test_a_star_is_all() -> None:
    assert not is_profiled("anything")
    enable_profiler_for_names("*")
    assert is_profiled("anything")


def test_several_names_can_be_separate_arguments() -> None:
    enable_profiler_for_names("a", "b, c", ["d, e"])
    assert profiled_names() == ("a", "b", "c", "d, e")
    with pytest.raises(SettingsError, match="7 does not name stages"):
        enable_profiler_for_names("f", 7)  # type: ignore[arg-type]
    assert not is_profiled("f")


@pytest.mark.parametrize("names", [[""], [1], 7, None, [b"denoise"]])
def test_values_that_are_not_names(names: Any) -> None:
    with pytest.raises(SettingsError, match="name"):
        enable_profiler_for_names(names)
    assert profiled_names() == ()


PROGRAM = """
import os, sys
import stagespan

for name in filter(None, os.environ.get("CALLED", "").split(",")):
    stagespan.enable_profiler_for_names(name)
for name in filter(None, os.environ.get("RUN", "").split(",")):
    with stagespan.ProfilingContext(name):
        pass
for name in filter(None, os.environ.get("SPANS", "").split(",")):
    with stagespan.span(name):
        pass
for name in filter(None, os.environ.get("DEBUG_BLOCKS", "").split(",")):
    with stagespan.ProfilingContext4Debug(name):
        pass
for name in filter(None, os.environ.get("DEBUG_FUNCTIONS", "").split(",")):
    stagespan.ProfilingContext4Debug(name)(lambda: None)()
for name in filter(None, os.environ.get("CALLED_LATE", "").split(",")):
    stagespan.enable_profiler_for_names(name)
if os.environ.get("FORK"):
    if os.fork() == 0:
        sys.exit()
    os.wait()
"""


def warnings_of(tmp_path: Path, **variables: str) -> list[str]:
    """What a program logs that runs some stages and names some for the profiler."""
    done = ran(
        [*preloaded.python(), "-c", PROGRAM],
        status=0,
        STAGESPAN_OUTPUT_DIR=str(tmp_path),
        **variables,
    )
    return [line for line in done.stderr.splitlines() if "was not" in line or "were not" in line]


@pytest.mark.parametrize("variable", ["ENABLE_PROFILER_NAMES", "CALLED"])
def test_a_named_stage_that_never_ran_is_logged_once(variable: str, tmp_path: Path) -> None:
    (line,) = warnings_of(tmp_path, RUN="encode,denoise,encode", FORK="1", **{variable: "encoder"})
    assert line == (
        "[Profiler] Stage 'encoder' was not profiled, because it did not run in this process; "
        "stages that ran: 'denoise', 'encode'."
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"SPANS": "decode", "ENABLE_PROFILER_NAMES": "decode"},
        {"RUN": "decode", "CALLED_LATE": "decode"},
    ],
)
def test_a_named_stage_that_ran_without_a_profiler_is_logged(
    variables: dict[str, str], tmp_path: Path
) -> None:
    (line,) = warnings_of(tmp_path, **variables)
    assert "'decode' was not profiled" in line
    assert "use ProfilingContext instead of span, and name a stage before it runs" in line


@pytest.mark.parametrize("way", ["DEBUG_BLOCKS", "DEBUG_FUNCTIONS"])
@pytest.mark.parametrize("ran", ["", "encode"])
def test_a_named_debug_context_without_debug_mode_is_logged(
    way: str, ran: str, tmp_path: Path
) -> None:
    variables = {"ENABLE_PROFILER_NAMES": "decode", "RUN": ran, way: "decode,other"}
    # WHEN debug mode is off, the line at the end says so; when it is on, the stage is profiled
    (line,) = warnings_of(tmp_path, **variables)
    assert line == (
        "[Profiler] Stage 'decode' was not profiled, because it runs only in debug mode, in a "
        "ProfilingContext4Debug: set STAGESPAN_DEBUG=true."
    )
    assert warnings_of(tmp_path, STAGESPAN_DEBUG="true", **variables) == []


def test_several_of_them_are_one_line(tmp_path: Path) -> None:
    (line,) = warnings_of(tmp_path, RUN="encode", ENABLE_PROFILER_NAMES="vea,*,encode", CALLED="x")
    assert "'vea', 'x'" in line


@pytest.mark.parametrize(
    "variables",
    [
        {"ENABLE_PROFILER_NAMES": "encode", "RUN": "encode,denoise", "SPANS": "encode"},
        {"ENABLE_PROFILER_NAMES": "*", "RUN": "encode"},
        {"ENABLE_PROFILER_NAMES": "encode"},
        {"RUN": "encode"},
    ],
)
def test_nothing_is_logged_otherwise(variables: dict[str, str], tmp_path: Path) -> None:
    assert warnings_of(tmp_path, **variables) == []


def test_a_stage_that_a_worker_profiled_is_not_logged(tmp_path: Path) -> None:
    (tmp_path / "denoise_vae_trace.json.gz").touch()
    assert len(warnings_of(tmp_path, RUN="encode", ENABLE_PROFILER_NAMES="denoise")) == 1
    future = time.time() + 3600  # the run begins in the same second
    (tmp_path / "denoise_pid7_trace.json.gz").touch()
    os.utime(tmp_path / "denoise_pid7_trace.json.gz", (future, future))
    assert warnings_of(tmp_path, RUN="encode", ENABLE_PROFILER_NAMES="denoise") == []
