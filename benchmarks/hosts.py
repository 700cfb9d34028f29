"""What other machines cost: set-up, idle hosts, detection, cancelling, and a node on a host against a local one.

`python benchmarks/hosts.py [--nodes 100] [--slots 8] [--hosts 3]` needs root, an ssh server and the program `temporal`:
the hosts are network namespaces of this machine (tests/hosts_lab.py), so all of them share its cores.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from garrison.hosts.attempts import OVER, AttemptId, AttemptState
from garrison.hosts.keeper import connect, read_state
from garrison.records.remote import look_remote
from garrison.values import replace
from hosts_lab import HostsLab, LabHost, find_hindrance
from hosts_storm import Storm
from support import wait_for

TICKS = os.sysconf("SC_CLK_TCK")
IDLE_SECONDS = 30.0


def rss(pid: int) -> float:
    """Return a process's own memory in MB: its share of what is shared counts in part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def services(host: LabHost) -> list[int]:
    return [pid for pid in host.pids() if b"host\0run" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def idle(storm: Storm) -> dict[str, float]:
    """Return memory and CPU of an idle host, and of the keeper and its server at home."""
    state = read_state(storm.lab.home)
    groups = {"service": [pid for host in storm.lab.hosts.values() for pid in services(host)],
              "keeper": [state.pid], "server": [state.server_pid], "tunnels": storm._at_home("exec sh -c")}
    before = {pid: cpu(pid) for pids in groups.values() for pid in pids}
    time.sleep(IDLE_SECONDS)
    found = {}
    hosts = len(storm.lab.hosts)
    for name, pids in groups.items():
        share = hosts if name in ("service", "tunnels") else 1
        found[f"{name} MB"] = round(sum(rss(pid) for pid in pids) / share, 1)
        found[f"{name} CPU %"] = round(100 * sum(cpu(pid) - before[pid] for pid in pids) / IDLE_SECONDS / share, 2)
    return found


def run_nodes(storm: Storm, run: str, nodes: int, hosts: str, command: str = "true") -> float:
    """Return the seconds of a run of independent nodes."""
    lines = "\n".join(
        f'{name} [agent=command, allow_empty=true, command="{command}"]; start -> {name} -> end;'
        for name in (f"{run}{number}" for number in range(nodes)))
    graph = storm.lab.folder / f"{run}.dot"
    graph.write_text("digraph b { flow=dag; start [shape=Mdiamond]; end [shape=Msquare];\n" + lines + "\n}")
    begun = time.monotonic()
    where = ("--hosts", hosts) if hosts else ()
    done = storm.lab.garrison("launch", str(graph), "--target-dir", str(storm.repo), "--run", run, "--no-gate", "--new",
                              *where, timeout=3600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if why := find_hindrance():
        print(f"not here: {why}")
        return 2
    found: dict[str, object] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="hosts-benchmark-", ignore_cleanup_errors=True) as folder, HostsLab(
            Path(folder), tuple(f"box{number + 1}" for number in range(options.hosts))) as lab:
        added: list[str] = []
        storm = Storm(lab, added.append)
        storm.set_up(options.slots)
        found["host add"] = added
        found["idle"] = idle(storm)
        found["one local node s"] = [round(run_nodes(storm, f"l{each}", 1, ""), 2) for each in range(options.rounds)]
        found["one remote node s"] = [
            round(run_nodes(storm, f"r{each}", 1, "any"), 2) for each in range(options.rounds)]
        found |= cancel_and_detect(storm, options.rounds)
        if options.nodes:
            found[f"{options.nodes} nodes on {options.hosts} × {options.slots} s"] = round(
                run_nodes(storm, "many", options.nodes, "any", "sleep 1"), 1)
    print(json.dumps(found, indent=2))
    return 0


def hold(storm: Storm, run: str) -> tuple[AttemptId, LabHost]:
    """Start a run of one long node; return its attempt and the host that has started it."""
    graph = storm.lab.folder / f"{run}.dot"
    graph.write_text(
        f'digraph b {{ flow=dag; start [shape=Mdiamond]; end [shape=Msquare]; {run}_n [agent=command, command='
        f'"python3 $HOME/agent.py {run}_n 600 {run}"]; start -> {run}_n -> end; }}')
    done = storm.lab.garrison("launch", str(graph), "--target-dir", str(storm.repo), "--run", run, "--no-gate",
                              "--hosts", "any", "--detach", "--new")
    assert done.returncode == 0, done.stderr
    (_, _, name), *_ = wait_for("a host has begun it", lambda: list(storm.spans(run, f"{run}_n")))
    return AttemptId(run, f"{run}_n", 1), storm.lab.hosts[name]


def lab_folder(storm: Storm, attempt: AttemptId) -> Path:
    """Return home's folder of an attempt."""
    return storm.lab.home / "runs" / attempt.run / "nodes" / attempt.node / str(attempt.attempt)


def begun_twice(storm: Storm, run: str) -> list[tuple[float, float, str]]:
    """Return when each agent of the run's node was seen, once there are two of them."""
    spans = sorted(storm.spans(run, f"{run}_n"))
    return spans if len(spans) > 1 else []


def cancel_and_detect(storm: Storm, rounds: int) -> dict[str, list[float]]:
    """Return the seconds from a cancellation at home to the agent's death, from a power loss to the end of the claim on
    the server, and from the power loss to the successor's first act."""
    found: dict[str, list[float]] = {
        "cancel s": [], "cancelled on the server s": [], "detection s": [], "successor s": []}
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{storm.lab.space}", "rb") as space:  # noqa: PTH123
        assert libc.setns(space.fileno(), 0) == 0  # of this thread and those that it starts: the dispatcher's
    dispatcher = connect(storm.lab.home)
    try:
        for number in range(rounds):
            run = f"d{number}"
            attempt, host = hold(storm, run)
            begun = time.time()
            host.power_off()
            first = dispatcher.watch(attempt).claim
            while (view := dispatcher.watch(attempt)).state is AttemptState.CLAIMED and view.claim == first:
                time.sleep(0.02)
            found["detection s"].append(round(time.time() - begun, 2))
            spans = wait_for("a successor begins", lambda run=run: begun_twice(storm, run))
            found["successor s"].append(round(spans[-1][0] - begun, 2))
            state = look_remote(lab_folder(storm, attempt))
            assert state is not None
            attempt = replace(attempt, offer=state.offer)  # the one that the successor has
            assert dispatcher.watch(attempt).state is AttemptState.CLAIMED
            begun = time.time()
            dispatcher.cancel(attempt, "enough")
            wait_for("it is cancelled", lambda attempt=attempt: dispatcher.watch(attempt).state in OVER)
            over = time.time()
            last = max(seen for _, seen, _ in storm.spans(run, f"{run}_n"))
            found["cancel s"].append(round(max(0.0, last - begun), 2))
            found["cancelled on the server s"].append(round(over - begun, 2))
            storm.lab.garrison("stop", run)
            host.boot()
    finally:
        dispatcher.close()
        libc.setns(own, 0)
    return found


if __name__ == "__main__":
    sys.exit(main())
