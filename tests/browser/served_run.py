"""A run and its page's server, both real, for the tests of this folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from real_texts import ANSWERS, CHINESE, EMOJI, TITLE

from support import DEADLINE, PROGRAM, Place, checkout_in, make_repository, wait_for

HOSTILE = "<img src=x onerror=alert(1)>"
"""Text that a page must not take for markup."""
GRAPH = r"""
digraph web {
  flow=dag; goal="count money in cents GOAL"
  start [shape=Mdiamond]; exit [shape=Msquare]
  fast [shape=box, label="HOSTILE", command="echo 'HOSTILE'; printf 'TERMINAL'; touch fast.txt"]
  slow [shape=box, label="Money in cents", command="echo begun; HOLD; echo m > m.txt; git add -A; git commit -qm m"]
  bad  [shape=box, label="Audit", command="echo it is red; exit 3"]
  ask  [shape=hexagon, label="Land the rounding rule?"]
  land [shape=box, label="TITLE", command="touch land.txt"]
  start -> fast -> exit; start -> slow -> exit; start -> bad -> exit; start -> ask
  ask -> land [label="[Y] Yes, land it"]; ask -> exit [label="[N] Not yet"]; ask -> exit [label="LONG"]; land -> exit
}
"""


WORK = round(1000 * DEADLINE)
"""Milliseconds for what a page shows once agents, gates and git have done their work."""
WITHOUT_WORKER = "delete window.SharedWorker"
"""A script that makes a page open its own connection, which a test can see and answer."""


@contextmanager
def serving(home: Path, *, files: int | None = None, port: int = 0) -> Iterator[str]:
    """Yield the address of a server of a home that a test writes itself. `files`: how many it may open."""
    log = home / "serve"
    limit = ["prlimit", f"--nofile={files}:{files}"] if files else []
    with log.open("wb") as out:
        server = subprocess.Popen([*limit, *PROGRAM, "--home", str(home), "serve", "--port", str(port)],
                                  stdout=out, stderr=out)
    try:
        wait_for("it is served", lambda: "token=" in log.read_text())
        yield log.read_text().split()[0]
    finally:
        server.terminate()
        server.wait(DEADLINE)


@dataclass
class Served:
    """A place whose page is served; `slow` works until it is released, `bad` fails, `ask` waits for an answer."""

    place: Place
    url: str = ""
    server: Any = None
    run: str = "r1"

    @property
    def home(self) -> str:
        """The page's address without its token."""
        return self.url.partition("/?")[0]

    def begin(self) -> None:
        """Launch the run, serve it, and wait until its nodes are as described."""
        graph = self.place.root / "web.dot"
        hold = f"python3 -m http.server 3000 2>/dev/null & {self.place.hold('slow')}"
        terminal = r"\\033[31mred\\033[0m \\033]8;;javascript:alert(1)\\007link\\n"
        texts = {"HOSTILE": HOSTILE, "GOAL": f"{HOSTILE} {CHINESE} {EMOJI}", "HOLD": hold, "TERMINAL": terminal,
                 "TITLE": TITLE, "LONG": ANSWERS[2]}
        text = GRAPH
        for word, meant in texts.items():
            text = text.replace(word, meant)
        graph.write_text(text)
        self.launch(graph, "--max-rework", "0", gate="true")
        self.place.wait_until_held("slow")
        statuses = {"fast": "validated", "bad": "failed", "slow": "active"}
        wait_for("the others have ended or wait", lambda: all(
            self.place.nodes().get(name, {}).get("status") == status for name, status in statuses.items())
            and self.get("/api/runs/r1")["gates"])

    def launch(self, graph: Path, *more: str, gate: str) -> None:
        """Launch the run and serve it."""
        self.place.launch(graph, self.run, *more, gate=gate)
        wait_for("a run to serve", lambda: self.place.journal(self.run))
        self.serve()

    def serve(self, port: str = "0") -> None:
        """Start the server; the address it prints opens the page."""
        log = f"serve-{time.monotonic_ns()}"
        self.server = self.place.begin("serve", "--port", port, "--run", self.run, log=log)
        printed = self.place.root / log
        wait_for("the page is served", lambda: "token=" in printed.read_text() or self.server.poll() is not None)
        assert self.server.poll() is None, printed.read_text()
        self.url = printed.read_text().split()[0]

    def restart(self) -> None:
        """Start it again at its port."""
        self.serve(self.home.rpartition(":")[2])

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.wait(DEADLINE)

    def get(self, path: str) -> Any:
        """Return JSON of the server."""
        token = self.url.partition("token=")[2].partition("&")[0]
        request = Request(self.home + path, headers={"Authorization": f"Bearer {token}"})
        with urlopen(request, timeout=DEADLINE) as answer:
            return json.load(answer)

    def end(self) -> list[str]:
        """Stop run and server; return the processes that they left."""
        self.place.release("slow")
        self.place.command("stop", self.run)
        if self.server is not None:
            self.server.terminate()
            self.server.wait(DEADLINE)
        return self.place.kill_rest()


@contextmanager
def served_place(folder: Path, run: str = "r1") -> Iterator[Served]:
    """Yield a place whose page can be served; at its end no process may be left."""
    make_repository(checkout_in(folder))
    made = Served(Place(folder), run=run)
    try:
        yield made
    finally:
        left = made.end()
    assert not left, left
