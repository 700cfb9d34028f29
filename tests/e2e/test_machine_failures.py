"""Failures of the machine under a run: a reboot, the end of the tmux server, no memory, a stop that is interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.test_kill_pairs import half_done
from support import DEADLINE, PYTHON, Node, Place, alive, is_gone, load, stat, wait_for

REGISTRY = Path(__file__).resolve().parents[2] / "scripts" / "identity_registry.py"
LATER = ["unshare", "--time", "--monotonic", "1000000", "--boottime", "1000000"]
"""A machine that has been up for days, as the one before the reboot: the next one's clocks are far behind."""


def holding(place: Place, name: str, **more: str) -> Node:
    """Return a node that commits half of its work and leaves a note before it waits."""
    return Node(name, before=half_done(place, name).replace("half.txt", f"half-{name}"), **more)


def deaths(place: Place, stem: str) -> list[str]:
    return [record["why"] for record in place.death_records(stem)]


def tmux_server(place: Place, name: str) -> int:
    return int(place.identity(f"orchestrator-{name}")["tmux"]["server"].partition(":")[0])


def reuse(path: Path, pid: int) -> None:
    """Give a record the pid and start ticks of a process that was started after the boot."""
    found = stat(pid)
    assert found is not None
    body = load(path)
    body["pid"] = pid
    body["start_ticks" if "start_ticks" in body else "ticks"] = found[1]
    if body.get("tmux"):
        body["tmux"] |= {"pid": pid, "ticks": found[1]}
    path.write_text(json.dumps(body))


@pytest.fixture
def decoy() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that is not garrison's."""
    with subprocess.Popen(["sleep", "1000"]) as one:
        yield one
        one.kill()


def reboot(place: Place, decoy: subprocess.Popen[bytes], before: list[str]) -> None:
    place.env["GARRISON_BOOT_ID"] = "boot-1"
    arguments = place.launch_arguments(place.graph(holding(place, "a"), holding(place, "b", after=("a",))), "r1")
    place.begin(*arguments, before=before)
    place.release("a")
    place.wait_until_held("b")
    place.kill_all()
    place.env["GARRISON_BOOT_ID"] = "boot-2"
    shutil.rmtree(place.runtime)
    place.runtime.mkdir(mode=0o700)
    for path in (*(place.home / "identities").glob("*@r1.json"), *(place.home / "run/plain").glob("*.json")):
        reuse(path, decoy.pid)

    bare = {"PATH": "/usr/bin:/bin", "HOME": place.env["HOME"], "GARRISON_HOME": str(place.home),
            "GARRISON_BOOT_ID": "boot-2",
            "LEDGER": place.env["LEDGER"], "WITNESS": place.env["WITNESS"]}  # named with --env at the launch
    cron = subprocess.run([str(REGISTRY), "find-stale", "--respawn"], env=bare, cwd="/", capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL, timeout=DEADLINE)
    assert cron.returncode == 0, cron.stderr
    assert {one["name"] for one in json.loads(cron.stdout)} >= {"crew", "b"}
    assert "run r1 is started: launcher " in cron.stderr
    for _ in range(3):
        again = place.command("up")
        assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    place.wait_until_held("b")
    assert decoy.poll() is None, "a foreign process that has the pid of one of ours was killed"
    assert deaths(place, "orchestrator-b") == deaths(place, "guardian-crew") == ["the machine was rebooted since"]
    lives = [place.identity(stem)["incarnation"] for stem in ("launch", "guardian-crew", "runner-b", "orchestrator-b")]
    assert lives == [2, 2, 2, 2]
    prompt = (place.home / "runs/r1/nodes/b/1/prompt.md").read_text()
    assert "RESUMPTION CONTEXT" in prompt
    assert "half is there, seen by life 1" in prompt
    place.release("b")
    wait_for(f"the run ends\n{place.logs()}", lambda: place.identity("launch")["status"] == "terminated")
    place.check("a", "b")
    assert {node["attempt"] for node in place.nodes().values()} == {1}
    assert decoy.poll() is None


def test_a_reboot_loses_nothing_and_touches_no_foreign_process(place: Place, decoy: subprocess.Popen[bytes]) -> None:
    reboot(place, decoy, [])


@pytest.mark.slow
def test_a_reboot_that_resets_the_clocks(places: Callable[..., Place], decoy: subprocess.Popen[bytes]) -> None:
    """The monotonic times of the last boot are far in the future; the tmux socket is stale."""
    if os.geteuid() != 0 or subprocess.run([*LATER, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a time namespace of one's own needs root and Linux 5.6")
    reboot(places(terminal="tmux"), decoy, LATER)


def tmux(place: Place, *words: str) -> None:
    """Run a tmux command of a user who found our socket."""
    subprocess.run(["tmux", "-S", place.identity("orchestrator-a")["tmux"]["socket"], *words], check=True,
                   capture_output=True, stdin=subprocess.DEVNULL)


@pytest.mark.slow
def test_the_process_that_ended_a_terminal_is_named(places: Callable[..., Place]) -> None:
    """A server that the user ends, one that is killed, one session, one process: each reason names which."""
    place = places(terminal="tmux")
    graph = place.graph(holding(place, "a"), holding(place, "b"))
    child = place.launch(graph, "r1", "--max-agents", "2")
    for name in "ab":
        place.wait_until_held(name)
    tmux(place, "kill-server")
    for name in "ab":
        place.pid(f"orchestrator-{name}", incarnation=2)
        place.wait_until_held(name)
    tmux(place, "kill-session", "-t", place.identity("orchestrator-a")["tmux"]["session_id"])
    place.pid("orchestrator-a", incarnation=3)
    place.wait_until_held("a")
    place.kill("orchestrator-a", "runner-b", incarnation=1)
    place.pid("orchestrator-a", incarnation=4)
    place.wait_until_held("a")
    place.pid("runner-b", incarnation=2)
    os.kill(tmux_server(place, "b"), signal.SIGKILL)
    for name, life in (("a", 5), ("b", 3)):
        place.pid(f"orchestrator-{name}", incarnation=life)
        place.wait_until_held(name)
    place.release_to_end(child, "a", "b")
    place.check("a", "b", history=False)
    whys = deaths(place, "orchestrator-a")
    assert whys[0].startswith("the tmux server died")
    assert whys[1].startswith("its tmux session was closed")
    assert whys[2].startswith("process ")
    assert "the tmux server died" not in whys[2]
    assert whys[3].startswith("the tmux server died")
    assert [why.startswith("the tmux server died") for why in deaths(place, "orchestrator-b")] == [True, True]
    first = [place.death_records(f"orchestrator-{name}")[0].get("class") for name in "ab"]
    assert sorted(first) == ["crash", "terminal"], "the death of a shared server counts once"
    assert deaths(place, "runner-b") == [f"{deaths(place, 'runner-b')[0].partition(':')[0]}: killed by SIGKILL"]


@pytest.mark.slow
def test_a_keeper_that_was_killed_is_named(places: Callable[..., Place]) -> None:
    """Seen to be reported as a session that was closed: the terminal ends with its first process."""
    place = places(terminal="tmux")
    child = place.launch_until("a", place.graph(holding(place, "a")), "r1")
    found = stat(place.pid("orchestrator-a"))
    assert found is not None
    os.kill(found[2], signal.SIGKILL)
    place.pid("orchestrator-a", incarnation=2)
    place.wait_until_held("a")
    place.release_to_end(child, "a")
    place.check("a", history=False)
    assert deaths(place, "orchestrator-a") == ["its reaper, the process above it in its terminal, was killed"]


@pytest.mark.slow
def test_a_stopped_tmux_server_blocks_no_process(places: Callable[..., Place]) -> None:
    place = places(terminal="tmux")
    child = place.launch_until("a", place.graph(holding(place, "a")))
    server = tmux_server(place, "a")
    os.kill(server, signal.SIGSTOP)
    place.kill("orchestrator-a", "runner-a")
    place.pid("orchestrator-a", incarnation=2)
    place.wait_until_held("a")
    Path(place.identity("orchestrator-a")["tmux"]["socket"]).unlink()
    place.kill_and_await("orchestrator-a", incarnation=2)
    place.wait_until_held("a")
    assert tmux_server(place, "a") == server
    place.release_to_end(child, "a")
    place.check("a")
    assert is_gone(server), "it outlived its last session"


@pytest.mark.slow
def test_a_stop_completes_though_the_launcher_that_was_asked_dies(place: Place) -> None:
    child = place.launch_until("a", place.graph(holding(place, "a")))
    launcher = place.pid("launch")
    os.kill(launcher, signal.SIGSTOP)
    stopping = place.begin("stop", "r1", log="stop")
    wait_for("the launcher was asked", lambda: pending(launcher) & 1 << (signal.SIGTERM - 1))
    os.kill(launcher, signal.SIGKILL)
    child.wait()
    assert stopping.wait(DEADLINE) == 0, (place.root / "stop").read_text()
    assert place.status() == "stopped"
    assert not [one for one in place.identities().values() if one["status"] == "active" and alive(one)]
    up = place.command("up")  # the launcher died before it reported the end: its successor only reports it
    assert (up.returncode, up.stdout) == (0, "r1\n")
    wait_for("the end is reported", lambda: place.identity("launch")["status"] == "terminated")
    up = place.command("up")
    assert (up.returncode, up.stdout) == (0, "")
    assert "run r1 is left alone: it was stopped" in up.stderr
    assert place.status() == "stopped"
    place.release("a")
    assert place.finish(place.resume()) == 0, place.logs()
    place.check("a", history=False)


def pending(pid: int) -> int:
    """Return the signals that a process has not taken yet, as bits."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("ShdPnd:")).split()[1], 16)


@pytest.mark.slow
def test_up_reports_what_it_cannot_resume(place: Place) -> None:
    child = place.launch_until("a", place.graph(holding(place, "a")))
    place.kill_all()
    child.wait()
    place.repo.rename(place.root / "away")
    up = place.command("up", "--json")
    assert up.returncode == 1
    (word,) = json.loads(up.stdout)
    assert (word["run"], word["state"]) == ("r1", "refused")
    assert f"run r1 is not resumed: the repository {place.repo} of run r1 is gone" in up.stderr
    (place.root / "away").rename(place.repo)


@pytest.mark.slow
def test_an_agent_that_eats_the_memory_is_named(place: Place) -> None:
    """The whole run in a cgroup of its own with 512 MiB; the kernel kills the agent, its successor does the work."""
    group = memory_cgroup(512 << 20)
    try:
        hog = f"{PYTHON} -c 'bytearray(2 << 30)'"
        eats = f'test "$GARRISON_INCARNATION" != 1 || exec {hog}; '
        node = Node("a", command=eats + "echo a > a-$GARRISON_RUN.txt; git add -A; git commit -qm 'Add a'; "
                                        'echo "$GARRISON_RUN a 1 $GARRISON_INCARNATION" >> "$LEDGER"')
        arguments = place.launch_arguments(place.graph(node), "r1")
        script = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        child = place.begin(*arguments, before=["/bin/sh", "-c", script, "sh"])
        assert place.finish(child) == 0, place.logs()
        (why,) = deaths(place, "orchestrator-a")
        assert "killed, probably out of memory" in why
        place.check("a", history=False)
    finally:
        wait_for("the cgroup is empty", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def memory_cgroup(limit: int) -> Path:
    """Make a cgroup with a memory limit; skip where none can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        name = {"memory": "memory.limit_in_bytes", "": "memory.max"}.get(controllers)
        group = Path("/sys/fs/cgroup", controllers, path.strip("/"), f"garrison-e2e-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / str(name)).write_text(str(limit))
        except OSError:
            group.rmdir()
            continue
        return group
    pytest.skip("no cgroup with a memory limit can be made here")


LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
"""The kernel numbers the next process from here on; root may set it (proc_sys_kernel(5))."""


def with_pid(pid: int) -> subprocess.Popen[bytes] | None:
    """Start a process to which the kernel gives this pid, which has just become free; None if another was faster."""
    for _ in range(100):
        LAST_PID.write_text(str(pid - 1))
        stranger = subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"]}, start_new_session=True)
        if stranger.pid == pid:
            return stranger
        stranger.kill()
        stranger.wait()
        if Path(f"/proc/{pid}").exists():
            return None
    return None


@pytest.mark.slow  # it recycles pids also for tests that run at the same time and that may name one
@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="the kernel's next pid cannot be set here")
def test_a_foreign_process_with_a_recycled_pid_is_neither_adopted_nor_signalled(place: Place) -> None:
    """In the same boot: all processes of a run die, and others get the pids of its records."""
    place.launch(place.graph(holding(place, "a")))
    place.wait_until_held("a")
    stems = ("launch", "guardian-crew", "runner-a", "orchestrator-a")
    pids = {stem: place.pid(stem) for stem in stems}
    place.kill_all()
    for child in place.started:
        child.wait()
    strangers = {stem: one for stem, pid in pids.items() if (one := with_pid(pid)) is not None}
    try:
        assert strangers, "no pid could be taken again"
        again = place.resume()
        place.wait_until_held("a")
        for stem in stems:
            assert place.pid(stem, incarnation=2) != pids[stem]
        place.release("a")
        assert place.finish(again) == 0, place.logs()
        place.check("a")
        assert [stem for stem, one in strangers.items() if one.poll() is not None] == []
    finally:
        for one in strangers.values():
            one.kill()
            one.wait()
