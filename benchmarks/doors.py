"""The start of the light doors, which cron and agents call often, against the start of bare Python; goal: at most 4 x.

    .venv/bin/python benchmarks/doors.py [ROUNDS]

Rounds are interleaved, so that load hits all alike; medians are printed. Bytecode caches are on, as a user has them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def commands() -> dict[str, list[str]]:
    """Name → command line; the first is what the others are compared with."""
    python = sys.executable
    identity, hook = str(SCRIPTS / "identity_registry.py"), str(SCRIPTS / "hook_manager.py")
    return {
        "bare python": [python, "-c", "pass"],
        "find-stale": [python, identity, "find-stale"],
        "update-liveness": [python, identity, "update-liveness", "runner", "a"],
        "hook read": [python, hook, "read", "runner", "a"],
        "hook wisdom": [python, hook, "wisdom", "runner", "a"],
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    with tempfile.TemporaryDirectory() as home:
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("GARRISON_") and name != "PYTHONDONTWRITEBYTECODE"} | {"GARRISON_HOME": home}
        for script in ("identity_registry.py", "hook_manager.py"):
            subprocess.run([sys.executable, str(SCRIPTS / script), "create", "runner", "a"], env=env, check=True,
                           stdout=subprocess.DEVNULL)
        took: dict[str, list[float]] = {name: [] for name in commands()}
        for _ in range(rounds):
            for name, command in commands().items():
                began = time.perf_counter()
                subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
                took[name].append((time.perf_counter() - began) * 1e3)
    bare = statistics.median(took["bare python"])
    for name, times in took.items():
        median = statistics.median(times)
        print(f"{name:16} {median:7.1f} ms  {median / bare:4.1f} x")


if __name__ == "__main__":
    main()
