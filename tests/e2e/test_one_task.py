"""`garrison run`: one task in words, followed to its end or left in the background."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess

import pytest

from screen_support import Screen
from support import DEADLINE, PROGRAM, Place, git, is_gone, processes, wait_for


def start(place: Place, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, "run", *words], cwd=place.repo, env=place.env, text=True, start_new_session=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def type_hint(place: Place, text: str) -> subprocess.CompletedProcess[str]:
    """Type the last command that a text offers, as it stands."""
    words = shlex.split(re.findall("`garrison ([^`]+)`", text)[-1])
    return place.command(*words, cwd=place.repo)


def test_ctrl_c_leaves_the_task_in_the_background_and_what_a_failed_one_offers_helps(place: Place) -> None:
    """The configured agent and gate do a task in words. It exits with 1; the last line of the run and of `status`,
    typed as it stands, tries it again."""
    mended = place.root / "mended"
    place.use_agent(f"{place.hold('it')}; cp \"$GARRISON_PROMPT_FILE\" $GARRISON_RUN.told; "
                     f"echo it > \"$GARRISON_RUN.txt\"; test -e {mended} || exit 3")
    child = start(place, "fail", "slowly", "--terminal", "process", "--max-rework", "0", "--run", "r1")
    place.wait_until_held("it")
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 130, out
    assert "run r1 continues in the background; `garrison status r1 --watch` shows it" in out
    assert place.status() == "running"
    place.release("it")
    wait_for("the run ends", lambda: place.status() == "failed")

    again = start(place, "fail", "slowly", "--terminal", "process", "--max-rework", "0", "--run", "r2")
    out, _ = again.communicate(timeout=DEADLINE)
    assert again.returncode == 1, out
    assert f"gate: test -f calc.py ({place.repo}/garrison.toml)" in out
    assert "run failed: 0 of 1 landed; fail_slowly: " in out

    mended.touch()
    told = place.command("why", "fail_slowly").stdout.splitlines()
    assert told[-2].startswith("now: fail_slowly is failed: ") and len(told) <= 5, told
    assert told[-1] == "next: `garrison resume r2 --retry fail_slowly` tries it again"
    for run, offer in (("r2", out), ("r1", place.command("status", "r1").stdout)):
        done = type_hint(place, offer.splitlines()[-1])
        assert (done.returncode, place.status(run)) == (0, "done"), done.stdout + done.stderr
        assert "run done: 1 of 1 landed" in done.stdout
        assert git(place.repo, "show", f"main:{run}.txt") == "it"
        assert "fail slowly" in git(place.repo, "show", f"main:{run}.told")
    assert place.command("why", "fail_slowly").stdout.splitlines()[-1] == "next: nothing to do"
    for words, said in ((("answer", "fail_slowly", "x"), "no run is at work on fail_slowly: its latest, r2, is done"),
                        (("agents", "cancel", "fail_slowly"), "no run is at work on fail_slowly"),
                        (("tell", "fail_slowly", "x"), "no run is at work on fail_slowly")):
        assert said in place.command(*words).stderr, words


def test_a_list_of_tasks_is_one_run_that_takes_what_has_not_landed(place: Place) -> None:
    place.use_agent('cat "$GARRISON_PROMPT_FILE" >> "$(basename "$(git branch --show-current)").txt"')
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
    assert "nothing to do: every task of" in out
    assert "tune up" in git(place.repo, "log", "--merges", "--format=%s", "main").splitlines()
    tip = git(place.repo, "rev-parse", "main")
    for code, said in ((0, "tune_up is undone by"), (1, "tune_up is already undone")):
        done = place.command("undo", "tune_up", cwd=place.repo)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
    assert git(place.repo, "diff", "--name-status", tip, "main") == "D\ttune_up.txt"


@pytest.mark.traced
def test_landed_tasks_are_ticked_by_one_tested_commit_that_keeps_later_edits(place: Place) -> None:
    """A failed task is not ticked; later commits and edits of the list are kept."""
    mended, todo = place.root / "mended", place.repo / "TODO.md"
    place.use_agent(f"grep -q tune $GARRISON_PROMPT_FILE && {{ {place.hold('tune')}; }}; "
                     f"grep -q rest $GARRISON_PROMPT_FILE && ! test -e {mended} && exit 3; "
                     'echo it >"$(basename "$(git branch --show-current)").txt"')
    todo.write_text("# To do\n- [ ] sing a song\n- [ ] tune up\n  - well\n- take a rest\n")
    git(place.repo, "add", "TODO.md")  # not garrison.toml
    git(place.repo, "commit", "-qm", "plan")
    options = ("--tasks", "TODO.md", "--tick", "--yes", "--terminal", "process", "--max-rework", "0", "--run")
    child = start(place, *options, "r1")
    place.wait_until_held("tune")
    again, _ = start(place, *options, "r3").communicate(timeout=DEADLINE)
    assert "nothing to do: every task of TODO.md is ticked or landed, or at work in r1; `garrison status r1" in again
    todo.write_text(todo.read_text() + "- another\n")
    git(place.repo, "commit", "-qam", "plan more")
    place.release("tune")
    out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 1, out
    assert "TODO.md: 2 tasks ticked by " in out.splitlines()[-2] and "ticking TODO.md, by a commit" in out, out
    ticked = "# To do\n- [x] sing a song\n- [x] tune up\n  - well\n- take a rest\n- another\n"
    assert git(place.repo, "show", "main:TODO.md") + "\n" == ticked == todo.read_text()
    assert git(place.repo, "log", "-1", "--format=%s", "main") == "Tick 2 tasks of TODO.md"
    assert git(place.repo, "diff", "--name-only", "main^", "main") == "TODO.md"

    mended.touch()
    todo.write_text(ticked.replace("- another\n", "- another one\n"))
    out, _ = start(place, *options, "r2").communicate(timeout=DEADLINE)
    assert "left out of the 4 tasks of TODO.md: 2 ticked\n" in out, out
    assert "TODO.md: 2 tasks ticked, next to your uncommitted changes; `git commit TODO.md` commits both" \
        in out, out
    assert todo.read_text() == ticked.replace("- take", "- [x] take").replace("- another", "- [x] another one")
    assert git(place.repo, "show", "main:TODO.md") + "\n" == ticked
    place.edits = " M TODO.md\n?? garrison.toml"


def test_a_launcher_that_dies_while_it_ticks_has_a_successor_that_ticks_once(place: Place) -> None:
    place.use_agent('echo it >"$(basename "$(git branch --show-current)").txt"',
                    f"if grep -q x.*tune TODO.txt; then {place.hold('gate')}; fi")
    todo = place.repo / "TODO.txt"
    todo.write_bytes(b"\xef\xbb\xbftune up\r\n")
    git(place.repo, "add", "TODO.txt")
    git(place.repo, "commit", "-qm", "plan")
    start(place, "--tasks", "TODO.txt", "--tick", "--yes", "--terminal", "process", "--run", "r1", "--detach").wait()
    place.wait_until_held("gate")
    launcher = place.pid("launch")
    [ticker] = [process.pid for process in processes("tick\0r1\0") if process.ppid == launcher]  # not those it forks
    for pid in (launcher, ticker):
        os.kill(pid, signal.SIGKILL)
        wait_for("it is dead", lambda pid=pid: is_gone(pid))
    place.release("gate")
    assert place.command("up").stdout == "r1\n"
    wait_for("the launcher ends", lambda: place.identity("launch")["status"] == "terminated")
    assert todo.read_bytes() == b"\xef\xbb\xbf[x] tune up\r\n"
    assert git(place.repo, "log", "--format=%s", "--", "TODO.txt").splitlines() == ["Tick 1 task of TODO.txt", "plan"]
    assert type_hint(place, "`garrison tick`").stdout == "TODO.txt: nothing to tick\n"


def test_questions_about_a_list_are_asked_in_the_terminal_even_if_the_list_was_piped(place: Place) -> None:
    """Which of its sections, and whether to start; without a terminal, the line names the option."""
    place.use_agent('echo it >"$(basename "$(git branch --show-current)").txt"')
    (place.repo / "TODO.md").write_text("# Now\n- tune up\n# Later\n- take a rest\n")
    place.edits += "\n?? TODO.md"
    out, _ = (child := start(place, "--tasks", "TODO.md")).communicate(timeout=DEADLINE)
    assert (child.returncode, out) == (2, "garrison: TODO.md has tasks under several headings; pass --section \"Now\" "
                                          "(1) or --section \"Later\" (1)\n")
    line = f"cd {place.repo} && cat TODO.md | {shlex.join(PROGRAM)} run --tasks - --terminal process"
    screen = Screen(place, "-c", line, program=["/bin/sh"])
    screen.until("1. Now (1)", "2. Later (1)", "which? [number] ")
    screen.type("3\r")
    screen.until("3 is not one of them")
    screen.type("later\r")
    screen.until("take a rest", "start them? [y/N] ")
    screen.type("y\r")
    code, shown = screen.end()
    assert code == 0 and "run done: 1 of 1 landed" in shown, shown
    screen = Screen(place, "-c", line + " --section Now", program=["/bin/sh"])
    screen.until("start them? [y/N] ")
    screen.type("\x04")
    code, shown = screen.end()
    assert code == 0 and "nothing was started" in shown, shown
    screen = Screen(place, "-c", f"{line.replace('cat TODO.md | ', '')}".replace("--tasks -", "--tasks TODO.md") +
                    " --tick --section Now", program=["/bin/sh"])
    screen.until("start them? [y/N] ")
    (place.repo / "TODO.md").unlink()
    screen.type("y\r")
    code, shown = screen.end()
    assert code == 1 and "nothing was started: TODO.md is gone and could not be ticked; restore it" in shown, shown
    place.edits = place.edits.removesuffix("\n?? TODO.md")
