"""What a worktree of garrison's gets in addition to the files of its commit, on real repositories."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from garrison.errors import Refused
from garrison.merge.slots import acquire_slot
from garrison.node.rescue_refs import restore_worktree
from garrison.sandbox.network import connect_for
from garrison.system.git import Git, GitError
from garrison.system.worktree_files import (
    complete_worktree,
    count_lfs_pointers,
    describe_unused_lock_files,
    hide_setup_output,
    setup_key,
)
from support import commit_all, git, make_repository, write_program

FILE = ("-c", "protocol.file.allow=always")


def tree_of(repo: Path, name: str = "tree") -> Path:
    path = repo.parent / "trees" / name
    Git(repo).add_worktree(path, name, "main")
    return path


def test_files_that_the_user_names_and_git_ignores_are_copied(repo: Path, tmp_path: Path) -> None:
    (repo / ".gitignore").write_text(".env*\nsecret/\nout\nlinks/\n")
    (repo / "elsewhere").symlink_to(tmp_path)
    commit_all(repo, "ignore")
    (repo / ".worktreeinclude").write_text("# what agents need\n.env*\n!.env.prod\nsecret/\nplain.txt\nlinks\nout\n")
    for name in (".env", ".env.prod", ".env.mine", "plain.txt", "secret/deep/key", "unnamed.env", "links/x"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(name)
    (repo / ".env").chmod(0o600)
    (tmp_path / "outside").write_text("not yours")
    (repo / "links/out").symlink_to(tmp_path / "outside")
    (repo / "links/in").symlink_to("x")
    tree = tree_of(repo)
    (tree / ".env.mine").write_text("the tree's own")
    notes = complete_worktree(Git(repo), tree)
    assert (tree / ".env").read_text() == ".env"
    assert (tree / ".env").stat().st_mode & 0o777 == 0o600
    assert (tree / "secret/deep/key").read_text() == "secret/deep/key"
    assert (tree / "links/in").readlink() == Path("x")
    assert (tree / ".env.mine").read_text() == "the tree's own"
    assert not any((tree / name).exists() for name in (".env.prod", "plain.txt", "unnamed.env", ".worktreeinclude"))
    assert sorted(notes) == [
        ".worktreeinclude: links/out is left out: the link points out of the repository",
        ".worktreeinclude: plain.txt is left out: git does not ignore it, so it could be committed; add it to "
        ".gitignore"]
    assert git(tree, "status", "--porcelain") == ""
    assert sorted(path.name for path in tree.parent.iterdir()) == ["tree"]


def test_a_copy_never_goes_through_a_link_of_the_tree(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (repo / "conf").symlink_to(tmp_path / "outside")
    (repo / ".gitignore").write_text("conf/key\n/key\n.worktreeinclude\n")
    commit_all(repo, "a link")
    tree = tree_of(repo)
    (repo / "conf").unlink()
    (repo / "conf").mkdir()
    (repo / "conf/key").write_text("key")
    (repo / "key").write_text("another")
    (repo / ".worktreeinclude").write_text("key\n")
    notes = complete_worktree(Git(repo), tree)
    assert not list((tmp_path / "outside").iterdir())
    assert notes == [".worktreeinclude: conf/key is left out: the worktree has a link in its path"]
    assert (tree / "key").read_text() == "another"


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a repository `repo` whose submodule `lib` has a submodule `deep`."""
    folder = tmp_path_factory.mktemp("origins")
    for name in ("deep", "lib", "repo"):
        make_repository(folder / name)
        git(folder / name, "commit", "-q", "--allow-empty", "-m", f"{name} has a history of its own")
    git(folder / "lib", *FILE, "submodule", "add", "-q", str(folder / "deep"), "deep")
    git(folder / "lib", "commit", "-qm", "deep")
    git(folder / "repo", *FILE, "submodule", "add", "-q", str(folder / "lib"), "lib")
    git(folder / "repo", *FILE, "submodule", "update", "-q", "--init", "--recursive")
    git(folder / "repo", "commit", "-qm", "lib")
    return folder


@pytest.fixture
def parent(origins: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(origins / "repo", tmp_path / "repo", symlinks=True))


def state(repo: Path) -> tuple[str, ...]:
    return ((repo / ".git/config").read_text(), git(repo, "status", "--porcelain"),
            git(repo, "submodule", "status", "--recursive"))


def test_trees_get_submodules_without_the_network(parent: Path, origins: Path, tmp_path: Path) -> None:
    before = state(parent)
    tree = tree_of(parent)
    origins.rename(tmp_path / "away")
    try:
        assert complete_worktree(Git(parent), tree) == []
    finally:
        (tmp_path / "away").rename(origins)
    assert (tree / "lib/deep/calc.py").is_file()
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree / "lib", "remote", "get-url", "origin") == str(origins / "lib")
    assert state(parent) == before
    Git(parent).remove_worktree(tree)
    assert not tree.exists()
    assert git(parent, "fsck", "--connectivity-only") == ""
    assert state(parent) == before


def test_work_in_a_submodule_is_saved_and_its_pointer_can_be_checked_out(parent: Path) -> None:
    ours, tree = Git(parent), tree_of(parent)
    complete_worktree(ours, tree)
    git(tree, "config", "diff.ignoreSubmodules", "all")
    (tree / "lib/made.txt").write_text("made\n")
    (tree / "lib/deep/made.txt").write_text("made deep\n")
    assert ours.is_dirty(tree)
    made = ours.commit_all(tree, "what the agent left")
    assert made is not None
    assert not ours.is_dirty(tree)
    complete_worktree(ours, tree)  # a life after finds it as it was
    assert (tree / "lib/deep/made.txt").is_file()
    ours.remove_worktree(tree)
    slot = acquire_slot(ours, parent.parent / "trees" / "slots")
    slot.prepare("main")
    assert not (slot.path / "lib/made.txt").exists()
    (slot.path / "lib/made.txt").write_text("in the way")
    slot.prepare(made)
    assert (slot.path / "lib/deep/made.txt").read_text() == "made deep\n"
    slot.remove()
    slot.release()
    git(parent, "checkout", "-q", made)
    git(parent, "submodule", "update", "-q", "--recursive")
    assert (parent / "lib/deep/made.txt").read_text() == "made deep\n"


@pytest.mark.parametrize("users", [True, False], ids=["the user has the submodule", "the user has not"])
def test_a_rescue_of_submodules_is_restored_with_them(parent: Path, tmp_path: Path, users: bool) -> None:
    ours, tree = Git(parent), tree_of(parent)
    complete_worktree(ours, tree)
    if not users:  # then this repository keeps what is done in it
        before, after = parent / ".git/modules", tmp_path / "modules"
        before.rename(after)
        for alternates in (parent / ".git/worktrees").rglob("info/alternates"):
            alternates.write_text(alternates.read_text().replace(str(before), str(after)))
    (tree / "lib/half.txt").write_text("half\n")
    (tree / "lib/deep/half.txt").write_text("half deep\n")
    ref = ours.save_work(tree, "refs/garrison/rescue/r/n/1", "kept")
    assert ref == "refs/garrison/rescue/r/n/1"
    assert ours.save_work(tree, ref, "kept") == ref, "the same work is kept once"
    assert git(tree / "lib", "status", "--porcelain", "--ignore-submodules").splitlines() == ["?? half.txt"]
    ours.remove_worktree(tree)
    if users:
        lib = parent / ".git/modules/lib"
        assert git(lib, "show", f"{ref}:half.txt") == "half"
        assert git(lib / "modules/deep", "show", f"{ref}:half.txt") == "half deep"
    restore_worktree(ours, git(parent, "rev-parse", ref), tmp_path / "again")
    assert (tmp_path / "again/lib/half.txt").read_text() == "half\n"
    assert (tmp_path / "again/lib/deep/half.txt").read_text() == "half deep\n"
    ours.delete_rescues([ref])
    if users:
        assert git(parent / ".git/modules/lib", "for-each-ref", "--format=%(refname)", "refs/garrison/rescue") == ""


def test_a_missing_submodule_is_fetched_or_reported(parent: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(parent), "clone")
    clone = Git(tmp_path / "clone")
    tree = tree_of(clone.root, "cloned")
    with pytest.raises(Refused, match=r"cannot get submodule lib at ") as caught:
        complete_worktree(clone, tree)
    assert "git -c protocol.file.allow=always submodule update" in str(caught.value)
    assert "\n" not in str(caught.value)
    (tmp_path / "user").mkdir()
    (tmp_path / "user/.gitconfig").write_text('[protocol "file"]\n\tallow = always\n')
    allowed = Git(clone.root, {"HOME": str(tmp_path / "user")})
    complete_worktree(allowed, tree)
    assert (tree / "lib/deep/calc.py").is_file()
    (tree / "lib/made.txt").write_text("made\n")
    made = allowed.commit_all(tree, "made")
    assert made
    clone.remove_worktree(tree)
    head = git(clone.root, "rev-parse", f"{made}:lib")
    assert git(clone.root, "show", f"{head}:made.txt") == "made"


def test_relative_addresses_are_read_as_git_reads_them(repo: Path) -> None:
    ours = Git(repo)
    assert ours.resolve_url("https://a/b.git") == "https://a/b.git"
    assert ours.resolve_url("../lib") == str(repo.parent / "lib")
    git(repo, "remote", "add", "origin", "ssh://host/group/repo.git")
    assert (ours.resolve_url("../lib.git"), ours.resolve_url("./sub/x")) == ("ssh://host/group/lib.git",
                                                                   "ssh://host/group/repo.git/sub/x")


def test_lfs_pointers_are_counted_and_a_missing_filter_is_gits_error(repo: Path) -> None:
    (repo / ".gitattributes").write_text("*.bin filter=lfs -text\n")
    (repo / "a.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (repo / "b.bin").write_text("the thing itself\n")
    commit_all(repo, "large")
    assert count_lfs_pointers(Git(repo), tree_of(repo)) == 1
    git(repo, "config", "filter.lfs.smudge", "no-git-lfs-here")
    git(repo, "config", "filter.lfs.required", "true")
    ours = Git(repo, home=repo.parent / "home")  # no launch yet, so the filter is the user's
    with pytest.raises(GitError) as caught:
        ours.add_worktree(repo.parent / "other", "other", "main")
    assert "lfs" in caught.value.stderr


def test_a_hook_that_was_asked_for_may_forbid_the_landing_and_nothing_else(repo: Path) -> None:
    for name in ("post-checkout", "reference-transaction", "pre-commit", "post-index-change"):
        write_program(repo / ".git/hooks" / name, "#!/bin/sh\nexit 1\n")
    ours = Git(repo)
    tree = tree_of(repo)
    (tree / "new").touch()
    assert ours.commit_all(tree, "kept")
    with pytest.raises(Refused, match="reference-transaction"):
        ours.check_movable("main")
    assert not ours.update_ref("refs/heads/main", git(tree, "rev-parse", "HEAD"), hooks=True)
    (repo / ".git/hooks/reference-transaction").unlink()
    ours.check_movable("main")
    assert subprocess.run(["git", "rev-parse", "main"], cwd=repo, capture_output=True, check=True).stdout


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_settings_file_blocks_nothing_that_reads_a_worktree(repo: Path) -> None:
    """Seen: git waited for ever for what an agent would write into it, and garrison with it."""
    tree, ours = repo, Git(repo)
    pipes = [tree / name for name in (".gitignore", "deep/.gitattributes", ".gitmodules", ".mailmap")]
    (tree / "deep").mkdir()
    acts: list[Callable[[], object]] = [
        lambda: ours.is_dirty(tree), lambda: ours.uncommitted(tree), lambda: ours.ignored(tree) or True,
        lambda: hide_setup_output(ours, tree) or True, lambda: ours.commit_all(tree, "Change"),
        lambda: ours.create_snapshot(tree, "Change")]
    for number, act in enumerate(acts):
        for pipe in pipes:
            os.mkfifo(pipe)
        (tree / "calc.py").write_text(f"changed = {number}\n")
        assert act()
        assert not [pipe for pipe in pipes if pipe.exists()]


def test_links_and_pipes_that_a_branch_left_are_not_written_and_block_nothing(repo: Path, tmp_path: Path) -> None:
    tree, mine = tree_of(repo), tmp_path / "mine"
    mine.write_text("mine")
    for name in ("linked", "plain", "hard"):
        (tree / name).mkdir()
        (tree / name / "output").touch()
    (tree / "linked/.gitignore").symlink_to(mine)
    (tree / "hard/.gitignore").hardlink_to(mine)
    os.mkfifo(tree / "package.json")
    (tree / "uv.lock").symlink_to("/dev/zero")
    (tree / "Cargo.lock").symlink_to("Cargo.lock")
    (tree / "yarn.lock").symlink_to("/proc/self/mem")
    (tree / "go.sum").symlink_to(mine)
    (tree / "package-lock.json").mkdir()
    hide_setup_output(Git(repo), tree)
    assert mine.read_text() == "mine"
    assert (tree / "plain/.gitignore").read_text() == "\n*\n"
    assert setup_key("true", tree) == setup_key("true", repo)
    (tree / ".gitattributes").write_text("*.bin filter=lfs\n")
    (tree / "a.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    git(tree, "-c", "filter.lfs.clean=cat", "add", "a.bin", ".gitattributes")
    assert count_lfs_pointers(Git(repo), tree) == 1
    (tree / "a.bin").unlink()
    os.mkfifo(tree / "a.bin")
    assert count_lfs_pointers(Git(repo), tree) == 0


def test_a_lock_file_counts_by_its_content_where_it_is_a_file_of_the_tree(tmp_path: Path) -> None:
    keys = [setup_key("true", tmp_path)]
    (tmp_path / "real").write_bytes(b"\0\xff")
    (tmp_path / "uv.lock").symlink_to("real")
    keys.append(setup_key("true", tmp_path))
    for size in (1 << 30, 1 << 31):  # sparse: only the beginning is read
        with (tmp_path / "real").open("wb") as file:
            file.truncate(size)
        keys.append(setup_key("true", tmp_path))
    assert len(set(keys)) == 4
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "out").symlink_to("/etc/passwd")
    told = describe_unused_lock_files(tmp_path, ["uv.lock", "fifo", "folder", "out", "../x", "absent"])
    assert [line.partition(":")[0] for line in told] == ["fifo", "folder", "out", "../x", "absent"]


def plant_submodule(tree: Path, name: str = "sub") -> None:
    """Give a worktree a submodule that nothing populates."""
    (tree / ".gitmodules").write_text(f'[submodule "{name}"]\n\tpath = sub\n\turl = ./x\n')
    git(tree, "update-index", "--add", "--cacheinfo", f"160000,{git(tree, 'rev-parse', 'HEAD')},sub")
    git(tree, "add", ".gitmodules")
    git(tree, "commit", "-qm", "sub")


def names_repository(repo: Path, tree: Path) -> None:
    (tree / "sub").mkdir(exist_ok=True)
    (tree / "sub/.git").write_text(f"gitdir: {repo}/.git\n")


def shares_refs(repo: Path, tree: Path) -> None:
    (tree / "sub/.git").mkdir(parents=True)
    (tree / "sub/.git/HEAD").write_text("ref: refs/heads/main\n")
    (tree / "sub/.git/commondir").write_text(f"{repo}/.git\n")


def links_to_checkout(repo: Path, tree: Path) -> None:
    if (tree / "sub").is_dir():
        (tree / "sub").rmdir()
    (tree / "sub").symlink_to(repo)
    (repo / "user.txt").write_text("the user's work\n")


def links_reflog(repo: Path, tree: Path) -> None:
    subprocess.run(["git", "init", "-q", "-b", "other", tree / "sub"], check=True)
    git(tree / "sub", "config", "core.logAllRefUpdates", "always")
    (tree / "sub/.git/logs").mkdir()
    (repo.parent / "profile").write_text("")
    (tree / "sub/.git/logs/HEAD").symlink_to(repo.parent / "profile")


@pytest.mark.parametrize("trick", [names_repository, shares_refs, links_to_checkout, links_reflog])
def test_work_in_a_submodule_is_committed_in_no_repository_of_others(repo: Path, trick: Callable[[Path, Path], None]) \
        -> None:
    tree, before = tree_of(repo), git(repo, "rev-parse", "main")
    plant_submodule(tree)
    trick(repo, tree)
    (tree / "sub/evil").write_text("evil")
    (tree / "left").write_text("left")
    Git(repo).create_snapshot(tree, "snapshot")
    with suppress(GitError):
        Git(repo).commit_all(tree, "leftover")
    assert (git(repo, "rev-parse", "main"), git(repo, "symbolic-ref", "HEAD")) == (before, "refs/heads/main")
    assert not (repo.parent / "profile").exists() or not (repo.parent / "profile").read_text()


def test_no_index_is_written_through_a_link_in_a_nested_repository(repo: Path) -> None:
    tree, victim, secret = tree_of(repo), repo.parent / "victim", repo.parent / "secret"
    subprocess.run(["git", "init", "-q", tree / "nested"], check=True)
    git(tree / "nested", "-c", "user.name=a", "-c", "user.email=a@x", "commit", "-q", "--allow-empty", "-m", "x")
    victim.write_text("before")
    secret.write_text("secret")
    (tree / "nested/x").write_text("x")
    (tree / "nested/.git/index").unlink(missing_ok=True)
    (tree / "nested/.git/index").symlink_to(secret)
    (tree / "nested/.git" / f"garrison-snapshot-{os.getpid()}").symlink_to(victim)
    with suppress(GitError):
        Git(repo).create_snapshot(tree, "snapshot")
    assert victim.read_text() == "before"


def test_a_submodules_name_cannot_lead_elsewhere(repo: Path) -> None:
    tree, victim = tree_of(repo), repo.parent / "victim"
    victim.mkdir()
    (victim / "work").write_text("work")
    store = Git(repo)
    (store.git_dir(tree) / "modules").mkdir()
    plant_submodule(tree, "../../../../../victim")
    with suppress(Refused, GitError):
        store.populate_submodules(tree, force=True)
    assert (victim / "work").exists()


def test_a_gate_that_rewrites_git_files_of_its_slot_changes_no_checkout(repo: Path) -> None:
    tree = tree_of(repo)
    plant_submodule(tree)
    slot = acquire_slot(Git(repo), repo.parent / "slots")
    for rewrite in (lambda file: file.write_text(f"gitdir: {repo}/.git\n"),
                    lambda file: file.symlink_to(repo / ".git")):
        slot.prepare("main")
        (slot.path / ".git").unlink()
        rewrite(slot.path / ".git")
        slot.prepare("main")
        assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"
    git(slot.path, "checkout", "-q", "--detach", "tree")
    names_repository(repo, slot.path)
    with suppress(Refused):
        slot.prepare("tree")
    assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"
    slot.release()


def plant_address(repo: Path, url: str) -> tuple[Path, str]:
    """Give a worktree a submodule at that address whose commit is nowhere; return it, and its .gitmodules."""
    tree = tree_of(repo)
    address = f"[submodule \"sub\"]\n\tpath = sub\n\turl = {url}\n"
    plant_submodule(tree)
    (tree / ".gitmodules").write_text(address)
    git(tree, "update-index", "--cacheinfo", f"160000,{'1' * 40},sub")
    git(tree, "add", ".gitmodules")
    git(tree, "commit", "-qm", "address")
    return tree, address


@pytest.mark.parametrize("who", ["the branch", "the user", "the user's HEAD", "the user without a network",
                                 "the user with another host"])
def test_a_submodules_address_is_contacted_if_it_is_the_users_and_there_is_a_network(
        repo: Path, tmp_path: Path, who: str) -> None:
    asked, home = tmp_path / "asked", tmp_path / "user"
    home.mkdir()
    write_program(home / "ssh", f"#!/bin/sh\ntouch {asked}\nexit 1\n")
    (home / ".gitconfig").write_text(f"[core]\n\tsshCommand = {home}/ssh\n")
    rights = 'network = "none"' if "without" in who else "" if "another" in who else 'hosts = ["host.invalid:22"]'
    (home / "config.toml").write_text(f"[sandbox]\n{rights}\n")
    tree, address = plant_address(repo, "ssh://host.invalid/private")
    if who != "the branch":
        (repo / ".gitmodules").write_text(address)
    if "HEAD" in who:
        git(repo, "add", ".gitmodules")
        git(repo, "commit", "-qm", "address")
        (repo / ".gitmodules").unlink()  # as in a bare repository
    ours = Git(repo, {**os.environ, "HOME": str(home)}, home=home)
    with pytest.raises(Refused, match="cannot get submodule sub") as caught:
        complete_worktree(ours, tree, force=True, connect=connect_for(ours))
    why = {"the branch": "only this branch names that address", "the user without a network": 'network = "none"',
           "the user with another host": 'add "host.invalid:22" to hosts'}
    assert why.get(who, "git fetch") in str(caught.value)
    assert asked.exists() is (who not in why)


def test_a_gitmodules_that_git_refuses_is_not_committed(repo: Path) -> None:
    tree = tree_of(repo)
    head = git(tree, "rev-parse", "HEAD")
    (tree / ".gitmodules").write_text('[submodule "../../hooks"]\n\tpath = a\n\turl = -u./evil\n')
    with pytest.raises(Refused, match=r"would damage the repository: git refuses its \.gitmodules"):
        Git(repo).commit_all(tree, "all")
    assert git(tree, "rev-parse", "HEAD") == head


@pytest.mark.parametrize(("users", "asked"), [
    (None, "https://lfs.invalid"), ("https://h.example/us", "https://h.example/us"),
    ("remote https://h.example/r.git", "https://h.example/r.git/info/lfs"), ("configured", "https://h.example/c")])
def test_an_address_in_a_branchs_lfsconfig_is_not_followed(repo: Path, tmp_path: Path, users: str | None,
                                                           asked: str) -> None:
    """A program in place of git-lfs, which reads that file where git's configuration has no address."""
    lfs = tmp_path / "lfs"
    write_program(lfs, f"#!/bin/sh\n(git config lfs.url || git config -f .lfsconfig lfs.url) > {tmp_path}/asked\ncat\n")
    git(repo, "config", "filter.lfs.smudge", str(lfs))
    if users == "configured":
        git(repo, "config", "lfs.url", asked)
    elif users and users.startswith("remote "):
        git(repo, "remote", "add", "origin", users.removeprefix("remote "))
    elif users:
        (repo / ".lfsconfig").write_text(f"[lfs]\n\turl = {users}\n[core]\n\tpager = evil\n")
    tree = tree_of(repo)
    (tree / ".gitattributes").write_text("*.bin filter=lfs\n")
    (tree / ".lfsconfig").write_text("[lfs]\n\turl = https://evil.example\n")
    (tree / "a.bin").write_text("x")
    ours = Git(repo, home=tmp_path)
    ours.commit_all(tree, "all")
    (tree / "a.bin").unlink()
    ours.run("checkout", "--", "a.bin", cwd=tree)
    assert (tmp_path / "asked").read_text().strip() == asked


class _Files(SimpleHTTPRequestHandler):
    """Serves a folder; below /away it leads to another port."""

    leads_to = 0

    def do_GET(self) -> None:
        if not self.path.startswith("/away/"):
            return super().do_GET()
        self.send_response(302)
        self.send_header("Location", f"http://127.0.0.1:{self.leads_to}/{self.path.removeprefix('/away/')}")
        return self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("allowed", [True, False])
def test_a_submodule_is_fetched_through_the_proxy(repo: Path, tmp_path: Path, allowed: bool) -> None:
    """Whatever proxy the user's git has. The target of a redirect must be allowed as well."""
    home, library = tmp_path / "user", tmp_path / "library"
    home.mkdir()
    make_repository(library)
    git(library, "commit", "-q", "--allow-empty", "-m", "a history of its own")
    git(library, "update-server-info")
    (home / ".gitconfig").write_text("[http]\n\tproxy = http://127.0.0.1:1\n")
    handler = partial(_Files, directory=str(library / ".git"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, ThreadingHTTPServer(("127.0.0.1", 0), handler) as to:
        for each in (server, to):
            Thread(target=each.serve_forever, daemon=True).start()
        _Files.leads_to = to.server_port
        tree, address = plant_address(repo, f"http://127.0.0.1:{server.server_port}/away")
        (repo / ".gitmodules").write_text(address)
        git(tree, "update-index", "--cacheinfo", f"160000,{git(library, 'rev-parse', 'HEAD')},sub")
        ports = [server.server_port, *([to.server_port] if allowed else [])]
        (home / "config.toml").write_text(f"[sandbox]\nhosts = {[f'127.0.0.1:{port}' for port in ports]}\n")
        ours = Git(repo, {**os.environ, "HOME": str(home)}, home=home)
        with nullcontext() if allowed else pytest.raises(Refused, match="403"):
            complete_worktree(ours, tree, force=True, connect=connect_for(ours))
        for each in (server, to):
            each.shutdown()
    assert (tree / "sub/calc.py").exists() is allowed


def test_a_submodules_server_that_does_not_answer_is_given_up(repo: Path) -> None:
    ours = Git(repo)
    ours.fetch_seconds = 0.5
    with socket.create_server(("127.0.0.1", 0)) as server:
        tree, address = plant_address(repo, f"git://127.0.0.1:{server.getsockname()[1]}/silent")
        (repo / ".gitmodules").write_text(address)
        with pytest.raises(Refused, match=r"did not end within 0\.5 s"):
            complete_worktree(ours, tree, force=True)
        server.settimeout(5)
        caller, _ = server.accept()
        with caller:
            caller.settimeout(5)
            while caller.recv(4096):  # git's own program of the transport has ended with it
                pass


@pytest.mark.parametrize("content", ['[submodule "s"]\n\tpath = s\n\turl = -u./evil\n', None])
def test_a_gitmodules_that_git_refuses_is_saved_under_another_name(repo: Path, content: str | None) -> None:
    ours, tree = Git(repo), tree_of(repo)
    (tree / "made.txt").write_text("made\n")
    if content is None:
        (tree / ".gitmodules").symlink_to("/etc/passwd")
    else:
        (tree / ".gitmodules").write_text(content)
    ref = ours.save_work(tree, "refs/garrison/rescue/r/n/1", "kept")
    assert git(repo, "show", f"{ref}:.gitmodules.refused", check=False) == (content or "").strip()
    assert git(repo, "show", f"{ref}:made.txt") == "made"
    assert "error" not in git(repo, "fsck", "--no-dangling")
