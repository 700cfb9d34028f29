"""garrison installed from a wheel: in an environment that has the wheel and its required packages, and nothing else.

There is no checkout on `sys.path`, no caller's environment and no extra. The user stands in a repository of their own.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support import DEADLINE, git, make_repository, wait_for

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = {"src/garrison/": "garrison/", "examples/demo/": "garrison/examples/demo/", "systemd/": "garrison/systemd/",
            "state/": "garrison/state/"}
"""Folder of the checkout → its place in the wheel."""
PROGRAM = """#!{python}
import sys
from garrison.cli.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, as it is released."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True,
                   capture_output=True)
    [built] = folder.glob("*.whl")
    return built


def required(wheel: Path) -> set[str]:
    """Return the packages that the wheel requires without an extra, and what they require."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    waiting = [("", line.removeprefix("Requires-Dist: ")) for line in lines if line.startswith("Requires-Dist: ")]
    found: set[tuple[str, str]] = set()
    while waiting:
        extra, text = waiting.pop()
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            new = {(name, each) for each in ("", *requirement.extras)} - found
            found |= new
            waiting += [(each, line) for _, each in new for line in importlib.metadata.requires(name) or []]
    return {name for name, _ in found}


class Installed:
    """An environment with garrison, and a user who works in a repository."""

    def __init__(self, root: Path, wheel: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "env"], check=True)
        [self.site] = (root / "env/lib").glob("python*/site-packages")
        for name in required(wheel):
            for file in importlib.metadata.files(name) or []:
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    target = self.site / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(file.locate(), target)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        self.program = root / "env/bin/garrison"
        self.program.write_text(PROGRAM.format(python=root / "env/bin/python"))
        self.program.chmod(0o755)
        self.user, self.repo = root / "user", root / "user/project"
        make_repository(self.repo)
        self.env = {"HOME": str(self.user), "PATH": f"{self.program.parent}:/usr/local/bin:/usr/bin:/bin",
                    "TERM": "dumb", "TMPDIR": str(root)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["garrison", *words], env=self.env, cwd=self.repo, capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL, timeout=DEADLINE)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


def test_a_wheel_has_all_files_of_the_package_and_no_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert {name.rpartition("/")[2] for name in archive.namelist() if ".dist-info/licenses/" in name} == {
            "LICENSE", "NOTICE"}
    shared = {name.partition(".data/data/share/")[2] for name in found if ".data/data/" in name}
    names = {name for name in found if ".data/data/" not in name}
    assert shared == {"man/man1/garrison.1", "bash-completion/completions/garrison", "zsh/site-functions/_garrison",
                      "fish/vendor_completions.d/garrison.fish"}
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *PACKAGED], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.splitlines()
    places = {place + path.removeprefix(folder) for folder, place in PACKAGED.items() for path in listed
              if path.startswith(folder) and not path.endswith((".d.ts", ".d.mts"))}  # for the checks of the page alone
    assert names == places
    tests = re.compile(r"(^|/)(test_\w+\.py|conftest\.py)$|__pycache__")
    assert not [name for name in names if tests.search(name) and "/examples/demo/ledger/" not in name]
    assert {"garrison/project/templates/codemod.dot", "garrison/web/static/index.html",
            "garrison/pipeline/dialect.lark", "garrison/systemd/garrison-up.timer",
            "garrison/examples/demo/demo.dot"} <= names


def test_without_extras_it_is_small(wheel: Path, installed: Installed) -> None:
    assert "claude-agent-sdk" not in required(wheel)
    assert sum(path.lstat().st_size for path in installed.site.rglob("*")) < 70e6


def test_every_command_works_without_a_checkout_and_without_extras(installed: Installed) -> None:
    code = """
import click, json, sys
from garrison.cli.demo import find_demo
from garrison.cli.main import garrison
from garrison.directories import checkout
def all_of(command, context):
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        inner = click.Context(child, parent=context, info_name=name)
        assert child.get_help(inner)
        if isinstance(child, click.Group):
            all_of(child, inner)
all_of(garrison, click.Context(garrison, info_name="garrison"))
print(json.dumps([checkout(), str(find_demo()), [part for part in sys.path if "/src" in part],
                  "claude_agent_sdk" in sys.modules]))
"""
    done = subprocess.run([installed.program.with_name("python"), "-P", "-c", code], env=installed.env, check=True,
                          cwd=installed.repo, capture_output=True, text=True)
    assert json.loads(done.stdout) == [None, str(installed.site / "garrison/examples/demo"), [], False]


def test_the_first_minutes(installed: Installed) -> None:
    """Prepare the repository, land one task in a sandbox, resume by cron's command."""
    assert installed.run("--version").stdout.startswith("garrison, version ")
    assert installed.run("home").stdout.strip() == str(installed.user / ".local/state/garrison")
    prepared = installed.run("init")
    assert prepared.returncode == 0, prepared.stderr
    assert "trial: passed on main" in prepared.stderr
    assert (installed.repo / "first.dot").is_file()
    ran = installed.run("run", "say hello", "--command", "echo hello > hello.txt", "--terminal", "process")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert git(installed.repo, "show", "main:hello.txt") == "hello"
    assert (installed.user / ".local/state/garrison/README.md").read_text() == (ROOT / "state/README.md").read_text()
    assert json.loads(installed.run("find-stale", "--respawn").stdout) == []
    checked = installed.run("pipeline", "validate", "first.dot")
    assert checked.returncode == 0, checked.stderr


def test_the_printed_prompts_of_runner_and_guardian_work_block_by_block(installed: Installed) -> None:
    """The work lands, and MERGE_COMPLETE reaches the runner."""
    git(installed.repo, "branch", "feature")
    git(installed.repo, "worktree", "add", "-q", str(installed.user / "w"), "feature")
    (installed.user / "w/new.txt").write_text("new\n")
    git(installed.user / "w", "add", "-A")
    git(installed.user / "w", "commit", "-qm", "Add new")
    assert installed.run("merge-queue", "process", "--gate", "test -f new.txt").returncode == 0
    assert installed.run("identity-registry", "create", "guardian", "crew").returncode == 0
    assert installed.run("identity-registry", "mark-crashed", "guardian", "crew").returncode == 0

    def play(*arguments: str) -> list[str]:
        section = installed.run("prompt", *arguments)
        assert section.returncode == 0, section.stderr
        outputs = []
        for block in re.findall(r"```bash\n(.*?)```", section.stdout, re.DOTALL):
            done = subprocess.run(["bash", "-e", "-c", block], env=installed.env, cwd=installed.user, check=False,
                                  capture_output=True, text=True, timeout=DEADLINE)
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            outputs.append(done.stdout)
        return outputs

    with ThreadPoolExecutor(2) as players:
        guardian = players.submit(play, "guardian", "crew")
        runner = players.submit(play, "runner", "fix", "--branch", "feature", "--pipeline", "crew")
        guardian.result()
        answers = [json.loads(text) for text in runner.result() if '"MERGE_COMPLETE"' in text]
    assert git(installed.repo, "show", "main:new.txt") == "new"
    assert [answer["payload"]["commit"] for answer in answers] == [git(installed.repo, "rev-parse", "main")]


def test_a_missing_extra_is_one_line_with_the_command_that_installs_it(installed: Installed) -> None:
    installed.run("new", "fix-until-green", "--gate", "true")
    for words in (("launch", "fix-until-green.dot", "--agent", "claude", "--no-gate"), ("ask", "what runs?"),
                  ("demo", "--claude")):
        refused = installed.run(*words)
        assert refused.returncode == 1, refused.stderr
        last = refused.stderr.strip().splitlines()[-1]
        assert re.search(r"needs? the extra `claude` .*; install it: `.*install .*garrison.*\[claude\].*`", last), last


def test_units_name_the_installed_program_and_are_not_enabled(installed: Installed) -> None:
    printed = installed.run("install-service", "--print").stdout
    assert f"ExecStart={installed.program} up\n" in printed
    units = installed.user / ".config/systemd/user"
    assert not units.exists()
    wrote = installed.run("install-service", "--user", "--home", str(installed.user / "my home"))
    assert wrote.returncode == 0, wrote.stderr
    assert "next: systemctl --user daemon-reload" in wrote.stdout
    service = (units / "garrison@.service").read_text()
    assert f"ExecStart={installed.program} resume %i\n" in service
    assert f'[Service]\nEnvironment="GARRISON_HOME={installed.user}/my home"\n' in service
    assert {path.name for path in units.iterdir()} == {"garrison-up.service", "garrison-up.timer", "garrison@.service"}
    assert installed.run("install-service", "--cron").stdout.splitlines()[1] == (
        f"* * * * *  {installed.program} up >/dev/null 2>&1")


def test_each_shell_gets_a_completion_script(installed: Installed) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_GARRISON_COMPLETE" in installed.run("completion", shell).stdout


@pytest.mark.slow
def test_the_demonstration_runs(installed: Installed) -> None:
    ran = installed.run("demo")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "NOT SHOWN" not in ran.stdout
    wait_for("nothing of it is left", lambda: not list(installed.user.parent.glob("garrison-demo*")))
