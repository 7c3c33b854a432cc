"""The settings and the result of a replay."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stagespan.errors import HarnessError
from stagespan.process.files import safe_name
from stagespan.process.imports import load

LARGEST_TRACE = 10 * 1000 * 1000
"""Size of the trace of one step, in bytes, above which a warning is logged."""
STEPS = ("first", "second", "middle", "last", "whole")
FILES = {
    "trace": "{stem}_trace.json.gz",
    "breakdown": "{stem}_breakdown.json",
    "bench": "{stem}_bench.json",
    "script": "profile_{stem}.py",
    "compile_times": "{stem}_compile_times.json",
    "compile_trace": "{stem}_compile_trace.json.gz",
}
"""Names of the files of a replay, by kind."""


@dataclass(frozen=True)
class Fit:
    """The answer of an adapter to the question whether it can run a stage."""

    adapter: str
    fits: bool
    reason: str


@dataclass
class HarnessConfig:
    """The settings of a replay. Raises HarnessError for invalid values."""

    warmup: int | None = None
    """Iterations before the measurement, at least 0; by default until their times settle."""
    profile_steps: int = 1
    """Iterations under the profiler, at least 1. Only the trace and the breakdown contain them."""
    output_dir: str | os.PathLike[str] | None = None
    """Folder for the files, where they replace those of an earlier replay. By default it is the one
    that `set_profiler_output_dir` or a variable names, or else that of the signature file, or else
    that of the run; in the latter two, the names of later replays contain ``_2``, ``_3``, ..."""
    device: str | None = None
    """Device of the inputs, for example ``cpu``; by default the captured one."""
    dtype: str | None = None
    """Element type of all floating-point inputs; by default the captured one."""
    seed: int = 0
    """Seed of the inputs. The harness and the script create the same inputs from the same seed."""
    file_names: Mapping[str, str | None] = field(default_factory=dict)
    """Names of the files by kind: ``trace``, ``breakdown``, ``bench``, ``script``,
    ``compile_times``, ``compile_trace``. By default they contain the stage's name. ``{"bench":
    None}`` turns the file ``bench`` off."""
    inputs: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None
    """Values by argument name that replace mock inputs, for example values that no signature can
    describe; or a function that returns them and is called each time new inputs are needed."""
    any_callable: bool = False
    """Whether another callable than the captured one may be replayed."""
    step_fn: Callable[[Any, dict[str, Any]], Any] | None = None
    """``step_fn(stage, inputs)`` runs one iteration. No adapter is asked then."""
    step: int | str | None = None
    """The step of the stage's own loop: its number from 1, ``first``, ``second``, ``middle`` or
    ``last``; or ``whole`` for the whole call. By default the second step, or the whole call if
    there is no loop."""
    timing_steps: int | None = None
    """Timed iterations, at least 1. By default as many as fit into 1 s but at least 20, or fewer if
    20 would take more than 5 s."""
    threads: int | str | None = None
    """The number of torch's threads during `profile`; ``captured`` for that of the live runs, if
    it is not more than the cores of this machine and OMP_NUM_THREADS is not set. By default, and
    with ``machine``, it stays as it is."""
    record_shapes: bool = True
    """Whether the trace contains the shapes of each operator's inputs."""
    with_stack: bool = False
    """Whether the trace contains Python stacks, which make it many times larger."""
    profile_compile: bool = False
    """Whether the first call, in which torch.compile compiles, gets a separate trace."""
    progress: Callable[[str, int, int | None], None] | None = None
    """Called for each iteration: ``progress(part, done, total)``; total is None if unknown."""
    optional: tuple[str, ...] = field(default=(), init=False, repr=False)
    """Arguments from the metadata only, which are left out if the stage has no such parameter."""

    def __post_init__(self) -> None:
        for name, least in (("warmup", 0), ("profile_steps", 1), ("timing_steps", 1)):
            value = getattr(self, name)
            if value is None and name != "profile_steps":
                continue
            if type(value) is not int or value < least:
                raise HarnessError(
                    f"HarnessConfig({name}={value!r}) must be a whole number of at least {least}."
                )
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 63:
            raise HarnessError(
                f"HarnessConfig(seed={self.seed!r}) must be a whole number from 0 to 2**63 - 1."
            )
        if isinstance(self.step, str) and self.step.isdecimal():
            self.step = int(self.step)
        if not (
            self.step is None or self.step in STEPS or (type(self.step) is int and self.step > 0)
        ):
            raise HarnessError(
                f"HarnessConfig(step={self.step!r}) must be {', '.join(STEPS)} or the step's "
                f"number, from 1."
            )
        if isinstance(self.threads, str) and self.threads.isdecimal():
            self.threads = int(self.threads)
        if self.threads not in (None, "captured", "machine") and not (
            type(self.threads) is int and self.threads > 0
        ):
            raise HarnessError(
                f"HarnessConfig(threads={self.threads!r}) must be 'captured', 'machine' or a "
                f"number from 1."
            )
        for name in ("device", "dtype"):
            value = getattr(self, name)
            if value is not None:  # accept torch.device("cpu") and torch.float16
                setattr(self, name, str(value).removeprefix("torch."))
        inputs = self.inputs
        if inputs is not None and not isinstance(inputs, Mapping) and not callable(inputs):
            raise HarnessError(
                f"HarnessConfig(inputs=...) must be a mapping from argument names to values, or a "
                f"function that returns one, not a {type(inputs).__name__}."
            )
        self._check_file_names()
        if self.step_fn is not None and not callable(self.step_fn):
            raise HarnessError(
                f"HarnessConfig(step_fn={self.step_fn!r}) must be a function of stage and inputs."
            )

    def _check_file_names(self) -> None:
        for kind, name in self.file_names.items():
            if kind not in FILES:
                raise HarnessError(
                    f"HarnessConfig(file_names=...) has no file {kind!r}: name one of "
                    f"{', '.join(FILES)}."
                )
            if name is None and kind == "bench":
                continue
            if not isinstance(name, str) or name in ("", ".", "..") or set("/\0") & set(name):
                raise HarnessError(
                    f"HarnessConfig(file_names={{{kind!r}: {name!r}}}) must be the name of a file "
                    f"in the output folder, without a folder."
                )
            if kind == "script" and (safe_name(name, blanks=True) != name or name[-3:] != ".py"):
                raise HarnessError(
                    f"HarnessConfig(file_names={{'script': {name!r}}}) must end in .py and have "
                    f"only letters, digits, '.', '_', '-' and single blanks."
                )


@dataclass(frozen=True)
class HarnessResult(Mapping[str, Any]):
    """The result of `StageBenchHarness.profile`, also a mapping from these names to the values."""

    stage: str
    device: str
    adapter: str
    """The adapter of the step: ``loop``, ``generate``, ``denoise``, ``call``, the name of a
    registered adapter, or ``step_fn``."""
    iteration: str
    """A description of one iteration."""
    answers: list[Fit]
    """The answers of the adapters, up to the one that matched."""
    step: dict[str, Any] | None
    """The step of a loop: ``number``, ``of`` (the number of steps, None if not known),
    ``before_ms`` (median time from the call of the stage to the beginning of the step) and
    ``run_with`` (arguments that were changed). None if the whole call was measured."""
    timing_ms: dict[str, Any]
    """``p50``, ``p25``, ``p75``, ``mean``, ``min``, ``max`` in ms and ``iterations``, without the
    profiler. ``cpu`` contains the same figures of the thread's CPU time, ``waited_ms`` is the time
    that the thread waited for a core, and ``slowdown`` is the mean time of a fixed computation
    divided by its fastest time in the process (both None if unknown). ``one_thread`` says whether
    the thread did all the work, without a device. ``busy`` is a sentence if the machine was
    busy."""
    times_ms: list[float]
    """The time of each timed iteration, in order."""
    cpu_times_ms: list[float]
    """The CPU time of the thread in each timed iteration."""
    core_waits_ms: list[float | None]
    """The part of each time in which the thread waited for a core; None if unknown."""
    fixed_times_ns: list[int | None]
    """The CPU time of a fixed computation before each timed iteration, which shows the speed of the
    processor; None if unknown."""
    warmup: dict[str, Any]
    """``first_ms`` of the first run, ``iterations``, and ``settled`` (None if `warmup` was set)."""
    breakdown: dict[str, Any]
    """The content of the breakdown file, with ``profiled_ms`` of one profiled iteration and
    ``profiled_ratio``, the same divided by the median (None if not known)."""
    trace_path: Path
    trace_bytes: int
    breakdown_path: Path
    script_path: Path
    bench_path: Path | None
    """The file with this result, see `to_json`; None if `file_names` turned it off."""
    signature: dict[str, Any]
    """``key`` of the replayed signature (None if the file has none), the requested ``variant``
    (None for the one that ran most), and ``count`` of its live runs (None if not known)."""
    settings: dict[str, Any]
    """``dtype`` (None for the captured one) and ``seed`` of the inputs, and the number of torch's
    ``threads``."""
    environment: dict[str, Any]
    """The machine and the software."""
    fidelity: dict[str, Any]
    """``compared`` (``cpu`` or ``wall``), ``live_p50_ms``, ``live_cpu_p50_ms``, ``live_runs``,
    ``live_steps``, ``before_ms``, ``ratio``, ``live_launches``, ``launches`` (None if not known),
    at most two ``reasons`` for a difference, and ``line``, which contains all of them as text."""
    tracers: list[str] = field(default_factory=list)
    """The tracers and profilers of Python code that were active and could not be suspended."""
    threads: str | None = None
    """A sentence if the number of torch's threads was changed, or could not be that of the live
    runs; otherwise None."""
    compile: dict[str, Any] | None = None
    """With `profile_compile`: ``first_call_ms``, ``compile_ms``, ``phases_ms``, ``frames``,
    ``recompilations``, ``graph_breaks``, ``trace_path``, ``times_path``; None if nothing was
    compiled."""

    def to_dict(self) -> dict[str, Any]:
        """Return this result as plain data for JSON."""
        content = {**self, "answers": [asdict(each) for each in self.answers]}
        return json.loads(json.dumps(content, default=str)) or {}

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``{stage}_bench.json``: this result, with a schema version."""
        return {"schema_version": 1, **self.to_dict()}

    def _repr_html_(self) -> str:
        """Return the result for a notebook."""
        return str(load("stagespan.harness.result_page").Replay(self)._repr_html_())

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)
