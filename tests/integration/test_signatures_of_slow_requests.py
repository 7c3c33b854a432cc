"""Tests of the signatures of decorated functions that kept requests have, and of their replays."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_process import command_here, start, started

import stagespan
from running import PROGRAMS, ended, ran, tell
from stagespan import _core
from stagespan.recording.asking import Asker
from stagespan.signature import watch

REQUESTING = PROGRAMS / "requesting.py"

torch = pytest.importorskip("torch")


@pytest.fixture
def watching() -> Iterator[None]:
    """Watch for the time of the test."""
    watch.start(600)
    yield
    watch.stop()


def described(stage: str, begin_ns: int) -> dict[str, Any]:
    """Return what is noted of the latest run of a stage."""
    stagespan.flush()
    spans = stagespan.spans()
    of_stage = spans[spans["stage"] == stagespan.stage_names().index(stage)]
    span = int(of_stage["id"][of_stage["begin_ns"].argmax()])
    answer: dict[str, Any] = watch.noted(begin_ns, _core.now_ns(), [span])["described"]
    assert answer.get("span", span) == span
    return answer


@stagespan.span("plain")
def plain(latents: Any, *rest: Any, steps: int = 4, **named: Any) -> int:
    """Take anything."""
    return steps


@pytest.mark.usefixtures("watching")
def test_a_call_in_a_request_is_described_without_values() -> None:
    begin_ns = _core.now_ns()
    secret = "a prompt of somebody"
    latents = torch.zeros(2, 3, dtype=torch.float16)
    with stagespan.request():
        plain(latents, [secret, 271828], steps=31415, ids=torch.tensor([161803]), on=True, of={})
    answer = described("plain", begin_ns)
    assert answer["why"] == ""
    inputs = answer["signature"]["input_signatures"]
    assert inputs["latents"] == {"shape": [2, 3], "dtype": "float16", "device": "cpu"}
    assert inputs["ids"]["shape"] == [1]
    assert inputs["on"] is True
    assert inputs["steps"]["unreplayable"] == "int"
    assert inputs["*rest"][0][0] == {"$type": "str", "length": len(secret)}
    assert answer["signature"]["callable"]["qualname"] == "plain"
    text = json.dumps(answer)
    assert not any(value in text for value in (secret, "271828", "31415", "161803"))


@pytest.mark.usefixtures("watching")
def test_a_tensor_argument_dies_after_the_call() -> None:
    begin_ns = _core.now_ns()
    latents = torch.zeros(8)
    gone = weakref.ref(latents)
    gc.disable()  # no reference may be left, not even in a cycle
    try:
        with stagespan.request():
            plain([latents], extra={"of": latents})
        del latents
        assert gone() is None
    finally:
        gc.enable()
    assert described("plain", begin_ns)["signature"]["input_signatures"]["latents"]


@pytest.mark.usefixtures("watching")
def test_what_has_no_signature_says_why() -> None:
    begin_ns = _core.now_ns()
    with stagespan.request():
        with stagespan.span("block of code"):
            pass
        plain(0, **{f"argument_number_{n}_with_a_long_name": 0 for n in range(40)})
    # WHEN it was a block, took too long to describe, or has too much text THEN it has none
    assert "`with` blocks have none" in described("block of code", begin_ns)["why"]
    assert "more than 2,048 bytes" in described("plain", begin_ns)["why"]
    for values in ([torch.zeros(1, n + 1) for n in range(9)], [[n] for n in range(9)], [0] * 70):
        begin_later_ns = _core.now_ns()
        with stagespan.request():
            plain(values)
        assert "too many arguments" in described("plain", begin_later_ns)["why"]
    # AND what came before the watch is not known
    assert "from a later time on" in described("plain", 1)["why"]


@pytest.mark.usefixtures("watching")
def test_a_call_outside_of_requests_is_not_described() -> None:
    begin_ns = _core.now_ns()
    plain(torch.zeros(3))
    assert "signature" not in described("plain", begin_ns)


class _Model:
    @stagespan.span("method")
    def method(self, x: Any) -> Any:
        return x

    @stagespan.span("coroutine")
    async def coroutine(self, x: Any) -> Any:
        await asyncio.sleep(0)
        return x

    @stagespan.span("generator")
    def generator(self, x: Any) -> Iterator[Any]:
        yield x

    @stagespan.ProfilingContext("context")
    def context(self, x: Any) -> Any:
        return x

    def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("stage", ["method", "coroutine", "generator", "context", "object"])
@pytest.mark.usefixtures("watching")
def test_calls_of_each_kind_of_function_are_described(stage: str) -> None:
    begin_ns = _core.now_ns()
    model, x = _Model(), torch.zeros(5)
    with stagespan.request():
        if stage == "coroutine":
            assert asyncio.run(model.coroutine(x)) is x
        elif stage == "object":
            assert stagespan.span("object")(model)(x) is x
        elif stage == "generator":
            assert next(iter(list(model.generator(x)))) is x
        else:
            assert getattr(model, stage)(x) is x
    signature = described(stage, begin_ns)["signature"]
    assert signature["input_signatures"]["x"]["shape"] == [5]
    assert signature["callable"]["of"].endswith(":_Model")


def test_exceptions_and_results_are_those_of_the_function() -> None:
    @stagespan.span("fails")
    def fails(x: object) -> None:
        raise KeyError(x)

    watch.start(600)
    try:
        with stagespan.request(), pytest.raises(KeyError, match="7"):
            fails(7)
    finally:
        watch.stop()


def test_many_threads_begin_and_end_it_while_calls_go_on() -> None:
    is_over = threading.Event()

    def call() -> None:
        while not is_over.is_set():
            with stagespan.request():
                assert plain(0, steps=9) == 9

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        watch.start(600)
        watch.noted(0, 1, [1])
        watch.stop()
    is_over.set()
    for thread in threads:
        thread.join()
    assert stagespan.lost()["hook_errors"] == 0


@pytest.mark.usefixtures("watching")
def test_descriptions_are_bounded() -> None:
    begin_ns = _core.now_ns()
    with stagespan.request():
        plain(torch.zeros(3))
    answer = first = described("plain", begin_ns)
    assert "signature" in first
    while "signature" in answer:
        with stagespan.request():
            for _ in range(100):
                plain(0)
        answer = watch.noted(begin_ns, _core.now_ns(), [first["span"]])["described"]
    assert "too many runs" in answer["why"]


MODULE = """
import stagespan

class Stage:
    @stagespan.span("denoise")
    def denoise(self, latents, *, scale=1.0):
        for _ in range(len(latents)):
            latents = latents + scale
        return latents

def get_stage():
    return Stage()
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which a service has kept its slow requests."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "served.py").write_text(MODULE)
    place = folder / "requests"
    process = start(REQUESTING, "keeping_slow_ones", str(place))
    ended(process, 0, timeout_s=300)
    return place


def slow_request(kept: Path, id_: str) -> dict[str, Any]:
    """Return the figures of a kept request."""
    page = json.loads(command_here("requests", str(kept), "--json", "--slowest", "9999").stdout)
    (request,) = (one for one in page["requests"] if one["request_id"] == id_)
    return dict(request["slow"])


def test_a_kept_request_has_the_signature_of_its_slow_stage(kept: Path) -> None:
    lines = [
        json.loads(line)
        for path in kept.glob("requests-*")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    (part,) = next(one["parts"] for one in lines if one["parts"][0]["segment"]["id"] == "large")
    signature = part["slowness"]["signature"]
    assert signature["stage"] == part["slowness"]["stage"] == "denoise"
    assert signature["signature"]["input_signatures"]["latents"]["shape"] == [5000, 2]
    assert "scale" not in signature["signature"]["input_signatures"]  # it was not passed
    slow = slow_request(kept, "large")
    assert slow["stage"] == "denoise"
    (shown,) = slow["signatures"]
    assert shown["took_ns"] > 0
    words = " ".join(command_here("requests", str(kept), "--id", "large").stdout.split())
    assert "signature of 'denoise': latents float32[5000, 2] cpu" in words


def test_a_page_says_that_a_block_has_no_signature(kept: Path) -> None:
    slow = slow_request(kept, "block")
    assert slow["stage"] == "waits"
    assert slow["signatures"] == []
    words = " ".join(command_here("requests", str(kept), "--id", "block").stdout.split())
    assert "not known: the signature of 'waits': only calls of decorated functions" in words


def bench(kept: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `bench --from-request` with the stage of the service."""
    command = [sys.executable, "-m", "stagespan", "bench", "--from-request", str(kept)]
    factory = ["--factory", "served:get_stage", "--output", str(kept.parent / "out")]
    return ran([*command, *factory, *options], cwd=kept.parent)


def test_bench_replays_the_slow_stage_of_a_kept_request(kept: Path) -> None:
    done = bench(kept, "--id", "large", "--warmup", "1", "--timing-steps", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stage"] == "denoise"
    assert "latents" in done.stdout + (kept.parent / "out" / "profile_denoise.py").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "choose one of"),
        (["--id", "none of them"], "There is no request with the id 'none of them'"),
        (["--id", "block"], "has no signature of a stage: the signature of 'waits'"),
        (["--id", "large", "--stage", "decode"], "no signature of the stage 'decode': it has that"),
    ],
)
def test_bench_says_in_one_sentence_what_it_cannot_replay(
    kept: Path, options: list[str], sentence: str
) -> None:
    done = bench(kept, *options)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_bench_wants_requests_for_the_options_of_requests(tmp_path: Path) -> None:
    done = command_here("bench", "--slowest", str(tmp_path))
    assert done.returncode == 2
    assert "--slowest needs --from-request." in done.stderr
    done = command_here("bench", "--from-request", str(tmp_path), str(tmp_path))
    assert done.returncode == 2
    assert "neither a FILE" in done.stderr
    done = command_here("bench", "--from-request", str(tmp_path / "none"), "--factory", "m:f")
    assert done.returncode == 2
    assert "is not a file or folder of kept requests" in " ".join(done.stderr.split())


def test_another_program_asks_for_signatures(folder: Path) -> None:
    process = started(REQUESTING, "asked_for_a_signature", STAGESPAN_LISTEN="true")
    (path,) = folder.glob("*.stagespan")
    # GIVEN a process that was asked to watch WHEN a function is called in a request
    with Asker(str(path)) as asker:
        asker.ask("watch", seconds=600)
        asker.wait()
        begin_ns = _core.now_ns()
        span = int(tell(process))
        # THEN it answers with the signature
        wish = {"begin_ns": begin_ns, "end_ns": _core.now_ns(), "spans": [span]}
        asker.ask("watch", seconds=600, **wish)
        answer = asker.wait()["described"]
    assert answer["span"] == span
    texts, longest = answer["signature"]["input_signatures"].values()
    assert texts == [{"$type": "str", "length": 8}, {"$type": "str", "length": 4}]
    assert longest["unreplayable"] == "int"
