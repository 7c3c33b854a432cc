"""Builds the stand-in for an accelerator once, and runs programs on it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "npu_standin"))

import standin


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> standin.Libraries:
    reason = standin.missing()
    if reason is not None:
        pytest.skip(reason)
    return standin.build(tmp_path_factory.mktemp("npu_standin"))


@pytest.fixture(scope="session")
def run(libraries: standin.Libraries) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in an interpreter of its own, in which `Standin.of_environment` works."""

    def run(
        program: str, *, name: str = "npu", with_ascend: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = standin.environment(libraries, name=name, with_ascend=with_ascend)
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**environment, **variables},
        )

    return run
