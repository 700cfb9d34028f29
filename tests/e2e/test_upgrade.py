"""An upgrade removes garrison's own package for seconds while a run works: processes that start wait for it, and no
work is lost and no death counted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import garrison
from garrison.system.machine import MODULE_MISSING, module_argv
from support import DEADLINE, Node, Place, git, wait_for


def test_the_first_lines_of_a_process_wait_for_its_module(tmp_path: Path) -> None:
    """It names the missing module once, uses no half-written package, and gives up with a code of its own."""
    (tmp_path / "pack").mkdir()
    module = tmp_path / "pack" / "part.py"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [*module_argv("pack.part", 60.0), "one", "--two"]
    child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert "cannot import pack.part (No module named 'pack.part')" in child.stderr.readline()
    module.write_text("def main(:\n")
    module.write_text("import pack.absent\ndef main(): return 0\n")
    (tmp_path / "pack" / "absent.py").write_text("")
    module.write_text("import os, sys\ndef main():\n    print(sys.argv[1:], 'GARRISON_MISSING_SINCE' in os.environ)\n"
                      "    return 3\n")
    out, err = child.communicate(timeout=DEADLINE)
    assert (out, err, child.returncode) == ("['one', '--two'] False\n", "", 3)
    module.unlink()
    gone = subprocess.run([*module_argv("pack.part", 0.1)], env=env, capture_output=True, text=True, check=False)
    assert gone.returncode == MODULE_MISSING and gone.stderr.count("\n") == 1, gone.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Make an environment with a copy of the package and its dependencies; return the path of the copy."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "garrison" not in entry.name and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    source = Path(garrison.__file__).parent
    shutil.copytree(source, site / "garrison", ignore=shutil.ignore_patterns("__pycache__"))
    readme = source.parents[1] / "state" / "README.md"
    if readme.exists():  # a wheel has it inside
        shutil.copytree(readme.parent, site / "garrison" / "state", ignore=shutil.ignore_patterns("runs"))
    return site / "garrison"


def test_a_run_continues_when_the_package_is_back(place: Place, installed: Path) -> None:
    python, away, go = installed.parents[3] / "bin" / "python", installed.with_name("away"), place.root / "go"
    first = Node("first", command=f"until [ -e {go} ]; do sleep 0.1; done; echo 1 > first.txt")
    graph = place.graph(first, Node("second", command="echo 2 > second.txt", after=("first",)))
    with (place.root / "out").open("ab") as output:
        child = subprocess.Popen([python, "-P", "-m", "garrison.cli.main", *place.launch_arguments(
            graph, "r1", gate="test -f calc.py")], env=place.env, cwd=place.root, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True)
    place.started.append(child)
    stems = ("guardian-crew", "runner-first", "orchestrator-first")
    pids = [place.pid(stem) for stem in stems]
    installed.rename(away)
    gone = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    told = f"garrison's own module garrison ({installed}) is missing (is an upgrade under way?)"
    wait_for("the launcher says it", lambda: told in (place.root / "out").read_text())
    go.touch()
    wait_for("a guardian could not be started", lambda: len(place.deaths().get("guardian-crew", ())) > 1)
    assert child.poll() is None
    away.rename(installed)
    assert place.finish(child) == 0, place.logs()
    assert time.monotonic() - gone < DEADLINE
    assert git(place.repo, "show", "main:first.txt") == "1" and git(place.repo, "show", "main:second.txt") == "2"
    assert place.nodes()["first"]["attempt"] == 1
    counted = [record["data"] for stem in ("", "launch", "runner-first") for record in place.journal(stem=stem)
               if record["kind"] == "death" and record["data"].get("class", "crash") == "crash"]
    assert len(counted) <= len(stems), counted  # of the kills alone


@pytest.mark.slow
def test_processes_of_the_old_version_are_replaced_and_the_run_ends(place: Place, installed: Path) -> None:
    """No module of the new version fits those that a process has loaded, so that late imports fail."""
    go = place.root / "go"
    first = Node("first", command=f"until [ -e {go} ]; do sleep 0.1; done; echo 1 > first.txt")
    graph = place.graph(first, Node("second", command="echo 2 > second.txt", after=("first",)))
    subprocess.run([installed.parents[3] / "bin" / "python", "-P", "-m", "garrison.cli.main", *place.launch_arguments(
        graph, "r1", gate="test -f calc.py"), "--detach"], env=place.env, cwd=place.root, stdin=subprocess.DEVNULL,
        check=True, stdout=subprocess.DEVNULL)
    place.pid("orchestrator-first")
    launcher = place.pid("launch")
    for path in installed.rglob("*.py"):
        text = path.read_text()
        if path.name == "errors.py":
            path.write_text(f"{text}\nOF_THE_NEXT_VERSION = True\n")
        elif "from garrison." in text:
            path.write_text(f"{text}\nfrom garrison.errors import OF_THE_NEXT_VERSION\n")
    go.touch()
    wait_for("the run is done", lambda: place.status() == "done")
    wait_for("its launcher ends", lambda: not Path(f"/proc/{launcher}").exists())
    assert git(place.repo, "show", "main:first.txt") == "1" and git(place.repo, "show", "main:second.txt") == "2"
    assert place.nodes()["first"]["attempt"] == 1
    assert "garrison was upgraded while this launcher ran" in place.logs()
