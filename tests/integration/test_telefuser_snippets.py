"""Code from TeleFuser's documentation runs as printed, with only its imports replaced."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from recording import python

import preloaded

pytest.importorskip("torch", reason="torch is not installed")

_SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"

_IMPORTS = {
    "telefuser.utils.profiler": "stagespan",
    "telefuser.utils.stage_bench_harness": "stagespan",
    "telefuser.platforms": "stagespan.device.platforms",
    "telefuser.core.base_stage": "base_stage",  # the user's own
}

BASE_STAGE = """
import functools

class BaseStage:
    device_type = "cpu"

    def __init__(self, name="stage", config=None):
        import torch
        self.name, self.torch_dtype = name, torch.bfloat16

def with_model_offload(names):
    def decorate(function):
        @functools.wraps(function)
        def wrapped(self, *args, **kwargs):
            assert all(hasattr(self, name) for name in names)
            return function(self, *args, **kwargs)
        return wrapped
    return decorate
"""

MY_PIPELINE = """
import torch

class Denoise:
    def process(self, latents, cfg_scale=5.0):
        return latents * cfg_scale

class Pipeline:
    denoise_stage = Denoise()

def get_pipeline():
    return Pipeline()
"""

SIGNATURES = {
    "request_id": "",
    "timestamp": "2026-04-02T00:00:00",
    "stages": {
        "denoise": {
            "stage_name": "denoise",
            "input_signatures": {
                "latents": {"shape": [1, 4, 2, 8, 8], "dtype": "bfloat16", "device": "cpu"},
                "cfg_scale": 5.0,
            },
            "output_signature": {},
            "metadata": {},
        }
    },
}


class Snippet(NamedTuple):
    """A part of the page, and the code before and after it in a program."""

    first: str
    last: str
    before: str = ""
    after: str = ""
    debug: bool = False


COUNTS = "print(sorted(name for name, stage in stagespan.stats().items() if stage.count == 1))"
PIPELINE = "import my_pipeline\npipeline = my_pipeline.get_pipeline()"
FILES = """
import pathlib
print(sorted(path.name for path in pathlib.Path().rglob('*denoise*')),
      len([*pathlib.Path().rglob('_stagespan_replay_*.py')]))
"""
REPLAYED = (
    "['denoise_bench.json', 'denoise_breakdown.json', 'denoise_trace.json.gz', "
    "'profile_denoise.py'] 1"
)

SNIPPETS = {
    "harness": (
        Snippet(
            "from telefuser.utils.stage_bench_harness import StageBenchHarness, HarnessConfig",
            "results = harness.profile()",
            PIPELINE,
            FILES,
        ),
        REPLAYED,
    ),
    "basic use": (
        Snippet(
            "from telefuser.utils.profiler import ProfilingContext",
            "    return await model(data)",
            "import asyncio\nclass Model:\n    def __call__(self, data): return self\n"
            "    def __await__(self): yield\nmodel, input_data = Model(), 1",
            f"process_data(2)\nasyncio.run(process_async(3))\n{COUNTS}",
        ),
        "['async_operation', 'my_function', 'my_operation']",
    ),
    "control from code": (
        Snippet(
            "from telefuser.utils.profiler import (",
            "output_dir = get_profiler_output_dir()",
            after="print(output_dir)\nenable_profiler_for_names(['denoise'])",
        ),
        "/path/to/traces",
    ),
    "always on": (
        Snippet('@ProfilingContext("operation_name")', "    pass", after=f"process()\n{COUNTS}"),
        "['operation_name']",
    ),
    "debug mode, off": (
        Snippet(
            '@ProfilingContext4Debug("debug_operation")', "    pass", after=f"process()\n{COUNTS}"
        ),
        "[]",
    ),
    "debug mode, on": (
        Snippet(
            '@ProfilingContext4Debug("debug_operation")',
            "    pass",
            after=f"process()\n{COUNTS}",
            debug=True,
        ),
        "['debug_operation']",
    ),
    "a stage": (
        Snippet(
            "class MyStage(BaseStage):",
            "        return self.model(input_data)",
            "import torch\nfrom telefuser.core.base_stage import BaseStage, with_model_offload",
            "stage = MyStage()\nstage.model = lambda data: torch.is_inference_mode_enabled()\n"
            f"assert stage.process(input_data=1)\n{COUNTS}",
            debug=True,
        ),
        "['my_stage_process']",
    ),
    "peak memory": (
        Snippet(
            'with ProfilingContext("operation", reset_peak_memory=False):', "    pass", after=COUNTS
        ),
        "['operation']",
    ),
    "ranks": (
        Snippet('with ProfilingContext("distributed_op"):', "    pass", after=COUNTS),
        "['distributed_op']",
    ),
    "a stage of a VAE": (
        Snippet(
            "class VAEDecodeStage(BaseStage):",
            "            return self.vae.decode(latents)",
            "import torch\nfrom telefuser.core.base_stage import BaseStage, with_model_offload",
            "class Modules:\n    def fetch_module(self, name): return self\n"
            "    def decode(self, latents): return latents @ latents\n"
            "done = VAEDecodeStage('vae', Modules(), None).process(torch.ones(2, 2))\n"
            f"assert done.dtype == torch.bfloat16\n{COUNTS}",
            debug=True,
        ),
        "['vae_decode']",
    ),
    "several operations": (
        Snippet(
            "class TextEncodingStage(BaseStage):",
            "        return embeddings",
            "import torch\nfrom telefuser.core.base_stage import BaseStage, with_model_offload",
            "stage = TextEncodingStage()\nstage.tokenizer = stage.text_encoder = list\n"
            f"stage.encode_text('ab')\n{COUNTS}",
            debug=True,
        ),
        "['embedding', 'text_encoding', 'tokenization']",
    ),
    "order of decorators": (
        Snippet(
            '@with_model_offload(["model"])      #',
            "    return self.model(data)",
            "import torch\nfrom telefuser.core.base_stage import with_model_offload",
            f"class Stage:\n    model = len\n    run = process\n"
            f"Stage.model = staticmethod(len)\nassert Stage().run('abc') == 3\n{COUNTS}",
            debug=True,
        ),
        "['process']",
    ),
    "large traces": (
        Snippet(
            "from telefuser.utils.stage_bench_harness import StageBenchHarness",
            "harness.profile()  #",
            PIPELINE,
            FILES,
        ),
        REPLAYED,
    ),
    "the platform": (
        Snippet(
            "from telefuser.platforms import current_platform",
            "print(current_platform.device_type)",
        ),
        "cpu",
    ),
    "synchronising by hand": (
        Snippet(
            "current_platform.synchronize()",
            "    pass",
            "from telefuser.platforms import current_platform",
            COUNTS,
        ),
        "['operation']",
    ),
    "a pipeline that is loaded first": (
        Snippet(
            "from my_pipeline import get_pipeline",
            ")",
            "from telefuser.utils.stage_bench_harness import StageBenchHarness",
            f"harness.setup()\nharness.profile()\n{FILES}",
        ),
        REPLAYED,
    ),
}


def printed(page: str, snippet: Snippet) -> str:
    """Return the lines of the page from `first` to the next `last`, by whole lines or prefixes."""
    lines = page.splitlines()
    begin = lines.index(snippet.first) if snippet.first in lines else -1
    if begin < 0:
        begin = next(i for i, line in enumerate(lines) if line.startswith(snippet.first))
    end = next(i for i in range(begin, len(lines)) if lines[i].startswith(snippet.last))
    return "\n".join(lines[begin : end + 1])


@pytest.fixture(scope="module")
def page() -> str:
    found = sorted(_SEEDS.glob("000*.txt"))
    if not found:
        pytest.skip(f"TeleFuser's page is missing: put it into {_SEEDS} as 000*.txt")
    return found[0].read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", SNIPPETS)
def test_snippets_run_as_printed(name: str, page: str, tmp_path: Path) -> None:
    snippet, expected = SNIPPETS[name]
    (tmp_path / "base_stage.py").write_text(BASE_STAGE)
    (tmp_path / "my_pipeline.py").write_text(MY_PIPELINE)
    signatures = tmp_path / "timing_io_signature.json"
    signatures.write_text(json.dumps(SIGNATURES))
    dated = tmp_path / "work_dirs" / "profiler_output" / "wan21_t2v" / "20260402"
    dated.mkdir(parents=True)
    (dated / signatures.name).write_text(signatures.read_text())
    program = "\n".join(
        [
            "import logging, stagespan",
            "logging.basicConfig(filename='log')",
            "from telefuser.utils.profiler import ProfilingContext, ProfilingContext4Debug",
            snippet.before,
            printed(page, snippet),
            snippet.after,
        ]
    )
    for theirs, ours in _IMPORTS.items():
        program = program.replace(f"from {theirs} import", f"from {ours} import")
    done = python(
        textwrap.dedent(program),
        tmp_path,
        start=preloaded.python(),
        TELEFUSER_PROFILE_DEBUG=str(snippet.debug).lower(),
        TELEFUSER_PIPELINE_NAME="wan21_t2v",
    )

    assert done.stdout.splitlines()[-1] == expected
    # and debug mode writes its files where the page says
    written = list(tmp_path.glob("work_dirs/profiler_output/wan21_t2v/*/timing.json"))
    assert len(written) == snippet.debug
