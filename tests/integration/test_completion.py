"""Shell completion: real bash with the printed script, what TAB imports, suggestions for misspelt names."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from garrison.cli.main import main
from garrison.cli.resolve import suggestion
from garrison.records.run import RunFiles
from support import DEADLINE, PYTHON, UserWorld
from top_support import HomeBuilder

PROGRAM = Path(PYTHON).with_name("garrison")


@pytest.fixture
def home(user: UserWorld) -> Path:
    """Return a home with two runs whose nodes are only in their journals."""
    builder = HomeBuilder(user.home)
    for run, nodes in (("crew-1", ("add_tests", "add_docs")), ("crew-2", ("port",))):
        builder.run(run, *nodes).close()
        RunFiles(user.home, run).graph.unlink()
    return user.home


def environment(home: Path) -> dict[str, str]:
    return {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HOME": str(home.parents[2])}


def offered(home: Path, words: list[str], script: str) -> list[str]:
    """Return what bash's own completion function leaves in COMPREPLY for `words`, the last one being typed."""
    quoted = " ".join(f"'{word}'" for word in words)
    program = (f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
               "_garrison_completion garrison; printf '%s\\n' \"${COMPREPLY[@]}\"")
    done = subprocess.run(["bash", "--norc", "-c", program], env=environment(home), capture_output=True, text=True,
                          check=True, timeout=DEADLINE)
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.smoke
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.skipif(not PROGRAM.exists(), reason="the garrison command is not installed beside this Python")
def test_bash_completes_commands_runs_and_nodes(home: Path) -> None:
    script = subprocess.run([PROGRAM, "completion", "bash"], env=environment(home), capture_output=True, text=True,
                            check=True, timeout=DEADLINE).stdout
    assert offered(home, ["garrison", "st"], script) == ["status", "stop"]
    assert offered(home, ["garrison", "status", "crew"], script) == ["crew-2", "crew-1"]
    assert offered(home, ["garrison", "logs", "add"], script) == ["add_tests", "add_docs"]
    assert offered(home, ["garrison", "logs", "--run", "crew-2", ""], script) == ["port"]
    assert offered(home, ["garrison", "logs", "--process", "g"], script) == ["guardian"]
    assert offered(home, ["garrison", "resume", "crew-1"], script) == ["crew-1"]
    assert "--watch" in offered(home, ["garrison", "status", "--"], script)
    assert offered(home, ["garrison", "--home", f"{home}/none", "status", ""], script) == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(home: Path, shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = subprocess.run([PROGRAM, "completion", shell], env=environment(home), capture_output=True, check=True,
                            timeout=DEADLINE).stdout
    (tmp_path / "script").write_bytes(script)
    assert subprocess.run([shell, "-n", str(tmp_path / "script")], check=False, timeout=DEADLINE).returncode == 0


@pytest.mark.parametrize(("words", "offer"), [("garrison ", "plain,attach"), ("garrison status ", "plain,crew-1"),
                                              ("garrison logs ", "plain,port"), ("garrison attach ", "plain,port")])
def test_completion_imports_no_parser_and_no_tmux(home: Path, words: str, offer: str) -> None:
    code = ("import sys\nfrom garrison.cli.main import main\ntry:\n    main([])\nexcept SystemExit:\n    pass\n"
            "print(sorted({'lark', 'rich', 'yaml'} & set(sys.modules)), file=sys.stderr)")
    # PYTHON's installation, for a checkout's own home is not `home`: from there nothing at all is offered.
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE,
                          env={**environment(home), "_GARRISON_COMPLETE": "bash_complete", "COMP_WORDS": words,
                               "COMP_CWORD": str(len(words.split()))})
    assert offer in done.stdout.splitlines()
    assert done.stderr.splitlines()[-1] == "[]"


def test_completion_of_an_unreadable_home_is_empty_and_silent(home: Path) -> None:
    RunFiles(home, "crew-1").journal.write_text("nonsense\n")
    done = subprocess.run([PROGRAM], capture_output=True, text=True, check=False, timeout=DEADLINE, env={
        **environment(home), "_GARRISON_COMPLETE": "bash_complete", "COMP_WORDS": "garrison logs ", "COMP_CWORD": "2"})
    assert (done.stdout, done.stderr) == ("plain,port\n", "")


@pytest.mark.parametrize(("name", "known", "said"), [
    ("add_test", ["add_tests", "port"], "did you mean add_tests? "), ("PORT", ["port"], "did you mean port? "),
    ("zzz", ["add_tests"], ""), ("a", [], "")])
def test_suggestions(name: str, known: list[str], said: str) -> None:
    assert suggestion(name, known) == said


@pytest.mark.usefixtures("home")
def test_an_unknown_run_or_node_is_answered_with_the_closest_name(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, said in ((["status", "crew-11"], "did you mean crew-1?"),
                            (["logs", "add_test"], "did you mean add_tests?"),
                            (["logs", "prt", "--run", "crew-2"], "did you mean port?"),
                            (["logs", "port"], "has not started"), (["attach", "port"], "has no session yet")):
        assert main(arguments) == 1
        out, err = capfd.readouterr()
        assert (out, err.count("\n")) == ("", 1) and said in err
