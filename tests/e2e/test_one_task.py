"""`garrison run`: one task in words, followed to its end or left in the background."""

from __future__ import annotations

import json
import re
import shlex
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


def type_hint(place: Place, text: str) -> subprocess.CompletedProcess[str]:
    """Type the last command that a text offers, as it stands."""
    words = shlex.split(re.findall("`garrison ([^`]+)`", text)[-1])
    return subprocess.run([*PROGRAM, *words], cwd=place.repo, env=place.env, text=True, capture_output=True,
                          check=False, stdin=subprocess.DEVNULL, timeout=DEADLINE)


def test_ctrl_c_leaves_the_task_in_the_background_and_what_a_failed_one_offers_helps(place: Place) -> None:
    """It exits with 1; the last line of the run and of `status`, typed as it stands, tries it again."""
    mended = place.root / "mended"
    configure(place, f"{place.hold('it')}; echo it > \"$GARRISON_RUN.txt\"; test -e {mended} || exit 3")
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

    mended.touch()
    told = place.command("why", "fail_slowly").stdout.splitlines()
    assert told[-2].startswith("now: fail_slowly is failed: ") and len(told) <= 5, told
    assert told[-1] == "next: `garrison resume r2 --retry fail_slowly` tries it again"
    for run, offer in (("r2", out), ("r1", place.command("status", "r1").stdout)):
        done = type_hint(place, offer.splitlines()[-1])
        assert (done.returncode, place.status(run)) == (0, "done"), done.stdout + done.stderr
        assert git(place.repo, "show", f"main:{run}.txt") == "it"
    assert place.command("why", "fail_slowly").stdout.splitlines()[-1] == "next: nothing to do"
    for words, said in ((("answer", "fail_slowly", "x"), "no run is at work on fail_slowly: its latest, r2, is done"),
                        (("agents", "cancel", "fail_slowly"), "no run is at work on fail_slowly"),
                        (("tell", "fail_slowly", "x"), "no run is at work on fail_slowly")):
        assert said in place.command(*words).stderr, words


def test_a_list_of_tasks_is_one_run_that_takes_what_has_not_landed(place: Place) -> None:
    configure(place, 'cat "$GARRISON_PROMPT_FILE" >> "$(basename "$(git branch --show-current)").txt"')
    todo = place.root / "TODO.md"
    todo.write_text("- [x] rest\n- [ ] sing a song (after 3)\n- [ ] tune up\n")
    options = ("--tasks", str(todo), "--terminal", "process", "--yes")
    out, _ = start(place, *options[:-1], "--command", "true").communicate(timeout=DEADLINE)
    assert "nobody can be asked here; pass --yes" in out
    child = start(place, *options)
    out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 0, out
    assert "2 tasks of" in out and "1. sing a song (after 2) [sing_a_song]" in out, out
    assert "run done: 2 of 2 landed" in out
    assert {"tune_up.txt", "sing_a_song.txt"} <= set(git(place.repo, "ls-tree", "--name-only", "main").split())
    out, _ = start(place, *options).communicate(timeout=DEADLINE)
    assert "nothing to do: all tasks of" in out
    assert "tune up" in git(place.repo, "log", "--merges", "--format=%s", "main").splitlines()
    tip = git(place.repo, "rev-parse", "main")
    for code, said in ((0, "tune_up is undone by"), (1, "tune_up is undone already")):
        done = subprocess.run([*PROGRAM, "undo", "tune_up"], cwd=place.repo, env=place.env, text=True, check=False,
                              capture_output=True)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
    assert git(place.repo, "diff", "--name-status", tip, "main") == "D\ttune_up.txt"
