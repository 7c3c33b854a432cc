"""The table of variables, the rank, and the output folder that a run shares with its workers."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagespan import settings
from stagespan.errors import SettingsError
from stagespan.settings import Run

PAIRS = [(v.name, a) for v in settings.VARIABLES for a in v.aliases]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours is set, nothing has been set by a call, nobody has been warned."""
    for variable in settings.VARIABLES:
        for spelling in (variable.name, *variable.aliases):
            monkeypatch.delenv(spelling, raising=False)
    for spelling in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(spelling, raising=False)
    monkeypatch.setattr(settings, "_output_dir", None)
    monkeypatch.setattr(settings, "_pipeline_name", None)
    monkeypatch.setattr(settings, "_warned", set())


def python(code: str, *, cwd: Path, **variables: str) -> dict[str, object]:
    """Run ``code`` in a fresh interpreter and read the JSON that it prints last."""
    environment = {k: v for k, v in os.environ.items() if "STAGESPAN" not in k}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**environment, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


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
def test_own_spelling_wins_over_the_alias(
    name: str, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN both spellings with different values
    first, second = ("true", "false") if name == "STAGESPAN_DEBUG" else ("a", "b")
    monkeypatch.setenv(alias, second)
    from_alias = settings.get(name)
    # WHEN the own spelling is set as well
    monkeypatch.setenv(name, first)
    # THEN it is the one that holds
    assert settings.get(name) != from_alias
    assert settings.get(name) in (True, "a", ("a",))


def test_names_are_split_stripped_and_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_PROFILER_NAMES", " denoise, ,vae decode ,denoise,*")
    assert settings.profiler_names() == ("denoise", "vae decode", "*")


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
def test_a_value_that_cannot_be_used_is_warned_about_once(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, text)

    values = [settings.get(name) for _ in range(3)]
    settings.check()

    default = next(v.default for v in settings.VARIABLES if v.name == name)
    assert values == [default] * 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert name in record.getMessage()
    assert text in record.getMessage()


def test_a_program_with_spans_alone_is_told_of_every_wrong_value(tmp_path: Path) -> None:
    # GIVEN a program that never asks for what a variable says, and a wrong value in each
    wrong = {v.name: "-oops-" for v in settings.VARIABLES if v.kind not in ("text", "names")}
    code = "import stagespan\nwith stagespan.span('a'): pass\nprint(len(stagespan.spans()))"
    environment = {k: v for k, v in os.environ.items() if "STAGESPAN" not in k}

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **wrong},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    # THEN it runs, and has one sentence for each
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert len(wrong) > 5
    told = sorted(line.split()[1].partition("=")[0] for line in done.stderr.splitlines())
    assert told == sorted(wrong)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_gives_a_value_of_the_right_kind(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for variable in settings.VARIABLES:
            patch.setenv(variable.name, text)
        assert settings.get("STAGESPAN_DEBUG") in (True, False)
        assert settings.get("STAGESPAN_CLOCK") in ("auto", "tsc", "monotonic")
        assert settings.get("STAGESPAN_RING_SPANS") > 0
        assert all(n and n == n.strip() for n in settings.profiler_names())
        name = settings.output_dir().parts if not text.strip() else settings.pipeline_name()
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
    # WHEN a process starts with the variable
    code = (
        "import logging; logging.disable()\n"
        "from stagespan import _core, settings\n"
        "print(_core.arena_info()['ring_spans'], settings.get('STAGESPAN_RING_SPANS'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "STAGESPAN_RING_SPANS": text},
        capture_output=True,
        text=True,
        timeout=60,
    )
    # THEN the rings are what the setting says, rounded up to a power of two
    actual, wanted = map(int, done.stdout.split())
    assert actual == spans, done.stderr
    assert wanted <= actual < 2 * wanted


def test_the_extension_reads_the_clock_by_the_same_rules() -> None:
    code = (
        "from stagespan import _core, settings\n"
        "print(_core.clock_info()['source'], settings.get('STAGESPAN_CLOCK'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "STAGESPAN_CLOCK": " Monotonic "},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "monotonic monotonic\n", done.stderr


def warnings_with(**variables: str) -> list[str]:
    """What a process that imports stagespan says about its variables."""
    kept = {k: v for k, v in os.environ.items() if "STAGESPAN" not in k}
    code = "import stagespan\nfrom stagespan import settings\nsettings.check()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_a_variable_that_is_not_known_is_warned_about_once() -> None:
    (line,) = warnings_with(STAGESPAN_DEBG="true")
    assert "STAGESPAN_DEBG is ignored" in line
    assert "did you mean STAGESPAN_DEBUG?" in line
    (line,) = warnings_with(STAGESPAN_FAVOURITE_COLOUR="blue")
    assert "STAGESPAN_FAVOURITE_COLOUR is ignored" in line
    assert "did you mean" not in line


def test_variables_that_are_known_or_not_ours_are_not_warned_about() -> None:
    assert warnings_with(STAGESPAN_DEBUG="0", TELEFUSER_X="1", STAGESPAN_TEST_X="1") == []
    # Ranks and workers would repeat what the first process has said.
    assert warnings_with(STAGESPAN_DEBG="1", RANK="1", WORLD_SIZE="2") == []


def test_an_unknown_name_is_an_error_of_the_caller() -> None:
    with pytest.raises(KeyError):
        settings.get("STAGESPAN_NO_SUCH")


# --- ranks --------------------------------------------------------------------------------------


def test_rank_of_a_lone_process() -> None:
    assert (settings.rank(), settings.world_size()) == (0, 1)
    assert settings.explicit_rank() is None
    assert settings.rank_in_names() is None


def test_rank_under_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert settings.rank() == 1
    monkeypatch.setenv("RANK", "9")
    assert (settings.rank(), settings.world_size(), settings.rank_in_names()) == (9, 16, 9)


def test_a_rank_that_is_no_number_is_warned_about_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "0")
    assert (settings.rank(), settings.rank()) == (0, 0)
    assert settings.world_size() == 1
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_rank_of_torch_distributed_when_no_launcher_tells(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="asks a real torch.distributed")
    answer = python(
        """
        import json, os, torch.distributed as dist
        from stagespan import settings
        before = settings.rank()
        dist.init_process_group("gloo", init_method=
                                "file://" + os.path.abspath("store"),
                                rank=0, world_size=1)
        print(json.dumps({"before": before, "explicit": settings.explicit_rank(),
                          "world": settings.world_size()}))
        """,
        cwd=tmp_path,
    )
    assert answer == {"before": 0, "explicit": 0, "world": 1}


# --- the run and its folder ---------------------------------------------------------------------


@given(
    st.builds(
        Run,
        stamp=st.from_regex(r"[0-9]{8}_[0-9]{4}", fullmatch=True),
        began_s=st.integers(0, 2**40),
        owner=st.integers(0, 2**22),
        owner_rank=st.none() | st.integers(0, 10_000),
        root=st.text(),
    )
)
def test_a_run_survives_the_environment(run: Run) -> None:
    assert Run.decode(run.encode()) == run


@pytest.mark.parametrize(
    "text",
    ["", "x", "../../etc 1 2 - /", "20260101_0000 a 2 - /", "20260101_0000 1 2 r /", "a/b 1 2 3 /"],
)
def test_a_foreign_value_is_no_run(text: str) -> None:
    assert Run.decode(text) is None


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN a pipeline's name that would lead out of the folder
    monkeypatch.setenv("TELEFUSER_PIPELINE_NAME", "../../wan 2.1")

    folder = settings.output_dir()
    # THEN it is one safe part below the fixed parents, and stays the same
    assert folder.parts[-4:-2] == ("work_dirs", "profiler_output")
    assert ".." not in folder.parts
    assert folder.name == settings.run().stamp
    assert settings.output_dir() == folder


def test_a_name_that_is_safe_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_PIPELINE_NAME", "wan21_t2v")
    assert settings.output_dir().parts[-2] == "wan21_t2v"


def test_a_relative_folder_does_not_move_with_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # GIVEN a relative folder, read where the run began
    monkeypatch.chdir(settings.run().root)
    before = settings.output_dir()
    assert not before.is_absolute()
    # WHEN the process changes its working folder
    monkeypatch.chdir(tmp_path)
    # THEN the folder is still the same one
    assert settings.output_dir() == Path(settings.run().root) / before


def test_set_output_dir_and_pipeline_name_reach_later_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STAGESPAN_OUTPUT_DIR", "elsewhere")
    monkeypatch.setenv("STAGESPAN_PIPELINE_NAME", "other")

    settings.set_output_dir(tmp_path / "traces")
    settings.set_pipeline_name("wan")

    assert settings.output_dir() == tmp_path / "traces"
    assert settings.pipeline_name() == "wan"
    assert os.environ["STAGESPAN_OUTPUT_DIR"] == str(tmp_path / "traces")
    assert os.environ["STAGESPAN_PIPELINE_NAME"] == "wan"
    # WHEN taken back
    settings.set_output_dir(None)

    assert settings.output_dir().parts[-2] == "wan"


@pytest.mark.parametrize("wrong", ["", "  ", 3, b"bytes", "a\0b"])
def test_wrong_folders_and_names(wrong: object) -> None:
    with pytest.raises(SettingsError, match="output folder"):
        settings.set_output_dir(wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="pipeline name"):
        settings.set_pipeline_name(wrong)  # type: ignore[arg-type]


SHOW = """
    def show(pipe=None):
        from stagespan import settings
        facts = [settings.run().stamp, str(settings.output_dir().absolute()), settings.is_worker()]
        if pipe is None:
            return facts
        pipe.send(facts)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_share_the_folder_of_the_process_that_started_them(
    method: str, tmp_path: Path
) -> None:
    # GIVEN a worker that is started before the parent first asks for its folder, elsewhere
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "worker.py").write_text(textwrap.dedent(SHOW))
    answer = python(
        f"""
        import json, multiprocessing, os, sys, time
        sys.path.insert(0, os.getcwd())
        from unittest import mock
        import worker
        with mock.patch("time.time", return_value=0.0):   # the run begins in 1970
            from stagespan import settings
        home = os.getcwd()
        ctx = multiprocessing.get_context({method!r})
        here, there = ctx.Pipe()
        os.chdir("elsewhere")
        process = ctx.Process(target=worker.show, args=(there,))
        process.start()
        child = here.recv()
        process.join()
        os.chdir(home)
        print(json.dumps({{"parent": worker.show(), "child": child}}))
        """,
        cwd=tmp_path,
    )

    parent, child = answer["parent"], answer["child"]
    assert isinstance(parent, list)
    assert isinstance(child, list)
    assert parent[0].startswith(("19700101", "19691231"))
    assert parent[:2] == child[:2]
    assert (parent[2], child[2]) == (False, True)


def test_a_program_that_a_program_starts_begins_a_run_of_its_own(tmp_path: Path) -> None:
    # GIVEN a process of an earlier run that starts another program
    answer = python(
        """
        import json, subprocess, sys
        from unittest import mock
        with mock.patch("time.time", return_value=0.0):
            from stagespan import settings
        code = "from stagespan import settings; print(settings.is_worker(), settings.run().stamp)"
        child = subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True)
        print(json.dumps({"parent": settings.run().stamp, "child": child.stdout.split()}))
        """,
        cwd=tmp_path,
    )
    # THEN its files do not go to the starter's folder
    child = answer["child"]
    assert isinstance(child, list)
    assert child[0] == "False"
    assert child[1] != answer["parent"]


def test_ranks_of_one_launcher_agree_although_they_start_apart(tmp_path: Path) -> None:
    # GIVEN two ranks whose own clocks say different hours, and the process that starts both
    code = """
        import json
        from unittest import mock
        with mock.patch("time.time", return_value={now}):
            from stagespan import settings
        print(json.dumps(dict(stamp=settings.run().stamp, rank=settings.run().owner_rank)))
    """

    answers = [
        python(code.format(now=now), cwd=tmp_path, TORCHELASTIC_RUN_ID="none", RANK=str(rank))
        for rank, now in enumerate((7200.0, 72000.0))
    ]
    alone = python(code.format(now=7200.0), cwd=tmp_path)
    # THEN the launcher's own start names the run
    assert answers[0]["stamp"] == answers[1]["stamp"] != alone["stamp"]
    assert [a["rank"] for a in answers] == [0, 1]
