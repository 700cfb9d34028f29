"""`garrison init` and `garrison new` in a repository, and a run of each template with a scripted agent."""

from __future__ import annotations

import json
import subprocess
import tomllib

import pytest

from garrison.project.templates import TEMPLATES
from support import Place, git

GATE = "grep -q right code.txt"
AGENT = """
case $GARRISON_NODE in
    work|port|upgrade|repair) if test -e code.txt; then echo right > code.txt; else echo wrong > code.txt; fi ;;
    plan) echo "- port it" > PORT.md ;;
    review) grep -q right code.txt ||
        echo '{"status": "needs_changes", "notes": "it is wrong"}' > "$GARRISON_RESULT_FILE" ;;
    *) echo changed > "$GARRISON_NODE.txt" ;;
esac
"""
EXPECTED = {"codemod": "api.txt", "port": "PORT.md"}
"""Template → a file that its run lands, other than code.txt."""


def garrison(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return place.command(*words, cwd=place.repo)


@pytest.mark.parametrize("name", [
    pytest.param(template.name, marks=() if template.name == "upgrade-dependencies" else pytest.mark.slow)
    for template in TEMPLATES])
def test_a_template_runs_to_its_end(place: Place, name: str) -> None:
    place.use_agents(double={"argv": ["sh", "-c", AGENT]})
    each = ("--each", "api", "--each", "web") if name == "codemod" else ()
    written = garrison(place, "new", name, "--goal", "Make it right", "--gate", GATE, *each)
    assert written.returncode == 0, written.stderr
    assert written.stdout.endswith(f"next: garrison launch {name}.dot --agent NAME\n")
    ran = garrison(place, "launch", f"{name}.dot", "--agent", "double", "--gate", "test -f calc.py", "--auto-approve",
                   "--terminal", "process", "--run", "r1")
    assert ran.returncode == 0, ran.stdout + ran.stderr + place.logs()
    landed = git(place.repo, "ls-tree", "--name-only", "main").splitlines()
    assert EXPECTED.get(name, "code.txt") in landed
    if name != "codemod":
        assert git(place.repo, "show", "main:code.txt") == "right"
    place.edits = f"?? {name}.dot"


def test_init_tries_what_it_proposes_and_names_what_fails(place: Place) -> None:
    """The tests fail at first; corrected, the same command passes, and a run uses what it wrote."""
    test = "import unittest, calc\nclass Calc(unittest.TestCase):\n    def test_add(self):\n        " \
        "self.assertEqual(calc.add(1, 1), {})\n"
    place.commit("Test", {"tests/__init__.py": "", "tests/test_calc.py": test.format(3)})
    place.use_agents(double={"argv": ["sh", "-c", AGENT]})

    red = garrison(place, "init")
    assert red.returncode == 1, red.stderr
    assert "python3: your tests fail on main: 1 failed (test_add (tests.test_calc.Calc.test_add))" in red.stderr
    assert "a launch is refused until the gate passes" in red.stdout
    assert "fix_until_green" in (place.repo / "first.dot").read_text()
    assert "--force" in garrison(place, "init", "--gate", "true").stderr

    (place.repo / "tests/test_calc.py").write_text(test.format(2))
    git(place.repo, "commit", "-qam", "Correct the test")
    kept = garrison(place, "init")
    assert "trial: passed on main" in kept.stderr and "wrote" not in kept.stdout
    green = garrison(place, "init", "--force", "--agent", "double", "--json")
    said = json.loads(green.stdout)
    assert (said["gate"], said["trial"]["passed"], said["ecosystems"]) == ("python3 -m unittest -q", True, ["Python"])
    table = tomllib.loads((place.repo / "garrison.toml").read_text())["launch"]
    assert table == {"gate": "python3 -m unittest -q", "agent": "double"}
    assert "review_and_fix" in (place.repo / "first.dot").read_text(), "init replaces what it wrote"

    launched = garrison(place, "launch", "first.dot", "--dry-run")
    assert "passed " in launched.stderr and "ago; not repeated" in launched.stderr, launched.stderr
    garrison(place, "init", "--force", "--no-try", "--gate", "make check")
    assert "run: make check\\n" in (place.repo / "first.dot").read_text()
    edited = (place.repo / "first.dot").read_text() + "// mine\n"
    (place.repo / "first.dot").write_text(edited)
    again = garrison(place, "init", "--force", "--no-try", "--gate", "make test")
    assert "first.dot has your changes, so it is kept and still runs the old gate (make check)" in again.stderr
    assert (place.repo / "first.dot").read_text() == edited
    place.start = git(place.repo, "rev-parse", "main")
    place.edits = "?? first.dot\n?? garrison.toml"
