"""A node's agent in a real tmux session, in a home of real records, for tests of what shows and types into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from garrison.records.identity import KEYBOARD, Identity
from garrison.records.names import Key
from garrison.records.run import RunFiles, Task, save
from garrison.system.terminal import TerminalSession
from garrison.system.tmux import TmuxTerminal
from garrison.values import asdict, replace
from support import is_gone, wait_for
from top_support import HomeBuilder, home_builder

KEY = Key("orchestrator", "a", "r1")
ECHO = "stty raw -echo; printf 'listening\\r\\n'; exec cat -vT"
"""A program that shows each key it gets."""


@contextmanager
def agent_in_tmux(home: Path, script: str, *, keyboard: bool = True) -> Iterator[tuple[HomeBuilder, TerminalSession]]:
    """Yield a home whose node `a` of run `r1` runs a script in a session; all of it ends with the context."""
    with home_builder(home) as builder:
        builder.run("r1", "a", "b").close()
        builder.incarnation("runner", "a", "r1")
        builder.incarnation("orchestrator", "a", "r1")
        terminal = TmuxTerminal(home)
        session = terminal.open(KEY.full, ["/bin/sh", "-c", script], env={"PATH": os.environ["PATH"], "TERM": "screen"},
                                cwd=home, log=home / "a.log")
        metadata = {KEYBOARD: True} if keyboard else {}
        builder.store.update(Identity, KEY, lambda old: replace(old, tmux=asdict(session), metadata=metadata))
        folder = RunFiles(home, "r1").attempt("a", 1)
        folder.mkdir(parents=True, exist_ok=True)
        save(folder / "task.json", Task("r1", "a", 1))
        servers = [int(one.server.partition(":")[0]) for one in terminal.sessions()]
        try:
            yield builder, session
        finally:
            for one in terminal.sessions():
                terminal.close(one, grace=0)
            terminal.shutdown()
            for pid in servers:
                wait_for("the tmux server has ended", lambda pid=pid: is_gone(pid))
