"""Memory of the page's server and of a tab while both are used for long: what grows, and how fast.

    .venv/bin/python benchmarks/web_hour.py [--minutes 60] [--nodes 200] [--rate 2] [--json]

A run writes its journals, ten clients follow it, each second another client comes and one leaves, and one asks for a
node, its log, its changes, the timeline and the history. The server keeps something of each record while the run is
looked at; with `--rate 0` nothing is recorded, and it should not grow. A Chromium tab shows the run, and opens one node
after the other. Every minute the memory is read, of the tab after a collection of garbage; the slope is that of a
straight line through what follows the first quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from table import Table  # noqa: E402
from web import built, private_bytes, renderer_bytes, started  # noqa: E402

from chromium import CHROMIUM, FLAGS  # noqa: E402
from garrison.records.journal import Writer  # noqa: E402
from garrison.records.run import RunFiles  # noqa: E402
from top_support import HomeBuilder, home_builder  # noqa: E402
from web_clients import Crowd  # noqa: E402
from web_support import Site  # noqa: E402

CLIENTS = 10
NODES_SHOWN = 20
"""Nodes that the tab and the requests open in turn: those at work."""


@dataclass(frozen=True)
class Sample:
    """Memory at one moment, in bytes; seconds since the beginning. The tab's figures are 0 without one."""

    at: float
    server: int
    heap: int = 0
    renderer: int = 0
    elements: int = 0
    listeners: int = 0


def use(builder: HomeBuilder, guardian: Writer, here: Site, rate: float, stop: threading.Event) -> None:
    """Write and ask until `stop`."""
    crowd = Crowd(here.port, here.tokens["write"])
    crowd.join(CLIENTS)
    requests = paths()
    written = 0
    begun = second = time.monotonic()
    while not stop.is_set():
        while written < rate * (time.monotonic() - begun):
            written += 1
            write(builder, guardian, written)
        crowd.drain(0.2)
        if time.monotonic() - second >= 1:
            second = time.monotonic()
            crowd.join(1)
            crowd.leave(1)
            ask(here, next(requests))
    crowd.leave()


def write(builder: HomeBuilder, guardian: Writer, number: int) -> None:
    """Append what a run writes: signals, attempts, deaths and restarts, lines of a log."""
    node, life = f"node_{number % NODES_SHOWN:03}", number // NODES_SHOWN + 2
    if number % 4 == 0:
        builder.died(guardian, f"runner-{node}@r1", life, "process 4711 is gone")
    elif number % 4 == 1:
        guardian.append("node", {"node": node, "status": "active", "attempt": life}, builder.now())
    else:
        guardian.append("signal", {"id": f"s{number}", "type": "GUIDANCE", "node": node, "from": f"a person {number}"},
                        builder.now())
    folder = RunFiles(builder.home, "r1").attempt(node, 1)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "agent.log").open("a") as log:
        log.write(f"line {number} of the agent, which says what it does\n" * 5)


def paths() -> Iterator[str]:
    for number in itertools.count():
        node = f"/api/runs/r1/nodes/node_{number % NODES_SHOWN:03}"
        yield from (node, f"{node}/log?from=-100000", "/api/runs/r1/history/timeline", "/api/runs/r1/timeline",
                    f"{node}/changes", "/api/runs", "/api/conversations", "/", "/api/runs/r1/history/signals?q=person")


def ask(here: Site, path: str) -> None:
    request = Request(f"http://{here.host}{path}", headers={"Authorization": f"Bearer {here.tokens['write']}"})
    try:
        with urlopen(request, timeout=60) as answer:
            answer.read()
    except HTTPError as error:  # this home's processes have no worktrees
        error.read()


@asynccontextmanager
async def tab(here: Site) -> Any:
    """Yield a tab that shows the run, with its CDP session; None without a Chromium."""
    if CHROMIUM is None:
        yield None
        return
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = await browser.new_page()
        page.set_default_timeout(120_000)
        await page.goto(f"http://{here.host}/?token={here.tokens['write']}&run=r1")
        await page.locator("svg .node").first.wait_for()
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable")
        yield page, session
        await browser.close()


async def sample(pid: int, shown: Any, begun: float) -> Sample:
    server = private_bytes(pid)
    if shown is None:
        return Sample(time.monotonic() - begun, server)
    _, session = shown
    for _ in range(2):  # finalizers free more
        await session.send("HeapProfiler.collectGarbage")
    got = {each["name"]: int(each["value"]) for each in (await session.send("Performance.getMetrics"))["metrics"]}
    return Sample(time.monotonic() - begun, server, got["JSHeapUsedSize"], renderer_bytes(), got["Nodes"],
                  got["JSEventListeners"])


async def browse(shown: Any, number: int) -> None:
    """Open another node, look at its log, and close it."""
    if shown is None:
        return
    page, _ = shown
    await page.locator(f'svg .node[data-node="node_{number % NODES_SHOWN:03}"]').dispatch_event("click")
    await page.locator("#detail-story .attempts, #detail-story .empty").first.wait_for()
    await page.keyboard.press("Escape")


def per_hour(samples: list[Sample], of: str) -> float:
    """MiB (or numbers) an hour, by a straight line through what follows the first quarter."""
    late = [one for one in samples if one.at >= samples[-1].at / 4]
    return 3600 * statistics.linear_regression([one.at for one in late], [getattr(one, of) for one in late]).slope


async def measure(builder: HomeBuilder, guardian: Writer, here: Site, pid: int, options: argparse.Namespace,
                  table: Table) -> None:
    stop = threading.Event()
    using = asyncio.create_task(asyncio.to_thread(use, builder, guardian, here, options.rate, stop))
    begun, samples = time.monotonic(), list[Sample]()
    try:
        async with tab(here) as shown:
            numbers = itertools.count()
            while time.monotonic() - begun < 60 * options.minutes and not using.done():
                end = time.monotonic() + options.every
                while time.monotonic() < end:
                    await browse(shown, next(numbers))
                    await asyncio.sleep(1)
                samples.append(await sample(pid, shown, begun))
                one = samples[-1]
                table.add(f"{one.at / 60:.0f} min", "server; tab's heap, all; elements, listeners",
                          f"{one.server / 2**20:.1f}; {one.heap / 2**20:.1f}, {one.renderer / 2**20:.0f} MiB; "
                          f"{one.elements}, {one.listeners}")
    finally:
        stop.set()
        await using
    for of, what in (("server", "memory of the server"), ("heap", "heap of the tab"), ("renderer", "all of the tab")):
        first, last, slope = getattr(samples[0], of), getattr(samples[-1], of), per_hour(samples, of)
        table.add("slope", what, f"{slope / 2**20:+.1f} MiB an hour ({first / 2**20:.1f} → {last / 2**20:.1f} MiB)",
                  bytes_per_hour=slope)
    table.add("slope", "elements, listeners of the tab", f"{per_hour(samples, 'elements'):+.0f}, "
              f"{per_hour(samples, 'listeners'):+.0f} an hour")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two samples")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--rate", type=float, default=2.0, help="records a second; 0: memory that grows is a leak")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    table = Table(options.as_json, (8, 46))
    with table.machine(), tempfile.TemporaryDirectory() as folder, home_builder(Path(folder)) as builder:
        guardian = built(builder, options.nodes)
        process, here = started(builder.home)
        try:
            asyncio.run(measure(builder, guardian, here, process.pid, options, table))
        finally:
            process.terminate()
            process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
