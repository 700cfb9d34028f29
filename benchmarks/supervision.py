"""The figures of supervision, garrison beside its peers in one run; the goals are those of the design.

    .venv/bin/python benchmarks/supervision.py [--quick] [--rows mechanism,felt,…] [--rounds N] [--agents N] [--json]

Rows: `mechanism` (kill -9 of a trivial child → its successor's first instruction), `faults` (a killed and restarted
supervisor, a stopped child, grandchildren), `felt` (real layers: kill -9 → the agent's resumed work), `crew` (many real
agents: adoption by a new guardian, idle CPU and memory) and `stale` (find-stale). Peers are fetched into a temporary
folder (`--no-fetch`: only what is on the PATH; `--no-peers`: none). Whatever is started is ended by its pid.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from crew import TICK, Crew, connections, crew_of, idle, kill, until
from peers import PARENT, STARTS, TRIVIAL, Missing, Peer, Tools, reap
from table import Table

from support import processes, stat

ROWS = ("mechanism", "faults", "felt", "crew", "stale")
PATIENCE = 30.0
"""Seconds that a successor may take; circus looks every five."""


class Pipe:
    """Where children say their name and pid."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path, self._rest = path, ""
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.said: dict[str, list[tuple[int, int]]] = {}
        """Name → (pid, start ticks) of every child of it so far."""

    def wait(self, name: str, count: int, seconds: float) -> bool:
        """Wait until `count` children of that name have spoken."""
        end = time.monotonic() + seconds
        while len(self.said.get(name, [])) < count:
            rest = end - time.monotonic()
            if rest <= 0 or not select.select([self._descriptor], [], [], rest)[0]:
                return False
            self._read()
        return True

    def _read(self) -> None:
        whole, _, self._rest = (self._rest + os.read(self._descriptor, 65536).decode()).rpartition("\n")
        for line in whole.split("\n") if whole else []:
            name, _, pid = line.rpartition(" ")
            found = stat(int(pid))
            self.said.setdefault(name, []).append((int(pid), found[1] if found else 0))

    def living(self, name: str) -> list[int]:
        """Those of that name that live."""
        while select.select([self._descriptor], [], [], 0)[0]:
            self._read()
        return [pid for pid, ticks in self.said.get(name, [])
                if (found := stat(pid)) is not None and found[1] == ticks and found[0] != "Z"]

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def supervised(root: Path, tools: Tools, names: list[str], script: str,
               table: Table) -> Iterator[tuple[Pipe, list[Peer]]]:
    """Supervisors, each with one child that runs; all are ended afterwards, with whatever they started."""
    root.mkdir(parents=True, exist_ok=True)
    pipe, peers = Pipe(root / "pipe"), []
    started: list[Peer] = []
    try:
        for name in names:
            one = Peer(name, root / name.replace(" ", "-"), pipe.path, tools, script)
            one.prepare()
            started.append(one)
            try:
                one.start()
            except Missing as error:
                table.add("peers", name, f"left out: {error}")
                continue
            except subprocess.TimeoutExpired:
                table.add("peers", name, "left out: it did not come up within a minute")
                continue
            if pipe.wait(name, 1, PATIENCE):
                peers.append(one)
            else:
                said = (one.folder / "log").read_text(errors="replace").strip().splitlines()
                why = said[-1][:100] if said else "it said nothing"
                table.add("peers", name, f"left out: its child did not start ({why})")
        yield pipe, peers
    finally:
        end(started, pipe)


def end(peers: list[Peer], pipe: Pipe) -> None:
    """Supervisors first, then whatever names our folder or told its pid."""
    for one in peers:
        with contextlib.suppress(OSError, IndexError, ValueError):
            kill(one.supervisor())
        for process in one.processes:
            if process.poll() is None:
                process.kill()
    root = str(pipe.path.parent)
    for _ in range(30):
        mine = {one.pid for one in processes() if one.pid != os.getpid() and (
            root in one.argv or any(root in one.environ.get(name, "") for name in ("PM2_HOME", "GARRISON_LIFE")))}
        mine |= {pid for name in list(pipe.said) for pid in pipe.living(name)}
        reap(peers)
        if not mine:
            break
        for pid in mine:
            kill(pid)
        time.sleep(0.1)
    for one in peers:
        for process in one.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
    pipe.close()


# ------------------------------------------------------------------------------------------------------- mechanism


def mechanism(root: Path, tools: Tools, names: list[str], rounds: int, table: Table) -> None:
    """kill -9 of the child → the first instruction of its successor; everybody's turn in each round."""
    took: dict[str, list[float]] = {}
    active: list[float] = []
    with supervised(root, tools, names, TRIVIAL, table) as (pipe, peers):
        time.sleep(1.2)  # runit and s6 hold a child back that lived less than a second
        for _ in range(rounds):
            began = time.monotonic()
            for one in peers:
                known = len(pipe.said[one.name])
                victim = pipe.living(one.name)[-1]
                at, wall = time.perf_counter(), time.time()
                os.kill(victim, signal.SIGKILL)
                if not pipe.wait(one.name, known + 1, PATIENCE):
                    raise SystemExit(f"{one.name} did not replace its child within {PATIENCE:.0f} s")
                took.setdefault(one.name, []).append((time.perf_counter() - at) * 1e3)
                if one.name == "garrison":
                    active.append(registered(one.folder / "home", pipe.said["garrison"][-1][0]) - wall)
            time.sleep(max(0.0, began + (1.2 if len(peers) > 1 else 0.05) - time.monotonic()))
    for name, times in took.items():
        more = {}
        told = ""
        if name == "garrison":
            later = statistics.median(active) * 1e3
            told, more = f"; recorded as active after {later:.1f}", {"active_ms": later}
        table.add("mechanism", f"kill -9 of a trivial child → successor: {name}",
                  f"{statistics.median(times):8.1f} / {max(times):.1f} ms (median / worst of {len(times)}){told}",
                  median_ms=statistics.median(times), worst_ms=max(times), rounds=len(times), **more)
    mine = statistics.median(took["garrison"])
    for name, goal in (("runit", "≤ 1.2 x"), ("supervisord", "≥ 100 x faster")):
        if name in took:
            other = statistics.median(took[name])
            ratio = f"{mine / other:.1f} x {name}" if name == "runit" else f"{other / mine:.0f} x faster than {name}"
            table.add("mechanism", f"garrison against {name}", f"{ratio} (goal {goal})", ratio=mine / other)


def registered(home: Path, pid: int) -> float:
    """Wall time at which that child's identity was seen to be active."""
    path = home / "identities/runner-child@bench.json"

    def active() -> float:
        found = json.loads(path.read_text())
        return time.time() if (found["status"], found["pid"]) == ("active", pid) else 0.0

    end_at = time.monotonic() + PATIENCE
    while not (at := active()):
        if time.monotonic() > end_at:
            raise SystemExit("garrison did not record its child as active")
        time.sleep(0.0005)
    return at


# ---------------------------------------------------------------------------------------------------------- faults


def faults(root: Path, tools: Tools, names: list[str], seconds: float, table: Table) -> None:
    """Who notices a stopped child, leaks grandchildren, doubles children when it is itself killed and restarted."""
    with supervised(root, tools, names, PARENT, table) as (pipe, peers):
        for one in peers:
            os.kill(pipe.living(one.name)[-1], signal.SIGSTOP)
        time.sleep(seconds)
        noticed = {one.name: len(pipe.living(one.name)) != 1 or len(pipe.said[one.name]) > 1 for one in peers}
        leaked: dict[str, bool] = {}
        for one in peers:
            pipe.living(one.name)
            known = len(pipe.said[one.name])
            below = pipe.said.get(f"{one.name}-below", [])
            kill(pipe.living(one.name)[-1], signal.SIGCONT)
            kill(pipe.living(one.name)[-1])
            pipe.wait(one.name, known + 1, PATIENCE)
            pipe.wait(f"{one.name}-below", len(below) + 1, PATIENCE)
            leaked[one.name] = len(pipe.living(f"{one.name}-below")) > 1
        time.sleep(1.2)
        for one in peers:
            kill(one.supervisor())
        reap(peers)
        for one in peers:
            with contextlib.suppress(Missing, subprocess.TimeoutExpired):
                one.start()
        time.sleep(seconds)
        for one in peers:
            copies = len(pipe.living(one.name))
            told = {0: "lost it", 1: "one child, adopted or replaced"}.get(copies, f"{copies} live copies of it")
            stopped = "noticed" if noticed[one.name] else f"not noticed in {seconds:.0f} s"
            table.add("faults", f"{one.name}: supervisor killed and restarted", told, copies=copies)
            table.add("faults", f"{one.name}: stopped child; grandchild of a killed child",
                      f"{stopped}; {'leaked' if leaked[one.name] else 'ended'}", stopped=noticed[one.name],
                      leaked=leaked[one.name])


def stopped_orchestrator(root: Path, table: Table) -> None:
    """SIGSTOP of a real orchestrator, with a short beat timeout; and whether its agent's tools are leaked."""
    timeout = 3.0
    with crew_of(root, 1, GARRISON_BEAT_TIMEOUT=str(timeout)) as crew:
        crew.launch()
        crew.wait_begun(1)
        os.kill(crew.place.pid("orchestrator-n0"), signal.SIGSTOP)
        at, limit = time.monotonic(), 6 * timeout
        with contextlib.suppress(SystemExit):
            until("its successor's work begins", lambda: len(crew.begun()) > 1, limit)
        took = time.monotonic() - at
        again = len(crew.begun()) > 1
        readers = [one for one in processes() if one.argv == f"cat {crew.pipe}"]
        told = f"noticed; its successor's work began after {took:.1f} s" if again else f"not noticed in {limit:.0f} s"
        table.add("faults", f"a real orchestrator stopped, beat timeout {timeout:.0f} s",
                  f"{told}; {len(readers)} agent(s) at work", noticed=again, seconds=took, agents=len(readers))


# ------------------------------------------------------------------------------------------------------------ felt


def felt(root: Path, rounds: int, table: Table) -> None:
    """kill -9 in a real run → the agent's command begins again."""
    with crew_of(root, 1, GARRISON_RESTART_WINDOW="0.01", GARRISON_HEALTHY_AFTER="0.01") as crew:
        began = time.time_ns()
        crew.launch()
        cold = (crew.wait_begun(1)[0] - began) / 1e6
        took: dict[str, list[float]] = {"orchestrator": [], "the agent's shell": [], "runner and orchestrator": []}
        for _ in range(rounds):
            for what, times in took.items():
                known = len(crew.begun())
                pids = victims(crew, what)
                time.sleep(0.3)
                at = time.time_ns()
                for pid in pids:
                    kill(pid)
                times.append((crew.wait_begun(known + 1, 60.0)[-1] - at) / 1e6)
    table.add("felt", "cold start: launch → the agent's work begins", f"{cold:8.0f} ms (with the gate's pre-flight)",
              cold_ms=cold)
    for what, times in took.items():
        table.add("felt", f"kill -9 of {what} → its work begins again",
                  f"{statistics.median(times):8.0f} / {max(times):.0f} ms (median / worst of {len(times)})",
                  median_ms=statistics.median(times), worst_ms=max(times))


def victims(crew: Crew, what: str) -> list[int]:
    """The pids of a kind, once they live."""
    if what == "the agent's shell":
        def shell() -> list[int]:
            return [one.pid for one in processes() if one.argv.startswith("/bin/sh -c") and str(crew.pipe) in one.argv]

        return list(until("the agent's shell", shell, 60.0))
    stems = ("runner-n0", "orchestrator-n0") if what.startswith("runner") else ("orchestrator-n0",)
    return [crew.place.pid(stem) for stem in stems]


# ------------------------------------------------------------------------------------------------------------ crew


def many(root: Path, agents: int, seconds: float, rounds: int, table: Table) -> None:
    """Real layers with agents that wait: what they cost, and how soon a new guardian has adopted them."""
    with crew_of(root, agents, GARRISON_RESTART_WINDOW="0.01", GARRISON_HEALTHY_AFTER="0.01") as crew:
        began = time.monotonic()
        crew.launch()
        crew.wait_begun(agents, 60.0 + 5.0 * agents)
        table.add("crew", f"{agents} agents started, as fast as it goes", f"{time.monotonic() - began:8.1f} s")
        time.sleep(8.0)
        before, kept = set(crew.layers()), size(crew.place.home)
        cost = idle(crew, seconds)
        total = sum(cost.cores.values())
        gone = len(before - set(crew.layers()))
        by_role = ", ".join(f"{role} {cores:.2%}" for role, cores in cost.cores.items())
        told = f"{total:8.2%} of a core over {seconds:.0f} s ({by_role}; goal ≤ 1 % with 100 agents)"
        table.add("crew", f"{agents} idle agents: CPU of all layers", told, cores=total, by_role=cost.cores,
                  agents=agents)
        grown, written = cost.grown / 1024, (size(crew.place.home) - kept) / 1024
        table.add("crew", f"of all layers over these {seconds:.0f} s: memory, the home's files, replaced",
                  f"{grown:+8.1f} MiB private, {written:+.1f} KiB on disk, {gone}", grown_mib=grown,
                  written_kib=written, replaced=gone)
        node = (cost.memory.get("runner", 0) + cost.memory.get("orchestrator", 0)) / 1024 / agents
        table.add("crew", "private memory of a node (runner, orchestrator)", f"{node:8.1f} MiB (goal ≤ 40)", mib=node)
        sockets = connections(list(crew.layers()))
        table.add("crew", "internet sockets of all layers (0: no model is asked)", f"{sockets:8}", sockets=sockets)
        adopted(crew, rounds, table)


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def adopted(crew: Crew, rounds: int, table: Table) -> None:
    """kill -9 of the guardian → a new one is ready, with the parts of it."""
    before, began = crew.layers(), len(crew.begun())
    ready, own, whole = [], [], []
    for _ in range(rounds):
        life = crew.place.identity("guardian-crew")["incarnation"]
        time.sleep(0.5)
        at = time.time()
        kill(crew.place.pid("guardian-crew"))

        def found(life: int = life) -> dict[str, Any]:
            identity = crew.place.identity("guardian-crew")
            fresh = identity.get("incarnation", 0) > life and "ready_at" in identity.get("metadata", {})
            return identity if fresh else {}

        identity = until("a new guardian is ready", found, 60.0)
        ready.append((seconds_of(identity["metadata"]["ready_at"]) - at) * 1e3)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - identity["start_ticks"] * TICK
        started = time.time() - age
        whole.append((seconds_of(identity["metadata"]["ready_at"]) - started) * 1e3)
        own.append((first_look(crew, identity) - seconds_of(identity["last_heartbeat"])) * 1e3)
    after = crew.layers()
    same = {pid for pid, role in before.items() if role in ("runner", "orchestrator")}
    lost = len(same - after.keys())
    doubled = sum(role in ("runner", "orchestrator") for role in after.values()) - len(same) + lost
    again = len(crew.begun()) - began
    for what, times in (("kill -9 of the guardian → a new one is ready", ready),
                        ("of that: from its process's start (Python's own start is most)", whole),
                        ("of that: adopting (registered → everybody seen and watched; goal ≤ 100 ms)", own)):
        told = f"{statistics.median(times):8.0f} / {max(times):.0f} ms (median / worst of {len(times)})"
        table.add("crew", what, told, median_ms=statistics.median(times), worst_ms=max(times),
                  agents=crew.size)
    table.add("crew", "adoption: lost, doubled, begun again", f"{lost:8}, {doubled}, {again}", lost=lost,
              doubled=doubled, again=again)


def first_look(crew: Crew, identity: dict[str, Any]) -> float:
    """When the guardian's first quiet turn was over: its pidfds are open. Wall time, seconds."""
    folder = Path(f"/proc/{identity['pid']}/fdinfo")

    def watching() -> float:
        with contextlib.suppress(OSError):
            held = sum("Pid:" in entry.read_text() for entry in folder.iterdir())
            return time.time() if held >= crew.size else 0.0
        return 0.0

    at = watching()
    while not at and time.time() - seconds_of(identity["last_heartbeat"]) < 20:
        at = watching()
    return at or float("nan")


def seconds_of(text: str) -> float:
    """A record's time as seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


# ----------------------------------------------------------------------------------------------------------- stale


def stale(root: Path, rounds: int, table: Table) -> None:
    """find-stale as a command, with one identity and with 1,000, beside bare Python."""
    script = str(Path(__file__).resolve().parent.parent / "scripts/identity_registry.py")
    took: dict[str, list[float]] = {}
    env = {name: value for name, value in os.environ.items()
           if not name.startswith("GARRISON_") and name != "PYTHONDONTWRITEBYTECODE"}
    homes = {1: root / "one", 1000: root / "thousand"}
    for count, home in homes.items():
        fill(home, count, script, env)
    for _ in range(rounds):
        for what, argv, home in (("bare Python", ["-c", "pass"], homes[1]),
                                 ("find-stale, 1", [script, "find-stale"], homes[1]),
                                 ("find-stale, 1,000", [script, "find-stale"], homes[1000])):
            at = time.perf_counter()
            subprocess.run([sys.executable, *argv], env={**env, "GARRISON_HOME": str(home)}, check=True,
                           stdout=subprocess.DEVNULL)
            took.setdefault(what, []).append((time.perf_counter() - at) * 1e3)
    middle = {what: statistics.median(times) for what, times in took.items()}
    bare, one, thousand = middle.values()
    table.add("stale", "find-stale as a command, beside bare Python",
              f"{one:8.1f} ms, {one / bare:.1f} x bare Python's {bare:.1f} (goal ≤ 4 x)", ms=one, ratio=one / bare)
    table.add("stale", "its work for 1,000 identities", f"{thousand - one:8.1f} ms (goal ≤ 30)", ms=thousand - one)


def fill(home: Path, count: int, script: str, env: dict[str, str]) -> None:
    """A home with that many identities of a living process that beats."""
    subprocess.run([sys.executable, script, "create", "runner", "a", "--pid", str(os.getpid())],
                   env={**env, "GARRISON_HOME": str(home)}, check=True, stdout=subprocess.DEVNULL)
    (first,) = (home / "identities").glob("*.json")
    record = json.loads(first.read_text())
    for number in range(1, count):
        name = f"n{number}"
        (home / "identities" / first.name.replace("runner-a", f"runner-{name}")).write_text(
            json.dumps({**record, "name": name, "agent_id": f"{number:016x}"}))


# ------------------------------------------------------------------------------------------------------------ main


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="the figures of supervision, garrison beside its peers")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which: {','.join(ROWS)} (all)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, 20 agents: under three minutes")
    parser.add_argument("--rounds", type=int, help="rounds of the mechanism (20; quick 5)")
    parser.add_argument("--agents", type=int, help="agents of the crew (100; quick 20)")
    parser.add_argument("--idle", type=float, help="seconds for which the crew does nothing (60; quick 15)")
    parser.add_argument("--no-peers", action="store_true", help="garrison and polling alone")
    parser.add_argument("--no-fetch", action="store_true", help="only peers that are on the PATH")
    parser.add_argument("--tools", type=Path, help="a folder to keep the fetched peers in for the next run")
    parser.add_argument("--install-system", action="store_true", help="install Debian's packages here (root)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    chosen = parser.parse_args()
    if unknown := set(chosen.rows.split(",")) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return chosen


def main() -> None:
    """Measure and print."""
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever stops us: everything is taken down
    rows, quick = chosen.rows.split(","), chosen.quick
    table = Table(chosen.json, (10, 52))
    names = ["garrison", "polling 50 ms"] if chosen.no_peers else list(STARTS)
    with table.machine(), tempfile.TemporaryDirectory(
            prefix="garrison-bench-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        tools = Tools(chosen.tools or root / "tools", not chosen.no_fetch, chosen.install_system)
        rounds = chosen.rounds or (5 if quick else 20)
        if "mechanism" in rows:
            mechanism(root / "m", tools, names, rounds, table)
        if "faults" in rows:
            faults(root / "f", tools, names, 4.0 if quick else 8.0, table)
            stopped_orchestrator(root / "s", table)
        if "felt" in rows:
            felt(root / "e", 3 if quick else 10, table)
        if "crew" in rows:
            agents = chosen.agents or (20 if quick else 100)
            many(root / "c", agents, chosen.idle or (15.0 if quick else 60.0), 3 if quick else 10, table)
        if "stale" in rows:
            stale(root / "i", 7 if quick else 21, table)


if __name__ == "__main__":
    main()
