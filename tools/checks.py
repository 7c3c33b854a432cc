"""`make test`: every check of the project, one line each, then what was skipped and why.

    python tools/checks.py [name ...]        all without arguments; --list names them

Runs with the Python of `.venv`. Logs lie in `.make/logs/`. Ends with status 1 if anything failed.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import cpp_tests
import other_pythons
from bootstrap import read_stamp
from common import (
    ROOT,
    STATE,
    VENV_PYTHON,
    StepError,
    Timer,
    apt_install,
    log_text,
    main_guard,
    run,
    say,
)

_CPP_FOLDERS = ("csrc", "tests", "examples", "benchmarks")
_OF_TRACES = ("unit/trace/analysis", "unit/trace/ranks", "unit/trace/ncu")
# Without torch most of its tests skip themselves: that is what these runs are for.
_NO_TORCH = re.compile(r"torch|diffusers|transformers", re.IGNORECASE)


@dataclass
class Result:
    """How a check went."""

    said: str = ""
    skipped: str | None = None
    parts_skipped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A named check; ``work`` returns its result or raises StepError."""

    name: str
    title: str
    work: Callable[[], Result]


def tool(*command: str, log: str) -> Callable[[], Result]:
    """A check that is one command of the environment's."""

    def work() -> Result:
        run([VENV_PYTHON, "-m", *command], log)
        return Result("clean")

    return work


def clang_format(*flags: str) -> Result:
    """Compare (or bring) all C++ sources to the format."""
    files = sorted(
        str(path.relative_to(ROOT))
        for folder in _CPP_FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".cpp", ".h") and not {"build", "work_dirs"} & set(path.parts)
    )
    run([VENV_PYTHON.parent / "clang-format", *flags, *files], "clang-format")
    return Result(f"{len(files)} files")


def cpp(name: str) -> Callable[[], Result]:
    """The C++ tests in one variant."""
    variant = next(one for one in cpp_tests.VARIANTS if one.name == name)

    def work() -> Result:
        try:
            return Result(cpp_tests.run_variant(variant))
        except cpp_tests.SkipError as reason:
            return Result(skipped=str(reason))

    return work


def demo() -> Result:
    """The demo, as `make demo` runs it, into a folder of its own."""
    missing = read_stamp().get("without_torch")
    if missing:
        return Result(skipped=str(missing))
    folder = STATE / "demo"
    run([VENV_PYTHON, ROOT / "examples/wan_pipeline/demo.py", "--output", folder], "demo")
    return Result("ran; the script's figures agree with the harness's")


@functools.cache
def browser() -> None:
    """Install a browser for the tests of the HTML page; without one they say so and skip."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if not any(shutil.which(name) for name in names):
        reason = apt_install("chromium")
        if reason is not None:
            say(f"  no browser for the tests of the HTML page: {reason}")


def pytest(python: Path, log: str, *arguments: str) -> Result:
    """Run the Python tests with an interpreter; what they skipped comes back with the reasons."""
    browser()
    skips = STATE / f"{log}-skips.json"
    skips.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *arguments]
    # The workers fill the cores: threads of torch's would only wait for each other.
    env = {"STAGESPAN_TEST_SKIPS": str(skips), "OMP_NUM_THREADS": "1"}
    if python == VENV_PYTHON and (wheel := other_pythons.newest_wheel()) is not None:
        env["STAGESPAN_TEST_WHEEL"] = str(wheel)
    run(command, log, env=env)
    line = other_pythons.closing_line(log_text(log))
    parts = json.loads(skips.read_text()) if skips.is_file() else {}
    return Result(line or "passed", parts_skipped=parts)


def other(version: str) -> Callable[[], Result]:
    """The tests that need no torch, on another Python, against a wheel."""

    def work() -> Result:
        interpreter = other_pythons.find(version)
        if interpreter is None:
            return Result(skipped=f"no working python{version} on PATH or under pyenv")
        python = other_pythons.prepare(version, interpreter)
        # What is made of a trace once it has been read is plain Python: it is tested on one.
        ignored = [f"--ignore=tests/{folder}" for folder in ("fuzz", *_OF_TRACES)]
        result = pytest(python, f"pytest-{version}", "-m", "not slow", *ignored)
        without = {r: n for r, n in result.parts_skipped.items() if _NO_TORCH.search(r)}
        for reason in without:
            del result.parts_skipped[reason]
        if without:
            result.parts_skipped["needs torch, which only .venv has"] = sum(without.values())
        return result

    return work


def checks() -> list[Check]:
    """All checks, quick ones first; the tests of `.venv` last, as their figures end the run."""
    found = [
        Check("ruff", "ruff check", tool("ruff", "check", ".", log="ruff")),
        Check("format", "ruff format", tool("ruff", "format", "--check", ".", log="ruff-format")),
        Check("clang-format", "clang-format", lambda: clang_format("--dry-run", "-Werror")),
        Check("mypy", "mypy", tool("mypy", log="mypy")),
    ]
    found += [Check(v.name, v.title, cpp(v.name)) for v in cpp_tests.VARIANTS]
    found.append(Check("demo", "demo", demo))
    for version in other_pythons.others():
        title = f"tests on Python {version}, from a wheel, without torch"
        found.append(Check(f"py{version}", title, other(version)))
    own = "{}.{}".format(*sys.version_info[:2])
    found.append(Check("pytest", f"tests on Python {own}", lambda: pytest(VENV_PYTHON, "pytest")))
    return found


def run_check(check: Check, place: str, failed: list[str]) -> Result:
    """Run one check and say how it went; a failed one shows its log and joins ``failed``."""
    timer = Timer()
    print(f"{place} {check.title} ... ", end="", flush=True)
    try:
        result = check.work()
    except StepError as error:
        say(f"FAILED ({timer.seconds():.1f} s)")
        error.show()
        failed.append(check.title)
        return Result()
    if result.skipped is not None:
        say("skipped")
    else:
        say(f"{result.said} ({timer.seconds():.1f} s)")
    return result


def main() -> int:
    """Run the checks named on the command line, or all."""
    wanted = sys.argv[1:]
    todo = [check for check in checks() if not wanted or check.name in wanted]
    if "--list" in wanted or not todo:
        say("\n".join(f"{check.name:14}{check.title}" for check in checks()))
        return 0 if "--list" in wanted else 1
    timer = Timer()
    failed: list[str] = []
    skipped: list[str] = []
    for number, check in enumerate(todo, 1):
        result = run_check(check, f"[{number:2}/{len(todo)}]", failed)
        if result.skipped is not None:
            skipped.append(f"{check.title}: {result.skipped}")
        for reason, count in sorted(result.parts_skipped.items()):
            times = f"{count} x " if count > 1 else ""
            skipped.append(f"{check.title}: {times}{reason}")
    say(f"\n{len(todo)} checks in {timer.seconds() / 60:.1f} minutes. Skipped:")
    say("\n".join(f"  - {line}" for line in skipped) or "  nothing")
    if failed:
        say("FAILED: " + "; ".join(failed))
    # Pytest's own closing line is the last one, for whoever counts tests.
    line = other_pythons.closing_line(log_text("pytest")) if todo[-1].name == "pytest" else None
    if line is not None:
        say(f"{f' {line} ':=^80}")
    return 1 if failed else 0


if __name__ == "__main__":
    main_guard(main)
