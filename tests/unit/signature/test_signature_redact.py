"""STAGESPAN_REDACT: files without secrets, or without the content of all strings."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import stat
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import preloaded
from running import ran
from stagespan.signature import capture, hiding
from stagespan.signature.capture import capture_arguments
from stagespan.signature.model import StageSignature
from stagespan.signature.value_kinds import contains_text
from stagespan.signature.value_kinds.base import key_of

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
    redacted = capture(value)
    monkeypatch.setenv("STAGESPAN_REDACT", "none")
    whole = capture(value)
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


# --- secrets, by default --------------------------------------------------------------------------

KEY = "sk-hidden-4f1b"

SECRETS: dict[str, Any] = {
    "api_key": KEY,
    "OPENAI_API_KEY": KEY.encode(),
    "use_auth_token": KEY,
    "hfToken": bytearray(KEY.encode()),
    "db-password": KEY,
    "passwords": [KEY, KEY],
    "client.secret": (KEY,),
    "credentials": {"user": KEY, "id": 5},
    "password2": pathlib.PurePosixPath(KEY),
    "token": KEY * 1000,
    "headers": {"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY, b"cookie": KEY, "n": 1},
    "pairs": [("authorization", KEY), ["Set-Cookie", KEY.encode()], (b"x-api-key", KEY.encode())],
    "user": collections.UserDict(access_token=KEY),
    "keys": {("a", 1): {"secret": {KEY}}, 2: {"passwd": frozenset({KEY})}},
    "login": collections.namedtuple("Login", ["name", "passwd"])("me", KEY),
}
KEPT: dict[str, Any] = {
    "max_tokens": 256,
    "eos_token": "</s>",
    "eos_token_id": [1, 2],
    "token_ids": [5, 6, 7],
    "tokenizer": "bpe",
    "tokens": ["a", "b"],
    "author": "someone",
    "attention_key": "self",
    "password": 1234,
    "use_auth_token": True,
    "secret": [1.5, [None, False]],
    "cookies": {"number": 7},
    "pair": ["prompt", "an image"],
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_left_out_by_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {name: SECRETS[name], "prompt": "a cat"}
    holder = types.SimpleNamespace(**value)
    pytest.importorskip("torch", reason="objects are captured for replays, which need torch")

    monkeypatch.delenv("STAGESPAN_REDACT", raising=False)
    hidden = [capture_arguments(value), capture(value), capture(holder)]
    monkeypatch.setenv("STAGESPAN_REDACT", "none")
    shown = [capture_arguments(value), capture(value), capture(holder)]

    for without, whole in zip(hidden, shown, strict=True):
        text = json.dumps(without)
        assert (KEY in text, KEY.encode().hex() in text) == (False, False)
        assert "a cat" in text
        assert key_of({"x": without}) == key_of({"x": whole})
    # THEN files that are made later from a signature with secrets leave them out in the same way
    monkeypatch.delenv("STAGESPAN_REDACT")
    again = {each: hiding.without_secrets(each, node) for each, node in shown[0].items()}
    assert again == hidden[0]


def test_other_values_stay() -> None:
    for name, value in KEPT.items():
        node = capture_arguments({name: value})[name]
        assert node == value
        assert hiding.without_secrets(name, node) == value


def test_tensors_with_the_name_of_a_secret_stay() -> None:
    torch = pytest.importorskip("torch", reason="captures a tensor")

    node = capture_arguments({"access_token": torch.arange(5), "auth": [torch.ones(2)]})

    assert node["access_token"]["values"] == [0, 1, 2, 3, 4]
    assert node["auth"][0]["values"] == [1.0, 1.0]


def test_a_signature_without_secrets_is_replayed() -> None:
    pytest.importorskip("torch", reason="mock inputs need torch")
    from stagespan.signature import make_inputs

    names = [name for name in SECRETS if name != "login"]
    nodes = json.loads(json.dumps(capture_arguments({name: SECRETS[name] for name in names})))

    made = make_inputs(StageSignature("s", nodes))

    assert (type(made["api_key"]), len(made["api_key"])) == (str, len(KEY))
    assert made["OPENAI_API_KEY"] == bytes(len(KEY))
    assert made["credentials"]["id"] == 5
    assert len(made["headers"]["Authorization"]) == len(f"Bearer {KEY}")
    assert made["pairs"][0][0] == "authorization"


def test_reports_contain_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stagespan

    def written() -> str:
        stagespan.reset_timing_registry("r", {"api_key": KEY, "nested": [{"cookie": KEY}]})
        stagespan.set_timing_metadata("headers", [("Authorization", KEY), ("Accept", "json")])
        stagespan.set_timing_metadata("password", 7)
        with stagespan.request("r", hf_token=KEY, user="someone"):
            pass
        return stagespan.dump_timing_report(tmp_path / "timing.json").read_text()

    monkeypatch.delenv("STAGESPAN_REDACT", raising=False)
    report = json.loads(text := written())
    assert KEY not in text
    assert report["metadata"] == {
        "api_key": "(redacted)",
        "nested": [{"cookie": "(redacted)"}],
        "headers": [["Authorization", "(redacted)"], ["Accept", "json"]],
        "password": 7,
    }
    assert report["requests"][-1]["metadata"] == {"hf_token": "(redacted)", "user": "someone"}
    monkeypatch.setenv("STAGESPAN_REDACT", "none")
    assert written().count(KEY) == 4


def test_scripts_contain_no_secrets() -> None:
    pytest.importorskip("torch", reason="scripts need torch")
    from stagespan.harness import HarnessConfig
    from stagespan.harness.script import script_and_module

    signature = StageSignature("s", {"x": 1, "api_key": "sk-old"}, metadata={"auth": "sk-other"})
    config = HarnessConfig(inputs={"password": KEY, "prompt": "a cat"})

    text = script_and_module(signature, None, config, stem="s")[0]

    assert [secret for secret in (KEY, "sk-old", "sk-other") if secret in text] == []
    assert "a cat" in text


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
    variables.setdefault("STAGESPAN_OUTPUT_DIR", "out")
    ran([sys.executable, "-c", code], cwd=cwd, status=0, **variables)


def stages(cwd: Path) -> str:
    done = ran(
        [sys.executable, "-m", "stagespan", "show", "out/timing_io_signature.json"],
        cwd=cwd,
        status=0,
    )
    return done.stdout


def test_a_run_that_redacts(tmp_path: Path) -> None:
    run(PROGRAM, tmp_path, STAGESPAN_REDACT="strings")
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
    for arguments in (
        ("-m", "stagespan", "bench", "out/timing_io_signature.json", "--output", "out"),
        ("out/profile_encode.py",),
    ):
        ran(
            [*preloaded.python(), *arguments, "--factory", "factory:get_stage", "--timing-steps=1"],
            cwd=tmp_path,
            timeout_s=300,
            status=0,
            PYTHONPATH=".",
        )

    script = tmp_path / "out" / "profile_encode.py"
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    assert "secret" not in script.read_text().lower()
