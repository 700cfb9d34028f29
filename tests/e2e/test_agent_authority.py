"""An agent without a sandbox may command its own work and nothing of the run; its socket takes its reports alone."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from support import PROGRAM, Node, wait_for

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
               f"{GARRISON} stop r1 > {{log}} 2>&1; echo $? > {{code}}'; until test -s {{code}}; do sleep 0.1; done; "
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
    """Return shell that runs the commands, five at once, and keeps the exit code and output of each."""
    lines = [f"{{ (cd $GARRISON_TREE; {line}) > $OUT/{name}.log 2>&1; echo $? > $OUT/{name}.code; }} &"
             for name, line in commands.items()]
    return "\n".join("\n".join([*lines[at:at + 5], "wait"]) for at in range(0, len(lines), 5)) + "\ntouch $OUT/all\n"


@pytest.mark.parametrize("terminal", [pytest.param("process", marks=pytest.mark.slow), "tmux"])
def test_an_agent_commands_nothing_of_its_run(place, terminal):
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
    assert codes["function"] != 0
    for name in attempts.keys() - {"function"}:
        assert (codes[name], said[name].count("\n"), "refused" in said[name]) == (2, 1, True), (name, said[name])
    assert {name: codes[name] for name in ALLOWED} == dict.fromkeys(ALLOWED, 0), said
    place.check_landed("hostile", "other")


def test_an_agent_asks_and_reports_and_its_sibling_cannot_report_for_it(place):
    """b, of the same user, reports a failure for a. a's orchestrator dies while its agent waits: the next one asks
    again. After a red acceptance the next attempt knows the answer."""
    graph = place.graph(
        Node("a", attributes='acceptance="test -e again.txt"',
             before=f"{GARRISON} phase executing; {GARRISON} note 'half of it is done'; if [ $GARRISON_ATTEMPT = 1 ]; "
                    f"then colour=$({GARRISON} ask-person 'Which colour?'); else touch again.txt; "
                    "colour=$(sed -n 's/^- asked .Which colour?., they answered: //p' $GARRISON_PROMPT_FILE); fi; "
                    "echo $colour > colour.txt",
             then=f"{GARRISON} report --status success --label ship --context colour=$colour --context tests.red=0"),
        Node("b", before=f"{place.hold('b')}; GARRISON_AGENT_SOCKET=$(echo {place.home}/runs/r1/nodes/a/1/agent.sock) "
                         f"{GARRISON} report --status fail --reason sabotage && exit 9; "
                         f"{GARRISON} ask-person < /dev/null && exit 9; true"),
        Node("c", command=f"{GARRISON} report --status nothing_to_do --notes 'calc.py:1 has it'",
             attributes='prompt="Add it"'))
    child = place.launch_until("b", graph)
    wait_for("a asks", lambda: "Which colour?" in place.command("status", "r1").stdout)
    place.release("b")
    wait_for("b is over", lambda: place.nodes()["b"]["status"] == "validated")
    place.kill("orchestrator-a")
    wait_for("a successor", lambda: place.identity("orchestrator-a")["incarnation"] == 2)
    answered = place.command("answer", "a", "blue")
    assert answered.returncode == 0 and "answer recorded to “Which colour?”" in answered.stderr, answered.stderr
    assert place.finish(child) == 0, place.logs()
    result = json.loads((place.home / "runs/r1/nodes/a/2/result.json").read_text())
    assert result["said"]["context_updates"] == {"colour": "blue", "tests.red": 0}
    assert result["said"]["preferred_label"] == "ship"
    assert place.hook("orchestrator-a")["resumption_instructions"].endswith("half of it is done")
    assert (place.repo / "colour.txt").read_text() == "blue\n"
    assert (place.nodes()["c"]["status"], place.nodes()["c"]["landing"]) == ("validated", "no change")
    refused = (place.home / "runs/r1/nodes/b/1/output.log").read_text()
    assert "GARRISON_AGENT_SOCKET names no socket" in refused, "there is none but its own in its sandbox"
    assert not (place.home / "runs/r1/nodes/a/1/agent.sock").exists()
