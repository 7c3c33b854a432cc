"""``telefuser.utils.stage_bench_harness``: replays a stage, with TeleFuser's results and files."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from stagespan.compat.telefuser import messages
from stagespan.compat.telefuser.signatures import (
    StageIOSignature,
    TensorSignature,
    from_entry,
    to_stage,
)
from stagespan.errors import SignatureError, StagespanError
from stagespan.harness import HarnessConfig as _Config
from stagespan.harness import StageBenchHarness as _Harness
from stagespan.harness.live import live_runs
from stagespan.harness.output import (
    default_folder,
    script_of,
    unused_number,
    write_replay_module,
)
from stagespan.harness.standalone.fit import ReplayError
from stagespan.harness.standalone.loading import load_stage
from stagespan.pages.escaping import one_line
from stagespan.process import run
from stagespan.process.files import safe_name
from stagespan.signature import SignatureFile, StageSignature, make_inputs
from stagespan.signature.model import signature_file
from stagespan.signature.target import class_of

__all__ = ["HarnessConfig", "StageBenchHarness", "StageIOSignature", "TensorSignature", "main"]


@dataclass
class HarnessConfig:
    """The settings of a replay in TeleFuser."""

    warmup: int = 1
    profile_steps: int = 1
    output_dir: str | None = None
    """Folder for the files. None is replaced by the output folder of the run, and in
    `StageBenchHarness.from_signature_file` by that of the signature file."""
    capture_output: bool = False
    """Whether the results contain ``output_signature``, the signature of the stage's output."""
    step: int | str | None = None
    """The step of the stage's own loop, see `stagespan.HarnessConfig`; by default the second."""

    def __post_init__(self) -> None:
        if self.output_dir is None:
            self.output_dir = str(run.output_dir())
        self.step = _Config(step=self.step).step  # refuses other values


class StageBenchHarness:
    """Replays one iteration of a stage: `setup`, then `profile`.

    The replay itself is that of `stagespan.StageBenchHarness`.
    """

    def __init__(
        self,
        stage_name: str,
        io_signature: StageIOSignature,
        stage_instance: Any = None,
        config: HarnessConfig | None = None,
    ) -> None:
        self.stage_name = stage_name
        self.io_signature = io_signature
        self.stage_instance = stage_instance
        self.config = config or HarnessConfig()
        self._signature: StageSignature | None = None  # the entry of the file, which contains more
        self._live: dict[str, Any] = {"missing": "no timing report was given"}
        is_run_folder = self.config.output_dir in (None, str(run.output_dir()))
        self._is_default_folder = is_run_folder and run.named_output_dir() is None
        self._number: str | None = None  # of a later replay in the same default folder
        self._inputs: dict[str, Any] = {}

    @classmethod
    def from_signature_file(
        cls,
        signature_path: str | os.PathLike[str],
        stage_name: str,
        stage_instance: Any = None,
        config: HarnessConfig | None = None,
    ) -> StageBenchHarness:
        """Return a harness for a stage of a signature file of stagespan or TeleFuser.

        Raises SignatureError, which is a ValueError, if the file cannot be read or does not contain
        the stage.
        """
        path = signature_file(signature_path)
        stages = SignatureFile.read(path).stages
        if stage_name not in stages:
            raise SignatureError(
                f"There is no stage {stage_name!r} in the signature file {str(signature_path)!r};"
                f" it contains {', '.join(map(repr, stages)) or 'no stages'}."
            )
        signature = stages[stage_name]
        made = cls(stage_name, from_entry(stage_name, signature.to_json()), stage_instance, config)
        made._signature = signature
        made._live = live_runs(path, signature)
        if made._is_default_folder:
            made.config = dataclasses.replace(made.config, output_dir=str(default_folder(path)))
        return made

    def setup(self) -> None:
        """Create the mock inputs and, if there is a stage, the step. Raises HarnessError."""
        if self.stage_instance is None:
            self._inputs = make_inputs(self._stage_signature(), None, 0)
            messages.info(f"[Harness] Setup complete for stage '{self.stage_name}'")
        else:
            harness = self._harness(1, 1)
            harness.setup()
            self._inputs = harness.inputs
        messages.info(f"[Harness] Mock inputs: {list(self._inputs)}")

    def run_single_step(self, inputs: dict[str, Any] | None = None) -> Any:
        """Run one step on ``inputs``, by default the mock inputs, and return the stage's result.

        Raises RuntimeError if there is no stage, or before `setup`.
        """
        if self.stage_instance is None:
            raise RuntimeError("There is no stage to run: pass stage_instance=.")
        if not self._inputs:
            raise RuntimeError("There are no inputs yet: call setup() first.")
        from stagespan.harness.adapters import adapter_for
        from stagespan.harness.standalone.torch_state import run_context

        chosen = self._inputs if inputs is None else inputs
        signature = self._stage_signature()
        config = _Config(step=self.config.step)
        step = adapter_for(self.stage_instance, chosen, self.stage_name, config).build(
            self.stage_instance, chosen, config
        )
        with run_context(signature.context):
            getattr(step, "reset", lambda: None)()
            return step()

    def profile(
        self,
        warmup: int | None = None,
        profile_steps: int | None = None,
        output_suffix: str = "",
    ) -> dict[str, Any]:
        """Warm up, time, run under the profiler, and write trace, breakdown and script.

        Args:
            warmup: Iterations before the measurement; by default those of the configuration.
            profile_steps: Number of timed iterations, and of iterations under the profiler.
            output_suffix: Part of the names of the trace and the breakdown, after the stage's name.

        Returns:
            ``stage_name``, ``warmup``, ``profile_steps``, ``timing_ms`` (one number for each
            iteration, without the profiler), ``kernel_breakdown``, and more: ``adapter``,
            ``iteration`` (a sentence about what ran), ``step`` (its ``number`` and others; None
            without a loop), ``device``, ``trace_path``, ``breakdown_path``, ``script_path``. All
            values are JSON.

        Raises:
            HarnessError: If there is no stage, the stage raises, or a file cannot be written.
        """
        warmup = self.config.warmup if warmup is None else warmup
        steps = self.config.profile_steps if profile_steps is None else profile_steps
        harness = self._harness(warmup, steps, output_suffix)
        harness.setup()
        self._inputs = harness.inputs
        result = harness.profile()
        messages.info(f"[Harness] One iteration is {result.iteration} (adapter {result.adapter})")
        results: dict[str, Any] = {
            "stage_name": self.stage_name,
            "warmup": warmup,
            "profile_steps": steps,
            "timing_ms": [float(time) for time in result.times_ms],
            "kernel_breakdown": result.breakdown,
            "adapter": result.adapter,
            "iteration": result.iteration,
            "step": result.step,
            "device": result.device,
            "trace_path": str(result.trace_path),
            "breakdown_path": str(result.breakdown_path),
            "script_path": str(result.script_path),
        }
        if self.config.capture_output:
            output = self.io_signature.output_signature
            results["output_signature"] = None if output is None else output.to_dict()
        return results

    def generate_test_script(self) -> str:
        """Return the text of ``profile_{stage}.py``.

        The module that it imports is written to the output folder.
        """
        from stagespan.harness.adapters import adapter_for

        signature = self._stage_signature()
        adapter = None
        config = _Config(
            warmup=self.config.warmup,
            profile_steps=self.config.profile_steps,
            step=self.config.step,
        )
        if self.stage_instance is not None:
            adapter = adapter_for(self.stage_instance, signature.arguments, self.stage_name, config)
        name = self._file_names()["script"]
        text, module = script_of(signature, self.stage_instance, adapter, config, name, self._live)
        write_replay_module(Path(self._folder()), module)
        return text

    def _file_names(self, suffix: str = "") -> dict[str, str]:
        stem = safe_name(self.stage_name, blanks=True)

        def names(number: str) -> dict[str, str]:
            return {
                "trace": f"{stem}{suffix}{number}_trace.json.gz",
                "breakdown": f"{stem}{suffix}{number}_breakdown.json",
                "script": f"profile_{stem}{number}.py",
            }

        if self._number is None:
            self._number = (
                unused_number(Path(self._folder()), lambda number: names(number).values())
                if self._is_default_folder
                else ""
            )
        return names(self._number)

    def _folder(self) -> str:
        return self.config.output_dir or str(run.output_dir())

    def _stage_signature(self) -> StageSignature:
        return to_stage(self.io_signature) if self._signature is None else self._signature

    def _harness(self, warmup: int, steps: int, suffix: str = "") -> _Harness:
        config = _Config(
            warmup=warmup,
            profile_steps=steps,
            timing_steps=steps,
            step=self.config.step,
            output_dir=self._folder(),
            file_names={**self._file_names(suffix), "bench": None},
        )
        signature = dataclasses.replace(self._stage_signature())
        harness = _Harness(signature, self.stage_instance, config)
        harness.live = self._live
        return harness


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m stagespan.compat.telefuser.stage_bench_harness``; see its ``--help``."""
    parser = argparse.ArgumentParser(description="Replay one stage of a signature file.")
    parser.add_argument("--signature", required=True, help="the signature file")
    parser.add_argument("--stage", help="name of the stage")
    parser.add_argument("--warmup", type=int, default=1, help="iterations before the measurement")
    parser.add_argument("--profile_steps", type=int, default=1, help="iterations that are measured")
    parser.add_argument("--output_dir", help="folder of the files")
    parser.add_argument("--list_stages", action="store_true", help="list the stages and exit")
    parser.add_argument("--factory", help="MODULE:CALLABLE that returns the loaded stage")
    parser.add_argument(
        "--step", help="step of the stage's loop: first, second, middle, last, whole or its number"
    )
    options = parser.parse_args(arguments)
    if options.list_stages:
        stages = SignatureFile.read(options.signature).stages
        click.echo(f"Available stages in {options.signature}:")
        for name in stages:
            click.echo(f"  - {one_line(name)}")
        return
    if options.stage is None:
        parser.error("the following arguments are required: --stage")
    config = HarnessConfig(
        options.warmup, options.profile_steps, options.output_dir, step=options.step
    )
    captured = SignatureFile.read(options.signature).stages.get(options.stage)
    kind = None if captured is None else class_of(captured.target)
    stage = None if options.factory is None else load_stage(options.factory, kind)
    harness = StageBenchHarness.from_signature_file(options.signature, options.stage, stage, config)
    if stage is not None:
        results = harness.profile()
        times = results["timing_ms"]
        click.echo(f"{options.stage}: {sum(times) / len(times):.2f} ms a step, {len(times)} steps")
        click.echo(f"One step is {one_line(results['iteration'])}.")
        return
    _print_signature(harness.io_signature)
    messages.warning(
        "There is no stage to run: pass --factory MODULE:CALLABLE, or use StageBenchHarness with"
        " the loaded stage."
    )


def _print_signature(signature: StageIOSignature) -> None:
    click.echo(f"\nStage: {signature.stage_name}\n\nInput Signatures:")
    for name, value in signature.input_signatures.items():
        click.echo(f"  {name}: {_shown(value)}")
    if signature.output_signature is not None:
        click.echo(f"\nOutput Signature:\n  {_shown(signature.output_signature)}")
    if signature.metadata:
        click.echo("\nMetadata:")
        for name, value in signature.metadata.items():
            click.echo(f"  {name}: {value}")


def _shown(value: Any) -> str:
    if isinstance(value, TensorSignature):
        return f"shape={value.shape}, dtype={value.dtype}, device={value.device}"
    return str(value)


if __name__ == "__main__":
    try:
        main()
    except (StagespanError, ReplayError) as error:
        raise SystemExit(str(error)) from None
