"""The device tests on the stand-in: as an Ascend NPU, and as an unknown accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest
import standin

import preloaded
from running import ran

ROOT = Path(__file__).parents[3]
CASES = sorted(path.name for path in (standin.HERE / "cases").glob("test_*.py"))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "with_ascend"),
    [("npu", True), ("npu", False), ("fancy", False)],
    ids=["npu", "npu without its runtime", "any accelerator"],
)
def test_all_cases(
    libraries: standin.Libraries, tmp_path: Path, name: str, with_ascend: bool
) -> None:
    # GIVEN a separate process, because torch cannot unregister a device
    command = [*preloaded.python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
    done = ran(
        [*command, "--basetemp", str(tmp_path / "cases"), str(standin.HERE / "cases")],
        cwd=ROOT,
        env=standin.environment(libraries, name=name, with_ascend=with_ascend),
        status=0,
    )
    assert "skipped" not in done.stdout
    assert " passed" in done.stdout
