"""Signature files: that of TeleFuser's page, other files of TeleFuser, and other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stagespan.errors import SignatureError
from stagespan.signature import SignatureFile, StageSignature, describe

TELEFUSER = {
    "request_id": "req_20260402_1",
    "timestamp": "2026-04-02T00:00:00Z",
    "stages": {
        "denoise": {
            "stage_name": "denoise",
            "input_signatures": {
                "latents": {"shape": [1, 16, 21, 60, 104], "dtype": "bfloat16", "device": "cuda:0"},
                "cfg_scale": 5.0,
            },
            "output_signature": {"shape": [1], "dtype": "bfloat16", "device": "cuda:0"},
            "metadata": {"num_inference_steps": 40, "sigma_shift": 8.0},
        }
    },
}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_telefusers_file_is_read_completely(tmp_path: Path) -> None:
    # GIVEN the file that TeleFuser's page shows
    path = write(tmp_path / "timing_io_signature.json", TELEFUSER)

    file = SignatureFile.read(path)

    assert file.schema_version is None
    assert list(file.stage("denoise").arguments) == [
        "num_inference_steps",
        "sigma_shift",
        "latents",
        "cfg_scale",
    ]


def test_what_is_written_has_telefusers_keys_and_is_read_back(tmp_path: Path) -> None:
    stage = StageSignature("vae", {"x": 1}, {"a": 2}, {"x": 1}, {"grad": False}, "k1", 3)
    stage.variants = [StageSignature("vae", {"x": 2.0}, key="k2", count=1)]

    SignatureFile({"vae": stage}, "req", "now").write(tmp_path / "f.json")
    raw = json.loads((tmp_path / "f.json").read_text())
    again = SignatureFile.read(tmp_path / "f.json")

    # THEN nothing is lost, and the keys of TeleFuser's page are there
    assert again.stages["vae"] == stage
    assert set(TELEFUSER) <= set(raw)
    assert raw["schema_version"] == 1
    assert set(TELEFUSER["stages"]["denoise"]) <= set(raw["stages"]["vae"])  # type: ignore[index]


def test_values_that_telefuser_could_not_describe_are_unreplayable(tmp_path: Path) -> None:
    # GIVEN a file of TeleFuser, in which the names of types replace such values
    entry = {
        "stage_name": "encode",
        "input_signatures": {
            "images": "list[Image]",
            "image": "Image",
            "prompt": "a dog",
            "frames": [{"shape": [3], "dtype": "float32", "device": "cpu", "requires_grad": False}],
        },
        "output_signature": None,
        "metadata": {},
    }
    path = write(tmp_path / "f.json", {"stages": {"encode": entry}})

    inputs = SignatureFile.read(path).stage("encode").inputs

    assert inputs["images"] == {"unreplayable": "list[Image]"}
    assert inputs["image"] == {"unreplayable": "Image"}
    assert inputs["prompt"] == "a dog"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "contains a list"),
        ("null", "contains null"),
        ("{}", "no 'stages'"),
        ('{"stages": {"s": {"duration_ms": 1.0, "count": 1}}}', "is a timing report"),
        ('{"stages": []}', "'stages' is a list"),
        ('{"stages": {"a": 1}}', "stage 'a'"),
        ('{"stages": {"a": {"input_signatures": 3}}}', "'input_signatures' is a number"),
        ('{"stages": {"a": {"variants": "x"}}}', "'variants' is a string"),
        ('{"schema_version": 99, "stages": {}}', "update stagespan"),
        ('{"schema_version": "x", "stages": {}}', "schema_version is 'x'"),
    ],
)
def test_a_broken_file_is_reported_in_one_sentence(tmp_path: Path, content: str, says: str) -> None:
    path = write(tmp_path / "broken.json", content)

    with pytest.raises(SignatureError) as caught:
        SignatureFile.read(path)

    assert says in str(caught.value)
    assert "broken.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_paths_are_reported_in_one_sentence(tmp_path: Path) -> None:
    # GIVEN a missing file, a folder, and bytes that are not text
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")

    for name in ("nothing.json", ".", "bytes", "a\0b"):
        with pytest.raises(SignatureError, match=r"signature file"):
            SignatureFile.read(f"{tmp_path}/{name}")


def test_an_unknown_stage_gets_the_known_ones_and_the_closest() -> None:
    file = SignatureFile({"denoise": StageSignature("denoise"), "vae": StageSignature("vae")})

    with pytest.raises(SignatureError) as caught:
        file.stage("denoize")

    assert "did you mean 'denoise'?" in str(caught.value)
    assert "file has 'denoise', 'vae'" in str(caught.value)


def test_an_empty_file_says_so() -> None:
    with pytest.raises(SignatureError, match="has no stages"):
        SignatureFile({}).stage("x")


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"shape": [1, 2], "dtype": "bfloat16", "device": "cuda:0"}, "bfloat16[1, 2] cuda:0"),
        (5.0, "5.0"),
        ({"$type": "tuple", "items": [1, "a"]}, "(1, 'a')"),
        ({"unreplayable": "pkg.Type"}, "pkg.Type (cannot be replayed)"),
        ({"a": [1, 2, 3, 4, 5]}, "{a: [5 values]}"),
        ({"$type": "\x1b[31m", "items": 3}, "\\x1b[31m"),
        ("\x1b[31mred", "'\\x1b[31mred'"),
    ],
)
def test_nodes_are_described_in_a_few_words(node: Any, text: str) -> None:
    described = describe(node)

    # THEN the text is as expected, and has no characters that control a terminal
    assert described.isprintable()
    assert described == text
