"""Builds the stand-in for an accelerator once, and runs programs on it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import preloaded
from running import ran

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
    """Run a program in a process in which `Standin.of_environment` works.

    With ``first``, nothing has been imported before the program, because torch takes seconds.
    """

    def run(
        program: str | Sequence[str | Path],
        *,
        name: str = "npu",
        with_ascend: bool = True,
        first: bool = False,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        environment = standin.environment(libraries, name=name, with_ascend=with_ascend)
        environment |= variables
        python = [sys.executable] if first else preloaded.python()
        what = ["-c", textwrap.dedent(program)] if isinstance(program, str) else program
        return ran([*python, *what], env=environment)

    return run
