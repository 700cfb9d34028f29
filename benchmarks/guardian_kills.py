"""kill -9 of a run's guardian, repeatedly, while many agents work; nothing may be lost, doubled or left over.

    .venv/bin/python benchmarks/guardian_kills.py [--kills 1000] [--agents 100] [--seed N] [--at-random]

Real layers, real git. A guardian is killed as soon as it is ready (or, with --at-random, at any moment of its start and
after it). Afterwards the agents go on, and every branch is gated and merged. Who judges is the checker of the tests,
which reads files and /proc and asks no garrison code: no two lives of a name at once (looked at all the while), no
agent begun again, every node's work landed once, every death in its supervisor's journal, no process left. Exit 1 if
not.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from crew import Crew, crew_of, kill, until

from support import processes


class Watch(threading.Thread):
    """Checks continuously whether a name has two living incarnations, or an agent works twice."""

    def __init__(self, crew: Crew, pause: float) -> None:
        super().__init__(daemon=True)
        self.crew, self.pause, self.over = crew, pause, threading.Event()
        self.doubled: Counter[str] = Counter()
        self.looks = 0

    def run(self) -> None:
        """Check until it is over."""
        while not self.over.wait(self.pause):
            self.doubled.update(twice(self.crew))
            self.looks += 1


def twice(crew: Crew) -> list[str]:
    """Names claimed by two processes in two checks 50 ms apart (the killed one may still be exiting)."""
    first = claimed(crew)
    if all(len(pids) < 2 for pids in first.values()):
        return []
    time.sleep(0.05)
    again = claimed(crew)
    return [name for name, pids in first.items() if len(pids & again.get(name, set())) > 1]


def claimed(crew: Crew) -> dict[str, set[int]]:
    """Name → pids of layers that were started under it; an orchestrator's keeper, above it, is no life of its own."""
    layers = {}
    for one in processes():
        if " garrison.processes.main " in one.argv and one.environ.get("GARRISON_HOME") == str(crew.place.home):
            words = one.argv.split()
            role = words[words.index("garrison.processes.main") + 1]
            layers[one.pid] = f"{role}-{words[words.index('--name') + 1]}", one.ppid
    keepers = {parent for name, parent in layers.values() if layers.get(parent, ("", 0))[0] == name}
    found: dict[str, set[int]] = {}
    for pid, (name, _) in layers.items():
        if pid not in keepers:
            found.setdefault(name, set()).add(pid)
    return found


def kills(crew: Crew, count: int, rng: random.Random, *, at_random: bool) -> float:
    """Kill the guardian `count` times; seconds it took."""
    began = told = time.monotonic()
    life = 0
    for number in range(count):
        def next_life(before: int = life) -> int:
            found = crew.place.identity("guardian-crew")
            there = found.get("status") == "active" and found["incarnation"] > before
            ready = at_random or "ready_at" in found.get("metadata", {})
            return int(found["incarnation"]) if there and ready else 0

        life = until("a new guardian", next_life, 120.0)
        if at_random:
            time.sleep(rng.random() * 0.4)
        kill(crew.place.identity("guardian-crew")["pid"])
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"  {number + 1} kills in {told - began:.0f} s", file=sys.stderr, flush=True)
    return time.monotonic() - began


def judge(crew: Crew, watch: Watch) -> list[str]:
    """Return the violations; empty if there are none."""
    wrong = [f"{name} lived twice at once" for name in watch.doubled]
    if len(crew.begun()) != crew.size:
        wrong.append(f"{len(crew.begun())} beginnings of {crew.size} agents' work")
    try:
        crew.place.check(*crew.names)
    except AssertionError as error:
        wrong.append((str(error).strip() or "the tests' checker found a fault").splitlines()[0][:300])
    return wrong


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description="kill a guardian again and again")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--at-random", action="store_true", help="at any moment, not only once it is ready")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="garrison-kills-", ignore_cleanup_errors=True) as folder, \
            crew_of(Path(folder) / "crew", chosen.agents, GARRISON_RESTART_WINDOW="0.01",
                    GARRISON_HEALTHY_AFTER="0.01") as crew:
        began = time.monotonic()
        crew.launch()
        crew.wait_begun(chosen.agents, 60.0 + 5.0 * chosen.agents)
        print(f"{chosen.agents} agents at work after {time.monotonic() - began:.0f} s", flush=True)
        watch = Watch(crew, 0.5)
        watch.start()
        took = kills(crew, chosen.kills, random.Random(chosen.seed), at_random=chosen.at_random)
        print(f"{chosen.kills} guardians killed in {took:.0f} s, {took / chosen.kills * 1e3:.0f} ms each", flush=True)
        crew.release()
        assert crew.launcher is not None
        code = crew.launcher.wait(300.0 + 10.0 * chosen.agents)
        watch.over.set()
        watch.join()
        wrong = judge(crew, watch)
        if code:
            wrong.append(f"the run ended with exit code {code}")
        deaths = len(crew.place.deaths().get("guardian-crew", []))
        journal = len(crew.place.journal())
        print(f"{watch.looks} looks for doubles; {deaths} deaths of guardians journaled; {journal} whole journal "
              f"records; {time.monotonic() - began:.0f} s in all, load {os.getloadavg()[0]:.1f}")
        print("\n".join(f"WRONG: {one}" for one in wrong) or
              "0 doubled, 0 lost, 0 left over: every node's work landed once, nobody worked twice")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
