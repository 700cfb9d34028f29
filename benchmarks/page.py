"""Page of a run in a browser: first paint, first data, the graph drawn, a click until the node is open, a record of
the journal until its node is painted anew, memory of the tab, and `status --json`, for runs of 30, 200 and 1,000 nodes.

    .venv/bin/python benchmarks/page.py [--nodes 30 200 1000] [--rounds 5] [--events 50] [--day 0] [--shots FOLDER]
        [--json]

A run of more than 150 nodes opens in groups; its first data is what failed, by name, and its graph is drawn from a
click on its tab. `--day N` appends N records to the journal in four parts, as many as a day brings, and reads heap,
elements and listeners of the open page before and after. The home has real records and processes (`sleep`), server and
Chromium are processes of their own, nothing is cached. `--shots` saves a picture of each run as it opens, as a graph
and as a table, light and dark, at four widths.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from served_run import serving  # noqa: E402
from table import Table  # noqa: E402
from web import renderer_bytes  # noqa: E402

from chromium import CHROMIUM, FLAGS  # noqa: E402
from garrison.records.journal import Writer  # noqa: E402
from garrison.records.run import RunFiles  # noqa: E402
from top_support import HomeBuilder, build_large_run, home_builder  # noqa: E402

PATIENCE = 120_000
"""Milliseconds for anything."""
WIDTHS = ((1440, 900), (1024, 768), (768, 1024), (360, 740))


def heap_bytes(page: Any) -> int:
    """JavaScript heap of a page after a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return int(metrics["JSHeapUsedSize"])


DRAWN = """new MutationObserver(() => {
  if (document.querySelector("svg .node")) window.drawn ??= performance.now();
  if (document.querySelector("#waits .card")) window.data ??= performance.now();
}).observe(document, { childList: true, subtree: true });"""


def show_graph(page: Any, selector: str = "svg .node") -> float:
    """Wait for data and graph; milliseconds of the graph from the page's begin, or from the click that asked for it."""
    tab = page.get_by_role("tab", name="Graph")
    page.locator("#waits .card").first.wait_for()
    begun = 0.0
    if page.locator(".group").count():
        begun = page.evaluate("performance.now()")
        tab.click()
    page.locator(selector).first.wait_for()
    return float(page.evaluate("window.drawn ?? 0")) - begun  # waiting polls only occasionally


def measure(browser: Any, url: str, last: str) -> tuple[float, float, float, float, float, int]:
    """First paint, first data, graph drawn, click until the node's detail is open (graph, then table): ms; bytes."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.add_init_script(DRAWN)
    page.goto(url)
    drawn = show_graph(page)
    data = page.evaluate("window.data")
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    timed = """([selector]) => new Promise(done => {
      const begun = performance.now();
      document.querySelector(selector).dispatchEvent(new MouseEvent("click", { bubbles: true }));
      const look = () => document.querySelector("#detail-story .attempts, #detail-story .empty")
        ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun))) : setTimeout(look, 2);
      look();
    })"""
    graph = page.evaluate(timed, [f'svg .node[data-node="{last}"]'])
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Table").click()
    table = page.evaluate(timed, [f'.node-table tr[data-key="{last}"] button'])
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Graph").click()
    size = max(heap_bytes(page), renderer_bytes())
    context.close()
    return first, data, drawn, graph, table, size


PAINTED = """name => {
  const node = document.querySelector(`svg .node[data-node="${name}"]`);
  const channel = new MessageChannel();
  channel.port1.onmessage = ({ data }) => window.painted[data] ??= performance.timeOrigin + performance.now();
  new MutationObserver(() => {
    const look = node.classList.contains("s-failed") ? "failed" : "other";
    requestAnimationFrame(() => channel.port2.postMessage(look)); // comes after the frame
  }).observe(node, { attributeFilter: ["class"] });
}"""


def follow(browser: Any, url: str, builder: HomeBuilder, node: str, events: int) -> list[float]:
    """Milliseconds from before a record of a node is appended until the frame in which it looks failed, or not."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(url)
    waiting = page.locator(f'svg .node.s-waiting[data-node="{node}"]')
    show_graph(page, f'svg .node.s-waiting[data-node="{node}"]')
    guardian = Writer(RunFiles(builder.home, "r1").journal, "guardian-crew#1")
    guardian.append("node", {"node": node, "status": "active", "attempt": 1}, builder.now())  # waiting ones cannot fail
    waiting.wait_for(state="detached")
    page.evaluate(PAINTED, node)
    took = []
    for number in range(events):
        status, look = ("active", "other") if number % 2 else ("failed", "failed")
        page.evaluate("window.painted = {}")
        page.wait_for_timeout(200)
        begun = time.time()
        guardian.append("node", {"node": node, "status": status, "attempt": 1}, builder.now())
        page.wait_for_function("look => window.painted[look]", arg=look)
        took.append(page.evaluate("look => window.painted[look]", look) - 1000 * begun)
    guardian.close()
    context.close()
    return took


def counts(page: Any) -> tuple[int, int, int]:
    """Heap after a collection, elements, listeners."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    found = session.send("Memory.getDOMCounters")
    session.detach()
    return heap_bytes(page), found["nodes"], found["jsEventListeners"]


def live(browser: Any, url: str, builder: HomeBuilder, nodes: list[str], records: int) -> list[tuple[int, int, int]]:
    """Memory of an open page before and after each quarter of so many records."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(url)
    show_graph(page)
    guardian = Writer(RunFiles(builder.home, "r1").journal, "guardian-crew#1")
    found = []
    for part in range(5):
        for number in range(records // 4 if part else 600):  # the lists are full before it is counted
            node, status = nodes[number % len(nodes)], ("active", "failed")[number // len(nodes) % 2]
            guardian.append("node", {"node": node, "status": status, "attempt": 1 + number % 3,
                                     "reason": f"record {number}"}, builder.now())
            if number % 50 == 49:
                time.sleep(0.02)
        guardian.append("node", {"node": nodes[0], "status": "active", "attempt": 4 + part, "reason": f"part {part}"},
                        builder.now())
        page.locator("#list-timeline").get_by_text(f"part {part}").first.wait_for()
        page.wait_for_timeout(1000)
        found.append(counts(page))
    guardian.close()
    context.close()
    return found


def status_seconds(home: Path) -> float:
    """Seconds of `garrison status r1 --json`."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-m", "garrison.cli.main", "--home", str(home), "status", "r1", "--json"],
                   check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def shoot(browser: Any, url: str, nodes: int, folder: Path) -> None:
    """Save pictures of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        for width, height in WIDTHS:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme,
                                          reduced_motion="reduce")
            context.set_default_timeout(PATIENCE)
            page = context.new_page()
            page.goto(url)
            page.screenshot(path=folder / f"{nodes}-{width}-{scheme}-first.png")
            show_graph(page)
            page.wait_for_timeout(400)
            page.screenshot(path=folder / f"{nodes}-{width}-{scheme}-graph.png")
            page.get_by_role("tab", name="Table").click()
            page.screenshot(path=folder / f"{nodes}-{width}-{scheme}-table.png")
            context.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[30, 200, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--day", type=int, default=0)
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("benchmarks/page.py needs a Chromium")
    from playwright.sync_api import sync_playwright

    table = Table(options.as_json, (8, 44))
    with table.machine(), sync_playwright() as playwright:
        for nodes in options.nodes:
            with tempfile.TemporaryDirectory() as folder, home_builder(Path(folder)) as builder:
                names = build_large_run(builder, nodes)
                with serving(builder.home) as address:
                    url = f"{address}&run=r1"
                    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
                    if options.shots:
                        shoot(browser, url, nodes, options.shots)
                    rounds = [measure(browser, url, names[-1]) for _ in range(options.rounds)]
                    painted = sorted(follow(browser, url, builder, names[-2], options.events))
                    held = live(browser, url, builder, names[-8:-2], options.day) if options.day else []
                    browser.close()
                status = statistics.median(status_seconds(builder.home) for _ in range(max(1, options.rounds)))
                table.add(str(nodes), "status r1 --json", f"{1000 * status:.0f} ms", status_ms=1000 * status)
                if held:
                    told = [f"{heap / 2**20:.1f} MiB, {elements} nodes, {listeners} listeners"
                            for heap, elements, listeners in (held[0], held[-1])]
                    table.add(str(nodes), f"open page before and after {options.day} records", "; ".join(told),
                              before=held[0], after=held[-1])
                if painted:
                    late = painted[int(len(painted) * 0.95)]
                    table.add(str(nodes), "record in the journal to its node painted",
                              f"median {statistics.median(painted):.0f} ms, of 20 the slowest {late:.0f} ms",
                              median_ms=statistics.median(painted), late_ms=late)
                if not rounds:
                    continue
                first, data, drawn, graph, rows, size = (statistics.median(each) for each in zip(*rounds, strict=True))
                table.add(str(nodes), "first paint; first data; graph drawn",
                          f"{first:.0f} ms; {data:.0f} ms; {drawn:.0f} ms",
                          first_ms=first, data_ms=data, drawn_ms=drawn)
                table.add(str(nodes), "click to open detail, in graph; in table", f"{graph:.0f} ms; {rows:.0f} ms",
                          graph_ms=graph, table_ms=rows)
                table.add(str(nodes), "memory of the tab", f"{size / 2**20:.0f} MiB", bytes=size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
