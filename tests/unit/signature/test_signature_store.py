"""The hook of debug contexts: the signatures of a process, their keys and times."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running import in_threads
from stagespan import _core
from stagespan.errors import SignatureError
from stagespan.signature import (
    SignatureFile,
    capture,
    dump_io_signatures,
    get_io_signatures,
    reset_signatures,
    signature_key,
    signature_stats,
)
from stagespan.signature.recorder import SignatureHook
from stagespan.signature.store import MAX_KEYS, MAX_LENGTHS, OTHER

torch = pytest.importorskip("torch")

FIRST = _core.FLAG_FIRST_OF_SHAPE


@dataclasses.dataclass
class Call:
    """The object that `stagespan.contexts.context` passes to a hook."""

    stage: str = "denoise"
    function: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    inputs: dict[str, Any] | None = None
    result: Any = _core.MISSING
    error: BaseException | None = None
    begin_ns: int = 0
    end_ns: int = 2_000_000
    flags: int = 0
    kind: str = "debug"
    state: dict[str, Any] = dataclasses.field(default_factory=dict)


def denoise(latents: Any, steps: int = 8, scale: float = 1.0) -> Any:
    return latents


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    reset_signatures(forget_shapes=True)
    yield
    reset_signatures(forget_shapes=True)


def run(**fields: Any) -> Call:
    """One run of a stage through the hook."""
    call = Call(**fields)
    hook = SignatureHook()
    if hook.wants(call):
        hook.enter(call)
        hook.leave(call)
        hook.exit(call)
    return call


def test_inputs_output_and_metadata_of_a_call_are_kept() -> None:
    # GIVEN a stage called by position and keyword
    latents = torch.randn(5, 40)

    run(function=denoise, args=(latents,), kwargs={"scale": 5.0}, result=(latents, {"n": 1}))

    entry = get_io_signatures()["denoise"]
    node = {"shape": [5, 40], "dtype": "float32", "device": "cpu"}
    assert entry["input_signatures"] == {"latents": node, "steps": 8, "scale": 5.0}
    assert entry["metadata"] == {"steps": 8, "scale": 5.0}
    assert entry["output_signature"] == {"$type": "tuple", "items": [node, {"n": 1}]}
    assert entry["count"] == 1


def test_a_with_block_sets_its_inputs_later() -> None:
    run(stage="embedding", inputs={"ids": torch.zeros(3, 90)}, result=torch.zeros(2, 50))
    run(stage="bare")

    entries = get_io_signatures()
    assert entries["embedding"]["input_signatures"]["ids"]["shape"] == [3, 90]
    assert entries["embedding"]["output_signature"]["shape"] == [2, 50]
    assert entries["bare"]["input_signatures"] == {}


def test_always_on_contexts_are_not_captured() -> None:
    run(kind="profiling", function=denoise, args=(1,))

    assert get_io_signatures() == {}


def test_the_first_run_of_a_shape_is_marked() -> None:
    calls = [run(function=denoise, args=(torch.zeros(n, 30),)) for n in (3, 3, 4, 4)]

    reset_signatures()
    again = run(function=denoise, args=(torch.zeros(3, 30),))

    assert [call.flags for call in calls] == [FIRST, 0, FIRST, 0]
    assert again.flags == 0


def test_a_failed_run_has_no_output_and_no_time() -> None:
    run(function=denoise, args=(1,), error=ValueError("x"))

    assert get_io_signatures()["denoise"]["output_signature"] is None
    assert signature_stats()["denoise"][0]["p50_ms"] is None


def test_the_most_frequent_signature_is_the_main_one_and_others_are_variants() -> None:
    # GIVEN a warm-up of one shape, two runs of another, and a last chunk of a third
    for size in (1, 8, 8, 3):
        run(function=denoise, args=(torch.zeros(size, 30),))

    entry = get_io_signatures()["denoise"]

    assert entry["input_signatures"]["latents"]["shape"] == [8, 30]
    shapes = [v["input_signatures"]["latents"]["shape"] for v in entry["variants"]]
    assert shapes == [[3, 30], [1, 30]]


def test_scalars_of_the_latest_run_win() -> None:
    # GIVEN a warm-up with two steps, then a run with forty
    run(function=denoise, args=(torch.zeros(2, 30), 2))
    run(function=denoise, args=(torch.zeros(2, 30), 40))

    entry = get_io_signatures()["denoise"]
    assert entry["input_signatures"]["steps"] == 40
    assert entry["metadata"]["steps"] == 40
    assert entry["count"] == 2


def test_the_key_is_that_of_the_form() -> None:
    def key(*args: Any, **kwargs: Any) -> str:
        return signature_key(Call(function=denoise, args=args, kwargs=kwargs))

    base = key(torch.zeros(2, 3), 5)

    # WHEN / THEN only the form matters, not the values or the way of passing them
    assert key(torch.ones(2, 3), 6) == base
    assert key(latents=torch.ones(2, 3), steps=1) == base
    assert key(torch.zeros(2, 4), 5) != base
    assert key(torch.zeros(2, 3).half(), 5) != base
    assert key([torch.zeros(2, 3)], 5) != base
    assert key({"a": torch.zeros(2, 3)}, 5) != key({"b": torch.zeros(2, 3)}, 5)
    assert key("a", 5) == key("b" * 9999, 5)
    assert key(1.0, 5) == key(float("inf"), 5)
    assert key(None, 5) != key(True, 5)
    assert len(base) == 12


def test_times_are_kept_by_signature() -> None:
    for size, end in ((2, 1_000_000), (2, 3_000_000), (2, 2_000_000), (5, 9_000_000)):
        run(function=denoise, args=(torch.zeros(size, 30),), end_ns=end)

    rows = signature_stats()["denoise"]
    assert [(row["count"], row["p50_ms"]) for row in rows] == [(3, 2.0), (1, 9.0)]


def test_the_quartiles_of_a_signature_are_kept() -> None:
    for end in (5, 1, 9, 3, 7, 2, 8, 4, 6):
        run(function=denoise, args=(torch.zeros(2, 30),), end_ns=end * 1_000_000)

    (row,) = signature_stats()["denoise"]
    figures = [row[name] for name in ("p25_ms", "p50_ms", "p75_ms", "first_ms")]
    assert figures == [3.0, 5.0, 7.0, 5.0]


def test_the_runs_behind_the_percentiles_are_counted() -> None:
    for _ in range(600):
        run(function=denoise, args=(torch.zeros(2, 30),), end_ns=1_000_000)

    (row,) = signature_stats()["denoise"]
    assert (row["count"], row["percentile_runs"]) == (600, 512)


def test_a_size_that_grows_from_call_to_call_is_one_signature() -> None:
    # GIVEN a prefill with 64 tokens, and decode steps whose mask grows
    run(function=denoise, args=(torch.zeros(1, 64), torch.ones(1, 64)))
    for length in range(65, 125):
        run(function=denoise, args=(torch.zeros(1, 1), torch.ones(1, length)))

    rows = signature_stats()["denoise"]
    found = get_io_signatures()["denoise"]

    # THEN a few lengths are kept, including the prefill, and all others are one signature
    assert len(rows) == MAX_LENGTHS + 1
    assert rows[0]["key"].endswith("+")
    assert (rows[0]["count"], sum(row["count"] for row in rows)) == (61 - MAX_LENGTHS, 61)
    assert found["input_signatures"]["latents"]["shape"] == [1, 1]
    shapes = [variant["input_signatures"]["latents"]["shape"] for variant in found["variants"]]
    assert [1, 64] in shapes


def test_sizes_that_repeat_are_kept_separately() -> None:
    # GIVEN many resolutions, each of which occurs again
    for size in range(20):
        for _ in range(2):
            run(function=denoise, args=(torch.zeros(1, size),))

    assert [row["count"] for row in signature_stats()["denoise"]] == [2] * 20


def test_signatures_of_a_stage_are_bounded() -> None:
    # GIVEN a stage whose structure never repeats
    runs = 3 * MAX_KEYS
    for size in range(runs):
        run(function=denoise, args=([0] * size,))

    rows = {row["key"]: row["count"] for row in signature_stats()["denoise"]}

    # THEN the first ones are kept, and the rest is counted together
    assert len(rows) == MAX_KEYS + 1
    assert rows[OTHER] == runs - MAX_KEYS
    assert len(get_io_signatures()["denoise"]["variants"]) == MAX_KEYS - 1


def test_settings_of_torch_are_kept() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        run(function=denoise, args=(1,))

    context = get_io_signatures()["denoise"]["context"]
    assert {name: context[name] for name in ("grad", "inference", "autocast")} == {
        "grad": False,
        "inference": False,
        "autocast": {"cpu": "bfloat16"},
    }
    assert context["threads"] == torch.get_num_threads()
    assert "math" in context["sdpa"]
    assert context["matmul_precision"] == torch.get_float32_matmul_precision()
    assert context["deterministic"] is False


def test_the_file_is_written_completely(tmp_path: Path) -> None:
    # GIVEN a stage that ran in a report with an id
    reset_signatures("req_1")
    run(function=denoise, args=(torch.zeros(2, 30),), result=1)
    path = tmp_path / "new" / "timing_io_signature.json"

    written = dump_io_signatures(path)

    assert written == path
    assert SignatureFile.read(path).stage("denoise").output == 1
    assert json.loads(path.read_text())["request_id"] == "req_1"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_threads_lose_nothing() -> None:
    def work(number: int) -> None:
        for turn in range(50):
            run(stage=f"s{turn % 2}", function=denoise, args=(torch.zeros(number, 30),))

    in_threads(*(functools.partial(work, n) for n in range(8)))

    stats = signature_stats()
    assert [sum(row["count"] for row in stats[name]) for name in ("s0", "s1")] == [200, 200]


def test_the_store_returns_copies() -> None:
    run(function=denoise, args=({"a": 1},))

    get_io_signatures()["denoise"]["input_signatures"]["latents"]["a"] = 2

    assert get_io_signatures()["denoise"]["input_signatures"]["latents"] == capture({"a": 1})


def test_a_file_that_cannot_be_written_is_reported_in_one_sentence(tmp_path: Path) -> None:
    # GIVEN a path through something that is not a folder
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "timing_io_signature.json"

    with pytest.raises(SignatureError, match=r"cannot be written to .*: \w+.*; choose another"):
        dump_io_signatures(target)

    assert [path.name for path in tmp_path.iterdir()] == ["file"]
