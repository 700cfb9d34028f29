"""Scripted agent for tests and demonstrations: plays the steps of a YAML file, without a model.

The script is the node's `script` attribute (a path in the worktree), else `GARRISON_SCRIPTS/<node>.yaml`, else a small
default edit. It is a list of steps; a step with `life: N` is played only in incarnation N:

    - print: text                      - edit: {path: a.txt, text: "…", append: false}
    - commit: message                  - wait: seconds
    - notes: text                      - exit: code
    - run: shell command               - crash: me | orchestrator     (SIGKILL)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from garrison.agents.command_profile import CommandProfile

SCRIPTED = CommandProfile("scripted", (sys.executable, "-P", "-m", "garrison.agents.scripted", "{node}"))

DEFAULT: list[dict[str, object]] = [
    {"edit": {"path": "scripted/{node}.txt", "text": "written by the scripted agent for {node}\n"}},
    {"commit": "Let the scripted agent stand in for {node}"},
]


def script_for(node: str, environ: dict[str, str]) -> list[dict[str, object]]:
    """Return the steps for a node: GARRISON_SCRIPT, else GARRISON_SCRIPTS/<node>.yaml, else the default."""
    named = environ.get("GARRISON_SCRIPT")
    folder = environ.get("GARRISON_SCRIPTS")
    path = Path(named) if named else Path(folder) / f"{node}.yaml" if folder else None
    if path is None or not path.is_file():
        return DEFAULT
    import yaml  # not at the top: every orchestrator imports this module for the profile above

    steps = yaml.safe_load(path.read_text())
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise SystemExit(f"{path}: a script is a list of steps, each a mapping")
    return steps


def play(node: str, steps: list[dict[str, Any]], incarnation: int) -> None:
    """Play the steps for this incarnation, in the current directory."""
    print(f"scripted agent (not a real one) for {node}, incarnation {incarnation}", flush=True)
    for step in steps:
        if step.get("life", incarnation) != incarnation:
            continue
        for name, value in step.items():
            if name != "life":
                STEPS[name](fill(value, node))


def fill(value: Any, node: str) -> Any:
    """Replace {node} in a step's value by the node's name."""
    if isinstance(value, str):
        return value.replace("{node}", node)
    if isinstance(value, dict):
        return {key: fill(item, node) for key, item in value.items()}
    return value


def _edit(value: dict[str, Any]) -> None:
    path = Path(value["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if value.get("append") else "w") as file:
        file.write(value.get("text", ""))


def _commit(message: str) -> None:
    subprocess.run(["git", "add", "-A"], check=True)
    unchanged = subprocess.run(["git", "diff", "--cached", "--quiet"], check=False).returncode == 0
    if not unchanged:
        identity = [] if os.environ.get("GIT_AUTHOR_NAME") else ["-c", "user.name=scripted", "-c",
                                                                 "user.email=scripted@localhost"]
        subprocess.run(["git", *identity, "commit", "-q", "--no-verify", "-m", message], check=True)


def _crash(victim: str) -> None:
    os.kill(os.getppid() if victim == "orchestrator" else os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the orchestrator's death does not end this process; the runner's kill of what it left does


def _notes(text: str) -> None:
    Path(os.environ["GARRISON_NOTES_FILE"]).write_text(text)


def _run(command: str) -> None:
    done = subprocess.run(command, shell=True, check=False)
    if done.returncode < 0:  # what killed the command is not a verdict on the work
        _crash("me")
    done.check_returncode()


STEPS: Mapping[str, Callable[[Any], object]] = {
    "print": lambda text: print(text, flush=True), "edit": _edit, "commit": _commit, "notes": _notes, "run": _run,
    "wait": lambda seconds: time.sleep(float(seconds)), "exit": lambda code: sys.exit(int(code)), "crash": _crash,
}
"""Step → function that plays it."""


def main() -> None:
    """Play the script of the node named in argv."""
    node = sys.argv[1]
    play(node, script_for(node, dict(os.environ)), int(os.environ.get("GARRISON_INCARNATION", "1")))


if __name__ == "__main__":
    main()
