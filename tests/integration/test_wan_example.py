"""The demo's stages do what diffusers' own WanPipeline does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stagespan

torch = pytest.importorskip("torch")

from stagespan.harness import HarnessConfig  # noqa: E402
from stagespan.harness.adapters import adapter_for  # noqa: E402
from stagespan.harness.output import script_of  # noqa: E402
from stagespan.signature import SignatureFile, make_inputs  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "wan_pipeline"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import wan_stages

    yield wan_stages.WanStages()
    for name in ("wan_stages", "wan_models"):
        sys.modules.pop(name, None)


def test_staged_pipeline_makes_the_same_video_as_the_pipeline_itself(stages: Any) -> None:
    prompt, negative = "a cat walks on the grass", "blurry"

    staged = stages(prompt, negative, height=64, width=64, frames=5, num_inference_steps=2, seed=7)
    whole = stages.pipeline(
        prompt=prompt,
        negative_prompt=negative,
        height=64,
        width=64,
        num_frames=5,
        num_inference_steps=2,
        max_sequence_length=64,
        generator=torch.Generator().manual_seed(7),
        output_type="pt",
    ).frames

    assert staged.shape == (1, 5, 3, 64, 64)
    torch.testing.assert_close(staged, whole, rtol=0, atol=1e-4)


def test_text_encoding_equals_the_pipelines(stages: Any) -> None:
    prompts = ["a dog runs in the rain"]

    ours = stages.text_encoding_stage.process(prompts)
    with torch.inference_mode():
        theirs, _ = stages.pipeline.encode_prompt(
            prompts, do_classifier_free_guidance=False, max_sequence_length=64
        )

    # THEN the embeddings are the same, padding included
    assert torch.equal(ours, theirs)
    assert ours[0, -1].abs().sum() == 0


def test_the_scripts_of_its_stages_can_be_read(stages: Any) -> None:
    stagespan.set_debug(True)
    try:
        stages("a cat", "blurry", height=64, width=64, frames=5, num_inference_steps=2, seed=7)
        found = SignatureFile.from_json({"stages": stagespan.get_io_signatures()}).stages
    finally:
        stagespan.set_debug(False)
    owners = {
        "text_encoding": stages.text_encoding_stage,
        "denoise": stages.denoise_stage,
        "vae_decode": stages.vae_decode_stage,
    }
    for name, owner in owners.items():
        signature, config = found[name], HarnessConfig()
        inputs = make_inputs(signature, stage=owner)
        adapter = adapter_for(owner, inputs, name, config)
        text, _ = script_of(signature, owner, adapter, config, f"profile_{name}.py")

        assert len(text.splitlines()) <= 250
