"""CPU time of the script commands that cron and agents call often. Bar: 150 ms for each command.

    .venv/bin/python benchmarks/scripts_startup.py [ROUNDS]

Rounds are interleaved, so that load affects all commands alike; medians of user plus system time are printed. Bytecode
caches are on, as they are for a user. Exit code 1 if a command is above the bar.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
BAR_MS = 150.0


def commands() -> dict[str, list[str]]:
    """Return name → command line; the first is the baseline."""
    python = sys.executable
    identity, hook, signal = (str(SCRIPTS / name) for name in ("identity_registry.py", "hook_manager.py",
                                                                "signal_protocol.py"))
    return {
        "bare python": [python, "-c", "pass"],
        "find-stale": [python, identity, "find-stale"],
        "update-liveness": [python, identity, "update-liveness", "runner", "a"],
        "identity list": [python, identity, "list"],
        "hook read": [python, hook, "read", "runner", "a"],
        "hook update-phase": [python, hook, "update-phase", "runner", "a", "planning"],
        "hook wisdom": [python, hook, "wisdom", "runner", "a"],
        "signal write": [python, signal, "write", "runner-a", "guardian-g", "NODE_COMPLETE"],
        "garrison --help": [python, str(SCRIPTS / "cli.py"), "--help"],
    }


def cpu_ms(command: list[str], env: dict[str, str]) -> float:
    """Run a command and return its CPU time, children included, in milliseconds."""
    actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, env, file_actions=actions)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{command} failed with wait status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1e3


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    took: dict[str, list[float]] = {name: [] for name in commands()}
    with tempfile.TemporaryDirectory() as home:
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("GARRISON_") and name != "PYTHONDONTWRITEBYTECODE"} | {"GARRISON_HOME": home}
        for script in ("identity_registry.py", "hook_manager.py"):
            subprocess.run([sys.executable, str(SCRIPTS / script), "create", "runner", "a"], env=env, check=True,
                           stdout=subprocess.DEVNULL)
        for _ in range(rounds):
            for name, command in commands().items():
                took[name].append(cpu_ms(command, env))
    medians = {name: statistics.median(times) for name, times in took.items()}
    for name, median in medians.items():
        print(f"{name:18} {median:6.1f} ms CPU")
    return int(max(medians.values()) > BAR_MS)


if __name__ == "__main__":
    sys.exit(main())
