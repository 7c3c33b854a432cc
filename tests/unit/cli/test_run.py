"""``stagespan run``: scripts without stagespan run as the interpreter itself would run them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import preloaded
from running import ran


def run(
    *arguments: str,
    cwd: Path,
    command: tuple[str, ...] = ("-m", "stagespan", "run"),
    start: Sequence[str] = (sys.executable,),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    return ran([*start, *command, *arguments], cwd=cwd, **variables)


def stages_of(path: Path) -> dict[str, Any]:
    stages = json.loads(path.read_text())["stages"]
    assert isinstance(stages, dict)
    return stages


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a script and a package with a module, neither of which uses stagespan."""
    package = tmp_path / "app" / "pipes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(
        textwrap.dedent(
            """
            import time

            class Model:
                def step(self, x):
                    time.sleep(0.01)
                    return x + 1

                @classmethod
                def load(cls):
                    return cls()

            def encode(text):
                return len(text)
            """
        )
    )
    (package / "__main__.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    (package / "fails.py").write_text("def go():\n    return 1 / 0\n")
    (tmp_path / "app" / "script.py").write_text(
        textwrap.dedent(
            '''
            """A script."""
            import os, sys
            from pipes.models import Model, encode

            def denoise(model, x):
                for _ in range(3):
                    x = model.step(x)
                return x

            class Local:
                @staticmethod
                def decode(x):
                    return -x

            if __name__ == "__main__":
                print(Local.decode(denoise(Model.load(), encode("ab"))))
                print(sys.argv, sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
                print(__name__, __doc__, sys.modules["__main__"].denoise is denoise)
            '''
        )
    )
    return tmp_path


def test_stages_are_timed_without_a_change_to_the_script(project: Path) -> None:
    done = run(
        *("--stage", "pipes.models:Model.step", "--stage", "load=pipes.models:Model.load"),
        *("--stage", "pipes.models:encode", "--stage", "__main__:denoise"),
        *("--stage", "__main__:Local.decode", "--output", "out"),
        *("app/script.py", "--debug", "-x", "a b"),
        cwd=project,
    )
    # THEN the script ran as usual, with its own options
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "-5",
        "['app/script.py', '--debug', '-x', 'a b'] True",
        "__main__ A script. True",
    ]
    stages = stages_of(project / "out" / "timing.json")
    assert {name: stage["count"] for name, stage in stages.items()} == {
        "denoise": 1,
        "Model.step": 3,
        "load": 1,
        "encode": 1,
        "Local.decode": 1,
    }
    assert stages["Model.step"]["parent"] == "denoise"
    assert stages["Model.step"]["duration_ms"] >= 30
    lines = done.stderr.splitlines()
    (at,) = (number for number, line in enumerate(lines) if "─ Model.step" in line)
    above = [line for line in lines[:at] if "├─" not in line]
    assert above[-1].split()[0] == "denoise"


def test_stages_to_profile_that_did_not_run_are_named(project: Path) -> None:
    done = run(
        *("--profile", "encode,encoder", "--profile", "decoder"),
        *("--stage", "pipes.models:encode", "app/script.py"),
        cwd=project,
        start=preloaded.python() if importlib.util.find_spec("torch") else [sys.executable],
        STAGESPAN_OUTPUT_DIR=str(project / "out"),
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "were not profiled" in line)
    assert "'decoder', 'encoder' were not" in line
    assert line.endswith(": 'encode'")


@pytest.mark.slow
def test_debug_mode_writes_its_files(project: Path) -> None:
    done = run(
        *("--debug", "--stage", "pipes.models:Model.step", "--output", "out", "app/script.py"),
        cwd=project,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (project / "out").iterdir()) == [
        "timing.json",
        "timing_io_signature.json",
    ]
    signature = json.loads((project / "out" / "timing_io_signature.json").read_text())
    assert signature["stages"]["Model.step"]["input_signatures"]["x"] in (2, 3, 4)
    assert "[Profiler] Timing report saved to: out/timing.json" in done.stderr


def test_the_files_of_output_are_listed(project: Path) -> None:
    done = run("--output", "out", "--stage", "pipes.models:encode", "app/script.py", cwd=project)
    assert "stagespan: saved out/timing.json" in done.stderr


def test_without_output_nothing_is_written(project: Path) -> None:
    before = sorted(p for p in project.rglob("*") if "__pycache__" not in p.parts)
    done = run("--stage", "pipes.models:encode", "app/script.py", cwd=project)
    assert "encode" in done.stderr
    assert sorted(p for p in project.rglob("*") if "__pycache__" not in p.parts) == before


def test_a_module_is_run_as_python_m_does(project: Path) -> None:
    done = run("-m", "pipes", "--flag", "-v", cwd=project / "app")
    plain = run("--flag", "-v", cwd=project / "app", command=("-m", "pipes"))
    assert done.stdout == plain.stdout == "__main__ pipes ['--flag', '-v']\n"
    assert "no sample was taken" in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "raise SystemExit(7)",
        "import sys; sys.exit('a message')",
        "import sys; sys.exit()",
        "def f():\n    raise ValueError('broken')\nf()",
        "def f(:\n    pass",
        "from pipes import fails\nfails.go()",
        "import json\njson.loads('{')",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
        "raise KeyboardInterrupt",
        "import sys; sys.excepthook = lambda *a: print('own hook', a[0].__name__); 1 / 0",
        "import threading as t, time\nt.Thread(target=lambda: (time.sleep(.2), print())).start()",
    ],
)
def test_status_and_output_are_those_of_the_script(project: Path, body: str) -> None:
    (project / "app" / "ends.py").write_text(body + "\n")
    done = run("--no-sample", "app/ends.py", cwd=project)
    plain = run("app/ends.py", cwd=project, command=())
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    told = [line for line in done.stderr.splitlines() if not line.startswith("stagespan: ")]
    assert told == plain.stderr.splitlines(), done.stderr


def test_a_stage_that_was_not_found_is_reported_with_similar_names(project: Path) -> None:
    done = run(
        *("--stage", "pipes.models:Model.stepp", "--stage", "pipes.modles:encode"),
        *("--stage", "__main__:denoice", "--stage", "pipes.models:Model"),
        *("--stage", "script:denoise", "app/script.py"),
        cwd=project,
    )
    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if "was not timed" in line]
    assert len(told) == 5
    assert any("script is the script itself; write __main__:denoise" in line for line in told)
    assert any("Model.step" in line for line in told)
    assert any("pipes.models" in line and "never imported" in line for line in told)
    assert any("__main__ has no 'denoice'; similar names: denoise" in line for line in told)
    assert any("Model is a class" in line for line in told)


def test_a_stage_that_the_script_does_not_define_is_reported_with_its_place(project: Path) -> None:
    # GIVEN a script with an imported function, an inherited method, and a name for a method
    (project / "app" / "uses.py").write_text(
        textwrap.dedent(
            """
            from pipes.models import Model, encode

            class Own(Model):
                run = Model.step

            print(encode("ab"), Own().step(1), Own().run(2))
            """
        )
    )
    names = ("encode", "Own.step", "Own.run")
    done = run(
        *(part for name in names for part in ("--stage", f"__main__:{name}")),
        "app/uses.py",
        cwd=project,
    )
    # THEN the messages contain what to write instead
    assert done.stdout.split() == ["2", "2", "3"]
    told = [line for line in done.stderr.splitlines() if "was not timed" in line]
    assert [line.rpartition(" was not timed: ")[2] for line in told] == [
        "the script imports it; write pipes.models:encode",
        "Own inherits it; write pipes.models:Model.step",
        "the script does not define it with `def`",
    ]


TIMED = """
    import stagespan

    @stagespan.span("encode")
    def encode(text):
        return len(text)

    @stagespan.ProfilingContext4Debug("decode")
    def decode(text):
        return len(text)

    class Model:
        @classmethod
        @stagespan.ProfilingContext("Model.load")
        def load(cls):
            return cls()

        @property
        @stagespan.span("Model.size")
        def size(self):
            return 3

        @stagespan.span("step")
        def step(self):
            return 1

    def main():
        for _ in range(10):
            encode("ab"), decode("ab"), Model.load().size, Model().step()
"""


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("module", ["__main__", "timed"])
def test_a_stage_that_the_program_times_itself_is_counted_once(
    module: str, debug: bool, tmp_path: Path
) -> None:
    (tmp_path / "timed.py").write_text(
        textwrap.dedent(TIMED) + "\nif __name__ == '__main__':\n    main()\n"
    )
    (tmp_path / "uses.py").write_text("import timed\ntimed.main()\n")
    paths = ("encode", "decode", "Model.load", "Model.size", "Model.step")
    done = run(
        *(part for path in paths for part in ("--stage", f"{module}:{path}")),
        *(["--debug"] if debug else []),
        *("--output", "out", "timed.py" if module == "__main__" else "uses.py"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    counts = {name: s["count"] for name, s in stages_of(tmp_path / "out" / "timing.json").items()}
    decode = {"decode": 10}  # without debug mode its own context does nothing
    expected = {"encode": 10, "Model.load": 10, "Model.size": 10, "Model.step": 10, "step": 10}
    assert counts == expected | (decode if debug else {})
    assert "was not timed" not in done.stderr
    assert ("without its inputs and outputs" in done.stderr) is debug


@pytest.mark.parametrize("module", ["__main__", "timed"])
def test_a_class_is_refused_with_the_reason(module: str, tmp_path: Path) -> None:
    (tmp_path / "timed.py").write_text(
        textwrap.dedent(TIMED) + "\nif __name__ == '__main__':\n    main()\n"
    )
    (tmp_path / "uses.py").write_text("import timed\ntimed.main()\n")
    script = "timed.py" if module == "__main__" else "uses.py"
    done = run("--stage", f"{module}:Model", script, cwd=tmp_path)
    assert done.returncode == 0
    assert f"stage {module}:Model was not timed: Model is a class: name one of its methods" in (
        done.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere.py",), "There is no script nowhere.py"),
        (("app",), "app has no __main__.py"),
        (("-m", "no.such.module"), "no.such"),
        (("-m", "nosuch"), "The module nosuch does not exist"),
        (("--stage", "encode", "app/script.py"), "pkg.mod:Class.method"),
        (("--output", "", "app/script.py"), "output folder"),
    ],
)
def test_targets_that_cannot_be_run_are_refused_in_one_sentence(
    arguments: tuple[str, ...], sentence: str, project: Path
) -> None:
    done = run(*arguments, cwd=project)
    assert done.returncode == 2
    assert done.stdout == ""
    assert sentence in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_workers_of_the_script_can_import_it(project: Path) -> None:
    (project / "pool.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing

            def square(x):
                return x * x

            if __name__ == "__main__":
                with multiprocessing.get_context("spawn").Pool(2) as pool:
                    print(pool.map(square, range(4)))
            """
        )
    )

    done = run("--stage", "__main__:square", "--debug", "--output", "out", "pool.py", cwd=project)

    assert done.stdout == "[0, 1, 4, 9]\n", done.stderr


def test_a_forked_child_does_not_print_its_parent_s_results(project: Path) -> None:
    (project / "forks.py").write_text("import os\nif os.fork():\n    os.wait()\n")
    done = run("--no-sample", "forks.py", cwd=project)
    assert done.stderr.count("no stage ran") == 1


@pytest.mark.parametrize(
    ("stage", "call", "sentence"),
    [
        ("inner", "torch.compile(outer, backend='eager')", "did not run outside of graphs"),
        ("unused", "Net()", None),
    ],
)
def test_a_stage_that_ran_only_in_compiled_code(
    stage: str, call: str, sentence: str | None, project: Path
) -> None:
    pytest.importorskip("torch")
    (project / "compiled.py").write_text(
        textwrap.dedent(
            f"""
            import torch

            class Net(torch.nn.Module):
                def forward(self, x):
                    return x.relu() + 1

            def inner(x):
                return x.relu()

            def outer(x):
                return inner(x) + 1

            def unused(x):
                return x

            print(({call})(torch.ones(2)).sum().item())
            """
        )
    )
    done = run("--debug", "--stage", f"__main__:{stage}", "compiled.py", cwd=project)
    # THEN the program's result is right, and a sentence says why the stage has no time
    assert done.stdout == "4.0\n", done.stderr
    assert "no stage ran" in done.stderr
    assert ("TORCH_COMPILE_DISABLE=1" in done.stderr) == (sentence is not None)
    if sentence is not None:
        assert f"stage __main__:{stage} {sentence}" in done.stderr
