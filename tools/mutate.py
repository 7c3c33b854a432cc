"""Change the sources of chosen modules in small ways and count how many changes the tests find.

python tools/mutate.py [--sample N] [--seed S] [MODULE ...]     names from TARGETS; all by default

A copy of the checkout is changed, in `.make/mutate`. The changes are those of cosmic-ray. The score
is the share of changes with which at least one test of the module fails.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
from pathlib import Path

from common import ROOT, STATE, say

FOLDER = STATE / "mutate"
TRACE = "python/stagespan/trace"
TESTS = "tests/unit"
TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "statistics": ("python/stagespan/statistics.py", (f"{TESTS}/test_statistics.py",)),
    "history": ("python/stagespan/history.py", (f"{TESTS}/test_history.py",)),
    "device_time": (
        f"{TRACE}/derived/device_time.py",
        (f"{TESTS}/trace/analyses/test_use_and_launches.py",),
    ),
    "idle_parts": (f"{TRACE}/derived/gaps.py", (f"{TESTS}/trace/analyses/test_idle_causes.py",)),
    "waits_of_ranks": (f"{TRACE}/ranks/waits.py", (f"{TESTS}/trace/ranks/test_ranks.py",)),
    "alignment": (f"{TRACE}/compare/alignment.py", (f"{TESTS}/trace/compare/test_comparison.py",)),
    "signature_key": (
        "python/stagespan/signature/key.py",
        (f"{TESTS}/signature/test_signature_capture.py",),
    ),
}  # fmt: skip
"""By name the module, and the tests that have to find what is wrong with it."""
SECONDS = 120.0
WITH_ARGUMENTS = ("core/VariableInserter", "core/VariableReplacer")


def main() -> int:
    """Print the score of each module; returns 1 if the tests of one fail without any change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(TARGETS), metavar="MODULE")
    parser.add_argument("--sample", type=int, default=40, help="changes of each module")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    unknown = sorted(set(options.modules) - set(TARGETS))
    if unknown:
        parser.error(f"no such module: {', '.join(unknown)}; choose from {', '.join(TARGETS)}")
    copy_checkout()
    for name in options.modules:
        module, tests = TARGETS[name]
        if not run_tests(tests):
            say(f"{name}: the tests fail without any change; run {' '.join(tests)} first")
            return 1
        survived, tried = mutate(FOLDER / module, tests, options.sample, options.seed)
        found = tried - len(survived)
        say(f"{name:16}{found:4} of {tried:4} changes found ({100 * found / tried:.0f} %)")
        for line in survived:
            say(f"    not found: {line}")
    return 0


def copy_checkout() -> None:
    """Copy the sources and tests, so that nobody works on a changed checkout."""
    for part in ("python", "tests"):
        shutil.rmtree(FOLDER / part, ignore_errors=True)
        shutil.copytree(ROOT / part, FOLDER / part)
    shutil.copy2(ROOT / "pyproject.toml", FOLDER)
    from stagespan import _core

    shutil.copy2(_core.__file__, FOLDER / "python/stagespan")


def run_tests(tests: tuple[str, ...]) -> bool:
    """Whether all tests pass against the copy."""
    # Without the finder of the editable package the copy is imported.
    program = (
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
        f"sys.path.insert(0, {str(FOLDER / 'python')!r})\n"
        "import pytest\n"
        f"sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', *{list(tests)!r}]))\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=FOLDER,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def mutate(module: Path, tests: tuple[str, ...], sample: int, seed: int) -> tuple[list[str], int]:
    """The changes that no test found, as "line: before -> after", and how many were tried."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import (
        get_operator,
        operator_names,
    )

    source = module.read_text()
    changes = []
    for name in sorted(operator_names()):
        if name not in WITH_ARGUMENTS:
            operator = get_operator(name)()
            occurrence = 0
            while (changed := mutate_code(source, operator, occurrence)) is not None:
                changes.append(changed)
                occurrence += 1
    same = meaning(source)
    changes = [each for each in dict.fromkeys(changes) if meaning(each) not in (same, None)]
    chosen = random.Random(seed).sample(changes, min(sample, len(changes)))
    survived = []
    try:
        for changed in chosen:
            module.write_text(changed)
            if run_tests(tests):
                survived.append(difference(source, changed))
    finally:
        module.write_text(source)
    return survived, len(chosen)


def meaning(source: str) -> str | None:
    """The program without annotations, which nothing evaluates; None if it is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def difference(source: str, changed: str) -> str:
    """The first line that differs, before and after."""
    before, after = source.splitlines(), changed.splitlines()
    for number, (old, new) in enumerate(zip(before, after, strict=False), 1):
        if old != new:
            return f"line {number}: {old.strip()} -> {new.strip()}"
    return "the end of the file"


if __name__ == "__main__":
    sys.exit(main())
