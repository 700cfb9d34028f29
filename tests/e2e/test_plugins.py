"""Plug-ins of an installed package in a launched run, and broken ones, which fail only the runs that use them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import support
from installed import install_in
from support import Node, Place, git, load, wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
POINTS = (
    '[garrison.agents]\nbroken = broken:no_such\n[garrison.handlers]\n"broken.type" = broken.sub:x\n'
    "[garrison.terminals]\nbroken = broken:SystemExit\n[garrison.merge_strategies]\nbroken = missing_module:x\n"
    "[garrison.commands]\nbroken = broken:sys\n")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with this garrison and the wheel of the example, as a user would install it, from no network."""
    folder = tmp_path_factory.mktemp("plugins")
    made = install_in(folder / "venv")
    shutil.copytree(EXAMPLE, folder / "plugin")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=folder / "plugin",
                   check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(next((folder / "venv/lib").glob("python*/site-packages")))
    return made


@pytest.fixture
def with_example(python: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(support, "PROGRAM", [str(python), "-P", "-m", "garrison.cli.main"])
    place.use_agents(cook={"kind": "recipe", "steps": ["echo flour and water > dough.md", "cat dough.md"]})
    return place


def _graph(place: Place, *nodes: str) -> Path:
    path = place.root / "plug.dot"
    names = [node.split()[0] for node in nodes]
    path.write_text("digraph plug { flow=dag; start [shape=Mdiamond] exit [shape=Msquare]\n" + "\n".join(nodes)
                    + f"\n{' -> '.join(['start', *names, 'exit'])} }}\n")
    return path


def test_a_run_uses_all_that_an_installed_package_offers(with_example: Place) -> None:
    place = with_example
    place.terminal = "example-quiet"
    graph = _graph(place, 'bake [agent=cook, prompt="Bake."]', 'count [type="example.words", file="dough.md"]')
    checked = place.command("pipeline", "validate", graph)
    assert "example-accepted" in checked.stdout and "bake does not say how its work is accepted" in checked.stdout
    set_up = place.command("merge-queue", "config", "--strategy", "example-note", "--repo-root", place.repo)
    assert set_up.returncode == 0, set_up.stderr
    place.run(graph, gate="test -f calc.py")
    assert git(place.repo, "show", "main:dough.md") == "flour and water"
    assert git(place.repo, "show", "main:dough.words") == "3"
    assert "with a note" in git(place.repo, "log", "-1", "--format=%s", "main")
    said = load(place.home / "runs/r1/nodes/count/1/result.json")["said"]
    assert said["context_updates"] == {"example.words": 3} and said["notes"] == "3 words"
    told = place.command("doctor", "--verbose").stdout
    assert "kind of agent recipe (garrison-example)" in told and "merge strategy example-note" in told, told
    assert "note: " in place.logs() and "bake does not say how its work is accepted" in place.logs()
    assert place.command("example-count").stdout == "1\n"
    assert "Command of the package garrison-example." in place.command("help", "--all").stdout
    many = _graph(place, *(f'n{number} [command="true"]' for number in range(51)))
    refused = place.command("launch", many, "--target-dir", place.repo, "--no-gate", "--run", "r2", "--new")
    assert "launch check example-small: 51 nodes on main are too many to review" in refused.stderr, refused.stderr
    graph = _graph(place, 'bake [agent=cook, prompt="Bake."]')
    wrong = place.home / "config.toml"
    wrong.write_text('[agents.cook]\nkind = "recipe"\nheat = 3\n')
    refused = place.command("launch", graph, "--target-dir", place.repo, "--no-gate", "--run", "r2", "--new")
    assert "heat is not a setting of a recipe; there is steps" in refused.stderr, refused.stderr


def test_a_handler_that_fails_fails_its_node_with_its_reason(with_example: Place) -> None:
    place = with_example
    place.run(_graph(place, 'count [type="example.words", file="none.md"]'), "r1", "--max-rework", "0",
              gate="test -f calc.py", code=1)
    assert "there is no file none.md to count" in place.command("status", "r1").stdout


def test_broken_plug_ins_are_one_line_for_the_runs_that_use_them(place: Place) -> None:
    package = place.root / "site"
    info = package / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS.replace('"', ""))
    (package / "broken.py").write_text("import sys\n")
    env = {"PYTHONPATH": str(package)}
    place.configure('[agents.odd]\nkind = "broken"\n[agents.good]\nargv = ["true"]\n')
    words = ("--target-dir", place.repo, "--no-gate", "--dry-run")
    for node, options, problem in (
            ('a [agent=odd, prompt="Do it."]', (), "the kind of agent broken (broken:no_such) of the package broken "),
            ('a [type="broken.type"]', (), "the handler broken.type (broken.sub:x) of the package broken cannot be"),
            ('a [agent=good, prompt="Do it."]', ("--terminal", "broken"), "the terminal broken (broken:SystemExit)"),
            ('a [agent=good, prompt="Do it."]', (), "")):
        ran = place.command("launch", _graph(place, node), *words, *options, **env)
        assert (ran.returncode == 0) is (not problem), (node, ran.stderr)
        assert problem in ran.stderr and "Traceback" not in ran.stderr, ran.stderr
    queued = place.command("merge-queue", "config", "--strategy", "nobodys", "--repo-root", place.repo, **env)
    assert queued.returncode == 2 and "nobodys" in queued.stderr
    called = place.command("broken", **env)
    assert (called.returncode, called.stderr.count("\n")) == (2, 1) and "is not a click command" in called.stderr
    told = place.command("doctor", "--json", **env)
    findings = [each["finding"] for each in json.loads(told.stdout) if "cannot be loaded" in each["finding"]]
    assert len(set(findings)) == 4 and "Traceback" not in told.stderr, told.stdout
    listed = json.loads(place.command("pipeline", "handlers", "--json", **env).stdout)
    assert any("cannot be loaded" in each["does"] for each in listed)
    assert os.environ.get("PYTHONPATH", "") != str(package)


def test_the_tests_of_the_example_pass(python: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE / "tests")
    ran = subprocess.run([python, *words], capture_output=True, text=True, check=False, cwd=EXAMPLE)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_users_signal_reaches_the_agent_and_is_shown(place: Place) -> None:
    waits = 'until test -s "$GARRISON_SIGNALS_FILE"; do sleep 0.05; done; cp "$GARRISON_SIGNALS_FILE" got.jsonl'
    child = place.launch(place.graph(Node("a", command=waits)), gate="test -f calc.py")
    wait_for("the agent works", lambda: place.hook("orchestrator-a").get("phase") == "executing")
    script = Path(support.__file__).parents[1] / "scripts" / "signal_protocol.py"
    content = json.dumps({"text": "to staging", "run_id": "r1", "node_id": "a"})
    for target, type_ in (("guardian-crew", "X-note"), ("orchestrator-a", "X-deployed"),
                          ("orchestrator-a", "DEPLOYED")):
        sent = subprocess.run([sys.executable, script, "write", "runner-a", target, type_, "--payload", content],
                              env=place.for_scripts, capture_output=True, text=True, check=False)
        assert sent.returncode == (2 if type_ == "DEPLOYED" else 0), sent.stderr
    assert "one of your own begins with X-" in sent.stderr
    assert place.finish(child) == 0, place.logs()
    got = json.loads(git(place.repo, "show", "main:got.jsonl"))
    assert (got["type"], got["payload"]["text"]) == ("X-deployed", "to staging")
    assert "X-note from " in place.command("events", "r1").stdout
