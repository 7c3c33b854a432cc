"""Tests that imports and includes follow the directions in docs/internals/design.md."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from running import ran

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "stagespan"
needs_sources = pytest.mark.skipif(
    not (PACKAGE.is_dir() and (ROOT / "csrc").is_dir()),
    reason="python/ or csrc/ is missing: run the tests in a clone of the repository",
)

# From low to high: a part of the package may import from its own line and the lines before it.
PARTS = (
    "errors pages settings _core standalone without_core",
    "process",
    "contexts",
    "device",
    "live",
    "trace signature profiling",
    "harness report export recording sampling",
    "asgi compat logging notebook platforms pytest_plugin",
    "cli __main__",
)
LEVEL = {part: level for level, parts in enumerate(PARTS) for part in parts.split()}
# The same for the folders and modules of `trace`, from low to high.
TRACE = (
    "read",
    "evidence",
    "derived nsight",
    "rates",
    "analyses ascend",
    "remarks timeline",
    "analysis ranks compare",
    "json_schema paths",
)
TRACE_LEVEL = {part: level for level, parts in enumerate(TRACE) for part in parts.split()}
# Modules that need torch; all others import it inside functions.
NEED_TORCH = {
    *("compat/telefuser/platforms/__init__.py", "compat/telefuser/profiler.py"),
    *("harness/standalone/replay.py", "harness/standalone/denoise.py"),
    *("harness/standalone/own_loop.py", "harness/standalone/program.py"),
    *("harness/standalone/loop_state.py", "harness/standalone/torch_state.py"),
    *("harness/standalone/contents.py", "harness/standalone/values.py"),
    "signature/contents.py",
}
# The same for C++: the folders whose headers each folder may include.
FOLDERS = {
    "stagespan": {"stagespan"},
    "device": {"stagespan", "device"},
    "trace": {"trace"},
    "bindings": {"stagespan", "device", "trace", "bindings"},
}


def part_of(path: Path) -> str:
    return part_with(path.relative_to(PACKAGE).with_suffix("").parts)


def part_with(names: Sequence[str]) -> str:
    """Return the part with a module: its first folder, except for the modules of scripts."""
    return "standalone" if tuple(names[:2]) == ("harness", "standalone") else names[0]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(tree: ast.AST) -> Iterator[str]:
    """Return the modules that code imports anywhere; ``from x import y`` gives ``x.y``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE) + sorted(
        path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"
    )


@needs_sources
def test_no_part_imports_from_a_higher_one() -> None:
    # GIVEN all modules except the one with the public names
    wrong = []
    for path in modules():
        part = part_of(path)
        for name in imported(tree_of(path)):
            if not name.startswith("stagespan."):
                continue
            # THEN it leads to the same or a lower level; only the command line uses public names
            if LEVEL.get(part_with(name.split(".")[1:]), LEVEL["cli"]) > LEVEL[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def module_of(path: Path) -> str:
    """Return the module's name within the package: "trace.read.model"."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@needs_sources
def test_folders_of_trace_import_only_from_lower_ones() -> None:
    wrong = []
    for path in (PACKAGE / "trace").rglob("*.py"):
        module = module_of(path)
        if module == "trace":
            continue
        own = module.split(".")[1]
        for name in imported(tree_of(path)):
            part = name.removeprefix("stagespan.trace.").split(".")[0]
            if (
                name.startswith("stagespan.trace.")
                and part != own
                and TRACE_LEVEL[part] >= TRACE_LEVEL[own]
            ):
                wrong.append(f"{module} imports {name}")
    assert wrong == []


@needs_sources
def test_no_modules_import_each_other_in_a_cycle() -> None:
    paths = {module_of(path): path for path in PACKAGE.rglob("*.py")}
    imports: dict[str, set[str]] = {}
    for module, path in paths.items():
        tree = tree_of(path)
        found = {
            name.removeprefix("stagespan.")
            for name in imported(tree)
            if name.startswith("stagespan.")
        }
        # `from x import y`: the module x.y, or else the name y of the module x
        named = {name if name in paths else name.rpartition(".")[0] for name in found}
        imports[module] = (named & paths.keys()) - {module, ""}
    while free := [module for module, others in imports.items() if not others]:
        for module in free:
            del imports[module]
        imports = {module: others - set(free) for module, others in imports.items()}
    assert imports == {}


@needs_sources
def test_modules_of_scripts_need_only_torch_and_the_standard_library() -> None:
    # GIVEN the modules whose source becomes a part of generated scripts
    paths = [path for path in (PACKAGE / "harness/standalone").glob("*.py") if path.stem[0] != "_"]
    known = {f"stagespan.harness.standalone.{path.stem}" for path in paths}
    wrong = []
    for path in paths:
        for name in imported(tree_of(path)):
            package, module = name.split(".")[0], name.rpartition(".")[0]
            # THEN each leads to the standard library, to torch, or to a name in one of them; PIL is
            # needed only for inputs that are its images
            if package not in {*sys.stdlib_module_names, "torch", "PIL"} and module not in known:
                wrong.append(f"{path.name} imports {name}")
    assert len(known) > 10
    assert wrong == []


@needs_sources
def test_torch_is_imported_only_in_modules_that_need_it() -> None:
    found = set()
    for path in modules():
        name = path.relative_to(PACKAGE).as_posix()
        tree = tree_of(path)
        top = ast.Module([node for node in tree.body if not hasattr(node, "body")], [])
        if any(module.split(".")[0] == "torch" for module in imported(top)):
            found.add(name)
        if part_of(path) == "trace":
            assert not any(module.split(".")[0] == "torch" for module in imported(tree)), name
    assert found == NEED_TORCH


@needs_sources
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_includes_from_a_higher_one(folder: str) -> None:
    files = [
        path for path in (ROOT / "csrc" / folder).rglob("*") if path.suffix in (".h", ".c", ".cpp")
    ]
    assert files

    wrong = []
    for path in files:
        for target in re.findall(r'#include\s+[<"]([^">]+)[">]', path.read_text()):
            first = target.split("/")[0] if "/" in target else folder
            is_python = target == "Python.h" or first == "pybind11"
            # THEN they lead to lower folders; only the bindings and the header for extensions
            # include Python
            if (first in FOLDERS and first not in FOLDERS[folder]) or (
                is_python and folder != "bindings" and path.name != "python.h"
            ):
                wrong.append(f"{path.relative_to(ROOT)} includes {target}")
    assert wrong == []


def test_exporters_do_not_import_what_reads_traces() -> None:
    # It takes as long as all the rest of their start.
    program = """
import sys
import stagespan.cli.export, stagespan.export.kept, stagespan.export.node
import stagespan.export.prometheus
try:
    import stagespan.export.otlp
except ModuleNotFoundError:
    pass
print([name for name in sys.modules if name.startswith("stagespan.trace")])
"""
    done = ran([sys.executable, "-c", program])
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_requests_of_a_recording_import_neither_analyses_nor_kept_requests(tmp_path: Path) -> None:
    missing = tmp_path / "missing.stagespan"
    program = f"""
import sys
from click.testing import CliRunner
from stagespan.cli.requests import command
CliRunner().invoke(command, [{str(missing)!r}])
parts = "stagespan.trace.analyses", "stagespan.trace.derived", "stagespan.export.kept"
print(parts[0].rpartition(".")[0] in sys.modules, [name for name in parts if name in sys.modules])
"""
    done = ran([sys.executable, "-c", program])
    assert (done.stdout, done.stderr) == ("True []\n", "")
