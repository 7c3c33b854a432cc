"""diffusers' WanPipeline with its real classes, a tiny configuration and random weights.

Nothing is downloaded: the weights come from a seed and the tokenizer from a vocabulary below.
"""

from __future__ import annotations

import os
import string

# Before the first import of a Hugging Face library: it must not look for anything on the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import T5TokenizerFast, UMT5Config, UMT5EncoderModel

TEXT_WIDTH = 64
WORDS = ("a", "the", "cat", "dog", "walks", "runs", "on", "in", "grass", "rain", "slowly", "blurry")


def build_tokenizer() -> T5TokenizerFast:
    """A T5 tokenizer whose vocabulary is a few words and all letters, digits and marks."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    vocabulary += [(f"▁{word}", -3.0) for word in WORDS]
    characters = string.ascii_letters + string.digits + string.punctuation
    vocabulary += [(character, -6.0) for character in characters]
    return T5TokenizerFast(vocab=vocabulary, extra_ids=0)


def build_text_encoder(vocabulary_size: int) -> UMT5EncoderModel:
    """The text encoder of Wan, two layers deep."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=vocabulary_size,
            d_model=TEXT_WIDTH,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            relative_attention_num_buckets=8,
            dropout_rate=0.0,
        )
    )


def build_transformer() -> WanTransformer3DModel:
    """The denoiser of Wan, four blocks deep."""
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=6,
        attention_head_dim=64,
        in_channels=16,
        out_channels=16,
        text_dim=TEXT_WIDTH,
        freq_dim=64,
        ffn_dim=1024,
        num_layers=4,
        rope_max_seq_len=64,
    )


def build_vae() -> AutoencoderKLWan:
    """The video decoder of Wan, narrow."""
    return AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=1)


def build_pipeline(seed: int = 0) -> WanPipeline:
    """A whole WanPipeline in evaluation mode, on a GPU if torch sees one.

    The weights are the same for the same seed.
    """
    torch.manual_seed(seed)
    # Models this small are quickest on one thread, and their times the steadiest.
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    pipeline = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=build_text_encoder(len(tokenizer)).eval(),
        vae=build_vae().eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        transformer=build_transformer().eval(),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to("cuda" if torch.cuda.is_available() else "cpu")
