"""A storm over a real run: random signals to random processes, a full disk, a reboot; then everything is counted.

    .venv/bin/python tests/storm.py [--nodes 30] [--seconds 60] [--seed 1] [--repo DIR] [--keep]

The rule of this room: what is done to the run is drawn from the seed, what it did is judged by `support.Place`, which
asks no garrison code. The home lies on a small disk of its own (a tmpfs in a mount namespace, where that is allowed),
so that filling it harms nobody. A reboot is: everything killed at once, and another boot id for who comes after.
Exit code 0: every node landed once, tested, by work that was not done twice; nothing is left, each respawn explained.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from explained import check_explained
from support import PROGRAM, Node, Place, Process, git, load, make_repository, wait_for

SIGNALS = (*[signal.SIGKILL] * 8, *[signal.SIGSTOP] * 3, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGSEGV,
           signal.SIGABRT, signal.SIGPIPE)
TIMING = {"GARRISON_BEAT_TIMEOUT": "4", "GARRISON_RESTART_WINDOW": "3", "GARRISON_HEALTHY_AFTER": "1",
          "GARRISON_RESCAN": "0.5", "GARRISON_PROBE_AFTER": "2", "GARRISON_SPAWN_DEADLINE": "20"}
"""Impatient, so that a minute of storm shows what hours of life would."""
RUN = "storm"


class Storm:
    """One run in bad weather."""

    def __init__(self, place: Place, dice: random.Random, enter: list[str]) -> None:
        self.place, self.dice, self.enter = place, dice, enter
        self.did: Counter[str] = Counter()
        self.boots = 0
        self.stopped: dict[int, tuple[int, float]] = {}
        """pid → its start ticks, and when it is let go on."""
        self.log = (place.root / "storm.log").open("a", buffering=1)

    def garrison(self, *words: object) -> subprocess.Popen[bytes]:
        """Start a command where the home is mounted, and leave it to itself."""
        with (self.place.root / "out").open("ab") as output:
            child = subprocess.Popen([*self.enter, *PROGRAM, *map(str, words)], env=self.place.env, cwd="/",
                                     stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.place.started.append(child)
        return child

    def blow(self, seconds: float) -> None:
        """Something bad about twice a second; whoever looks after the machine calls `garrison up` now and then."""
        until = time.monotonic() + seconds
        full, reboot = until - seconds * 0.6, until - seconds * 0.3
        asked = time.monotonic()
        while time.monotonic() < until and not self.over():
            time.sleep(self.dice.uniform(0.1, 0.8))
            self.strike()
            self.let_go()
            if full and time.monotonic() > full:
                full = 0.0
                self.fill_disk()
            if reboot and time.monotonic() > reboot:
                reboot = 0.0
                self.reboot()
            if time.monotonic() - asked > 4:
                asked = time.monotonic()
                self.garrison("up")

    def strike(self) -> None:
        """One signal to one process of the run."""
        victims = self.victims()
        if not victims:
            return
        victim, number = self.dice.choice(victims), self.dice.choice(SIGNALS)
        self.note(f"{number.name} {victim.pid} {victim.environ.get('GARRISON_LIFE', '').rpartition(':')[2]} "
                  f"{victim.argv[-90:]}")
        self.did[number.name] += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, number)
        if number == signal.SIGSTOP and self.dice.random() < 0.5:
            self.stopped[victim.pid] = (victim.ticks, time.monotonic() + self.dice.uniform(0.2, 8.0))

    def victims(self) -> list[Process]:
        """Everything of the run, and nothing of ours that only watches."""
        return [one for one in self.place.mine() if f":{RUN}:" in one.environ.get("GARRISON_LIFE", "")
                or " tmux " in f" {one.argv} "]

    def let_go(self) -> None:
        """SIGCONT for those that were only held up."""
        for pid, (ticks, at) in list(self.stopped.items()):
            if time.monotonic() > at:
                del self.stopped[pid]
                if any(one.ticks == ticks for one in self.place.mine() if one.pid == pid):
                    os.kill(pid, signal.SIGCONT)

    def fill_disk(self) -> None:
        """The home has no room for two seconds; only where it has a disk of its own."""
        if not self.enter:
            return
        self.note("the disk is full")
        self.did["full disk"] += 1
        ballast = self.place.home / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        time.sleep(2.0)
        ballast.unlink()
        self.note("the disk has room again")

    def reboot(self) -> None:
        """Everything dies at once, and the machine that comes back has another boot id."""
        self.note("reboot")
        self.did["reboot"] += 1
        until = time.monotonic() + 20
        while (found := [one for one in self.place.mine() if not one.argv.startswith("unshare")
                         and "sleep 100000" not in one.argv]) and time.monotonic() < until:
            for one in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            for child in self.place.started:
                child.poll()
        self.boots += 1
        self.place.env["GARRISON_BOOT_ID"] = f"00000000-0000-4000-8000-{self.boots:012d}"
        self.garrison("up")

    def over(self) -> bool:
        """Whether the run is done."""
        with contextlib.suppress(ValueError, OSError):
            return self.place.status(RUN) == "done"
        return False

    def calm(self, seconds: float) -> bool:
        """No more harm; a person resumes what was stopped or given up, until the run is done. Whether it is."""
        self.note("calm")
        for pid in list(self.stopped):
            self.stopped[pid] = (self.stopped[pid][0], 0.0)
        self.let_go()
        until = time.monotonic() + seconds
        while not (self.over() and not self.victims()):
            if time.monotonic() > until or self.place.status(RUN) == "failed":
                return False
            self.garrison("up").wait()
            launcher = self.place.identity("launch", RUN)
            if self.place.status(RUN) in ("stopped", "failed") or launcher.get("status") == "terminated":
                self.garrison("launch", "--resume", RUN)
            time.sleep(2.0)
        return True

    def note(self, text: str) -> None:
        """A line for whoever looks into it later."""
        self.log.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}\n")

    # ------------------------------------------------------------------------------------------------ judging

    def judge(self, names: list[str]) -> list[str]:
        """What is wrong; [] if nothing is."""
        place, wrong = self.place, []
        for what, check in {
            "landed": lambda: place.check_landed(*names, run=RUN),
            "worked": lambda: self._worked(names),
            "explained": lambda: check_explained(place.home, RUN),
            "left": lambda: place.check_left(RUN),
            "traceback": self._quiet,
        }.items():
            try:
                check()
            except AssertionError as error:
                wrong.append(f"{what}: {str(error)[:2000]}")
        left = [f"{one.pid} {one.argv[-120:]} {one.environ.get('GARRISON_LIFE', '')}" for one in place.mine()
                if "sleep 100000" not in one.argv]
        return [*wrong, *(f"left: {line}" for line in left)]

    def _worked(self, names: list[str]) -> None:
        """No life brought its work to an end twice, and none after the result that counts."""
        worked = self.place.worked(RUN)
        assert len(worked) == len(set(worked)), [one for one, times in Counter(worked).items() if times > 1]
        for name in names:
            attempt = int(self.place.nodes(RUN)[name]["attempt"])
            result = load(self.place.home / "runs" / RUN / "nodes" / name / str(attempt) / "result.json")
            lives = [life for node, which, life in worked if (node, which) == (name, attempt)]
            assert lives, f"{name} landed without work"
            assert max(lives) <= result["incarnation"], f"{name} worked after its result"

    def _quiet(self) -> None:
        assert "Traceback" not in self.place.told(), self.place.told()[-3000:]


@contextlib.contextmanager
def small_disk(place: Place, megabytes: int) -> Iterator[list[str]]:
    """How to enter the namespace in which the home is a disk of its own; [] where that is not allowed."""
    place.home.mkdir()
    mount = f"mount -t tmpfs -o size={megabytes}m tmpfs {place.home} && touch {place.root}/mounted && exec sleep 100000"
    keeper = subprocess.Popen(["unshare", "-m", "sh", "-c", mount], stderr=subprocess.DEVNULL, cwd="/")
    wait_for("a mount or none", lambda: (place.root / "mounted").exists() or keeper.poll() is not None)
    if keeper.poll() is not None:
        print("no disk of its own can be mounted here: the disk is not filled")
        yield []
        return
    place.home = Path(f"/proc/{keeper.pid}/root{place.home}")
    try:
        yield ["nsenter", "-t", str(keeper.pid), "-m", f"--wd={place.root}"]
    finally:
        keeper.kill()
        keeper.wait()


def nodes(count: int, dice: random.Random) -> list[Node]:
    """A graph of that many nodes, each after some of the earlier ones, each at work for a while."""
    names = [f"n{number:02d}" for number in range(count)]
    return [Node(name, after=tuple(sorted(dice.sample(names[max(0, at - 6):at], min(at, dice.randint(0, 2))))),
                 before=f"sleep {dice.uniform(0.1, 1.5):.2f}", then="sleep 0.1") for at, name in enumerate(names)]


def main() -> int:
    """Launch, storm, calm, judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the storm lasts")
    parser.add_argument("--calm", type=float, default=300.0, help="how long the run may take afterwards")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--terminal", default="auto", choices=("auto", "tmux", "process"))
    parser.add_argument("--repo", type=Path, help="a repository to clone (default: a small one is made)")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="garrison-storm-"))
    if options.repo:
        git(Path("/"), "clone", "-q", "--no-local", str(options.repo.resolve()), str(root / "repo"))
        git(root / "repo", "checkout", "-qB", "main")
        (root / "repo" / ".git" / "config").open("a").write("[user]\n\tname = A User\n\temail = user@example.org\n")
    else:
        make_repository(root / "repo")
    place = Place(root, env=dict(TIMING))
    dice = random.Random(options.seed)
    with small_disk(place, 64) as enter:
        storm = Storm(place, dice, enter)
        graph = place.graph(*nodes(options.nodes, dice))
        storm.garrison(*place.launch_arguments(graph, RUN, "--max-agents", options.agents, "--max-respawn", 1000,
                                               "--terminal", options.terminal,
                                               gate='git rev-parse "HEAD^{tree}" >> "$WITNESS"'))
        began = time.monotonic()
        wait_for("the run begins", lambda: place.status(RUN) == "running")
        storm.blow(options.seconds)
        done = storm.calm(options.calm)
        took = time.monotonic() - began
        names = [f"n{number:02d}" for number in range(options.nodes)]
        wrong = storm.judge(names) if done else [f"not done: {place.status(RUN)}", place.told()[-4000:]]
        deaths = sum(map(len, place.deaths(RUN).values()))
        left = place.leave() if not wrong else []
        print(f"seed {options.seed}: {options.nodes} nodes in {took:.0f} s; "
              f"{', '.join(f'{count} {name}' for name, count in sorted(storm.did.items()))}; {deaths} deaths counted; "
              f"{len(wrong)} wrong")
        print("\n".join(wrong[:20]))
        if wrong or left:
            place.leave()
            if enter:
                shutil.copytree(place.home, root / "home-kept", symlinks=True, ignore_dangling_symlinks=True)
    if not options.keep and not wrong:
        shutil.rmtree(root, ignore_errors=True)
    else:
        print(f"kept: {root} (storm.log: what was done; out: what garrison said)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
