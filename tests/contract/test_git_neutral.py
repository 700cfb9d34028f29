"""What agents may plant in a repository, seen to run in a plain git and not in garrison's own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from garrison.system.git import Git, GitError, neutral
from garrison.system.git.neutral import ALWAYS, RULES, KeyGroup, Setting, find_git_dirs, find_group, neutralise
from support import copy_of, write_program

ENVIRON = {**{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
           "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@x",
           "GIT_TERMINAL_PROMPT": "0"}


def git(path: Path, *arguments: str, check: bool = True, text: str | None = None) -> str:
    done = subprocess.run(["git", *arguments], cwd=path, env=ENVIRON, capture_output=True, text=True, check=False,
                          input=text or "", timeout=60)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()


@dataclass
class Place:
    """A repository with a worktree, a script that agents would plant, and the file that shows that it ran."""

    repo: Path
    tree: Path
    script: Path
    marker: Path

    def ran(self) -> str:
        """Return which scripts ran since it was asked."""
        told = self.marker.read_text() if self.marker.exists() else ""
        self.marker.unlink(missing_ok=True)
        return told


def make(repo: Path) -> None:
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    (repo / "a.txt").write_text("1\n2\n3\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "first")
    git(repo, "branch", "other")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    repo, tree, script, marker = (tmp_path / name for name in ("repo", "tree", "script", "marker"))
    copy_of(make, repo)
    git(repo, "worktree", "add", "-q", "-b", "topic", str(tree))
    write_program(script, f"#!/bin/sh\necho \"$0 $*\" >> {marker}\n[ $# -gt 0 ] || exec cat\n")
    return Place(repo, tree, script, marker)


def change(place: Place) -> None:
    """Leave commits on two branches that merge, and an uncommitted file in the worktree."""
    (place.repo / "a.txt").write_text("one\n2\n3\n")
    git(place.repo, "commit", "-qam", "one")
    (place.tree / "a.txt").write_text("1\n2\nthree\n")
    git(place.tree, "commit", "-qam", "three")
    (place.tree / "new.txt").write_text("new\n")


@dataclass(frozen=True)
class Plant:
    """Lines of the configuration (`{}`: the script) and files that an agent leaves, and what a user does then."""

    config: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    user: tuple[str, ...] = ("add", "-A")
    text: str = ""


ATTRIBUTES = {"tree/.gitattributes": "* filter=e diff=e merge=e\n"}
REMOTE = {"remote.up.url": "../repo"}
ASK = "protocol=https\nhost=x.invalid\n\n"
PLANTS = {
    "hooks_path": Plant({"core.hooksPath": "{}.d"}, {"script.d/reference-transaction": "{}"}, ("branch", "b1")),
    "hooks": Plant(files={"repo/.git/hooks/reference-transaction": "{}"}, user=("branch", "b1")),
    "checkout_hook": Plant(files={"repo/.git/hooks/post-checkout": "{}"}, user=("checkout", "-q", "--detach")),
    "index_hook": Plant(files={"repo/.git/hooks/post-index-change": "{}"}),
    "fsmonitor": Plant({"core.fsmonitor": "{}"}, user=("status",)),
    "clean": Plant({"filter.e.clean": "{}"}, ATTRIBUTES),
    "process": Plant({"filter.e.process": "{}", "filter.e.required": "true"}, ATTRIBUTES),
    "smudge": Plant({"filter.e.smudge": "{}"}, ATTRIBUTES, ("checkout", "-f", "HEAD~1", "--", ".")),
    "info_attributes": Plant({"filter.e.clean": "{}"}, {"repo/.git/info/attributes": "* filter=e\n"}),
    "attributes_file": Plant({"filter.e.clean": "{}", "core.attributesFile": "{}.attributes"},
                             {"script.attributes": "* filter=e\n"}),
    "include": Plant({"include.path": "../../evil"}, {"evil": '[filter "e"]\nclean = {}\n', **ATTRIBUTES}),
    "include_if": Plant({"includeIf.onbranch:topic.path": "../../evil"},
                        {"evil": "[include]\npath = evil2\n", "evil2": '[filter "e"]\nclean = {}\n', **ATTRIBUTES}),
    "worktree_config": Plant({"extensions.worktreeConfig": "true"}, {
        "repo/.git/worktrees/tree/config.worktree": '[filter "e"]\nclean = {}\n', **ATTRIBUTES}),
    "external_diff": Plant({"diff.external": "{}"}, user=("diff", "HEAD~1")),
    "textconv": Plant({"diff.e.textconv": "{}"}, ATTRIBUTES, ("diff", "HEAD~1")),
    "diff_command": Plant({"diff.e.command": "{}"}, ATTRIBUTES, ("diff", "HEAD~1")),
    "merge_driver": Plant({"merge.e.driver": "{}"}, {"repo/.git/info/attributes": "* merge=e\n"},
                          ("merge-tree", "--write-tree", "main", "topic")),
    "editor": Plant({"core.editor": "{}"}, user=("commit", "--allow-empty")),
    "gpg": Plant({"gpg.program": "{}", "commit.gpgSign": "true"}, user=("commit", "--allow-empty", "-m", "x")),
    "ssh": Plant({"remote.up.url": "ssh://x.invalid/r", "core.sshCommand": "{}"}, user=("ls-remote", "up")),
    "git_proxy": Plant({"remote.up.url": "git://x.invalid/r", "core.gitProxy": "{}"}, user=("ls-remote", "up")),
    "upload_pack": Plant({**REMOTE, "remote.up.uploadpack": "{}"}, user=("ls-remote", "up")),
    "receive_pack": Plant({**REMOTE, "remote.up.receivepack": "{}"}, user=("push", "up", "HEAD:refs/x")),
    "ext": Plant({"remote.up.url": "ext::{} x", "protocol.ext.allow": "always"}, user=("ls-remote", "up")),
    "instead_of": Plant({**REMOTE, "url.ext::{} x.insteadOf": "../repo", "protocol.ext.allow": "always"},
                        user=("ls-remote", "up")),
    "helper": Plant({"credential.helper": "{}"}, user=("credential", "fill"), text=ASK),
    "url_helper": Plant({"credential.https://x.invalid.helper": "{}"}, user=("credential", "fill"), text=ASK),
    "ask_pass": Plant({"core.askPass": "{}"}, user=("credential", "fill"), text=ASK),
}


TOGETHER = (("hooks_path", "clean", "editor", "external_diff"),
            ("hooks", "index_hook", "textconv", "checkout_hook", "process"), ("fsmonitor", "info_attributes", "gpg"),
            ("attributes_file", "smudge", "diff_command"), ("include", "merge_driver"), ("include_if",),
            ("worktree_config",))
"""Plants that do not stand in one another's way."""
ALONE = tuple((name,) for name in PLANTS if not any(name in names for names in TOGETHER))
"""Those of transports: one that is refused would keep another from being tried."""


def plant(place: Place, name: str) -> Plant:
    it, base = PLANTS[name], place.repo.parent
    script = base / f"script-{name}"
    write_program(script, place.script.read_text().replace('echo "', f'echo "{name}: '))
    for key, value in it.config.items():
        git(place.repo, "config", key.replace("{}", str(script)), value.replace("{}", str(script)))
    for path, content in it.files.items():
        target = base / path.replace("script", script.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(script.read_text() if content == "{}" else content.replace("{}", str(script)))
        target.chmod(0o755 if content == "{}" else 0o644)
    return it


def work(place: Place, plants: list[Plant]) -> None:
    """Do all that garrison does with a repository, and what the users did; what fails is left."""
    ours = Git(place.repo)
    users = [partial(ours.run, *it.user, cwd=place.tree, text=it.text or None, timeout=20) for it in plants]
    deeds = (
        lambda: ours.is_dirty(place.tree), lambda: ours.create_snapshot(place.tree, "snapshot"),
        lambda: ours.commit_all(place.tree, "all"), lambda: ours.merge_tree("main", "topic"),
        lambda: ours.merge_trees("main", ["topic"]), lambda: ours.changed_paths("main", "topic"),
        lambda: ours.commits("main", "topic"), lambda: ours.log_oneline("main"),
        lambda: ours.run("diff", "--stat", "main", "topic"), lambda: ours.run("diff", "main", "topic"),
        lambda: ours.add_worktree(place.repo.parent / "another", "another", "main"),
        lambda: ours.check_out(place.tree, "main"),
        lambda: ours.save_work(place.tree, "refs/garrison/rescue/r/n/1", "x"),
        lambda: ours.update_ref("refs/heads/other", git(place.repo, "rev-parse", "main")),
        lambda: ours.populate_submodules(place.tree), lambda: ours.run("ls-remote", "up", timeout=20),
        lambda: ours.run("push", "up", "main:refs/heads/there", timeout=20),
        lambda: ours.run("fetch", "-q", "up", timeout=20), lambda: ours.run("credential", "fill", text=ASK, timeout=20),
        *users, lambda: ours.remove_worktree(place.tree))
    for deed in deeds:
        try:
            deed()
        except GitError:
            continue


@pytest.mark.parametrize("names", [*TOGETHER, *ALONE], ids=" ".join)
def test_what_an_agent_planted_runs_in_a_plain_git_and_not_in_ours(place: Place, names: tuple[str, ...]) -> None:
    change(place)
    plants = []
    for name in names:
        plants.append(plant(place, name))
        (place.tree / "new.txt").write_text(f"for {name}\n")
        place.ran()
        git(place.tree, *plants[-1].user, check=False, text=plants[-1].text)
        assert f"{name}: " in place.ran(), f"{name} does not even work in a plain git"
    (place.tree / "new.txt").write_text("for ours\n")
    work(place, plants)
    assert place.ran() == ""


def test_the_users_own_filters_and_drivers_of_the_launch_are_kept_and_no_others(place: Place, tmp_path: Path) -> None:
    git(place.repo, "config", "filter.e.clean", "sed s/new/old/")
    home, common = tmp_path / "home", place.repo / ".git"
    (place.tree / ".gitattributes").write_text("*.txt filter=e\n")
    (place.tree / "b.txt").write_text("new\n")
    path = neutral.trust_path(home, common)
    path.parent.mkdir(parents=True)
    path.write_text(neutral.trust_text([("filter.e.clean", "sed s/new/old/")], [], {}))
    first = Git(place.repo, home=home).create_snapshot(place.tree, "x")
    assert git(place.repo, "show", f"{first}:b.txt") == "old"
    trusted = path.read_text()
    path.write_text(neutral.trust_text([], [], {}))
    assert git(place.repo, "show", f"{Git(place.repo, home=home).create_snapshot(place.tree, 'x')}:b.txt") == "new"
    path.write_text(trusted)
    git(place.repo, "config", "filter.e.clean", f"{place.script}")
    assert Git(place.repo, home=home).create_snapshot(place.tree, "x") == first or \
        git(place.repo, "rev-parse", f"{first}^{{tree}}")
    assert not place.marker.exists()
    path.write_text(neutral.trust_text([], [], {}))
    second = Git(place.repo, home=home).create_snapshot(place.tree, "x")
    assert git(place.repo, "cat-file", "blob", f"{second}:b.txt") == "new"
    assert not place.marker.exists()


def test_a_required_filter_that_is_not_trusted_is_left_out_and_does_not_stop_the_snapshot(place: Place) -> None:
    git(place.repo, "config", "filter.e.clean", "false")
    git(place.repo, "config", "filter.e.required", "true")
    (place.tree / ".gitattributes").write_text("* filter=e\n")
    assert Git(place.repo).commit_all(place.tree, "x")


def test_a_planted_merge_driver_is_replaced_by_a_merge_of_the_text(place: Place) -> None:
    change(place)
    git(place.repo, "config", "merge.e.driver", "false")
    (place.repo / ".git/info/attributes").write_text("* merge=e\n")
    merged = Git(place.repo).merge_tree("main", "topic")
    assert merged.tree is not None
    assert git(place.repo, "show", f"{merged.tree}:a.txt") == "one\n2\nthree"
    git(place.repo, "config", "--remove-section", "merge.e")
    assert Git(place.repo).merge_tree("main", "topic") == merged


@pytest.mark.parametrize("key", ["remote.up.uploadpack", "remote.up.receivepack", "remote.up.vcs", "core.gitProxy"])
def test_a_transport_that_cannot_be_neutralised_is_refused_with_key_and_file(place: Place, key: str) -> None:
    git(place.repo, "config", key, str(place.script))
    git(place.repo, "config", "remote.up.url", "../repo")
    ours = Git(place.repo)
    ours.run("status")
    with pytest.raises(GitError, match=rf"(?i){key} in .*config") as caught:
        ours.run("ls-remote", "up")
    assert "\n" not in str(caught.value)


def test_hooks_of_the_store_of_a_submodule_do_not_run(place: Place) -> None:
    inner = place.tree / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "x")
    for name in ("pre-receive", "update", "reference-transaction", "post-receive"):
        write_program(place.repo / ".git/hooks" / name, place.script.read_text())
    assert Git(place.repo).save_work(place.tree, "refs/garrison/rescue/r/n/1", "x")
    assert git(place.repo, "for-each-ref", "refs/garrison/parts")
    assert not place.marker.exists(), place.marker.read_text()


def test_replaced_and_grafted_commits_are_shown_as_they_are(place: Place) -> None:
    change(place)
    real, fake = git(place.repo, "rev-parse", "main"), git(place.repo, "rev-parse", "topic")
    git(place.repo, "replace", real, fake)
    assert git(place.repo, "log", "-1", "--format=%s", real) == "three"
    assert Git(place.repo).log_oneline(real)[0].endswith(" one")
    git(place.repo, "replace", "-d", real)
    (place.repo / ".git/info/grafts").write_text(f"{real}\n")
    assert len(git(place.repo, "log", "--format=%s", real).splitlines()) == 1
    assert len(Git(place.repo).log_oneline(real)) == 2


def test_a_repository_that_works_on_files_elsewhere_is_refused_with_key_and_file(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    git(place.repo, "config", "core.worktree", str(elsewhere))
    with pytest.raises(GitError, match=r"core\.worktree in .*config points outside") as caught:
        Git(place.repo).run("status")
    assert "\n" not in str(caught.value)
    git(place.repo, "config", "core.worktree", str(place.repo))
    Git(place.repo).run("status")


def test_a_rewritten_git_file_of_a_worktree_is_not_obeyed(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "evil"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    git(other, "config", "core.fsmonitor", str(place.script))
    ours = Git(place.repo)
    assert ours.common
    (place.tree / ".git").write_text(f"gitdir: {other / '.git'}\n")
    assert ours.create_snapshot(place.tree, "x")
    assert not place.marker.exists()


def test_a_repository_that_an_agent_created_in_its_worktree_runs_nothing(place: Place) -> None:
    inner = place.tree / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "x")
    (inner / ".gitattributes").write_text("* filter=e\n")
    (inner / "file").write_text("x\n")
    git(inner, "config", "filter.e.clean", str(place.script))
    git(inner, "config", "core.fsmonitor", str(place.script))
    assert Git(place.repo).create_snapshot(place.tree, "x")
    assert not place.marker.exists()


def test_what_is_configured_is_read_again_only_after_a_change(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Git(place.repo)
    ours.run("status")
    calls = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **rest: calls.append(command) or start(command, **rest))
    ours.run("status")
    assert len(calls) == 1
    git(place.repo, "config", "filter.e.clean", "x")
    calls.clear()
    ours.run("status")
    assert len(calls) == 2
    dirs = find_git_dirs(place.tree)
    assert dirs.common == (place.repo / ".git").resolve()
    assert any(each.key == "filter.e.clean" for each in neutral.read_configuration(dirs, ENVIRON).settings)


# --------------------------------------------------------------------------------------------------------------- pure


def setting(key: str, value: str, scope: str = "local") -> Setting:
    return Setting(scope, "/r/.git/config", key, value)


def test_every_rule_names_its_group_and_every_group_is_watched() -> None:
    assert {rule.group for rule in RULES} | {each.group for each in ALWAYS} <= set(KeyGroup)
    watched = {
        "core.hookspath": KeyGroup.HOOKS, "hook.x.command": KeyGroup.HOOKS, "core.fsmonitor": KeyGroup.FSMONITOR,
        "filter.x.clean": KeyGroup.FILTERS, "diff.external": KeyGroup.DIFF, "diff.x.textconv": KeyGroup.DIFF,
        "merge.x.driver": KeyGroup.MERGE, "alias.st": KeyGroup.TERMINAL, "gpg.ssh.program": KeyGroup.SIGNATURES,
        "remote.origin.pushurl": KeyGroup.TRANSPORT, "url.x.insteadof": KeyGroup.TRANSPORT,
        "credential.helper": KeyGroup.CREDENTIALS, "include.path": KeyGroup.INCLUDES,
        "core.worktree": KeyGroup.WORKTREE,
        "core.attributesfile": KeyGroup.FILES, "branch.main.remote": None, "user.name": None, "core.bare": None}
    assert {key: find_group(key) for key in watched} == watched


def test_a_trusted_value_that_another_replaced_comes_back() -> None:
    lfs = setting("filter.lfs.clean", "git-lfs clean -- %f", "global")
    planted = setting("filter.lfs.clean", "evil")
    trusted = [(lfs.key, lfs.value)]
    assert neutralise([lfs], trusted) == []
    assert neutralise([lfs, planted], trusted) == [("filter.lfs.clean", "git-lfs clean -- %f")]
    assert neutralise([planted], []) == [("filter.lfs.clean", ""), ("filter.lfs.required", "false")]
    assert neutralise([lfs, setting("filter.lfs.process", "evil")], trusted) == [("filter.lfs.process", "")]


def test_helpers_are_reset_and_the_trusted_named_again() -> None:
    mine, planted = setting("credential.helper", "store", "global"), setting("credential.helper", "evil")
    assert neutralise([mine], [(mine.key, mine.value)]) == []
    assert neutralise([mine, planted], [(mine.key, mine.value)]) == [("credential.helper", ""),
                                                                     ("credential.helper", "store")]


def test_hooks_of_the_configuration_are_switched_off_even_if_trusted() -> None:
    hook = setting("hook.lint.command", "x", "global")
    assert neutralise([hook], [(hook.key, hook.value)]) == [("hook.lint.enabled", "false"), ("hook.lint.event", "")]
    assert neutralise([hook], [], hooks=True) == []
