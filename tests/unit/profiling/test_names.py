"""Which stages are profiled: by the environment, and by call."""

from __future__ import annotations

from typing import Any

import pytest

from stagespan.errors import SettingsError
from stagespan.profiling.names import enable_profiler_for_names, is_profiled, profiled_names


def test_names_of_the_environment_and_of_calls_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN names in the environment
    monkeypatch.setenv("ENABLE_PROFILER_NAMES", "denoise, vae_decode")
    # WHEN others are added, with commas and as a list
    enable_profiler_for_names("text_encoding, denoise,")
    enable_profiler_for_names(["a, b", "re"])
    # THEN all are profiled, each once, and those of a list as they are
    assert profiled_names() == ("denoise", "vae_decode", "text_encoding", "a, b", "re")
    assert is_profiled("a, b")
    assert not is_profiled("a")
    assert not is_profiled("vae")


def test_our_spelling_wins_over_the_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_PROFILER_NAMES", "one")
    monkeypatch.setenv("STAGESPAN_PROFILER_NAMES", "two")
    assert profiled_names() == ("two",)


def test_a_star_is_all() -> None:
    assert not is_profiled("anything")
    enable_profiler_for_names("*")
    assert is_profiled("anything")


@pytest.mark.parametrize("names", [[""], [1], 7, None, [b"denoise"]])
def test_what_is_no_name(names: Any) -> None:
    with pytest.raises(SettingsError, match="name"):
        enable_profiler_for_names(names)
    assert profiled_names() == ()
