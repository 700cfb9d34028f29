"""What an agent leaves unfinished, or beside its branch, never lands: each row of the newcomer's table as it is typed.

`garrison run` in a fresh repository at default settings: its exit code, its last line, and what is on main.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

import pytest

from support import DEADLINE, PROGRAM, Node, Place, git

OTHER = "git switch -qc other-$GARRISON_NODE HEAD~1; echo theirs > calc.py; git commit -qam other; git switch -q -"
MERGE, POP = f"{OTHER}; git merge other-$GARRISON_NODE", (
    "echo a > calc.py; git stash -q; echo b > calc.py; git commit -qam b; git stash pop")


@dataclass(frozen=True)
class Row:
    """An agent's command, and what its user reads; `never` is a text, or a name of a file, that main does not have."""

    command: str
    told: str
    never: str = "<<<<<<<"


ROWS = {
    "merge": Row(f"{MERGE} || true", "it left a merge open with conflicts in calc.py: resolve them, `git add` them "
                 "and run `git merge --continue`"),
    "pick": Row(f"{OTHER}; git cherry-pick other-$GARRISON_NODE || true",
                "it left a cherry-pick open with conflicts in calc.py"),
    "revert": Row("git revert --no-edit HEAD~1 || true", "it left a revert open with conflicts in calc.py"),
    "rebase": Row(f"{OTHER}; git rebase other-$GARRISON_NODE || true",
                  "it left a rebase open with conflicts in calc.py"),
    "rebase_apply": Row(f"{OTHER}; git rebase --apply other-$GARRISON_NODE || true",
                        "it left a rebase open with conflicts in calc.py"),
    "am": Row(f"{OTHER}; git format-patch -q -1 other-$GARRISON_NODE -o $HOME/patches; "
              "git am -3 $HOME/patches/* || true",
              "it left an am open with conflicts in calc.py"),
    "clean_merge": Row("git switch -qc side HEAD~1; echo s > side.txt; git add -A; git commit -qm s; git switch -q -; "
                       "git merge --no-commit side", "it left a merge open: conclude it with `git merge --continue`"),
    "bisect": Row("git bisect start -q; git bisect bad; echo x > new.txt", "`git bisect reset`", "new.txt"),
    "pop": Row(f"{POP} || true", "it left conflicts in calc.py: resolve them"),
    "marked": Row(f"{MERGE} || true; git add -A; git commit -qm merged", "conflict markers are left in calc.py"),
    "marked_later": Row(f"{POP} || true; git add -A", "conflict markers are left in calc.py"),
    "stash": Row("echo x > calc.py; git stash -q", "its work is in a stash, not on its branch: `git stash apply refs/"),
    "other": Row("git switch -qc feature; echo x > new.txt; git add -A; git commit -qm f; git switch -q -",
                 "its work is on the branch feature, not on its own branch: `git merge refs/", "new.txt"),
    "orphan": Row("git checkout -q --orphan alone; git commit -qm alone", "it left its branch garrison/"),
    "amended": Row("echo x > calc.py; git commit -qa --amend -m Mine",
                   "where its branch began (by amend, rebase or reset): `git reset --soft ", "Mine"),
    "ignored": Row("mkdir dist; echo x > dist/app.js",
                   "it changed only files that git ignores, which never land: dist/", "app.js"),
    "guard": Row("head -c 11000000 /dev/zero > core.77; head -c 11000000 /dev/zero > big.bin; echo A=1 > .env; "
                 "mkdir -p web/node_modules/x; touch web/node_modules/x/a.js; git add .env; echo x > fine.txt",
                 "it must remove or add to .gitignore: web/node_modules/ (1 installed file), .env (may hold "
                 "secrets), big.bin (11 MB, over max_file = 10 MB), core.77 (a core dump, 11 MB)", "fine.txt"),
    "many": Row("mkdir out; touch $(seq -f out/%g 1001)",
                "1,001 new files, most in out/ (over max_files = 1,000)", "1001"),
}


def run(place: Place, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "run", "work", "--command", command, "--no-gate", "--run", "r1", "--terminal", "process", *options],
        cwd=place.repo, env=place.env, text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL,
        timeout=DEADLINE)


def prepare(place: Place) -> None:
    """Give the repository a second commit, whose reversal conflicts with a third, and a list of ignored files."""
    (place.repo / ".gitignore").write_text("dist/\n")
    for number in (2, 3):
        (place.repo / "calc.py").write_text(f"version = {number}\n")
        git(place.repo, "add", "-A")
        git(place.repo, "commit", "-qm", f"Version {number}")
    place.start = git(place.repo, "rev-parse", "main")


def check_nothing_landed(place: Place, name: str) -> None:
    assert git(place.repo, "rev-parse", "main") == place.start
    assert ROWS[name].never not in git(place.repo, "log", "-p", "--stat", f"{place.start}~..main")
    node = name if (place.home / "runs/r1/nodes" / name).is_dir() else "work"
    assert json.loads((place.home / "runs/r1/nodes" / node / "1/result.json").read_text())["refusal"]["kind"]


def test_unfinished_work_never_lands_and_its_reason_names_the_command_that_helps(place: Place) -> None:
    """All rows at once, one after another: without a sandbox, worktrees share the stash."""
    prepare(place)
    graph = place.graph(*(Node(name, command=row.command, attributes='rework=none, prompt="Change it"')
                          for name, row in ROWS.items()))
    child = place.launch(graph, "r1", "--max-agents", "1")
    assert place.finish(child) == 1, place.logs()
    for name, row in ROWS.items():
        node = place.nodes()[name]
        assert node["status"] == "failed" and row.told in node["reason"], (name, node["reason"])
        check_nothing_landed(place, name)


@pytest.mark.slow  # a last line of `run` is read in test_git_borders, these reasons above
@pytest.mark.parametrize("name", ROWS)
def test_unfinished_work_is_told_in_the_last_line_of_run(place: Place, name: str) -> None:
    row = ROWS[name]
    prepare(place)
    done = run(place, row.command, "--max-rework", "0")
    assert done.returncode == 1, done.stdout + done.stderr + place.logs()
    last = done.stdout.splitlines()[-1]
    assert last.startswith("run failed: 0 of 1 landed; work: ") and row.told[:90] in last, last
    check_nothing_landed(place, name)


def test_an_agent_is_told_what_it_left_and_the_next_attempt_lands(place: Place) -> None:
    """The command of the reason works in the next attempt's worktree; `status` and `why` name the reason, too."""
    prepare(place)
    again = 'grep -o "refs/garrison/rescue[^ ]*other" "$GARRISON_PROMPT_FILE" | head -1'
    done = run(place, f'ref=$({again}); if [ -n "$ref" ]; then git stash apply -q "$ref"; else echo x > calc.py; '
                      "git stash -q; fi; mkdir -p __pycache__; touch __pycache__/calc.pyc")
    assert done.returncode == 0, done.stdout + done.stderr + place.logs()
    assert "its work is in a stash" in done.stdout
    assert git(place.repo, "show", "main:calc.py") == "x"
    assert "__pycache__" not in git(place.repo, "ls-tree", "-r", "--name-only", "main")
    prompt = (place.home / "runs/r1/nodes/work/2/prompt.md").read_text()
    assert "its work was not finished" in prompt and "its work is in a stash" in prompt


def test_what_a_set_up_made_lands_only_if_an_agent_adds_it_by_force(place: Place) -> None:
    """F8: a lock file that the set-up wrote is no work, whoever commits: garrison, or the agent with `git add -A`."""
    prepare(place)
    setup = "echo made > package-lock.json; mkdir node_modules; echo made > node_modules/m.js; echo made > ours.lock"
    command = ("cat package-lock.json node_modules/m.js > seen.txt; echo more >> package-lock.json; git add -A; "
               "git commit -qm mine; echo x > left.txt; git add -f ours.lock; git commit -qm forced")
    done = run(place, command, "--setup", setup)
    assert done.returncode == 0, done.stdout + done.stderr + place.logs()
    names = git(place.repo, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert sorted({*names} - {".gitignore", "calc.py", "notes.txt"}) == ["left.txt", "ours.lock", "seen.txt"]


def test_the_guard_follows_the_files_of_home_and_repository(place: Place) -> None:
    prepare(place)
    place.home.mkdir(exist_ok=True, mode=0o700)
    with (place.home / "config.toml").open("a") as file:
        file.write('[guard]\nmax_file = "2 kB"\nrefuse = ["*.sqlite"]\n')
    (place.repo / "garrison.toml").write_text('[guard]\nallow = ["data/*", ".env.test"]\n')
    place.edits = "?? garrison.toml"
    command = ("mkdir data; head -c 3000 /dev/zero > data/zeros; echo A=1 > .env.test; echo A= > .env.example; "
               "if grep -q sqlite \"$GARRISON_PROMPT_FILE\"; then echo x > fine.txt; else touch db.sqlite; fi")
    done = run(place, command)
    assert done.returncode == 0, done.stdout + done.stderr + place.logs()
    assert "db.sqlite (refused by [guard])" in done.stdout
    names = git(place.repo, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert {"data/zeros", ".env.test", ".env.example", "fine.txt"} <= {*names} and "db.sqlite" not in names

    (place.repo / "garrison.toml").write_text('[guard]\nmax_fils = 3\n')
    refused = run(place, "true", "--new")
    assert refused.returncode == 2
    assert f"{place.repo}/garrison.toml:2: [guard] max_fils is not a setting; did you mean max_file?" in refused.stderr
