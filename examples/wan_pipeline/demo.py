"""Finds the slow stage of diffusers' WanPipeline, replays it, and reproduces the figures.

    python examples/wan_pipeline/demo.py [--output FOLDER] [--steps N]

1. One request in debug mode: the timing report and the signatures of all stages.
2. StageBenchHarness replays one denoising step from its signature: trace, breakdown, script.
3. The script runs in a separate process, without stagespan, and must show the same figures.

Ends with status 1 if a figure is missing, the trace is too large, or the script's figures differ.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

STAGES = ("text_encoding", "tokenization", "embedding", "denoise", "vae_decode")
MOST_TRACE_BYTES = 10_000_000

console = Console(highlight=False, soft_wrap=False)


def main() -> int:
    """Run the three parts; returns the exit status."""
    options = parse()
    began = time.monotonic()

    import stagespan

    show_log_lines()
    stagespan.set_pipeline_name("wan_demo")
    if options.output is not None:
        stagespan.set_profiler_output_dir(options.output)
    folder = Path(stagespan.get_profiler_output_dir()).resolve()

    console.rule("1. A request in debug mode")
    pipeline = run_request(folder, options.steps)

    console.rule("2. One denoising step, replayed alone from its signature")
    results = replay(folder, pipeline.denoise_stage)

    console.rule("3. The script that the harness wrote, without stagespan")
    agreed = reproduce(folder, results)

    console.rule("Files")
    show_files(folder)
    console.print(f"\nDone in {time.monotonic() - began:.0f} s.")
    return 0 if agreed else 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="The main job on a small WanPipeline.")
    parser.add_argument("--output", type=Path, help="folder for all files (default: work_dirs/...)")
    parser.add_argument("--steps", type=int, default=8, help="denoising steps (default: 8)")
    return parser.parse_args()


def show_log_lines() -> None:
    """Send stagespan's log lines to the terminal, in order with what the demo prints."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("stagespan")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def run_request(folder: Path, steps: int) -> Any:
    """Make one video in debug mode; writes the report and the signatures, shows the table."""
    from wan_stages import get_pipeline

    import stagespan

    with console.status("loading the pipeline"):
        pipeline = get_pipeline()
    prompt, negative = "a cat walks on the grass", "blurry"
    with console.status("one request to warm up, one in debug mode"):
        pipeline(prompt, negative, num_inference_steps=steps)
        stagespan.set_debug(True)
        stagespan.reset_timing_registry("demo", {"prompt": prompt})
        with stagespan.request("demo", steps=steps):
            video = pipeline(prompt, negative, num_inference_steps=steps)
        stagespan.flush()
        stagespan.dump_timing_report(folder / "timing.json")
        stagespan.dump_io_signatures(folder / "timing_io_signature.json")
    check_report(folder / "timing.json")
    console.print(f"a video of {tuple(video.shape)} was made\n")
    stagespan.print_timing_summary()
    # The report of the request is written. Later stages do not belong to it.
    stagespan.set_debug(False)
    stagespan.reset_timing_registry()
    return pipeline


def check_report(path: Path) -> None:
    """End the demo if a stage of the pipeline has no time in the report."""
    stages = json.loads(path.read_text())["stages"]
    for name in STAGES:
        if not stages.get(name, {}).get("duration_ms"):
            raise SystemExit(f"{path} has no time of the stage {name!r}.")


def replay(folder: Path, stage: Any) -> Any:
    """Replay one denoising step; shows its operators."""
    import stagespan

    harness = stagespan.StageBenchHarness.from_signature_file(
        signature_path=folder / "timing_io_signature.json",
        stage_name="denoise",
        stage_instance=stage,
        config=stagespan.HarnessConfig(warmup=2, profile_steps=1, output_dir=folder),
    )
    harness.setup()
    results = harness.profile()

    timing, breakdown = results["timing_ms"], results["breakdown"]
    table = Table(title="Where one denoising step spends its time", title_justify="left")
    for heading in ("operator", "ms", "share", "calls"):
        table.add_column(heading, justify="left" if heading == "operator" else "right")
    for kernel in breakdown["top_kernels"][:8]:
        share = kernel["ms"] / breakdown["total_kernel_time_ms"]
        table.add_row(kernel["name"], f"{kernel['ms']:.3f}", f"{share:.1%}", str(kernel["count"]))
    console.print(table)
    console.print(
        f"one step without the profiler: {timing['p50']:.2f} ms (median of "
        f"{timing['iterations']}); trace {results['trace_bytes'] / 1e6:.2f} MB"
    )
    if results["trace_bytes"] >= MOST_TRACE_BYTES:
        raise SystemExit(f"The trace of one step takes more than {MOST_TRACE_BYTES / 1e6:.0f} MB.")
    return results


def reproduce(folder: Path, results: Any) -> bool:
    """Run the script until its figures agree with the harness's, at most twice; shows both."""
    ours = figures(results["timing_ms"]["p50"], results["breakdown"])
    for attempt in (1, 2):
        with console.status("running the script"):
            theirs = run_script(folder, results)
        table = Table(title="The same step, twice", title_justify="left")
        for heading in ("figure", "harness", "script", "ratio"):
            table.add_column(heading, justify="left" if heading == "figure" else "right")
        for name, value in ours.items():
            ratio = theirs[name] / value if value else float("nan")
            table.add_row(name, f"{value:g}", f"{theirs[name]:g}", f"{ratio:.2f}")
        console.print(table)
        if agree(ours, theirs):
            console.print("The script reproduces the harness's figures.")
            return True
        if attempt == 1:
            console.print("They differ; a busy machine can do that, so the script runs again.")
    console.print("[red]The script does not reproduce the harness's figures.[/red]")
    return False


def figures(p50_ms: float, breakdown: dict[str, Any]) -> dict[str, float]:
    """Return the figures in which harness and script are compared."""
    return {
        "one step, median (ms)": round(p50_ms, 3),
        "operators, own time in the trace (ms)": round(breakdown["total_kernel_time_ms"], 3),
        "operator calls in the trace": breakdown["num_launches"],
        "distinct operators": breakdown["num_kernels"],
    }


def agree(ours: dict[str, float], theirs: dict[str, float]) -> bool:
    """Whether the same operators ran, and all times are within a factor of two of each other."""
    for name, value in ours.items():
        if value <= 0 or theirs[name] <= 0:
            return False
        if not name.endswith("(ms)"):
            if theirs[name] != value:
                return False
        elif not 0.5 < theirs[name] / value < 2.0:
            return False
    return True


def run_script(folder: Path, results: Any) -> dict[str, float]:
    """Run the script in a process that cannot import stagespan. Returns its figures."""
    from stagespan.trace import breakdown, read_trace

    script = results["script_path"]
    arguments = ["--factory", "wan_stages:get_denoise_stage", "--warmup", "2"]
    console.print(f"$ python {script.name} {' '.join(arguments)}")
    without_stagespan = (
        "import runpy, sys; sys.modules['stagespan'] = None; sys.path.insert(0, sys.argv[1]); "
        "del sys.argv[:2]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", without_stagespan, str(HERE), str(script), *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"The script failed with status {done.returncode}:\n{done.stderr}")
    console.print(done.stdout.rstrip(), markup=False, style="dim", soft_wrap=True)
    median = re.search(r"Median iteration time: ([\d.,]+) ms", done.stdout)
    if median is None:
        raise SystemExit("The script printed no median iteration time.")
    trace = read_trace(folder / "denoise_script_trace.json.gz")
    median_ms = float(median.group(1).replace(",", ""))
    return figures(median_ms, breakdown(trace, "denoise").to_dict())


MEANINGS = {
    "timing.json": "times of all stages",
    "timing_io_signature.json": "what went into each stage and what came out",
    "denoise_trace.json.gz": "one step, for ui.perfetto.dev or chrome://tracing",
    "denoise_breakdown.json": "the 50 operators that took longest",
    "profile_denoise.py": "reproduces the replay, without stagespan",
    "denoise_script_trace.json.gz": "the trace that the script made",
}

REPLAY_MODULES = "_stagespan_replay_*.py"


def show_files(folder: Path) -> None:
    """Print the path of every file. Ends the demo if one is missing or empty."""
    table = Table(title=f"In {folder}", title_justify="left")
    table.add_column("file", no_wrap=True)
    table.add_column("size", justify="right")
    table.add_column("holds")
    modules = {path.name: "what the script imports" for path in folder.glob(REPLAY_MODULES)}
    for name, meaning in {**MEANINGS, **modules}.items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if size == 0:
            raise SystemExit(f"{folder / name} was not written.")
        table.add_row(name, f"{size / 1000:.1f} kB", meaning)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
