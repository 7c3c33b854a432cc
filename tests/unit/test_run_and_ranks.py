"""The rank, and the output folder that a run shares with its workers."""

from __future__ import annotations

import logging
import os
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from without_settings import python

from stagespan.errors import SettingsError
from stagespan.process import run
from stagespan.process.run import SharedRun

pytestmark = pytest.mark.usefixtures("no_settings")

# --- ranks --------------------------------------------------------------------------------------


def test_rank_of_a_lone_process() -> None:
    assert (run.rank(), run.world_size()) == (0, 1)
    assert run.explicit_rank() is None
    assert run.rank_in_names() is None


def test_rank_under_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert run.rank() == 1
    monkeypatch.setenv("RANK", "9")
    assert (run.rank(), run.world_size(), run.rank_in_names()) == (9, 16, 9)


def test_a_rank_that_is_not_a_number_gives_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "0")
    assert (run.rank(), run.rank()) == (0, 0)
    assert run.world_size() == 1
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_rank_of_torch_distributed_without_a_launcher(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="asks a real torch.distributed")
    answer = python(
        """
        import json, os, torch.distributed as dist
        from stagespan.process import run
        before = run.rank()
        dist.init_process_group("gloo", init_method=
                                "file://" + os.path.abspath("store"),
                                rank=0, world_size=1)
        print(json.dumps({"before": before, "explicit": run.explicit_rank(),
                          "world": run.world_size()}))
        """,
        cwd=tmp_path,
    )
    assert answer == {"before": 0, "explicit": 0, "world": 1}


# --- the run and its folder ---------------------------------------------------------------------


@given(
    st.builds(
        SharedRun,
        stamp=st.from_regex(r"[0-9]{8}_[0-9]{4}", fullmatch=True),
        began_s=st.integers(0, 2**40),
        owner=st.integers(0, 2**22),
        owner_rank=st.none() | st.integers(0, 10_000),
        root=st.text(),
    )
)
def test_a_run_survives_the_environment(begun: SharedRun) -> None:
    assert SharedRun.decode(begun.encode()) == begun


@pytest.mark.parametrize(
    "text",
    ["", "x", "../../etc 1 2 - /", "20260101_0000 a 2 - /", "20260101_0000 1 2 r /", "a/b 1 2 3 /"],
)
def test_a_foreign_value_is_ignored(text: str) -> None:
    assert SharedRun.decode(text) is None


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TELEFUSER_PIPELINE_NAME", "../../wan 2.1")

    folder = run.output_dir()
    # THEN it is one safe part below the fixed parents, and does not change
    assert folder.parts[-4:-2] == ("work_dirs", "profiler_output")
    assert ".." not in folder.parts
    assert folder.name == run.current().stamp
    assert run.output_dir() == folder


def test_a_safe_name_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_PIPELINE_NAME", "wan21_t2v")
    assert run.output_dir().parts[-2] == "wan21_t2v"


def test_a_home_folder_that_the_system_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STAGESPAN_OUTPUT_DIR", "STAGESPAN_TIMING_REPORT"):
        monkeypatch.setenv(name, "~no such user/out")
    monkeypatch.chdir(run.current().root)
    # THEN it is taken literally, as by a shell
    assert run.output_dir() == run.timing_report_path() == Path("~no such user/out")


def test_a_relative_folder_does_not_move_with_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(run.current().root)
    before = run.output_dir()
    assert not before.is_absolute()
    monkeypatch.chdir(tmp_path)
    assert run.output_dir() == Path(run.current().root) / before


def test_set_output_dir_and_pipeline_name_reach_later_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STAGESPAN_OUTPUT_DIR", "elsewhere")
    monkeypatch.setenv("TELEFUSER_PROFILER_OUTPUT_DIR", "elsewhere too")
    monkeypatch.setenv("STAGESPAN_PIPELINE_NAME", "other")

    run.set_output_dir(tmp_path / "traces")
    run.set_pipeline_name("wan")

    assert run.output_dir() == tmp_path / "traces"
    assert run.pipeline_name() == "wan"
    assert os.environ["STAGESPAN_OUTPUT_DIR"] == str(tmp_path / "traces")
    assert os.environ["STAGESPAN_PIPELINE_NAME"] == "wan"
    run.set_output_dir(None)

    assert run.output_dir().parts[-2] == "wan"
    run.set_pipeline_name("default")  # for later tests


@pytest.mark.parametrize("wrong", ["", "  ", 3, b"bytes", "a\0b"])
def test_wrong_folders_and_names(wrong: object) -> None:
    with pytest.raises(SettingsError, match="output folder"):
        run.set_output_dir(wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="pipeline name"):
        run.set_pipeline_name(wrong)  # type: ignore[arg-type]


SHOW = """
    def show(pipe=None):
        from stagespan.process import run
        facts = [run.current().stamp, str(run.output_dir().absolute()), run.is_worker()]
        if pipe is None:
            return facts
        pipe.send(facts)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_share_the_folder_of_the_process_that_started_them(
    method: str, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "worker.py").write_text(textwrap.dedent(SHOW))
    answer = python(
        f"""
        import json, multiprocessing, os, sys, time
        sys.path.insert(0, os.getcwd())
        from unittest import mock
        import worker
        with mock.patch("time.time", return_value=0.0):   # the run begins in 1970
            from stagespan.process import run
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


def test_a_program_that_a_program_starts_has_its_own_run(tmp_path: Path) -> None:
    answer = python(
        """
        import json, subprocess, sys
        from unittest import mock
        with mock.patch("time.time", return_value=0.0):
            from stagespan.process import run
        code = "from stagespan.process import run; print(run.is_worker(), run.current().stamp)"
        child = subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True)
        print(json.dumps({"parent": run.current().stamp, "child": child.stdout.split()}))
        """,
        cwd=tmp_path,
    )
    # THEN its files do not go to the starter's folder
    child = answer["child"]
    assert isinstance(child, list)
    assert child[0] == "False"
    assert child[1] != answer["parent"]


def test_ranks_of_one_launcher_agree_although_they_start_at_different_times(tmp_path: Path) -> None:
    code = """
        import json
        from unittest import mock
        with mock.patch("time.time", return_value={now}):
            from stagespan.process import run
        print(json.dumps(dict(stamp=run.current().stamp, rank=run.current().owner_rank)))
    """

    answers = [
        python(code.format(now=now), cwd=tmp_path, TORCHELASTIC_RUN_ID="none", RANK=str(rank))
        for rank, now in enumerate((7200.0, 72000.0))
    ]
    alone = python(code.format(now=7200.0), cwd=tmp_path)
    assert answers[0]["stamp"] == answers[1]["stamp"] != alone["stamp"]
    assert [a["rank"] for a in answers] == [0, 1]
