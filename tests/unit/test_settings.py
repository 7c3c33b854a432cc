"""The table of environment variables."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from running import ran
from stagespan import settings
from stagespan.process import run

pytestmark = pytest.mark.usefixtures("no_settings")
PAIRS = [(v.name, a) for v in settings.VARIABLES for a in v.aliases]


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", settings.VARIABLES, ids=lambda v: v.name)
def test_unset_and_empty_give_the_default(
    variable: settings.Variable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.get(variable.name) == variable.default
    monkeypatch.setenv(variable.name, "  ")
    assert settings.get(variable.name) == variable.default


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("true", True), ("1", True), ("YES", True), (" on ", True)),
        *(("false", False), ("0", False), ("No", False), ("off", False)),
    ],
)
def test_switches(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELEFUSER_PROFILE_DEBUG", text)
    assert settings.get("STAGESPAN_DEBUG") is value


@pytest.mark.parametrize(("name", "alias"), PAIRS)
def test_own_spelling_has_priority_over_the_alias(
    name: str, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_switch = next(v for v in settings.VARIABLES if v.name == name).kind == "switch"
    first, second = ("true", "false") if is_switch else ("a", "b")
    monkeypatch.setenv(alias, second)
    from_alias = settings.get(name)
    monkeypatch.setenv(name, first)
    assert settings.get(name) != from_alias
    assert settings.get(name) in (True, "a", ("a",))


def test_names_are_split_stripped_and_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_PROFILER_NAMES", " denoise, ,vae decode ,denoise,*")
    assert settings.get("STAGESPAN_PROFILER_NAMES") == ("denoise", "vae decode", "*")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("STAGESPAN_DEBUG", "maybe"),
        ("STAGESPAN_ENABLED", "2"),
        ("STAGESPAN_PROFILER_RUNS", "0"),
        ("STAGESPAN_PROFILER_RUNS", "-1"),
        ("STAGESPAN_RING_SPANS", "1e4"),
        ("STAGESPAN_RING_SPANS", "63"),
        ("STAGESPAN_RING_SPANS", "1048577"),
        ("STAGESPAN_RING_SPANS", "9" * 40),
        ("STAGESPAN_CLOCK", "sundial"),
        ("STAGESPAN_DEVICE_EVERY", "-3"),
    ],
)
def test_an_invalid_value_gives_one_warning(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, text)

    values = [settings.get(name) for _ in range(3)]
    settings.check(unknown_names=True)

    default = next(v.default for v in settings.VARIABLES if v.name == name)
    assert values == [default] * 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert name in record.getMessage()
    assert text in record.getMessage()


def test_a_program_with_only_spans_gets_a_warning_for_every_invalid_value(tmp_path: Path) -> None:
    wrong = {v.name: "-oops-" for v in settings.VARIABLES if v.kind not in ("text", "names")}
    code = "import stagespan\nwith stagespan.span('a'): pass\nprint(len(stagespan.spans()))"
    environment = {k: v for k, v in os.environ.items() if "STAGESPAN" not in k}

    done = ran([sys.executable, "-c", code], cwd=tmp_path, env={**environment, **wrong})

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert len(wrong) > 5
    warned = sorted(line.split()[1].partition("=")[0] for line in done.stderr.splitlines())
    assert warned == sorted(wrong)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_gives_a_value_of_the_right_kind(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for variable in settings.VARIABLES:
            patch.setenv(variable.name, text)
        assert settings.get("STAGESPAN_DEBUG") in (True, False)
        assert settings.get("STAGESPAN_CLOCK") in ("auto", "tsc", "monotonic")
        assert settings.get("STAGESPAN_RING_SPANS") > 0
        assert all(n and n == n.strip() for n in settings.get("STAGESPAN_PROFILER_NAMES"))
        name = run.output_dir().parts if not text.strip() else run.pipeline_name()
        assert name


@given(st.integers(64, 1 << 20))
def test_counts_are_read_back(number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGESPAN_RING_SPANS", str(number))
        assert settings.get("STAGESPAN_RING_SPANS") == number


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        *(("4096 ", 4096), (" 100\t", 128), ("+256", 256), ("0512", 512), ("64", 64)),
        *(("63", 8192), ("-1", 8192), ("1e3", 8192), ("4096 spans", 8192), ("0x100", 8192)),
        *(("4_096", 8192), ("", 8192), (" ", 8192), ("9" * 40, 8192), ("128\u00a0", 8192)),
    ],
)
def test_the_extension_reads_the_size_of_rings_by_the_same_rules(text: str, spans: int) -> None:
    code = (
        "import logging; logging.disable()\n"
        "from stagespan import _core, settings\n"
        "print(_core.arena_info()['ring_spans'], settings.get('STAGESPAN_RING_SPANS'))"
    )
    done = ran([sys.executable, "-c", code], STAGESPAN_RING_SPANS=text)
    # THEN the rings are what the setting says, rounded up to a power of two
    actual, wanted = map(int, done.stdout.split())
    assert actual == spans, done.stderr
    assert wanted <= actual < 2 * wanted


def test_the_extension_reads_the_clock_by_the_same_rules() -> None:
    code = (
        "from stagespan import _core, settings\n"
        "print(_core.clock_info()['source'], settings.get('STAGESPAN_CLOCK'))"
    )
    done = ran([sys.executable, "-c", code], STAGESPAN_CLOCK=" Monotonic ")
    assert done.stdout == "monotonic monotonic\n", done.stderr


def warnings_with(**variables: str) -> list[str]:
    """Return the warnings of a process that imports stagespan about its variables."""
    kept = {k: v for k, v in os.environ.items() if "STAGESPAN" not in k}
    code = "import stagespan\nfrom stagespan.process import run\nrun.check_settings()"
    done = ran([sys.executable, "-c", code], env={**kept, **variables}, status=0)
    return done.stderr.splitlines()


def test_an_unknown_variable_gives_one_warning() -> None:
    (line,) = warnings_with(STAGESPAN_DEBG="true")
    assert "STAGESPAN_DEBG is ignored" in line
    assert "did you mean STAGESPAN_DEBUG?" in line
    (line,) = warnings_with(STAGESPAN_FAVOURITE_COLOUR="blue")
    assert "STAGESPAN_FAVOURITE_COLOUR is ignored" in line
    assert "did you mean" not in line


def test_known_and_foreign_variables_give_no_warning() -> None:
    assert warnings_with(STAGESPAN_DEBUG="0", TELEFUSER_X="1", STAGESPAN_TEST_X="1") == []
    # Ranks and workers would repeat the warning of the first process.
    assert warnings_with(STAGESPAN_DEBG="1", RANK="1", WORLD_SIZE="2") == []


def test_an_unknown_name_raises_an_error() -> None:
    with pytest.raises(KeyError):
        settings.get("STAGESPAN_NO_SUCH")
