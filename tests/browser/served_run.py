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

from support import DEADLINE, PROGRAM, Place, wait_for

HOSTILE = "<img src=x onerror=alert(1)>"
"""What nothing on a page may take for markup."""
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
"""Milliseconds for what a page shows once a run has done its work: agents, gates, git."""
WITHOUT_WORKER = "delete window.SharedWorker"
"""A script that makes a page open its own connection, which a test can see and answer."""


@contextmanager
def serving(home: Path, *, files: int | None = None, port: int = 0) -> Iterator[str]:
    """A server of a home that a test writes itself; the address it printed. `files`: how many it may open."""
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
    """A place whose page is served; `slow` works until it is freed, `bad` fails, `ask` waits for a person."""

    place: Place
    url: str = ""
    server: Any = None
    run: str = "r1"

    @property
    def home(self) -> str:
        """The page's address without what opens it."""
        return self.url.partition("/?")[0]

    def begin(self) -> None:
        """Launch the run, wait until it stands as described, and serve it."""
        graph = self.place.root / "web.dot"
        hold = f"python3 -m http.server 3000 2>/dev/null & {self.place.hold('slow')}"
        terminal = r"\\033[31mred\\033[0m \\033]8;;javascript:alert(1)\\007link\\n"
        texts = {"HOSTILE": HOSTILE, "GOAL": f"{HOSTILE} {CHINESE} {EMOJI}", "HOLD": hold, "TERMINAL": terminal,
                 "TITLE": TITLE, "LONG": ANSWERS[2]}
        text = GRAPH
        for word, meant in texts.items():
            text = text.replace(word, meant)
        graph.write_text(text)
        self.place.launch(graph, "r1", "--max-rework", "0", gate="true")
        wait_for("a run to serve", self.place.journal)
        self.serve()
        self.place.wait_until_held("slow")
        wait_for("the others have gone as far as they go", lambda: self.stands(
            fast="validated", bad="failed", slow="active") and self.asked("/api/runs/r1")["gates"])

    def stands(self, **statuses: str) -> bool:
        """Whether the journal says that these nodes are so far."""
        nodes = self.place.nodes()
        return all(nodes.get(name, {}).get("status") == status for name, status in statuses.items())

    def serve(self, port: str = "0") -> None:
        """Start the server; the address it prints opens the page."""
        log = f"serve-{time.monotonic_ns()}"
        self.server = self.place.begin("serve", "--port", port, "--run", self.run, log=log)
        told = self.place.root / log
        self.url = wait_for("the page is served", lambda: self._ready(told)).split()[0]

    def _ready(self, told: Path) -> str:
        assert self.server.poll() is None, told.read_text()
        return told.read_text() if "token=" in told.read_text() else ""

    def again(self) -> None:
        """Start it anew where it was."""
        self.serve(self.home.rpartition(":")[2])

    def kill(self) -> None:
        """End it as a crash does."""
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.wait(DEADLINE)

    def asked(self, path: str) -> Any:
        """JSON of the server, asked as a program does."""
        token = self.url.partition("token=")[2].partition("&")[0]
        request = Request(self.home + path, headers={"Authorization": f"Bearer {token}"})
        with urlopen(request, timeout=DEADLINE) as answer:
            return json.load(answer)

    def end(self, run: str = "r1") -> list[str]:
        """Stop run and server; what they left (nothing)."""
        self.place.release("slow")
        self.place.command("stop", run)
        if self.server is not None:
            self.server.terminate()
            self.server.wait(DEADLINE)
        return self.place.kill_rest()
