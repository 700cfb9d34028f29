"""One hostile agent among nine honest ones. The nine must land, and nothing else may happen.

    python -m tests.hostile.storm [--seeds 1..5] [--in bubblewrap]

The hostile agent tries all cases in an order drawn from the seed, again and again, while the nine work; then it sets
one trap and ends. Exit code 0: the nine landed once each with their own work, and the user's files, programs, refs,
hooks and configuration are as before.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile import enclosure
from hostile.aftermath import TRAPS, escapes_shown, settings_of, told
from hostile.cases import CASES
from hostile.trial import world_of
from hostile.world import HONEST, HOSTILE, RUN, Confinement, World, describe_change, why_impossible
from storm import make_parser, play_all
from support import Node, check_promises, landed_subjects, wait_for

LONGEST = 240.0
"""Seconds for the nine to land while the tenth attacks."""
FINAL = ("validated", "failed")


def honest_nodes(dice: random.Random) -> list[Node]:
    """Return the nine: some after others, each at work for a while, every second one with an acceptance."""
    names = [HONEST, *(f"n{number}" for number in range(2, 10))]
    nodes = []
    for at, name in enumerate(names):
        pauses = [f"{dice.uniform(0.1, 1.5):.2f}" for _ in range(2)]
        command = (f"set -e; sleep {pauses[0]}; for part in 1 2 3; do echo $part >> {name}-{RUN}.txt; git add -A; "
                   f"git commit -qm \"Part $part\"; sleep {pauses[1]}; done; echo {name} > {name}-{RUN}.txt; "
                   "git stash -q; git stash pop -q; git add -A; git commit -qm Last")
        after = tuple(dice.sample(names[max(0, at - 3):at], min(at, dice.randint(0, 1))))
        nodes.append(Node(name, after=after, command=command,
                          attributes=f'acceptance="test -f {name}-{RUN}.txt"' if at % 2 else ""))
    return nodes


@dataclass
class Storm:
    """The storm of one seed."""

    confinement: Confinement
    seed: int
    did: Counter[str] = field(default_factory=Counter)

    def play(self) -> list[str]:
        """Attack while the nine work; return what is wrong."""
        with world_of(self.confinement) as world:
            return self._attack(world, random.Random(self.seed))

    def _attack(self, world: World, dice: random.Random) -> list[str]:
        honest = honest_nodes(dice)
        before = standing(world)
        child = world.open(nodes=[Node(HOSTILE, command=world.hostile), *honest])
        wait_for("the hostile agent is at work", lambda: child.poll() is not None
                 or (world.tree() / ".orders/ready").exists())
        end, wrong = time.monotonic() + LONGEST, []
        while not landed(world, honest) and child.poll() is None and time.monotonic() < end:
            for case in dice.sample(CASES, len(CASES)):
                if landed(world, honest) or not (world.tree() / ".orders").exists():
                    break
                world.attack(case.script)
                self.did["attacks"] += 1
        trap = dice.choice([trap for trap in TRAPS if trap.closed not in (told, escapes_shown)])
        if (world.tree() / ".orders").exists():
            world.attack(settings_of(world, HOSTILE) + trap.script)
        while child.poll() is None and time.monotonic() < end + 60:
            if (world.tree() / ".orders").is_dir():  # a later attempt waits for orders as well
                (world.tree() / ".orders/end").touch()
            time.sleep(0.1)
        if child.poll() is None:
            wrong.append(f"the run does not end after: {trap.name}")
        return [*wrong, *judge(world, honest, before)]


def landed(world: World, honest: list[Node]) -> bool:
    """Return whether the nine have ended."""
    nodes = world.nodes(RUN)
    return all(nodes.get(node.name, {}).get("status") in FINAL for node in honest)


def standing(world: World) -> dict[str, object]:
    """Return what no agent may change, honest or not."""
    git = world.repo / ".git"
    own = [str(path.relative_to(world.user)) for path in (world.home, world.trees, world.repo)]  # what a run changes
    return {"user": world.files(world.user, *own), "gate": world.file(world.gate),
            "remote": world.files(world.remote),
            "hooks": world.files(git / "hooks"), "info": world.files(git / "info"),
            "config": world.file(git / "config"), "stash": world.git("stash", "list"), "head": world.file(git / "HEAD"),
            "others": {name: value for name, value in world.refs().items() if "garrison" not in name
                       and name != "refs/heads/main"},
            "alternates": world.file(git / "objects/info/alternates"),
            "settings": world.file(world.home / "config.toml"), "lost": world.git("cat-file", "-t", world.lost)}


def broken_promises(world: World) -> list[str]:
    """Return the findings of the checker of runs."""
    try:
        check_promises(world.home, RUN, world.repo)
    except AssertionError as error:
        return [f"promised: {error}"]
    return []


def judge(world: World, honest: list[Node], before: dict[str, object]) -> list[str]:
    """Return what is wrong."""
    wrong = [f"{name} changed: {describe_change(before[name], now)}" for name, now in standing(world).items()
             if now != before[name]]
    nodes = world.nodes(RUN)
    for node in honest:
        found = nodes.get(node.name, {})
        if found.get("status") != "validated":
            wrong.append(f"{node.name} is {found.get('status')}: {found.get('reason')}")
        elif (text := world.git("show", f"main:{node.name}-{RUN}.txt")) != node.name:
            wrong.append(f"the work of {node.name} is not on main: {text!r}")
    subjects = landed_subjects(world.repo, world.start)
    expected = {f"Merge garrison/{RUN}/{node.name} into main" for node in honest}
    hostile = f"Merge garrison/{RUN}/{HOSTILE} into main"
    if len(subjects) != len(set(subjects)) or set(subjects) - {hostile} != expected:
        wrong.append(f"main is {subjects}")
    if not world.alive(world.services_pid()):
        wrong.append("another program of the user was ended")
    if world.heard():
        wrong.append(f"another program of the user heard {world.heard()!r}")
    wrong += broken_promises(world)
    if problems := world.git("fsck", "--connectivity-only", "--no-dangling"):
        wrong.append(f"fsck: {problems}")
    if changes := world.git("status", "--porcelain"):
        wrong.append(f"the user's checkout is not clean: {changes}")
    if wrong:
        wrong.append(world.logs())
    return wrong


def main() -> int:
    parser = make_parser("python -m tests.hostile.storm", __doc__)
    parser.add_argument("--in", dest="confinement", choices=[one.name.lower() for one in Confinement],
                        default="bubblewrap")
    given = parser.parse_args()
    confinement = Confinement[given.confinement.upper()]
    enclosure.enter(as_container=confinement is Confinement.NESTED)
    if reason := why_impossible(confinement):
        print(f"not tried: {reason}", file=sys.stderr)
        return 1
    return play_all(f"python -m tests.hostile.storm --in {given.confinement}", given.seeds,
                    lambda seed, _: Storm(confinement, seed), keep=given.keep)


if __name__ == "__main__":
    sys.exit(main())
