"""Names in messages, log lines, JSON and CSV: on one line, and never run by what shows them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagespan
from stagespan import errors
from stagespan.harness.standalone.fit import ReplayError
from stagespan.pages.escaping import csv_cell
from stagespan.process import files
from stagespan.signature import SignatureFile

ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.StagespanError)
]
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
INVISIBLE = ["\u200e", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff", "\xad", "\U000e0041"]


@pytest.mark.parametrize("kind", [*ERRORS, ReplayError], ids=lambda kind: str(kind.__name__))
@given(name=st.text())
def test_messages_of_any_exception_are_one_line(kind: Any, name: str) -> None:
    said = str(kind(f"There is no stage {name}; did you mean 'x\n'?"))

    assert said.isprintable()


@pytest.mark.parametrize("character", [*CONTROLS, *INVISIBLE], ids=ascii)
def test_names_in_files_stay_on_the_line_of_their_message(character: str) -> None:
    # GIVEN entries of several kinds with a character that ends a line or controls a terminal
    name = f"a{character}b"
    for entry in (
        {"schema_version": 1, "stages": {name: 3}},
        {"schema_version": name, "stages": {}},
        {"schema_version": 1, "stages": {"s": {"variants": {name: name}}}},
    ):
        with pytest.raises(errors.SignatureError) as caught:
            SignatureFile.from_json(entry)
        assert str(caught.value).isprintable()
    if character != "\0":
        with pytest.raises(errors.ReportError) as refused:
            stagespan.compare_timing_reports(name, name)
        assert str(refused.value).isprintable()


def test_log_lines_of_any_module_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "stagespan"):
        logging.getLogger("stagespan").warning("the hook %r failed: %s", "h", "a\nb\x9bc\u202e")
        logging.getLogger("stagespan").warning("%d of %s", 3, "four", extra={"stage": "x"})

    assert caplog.messages == ["the hook 'h' failed: a\\nb\\x9bc\\u202e", "3 of four"]
    assert caplog.records[1].args == (3, "four")


TEXTS = st.text(st.one_of(st.characters(), st.sampled_from([*CONTROLS, *INVISIBLE])))


@given(TEXTS)
def test_json_has_no_controls_and_the_same_content(text: str) -> None:
    value = {"name": text.encode("utf-8", "replace").decode(), "n": [1, None]}

    for indent in (None, 2):
        encoded = files.json_bytes(value, indent=indent)
        assert json.loads(encoded) == value
        shown = encoded.decode().replace("\n", "")
        assert not set(shown) & {*CONTROLS, *INVISIBLE}


@given(TEXTS)
def test_cells_of_csv_are_text(text: str) -> None:
    cell = csv_cell(text)

    assert cell.isprintable()
    assert not cell.lstrip(" ").startswith(("=", "+", "-", "@"))
