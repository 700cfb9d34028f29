"""A run of two hundred nodes in a real browser: drawn once, then only painted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import serving

from garrison.records.journal import Writer
from garrison.records.run import RunFiles
from top_support import HomeBuilder, home_builder

NODES = [f"task_{number}" for number in range(200)]
STEPS = ("active", "impl_complete", "validated")
MEASURE = """() => {
  window.measured = { frames: [], moved: [], svg: document.querySelector("svg") };
  const inList = node => (node.nodeType === 1 ? node : node.parentElement)?.closest("ol, ul, svg, .bar");
  new PerformanceObserver(list => {
    for (const { node, previousRect, currentRect } of list.getEntries().flatMap(one => one.sources)) {
      if (!node?.isConnected || inList(node)) continue;
      if (["x", "y"].every(side => previousRect[side] === currentRect[side])) continue; // a text of another length
      window.measured.moved.push([node.outerHTML?.slice(0, 60) ?? node.textContent, previousRect, currentRect]);
    }
  }).observe({ type: "layout-shift", buffered: true });
  let last = performance.now();
  const frame = now => { window.measured.frames.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""


@pytest.fixture
def large(tmp_path: Path) -> Iterator[tuple[HomeBuilder, Writer, str]]:
    """A home with such a run, its guardian's journal, the served address."""
    with home_builder(tmp_path) as builder:
        guardian = builder.run("r1", *NODES)
        builder.incarnation("guardian", "crew", "r1")
        edges = "".join(f"{NODES[(number - 1) // 3]} -> {name}; " for number, name in enumerate(NODES) if number)
        boxes = "".join(f'{name} [shape=box, command="true", label="Do task {name}"]; ' for name in NODES)
        RunFiles(tmp_path, "r1").graph.write_text(
            f"digraph crew {{ flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]; {boxes} {edges} "
            f"start -> {NODES[0]}; {NODES[-1]} -> exit }}")
        with serving(tmp_path) as url:
            yield builder, guardian, url
        guardian.close()


@pytest.mark.slow
def test_two_hundred_nodes_are_drawn_once_and_stay_smooth(large: tuple[HomeBuilder, Writer, str], opened: Any,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    builder, guardian, url = large
    page = opened(url, "/?run=r1")
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator("svg .node")).to_have_count(202)
    painted = page.evaluate("performance.now()")
    page.evaluate(MEASURE)
    thread = page.context.new_cdp_session(page)
    thread.send("Performance.enable", {"timeDomain": "threadTicks"})
    begun = {one["name"]: one["value"] for one in thread.send("Performance.getMetrics")["metrics"]}
    for step in STEPS:
        for name in NODES:
            guardian.append("node", {"node": name, "status": step, "attempt": 1}, builder.now())
    expect(page.locator("svg .node.s-landed")).to_have_count(200)
    expect(page.locator("#run-head .far")).to_have_text("200 of 200")
    frames = sorted(page.evaluate("window.measured.frames"))
    spent = {one["name"]: one["value"] for one in thread.send("Performance.getMetrics")["metrics"]}
    half, most = frames[len(frames) // 2], frames[len(frames) * 99 // 100]
    with capsys.disabled():
        print(f"\n200 nodes: graph after {painted:.0f} ms, frames {half:.0f} ms (median), {most:.0f} ms (99 of 100), "
              f"{spent['TaskDuration'] - begun['TaskDuration']:.2f} s of CPU for {len(STEPS) * len(NODES)} events")
    assert page.evaluate("window.measured.svg.isConnected"), "six hundred events, and the drawing is the same"
    moved = page.evaluate("window.measured.moved.map(one => JSON.stringify(one))")
    assert moved == [], "the lines of a list move on, panels stay"
    assert spent["TaskDuration"] - begun["TaskDuration"] < 5, "of the page's thread; a layout each would be a minute"
