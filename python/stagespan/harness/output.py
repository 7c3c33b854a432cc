"""Writes the files of a replay, and chooses their folder and their names."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from stagespan.errors import HarnessError, ReportError
from stagespan.harness.adapters import StepAdapter
from stagespan.harness.bundle import ReplayModule
from stagespan.harness.config import Fit, HarnessConfig, HarnessResult
from stagespan.harness.loop_source import Place, shown_loop
from stagespan.harness.script import script_and_module
from stagespan.pages.amounts import quoted
from stagespan.process import run
from stagespan.process.files import module_name, safe_name, write_whole
from stagespan.report.reader import read_json
from stagespan.signature.model import StageSignature

_log = logging.getLogger("stagespan")

MOST_REPLAYS = 1000
"""The most replays of a stage whose files are kept in one folder; the last one is replaced."""


def check_writable(folder: Path) -> None:
    """Create the folder if needed. Raise HarnessError if no file can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise HarnessError(
            f"The output folder {str(folder)!r} cannot be written ({error.strerror or error}); "
            f"choose another with HarnessConfig(output_dir=...) (or --output)."
        ) from None


def default_folder(signature_path: Path | None) -> Path:
    """Return the folder for the files of a replay for which none was given.

    It is the output folder that a variable or the program names, or else the folder of the
    signature file if it can be written, or else the default output folder.
    """
    if run.named_output_dir() is None and signature_path is not None:
        try:
            check_writable(signature_path.parent)
        except HarnessError:
            return run.output_dir()
        return signature_path.parent
    return run.output_dir()


def unused_number(folder: Path, names_with: Callable[[str], Iterable[str]]) -> str:
    """Return the first of "", "_2", "_3" and so on with which a folder has none of the files.

    ``names_with`` returns the names of all files with such a number.
    """
    numbers = ("", *(f"_{number}" for number in range(2, MOST_REPLAYS)))
    return next(
        (n for n in numbers if not any((folder / name).exists() for name in names_with(n))),
        numbers[-1],
    )


def write_breakdown(
    trace_path: Path,
    path: Path,
    stage: str,
    steps: int,
    device: str,
    live: Mapping[str, Any] | None = None,
    *,
    median_ms: float | None = None,
    profiled_ms: float | None = None,
    profiled_ratio: float | None = None,
    iteration: str | None = None,
    kept: int = 1,
    all_profiled_ms: Sequence[float] = (),
) -> dict[str, Any]:
    """Write the kernel breakdown of the exported trace, and return its content.

    ``median_ms`` is the median of an iteration without the profiler, for its rates. ``profiled_ms``
    is the time of one profiled iteration, ``profiled_ratio`` is this time divided by the median
    without the profiler. ``iteration`` says what one iteration is. ``kept`` is the number of the
    profiled run in the trace, and ``all_profiled_ms`` are the times of all. Raises TraceError if
    the trace cannot be read, and OSError if the file cannot be written.
    """
    from stagespan.trace.analyses.breakdown import breakdown
    from stagespan.trace.analyses.rates import rates_of_iteration
    from stagespan.trace.read.reader import read_trace
    from stagespan.trace.read.view import TraceView

    trace = TraceView.of(read_trace(trace_path))
    costs = breakdown(trace, stage)
    rates = None if median_ms is None else rates_of_iteration(trace, steps, median_ms * 1e6)
    content = {
        **costs.to_dict(),
        "rates": None if rates is None else rates.to_dict(),
        "profile_steps": steps,
        "profiled_ms": profiled_ms,
        "profiled_ratio": profiled_ratio,
        "iteration": iteration,
        "profiled_run": kept,
        "profiled_runs_ms": list(all_profiled_ms),
    }
    if live and live.get("launches") is not None:  # the file may replace that of the live run
        content["live_launches"] = live["launches"]
    if not device.startswith("cpu") and not costs.on_device:
        _log.warning(
            "[Harness] The trace contains no kernels of %s, so the breakdown lists operators of "
            "the host; check that the profiler is allowed to observe the device.",
            device,
        )
    write_whole(path, json.dumps(content, indent=2) + "\n")
    return content


def script_of(
    signature: StageSignature,
    stage: Any,
    adapter: StepAdapter | None,
    config: HarnessConfig,
    file_name: str,
    live: Mapping[str, Any] | None = None,
    places: Sequence[Place] = (),
) -> tuple[str, ReplayModule]:
    """Return the text of ``profile_{stage}.py``, and the module that it imports.

    ``places`` are those in the stage at the end of an iteration, see `loop_source.callers`.
    """
    name, file = signature.stage_name, Path(file_name).stem
    stem, module = file.removeprefix("profile_"), module_name(name)
    stem = safe_name(name) + stem.removeprefix(module) if stem.startswith(module) else stem
    step = adapter.script(stage, signature.arguments) if adapter is not None else None
    if step is not None and (loop := shown_loop(places)) is not None:
        step = replace(step, loop=loop)
    return script_and_module(signature, step, config, stem=stem, module=file, live=live)


def write_replay_module(folder: Path, module: ReplayModule) -> Path:
    """Write the module of a script, if it is not there, and return its path. Raises OSError."""
    path = folder / module.file_name
    data = module.text.encode()
    if not path.is_file() or path.read_bytes() != data:
        write_whole(path, data)
    return path


def write_script(path: Path, text: str, module: ReplayModule) -> Path:
    """Write a script and the module that it imports, and return the script's path.

    Raises OSError if a file cannot be written.
    """
    write_replay_module(path.parent, module)  # first, so that a script always finds it
    # The script contains values of arguments.
    return write_whole(path, text, private=True)


def write_result(result: HarnessResult, path: Path) -> Path:
    """Write ``{stage}_bench.json`` and return its path. Raises OSError if it cannot be written."""
    return write_whole(path, json.dumps(result.to_json(), indent=2) + "\n")


def read_result(path: Path) -> HarnessResult:
    """Return the result in ``{stage}_bench.json``, or in the only such file of a folder.

    Raises HarnessError if it cannot be read, or is not the result of a replay.
    """
    if path.is_dir():
        files = sorted(path.glob("*_bench.json"))
        if len(files) != 1:
            listed = ", ".join(file.name for file in files)
            raise HarnessError(f"{path} contains {len(files)} bench results: pass one of {listed}.")
        (path,) = files
    try:
        content = read_json(path)
    except ReportError as error:
        raise HarnessError(str(error)) from None
    given = content if isinstance(content, dict) else {}
    names = [field.name for field in fields(HarnessResult)]
    missing = [
        field.name
        for field in fields(HarnessResult)
        if field.name not in given and field.default is MISSING and field.default_factory is MISSING
    ]
    try:
        if missing:
            raise ValueError(f"it has no {quoted(missing)}")
        values = {name: given[name] for name in names if name in given}
        values["answers"] = [Fit(**answer) for answer in values["answers"]]
        for name in ("trace_path", "breakdown_path", "script_path", "bench_path"):
            values[name] = None if values[name] is None else Path(values[name])
        return HarnessResult(**values)
    except (TypeError, ValueError) as error:
        raise HarnessError(f"{path} is not the result of a replay: {error}.") from None
