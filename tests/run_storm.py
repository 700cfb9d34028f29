"""A storm over a real run: random signals to random processes, a full disk, a reboot; then everything is counted.

    scripts/chaos [--nodes 30] [--seconds 60] [--seeds 1..20] [--terminal tmux] [--timing default] [--repo D]
                  [--crew mixed]

The rule of this room: what is done to the run is drawn from the seed, what it did is judged by `support.Place`, which
asks no garrison code. Home, repository and trees lie on small disks of their own (tmpfs in a mount namespace, where
that is allowed), so that filling them harms no one. A reboot is: everything killed at once, and another boot id for who
comes after. Each life of an agent leaves a file uncommitted before it works: none of them may be lost.
Exit code 0: every node landed once, tested, by work that was not done twice; nothing is left, each respawn explained.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from storm import TIMING, Weather, make_parser, play_all, send
from support import (
    PROGRAM,
    PYTHON,
    Node,
    Place,
    check_explanations,
    check_promises,
    clone_or_make,
    git,
    load,
    wait_for,
)

RUN = "storm"


class Storm(Weather):
    """One disturbed run."""

    def __init__(self, place: Place, dice: random.Random, enter: list[str], *, patient: bool = False) -> None:
        super().__init__(place, dice)
        self.enter, self.patient = enter, patient
        self.doubled: Counter[str] = Counter()
        """Two incarnations of a name at once → number of scans in a row."""
        self.boots = 0

    def garrison(self, *words: object) -> subprocess.Popen[bytes]:
        """Start a command where the home is mounted, and leave it to itself."""
        with (self.place.root / "out").open("ab") as output:
            child = subprocess.Popen([*self.enter, *PROGRAM, *map(str, words)], env=self.place.env, cwd="/",
                                     stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.place.started.append(child)
        return child

    def blow(self, seconds: float) -> None:
        """Disturb about twice a second; a timer calls `garrison up` now and then."""
        until = time.monotonic() + seconds
        due = [(until - seconds * part, act) for part, act in (
            (0.8, lambda: self.fill_disk("home")), (0.55, lambda: self.fill_disk("work")), (0.35, self.reboot),
            (0.15, lambda: self.fill_disk("home", "work", reboot=self.dice.random() < 0.5)))]
        asked = time.monotonic()
        while time.monotonic() < until and not self.over():
            time.sleep(self.dice.uniform(0.1, 0.8))
            self.strike()
            self.let_go()
            self.look_for_doubles()
            if due and time.monotonic() > due[0][0]:
                due.pop(0)[1]()
            if time.monotonic() - asked > 4:
                asked = time.monotonic()
                self.garrison("up")

    def look_for_doubles(self) -> None:
        """Find two incarnations of one name at work for longer than a replacement takes."""
        lives: dict[str, set[str]] = {}
        for one in self.victims():
            if "garrison.processes.main" in one.argv:
                stem, _, life = one.environ["GARRISON_LIFE"].rpartition(":")[2].partition("#")
                lives.setdefault(stem, set()).add(life)
        seen = {f"{stem} {' and '.join(sorted(found))}" for stem, found in lives.items() if len(found) > 1}
        self.doubled = Counter({name: self.doubled[name] + 1 for name in seen})
        self.wrong += [f"doubled: {name}" for name, looks in self.doubled.items() if looks == 15]

    def fill_disk(self, *disks: str, reboot: bool = False) -> None:
        """Fill the disks of home, or of repository and worktrees, for two seconds, where they have their own."""
        if not self.enter:
            return
        self.note(f"no room: {', '.join(disks)}")
        self.did["full disk"] += 1
        ballasts = [(self.place.home if disk == "home" else self.place.trees) / "ballast" for disk in disks]
        for ballast, size in itertools.product(ballasts, (65536, 512)):
            with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                while file.write(b"x" * size) == size:
                    pass
        for _ in range(4):
            time.sleep(0.5)
            self.strike()
        if reboot:
            self.reboot()
            time.sleep(1.0)
        for ballast in ballasts:
            ballast.unlink()
        self.note("room again")

    def reboot(self) -> None:
        """Kill everything at once, and continue with another boot id."""
        self.note("reboot")
        self.did["reboot"] += 1
        until = time.monotonic() + 20
        while (found := [one for one in self.place.living_processes() if not one.argv.startswith("unshare")
                         and "sleep 100000" not in one.argv]) and time.monotonic() < until:
            for one in found:
                send(one.pid, signal.SIGKILL)
            for child in self.place.started:
                child.poll()
        self.boots += 1
        self.place.env["GARRISON_BOOT_ID"] = f"00000000-0000-4000-8000-{self.boots:012d}"
        self.garrison("up")

    def over(self) -> bool:
        """Return whether the run is done."""
        with contextlib.suppress(ValueError, OSError):
            return self.place.status(RUN) == "done"
        return False

    def calm(self, seconds: float) -> bool:
        """Let the run end undisturbed: unpark what was parked and resume what was stopped or failed, as a user does.
        Return whether the run is done."""
        self.note("calm")
        self.let_go(at_once=True)
        if self.patient:  # rather than wait five minutes until a stopped process counts as hung
            for one in self.victims():
                send(one.pid, signal.SIGCONT)
        until = time.monotonic() + seconds
        while not self.is_settled():
            if time.monotonic() > until:
                return False
            self.garrison("up").wait()
            self.unpark()
            has_ended = self.place.identity("launch", RUN).get("status") == "terminated"
            if not self.over() and (has_ended or self.place.status(RUN) in ("stopped", "failed")):
                self.did["resume"] += 1
                self.garrison("resume", RUN)
            time.sleep(2.0)
        return True

    def is_settled(self) -> bool:
        """Return whether the run is done, and no command of ours can still start a launcher, which tidies up."""
        is_quiet = not self.victims() and all(child.poll() is not None for child in self.place.started)
        return is_quiet and self.over() and self.place.identity("launch", RUN).get("status") == "terminated"

    def unpark(self) -> None:
        """Unpark each node, and the processor, that `garrison status` shows as parked."""
        if not self.patient or self.over():
            return
        stuck = {path.name.partition("@")[0].partition("-") for path in (self.place.home / "identities").glob("*.json")
                 if load(path).get("status") == "parked"}
        for role, _, name in sorted(stuck):
            if role in ("runner", "orchestrator", "processor"):
                self.did["unpark"] += 1
                self.garrison("agents", "unpark", name if role != "processor" else "processor").wait()

    # ------------------------------------------------------------------------------------------------ judging

    def judge(self, names: list[str]) -> list[str]:
        """Return what is wrong; [] if nothing is."""
        place, wrong = self.place, list(self.wrong)
        for what, check in {
            "landed": lambda: place.check_landed(*names, run=RUN),
            "worked": lambda: self._worked(names),
            "lost": self._kept,
            "explained": lambda: check_explanations(place.home, RUN),
            "promised": lambda: check_promises(place.home, RUN, place.repo),
            "left": lambda: place.check_nothing_left(RUN),
            "traceback": self._quiet,
        }.items():
            try:
                check()
            except AssertionError as error:
                wrong.append(f"{what}: {str(error)[:2000]}")
        return [*wrong, *(f"left: {one.pid} {one.argv[-120:]} {one.environ.get('GARRISON_LIFE', '')}"
                          for one in place.living_processes() if "sleep 100000" not in one.argv)]

    def _worked(self, names: list[str]) -> None:
        """Check that no incarnation finished its work twice, and none after the result that counts."""
        worked = self.place.finished_work(RUN)
        assert len(worked) == len(set(worked)), [one for one, times in Counter(worked).items() if times > 1]
        reworked = {name: attempt for name in names if (attempt := self.place.nodes(RUN)[name]["attempt"]) != 1}
        assert not reworked, f"nothing was wrong with the work of {reworked}"
        for name in names:
            attempt = int(self.place.nodes(RUN)[name]["attempt"])
            result = load(self.place.home / "runs" / RUN / "nodes" / name / str(attempt) / "result.json")
            lives = [life for node, which, life in worked if (node, which) == (name, attempt)]
            assert lives, f"{name} landed without work"
            assert max(lives) <= result["incarnation"], f"{name} worked after its result"

    def _kept(self) -> None:
        """Check that what each incarnation wrote is in some commit, though it may have died before it committed."""
        begun = (self.place.root / "begun").read_text().splitlines()
        kept = set(git(self.place.repo, "log", "--branches", "--glob=garrison", "--name-only",
                       "--format=").splitlines())
        lost = [line for line in begun if "{}-life-{}.txt".format(*line.split()) not in kept]
        assert not lost, lost

    def _quiet(self) -> None:
        assert "Traceback" not in self.place.logs(), self.place.logs()[-3000:]


@contextlib.contextmanager
def small_disks(place: Place) -> Iterator[list[str]]:
    """Return the command that enters a namespace with small disks for home, repository and worktrees; [] where that is
    forbidden."""
    work, settings = place.folder / "work", (place.home / "config.toml").read_text()
    for folder in (place.trees, work):
        folder.mkdir(parents=True)
    words = [f"mount -t tmpfs -o size=64m,mode=700 home {place.home}", f"mount -t tmpfs -o size=256m work {work}",
             f"mkdir {work}/trees", f"cp -a {place.repo} {work}/repo", f"mount --bind {work}/repo {place.repo}",
             f"mount --bind {work}/trees {place.trees}", f"touch {place.root}/mounted", "exec sleep 100000"]
    keeper = subprocess.Popen(["unshare", "-m", "sh", "-c", " && ".join(words)], stderr=subprocess.DEVNULL, cwd="/")
    wait_for("a mount or none", lambda: (place.root / "mounted").exists() or keeper.poll() is not None)
    if keeper.poll() is not None:
        print("no disks of its own can be mounted here: none is filled")
        yield []
        return
    inside = Path(f"/proc/{keeper.pid}/root")
    place.home, place.trees, place.repo = (Path(f"{inside}{one}") for one in (place.home, place.trees, place.repo))
    (place.home / "config.toml").write_text(settings)
    try:
        yield ["nsenter", "-t", str(keeper.pid), "-m", f"--wd={place.root}"]
    finally:
        keeper.kill()
        keeper.wait()


AGENT = r"""n=0; e() { [ $1 -le 128 ] || exit $1; n=$((n+1)); [ $n -lt 200 ] || exit 1; sleep 0.1; }
t() { until "$@"; do e $?; done; }
w() { echo "$1" > "$2"; }; c() { git commit -qm "Add NAME" || git diff --quiet HEAD; }
t w x NAME-life-$GARRISON_INCARNATION.txt; echo "NAME $GARRISON_INCARNATION" >> "$BEGUN"; sleep PAUSE
t w NAME NAME-$GARRISON_RUN.txt; t git add -A; t c; sleep 0.1
echo "$GARRISON_RUN NAME $GARRISON_ATTEMPT $GARRISON_INCARNATION" >> "$LEDGER"
"""
"""Agent that waits for space on a full disk, and dies when its tool is killed by a signal."""


CREW = ("command", "scripted", "acp", "stream")
"""Agents of a mixed crew, in turn: a node's own command; the scripted agent; the double of an ACP agent, whose session
is resumed; and a program that prints a stream as `claude -p` does, whose session is also resumed."""
BLOCK = '```garrison-result\n{"status": "success", "summary": "done"}\n```'
_SAID = {"begin": {"type": "system", "subtype": "init", "session_id": "storm", "model": "double"},
         "end": {"type": "result", "subtype": "success", "is_error": False, "result": "done", "session_id": "storm"}}
ONCE = 'if grep -qsx "$GARRISON_RUN NAME $GARRISON_ATTEMPT $GARRISON_INCARNATION" "$LEDGER"; then exit 0; fi; '
"""An agent whose session is resumed knows what it has done: it does not do it twice in one incarnation."""


def nodes(count: int, dice: random.Random, crew: Sequence[str] = CREW[:1]) -> list[Node]:
    """Return a graph of that many nodes, each after some of the earlier ones, each at work for a while."""
    names = [f"n{number:02d}" for number in range(count)]
    made = []
    for at, name in enumerate(names):
        after = tuple(sorted(dice.sample(names[max(0, at - 6):at], min(at, dice.randint(0, 2)))))
        acceptance = f'acceptance="sleep 0.2 && test -f {name}-{RUN}.txt"' if at % 2 else ""
        pause, agent = f"{dice.uniform(0.1, 1.5):.2f}", crew[at % len(crew)]
        chosen = "" if agent == "command" else f'agent={agent}, prompt="Make {name}."'
        made.append(Node(name, after=after, attributes=", ".join(filter(None, (acceptance, chosen))),
                         command=_task(name, pause) if agent == "command" else ""))
    return made


def _task(name: str, pause: str) -> str:
    return AGENT.strip().replace("\n", "; ").replace("NAME", name).replace("PAUSE", pause)


def enlist(place: Place, count: int) -> list[str]:
    """Write what the agents of a mixed crew need into the home; return the options of the launch."""
    task = ONCE.replace("NAME", "$GARRISON_NODE") + _task("$GARRISON_NODE", "0.7").replace(" $GARRISON_NODE NAME", "")
    play, stream = place.root / "acp.json", place.root / "stream.sh"
    play.write_text(json.dumps({"turns": [[{"run": task, "must": True}, {"say": BLOCK}]]}))
    begin, end = (json.dumps(said) for said in _SAID.values())
    stream.write_text(f"echo '{begin}'; ( {task} ) || exit $?; echo '{end}'\n")
    scripts = place.root / "scripts"
    scripts.mkdir()
    for number in range(count):
        (scripts / f"n{number:02d}.yaml").write_text(json.dumps([{"run": f"( {task} ) || kill -9 $PPID"}]))
    double = [PYTHON, "-P", "-m", "garrison.testing.acp_agent", str(play)]
    words = ["/bin/sh", str(stream)]
    place.configure(
        f'[agents.acp]\nkind = "acp"\nargv = {json.dumps(double)}\nstale = 20\n'
        f'[agents.stream]\nargv = {json.dumps(words)}\nresume_argv = {json.dumps([*words, "{session}"])}\n'
        'stream = "claude"\n')
    place.env["GARRISON_SCRIPTS"] = str(scripts)
    return ["--env", "GARRISON_SCRIPTS"]


@dataclass
class Trial:
    """The storm of one seed."""

    options: argparse.Namespace
    seed: int
    root: Path
    did: Counter[str] = field(default_factory=Counter)

    def play(self) -> list[str]:
        """Launch, disturb, calm and check."""
        options, root = self.options, self.root
        clone_or_make(options.repo, root)
        patient = options.timing == "default"
        place = Place(root, env={} if patient else dict(TIMING), terminal=options.terminal)
        place.env["BEGUN"] = str(place.root / "begun")
        dice, repo = random.Random(self.seed), place.repo
        with small_disks(place) as enter:
            storm = Storm(place, dice, enter, patient=patient)
            crew = CREW if options.crew == "mixed" else CREW[:1]
            more = enlist(place, options.nodes) if len(crew) > 1 else []
            graph = place.graph(*nodes(options.nodes, dice, crew))
            storm.garrison(*place.launch_arguments(
                graph, RUN, "--max-agents", options.agents, "--max-respawn", 1000, "--env", "BEGUN", *more, repo=repo,
                gate='sleep 0.3 && git rev-parse "HEAD^{tree}" >> "$WITNESS"'))
            wait_for("the run begins", lambda: place.status(RUN) == "running")
            storm.blow(options.seconds)
            done = storm.calm(options.calm)
            names = [f"n{number:02d}" for number in range(options.nodes)]
            wrong = storm.judge(names) if done else [f"not done: {place.status(RUN)}", *storm.wrong,
                                                     place.logs()[-4000:]]
            self.did = storm.did + Counter({"deaths counted": sum(map(len, place.deaths(RUN).values()))})
            place.kill_rest()
            if wrong and enter:  # what lies on the small disks goes with them
                shutil.copytree(place.home, root / "home-kept", symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
                shutil.copytree(place.repo, root / "repo-kept", symlinks=True, ignore_dangling_symlinks=True)
        return wrong


def main() -> int:
    """Run the storms that the options ask for; return 1 if any found something wrong."""
    parser = make_parser("scripts/chaos", __doc__)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the storm lasts")
    parser.add_argument("--calm", type=float, default=300.0, help="how long the run may take afterwards")
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--terminal", default="auto", choices=("auto", "tmux", "process"))
    parser.add_argument("--timing", default="impatient", choices=("impatient", "default"),
                        help="default: people's limits (window 600 s, 5 restarts); a person then lifts what was parked")
    parser.add_argument("--crew", default="command", choices=("command", "mixed"),
                        help=f"mixed: the nodes are done in turn by {', '.join(CREW)}")
    parser.add_argument("--repo", type=Path, help="a repository to clone (default: a small one is made)")
    options = parser.parse_args()
    again = (f"scripts/chaos --nodes {options.nodes} --seconds {options.seconds:g} --agents {options.agents} "
             f"--terminal {options.terminal} --timing {options.timing} --crew {options.crew}")
    return play_all(again + (f" --repo {options.repo}" if options.repo else ""), options.seeds,
                    partial(Trial, options), keep=options.keep)


if __name__ == "__main__":
    sys.exit(main())
