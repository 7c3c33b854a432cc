"""Errors of the harness: one sentence each, and no files are left."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from running import ran
from stagespan.errors import HarnessError, SignatureError
from stagespan.harness import HarnessConfig, StageBenchHarness
from stagespan.harness.output import write_breakdown
from stagespan.signature import StageSignature

torch = pytest.importorskip("torch")

from harness_stages import Mlp, harness, signature_of  # noqa: E402


@pytest.mark.parametrize(
    "name", ["../../evil", "a/b", "a\\b", "..", "", "x\ny", 'q"""', "'; import os; '", "\0", "名"]
)
def test_no_stage_name_leads_outside_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "out"

    results = harness(lambda x: x, signature_of(name, x=1), folder).profile()

    assert all(p.parent == folder for p in (results.trace_path, results.script_path))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert runpy.run_path(str(results.script_path))["STAGE"] == name


@pytest.mark.parametrize(
    ("error", "words"),
    [(SystemExit(3), "SystemExit: 3"), (KeyError("weights"), "KeyError: 'weights'")],
)
def test_a_stage_that_exits_or_raises_does_not_end_the_harness(
    error: BaseException, words: str, tmp_path: Path
) -> None:
    def stage(x: Any) -> None:
        raise error

    with pytest.raises(HarnessError, match=words) as caught:
        harness(stage, signature_of("s", x=1), tmp_path).profile()

    assert caught.value.__cause__ is error
    assert list(tmp_path.iterdir()) == []


BLOCK = """
import stagespan

stagespan.set_debug()
with stagespan.ProfilingContext4Debug("tokenize"):
    pass
stagespan.dump_io_signatures("timing_io_signature.json")
"""


def test_a_block_has_no_inputs_to_replay(tmp_path: Path) -> None:
    # GIVEN the signature file of a program that times a block
    ran([sys.executable, "-c", BLOCK], cwd=tmp_path, status=0, STAGESPAN_OUTPUT_DIR="out")

    found = StageBenchHarness.from_signature_file(tmp_path, "tokenize", Mlp())
    with pytest.raises(HarnessError) as caught:
        found.setup()

    assert "Stage 'tokenize' is a `with` block, which has no inputs to replay" in str(caught.value)


def test_arguments_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    with pytest.raises(HarnessError) as caught:
        harness(lambda y: y, signature_of("s", x=1), tmp_path).setup()

    assert "it needs 'y'" in str(caught.value)
    assert "HarnessConfig(inputs={...})" in str(caught.value)


def test_an_output_folder_that_cannot_be_written_is_reported_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    runs = []

    with pytest.raises(HarnessError, match=r"output folder .* cannot be written"):
        harness(runs.append, signature_of(x=1), tmp_path / "file" / "out").profile()

    assert runs == []


@pytest.mark.parametrize("room", [0, 200, 3000])
def test_a_full_disk_is_reported_and_leaves_no_files(tmp_path: Path, room: int) -> None:
    # GIVEN a stage that is set up, and a limit on the size of files
    resource = pytest.importorskip("resource")
    bench = harness(Mlp(), signature_of("s", x=torch.zeros(2, 32)), tmp_path)
    bench.setup()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))

    try:
        with pytest.raises(HarnessError) as caught:
            bench.profile()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    # THEN the sentence says so, and no partial file is left
    assert "cannot be written" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_arguments_are_reported(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="has no instance to run"):
        harness(None, signature_of(x=1), tmp_path).setup()
    with pytest.raises(SignatureError, match="no signature file"):
        StageBenchHarness.from_signature_file(tmp_path / "no.json", "s")
    with pytest.raises(HarnessError, match=r"call setup\(\) first"):
        _ = harness(len, signature_of(x=1), tmp_path).inputs


@pytest.mark.parametrize(
    "wrong",
    [
        {"warmup": -1},
        {"warmup": 1.5},
        {"profile_steps": 0},
        {"timing_steps": 0},
        {"seed": -1},
        {"seed": "x"},
        {"step_fn": 3},
        {"inputs": [1]},
    ],
)
def test_invalid_settings_are_reported(wrong: dict[str, Any]) -> None:
    with pytest.raises(HarnessError, match=next(iter(wrong))):
        HarnessConfig(**wrong)


TOO_MANY_BYTES = 1 << 48  # more than the address space of a process


def raise_(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(TOO_MANY_BYTES, dtype=torch.uint8),
        lambda: bytearray(TOO_MANY_BYTES),
        lambda: raise_(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
    ],
    ids=["torch", "python", "cuda"],
)
def test_a_replay_that_runs_out_of_memory_says_what_to_do(tmp_path: Path, allocate: Any) -> None:
    def stage(x: Any) -> Any:
        return allocate()

    with pytest.raises(HarnessError) as caught:
        harness(stage, signature_of("s", x=1), tmp_path).profile()

    # THEN one sentence says so, without torch's message
    said = str(caught.value)
    assert "there is not enough memory on cpu: end other programs" in said
    assert "--variant" in said
    assert "alloc" not in said
    assert isinstance(caught.value.__cause__, (RuntimeError, MemoryError))
    assert list(tmp_path.iterdir()) == []


def test_inputs_that_exhaust_memory_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagespan.signature.resources.free_bytes", lambda device: None)
    node = {"shape": [TOO_MANY_BYTES // 4], "dtype": "float32", "device": "cpu"}
    signature = StageSignature("s", {"latents": node})

    with pytest.raises(HarnessError, match=r"not enough memory for input 'latents' with shape \["):
        harness(lambda latents: latents, signature, tmp_path).setup()


def test_memory_that_is_needed_only_while_inputs_are_created_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a mask of 16 MB that is created from numbers of 8 bytes, and 64 MB
    monkeypatch.setattr("stagespan.signature.resources.free_host_bytes", lambda: 64 << 20)
    content = {"kind": "runs", "values": [0, 1], "lengths": [1 << 23, 1 << 23]}
    node = {"shape": [1 << 24], "dtype": "bool", "device": "cpu", "content": content}

    # WHEN / THEN it is refused before anything is allocated
    with pytest.raises(HarnessError, match=r"need 0.39 GiB on cpu, but only 0.06 GiB are free"):
        harness(lambda mask: mask, StageSignature("s", {"mask": node}), tmp_path).setup()


def test_a_profiler_of_the_application_is_reported(tmp_path: Path) -> None:
    bench = harness(lambda x: x, signature_of("s", x=1), tmp_path)

    with torch.profiler.profile(), pytest.raises(HarnessError, match="not profiled"):
        bench.profile()


def test_a_large_trace_and_missing_kernels_give_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagespan.harness.bench.LARGEST_TRACE", 10)

    results = harness(Mlp(), signature_of(x=torch.zeros(2, 32)), tmp_path).profile()
    write_breakdown(results.trace_path, tmp_path / "b.json", "mlp", 1, "cuda:0")

    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "record_shapes=False" in warnings[0]
    assert "no kernels of cuda:0" in warnings[1]


def test_without_torch_one_sentence_says_so(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from stagespan import HarnessConfig, StageBenchHarness\n"
        "from stagespan.signature import StageSignature\n"
        "try:\n"
        "    StageBenchHarness(StageSignature('s'), len, HarnessConfig(output_dir='.')).setup()\n"
        "except RuntimeError as error:\n"
        "    print(error)"
    )

    done = ran([sys.executable, "-c", program], cwd=tmp_path)

    assert ": install torch." in done.stdout, done.stderr
