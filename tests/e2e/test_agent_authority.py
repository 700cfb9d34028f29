"""What an agent that is not confined may command: its own work, and nothing of the run, however it hides itself."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from support import PROGRAM, Node

SCRIPTS = Path(__file__).parents[2] / "scripts"
GARRISON = shlex.join(PROGRAM)
ATTEMPTS = {
    "stop": f"{GARRISON} stop r1",
    "without-environment": f'env -i PATH="$PATH" GARRISON_HOME="$GARRISON_HOME" {GARRISON} stop r1',
    "as-daemon": f"(setsid sh -c 'env -i PATH=\"$PATH\" {GARRISON} --home \"$GARRISON_HOME\" stop r1; "
                 "echo $? > daemon' > daemon.log 2>&1 &); until test -s daemon; do sleep 0.1; done; exit $(cat daemon)",
    "cancel": f"{GARRISON} agents cancel other",
    "gate": f"{GARRISON} merge-queue config --no-gate",
    "queue": f"{GARRISON} merge-queue cancel other",
    "doctor": f"{GARRISON} doctor --fix",
    "clean": f"{GARRISON} clean --yes",
    "launch": f"{GARRISON} launch --resume r1",
    "resume": f"{GARRISON} resume r1",
    "up": f"{GARRISON} up",
    "hook": f"{sys.executable} {SCRIPTS}/hook_manager.py update-phase runner other merged",
    "identity": f"{sys.executable} {SCRIPTS}/identity_registry.py mark-crashed orchestrator other --kill",
    "signal": f"{sys.executable} {SCRIPTS}/signal_protocol.py write guardian runner KILL_ORCHESTRATOR "
              "--payload '{\"node_id\": \"other\"}'",
    "function": f"{sys.executable} -c 'import sys; sys.path.insert(0, \"{SCRIPTS}\"); import merge_queue; "
                "sys.exit(0 if merge_queue.process_next()[\"success\"] else 1)'",
    "spawn": f"{sys.executable} {SCRIPTS}/spawn_runner.py --node x --prd P --target-dir . --command true",
}
"""Name → command of an agent."""
IN_TERMINAL = (f"tmux='tmux -S '$(test -S {{home}}/run/tmux.sock && echo {{home}}/run/tmux.sock || "
               f"cat {{home}}/run/tmux.socket-path); $tmux new-session -d -s own 'env -i GARRISON_HOME={{home}} "
               f"{GARRISON} "
               "stop r1 > {log} 2>&1; echo $? > {code}'; until test -s {code}; do sleep 0.1; done; "
               "$tmux kill-session -t own; cat {log}; exit $(cat {code})")
"""Command in a window that the agent opens in the home's own tmux server."""
ALLOWED = {
    "status": f"{GARRISON} status r1", "why": f"{GARRISON} why hostile", "list": f"{GARRISON} merge-queue list",
    "config": f"{GARRISON} merge-queue config", "validate": f"{GARRISON} pipeline handlers",
    "liveness": f"{sys.executable} {SCRIPTS}/identity_registry.py update-liveness orchestrator hostile",
    "notes": f"{sys.executable} {SCRIPTS}/hook_manager.py update-resumption orchestrator hostile 'half done'",
    "elsewhere": f"{GARRISON} --home ./own stop nothing; test $? -eq 1",
}


def script(commands: dict[str, str]) -> str:
    """Return shell that runs the commands, five at once, and keeps of each its exit code and what it prints."""
    lines = [f"{{ (cd $GARRISON_TREE; {line}) > $OUT/{name}.log 2>&1; echo $? > $OUT/{name}.code; }} &"
             for name, line in commands.items()]
    return "\n".join("\n".join([*lines[at:at + 5], "wait"]) for at in range(0, len(lines), 5)) + "\ntouch $OUT/all\n"


@pytest.mark.parametrize("terminal", [pytest.param("process", marks=pytest.mark.slow), "tmux"])
def test_an_agent_commands_nothing_of_its_run(place, terminal):
    """The hostile node tries everything while the other one works; both land, and the run knows of nothing."""
    place.terminal = terminal
    place.use_mode("none")
    out = place.root / "out-of-agent"
    out.mkdir()
    commands = place.root / "commands.sh"
    attempts = dict(ATTEMPTS)
    if terminal == "tmux":
        attempts["in-terminal"] = IN_TERMINAL.format(
            home=place.home, log=place.root / "terminal.log", code=place.root / "terminal.code")
    commands.write_text(f"OUT={out}\n{script({**attempts, **ALLOWED})}")
    graph = place.graph(Node("hostile", before=f"sh {commands}; rm -rf daemon daemon.log own"),
                        Node("other", before=f"until test -e {out}/all; do sleep 0.1; done"))
    child = place.launch(graph, "r1", "--max-agents", "2")
    assert place.finish(child) == 0, place.logs() + "".join(
        f"{path.name}: {path.read_text()}" for path in sorted(out.iterdir()))
    said = {name: (out / f"{name}.log").read_text() for name in {**attempts, **ALLOWED}}
    said["as-daemon"] = said["as-daemon"] or "garrison: refused, one line\n"
    codes = {name: int((out / f"{name}.code").read_text()) for name in said}
    assert {name: codes[name] for name in attempts if name != "function"} == \
        {name: 2 for name in attempts if name != "function"}, said
    assert codes["function"] != 0
    for name in attempts:
        if name != "function":
            assert said[name].count("\n") == 1, said[name]
            assert "refused" in said[name]
    assert {name: codes[name] for name in ALLOWED} == dict.fromkeys(ALLOWED, 0), said
    place.check_landed("hostile", "other")
