"""Containers as places: what is inside, how they end, and that nothing of them is left. Skipped without Podman."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from container_support import IMAGE, container_engine
from garrison.agents.registry import describe_program_inside
from garrison.cli.init import Programs
from garrison.doctor.findings import judge_container
from garrison.errors import Refused
from garrison.sandbox import container
from garrison.sandbox.confine import Confined, confine
from garrison.sandbox.place import Mode, Mount, Network, Place, Rights, Role
from garrison.values import replace
from support import wait_for, write_program

RUN = f"r-{os.getpid()}"
__all__ = ["container_engine"]
MARKER = f"/nowhere:{RUN}:orchestrator-n1#1"
READY = "inside"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("tree", "shown"):
        (tmp_path / name).mkdir()
    return Place(Role.AGENT, Rights(Mode.CONTAINER, Network.NONE, image=IMAGE), tmp_path / "tree",
                 tmp_path / "private", (Mount(tmp_path / "shown", Path("/checkout/.git")),), checkout=Path("/checkout"))


def confined(place: Place, script: str, **env: str) -> Confined:
    return confine(["/bin/sh", "-c", script], {**os.environ, "GARRISON_LIFE": MARKER, **env}, place)


def run(place: Place, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    made = confined(place, script, **env)
    added = {"ADDED": "by its starter"}  # as the SDK of an agent's CLI does
    return subprocess.run(made.argv, env={**made.env, **added}, capture_output=True, text=True, check=False,
                          input="given\n")


@pytest.fixture
def running(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the launcher of a container whose command runs."""
    made = confined(place, f"touch {READY}; trap 'touch term' TERM; sleep 1000 & wait; wait")
    with subprocess.Popen(made.argv, env=dict(made.env), start_new_session=True) as child:
        wait_for("the command", (place.worktree / READY).exists)
        yield child
        child.kill()


def names(*options: str) -> list[str]:
    return subprocess.run(["podman", "ps", *options, "--filter", f"label=garrison.run={RUN}", "--format",
                           "{{.Names}}"], capture_output=True, text=True, check=True).stdout.split()


def left_here() -> list[container.LeftContainer]:
    return [each for each in container.list_left() if each.run == RUN]


def test_a_command_has_the_images_system_its_worktree_and_no_more(place: Place, tmp_path: Path) -> None:
    done = run(place, """
        cat; cat /proc/self/status | grep -E '^(CapEff|NoNewPrivs)'; pwd; echo "$WITH_SPACE" >made; ls /sys/class/net
        touch /etc/x 2>&1; touch /checkout/.git/x 2>&1; ls "$OUTSIDE" 2>&1; echo "$ADDED"; echo "shell $SHELL"
        echo $PATH; ls ~; exit 7""", SHELL="/bin/of-machine",
        WITH_SPACE="a b\nc", OUTSIDE=str(tmp_path), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 7, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "given"
    assert "CapEff:\t0000000000000000" in lines and "NoNewPrivs:\t1" in lines
    assert {"/checkout", "lo", "by its starter"} <= set(lines)
    assert "of-machine" not in done.stdout
    assert [line for line in lines if line.startswith("touch")] == [
        "touch: cannot touch '/etc/x': Read-only file system",
        "touch: cannot touch '/checkout/.git/x': Read-only file system"]
    assert any("No such file" in line for line in lines)
    assert str(tmp_path) not in done.stdout.split("PATH")[-1].splitlines()[-1]
    assert (place.worktree / "made").read_text() == "a b\nc\n"
    assert not names("--all")


def test_calls_that_no_place_allows_are_refused(place: Place) -> None:
    """Two of them are keyctl and io_uring_setup."""
    done = run(place, """
        python3 -c 'from ctypes import CDLL; print(CDLL(None).syscall(250, 1, 0), CDLL(None).syscall(425, 1, 0))'
        python3 -c 'import socket; socket.socket(40, 1); print("vsock")'
        unshare -U true && echo a namespace""")
    assert done.stdout.split() == ["-1", "-1"], done.stdout + done.stderr


@pytest.mark.parametrize("victim", ["launcher", "client", "monitor"])
def test_nothing_is_left_once_any_of_its_processes_was_killed(
        running: subprocess.Popen[bytes], victim: str) -> None:
    below = {line.split()[1]: int(line.split()[0]) for line in subprocess.run(
        ["ps", "--ppid", str(running.pid), "-o", "pid=,comm="], capture_output=True, text=True, check=True
    ).stdout.splitlines()}
    [name] = names()
    state = json.loads(subprocess.run(["podman", "inspect", name], capture_output=True, text=True, check=True).stdout)
    inside = state[0]["State"]["Pid"]
    labels = state[0]["Config"]["Labels"]
    assert (labels["garrison.run"], labels["garrison.node"], labels["garrison.home"], labels["garrison.role"]) == (
        RUN, "orchestrator-n1", "/nowhere", "agent")
    assert not left_here()
    os.kill({"launcher": running.pid, "client": below["podman"], "monitor": below["conmon"]}[victim], signal.SIGKILL)
    assert running.wait(30) == -signal.SIGKILL
    wait_for("the end of what is inside", lambda: not Path(f"/proc/{inside}").exists())
    wait_for("no container", lambda: not names("--all"))


DOCKER = """\
#!/bin/sh
# what Docker's client does: no descriptors, none of Podman's own options
case " $* " in *" --preserve-fds "*|*" --systemd "*|*" --userns "*|*" --image-volume "*) exit 125 ;; esac
exec 3<&-
exec podman {options} "$@"
"""


def test_a_docker_container_ends_with_its_launcher(
        place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker itself runs in no test: its words are run by Podman, which takes the same."""
    found = container.ready(IMAGE)
    program = tmp_path / "docker"
    write_program(program, DOCKER.format(options=" ".join(found.options)))
    engine = container.ContainerEngine(str(program), (), found.limits, IMAGE, found.image_id, found.path)
    monkeypatch.setattr(container, "ready", lambda image: engine)
    made = confined(place, f"cat; echo > /run/garrison-line; id -u > {READY}; sleep 1000")
    with subprocess.Popen(made.argv, env=dict(made.env), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as child:
        wait_for("the command", lambda: (place.worktree / READY).exists() or child.poll() is not None)
        assert child.poll() is None, child.communicate()[1]
        [name] = names()
        child.kill()
        assert "Permission denied" in child.stderr.read(), "what is inside cannot hold its own line"
    wait_for("no container", lambda: not names())
    subprocess.run(["podman", "rm", "--force", "--ignore", name], capture_output=True, check=False)


def test_the_program_inside_gets_a_term_and_the_container_ends_with_it(
        place: Place, running: subprocess.Popen[bytes]) -> None:
    os.kill(running.pid, signal.SIGTERM)
    time.sleep(0.2)
    assert running.poll() is None, "the launcher waits for what is inside"
    for found in Path("/proc").glob("[0-9]*"):
        try:
            if b"sleep\x001000" in (found / "cmdline").read_bytes() and \
                    MARKER.encode() in (found / "environ").read_bytes():
                os.kill(int(found.name), signal.SIGTERM)
        except (OSError, ValueError):
            continue
    assert running.wait(30) == 0


def test_a_container_without_an_owner_is_found_by_its_labels_and_removed() -> None:
    done = subprocess.run(["podman", "run", "--detach", "--label", "garrison.owner=1 1 another-boot", "--label",
                           f"garrison.run={RUN}", *container.ready(IMAGE).limits, "--network", "none", IMAGE, "sleep",
                           "1000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [left] = left_here()
    assert (left.id, left.run) == (done.stdout.strip(), RUN)
    assert left.id[:12] in judge_container(left).text
    container.remove_left([left])
    assert not left_here()


def test_a_terminal_is_one_inside_as_well(place: Place) -> None:
    made = confined(place, "tty; stty size; read -r line; echo got $line")
    outer, inner = os.openpty()
    with subprocess.Popen(made.argv, env=dict(made.env), stdin=inner, stdout=inner, stderr=inner,
                          start_new_session=True) as child:
        os.close(inner)
        os.write(outer, b"typed\n")
        told = b""
        with contextlib.suppress(OSError):  # EIO once no one has the other end
            while piece := os.read(outer, 1000):
                told += piece
        assert child.wait(30) == 0
    os.close(outer)
    assert b"/dev/pts/0" in told and b"got typed" in told


def test_a_launch_uses_the_image_that_has_the_name_now() -> None:
    name = f"localhost/garrison-test-moved-{os.getpid()}"
    subprocess.run(["podman", "tag", IMAGE, name], check=True)
    source = subprocess.run(["podman", "create", IMAGE, "true"], capture_output=True, text=True, check=True
                            ).stdout.strip()
    try:
        first = container.at_launch(name)
        assert container.at_launch(name) == first
        made = subprocess.run(["podman", "commit", "--quiet", source, name], capture_output=True, text=True, check=True)
        assert container.ready(name) == first
        assert container.at_launch(name).image_id == made.stdout.strip()
    finally:
        subprocess.run(["podman", "rm", "--force", source], capture_output=True, check=False)
        subprocess.run(["podman", "rmi", "--force", name], capture_output=True, check=False)


def test_init_looks_for_programs_in_the_image(tmp_path: Path) -> None:
    (tmp_path / "of-machine").touch(mode=0o755)
    inside = Programs(str(tmp_path), container.ready(IMAGE))
    assert inside.find_missing(["git", "of-machine"]) == ["of-machine"]
    assert not Programs(str(tmp_path)).find_missing(["of-machine"])
    assert len(inside.python_versions()) == 2, "python3, and python3.N"


def test_an_agents_program_is_of_the_image_or_mounted_or_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[agents.shell]\nargv = ["sh"]\n[agents.gone]\nargv = ["of-machine"]\n[agents.own]\nargv = ["/opt/own/x"]\n')
    shown = replace(place.rights, read=(Path("/opt/own"),))
    assert [describe_program_inside(name, tmp_path, shown) for name in ("shell", "own", "claude")] == [
        "agent shell: /usr/bin/sh comes from the image", "agent own: /opt/own/x is mounted from this machine",
        "agent claude: its program is mounted from this machine"]
    with pytest.raises(Refused, match=f"agent gone runs of-machine, which the image {IMAGE} lacks; add it"):
        describe_program_inside("gone", tmp_path, place.rights)


def test_an_image_that_exists_nowhere_is_refused_with_its_name() -> None:
    with pytest.raises(Refused, match="no container of localhost/no-such-image runs here: podman: "):
        container.ready("localhost/no-such-image")


def test_an_engine_that_cannot_join_a_network_is_refused_with_what_helps(place: Place) -> None:
    engine = container.ContainerEngine("/usr/bin/docker", image=IMAGE)
    entered = Place(Role.AGENT, place.rights, place.worktree, place.private, entry=("nsenter",))
    with pytest.raises(Refused, match='network = "none" or "open"'):
        container.command_line(engine, ["true"], entered, [], {}, start=None)
