"""Every claim of the pages of real traces, compared with what plain scripts find in raw events.

`TRACE_CLAIMS=claims.csv` writes the list of all claims to a file: trace, line of the page, claim,
class (right, wrong or unchecked), and what the raw events say. `make claims` does so.
`PUBLIC_TRACES=FOLDER` also checks the traces of public_traces.csv that lie in the folder, under
repository and path: they are not part of this repository.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import collective_claims  # noqa: F401 (registers its checks)
import finding_claims
import program_claims  # noqa: F401
import pytest
import time_claims  # noqa: F401
from ascend_claims import claims_of, claims_of_job
from checks import CHECKS, RIGHT, UNCHECKED, WRONG, Claim, Page
from raw_trace import RawTrace

from stagespan.trace import Trace, read_trace
from stagespan.trace.analysis import analyze
from stagespan.trace.paths import analyze_path

pytestmark = pytest.mark.slow

SHORT = [
    "cpu_only", "cuda_a100_alexnet", "cuda_a100_simple_add", "cuda_a100_sync_multi_stream",
    "cuda_b200_vllm_eager", "cuda_h100_bert", "cuda_h100_qwen", "cuda_h100_timesformer",
    "cuda_h100_vit", "mtia_inference", "rocm_mi210_gpu_only", "rocm_mi250_toy",
    "rocm_mi300_ddp_resnet", "rocm_mi300_sglang_decode", "rocm_mi300_triton_compile",
    "rocm_mi300_vllm_piecewise",
]  # fmt: skip
LONG = [
    "cuda_a100_cudagraph_triton_nccl", "cuda_v100_nccl_train", "cuda_v100_trace_diff",
    "cuda_v100_trace_diff_control", "cuda_v100_train_ns", "mtia_train",
    "old_v100_resnet_workers0", "old_v100_resnet_workers4", "rocm_mi300_owlv2",
    "rocm_mi300_xdit_sd35",
]  # fmt: skip
NAMES = [*SHORT, *(pytest.param(name, marks=pytest.mark.full) for name in LONG)]
FEWEST = 15
"""The least number of claims of a page."""


@pytest.fixture(scope="module")
def listed() -> Iterator[list[tuple[str, Claim]]]:
    """Return the list to which the tests add all claims; it is written at the end."""
    found: list[tuple[str, Claim]] = []
    yield found
    file = os.environ.get("TRACE_CLAIMS")
    if file:
        with Path(file).open("w", encoding="utf-8", newline="") as written:
            table = csv.writer(written)
            table.writerow(("trace", "line of the page", "claim", "class", "in the raw events"))
            table.writerows((name, c.kind, c.text, c.state, c.found) for name, c in found)


@pytest.mark.parametrize("name", NAMES)
def test_no_claim_is_wrong(
    name: str,
    real: Callable[[str], Trace],
    every_trace: list[Path],
    listed: list[tuple[str, Claim]],
) -> None:
    told = analyze(real(name)).to_dict()
    path = next(path for path in every_trace if path.name == f"{name}.json.gz")
    page = Page(name, told, RawTrace(path))
    claims = [claim for check in CHECKS.values() for claim in check(page)]
    listed += [(name, claim) for claim in claims]
    # THEN none is wrong, and few cannot be decided
    wrong = [claim for claim in claims if claim.state == WRONG]
    assert wrong == []
    assert len(claims) >= FEWEST
    assert sum(claim.state == UNCHECKED for claim in claims) <= 0.2 * len(claims)


@pytest.mark.parametrize("rank", range(8))
def test_no_claim_about_a_rank_is_wrong(
    rank: int, traces: Path, listed: list[tuple[str, Claim]]
) -> None:
    path = traces / f"nccl_dlrm_8rank/rank{rank}.json.gz"
    page = Page(path.parent.name, analyze(read_trace(path)).to_dict(), RawTrace(path))
    claims = [claim for check in CHECKS.values() for claim in check(page)]
    listed += [(f"{page.name}/rank{rank}", claim) for claim in claims]
    assert [claim for claim in claims if claim.state == WRONG] == []
    assert len(claims) >= FEWEST


ASCEND = [
    *(f"ascend_level1/rank{rank}_ascend_pt" for rank in range(2)),
    *(f"ascend_st_level2/rank_{rank}_ascend_pt" for rank in range(4)),
]


@pytest.mark.parametrize("name", ASCEND)
def test_no_claim_about_an_ascend_folder_is_wrong(
    name: str, traces: Path, more_traces: Path, listed: list[tuple[str, Claim]]
) -> None:
    folder = next(each / name for each in (traces, more_traces) if (each / name).is_dir())
    told = analyze_path(folder).to_dict()
    claims = claims_of(told, folder)
    listed += [(name, claim) for claim in claims]
    # THEN none is wrong, and few cannot be decided
    assert [claim for claim in claims if claim.state == WRONG] == []
    assert len(claims) >= FEWEST
    assert sum(claim.state == UNCHECKED for claim in claims) <= 0.2 * len(claims)


@pytest.mark.parametrize("name", ["ascend_level1", "ascend_st_level2"])
def test_no_claim_about_a_job_of_ascend_is_wrong(
    name: str, traces: Path, more_traces: Path, listed: list[tuple[str, Claim]]
) -> None:
    folder = next(each / name for each in (traces, more_traces) if (each / name).is_dir())
    claims = claims_of_job(analyze_path(folder, jobs=1).to_dict(), folder)
    listed += [(name, claim) for claim in claims]
    assert [claim for claim in claims if claim.state == WRONG] == []
    assert len(claims) >= FEWEST


def _public() -> list[Path]:
    """Return the traces of public_traces.csv that lie below $PUBLIC_TRACES, as owner/name/path."""
    root = os.environ.get("PUBLIC_TRACES")
    if root is None:
        return []
    with Path(__file__).with_name("public_traces.csv").open(encoding="utf-8") as file:
        found = [Path(root, row["repository"], row["path"]) for row in csv.DictReader(file)]
    return [path for path in found if path.is_file()]


@pytest.mark.full
@pytest.mark.parametrize("path", _public(), ids=str)
def test_no_claim_about_a_public_trace_is_wrong(
    path: Path, tmp_path: Path, listed: list[tuple[str, Claim]]
) -> None:
    told = analyze(read_trace(path)).to_dict()
    packed = path
    if path.suffix != ".gz":
        packed = tmp_path / "packed.json.gz"
        # Some versions of torch write the folders of Windows without escaping them.
        text = re.sub(rb'(?<!\\)\\(?!["\\/bfnrtu])', rb"\\\\", path.read_bytes())
        packed.write_bytes(gzip.compress(text, 1))
    page = Page(str(path), told, RawTrace(packed))
    claims = [claim for check in CHECKS.values() for claim in check(page)]
    listed += [(page.name, claim) for claim in claims]
    assert [claim for claim in claims if claim.state == WRONG] == []


def test_the_late_rank_of_a_job_is_late_in_the_raw_events(traces: Path) -> None:
    folder = traces / "nccl_dlrm_8rank"
    ranks = [RawTrace(folder / f"rank{rank}.json.gz") for rank in range(8)]
    kernels = [[e for e in raw.device if raw.kind(e) == "communication"] for raw in ranks]
    job = analyze_path(folder, jobs=1)
    told = job.to_dict()["ranks"]
    matched = told["matched_collectives"]
    assert matched == min(map(len, kernels))
    calls = list(zip(*(each[-matched:] for each in kernels), strict=True))
    shortest = [min(range(8), key=lambda rank: call[rank].duration) for call in calls]
    (late,) = [each for each in job.findings() if each.code == "ranks.late"]
    assert late.numbers["rank"] == max(set(shortest), key=shortest.count)
    assert abs(shortest.count(late.numbers["rank"]) - late.numbers["last"]) <= 1
    longer = sum(
        event.duration - min(each.duration for each in call) for call in calls for event in call
    )
    assert told["waited_us"] == pytest.approx(longer / 1000, rel=0.05)


def test_every_real_trace_is_checked(every_trace: list[Path]) -> None:
    names = {path.name.removesuffix(".json.gz") for path in every_trace}
    assert names <= {*SHORT, *LONG}


def test_a_wrong_page_is_noticed(real: Callable[[str], Trace], every_trace: list[Path]) -> None:
    name = "cuda_h100_timesformer"
    told = analyze(real(name)).to_dict()
    raw = RawTrace(next(path for path in every_trace if path.name == f"{name}.json.gz"))

    def wrong() -> set[str]:
        page = Page(name, told, raw)
        claims = [claim for check in CHECKS.values() for claim in check(page)]
        return {claim.kind for claim in claims if claim.state == WRONG}

    assert wrong() == set()
    told["verdict"]["parts_us"]["computing"] += 100.0
    told["rates"]["by_shape"][1]["tflop_s"] *= 1.02
    told["findings"][1]["figures"]["time_us"] *= 1.1
    told["critical_path"]["steps"][0]["kinds_us"]["work"] *= 2
    code = told["findings"][1]["code"]
    assert {"device use", "rates", f"finding {code}", "critical path"} <= wrong()


def test_a_wrong_page_of_an_ascend_folder_is_noticed(traces: Path) -> None:
    folder = traces / ASCEND[0]
    told = analyze_path(folder).to_dict()
    told["ascend_steps"]["steps"][0]["computing_us"] += 1
    told["ascend_operators"]["by_type"][0]["count"] += 1
    told["findings"][0]["figures"]["time_us"] *= 1.1
    wrong = {claim.kind for claim in claims_of(told, folder) if claim.state == WRONG}
    code = told["findings"][0]["code"]
    assert wrong >= {"Ascend steps", "Ascend operators", f"finding {code}"}


def test_every_kind_of_finding_has_a_check() -> None:
    assert finding_claims.findings in CHECKS.values()
    assert {RIGHT, WRONG, UNCHECKED} == {"right", "wrong", "unchecked"}
