"""A hostile agent takes all processes, memory, disk space or attention while an honest one works.

    python -m tests.hostile.exhaustion [--in CONFINEMENT] [--case WORD]

Each world has a small file system, and its run a control group where processes or memory are exhausted, so that this
machine is not affected. The honest node must land; where the agent's files leave no room, after the user has removed
them, and garrison must have reported what it waits for. Exit code 1 if a case went otherwise than expected.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile import enclosure
from hostile.world import HONEST, HOSTILE, RUN, Confinement, World, why_impossible
from support import Node, processes

PATIENCE = 100.0
"""Seconds for the honest node to land after the attack; it takes three."""
DISK, FILES = "160m", "30k"
"""Size of a world's file system, and its number of files."""
PIDS, MEMORY = 250, 700 << 20
GROUPS = Path("/sys/fs/cgroup")
NAP = 31341


@dataclass(frozen=True)
class Exhaustion:
    """One attack."""

    name: str
    script: str
    """Shell of the hostile node; it fails after the attack."""
    controller: str = ""
    """Control group that bounds the run, `pids` or `memory`; '' for none."""
    fills: tuple[str, ...] = ()
    """Patterns below the folder of worktrees or the home that the user removes to make room."""
    says: str = ""
    """Pattern of what `garrison status` or a log reports during the attack."""


def fill(path: str) -> str:
    """Return shell that writes a file until there is no room, then waits."""
    return f"dd if=/dev/zero of={path} bs=1M 2>/dev/null; cat /dev/zero > {path}.rest 2>/dev/null; sleep 6; exit 1"


CASES = (
    Exhaustion("starts processes without end", f"b() {{ sleep {NAP} & b & b & wait; }}; b & sleep 6; exit 1", "pids",
               says="no room|cannot fork|Resource temporarily"),
    Exhaustion("takes all memory", "for n in 1 2 3 4; do $PY -c 'import time; x = []\nwhile True: "
               "x.append(bytearray(1 << 24)); time.sleep(0.02)' & done; wait; sleep 1; exit 1", "memory"),
    Exhaustion("fills the disk through its worktree", fill("fill"), fills=(f"*/{RUN}/{HOSTILE}/fill*",),
               says="No space left|disk is full"),
    Exhaustion("fills the disk through the exchange folder", fill("$(dirname $GARRISON_NOTES_FILE)/fill"),
               fills=(f"runs/{RUN}/nodes/{HOSTILE}/*/agent/fill*", f"runs/{RUN}/nodes/{HOSTILE}/*/fill*"),
               says="No space left|disk is full"),
    Exhaustion("fills the disk through its temporary folder and its home", fill("${TMPDIR:-/tmp}/fill"),
               fills=(f"*/{RUN}/.{HOSTILE}.sandbox/**/fill*", "../tmp-of-world/fill*"),
               says="No space left|disk is full"),
    Exhaustion("fills the disk through private objects",
               "while dd if=/dev/urandom bs=16M count=1 2>/dev/null | "
               "git -c core.compression=0 hash-object -w --stdin >/dev/null 2>&1; do :; done; "
               "cat /dev/zero > fill 2>/dev/null; sleep 6; exit 1",
               fills=(f"*/{RUN}/{HOSTILE}/fill", f"*/{RUN}/.{HOSTILE}.sandbox/git/common/objects/??/*"),
               says="No space left|disk is full"),
    Exhaustion("fills the disk through its output", "cat /dev/zero; sleep 6; exit 1",
               fills=(f"runs/{RUN}/nodes/{HOSTILE}/*/output.log",), says="No space left|disk is full"),
    Exhaustion("takes all files of the disk", "$PY -c 'import itertools\nfor n in itertools.count(): "
               "open(f\"f{n}\", \"w\")' 2>/dev/null; sleep 6; exit 1", fills=(f"*/{RUN}/{HOSTILE}/f[0-9]*",),
               says="No space left|disk is full"),
    Exhaustion("makes six thousand small files", "mkdir many; $PY -c 'for n in range(6000): "
               "open(f\"many/{n}\", \"w\").write(str(n))'; git add -A; git commit -qm Many; exit 1"),
    Exhaustion("makes twenty thousand refs", "h=$(git rev-parse HEAD); for n in $(seq 20000); do "
               "echo create refs/heads/x/$n $h; done | git update-ref --stdin; git commit -q --allow-empty -m x; "
               "sleep 3; exit 1"),
    Exhaustion("commits without end", "end=$(($(date +%s)+8)); while [ $(date +%s) -lt $end ]; do "
               "git commit -q --allow-empty -m x; done; exit 1"),
    Exhaustion("floods its socket with connections", """$PY - <<'END'
import os, socket, time
path, held, end = os.environ["GARRISON_AGENT_SOCKET"], [], time.monotonic() + 8
while time.monotonic() < end:
    try:
        held.append(socket.socket(socket.AF_UNIX)); held[-1].settimeout(0.05); held[-1].connect(path)
        held[-1].send(b"x" * 60000)
    except OSError:
        held = held[-200:]
END
exit 1"""),
    Exhaustion("notes and reports without end", "end=$(($(date +%s)+8)); while [ $(date +%s) -lt $end ]; do "
               "head -c 3000 /dev/zero | tr '\\0' x > $GARRISON_NOTES_FILE; "
               "echo '{\"status\": \"fail\"}' > $GARRISON_RESULT_FILE; $G note x >/dev/null 2>&1; done; exit 1"),
    Exhaustion("reports a gigabyte", "truncate -s 1G $GARRISON_RESULT_FILE; truncate -s 1G $GARRISON_NOTES_FILE; "
               "sleep 2; exit 1"),
)


@dataclass(frozen=True)
class Outcome:
    """How one attack went."""

    case: Exhaustion
    landed: bool
    said: bool
    """The reason for waiting was reported, if there was one."""
    left: int
    """Remaining processes of the agent."""
    seconds: float
    """From the launch until the honest node had landed."""
    waited: bool
    """The honest node landed only after the user had made room."""
    logs: str = ""


@contextmanager
def world_of(case: Exhaustion, confinement: Confinement) -> Iterator[World]:
    """Yield a world in a small file system, with its run in a control group where the case needs that."""
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,size={DISK},nr_inodes={FILES}", "tmpfs", folder],
                       check=True)
        world = World(Path(folder), confinement, TMPDIR=f"{folder}/tmp-of-world")
        (Path(folder) / "tmp-of-world").mkdir()
        group = _control_group(case.controller)
        if group is not None:
            world.enter = ["sh", "-c", f'echo 0 > {group}/cgroup.procs; exec "$@"', "enter", *world.enter]
        try:
            yield world
        finally:
            world.close()
            with contextlib.suppress(OSError):
                for line in (group / "cgroup.procs").read_text().split() if group else ():
                    os.kill(int(line), 9)
                time.sleep(0.3)
                if group:
                    group.rmdir()
            subprocess.run(["umount", "-l", folder], check=False)


def _control_group(controller: str) -> Path | None:
    """Return a new control group below our own with the case's bound; None if none is needed."""
    if not controller:
        return None
    line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if f":{controller}:" in line)
    group = GROUPS / controller / line.rpartition(":")[2].lstrip("/") / f"garrison-hostile-{os.getpid()}"
    group.mkdir()
    bound, file = (PIDS, "pids.max") if controller == "pids" else (MEMORY, "memory.limit_in_bytes")
    (group / file).write_text(str(bound))
    return group


def why_not(case: Exhaustion) -> str:
    """Return why this machine cannot show a case without harm; '' if it can."""
    if os.geteuid() != 0 or not enclosure.is_inside():
        return "needs root, for a file system of its own"
    if case.controller and not os.access(GROUPS / case.controller / "cgroup.procs", os.W_OK):
        return f"needs the control group {case.controller} (version 1), which root may write"
    return ""


def attempt(case: Exhaustion, confinement: Confinement) -> Outcome:
    """Run the hostile node and the honest one."""
    with world_of(case, confinement) as world:
        known = f"PY={world.python} G='{world.python} -P -m garrison.cli.main'; "
        honest = f"sleep {9 if case.fills else 4}; echo fine > fine.txt; git add -A; git commit -qm Fine"
        began = time.monotonic()
        child = world.open(nodes=[Node(HOSTILE, command=known + case.script, attributes='rework="none"'),
                                  Node(HONEST, command=honest)])
        said = made_room = False
        while child.poll() is None and not has_landed(world) and time.monotonic() - began < PATIENCE:
            said = said or (bool(case.says) and re.search(case.says, words(world)) is not None)
            if case.fills and time.monotonic() - began > PATIENCE / 4:
                made_room = True  # repeatedly: the hostile agent is retried
                for pattern in case.fills:
                    for path in [*world.trees.glob(pattern), *world.home.glob(pattern)]:
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            time.sleep(0.5)
        seconds = time.monotonic() - began
        landed = has_landed(world)
        left = [one for one in processes(f"sleep\0{NAP}") if "sleep" in one.argv.split()[0]]
        return Outcome(case, landed, said or not case.says, len(left), seconds, made_room,
                       "" if landed else f"{words(world)}\n{world.logs()[-3000:]}")


def has_landed(world: World) -> bool:
    """Return whether the honest node's work is on main."""
    return f"Merge garrison/{RUN}/{HONEST}" in world.git("log", "--format=%s", "main")


def words(world: World) -> str:
    """Return what the user can read: the run's status, and the logs of launcher and processes."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        shown = world.run_command("status", RUN)
        return "\n".join([shown.stdout, shown.stderr, *(path.read_text(errors="replace")[-20_000:] for path in [
            world.root / "out", *world.home.glob(f"runs/{RUN}/layers/*.log")] if path.exists())])
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.exhaustion",
                                     description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--in", dest="confinement", default="bubblewrap",
                        choices=["none", "bubblewrap", "landlock"])
    parser.add_argument("--case", default="", metavar="WORD", help="only cases whose name contains it")
    given = parser.parse_args()
    confinement = Confinement[given.confinement.upper()]
    enclosure.enter()
    if reason := why_impossible(confinement):
        print(f"not tried: {reason}", file=sys.stderr)
        return 1
    wrong = 0
    for case in [case for case in CASES if given.case in case.name]:
        if reason := why_not(case):
            print(f"–          {case.name}: {reason}")
            continue
        one = attempt(case, confinement)
        wrong += not (one.landed and one.said)
        word = "landed" if one.landed else "NOT LANDED"
        print(f"{word:10} {case.name}: {one.seconds:.0f} s{', with room made' if one.waited else ''}"
              f"{'' if one.said else ', NOTHING SAID'}{f', {one.left} processes left' if one.left else ''}", flush=True)
        if one.logs or not one.said:
            print(one.logs)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
