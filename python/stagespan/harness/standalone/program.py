"""Profiles the step of a script and prints the result."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stagespan.harness.standalone.fidelity import COMPARED, fidelity, fidelity_line
from stagespan.harness.standalone.figures import (
    Run,
    clock_change,
    idle,
    profiled_line,
    profiled_ratio,
    spread,
    summary,
    times_of,
)
from stagespan.harness.standalone.fit import ReplayError
from stagespan.harness.standalone.loading import load, load_made
from stagespan.harness.standalone.machine import cpu_model
from stagespan.harness.standalone.replay import Replay, step_of
from stagespan.harness.standalone.running import was_taken_over
from stagespan.harness.standalone.torch_state import threads_set
from stagespan.harness.standalone.values import is_out_of_memory

# Categories of device work in a trace.
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def say_differences(made_in: Mapping[str, Any], losses: Sequence[str]) -> None:
    """Print what could make a script's figures differ from those of the harness.

    ``made_in`` is the environment in which the script was made, and ``losses`` are sentences about
    inputs that are not made as they were.
    """
    for sentence in losses:
        say(sentence)
    here = environment_here()
    for name in COMPARED:
        was, now = made_in.get(name), here.get(name)
        if was and now and was != now:
            say(f"This script was made with {name} {was}; this is {now}.")


def run_under(
    new_profiler: Callable[[], Any], replay: Replay, steps: int, runs: Sequence[Run]
) -> Any:
    """Run several steps while a torch.profiler records, and return it, stopped.

    ``runs`` were measured without a profiler: while the profiled ones take far longer, they are
    repeated, and the nearest are kept. Raises ReplayError if the stage itself starts a profiler.
    """
    median_ms = statistics.median(times_of(runs)[0]) if runs else None
    return replay.profile_nearest(lambda: _profiled(new_profiler(), replay, steps), median_ms)[0]


def _profiled(profiler: Any, replay: Replay, steps: int) -> Any:
    # At this level, Kineto does not print its start and stop messages to the terminal.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    is_running = False

    def start() -> None:
        nonlocal is_running
        if not is_running:
            profiler.start()
            is_running = True

    def stop() -> None:
        nonlocal is_running
        is_running = False
        if was_taken_over(profiler):
            raise ReplayError(
                "The stage starts a torch.profiler itself, which ends that of this script: remove "
                "it from the stage, or measure with --no-profile."
            )
        profiler.stop()

    try:
        replay.run_between(steps, start, stop)
    except BaseException:
        if is_running and not was_taken_over(profiler):
            profiler.stop()  # otherwise it records the rest of the program
        raise
    return profiler


def report(
    replay: Replay,
    first: Sequence[Run],
    runs: Sequence[Run],
    trace_path: Path | None,
    *,
    live: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Print the figures of a replay, and return them. Times are in ms.

    ``first`` are the runs of the warm-up, and ``runs`` those that were measured. ``live`` contains
    the figures of the live runs. The harness also gives the reasons for a difference from them.
    """
    fastest = replay.fastest_fixed_ns, replay.fastest_in_process_ns
    timing = summary(runs, replay.device, replay.clocks_mhz, *fastest)
    profiled = {
        "profiled_ms": replay.profiled_ms,
        "profiled_ratio": profiled_ratio(replay.profiled_ms, timing),
        "profiled_runs_ms": replay.all_profiled_ms,
    }
    if trace_path is not None:
        say(f"Chrome trace saved to: {trace_path}")
        print_table(trace_path)
    says = getattr(replay.step, "says", None)
    if says is not None:
        say(f"One iteration is {says()}.")
    if first:
        say(f"The first run took {first[0].wall_ms:,.2f} ms.")
    say(f"Median iteration time: {spread(timing)}, {timing['iterations']} iterations")
    say(f"Median CPU time of the thread: {spread(timing['cpu'])}")
    noticed = idle(timing, replay.device), clock_change(timing), profiled_line(profiled)
    for sentence in filter(None, (timing["busy"], *noticed)):
        say(sentence)
    step = step_of(replay.step, runs)
    facts = fidelity(live, timing, step, on_host=replay.device.startswith("cpu"))
    reasons = list((live or {}).get("missing", "").splitlines())
    say(fidelity_line(facts, reasons, timing))
    return {
        "timing_ms": timing,
        **profiled,
        "fidelity": facts,
        "times_ms": times_of(runs)[0],
        "trace_path": None if trace_path is None else str(trace_path),
    }


def environment_here() -> dict[str, str | None]:
    """What of this machine and its software explains a difference in time; None if unknown."""
    facts: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": cpu_model(),
        "device": None,
    }
    with contextlib.suppress(Exception):  # of torch versions without torch.accelerator
        if torch.accelerator.is_available():
            kind = torch.accelerator.current_accelerator().type
            facts["device"] = str(getattr(torch, kind).get_device_name())
    return facts


def print_table(path: Path, limit: int = 15) -> None:
    """Print the kernels or operators of a trace with their times, longest first."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        events = json.load(file)["traceEvents"]
    kernels = [event for event in events if event.get("cat") in DEVICE_WORK]
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    rows = totals(kernels) if kernels else totals(operators, own_times(operators))
    whole = "in all", sum(row[1] for row in rows), sum(row[2] for row in rows)
    what = "kernel" if kernels else "operator (own time on the CPU)"
    say(f"{'ms':>10}  {'%':>5}  {'count':>6}  {what}")
    for name, took, count in (*rows[:limit], whole):
        share = 100 * took / whole[1] if whole[1] else 0.0
        say(f"{took / 1000:>10.3f}  {share:>5.1f}  {count:>6}  {name[:100]}")


def totals(events: list[Any], own: list[float] | None = None) -> list[tuple[str, float, int]]:
    """Return (name, microseconds, count) for each name, longest first."""
    times = [float(event.get("dur", 0)) for event in events] if own is None else own
    rows: dict[str, tuple[str, float, int]] = {}
    for event, took_us in zip(events, times, strict=True):
        name, total_us, count = rows.get(event["name"], (event["name"], 0.0, 0))
        rows[name] = name, total_us + took_us, count + 1
    return sorted(rows.values(), key=lambda row: -row[1])


def own_times(events: list[Any]) -> list[float]:
    """Return each operator's time minus that of the operators inside it, in microseconds."""
    own_us = [float(event.get("dur", 0)) for event in events]
    around: dict[Any, list[tuple[int, float]]] = {}
    for i in sorted(range(len(events)), key=lambda i: (float(events[i]["ts"]), -own_us[i])):
        start_us = float(events[i]["ts"])
        stack = around.setdefault(events[i].get("tid"), [])
        while stack and start_us >= stack[-1][1]:
            stack.pop()
        if stack:
            own_us[stack[-1][0]] -= own_us[i]
        stack.append((i, start_us + own_us[i]))  # no operator inside it was seen yet
    return own_us


def with_compiled_modules(stage: Any) -> Any:
    """Apply torch.compile to the stage's modules, or to the stage if it has none, and return it."""
    holder = getattr(stage, "__self__", stage)
    is_module = isinstance(holder, torch.nn.Module)
    held = [holder] if is_module else getattr(holder, "__dict__", {}).values()
    modules = [value for value in held if isinstance(value, torch.nn.Module)]
    for module in modules:
        module.compile()
    return stage if modules or not callable(stage) else torch.compile(stage)


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(
    profile_stage: Callable[..., Any],
    stage_name: str,
    variants: list[str],
    threads: Any = None,
    load_stage: Callable[[str], Any] = load_made,
) -> int:
    """Run the command line. Returns the exit status: 2 for errors that the user can correct.

    ``load_stage`` returns the stage for the name of a factory.
    """
    parser = argparse.ArgumentParser(description=f"Profile one step of stage {stage_name!a}.")
    add = parser.add_argument
    add(
        "--factory",
        metavar="MODULE:CALLABLE",
        required=True,
        help="callable that returns the stage, or a pipeline that has it as an attribute",
    )
    add("--warmup", type=int, help="iterations before measuring")
    add("--steps", type=int, default=1, help="iterations under the profiler, or 0")
    add("--timing-steps", type=int, help="timed iterations")
    add("--device", help="device of the inputs")
    add(
        "--threads",
        default="captured",
        help="number of torch's threads, captured (that of the live runs; the default) or machine",
    )
    add("--output", help="folder for the trace")
    add("--seed", type=int, help="seed of the inputs")
    add(
        "--step",
        help="step of the stage's loop: first, second, middle, last or a number; "
        "or MODULE:CALLABLE, a function of stage and inputs to run instead",
    )
    add("--variant", choices=variants, help="key of a captured signature; default: the first")
    add("--compile", action="store_true", help="apply torch.compile to the stage's modules")
    add("--no-profile", action="store_true", help="measure without the profiler only")
    add("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    for name, least in (("warmup", 0), ("steps", 0), ("timing_steps", 1)):
        count = getattr(options, name)
        if count is not None and count < least:
            parser.error(f"--{name.replace('_', '-')} {count} is too few: give {least} or more")
    wanted = int(options.threads) if options.threads.isdecimal() else options.threads
    if not wanted or (isinstance(wanted, str) and wanted not in ("captured", "machine")):
        parser.error(f"--threads {options.threads} is not captured, machine or a number from 1")
    given = {"seed": options.seed, "variant": options.variant}
    step, step_fn = options.step, None
    if step is not None and ":" not in step:
        is_named = step in ("first", "second", "middle", "last")
        given["step"] = step if is_named else step.isdecimal() and int(step)
        if not given["step"]:
            parser.error(f"--step {step} is not first, second, middle, last or a number")
    try:
        if step is not None and "step" not in given:
            step_fn = load(step)
        with (
            contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout),
            threads_set(wanted, threads) as sentence,
        ):
            if sentence is not None:
                say(sentence)
            result = profile_stage(
                (load_stage if step_fn is None else load_made)(options.factory),
                warmup=options.warmup,
                steps=0 if options.no_profile else options.steps,
                timing_steps=options.timing_steps,
                device=options.device,
                output_dir=options.output,
                step_fn=step_fn,
                compiled=options.compile,
                **{name: value for name, value in given.items() if value is not None},
            )
        if options.json:
            say(json.dumps(result, indent=2))
        return 0
    except (ReplayError, LookupError, OSError) as error:
        message = str(error).strip()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = (
            "There is not enough memory: end other programs that use it, or choose a smaller "
            "signature with --variant, or fewer iterations with --steps 1."
        )
    sys.stderr.write(f"{message}\n")
    return 2
