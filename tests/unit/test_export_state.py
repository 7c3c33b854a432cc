"""The state of an exporter: what the next one reads of it, whatever has become of the file."""

from __future__ import annotations

import copy
import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changed_json import VALUES, places, put
from stagespan.errors import StagespanError
from stagespan.export import state
from stagespan.export.figures import Counts
from stagespan.export.totals import Group

GROUPS = [Group("svc", "default", ""), Group("train", "wan", "3")]


def figures(of: int) -> Counts:
    """Return figures of a service."""
    found = Counts({}, {})
    for duration_ns in (1500, 2_000_000, 1 << 50):
        found.observe("stage", "decode", duration_ns * of)
    found.observe("handoff", "tasks", 700)
    found.observe("request", "default\0ok", 900)
    found.amounts = {"work": {"decode": {"tokens": 7.0 * of}}, "errors": {"decode": {"": 1.0}}}
    return found


def example() -> state.State:
    """Return the state of an exporter with two services and a live process."""
    process = state.SavedProcess(
        "1-2-3", GROUPS[0], 1.0, 0, figures(3), Counts({}, {}), [1, 2, -9], [2]
    )
    return state.State(
        ["decode"],
        ["tokens"],
        [(group, figures(n)) for n, group in enumerate(GROUPS, 1)],
        [process],
        ["4-5-6"],
        {"recording": 2},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the example."""
    target = tmp_path / state.STATE_FILE
    state.write(target, example())
    return target


def aside(path: Path) -> list[Path]:
    return sorted(one for one in path.parent.iterdir() if one != path)


def test_a_state_is_read_as_it_was_written(path: Path) -> None:
    assert state.read(path) == example()
    assert aside(path) == []
    assert state.lost_by(str(path.parent)) == {"recording": 2}


def test_figures_of_an_earlier_exporter_have_the_labels_of_today(path: Path) -> None:
    # GIVEN requests that were counted by status alone, and hand-offs that were counted by sender
    page = json.loads(path.read_bytes())
    page["schema_version"] = 1
    del page["pipelines"]
    for figures_of in (*(of for _, of in page["retained"]), page["processes"][0]["figures"]):
        for row in figures_of["histograms"]:
            row[1] = {"tasks": "front\0tasks", "default\0ok": "ok"}.get(row[1], row[1])
        (handoff,) = [row for row in figures_of["histograms"] if row[0] == "handoff"]
        figures_of["histograms"].append(["handoff", "other\0tasks", *handoff[2:]])
    path.write_text(json.dumps(page))
    found = state.read(path)
    assert found is not None
    assert aside(path) == []
    for group, of_group in found.retained:
        assert of_group.durations["handoff"]["tasks"].below[-1] == 2
        assert [*of_group.durations["request"]] == [f"{group.pipeline}\0ok"]
    assert [*found.processes[0].figures.durations["request"]] == ["default\0ok"]


def test_a_state_of_an_earlier_exporter_is_read(path: Path) -> None:
    # GIVEN the fields in the order of an earlier exporter, without those that came later
    page = json.loads(path.read_bytes())
    for process in page["processes"]:
        del process["unsent"]
    names = ("schema_version", "stages", "units", "retained", "processes", "folded")
    path.write_text(json.dumps({name: page[name] for name in names}))
    found = state.read(path)
    assert found is not None
    assert (found.retained, found.folded, found.lost) == (example().retained, ["4-5-6"], {})
    assert found.processes[0].unsent == []
    assert aside(path) == []


def changed(path: Path, how: Callable[[Any], object]) -> None:
    page = json.loads(path.read_bytes())
    how(page)
    path.write_text(json.dumps(page))


def of_svc(page: Any) -> Any:
    return page["retained"][0][1]


CHANGES: dict[str, Callable[[Any], object]] = {
    "a negative count": lambda page: of_svc(page)["histograms"][0][3].__setitem__(1, -1),
    "a count that falls": lambda page: of_svc(page)["histograms"][0][3].__setitem__(1, 1 << 40),
    "a bucket that there is not": lambda page: of_svc(page)["histograms"][0][3].__setitem__(
        2, 10**9
    ),
    "a sum of 400 digits": lambda page: of_svc(page)["histograms"][0].__setitem__(2, 10**400),
    "a family that there is not": lambda page: of_svc(page)["histograms"][0].__setitem__(
        0, "energy"
    ),
    "a label with three names": lambda page: of_svc(page)["histograms"][0].__setitem__(
        slice(0, 2), ["request", "a\0b\0c"]
    ),
    "a histogram that is a text": lambda page: of_svc(page)["histograms"].__setitem__(0, "x"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_histogram_that_is_not_possible_is_left_out_alone(
    path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    changed(path, CHANGES[what])
    before = path.read_bytes()
    found = state.read(path)
    expected = example()
    del expected.retained[0][1].durations["stage"]
    assert found == expected
    (copied,) = aside(path)
    assert copied.read_bytes() == before
    assert not path.exists()
    (line,) = caplog.messages
    assert "it is set aside as .export-state.json.unreadable-1" in line


@pytest.mark.parametrize("amount", ["many", None, -5, True, [], {}])
def test_an_amount_that_is_not_possible_is_left_out_alone(path: Path, amount: object) -> None:
    changed(path, lambda page: of_svc(page)["amounts"]["errors"]["decode"].update({"": amount}))
    expected = example()
    del expected.retained[0][1].amounts["errors"]
    assert state.read(path) == expected


@pytest.mark.parametrize("digits", ["1e999", "9" * 400, "9" * 5000])
def test_a_number_beyond_all_others_spoils_nothing_beside_it(path: Path, digits: str) -> None:
    text = path.read_text()
    assert '"tokens":14.0' in text
    path.write_text(text.replace('"tokens":14.0', f'"tokens":{digits}'))
    found = state.read(path)
    assert found is not None
    (svc, train) = found.retained
    assert svc == example().retained[0]
    assert train[1].durations == example().retained[1][1].durations
    assert len(found.processes) == 1
    state.write(path, found)
    assert state.read(path) == found


def test_a_state_of_a_newer_version_is_kept_and_read_as_far_as_it_is_known(path: Path) -> None:
    def newer(page: Any) -> None:
        page["schema_version"] = 3
        page["rooms"] = [1]
        page["retained"][0][1]["quantiles"] = {}

    changed(path, newer)
    before = path.read_bytes()
    assert state.read(path) == example()
    assert [one.read_bytes() for one in aside(path)] == [before]


def test_a_state_that_ends_anywhere_has_what_is_before(path: Path) -> None:
    data, expected = path.read_bytes(), example()
    most = 0
    for end in range(len(data)):
        path.write_bytes(data[:end])
        for one in aside(path):
            one.unlink()
        found = state.read(path)
        # THEN each figure that is read is as it was written
        assert found is not None
        for (group, now), (expected_group, original) in zip(
            found.retained, expected.retained, strict=False
        ):
            assert group == expected_group
            histograms, amounts = list(now.histograms()), list(now.numbers())
            assert histograms == list(original.histograms())[: len(histograms)]
            assert amounts == list(original.numbers())[: len(amounts)]
        assert found.processes in ([], expected.processes)
        assert found.folded == expected.folded or not found.retained
        # THEN none is missing that was there with less of the file
        number = sum(len([*one.histograms(), *one.numbers()]) for _, one in found.retained)
        assert number >= most
        most = number
    assert found.retained == expected.retained


def set_fifo(path: Path) -> None:
    os.mkfifo(path)


def set_folder(path: Path) -> None:
    path.mkdir()
    (path / "a file").touch()


def set_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        folder = os.open(path.parent, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def set_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


OTHERS = (set_fifo, set_folder, set_socket, set_link_to_itself)


@pytest.mark.parametrize("how", OTHERS, ids=lambda how: how.__name__)
def test_what_is_not_a_file_is_set_aside(path: Path, how: Callable[[Path], None]) -> None:
    path.unlink()
    how(path)
    assert state.lost_by(str(path.parent)) == {}
    assert state.read(path) is None
    assert not os.path.lexists(path)
    assert len(aside(path)) == 1
    state.write(path, example())
    assert state.read(path) == example()


def test_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StagespanError, match="it is a device"):
        state.read(Path("/dev/zero"))


def test_states_that_are_set_aside_stay(path: Path) -> None:
    for n in range(12):
        path.write_text(f"{n}")
        state.read(path)
    assert [one.read_text() for one in aside(path)] == [*map(str, range(8)), "11"]


@given(st.data())
def test_no_value_keeps_the_exporter_from_its_figures(data: st.DataObject) -> None:
    import tempfile

    prometheus = pytest.importorskip("stagespan.export.prometheus")
    from stagespan.export.totals import Totals

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "state"
        state.write(target, example())
        page = json.loads(target.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.sampled_from([one for one in places(page) if one]))
            put(page, place, copy.deepcopy(data.draw(st.sampled_from(VALUES))))
        target.write_text(json.dumps(page))
        logging.getLogger("stagespan").disabled = True
        try:
            found = state.read(target)
        finally:
            logging.getLogger("stagespan").disabled = False
        assert found is not None
        totals = Totals()
        for group, one in found.retained:
            totals.retained.setdefault(group, Counts({}, {})).add(one)
            totals.retained[group].add(figures(1))
        for process in found.processes:
            totals.retained.setdefault(process.group, Counts({}, {})).add(
                process.figures.without(process.given)
            )
        shown = prometheus.families(totals.sums([]), found.lost, totals.gauges([]), {})
        assert all(metric.samples is not None for metric in shown)
        found.retained, found.folded = list(totals.retained.items()), found.folded or []
        state.write(target, found)
        assert state.read(target) == found
