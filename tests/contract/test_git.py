"""What garrison needs of git, asked of the real one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from garrison.errors import GarrisonError, Refused
from garrison.system.git import ABSENT, Git, GitError, common_dir, damage, repository_key, validate_repository
from garrison.system.git.commits import Ident
from support import copy_of, write_program


def git(path, *arguments, text=None):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@x"}
    return subprocess.run(["git", *arguments], cwd=path, env=env, capture_output=True, text=True, check=True,
                          input=text or "").stdout.strip()


def make(path):
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    (path / "a.txt").write_text("a\n")
    (path / ".gitignore").write_text("ignored\n")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "first")


@pytest.fixture
def repo(tmp_path):
    return copy_of(make, tmp_path / "repo")


@pytest.fixture
def ours(repo):
    return Git(repo)


def commit(repo, name, text):
    (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", name)
    return git(repo, "rev-parse", "HEAD")


def test_foreign_variables_and_settings_do_not_reach_git(repo, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    git(repo, "config", "commit.gpgsign", "true")
    (repo / "new").write_text("n\n")
    assert Git(repo).commit_all(repo, "kept") is not None
    assert common_dir(repo) == (repo / ".git").resolve()


def test_an_error_is_one_line_with_gits_message(ours, tmp_path):
    with pytest.raises(GitError) as caught:
        ours.run("rev-list", "no-such-thing")
    assert "\n" not in str(caught.value)
    assert "no-such-thing" in str(caught.value)
    with pytest.raises(GitError, match="No such file"):
        Git(ours.root / "gone").run("status")
    with pytest.raises(GarrisonError, match="git is not on your PATH"):
        Git(ours.root, {"PATH": str(tmp_path)}).run("status")


def test_one_key_for_all_worktrees_of_a_repository(repo, ours, tmp_path):
    ours.add_worktree(tmp_path / "tree", "topic", "main")
    assert repository_key(tmp_path / "tree") == repository_key(repo) == ours.key
    assert ours.key.startswith("repo-")
    assert "/" not in ours.key
    (tmp_path / "link").symlink_to(repo)
    assert repository_key(tmp_path / "link") == ours.key


def test_names_ancestors_and_log(repo, ours):
    first = git(repo, "rev-parse", "main")
    second = commit(repo, "b.txt", "b\n")
    git(repo, "tag", "topic")
    assert ours.rev("main") == second
    assert ours.rev("nothing") is None
    assert [ours.branch_tip(name) for name in ("topic", "main~1", "main^", "main@{0}", "main ", "")] == [None] * 6
    assert ours.is_ancestor(first, second)
    assert not ours.is_ancestor(second, first)
    assert ours.branch_exists("main")
    assert not ours.branch_exists("topic")
    assert [line.split(" ", 1)[1] for line in ours.log_oneline(f"{first}..{second}")] == ["b.txt"]
    assert ours.changed_paths(first, second) == ["b.txt"]
    assert ours.head(repo) == second
    assert ours.head(repo / "gone") is None
    assert ours.current_branch() == "main"
    ours.check_branch_space()
    git(repo, "branch", "garrison")
    with pytest.raises(Refused, match="git branch -m"):
        ours.check_branch_space()


def test_update_ref_compares_and_swaps_and_refs_of_our_own_are_dropped_packed_or_not(repo, ours):
    first = git(repo, "rev-parse", "main")
    second = commit(repo, "b.txt", "b\n")
    assert ours.update_ref("refs/garrison/x", first, ABSENT)
    assert not ours.update_ref("refs/garrison/x", second, ABSENT)
    assert not ours.update_ref("refs/garrison/x", second, second)
    assert ours.update_ref("refs/garrison/x", second, first)
    assert ours.refs("refs/garrison/") == {"refs/garrison/x": second}
    ours.delete_refs(["refs/garrison/x", "refs/garrison/absent"])
    assert ours.refs("refs/garrison/") == {}
    for name in ("a/head", "a/candidate", "b/head"):
        assert ours.make_ref(f"refs/garrison/mq/{name}", second)
    git(repo, "pack-refs", "--all")
    assert ours.make_ref("refs/garrison/mq/c/head", second)
    ours.drop_refs(["refs/garrison/mq/a/head", "refs/garrison/mq/c/head", "refs/garrison/mq/none/head"])
    assert list(ours.refs("refs/garrison/mq/")) == ["refs/garrison/mq/a/candidate", "refs/garrison/mq/b/head"]
    assert not (repo / ".git/refs/garrison/mq/c").exists()


def test_merge_tree_merges_without_a_checkout_or_names_the_conflicts(repo, ours):
    git(repo, "checkout", "-qb", "topic")
    theirs = commit(repo, "b c.txt", "b\n")
    git(repo, "checkout", "-q", "main")
    mine = commit(repo, "c.txt", "c\n")
    merged = ours.merge_tree(mine, theirs)
    assert merged.conflicts == []
    assert git(repo, "ls-tree", "--name-only", merged.tree).splitlines() == [".gitignore", "a.txt", "b c.txt", "c.txt"]
    other = commit(repo, "b c.txt", "other\n")
    assert ours.merge_tree(other, theirs)[:2] == (None, ["b c.txt"])
    git(repo, "rm", "-q", "b c.txt")
    (repo / "b c.txt").mkdir()
    folder = commit(repo, "b c.txt/inside", "x\n")
    for found in (ours.merge_tree(folder, theirs), *ours.merge_trees(folder, [theirs])):
        assert found.conflicts == ["b c.txt"]
    git(repo, "checkout", "-q", "--orphan", "alone")
    strange = commit(repo, "x", "x")
    for found in (ours.merge_tree(strange, theirs), *ours.merge_trees(strange, [theirs])):
        assert "no commit in common" in found.reason
    with pytest.raises(GitError):
        ours.merge_tree("0" * 39 + "1", theirs)


@pytest.mark.parametrize("format", ["sha1", "sha256"])
def test_a_commit_is_written_as_git_itself_would(tmp_path, format):
    repo = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", "-b", "main", f"--object-format={format}", str(repo)], check=True)
    ours = Git(repo)
    tree = ours.run("write-tree").out.strip()
    who = Ident("Zoë 'Q' Jr", "z+q@x.example", "1600000000 -0330")
    stamps = {"GIT_AUTHOR_NAME": who.name, "GIT_AUTHOR_EMAIL": who.email, "GIT_AUTHOR_DATE": f"@{who.date}",
              "GIT_COMMITTER_NAME": "garrison", "GIT_COMMITTER_EMAIL": "garrison@localhost",
              "GIT_COMMITTER_DATE": "@1700000000 +0000"}
    parents: list[str] = []
    for message in ("first\n", "Ünï\n\nmore\n\nKey: value\n"):
        made = ours.commit_tree(tree, parents, message, date=1_700_000_000, author=who)
        links = [word for parent in parents for word in ("-p", parent)]
        assert made == ours.run("commit-tree", tree, *links, "-F", "-", text=message, extra=stamps).out.strip()
        assert made == ours.commit_tree(tree, [*parents, *parents], message, date=1_700_000_000, author=who)
        assert ours.tree_of(made) == tree
        parents = [made]
    own = {ours.commit_tree(tree, parents, "Merge\n\nKey: ö\n", date=1_700_000_000) for _ in range(2)}
    told = ours.run("show", "-s", "--format=%an|%ae|%cn|%at|%ct|%(trailers:key=Key,valueonly,separator=)", *own)
    assert told.out.strip() == "garrison|garrison@localhost|garrison|1700000000|1700000000|ö", "of its arguments alone"
    odd = ours.commit_tree(tree, parents, "by nobody\n", date=1, author=Ident("<>", "a>b<c", "1 +0000"))
    assert ours.run("log", "-1", "--format=%an|%ae", odd).out.strip() == "unknown|abc"
    ours.run("fsck", "--strict", "--no-dangling")
    assert not list((repo / ".git/objects").glob("*/tmp_obj_*"))


HEADS = {
    "detached": "git checkout -q --detach",
    "on another branch": "git checkout -q -b other",
    "on it": "true",
    "by another name": "git symbolic-ref refs/heads/alias refs/heads/main; git symbolic-ref HEAD refs/heads/alias",
    "by a link": "git checkout -q --detach; rm .git/HEAD; ln -s refs/heads/main .git/HEAD",
    "in a worktree": "git checkout -q --detach; git worktree add -q ../w main",
    "rebasing": "git checkout -q --detach; mkdir .git/rebase-merge; echo refs/heads/main > .git/rebase-merge/head-name",
    "being made": "git checkout -q --detach; mkdir -p .git/worktrees/half",
    "bare": "git config core.bare true",
    "to another": "git branch other; git symbolic-ref refs/heads/main refs/heads/other",
    "twice": "git worktree add -fq ../w main",
}


@pytest.mark.parametrize("deed", HEADS.values(), ids=HEADS)
def test_a_branch_is_checked_out_nowhere_only_if_git_agrees(repo, ours, deed):
    subprocess.run(["sh", "-c", deed], cwd=repo, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})
    sure = ours.is_checked_out_nowhere("main")
    assert sure == (deed in (HEADS["detached"], HEADS["on another branch"]))
    said = [tree.path for tree in ours.worktrees() if tree.branch == "main"]
    assert not sure or not said
    assert [tree.path for tree in ours.worktrees_on("main") if tree.branch == "main"] == said


@pytest.mark.parametrize("head", [b"ref: refs/heads/main\0\n", b"ref: refs/heads/\xff\n", b"ref: \n", b"\0" * 20, b""])
def test_a_branch_may_be_checked_out_where_a_head_is_damaged(repo, ours, head):
    ours.add_worktree(repo.parent / "w", "garrison/r/n", "main")
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=repo, check=True)
    assert ours.is_checked_out_nowhere("main")
    (repo / ".git/worktrees/w/HEAD").write_bytes(head)
    assert not ours.is_checked_out_nowhere("main")


def test_a_worktree_that_is_removed_while_the_others_are_read_is_on_no_branch(repo, ours, monkeypatch):
    """Regression: with many nodes, each landing listed all worktrees by git, as one was always being removed."""
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=repo, check=True)
    (repo / ".git/worktrees").mkdir()
    listed = list(damage.list_entries(repo / ".git/worktrees"))
    monkeypatch.setattr(damage, "list_entries", lambda folder, *_: [*listed, folder / "gone"])
    assert ours.is_checked_out_nowhere("main")


def test_worktrees_are_added_kept_found_again_and_removed(repo, ours, tmp_path):
    path = tmp_path / "trees" / "t"
    ours.add_worktree(path, "garrison/r/n", "main")
    (path / "work").write_text("w\n")
    ours.add_worktree(path, "garrison/r/n", "main")
    assert (path / "work").exists()
    assert [(tree.path.name, tree.branch) for tree in ours.worktrees()] == [("repo", "main"), ("t", "garrison/r/n")]
    ours.remove_worktree(path)
    ours.remove_worktree(path)
    assert not path.exists()
    assert len(ours.worktrees()) == 1
    ours.add_worktree(path, "garrison/r/n", "main")  # the branch is there already
    assert ours.current_branch(path) == "garrison/r/n"


def test_obstacles_to_a_worktree_are_handled_and_locks_cleared_in_it_alone(repo, ours, tmp_path):
    path = tmp_path / "t"
    ours.add_worktree(path, "one", "main")
    subprocess.run(["rm", "-r", str(path)], check=True)  # registered, but missing
    ours.add_worktree(path, "one", "main")
    assert ours.current_branch(path) == "one"
    ours.remove_worktree(path)
    path.mkdir()
    (path / "left").write_text("somebody's\n")  # a left-over directory is no one's to delete
    ours.add_worktree(path, "one", "main")
    assert (tmp_path / "t.left-1" / "left").read_text() == "somebody's\n"
    ours.add_worktree(tmp_path / "u", "two", "main")
    (ours.git_dir(tmp_path / "u") / "locked").write_text("initializing\n")  # a killed `worktree add`
    ours.add_worktree(tmp_path / "u", "two", "main")
    assert (tmp_path / "u" / "a.txt").exists()
    subprocess.run(["rm", "-r", str(tmp_path / "u")], check=True)
    ours.add_worktree(tmp_path / "v", "two", "main")  # the branch was held by a missing tree elsewhere
    assert ours.current_branch(tmp_path / "v") == "two"
    own = ours.git_dir(tmp_path / "v")
    for lock in (own / "index.lock", own / "HEAD.lock", repo / ".git/index.lock"):
        lock.write_text("")
    assert ours.clear_locks(tmp_path / "v") == ["index.lock", "HEAD.lock"]
    assert ours.clear_locks(repo) == []
    assert (repo / ".git/index.lock").exists()
    assert not (own / "index.lock").exists()


def test_many_worktrees_at_once(repo, ours, tmp_path):
    git(repo, "config", "branch.autoSetupMerge", "always")
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda n: Git(repo).add_worktree(tmp_path / f"t{n}", f"b{n}", "main"), range(12)))
    assert len(ours.worktrees()) == 13


def test_dirty_commit_all_and_the_author(repo, ours, monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    nameless = Git(repo)
    assert not nameless.is_dirty(repo)
    assert nameless.commit_all(repo, "nothing") is None
    (repo / "new").write_text("n\n")
    (repo / "ignored").write_text("i\n")
    write_program(repo / ".git/hooks/pre-commit", "#!/bin/sh\nexit 1\n")
    assert nameless.is_dirty(repo)
    made = nameless.commit_all(repo, "left-overs")
    assert git(repo, "show", "-s", "--format=%an <%ae>", made) == "garrison <garrison@localhost>"
    assert not nameless.is_dirty(repo)
    git(repo, "config", "user.name", "U")
    git(repo, "config", "user.email", "u@x")
    (repo / "new").write_text("n2\n")
    assert git(repo, "show", "-s", "--format=%an", nameless.commit_all(repo, "more")) == "U"


def test_a_snapshot_keeps_everything_and_touches_nothing(repo, ours):
    (repo / "a.txt").write_text("edited\n")
    (repo / "staged").write_text("s\n")
    git(repo, "add", "staged")
    (repo / "untracked").write_text("u\n")
    (repo / "ignored").write_text("i\n")
    before = (git(repo, "status", "--porcelain"), (repo / ".git/index").read_bytes(), git(repo, "rev-parse", "HEAD"))
    kept = git(repo, "rev-parse", ours.save_work(repo, "refs/garrison/rescue/x", "rescued"))
    assert (git(repo, "status", "--porcelain"), (repo / ".git/index").read_bytes(), git(repo, "rev-parse", "HEAD")) == \
        before
    assert git(repo, "show", f"{kept}:untracked") == "u"
    assert git(repo, "show", f"{kept}:a.txt") == "edited"
    assert "ignored" not in git(repo, "ls-tree", "--name-only", kept).split()
    assert not list((repo / ".git").glob("garrison-*"))
    git(repo, "stash", "-uq")
    assert ours.create_snapshot(repo, "clean") == git(repo, "rev-parse", "HEAD")
    (repo / ".git/index").write_bytes(b"torn")
    (repo / "untracked").write_text("again\n")
    assert git(repo, "show", f"{ours.create_snapshot(repo, 'torn')}:untracked") == "again"


def test_a_snapshot_leaves_out_what_git_would_read_for_hours(repo, ours):
    for name, size in (("huge\nü", 1 << 40), ("small", 5)):
        with (repo / name).open("wb") as file:
            file.truncate(size)
    (repo / "a.txt").write_text("edited\n")
    ref = ours.save_work(repo, "refs/garrison/rescue/x", "rescued")
    assert git(repo, "show", f"{ref}:small") == "\0" * 5
    assert git(repo, "show", f"{ref}:a.txt") == "edited"
    assert "huge" not in git(repo, "ls-tree", "--name-only", ref)
    assert r"Left out, since all together is too large: 'huge\nü'" in git(repo, "log", "-1", "--format=%B", ref)
    assert ours.commit_all(repo, "all") is not None
    assert "huge" not in git(repo, "ls-tree", "--name-only", "HEAD")


@pytest.mark.parametrize("what", ["rules", "markers"])
def test_the_cost_of_an_agents_settings_to_git_is_bounded(repo, ours, tmp_path, what):
    """Seen: 200,000 rules kept `git status` at work for an hour; a size of conflict markers took gigabytes."""
    ours.max_seconds, ours.max_memory = 1.0, 256 << 20
    tree = tmp_path / "t"
    ours.add_worktree(tree, "one", "main")
    assert ours.uncommitted(tree).is_clean
    if what == "rules":
        (tree / ".gitignore").write_text("".join(f"*x{number}*y\n" for number in range(60_000)))
        for number in range(4000):
            (tree / f"file{number}").touch()
        with pytest.raises(GitError, match="signal"):
            ours.uncommitted(tree)
    else:
        (tree / "a.txt").write_text("theirs\n")
        (tree / ".gitattributes").write_text("* conflict-marker-size=400000000\n")
        ours.commit_all(tree, "theirs")
        (repo / "a.txt").write_text("ours\n")
        git(repo, "commit", "-qam", "ours")
        with pytest.raises(GitError):
            ours.run("merge", "--no-commit", "main", cwd=tree)
        assert (tree / "a.txt").stat().st_size < 100_000_000


def test_threads_that_take_a_snapshot_of_one_worktree_at_once_lose_no_file(repo, ours, tmp_path):
    """Seen on a host whose kill was repeated: the second thread had the first one's index, and kept an empty tree."""
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"))
    (tmp_path / "tree/untracked").write_text("u\n")
    with ThreadPoolExecutor(8) as threads:
        taken = set(threads.map(lambda _: ours.create_snapshot(tmp_path / "tree", "kept", when="@0 +0000"), range(40)))
    assert len(taken) == 1
    assert {"a.txt", "untracked"} <= set(git(repo, "ls-tree", "--name-only", taken.pop()).split())


def test_repositories_garrison_cannot_work_on_are_refused_with_what_to_do(repo, tmp_path):
    assert validate_repository(repo) == repo
    assert validate_repository(repo.parent / "repo") == repo
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(tmp_path / "bare"))
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(tmp_path / "hub"))
    git(tmp_path / "hub", "worktree", "add", "-q", str(tmp_path / "leaf"))
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(tmp_path / "folder/.bare"))
    (tmp_path / "folder/.git").write_text("gitdir: ./.bare\n")
    commit(repo, "b", "b")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", str(tmp_path / "shallow"))
    git(tmp_path, "init", "-q", str(tmp_path / "empty"))
    git(tmp_path, "clone", "-q", str(repo), str(tmp_path / "unborn"))
    git(tmp_path / "unborn", "checkout", "-q", "--orphan", "new")
    (tmp_path / "a-file").touch()
    for name, word in (("nowhere", "does not exist"), ("a-file", "is a file"), (".", "git init"),
                       ("bare", "clone it"), ("hub", f"start in a worktree of it: `cd {tmp_path}/leaf`"),
                       ("folder", "worktree add main"), ("shallow", "--unshallow"),
                       ("empty", "--allow-empty"), ("unborn", "switch"), ("repo/.git", "checkout")):
        with pytest.raises(Refused, match=word):
            validate_repository(tmp_path / name)


def instead(tmp_path, script):
    """Return an environment whose git runs a script first."""
    real = shutil.which("git")
    path = tmp_path / "bin" / "git"
    path.parent.mkdir()
    write_program(path, f"#!/bin/sh\n{script}\nexec {real} \"$@\"\n")
    return {**os.environ, "PATH": f"{path.parent}:{os.environ['PATH']}"}


def test_a_ref_without_a_file_needs_no_git_and_a_packed_one_is_found(repo, tmp_path):
    git(repo, "branch", "loose")
    git(repo, "branch", "packed")
    git(repo, "update-ref", "refs/garrison/archive/r/n", "HEAD")
    git(repo, "pack-refs", "--all")
    git(repo, "branch", "deep/packed")
    ours, tip = Git(repo), git(repo, "rev-parse", "HEAD")
    assert [ours.branch_exists(name) for name in ("loose", "packed", "deep/packed")] == [True] * 3
    assert [ours.rev(f"refs/{name}") for name in ("heads/packed", "garrison/archive/r/n")] == [tip, tip]
    never = Git(repo, instead(tmp_path, "exit 99"))
    assert not any(never.branch_exists(name) for name in ("none", "deep", "packed/deeper"))
    assert never.rev("refs/heads/none") is None
    assert never.rev("refs/garrison/archive/r/none") is None


def test_a_git_that_a_signal_ended_answers_nothing(repo, tmp_path):
    """Seen to be taken for "there is no such commit": the queue withdrew an entry, a runner failed its node."""
    git(repo, "branch", "packed")
    git(repo, "pack-refs", "--all")  # of a ref that lies nowhere git need not be asked
    ours = Git(repo, instead(tmp_path, "kill -TERM $$"))
    for ask in (lambda: ours.rev("HEAD"), lambda: ours.branch_exists("packed"),
                lambda: ours.update_ref("refs/x", "HEAD"), lambda: ours.is_ancestor("HEAD", "HEAD")):
        with pytest.raises(GitError, match="a signal ended it"):
            ask()


def test_a_ref_for_which_there_is_no_room_is_neither_refused_nor_deleted(repo, tmp_path):
    """Seen to leave a landed branch without its archive, and no one said so."""
    said = "echo 'fatal: cannot lock: No space left on device' >&2; exit 128"
    ours = Git(repo, instead(tmp_path, f'case "$*" in *update-ref*) {said};; esac'))
    with pytest.raises(GitError, match="No space left"):
        ours.update_ref("refs/garrison/archive/r/n", git(repo, "rev-parse", "HEAD"))
    with pytest.raises(GitError, match="No space left"):
        ours.delete_refs(["refs/heads/main"])
    assert Git(repo).update_ref("refs/heads/main", git(repo, "rev-parse", "HEAD"), "0" * 40) is False
    Git(repo).delete_refs(["refs/heads/none"])


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Return a function that returns what git was asked since its last call."""
    folder, log = tmp_path / "bin", tmp_path / "asked"
    folder.mkdir()
    log.touch()
    write_program(folder / "git", f'#!/bin/sh\necho "$1" >>{log}\nexec {shutil.which("git")} "$@"\n')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def take() -> list[str]:
        words = log.read_text().split()
        log.write_text("")
        return words

    return take


def test_a_start_asks_git_each_question_once(repo, tmp_path, asked, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tree = tmp_path / "tree"
    Git(repo).add_worktree(tree, "topic", "main")
    git(repo, "remote", "add", "up", "https://example.invalid/x")
    git(repo, "remote", "add", "-t", "main", "down", "/there")
    git(repo, "config", "remote.down.pushurl", "/elsewhere")
    first = git(repo, "rev-parse", "main")
    asked()
    ours = Git(repo)
    assert (ours.common, ours.head(tree), ours.head(repo), ours.branch_tip("topic")) == (repo / ".git", *[first] * 3)
    assert asked() == []
    assert ours.remotes(tree) == {"up": "", "down": "/elsewhere"}
    assert ours.author(tree)["GIT_AUTHOR_NAME"] == "garrison"
    assert asked() == ["config"]


def test_the_author_is_who_git_would_take(repo, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "named").write_text("[user]\n\tname = Other\n\temail = o@x\n")
    git(repo, "config", "includeIf.onbranch:never.path", str(tmp_path / "named"))
    assert Git(repo).author()
    git(repo, "config", "user.name", "Ada")
    assert Git(repo).author()
    git(repo, "config", "includeIf.onbranch:main.path", str(tmp_path / "named"))
    assert Git(repo).author() == {}


@pytest.mark.parametrize("way", ["none", "worktree", "condition", "later"])
def test_the_settings_of_a_worktree_are_its_own_whatever_the_repository_has(repo, tmp_path, way):
    ours, tree = Git(repo), tmp_path / "tree"
    ours.add_worktree(tree, "topic", "main")
    (tmp_path / "more").write_text("[own]\n\tname = Own\n")
    if way == "worktree":
        git(repo, "config", "extensions.worktreeConfig", "true")
        git(tree, "config", "--worktree", "own.name", "Own")
    elif way == "condition":
        git(repo, "config", "includeIf.onbranch:topic.path", str(tmp_path / "more"))
    ours.run("status")
    if way == "later":
        ours.run("status", cwd=tree)
        git(repo, "config", "own.name", "Own")
    names = [{each.value for each in ours.settings(path) if each.key == "own.name"} for path in (repo, tree)]
    assert names == [{"Own"} if way == "later" else set(), set() if way == "none" else {"Own"}]


@pytest.mark.parametrize("state", ["packed", "detached", "unborn", "torn", "foreign", "no worktree"])
def test_a_head_is_read_as_git_reads_it(state, repo, tmp_path):
    tree, ours, other = tmp_path / "tree", Git(repo), tmp_path / "other"
    ours.add_worktree(tree, "topic", "main")
    tip = commit(tree, "b.txt", "b\n")
    if state == "packed":
        git(repo, "pack-refs", "--all")
        git(repo, "gc", "-q")
    elif state == "detached":
        git(tree, "checkout", "-q", "--detach")
    elif state == "unborn":
        git(tree, "checkout", "-q", "--orphan", "new")
    elif state == "torn":
        (repo / ".git/worktrees/tree/HEAD").write_text("")
    elif state == "foreign":
        other.mkdir()
        git(other, "init", "-q", "-b", "main")
        tip = commit(other, "c.txt", "c\n")
        tree = other
    else:
        shutil.rmtree(repo / ".git/worktrees/tree")
    assert ours.head(tree) == (None if state in ("unborn", "no worktree") else tip)


@pytest.mark.parametrize("seed", range(3))
def test_trees_parents_and_merge_bases_that_are_read_from_files_are_gits(repo, monkeypatch, seed):
    chance, oids = random.Random(seed), [git(repo, "rev-parse", "main")]
    first = git(repo, "rev-parse", "main^{tree}")
    for number in range(14):
        parents = chance.sample(oids[-4:], min(len(oids), chance.choice((1, 1, 1, 1, 2))))
        oids.append(git(repo, "commit-tree", first, *(word for each in parents for word in ("-p", each)),
                        "-m", f"{number}\n\nparent {oids[0]}"))
    asked, run = [], Git.run
    monkeypatch.setattr(Git, "run", lambda self, *given, **more: asked.append(given) or run(self, *given, **more))
    ours = Git(repo)
    for one in oids:
        assert ours.tree_of(one) == first
        assert " ".join(ours.parents_of(one)) == git(repo, "log", "-1", "--format=%P", one)
        for other in oids:
            bases = git(repo, "merge-base", "--all", one, other).split()
            assert ours.merge_base(one, other) in bases
    assert len(asked) < len(oids) ** 2 * 3 / 4, "the others need no git"


def test_a_commit_that_is_packed_damaged_or_forged_is_read_by_git(repo):
    tip = commit(repo, "b.txt", "b\n")
    file = repo / ".git/objects" / tip[:2] / tip[2:]
    other = git(repo, "rev-parse", "main~1")
    file.chmod(0o644)
    for content in (b"", b"x", (file.parents[1] / other[:2] / other[2:]).read_bytes()):
        whole = file.read_bytes()
        file.write_bytes(content)
        assert Git(repo).parents_of(tip) is None
        with pytest.raises(GitError):
            Git(repo).tree_of(tip)
        file.write_bytes(whole)
    git(repo, "gc", "-q")
    assert not file.exists()
    assert Git(repo).parents_of(tip) is None
    assert (Git(repo).tree_of(tip), Git(repo).merge_base(tip, other)) == (git(repo, "rev-parse", "main^{tree}"), other)


@pytest.mark.parametrize("deed", ["none", "detach", "packed", "symbolic", "link"])
def test_the_branch_of_a_worktree_is_what_git_says(repo, ours, tmp_path, deed):
    tree = tmp_path / "tree"
    ours.add_worktree(tree, "topic", "main")
    if deed == "detach":
        git(tree, "checkout", "-q", "--detach")
    elif deed == "packed":
        git(repo, "pack-refs", "--all")
    elif deed == "symbolic":
        git(repo, "symbolic-ref", "refs/heads/topic", "refs/heads/main")
    elif deed == "link":
        head = repo / ".git/worktrees/tree/HEAD"
        head.unlink()
        head.symlink_to("../../refs/heads/main")
    said = subprocess.run(["git", "symbolic-ref", "-q", "HEAD"], cwd=tree, capture_output=True, text=True, check=False)
    assert f"refs/heads/{ours.current_branch(tree) or ''}" == (said.stdout.strip() or "refs/heads/")


@pytest.mark.parametrize("missing", ["HEAD", "objects", "refs"])
def test_a_broken_repository_is_refused_by_git_itself(repo, missing):
    (repo / ".git" / missing).rename(repo / missing)
    with pytest.raises(Refused, match="repository"):
        common_dir(repo)
    (repo / missing).rename(repo / ".git" / missing)
    (repo / "below").mkdir()
    assert common_dir(repo / "below") == common_dir(repo) == (repo / ".git").resolve()


@pytest.fixture
def two_pointers(repo, tmp_path):
    """Give the repository a submodule that branches `first` and `second` move forward; return the commits."""
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "-b", "main")
    points = [commit(inner, f"{number}.txt", "x\n") for number in range(3)]
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    git(repo / "sub", "checkout", "-q", points[0])
    git(repo, "commit", "-qam", "a submodule")
    for name, point in (("first", points[1]), ("second", points[2])):
        git(repo, "checkout", "-q", "-b", name, "main")
        git(repo, "update-index", "--cacheinfo", f"160000,{point},sub")
        git(repo, "commit", "-qm", name)
    git(repo, "checkout", "-q", "main")
    return points


def test_a_submodule_is_merged_and_compared_whatever_the_gitmodules_of_the_checkout_says(ours, repo, two_pointers):
    first, second = git(repo, "rev-parse", "first"), git(repo, "rev-parse", "second")
    one, [many] = ours.merge_tree(first, second), ours.merge_trees(first, [second])
    assert (one.tree, one.conflicts) == (many.tree, many.conflicts) and one.conflicts == []
    assert git(repo, "ls-tree", one.tree, "sub").split()[2] == two_pointers[2], "it is moved forward"
    shutil.rmtree(repo / "sub")  # else git need not look for it
    refused = ('[submodule "sub"]\n\tpath = sub\n\turl = ./x\n\tupdate = !touch x\n', "[submodule")
    for content in (*refused, (repo / ".gitmodules").read_text() + "\tignore = all\n"):
        (repo / ".gitmodules").write_text(content)
        again = Git(repo)
        for result in (again.merge_tree(first, second), *again.merge_trees(first, [second])):
            assert content not in refused or (result.tree, result.conflicts) == (None, ["sub"])
        assert [change.name for change in again.changes(first, second)] == ["sub"]


def test_repositories_of_an_index_are_listed_again_once_it_changed(ours, repo, two_pointers, tmp_path):
    tree = tmp_path / "linked"
    git(repo, "worktree", "add", "-q", "--detach", str(tree), "first")
    before = ours.links(tree)
    assert ours.links(tree) == before == {"sub": git(repo, "rev-parse", "first:sub")}
    git(tree, "read-tree", "second")
    assert ours.links(tree) == {"sub": git(repo, "rev-parse", "second:sub")}


@pytest.mark.parametrize("form", ["version 2", "version 4", "split", "sparse"])
def test_repositories_are_found_in_an_index_of_any_form(ours, repo, two_pointers, tmp_path, form):
    trees = {name: tmp_path / name for name in ("with", "without")}
    (repo / "folder").mkdir()
    commit(repo, "folder/file", "x\n")
    git(repo, "rm", "-q", "--cached", "sub")
    git(repo, "commit", "-qm", "without a repository")
    for name, tree in trees.items():
        git(repo, "worktree", "add", "-q", "--detach", str(tree))
        if form == "sparse":
            git(tree, "sparse-checkout", "set", "--cone", "--sparse-index", "elsewhere")
        if name == "with":
            made = git(repo, "commit-tree", "-p", "HEAD", "-m", "one in a folder", git(tree, "mktree", text=(
                f"040000 tree {git(tree, 'mktree', text=f'160000 commit {two_pointers[0]}{chr(9)}sub')}\tfolder")))
            git(tree, "checkout", "-q", "--detach", made)
        if form == "split":
            git(tree, "update-index", "--split-index")
        elif form != "sparse":
            git(tree, "update-index", "--index-version", form.removeprefix("version "))
    assert {name: list(ours.links(tree)) for name, tree in trees.items()} == {"with": ["folder/sub"], "without": []}


def test_work_that_changes_nothing_is_not_committed_and_a_merge_is_not_concluded_by_it(repo, ours, tmp_path):
    tree = tmp_path / "tree"
    ours.add_worktree(tree, "topic", "main")
    tip = commit(repo, "a.txt", "theirs\n")
    mine = commit(tree, "a.txt", "mine\n")
    assert ours.commit_all(tree, "nothing") is None
    assert ours.commit_all(tree, "nothing", seen=ours.uncommitted(tree)) is None
    ours.run("merge", "--no-commit", tip, cwd=tree, check=False)
    assert ours.uncommitted(tree).unmerged == ("a.txt",)
    (tree / "a.txt").write_text("mine\n")
    assert ours.commit_all(tree, "resolved", seen=ours.uncommitted(tree)) is None
    assert git(tree, "rev-parse", "HEAD") == mine
    (tree / "a.txt").unlink()
    assert not ours.uncommitted(tree).is_clean
    assert ours.commit_all(tree, "without it", seen=ours.uncommitted(tree)) is not None
