"""Operations of whole models, against torch's own counter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import checked

from stagespan.trace import read_trace
from stagespan.trace.analyses import rates
from stagespan.trace.analyses.rates import Rates

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

# The operators of the CPU that compute what torch counts under another name.
COUNTED_AS = {
    "aten::_convolution": "aten::convolution",
    "aten::mkldnn_convolution": "aten::convolution",
    "aten::_slow_conv2d_forward": "aten::convolution",
    "aten::slow_conv3d_forward": "aten::convolution",
    "aten::slow_conv_transpose2d": "aten::convolution",
    "aten::slow_conv_dilated2d": "aten::convolution",
    "aten::thnn_conv2d": "aten::convolution",
}


def perceptron() -> Any:
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 8))
    return model, (torch.randn(5, 20),)


def resnet_block() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip
    return model, (torch.randn(2, 3, 33, 31),)


def decoder_of_images() -> Any:
    model = nn.Sequential(
        nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.SiLU(), nn.Conv2d(4, 3, 3, padding=2, dilation=2)
    )
    return model, (torch.randn(2, 8, 6, 7),)


def video() -> Any:
    return nn.Sequential(nn.Conv3d(3, 4, (2, 3, 3), (1, 2, 2))), (torch.randn(1, 3, 4, 9, 9),)


def speech() -> Any:
    return nn.Sequential(nn.Conv1d(4, 8, 5, 2), nn.GELU(), nn.Conv1d(8, 6, 3)), (
        torch.randn(2, 4, 40),
    )


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 9, 32),)


class Attention(nn.Module):
    """Attention by batched products and a softmax, as many models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(batch, length, 32)


def attention_in_parts() -> Any:
    return Attention(), (torch.randn(2, 9, 32),)


class Mixer(nn.Module):
    """Products over both dimensions, and an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels = nn.Linear(9, 9), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return torch.einsum("bij,bkj->bik", x, self.channels(x))


def mixer() -> Any:
    return Mixer(), (torch.randn(3, 9, 16),)


def bilinear() -> Any:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))
            self.bias = nn.Parameter(torch.randn(2, 5, 5))

        def forward(self, x: Any) -> Any:
            return torch.baddbmm(self.bias, x @ self.weight, x.transpose(1, 2))

    return Scores(), (torch.randn(2, 5, 6),)


def vision_transformer() -> Any:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv2d(3, 32, 4, 4)
            self.encoder = encoder()[0]
            self.head = nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.encoder(self.cut(x).flatten(2).transpose(1, 2)).mean(1))

    return Patches(), (torch.randn(2, 3, 16, 16),)


MODELS = [
    perceptron, resnet_block, decoder_of_images, video, speech,
    encoder, attention_in_parts, mixer, bilinear, vision_transformer,
]  # fmt: skip


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_operations_equal_those_of_torch(make: Callable[[], Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = make()

    def step() -> None:
        model(*inputs).sum().backward()

    step()
    with FlopCounterMode(display=False) as counter:
        step()
    expected: Counter[str] = Counter()
    for operator, flops in counter.get_flop_counts()["Global"].items():
        expected[str(operator).replace("aten.", "aten::")] += flops
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    found = checked(rates.analyze(read_trace(path)), Rates)
    counted: Counter[str] = Counter()
    for row in found.by_operator:
        if row.flops:
            counted[COUNTED_AS.get(str(row.name), str(row.name))] += row.flops
    # Torch does not count the fused attention of the CPU.
    fused = {name for name in counted if "scaled_dot_product" in name}
    for name in expected | Counter({name: 1 for name in counted if name not in fused}):
        assert counted[name] == pytest.approx(expected[name], rel=1e-9), name


def test_where_the_counts_differ_from_torch(tmp_path: Path) -> None:
    # GIVEN a convolution in groups: torch counts its gradient of the filters as if all channels
    # of the input met all filters
    model = nn.Conv2d(8, 8, 3, groups=4)
    images = torch.randn(2, 8, 9, 9, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    counts = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        model(images).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    found = checked(rates.analyze(read_trace(path)), Rates)
    rows = {str(row.name): row.flops for row in found.by_operator}
    forward = counts["aten.convolution"]
    # THEN both gradients have as many as the forward pass here
    assert rows["aten::convolution_backward"] == 2 * forward
    assert counts["aten.convolution_backward"] == forward + 4 * forward
