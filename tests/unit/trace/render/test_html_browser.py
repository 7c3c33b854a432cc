"""The HTML page in a real browser: its content, search and sorting, and no requests."""

from __future__ import annotations

import http.server
import socketserver
import threading
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from html_pages import HOSTILE, a_program
from planted import Program

from page_data import data_of, rows_of
from stagespan.pages import html
from stagespan.trace import read_trace
from stagespan.trace.analysis import analyze

pytestmark = pytest.mark.slow

BOXES = "timelineNode.plot.chart.marks.flatMap(({ boxes }) => boxes).filter((box) => box.at(-1))"
RANGE = "timelineShown.map((time_ns) => time_ns / 1e6)"


def page_of(program: Program, folder: Path) -> Path:
    page = folder / "page.html"
    page.write_text(html.html_page(analyze(program.trace(folder))))
    return page


def many_calls() -> Program:
    """Sixty waits in different operators; after the last of them there is no gap."""
    program = Program()
    for number in range(60):
        program.operator(us=10)
        with program.within(f"aten::wait_{number:02}"):
            program.wait(call=f"cudaStreamSynchronize{number}", tail=50 + number)
        program.work(number)
    return program


def unfold(browser: Browser) -> None:
    """Open all sections and findings, and wait until their charts are drawn."""
    browser.evaluate(
        """(async () => {
          for (const each of document.querySelectorAll("details")) each.open = true;
          await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
        })()"""
    )


def rows(browser: Browser, title: str) -> list[list[str]]:
    """Return the rows that a table shows."""
    found: list[list[str]] = browser.evaluate(
        f"[...document.querySelectorAll('[role=group][aria-label=\"{title}\"] tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return found


def test_the_bar_of_several_devices_says_so(browser: Browser, tmp_path: Path) -> None:
    program = Program()
    for device in (0, 1):
        program.launch("gemm", 80)
        program.events[-1]["args"]["device"] = device
    browser.open(page_of(program, tmp_path))
    shown = browser.evaluate("document.querySelector('.device').parentElement.textContent")
    said = "computing 47.6 % (160 µs)idle 52.4 % (176 µs)"
    assert shown.endswith(f"{said}Sums over 2 devices.")


def test_all_sections_are_there_without_errors(browser: Browser, tmp_path: Path) -> None:
    analysis = analyze(a_program().trace(tmp_path))
    browser.open(page_of(a_program(), tmp_path))
    # WHEN the page opens THEN only these are not folded
    closed = browser.text("section > details:not([open]) h2")
    opened = set(browser.text("h2")) - set(closed)
    assert opened == {"Summary", "Findings", "Timeline", "Kernels", "Critical path"}
    assert browser.evaluate("document.querySelectorAll('.findings details[open]').length") == 0
    assert "Time goes to: communication 71.4 %" in browser.text("#summary p")[0]
    unfold(browser)
    headings = browser.text("h2")
    assert browser.text(".verdict strong") == ["Host-bound"]
    shown = [n.replace("_", " ") for n, r in analysis.results.items() if r.tables()]
    assert [each.lower() for each in headings][:3] == ["summary", "findings", "timeline"]
    assert set(shown) <= {each.lower() for each in headings}
    assert browser.text("nav a")[:3] == ["Summary", "Findings", "Timeline"]
    assert len(browser.text(".findings > li")) == len(analysis.findings())
    finding = analysis.findings()[0]
    assert finding.first_line in browser.text(".findings > li summary")[0]
    assert finding.explanation in browser.text(".findings > li p")[0]
    assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
    assert browser.evaluate(f"{BOXES}.length") > 80
    ticks = browser.evaluate("document.querySelector('#analysis-idle .chart svg').textContent")
    assert "did other work between steps" in ticks
    assert "loader" not in ticks
    assert browser.complaints == []
    assert {url for url in browser.requests if not url.startswith("data:")} == {
        browser.page.as_uri()
    }


# The coloured share of each row in percent, as laid out by the browser.
COLOURED = """(() => {
  const { plot } = timelineNode;
  const { left, right } = plot.area;
  const areas = DATA.rows.map(() => 0);
  for (const [x0, x1, y0, y1, tip] of plot.chart.marks.flatMap(({ boxes }) => boxes)) {
    if (!tip) continue;
    const width = Math.min(plot.xOf(x1), right) - Math.max(plot.xOf(x0), left);
    areas[Math.round((y0 + y1) / 2)] += Math.max(width, 0) * Math.abs(plot.yOf(y1) - plot.yOf(y0));
  }
  const whole = (right - left) * Math.abs(plot.yOf(HEIGHT) - plot.yOf(0));
  return areas.map((area) => (100 * area) / whole);
})()"""


def busy_in(data: dict[str, Any], name: str, begin: float, end: float) -> float:
    """Return the percentage of a range of a row that its bars fill, without summarising bars."""
    bars = rows_of(data)[name]["bars"]
    return 100 * sum(max(min(e, end) - max(b, begin), 0) for b, e, *_ in bars) / (end - begin)


def test_a_row_is_filled_as_far_as_it_is_busy(browser: Browser, tmp_path: Path) -> None:
    # GIVEN a device that computes in short kernels, a fifth of the time or a half, and copies
    program = Program()
    for number in range(3_000):
        program.operator(us=4 if number < 1_500 else 20, before=20 + number % 9)
        if number % 20 == 0:
            program.launch("Memcpy HtoD", 200, stream=9, cat="gpu_memcpy")
    page = page_of(program, tmp_path)
    data = data_of(page.read_text())
    window = data["window_ns"]
    browser.open(page)
    for begin, end in ((0, window), (window / 2, window), (0, window / 50), (0, window / 400)):
        browser.evaluate(f"showTimes({begin}, {end})")
        drawn = dict(zip(data["rows"], browser.evaluate(COLOURED), strict=True))
        for name, percent in drawn.items():
            assert percent == pytest.approx(busy_in(data, name, begin, end), abs=2), (name, begin)
    # THEN zoomed in, the events themselves are shown, with their names
    texts = browser.evaluate(f"{BOXES}.map((box) => box.at(-1))")
    assert any(text.startswith("kernel_mm\nat ") for text in texts)
    assert browser.complaints == []


def test_a_real_row_is_filled_as_far_as_it_is_busy(
    browser: Browser, traces: Path, tmp_path: Path
) -> None:
    analysis = analyze(read_trace(traces / "cuda_v100_nccl_train.json.gz"))
    page = tmp_path / "page.html"
    page.write_text(html.html_page(analysis))
    assert page.stat().st_size < 500_000
    data = data_of(page.read_text())
    use = analysis.to_dict()["device_use"]
    browser.open(page)
    drawn = dict(zip(data["rows"], browser.evaluate(COLOURED), strict=True))
    streams = {name.rsplit("/")[-1]: time for name, time in use["per_stream_busy_us"].items()}
    for name, time in (*streams.items(), ("idle", use["idle_us"])):
        row = name if name == "idle" else f"stream {name}"
        assert drawn[row] == pytest.approx(100_000 * time / data["window_ns"], abs=2), row


def test_a_page_can_be_used_with_a_screen_reader(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(many_calls(), tmp_path))
    # THEN there is one main heading, no control within a picture, and no two landmarks with the
    # same name
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1
    controls = "'[role=img] :is(a, button, [tabindex], [role=button]), [role=img][tabindex]'"
    assert browser.evaluate(f"document.querySelectorAll({controls}).length") == 0
    landmarks = browser.evaluate(
        "[...document.querySelectorAll('section, nav, [role=region]')].map((e) => e.ariaLabel"
        " || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent)"
    )
    assert len(landmarks) == len(set(landmarks))


def test_a_search_filters_and_a_heading_sorts(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(many_calls(), tmp_path))
    unfold(browser)
    title = "Calls during which the device was idle"
    table = f"document.querySelector('[role=group][aria-label=\"{title}\"]').parentNode"
    assert len(rows(browser, title)) == 15
    assert browser.evaluate(f"{table}.querySelector('.tools span').innerText") == "59 rows"
    browser.evaluate(f"{table}.querySelector('input').focus()")
    browser.type("WAIT_1 cuda")
    # THEN only the rows that contain all of them stay
    assert [row[0] for row in rows(browser, title)] == [
        f"aten::wait_{number}" for number in range(19, 9, -1)
    ]
    assert browser.evaluate(f"{table}.querySelector('.tools span').innerText") == "10 of 59 rows"
    button = f"[...{table}.querySelectorAll('th button')].find((b) => b.innerText == 'operator')"
    browser.evaluate(f"{button}.click()")
    assert [row[0] for row in rows(browser, title)] == [f"aten::wait_{n}" for n in range(10, 20)]
    assert browser.evaluate(f"{button}.parentNode.ariaSort") == "ascending"
    browser.evaluate(f"{button}.click()")
    assert rows(browser, title)[0][0] == "aten::wait_19"
    browser.evaluate(f"{table}.querySelector('input').focus()")
    browser.press("Escape")
    browser.evaluate(f"[...{table}.querySelectorAll('.tools button')][0].click()")
    assert len(rows(browser, title)) == 59
    heads = browser.evaluate(f"[...{table}.querySelectorAll('th')].map((head) => head.innerText)")
    idle = next(at for at, head in enumerate(heads) if head.startswith("idle ("))
    browser.evaluate(f"[...{table}.querySelectorAll('th button')][{idle}].click()")
    times = [float(row[idle]) for row in rows(browser, title)]
    assert times == sorted(times, reverse=True)
    assert browser.complaints == []


def test_everything_can_be_reached_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(many_calls(), tmp_path))
    browser.press("/")
    assert browser.evaluate("document.activeElement.type") == "search"
    browser.type("nothing like this")
    assert browser.evaluate("document.activeElement.value") == "nothing like this"
    browser.press("Escape")
    assert browser.evaluate("document.activeElement.tagName") == "BODY"
    colour = "document.querySelector('#timeline .chart text').getAttribute('fill')"
    light = browser.evaluate(colour)
    browser.press("t")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert browser.evaluate(colour) != light
    # WHEN n is pressed THEN the page goes to the next section
    browser.evaluate("scrollTo(0, 0)")
    browser.press("n")
    assert browser.evaluate("scrollY") > 0
    whole = browser.evaluate(RANGE)
    browser.evaluate("document.querySelector('#timeline .chart').focus()")
    browser.press("+")
    half = browser.evaluate(RANGE)
    assert half[1] - half[0] == pytest.approx((whole[1] - whole[0]) / 2)
    browser.press("0")
    assert browser.evaluate(RANGE) == pytest.approx(whole)
    # THEN every control can be reached with the Tab key and has a name
    unnamed = browser.evaluate(
        "[...document.querySelectorAll('main button, main input, main a, main [tabindex]')]"
        ".filter((e) => !(e.textContent || e.ariaLabel || e.title || e.placeholder)).length"
    )
    assert unnamed == 0


def test_a_time_links_to_the_timeline(browser: Browser, tmp_path: Path) -> None:
    program = a_program()
    finding = analyze(program.trace(tmp_path)).findings()[0]
    browser.open(page_of(program, tmp_path))
    unfold(browser)
    browser.evaluate("document.querySelector('.findings button.at').click()")
    at = next(each for each in finding.evidence if each.time_ns is not None)
    begin, end = browser.evaluate(RANGE)
    assert begin * 1e6 < (at.time_ns or 0) < end * 1e6
    assert (end - begin) * 1e6 < 4 * (at.figure or 0) + 1e6
    assert browser.complaints == []


def test_hostile_names_have_no_effect(browser: Browser, tmp_path: Path) -> None:
    # GIVEN a trace whose names are scripts, tags, escape codes and 10,000 letters
    browser.open(page_of(a_program(HOSTILE), tmp_path))
    assert browser.evaluate("typeof window.hostile") == "undefined"
    assert (
        browser.evaluate("document.querySelectorAll('main img, main b, main script').length") == 0
    )
    links = browser.evaluate(
        "[...document.querySelectorAll('a')].map((a) => a.outerHTML.split('>')[0]).join()"
    )
    assert "example.invalid" not in links
    assert browser.complaints == []
    everything = browser.evaluate("document.body.textContent")
    assert "</script><script>window.hostile" in everything
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1280
    # THEN the labels that appear over the bars show tags as text
    browser.evaluate(f"""for (const [x0, x1, y0, y1] of {BOXES}) {{
      const {{ plot }} = timelineNode, frame = plot.picture.getBoundingClientRect();
      timelineNode.dispatchEvent(new PointerEvent("pointermove", {{
        clientX: frame.left + plot.xOf((x0 + x1) / 2), clientY: frame.top + plot.yOf((y0 + y1) / 2),
      }}));
    }}""")
    assert browser.evaluate("document.querySelector('#timeline .tip').textContent")
    assert browser.evaluate("typeof window.hostile") == "undefined"
    assert browser.evaluate("document.querySelectorAll('.tip *').length") == 0


def test_the_page_cannot_send_requests(browser: Browser, tmp_path: Path) -> None:
    asked: list[str] = []

    class Counting(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(socketserver.ThreadingTCPServer):
        # The browser may open a connection before it reads the policy, and never use it.
        daemon_threads = True
        block_on_close = False

    server = Server(("127.0.0.1", 0), Counting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.open(page_of(a_program(), tmp_path))
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        done = browser.evaluate(
            f"""(async () => {{
              const tried = [], refused = new Set();
              document.addEventListener("securitypolicyviolation", (event) =>
                refused.add(event.blockedURI.replace("{url[:-1]}", "")));
              await fetch("{url}fetch").catch(() => tried.push("fetch"));
              navigator.sendBeacon("{url}beacon");
              for (const [tag, key] of [["img", "src"], ["script", "src"], ["iframe", "src"]]) {{
                const made = document.createElement(tag);
                made[key] = "{url}" + tag;
                document.body.append(made);
              }}
              const style = document.createElement("style");
              style.textContent = 'body {{ background: url("{url}css") }}';
              document.head.append(style);
              const inline = document.createElement("script");
              inline.textContent = "window.hostile = 1";
              document.body.append(inline);
              const until = performance.now() + 60_000;
              while (refused.size < 7 && performance.now() < until)
                await new Promise((resolve) => setTimeout(resolve, 10));
              return [tried, [...refused].sort()];
            }})()"""
        )
    finally:
        server.shutdown()
        server.server_close()
    assert done == [
        ["fetch"],
        # The empty one is the frame, of which the browser names only the server.
        ["", "/beacon", "/css", "/fetch", "/img", "/script", "inline"],
    ]
    assert asked == []
    assert browser.evaluate("typeof window.hostile") == "undefined"
    browser.requests.clear()  # the refused ones are listed too


@pytest.mark.parametrize("width", [360, 800])
def test_a_narrow_window_needs_no_horizontal_scrolling(
    width: int, browser: Browser, tmp_path: Path
) -> None:
    browser.size(width, 700)
    browser.open(page_of(a_program((*HOSTILE, "one")), tmp_path))
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    outside = browser.evaluate(
        "[...document.querySelectorAll('.findings p, .verdict, .note, .device')]"
        f".filter((e) => e.getBoundingClientRect().right > {width}).length"
    )
    assert outside == 0


def test_a_dark_screen_and_paper(browser: Browser, tmp_path: Path) -> None:
    browser.media(scheme="dark")
    browser.open(page_of(a_program(), tmp_path))
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    browser.media("print", "dark")
    assert (
        browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    hidden = "[...document.querySelectorAll('nav, #scheme, .tools')].every((e) => !e.offsetHeight)"
    assert browser.evaluate(hidden)
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.complaints == []


def test_an_old_browser_shows_everything_except_the_charts(
    browser: Browser, tmp_path: Path
) -> None:
    script = browser.call(
        "Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream"
    )["identifier"]
    try:
        browser.open(page_of(a_program(), tmp_path))
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert browser.evaluate("document.documentElement.dataset.ready") == "no charts"
    assert "cannot draw the charts" in browser.text(".notice")[0]
    unfold(browser)
    assert len(rows(browser, "Streams")) > 1


def test_a_truncated_trace_is_reported_first(browser: Browser, tmp_path: Path) -> None:
    a_program().trace(tmp_path)
    path = tmp_path / "planted.json"
    path.write_bytes(path.read_bytes()[:20_000])
    page = tmp_path / "page.html"
    page.write_text(html.html_page(analyze(read_trace(path))))
    browser.open(page)
    assert "is incomplete" in browser.text("main > .notice")[0]
    assert browser.complaints == []
