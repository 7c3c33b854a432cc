"""The culprit collects garbage after each step of a pipeline of diffusers."""

import gc

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

torch.set_num_threads(1)
torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 8),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "UpBlock2D"),
)


class Pipeline(DDPMPipeline):
    def progress_bar(self, steps):
        for step in steps:
            yield step
            gc.collect()


pipeline = Pipeline(unet, DDPMScheduler(100))
print(pipeline(num_inference_steps=20, output_type="np").images.shape)
