"""Traps that a hostile agent leaves for garrison's own git, its readers, the gate and people.

Each is a node of a run: its command prepares the trap, then succeeds or fails. The world outside shows after the run
whether the trap closed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hostile.trial import FIRST_EDITION
from hostile.world import RUN, Confinement, World
from support import Node, git, processes

PATIENCE = 25.0
"""Seconds for a run with a trap; it takes five."""
PROGRESS = 20.0
"""Seconds within which a run that no trap blocks makes progress on a busy machine."""
ENDED = ("validated", "failed")
TRUSTED = ("-c", "safe.directory=*")
"""For a repository of the user `nobody`."""
TOO_MUCH = 250_000
"""KiB of memory that no process of garrison's needs for an agent's notes."""


@dataclass(frozen=True)
class Trap:
    """One trap; `closed` says from outside whether it harmed."""

    name: str
    script: str
    closed: Callable[[World, str], bool]
    refused_by: str = ""
    """Defence that refuses it without a sandbox."""
    always: bool = False
    """Whether the first edition refused it as well."""


def touched(world: World, node: str) -> bool:
    """Return whether garrison, or the user in the checkout afterwards, ran what the agent planted."""
    for words in (["status"], ["diff", "HEAD~"]):
        subprocess.run([*world.enter, "git", *words], cwd=world.repo, env=world.env, check=False, capture_output=True,
                       stdin=subprocess.DEVNULL)
    return (world.root / f"ran-{node}").exists()


def main_moved(world: World, node: str) -> bool:
    """Return whether main has a commit, on its first-parent line, that is not a landing, or is gone."""
    if not world.git("for-each-ref", "refs/heads/main"):
        return True
    lines = world.git("log", "--first-parent", "--format=%s", f"{world.start}..main", "--").splitlines()
    return any(not re.match(r"Merge (garrison/|\d+ branches)", line) for line in lines)


def told(world: World, node: str) -> bool:
    """Return whether the secret is now in garrison's records or in what it prints about the node."""
    records = (path for path in world.home.rglob("*") if path.is_file() and not path.is_symlink()
               and path.stat().st_size < 10_000_000 and "web" not in path.parts)
    if any(world.secret in path.read_text(errors="replace") for path in records):
        return True
    words = (("logs", node), ("why", node), ("status", RUN))
    return any(world.secret in output(world, *each).stdout for each in words)


@functools.cache
def output(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """Return the output of a command about a run that has ended, which several traps read."""
    return world.run_command(*words) if world.is_apart else world.command(*words)


@functools.cache
def shown(world: World, *words: str) -> bytes:
    """Return what the same command sends to a terminal."""
    return world.run_in_terminal(*words)


def hangs(world: World, node: str) -> bool:
    """Return whether garrison still waits for what the agent left."""
    return world.nodes(RUN).get(node, {}).get("status") not in ENDED


def grew(world: World, node: str) -> bool:
    """Return whether a process of the run needed much memory."""
    return world.most_memory > TOO_MUCH


def taken(world: World, node: str) -> bool:
    """Return whether garrison took over what is too large for any repository, or was blocked by it."""
    return grew(world, node) or world.nodes(RUN).get(node, {}).get("status") != "failed"


def heavy(world: World, node: str) -> bool:
    """Return whether garrison waits for what the agent left, needed much memory for it, or broke at it."""
    return hangs(world, node) or grew(world, node) or "internal error" in world.logs() or "Traceback" in world.logs()


def broke(world: World, node: str) -> bool:
    """Return whether a reading command ends without an answer, or garrison waits."""
    words = (("logs", node), ("why", node), ("status", RUN), ("status", "--json"), ("why", node, "--json"))
    return hangs(world, node) or any("internal error" in output(world, *each).stderr for each in words)


def naps(number: int) -> Callable[[World, str], bool]:
    """Return a check for the agent's programs that outlive the run."""
    def watch(world: World, node: str) -> bool:
        time.sleep(1.0)
        found = [one for one in processes(f"sleep\0{number}") if "sleep" in one.argv.split()[0]]
        for one in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        return bool(found)

    return watch


def checkout_changed(world: World, node: str) -> bool:
    """Return whether the user's checkout has something that no landing brought."""
    is_on_main = (world.repo / ".git/HEAD").read_text() == "ref: refs/heads/main\n"
    return main_moved(world, node) or not is_on_main or (world.repo / "evil.txt").exists()


def escapes_shown(world: World, node: str) -> bool:
    """Return whether the agent's order to change the clipboard reaches the user's terminal."""
    words = (("logs", node), ("why", node), ("status", RUN), ("events", RUN))
    return any(b"\x1b]52" in shown(world, *each) for each in words)


def python_c(program: str) -> str:
    """Return shell that runs a Python program from a here-document."""
    return f"/usr/bin/python3 -I - <<'END'\nimport os, socket\n{program}\nEND\n"


PLANT = "p=$ROOT/ran-$NODE; printf '#!/bin/sh\\ntouch %s\\ncat\\n' $p > $PWD/evil-$NODE.sh; chmod +x evil-$NODE.sh; "
"""Shell that writes a program which leaves a mark outside. It has a name for each node: branches would conflict."""
SHOW = "echo '*.txt filter=evil' > .gitattributes; echo $NODE > $NODE.txt; "
"""Shell that leaves what makes garrison's git use a filter."""
UNTRUSTED = "garrison reads only regular files of bounded size, without following links"
BOUNDS = "what is taken over of a history is bounded"
OWN = "garrison works in no repository below a worktree but the worktree's own"
NEUTRAL = "garrison's own git runs nothing that was planted"
HOOKS = "pre-commit post-commit reference-transaction post-checkout post-index-change post-merge"


def settings(program: str) -> str:
    """Return shell that configures programs for git to run."""
    keys = ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "filter.lfs.process", "diff.external")
    return "".join(f"{program} {key} $PWD/evil-$NODE.sh; " for key in keys)


def nested(name: str) -> str:
    """Return shell that makes a repository in the worktree that runs programs when git looks into it."""
    at = f"git -C {name}"
    return (f"git init -q {name}; {at} config user.name e; {at} config user.email e@x; "
            f"echo '* filter=evil' > {name}/.gitattributes; echo x > {name}/x; {at} add -A; {at} commit -qm x; "
            f"git add {name}; {settings(f'{at} config')} echo y > {name}/x; ")


TRAPS = (
    Trap("plants hooks for garrison's git",
         PLANT + f"for h in {HOOKS}; do cp evil-$NODE.sh $(git rev-parse --git-path hooks)/$h; done; {SHOW}", touched),
    Trap("plants hooks in the user's .git by its path",
         PLANT + f"for h in {HOOKS}; do cp evil-$NODE.sh $R/.git/hooks/$h; done; {SHOW}", touched),
    Trap("plants programs in the repository's configuration", PLANT + settings("git config") + SHOW, touched,
         refused_by=NEUTRAL),
    Trap("plants programs in the user's .git/config by its path",
         PLANT + settings("git config --file $R/.git/config") + SHOW, touched, refused_by=NEUTRAL),
    Trap("plants a configuration of its own worktree",
         PLANT + "git config extensions.worktreeConfig true; " + settings("git config --worktree") + SHOW, touched,
         refused_by=NEUTRAL),
    Trap("plants an included configuration",
         PLANT + settings("git config --file $PWD/inc") + f"git config include.path $PWD/inc; {SHOW}", touched,
         refused_by=NEUTRAL),
    Trap("leaves programs in a folder that PATH names from where one is",
         PLANT + "mkdir own-bin; for p in git bwrap tmux unshare sh env rm; do cp evil-$NODE.sh own-bin/$p; done; "
         "exit 1", touched, refused_by=NEUTRAL),
    Trap("leaves a nested repository that runs programs", PLANT + nested("sub") + SHOW, touched,
         refused_by=OWN),
    Trap("leaves a submodule with a command as its update",
         PLANT + nested("sub") + "printf '[submodule \"sub\"]\\n path = sub\\n url = ./sub\\n update = !%s\\n' "
         "$PWD/evil-$NODE.sh > .gitmodules; git config submodule.sub.url ext::$PWD/evil-$NODE.sh; " + SHOW, touched,
         refused_by=OWN),
    Trap("names another common folder for its worktree",
         PLANT + "c=$(git rev-parse --git-common-dir); d=$(git rev-parse --git-dir); mkdir fake; "
         "cp -r $c/config $c/HEAD $c/objects $c/refs $c/packed-refs fake; " + settings("git config --file fake/config")
         + f"echo $PWD/fake > $d/commondir; {SHOW}", touched, refused_by=NEUTRAL),
    Trap("makes its .git file name a repository of its own",
         PLANT + nested("own") + f"git -C own config core.worktree $PWD; echo \"gitdir: $PWD/own/.git\" > .git; {SHOW}",
         touched, refused_by=NEUTRAL),
    Trap("makes its .git file name the user's repository", "echo \"gitdir: $R/.git\" > .git; echo evil >> notes.txt",
         main_moved, refused_by=OWN),
    Trap("makes its branch a symbolic ref to main",
         "git symbolic-ref refs/heads/garrison/$RUN/$NODE refs/heads/main; echo evil >> notes.txt; "
         "git commit -qam 'Not a landing'", main_moved),
    Trap("checks out main and commits there", "git checkout -q --ignore-other-worktrees main; echo evil >> notes.txt; "
         "git commit -qam 'Not a landing'", main_moved),
    Trap("has a submodule whose .git file names the user's repository",
         "mkdir sub; printf '[submodule \"sub\"]\\n\\tpath = sub\\n\\turl = ./x\\n' > .gitmodules; "
         "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; git add .gitmodules; git commit -qm s; "
         "echo \"gitdir: $R/.git\" > sub/.git; echo evil > sub/evil.txt; echo evil >> notes.txt", checkout_changed,
         refused_by=OWN),
    Trap("replaces its worktree by a link to the user's checkout",
         "t=$PWD; cd /; mv $t $t.old; ln -s $R $t; test -L $t && echo evil > $t/evil.txt", checkout_changed),
    Trap("reports a link to a secret as its result", "ln -sf $U/.config/app/state.json $GARRISON_RESULT_FILE", told,
         refused_by=UNTRUSTED),
    Trap("leaves a link to a secret as its notes", "rm -f $GARRISON_NOTES_FILE; ln -s $U/.ssh/id_ed25519 "
         "$GARRISON_NOTES_FILE; sleep 1", told, refused_by=UNTRUSTED),
    Trap("leaves a pipe as its notes", "rm -f $GARRISON_NOTES_FILE; mkfifo $GARRISON_NOTES_FILE; sleep 1", hangs,
         refused_by=UNTRUSTED),
    Trap("leaves a pipe as its result", "mkfifo $GARRISON_RESULT_FILE", hangs, refused_by=UNTRUSTED),
    Trap("leaves a pipe as .gitignore", "rm .gitignore; mkfifo .gitignore; echo x > evil-x", hangs,
         refused_by=UNTRUSTED),
    Trap("leaves a pipe as .gitattributes", "mkfifo .gitattributes; echo x > evil-x", hangs, refused_by=UNTRUSTED),
    Trap("leaves 400 MB of notes", "truncate -s 400M $GARRISON_NOTES_FILE; sleep 1", grew, refused_by=UNTRUSTED),
    Trap("leaves a result of 400 MB", "truncate -s 400M $GARRISON_RESULT_FILE", grew,
         refused_by="a report is read up to a limit", always=True),
    Trap("prints escape sequences", "printf '\\033]52;c;ZXZpbA==\\007\\033[2Jhello\\n'; exit 1", escapes_shown,
         refused_by="garrison logs passes only colours to a terminal"),
    Trap("leaves a program that forgot its parents", "env -i setsid -f sleep 31337", naps(31337),
         refused_by="the reaper of its incarnation", always=True),
    Trap("leaves two hundred programs", "for n in $(seq 200); do env -i setsid -f sleep 31338; done", naps(31338),
         refused_by="the reaper of its incarnation", always=True),
    Trap("leaves pipes as lock files, .mailmap and .gitmodules",
         "for f in uv.lock package-lock.json requirements.txt pyproject.toml .mailmap .gitmodules .lfsconfig; do "
         "rm -f $f; mkfifo $f; done; echo x > evil-x", hangs, refused_by=UNTRUSTED),
    Trap("leaves pipes in its git directory",
         "cd $(git rev-parse --git-dir); for f in HEAD index logs/HEAD MERGE_HEAD CHERRY_PICK_HEAD BISECT_LOG; do "
         "rm -f $f; mkfifo $f; done; cd $(cat commondir 2>/dev/null || echo .); for f in packed-refs shallow; do "
         "rm -f $f; mkfifo $f; done", hangs),
    Trap("leaves a file of a terabyte", "truncate -s 1T huge.bin", heavy, refused_by=UNTRUSTED),
    Trap("fails and leaves a file of a terabyte", "truncate -s 1T huge.bin; exit 1", heavy, refused_by=UNTRUSTED),
    # in a container it is a pipe
    Trap("makes its output a terabyte", python_c(
        "try:\n    os.ftruncate(1, 1 << 40); os.lseek(1, 0, 2)\nexcept OSError:\n    pass\nprint('end')"), heavy,
         refused_by=UNTRUSTED),
    Trap("leaves an index of a terabyte", "truncate -s 1T $(git rev-parse --git-dir)/index", heavy),
    Trap("leaves folders 5,000 deep", python_c("for _ in range(5000):\n    os.mkdir('d' * 20)\n    os.chdir('d' * 20)\n"
                                              "open('x', 'w').close()"), heavy, refused_by=UNTRUSTED),
    Trap("leaves a socket and a device", python_c("socket.socket(socket.AF_UNIX).bind('socket')\n"
                                                 "open('evil-x', 'w').close()"), hangs, refused_by=UNTRUSTED),
    Trap("reports 100,000 lists in each other", python_c(
        "open(os.environ['GARRISON_RESULT_FILE'], 'w').write('[' * 100000)"), broke, refused_by=UNTRUSTED),
    Trap("reports half of a letter", python_c(
        "open(os.environ['GARRISON_RESULT_FILE'], 'w').write('{\"status\": \"fail\", \"failure_reason\": "
        "\"a\\\\ud800b\", \"notes\": \"\\\\udfff\"}')"), broke, refused_by=UNTRUSTED),
    Trap("reports numbers without end", python_c(
        "open(os.environ['GARRISON_RESULT_FILE'], 'w').write('{\"status\": \"fail\", \"failure_reason\": ' "
        "+ '9' * 90000 + ', \"cost\": 1e999, \"x\": NaN}')"), broke, refused_by=UNTRUSTED),
    Trap("names a file and an author with a terminal's orders",
         "printf x > \"$(printf 'x\\033]52;c;ZXZpbA==\\007y')\"; git add -A; git -c user.email=e@e -c "
         "user.name=\"$(printf 'e\\033]52;c;ZXZpbA==\\007')\" commit -qm \"$(printf 'x\\033]52;c;ZXZpbA==\\007y')\"; "
         "head -c 12000000 /dev/zero > \"$(printf 'b\\033]52;c;ZXZpbA==\\007y')\"", escapes_shown,
         refused_by=UNTRUSTED),
    Trap("swaps its notes for a link while they are read",
         "n=$GARRISON_NOTES_FILE; (while :; do ln -sf $U/.ssh/id_ed25519 $n.l; mv $n.l $n; echo a > $n.a; mv $n.a $n; "
         "done) & sleep 4; kill $!", told, refused_by=UNTRUSTED),
    Trap("commits ten million files of seventy objects",
         "t=$(echo hi | git hash-object -w --stdin); k=blob; m=100644; for n in 1 2 3 4 5 6 7; do "
         "t=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf '%s %s %s\\td%s\\n' $m $k $t $i; done | git mktree); "
         "k=tree; m=040000; done; git update-ref HEAD $(git commit-tree -p HEAD -m bomb $t)", taken,
         refused_by=BOUNDS),
    Trap("commits a message of 100 MB", "echo x > $NODE.txt; git add $NODE.txt; head -c 100000000 /dev/zero | "
         "tr '\\0' x | git commit -qF -", taken, refused_by=BOUNDS),
    Trap("has the gate run its code", "printf 'touch %s\\ncp %s/.netrc %s\\n' $ROOT/ran-$NODE $U $ROOT/ran-$NODE "
         "> check.sh", touched),
    Trap("has the gate take all rights from its slot", "printf 'chmod 000 . *\\nexit 1\\n' > check.sh", hangs,
         refused_by=UNTRUSTED),
    Trap("has the acceptance run its code", "printf 'touch %s\\n' $ROOT/ran-$NODE > accept.sh; exit 0", touched),
)


def spring(confinement: Confinement, traps: Sequence[Trap]) -> Iterator[tuple[Trap, bool]]:
    """Yield each trap and whether it closed: in separate runs where some do, else all in one."""
    together = [trap for trap in traps if confinement is not Confinement.NONE
                or (trap.refused_by in (UNTRUSTED, BOUNDS) and not FIRST_EDITION)]  # they leave files alone
    groups = [*([together] if together else []), *([trap] for trap in traps if trap not in together)]
    for group in groups:
        with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)
            yield from _spring(World(Path(folder), confinement), group)


def _spring(world: World, traps: list[Trap]) -> Iterator[tuple[Trap, bool]]:
    named = {f"e{number:02}": trap for number, trap in enumerate(traps, 1)}
    try:
        (world.repo / "check.sh").write_text("true\n")
        (world.repo / "accept.sh").write_text("true\n")
        git(world.repo, *TRUSTED, "add", "-A")
        git(world.repo, *TRUSTED, "commit", "-qm", "Add checks")
        world.gate.write_text("sh ./check.sh && test -f calc.py\n")
        world.start = git(world.repo, *TRUSTED, "rev-parse", "main")
        world.give_away()
        child = world.open(nodes=[Node(name, command=settings_of(world, name) + trap.script,
                                       attributes='rework="none", acceptance="sh ./accept.sh"')
                                  for name, trap in named.items()])
        end, known = time.monotonic() + PATIENCE + 4 * len(traps), ""
        while child.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
            world.measure()
            if time.monotonic() > end - 2.0:
                now = str(world.nodes(RUN))
                if now != known:  # a busy machine is slow, and nodes whose files conflict are retried
                    end, known = time.monotonic() + PROGRESS, now
        for name, trap in named.items():
            yield trap, trap.closed(world, name)
    finally:
        world.close()


def settings_of(world: World, node: str) -> str:
    known = {"R": world.repo, "U": world.user, "ROOT": world.root, "NODE": node, "RUN": RUN}
    return " ".join(f"{name}='{value}';" for name, value in known.items()) + " "


def wrong(results: Sequence[tuple[Trap, bool]], confinement: Confinement) -> list[str]:
    """Return a line for each trap that went otherwise than it should."""
    def expected(trap: Trap) -> bool:
        return confinement is Confinement.NONE and not (trap.always if FIRST_EDITION else trap.refused_by)

    return [f"{trap.name}: {'closed' if closed else 'did not close'}" for trap, closed in results
            if closed != expected(trap)]
