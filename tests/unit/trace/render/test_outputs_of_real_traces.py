"""Real traces written as JSON and as Markdown: valid, described, and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import resolved, unstated

from stagespan.pages.markdown import escaped, markdown
from stagespan.trace.analysis import Analysis
from stagespan.trace.json_schema import json_schema
from stagespan.trace.paths import analyze_path

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

AGAINST = ("old_v100_resnet_workers4.json.gz", "old_v100_resnet_workers0.json.gz")
FOLDERS = ("nccl_dlrm_8rank", "ascend_level1", "ascend_level1/rank0_ascend_pt")


def analysed(traces: Path) -> list[tuple[str, Analysis]]:
    """Return the results for every trace and folder, and a comparison."""
    names = [*sorted(path.name for path in traces.glob("*.json.gz")), *FOLDERS]
    found = [(name, analyze_path(traces / name, jobs=1)) for name in names]
    after, before = (traces / name for name in AGAINST)
    return [*found, ("a comparison", analyze_path(after, before))]


@pytest.fixture(scope="module")
def results(traces: Path) -> list[tuple[str, Analysis]]:
    return analysed(traces)


def test_json_is_valid_and_described(results: list[tuple[str, Analysis]]) -> None:
    schema: dict[str, Any] = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    seen = set()
    for name, analysis in results:
        # WHEN a trace is written as JSON, and read strictly: without NaN
        written = json.loads(json.dumps(analysis.to_dict(), allow_nan=False))
        problems = [f"{list(e.path)}: {e.message[:200]}" for e in validator.iter_errors(written)]
        assert problems == [], name
        for key, figures in written.items():
            assert key in schema["properties"], (name, key)
            described = resolved(schema["properties"][key].get("anyOf", [{}])[-1]).get("properties")
            if described is not None and "unknown" not in figures:
                assert set(figures) <= set(described), (name, key)
                seen.add(key)
    assert {"kernels", "steps", "stages", "memory", "flame", "compiled", "ranks", "against"} <= seen


def test_every_finding_has_a_code_and_states_its_figures(
    results: list[tuple[str, Analysis]],
) -> None:
    for name, analysis in results:
        for finding in analysis.findings():
            assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", finding.code), name
            assert finding.numbers, (name, finding.code)
            assert unstated([finding]) == [], name


def test_markdown_is_complete_and_well_formed(results: list[tuple[str, Analysis]]) -> None:
    for name, analysis in results:
        page = markdown(analysis)
        for finding in analysis.findings():
            assert f"** {escaped(finding.first_line)}\n" in page, name
            assert escaped(finding.explanation) in page, name
        tables = [table for result in analysis.results.values() for table in result.tables()]
        for table in tables:
            assert f"### {escaped(table.title)}" in page, (name, table.title)
        rows = len(re.findall(r"^\|", page, re.MULTILINE))
        assert rows == sum(len(table.rows) + 2 for table in tables), name
        for result in analysis.results.values():
            assert escaped(getattr(result, "reason", "")) in page, name
        for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
            cells = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
            assert len(cells) == 1, (name, block[:200])
