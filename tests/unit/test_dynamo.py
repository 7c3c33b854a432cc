"""Waiting for torch._dynamo: stagespan never imports it, and leaves its loader unchanged."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

import preloaded
from running import ran
from stagespan import _core, without_core

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def run(program: str, *, start: Sequence[str] = (sys.executable,)) -> str:
    """Run a program in a separate interpreter; return what it printed."""
    done = ran([*start, "-c", textwrap.dedent(program)], status=0)
    return done.stdout + done.stderr


def test_installing_imports_nothing() -> None:
    # GIVEN a fresh interpreter
    out = run("""
        import sys
        import stagespan
        stagespan.contexts.dynamo.install()
        print([name for name in sys.modules if name.partition(".")[0] == "torch"])
        print(sum(type(finder).__name__ == "_DynamoFinder" for finder in sys.meta_path))
    """)

    # THEN torch is not imported, and one finder waits
    assert out.splitlines() == ["[]", "1"]


@needs_torch
def test_registered_when_dynamo_is_imported() -> None:
    # GIVEN stagespan before torch
    out = run("""
        import inspect, sys
        from importlib.machinery import SourceFileLoader
        from stagespan import _core
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

    # THEN contexts work in a graph, the loader is the unchanged real one, and nothing waits any
    # more
    assert out.splitlines() == ["False", "True True", "True", "True", "True", "False", "2.0"]


@needs_torch
def test_registered_when_dynamo_came_first() -> None:
    # GIVEN torch._dynamo before stagespan
    program = """
        import sys
        import torch._dynamo
        print("stagespan" in sys.modules)
        from stagespan import _core

        def traced(x):
            with _core.ProfilingContext4Debug("x", False, capture_memory=True):
                return x + 1

        print(torch.compile(traced, backend="eager", fullgraph=True)(torch.ones(1)).item())
        print(any(type(finder).__name__ == "_DynamoFinder" for finder in sys.meta_path))
    """
    out = run(program, start=preloaded.python())

    # THEN contexts work in a graph
    assert out.splitlines() == ["False", "2.0", "False"]


@needs_torch
def test_members_of_contexts_and_tokens_in_a_graph() -> None:
    program = """
        import torch
        import stagespan

        def members(context):
            with context as s:
                return s.name, s.kind, s.reset_peak_memory, s.capture_memory

        def read(x):
            token = stagespan.begin("t")
            stagespan.end(token)
            return x + 1, token.name, [
                members(stagespan.span("a")),
                members(stagespan.ProfilingContext("b", False, capture_memory=True)),
                members(stagespan.ProfilingContext4Debug("c")),
            ]

        eager, compiled = read, torch.compile(read, backend="eager", fullgraph=True)
        print(eager(torch.ones(1)) == compiled(torch.ones(1)))
    """
    out = run(program, start=preloaded.python())

    assert out.splitlines() == ["True"]


@pytest.mark.parametrize("real", [_core.Span, _core.Token, _core.SpanCursor])
def test_the_stand_in_has_all_members(real: type) -> None:
    assert set(dir(real)) - set(dir(without_core.Nothing("x"))) == set()


def fake_torch(folder: Path, text: str) -> str:
    """Write a package torch with this text as _dynamo; return the line that makes it importable."""
    package = folder / "torch" / "_dynamo"
    package.mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (package / "__init__.py").write_text(textwrap.dedent(text))
    return f"import sys; sys.path.insert(0, {str(folder)!r})"


def test_a_failing_registration_is_one_warning(tmp_path: Path) -> None:
    # GIVEN a torch whose hook does not work as expected
    path = fake_torch(
        tmp_path,
        """
        def substitute_in_graph(function, **_):
            raise RuntimeError("changed")
    """,
    )

    out = run(f"""
        {path}
        import logging
        logging.basicConfig(format="%(levelname)s %(message)s")
        import stagespan
        import torch._dynamo
        print(torch._dynamo.__name__)
        stagespan.contexts.dynamo.register()
    """)

    # THEN the import works, and one sentence states the consequence
    first, second = out.splitlines()
    assert first == "torch._dynamo"
    assert second.startswith("WARNING stagespan could not register its contexts")
    assert "(RuntimeError: changed)" in second
    assert "breaks its graph there" in second


def test_an_old_torch_gives_no_warning(tmp_path: Path) -> None:
    out = run(f"""
        {fake_torch(tmp_path, "")}
        import stagespan
        import torch._dynamo
        print(torch._dynamo.__name__)
    """)

    assert out.splitlines() == ["torch._dynamo"]


def test_a_package_that_fails_to_import_keeps_failing(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    path = fake_torch(
        tmp_path,
        f"""
        import os
        if not os.path.exists({str(mended)!r}):
            raise ImportError("broken")
        registered = []
        def substitute_in_graph(function, **_):
            registered.append(function.__name__)
            return lambda stand_in: stand_in
    """,
    )

    out = run(f"""
        {path}
        import stagespan
        try:
            import torch._dynamo
        except ImportError as error:
            print(error)
        open({str(mended)!r}, "w").close()
        import torch._dynamo
        print(*torch._dynamo.registered)
    """)

    # THEN the first error is torch's own, and the second import is registered
    contexts = "span ProfilingContext ProfilingContext4Debug begin end record"
    calls = "call_timed timed_coroutine timed_generator timed_async_generator"
    assert out.splitlines() == ["broken", f"{contexts} {calls}"]
