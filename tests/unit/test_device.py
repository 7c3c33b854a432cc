"""When device time starts, as far as a machine without a device can show it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import stagespan
from running import ran
from stagespan import _core
from stagespan.device import times
from stagespan.process.imports import ImportFinder


@pytest.mark.parametrize(
    ("text", "number"), [("", None), ("1", 1), (" 8 ", 8), ("many", None), ("-1", None)]
)
def test_max_connections(monkeypatch: pytest.MonkeyPatch, text: str, number: int | None) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", text)
    assert times.max_connections() == number


@pytest.mark.parametrize(
    ("every", "error"), [(-1, ValueError), (2**32, ValueError), ("3", TypeError)]
)
def test_an_impossible_sample_is_refused(every: Any, error: type[Exception]) -> None:
    before = _core.device_every()
    with pytest.raises(error):
        stagespan.enable(device_every=every)
    assert _core.device_every() == before


def test_without_a_device_nothing_is_attached_or_waited_for() -> None:
    times.watch()
    assert not times.is_attached()
    assert times.wait(30)
    info = _core.device_info()
    assert info["attached"] is False
    assert info["pending"] == 0
    assert info["reason"]


@pytest.mark.parametrize("kind", ["cpu", "", "cuda", "rocm"])
def test_a_missing_device_cannot_be_attached(kind: str) -> None:
    assert _core.device_attach(kind) is False
    reason = _core.device_info()["reason"]
    assert reason
    assert "\n" not in reason


def test_an_import_is_reported_once_and_survives_a_failing_callback(tmp_path: Path) -> None:
    (tmp_path / "waited_for.py").write_text("value = 42\n")
    errors: list[Exception] = []

    def fails() -> None:
        raise RuntimeError("as planned")

    finder = ImportFinder("waited_for", fails, errors.append)
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(tmp_path))
    try:
        import waited_for  # type: ignore[import-not-found]

        assert waited_for.value == 42
        assert [str(error) for error in errors] == ["as planned"]
        assert finder not in sys.meta_path
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("waited_for", None)


def test_importing_stagespan_calls_no_driver_and_starts_no_thread() -> None:
    program = (
        "import sys, threading, stagespan\n"
        "print('torch' in sys.modules, threading.active_count())\n"
        "print(any('libcuda' in line or 'libascendcl' in line for line in open('/proc/self/maps')))"
    )
    done = ran([sys.executable, "-c", program])
    assert done.stdout.splitlines() == ["False 1", "False"], done.stderr
