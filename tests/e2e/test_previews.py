"""A server at an attempt's commit: shown, killed at any moment, and gone without a trace."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from garrison.system import processes
from support import PROGRAM, Node, Place, is_gone, wait_for

COMMAND = "setsid python3 -m http.server 3000 --bind 127.0.0.1"


def read(url: str, path: str) -> str:
    place = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=60)
    try:
        connection.request("GET", path, headers={"Host": place.netloc})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("mode", [pytest.param("auto", marks=pytest.mark.slow), "none"])
def test_a_server_at_a_commit_is_shown_and_leaves_nothing_after_a_kill(mode: str, place: Place) -> None:
    assert place.finish(place.launch(place.graph(Node("web", command="echo one > page && git add -A && "
                                                      "git commit -qm Page")))) == 0, place.logs()
    config = place.home / "config.toml"
    config.write_text(config.read_text().replace("[sandbox]\n", f'[sandbox]\nmode = "{mode}"\n'))

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
