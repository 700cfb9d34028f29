"""Only what is ours is touched: whoever signals a process does it through `processes.send` or a sweep.

Both verify by pidfd and start ticks that the process is still the one that was meant. Any other way to signal must
stand in the list below, with the reason why it can reach nobody else.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import garrison

ROOT = Path(garrison.__file__).parent
DEMO = Path(__file__).parents[2] / "examples" / "demo"
SIGNALS = frozenset({"kill", "killpg", "tgkill", "terminate", "send_signal", "pidfd_send_signal", "pthread_kill",
                     "raise_signal"})
PROGRAMS = ("kill-server", "kill-session", "kill-pane", "kill-window", "pkill", "killall")
ALLOWED = {
    "system/processes.py:pidfd_send_signal": (1, "`send` itself, through a verified pidfd"),
    "system/kill_tree.py:pidfd_send_signal": (3, "the sweep, through verified pidfds"),
    "system/reaper.py:kill": (1, "itself: it ends by the signal that ended its orchestrator"),
    "system/failpoint.py:kill": (1, "itself, for tests"),
    "system/jobs.py:kill": (1, "a child of its own that is not reaped: a command that takes too long"),
    "pipeline/handlers/tool.py:kill": (2, "`Job.kill`"),
    "sandbox/collect.py:kill": (1, "a child of its own that is not reaped: git that reads what an agent left"),
    "sandbox/escape_attempts.py:kill": (1, "a child of its own caller, from inside a sandbox, to see that it cannot"),
    "workflow/builtin_tools.py:killpg": (1, "the group of a child of its own that is not reaped"),
    "cli/terminal.py:kill": (1, "itself: Ctrl-Z of a person who watches"),
    "system/processes.py:kill": (1, "itself: its starter is gone"),
    "agents/scripted.py:kill": (1, "itself or its parent, told so by a test's script"),
    "testing/acp_agent.py:kill": (2, "itself, told so by a test's script"),
    "garrison_demo/claude.py:terminate": (2, "children of its own, not reaped: the isolation, the model server"),
    "garrison_demo/sandbox.py:send_signal": (2, "a child of its own that is not reaped: the demo's launcher"),
    "testing/isolation.py:send_signal": (1, "a child of its own that is not reaped: what it isolates"),
    "agents/claude/attempt.py:kill": (1, "`Job.kill`"),
    "agents/command.py:kill": (1, "`Job.kill`"),
    "processes/runner/process.py:kill": (1, "`Job.kill` of its jobs"),
    "processes/runner/process.py:terminate": (1, "`Supervisor.terminate`: `processes.send`"),
    "processes/guardian/process.py:terminate": (1, "`Supervisor.terminate`: `processes.send`"),
    "processes/launcher/process.py:terminate": (1, "`Supervisor.terminate`: `processes.send`"),
    "processes/runner/jobs.py:kill": (3, "`Job.kill`"),
    "processes/commit_hooks.py:kill": (1, "`Job.kill`"),
    "processes/orchestrator/process.py:kill": (1, "`Job.kill` of a commit hook"),
    "system/git/repository.py:kill": (1, "a child of its own that is not reaped: git that nobody waits for any more"),
    "system/git/repository.py:killpg": (1, "the group of that child, with the programs of its transports"),
    "system/git/signing.py:killpg": (1, "the group of a child of its own that is not reaped: a program that signs"),
    "system/tmux_client.py:kill": (1, "a child of its own that is not reaped: a tmux command without an answer"),
    "system/tmux_viewer.py:kill": (1, "a child of its own that is not reaped: the client of a viewer"),
    "system/tmux_viewer.py:send_signal": (1, "the same client, to tell it of a new size"),
    "cli/remote_logs.py:kill": (1, "a child of its own that is not reaped: `tail` on a host"),
    "dispatch/claimed_work.py:kill": (2, "the `Work` of its claim, which is handed to it: nothing by pid"),
    "dispatch/ssh.py:killpg": (1, "the group of a child of its own that is not reaped: ssh without an answer"),
    "dispatch/tunnel.py:kill": (1, "a child of its own that is not reaped: the ssh of a tunnel"),
    "dispatch/tunnel.py:killpg": (1, "the group of that child"),
    "processes/remote/service.py:kill": (3, "the `Work` of a claim, which is made for it: nothing by pid"),
    "dispatch/temporal/server.py:kill": (2, "a child of its own that is not reaped: a local server"),
    "dispatch/temporal/server.py:terminate": (1, "the same child"),
    "system/tmux.py:kill-server": (1, "by our own socket, when no session is left on it"),
    "system/tmux.py:kill-session": (1, "by our own socket, by id, only on the very server that made it"),
}
"""file:way → (how often it stands there, why it touches nothing foreign)."""


def found() -> Counter[str]:
    """Every place in the product that could signal a process."""
    places: Counter[str] = Counter()
    for root, path in [*((ROOT, path) for path in sorted(ROOT.rglob("*.py"))),
                       *((DEMO, path) for path in sorted(DEMO.glob("garrison_demo/*.py")))]:
        where = path.relative_to(root).as_posix()
        text = path.read_text()
        if not any(word in text for word in (*SIGNALS, *PROGRAMS)):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if name in SIGNALS:
                    places[f"{where}:{name}"] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                for program in PROGRAMS:
                    if node.value.startswith(program) or f" {program} " in node.value:
                        places[f"{where}:{program}"] += 1
    return places


def test_no_other_module_signals_a_process() -> None:
    assert found() == {place: number for place, (number, _) in ALLOWED.items()}
