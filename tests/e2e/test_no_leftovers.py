"""What an agent starts ends with it, and a process that loses its home, worktree or all above it ends by itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.test_shortage import disk_of_its_own
from support import DEADLINE, PROGRAM, Node, Place, git, wait_for


def fork(place: Place, number: int = 1) -> str:
    """Return shell that starts programs without parent, session, name or marker, `number` times each way."""
    nap = place.root / "nap"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", nap)
    quiet = "</dev/null >/dev/null 2>&1"
    ways = [f"env -i PATH=$PATH setsid -f {nap} 1000 {quiet}", f"(setsid {nap} 1001 {quiet} &)",
            f"(env -i {nap} 1002 {quiet} &)", f"env -i setsid sh -c '({nap} 1003 &) ; {nap} 1004' {quiet} &"]
    return f"for n in $(seq {number}); do {'; '.join(ways[:3])}; {ways[3]} done; "


def naps(place: Place) -> list[int]:
    return [one.pid for one in place.living_processes() if one.argv.startswith(str(place.root / "nap"))]


def held(place: Place, number: int = 1, gate: str = "") -> subprocess.Popen[bytes]:
    place.env |= {"GARRISON_RESCAN": "0.3"}
    child = place.launch_until("a", place.graph(Node("a", before=fork(place, number) + place.hold("a"))), gate=gate)
    wait_for("all have forked", lambda: len(naps(place)) >= 5 * number)
    return child


@pytest.mark.parametrize("terminal", ["process", pytest.param("tmux", marks=pytest.mark.slow)])
def test_processes_that_an_agent_forked_end_with_its_incarnation_and_half_written_files_with_the_run(
        places: Callable[..., Place], terminal: str) -> None:
    """Seen to outlive the run, as children of init, before orchestrators were subreapers; half-written files were seen
    to stay until the doctor moved them aside."""
    place = places(terminal=terminal)
    child = held(place)
    first = naps(place)
    place.kill_and_await("orchestrator-a")
    place.wait_until_held("a")
    assert not set(first) & set(naps(place)), "processes of the dead incarnation are alive"
    dead = subprocess.Popen(["true"])
    dead.wait()
    hook, inbox = place.home / "hooks" / ".runner-a@r1.json", place.home / "signals" / "guardian-crew@r1"
    halves = [Path(f"{hook}.{dead.pid}-3.tmp"), inbox / f".said.json.{dead.pid}-0.tmp"]
    young, working = Path(f"{hook}.{dead.pid}-4.tmp"), Path(f"{hook}.{os.getpid()}-3.tmp")
    for path in (*halves, young, working):
        path.write_text("{")
    for path in (*halves, working):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 60))
    os.utime(young, (young.stat().st_atime, young.stat().st_mtime + 600))
    place.release_to_end(child, "a")
    assert not naps(place)
    assert [path for path in (*halves, young, working) if path.exists()] == [young, working]
    place.check("a")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill all", "home"])
def test_a_fork_bomb_leaves_no_process(place: Place, how: str) -> None:
    child = held(place, 40)
    assert len(naps(place)) >= 200
    if how == "stop":
        assert place.command("stop", "r1").returncode == 0
    elif how == "home":
        wait_for("the home is removed", lambda: shutil.rmtree(place.home, ignore_errors=True)
                 or not place.home.exists())
    else:
        place.kill("launch", "guardian-crew", "runner-a", "orchestrator-a")
    child.wait(DEADLINE)
    wait_for("no process is left", lambda: not naps(place))


@pytest.mark.parametrize("what", [pytest.param("home moved", marks=pytest.mark.slow), "trees",
                                   pytest.param("gate", marks=pytest.mark.slow)])
def test_a_process_without_its_home_or_worktree_stops_by_itself(place: Place, what: str) -> None:
    """Seen: without its worktree an agent continued, and without its home a gate ran to its end."""
    if what == "gate":
        place.env |= {"GARRISON_RESCAN": "0.3"}
        slow = f"test ! -e a-r1.txt || {{ touch {place.root}/at-gate; sleep 1000; }}"
        child = place.launch_until("gate", place.graph(Node("a")), gate=slow)
    else:
        child = held(place)
    if what == "trees":
        shutil.rmtree(next(place.trees.glob("*/r1/a")))
        wait_for("another attempt starts", lambda: place.nodes()["a"]["attempt"] == 2)
        assert "was removed while it worked" in place.nodes()["a"]["reason"]
        place.release_to_end(child, "a")
    else:
        place.home.rename(place.root / "moved")
        assert child.wait(DEADLINE) == 1, place.logs()
    wait_for("no process is left", lambda: not place.living_processes())
    assert what == "trees" or not place.home.exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["read-only", "unmounted"])
def test_a_home_that_becomes_read_only_or_is_unmounted_stops_all(place: Place, how: str) -> None:
    place.env |= {"GARRISON_RESCAN": "0.3"}
    with disk_of_its_own(place) as enter:
        graph = place.graph(Node("a", before=fork(place) + place.hold("a")))
        child = place.begin(*place.launch_arguments(graph, "r1"), before=enter)
        place.wait_until_held("a")
        change = ["mount", "-o", "remount,ro", place.home] if how == "read-only" else ["umount", "-l", place.home]
        # A file that is open for writing keeps a mount from becoming read-only; the superblock's own way does not.
        done = subprocess.run([*enter, *map(str, change)], check=False, capture_output=True, text=True)
        if done.returncode:
            place.kill_rest()
            pytest.skip(f"cannot {change}: {done.stderr.strip()}")
        wait_for("no process is left", lambda: not place.living_processes())
        assert child.wait(DEADLINE) == 1, place.logs()
        assert "Traceback" not in place.logs()


UNSHARE = ["unshare", "-pf", "--mount-proc"]


def needs_a_namespace() -> None:
    if os.geteuid() != 0 or subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a pid namespace of one's own needs root")


@contextlib.contextmanager
def elsewhere(place: Place, *arguments: str) -> Iterator[None]:
    """Run a garrison command in a pid namespace of its own, whose init lives until the end of the block."""
    needs_a_namespace()
    init = ["sh", "-c", '"$@"; sleep 1000', "sh"]
    there = subprocess.Popen([*UNSHARE, *init, *PROGRAM, *arguments], env=place.env, cwd=place.root,
                             stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        for one in subprocess.run(["ps", "-o", "pid=", "--ppid", str(there.pid)], capture_output=True, text=True,
                                  check=False).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(one), signal.SIGKILL)
        there.wait()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["to its end", "stopped by its guardian"])
def test_a_guardian_in_another_pid_namespace_is_left_alone_by_a_new_launcher(place: Place, how: str) -> None:
    """The launcher dies; `up` in another container on the same home starts one: no process is doubled or ended."""
    child = held(place)
    pids = {stem: place.pid(stem) for stem in ("guardian-crew", "runner-a", "orchestrator-a")}
    place.kill("launch")
    child.wait()
    with elsewhere(place, "up"):
        wait_for("a launcher there", lambda: place.identity("launch")["incarnation"] == 2
                 and place.identity("launch")["status"] == "active")
        assert place.command("status", "r1").returncode == 0
        assert place.command("up").stdout == ""
        assert {stem: place.pid(stem) for stem in pids} == pids
        if how == "to its end":
            place.release("a")
        else:  # the guardian is here; the launcher there sees the run stopped, and ends
            assert place.command("stop", "r1").stdout == "run r1: stopped\n"
        wait_for("the launcher's end", lambda: place.identity("launch")["status"] == "terminated")
        assert {stem: place.identity(stem)["incarnation"] for stem in pids} == dict.fromkeys(pids, 1)
        if how == "to its end":
            place.check("a", history=False)


REUSE = """
import os, signal, sys, time
from pathlib import Path
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.store import Store
from garrison.supervise.incarnation import activate
from garrison.supervise.observer import Observer
from garrison.supervise.incarnation import replace_incarnation
from garrison.system import processes
from garrison.system.process_control import RealProcesses
from garrison.system.clock import SystemClock
last = Path("/proc/sys/kernel/ns_last_pid")
observer = Observer(Store(Path(sys.argv[1])), RealProcesses(), SystemClock())
def fork():
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid
pid = fork()
me = observer.origin(pid)
key = Key("runner", "a", "r1")
lease = Identity("i", key.role, key.name, key.run, observer.clock.utc(), status="starting")
identity = observer.store.update(Identity, key, lambda old: activate(lease, me, observer.clock.utc()))
assert observer.judge(identity).state == "alive"
pidfd = os.pidfd_open(pid)
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
time.sleep(0.05)
last.write_text(str(pid - 1))
assert fork() == pid, "the pid was not given again"
verdict = observer.judge(identity)
assert (verdict.state, verdict.why) == ("dead", f"pid {pid} is another process now"), verdict
assert observer.stale_reason(identity, 300) == "process_gone"
assert not processes.send(pid, me.start_ticks, signal.SIGKILL)
assert processes.open_verified(pid, me.start_ticks) is None
assert replace_incarnation(observer, identity, verdict.why, 0.2).status == "crashed"
assert processes.probe(pid) and not processes.probe(pid).zombie, "a foreign process was ended"
print("spared", pid)
"""


def test_a_foreign_process_with_the_pid_of_a_dead_incarnation_is_never_touched(tmp_path: Path) -> None:
    needs_a_namespace()
    done = subprocess.run([*UNSHARE, PROGRAM[0], "-c", REUSE, str(tmp_path / "home")], capture_output=True, text=True,
                          check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("spared")


@pytest.mark.parametrize(("state", "whole"), [
    ("no .git", True), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("unregistered", False), ("no .git", False), ("unregistered", True)))])
def test_a_killed_removal_of_a_worktree_leaves_nothing(place: Place, state: str, whole: bool) -> None:
    real, shim = shutil.which("git"), place.root / "shim/git"
    shim.parent.mkdir()
    broken = ('rm -rf "$(sed "s/gitdir: //" "$6/.git")"' if state == "unregistered" else 'rm -f "$6/.git"')
    shim.write_text(f"""#!/bin/sh
case "$* " in *"worktree remove --force --force "*/a\\ )
    if test ! -e {place.root}/removed; then
        for last; do :; done; set -- 1 2 3 4 5 "$last"
        touch {place.root}/removed "$6/rest"; rm -f "$6/calc.py"; {broken}
        {'kill -KILL $PPID' if whole else ':'}; kill -KILL $$
    fi;; esac
exec {real} "$@"
""")
    shim.chmod(0o755)
    place.env["PATH"] = f"{shim.parent}:{place.env['PATH']}"
    place.run(place.graph(Node("a")))
    assert (place.root / "removed").exists()
    place.check("a", history=False)
    assert "rescue" not in git(place.repo, "for-each-ref")
