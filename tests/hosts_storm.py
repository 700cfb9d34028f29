"""Seeded schedules of faults on three hosts with real ssh and a real Temporal server; a checker decides.

`python tests/hosts_storm.py --seeds 1..200` sets three hosts up once, then starts a run for each seed and lets the
faults of its schedule happen. What must hold: every node landed once and tested, and of two workers of one
node the first had stopped before the second started, by the agents' own journals on the clock of the one machine.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


from collections.abc import Callable, Iterator

from hosts_lab import HostsLab, LabHost, find_hindrance
from storm import make_parser, play_all, send
from support import landed_subjects, processes, read_process, wait_for

AGENT = '''
import json, os, subprocess, sys, time
node, seconds = sys.argv[1], float(sys.argv[2])
tree = os.getcwd()
with open(os.path.expanduser("~/agents.jsonl"), "a", buffering=1) as journal:
    def note(what):
        try:
            journal.write(json.dumps({"run": sys.argv[3], "node": node, "pid": os.getpid(), "what": what,
                                      "at": time.time(), "tree": tree}) + "\\n")
        except OSError:
            pass  # the disk is full
    note("begin")
    end = time.time() + seconds
    made = False
    while time.time() < end:
        time.sleep(0.05)
        note("alive")
        if not made and time.time() > end - seconds / 2:
            try:
                with open(node + ".txt", "w") as file:
                    file.write(node)
                subprocess.run(["git", "add", "-A"], check=True)
                subprocess.run(["git", "commit", "-qm", "Add " + node, "--allow-empty"], check=True)
                made = True
            except (OSError, subprocess.CalledProcessError):
                end = time.time() + seconds  # the disk is full: goes on until it can
    note("end")
'''
NODES = 6
LIMIT = 900.0
"""Longest run of a schedule; a node that is lost shows as a run that does not end."""


@dataclass(frozen=True)
class Fault:
    """One fault: when it starts after the launch, what it is, where, and for how long."""

    at: float
    kind: str
    host: str
    seconds: float


KINDS = ("cut", "mute", "deafen", "stop", "power", "service", "tunnel", "server", "server stopped", "keeper",
         "guardian", "disk")
AHEAD = (0, 3600, 10_000_000)
"""Seconds by which the clock of a host that boots is ahead, one of them."""


def make_schedule(seed: int, hosts: list[str], long: bool = False) -> list[Fault]:
    """Return the faults of a seed, by time. Pure."""
    rng = random.Random(seed)
    faults = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(KINDS)
        seconds = 60.0 if long and kind == "server stopped" else rng.choice((1.0, 3.0, 6.0, 12.0))
        faults.append(Fault(round(rng.uniform(0.5, 15.0), 1), kind, rng.choice(hosts), seconds))
    return sorted(faults, key=lambda fault: fault.at)


@dataclass
class Schedule:
    """One schedule, and what was found of it."""

    storm: Storm
    seed: int
    long: bool = False
    did: Counter[str] = field(default_factory=Counter)
    """Agents that started a node after another one (`successors`); those of them that started before a stopped host's
    agent noticed, which only the token prevents from harm (`overlaps of stopped hosts`)."""
    problems: list[str] = field(default_factory=list)

    def play(self) -> list[str]:
        """Do it; return what is wrong."""
        self.storm.run(self)
        try:
            self.storm.wait_for_hosts()
        except AssertionError as error:
            self.problems.append(str(error))
        return self.problems


class Storm:
    """The laboratory, set up once, and one repository."""

    def __init__(self, lab: HostsLab, log: Callable[[str], None]) -> None:
        self.lab, self.log = lab, log
        self.repo = lab.folder / "repo"
        self.stopped: set[str] = set()

    def set_up(self, slots: int = 2, lease: float = 5.0) -> None:
        self.lab.boot()
        self.lab.home.mkdir(mode=0o700)
        (self.lab.home / "config.toml").write_text(f"[hosts]\nlease = {lease}\n")
        first, *others = self.lab.hosts
        self.add(first, slots)  # makes the wheels
        for name in others:
            self.lab.hosts[name].copy_installation(self.lab.hosts[first])
        with ThreadPoolExecutor(len(others) or 1) as beside:
            list(beside.map(lambda name: self.add(name, slots), others))
        for host in self.lab.hosts.values():
            for path in (host.home / "agent.py", *host.home.glob(".local/share/garrison-hosts/*/*/home/config.toml")):
                path.unlink(missing_ok=True)
            (host.home / "agent.py").write_text(AGENT)
            (home,) = host.home.glob(".local/share/garrison-hosts/*/*/home")
            (home / "config.toml").write_text('[sandbox]\nmode = "none"\n')
            os.chown(home / "config.toml", host.uid, host.uid)
            (host.home / "agents.jsonl").touch()
            os.chown(host.home / "agents.jsonl", host.uid, host.uid)
        self.repo.mkdir()
        (self.repo / "README").write_text("storm\n")
        for words in (("init", "-qb", "main"), ("config", "user.name", "A User"), ("add", "-A"),
                      ("config", "user.email", "user@example.org"), ("commit", "-qm", "Begin")):
            self.git(*words)

    def add(self, name: str, slots: int) -> None:
        begun = time.monotonic()
        done = self.lab.garrison("host", "add", name, "--slots", str(slots), timeout=600)
        assert done.returncode == 0, done.stderr
        self.log(f"{name} added in {time.monotonic() - begun:.1f} s")

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.repo, capture_output=True, text=True, check=True).stdout.strip()

    # ---- one schedule

    def run(self, trial: Schedule) -> None:
        """Do one schedule, and judge it."""
        seed = trial.seed
        run, start = f"s{seed}", self.git("rev-parse", "main")
        seconds = random.Random(seed).choice((2.0, 4.0, 8.0))
        nodes = "\n".join(
            f'{name} [agent=command, command="python3 $HOME/agent.py {name} {seconds} {run}"]; start -> {name} -> end;'
            for name in (f"n{number}_{seed}" for number in range(NODES)))
        graph = self.lab.folder / f"{run}.dot"
        head = "digraph storm { flow=dag; start [shape=Mdiamond]; end [shape=Msquare];"
        graph.write_text(f"{head}\n{nodes}\n}}")
        self.stopped.clear()
        schedule = make_schedule(seed, list(self.lab.hosts), trial.long)
        begun = time.monotonic()
        launched = self.lab.garrison("launch", str(graph), "--target-dir", str(self.repo), "--run", run, "--hosts",
                                     "any", "--gate", "test -e README", "--max-respawn", "1000", "--detach",
                                     timeout=300)
        if launched.returncode:
            trial.problems.append(f"launch: {launched.stderr.strip()[-300:]}")
            return
        repairs: list[tuple[float, Callable[[], object]]] = []
        while (now := time.monotonic() - begun) < LIMIT:
            while schedule and schedule[0].at <= now:
                fault = schedule.pop(0)
                self.log(f"seed {seed}: at {now:.1f} s {fault.kind} {fault.host} for {fault.seconds:g} s")
                if repair := self.inflict(fault, run):
                    repairs.append((now + fault.seconds, repair))
            for due, repair in [each for each in repairs if each[0] <= now]:
                repair()
                repairs.remove((due, repair))
            if self.status(run) in ("done", "failed", "stopped", "parked") and not schedule and not repairs:
                break
            time.sleep(0.2)
        for _, repair in repairs:
            repair()
        self.judge(trial, run, start)

    def status(self, run: str) -> str:
        path = self.lab.home / "runs" / run / "journal.jsonl"
        status = "running"
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            try:
                body = json.loads(line)
            except ValueError:
                continue
            if body.get("kind") == "run":
                status = str(body["data"]["status"])
        return status

    def wait_for_hosts(self) -> None:
        """Wait until all hosts are connected again, as `garrison host list` tells it."""
        for name in self.lab.hosts:
            wait_for(f"{name} is connected again", lambda name=name: any(
                line.split()[:2] == [name, "ready"]
                for line in self.lab.garrison("host", "list").stdout.splitlines()))

    # ---- faults

    def inflict(self, fault: Fault, run: str) -> Callable[[], object] | None:
        """Do a fault; return what ends it."""
        host = self.lab.hosts[fault.host]
        match fault.kind:
            case "cut" | "mute" | "deafen":
                host.cut(sends=fault.kind != "deafen", hears=fault.kind != "mute")
                return host.heal
            case "stop":
                self.stopped.add(fault.host)
                host.signal(signal.SIGSTOP)
                return lambda: host.signal(signal.SIGCONT)
            case "power":
                host.power_off()
                host.clock_ahead = random.Random(f"{run} {fault.at}").choice(AHEAD)
                return host.switch_on  # whether it answers is not waited for: it may be cut off, too
            case "disk":
                host.fill_disk()
                return host.free_disk
            case "server stopped":
                pids = self._at_home("server start-dev")
                self._kill(pids, signal.SIGSTOP)
                return lambda: self._kill(pids, signal.SIGCONT)
            case _:
                self._kill(self._victims(fault, run))
        return None

    def _victims(self, fault: Fault, run: str) -> list[int]:
        """Return the processes that a fault kills."""
        match fault.kind:
            case "service":
                return self._in_host(self.lab.hosts[fault.host], "host run --home")
            case "tunnel":
                return self._at_home(f"{fault.host} exec sh")
            case "server":
                return self._at_home("server start-dev")
            case "keeper":
                return self._at_home("garrison.hosts.keeper")
            case "guardian":
                return [pid for pid in self._at_home("processes.main guardian") if run in _command(pid)]
        raise AssertionError(fault.kind)

    def _in_host(self, host: LabHost, words: str) -> list[int]:
        return [pid for pid in host.pids() if words in (text := _command(pid)) and "code=$?" not in text]

    def _at_home(self, words: str) -> list[int]:
        """Return the processes of this laboratory's home whose command has these words."""
        return [one.pid for one in processes(str(self.lab.folder)) if words in one.argv]

    def _kill(self, pids: list[int], signum: int = signal.SIGKILL) -> None:
        for pid in pids:
            send(pid, signum)

    # ---- judgement

    def judge(self, trial: Schedule, run: str, start: str) -> None:
        """Check what must hold."""
        status = self.status(run)
        names = [f"n{number}_{trial.seed}" for number in range(NODES)]
        if status != "done":
            trial.problems.append(f"lost: the run is {status}")
        landed = sorted(landed_subjects(self.repo, start))
        expected = sorted(f"Merge garrison/{run}/{name} into main" for name in names)
        if landed != expected:
            trial.problems.append(f"landed {landed} instead of {expected}")
        verified = self.lab.garrison("verify", run)
        end = time.monotonic() + 60
        while verified.returncode and "is still there" in verified.stdout and time.monotonic() < end:
            time.sleep(1.0)  # the launcher ends after its run
            verified = self.lab.garrison("verify", run)
        if verified.returncode:
            trial.problems.append(f"verify: {verified.stdout[-300:]}{verified.stderr[-300:]}")
        for name in names:
            self._judge_node(trial, run, name)

    def _judge_node(self, trial: Schedule, run: str, name: str) -> None:
        spans = sorted(self.spans(run, name))
        trial.did["successors"] += max(0, len(spans) - 1)
        for (_, last, host), (first, _, successor) in pairwise(spans):
            if first >= last:
                continue
            if host in self.stopped:
                trial.did["overlaps of stopped hosts"] += 1
            else:
                trial.problems.append(f"{name}: {successor} began {last - first:.2f} s before {host} had stopped")

    def spans(self, run: str, name: str) -> Iterator[tuple[float, float, str]]:
        """Yield when each agent of a node started and was last alive, and on which host."""
        for host in self.lab.hosts.values():
            times: dict[str, list[float]] = {}
            for line in (host.home / "agents.jsonl").read_text(errors="replace").splitlines():
                try:
                    body = json.loads(line)
                except ValueError:
                    continue  # cut by a power loss
                if (body["run"], body["node"]) == (run, name):
                    times.setdefault(f"{body['pid']} {body['tree']}", []).append(body["at"])
            for seen in times.values():
                yield min(seen), max(seen), host.name


def _command(pid: int) -> str:
    found = read_process(pid)
    return found.argv if found else ""


def main() -> int:
    """Run the schedules; return 1 if one of them found something."""
    parser = make_parser("python tests/hosts_storm.py", __doc__, "1..5", minutes=math.inf)
    parser.add_argument("--long", action="store_true", help="A stopped server stays so for a minute.")
    parser.add_argument("--lease", type=float, default=5.0, help="Longer on a machine that others keep busy.")
    options = parser.parse_args()
    if why := find_hindrance():
        print(f"not here: {why}")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which removes the laboratory
    folder = Path(tempfile.mkdtemp(prefix="hosts-storm-"))
    with HostsLab(folder, disk="1g") as lab:
        storm = Storm(lab, lambda text: print(text, flush=True))
        storm.set_up(lease=options.lease)
        code = play_all("python tests/hosts_storm.py", options.seeds,
                        lambda seed, _: Schedule(storm, seed, options.long), minutes=options.minutes)
    if not (options.keep and code):
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
