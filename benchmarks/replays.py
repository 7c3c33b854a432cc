"""Replays compared with their live runs, on real model classes with tiny random weights.

    python -m benchmarks.replays [--rounds N] [--latents] [--json FILE] [NAME ...]
    python -m benchmarks.replays --repeats 5 [--json FILE] [NAME ...]

Each stage runs live in debug mode, which writes its signature. Then it is replayed with the default
settings, and a live run follows each measured run of the replay, because the speed of the processor
changes from one second to the next on many machines. The same is done for the generated script.
Times are CPU times of the thread. Launches are counted exactly, in the same interval of a profile.
With ``--latents``, only pipelines run, and their calls get latents, as some programs pass them.
With ``--repeats``, each stage is replayed several times with the default settings instead, and the
table has the spread of the medians of CPU time.
Needs torch; stages whose library (diffusers, transformers) is not installed are left out.
"""

# ruff: noqa: D101, D103 - the names of the stages and models say what they are
from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gzip
import io
import json
import logging
import os
import runpy
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import stagespan

STEPS = 4


@dataclass
class Stage:
    """A stage that is run live and replayed."""

    owner: Any
    """The object whose method is the stage, as a factory would return it."""
    method: str
    run: Callable[..., Any]
    """One live run. Keyword arguments are added to those of the call."""
    scheduler: Any = None
    """Of a loop: what ends its steps."""
    model: Any = None
    """Of a loop over tokens: whose forward ends its steps."""
    config: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None
    """Called before each live run, outside of what is measured."""


def random(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def pipeline(pipe: Any, **arguments: Any) -> Stage:
    """A diffusers pipeline, called without latents as usual."""
    pipe.set_progress_bar_config(disable=True)
    arguments = {"num_inference_steps": STEPS, "output_type": "latent", **arguments}

    def run(**more: Any) -> Any:
        return pipe(**arguments, **more, generator=torch.Generator().manual_seed(0))

    return Stage(pipe, "__call__", run, scheduler=pipe.scheduler)


def with_latents(stage: Stage) -> Stage:
    """Return the stage of a pipeline that is called with its latents."""
    scheduler, run = stage.scheduler, stage.run
    step = scheduler.step
    taken: list[Any] = []

    def recorded(output: Any, timestep: Any, sample: Any, **more: Any) -> Any:
        taken.append(sample.clone())
        return step(output, timestep, sample, **more)

    scheduler.step = recorded
    try:
        run()
    finally:
        del scheduler.step
    return replace(stage, run=lambda: run(latents=taken[0].clone()))


def without(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


def prompts(length: int, width: int, pooled: int = 0, negative: bool = True) -> dict[str, Any]:
    """Prompt embeddings, with pooled and negative ones."""
    made = {"prompt_embeds": random(1, length, width)}
    if pooled:
        made["pooled_prompt_embeds"] = random(1, pooled)
    if negative:
        made.update({f"negative_{name}": value.clone() for name, value in made.items()})
    return made


def wan(experts: int = 1) -> Stage:
    import diffusers as d

    models = [
        d.WanTransformer3DModel(
            num_attention_heads=4, attention_head_dim=32, in_channels=16, out_channels=16,
            text_dim=64, freq_dim=64, ffn_dim=256, num_layers=2, rope_max_seq_len=64,
        ).eval()
        for _ in range(experts)
    ]  # fmt: skip
    vae = d.AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=1).eval()
    scheduler = d.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    more = {"transformer_2": models[1], "boundary_ratio": 0.875} if experts == 2 else {}
    pipe = d.WanPipeline(
        transformer=models[0], vae=vae, scheduler=scheduler, **more,
        **without("tokenizer", "text_encoder"),
    )  # fmt: skip
    return pipeline(pipe, **prompts(16, 64), num_frames=9, height=64, width=64)


def wan22() -> Stage:
    return wan(experts=2)


def image_vae(**more: Any) -> Any:
    import diffusers as d

    return d.AutoencoderKL(
        block_out_channels=(8,) * 4, latent_channels=4, norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        **more,
    ).eval()  # fmt: skip


def flux() -> Stage:
    import diffusers as d

    model = d.FluxTransformer2DModel(
        in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=32,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16,
        guidance_embeds=True, axes_dims_rope=(8, 12, 12),
    ).eval()  # fmt: skip
    pipe = d.FluxPipeline(
        transformer=model, vae=image_vae(shift_factor=0.0),
        scheduler=d.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        **without("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"),
    )  # fmt: skip
    return pipeline(pipe, **prompts(24, 32, 16, negative=False), height=128, width=128)


def sd3() -> Stage:
    import diffusers as d

    model = d.SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=32,
        num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=64,
        pooled_projection_dim=16, out_channels=4,
    ).eval()  # fmt: skip
    pipe = d.StableDiffusion3Pipeline(
        transformer=model, vae=image_vae(), scheduler=d.FlowMatchEulerDiscreteScheduler(shift=3.0),
        **without("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3",
                  "tokenizer_3"),
    )  # fmt: skip
    return pipeline(pipe, **prompts(24, 32, 16), height=128, width=128)


def sdxl() -> Stage:
    import diffusers as d

    model = d.UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=1, sample_size=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=(2, 4),
        use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1), projection_class_embeddings_input_dim=64,
        cross_attention_dim=32,
    ).eval()  # fmt: skip
    pipe = d.StableDiffusionXLPipeline(
        unet=model, vae=image_vae(), scheduler=d.EulerDiscreteScheduler(), add_watermarker=False,
        **without("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"),
    )  # fmt: skip
    return pipeline(pipe, **prompts(24, 32, 16), height=128, width=128)


def qwen_image() -> Stage:
    import diffusers as d

    model = d.QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=2, attention_head_dim=32, num_attention_heads=2,
        joint_attention_dim=16, axes_dims_rope=(8, 12, 12),
    ).eval()  # fmt: skip
    vae = d.AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 2, 4], num_res_blocks=1,
        temperal_downsample=[False, True], latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    ).eval()  # fmt: skip
    pipe = d.QwenImagePipeline(
        transformer=model, vae=vae, scheduler=d.FlowMatchEulerDiscreteScheduler(),
        **without("text_encoder", "tokenizer"),
    )  # fmt: skip
    masks = {"prompt_embeds_mask": torch.ones(1, 16, dtype=torch.long)}
    masks["negative_prompt_embeds_mask"] = masks["prompt_embeds_mask"].clone()
    return pipeline(pipe, **prompts(16, 16), **masks, true_cfg_scale=3.0, height=128, width=128)


def hunyuan_video() -> Stage:
    import diffusers as d

    model = d.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=32, num_layers=2,
        num_single_layers=2, num_refiner_layers=1, patch_size=1, text_embed_dim=16,
        pooled_projection_dim=8, rope_axes_dim=(8, 12, 12),
    ).eval()  # fmt: skip
    vae = d.AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8,) * 4, layers_per_block=1, norm_num_groups=4
    ).eval()
    pipe = d.HunyuanVideoPipeline(
        transformer=model, vae=vae, scheduler=d.FlowMatchEulerDiscreteScheduler(shift=7.0),
        **without("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"),
    )  # fmt: skip
    mask = torch.ones(1, 16, dtype=torch.long)
    given = prompts(16, 16, 8, negative=False)
    return pipeline(pipe, **given, prompt_attention_mask=mask, num_frames=9, height=64, width=64)


def cogvideox() -> Stage:
    import diffusers as d

    model = d.CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=32, in_channels=4, out_channels=4,
        time_embed_dim=16, text_embed_dim=32, num_layers=2, sample_width=16, sample_height=16,
        sample_frames=9, max_text_seq_length=16,
    ).eval()  # fmt: skip
    vae = d.AutoencoderKLCogVideoX(
        block_out_channels=(8,) * 4, latent_channels=4, layers_per_block=1, norm_num_groups=2
    ).eval()
    pipe = d.CogVideoXPipeline(
        transformer=model, vae=vae, scheduler=d.CogVideoXDDIMScheduler(),
        **without("text_encoder", "tokenizer"),
    )  # fmt: skip
    return pipeline(pipe, **prompts(16, 32), num_frames=9, height=128, width=128)


def ltx() -> Stage:
    import diffusers as d

    model = d.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=32,
        cross_attention_dim=64, num_layers=2, caption_channels=32,
    ).eval()  # fmt: skip
    vae = d.AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5, decoder_layers_per_block=(1,) * 5,
    ).eval()  # fmt: skip
    pipe = d.LTXPipeline(
        transformer=model, vae=vae, scheduler=d.FlowMatchEulerDiscreteScheduler(),
        **without("text_encoder", "tokenizer"),
    )  # fmt: skip
    mask = torch.ones(1, 16, dtype=torch.long)
    masks = {"prompt_attention_mask": mask, "negative_prompt_attention_mask": mask.clone()}
    return pipeline(pipe, **prompts(16, 32), **masks, num_frames=9, height=128, width=128)


def language_model(**more: Any) -> Any:
    import transformers as t

    config = t.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=1000, eos_token_id=None, pad_token_id=0, **more,
    )  # fmt: skip
    return t.LlamaForCausalLM(config).eval()


def padded(rows: int, width: int) -> dict[str, Any]:
    """Left-padded token ids with their mask."""
    ids = torch.randint(1, 1000, (rows, width), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, : 7 * row] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def llama_prefill() -> Stage:
    model, given = language_model(), padded(4, 64)
    return Stage(model, "forward", lambda: model(**given))


def llama_decode() -> Stage:
    model, given = language_model(), padded(4, 64)
    with torch.no_grad():
        cache = model(**given).past_key_values
    mask = torch.cat([given["attention_mask"], torch.ones(4, 1, dtype=torch.long)], 1)
    ids = given["input_ids"][:, -1:]  # not in run(), which contains only the stage
    pasts: list[Any] = []

    def run() -> Any:
        return model(input_ids=ids, attention_mask=mask, past_key_values=pasts.pop())

    return Stage(model, "forward", run, prepare=lambda: pasts.append(copy.deepcopy(cache)))


def llama_generate() -> Stage:
    model, given = language_model(), padded(2, 32)
    options = {"max_new_tokens": 8, "do_sample": False}
    return Stage(model, "generate", lambda: model.generate(**given, **options), model=model)


def llama_generate_whole() -> Stage:
    stage = llama_generate()
    stage.model, stage.config = None, {"step": "whole"}
    return stage


def mixtral() -> Stage:
    import transformers as t

    config = t.MixtralConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=1000, num_local_experts=4,
    )  # fmt: skip
    model, given = t.MixtralForCausalLM(config).eval(), padded(2, 64)
    return Stage(model, "forward", lambda: model(**given))


def whisper() -> Stage:
    import transformers as t

    config = t.WhisperConfig(
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=1000,
        max_source_positions=100, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    model = t.WhisperForConditionalGeneration(config).eval()
    features, ids = random(1, 80, 200), torch.ones(1, 8, dtype=torch.long)
    return Stage(model, "forward", lambda: model(input_features=features, decoder_input_ids=ids))


def qwen2_vl() -> Stage:
    import transformers as t

    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    text = t.models.qwen2_vl.Qwen2VLTextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=1000, rope_parameters=rope, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    vision = t.models.qwen2_vl.Qwen2VLVisionConfig(
        depth=2, embed_dim=32, hidden_size=64, num_heads=2, patch_size=4, spatial_merge_size=2,
        temporal_patch_size=2,
    )  # fmt: skip
    config = t.Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=7, video_token_id=8,
        vision_start_token_id=5, vision_end_token_id=6,
    )  # fmt: skip
    model = t.Qwen2VLForConditionalGeneration(config).eval()
    grid = torch.tensor([[1, 16, 16]])  # 256 patches, merged to 64 tokens
    ids = torch.randint(10, 1000, (1, 96), generator=torch.Generator().manual_seed(2))
    ids[0, 3], ids[0, 4:68], ids[0, 68] = 5, 7, 6
    given = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == 7).long(),
        "pixel_values": random(256, 3 * 2 * 4 * 4),
        "image_grid_thw": grid,
    }
    return Stage(model, "forward", lambda: model(**given))


def vit() -> Stage:
    import transformers as t

    config = t.ViTConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=128,
        image_size=64, patch_size=8,
    )  # fmt: skip
    model = t.ViTModel(config).eval()
    pixels = random(2, 3, 64, 64).to(memory_format=torch.channels_last)
    return Stage(model, "forward", lambda: model(pixel_values=pixels))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(6))
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Compiled:
    def __init__(self) -> None:
        self.net = torch.compile(Net().eval())

    def process(self, x: Any) -> Any:
        return self.net(x)


def compiled() -> Stage:
    stage, x = Compiled(), random(64, 256)
    return Stage(stage, "process", lambda: stage.process(x))


def cached() -> Stage:
    """A pipeline whose model takes the result of most blocks from its cache if the first changes
    little."""
    from diffusers.hooks import FirstBlockCacheConfig

    stage = flux()
    stage.owner.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.5))
    return stage


ALL = {
    made.__name__: made
    for made in (
        wan, wan22, flux, sd3, sdxl, qwen_image, hunyuan_video, cogvideox, ltx, llama_prefill,
        llama_decode, llama_generate, llama_generate_whole, mixtral, whisper, qwen2_vl, vit,
        compiled, cached,
    )
}  # fmt: skip


@contextlib.contextmanager
def between(stage: Stage, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Call ``begin`` and ``end`` around the second step of a live loop, or around the whole run."""
    count = 0

    def returned(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == 1:
            begin()
        elif count == 2:
            end()

    if stage.model is not None:
        handle = stage.model.register_forward_hook(returned)
        yield
        handle.remove()
    elif stage.scheduler is not None:
        kind = type(stage.scheduler)
        original = kind.step

        def step(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            returned()
            return result

        kind.step = step
        yield
        kind.step = original
    else:
        begin()
        yield
        end()


def live_cpu_ms(stage: Stage) -> float:
    stamps: list[int] = []

    def note() -> None:
        stamps.append(time.thread_time_ns())

    stage.prepare()
    with torch.no_grad(), between(stage, note, note):
        stage.run()
    return (stamps[1] - stamps[0]) / 1e6


def live_launches(stage: Stage, folder: Path) -> int:
    # With shapes, like the harness, because they change the category of a compiled graph's call.
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    )
    stage.prepare()
    with torch.no_grad(), between(stage, profiler.start, profiler.stop):
        stage.run()
    path = folder / "live.json.gz"
    profiler.export_chrome_trace(str(path))
    return launches(path)


def launches(path: Path) -> int:
    """Return the number of operators in a trace."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    return sum(event.get("cat") == "cpu_op" for event in events)


def capture(stage: Stage, folder: Path) -> Path:
    """Run the stage live in debug mode. Returns the path of its signature file."""
    kind = type(stage.owner)
    defined_there = vars(kind).get(stage.method)
    original = getattr(kind, stage.method)
    stagespan.reset_timing_registry()
    stagespan.set_debug()
    setattr(kind, stage.method, stagespan.ProfilingContext4Debug("stage")(original))
    try:
        with torch.no_grad():
            for _ in range(3):
                stage.prepare()
                stage.run()
    finally:
        if defined_there is None:
            delattr(kind, stage.method)
        else:
            setattr(kind, stage.method, defined_there)
    path = stagespan.dump_io_signatures(folder / "timing_io_signature.json")
    stagespan.dump_timing_report(folder / "timing.json")
    stagespan.set_debug(False)
    return path


def measure(stage: Stage, folder: Path, rounds: int) -> dict[str, Any]:
    """Return CPU times and launches of live runs, replays and the script of one stage."""
    path = capture(stage, folder)
    live_ms: list[float] = []
    replay_ratios: list[float] = []
    script_ratios: list[float] = []
    result: Any = None
    for _ in range(rounds):
        result, live = replay(stage, path, folder)
        live_ms += live
        replay_ratios.append(result.timing_ms["cpu"]["p50"] / statistics.median(live))
        timing, live = run_script(stage, result.script_path)
        live_ms += live
        script_ratios.append(timing["cpu"]["p50"] / statistics.median(live))
    return {
        "adapter": result.adapter,
        "iteration": result.iteration,
        "live_cpu_ms": statistics.median(live_ms),
        "replay_ratio": statistics.median(replay_ratios),
        "script_ratio": statistics.median(script_ratios),
        "live_launches": live_launches(stage, folder),
        "replay_launches": launches(result.trace_path),
        "fidelity": result.fidelity["line"],
    }


def replay(stage: Stage, path: Path, folder: Path) -> tuple[Any, list[float]]:
    """Replay a stage. Returns the result, and the times of the live runs between its runs."""
    live_ms: list[float] = []

    def progress(part: str, done: int, total: int | None) -> None:
        if part == "timing":
            live_ms.append(live_cpu_ms(stage))

    config = stagespan.HarnessConfig(output_dir=folder / "out", progress=progress, **stage.config)
    harness = stagespan.StageBenchHarness.from_signature_file(path, "stage", stage.owner, config)
    return harness.profile(), live_ms


def run_script(stage: Stage, path: Path) -> tuple[dict[str, Any], list[float]]:
    """Run a script. Returns its times, and those of the live runs between its runs."""
    live_ms: list[float] = []
    script = runpy.run_path(str(path))
    # All scripts share this class.
    measure = functools.partialmethod(
        script["Replay"].measure, progress=lambda done: live_ms.append(live_cpu_ms(stage))
    )
    with (
        mock.patch.object(script["Replay"], "measure", measure),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        return script["profile_stage"](stage.owner, steps=0)["timing_ms"], live_ms


def repeat(stage: Stage, folder: Path, repeats: int) -> dict[str, Any]:
    """Return the median CPU time of each replay, and which of them ran on a busy machine."""
    path = capture(stage, folder)
    medians, busy = [], []
    for _ in range(repeats):
        config = stagespan.HarnessConfig(output_dir=folder / "out", **stage.config)
        harness = stagespan.StageBenchHarness.from_signature_file(
            path, "stage", stage.owner, config
        )
        timing = harness.profile().timing_ms
        medians.append(timing["cpu"]["p50"])
        busy.append(timing["busy"] is not None)
    calm = [cpu_ms for cpu_ms, was_busy in zip(medians, busy, strict=True) if not was_busy]
    return {
        "cpu_ms": medians,
        "busy": busy,
        "median_cpu_ms": statistics.median(medians),
        "spread": spread(medians),
        "calm_spread": spread(calm),
    }


def spread(figures: list[float]) -> float | None:
    """Return the range divided by the median; None if there are fewer than two figures."""
    if len(figures) < 2:
        return None
    return (max(figures) - min(figures)) / statistics.median(figures)


def main() -> None:
    """Measure the named stages, or all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    parser.add_argument("--rounds", type=int, default=3, help="turns of live, replay and script")
    parser.add_argument("--repeats", type=int, help="replay each stage N times at defaults")
    parser.add_argument("--latents", action="store_true", help="pass latents to pipelines")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in ALL]
    if unknown:
        parser.error(f"there is no stage {unknown[0]!r}; there are {', '.join(ALL)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("stagespan").setLevel(logging.ERROR)
    rows: dict[str, Any] = {}
    if given.repeats:
        columns = ("stage", "CPU ms", "max - min", "machine was busy", "others: max - min")
        print("{:22}{:>10}{:>12}{:>19}{:>20}".format(*columns))
    else:
        columns = ("stage", "adapter", "live CPU ms", "replay / live", "script / live", "launches")
        print("{:22}{:10}{:>12}{:>15}{:>15}  {}".format(*columns))
    for name in given.names or ALL:
        torch.manual_seed(0)
        try:
            stage = ALL[name]()
        except ImportError as error:
            print(f"{name:22}left out: {error}")
            continue
        if given.latents:
            if stage.scheduler is None:
                continue
            stage = with_latents(stage)
        with tempfile.TemporaryDirectory() as folder:
            if given.repeats:
                row = rows[name] = repeat(stage, Path(folder), given.repeats)
                shares = [
                    "-" if row[key] is None else f"{row[key]:.1%}"
                    for key in ("spread", "calm_spread")
                ]
                print(
                    f"{name:22}{row['median_cpu_ms']:>10.2f}{shares[0]:>12}"
                    f"{sum(row['busy']):>14} of {given.repeats}{shares[1]:>20}",
                    flush=True,
                )
                continue
            row = rows[name] = measure(stage, Path(folder), given.rounds)
        print(
            f"{name:22}{row['adapter']:10}{row['live_cpu_ms']:>12.2f}{row['replay_ratio']:>15.2f}"
            f"{row['script_ratio']:>15.2f}  {row['replay_launches']:,} of {row['live_launches']:,}",
            flush=True,
        )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
