"""STAGESPAN_REDACT=strings: signatures without the content of strings, bytes and paths."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import preloaded
from stagespan.signature import capture
from stagespan.signature.key import key_of
from stagespan.signature.kinds import contains_text
from stagespan.signature.model import StageSignature

SECRET = "a secret prompt"


@dataclasses.dataclass
class Options:
    prompt: str
    steps: int


class Text(str):
    pass


Pair = collections.namedtuple("Pair", ["prompt", "number"])

VALUES: dict[str, Any] = {
    "text": SECRET,
    "long text": SECRET * 1000,
    "subclass": Text(SECRET),
    "bytes": SECRET.encode(),
    "bytearray": bytearray(SECRET.encode()),
    "path": pathlib.PurePosixPath("/home") / SECRET,
    "list": [SECRET, 1],
    "long list": [SECRET] * 1000,
    "tuple": (SECRET, (SECRET,)),
    "set": {SECRET, SECRET + "!"},
    "dictionary": {"prompt": SECRET, "inner": {"negative": [SECRET]}},
    "dictionary with other keys": {("a", 1): SECRET, 2: SECRET},
    "user's dictionary": collections.UserDict(prompt=SECRET),
    "dataclass": Options(SECRET, 30),
    "namedtuple": Pair(SECRET, 1),
    "slice": slice(SECRET, None),
}


@pytest.fixture
def redacting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_REDACT", "strings")


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.usefixtures("redacting")
def test_content_is_left_out_and_structure_is_kept(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = VALUES[what]
    # WHEN it is described with and without redaction
    redacted = capture(value)
    monkeypatch.setenv("STAGESPAN_REDACT", "none")
    whole = capture(value)
    # THEN none of the content is left
    assert "secret" not in json.dumps(redacted)
    assert SECRET.encode().hex() not in json.dumps(redacted)
    assert (contains_text(redacted), contains_text(whole)) == (False, True)
    # and the form of the input is the same
    assert key_of({"x": redacted}) == key_of({"x": whole})


@pytest.mark.usefixtures("redacting")
def test_the_form_of_redacted_values() -> None:
    assert capture(SECRET) == {"$type": "str", "length": 15}
    assert capture(b"123") == {"$type": "bytes", "length": 3}
    assert capture(pathlib.PurePosixPath("a/b")) == {"$type": "path", "length": 3}
    assert capture({"prompt": "ab", "steps": 3, "on": True}) == {
        "prompt": {"$type": "str", "length": 2},
        "steps": 3,
        "on": True,
    }
    assert capture({1: "ab"})["items"] == [[1, {"$type": "str", "length": 2}]]
    assert capture({("key", 1): "ab"})["items"][0][0] == {"$type": "tuple", "items": ["key", 1]}


NODES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(NODES)
def test_any_value_has_one_key_and_no_text_when_redacted(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGESPAN_REDACT", "strings")
        redacted = capture(value)
        patch.setenv("STAGESPAN_REDACT", "none")
        whole = capture(value)
    assert key_of({"x": redacted}) == key_of({"x": whole})
    assert not contains_text(redacted)


@pytest.mark.usefixtures("redacting")
def test_a_replay_gets_texts_of_the_same_length() -> None:
    pytest.importorskip("torch", reason="mock inputs need torch")
    from stagespan.signature import make_inputs

    names = [name for name in VALUES if name != "long list"]
    nodes = {name.replace(" ", "_").replace("'", ""): capture(VALUES[name]) for name in names}

    first, second = (make_inputs(StageSignature("s", dict(nodes))) for _ in range(2))

    assert first == second
    assert (type(first["text"]), len(first["text"])) == (str, 15)
    assert len(first["long_text"]) == 15_000
    assert first["bytes"] == bytes(15)
    assert len(str(first["path"])) == len(str(VALUES["path"]))
    assert sorted(map(len, first["set"])) == [15, 16]
    assert len(first["dictionary"]["inner"]["negative"][0]) == 15
    assert first["dataclass"].steps == 30
    # and texts of different arguments differ
    made = make_inputs(StageSignature("s", {f"a{i}": capture(SECRET) for i in range(5)}))
    assert len(set(made.values())) > 1


PROGRAM = f"""
import stagespan

@stagespan.ProfilingContext4Debug("encode")
def encode(prompt, image, scale=1.0):
    return prompt.upper()

stagespan.set_debug()
encode({SECRET!r}, b"bytes")
encode({SECRET!r} + " that is longer", b"bytes")
"""


def run(code: str, cwd: Path, **variables: str) -> None:
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "STAGESPAN_OUTPUT_DIR": "out", **variables},
        cwd=cwd,
        check=True,
        capture_output=True,
        timeout=120,
    )


def stages(cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stagespan", "stages", "out/timing_io_signature.json"],
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout


def test_a_run_that_redacts(tmp_path: Path) -> None:
    run(PROGRAM, tmp_path, STAGESPAN_REDACT="strings")
    # THEN the prompt is in none of its files, in upper or lower case
    texts = [path.read_text().lower() for path in (tmp_path / "out").iterdir()]
    assert len(texts) == 2
    assert [text for text in texts if "secret" in text] == []
    # and the length is that of the latest run, like other values
    signatures = json.loads((tmp_path / "out" / "timing_io_signature.json").read_text())
    entry = signatures["stages"]["encode"]
    assert entry["input_signatures"]["prompt"] == {"$type": "str", "length": 30}
    assert (entry["count"], entry["metadata"]) == (2, {"scale": 1.0})
    page = stages(tmp_path)
    assert "prompt: string of 30 characters" in page
    assert "image: bytes of 5 bytes" in page
    assert "This file contains no text from inputs or outputs." in page


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_files_with_content_are_for_their_owner_only(umask: int, tmp_path: Path) -> None:
    # GIVEN an older file that others can read
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "timing_io_signature.json").write_text("{}")
    os.chmod(tmp_path / "out" / "timing_io_signature.json", 0o644)
    os.utime(tmp_path / "out" / "timing_io_signature.json", (0, 0))

    run(f"import os; os.umask({umask})\n{PROGRAM}", tmp_path)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {"timing_io_signature.json": 0o600, "timing.json": 0o666 & ~umask}
    page = stages(tmp_path)
    assert "This file contains text from the inputs or outputs of encode" in page


def test_a_script_of_a_replay_has_no_text_and_is_for_its_owner_only(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="a replay needs torch")

    run(PROGRAM, tmp_path, STAGESPAN_REDACT="strings")
    (tmp_path / "factory.py").write_text(
        "def get_stage():\n"
        "    def encode(prompt, image, scale=1.0):\n"
        "        assert (len(prompt), image) == (30, bytes(5)), prompt\n"
        "    return encode\n"
    )
    # WHEN the stage is replayed, and its script is run
    for arguments in (
        ("-m", "stagespan", "bench", "out/timing_io_signature.json", "--output", "out"),
        ("out/profile_encode.py",),
    ):
        done = subprocess.run(
            [*preloaded.python(), *arguments, "--factory", "factory:get_stage", "--timing-steps=1"],
            env={**os.environ, "PYTHONPATH": "."},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr

    script = tmp_path / "out" / "profile_encode.py"
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    assert "secret" not in script.read_text().lower()
