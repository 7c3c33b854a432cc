"""Tests of what `stagespan export` keeps and prints: requests, a dashboard, alert rules."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from exporting import (
    TWO_PROCESSES,
    Prometheus,
    documented,
    exporter,
    get,
    of,
    scraped,
)
from recorded_process import command_here, start, started

from recorded import large_request
from running import PROGRAMS, end, free_port, ran, ready, until
from stagespan import recording
from stagespan.cli import examine
from stagespan.export import dashboard, kept
from stagespan.export.parts import AWAITED_KEEP

EXPORTED = PROGRAMS / "exported.py"

pytestmark = pytest.mark.slow


def requests_in(*arguments: str) -> dict[str, Any]:
    done = command_here("requests", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def keep_all(place: Path, *forms: str) -> None:
    """Keep the requests of all recordings in a folder for each form, as if for the first time."""
    for form in forms:
        kept_before = len(list((place / form).glob("requests-*")))
        state = str(place / f"{form}-{kept_before}.state")
        with exporter("--keep", str(place / form), "--keep-format", form, "--state", state):
            # A file is written after 10 s. The end of an exporter is too short on a busy machine.
            until(lambda: len(list((place / form).glob("requests-*"))) > kept_before)  # noqa: B023


def about(value: object) -> object:
    """Leave out the last digits of times: a clock is known better later."""
    if isinstance(value, dict):
        return {key: about(one) for key, one in value.items()}
    if isinstance(value, list):
        return [about(one) for one in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return pytest.approx(value, rel=1e-3, abs=2000)
    return value


def test_kept_requests_say_what_the_recordings_said(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "jsonl"
    process = started(TWO_PROCESSES, "kill", STAGESPAN_JOB="svc", STAGESPAN_RECORDING="keep")
    keep_all(tmp_path, "jsonl")
    from_recordings = requests_in("--job", "svc")
    end(process)
    from_files = requests_in(str(target))
    assert requests_in(*map(str, target.iterdir())) == from_files
    assert from_files["count"] == from_recordings["count"] == 1
    for key in ("requests", "stages", "hops"):
        assert about(from_files[key]) == about(from_recordings[key])
    (request,) = from_files["requests"]
    spans = [span for one in request["segments"] for span in one["spans"]]
    steps = [span["work"] for span in spans if span["stage"] == "step"]
    assert steps == [{"tokens": n, "seconds": 0.25} for n in range(98)]
    assert [span["work"] for span in spans if span["stage"] == "work"] == [{}]
    assert (
        "step, tokens 97, seconds 0.25"
        in command_here("requests", str(target), "--id", "req-1").stdout
    )


def test_requests_of_several_machines_are_joined_from_all_their_folders(
    folder: Path, tmp_path: Path
) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    target = tmp_path / "jsonl"
    process = started(TWO_PROCESSES, "return", STAGESPAN_JOB="svc", STAGESPAN_RECORDING="keep")
    keep_all(tmp_path, "jsonl")
    end(process)
    whole = requests_in(str(target))
    (file,) = target.glob("*.jsonl.gz")
    (line,) = gzip.decompress(file.read_bytes()).splitlines()
    kept_request = json.loads(line)
    assert len(kept_request["parts"]) == 2
    urls = [str(tmp_path / "a"), (tmp_path / "b").as_uri()]
    for url, part in zip(urls, kept_request["parts"], strict=True):
        text = json.dumps({**kept_request, "parts": [part]}).encode()
        with fsspec.open(f"{url}/{file.name}", "wb", auto_mkdir=True) as written:
            written.write(gzip.compress(text))
    assert requests_in(*urls) == whole
    alone = requests_in(urls[0])
    assert alone["requests"] != whole["requests"]


def test_exemplars_are_requests_that_are_kept(folder: Path, tmp_path: Path) -> None:
    with exporter("--keep", str(tmp_path / "kept"), "--sample", "0") as (_, port):
        process = started(EXPORTED, "plenty")

        def traces() -> set[str]:
            text = get(f"http://127.0.0.1:{port}/metrics", "application/openmetrics-text")
            return set(re.findall(r'trace_id="(\w+)"', text))

        until(traces)
        segments = recording.open(process.pid).segments()
        kept_traces = {one["trace_id"] for one in segments if one["status"] == "cancelled"}
        assert len(kept_traces) == 6
        assert traces() <= kept_traces
        end(process)


@pytest.mark.full
def test_requests_in_parquet_are_chosen_as_those_in_json_lines(
    folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    first = start(EXPORTED, "plenty", STAGESPAN_JOB="svc")
    second = start(TWO_PROCESSES, "return", STAGESPAN_RECORDING="keep")
    ready(first)
    ready(second)
    keep_all(tmp_path, "jsonl", "parquet")
    end(first)
    end(second)
    lines, parquet = str(tmp_path / "jsonl"), str(tmp_path / "parquet")
    assert requests_in(lines)["count"] == 61
    for options in (
        ("--slowest", "5"),
        ("--slowest", "1000"),
        ("--slowest", "3", "--status", "cancelled"),
        ("--slowest", "2", "--id", "session-1/*"),
        ("--id", "session-1/4"),
        ("--id", "req-1"),
        ("--id", "nobody"),
    ):
        # WHEN the slowest of some are asked for THEN both say the same of them
        found = requests_in(parquet, *options)
        expected = requests_in(lines, *options)
        assert found["count"] == expected["count"]
        assert about(found["requests"]) == about(expected["requests"])
    query = documented("sql").replace("/var/lib/stagespan", parquet)
    rows = {stage: runs for stage, runs, _ in duckdb.sql(query).fetchall()}
    assert (rows["decode"], rows["step"]) == (60, 98)
    # THEN a query can use the work of spans
    tokens = "select sum(s.work['tokens']) from (select unnest(stages) as s from read_parquet(?))"
    assert duckdb.execute(tokens, [f"{parquet}/*.parquet"]).fetchall() == [(sum(range(98)),)]
    assert "pass folders of one kind" in command_here("requests", lines, parquet).stderr
    (file,) = (tmp_path / "parquet").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    done = command_here("requests", parquet)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be read" in done.stderr


@pytest.mark.full
def test_the_slowest_in_parquet_are_compared_with_all_others(folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pytest.importorskip("duckdb", reason="DuckDB is not installed")
    process = started(EXPORTED, "crowded")
    keep_all(tmp_path, "jsonl", "parquet")
    keep_all(tmp_path, "parquet")  # THEN each request is in two files
    end(process)
    lines, tables = tmp_path / "jsonl", tmp_path / "parquet"
    slowest = ("--slowest", "4")
    expected = requests_in(str(lines), *slowest)["requests"]
    assert about(requests_in(str(tables), *slowest)["requests"]) == about(expected)
    assert min(one["open_meanwhile"] for one in expected) >= 1
    found = requests_in(str(tables), *slowest)["requests"]
    counts = [[one["open_meanwhile"] for one in each] for each in (found, expected)]
    assert counts[0] == counts[1]
    # WHEN the files are of a version that did not keep what that needs THEN it is unknown
    for file in tables.iterdir():
        table = parquet.read_table(file)
        names = ["process", "began_here", "has_end", "batches"]
        parquet.write_table(table.drop_columns(names), file)
    unknown = requests_in(str(tables), *slowest)["requests"]
    assert [one["request_id"] for one in unknown] == [one["request_id"] for one in expected]
    assert {one["open_meanwhile"] for one in unknown} == {None}
    spans = [span for one in unknown for each in one["segments"] for span in each["spans"]]
    assert {span["median_ns"] for span in spans} == {None}
    # EXCEPT if all requests are read
    whole = requests_in(str(tables), "--slowest", "100")["requests"]
    assert about(whole) == about(requests_in(str(lines), "--slowest", "100")["requests"])


@pytest.mark.parametrize("missing", ["pyarrow", "duckdb"])
def test_parquet_without_its_libraries_is_refused_in_one_sentence(
    folder: Path, tmp_path: Path, missing: str
) -> None:
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / f"{missing}.py").write_text("raise ImportError")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "requests-a-1.parquet").touch()
    arguments = {
        "pyarrow": ("export", "--keep", str(tmp_path / "kept"), "--keep-format", "parquet"),
        "duckdb": ("requests", str(tmp_path / "kept")),
    }[missing]
    done = ran(
        [sys.executable, "-m", "stagespan", *arguments], PYTHONPATH=str(tmp_path / "blocked")
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"`pip install {missing}`" in done.stderr


def test_the_oldest_of_the_kept_requests_are_removed(tmp_path: Path) -> None:
    keeper = kept.Keeper(tmp_path, 100 << 10)
    other_host = f"requests-{os.uname().nodename}-other"
    for number in range(40):
        (tmp_path / f"{other_host}-{number}-1.jsonl.gz").touch()
        keeper.put([large_request(number)])
        keeper.write()
    own = [one for one in tmp_path.iterdir() if "other" not in one.name]
    assert sum(one.stat().st_size for one in own) <= 100 << 10
    assert len(own) >= 9
    assert len(list(tmp_path.glob(f"{other_host}-*"))) == 40
    for other in tmp_path.glob(f"{other_host}-*"):
        other.unlink()
    remaining = requests_in(str(tmp_path), "--slowest", "1000")["requests"]
    traces = sorted(int(one["trace_id"], 16) for one in remaining)
    assert traces == list(range(40 - len(own), 40))


def test_requests_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    # GIVEN a folder that goes away
    keeper = kept.Keeper(tmp_path / "kept", 1 << 20)
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").write_text("a file is in its place")
    keeper.put([large_request(1), large_request(2)])
    keeper.write()
    assert keeper.lost() == {"keep": 2}


def test_requests_are_lost_and_awaited_no_more_if_a_file_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = kept.Keeper(tmp_path, 1 << 20)
    requests = [large_request(number) for number in (1, 2)]
    assert all(parts[0].awaited == AWAITED_KEEP for parts in requests)
    keeper.put(requests)
    compress = gzip.compress
    monkeypatch.setattr(gzip, "compress", lambda *_: bytes(1 << 62))
    with pytest.raises(MemoryError):
        keeper.write()
    # THEN they count as lost, their processes need not wait for them, and later ones are kept
    assert keeper.lost() == {"keep": 2}
    assert not any(part.awaited for parts in requests for part in parts)
    monkeypatch.setattr(gzip, "compress", compress)
    keeper.put([large_request(3)])
    keeper.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_without_kept_requests_or_with_damaged_ones_is_refused(tmp_path: Path) -> None:
    assert "no kept requests" in command_here("requests", str(tmp_path)).stderr
    (tmp_path / "requests-a-1.jsonl.gz").write_bytes(b"nothing of the kind")
    done = command_here("requests", str(tmp_path))
    assert done.returncode == 2
    assert "is damaged" in done.stderr


def filled_in(expression: str, service: str = ".*") -> str:
    """Return an expression as Grafana sends it if everything is chosen, or one service."""
    values = {"__rate_interval": "1m", "service": service}
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ".*"), expression)


def test_each_panel_and_rule_returns_data(folder: Path, tmp_path: Path) -> None:
    # GIVEN a Prometheus that has scraped services with errors, waits, requests and hand-offs
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus on PATH: install the Debian package prometheus")
    busy = started(EXPORTED, "everything_shown", STAGESPAN_JOB="svc")
    started(EXPORTED, "open_request", STAGESPAN_JOB="svc")
    ending = started(EXPORTED, "open_request", STAGESPAN_JOB="svc")
    pair = start(TWO_PROCESSES, "return", STAGESPAN_JOB="svc")
    with (
        exporter() as (_, port),
        contextlib.closing(Prometheus(program, tmp_path, port, free_port())) as prometheus,
    ):
        ready(pair)
        # WHEN something is lost for the first time THEN the rule about losses is true
        until(lambda: prometheus.query("stagespan_lost_total"))
        (losses,) = (rule for rule in dashboard.RULES if rule.name == "StagespanLosses")
        assert not prometheus.query(losses.expression)
        (folder / "999-1.stagespan").write_bytes(b"not a recording")
        until(lambda: prometheus.query(losses.expression))
        end(ending)
        targets = [one for panel in dashboard.dashboard()["panels"] for one in panel["targets"]]
        asked = [filled_in(one["expr"]) for one in targets]
        asked += re.findall(r"stagespan_\w+", dashboard.alerts())
        for expression in asked:
            until(lambda e=expression: prometheus.query(e))
        segments = recording.open(busy.pid).segments()
        traces = {one["trace_id"] for one in segments}
        with_points = [one["expr"] for one in targets if one["exemplar"]]
        of_requests = next(one for one in with_points if "request_duration" in one)
        found = until(lambda: prometheus.exemplars(filled_in(of_requests)))
        assert {one["trace_id"] for one in found} & traces
        variables = dashboard.dashboard()["templating"]["list"][1:]
        for variable in variables:
            metric, label = re.findall(r"label_values\((.*), (\w+)\)", variable["query"])[0]
            query = filled_in(f"count by ({label}) ({metric})")
            assert until(lambda q=query: prometheus.query(q)), variable["name"]
        for one in targets:
            query = filled_in(one["expr"], service="(svc)")
            until(lambda q=query: prometheus.query(q))


def test_each_distribution_is_in_a_panel(folder: Path) -> None:
    with exporter() as (_, port):
        text = get(f"http://127.0.0.1:{port}/metrics")
    families = re.findall(r"^# TYPE (stagespan_\w+) histogram$", text, re.MULTILINE)
    shown = json.dumps(dashboard.dashboard()["panels"])
    assert "stagespan_batch_duration_seconds" in families
    device = {"stagespan_stage_device_duration_seconds"}  # most services have none
    assert [name for name in families if name not in shown and name not in device] == []


def test_the_files_are_what_grafana_and_prometheus_read(tmp_path: Path) -> None:
    assert command_here("export", "--dashboard", "--alerts").returncode == 2  # two files in one
    page = json.loads(command_here("export", "--dashboard").stdout)
    assert page["title"] == "stagespan"
    assert all(panel["targets"] for panel in page["panels"])
    rules = tmp_path / "rules.yml"
    rules.write_text(command_here("export", "--alerts").stdout)
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH: install the Debian package prometheus")
    done = ran([promtool, "check", "rules", rules])
    assert (done.returncode, "11 rules found" in done.stdout) == (0, True), (
        done.stdout + done.stderr
    )


# Those that need hours, or what an exporter loses. One sample a minute; "a+bxn" is a, and then b
# more n times.
ALERTS: dict[str, tuple[dict[str, str], str, dict[str, str], str]] = {
    "StagespanP99Doubled": (
        {
            "stagespan_stage_duration_quantile_seconds"
            f'{{service="svc",stage="{stage}",rank="{rank}",quantile="0.99"}}': values
            for stage, rank, values in (
                ("bad", "0", "0.1x500"),
                ("bad", "1", "0.1x480 1x20"),
                # One that varies, one of which a single run was slow, and one with few runs.
                ("steady", "0", "0.1+0.001x90 0.1x300 0.15x110"),
                ("steady", "1", "0.1x485 60 0.1x15"),
                ("rare", "0", "0.1x480 1x20"),
            )
        }
        | {
            f'stagespan_stage_duration_seconds_count{{service="svc",stage="{stage}"}}': "0+100x500"
            for stage in ("bad", "steady")
        }
        | {'stagespan_stage_duration_seconds_count{service="svc",stage="rare"}': "0+1x500"},
        "500m",
        {"service": "svc", "stage": "bad"},
        "The p99 of bad of svc is 10 times that of the 6 hours until an hour ago.",
    ),
    "StagespanLosses": (
        {
            'stagespan_lost_total{cause="bad"}': "0x50 3x10",
            'stagespan_lost_total{cause="old"}': "7x60",
            'stagespan_lost_total{cause="first_chunk_clock"}': "0+9x60",
        },
        "55m",
        {"cause": "bad"},
        "3 were lost in 10 minutes: bad.",
    ),
    "StagespanStageStalled": (
        {
            # Stages that take two hours each time.
            **{
                f'stagespan_stage_duration_{of}{{service="svc",stage="{stage}"{more}}}': n
                for stage in ("long", "bad")
                for of, more, n in (
                    (
                        "quantile_seconds",
                        ',quantile="0.99"',
                        "_x60 7200 _x119 7200 _x119 7200 _x300",
                    ),
                    ("seconds_count", "", "0x60 1x120 2x120 3x300"),
                    ("seconds_sum", "", "0x60 7200x120 14400x120 21600x300"),
                )
            },
            'stagespan_stage_oldest_running_age_seconds{service="svc",stage="long"}': "0+60x100",
            'stagespan_stage_oldest_running_age_seconds{service="svc",stage="bad"}': "0+300x100",
        },
        "95m",
        {"service": "svc", "stage": "bad"},
        "bad of svc has stood still for 7h 55m 0s.",
    ),
}


@pytest.mark.parametrize("name", ALERTS)
def test_each_rule_fires_for_what_it_is_for(tmp_path: Path, name: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH: install the Debian package prometheus")
    series, at, labels, summary = ALERTS[name]
    (rule,) = (one for one in dashboard.RULES if one.name == name)
    (tmp_path / "rules.yml").write_text(dashboard.alerts())
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": text} for key, text in series.items()],
        "alert_rule_test": [
            {
                "eval_time": at,
                "alertname": rule.name,
                "exp_alerts": [{"exp_labels": labels, "exp_annotations": {"summary": summary}}],
            }
        ],
    }
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(json.dumps(whole))
    ran([promtool, "test", "rules", "test.yml"], cwd=tmp_path, status=0)


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 7), (2, 1.5)])
def test_panels_show_exact_quantiles_of_one_node_and_those_of_sums_of_many(
    tmp_path: Path, nodes: int, seconds: float
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH: install the Debian package prometheus")
    # GIVEN quantiles that differ from those of the histograms, of which all runs took 1 s to 2 s
    (expression,) = {
        re.sub(r"\$[a-z]+", ".*", target["expr"]).replace("$__rate_interval", "5m")
        for panel in dashboard.dashboard()["panels"]
        for target in panel["targets"]
        if "stagespan_stage_duration_quantile" in target["expr"] and "0.5" in target["expr"]
    }
    series = {}
    for node in range(nodes):
        of = f'instance="{node}",service="svc",pipeline="p",rank=""'
        name = "stagespan_stage_duration"
        series[f"stagespan_process_up{{{of}}}"] = "1x20"
        series[f'{name}_quantile_seconds{{quantile="0.5",stage="a",{of}}}'] = "7x20"
        for bound, values in (("1", "0x20"), ("2", "0+10x20"), ("+Inf", "0+10x20")):
            series[f'{name}_seconds_bucket{{le="{bound}",stage="a",{of}}}'] = values
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": text} for key, text in series.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "15m",
                "exp_samples": [{"labels": '{stage="a"}', "value": seconds}],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": [], "tests": [test]}))
    ran([promtool, "test", "rules", "test.yml"], cwd=tmp_path, status=0)


def row() -> examine.Check:
    """Return what `doctor` says of the exporter."""
    found = examine.examine(use_device=False)
    return next(one for one in found if one.name == "exporter")


def test_doctor_says_whether_an_exporter_reads_the_recordings(folder: Path) -> None:
    assert row().state == "absent"
    (folder / "999-1.stagespan").write_bytes(b"not a recording")
    with exporter() as (_, port):
        until(lambda: of(scraped(port), "stagespan_lost_total", cause="unreadable"))
        found = row()
    assert found.state == "note"
    assert str(folder) in found.text
    assert "unreadable 1" in found.text


def test_doctor_says_whether_the_exporter_sees_processes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with exporter():
        assert row().state == "note"
        assert "where no other live process records: the service needs the same" in row().text
        processes = [started(EXPORTED, "open_request"), started(EXPORTED, "open_request")]
        assert row().state == "works"
        assert row().text.endswith(f"{folder}: 2 other live processes")
        for process in processes:
            end(process)
        assert "no other live process" in row().text
        monkeypatch.setenv("STAGESPAN_RECORDING_DIR", f"{folder}-elsewhere")
        assert row().state == "absent"
        assert row().text.endswith(f"reads the recordings in {folder}-elsewhere")
