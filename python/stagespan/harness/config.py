"""Settings of a replay, and what comes out of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stagespan.errors import HarnessError
from stagespan.files import safe_name
from stagespan.harness.adapters import Answer

LARGEST_TRACE = 10 * 1000 * 1000
"""Bytes: a larger trace of one step is warned about."""
STEPS = ("first", "second", "middle", "last", "whole")
FILES = {
    "trace": "{stem}_trace.json.gz",
    "breakdown": "{stem}_breakdown.json",
    "bench": "{stem}_bench.json",
    "script": "profile_{stem}.py",
    "compile_times": "{stem}_compile_times.json",
    "compile_trace": "{stem}_compile_trace.json.gz",
}
"""Names of the files of a replay, by what they contain."""


@dataclass
class HarnessConfig:
    """Settings of a replay. Raises HarnessError for values that cannot be used."""

    warmup: int | None = None
    """Iterations before anything is measured, at least 0; by default until their times settle."""
    profile_steps: int = 1
    """Iterations under the profiler, at least 1; they go into the trace and the breakdown alone."""
    output_dir: str | os.PathLike[str] | None = None
    """Folder of the files; by default the run's, see `stagespan.get_profiler_output_dir`."""
    device: str | None = None
    """Where the inputs are made, for example ``cpu``; by default where they were captured."""
    dtype: str | None = None
    """Element type of all floating-point inputs; by default the captured one."""
    seed: int = 0
    """The same seed gives the same inputs, here and in the script."""
    file_names: Mapping[str, str | None] = field(default_factory=dict)
    """Names of files, by what they contain: ``trace``, ``breakdown``, ``bench``, ``script``,
    ``compile_times``, ``compile_trace``. By default they contain the stage's name.
    ``{"bench": None}`` writes no such file."""
    inputs: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None
    """Values by argument name, in place of mock ones: what no signature can describe goes here. Or
    a function that returns them, called each time that inputs are made."""
    any_callable: bool = False
    """Whether something else than what was captured may be replayed."""
    step_fn: Callable[[Any, dict[str, Any]], Any] | None = None
    """``step_fn(stage, inputs)`` runs one iteration, in place of what the harness would find."""
    step: int | str | None = None
    """Which step of the stage's own loop: its number from 1, ``first``, ``second``, ``middle`` or
    ``last``; ``whole`` is the whole call. By default the second, and the whole call where there is
    no loop."""
    timing_steps: int | None = None
    """Timed iterations, at least 1; by default 20 or more in 1 s, fewer if they take 5 s."""
    record_shapes: bool = True
    """Whether the trace holds the shapes of each operator's inputs."""
    with_stack: bool = False
    """Whether the trace holds Python stacks; they make it many times larger."""
    profile_compile: bool = False
    """Whether the first call, in which torch.compile works, is profiled into a separate trace."""
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
        for name in ("device", "dtype"):
            value = getattr(self, name)
            if value is not None:  # torch.device("cpu") and torch.float16 are meant by their names
                setattr(self, name, str(value).removeprefix("torch."))
        given = self.inputs
        if given is not None and not isinstance(given, Mapping) and not callable(given):
            raise HarnessError(
                f"HarnessConfig(inputs=...) must be a mapping from argument names to values, or a "
                f"function that returns one, not a {type(given).__name__}."
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
    """What `StageBenchHarness.profile` found; also a mapping from these names to the values."""

    stage: str
    device: str
    adapter: str
    """How the step was made: ``loop``, ``generate``, ``denoise``, ``call``, ``step_fn``, or a
    registered adapter's name."""
    iteration: str
    """What one iteration is, in words."""
    answers: list[Answer]
    """What each adapter said that was asked, until one matched."""
    step: dict[str, Any] | None
    """Of a loop: ``number``, ``of`` (None if not known), ``before_ms`` (median time from the
    stage's call to the beginning of the step), ``run_with`` (arguments that were changed)."""
    timing_ms: dict[str, Any]
    """``p50``, ``p25``, ``p75``, ``mean``, ``min``, ``max`` in ms and ``iterations``, without the
    profiler; the same of the thread's CPU time under ``cpu``; ``waited_ms`` (for a core, None where
    the system does not tell) and ``busy`` (a sentence if the machine was busy)."""
    times_ms: list[float]
    """Each of these iterations, in order."""
    cpu_times_ms: list[float]
    """CPU time of the thread in each of them."""
    warmup: dict[str, Any]
    """``first_ms`` of the first run, ``iterations``, ``settled`` (None: a number was asked for)."""
    breakdown: dict[str, Any]
    """The content of the breakdown file, with ``profiled_ms`` of one profiled iteration and
    ``profiled_ratio``, the same divided by the median (None if not known)."""
    trace_path: Path
    trace_bytes: int
    breakdown_path: Path
    script_path: Path
    bench_path: Path | None
    """The file with this result, see `to_json`; None if it was not to be written."""
    signature: dict[str, Any]
    """``key`` of the signature that was replayed (None if the file has none), ``variant`` as it was
    asked for (None: the one that ran most), ``count`` of its live runs (None if not known)."""
    settings: dict[str, Any]
    """``dtype`` (None: as captured) and ``seed`` of the inputs."""
    environment: dict[str, Any]
    """The machine and the software."""
    fidelity: dict[str, Any]
    """``live_p50_ms``, ``live_runs``, ``live_steps``, ``before_ms``, ``ratio``, ``live_launches``,
    ``launches`` (None if not known), ``reasons`` for a difference, and a ``line`` with all."""
    compile: dict[str, Any] | None = None
    """With `profile_compile`: ``first_call_ms``, ``compile_ms``, ``phases_ms``, ``frames``,
    ``recompilations``, ``graph_breaks``, ``trace_path``, ``times_path``; None if nothing was
    compiled."""

    def to_json(self) -> dict[str, Any]:
        """The content of ``{stage}_bench.json``: the same as plain JSON, with a schema version."""
        content = {"schema_version": 1, **self, "answers": [asdict(each) for each in self.answers]}
        return json.loads(json.dumps(content, default=str)) or {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)
