"""The first call of a compiled stage: its profile, files and messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagespan.cli.bench import command
from stagespan.errors import HarnessError
from stagespan.harness.first_call import needs_early_profiler
from stagespan.signature import SignatureFile
from stagespan.trace import read_trace

torch = pytest.importorskip("torch")

from harness_stages import Mlp, harness, signature_of  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start without compiled code of other tests, and without Inductor's test of vector units."""
    torch._dynamo.reset()
    with torch._inductor.config.patch({"cpp.simdlen": 0, "cpp.vec_isa_ok": False}):
        yield
    torch._dynamo.reset()


class Compiled:
    """A stage that is compiled by a backend that needs no compiler, and has one graph break."""

    def __init__(self) -> None:
        self.compiled = torch.compile(self.encode, backend="aot_eager")

    def encode(self, x: Any) -> Any:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    def process(self, x: Any) -> Any:
        return self.compiled(x)


def test_the_first_call_of_a_compiled_stage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Compiled()
    stage.process(torch.ones(4))
    with caplog.at_level(logging.INFO, logger="stagespan"):
        bench = harness(stage, signature_of(x=torch.zeros(4)), tmp_path, profile_compile=True)
        found = bench.profile().compile
    assert found is not None
    assert (found["frames"], found["recompilations"], found["graph_breaks"]) == (2, 0, 1)
    assert 0 < found["compile_ms"] <= found["first_call_ms"]
    assert sum(found["phases_ms"].values()) == pytest.approx(found["compile_ms"])
    # THEN the trace has only the stage's frames, not those of the trivial function before it
    names = read_trace(found["trace_path"]).names
    assert len({name for name in names if name.startswith("Torch-Compiled Region")}) == 2
    assert not any("aten::relu" in name for name in names)
    # AND torch's own times are in another file, one for each frame
    times = json.loads(found["times_path"].read_text())
    assert times["name"] == "mlp"
    assert times["first_call_ms"] == found["first_call_ms"]
    assert len(times["seconds"]["_compile.compile_inner"]) == 2
    assert f"[Harness] Compile trace saved to: {found['trace_path']}" in caplog.messages
    assert f"[Harness] Compile times saved to: {found['times_path']}" in caplog.messages
    assert found["trace_path"] == tmp_path / "mlp_compile_trace.json.gz"


def test_the_stage_s_own_trace_contains_no_compilation(tmp_path: Path) -> None:
    results = harness(
        Compiled(), signature_of(x=torch.zeros(4)), tmp_path, profile_compile=True, warmup=0
    ).profile()
    assert not any("dynamo_timed" in name for name in read_trace(results.trace_path).names)
    assert results.timing_ms["p50"] < results["compile"]["first_call_ms"]


def test_a_stage_that_is_not_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = harness(Mlp(), signature_of(x=torch.zeros(8, 32)), tmp_path, profile_compile=True)
    results = bench.profile()
    assert results.compile is None
    assert any(r.levelname == "WARNING" and "'mlp'" in r.getMessage() for r in caplog.records)
    assert not list(tmp_path.glob("*compile*"))


def test_by_default_compiled_code_is_kept(tmp_path: Path) -> None:
    stage = Compiled()
    stage.process(torch.zeros(4))
    results = harness(stage, signature_of(x=torch.zeros(4)), tmp_path, warmup=0).profile()
    assert results.compile is None
    assert not list(tmp_path.glob("*compile*"))


def test_a_failing_pre_compilation_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a machine whose default backend cannot compile
    broken = torch._inductor.config.patch(
        {"cpp.cxx": ("/no/compiler",), "force_disable_caches": True}
    )
    with broken:
        bench = harness(Compiled(), signature_of(x=torch.zeros(4)), tmp_path, profile_compile=True)
        results = bench.profile()
    assert "pre-compilation" in caplog.text
    assert results["compile"]["frames"] == 2


def test_a_torch_without_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "compile")
    bench = harness(Mlp(), signature_of(x=torch.zeros(8, 32)), tmp_path, profile_compile=True)
    with pytest.raises(HarnessError, match=r"install torch 2\.0 or later"):
        bench.profile()


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compiled_program.py").write_text(
        "import torch\n"
        "class Stage:\n"
        "    def __init__(self):\n"
        "        self.run = torch.compile(torch.sin, backend='aot_eager')\n"
        "    def process(self, x):\n"
        "        return self.run(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "timing_io_signature.json"
    SignatureFile({"mlp": signature_of(x=torch.zeros(4))}).write(path)
    result = CliRunner().invoke(
        command,
        [str(path), "--factory", "compiled_program:Stage", "--output", str(tmp_path),
         "--profile-compile", "--warmup", "1", "--timing-steps", "1"],
    )  # fmt: skip
    # THEN the page shows the time it took
    assert result.exit_code == 0, result.output
    assert "The first call took" in result.output
    trace = tmp_path / "mlp_compile_trace.json.gz"
    end = f"1 frame, 0 graph breaks, 0 recompilations. See stagespan analyze {trace}"
    assert end in " ".join(result.output.split())  # a narrow screen breaks no path


@pytest.mark.parametrize(
    ("cuda", "driver", "needed"),
    [
        (None, None, False),
        ("11.8", None, True),
        ("12.1", None, False),
        ("12.1", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.85.05  Sat Jan 14", True),
        ("12.1", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.85.12  Sat Jan 28", False),
        ("12.4", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Sat Jan 28", False),
        ("12.4", "NVRM version: ?", False),
    ],
)
def test_versions_for_which_cuda_graphs_need_an_early_profiler(
    cuda: str | None, driver: str | None, needed: bool
) -> None:
    assert needs_early_profiler(cuda, driver) is needed
