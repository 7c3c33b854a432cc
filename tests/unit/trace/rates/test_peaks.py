"""The peaks of devices: names as drivers write them, parts of devices, and files of the user."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path

import pytest

from stagespan.errors import SettingsError
from stagespan.trace.rates.peaks import peaks_of

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "memory", "units", "device", "bf16", "memory_tb_s"),
    [
        ("NVIDIA H100 80GB HBM3", 85_018_279_936, 132, "H100 SXM", 989.4, 3.352),
        ("NVIDIA H100 PCIe", None, None, "H100 PCIe", 756, 2.039),
        ("NVIDIA H200", 150_000_000_000, 132, "H200 SXM", 989.4, 4.8),
        ("NVIDIA GH200 480GB", None, None, "GH200", 989.4, 4.0),
        ("NVIDIA H20", None, None, "H20", 148, 4.0),
        ("NVIDIA B200", 191_503_138_816, 148, "B200 SXM", 2250, 8.0),
        ("NVIDIA GB200", None, None, "GB200", 2500, 8.0),
        ("NVIDIA B300 SXM6 AC", None, 148, "B300 SXM", 2250, 8.0),
        ("NVIDIA A100-SXM4-80GB", 84_990_623_744, 108, "A100 SXM 80GB", 312, 2.039),
        ("NVIDIA A100-PG509-200", 42_297_524_224, 108, "A100 40GB", 312, 1.555),
        ("NVIDIA L40S", None, None, "L40S", 362.05, 0.864),
        ("NVIDIA GeForce RTX 3060", 12_622_168_064, 28, "GeForce RTX 3060", 25.48, 0.36),
        ("NVIDIA GeForce RTX 3080", 12_622_168_064, 70, "GeForce RTX 3080 12GB", 61.28, 0.9124),
        ("NVIDIA GeForce RTX 3080", 10_500_000_000, 68, "GeForce RTX 3080", 59.54, 0.7603),
        ("NVIDIA GeForce RTX 3090 Ti", None, None, "GeForce RTX 3090 Ti", 80, 1.008),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", None, 66, "GeForce RTX 4070 Ti SUPER", 88.2, 0.672),
        ("NVIDIA GeForce RTX 4070 Ti", None, 60, "GeForce RTX 4070 Ti", 80.18, 0.504),
        ("NVIDIA RTX A5000", None, None, "RTX A5000", 111.2, 0.768),
        ("NVIDIA RTX 4000 Ada Generation", None, None, "RTX 4000 Ada", 106.8, 0.36),
        ("NVIDIA A2", None, None, "A2", 18, 0.2),
        ("Quadro RTX 6000", None, None, "Quadro RTX 6000", None, 0.672),
        ("NVIDIA RTX 6000 Ada Generation", None, None, "RTX 6000 Ada", 364.2, 0.96),
        ("NVIDIA GB10", None, None, "GB10", None, 0.273),
        ("AMD Radeon RX 9070 XT", None, None, "Radeon RX 9070 XT", 195, 0.64),
        ("Radeon RX 7900 XTX", None, None, "Radeon RX 7900 XTX", 122.8, 0.96),
        ("AMD Radeon PRO W7900", None, None, "Radeon PRO W7900", 122.6, 0.864),
        ("Tesla T4", 15_828_320_256, 40, "T4", None, 0.32),
        ("Tesla V100-DGXS-32GB", 34_084_028_416, 80, "V100 SXM", None, 0.9),
        ("AMD Instinct MI300X VF", 205_571_227_648, 304, "MI300X", 1307.4, 5.3),
        ("", 206_141_652_992, 304, "MI300X", 1307.4, 5.3),
        ("Ascend910B3", None, None, "Ascend 910B3", 313, 1.6),
        ("Ascend910_9392", None, None, "Ascend 910C, one of its two dies", 376, 1.6),
        ("ARTEMIS", None, None, "MTIA v2", 177, 0.2048),
    ],
)
def test_devices_are_found_by_odd_names(
    name: str, memory: int | None, units: int | None, device: str, bf16: float | None,
    memory_tb_s: float,
) -> None:  # fmt: skip
    found = peaks_of(name, memory, units)
    assert found is not None
    assert found.name == device
    assert found.tflops.get("bf16") == bf16
    assert found.memory_tb_s == memory_tb_s


@pytest.mark.parametrize(
    ("name", "memory", "units"),
    [
        ("Foo 9000", 80 * GIB, 132),
        ("", None, None),
        ("", 80 * GIB, None),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", 8 * GIB, 36),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16 * GIB, 76),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", None, None),
        ("NVIDIA GeForce RTX 3050 Ti Laptop GPU", None, None),
        ("Quadro RTX 6000 with Max-Q Design", 24 * GIB, 72),
        ("Quadro RTX 6000 with Max-Q Design", None, None),
        # A part of a device has a part of its rates.
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * GIB, 14),
        ("NVIDIA H100 80GB HBM3", 10 * GIB, 16),
    ],
)
def test_unknown_devices_have_no_peaks(name: str, memory: int | None, units: int | None) -> None:
    assert peaks_of(name, memory, units) is None


def test_the_kernel_says_how_single_precision_is_multiplied() -> None:
    found = peaks_of("NVIDIA A100-SXM4-80GB")
    assert found is not None
    assert found.of_type("float", ["ampere_sgemm_128x64_nn"]) == ("fp32", 19.5)
    assert found.of_type("float", ["cutlass_80_tensorop_s1688gemm_128x128"]) == ("tf32", 156)
    # Which of the two it was is unknown, and so is the share of the peak.
    assert found.of_type("float", ["mine"]) is None
    assert found.of_type("double") == ("fp64_matrix", 19.5)
    older = peaks_of("Tesla V100-SXM2-16GB")
    assert older is not None
    assert older.of_type("float", ["mine"]) == ("fp32", 15.7)
    assert older.of_type("c10::BFloat16") is None
    other = peaks_of("AMD Instinct MI300X")
    assert other is not None
    assert other.of_type("float", ["Cijk_Ailk_Bljk_SB"]) == ("fp32_matrix", 163.4)


def test_a_file_of_the_user_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a file with a device that stagespan does not know, and one that it knows
    file = tmp_path / "peaks.csv"
    file.write_text("name,bf16,memory_tb_s\nFoo 9000,123.4,2\nH100,900,3\n")
    monkeypatch.setenv("STAGESPAN_PEAKS", str(file))
    found = peaks_of("Foo 9000")
    assert found is not None
    assert (found.tflops, found.memory_tb_s) == ({"bf16": 123.4}, 2)
    found = peaks_of("NVIDIA H100 80GB HBM3")
    assert found is not None
    assert found.tflops == {"bf16": 900}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,bf16\nFoo,many\n", "line 2: bf16 of Foo is 'many'"),
        ("name,bf16\nFoo,-1\n", "write a positive number"),
        ("name,pattern\nFoo,(\n", "is not valid"),
        ("bf16\n3\n", "add a name"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    file = tmp_path / "peaks.csv"
    file.write_text(text)
    monkeypatch.setenv("STAGESPAN_PEAKS", str(file))
    with pytest.raises(SettingsError) as caught:
        peaks_of("NVIDIA B200")
    assert message in str(caught.value)


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_PEAKS", "/nowhere.csv")
    with pytest.raises(SettingsError, match="nowhere"):
        peaks_of("NVIDIA B200")


def test_rows_have_a_source_and_dense_rates() -> None:
    text = (resources.files("stagespan.trace.rates") / "devices.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        name = row["name"]
        assert row["source"], name
        assert row["date"] or row["source"].startswith("not confirmed"), name
        assert row["compared_with"] == "" or row["compared_with"].startswith("https://"), name
        rate = {key: float(row[key]) for key in ("tf32", "fp16", "bf16", "fp8") if row[key]}
        # With sparsity, a rate would be four times that of the next larger type.
        if {"fp8", "fp16"} <= rate.keys():
            assert rate["fp8"] / rate["fp16"] == pytest.approx(2, rel=0.02), name
        if {"tf32", "fp16"} <= rate.keys():
            assert rate["tf32"] / rate["fp16"] <= 0.51, name
