"""Hosts over real ssh, in network namespaces of this machine, each with a user and a home of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from garrison.hosts.keeper import read_state
from hosts_lab import HostsLab, LabHost, find_hindrance
from support import git, make_repository, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("temporalio", reason="the extra garrison[hosts] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(find_hindrance()), reason=find_hindrance() or "possible")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[HostsLab]:
    with HostsLab(tmp_path, ("box1",)) as made:
        yield made


REACH = """\
import socket, sys
with open("reached.txt", "w") as out:
    for word in sys.argv[1:]:
        host, port = word.split(":")
        try:
            socket.create_connection((host, int(port)), 5).close()
            out.write(word + " yes\\n")
        except OSError:
            out.write(word + " no\\n")
"""


ASK = """\
import sys, urllib.request
url, path = sys.argv[1:]
host = url.split("/")[2]
request = urllib.request.Request(f"http://127.0.0.1:{host.rpartition(':')[2]}/{path}", headers={"Host": host})
print(urllib.request.urlopen(request).read().decode(), end="")
"""


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def seen(lab: HostsLab) -> dict[str, Any]:
    hosts: list[dict[str, Any]] = json.loads(lab.garrison("host", "list", "--json").stdout)
    return next(host for host in hosts if host["name"] == "box1")


def is_ready(lab: HostsLab) -> bool:
    return bool(seen(lab)["state"] == "ready")


def launch(lab: HostsLab, node: str, run: str, command: str, *more: str) -> None:
    """Launch a run of one node on a host."""
    graph, repo = lab.folder / f"{node}.dot", lab.folder / "repo"
    graph.write_text(f"digraph {node} {{ flow=dag; start [shape=Mdiamond]; end [shape=Msquare]; start -> {node} -> end "
                     f'{node} [agent=command, command="{command}"]; }}')
    ok(lab.garrison("launch", str(graph), "--target-dir", str(repo), "--run", run, "--hosts", "gpu", *more))


def test_a_host_is_added_works_is_cut_off_reboots_drains_and_is_removed(lab: HostsLab) -> None:
    lab.boot()
    box = lab.hosts["box1"]
    ok(lab.garrison("host", "add", "box1", "--slots", "3", "--label", "gpu"))
    there = seen(lab)
    assert (there["state"], there["slots"], there["labels"]) == ("ready", 3, ["gpu"])
    assert there["seen"]["working"] == [] and there["seen"]["version"] and abs(there["seen"]["clock_offset"]) < 60
    assert oct((box.home / ".local/share/garrison-hosts").stat().st_mode)[-3:] == "700"

    # added again: nothing is installed twice, and its slots change
    again = lab.garrison("host", "add", "box1", "--slots", "4")
    ok(again)
    assert "the same garrison is already installed there" in again.stderr
    wait_for("its slots changed", lambda: seen(lab)["seen"].get("slots") == 4)

    # a node on it lands, and its agent reaches neither the engine nor home
    repo = lab.folder / "repo"
    make_repository(repo)
    (repo / "reach.py").write_text(REACH)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "Add a probe")
    targets = [("127.0.0.1", int(there["port"])), (box.way_home, 22), (box.address, 22)]
    words = " ".join(f"{host}:{port}" for host, port in targets)
    launch(lab, "one", "r1", f"python3 reach.py {words} && git add -A && git commit -qm Reach", "--gate",
           "test -e calc.py")
    reached = git(repo, "show", "main:reached.txt").splitlines()
    assert reached == [f"{host}:{port} no" for host, port in targets]
    ok(lab.garrison("verify", "r1"))

    # what a node on it serves is shown here, through ssh, until the node ends
    serve = "echo hello > page; python3 -m http.server 3000 2>log & until grep -q seen log; do sleep 0.1; done; kill $!"
    launch(lab, "web", "r2", f"{serve}; git add page && git commit -qm Serve", "--no-gate", "--detach")
    url = ok(lab.garrison("preview", "web", "3000", "--run", "r2", "--background")).strip()
    assert url.startswith("http://web-r2.localhost:")
    assert ok(lab.execute(sys.executable, "-c", ASK, url, "page")) == "hello\n"
    lab.execute(sys.executable, "-c", ASK, url, "seen")
    ok(lab.garrison("wait", "r2"))
    wait_for("its preview is closed", lambda: url not in lab.garrison("preview", "--list").stdout)
    assert lab.ssh("box1", "pgrep -f -- '-[-]relay'; ls /home/builder/.local/share/garrison-hosts/*/box1/home/previews"
                   ).stdout == ""

    # cut off, and back: the end of the old tunnel on the host does not keep the new one from its port
    box.cut()
    wait_for("it is out of reach", lambda: seen(lab)["state"].startswith("unreachable, seen "))
    assert "cannot be reached" in refused(lab.garrison("host", "show", "box1")) or seen(lab)["why"]
    box.heal()
    wait_for("it is back", lambda: is_ready(lab))

    # a reboot: nothing but home's tunnel starts its service again
    box.power_off()
    box.boot()
    wait_for("it is back after a reboot", lambda: is_ready(lab))

    ok(lab.garrison("host", "drain", "box1"))
    wait_for("it drains", lambda: seen(lab)["seen"].get("state") == "draining")
    assert seen(lab)["state"] == "draining"
    ok(lab.garrison("host", "drain", "box1", "--undo"))
    wait_for("it takes work again", lambda: seen(lab)["seen"].get("state") == "ready")

    ok(lab.garrison("host", "remove", "box1"))
    assert not list((box.home / ".local/share/garrison-hosts").glob("*/*"))
    assert lab.ssh("box1", "ps -u builder -o args= | grep 'garrison-hosts' | grep -v grep").stdout == ""
    wait_for("the keeper ends without hosts", lambda: not _lives(read_state(lab.home).pid))


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_each_failure_of_a_set_up_is_one_line_with_its_remedy(lab: HostsLab) -> None:
    box = lab.hosts["box1"]
    box.boot()
    known = lab.keys / "known"
    trusted = known.read_text()
    known.write_text("")
    assert "run `ssh box1` once by hand" in refused(lab.garrison("host", "add", "box1"))
    known.write_text(trusted)
    assert "is not Python 3.11 or newer" in refused(lab.garrison("host", "add", "box1", "--python", "/bin/sh"))
    box.cut()
    assert "it does not answer" in refused(lab.garrison("host", "add", "box1"))
    box.heal()
    box.power_off()
    assert "cannot be reached" in refused(lab.garrison("host", "add", "box1"))
    (lab.folder / "small").mkdir()
    box.mount_home = f"mount -t tmpfs -o size=20m,mode=755,uid={box.uid} tmpfs /home/builder"
    box.boot()
    line = refused(lab.garrison("host", "add", "box1"))
    assert "MB free" in line and "make room" in line
    assert lab.garrison("host", "list").stdout.startswith("no hosts")


def test_an_interrupted_set_up_can_be_removed_and_continued(lab: HostsLab) -> None:
    lab.boot()
    interrupt_add(lab)
    assert "its set-up was not finished" in ok(lab.garrison("host", "list"))
    (base,) = lab.hosts["box1"].home.glob(".local/share/garrison-hosts/*/box1")
    ok(lab.garrison("host", "remove", "box1"))
    assert not base.exists()
    assert "no hosts" in ok(lab.garrison("host", "list"))
    interrupt_add(lab)
    ok(lab.garrison("host", "add", "box1"))
    assert is_ready(lab)


def interrupt_add(lab: HostsLab) -> None:
    """Kill `host add` while it installs."""
    first = subprocess.Popen(lab.command(lab.program, "host", "add", "box1"), env=lab.environ, text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert first.stderr is not None
    for line in first.stderr:
        if "installing it" in line:
            break
    first.kill()
    first.communicate()


def test_the_keeper_its_server_and_its_tunnels_come_back(lab: HostsLab) -> None:
    lab.boot()
    ok(lab.garrison("host", "add", "box1"))
    state = read_state(lab.home)
    subprocess.run(["kill", "-9", str(state.pid)], check=True)
    wait_for("the tunnel of a killed keeper ends", lambda: not _tunnels(lab.hosts["box1"]))
    assert _lives(state.server_pid)
    wait_for("the next command starts a keeper", lambda: is_ready(lab))
    after = read_state(lab.home)
    assert after.pid != state.pid and after.server_pid == state.server_pid
    subprocess.run(["kill", "-9", str(after.server_pid)], check=True)
    wait_for("the server comes back", lambda: read_state(lab.home).server_pid != after.server_pid)
    wait_for("the host is connected again", lambda: is_ready(lab))
    assert read_state(lab.home).address == state.address


def _tunnels(host: LabHost) -> list[int]:
    """Return the ends of tunnels on a host: what serves a session whose command is that of a tunnel."""
    return [pid for pid in host.pids() if Path(f"/proc/{pid}/cmdline").read_bytes() == b"cat\0"]
