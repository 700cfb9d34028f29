"""Previews and services of whole runs, killed at any time: they come back, and leave nothing after the run."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from garrison.system import processes
from sandbox_support import missing
from support import PROGRAM, Node, Place, git, is_gone, wait_for

GREETER = """
[services.greeter]
command = "python3 -m http.server {port} --bind 127.0.0.1"
template = "echo hello > {data}/greeting"
port = 4000
env = { GREETER = "http://127.0.0.1:{port}/greeting" }
"""
COMMAND = "setsid python3 -m http.server 3000 --bind 127.0.0.1"


def read(url: str, path: str) -> str:
    place = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=60)
    try:
        connection.request("GET", path, headers={"Host": place.netloc})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("mode", ["auto", pytest.param("none", marks=pytest.mark.slow)])
def test_a_preview_of_a_commit_leaves_nothing_after_a_kill(mode: str, place: Place) -> None:
    place.run(place.graph(Node("web", command="echo one > page && git add -A && git commit -qm Page")))
    place.use_mode(mode)
    log = place.root / "preview.log"

    def begin() -> tuple[subprocess.Popen[str], str]:
        child = subprocess.Popen([*PROGRAM, "preview", "web", "3000", "--command", COMMAND], env=place.env, text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log.open("wb"))
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        assert url, log.read_text() + place.logs()
        return child, url

    def left() -> list[int]:
        return [each.pid for each in processes.list_processes() if ":preview-web#" in (each.marker or "")
                and (each.marker or "").startswith(str(place.home))]

    first, url = begin()
    assert read(url, "/page") == "one\n"
    before = left()
    first.kill()
    first.wait()
    if mode == "auto":  # a sandbox ends with the preview
        wait_for("its server has ended", lambda: not left())
    second, url = begin()
    assert read(url, "/page") == "one\n"
    assert all(map(is_gone, before))
    second.send_signal(signal.SIGINT)
    second.wait(60)
    assert not left()
    names = [path.name for folder in (place.home, Path(os.fspath(place.trees))) for path in folder.rglob("*.preview-*")]
    assert names == []


def test_a_preview_stays_while_processes_of_its_node_are_killed_and_replaced(place: Place) -> None:
    serve = "python3 -m http.server 3000 --bind 127.0.0.1 & server=$!; "
    child = place.launch(place.graph(Node("web", command=f"{serve}{place.hold('it')}; kill $server; echo one > page; "
                                          "git add -A; git commit -qm Page")))
    place.wait_until_held("it")
    opened = place.command("preview", "web", "3000", "--background")
    assert opened.returncode == 0, opened.stderr + place.logs()
    url = opened.stdout.strip()

    def is_shown() -> bool:
        return "Directory listing" in read(url, "/")

    assert is_shown()
    for stem in ("orchestrator-web", "runner-web"):
        place.kill_and_await(stem)
        wait_for(f"it is shown again after the end of {stem}", is_shown)
        assert place.command("preview", "web", "3000", "--background").stdout.strip() == url
    place.release_to_end(child, "it")
    wait_for("its preview is closed", lambda: url not in place.command("preview", "--list").stdout)
    place.check_nothing_left()


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_service_survives_kills_of_all_that_keep_it_and_ends_with_its_node(place: Place) -> None:
    with (place.home / "config.toml").open("a") as config:
        config.write(GREETER)
    fetch = 'for i in $(seq 300); do curl -sf "$GREETER" > greeting && break; sleep 0.2; done'
    command = f"{place.hold('it')}; {fetch}; git add -A; git commit -qm Page"
    child = place.launch(place.graph(Node("web", command=command)),
                         gate='curl -sf "$GREETER" | cmp - greeting || test ! -e greeting')

    def of_service(number: str = "") -> list[int]:
        marks = [(each.pid, each.marker or "") for each in processes.list_processes()]
        return [pid for pid, mark in marks if mark.startswith(f"{place.home}:") and ":service-greeter#" in mark
                and (not number or mark.endswith(f"#{number}"))]

    place.wait_until_held("it")
    for stem in ("orchestrator-web", "runner-web"):
        place.kill_and_await(stem)

    def kill(pids: set[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    keepers = set(of_service("1"))  # the keeper, and its child that dials
    kill(keepers)
    wait_for("another keeper works", lambda: set(of_service("1")) - keepers
             and set(of_service()) - set(of_service("1")))
    kill(set(of_service()) - set(of_service("1")))
    place.release_to_end(child, "it")
    assert git(place.repo, "show", "main:greeting") == "hello"
    wait_for("nothing of it runs", lambda: not of_service())
    assert not [path for folder in (place.home, place.trees) for path in folder.rglob("services/greeter")]
