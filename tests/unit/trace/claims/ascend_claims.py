"""Claims of the pages of Ascend folders, each compared with the files of the profiler.

A folder's trace is read as plain events. The device's work is what `kernel_details.csv` lists, the
collectives on the tracks of HCCL, and copies.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from checks import CHECKS, UNCHECKED, Claim, Page, equals
from finding_claims import evidence, gains, sentences
from raw_trace import Event, RawTrace, clipped, length

_OUTPUT = "ASCEND_PROFILER_OUTPUT"
_HARDWARE, _HCCL, _CANN = "Ascend Hardware", "HCCL", "CANN"


class RawFolder:
    """The files of one rank's folder, read by the csv and json modules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / _OUTPUT

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a CSV file; [] if it does not exist."""
        path = self.folder / name
        if not path.is_file():
            return []
        with path.open(newline="", encoding="utf-8") as file:
            return [
                {key: (cell or "").strip() for key, cell in row.items()}
                for row in csv.DictReader(file)
            ]

    def document(self, name: str) -> dict[str, Any]:
        """Return a JSON file; {} if it does not exist."""
        path = self.folder / name
        if not path.is_file():
            return {}
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    @cached_property
    def trace(self) -> RawAscend | None:
        """The trace; None if the folder has none."""
        path = self.folder / "trace_view.json.gz"
        if not path.is_file():
            return None
        names = {row["Name"] for row in self.rows("kernel_details.csv")}
        return RawAscend(path, names)

    @cached_property
    def collectives(self) -> list[tuple[str, dict[str, float]]]:
        """Name and times in ms of each collective of communication.json."""
        found = []
        for groups in self.document("communication.json").values():
            for operations in groups.values():
                for name, content in operations.items():
                    if name != "Total Op Info":
                        found.append((name.partition("@")[0], content["Communication Time Info"]))
        return found


class RawAscend(RawTrace):
    """The plain events of a trace of torch_npu.profiler."""

    def __init__(self, path: Path, operators: set[str]) -> None:
        super().__init__(path)
        self._operators = operators
        named = [e for e in self.entries if e.get("ph") == "M"]
        self._process = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
        self._track = {
            (e["pid"], e.get("tid")): e["args"]["name"] for e in named if e["name"] == "thread_name"
        }

    def process(self, event: Event) -> str:
        """Return the name of an event's process."""
        return str(self._process.get(event.thread[0], ""))

    def on(self, process: str) -> list[Event]:
        """Return the events of a process by begin."""
        found = [each for each in self.events if self.process(each) == process]
        return sorted(found, key=lambda each: each.begin)

    @cached_property
    def device(self) -> list[Event]:
        """Operators, copies and collectives."""
        work = [
            each
            for each in self.on(_HARDWARE)
            if each.name in self._operators or each.name.startswith("MEMCPY")
        ]
        groups = [
            each
            for each in self.on(_HCCL)
            if str(self._track.get(each.thread, "")).startswith("Group")
        ]
        return sorted([*work, *groups], key=lambda each: each.begin)

    def kind(self, event: Event) -> str:
        """Return "compute", "communication" or "copy"."""
        if self.process(event) == _HCCL:
            return "communication"
        return "copy" if event.name.startswith("MEMCPY") else "compute"

    def is_kernel(self, event: Event) -> bool:
        """Whether a device event is neither a copy nor a collective."""
        return self.kind(event) == "compute"

    @cached_property
    def devices(self) -> set[Any]:
        """The one device of a folder."""
        return {0}

    @cached_property
    def _launches(self) -> dict[tuple[str, int], Event]:
        """By process and begin of device work, the call of CANN from which a flow leads to it."""
        calls: dict[Any, list[Event]] = defaultdict(list)
        for each in self.on(_CANN):
            calls[each.thread].append(each)
        starts: dict[Any, Event] = {}
        for entry in self.entries:
            if entry.get("ph") == "s" and entry.get("cat") == "HostToDevice":
                at = round(Decimal(entry["ts"]) * 1000) - self.origin
                thread = (entry["pid"], entry["tid"])
                around = [e for e in calls[thread] if e.begin <= at <= e.end]
                if around:
                    starts[entry["id"]] = min(around, key=lambda each: each.duration)
        found = {}
        for entry in self.entries:
            if entry.get("ph") == "f" and entry.get("cat") == "HostToDevice":
                call = starts.get(entry["id"])
                if call is not None:
                    at = round(Decimal(entry["ts"]) * 1000) - self.origin
                    found[str(self._process[entry["pid"]]), at] = call
        return found

    def launch(self, event: Event) -> Event | None:
        """Return the call of CANN that launched a device event."""
        return self._launches.get((self.process(event), event.begin))


Check = Callable[[Page, RawFolder], Iterator[Claim]]
_CHECKS: list[Check] = []


def _check(function: Check) -> Check:
    _CHECKS.append(function)
    return function


def claims_of(told: dict[str, Any], folder: Path) -> list[Claim]:
    """Return the claims of a folder's page, those about its trace among them."""
    raw = RawFolder(folder)
    page = Page(folder.name, told, raw.trace) if raw.trace is not None else None
    found = [claim for each in _CHECKS for claim in each(Page(folder.name, told, raw.trace), raw)]
    if page is not None:
        of_trace = [CHECKS[name] for name in _OF_TRACES]
        found += [claim for each in (*of_trace, evidence) for claim in each(page)]
        found += list(gains(page))
    return found + list(sentences(Page(folder.name, told, raw.trace)))


# The checks of other traces that need neither CUDA's calls nor its categories.
_OF_TRACES = ("window", "device use", "critical path")


@_check
def _steps(page: Page, raw: RawFolder) -> Iterator[Claim]:
    """The times of each step, from the table that the profiler writes."""
    columns = {
        "computing_us": "Computing",
        "communication_not_overlapped_us": "Communication(Not Overlapped)",
        "overlapped_us": "Overlapped",
        "communication_us": "Communication",
        "free_us": "Free",
        "stage_us": "Stage",
        "bubble_us": "Bubble",
        "preparing_us": "Preparing",
    }
    rows = raw.rows("step_trace_time.csv")
    told = page.told["ascend_steps"]["steps"]
    yield equals("Ascend steps", "count", len(told), len(rows), 0)
    for step, row in zip(told, rows, strict=True):
        for key, column in columns.items():
            # Times of day are doubles in the file, which are 0.25 µs apart.
            within = 0.25 if column in ("Stage", "Preparing") else 0.01
            text = f"step {step['step']}, {column}"
            yield equals("Ascend steps", text, step[key], float(row[column]), within)


@_check
def _operators(page: Page, raw: RawFolder) -> Iterator[Claim]:
    """Number and time of the operators of each type, from the table of all operators."""
    rows = raw.rows("kernel_details.csv")
    if not rows:
        return
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        sums[row["Type"], row["Accelerator Core"]].append(float(row["Duration(us)"]))
    for each in page.told["ascend_operators"]["by_type"]:
        times = sums.get((each["type"], each["core"]), [])
        yield equals("Ascend operators", f"{each['type']}, number", each["count"], len(times), 0)
        # Two tables of the profiler round differently.
        yield equals("Ascend operators", f"{each['type']}, µs", each["total_us"], sum(times), 0.05)


@_check
def _calls(page: Page, raw: RawFolder) -> Iterator[Claim]:
    """Number and time of the calls of CANN's functions."""
    rows = {(row["Level"], row["API Name"]): row for row in raw.rows("api_statistic.csv")}
    for each in page.told["ascend_api"].get("calls", [])[:20]:
        row = rows[each["level"], each["name"]]
        yield equals("Ascend calls", f"{each['name']}, number", each["count"], int(row["Count"]), 0)
        time = float(row["Time(us)"])
        yield equals("Ascend calls", f"{each['name']}, µs", each["total_us"], time, 0.01)


@_check
def _collectives(page: Page, raw: RawFolder) -> Iterator[Claim]:
    """The times of each collective, and the data of each link."""
    told = page.told["ascend_collectives"]
    files = dict(raw.collectives)
    for each in told.get("operations", []):
        times = files[each["name"]]
        for key, column in (
            ("elapse_us", "Elapse"), ("transit_us", "Transit"), ("wait_us", "Wait"),
            ("synchronization_us", "Synchronization"), ("idle_us", "Idle"),
        ):  # fmt: skip
            text, found = f"{each['name']}, {column}", 1000 * times[f"{column} Time(ms)"]
            yield equals("Ascend collectives", text, each[key], found, 0.001)
    sizes: dict[tuple[str, str], float] = defaultdict(float)
    for groups in raw.document("communication_matrix.json").values():
        for operations in groups.values():
            for name, pairs in operations.items():
                if name.partition("@")[0].endswith("-total"):
                    for pair, content in pairs.items():
                        source, _, target = pair.partition("-")
                        sizes[source, target] += content["Transit Size(MB)"]
    for link in told.get("links", []):
        text, found = f"link {link['from']} to {link['to']}, MB", sizes[link["from"], link["to"]]
        yield equals("Ascend collectives", text, link["megabytes"], found, 0.001)


# --- Findings ---

Found = dict[str, tuple[float, float]]
_BY_CODE: dict[str, Callable[[Page, RawFolder], Found]] = {}


def _of(code: str) -> Callable[..., Callable[[Page, RawFolder], Found]]:
    def add(function: Callable[[Page, RawFolder], Found]) -> Callable[[Page, RawFolder], Found]:
        _BY_CODE[code] = function
        return function

    return add


def _of_step(raw: RawFolder, column: str) -> float:
    return sum(float(row[column]) for row in raw.rows("step_trace_time.csv"))


@_of("ascend.exposed_communication")
def _exposed(page: Page, raw: RawFolder) -> Found:
    alone, whole = _of_step(raw, "Communication(Not Overlapped)"), _of_step(raw, "Stage")
    moving = [times for _, times in raw.collectives if times["Transit Time(ms)"]]
    waiting = [times for _, times in raw.collectives if times["Elapse Time(ms)"]]
    waited = sum(each["Wait Time(ms)"] for each in waiting)
    elapsed = sum(each["Elapse Time(ms)"] for each in waiting)
    found: Found = {
        "time_us": (alone, 0.01),
        "whole_us": (whole, 0.25),
        "percent": (100 * alone / whole, 0.001),
        "moved_us": (1000 * sum(each["Transit Time(ms)"] for each in moving), 0.01),
        "collectives_us": (1000 * sum(each["Elapse Time(ms)"] for each in moving), 0.01),
        "waited_time_us": (1000 * waited, 0.01),
        "waited_whole_us": (1000 * elapsed, 0.01),
        "waited_percent": (100 * waited / elapsed, 0.001),
    }
    if raw.trace is not None:
        found["waiting_us"] = (_notified(raw.trace) / 1000, 0.05)
    return found


def _notified(trace: RawAscend) -> int:
    """Return the time of exposed communication in which a stream waited for another rank."""
    waits = [(e.begin, e.end) for e in trace.on(_HARDWARE) if e.name == "Notify Wait"]
    computing = trace.intervals("compute")
    found = 0
    for begin, end in trace.intervals("communication"):
        waited, computed = clipped(waits, begin, end), clipped(computing, begin, end)
        found += length(waited + computed) - length(computed)
    return found


@_of("ascend.free")
def _free(page: Page, raw: RawFolder) -> Found:
    free, whole = _of_step(raw, "Free"), _of_step(raw, "Stage")
    return {
        "time_us": (free, 0.01),
        "whole_us": (whole, 0.25),
        "percent": (100 * free / whole, 0.001),
    }


@_of("ascend.conversions")
def _conversions(page: Page, raw: RawFolder) -> Found:
    rows = [row for row in raw.rows("kernel_details.csv") if row["Accelerator Core"] != "HCCL"]
    times = [float(row["Duration(us)"]) for row in rows]
    kinds = ("TransData", "Transpose", "Cast")
    own = sum(t for t, row in zip(times, rows, strict=True) if row["Type"] in kinds)
    return {"time_us": (own, 0.05), "percent": (100 * own / sum(times), 0.01)}


def _sum_of_calls(raw: RawFolder, pattern: str, level: str) -> tuple[float, int]:
    rows = [
        row
        for row in raw.rows("api_statistic.csv")
        if re.match(pattern, row["API Name"]) and row["Level"] == level
    ]
    return sum(float(r["Time(us)"]) for r in rows), sum(int(r["Count"]) for r in rows)


@_of("ascend.compiled_while_running")
def _compiled(page: Page, raw: RawFolder) -> Found:
    time, calls = _sum_of_calls(raw, "aclopCompile", "acl")
    found: Found = {"time_us": (time, 0.01), "calls": (calls, 0)}
    if raw.trace is not None:
        found["percent"] = (100 * time / (raw.trace.end / 1000), 0.01)
    return found


@_of("ascend.host_waits")
def _host_waits(page: Page, raw: RawFolder) -> Found:
    if raw.trace is None:
        time, calls = _sum_of_calls(raw, "aclrtSynchronize", "acl")
        return {"time_us": (time, 0.01), "calls": (calls, 0)}
    pattern = re.compile(r"^AscendCL@aclrt(?:Synchronize|Memcpy$)")
    waits = [each for each in raw.trace.on(_CANN) if pattern.match(each.name)]
    time = sum(each.duration for each in waits) / 1000
    return {
        "time_us": (time, 0.01),
        "waits": (len(waits), 0),
        "percent": (100 * time / (raw.trace.end / 1000), 0.01),
    }


@_of("ascend.host_bound")
def _host_bound(page: Page, raw: RawFolder) -> Found:
    """Return how long the device was free until the call that launched the next operator ended."""
    trace = raw.trace
    assert trace is not None
    work = [each for each in trace.device if trace.kind(each) != "copy"]
    late, reached = 0, work[0].end
    for event in work:
        call = trace.launch(event)
        if event.begin > reached and call is not None:
            late += min(max(call.end, reached), event.begin) - reached
        reached = max(reached, event.end)
    whole = max(each.end for each in work) - work[0].begin
    return {
        # A copy that waits for the host in a gap is not counted as late.
        "time_us": (late / 1000, 0.01 * late / 1000),
        "whole_us": (whole / 1000, 0.02),
        "operators": (len([each for each in work if trace.is_kernel(each)]), 0),
    }


@_check
def _findings(page: Page, raw: RawFolder) -> Iterator[Claim]:
    """The figures of the findings of Ascend."""
    for finding in page.told["findings"]:
        script, kind = _BY_CODE.get(finding["code"]), f"finding {finding['code']}"
        if script is None:
            if finding["code"].startswith("ascend."):
                yield Claim(kind, finding["sentence"][:80], "", UNCHECKED)
            continue
        for key, (value, within) in script(page, raw).items():
            if key in finding["figures"]:
                yield equals(kind, key, finding["figures"][key], value, within)


@_check
def _shown(page: Page, raw: RawFolder) -> Iterator[Claim]:
    """Evidence without a point in time, such as all calls of a function or one collective."""
    totals = {row["API Name"]: float(row["Time(us)"]) for row in raw.rows("api_statistic.csv")}
    totals |= {name: 1000 * times["Wait Time(ms)"] for name, times in raw.collectives}
    by_type: dict[str, float] = defaultdict(float)
    for row in raw.rows("op_statistic.csv"):
        by_type[f"{row['OP Type']} on {row['Core Type']}"] += float(row["Total Time(us)"])
    totals |= by_type
    for finding in page.told["findings"]:
        for each in finding["evidence"]:
            if each["time_us"] is not None or each["unit"] != "us":
                continue
            name = each["event"].partition(", ")[0]
            if name in totals and ", no data" not in each["event"]:
                text = f"{finding['code']}: {each['event']}"
                yield equals("evidence", text, each["figure"], totals[name], 0.01)


# --- Jobs of several ranks ---


def claims_of_job(told: dict[str, Any], folder: Path) -> list[Claim]:
    """Return the claims of the page of several ranks, compared with the tables of each rank."""
    ranks = [RawFolder(each) for each in sorted(folder.iterdir()) if each.is_dir()]
    exposed = [_of_step(raw, "Communication(Not Overlapped)") for raw in ranks]
    computing = [_of_step(raw, "Computing") for raw in ranks]
    whole = [_of_step(raw, "Stage") for raw in ranks]
    waited, last, matched = _waited(ranks)
    shares = sorted(100 * part / of for part, of in zip(exposed, whole, strict=True))
    mean = sum(computing) / len(computing)
    slow = [each for each in computing if each > mean]
    fast = [each for each in computing if each <= mean]
    expected: dict[str, Found] = {
        "ranks.exposed_communication": {
            # The table's times of day are 0.25 µs apart.
            "time_us": (sum(exposed), 0.1),
            "whole_us": (sum(whole), 0.5),
            "percent": (100 * sum(exposed) / sum(whole), 0.01),
            "least_percent": (shares[0], 0.01),
            "most_percent": (shares[-1], 0.01),
        },
        "ranks.imbalance": {
            "computing_us": (max(computing), 0.1),
            "percent": (100 * (max(computing) - mean) / mean, 0.01),
            "times": (sum(slow) / len(slow) / (sum(fast) / len(fast)), 0.001),
        },
        # Clocks are aligned by the collectives, so their ends are the same only nearly.
        "ranks.waiting": {"time_us": (waited, 0.01 * waited)},
    }
    found = [equals("ranks", "collectives", told["ranks"]["matched_collectives"], matched, 0)]
    for finding in told["findings"]:
        code, figures = finding["code"], finding["figures"]
        kind = f"finding {code}"
        for key, (value, within) in expected.get(code, {}).items():
            if key in figures:
                found.append(equals(kind, key, figures[key], value, within))
        if code == "ranks.late":
            most = max(last.values())
            found.append(equals(kind, "rank", last[int(figures["rank"])], most, 0))
            found.append(equals(kind, "last", figures["last"], most, 1))
    return found + list(sentences(Page(folder.name, told, None)))  # type: ignore[arg-type]


def _waited(ranks: list[RawFolder]) -> tuple[float, Counter[int], int]:
    """Return how long the ranks waited in all in µs, how often each was last, and of how many.

    All ranks leave a collective at the same time, so the last one has the shortest.
    """
    times: dict[str, dict[int, float]] = defaultdict(dict)
    for rank, raw in enumerate(ranks):
        for name, columns in raw.collectives:
            times[name][rank] = 1000 * columns["Elapse Time(ms)"]
    common = [each for each in times.values() if len(each) > 1]
    waited = sum(time - min(each.values()) for each in common for time in each.values())
    return waited, Counter(min(each, key=lambda rank: each[rank]) for each in common), len(common)
