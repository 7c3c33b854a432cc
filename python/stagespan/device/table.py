"""A table of the kinds of devices, one row for each. To add a device, add a row.

This module is imported with stagespan, so it does not import torch or other large modules.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Device(NamedTuple):
    """One kind of device."""

    name: str
    device_type: str
    """torch's name, as in ``torch.device("cuda")``."""
    activity: str = "CPU"
    """Member of `torch.profiler.ProfilerActivity` that records the device's work."""
    events: str = ""
    """Event backend of the extension; empty if it has none for the device."""
    package: str = "torch"
    """Package that adds the device's module to torch."""
    version: str = ""
    """Attribute of `torch.version` that is set if torch is built for this device."""
    profilers: tuple[str, ...] = ("torch.profiler",)
    """Modules that can profile the device, the preferred one first."""
    dispatch_key: str = "PrivateUse1"
    communication: str = "gloo"
    """Backend of torch.distributed."""
    visible_variable: str = ""
    """Environment variable that limits which devices a process sees."""
    trace_launches: tuple[str, ...] = ()
    """Beginnings of the names that launches of kernels have in a trace."""
    calls: str = ""
    """Beginnings of the names of its runtime's and driver's calls, as alternatives of a pattern."""
    has_cuda_calls: bool = False
    """Whether these names go on as in CUDA: `hipMalloc` is `cudaMalloc`."""
    collectives: str = ""
    """What the names of the kernels of its communication library contain."""
    advice: str = "update torch, or the package that adds the device to it."
    """What to do if traces lack the device's work."""


CPU = Device("cpu", "cpu", dispatch_key="CPU", visible_variable="CPU_VISIBLE_MEMORY_NODES")
CUDA = Device(
    "cuda",
    "cuda",
    "CUDA",
    events="cuda",
    dispatch_key="CUDA",
    communication="nccl",
    visible_variable="CUDA_VISIBLE_DEVICES",
    trace_launches=("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch"),
    calls="cuda|cu",
    has_cuda_calls=True,
    collectives="nccl",
    advice="see that no other profiler (ncu, nsys, DCGM) holds CUPTI, and that torch finds CUPTI.",
)
ROCM = CUDA._replace(  # torch's ROCm has the names of CUDA
    name="rocm",
    events="rocm",
    version="hip",
    trace_launches=("hipLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel"),
    calls="hip",
    collectives="rccl",
    advice="install roctracer, or rocprofiler-sdk, for the version of ROCm that torch has.",
)
XPU = Device(
    "xpu",
    "xpu",
    "XPU",
    events="xpu",
    dispatch_key="XPU",
    communication="xccl",
    visible_variable="ZE_AFFINITY_MASK",
    trace_launches=("zeCommandListAppendLaunchKernel", "urEnqueueKernelLaunch"),
    calls="ur|ze|pi",
    advice="use a torch that is built with Intel PTI, version 2.6 or later.",
)
NPU = Device(
    "npu",
    "npu",
    "PrivateUse1",
    events="npu",
    package="torch_npu",
    profilers=("torch_npu.profiler", "torch.profiler"),
    communication="hccl",
    visible_variable="ASCEND_RT_VISIBLE_DEVICES",
    trace_launches=("aclnn", "Node@launch"),
    calls="aclrt",
    has_cuda_calls=True,
    collectives="hccl",
    advice="source the set_env.sh of CANN, and use the torch_npu that fits torch and CANN.",
)
DEVICES = (CPU, CUDA, ROCM, XPU, NPU)
"""The devices that stagespan knows. Any other accelerator of torch gets a row when it is found."""
DEVICE_TYPES = tuple(dict.fromkeys(row.device_type for row in DEVICES if row is not CPU))
"""torch's names of the accelerators, in the order in which they are looked for."""
CALLS_LIKE_CUDA = "|".join(row.calls for row in DEVICES if row.has_cuda_calls)
COLLECTIVES = "|".join(row.collectives for row in DEVICES if row.collectives)
"""Alternatives of a pattern: the columns `calls` and `collectives` of the table."""
PACKAGES = tuple(dict.fromkeys(("torch", *(row.package for row in DEVICES))))
"""Packages after whose import torch can have an accelerator."""


def row_of(torch: Any, device_type: str) -> Device | None:
    """Return the row of a kind of device for this build of torch; None if the table has none."""
    rows = [row for row in DEVICES if row.device_type == device_type]
    built_for = (row for row in rows if row.version and getattr(torch.version, row.version, None))
    return next(built_for, None) or next((row for row in rows if not row.version), None)


def is_capturing(module: Any) -> bool:
    """Whether a device graph is being captured on the current stream of a module of torch."""
    capturing = getattr(module, "is_current_stream_capturing", None)
    return capturing is not None and bool(capturing())
