"""Tries everything of stagespan that needs a GPU, on this machine, within eight minutes.

    python3 run.py [--output FOLDER] [--part NAME ...] [--list]

Run it with the Python that has torch. It needs no network, installs nothing outside its output
folder, and needs no compiler; with nvcc it also builds a kernel of its own. Each part has a time
limit, and a part that fails does not end the others. What cannot run is skipped with its reason.

The output folder contains result.json (every figure, the driver and the clocks; at most 1 MB), the
traces (at most eight files), and the full output of each part in logs/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
MOST_RESULT_BYTES = 1_000_000
MOST_TRACES = 8
MOST_TRACE_BYTES = 20_000_000
_CLOCKS = "driver_version,name,clocks.sm,clocks.mem,temperature.gpu,power.draw,utilization.gpu"


class Part(NamedTuple):
    """One part: what it runs after the interpreter, and for how long at most."""

    what: str
    arguments: tuple[str, ...]
    limit_s: int


def _tests(*names: str) -> tuple[str, ...]:
    paths = (f"tests/gpu/test_{name}.py" for name in names)
    # All options here, because no settings of pytest are packed.
    return ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--tb=short", *paths)


PARTS = {
    "spans": Part("device spans against torch's events", _tests("cuda", "gpu_processes"), 100),
    "cost": Part("cost of a device span", ("benchmarks/device.py", "--json", "{figures}"), 50),
    "compiled": Part("CUDA graphs and torch.compile", _tests("gpu_compiled"), 80),
    "kernel": Part("a kernel built with nvcc", _tests("own_kernel"), 30),
    "contexts": Part("peak memory and debug mode", _tests("gpu_contexts"), 20),
    "demo": Part("the demo", ("examples/wan_pipeline/demo.py", "--output", "{work}"), 90),
    "traces": Part("analyses of traces with a planted reason", _tests("traces"), 55),
    "ncu": Part("Nsight Compute on the top kernel", _tests("ncu"), 40),
    "windows": Part("a bounded window of torch.profiler", _tests("gpu_windows"), 15),
}


def main() -> int:
    """Run the parts. Returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("stagespan-gpu"), help="result folder")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--list", action="store_true", help="list the parts and their limits")
    options = parser.parse_args()
    if options.list:
        for name, part in PARTS.items():
            print(f"{name:10} at most {part.limit_s:3} s  {part.what}")
        return 0
    wanted = json.loads((HERE / "packed.json").read_text())["python"]
    if "{}.{}".format(*sys.version_info[:2]) != wanted:
        sys.exit(
            f"This folder was packed for Python {wanted}, and this is {platform.python_version()}:"
            f" run it with Python {wanted}, or pack again with `make PYTHON=... gpu`."
        )
    output = options.output.resolve()
    for folder in ("logs", "traces", "work"):
        try:
            (output / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"{output} cannot be written ({error.strerror}): name a folder with --output.")
    site = output / "site"
    unpacked = unpack(site)
    result: dict[str, Any] = {
        "schema_version": 1,
        "packed": json.loads((HERE / "packed.json").read_text()),
        "machine": machine(),
        "unpacked": unpacked,
        "parts": {},
    }
    for name in options.part or PARTS:
        if (reason := why_not(result["machine"])) is not None:
            result["parts"][name] = {"status": "skipped", "reason": reason}
        else:
            result["parts"][name] = run_part(name, PARTS[name], output, site)
        write(output / "result.json", result)
    shutil.rmtree(site, ignore_errors=True)
    shutil.rmtree(output / "work", ignore_errors=True)
    keep_traces(output / "traces")
    print(f"\nresults: {output / 'result.json'}")
    return int(any(part["status"] in ("failed", "timeout") for part in result["parts"].values()))


# --- packages ---------------------------------------------------------------------------------


def unpack(site: Path) -> list[str]:
    """Unpack stagespan, and those packed wheels that this Python lacks; return their names.

    A package of this Python is used if it fits the requirements of all unpacked ones.
    """
    from importlib import metadata

    wheels = {_name(wheel.name): wheel for wheel in sorted((HERE / "wheels").glob("*.whl"))}
    # `packaging` is pure Python, so it can be imported from its wheel.
    sys.path.append(str(wheels["packaging"]))
    from packaging.requirements import Requirement

    def version_here(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    chosen = {name for name in wheels if name == "stagespan" or version_here(name) is None}
    pending = sorted(chosen)
    while pending:
        for line in _requirements(wheels[pending.pop()]):
            requirement = Requirement(line)
            name = _name(requirement.name)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            version = version_here(name)
            fits = version is not None and requirement.specifier.contains(version, True)
            if name in wheels and name not in chosen and not fits:
                chosen.add(name)
                pending.append(name)
    for name in sorted(chosen):
        with zipfile.ZipFile(wheels[name]) as archive:
            archive.extractall(site)
    return sorted(chosen)


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.partition("-")[0] if name.endswith(".whl") else name).lower()


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(path).decode()).get_all("Requires-Dist", [])


# --- parts ------------------------------------------------------------------------------------


def run_part(name: str, part: Part, output: Path, site: Path) -> dict[str, Any]:
    """Run a part in a process group of its own, and return its status and figures."""
    print(f"{name}: {part.what} (at most {part.limit_s} s)", flush=True)
    figures, work = output / "work" / f"{name}.json", output / "work" / name
    figures.unlink(missing_ok=True)
    work.mkdir(exist_ok=True)
    places = {"figures": str(figures), "work": str(work)}
    command = [sys.executable, *(word.format(**places) for word in part.arguments)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), str(HERE), str(HERE / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(work),
        "TORCHINDUCTOR_CACHE_DIR": str(output / "work" / "inductor"),
        "TRITON_CACHE_DIR": str(output / "work" / "triton"),
        "STAGESPAN_OUTPUT_DIR": str(work / "output"),
        "GPU_TEST_FIGURES": str(figures),
        "GPU_TEST_TRACES": str(output / "traces"),
    }
    log = output / "logs" / f"{name}.txt"
    before, began_s = clocks(), time.monotonic()
    with open(log, "wb") as said:
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            code = None
        # Also ends what a part has started and left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # A part writes its figures, or the files of a replay.
    paths = [figures] if figures.is_file() else sorted(work.glob("*_breakdown.json"))
    figures_of = {
        key: value for path in paths for key, value in json.loads(path.read_text()).items()
    }
    text = log.read_text(errors="replace")
    status, reason = judged(code, figures_of, text)
    print(f"  {status}{f': {reason}' if reason else ''}", flush=True)
    return {
        "status": status,
        "reason": reason,
        "seconds": round(time.monotonic() - began_s, 1),
        "clocks": [before, clocks()],
        "figures": figures_of,
        "log_tail": text[-4000:],
    }


def judged(code: int | None, figures: dict[str, Any], text: str) -> tuple[str, str | None]:
    """Return the status of a part and its reason, from its exit status, figures and output."""
    if code is None:
        return "timeout", "its time limit has passed"
    tests = {
        name: test for name, test in figures.items() if isinstance(test, dict) and "outcome" in test
    }
    if tests and all(test["outcome"] == "skipped" for test in tests.values()):
        reasons = dict.fromkeys(test["why"].removeprefix("Skipped: ") for test in tests.values())
        return "skipped", "; ".join(reasons)
    if code == 0:
        if (skipped := re.search(r"^(No GPU: .*)$", text, re.MULTILINE)) is not None:
            return "skipped", skipped[1]
        return "passed", None
    failed = [name for name, test in tests.items() if test["outcome"] == "failed"]
    last = (text.strip().splitlines() or ["it printed nothing"])[-1]
    return "failed", ", ".join(failed) or f"exit status {code}: {last[:300]}"


# --- the machine and the result ---------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return what is known about this machine."""
    program = (
        "import json, torch; c = torch.cuda; p = c.get_device_properties(0) if c.is_available()"
        " else None; print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda,"
        " 'device': p and p.name, 'memory_bytes': p and p.total_memory,"
        " 'capability': p and [p.major, p.minor]}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    try:
        of_torch = json.loads(done.stdout)
    except ValueError:
        of_torch = {"torch": None, "why": (done.stderr.strip().splitlines() or [""])[-1]}
    programs = {name: shutil.which(name) is not None for name in ("nvcc", "ncu", "nsys", "gdb")}
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "programs": programs,
        "clocks": clocks(),
        **of_torch,
    }


def why_not(machine: dict[str, Any]) -> str | None:
    """Return why nothing can be tried on a machine, or None."""
    if machine["torch"] is None:
        return f"torch is not installed ({machine['why']})"
    return "no GPU: torch sees none" if machine["device"] is None else None


def clocks() -> dict[str, str] | None:
    """Return the driver, the clocks and the load of the first device; None without nvidia-smi."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    values = [value.strip() for value in done.stdout.splitlines()[:1] for value in value.split(",")]
    return dict(zip(_CLOCKS.split(","), values, strict=False)) if done.returncode == 0 else None


def write(path: Path, result: dict[str, Any]) -> None:
    """Write the result; the ends of the logs are left out if it would be too large."""
    text = json.dumps(result, indent=1)
    if len(text) > MOST_RESULT_BYTES:
        short = {n: {**p, "log_tail": None} for n, p in result["parts"].items()}
        text = json.dumps({**result, "parts": short})
    if len(text) > MOST_RESULT_BYTES:
        statuses = {n: {**p, "log_tail": None, "figures": None} for n, p in result["parts"].items()}
        text = json.dumps({**result, "parts": statuses})
    path.write_text(text)


def keep_traces(folder: Path) -> None:
    """Remove the traces beyond the most that are kept, the largest first."""
    traces = sorted(folder.glob("*.json*"), key=lambda path: path.stat().st_size)
    for i, path in enumerate(traces):
        if i >= MOST_TRACES or path.stat().st_size > MOST_TRACE_BYTES:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
