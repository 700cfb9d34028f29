"""Damage test: kill a run half-way, damage two of its youngest files, resume it, and check what landed.

    python -m tests.damage [--seeds 1..200] [--jobs 2] [--keep]

A power cut or a full disk damages what was written last. From the seed follow the moment at which all is killed, which
two of the `YOUNGEST` files are damaged (records, hooks, signals, journals, launch.json, results, the queue, loose
objects of candidates) and in which of `WAYS`. Then `garrison resume` or `garrison up` must end the run: each node
landed once, with its own work, on a tree that the gate passed; nothing is left over. A quarter of the seeds damage one
file under the living run instead, and resume it only if it does not end by itself. In two of five the run lands as a
whole (land=run: two queues, and a landing of its own in the journal); in two of five a user has to approve two nodes,
and no work of theirs may land that was not approved.
Exit code 0: that was so for all seeds.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from garrison.merge.entry import MergeEntry
from garrison.merge.queue import list_queues
from garrison.values import replace
from storm import make_parser, play_all
from support import Node, Place, checkout_in, git, make_repository, wait_for

YOUNGEST = 12
"""Files to choose from."""
ROUNDS = 3
"""Resumes after which the run must have ended: a process whose files are damaged while it starts may die of it."""
SECONDS = 300.0
"""Seconds after which a run that has not ended stands still."""
RUN = "r1"
BRANCH = f"garrison/{RUN}/integration"
REVIEWED = ("b", "d")
"""Nodes that have to be approved, if any have."""
REVIEW_SECONDS = 0.3
"""Seconds between two looks of the user who approves."""
TIMING = {"GARRISON_RESCAN": "0.3", "GARRISON_DAMAGE_PATIENCE": "0.5", "GARRISON_RESTART_WINDOW": "3",
          "GARRISON_PROBE_AFTER": "1", "GARRISON_SPAWN_DEADLINE": "20"}


def _flip(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(max(1, len(data)))
    return data[:at] + bytes([(data[at] if data else 0) ^ dice.randrange(1, 256)]) + data[at + 1:]


WAYS: dict[str, Callable[[bytes, bytes | None, random.Random], bytes | None]] = {
    "empty": lambda data, old, dice: b"",
    "truncated": lambda data, old, dice: data[:dice.randrange(max(1, len(data)))],
    "flipped": lambda data, old, dice: _flip(data, dice),
    "zeros": lambda data, old, dice: bytes(len(data)),
    "deleted": lambda data, old, dice: None,
    "old": lambda data, old, dice: old,
}
"""Way → what becomes of the bytes; None: the file is gone. `old`: bytes that the file had before, None: it was new."""


class Watched:
    """Files of a living run, with the bytes that each had before its last change."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.now: dict[Path, tuple[int, bytes]] = {}
        self.before: dict[Path, bytes] = {}

    def look(self) -> None:
        """Read what has changed since the last look."""
        for path in records(self.place):
            with contextlib.suppress(OSError):
                stamp = path.stat().st_mtime_ns
                known = self.now.get(path)
                if known is None or known[0] != stamp:
                    if known is not None:
                        self.before[path] = known[1]
                    self.now[path] = (stamp, path.read_bytes())

    def old(self, path: Path) -> bytes | None:
        """Return an earlier content of a file, None if it had none."""
        if path.suffix == ".jsonl" and path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            return b"".join(lines[:-1]) if len(lines) > 1 else None
        return self.before.get(path)


def records(place: Place) -> list[Path]:
    """Return the records of a home: everything that a process writes and reads again."""
    patterns = ("identities/*.json", "hooks/*.json", "signals/*/*.json", "signals/*/taken/*.json", "runs/*/launch.json",
                "runs/*/graph.dot", "runs/*/journal.jsonl", "runs/*/layers/*.jsonl", "runs/*/runners/*.json",
                "runs/*/nodes/*/*/*.json", "runs/*/nodes/*/*/prompt.md", "merge-queue/*/*/journal.jsonl",
                "merge-queue/*/*/tests/*/*", "run/plain/*.json")
    found: list[Path] = []
    for pattern in patterns:
        with contextlib.suppress(FileNotFoundError):  # a living process has just removed a folder
            found += [path for path in place.home.glob(pattern) if path.is_file()]
    return found


def candidate_objects(place: Place) -> list[Path]:
    """Return the loose objects that only candidates of the queue need."""
    tips = git(place.repo, "for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    wanted = [line.split()[0] for line in tips if line.endswith("/candidate")]
    others = [f"^{line.split()[0]}" for line in tips if not line.endswith("/candidate")]
    names = git(place.repo, "rev-list", "--objects", *wanted, *others, check=False) if wanted else ""
    folder = place.repo / ".git/objects"
    paths = [folder / name[:2] / name[2:40] for name in names.splitlines()]
    return [path for path in paths if path.exists()]


def youngest(place: Place) -> list[Path]:
    """Return the files that were written last, the youngest first."""
    found = []
    for path in (*records(place), *candidate_objects(place)):
        with contextlib.suppress(FileNotFoundError):  # a living process has just moved it
            found.append((-path.stat().st_mtime_ns, str(path), path))
    return [path for *_, path in sorted(found)][:YOUNGEST]


def damage(path: Path, way: str, old: bytes | None, dice: random.Random) -> None:
    data = WAYS[way](path.read_bytes(), old, dice)
    path.chmod(0o600)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


NODES = (Node("a", then="sleep 0.3"),
         Node("b", before="sleep 0.3", attributes='acceptance="sleep 0.2; test -f calc.py"'),
         Node("c", after=("a",), before="sleep 0.2", attributes='acceptance="test $GARRISON_ATTEMPT -gt 1"'),
         Node("d", after=("a", "b")))
GATE = 'sleep 0.4; git rev-parse "HEAD^{tree}" >> "$WITNESS"; test -f calc.py'


@dataclass(frozen=True)
class Landing:
    """How the work of a trial lands."""

    is_whole: bool = False
    """The run lands as a whole (land=run)."""
    is_reviewed: bool = False
    """Two nodes have to be approved."""
    is_late: bool = False
    """They are approved only after the damage."""

    @staticmethod
    def draw(seed: int) -> Landing:
        dice = random.Random(f"landing of {seed}")
        return Landing(dice.random() < 0.4, dice.random() < 0.4, dice.random() < 0.5)

    def nodes(self) -> list[Node]:
        return [replace(node, attributes=", ".join(filter(None, (node.attributes, "approve=true"))))
                if self.is_reviewed and node.name in REVIEWED else node for node in NODES]


class Trial:
    """One seed; `damages` are (pattern in the home, way), instead of those that follow from it, as is `landing`."""

    def __init__(self, root: Path, seed: int, damages: Sequence[tuple[str, str]] = (),
                 landing: Landing | None = None) -> None:
        self.dice, self.seed, self.damages = random.Random(seed), seed, damages
        self.landing = landing or (Landing() if damages else Landing.draw(seed))
        make_repository(checkout_in(root))
        self.place = Place(root, env=dict(TIMING))
        self.did = Counter(name for name, has in (("land=run", self.landing.is_whole),
                                                  ("approve", self.landing.is_reviewed)) if has)
        self.approved: set[str] = set()
        self._next_look = 0.0

    def play(self) -> list[str]:
        """Run, kill, damage, resume, check; AssertionError says what was wrong."""
        try:
            self._play()
        finally:
            self.place.kill_all()
        return []

    def _play(self) -> None:
        place, dice = self.place, self.dice
        is_living = dice.random() < 0.25 and not self.damages
        records_wanted = dice.randrange(2, 42) if not self.damages else 16
        watched = Watched(place)
        graph = place.graph(*self.landing.nodes(), attributes="land=run;" if self.landing.is_whole else "")
        child = place.launch(graph, RUN, "--max-agents", "3", gate=GATE)

        def is_due() -> bool:
            watched.look()
            path = place.home / "runs" / RUN / "journal.jsonl"
            count = path.read_bytes().count(b"\n") if path.exists() else 0
            return count >= records_wanted or child.poll() is not None or self._is_held_up()

        wait_for("the run gets so far", is_due, SECONDS)
        if not is_living:
            place.kill_all()
        watched.look()
        self._damage(watched, 1 if is_living else 2)
        if is_living:
            self.did[f"ended with {self._end_of(child)}"] += 1
        self._resume()
        self._check()

    def _damage(self, watched: Watched, count: int) -> None:
        found = youngest(self.place)
        chosen = [(path, self.dice.choice(list(WAYS))) for path in self.dice.sample(found, min(count, len(found)))]
        if self.damages:
            chosen = [(path, way) for pattern, way in self.damages for path in self.place.home.glob(pattern)]
        for path, drawn in chosen:
            way = "deleted" if drawn == "old" and watched.old(path) is None else drawn
            self.did[f"{way} {path.relative_to(self.place.folder)}"] += 1
            with contextlib.suppress(FileNotFoundError):
                damage(path, way, watched.old(path), self.dice)

    def _resume(self) -> None:
        """Resume until the run is done."""
        for _ in range(ROUNDS):
            if self._status() == "done" and not self._launcher_lives():
                return
            if self.dice.random() < 0.5 and self.place.command("up").stdout.strip():
                self.did["up"] += 1
                self._wait_for("the launcher ends", lambda: not self._launcher_lives())
                continue
            self.did[f"resume: {self._end_of(self.place.resume(RUN))}"] += 1

    def _end_of(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a launcher; return its exit code."""
        self._wait_for("the run ends", lambda: child.poll() is not None)
        return int(child.returncode)

    def _wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition, approving what waits for approval; AssertionError if the run stands still."""
        try:
            wait_for(what, lambda: condition() or self._approve(), SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.place.logs()[-8000:]}") from None

    def _is_held_up(self) -> bool:
        """Approve what waits for it, unless that is to come after the damage: then return whether any waits."""
        if self.landing.is_late:
            return bool(self._awaiting())
        return self._approve()

    def _approve(self) -> bool:
        """Approve what waits for it, now and then; return False, as there is more to wait for."""
        if time.monotonic() >= self._next_look:
            for entry in self._awaiting():
                words = ("review", entry.node, "--run", RUN, "--approve")
                if self.place.command(*words).returncode == 0:  # else its queue is damaged, or is just being rebuilt
                    self.approved.add(entry.id)
            self._next_look = time.monotonic() + REVIEW_SECONDS
        return False

    def _awaiting(self) -> list[MergeEntry]:
        if not self.landing.is_reviewed:
            return []
        return [entry for entry in self._entries() if entry.awaits_approval]

    def _entries(self) -> list[MergeEntry]:
        """Return the entries of all queues whose journals can be read."""
        with contextlib.suppress(OSError):  # it is being replaced
            return [entry for queue in list_queues(self.place.home, lambda _: None)
                    for entry in queue.state.entries.values()]
        return []

    def _launcher_lives(self) -> bool:
        return any(" launch --home" in process.argv for process in self.place.living_processes())

    def _status(self) -> str:
        status = ""
        with contextlib.suppress(ValueError, KeyError, OSError):
            for record in self.place.journal(RUN):
                if record["kind"] in ("run", "snapshot"):
                    status = record["data"]["status"]
                if record["kind"] == "signal" and "run" in record["data"]:
                    status = record["data"]["run"]
        return status

    def _check(self) -> None:
        place, names = self.place, [node.name for node in NODES]
        assert self._status() == "done", f"run {self._status()}\n{place.logs()[-8000:]}"
        assert {name: node["status"] for name, node in nodes(place).items()} == dict.fromkeys(names, "validated")
        if self.landing.is_whole:
            self._check_landed_as_a_whole(names)
        else:
            place.check_landed(*names, run=RUN)
        reviewed = {entry.id for entry in self._entries() if entry.status == "landed" and entry.node in REVIEWED}
        assert not self.landing.is_reviewed or reviewed <= self.approved, f"landed unseen: {reviewed - self.approved}"
        left = git(place.repo, "for-each-ref", "--format=%(refname)", f"refs/heads/garrison/{RUN}/")
        assert left == "", f"left: {left}"
        assert not [path for path in place.trees.glob(f"*/{RUN}*") if path.name != "slot-1"], "worktrees are left"
        assert "Traceback" not in place.logs() and "internal error" not in place.logs(), place.logs()[-6000:]
        assert git(place.repo, "fsck", "--connectivity-only", "--no-dangling") == ""
        assert git(place.repo, "status", "--porcelain") == ""
        rest = place.kill_rest()
        assert not rest, rest

    def _check_landed_as_a_whole(self, names: Sequence[str]) -> None:
        """Check that the run landed once, tested, with the work of each node merged once into its branch."""
        repo, start = self.place.repo, self.place.start
        merges = git(repo, "log", "--first-parent", "--format=%s", f"{start}..main").splitlines()
        assert merges == [f"Merge {BRANCH} into main"], merges
        assert git(repo, "rev-parse", "main^{tree}") in self.place.witness.read_text().split(), "landed untested"
        merges = git(repo, "log", "--merges", "--format=%s", f"{start}..main^2").splitlines()
        merges = [subject for subject in merges if f"Merge garrison/{RUN}/" in subject]
        assert sorted(merges) == sorted(f"Merge garrison/{RUN}/{name} into {BRANCH}" for name in names), merges
        for name in names:
            assert git(repo, "show", f"main:{name}-{RUN}.txt") == name, f"the work of {name} is not right on main"


def nodes(place: Place) -> dict[str, dict[str, Any]]:
    """Return node → its last change in the run's journal; a rebuilt journal starts with a snapshot."""
    found: dict[str, dict[str, Any]] = {}
    for record in place.journal(RUN):
        if record["kind"] == "snapshot":
            found = dict(record["data"]["nodes"])
    return found | place.nodes(RUN)


def main() -> int:
    """Play the seeds that the options ask for; return 1 if any found something wrong."""
    parser = make_parser("python -m tests.damage", __doc__, "1..200")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    options = parser.parse_args()
    return play_all("python -m tests.damage", options.seeds, lambda seed, root: Trial(root, seed), keep=options.keep,
                    jobs=options.jobs)


if __name__ == "__main__":
    sys.exit(main())
