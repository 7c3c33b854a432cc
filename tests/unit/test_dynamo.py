"""Waiting for torch._dynamo: never imported by stagespan, its loader left as it was."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def run(program: str) -> str:
    """Run a program in an interpreter of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_installing_imports_nothing() -> None:
    # GIVEN a fresh interpreter / WHEN stagespan waits for torch
    out = run("""
        import sys
        from stagespan import dynamo
        dynamo.install()
        dynamo.install()
        print([name for name in sys.modules if name.partition(".")[0] == "torch"])
        print(sum(type(finder).__name__ == "_DynamoFinder" for finder in sys.meta_path))
    """)

    # THEN torch is not imported, and one finder waits
    assert out.splitlines() == ["[]", "1"]


@needs_torch
def test_registered_when_dynamo_is_imported() -> None:
    # GIVEN stagespan before torch / WHEN torch._dynamo is imported
    out = run("""
        import inspect, sys
        from importlib.machinery import SourceFileLoader
        from stagespan import _core, dynamo
        dynamo.install()
        import torch
        print("torch._dynamo" in sys.modules)
        import torch._dynamo
        loader = torch._dynamo.__spec__.loader
        print(type(loader) is SourceFileLoader, torch._dynamo.__loader__ is loader)
        print(sorted(vars(loader)) == sorted(vars(torch.__spec__.loader)))
        print("substitute" in loader.get_source("torch._dynamo"))
        print(len(inspect.getsource(torch._dynamo)) > 100)
        print(any(type(finder).__name__ == "_DynamoFinder" for finder in sys.meta_path))

        def traced(x):
            with _core.span("x") as s:
                s.add(tokens=3)
                return x + 1

        print(torch.compile(traced, backend="eager", fullgraph=True)(torch.ones(1)).item())
    """)

    # THEN contexts work in a graph, the loader is the real one as it was, and nobody waits any more
    assert out.splitlines() == ["False", "True True", "True", "True", "True", "False", "2.0"]


@needs_torch
def test_registered_when_dynamo_came_first() -> None:
    # GIVEN torch._dynamo before stagespan / WHEN stagespan is told to
    out = run("""
        import sys
        import torch._dynamo
        from stagespan import _core, dynamo
        dynamo.install()

        def traced(x):
            with _core.ProfilingContext4Debug("x", False, capture_memory=True):
                return x + 1

        print(torch.compile(traced, backend="eager", fullgraph=True)(torch.ones(1)).item())
        print(any(type(finder).__name__ == "_DynamoFinder" for finder in sys.meta_path))
    """)

    # THEN contexts work in a graph
    assert out.splitlines() == ["2.0", "False"]


@needs_torch
def test_a_failing_registration_is_one_warning() -> None:
    # GIVEN a torch whose hook does not work / WHEN it is imported
    out = run("""
        import logging, sys
        logging.basicConfig(format="%(levelname)s %(message)s")
        from stagespan import _core, dynamo
        dynamo.install()
        import torch._dynamo.decorators

        # Too late for this import, so say it again with a function that is registered already.
        dynamo.register()
        print(torch._dynamo.__name__)
    """)

    # THEN the import works, and one sentence says what follows from it
    lines = out.splitlines()
    assert lines[0] == "torch._dynamo"
    assert len(lines) == 2
    assert lines[1].startswith("WARNING stagespan could not register its contexts")
    assert "break its graph there" in lines[1]


def test_a_package_that_fails_to_import_keeps_failing(tmp_path: object) -> None:
    # GIVEN a torch that fails while its _dynamo is imported, once / WHEN it is tried twice
    out = run(f"""
        import os, sys
        root = {str(tmp_path)!r}
        os.makedirs(root + "/torch/_dynamo")
        open(root + "/torch/__init__.py", "w").close()
        with open(root + "/torch/_dynamo/__init__.py", "w") as file:
            file.write(
                "import os\\n"
                "if not os.path.exists({str(tmp_path)!r} + '/mended'):\\n"
                "    raise ImportError('broken')\\n"
                "registered = []\\n"
                "def substitute_in_graph(function, **_):\\n"
                "    registered.append(function.__name__)\\n"
                "    return lambda stand_in: stand_in\\n"
            )
        sys.path.insert(0, root)
        from stagespan import dynamo
        dynamo.install()
        try:
            import torch._dynamo
        except ImportError as error:
            print(error)
        open(root + "/mended", "w").close()
        import torch._dynamo
        print(torch._dynamo.registered)
    """)

    # THEN the first error is torch's own, and the second import is registered
    assert out.splitlines() == [
        "broken",
        "['span', 'ProfilingContext', 'ProfilingContext4Debug', 'begin', 'end', 'record']",
    ]
