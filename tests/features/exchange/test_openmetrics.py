"""The metrics of runs and histories: Prometheus reads them, and the dashboard, alerts and units of docs/observatory use
them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import geometric_mean
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from harness.analysis import Verdict
from harness.cli import main
from harness.config.names import RunId
from harness.features.compare.trends import Shift, Trend, make_trend_gauges
from harness.features.exchange.exporting import make_gauges
from harness.features.export_formats import Gauge, GaugeSample, format_openmetrics
from harness.results import Run, RunStore
from harness.signals import wait_until
from tests.build import synthetic_run

OBSERVATORY = Path(__file__).parents[3] / "docs" / "observatory"
PARSER = "prometheus_client.openmetrics.parser"
SHIFT = Shift(at=2, run="c", before=0.9, after=0.8, p_value=0.001, better=False, nearby=())
TREND = Trend(
    host="node1", disk_id="/dev/disk/by-id/nvme (serial N)", profile="smoke", cell="nvme-lvm-randread-4k-qd1",
    metric="iops", relative=True, better="higher", runs=("a", "b", "c"), started=(1e9, 1.1e9, 1.2e9),
    values=(0.9, 0.91, 0.8), shifts=(SHIFT,),
)  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run()


@pytest.fixture(scope="module")
def gauges(run: Run) -> dict[str, Gauge]:
    return {gauge.name: gauge for gauge in (*make_gauges(run), *make_trend_gauges([TREND]))}


def parse(text: str) -> dict[str, Any]:
    parser = pytest.importorskip(PARSER)
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def value_of(gauge: Gauge, **labels: str) -> float:
    (sample,) = [sample for sample in gauge.samples if labels.items() <= sample.labels.items()]
    return sample.value


def test_the_loss_of_a_cell_is_exported_with_its_interval(run: Run, gauges: Mapping[str, Gauge]) -> None:
    cell = next(cell for cell in run.cells if cell.mode == "lvm" and cell.job.headline == "iops")
    loss = cell.metrics["iops"].overhead
    assert loss is not None
    for end, expected in (("", loss.point), ("_low", loss.low), ("_high", loss.high)):
        gauge = gauges[f"virt_overhead_loss{end}_ratio"]
        assert value_of(gauge, cell=cell.id, metric="iops", main="yes") == expected
    host = value_of(gauges["virt_overhead_ios_per_second"], cell=cell.id, metric="iops", place="host")
    assert host == pytest.approx(geometric_mean(cell.metrics["iops"].samples("host")))
    assert value_of(gauges["virt_overhead_verdict"], cell=cell.id, verdict=cell.outcome.value) == 1
    assert sum(sample.value for sample in gauges["virt_overhead_verdict"].samples) == sum(
        not cell.is_baseline for cell in run.cells
    )


def test_a_void_cell_has_a_verdict_and_no_figures(run: Run) -> None:
    void = next(cell for cell in run.cells if cell.mode == "lvm")
    cells = tuple(replace(cell, verdict=Verdict.VOID) if cell is void else cell for cell in run.cells)
    gauges = {gauge.name: gauge for gauge in make_gauges(replace(run, cells=cells))}
    assert value_of(gauges["virt_overhead_verdict"], cell=void.id, verdict="void") == 1
    names = [name for name, gauge in gauges.items() for sample in gauge.samples if sample.labels.get("cell") == void.id]
    assert set(names) == {"virt_overhead_verdict"}


def test_the_last_change_point_of_a_trend_is_exported(gauges: Mapping[str, Gauge]) -> None:
    of_cell = {"cell": TREND.cell, "lab_host": "node1", "relative": "yes"}
    assert value_of(gauges["virt_overhead_last_change_timestamp_seconds"], **of_cell) == 1.2e9
    assert value_of(gauges["virt_overhead_last_change_ratio"], **of_cell) == pytest.approx(-1 / 9)
    assert value_of(gauges["virt_overhead_last_change_worse"], **of_cell) == 1
    assert value_of(gauges["virt_overhead_changes"], **of_cell) == 1
    without = {gauge.name: gauge for gauge in make_trend_gauges([replace(TREND, shifts=())])}
    assert value_of(without["virt_overhead_changes"], **of_cell) == 0
    assert without["virt_overhead_last_change_worse"].samples == ()


def test_the_command_writes_a_file_that_prometheus_reads(run: Run, tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, RunId(run.run.id))
    store.write_results(run)
    target = tmp_path / "virt_overhead.prom"
    assert main(["export", str(store.path), "--openmetrics", str(target)]) == 0
    text = target.read_text()
    families = parse(text)
    assert families["virt_overhead_loss_ratio"].unit == "ratio"
    assert families["virt_overhead_loss_ratio"].type == "gauge"
    exported = {gauge.name: len(gauge.samples) for gauge in make_gauges(run) if gauge.samples}
    assert {name: len(family.samples) for name, family in families.items()} == exported
    assert all(sample.timestamp is None for family in families.values() for sample in family.samples)
    check_with_promtool(["check", "metrics"], text)


def test_every_text_may_be_a_label_and_no_other_value_than_a_number_is_written() -> None:
    samples = (GaugeSample({"cell": 'a "b" \\ c\nd'}, 1.5), GaugeSample({"cell": "e"}, float("nan")))
    text = format_openmetrics([Gauge("virt_overhead_x", "A test.", samples), Gauge("virt_overhead_y", "None.", ())])
    families = parse(text)
    assert list(families) == ["virt_overhead_x"]
    (sample,) = families["virt_overhead_x"].samples
    assert sample.value == 1.5
    assert sample.labels["cell"].startswith('a "b" \\ c')
    with pytest.raises(ValueError, match="bad name"):
        format_openmetrics([Gauge("bad name", "A test.", samples)])


# --- docs/observatory ---


def check_with_promtool(arguments: list[str], text: str = "") -> None:
    """Prometheus's own checks, where its program is installed."""
    if program := shutil.which("promtool"):
        done = subprocess.run(
            [program, *arguments], input=text, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def page_server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the files in the directory of the test."""
    serve = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def prometheus(directory: Path) -> Iterator[Callable[[str], list[Any]]]:
    """A running Prometheus with the configuration in the directory. Yields what answers a query."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    process = subprocess.Popen(
        ["prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL, cwd=directory
    )

    def answer(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': query})}"
        try:
            with urlopen(url, timeout=20) as found:
                result: list[Any] = json.load(found)["data"]["result"]
                return result
        except (URLError, ConnectionError):
            return []

    try:
        yield answer
    finally:
        process.terminate()
        process.wait(60)


def list_queries(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (text for key, text in node.items() if key in ("expr", "query") and isinstance(text, str))
        for child in node.values():
            yield from list_queries(child)
    elif isinstance(node, list):
        for child in node:
            yield from list_queries(child)


DASHBOARD = json.loads((OBSERVATORY / "dashboard.json").read_text())
ALERTS = (OBSERVATORY / "alerts.yml").read_text()
QUERIES = [query for query in list_queries(DASHBOARD) if query != "prometheus"]
EXPRESSIONS = [*QUERIES, *re.findall(r"expr: (.+)", ALERTS)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_and_label_of_dashboard_and_alerts_is_exported(
    expression: str, gauges: Mapping[str, Gauge]
) -> None:
    names = re.findall(r"\bvirt_overhead_\w+", expression)
    assert names
    labels: set[str] = set()
    for name in names:
        assert gauges[name].samples, name
        labels |= set(gauges[name].samples[0].labels)
    used = re.findall(r"(\w+)=~?\"", expression)
    used += [label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")]
    used += re.findall(r"label_values\(.*, (\w+)\)", expression)
    assert set(used) <= labels


def test_the_texts_of_dashboard_and_alerts_name_labels_that_exist(gauges: Mapping[str, Gauge]) -> None:
    labels = {label for gauge in gauges.values() for sample in gauge.samples for label in sample.labels}
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\{\{(\w+)\}\}", text)) <= labels
    assert set(re.findall(r"\$labels\.(\w+)", ALERTS)) <= labels
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) <= variables


def test_the_panels_of_the_dashboard_have_their_place() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(places)) == len(places), "two panels lie on each other"
    assert max(x for x, _ in places) < 24


def test_every_key_of_the_dashboard_is_in_grafanas_public_schema() -> None:
    """Grafana's Foundation SDK is generated from the schemas of dashboards, panels and queries: it drops other keys."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    read = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(DASHBOARD)))
    # The data source Prometheus has keys of its own for annotations.
    of_prometheus = {f"annotations.list[0].{key}" for key in ("useValueForTime", "titleFormat", "textFormat")}
    assert set(list_lost(DASHBOARD, read)) == of_prometheus


def list_lost(node: Any, read: Any, place: str = "") -> Iterator[str]:
    """The places of a document that are not in another one, or differ there."""
    if isinstance(node, dict) and isinstance(read, dict):
        for key, value in node.items():
            yield from list_lost(value, read.get(key), f"{place}.{key}".lstrip("."))
    elif isinstance(node, list) and isinstance(read, list) and len(node) == len(read):
        for number, (value, other) in enumerate(zip(node, read, strict=True)):
            yield from list_lost(value, other, f"{place}[{number}]")
    elif node != read:
        yield place


def test_prometheus_accepts_the_alerts_and_every_query_of_the_dashboard(tmp_path: Path) -> None:
    check_with_promtool(["check", "rules", str(OBSERVATORY / "alerts.yml")])
    rules = [
        {"record": f"query{number}", "expr": re.sub(r"\$\w+", ".*", query)}
        for number, query in enumerate(QUERIES)
        if not query.startswith("label_values")
    ]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    check_with_promtool(["check", "rules", str(file)])


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_a_prometheus_answers_every_query_from_the_files(
    gauges: Mapping[str, Gauge], tmp_path: Path, page_server: str
) -> None:
    (tmp_path / "metrics").write_text(format_openmetrics(gauges.values()))
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "nightly", "static_configs": [{"targets": [page_server]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    with prometheus(tmp_path) as answer:
        assert wait_until(lambda: bool(answer("virt_overhead_history_runs")), deadline=60, every=0.5)
        for query in [query for query in QUERIES if not query.startswith("label_values")]:
            chosen = query.replace("$cell", gauges["virt_overhead_loss_ratio"].samples[0].labels["cell"])
            chosen = re.sub(r"\$\w+", ".*", chosen.replace("$metric", "iops"))
            assert answer(chosen), chosen


NIGHT = 86_400


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_three_nights_are_lines_of_the_dashboard(tmp_path: Path) -> None:
    newest = int(time.time()) // 3600 * 3600 - 2 * 3600
    (tmp_path / "nights").write_text(join_nights({newest - NIGHT * ago: 0.01 * (3 - ago) for ago in (2, 1, 0)}))
    blocks = ["tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "nights"), str(tmp_path / "data")]
    check_with_promtool([*blocks, "--quiet"])
    (tmp_path / "prometheus.yml").write_text("{}")
    lines = [panel for panel in DASHBOARD["panels"] if panel["type"] == "timeseries"]
    with prometheus(tmp_path) as answer:
        assert wait_until(lambda: bool(answer(f"virt_overhead_loss_ratio @ {newest}")), deadline=60, every=0.5)
        for query in (target["expr"] for panel in lines for target in panel["targets"]):
            cell = "optane-lvm-randread-4k-qd32"
            chosen = re.sub(r"\$\w+", ".*", query.replace("$cell", cell).replace("$metric", "iops"))
            series = answer(f"{chosen}[3d] @ {newest}")
            assert series, query
            assert all(len({value for _, value in line["values"]}) == 3 for line in series), query


def join_nights(nights: Mapping[int, float]) -> str:
    """What Prometheus stored of the files of these nights: by time, the noise of the run."""
    by_family: dict[str, list[str]] = {}
    for at, noise in nights.items():
        for line in format_openmetrics(make_gauges(synthetic_run(noise=noise))).splitlines()[:-1]:
            family = re.split(r"[ {]", line.removeprefix("# TYPE ").removeprefix("# HELP ").removeprefix("# UNIT "))[0]
            lines = by_family.setdefault(family, [])
            if not line.startswith("#"):
                lines.append(f"{line} {at}")
            elif line not in lines:
                lines.append(line)
    return "\n".join([line for lines in by_family.values() for line in lines] + ["# EOF", ""])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = []
    for unit in OBSERVATORY.glob("virt-overhead-nightly.*"):
        units.append(tmp_path / unit.name)
        units[-1].write_text(
            unit.read_text().replace("/usr/local/bin/virt-overhead", shutil.which("true") or "/bin/true")
        )
    assert len(units) == 2
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "virt-overhead-nightly" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize(
    "line", re.findall(r"^Exec\w+=-?(.+)", (OBSERVATORY / "virt-overhead-nightly.service").read_text(), re.M)
)
def test_the_service_uses_options_that_exist(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, verb, *words = line.split()
    assert program == "/usr/local/bin/virt-overhead"
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    known = capsys.readouterr().out
    assert {option for option in options if option not in known} == set()
