"""``%%stagespan``: where the time of a cell of a notebook went.

``%load_ext stagespan`` defines it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import shlex
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from stagespan import _core
from stagespan.contexts import named
from stagespan.errors import StagespanError
from stagespan.live.service import flush
from stagespan.live.statistics import stats_since
from stagespan.pages.result import Line, in_notebook
from stagespan.process import run, sampler
from stagespan.process.files import stage_path
from stagespan.sampling.page import print_sampled
from stagespan.sampling.result import Sampled, sampled
from stagespan.sampling.stacks import read_processes


def load_ipython_extension(shell: Any) -> None:
    """Define the magic ``%%stagespan``. IPython calls it for ``%load_ext stagespan``."""
    shell.register_magic_function(_Magic(shell).run, "cell", "stagespan")


class _Parser(argparse.ArgumentParser):
    """Raises errors instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise StagespanError(f"%%stagespan: {message}.")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Done


class _Done(Exception):
    """The help was shown."""


def _parser() -> _Parser:
    parser = _Parser(
        "%%stagespan",
        description="Run the cell and show where its time went. Without options, samples of all"
        " stacks find the functions with most time.",
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="[NAME=][MODULE:]FUNCTION",
        help="Time this function as a stage while the cell runs. Without a module, it is one of the"
        " notebook. Can be repeated.",
    )
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="STAGE",
        help="Run this function, or the ProfilingContext of this name, under torch.profiler, and"
        " show the verdict about the trace. Can be repeated.",
    )
    parser.add_argument(
        "--sample-ms",
        type=float,
        default=10.0,
        metavar="MS",
        help="The time between two samples, from 1 to 1000 ms. Default: 10.",
    )
    return parser


class _Shown:
    """What stands below a cell: HTML in a notebook, text on a terminal."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


class _Magic:
    """The magic of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def run(self, line: str, cell: str) -> None:
        """Run the cell and show where its time went. ``%%stagespan -h`` lists the options."""
        from IPython.core.error import UsageError

        try:
            options = _parser().parse_args(shlex.split(line))
            if not 1 <= options.sample_ms <= 1000:
                raise StagespanError("%%stagespan: --sample-ms must be from 1 to 1000.")
            code = self._shell.transform_cell(cell)
            if self._shell.should_run_async(cell, transformed_cell=code):
                raise StagespanError(
                    "%%stagespan: a cell with `await` outside of functions cannot be sampled. Put"
                    " stagespan.span around the coroutine function, and look at stagespan.stats()."
                )
            self._run(options, cell, code)
        except _Done:
            pass
        except (StagespanError, ValueError) as error:
            raise UsageError(str(error)) from None

    def _run(self, options: argparse.Namespace, cell: str, code: str) -> None:
        functions = [text for text in options.profile if self._is_function(text, code)]
        texts = [_with_module(text) for text in (*options.stage, *functions)]
        names = [
            named.NamedStage(_with_module(text)).name if text in functions else text
            for text in options.profile
        ]
        decorator = _core.ProfilingContext if names else named.decorator()
        wrapper = named.Wrapper(named.named_stages(texts), decorator, "")
        if names:
            from stagespan.profiling import enable_profiler_for_names

            enable_profiler_for_names(names)
        before = {name: _written_at(name) for name in names}
        earlier = _core.snapshot()
        samples: Sampled | None = None
        is_sampled = not (texts or names or sampler.is_on())
        with wrapper.timed_meanwhile(), self._decorating(wrapper):
            if is_sampled:
                with tempfile.TemporaryDirectory(prefix="stagespan-") as folder:
                    sampler.start(folder, sampler.CELL, options.sample_ms)
                    try:
                        error = self._run_cell(cell)
                    finally:
                        sampler.stop()
                    samples = sampled(read_processes(Path(folder)))
            else:
                error = self._run_cell(cell)
        flush()
        stats = stats_since(earlier)
        self._show(stats or None)
        if is_sampled:
            self._show(_of_samples(samples, options.sample_ms))
        for name in names:
            for shown in _of_profile(name, before[name]):
                self._show(shown)
        for sentence in (*wrapper.missing(), *wrapper.never_ran(stats)):
            self._show(_of_line(sentence))
        if error is not None:
            raise error

    def _show(self, page: Any) -> None:
        from IPython import display

        show: Any = display.display
        if page is not None:
            show(page)

    def _is_function(self, text: str, code: str) -> bool:
        """Whether a name is that of a function of the notebook or of a module."""
        if ":" in text or callable(self._shell.user_ns.get(text.partition(".")[0])):
            return True
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(code)
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            names = [node.name for node in tree.body if isinstance(node, kinds)]
            return text.partition(".")[0] in names
        return False

    @contextlib.contextmanager
    def _decorating(self, wrapper: named.Wrapper) -> Iterator[None]:
        """Time stages that the cell defines."""

        def decorated(tree: ast.Module) -> ast.Module:
            tree, names = wrapper.prepare_main(tree)
            self._shell.user_ns.update(names)
            return tree

        transformer = SimpleNamespace(visit=decorated)
        self._shell.ast_transformers.append(transformer)
        try:
            yield
        finally:
            self._shell.ast_transformers.remove(transformer)
            self._shell.user_ns.pop(named.HOOK_NAME, None)

    def _run_cell(self, cell: str) -> BaseException | None:
        """Run a cell as its own. Returns its exception, which shows itself when it is raised."""
        shell = self._shell
        show, shell.showtraceback = shell.showtraceback, lambda *_, **__: None
        try:
            result = shell.run_cell(cell)
        finally:
            shell.showtraceback = show
        error: BaseException | None = result.error_in_exec
        if error is None or hasattr(error, "_render_traceback_"):
            return error
        rendered = shell.InteractiveTB.structured_traceback(
            type(error), error, error.__traceback__, tb_offset=shell.InteractiveTB.tb_offset
        )
        with contextlib.suppress(AttributeError, TypeError):  # without the frames of this magic
            error._render_traceback_ = lambda: rendered  # type: ignore[attr-defined]
        return error


def _with_module(text: str) -> str:
    """Return the text of a stage, which is in the notebook if it names no module."""
    name, equals, path = text.rpartition("=")
    return text if ":" in path else f"{name}{equals}__main__:{path}"


def _trace_of(stage: str) -> Path:
    folder = run.output_dir()
    return stage_path(folder, stage, f"{run.whose_file(folder)}_trace.json.gz")


def _written_at(stage: str) -> int | None:
    """Return when the trace of a stage was written."""
    try:
        return _trace_of(stage).stat().st_mtime_ns
    except OSError:
        return None


def _of_line(text: str) -> _Shown:
    return _Shown(in_notebook([Line(text)]), text)


def _of_samples(result: Sampled | None, sample_ms: float) -> _Shown:
    if result is None:
        return _of_line(f"No sample was taken, because the cell ended within {sample_ms:g} ms.")
    names = (shlex.quote(stage.removeprefix("__main__:")) for stage in result.suggested_stages)
    command = " ".join(["%%stagespan", *(f"--stage {name}" for name in names)])
    printed = io.StringIO()
    print_sampled(result, command, printed)
    html = result._repr_html_()
    if result.suggested_stages:
        html += f"<p>To time these functions as stages:</p><pre>{escape(command)}</pre>"
    return _Shown(html, printed.getvalue())


def _of_profile(stage: str, before: int | None) -> list[Any]:
    """Return the first screen of the page of a stage's trace, and where the trace is."""
    path = _trace_of(stage)
    if _written_at(stage) in (None, before):
        sentence = (
            f"The stage {stage} was not profiled: no function or ProfilingContext of this name ran"
            " in the cell, or the log says why not."
        )
        return [_of_line(sentence)]
    from stagespan.recording.any_path import analyze

    return [analyze(path), _of_line(f"The trace is {path}")]
