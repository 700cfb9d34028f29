"""Page and server: time from journal to client, a thousand clients, a thousand half-open requests, cost of an open
page, and how soon a new browser shows a run.

    .venv/bin/python benchmarks/web.py [--nodes 200] [--clients 1000] [--events 500] [--idle 30] [--paints 5] [--json]

The home has real records and processes (`sleep`), the server is a process of its own, and clients read raw sockets and
parse nothing but the time at which an event arrived.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from table import Table  # noqa: E402

from chromium import CHROMIUM, FLAGS  # noqa: E402
from garrison.records.journal import Writer  # noqa: E402
from garrison.records.run import RunFiles  # noqa: E402
from top_support import HomeBuilder, home_builder  # noqa: E402
from web_clients import Crowd  # noqa: E402
from web_support import Site  # noqa: E402

LIVING = 20
"""Nodes at work in the home."""


def built(builder: HomeBuilder, nodes: int) -> Writer:
    names = [f"node_{number:03}" for number in range(nodes)]
    guardian = builder.run("r1", *names, max_agents=LIVING)
    builder.incarnation("launch", "launch", "r1")
    builder.incarnation("guardian", "crew", "r1")
    for name in names[:LIVING]:
        builder.working(guardian, "r1", name)
        journal = Writer(RunFiles(builder.home, "r1").process_journal(f"runner-{name}"), f"runner-{name}@r1#1")
        journal.append("open", {"incarnation": 1, "pid": 1}, builder.now())
        journal.close()
    return guardian


def started(home: Path) -> tuple[subprocess.Popen[str], Site]:
    argv = [sys.executable, "-P", "-m", "garrison.cli.main", "--home", str(home), "serve", "--port", "0"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address, _, token = process.stdout.readline().strip().partition("/?token=")
    return process, Site(int(address.rpartition(":")[2]), {"write": token})


async def latencies(builder: HomeBuilder, guardian: Writer, here: Site, events: int) -> list[float]:
    """Milliseconds from before a record is appended until a client has the event."""
    stream = await here.stream("/api/events?run=r1")
    await stream.until("snapshot")
    took = []
    for number in range(events):
        await asyncio.sleep(0.01)
        begin = time.perf_counter()
        signal = {"id": f"s{number}", "type": "GUIDANCE", "node": "node_000", "from": "bench"}
        guardian.append("signal", signal, builder.now())
        await stream.until("change")
        took.append(1000 * (time.perf_counter() - begin))
    stream.close()
    return took


def cpu_seconds(pid: int) -> float:
    """Resources that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_bytes(pid: int) -> int:
    """Memory that is a process's own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def renderer_bytes() -> int:
    """Private memory of the largest renderer of our Chromium: the tab."""
    sizes = [0]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes() and _is_ours(int(folder.name)):
                sizes.append(private_bytes(int(folder.name)))
        except OSError:
            continue
    return max(sizes)


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


async def idle_cpu(pid: int, seconds: float) -> float:
    """Percent of one core."""
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / seconds


def drained_cpu(crowd: Crowd, pid: int, seconds: float) -> float:
    """Percent of one core that the server takes for a crowd in which nothing happens."""
    before = cpu_seconds(pid)
    crowd.drain(seconds)
    return 100 * (cpu_seconds(pid) - before) / seconds


def measure_crowd(builder: HomeBuilder, guardian: Writer, crowd: Crowd, pid: int, options: argparse.Namespace,
                  table: Table) -> None:
    """Measure many event streams of one run: memory, and one event until the last of them has it."""
    before, cpu = private_bytes(pid), cpu_seconds(pid)
    took = crowd.join(options.clients - 1)
    table.add("crowd", f"{options.clients} clients have their snapshot, 50 connecting at once",
              f"{took:.2f} s, {cpu_seconds(pid) - cpu:.2f} s of CPU", seconds=took)
    crowd.drain(2)
    after = private_bytes(pid)
    table.add("crowd", f"memory with {options.clients} clients",
              f"{after / 2**20:.0f} MiB ({(after - before) / 2**10 / options.clients:.0f} KiB each)", bytes=after)
    cpu, times = cpu_seconds(pid), []
    for number in range(options.crowd_events):
        crowd.drain(0.1)
        begin = time.perf_counter()
        guardian.append("signal", {"id": f"c{number}", "type": "GUIDANCE", "node": "node_000",
                                   "from": f"crowd{number:04}"}, builder.now())
        times.append(1000 * (crowd.until(f"crowd{number:04}".encode()) - begin))
    each = 1000 * (cpu_seconds(pid) - cpu) / options.crowd_events
    times.sort()
    table.add("crowd", f"journal to the last of {options.clients} clients",
              f"median {statistics.median(times):.0f} ms, worst {times[-1]:.0f} ms, {each:.0f} ms of CPU an event",
              median_ms=statistics.median(times), worst_ms=times[-1], cpu_ms=each)
    idle = drained_cpu(crowd, pid, options.idle)
    table.add("idle", f"{options.clients} clients, nothing happens", f"{idle:.2f} % of a core")


STALLED = 100
"""Clients that never read what they are sent."""


async def measure_stalled(builder: HomeBuilder, guardian: Writer, here: Site, options: argparse.Namespace,
                          table: Table) -> None:
    """Measure one client's delay next to many that do not read."""
    stalled = Crowd(here.port, here.tokens["write"])
    await asyncio.to_thread(stalled.join, STALLED)
    took = sorted(await latencies(builder, guardian, here, options.events))
    stalled.leave()
    median, late = statistics.median(took), took[int(len(took) * 0.99)]
    table.add("slow", f"journal to client beside {STALLED} clients that read nothing",
              f"median {median:.1f} ms, p99 {late:.1f} ms", median_ms=median, p99_ms=late)


NEW_CLIENTS = 40
HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: "


class HalfOpen:
    """Connections that send half a request, a byte now and then, and begin anew when they are ended."""

    def __init__(self, port: int, number: int) -> None:
        self.port, self.number, self.begun = port, number, 0
        """`begun`: how often one began."""

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Keep the crowd full; for a thread."""
        poll, mine = select.poll(), dict[int, socket.socket]()
        while goes_on():
            for _ in range(self.number - len(mine)):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", self.port))
                mine[sock.fileno()] = sock
                poll.register(sock, select.POLLIN | select.POLLOUT)
                self.begun += 1
            for descriptor, event in poll.poll(50):
                sock = mine[descriptor]
                try:
                    if event & select.POLLOUT:
                        sock.send(HALF)
                        poll.modify(sock, select.POLLIN)
                        continue
                    ended = not sock.recv(1000)
                except OSError:
                    ended = True
                if ended:
                    poll.unregister(sock)
                    mine.pop(descriptor).close()
        for sock in mine.values():
            with contextlib.suppress(OSError):
                sock.close()


def measure_half_open(here: Site, number: int, table: Table) -> None:
    """Measure how soon a new client is served while many others hold half-open requests."""
    stop = threading.Event()
    half_open = HalfOpen(here.port, number)
    thread = threading.Thread(target=half_open.run, args=(lambda: not stop.is_set(),))
    thread.start()
    time.sleep(2)
    times = []
    for _ in range(NEW_CLIENTS):
        time.sleep(0.25)
        begin = time.perf_counter()
        with socket.create_connection(("127.0.0.1", here.port), 60) as sock:
            sock.sendall(f"GET / HTTP/1.1\r\nHost: {here.host}\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        if answer.startswith(b"HTTP/1.1 200"):
            times.append(1000 * (time.perf_counter() - begin))
    stop.set()
    thread.join()
    ended = NEW_CLIENTS - len(times)  # where the machine is busy, one that was not served within the server's grace
    times = times or [math.inf]
    table.add("slow", f"a new client gets its page beside {number} half-open requests",
              f"median {statistics.median(times):.0f} ms, worst {max(times):.0f} ms, {ended} of {NEW_CLIENTS} "
              f"ended unserved ({half_open.begun} begun in 12 s)",
              median_ms=statistics.median(times), worst_ms=max(times), ended=ended)


DRAWN = """new MutationObserver(() => {
  if (document.querySelector("svg .node, .group")) window.drawn ??= performance.now();
}).observe(document, { childList: true, subtree: true });"""


async def painted(here: Site, rounds: int) -> list[tuple[float, float]]:
    """Milliseconds from opening the printed address, with nothing cached: to the first paint, to the graph drawn."""
    from playwright.async_api import async_playwright

    took = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for _ in range(rounds):
            page = await browser.new_page()  # in a profile of its own
            await page.add_init_script(DRAWN)
            await page.goto(f"http://127.0.0.1:{here.port}/?token={here.tokens['write']}&run=r1")
            await page.locator("svg .node, .group").first.wait_for()
            drawn = await page.evaluate("window.drawn")  # waiting polls only occasionally
            first = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            took.append((first, drawn))
            await page.close()
        await browser.close()
    return took


async def measure(builder: HomeBuilder, guardian: Writer, here: Site, pid: int, options: argparse.Namespace,
                  table: Table) -> None:
    shown = f"{options.nodes} nodes, {LIVING} at work"
    await asyncio.sleep(2)  # it is still starting
    quiet, held = await idle_cpu(pid, options.idle), private_bytes(pid)
    table.add("idle", "no page open", f"{quiet:.2f} % of a core, {held / 2**20:.0f} MiB", percent=quiet, bytes=held)
    took = sorted(await latencies(builder, guardian, here, options.events))
    median, late = statistics.median(took), took[int(len(took) * 0.99)]
    table.add("event", f"journal to client, {shown}", f"median {median:.1f} ms, p99 {late:.1f} ms",
              median_ms=median, p99_ms=late)
    crowd = Crowd(here.port, here.tokens["write"])
    crowd.join(1)
    crowd_idle = await asyncio.to_thread(drained_cpu, crowd, pid, options.idle)
    table.add("idle", f"one page open, {shown}", f"{crowd_idle:.2f} % of a core", percent=crowd_idle)
    await asyncio.to_thread(measure_crowd, builder, guardian, crowd, pid, options, table)
    crowd.leave()
    await asyncio.sleep(2)  # until the server has seen them leave, they count against its limit of streams
    await measure_stalled(builder, guardian, here, options, table)
    await asyncio.to_thread(measure_half_open, here, options.half_open, table)
    if CHROMIUM is None:
        table.add("paint", "a browser that was never here", "not measured: no chromium is installed")
        return
    first, drawn = (statistics.median(times) for times in zip(*await painted(here, options.paints), strict=True))
    table.add("paint", f"first paint; graph of {options.nodes} nodes drawn", f"{first:.0f} ms; {drawn:.0f} ms",
              first_ms=first, drawn_ms=drawn)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--events", type=int, default=500)
    parser.add_argument("--crowd-events", type=int, default=20)
    parser.add_argument("--half-open", type=int, default=1000)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--paints", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    table = Table(options.as_json, (8, 56))
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
