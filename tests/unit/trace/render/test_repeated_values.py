"""A value that is in several places of a page is the same in all of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stagespan.pages.markdown import markdown
from stagespan.trace.analyses.device_use import Use
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import Analysis
from stagespan.trace.paths import analyze_path

FOLDERS = ("ascend_level1/rank0_ascend_pt", "ascend_level1/rank1_ascend_pt")
JOBS = ("nccl_dlrm_8rank", "ascend_level1")
UNITS = {"µs": 1e3, "ms": 1e6, "s": 1e9}
TIME = r"([\d,.]+) (µs|ms|s)\b"
BASE = r"(?:the|its) (?:[\d,]+ )?(?:steps?|trace)(?:'s|')"
PERCENT = r"\(([\d.,]+) %\)"


class Written(NamedTuple):
    """A number as a page writes it: its value, and half a unit of its last digit."""

    value: float
    within: float
    where: str

    @classmethod
    def of(cls, text: str, unit: float, where: str) -> Written:
        digits = len(text.partition(".")[2])
        return cls(float(text.replace(",", "")) * unit, 0.5 * unit * 10**-digits, where)


Found = defaultdict[str, list[Written]]
# What a page of one trace says in several places: the quantity, and sentences with its time, and
# possibly its share. The device of these pages is one.
SENTENCES = (
    ("base", rf"\bof {BASE} {TIME}"),
    ("computing", rf"\b(?:It|They) computed for {TIME} {PERCENT}"),
    ("computing", rf"\bfor {TIME} of {BASE} [^(]* {PERCENT} the device computed\b"),
    ("communicating", rf"\bfor {TIME} of {BASE} [^(]* {PERCENT} the device communicated while"),
    ("communicating", rf"\bFor {TIME} of {BASE} [^(]* {PERCENT} the device did nothing but comm"),
    ("copying", rf"\bfor {TIME} of {BASE} [^(]* {PERCENT} the device copied\b"),
    ("copying", rf"\bFor {TIME} of {BASE} [^(]* {PERCENT} the device did nothing but copy"),
    ("steps", r"\bof (?:the|its) ([\d,]+) steps'"),
    ("steps", r"(?m)^Steps +([\d,]+),"),
)
# Rows of tables by their first cell, with the headings of the cells.
ROWS = (
    ("computing", r"computing"),
    ("communicating", r"communicating, nothing else"),
    ("copying", r"copying, nothing else"),
)


def tables(page: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield the title, the headings and the rows of each table of a page in Markdown."""
    for part in re.split(r"(?m)^#+ ", page)[1:]:
        lines = [line for line in part.splitlines() if line[:1] == "|"]
        if len(lines) > 2:
            cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
            yield part.splitlines()[0], cells[0], cells[2:]


def in_sentences(page: str, found: Found) -> None:
    for what, pattern in SENTENCES:
        for match in re.finditer(pattern, page):
            number, *more = match.groups()
            if what == "steps":
                found[what].append(Written.of(number, 1, match[0]))
                continue
            found[what].append(Written.of(number, UNITS[more[0]], match[0]))
            if len(more) > 1:
                found[f"{what}, share"].append(Written.of(more[1], 1, match[0]))


def in_tables(page: str, found: Found) -> None:
    for title, headings, rows in tables(page):
        if title != "Verdict":
            continue
        time = next(at for at, name in enumerate(headings) if name.startswith("time ("))
        unit = UNITS[headings[time][6:-1]]
        for row in rows:
            for what, name in ROWS:
                if row[0] == name:
                    found[what].append(Written.of(row[time], unit, f"{title}: {name}"))
                    share = row[time + 1].removesuffix(" %")
                    found[f"{what}, share"].append(Written.of(share, 1, f"{title}: {name}"))


def in_bar(analysis: Analysis, found: Found) -> None:
    """Device use in the steps or the trace, from the analysis of the same name and the verdict."""
    use, verdict = analysis.device_use, analysis.verdict
    if not isinstance(use, Use) or not isinstance(verdict, Verdict) or len(use.by_device) != 1:
        return
    (time,) = use.by_device.values()
    for what, ns in (
        ("computing", time.compute_ns),
        ("communicating", time.exposed_communication_ns),
        ("copying", time.exposed_copy_ns),
    ):
        found[what].append(Written(ns, 0, "device use"))
    found["idle"].append(Written(time.idle_ns, 0, "device use"))
    busy = sum(verdict.parts_ns.get(part, 0) for part in ("computing", "communicating", "copying"))
    found["idle"].append(Written(verdict.whole_ns - busy, 0, "verdict"))
    found["base"].append(Written(verdict.whole_ns, 0, "verdict"))


def differing(found: Found) -> list[str]:
    """Return what is stated with two values, each with both places."""
    return [
        f"{what}: {each.where} ({each.value:,}), {other.where} ({other.value:,})"
        for what, values in found.items()
        for at, each in enumerate(values)
        for other in values[:at]
        if abs(each.value - other.value) > 1.0001 * (each.within + other.within)
    ]


def plain(analysis: Analysis) -> str:
    """Return the page without the backslashes of Markdown."""
    return re.sub(r"\\(?=\W)", "", markdown(analysis))


def said_by(analysis: Analysis) -> Found:
    page = plain(analysis)
    found: Found = defaultdict(list)
    in_sentences(page, found)
    in_tables(page, found)
    in_bar(analysis, found)
    return found


def test_no_page_of_a_trace_has_two_values_for_one_thing(
    every_trace: list[Path], traces: Path
) -> None:
    repeated: defaultdict[str, int] = defaultdict(int)
    more = [path for path in (traces / name for name in FOLDERS) if path.is_dir()]
    wrong = []
    for path in [*every_trace, *more]:
        found = said_by(analyze_path(path))
        wrong += [f"{path.name}: {text}" for text in differing(found)]
        for what, values in found.items():
            repeated[what] += len(values) > 1
    assert wrong == []
    # THEN the patterns still find these values more than once on some pages
    for what in ("base", "computing", "communicating", "idle", "computing, share", "steps"):
        assert repeated[what] >= 2, what


def ranks_say(page: str) -> Found:
    """Each rank's times by the table of ranks and by sentences and evidence."""
    found: Found = defaultdict(list)
    for title, headings, rows in tables(page):
        if title != "Ranks":
            continue
        for at, name in enumerate(headings):
            if heading := re.fullmatch(r"(computing|time|waiting) \((µs|ms|s)\)", name):
                for row in rows:
                    written = Written.of(row[at], UNITS[heading[2]], title)
                    found[f"rank {row[0]}: {heading[1]}"].append(written)
    for match in re.finditer(rf"(.{{0,80}})\brank (\d+) computed for {TIME}", page, re.IGNORECASE):
        # Between the common collectives is another base, if it is named.
        if "Between the first and last common collective" not in match[1]:
            what = f"rank {match[2]}: computing"
            found[what].append(Written.of(match[3], UNITS[match[4]], match[0]))
    return found


@pytest.mark.parametrize("name", JOBS)
def test_no_page_of_ranks_has_two_values_for_one_thing(name: str, traces: Path) -> None:
    analysis = analyze_path(traces / name, jobs=1)
    page = plain(analysis)
    found = ranks_say(page)
    exposed = rf"([\d.]+) % exposed communication|ranks' {TIME} {PERCENT}[^.]* they communicated"
    for match in re.finditer(exposed, page):
        share = match[1] or match[4]
        found["exposed, share"].append(Written.of(share, 1, match[0]))
    for match in re.finditer(
        rf"waited for each other in collectives for {TIME} {PERCENT[:-2]}", page
    ):
        found["waiting"].append(Written.of(match[1], UNITS[match[2]], match[0]))
        found["waiting, share"].append(Written.of(match[3], 1, match[0]))
    assert len(found["waiting"]) + len(found["exposed, share"]) > 1
    assert differing(found) == []
