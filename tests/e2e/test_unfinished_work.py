"""Work that an agent leaves unfinished or outside its branch never lands: exit code, last line and main after
`garrison run` in a fresh repository at default settings."""

from __future__ import annotations

import json
from dataclasses import dataclass

from support import Node, Place, git

OTHER = "git switch -qc other-$GARRISON_NODE HEAD~1; echo theirs > calc.py; git commit -qam other; git switch -q -"
MERGE, POP = f"{OTHER}; git merge other-$GARRISON_NODE", (
    "echo a > calc.py; git stash -q; echo b > calc.py; git commit -qam b; git stash pop")


@dataclass(frozen=True)
class Row:
    """An agent's command, and the message; `never` is a text or a file name that main must not have."""

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
                   "where its branch started (by amend, rebase or reset): `git reset --soft ", "Mine"),
    "ignored": Row("mkdir dist; echo x > dist/app.js",
                   "it changed only files that git ignores, which never land: dist/", "app.js"),
    "guard": Row("head -c 11000000 /dev/zero > core.77; head -c 11000000 /dev/zero > big.bin; echo A=1 > .env; "
                 "mkdir -p web/node_modules/x; touch web/node_modules/x/a.js; git add .env; echo x > fine.txt",
                 "it must remove or add to .gitignore: web/node_modules/ (1 installed file), .env (may hold "
                 "secrets), big.bin (11 MB, over max_file = 10 MB), core.77 (a core dump, 11 MB)", "fine.txt"),
    "many": Row("mkdir out; touch $(seq -f out/%g 1001)",
                "1,001 new files, most in out/ (over max_files = 1,000)", "1001"),
}


def run(place: Place, command: str, *options: str, code: int = 0) -> str:
    """Run a task; return what was printed."""
    done = place.command("run", "work", "--command", command, "--no-gate", "--run", "r1", "--terminal", "process",
                         *options, cwd=place.repo)
    assert done.returncode == code, done.stdout + done.stderr + place.logs()
    return done.stdout or done.stderr


def prepare(place: Place) -> None:
    """Give the repository a second commit, whose reversal conflicts with a third, and a list of ignored files."""
    for number in (2, 3):
        place.commit(f"Version {number}", {"calc.py": f"version = {number}\n", ".gitignore": "dist/\n"})


def check_nothing_landed(place: Place, name: str) -> None:
    assert git(place.repo, "rev-parse", "main") == place.start
    assert ROWS[name].never not in git(place.repo, "log", "-p", "--stat", f"{place.start}~..main")
    node = name if (place.home / "runs/r1/nodes" / name).is_dir() else "work"
    assert json.loads((place.home / "runs/r1/nodes" / node / "1/result.json").read_text())["refusal"]["kind"]


def test_unfinished_work_never_lands_and_its_reason_names_the_command_that_helps(place: Place) -> None:
    """All rows in one run, one after another: without a sandbox, worktrees share the stash."""
    prepare(place)
    graph = place.graph(*(Node(name, command=row.command, attributes='rework=none, prompt="Change it"')
                          for name, row in ROWS.items()))
    place.run(graph, "r1", "--max-agents", "1", code=1)
    for name, row in ROWS.items():
        node = place.nodes()[name]
        assert node["status"] == "failed" and row.told in node["reason"], (name, node["reason"])
        check_nothing_landed(place, name)


def test_an_agent_is_told_what_it_left_and_the_next_attempt_lands(place: Place) -> None:
    """The command of the reason works in the next attempt's worktree."""
    prepare(place)
    again = 'grep -o "refs/garrison/rescue[^ ]*other" "$GARRISON_PROMPT_FILE" | head -1'
    shown = run(place, f'ref=$({again}); if [ -n "$ref" ]; then git stash apply -q "$ref"; else echo x > calc.py; '
                       "git stash -q; fi; mkdir -p __pycache__; touch __pycache__/calc.pyc")
    assert "its work is in a stash" in shown
    assert git(place.repo, "show", "main:calc.py") == "x"
    assert "__pycache__" not in git(place.repo, "ls-tree", "-r", "--name-only", "main")
    prompt = (place.home / "runs/r1/nodes/work/2/prompt.md").read_text()
    assert "its work was not finished" in prompt and "its work is in a stash" in prompt


def test_what_a_set_up_made_lands_only_if_an_agent_adds_it_by_force(place: Place) -> None:
    """A lock file that the set-up wrote is not work, whether garrison commits or the agent with `git add -A`."""
    prepare(place)
    setup = "echo made > package-lock.json; mkdir node_modules; echo made > node_modules/m.js; echo made > ours.lock"
    command = ("cat package-lock.json node_modules/m.js > seen.txt; echo more >> package-lock.json; git add -A; "
               "git commit -qm mine; echo x > left.txt; git add -f ours.lock; git commit -qm forced")
    run(place, command, "--setup", setup)
    names = git(place.repo, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert sorted({*names} - {".gitignore", "calc.py", "notes.txt"}) == ["left.txt", "ours.lock", "seen.txt"]


def test_the_guard_follows_the_files_of_home_and_repository(place: Place) -> None:
    prepare(place)
    place.configure('[guard]\nmax_file = "2 kB"\nrefuse = ["*.sqlite"]\n')
    (place.repo / "garrison.toml").write_text('[guard]\nallow = ["data/*", ".env.test"]\n')
    place.edits = "?? garrison.toml"
    command = ("mkdir data; head -c 3000 /dev/zero > data/zeros; echo A=1 > .env.test; echo A= > .env.example; "
               "if grep -q sqlite \"$GARRISON_PROMPT_FILE\"; then echo x > fine.txt; else touch db.sqlite; fi")
    assert "db.sqlite (refused by [guard])" in run(place, command)
    names = git(place.repo, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert {"data/zeros", ".env.test", ".env.example", "fine.txt"} <= {*names} and "db.sqlite" not in names

    (place.repo / "garrison.toml").write_text('[guard]\nmax_fils = 3\n')
    refused = run(place, "true", "--new", code=2)
    assert f"{place.repo}/garrison.toml:2: [guard] max_fils is not a setting; did you mean max_file?" in refused
