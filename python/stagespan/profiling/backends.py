"""One interface for torch.profiler and torch_npu.profiler: start, stop, write."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stagespan.device.table import Device
from stagespan.harness.standalone.running import was_taken_over
from stagespan.process.imports import importing
from stagespan.profiling import unlocked
from stagespan.profiling.counting import OperatorCounter
from stagespan.profiling.running import Marks, is_left_over, of_windows

LOGGER = logging.getLogger("stagespan")
_KINETO_LEVEL = "KINETO_LOG_LEVEL"
_ABOVE_MARKS = "6"
_LET_OPERATORS_END_S = 0.02
_INDUCTOR = "_inductor"
_INDUCTOR_GRAPHS = "TORCHINDUCTOR_CUDAGRAPHS"
_hiding_inductor = threading.Lock()


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a window. Stacks and memory make traces many times larger."""

    activities: tuple[str, ...]
    """Names of `ProfilerActivity` members."""
    record_shapes: bool = False
    with_stack: bool = False
    profile_memory: bool = False
    npu_level: str = "1"
    """Level of torch_npu.profiler: ``none``, ``0``, ``1`` or ``2``."""
    npu_result_dir: Path | None = None
    """Folder in which torch_npu.profiler leaves its own result folder; None: it is not kept."""
    all_threads: bool = False
    """Whether operators of all threads are recorded, where torch can do that."""
    trace_only: bool = False
    """Whether only the trace is needed, and not the profiler's lists and sums of events."""


class Backend(Protocol):
    """A profiler that has not been started yet."""

    missing: tuple[str, ...]
    """Requested activities that this profiler cannot record here."""
    profiler: Any
    """The profiler object of torch or torch_npu."""
    all_threads: bool
    """Whether it records the operators of all threads, and not only those of its own thread."""
    stop_ns: int
    """For how long the profiler itself has stopped; 0 before."""
    is_unlocked: bool
    """Whether other threads have the interpreter's lock while the profiler stops, and while `write`
    writes its events."""

    def start(self) -> None:
        """Start recording."""

    def recorded_operators(self) -> int | None:
        """Return how many operators it has recorded so far, or None if that is not known."""

    def pause(self) -> None:
        """Record no more events, if the profiler can be told so by any thread."""

    def stop(self) -> None:
        """Stop recording, after waiting for the device's work."""

    def write(self, path: Path) -> None:
        """Write the recorded events as an uncompressed Chrome trace."""

    def saver(self) -> Callable[[str], object] | None:
        """Return a function written in C that does the same as `write`, or None."""


def make_backend(device: Device, options: Options) -> Backend:
    """Return the first profiler of a device's row that is installed here, and log which it is.

    On an NPU that is torch_npu.profiler, or else torch.profiler with PrivateUse1; on all other
    devices it is torch.profiler. Raises ImportError if none is installed.
    """
    refused: ImportError | None = None
    for name in device.profilers:
        try:
            backend = _KINDS[name](options)
        except ImportError as error:
            refused = refused or error
            continue
        recorded = [one for one in options.activities if one not in backend.missing]
        LOGGER.info("[Profiler] %s records %s", name, ", ".join(dict.fromkeys(recorded)))
        return backend
    raise refused or ImportError(f"no profiler is known for {device.name}")


class TorchProfiler:
    """torch.profiler, on CUDA, ROCm, XPU, other accelerators and the CPU."""

    def __init__(self, options: Options) -> None:
        with importing():
            import torch.autograd.profiler
            from torch import profiler

        chosen, self.missing = _members(
            profiler.ProfilerActivity, options.activities, profiler.supported_activities()
        )
        self._autograd: Any = torch.autograd.profiler
        self._tracker = getattr(torch.autograd.profiler, "KinetoStepTracker", None)
        self._counted = "ProfilerStep" in getattr(self._tracker, "_step_dict", ())
        experimental = _experimental(options)
        self.all_threads = "profile_all_threads" in experimental
        config = {}
        if experimental:
            config["experimental_config"] = profiler._ExperimentalConfig(**experimental)
        self.profiler: Any = profiler.profile(
            activities=chosen,
            record_shapes=options.record_shapes,
            with_stack=options.with_stack,
            profile_memory=options.profile_memory,
            **config,
        )
        of_windows.add(self.profiler)
        self._counter = OperatorCounter()
        self.stop_ns = 0
        self.is_unlocked = (
            "trace_only" in experimental
            and not self.all_threads  # torch may crash if operators run while it stops
            and not getattr(self.profiler, "_use_cupti_monitor", False)
            and unlocked.is_possible(self._autograd)
        )

    def start(self) -> None:
        """Start recording."""
        with _quiet_kineto(), _without_importing_inductor():
            self.profiler.start()
        self._marks = Marks(self._autograd, self._counted)
        self._counter.start()

    def recorded_operators(self) -> int | None:
        """Return how many operators it has recorded so far, or None if that is not known."""
        return self._counter.count()

    def pause(self) -> None:
        """Record no more events. Does nothing if it records only its own thread.

        torch then looks for the profiler in the calling thread, and finds none.
        """
        if self.all_threads:
            self._record_no_more()

    def _record_no_more(self) -> None:
        from torch.profiler import ProfilerActivity

        # torch warns if some of these are missing, also on a machine without such a device.
        kinds = _members(ProfilerActivity, ("CPU", "CUDA", "XPU"), None)[0]
        if hasattr(self.profiler, "toggle_collection_dynamic"):  # new in torch 2.5
            self.profiler.toggle_collection_dynamic(False, kinds)

    def stop(self) -> None:
        """Stop recording. torch waits for the device's work first.

        Raises RuntimeError if another profiler was started meanwhile. It takes over the session of
        this one, and torch crashes the process if a trace without a session is written.
        """
        if not self._marks.are_there() and was_taken_over(self.profiler, self.all_threads):
            if is_left_over():
                # It remains until the thread ends, because torch crashes if it is stopped.
                self._record_no_more()
            raise RuntimeError("another torch.profiler was started in it: remove one of the two")
        if self.all_threads:
            # torch may crash if another thread begins or ends an operator while it stops.
            self.pause()
            time.sleep(_LET_OPERATORS_END_S)
        begin_ns = time.perf_counter_ns()
        with unlocked.ending(self._autograd) if self.is_unlocked else contextlib.nullcontext():
            self.profiler.stop()
        self.stop_ns = time.perf_counter_ns() - begin_ns
        if self._tracker is not None and not self._counted:
            # Like leaving a `with` block. An application's own profiler keeps its count.
            self._tracker.erase_step_count("ProfilerStep")

    def write(self, path: Path) -> None:
        """Write the recorded events as an uncompressed Chrome trace."""
        self.profiler.export_chrome_trace(str(path))

    def saver(self) -> Callable[[str], object] | None:
        """Return a function written in C that does the same as `write`, or None."""
        if getattr(self.profiler, "_use_cupti_monitor", False):  # torch adds events in Python then
            return None
        results = getattr(getattr(self.profiler, "profiler", None), "kineto_results", None)
        return getattr(results, "save", None)


class NpuProfiler:
    """torch_npu.profiler, which has its own classes."""

    all_threads = False
    is_unlocked = False

    def __init__(self, options: Options) -> None:
        with importing():
            import torch_npu.profiler as profiler

        names = tuple("NPU" if name == "PrivateUse1" else name for name in options.activities)
        chosen, self.missing = _members(profiler.ProfilerActivity, names, None)
        config = profiler._ExperimentalConfig(
            profiler_level=getattr(profiler.ProfilerLevel, _LEVELS[options.npu_level]),
            # Without this, the intermediate files are many times larger than the result.
            data_simplification=True,
        )
        self._result_dir = options.npu_result_dir
        handler = None
        if self._result_dir is not None:
            handler = profiler.tensorboard_trace_handler(str(self._result_dir))
        self.profiler: Any = profiler.profile(
            activities=chosen,
            on_trace_ready=handler,
            record_shapes=options.record_shapes,
            with_stack=options.with_stack,
            profile_memory=options.profile_memory,
            experimental_config=config,
        )
        self._before: set[Path] = set()
        self.stop_ns = 0

    def start(self) -> None:
        """Start recording."""
        self._before = self._results()
        self.profiler.start()

    def recorded_operators(self) -> int | None:
        """Return None, because torch_npu does not show how many operators it has recorded."""
        return None

    def pause(self) -> None:
        """Do nothing, because torch_npu can only be stopped."""

    def stop(self) -> None:
        """Wait for the device's work, because torch_npu does not, then stop recording."""
        import torch

        torch.npu.synchronize()
        begin_ns = time.perf_counter_ns()
        self.profiler.stop()
        self.stop_ns = time.perf_counter_ns() - begin_ns

    def write(self, path: Path) -> None:
        """Write the recorded events as an uncompressed Chrome trace.

        Raises OSError if torch_npu has written none: it only warns.
        """
        if self._result_dir is None:
            self.profiler.export_chrome_trace(str(path))
        else:
            for result in self._results() - self._before:
                shutil.copyfile(result / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", path)
                LOGGER.info("[Profiler] Result of torch_npu.profiler saved to: %s", result)
        if not path.exists():
            raise OSError("torch_npu.profiler has written no trace; its warnings say why")

    def saver(self) -> Callable[[str], object] | None:
        """Return None, because torch_npu writes its trace in Python."""
        return None

    def _results(self) -> set[Path]:
        return set() if self._result_dir is None else set(self._result_dir.glob("*_ascend_pt"))


_LEVELS = {"none": "Level_none", "0": "Level0", "1": "Level1", "2": "Level2"}
_KINDS: dict[str, Callable[[Options], Backend]] = {
    "torch.profiler": TorchProfiler,
    "torch_npu.profiler": NpuProfiler,
}


def _experimental(options: Options) -> dict[str, bool]:
    """Return the experimental options of torch.profiler that are wanted and that torch has."""
    from torch import profiler

    wanted = {
        # With this option, torch records no allocations (pytorch#192290).
        "profile_all_threads": options.all_threads and not options.profile_memory,
        # Without lists of events, torch stops in about half of the time. Stacks need the lists.
        "trace_only": options.trace_only and not options.with_stack,
    }
    return {name: True for name, on in wanted.items() if on and _has_option(profiler, name)}


def _has_option(profiler: Any, name: str) -> bool:
    try:
        profiler._ExperimentalConfig(**{name: True})
    except (AttributeError, TypeError):
        return False
    return True


@contextlib.contextmanager
def _without_importing_inductor() -> Iterator[None]:
    """Keep the first start of torch.profiler from importing torch's compiler, which takes seconds.

    torch only reads there whether the compiler makes graphs of CUDA. It makes none before it has
    been imported, unless a variable asks for them. Other threads find the compiler as ever.
    """
    import torch

    names: dict[str, Any] = vars(torch)
    if _INDUCTOR in names or _INDUCTOR_GRAPHS in os.environ or "__getattr__" not in names:
        yield
        return
    this_thread = threading.get_ident()
    with _hiding_inductor:
        look_up = names["__getattr__"]  # it imports some modules when they are first used

        def other_names(name: str) -> Any:
            if name == _INDUCTOR and threading.get_ident() == this_thread:
                raise AttributeError(name)
            return look_up(name)

        names["__getattr__"] = other_names
        try:
            yield
        finally:
            names["__getattr__"] = look_up


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep Kineto's start and stop messages off the terminal, unless its log level is set.

    Kineto reads the level at its first start in a process.
    """
    if _KINETO_LEVEL in os.environ:
        yield
        return
    os.environ[_KINETO_LEVEL] = _ABOVE_MARKS
    try:
        yield
    finally:
        os.environ.pop(_KINETO_LEVEL, None)


def _members(
    kinds: Any, names: Iterable[str], supported: Iterable[Any] | None
) -> tuple[list[Any], tuple[str, ...]]:
    """Return members of an enumeration by name, and the missing or unsupported names."""
    allowed = None if supported is None else set(supported)
    chosen, missing = [], []
    for name in dict.fromkeys(names):
        member = getattr(kinds, name, None)
        if member is None or (allowed is not None and member not in allowed):
            missing.append(name)
        else:
            chosen.append(member)
    return chosen, tuple(missing)
