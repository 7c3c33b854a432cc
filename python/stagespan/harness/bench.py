"""StageBenchHarness runs one stage alone, on inputs made from its signature, and measures it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import math
import os
import statistics
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagespan import _core, without_core
from stagespan.contexts import context
from stagespan.device.environment import machine
from stagespan.errors import HarnessError, StagespanError
from stagespan.harness import live
from stagespan.harness.adapters import Step, StepAdapter, adapter_for, ask_adapters
from stagespan.harness.config import (
    FILES,
    LARGEST_TRACE,
    Fit,
    HarnessConfig,
    HarnessResult,
)
from stagespan.harness.first_call import (
    init_for_cuda_graphs,
    run_first_call,
    write_first_call,
)
from stagespan.harness.host_peaks import KEY, measured_peaks
from stagespan.harness.live import live_runs
from stagespan.harness.loop_source import Place, callers
from stagespan.harness.output import (
    check_writable,
    default_folder,
    script_of,
    unused_number,
    write_breakdown,
    write_result,
    write_script,
)
from stagespan.harness.script import has_unreplayable
from stagespan.harness.standalone import fidelity
from stagespan.harness.standalone.fit import LoopError, ReplayError, bound_by
from stagespan.harness.standalone.loaded import owner_of
from stagespan.harness.standalone.steps import FunctionStep, function_of, with_method
from stagespan.live.lines import log_info
from stagespan.pages.escaping import one_line
from stagespan.process import run
from stagespan.process.files import module_name, safe_name
from stagespan.process.tracers import active_tracers, untraced
from stagespan.profiling.controller import Window, profile_window
from stagespan.signature.model import SignatureFile, StageSignature, signature_file
from stagespan.signature.target import method_name, mismatch
from stagespan.signature.value_kinds import losses

if TYPE_CHECKING:
    from stagespan.harness.standalone.figures import Run
    from stagespan.harness.standalone.replay import Replay

_log = logging.getLogger("stagespan")

ADVICE_AFTER_S = 60.0  # longer than the warm-up of any stage whose runs take some seconds
RUNS_BEFORE_ADVICE = 50  # the warm-up has up to 30 runs


class StageBenchHarness:
    """Replays one iteration of a stage: `setup`, then `profile`.

    The trace, the breakdown, the result and a script that reproduces them without stagespan are
    written to the output folder. The stage's scheduler and the program's random state are restored
    afterwards. While the stage runs, stagespan records nothing in this process.
    """

    def __init__(
        self,
        signature: StageSignature,
        stage_instance: Any = None,
        config: HarnessConfig | None = None,
    ) -> None:
        """``stage_instance`` is the loaded stage, or its method; see `from_signature_file`."""
        self.signature = signature
        self.stage_name = signature.stage_name
        self.stage_instance = stage_instance
        self.config = dataclasses.replace(config or HarnessConfig())
        self.config.optional = tuple(
            name for name in signature.metadata if name not in signature.inputs
        )
        self._replay: Replay | None = None
        self._adapter: StepAdapter | None = None
        self.variant: str | int | None = None  # as requested
        self.live: dict[str, Any] = {"missing": "no timing report was given"}
        self.signature_path: Path | None = None
        self._refused: dict[str, str] = {}
        self._profiled = 0
        self._kept = 1
        self._first: Run | None = None  # the run that finds the loop, before the warm-up
        self._target: Any = stage_instance
        self._device = "cpu"
        self._label = one_line(self.stage_name)
        self._suffix: str | None = None
        self._places: list[Place] = []  # in the stage, at the end of the profiled iteration

    @classmethod
    def from_signature_file(
        cls,
        signature_path: str | os.PathLike[str],
        stage_name: str,
        stage_instance: Any = None,
        config: HarnessConfig | None = None,
        *,
        variant: str | int | None = None,
    ) -> StageBenchHarness:
        """Return a harness for a stage of a ``timing_io_signature.json``, including TeleFuser's.

        ``signature_path`` can also be the folder of the file. ``variant`` chooses one of the
        stage's signatures, see `StageSignature.variant`; by default the one that ran most. The live
        times come from the ``timing.json`` in the same folder, to which the files of the replay
        are written unless another one is named or it cannot be written.
        Raises SignatureError if the file cannot be read or does not contain the stage.
        """
        path = signature_file(signature_path)
        signature = SignatureFile.read(path).stage(stage_name, variant)
        harness = cls(signature, stage_instance, config)
        harness.signature_path = path
        harness.variant = variant
        harness.live = live_runs(path, signature)
        return harness

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs by name. Raises HarnessError before `setup`."""
        if self._replay is None:
            raise HarnessError("The harness has no inputs yet; call setup() first.")
        return self._replay.inputs

    @property
    def output_dir(self) -> Path:
        """The folder for the files."""
        chosen = self.config.output_dir
        if chosen is not None:
            return run.expanded(chosen)
        return default_folder(self.signature_path)

    def output_path(self, kind: str) -> Path:
        """Return the path of a file of this replay: ``trace``, ``breakdown``, ``bench``,
        ``script``, ...

        ``kind`` is a key of `config.FILES`; `HarnessConfig.file_names` can give other names.
        """
        if self._suffix is None:
            whose = run.whose_file(self.output_dir)
            is_named = self.config.output_dir is not None or run.named_output_dir() is not None
            self._suffix = whose
            if not is_named:  # what the user has not named must not replace anything
                self._suffix += unused_number(
                    self.output_dir, lambda number: self._names(whose + number).values()
                )
        name = self.config.file_names.get(kind) or self._names(self._suffix)[kind]
        return self.output_dir / name

    def _names(self, suffix: str) -> dict[str, str]:
        """Return the default names of the files, by kind."""
        stem, module = safe_name(self.stage_name), module_name(self.stage_name)  # to be imported
        return {
            kind: name.format(stem=(module if kind == "script" else stem) + suffix)
            for kind, name in FILES.items()
        }

    def setup(self) -> None:
        """Create the inputs and the step.

        Raises HarnessError if the stage cannot be replayed: there is no stage, an argument cannot
        be replayed, a device is missing, there is too little memory, the stage has no method to
        run, or the output folder cannot be written. Raises StagespanError without the extension,
        which reads the trace.
        """
        if _core is without_core:
            without_core.refuse()
        if self.stage_instance is None and self.config.step_fn is None:
            raise HarnessError(
                f"Stage {self.stage_name!r} has no instance to run: pass the loaded stage as "
                f"stage_instance=, or --factory MODULE:CALLABLE on the command line."
            )
        check_writable(self.output_dir)
        try:
            from stagespan.harness.standalone.replay import Replay
            from stagespan.signature.mock import captured_device, make_inputs
        except ImportError as error:
            raise HarnessError(
                f"A replay needs torch, which cannot be imported ({error}): install torch."
            ) from None
        self._device = self.config.device or captured_device(self.signature)
        self._target = self._what_was_captured()
        make = partial(
            make_inputs,
            self.signature,
            self.config.device,
            self.config.seed,
            dtype=self.config.dtype,
            stage=owner_of(self._target),
        )
        bound = {
            name: value
            for name, value in bound_by(self._target).items()
            if has_unreplayable(self.signature.arguments.get(name))
        }
        with self._failures("cannot be set up"):
            self._replay = Replay(
                lambda: make(inputs={**bound, **copied_inputs(self.config.inputs)}),
                self._make_step,
                context=self.signature.context,
                seed=self.config.seed,
                device=self._device,
            )
        given = self.config.inputs if isinstance(self.config.inputs, Mapping) else {}
        created = {k: v for k, v in self.signature.arguments.items() if k not in given}
        for sentence in losses(created):
            log_info("[Harness] %s", sentence)
        log_info("[Harness] Setup complete for stage '%s'", self._label)

    def _make_step(self, inputs: dict[str, Any]) -> Step:
        if self.config.step_fn is not None:
            return FunctionStep(self.config.step_fn, self.stage_instance, inputs)
        if self._adapter is None:
            self._adapter = adapter_for(
                self._target, inputs, self.stage_name, self.config, self._refused
            )
        return self._adapter.build(self._target, inputs, self.config)

    def _what_was_captured(self) -> Any:
        """Return the stage or its captured method. Raises HarnessError if it is another stage."""
        captured = self.signature.target
        stage = with_method(self.stage_instance, method_name(captured))
        if self.config.any_callable or self.config.step_fn is not None:
            return stage
        if self.signature.key is not None and not captured and not self.signature.arguments:
            raise HarnessError(
                f"Stage {self._label!r} is a `with` block, which has no inputs to replay: replay "
                f"the stage around it, or decorate a function with the context and run the "
                f"pipeline again."
            )
        wrong = mismatch(captured, function_of(stage))
        if wrong is None:
            return stage
        raise HarnessError(
            f"Stage {self._label!r}: {one_line(wrong)}; let the factory return the object whose "
            f"method was captured, or the method itself, or allow another callable with "
            f"HarnessConfig(any_callable=True) (--any-callable)."
        )

    def _fidelity(
        self, timing: dict[str, Any], launches: int, replay: Replay, runs: list[Run]
    ) -> dict[str, Any]:
        from stagespan.harness.standalone.replay import step_of

        step = step_of(replay.step, runs)
        per_iteration = launches // max(self._profiled, 1)
        on_host = self._device.startswith("cpu")
        compared = fidelity.fidelity(self.live, timing, step, per_iteration, on_host=on_host)
        reasons = [self.live["missing"]] if "missing" in self.live else []
        if not reasons:
            differences = live.live_differences(self.live, self.signature.context)
            reasons = fidelity.likely_reasons(compared, timing, differences, step)
        return {
            **compared,
            "reasons": reasons,
            "line": fidelity.fidelity_line(compared, reasons, timing),
        }

    def _find_loop(self, replay: Replay) -> None:
        """If a step of the stage's own loop is wanted, run the stage once to find its steps.

        A stage that has a scheduler but never calls it is replayed by the next adapter.
        """
        from stagespan.harness.standalone.own_loop import NoLoopError

        while hasattr(replay.step, "run_between") and self._adapter is not None:
            try:
                self._first = replay.run(replay.prepare())
                return
            except NoLoopError as error:
                self._refused[self._adapter.name] = str(error)
                if ask_adapters(self._target, replay.inputs, self.config, self._refused)[0] is None:
                    raise
                self._adapter = None
                replay.remake()

    def _warm_up(self, replay: Replay) -> dict[str, Any]:
        from stagespan.harness.standalone.replay import is_settled

        warmup = self.config.warmup
        if warmup is None:
            log_info("[Harness] Warming up until the times settle...")
        else:
            log_info("[Harness] Running %d warmup iteration(s)...", warmup)
        runs = replay.warm_up(warmup, partial(self._report_progress, "warm-up", total=warmup))
        first = self._first or next(iter(runs), None)
        return {
            "first_ms": None if first is None else first.wall_ms,
            "iterations": len(runs),
            "settled": is_settled(runs) if warmup is None else None,
        }

    @contextlib.contextmanager
    def _advice_if_it_does_not_end(self) -> Iterator[None]:
        """Log a sentence if the block takes far longer than live, as with a loop that never ends.

        With mock inputs, the condition that ends a loop may never become true.
        """
        live_ms = self.live.get("p50_ms")
        wait_s = max(ADVICE_AFTER_S, RUNS_BEFORE_ADVICE * (live_ms or 0.0) / 1000)
        took = "" if live_ms is None else f", and a live run took {live_ms:,.2f} ms"
        sentence = (
            f"[Harness] Stage {self._label!r} has been running for {wait_s:,.0f} s{took}. If "
            f"nothing is being compiled, a loop in it may never end with mock inputs: stop with "
            f"Ctrl-C, and pass real inputs with HarnessConfig(inputs={{...}}) (--inputs)."
        )
        timer = threading.Timer(wait_s, log_info, ("%s", sentence))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _answers(self) -> list[Fit]:
        """Return the answers of the adapters, for `--explain`."""
        if self._adapter is None or self._replay is None:
            return []
        inputs = self._replay.inputs
        return ask_adapters(self._target, inputs, self.config, self._refused)[1]

    def _iteration(self, replay: Replay) -> str:
        if self.config.step_fn is not None or self._adapter is None:
            return "one call of step_fn"
        says = getattr(replay.step, "says", None)
        if says is not None:
            return str(says())
        return f"one step made by the adapter {self._adapter.name!r}"

    def profile(self) -> HarnessResult:
        """Warm up, measure without the profiler, run under the profiler, and write the files.

        Raises HarnessError if the stage raises an exception, which is then the ``__cause__``, or if
        a file cannot be written.
        """
        if self._replay is None:
            self.setup()
        from stagespan.harness.standalone.torch_state import threads_set

        with threads_set(self.config.threads, self.signature.context.get("threads")) as sentence:
            return self._profile(sentence)

    def _profile(self, threads: str | None) -> HarnessResult:
        import torch

        replay, config = self._replay, self.config
        assert replay is not None
        from stagespan.harness.standalone.figures import profiled_ratio, spread, summary
        from stagespan.harness.standalone.replay import step_of
        from stagespan.harness.standalone.torch_state import random_state_kept

        with recorder_off(), random_state_kept(), self._failures("raised in its single step"):
            init_for_cuda_graphs()
            with self._advice_if_it_does_not_end():
                self._find_loop(replay)
                first = (
                    run_first_call(replay, self.stage_name, self._device)
                    if config.profile_compile
                    else None
                )
                warm = self._warm_up(replay)
            tracers = active_tracers()
            measure = partial(
                replay.measure,
                config.timing_steps,
                partial(self._report_progress, "timing", total=config.timing_steps),
            )
            runs = measure() if tracers else untraced(measure)
            log_info("[Harness] Running %d profile iteration(s)...", config.profile_steps)
            median_ms = statistics.median(run.wall_ms for run in runs)
            window = self._run_under_profiler(replay, median_ms)
        if not window.recorded:
            raise HarnessError(one_line(str(window.skipped)))
        with self._writing():
            compiled = None if first is None else write_first_call(first, self.output_path)
        timing = summary(
            runs,
            self._device,
            replay.clocks_mhz,
            replay.fastest_fixed_ns,
            replay.fastest_in_process_ns,
        )
        trace_path = self.output_path("trace")
        with self._writing():
            window.export(trace_path)
        trace_bytes = trace_path.stat().st_size
        log_info("[Harness] Chrome trace saved to: %s", trace_path)
        if trace_bytes > LARGEST_TRACE * config.profile_steps:
            _log.warning(
                "[Harness] The trace takes %.1f MB; HarnessConfig(record_shapes=False), or a "
                "step_fn that runs less, makes it smaller.",
                trace_bytes / 1e6,
            )
        with self._writing():
            breakdown_path = self.output_path("breakdown")
            breakdown = write_breakdown(
                trace_path,
                breakdown_path,
                self.stage_name,
                self._profiled,
                self._device,
                self.live,
                median_ms=timing["p50"],
                profiled_ms=replay.profiled_ms,
                profiled_ratio=profiled_ratio(replay.profiled_ms, timing),
                iteration=self._iteration(replay),
                kept=self._kept,
                all_profiled_ms=replay.all_profiled_ms,
            )
        log_info("[Harness] Kernel breakdown saved to: %s", breakdown_path)
        with self._writing():
            script_path = self.output_path("script")
            script = script_of(
                self.signature,
                self._target,
                self._adapter,
                config,
                script_path.name,
                self.live,
                self._places,
            )
            write_script(script_path, *script)
        log_info("[Harness] Test script saved to: %s", script_path)
        written = config.file_names.get("bench", "") is not None
        result = HarnessResult(
            stage=self.stage_name,
            device=self._device,
            adapter="step_fn" if self._adapter is None else self._adapter.name,
            iteration=self._iteration(replay),
            answers=self._answers(),
            step=step_of(replay.step, runs),
            timing_ms=timing,
            times_ms=[run.wall_ms for run in runs],
            cpu_times_ms=[run.cpu_ms for run in runs],
            core_waits_ms=[run.waited_ms for run in runs],
            fixed_times_ns=[run.fixed_ns for run in runs],
            warmup=warm,
            breakdown=breakdown,
            trace_path=trace_path,
            trace_bytes=trace_bytes,
            breakdown_path=breakdown_path,
            script_path=script_path,
            bench_path=self.output_path("bench") if written else None,
            signature={
                "key": self.signature.key,
                "variant": self.variant,
                "count": self.signature.count,
            },
            settings={
                "dtype": config.dtype,
                "seed": config.seed,
                "threads": torch.get_num_threads(),
            },
            tracers=list(tracers),
            threads=threads,
            environment=machine(),
            fidelity=self._fidelity(timing, breakdown["num_launches"], replay, runs),
            compile=compiled,
        )
        if result.bench_path is not None:
            with self._writing():
                write_result(result, result.bench_path)
            log_info("[Harness] Result saved to: %s", result.bench_path)
        log_info("[Harness] Average iteration time: %.2f ms", timing["mean"])
        log_info("[Harness] Median iteration time: %s", spread(timing))
        return result

    def _run_under_profiler(self, replay: Replay, median_ms: float) -> Window:
        """Profile the iterations, again while other work on the machine disturbed them."""
        peaks = measured_peaks() if self._device.startswith("cpu") else None

        def profile() -> tuple[Window, int]:
            window = profile_window(
                self.stage_name,
                record_shapes=self.config.record_shapes,
                with_stack=self.config.with_stack,
                max_events=math.inf,
            )

            def add(key: str, value: object) -> None:
                add_json = getattr(window.profiler, "add_metadata_json", None)
                if add_json is not None:
                    add_json(key, json.dumps(value))

            def begin() -> None:
                window.start()
                if peaks is not None:
                    add(KEY, peaks)

            def end() -> None:
                took_ms = replay.profiled_ms
                if took_ms is not None and median_ms:
                    ratio = took_ms / median_ms
                    add("stagespan_replay", {"median_ms": median_ms, "profiled_ratio": ratio})
                window.stop()
                self._places = callers()

            try:
                done = replay.run_between(self.config.profile_steps, begin, end)
            finally:
                window.stop()
            return window, done

        (window, self._profiled), self._kept = replay.profile_nearest(profile, median_ms)
        self._report_progress("profile", self._profiled, total=self._profiled)
        return window

    def _report_progress(self, part: str, done: int, total: int | None = None) -> None:
        if self.config.progress is not None:
            self.config.progress(part, done, total)

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Replace exceptions by a HarnessError of one sentence, with the exception as its cause."""
        try:
            yield
        except ReplayError as error:
            if isinstance(error, LoopError):
                raise HarnessError(
                    f"Stage {self.stage_name!r} {what}: {error}, leave step out, or give the step "
                    f"with HarnessConfig(step_fn=...)."
                ) from error
            raise HarnessError(
                f"Stage {self.stage_name!r} {what}: {error}; pass what is missing with "
                f"HarnessConfig(inputs={{...}}), or give the step with HarnessConfig(step_fn=...)."
            ) from error
        except StagespanError:
            raise
        except (Exception, SystemExit) as error:  # a stage must not end the harness without a word
            from stagespan.harness.standalone.values import is_out_of_memory

            if is_out_of_memory(error):
                raise HarnessError(
                    f"Stage {self.stage_name!r} {what}: there is not enough memory on "
                    f"{self._device}: end other programs that use it, choose a smaller signature "
                    f"with --variant, or profile fewer iterations at once with "
                    f"HarnessConfig(profile_steps=1)."
                ) from error
            message = str(error).strip().partition("\n")[0]
            raise HarnessError(
                f"Stage {self.stage_name!r} {what}: {type(error).__name__}: {message} (if mock "
                f"inputs do not suit the stage, pass real ones with HarnessConfig(inputs={{...}}))."
            ) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HarnessError(
                f"A file of stage {self.stage_name!r} cannot be written ({error}); free some "
                f"space in {str(self.output_dir)!r}, or choose another folder with "
                f"HarnessConfig(output_dir=...)."
            ) from error


@contextlib.contextmanager
def recorder_off() -> Iterator[None]:
    """Switch the recorder of the whole process off inside the block.

    Replays do not belong into the reports. A debug context inside the step would also wait for the
    device, which changes the measured time.
    """
    was_on = _core.is_enabled()
    context.disable()
    try:
        yield
    finally:
        if was_on:
            context.enable()


def copied_inputs(inputs: Any) -> dict[str, Any]:
    """Return copies of the user's inputs, so that the stage does not modify the originals.

    Objects that the inputs share are also shared by the copies. Torch modules, and objects that
    cannot be copied, are passed as they are. A function is called for inputs each time.
    """
    import torch

    if callable(inputs) and not isinstance(inputs, Mapping):
        made = inputs()
        if not isinstance(made, Mapping):
            raise ReplayError(
                f"the function for the inputs returned a {type(made).__name__}, not a mapping from "
                f"argument names to values"
            )
        return dict(made)
    originals = dict(inputs or {})
    memo: dict[int, Any] = {}
    for value in originals.values():
        if isinstance(value, torch.nn.Module):
            memo[id(value)] = value
        elif isinstance(value, torch.Tensor) and not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    copied: dict[str, Any] = {}
    for name, value in originals.items():
        try:
            copied[name] = copy.deepcopy(value, memo)
        except Exception:  # locks, engines, handles
            copied[name] = value
    return copied
