"""What works on this machine, what does not, and why.

The doctor runs in a separate process, so it can initialise a device to test it. It never raises an
exception: a check that fails is a finding.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from stagespan import _core, is_available, settings, without_core
from stagespan.device import platforms, times
from stagespan.device.environment import version
from stagespan.live import service
from stagespan.pages.amounts import counted
from stagespan.pages.figures import RecordedFigures
from stagespan.pages.page import ResultPage, Words
from stagespan.pages.result import Block, Result, Table
from stagespan.process import run

State = Literal["works", "absent", "note", "fails"]
"""`absent`: not there, and not expected. `note`: works, with a remark. `fails`: should work here,
but does not."""


_COARSE_TICK_NS = 10.0


class Check(RecordedFigures, frozen=True):
    """One line of the page."""

    area: str
    name: str
    state: State
    text: str


class ChecksFigures(RecordedFigures, frozen=True):
    """What works on this machine, and what does not."""

    works: bool
    """Whether everything that should work here works."""
    findings: list[Check]


class Checks(Result):
    """What works on this machine, and what does not."""

    def __init__(self, checks: list[Check]) -> None:
        self.checks = checks
        self.works = all(check.state != "fails" for check in checks)

    def figures(self) -> ChecksFigures:
        """Return all checks."""
        return ChecksFigures(self.works, self.checks)

    def head(self) -> list[Block]:
        """Return the checks, each area once."""
        return self._tables([check.area for check in self.checks])

    def tables(self) -> list[Table]:
        """Return the checks."""
        return self._tables([])

    def _tables(self, repeated: list[str]) -> list[Any]:
        rows = [
            (
                "" if check.area in repeated[:at][-1:] else check.area,
                check.name,
                check.state,
                check.text,
            )
            for at, check in enumerate(self.checks)
        ]
        columns = ("area", ""), ("what", ""), ("state", "state"), ("found", "words")
        return [Table("", columns, rows)]

    def page(self) -> ResultPage:
        """Return the page of `stagespan doctor`."""
        failing = [f"{one.area}: {one.name}" for one in self.checks if one.state == "fails"]
        end = (
            "Everything that should work here works."
            if self.works
            else f"Does not work: {', '.join(failing)}."
        )
        words = Words(page="Checks", as_text="stagespan doctor")
        return ResultPage(words, self, "This machine", counted(len(self.checks), "check"), [end])


def examine(*, use_device: bool = True) -> list[Check]:
    """Return all findings; with ``use_device``, test the device that torch finds."""
    checks: list[Check] = []
    for area, look in (
        ("recorder", _recorder),
        ("torch", _torch),
        ("device time", lambda: _device(use_device)),
        ("profilers", _profilers),
        ("tools", _tools),
    ):
        try:
            checks.extend(Check(area, *rest) for rest in look())
        except Exception as error:
            checks.append(Check(area, "-", "fails", f"{type(error).__name__}: {error}"))
    return checks


_Rows = Iterator[tuple[str, State, str]]


def _recorder() -> _Rows:
    python = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    if not is_available():
        yield "stagespan", "fails", f"{version()}, {without_core.reason}"
        yield "python", "works", python
        return
    yield "stagespan", "works", f"{version()}, extension {_core.__file__}"
    yield "python", "works", python
    yield _clock(_core.clock_info())
    on = _core.is_enabled()
    yield "spans", "works" if on else "note", "recorded" if on else "off: STAGESPAN_ENABLED=false"
    if not _core.is_context_map_known():
        text = "recorded, about 0.2 µs slower: contexts of this Python are not known"
        yield "spans in tasks", "note", text
    yield _memory(_core.arena_info())
    yield _recording()
    yield _exporter()
    lost = {cause: n for cause, n in _core.lost().items() if n}
    causes = ", ".join(f"{cause} {n:,}" for cause, n in lost.items())
    yield "lost spans", "note" if lost else "works", causes or "none"


def _clock(clock: dict[str, Any]) -> tuple[str, State, str]:
    tick_ns = clock["ns_per_tick"]
    text = f"{clock['source']}, {tick_ns:.6g} ns a tick, ±{clock['bracket_ns']:,.0f} ns"
    if clock["source"] == "monotonic":
        return "clock", "note", f"{text}: slower to read than the processor's counter"
    if tick_ns >= _COARSE_TICK_NS:
        return "clock", "note", f"{text}: the time of a shorter span is 0 or one tick"
    return "clock", "works", text


def _memory(sizes: dict[str, int]) -> tuple[str, State, str]:
    if not sizes:
        return (
            "memory",
            "fails",
            "the system refused address space for the recorder: nothing is recorded",
        )
    ring, wanted = sizes["ring_spans"], settings.get("STAGESPAN_RING_SPANS")
    text = (
        f"the latest {ring:,} spans of each thread; {sizes['size_bytes'] / 2**20:,.0f} MiB of "
        "address space"
    )
    if ring < wanted:
        return "memory", "note", f"{text}; the system refused address space for {wanted:,}"
    return "memory", "works", text


def _recording() -> tuple[str, State, str]:
    """Return the folder of this user's recordings, which is that of this process."""
    if _core.is_enabled():
        with _core.span(_STAGE):  # a process creates its recording when it opens its first span
            pass
    place = _core.recording_place()
    name, kind, why = "recording", place["kind"], place["why"]
    size = f"{place['reserved_bytes'] / 2**20:,.1f} MiB"
    if kind == "file":
        return name, "works", f"{place['path']}, {size} so far{_room(place)}"
    if kind == "off":
        return name, "note", "turned off by STAGESPAN_RECORDING=off"
    if kind == "not yet":
        return name, "note", "not made: STAGESPAN_ENABLED=false"
    reason = f" because {why}" if why else ""
    if kind == "memfd":
        return name, "note", f"in memory, {size}, lost when the process dies{reason}"
    return name, "note", f"not readable by other processes{reason}"


def _room(place: dict[str, Any]) -> str:
    """Return how many more processes have room for a recording like that of this one."""
    try:
        space = os.statvfs(os.path.dirname(place["path"]))
    except OSError:
        return ""
    number = space.f_bavail * space.f_frsize // place["reserved_bytes"]
    if space.f_files:
        number = min(number, space.f_favail)
    return f"; room for {number:,} more"


def _exporter() -> tuple[str, State, str]:
    """Return whether an exporter reads the recordings of this user's processes."""
    from stagespan.export.state import lost_by
    from stagespan.recording.finding import (
        default_folders,
        is_exported,
        live_in,
        recording_folders,
    )

    folder = recording_folders()[0]
    others = [other for other in default_folders() if other != folder]
    if not is_exported(folder):
        text = f"no `stagespan export` reads the recordings in {folder}"
        read = next(filter(is_exported, others), None)
        if read is None:
            return "exporter", "absent", text
        return "exporter", "note", f"{text}, but one reads {read}: set STAGESPAN_RECORDING_DIR"
    place = _core.recording_place()
    if place["kind"] not in ("file", "not yet") and settings.get("STAGESPAN_RECORDING_DIR"):
        return "exporter", "note", f"reads {folder}, in which this process has no recording"
    lost = ", ".join(f"{cause} {number:,}" for cause, number in lost_by(folder).items() if number)
    if lost:
        return "exporter", "note", f"reads the recordings in {folder}, and has lost: {lost}"
    read_too = [other for other in others if is_exported(other)]
    live = [path for path in live_in([folder, *read_too]) if path != place["path"]]
    if live:
        number = f"{len(live):,} other live processes" if len(live) > 1 else "1 other live process"
        return "exporter", "works", f"reads the recordings in {folder}: {number}"
    text = (
        f"reads the recordings in {folder}, where no other live process records: the service needs "
        "the same folder (STAGESPAN_RECORDING_DIR, a volume of both containers) and user"
    )
    return "exporter", "note", text


# --- torch ----------------------------------------------------------------------------------------


def _imported_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def _torch() -> _Rows:
    torch = _imported_torch()
    if torch is None:
        yield "torch", "absent", "not installed: spans measure host time only"
        return
    made_for = [f"CUDA {torch.version.cuda}" if torch.version.cuda else ""]
    made_for += [f"ROCm {torch.version.hip}" if getattr(torch.version, "hip", None) else ""]
    made_for += ["XPU" if getattr(torch.version, "xpu", None) else ""]
    yield "version", "works", f"{torch.__version__}, built for {_listed(made_for) or 'CPU only'}"
    compiles = _has_substitutes(torch)
    yield (
        "torch.compile",
        "works" if compiles else "note",
        "spans in compiled code are no-ops without a graph break"
        if compiles
        else "spans break compiled graphs: this needs torch 2.5 or later",
    )
    yield _there("torch.Event", hasattr(torch, "Event"), "torch 2.4 or later")
    yield _there("torch.accelerator", hasattr(torch, "accelerator"), "torch 2.6 or later")

    here = platforms.loaded_platform()
    if here.device_type == "cpu":
        yield "accelerator", "absent", "torch finds none"
    else:
        count = getattr(torch, here.device_type).device_count()
        yield "accelerator", "works", f"{here.name}, {counted(count, 'device')}"


def _has_substitutes(torch: Any) -> bool:
    """Whether torch.compile can be told what to do with spans.

    Its source says so in a moment; importing it takes longer than all of torch.
    """
    name = "substitute_in_graph"
    try:
        return name in (Path(torch.__file__).parent / "_dynamo" / "__init__.py").read_text("utf-8")
    except (OSError, TypeError, ValueError):  # only compiled code, or a packed program
        return hasattr(importlib.import_module("torch._dynamo"), name)


def _there(name: str, is_there: bool, since: str) -> tuple[str, State, str]:
    return (name, "works", "available") if is_there else (name, "note", f"missing: needs {since}")


def _listed(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part)


# --- device time ----------------------------------------------------------------------------------


def _device(use_device: bool) -> _Rows:
    if not is_available():
        yield "timing", "absent", "not tested: nothing is timed"
        return
    driver = _driver()
    yield "driver", "works" if driver else "absent", driver or "no CUDA, ROCm, XPU or Ascend driver"
    here = platforms.loaded_platform()
    every = settings.get("STAGESPAN_DEVICE_EVERY")
    if here.device_type == "cpu":
        why = "torch finds no accelerator"
        if driver and _imported_torch() is not None:
            yield "timing", "note", f"{why}, although there is a driver: check how torch was built"
        else:
            yield "timing", "absent", f"{why}: device times are null"
        return
    if every == 0:
        yield "timing", "note", "turned off by STAGESPAN_DEVICE_EVERY=0"
        return
    if not use_device:
        yield "timing", "note", "not tested (--no-device)"
        return
    if not _core.is_enabled():
        yield "timing", "note", "not tested: STAGESPAN_ENABLED=false"
        return
    yield from _tried(here)
    if every > 1:
        yield "sample", "note", f"every {every:,}th span of a stage in a thread is measured"
    if here.name == "cuda":
        has_one_queue = times.max_connections() == 1
        yield (
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "note" if has_one_queue else "works",
            "1: timing events can keep communication and kernels from overlapping; sample with "
            "STAGESPAN_DEVICE_EVERY"
            if has_one_queue
            else f"{times.max_connections() or 'not set'}",
        )


def _tried(here: Any) -> _Rows:
    """Initialise the device, time a few spans on it, and compare."""
    torch = _imported_torch()
    module = getattr(torch, here.device_type)
    try:
        for set_up in ("init", "_lazy_init"):
            if hasattr(module, set_up):
                getattr(module, set_up)()
                break
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        yield "timing", "fails", f"the device cannot be initialised: {reason}"
        return
    times.watch()
    info = _core.device_info()
    for name, is_found in sorted(info["symbols"].items()):
        if not is_found:
            yield name, "note" if info["attached"] else "fails", "not found in the driver"
    if not info["attached"]:
        yield (
            "timing",
            "fails",
            str(info["reason"] or "device timing did not start, for an unknown reason"),
        )
        return
    yield (
        "backend",
        "works",
        f"{info['backend']} ({info['kind']}), {len(info['symbols'])} symbols",
    )
    before = _core.device_info()["resolved"]
    truth_ms = _known_work(torch, here)
    is_over = service.flush(10)
    summary = _core.snapshot().stages()[_STAGE].device_elapsed_ns
    if summary is None:
        lost = {cause: n for cause, n in _core.lost().items() if n and cause.startswith("device_")}
        why = _listed([f"{cause} {n:,}" for cause, n in lost.items()]) or "for an unknown reason"
        yield (
            "timing",
            "fails",
            f"no span got a device time ({'pending' if not is_over else why})",
        )
        return
    info = _core.device_info()
    yield (
        "timing",
        "works",
        f"{info['resolved'] - before} spans resolved, {info['event_pairs']} event pairs",
    )
    if truth_ms is not None:
        got_ms = summary.max_ns / 1e6
        is_right = abs(got_ms - truth_ms) <= max(0.01 * truth_ms, 0.05)
        text = f"{got_ms:.3f} ms; torch's own synchronised events give {truth_ms:.3f} ms"
        yield "accuracy", "works" if is_right else "fails", text
    slack_ns = info["base_error_ns"]
    yield (
        "position on the host's timeline",
        "note" if slack_ns is None else "works",
        "unknown: queue and tail are null" if slack_ns is None else f"±{slack_ns / 1e3:,.1f} µs",
    )


_STAGE = "stagespan doctor"


def _known_work(torch: Any, here: Any) -> float | None:
    """Run spans on the device. Returns the longest time in ms by torch's own events, or None."""
    if here.device_type != "cuda" or not hasattr(torch.cuda, "_sleep"):
        for _ in range(3):
            with _core.span(_STAGE):
                pass
        here.synchronize()
        return None
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(20_000_000)  # so that the following work is queued without a gap
    begin.record()
    with _core.span(_STAGE):
        torch.cuda._sleep(20_000_000)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def _driver() -> str | None:
    """Return what the system says about an accelerator's driver, without loading it."""
    parts = []
    for path, name in (
        ("/proc/driver/nvidia/version", "NVIDIA"),
        ("/sys/module/amdgpu/version", "AMD"),
        ("/usr/local/Ascend/driver/version.info", "Ascend"),
    ):
        line = _first_line(Path(path))
        if line is not None:
            parts.append(f"{name}: {line}")
    if not parts and Path("/dev/nvidiactl").exists():
        parts.append("NVIDIA: /dev/nvidiactl")
    if not parts and Path("/dev/kfd").exists():
        parts.append("AMD: /dev/kfd")
    return _listed(parts) or None


def _first_line(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return " ".join(lines[0].split())[:90] if lines else None


# --- profilers and tools --------------------------------------------------------------------------


def _profilers() -> _Rows:
    torch = _imported_torch()
    if torch is None:
        yield "torch.profiler", "absent", "torch is not installed"
        return

    supported = sorted(activity.name for activity in torch.profiler.supported_activities())
    wanted = platforms.loaded_platform().profiler_activities()
    missing = [name for name in wanted if name not in supported]
    if missing and "torch_npu" not in sys.modules:
        text = f"{', '.join(supported)}; not {', '.join(missing)}: traces have no device events"
        yield "torch.profiler", "note", text
    else:
        yield "torch.profiler", "works", f"activities {', '.join(supported)}"
    if "torch_npu" in sys.modules:
        has_own = hasattr(sys.modules["torch_npu"], "profiler")
        yield (
            "torch_npu.profiler",
            "works" if has_own else "note",
            "available" if has_own else "missing",
        )


def _tools() -> _Rows:
    for program, purpose in (("ncu", "a kernel's counters"), ("nsys", "a system trace")):
        path = shutil.which(program)
        yield program, "works" if path else "absent", path or f"not on PATH ({purpose})"
    restricted = _counters_are_restricted()
    if restricted is not None:
        yield (
            "GPU counters",
            "note" if restricted else "works",
            "for root only (RmProfilingAdminOnly: 1): ncu refuses other users"
            if restricted
            else "available to all users",
        )
    level = _first_line(Path("/proc/sys/kernel/perf_event_paranoid"))
    if level is None:
        yield "perf events", "absent", "not available on this system"
    else:
        yield (
            "perf events",
            "works",
            f"perf_event_paranoid is {level}"
            + (": own processes, without the kernel" if level not in ("-1", "0", "1") else ""),
        )
    folder = run.output_dir()
    above = next((p for p in (folder, *folder.absolute().parents) if p.exists()), Path("/"))
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        yield "output folder", "works", str(folder)
    else:
        yield "output folder", "fails", f"{folder} cannot be written: set STAGESPAN_OUTPUT_DIR"


def _counters_are_restricted() -> bool | None:
    try:
        text = Path("/proc/driver/nvidia/params").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "RmProfilingAdminOnly":
            return value.strip() == "1" and os.geteuid() != 0
    return None
