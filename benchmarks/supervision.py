"""Supervision: garrison and its peers in one run, each figure with its bar.

    .venv/bin/python benchmarks/supervision.py [--quick] [--rows mechanism,felt,…] [--rounds N] [--agents N] [--json]

Rows: `mechanism` (kill -9 of a trivial child → its successor's first instruction; bar: 100 x faster than supervisord);
`faults` (a killed and restarted supervisor, a stopped child, grandchildren); `felt` (real processes: kill -9 → the
agent at work again; bar: 0.3 s, where a cold start takes about 0.9 s); `crew` (many real agents: adoption by a new
guardian, idle CPU and memory; bars: 1.5 % of a core for 100 agents, 40 MiB a node); `stale` (find-stale; bar: 150 ms of
CPU). Peers are fetched into a temporary folder (`--no-fetch`: only those on the PATH; `--no-peers`: none). Everything
that was started is ended by its pid.
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
from scripts_startup import cpu_ms
from table import Table

from support import processes, stat

ROWS = ("mechanism", "faults", "felt", "crew", "stale")
PATIENCE = 30.0
"""Seconds that a successor may take; circus polls every five."""

RESPAWN_FACTOR = 100
"""Times that a trivial child is to be replaced faster than by supervisord."""
AT_WORK_MS = 300.0
"""Milliseconds from a kill until the agent is at work again."""
IDLE_CORES = 0.015
"""Share of a core that 100 idle agents may cost."""
NODE_MIB = 40.0
"""Private memory of a node, runner and orchestrator."""
SCRIPT_CPU_MS = 150.0
"""CPU time of a script command."""


class Pipe:
    """Named pipe to which every child writes its name and pid."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path, self._rest = path, ""
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.children: dict[str, list[tuple[int, int]]] = {}
        """Name → (pid, start ticks) of every child of it so far."""

    def wait(self, name: str, count: int, seconds: float) -> bool:
        """Wait until `count` children of that name have written; return whether they did in time."""
        end = time.monotonic() + seconds
        while len(self.children.get(name, [])) < count:
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
            self.children.setdefault(name, []).append((int(pid), found[1] if found else 0))

    def living(self, name: str) -> list[int]:
        """Return the pids of the living children of that name."""
        while select.select([self._descriptor], [], [], 0)[0]:
            self._read()
        return [pid for pid, ticks in self.children.get(name, [])
                if (found := stat(pid)) is not None and found[1] == ticks and found[0] != "Z"]

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def supervised(root: Path, tools: Tools, names: list[str], script: str,
               table: Table) -> Iterator[tuple[Pipe, list[Peer]]]:
    """Start supervisors, each with one running child; end all of them afterwards, with everything they started."""
    root.mkdir(parents=True, exist_ok=True)
    pipe, peers = Pipe(root / "pipe"), []
    started: list[Peer] = []
    try:
        for name in names:
            peer = Peer(name, root / name.replace(" ", "-"), pipe.path, tools, script)
            peer.prepare()
            started.append(peer)
            try:
                peer.start()
            except Missing as error:
                table.add("peers", name, f"left out: {error}")
                continue
            except subprocess.TimeoutExpired:
                table.add("peers", name, "left out: it did not come up within a minute")
                continue
            if pipe.wait(name, 1, PATIENCE):
                peers.append(peer)
            else:
                log = (peer.folder / "log").read_text(errors="replace").strip().splitlines()
                why = log[-1][:100] if log else "its log is empty"
                table.add("peers", name, f"left out: its child did not start ({why})")
        yield pipe, peers
    finally:
        end(started, pipe)


def end(peers: list[Peer], pipe: Pipe) -> None:
    """End the supervisors, then every process that names our folder or wrote its pid."""
    for peer in peers:
        with contextlib.suppress(OSError, IndexError, ValueError):
            kill(peer.supervisor())
        for process in peer.processes:
            if process.poll() is None:
                process.kill()
    root = str(pipe.path.parent)
    for _ in range(30):
        left = {process.pid for process in processes() if process.pid != os.getpid() and (
            root in process.argv
            or any(root in process.environ.get(name, "") for name in ("PM2_HOME", "GARRISON_LIFE")))}
        left |= {pid for name in list(pipe.children) for pid in pipe.living(name)}
        reap(peers)
        if not left:
            break
        for pid in left:
            kill(pid)
        time.sleep(0.1)
    for peer in peers:
        for process in peer.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
    pipe.close()


# ------------------------------------------------------------------------------------------------------- mechanism


def mechanism(root: Path, tools: Tools, names: list[str], rounds: int, table: Table) -> None:
    """Measure kill -9 of the child → the first instruction of its successor, one supervisor after the other."""
    took: dict[str, list[float]] = {}
    active: list[float] = []
    with supervised(root, tools, names, TRIVIAL, table) as (pipe, peers):
        time.sleep(1.2)  # runit and s6 hold a child back that lived less than a second
        for _ in range(rounds):
            began = time.monotonic()
            for peer in peers:
                before = len(pipe.children[peer.name])
                victim = pipe.living(peer.name)[-1]
                at, wall = time.perf_counter(), time.time()
                os.kill(victim, signal.SIGKILL)
                if not pipe.wait(peer.name, before + 1, PATIENCE):
                    raise SystemExit(f"{peer.name} did not replace its child within {PATIENCE:.0f} s")
                took.setdefault(peer.name, []).append((time.perf_counter() - at) * 1e3)
                if peer.name == "garrison":
                    active.append(registered(peer.folder / "home", pipe.children["garrison"][-1][0]) - wall)
            time.sleep(max(0.0, began + (1.2 if len(peers) > 1 else 0.05) - time.monotonic()))
    for name, times in took.items():
        values = {}
        note = ""
        if name == "garrison":
            active_ms = statistics.median(active) * 1e3
            note, values = f"; recorded as active after {active_ms:.1f}", {"active_ms": active_ms}
        table.add("mechanism", f"kill -9 of a trivial child → successor: {name}",
                  f"{statistics.median(times):8.1f} / {max(times):.1f} ms (median / worst of {len(times)}){note}",
                  median_ms=statistics.median(times), worst_ms=max(times), rounds=len(times), **values)
    if "supervisord" in took:
        factor = statistics.median(took["supervisord"]) / statistics.median(took["garrison"])
        table.add("mechanism", "garrison beside supervisord", f"{factor:8.0f} x faster (bar ≥ {RESPAWN_FACTOR} x)",
                  factor=factor)


def registered(home: Path, pid: int) -> float:
    """Return the wall time at which that child's identity was read as active."""
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
    """Find which supervisors notice a stopped child, leak grandchildren, double children when killed and restarted."""
    with supervised(root, tools, names, PARENT, table) as (pipe, peers):
        for peer in peers:
            os.kill(pipe.living(peer.name)[-1], signal.SIGSTOP)
        time.sleep(seconds)
        noticed = {peer.name: len(pipe.living(peer.name)) != 1 or len(pipe.children[peer.name]) > 1 for peer in peers}
        leaked: dict[str, bool] = {}
        for peer in peers:
            pipe.living(peer.name)
            before = len(pipe.children[peer.name])
            below = pipe.children.get(f"{peer.name}-below", [])
            kill(pipe.living(peer.name)[-1], signal.SIGCONT)
            kill(pipe.living(peer.name)[-1])
            pipe.wait(peer.name, before + 1, PATIENCE)
            pipe.wait(f"{peer.name}-below", len(below) + 1, PATIENCE)
            leaked[peer.name] = len(pipe.living(f"{peer.name}-below")) > 1
        time.sleep(1.2)
        for peer in peers:
            kill(peer.supervisor())
        reap(peers)
        for peer in peers:
            with contextlib.suppress(Missing, subprocess.TimeoutExpired):
                peer.start()
        time.sleep(seconds)
        for peer in peers:
            copies = len(pipe.living(peer.name))
            result = {0: "lost it", 1: "one child, adopted or replaced"}.get(copies, f"{copies} live copies of it")
            stopped = "noticed" if noticed[peer.name] else f"not noticed in {seconds:.0f} s"
            table.add("faults", f"{peer.name}: supervisor killed and restarted", result, copies=copies)
            table.add("faults", f"{peer.name}: stopped child; grandchild of a killed child",
                      f"{stopped}; {'leaked' if leaked[peer.name] else 'ended'}", stopped=noticed[peer.name],
                      leaked=leaked[peer.name])


def stopped_orchestrator(root: Path, table: Table) -> None:
    """Stop a real orchestrator (SIGSTOP), with a short heartbeat timeout; find whether its agent's tools are leaked."""
    timeout = 3.0
    with crew_of(root, 1, GARRISON_BEAT_TIMEOUT=str(timeout)) as crew:
        crew.launch()
        crew.wait_begun(1)
        os.kill(crew.place.pid("orchestrator-n0"), signal.SIGSTOP)
        at, limit = time.monotonic(), 6 * timeout
        with contextlib.suppress(SystemExit):
            until("its successor's work begins", lambda: len(crew.begun()) > 1, limit)
        took = time.monotonic() - at
        is_noticed = len(crew.begun()) > 1
        readers = [process for process in processes() if process.argv == f"cat {crew.pipe}"]
        result = f"noticed; its successor's work began after {took:.1f} s" if is_noticed \
            else f"not noticed in {limit:.0f} s"
        table.add("faults", f"a real orchestrator stopped, heartbeat timeout {timeout:.0f} s",
                  f"{result}; {len(readers)} agent(s) at work", noticed=is_noticed, seconds=took, agents=len(readers))


# ------------------------------------------------------------------------------------------------------------ felt


def felt(root: Path, rounds: int, table: Table) -> None:
    """Measure kill -9 in a real run → the agent's command runs again."""
    with crew_of(root, 1, GARRISON_RESTART_WINDOW="0.01", GARRISON_HEALTHY_AFTER="0.01") as crew:
        began = time.time_ns()
        crew.launch()
        cold = (crew.wait_begun(1)[0] - began) / 1e6
        took: dict[str, list[float]] = {"orchestrator": [], "the agent's shell": [], "runner and orchestrator": []}
        for _ in range(rounds):
            for what, times in took.items():
                before = len(crew.begun())
                pids = victims(crew, what)
                time.sleep(0.3)
                at = time.time_ns()
                for pid in pids:
                    kill(pid)
                times.append((crew.wait_begun(before + 1, 60.0)[-1] - at) / 1e6)
    table.add("felt", "cold start: launch → the agent's work begins", f"{cold:8.0f} ms (with the gate's pre-flight)",
              cold_ms=cold)
    for what, times in took.items():
        table.add("felt", f"kill -9 of {what} → its work begins again",
                  f"{statistics.median(times):8.0f} / {max(times):.0f} ms (median / worst of {len(times)}; "
                  f"bar ≤ {AT_WORK_MS:.0f})",
                  median_ms=statistics.median(times), worst_ms=max(times))


def victims(crew: Crew, what: str) -> list[int]:
    """Return the pids of a kind, once they live."""
    if what == "the agent's shell":
        def shell() -> list[int]:
            return [process.pid for process in processes()
                    if process.argv.startswith("/bin/sh -c") and str(crew.pipe) in process.argv]

        return list(until("the agent's shell", shell, 60.0))
    stems = ("runner-n0", "orchestrator-n0") if what.startswith("runner") else ("orchestrator-n0",)
    return [crew.place.pid(stem) for stem in stems]


# ------------------------------------------------------------------------------------------------------------ crew


def many(root: Path, agents: int, seconds: float, rounds: int, table: Table) -> None:
    """Measure what real processes with waiting agents cost, and how soon a new guardian has adopted them."""
    with crew_of(root, agents, GARRISON_RESTART_WINDOW="0.01", GARRISON_HEALTHY_AFTER="0.01") as crew:
        began = time.monotonic()
        crew.launch()
        crew.wait_begun(agents, 60.0 + 5.0 * agents)
        table.add("crew", f"{agents} agents started, as fast as it goes", f"{time.monotonic() - began:8.1f} s")
        time.sleep(8.0)
        before, kept = set(crew.supervised()), size(crew.place.home)
        cost = idle(crew, seconds)
        total = sum(cost.cores.values())
        gone = len(before - set(crew.supervised()))
        by_role = ", ".join(f"{role} {cores:.2%}" for role, cores in cost.cores.items())
        table.add("crew", f"{agents} idle agents: CPU of all processes",
                  f"{total:8.2%} of a core over {seconds:.0f} s ({by_role}; bar ≤ {IDLE_CORES:.1%} for 100)",
                  cores=total, by_role=cost.cores, agents=agents)
        grown, written = cost.grown / 1024, (size(crew.place.home) - kept) / 1024
        table.add("crew", f"of all processes over these {seconds:.0f} s: memory, the home's files, replaced",
                  f"{grown:+8.1f} MiB private, {written:+.1f} KiB on disk, {gone}", grown_mib=grown,
                  written_kib=written, replaced=gone)
        node = (cost.memory.get("runner", 0) + cost.memory.get("orchestrator", 0)) / 1024 / agents
        table.add("crew", "private memory of a node (runner, orchestrator)",
                  f"{node:8.1f} MiB (bar ≤ {NODE_MIB:.0f})", mib=node)
        sockets = connections(list(crew.supervised()))
        table.add("crew", "internet sockets of all processes (0: no model is called)", f"{sockets:8}", sockets=sockets)
        adopted(crew, rounds, table)


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def adopted(crew: Crew, rounds: int, table: Table) -> None:
    """Measure kill -9 of the guardian → a new one is ready, and the parts of that time."""
    before, began = crew.supervised(), len(crew.begun())
    ready, adopting, whole = [], [], []
    for _ in range(rounds):
        incarnation = crew.place.identity("guardian-crew")["incarnation"]
        time.sleep(0.5)
        at = time.time()
        kill(crew.place.pid("guardian-crew"))

        def successor(incarnation: int = incarnation) -> dict[str, Any]:
            identity = crew.place.identity("guardian-crew")
            is_ready = identity.get("incarnation", 0) > incarnation and "ready_at" in identity.get("metadata", {})
            return identity if is_ready else {}

        identity = until("a new guardian is ready", successor, 60.0)
        ready.append((seconds_of(identity["metadata"]["ready_at"]) - at) * 1e3)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - identity["start_ticks"] * TICK
        started = time.time() - age
        whole.append((seconds_of(identity["metadata"]["ready_at"]) - started) * 1e3)
        adopting.append((first_quiet_turn(crew, identity) - seconds_of(identity["last_heartbeat"])) * 1e3)
    after = crew.supervised()
    same = {pid for pid, role in before.items() if role in ("runner", "orchestrator")}
    lost = len(same - after.keys())
    doubled = sum(role in ("runner", "orchestrator") for role in after.values()) - len(same) + lost
    restarted = len(crew.begun()) - began
    for what, times in (("kill -9 of the guardian → a new one is ready", ready),
                        ("of that: from its process's start (Python's own start is most)", whole),
                        ("of that: adopting (registered → every process observed and watched)", adopting)):
        result = f"{statistics.median(times):8.0f} / {max(times):.0f} ms (median / worst of {len(times)})"
        table.add("crew", what, result, median_ms=statistics.median(times), worst_ms=max(times),
                  agents=crew.size)
    table.add("crew", "adoption: lost, doubled, restarted", f"{lost:8}, {doubled}, {restarted}", lost=lost,
              doubled=doubled, restarted=restarted)


def first_quiet_turn(crew: Crew, identity: dict[str, Any]) -> float:
    """Return when the guardian's first quiet turn was over and its pidfds open; wall time in seconds."""
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
    """Return a record's time as seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


# ----------------------------------------------------------------------------------------------------------- stale


def stale(root: Path, rounds: int, table: Table) -> None:
    """Measure the CPU time of find-stale as a command, with one identity and with 1,000, compared with bare Python."""
    script = str(Path(__file__).resolve().parent.parent / "scripts/identity_registry.py")
    took: dict[str, list[float]] = {}
    env = {name: value for name, value in os.environ.items()
           if not name.startswith("GARRISON_") and name != "PYTHONDONTWRITEBYTECODE"}
    homes = {1: root / "one", 1000: root / "thousand"}
    for count, home in homes.items():
        fill(home, count, script, env)
    for _ in range(rounds):
        for what, argv, home in (("bare Python", ["-c", "pass"], homes[1]),
                                 ("find-stale", [script, "find-stale"], homes[1]),
                                 ("find-stale, 1,000 identities", [script, "find-stale"], homes[1000])):
            took.setdefault(what, []).append(
                cpu_ms([sys.executable, *argv], {**env, "GARRISON_HOME": str(home)}))
    medians = {what: statistics.median(times) for what, times in took.items()}
    bare, few, many_ = medians.values()
    table.add("stale", "find-stale as a command: CPU, beside bare Python",
              f"{few:8.1f} ms, bare Python {bare:.1f} (bar ≤ {SCRIPT_CPU_MS:.0f})", cpu_ms=few, bare_ms=bare)
    table.add("stale", "find-stale with 1,000 identities: CPU", f"{many_:8.1f} ms", cpu_ms=many_)


def fill(home: Path, count: int, script: str, env: dict[str, str]) -> None:
    """Make a home with that many identities of a living process that beats."""
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
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="measure supervision, garrison beside its peers")
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
    """Measure the chosen rows and print the table."""
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended on the way out
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
