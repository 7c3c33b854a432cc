"""``telefuser.platforms``: the current platform, with one class for each kind."""

from __future__ import annotations

import torch

from stagespan.device import platforms
from stagespan.device.platforms import Accelerator
from stagespan.device.platforms import Platform as BasePlatform

__all__ = [
    "BasePlatform",
    "CpuPlatform",
    "CudaPlatform",
    "NPUPlatform",
    "RocmPlatform",
    "XpuPlatform",
    "current_platform",
]


class CpuPlatform(BasePlatform):
    """A machine without an accelerator: `synchronize` and the memory functions do nothing."""


class CudaPlatform(Accelerator):
    """NVIDIA GPUs."""

    @staticmethod
    def init_cudnn_optimizations() -> None:
        """Enable TF32, reduced-precision sums, and the benchmark that selects convolutions."""
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True


class RocmPlatform(Accelerator):
    """AMD GPUs, which torch drives through ``torch.cuda``."""


class XpuPlatform(Accelerator):
    """Intel GPUs."""


class NPUPlatform(Accelerator):
    """Ascend NPUs."""


_CLASSES: dict[str, type[Accelerator]] = {
    "cuda": CudaPlatform,
    "rocm": RocmPlatform,
    "xpu": XpuPlatform,
    "npu": NPUPlatform,
}


def _current() -> BasePlatform:
    platform = platforms.loaded_platform()
    if not isinstance(platform, Accelerator):
        return CpuPlatform()
    return platform.as_kind(_CLASSES.get(platform.name, Accelerator))


current_platform: BasePlatform = _current()
"""The platform of this process, found when this module was imported; creates no device context."""
