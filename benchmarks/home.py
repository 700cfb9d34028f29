"""Home of many runs in a browser: reading the list, its size, its table in the page, a search until the table
has answered.

    .venv/bin/python benchmarks/home.py [--runs 10 100 500] [--rounds 5]

The runs are records of five nodes each, most of them over; server and Chromium are processes of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from garrison.records import run as run_records  # noqa: E402
from garrison.records.hook import Hook  # noqa: E402
from garrison.records.identity import Identity  # noqa: E402
from garrison.records.names import Key  # noqa: E402
from garrison.records.record import encode  # noqa: E402
from garrison.records.run import Launch  # noqa: E402
from garrison.system.clock import iso  # noqa: E402
from garrison.values import asdict  # noqa: E402
from garrison.views.page_view import HomeObserver  # noqa: E402
from timeline_support import BEGIN, GRAPH, Story, TimedHome, story  # noqa: E402


def build(home: Path, runs: int, *, processes: bool = False) -> None:
    """Write that many runs, one of which waits for the user; with the records of their ended `processes` on request."""
    for number in range(runs - 1):
        builder = TimedHome(home, begin=BEGIN - 60 * (runs - number))
        told = Story(builder, f"run-{number:04d}")
        run_records.save(told.files.launch, Launch(told.run, "nightly", f"/src/p{number % 5}", "main",
                                                   iso(builder.begin), "/trees"))
        told.files.graph.write_text(GRAPH)
        told.guardian(0, "run", status="running")
        for node in range(5):
            told.node(1, f"n{node}", "active")
            told.node(2, f"n{node}", "impl_complete")
            told.node(3, f"n{node}", "validated", commit="1" * 40)
        told.paid("n0", 2, 0.5, "claude-sonnet-4")
        told.guardian(9, "run", status="done")
        for writer in told.writers.values():
            writer.close()
        if processes:
            record_processes(builder, told.run)
    story(TimedHome(home))


def record_processes(builder: TimedHome, run: str) -> None:
    """Write what the processes of a run of five nodes leave: an identity and a hook each, without waiting for the disk.
    """
    names = [("launch", "launch"), ("guardian", "nightly"),
             *((role, f"n{node}") for role in ("runner", "orchestrator") for node in range(5))]
    now = iso(builder.begin)
    for role, name in names:
        key = Key(role, name, run)
        identity = Identity(f"{run}-{role}-{name}", role, name, run, now, status="terminated", terminated_at=now,
                            metadata={"reason": "done", "departure": "done"})
        for each in (identity, Hook(f"h-{run}-{role}-{name}", role, name, run, now, now)):
            path = builder.store.path(type(each), key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(each))


def read(home: Path) -> tuple[float, float, int]:
    """CPU milliseconds of the first reading and of later ones, and the bytes of the list."""
    observer = HomeObserver(home)
    took = []
    for _ in range(4):
        begun = time.thread_time()
        lines = observer.lines()
        took.append(1000 * (time.thread_time() - begun))
    return took[0], statistics.median(took[1:]), len(json.dumps(lines, default=asdict))


PAINTED = """new MutationObserver(() => {
  if (document.querySelector(".runs tbody tr")) window.painted ??= performance.now();
}).observe(document, { childList: true, subtree: true });"""


def paint(page: Any, url: str) -> tuple[float, float]:
    """Milliseconds until the table is there, and from a search to its answer."""
    page.add_init_script(PAINTED)
    page.goto(url)
    page.locator(".runs tbody tr").first.wait_for()
    painted = page.evaluate("window.painted")  # waiting polls only occasionally
    begun = time.monotonic()
    page.get_by_label("Search the runs").fill("story")
    page.wait_for_function("document.querySelectorAll('.runs tbody tr').length === 1")
    return painted, 1000 * (time.monotonic() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright  # imported late: others only build a home
    from served_run import serving

    from chromium import CHROMIUM, FLAGS

    if CHROMIUM is None:
        sys.exit("benchmarks/home.py needs a Chromium")
    print("runs  first reading  later readings  list      its table  search")
    for runs in options.runs:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            build(home, runs)
            first, later, size = read(home)
            with serving(home) as url, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
                found = []
                for _ in range(options.rounds):
                    context = browser.new_context(viewport={"width": 1440, "height": 900})
                    found.append(paint(context.new_page(), url))
                    context.close()
                browser.close()
        painted, searched = (statistics.median(each) for each in zip(*found, strict=True))
        print(f"{runs:>4}  {first:>7.0f} ms CPU  {later:>8.0f} ms CPU  {size / 1024:>4.0f} KiB  {painted:>6.0f} ms  "
              f"{searched:>4.0f} ms")


if __name__ == "__main__":
    main()
