"""Git's configuration and hooks: recorded at a launch, reported when they change, restored, not trusted later."""

from __future__ import annotations

import pytest
from merge_support import World, git

from garrison.merge import commands, guard
from garrison.records.record import from_data
from garrison.records.run import Launch
from garrison.run import git_record
from garrison.run.git_record import GitState, GitWatch, changed, describe
from garrison.run.target_watch import GateWatch
from garrison.system.git import Git
from garrison.values import replace


class Run:
    """A repository, and the folder of a run that was launched on it."""

    def __init__(self, tmp_path) -> None:
        self.world = World(tmp_path)
        self.repo, self.home, self.folder = self.world.repo, tmp_path / "home", tmp_path / "run"
        hook = self.repo / ".git/hooks/pre-commit"
        hook.write_text("#!/bin/sh\nexit 0\n")
        hook.chmod(0o755)
        git(self.repo, "config", "filter.own.clean", "cat")
        git(self.repo, "config", "remote.origin.url", "/one")
        self.git = Git(self.repo, home=self.home)
        self.said: list[str] = []
        self.launch()

    def launch(self, *, accept: bool = False) -> None:
        git_record.trust_present(self.home, self.git, self.said.append, accept=accept)
        git_record.save(self.folder, self.git)
        self.watch = GitWatch(self.home, self.git, self.folder, "")

    def plant(self) -> None:
        git(self.repo, "config", "filter.evil.clean", "evil")
        git(self.repo, "config", "filter.own.clean", "evil")
        git(self.repo, "config", "--unset", "remote.origin.url")
        (self.repo / ".git/hooks/pre-commit").write_text("evil\n")
        (self.repo / ".git/hooks/post-commit").write_text("evil\n")
        (self.repo / ".git/info").mkdir(exist_ok=True)
        (self.repo / ".git/info/attributes").write_text("* filter=evil\n")


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path)


def test_a_change_is_reported_once_with_the_running_nodes_and_restored(run):
    assert run.watch.poll(["a"]) is None
    run.plant()
    told = run.watch.poll(["a", "b"])
    assert told.describe() == (
        "while a, b were at work, git's configuration or hooks were changed: filter.evil.clean in .git/config, "
        "filter.own.clean in .git/config, remote.origin.url in .git/config (removed), hooks/post-commit, "
        "hooks/pre-commit, info/attributes; garrison does not follow it, your own git would: `garrison doctor --fix` "
        "restores it")
    assert run.watch.poll(["a"]) is None
    assert GitWatch(run.home, run.git, run.folder, told.state).poll(["a"]) is None, "a later guardian tells it again"
    planted = from_data(GitState, told.changes)
    git(run.repo, "config", "remote.origin.url", "/mine")  # the user has changed it since: it stays
    git_record.restore(run.git, run.folder, git_record.still_changed(run.git, run.folder, planted))
    assert describe(changed(git_record.load(run.folder), git_record.observe(run.git)), run.git.common) == [
        "remote.origin.url in .git/config"]
    assert git(run.repo, "config", "filter.own.clean") == "cat"
    assert (run.repo / ".git/hooks/pre-commit").read_text() == "#!/bin/sh\nexit 0\n"
    assert (run.repo / ".git/hooks/pre-commit").stat().st_mode & 0o111
    assert (run.folder / "removed/hooks/post-commit").read_text() == "evil\n"
    assert (run.folder / "files/hooks/pre-commit").stat().st_mode & 0o077 == 0


def test_changes_made_while_agents_worked_are_not_trusted_by_a_later_launch(run):
    run.plant()
    run.watch.poll(["a"])
    run.launch()
    assert len(run.said) == 1
    assert "filter.evil.clean, filter.own.clean" in run.said[0]
    (run.repo / ".gitattributes").write_text("* filter=evil\n")
    (run.repo / "new").write_text("x\n")
    assert run.git.commit_all(run.repo, "x") is not None  # `evil` is not a program: it would fail
    run.launch(accept=True)
    run.said.clear()
    run.launch()
    assert run.said == []


def test_harmless_changes_of_users_and_of_the_guard_are_not_reported(run):
    git(run.repo, "config", "branch.main.remote", "origin")
    git(run.repo, "config", "user.email", "b@x")
    own = run.repo / ".git/hooks/reference-transaction"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    run.launch()
    guard.install(run.git, "refs/heads/main")
    assert run.watch.poll(["a"]) is None
    guard.uninstall(run.git, "refs/heads/main")
    assert run.watch.poll(["a"]) is None


def test_a_run_of_an_older_version_has_no_record_and_reports_nothing(run, tmp_path):
    watch = GitWatch(run.home, run.git, tmp_path / "none", "")
    run.plant()
    assert watch.poll(["a"]) is None


def test_a_gate_that_a_user_changes_during_a_run_is_reported(run):
    config = run.world.config
    launch = Launch("r", "p", str(run.repo), "main", "", "", gate=config.gate, setup=config.setup)
    watch = GateWatch(run.world.queue, launch, "")
    assert watch.poll(["a"]) is None
    manner = f"; strategy merge, at most {config.timeout:g} s"
    for change, before, now in (
            ({"timeout": 7.0}, f"gate {config.gate!r}{manner}", f"gate {config.gate!r}; strategy merge, at most 7 s"),
            ({"strategy": "squash"}, f"gate {config.gate!r}; strategy merge, at most 7 s",
             f"gate {config.gate!r}; strategy squash, at most 7 s"),
            ({"gate": None, "no_gate": True}, f"gate {config.gate!r}; strategy squash, at most 7 s",
             "no gate; strategy squash, at most 7 s")):
        commands.reconfigure(run.world.queue, **change)
        told = watch.poll(["a"])
        assert told.describe() == f"while a was at work, the user changed how main is tested: from {before} to {now}"
        assert watch.poll(["a"]) is None
    assert GateWatch(run.world.queue, launch, "no gate").poll(["a"]) is None, "as an older edition told it"
    assert GateWatch(run.world.queue, launch, told.state).poll(["a"]) is None
    assert GateWatch(run.world.queue, replace(launch, land="none"), "").poll(["a"]) is None
