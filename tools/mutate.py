"""Change the sources of chosen modules in small ways and count how many changes the tests find.

python tools/mutate.py [--sample N] [--seed S] [TARGET ...]     names from TARGETS; all by default

A copy of the checkout is changed, in `.make/mutate`. The changes are those of cosmic-ray. The score
is the share of changes with which at least one test of the target fails.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from common import ROOT, STATE, say

FOLDER = STATE / "mutate"
STAGESPAN, TRACE = "python/stagespan", "python/stagespan/trace"
UNIT, OF_TRACES = "tests/unit", "tests/unit/trace"
RANKS_TESTS = ("test_ranks", "test_ranks_late", "test_ranks_npu")
TARGETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "statistics": ((f"{STAGESPAN}/statistics.py",), (f"{UNIT}/test_statistics.py",)),
    "history": ((f"{STAGESPAN}/history.py",), (f"{UNIT}/test_history.py",)),
    "device_use": (
        (f"{TRACE}/derived/device_time.py", f"{TRACE}/analyses/device_use.py"),
        (f"{OF_TRACES}/analyses/test_use_and_launches.py",),
    ),
    "idle": (
        (f"{TRACE}/derived/gaps.py",),
        (
            f"{OF_TRACES}/analyses/test_idle_causes.py",
            f"{OF_TRACES}/analyses/test_use_and_launches.py",
        ),
    ),
    "ranks": (
        (f"{TRACE}/ranks/waits.py",),
        (
            *(f"{OF_TRACES}/ranks/{name}.py" for name in RANKS_TESTS),
            *("-k", "not reasons_sum and not be_merged"),  # these two take the most time
        ),
    ),
    "compare": (
        (f"{TRACE}/compare/alignment.py",),
        (f"{OF_TRACES}/compare/test_comparison.py",),
    ),
    "signature": (
        (f"{STAGESPAN}/signature/key.py", f"{STAGESPAN}/signature/kinds/base.py"),
        (
            f"{UNIT}/signature/test_signature_kinds.py",
            f"{UNIT}/signature/test_signature_capture.py",
        ),
    ),
}
"""By name the modules, and the arguments of pytest for the tests that must find their changes."""
WITH_ARGUMENTS = ("core/VariableInserter", "core/VariableReplacer")
IMPORTED_ONCE = ("hypothesis", "msgspec", "numpy", "pytest", "torch")
# Tests that take this many times as long as without a change, and at least so many seconds, hang.
SLOWER, LEAST_S = 10, 30.0


def main() -> int:
    """Print the score of each target; returns 1 if the tests of one fail without any change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--sample", type=int, default=40, help="changes of each target")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    unknown = sorted(set(options.targets) - set(TARGETS))
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; choose from {', '.join(TARGETS)}")
    copy_checkout()
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    for name in options.targets:
        modules, tests = TARGETS[name]
        began = time.monotonic()
        if not run_tests(tests, None):
            say(f"{name}: the tests fail without any change; run {' '.join(tests)} first")
            return 1
        limit_s = max(LEAST_S, SLOWER * (time.monotonic() - began))
        sample = list(changes(modules, options.sample, options.seed))
        found = sum(is_found(*change, tests, limit_s) for change in sample)
        say(f"{name:12}{found:4} of {len(sample):4} changes found")
    return 0


def copy_checkout() -> None:
    """Copy the sources and tests, so that nobody works on a changed checkout."""
    for part in ("python", "tests"):
        shutil.rmtree(FOLDER / part, ignore_errors=True)
        shutil.copytree(ROOT / part, FOLDER / part)
    shutil.copy2(ROOT / "pyproject.toml", FOLDER)
    # Not imported here, so that each process of tests imports the copy.
    program = "from stagespan import _core; print(_core.__file__)"
    core = subprocess.check_output([sys.executable, "-c", program], text=True).strip()
    shutil.copy2(core, FOLDER / STAGESPAN)


def run_tests(tests: tuple[str, ...], limit_s: float | None) -> bool:
    """Whether all tests pass against the copy, in a fork of this process."""
    process = multiprocessing.get_context("fork").Process(
        target=be_pytest, args=(tests, limit_s is None)
    )
    process.start()
    process.join(limit_s)
    if process.is_alive():
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)  # with the programs that the tests started
        process.join()
    return process.exitcode == 0


def be_pytest(tests: tuple[str, ...], writes_bytecode: bool) -> None:
    """Run tests against the copy, and end this process with the status of pytest."""
    os.setsid()
    os.chdir(FOLDER)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    # Python takes a module's bytecode for current if the source's size and second are the same.
    sys.dont_write_bytecode = not writes_bytecode
    # Without the finder of the editable package the copy is imported, in this process and in those
    # that it starts, where the finder's file is replaced by an empty one.
    sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
    (FOLDER / "python" / "_editable_skbc_stagespan.py").touch()
    sys.path.insert(0, str(FOLDER / "python"))
    os.environ["PYTHONPATH"] = str(FOLDER / "python")
    import pytest

    os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))


def changes(modules: tuple[str, ...], sample: int, seed: int) -> Iterator[tuple[str, str]]:
    """Randomly chosen changes of some modules: the module, and its changed source."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    sources = {module: (FOLDER / module).read_text() for module in modules}
    operators = {
        name: get_operator(name)()
        for name in sorted(operator_names())
        if name not in WITH_ARGUMENTS
    }
    places = [
        (module, name, number)
        for module, source in sources.items()
        for nodes in [list(ast_nodes(get_ast(source)))]
        for name, operator in operators.items()
        for number in range(sum(len(list(operator.mutation_positions(node))) for node in nodes))
    ]
    random.Random(seed).shuffle(places)
    seen = {meaning(source) for source in sources.values()} | {None}
    for module, name, number in places:
        if sample == 0:
            return
        changed = mutate_code(sources[module], operators[name], number)
        means = meaning(changed)
        if means not in seen:
            seen.add(means)
            sample -= 1
            yield module, changed


def is_found(module: str, changed: str, tests: tuple[str, ...], limit_s: float) -> bool:
    """Whether a test fails with a changed module; prints the change otherwise."""
    path = FOLDER / module
    source = path.read_text()
    try:
        path.write_text(changed)
        found = not run_tests(tests, limit_s)
    finally:
        path.write_text(source)
    if not found:
        say(f"not found: {path.name} {difference(source, changed)}")
    return found


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
