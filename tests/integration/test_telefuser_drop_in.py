"""`stagespan.compat.telefuser` returns for TeleFuser's calls what TeleFuser returns."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recording import script_of

import preloaded
from running import PROGRAMS, ran

DROP_IN = PROGRAMS / "drop_in.py"

pytest.importorskip("torch", reason="torch is not installed")

HERE = Path(__file__).parent
MASK = {"shape": [2], "dtype": "float32", "device": "cpu", "requires_grad": False}
RANKS = [
    {"rank": 0, "duration_ms": 5.0, "peak_memory_gb": 1.0},
    {"rank": 1, "duration_ms": 7.0, "peak_memory_gb": 2.0},
]
NOTHING = {"allocated_mb": 0.0, "reserved_mb": 0.0, "peak_allocated_mb": 0.0}
COMPARISON = """\
### Performance Comparison

| Metric | Baseline | New | Diff |
|--------|----------|-----|------|
| Total (ms) | 300.0 | 200.0 | -33.3% 🟢 |
| Peak Memory (GB) | 0.00 | 0.00 | - |

### Stage Breakdown

| Stage | Baseline (ms) | New (ms) | Diff (%) |
|-------|---------------|----------|----------|
| dit | 300.0 | 200.0 | -33.3% 🟢 |"""

EXPECTED: dict[str, Any] = {
    "a_block_gives_the_context": True,
    "an_async_block": True,
    "a_decorated_function_keeps_its_name": [8, "work", "Doubles."],
    "a_decorated_coroutine": [True, 3],
    "an_error_passes_through": ["'mine'", 1],
    "a_debug_method": [2, 8],
    "get_timing_report": [True, "calls", {"model": "small"}, True],
    "dump_timing_report": True,
    "set_timing_metadata": "1a2b",
    "reset_gives_the_registry": [True, "r1", 0],
    "reset_makes_a_request_id": True,
    "registry_record": 12.5,
    "registry_record_with_memory": True,
    "registry_record_parallel_stage": [7.0, {"num_ranks": 2, "ranks": RANKS}],
    "registry_set_metadata_and_finalize": {"a": 1},
    "registry_dump": True,
    "registry_summary": [True, True],
    "print_timing_summary": [1, True],
    "compare_timing_reports": COMPARISON,
    "get_io_signatures": [True, True, True, [MASK, MASK], 3.0, {"scale": 3.0}, "float32"],
    "signature_to_dict": [
        ["input_signatures", "metadata", "output_signature", "stage_name"],
        {**MASK, "shape": [2, 8]},
    ],
    "tensor_signature_from_tensor": {**MASK, "shape": [1, 2], "dtype": "bfloat16"},
    "registry_signatures": ["made", "vae decode"],
    "dump_io_signatures": ["made", "vae decode"],
    "contexts_capture_signatures_too": [3],
    "capture_memory_snapshot": [True, {**NOTHING, "peak_reserved_mb": 0.0}, True],
    "memory_snapshot_class": [1.0, 4.0, 1024.0, 50.0],
    "record_memory_snapshot": ["before"],
    "set_memory_baseline": 0.0,
    "get_memory_analysis": [0.0, 0.0, 0.0, ["before"], True],
    "print_memory_analysis": [
        "  Peak Allocated: 0.00 GB (0 MB)",
        "  Increase from Baseline: 0.00 GB",
    ],
    "reset_peak_memory_stats": None,
    "reset_memory_registry": {},
    "get_memory_info": [
        *("allocated_mb", "peak_allocated_mb", "peak_reserved_mb", "reserved_mb"),
    ],
    "enable_profiler_for_names": [
        "",
        ["named stage_rank0.breakdown.json", "named stage_rank0.trace.json.gz"],
    ],
    "set_profiler_output_dir": [True, True],
    "set_pipeline_name": "wan21",
    "harness_config": [True, False],
    "harness_by_its_signature": ["made", None],
    "harness_of_an_unknown_stage": True,
    "harness_run_single_step": [[2, 8], [3, 8]],
    "harness_single_step_without_a_stage": "RuntimeError",
    "harness_profile": [
        *("vae decode", 0, 3, 3, True, ["name", "num_kernels", "top_kernels"]),
        ["profile_vae decode.py", "vae decode_b_breakdown.json", "vae decode_b_trace.json.gz"],
    ],
    "harness_generate_test_script": True,
    "current_platform": [
        *(True, False, "cpu", "gloo", "cpu:gloo", "CPU", "CPU_VISIBLE_MEMORY_NODES"),
        *(False, 0, 0, None, "cpu", "CPU"),
    ],
    "analyze_ncu_report": [
        "memory_bound",
        90.0,
        [
            *("bottleneck", "dram_throughput_pct", "metrics"),
            *("recommendation", "sm_throughput_pct"),
        ],
    ],
    "ncu_key_metrics": 4,
}


def run(
    code: str | Sequence[str | Path], folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a separate program, because the drop-in changes how the stages of a process behave."""
    return ran(
        [*preloaded.python(), *script_of(code, folder), *arguments],
        cwd=folder,
        timeout_s=240,
        status=0,
        CUDA_VISIBLE_DEVICES="",
        **variables,
    )


def test_each_call_gives_what_it_gives_in_telefuser(tmp_path: Path) -> None:
    done = run([HERE / "telefuser_calls.py"], tmp_path, TELEFUSER_PROFILE_DEBUG="true")
    assert json.loads(done.stdout) == {name: {"value": value} for name, value in EXPECTED.items()}


# --- the whole program --------------------------------------------------------------------------


def test_the_report_goes_where_the_variable_says(tmp_path: Path) -> None:
    run((DROP_IN, "one_stage"), tmp_path, TELEFUSER_TIMING_REPORT="reports/mine.json")

    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == [
        "mine.json",
        "mine_io_signature.json",
    ]


def test_each_run_has_the_lines_of_telefusers_manual(tmp_path: Path) -> None:
    done = run((DROP_IN, "one_stage"), tmp_path, TELEFUSER_PROFILE_DEBUG="true")
    first, second, report, signature = done.stderr.splitlines()
    assert re.fullmatch(r"\[Profile\] decode cost \d+\.\d{6} seconds", first)
    assert re.fullmatch(r"Rank 0 - Function 'decode' Peak (RSS|Memory): \d+\.\d\d GB", second)
    assert re.fullmatch(r"\[Profiler\] Timing report saved to: \S+/timing\.json", report)
    assert re.fullmatch(
        r"\[Profiler\] I/O signature saved to: \S+/timing_io_signature\.json", signature
    )


def test_without_debug_mode_no_report_is_written(tmp_path: Path) -> None:
    run((DROP_IN, "one_stage"), tmp_path)
    assert list(tmp_path.rglob("*.json")) == []


def test_lines_go_to_loguru_if_the_program_uses_it(tmp_path: Path) -> None:
    pytest.importorskip("loguru", reason="loguru is not installed")
    done = run((DROP_IN, "uses_loguru"), tmp_path)
    lines = done.stdout.splitlines()
    assert any(line.startswith("INFO <[Profile] {braces} 100% cost ") for line in lines)
    assert "WARNING <a warning>" in lines
    assert done.stderr == ""


@pytest.mark.parametrize("shown", [True, False])
def test_the_variables_choose_what_traces_hold(tmp_path: Path, shown: bool) -> None:
    options = ("RECORD_SHAPES", "PROFILE_MEMORY", "WITH_STACK")
    variables = {} if shown else {f"TELEFUSER_TORCH_PROFILER_{name}": "0" for name in options}
    done = run((DROP_IN, "parts_of_a_trace"), tmp_path, ENABLE_PROFILER_NAMES="decode", **variables)
    assert done.stdout.split() == [str(shown)] * 3


def test_names_of_the_environment_hold_from_the_next_context_on(tmp_path: Path) -> None:
    assert run((DROP_IN, "named_later"), tmp_path).stdout.split() == ["True", "None"]


WORKERS = """
    import json, multiprocessing, os, sys, time

    def work(rank, rounds):
        from stagespan.compat.telefuser.profiler import (
            ProfilingContext4Debug, mark_as_worker_process,
        )
        mark_as_worker_process()
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"

        @ProfilingContext4Debug("dit")
        def step():
            time.sleep(0.02 * (rank + 1))

        for _ in range(rounds):
            step()

    def start(rounds):
        context = multiprocessing.get_context(sys.argv[1])
        ranks = [context.Process(target=work, args=(rank, rounds)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(120)

    if __name__ == "__main__":
        from stagespan.compat.telefuser import profiler

        start(1)                                # of an earlier request: not in the report
        profiler.reset_timing_registry("two")
        with profiler.ProfilingContext("pipeline"):
            start(2)
        stages = profiler.get_timing_report()["stages"]
        profiler.get_timing_report()            # asking again does not count them again
        json.dump([stages, profiler.get_timing_report()["stages"]["dit"]["count"]], sys.stdout)
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_timings_of_workers_are_in_the_report_of_their_parent(tmp_path: Path, method: str) -> None:
    done = run(
        WORKERS, tmp_path, method, TELEFUSER_PROFILE_DEBUG="true", TMPDIR=str(tmp_path / "tmp")
    )

    stages, count = json.loads(done.stdout)
    info = stages["dit"]["parallel_info"]
    slow, fast = info["ranks"][1], info["ranks"][0]
    assert (info["num_ranks"], count, slow["count"], fast["rank"]) == (2, 2, 2, 0)
    slow_ms, fast_ms = slow["duration_ms"], fast["duration_ms"]
    assert slow_ms >= 80
    assert fast_ms >= 40
    # In each of the two runs, the faster rank took at least 20 ms, and is not counted. The clock of
    # spans rounds their ends by some nanoseconds.
    rounding_ms = 0.001
    assert (
        max(slow_ms, fast_ms) - rounding_ms
        <= stages["dit"]["duration_ms"]
        <= slow_ms + fast_ms - 40 + rounding_ms
    )
    assert stages["pipeline"]["parallel_info"] is None
    # and only the parent has written files
    (folder,) = (tmp_path / "work_dirs" / "profiler_output" / "default").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "timing.json",
        "timing_io_signature.json",
    ]
    assert not list(tmp_path.glob("tmp/stagespan-*"))


def test_the_command_line(tmp_path: Path) -> None:
    signatures = {
        "stages": {
            "decode": {
                "input_signatures": {
                    "latents": {"shape": [2, 4], "dtype": "float32", "device": "cpu"},
                    "scale": 2.0,
                },
                "metadata": {"scale": 2.0},
            }
        }
    }
    (tmp_path / "s.json").write_text(json.dumps(signatures))
    (tmp_path / "stages.py").write_text(
        "class Decode:\n    def process(self, latents, scale):\n        return latents * scale\n"
    )
    module = "stagespan.compat.telefuser.stage_bench_harness"

    def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ran(
            [*preloaded.python(), "-m", module, "--signature", "s.json", *arguments],
            cwd=tmp_path,
            timeout_s=240,
        )

    listed = cli("--list_stages")
    assert (listed.returncode, listed.stdout) == (0, "Available stages in s.json:\n  - decode\n")
    shown = cli("--stage", "decode", "--warmup", "2", "--profile_steps", "3")
    assert "  latents: shape=(2, 4), dtype=float32, device=cpu\n  scale: 2.0" in shown.stdout
    replayed = cli("--stage", "decode", "--factory", "stages:Decode", "--output_dir", "out")
    assert replayed.returncode == 0, replayed.stderr
    assert (tmp_path / "out" / "decode_trace.json.gz").is_file()

    for arguments, sentence in (
        (["--stage", "dekode"], "There is no stage 'dekode' in the signature file 's.json'; it"),
        (["--list_stages", "--signature", "none.json"], "There is no signature file 'none.json'"),
        (["--stage", "decode", "--factory", "none:Decode"], "'none:Decode' cannot be loaded: "),
    ):
        refused = cli(*arguments)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith(sentence)
        assert refused.stderr.count("\n") == 1


DAMAGED = """
    import pathlib, sys, tempfile

    lines = [
        '["dit", 0, 1e300, 1e301, 0]', '["dit", Infinity, 1, 2, 0]', '["dit", 0, Infinity, 2, 0]',
        '["dit", 0, 1, 2]', '{"dit": 1}', "null", "5", "[", "\\x00",
    ]

    def work():
        from stagespan.compat.telefuser.profiler import ProfilingContext, mark_as_worker_process

        mark_as_worker_process()
        with ProfilingContext("dit"):
            pass
        (path,) = pathlib.Path(tempfile.gettempdir()).glob("stagespan-workers-*/rank0_*.jsonl")
        path.write_text("\\n".join([*lines, path.read_text()]) + '["dit", 0, 17')

    if __name__ == "__main__":
        import multiprocessing
        from stagespan.compat.telefuser import profiler

        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        print(profiler.get_timing_report()["stages"]["dit"]["count"])
"""


def test_damaged_timings_of_a_worker_are_left_out(tmp_path: Path) -> None:
    done = run(DAMAGED, tmp_path, TMPDIR=str(tmp_path / "tmp"))
    assert done.stdout == "1\n"


def test_importing_the_package_changes_nothing(tmp_path: Path) -> None:
    handlers, line, *_ = run((DROP_IN, "imports_the_package"), tmp_path).stdout.splitlines()
    assert handlers == "[]"
    assert line.startswith("[Profile] decode cost ")


def test_submodules_of_the_platforms_can_be_imported(tmp_path: Path) -> None:

    assert run((DROP_IN, "imports_platforms"), tmp_path).stdout.split() == [
        "True",
        "True",
        "True",
        "RocmPlatform",
    ]


# --- replays of a chosen step -------------------------------------------------------------------


def test_the_configuration_chooses_the_step_and_the_results_name_it(tmp_path: Path) -> None:
    done = run((DROP_IN, "steps"), tmp_path)
    third, first, default, refused = done.stdout.splitlines()
    assert [line.split()[:2] for line in (third, first, default)] == [
        ["3", "False"],
        ["1", "True"],
        ["2", "True"],
    ]
    logged = [line for line in done.stderr.splitlines() if "[Harness] One iteration is" in line]
    assert len(logged) == 3
    assert third.removeprefix("3 False ") in logged[0]
    assert "step=0" in refused


# --- stagespan run --telefuser ------------------------------------------------------------------

TELEFUSER = {
    "__init__.py": "",
    "utils/__init__.py": "",
    "utils/profiler.py": "raise RuntimeError('the profiler of TeleFuser')",
    "utils/stage_bench_harness.py": "raise RuntimeError('the harness of TeleFuser')",
    "platforms/__init__.py": "raise RuntimeError('the platforms of TeleFuser')",
    "stage.py": """
        from telefuser.platforms import current_platform
        from telefuser.platforms.cpu import CpuPlatform
        from telefuser.utils import profiler
        from telefuser.utils.profiler import ProfilingContext

        @ProfilingContext("decode")
        def decode(latents):
            return latents + 1

        def work(queue):
            decode(1)
            queue.put([profiler.__name__, isinstance(current_platform, CpuPlatform)])
    """,
}
PIPELINE = """
    import multiprocessing, sys
    import telefuser.utils.profiler
    from telefuser.stage import decode, work

    if __name__ == "__main__":
        decode(1)
        print(telefuser.utils.profiler.__name__)
        for method in ("spawn", "fork"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            worker = context.Process(target=work, args=(queue,))
            worker.start()
            print(*queue.get(timeout=200))
            worker.join(200)
"""


@pytest.fixture
def telefuser(tmp_path: Path) -> Path:
    """Create a package with TeleFuser's modules, which fail if they are imported."""
    for name, text in TELEFUSER.items():
        path = tmp_path / "telefuser" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    (tmp_path / "pipeline.py").write_text(textwrap.dedent(PIPELINE))
    (tmp_path / "other.py").write_text("print('other')")
    return tmp_path


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ran(
        [*preloaded.python(), "-m", "stagespan", "run", *arguments],
        cwd=folder,
        timeout_s=240,
        status=0,
        STAGESPAN_OUTPUT_DIR="out",
    )


def test_a_program_of_telefuser_runs_unchanged_with_the_replacements(telefuser: Path) -> None:
    done = run_command(telefuser, "--telefuser", "--output", "out", "pipeline.py")
    ours = "stagespan.compat.telefuser.profiler"
    assert done.stdout.splitlines() == [ours, f"{ours} True", f"{ours} True"]
    assert "--telefuser replaced nothing" not in done.stderr
    assert json.loads((telefuser / "out" / "timing.json").read_text())["stages"]["decode"]


def test_a_module_of_telefuser_can_be_run(telefuser: Path) -> None:
    (telefuser / "s.json").write_text('{"stages": {"decode": {"input_signatures": {}}}}')
    module = ("-m", "telefuser.utils.stage_bench_harness", "--signature", "s.json", "--list_stages")
    assert "- decode" in run_command(telefuser, "--telefuser", *module).stdout


def test_a_program_without_telefuser_is_told_so(telefuser: Path) -> None:
    done = run_command(telefuser, "--telefuser", "other.py")
    assert done.stdout == "other\n"
    assert "--telefuser replaced nothing, because the program imported none of" in done.stderr


def test_a_program_that_needs_a_missing_telefuser_is_told_so(tmp_path: Path) -> None:
    # GIVEN a program of TeleFuser, which is not installed
    (tmp_path / "pipeline.py").write_text("from telefuser.utils import profiler\n")
    done = ran(
        [*preloaded.python(), "-m", "stagespan", "run", "--telefuser", "pipeline.py"],
        cwd=tmp_path,
        timeout_s=240,
    )
    # THEN the program fails as without the command, and the last line says why
    assert done.returncode == 1
    assert "No module named 'telefuser'" in done.stderr
    assert "because TeleFuser cannot be imported here: install it, or import from" in done.stderr
    assert "because the program imported none" not in done.stderr
