"""`garrison run`: one task in words, followed to its end or left in the background."""

from __future__ import annotations

import json
import signal
import subprocess

from support import DEADLINE, PROGRAM, Place, git, wait_for


def start(place: Place, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, "run", *words], cwd=place.repo, env=place.env, text=True, start_new_session=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def configure(place: Place, script: str) -> None:
    """Make an agent of a script the default one, and a gate the repository's."""
    with (place.home / "config.toml").open("a") as file:
        file.write(f'[launch]\nagent = "double"\n[agents.double]\nargv = ["sh", "-c", {json.dumps(script)}]\n')
    (place.repo / "garrison.toml").write_text('[launch]\ngate = "test -f calc.py"\n')
    place.edits = "?? garrison.toml"


def test_a_task_in_words_lands_by_the_configured_agent_and_gate(place: Place) -> None:
    configure(place, 'cp "$GARRISON_PROMPT_FILE" told.txt')
    child = start(place, "tell me", "what you were told", "--terminal", "process")
    out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 0, out
    assert f"gate: test -f calc.py ({place.repo}/garrison.toml)" in out
    assert "run done: 1 of 1 landed" in out
    assert "tell me what you were told" in git(place.repo, "show", "main:told.txt")


def test_ctrl_c_leaves_the_task_in_the_background_and_a_failed_one_exits_with_1(place: Place) -> None:
    configure(place, f"{place.hold('it')}; exit 3")
    child = start(place, "fail slowly", "--terminal", "process", "--max-rework", "0", "--run", "r1")
    place.wait_until_held("it")
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 130, out
    assert "run r1 continues in the background; `garrison status r1 --watch` shows it" in out
    assert place.status() == "running"
    place.release("it")
    wait_for("the run ends", lambda: place.status() == "failed")

    again = start(place, "fail slowly", "--terminal", "process", "--max-rework", "0", "--run", "r2")
    out, _ = again.communicate(timeout=DEADLINE)
    assert again.returncode == 1, out
    assert "run failed: 0 of 1 landed; fail_slowly: " in out
