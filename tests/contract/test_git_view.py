"""The private git view, with real git inside a real boundary: what works, what it cannot reach, what comes out."""

from __future__ import annotations

import os

import pytest

from garrison.errors import GarrisonError
from garrison.sandbox import collect as collecting
from garrison.sandbox.collect import collect, enter
from garrison.sandbox.git_view import REPOSITORY, GitView, restore_link
from garrison.system.git import Git, bounds
from sandbox_support import missing, run_inside
from support import commit_all, git, make_repository, write_program

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
BRANCH = "garrison/run/node"


@pytest.fixture
def tree(repo, tmp_path):
    path = tmp_path / "trees" / "node"
    git(repo, "worktree", "add", "-q", "-b", BRANCH, str(path))
    return path


@pytest.fixture
def view(repo, tree):
    return GitView(Git(repo), tree)


def tip(repo, branch=BRANCH):
    return git(repo, "rev-parse", f"refs/heads/{branch}")


POSITIVE = r"""
ok() { echo "ok $1"; }
git status --porcelain; ok status
echo one > one.txt; git add one.txt; git commit -qm one; ok commit
echo more >> one.txt; git commit -qa --amend -m "one, amended"; ok amend
for n in 2 3 4; do echo $n > f$n; git add f$n; git commit -qm "n$n"; done
GIT_SEQUENCE_EDITOR="sed -i 's/^pick \(.* n3\)/drop \1/'" git rebase -qi HEAD~3
test ! -e f3; test -e f4; ok rebase
echo dirty > one.txt; git stash -q; test "$(cat one.txt)" != dirty; git stash pop -q; test "$(cat one.txt)" = dirty
git checkout -q one.txt; ok stash
git tag -a v1 -m "a tag"; git describe > /dev/null; ok tag
git branch topic HEAD~1; git switch -q topic; echo t > topic.txt; git add .; git commit -qm topic
git switch -q garrison/run/node; git cherry-pick topic > /dev/null; ok cherry-pick
git merge -q --no-ff -m merged topic; ok merge
git worktree add -q /tmp/other topic~1; git -C /tmp/other log --oneline -1 > /dev/null
test "$(git rev-parse --git-dir --git-common-dir | sort -u | wc -l)" = 1; git worktree list | grep -q /tmp/other
git worktree remove /tmp/other; ok worktree
git bisect start HEAD main > /dev/null; git bisect run test ! -e f4 > /dev/null; git bisect reset 2> /dev/null
ok bisect
git config --worktree user.name "Tree" 2>/dev/null || git config user.name Tree; ok worktree-config
git gc -q; git fsck --connectivity-only 2>&1 | grep -v dangling | grep -v notice || true; ok gc
git rev-parse main origin/main > /dev/null; ok refs
if git push origin HEAD:main 2> /tmp/push; then exit 1; fi; grep -q pushing-is-off /tmp/push; ok push
git submodule add -q ./vendored sub 2>/dev/null || git -c protocol.file.allow=always submodule --quiet add /tmp/vend sub
git commit -qm "a submodule"; ok submodule
grep -q ran hook-ran; ok hooks
git log --oneline -1
"""


COMMIT = "echo x >> x.txt; git add x.txt; git commit -qm x; echo committed"


def test_locks_of_a_killed_git_do_not_stop_a_successor(tree, view, tmp_path):
    mounts = enter(view, "1")
    assert "committed" in run_inside(tree, mounts, COMMIT).stdout
    own = view.common
    for lock in (own / "index", own / "HEAD", view.common / "packed-refs", view.common / "refs/heads" / BRANCH):
        lock.with_name(f"{lock.name}.lock").touch()
    others = tmp_path / "others"
    others.mkdir()
    (others / "kept.lock").touch()
    (view.common / "refs/link").symlink_to(others)
    assert "committed" not in run_inside(tree, mounts, COMMIT, check=False).stdout
    assert "committed" in run_inside(tree, enter(view, "1"), COMMIT).stdout
    assert (others / "kept.lock").exists()
    assert not list(view.common.glob("**/*.lock"))


def test_git_works_inside_as_in_any_repository_and_the_branch_comes_out(repo, tree, view):
    git(repo, "update-ref", "refs/remotes/origin/main", "main")
    git(repo, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    git(repo, "config", "remote.origin.url", "https://user:secret@example.org/x.git")
    git(repo, "config", "credential.helper", "store")
    write_program(repo / ".git/hooks/post-commit", "#!/bin/sh\necho ran > hook-ran\n")
    mounts = view.prepare()
    setup = "git init -q /tmp/vend; cd /tmp/vend; git config user.email a@b; git config user.name n; echo v > v; " \
            "git add v; git commit -qm v; cd - > /dev/null\n"
    done = run_inside(tree, mounts, setup + "(git config --list; cat .git) > config.out\n" + POSITIVE)
    assert "secret" not in (tree / "config.out").read_text()
    assert "credential" not in (tree / "config.out").read_text()
    assert done.stdout.count("ok ") == 16, done.stdout + done.stderr
    before = git(repo, "for-each-ref", "--format=%(refname)")
    assert collect(view).objection == ""
    assert tip(repo) == git(tree, "rev-parse", "HEAD")
    assert git(tree, "log", "-1", "--format=%s") == "a submodule"
    assert git(repo, "for-each-ref", "--format=%(refname)") == before, "no tag, stash or branch of the agent's"
    assert git(tree, "status", "--porcelain", "--ignore-submodules=all") == ""
    git(repo, "fsck", "--strict")
    (tree / "sub/v").write_text("changed outside\n")
    assert Git(repo).commit_all(tree, "with the submodule") == tip(repo)
    assert git(tree / "sub", "show", "HEAD:v") == "changed outside"
    assert git(tree, "status", "--porcelain") == ""
    run_inside(tree, enter(view, "2"), "test -z \"$(git status --porcelain)\"; git -C sub log -1 > /dev/null")


def test_commits_in_a_submodule_come_out(repo, tmp_path):
    """A submodule that garrison populated, with another one in it; the user's own git directories are borrowed."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    make_repository(inner)
    make_repository(outer)
    allow = ("-c", "protocol.file.allow=always")
    git(outer, *allow, "submodule", "--quiet", "add", str(inner), "deep/inner")
    git(outer, "commit", "-qm", "inner")
    git(repo, *allow, "submodule", "--quiet", "add", str(outer), "libs/outer")
    git(repo, *allow, "submodule", "--quiet", "update", "--init", "--recursive")
    git(repo, "commit", "-qm", "outer")
    tree = tmp_path / "trees" / "node"
    git(repo, "worktree", "add", "-q", "-b", BRANCH, str(tree))
    ours = Git(repo)
    ours.populate_submodules(tree)
    view = GitView(ours, tree)
    run_inside(tree, view.prepare(), """
      git submodule status --recursive; test -z "$(git status --porcelain)"
      cd libs/outer/deep/inner; git switch -qc topic; echo x > x; git add x
      git -c user.name=n -c user.email=e commit -qm innermost
      cd ../..; git add -A; git -c user.name=n -c user.email=e commit -qm outer; cd ../..
      git commit -qam both; echo left > libs/outer/left""")
    assert collect(view).is_changed
    assert git(tree / "libs/outer/deep/inner", "log", "-1", "--format=%s") == "innermost"
    assert git(tree, "status", "--porcelain", "--ignore-submodules=untracked") == ""
    ours.commit_all(tree, "the rest")
    assert git(tree, "submodule", "status", "--recursive").count("+") == 0
    inside = git(tree, "ls-tree", "HEAD", "libs/outer").split()[2]
    assert git(repo / ".git/modules/libs/outer", "show", f"{inside}:left") == "left"


def test_nothing_of_the_real_git_directory_is_reachable_or_writable(repo, tree, view):
    git(repo, "branch", "other")
    before = tip(repo, "main"), tip(repo, "other")
    config = (repo / ".git/config").read_bytes()
    script = rf"""
    git update-ref refs/heads/main HEAD~0; git branch -D other > /dev/null
    git commit -q --allow-empty -m x; git update-ref refs/heads/main HEAD
    git config core.fsmonitor /tmp/evil; echo evil > {REPOSITORY}/hooks/pre-commit
    rm -rf {REPOSITORY}/packed-refs; test ! -e {repo}
    ! touch /run/garrison/git/0/objects/x 2>/dev/null
    ! rm -rf /run/garrison/git/0/objects/?? 2>/dev/null
    ! mv .git dot 2>/dev/null; ! rm .git 2>/dev/null; ! (echo x > .git) 2>/dev/null
    test ! -e {repo}/calc.py
    """
    run_inside(tree, view.prepare(), script)
    collect(view)
    assert (tip(repo, "main"), tip(repo, "other")) == before
    assert (repo / ".git/config").read_bytes() == config
    assert not (repo / ".git/hooks/pre-commit").exists()
    git(repo, "fsck")
    git(tree, "update-ref", "refs/heads/main", "HEAD")  # what the boundary is for
    assert tip(repo, "main") == tip(repo) != before[0], "without the view the same line changes the repository"


def test_a_second_collection_changes_nothing_and_a_kill_at_any_step_loses_nothing(repo, tree, view, monkeypatch):
    mounts = view.prepare()

    class Killed(BaseException):
        pass

    steps = ["collect:imported", "collect:pending", "collect:moved", "collect:followed", "collect:indexed"]
    for number, step in enumerate(steps):
        run_inside(tree, mounts, f"echo {number} > file{number}; git add .; git commit -q --amend -m c{number} "
                                 "|| git commit -qm c")
        private = run_inside(tree, mounts, "git rev-parse HEAD").stdout.strip()

        def kill(name, step=step):
            if name == step:
                raise Killed

        monkeypatch.setattr(collecting.failpoint, "here", kill)
        with pytest.raises(Killed):
            collect(view)
        monkeypatch.undo()
        if number % 2:  # the agent moves on before the successor collects, and not forward
            run_inside(tree, mounts, f"git commit -q --amend -m again{number}")
            private = run_inside(tree, mounts, "git rev-parse HEAD").stdout.strip()
        assert collect(view).objection == ""
        assert tip(repo) == private == git(tree, "rev-parse", "HEAD")
        assert git(tree, "status", "--porcelain") == ""
        assert not collect(view).is_changed
        assert not list(view.folder.glob("import-*"))


def test_a_branch_that_was_moved_outside_is_not_overwritten(repo, tree, view):
    mounts = view.prepare()
    run_inside(tree, mounts, "echo a > a; git add a; git commit -qm a")
    theirs = git(repo, "commit-tree", "-p", "main", "-m", "theirs", "main^{tree}")
    git(repo, "update-ref", f"refs/heads/{BRANCH}", theirs)
    found = collect(view)
    assert "was moved to" in found.objection
    assert tip(repo) == theirs
    assert git(repo, "cat-file", "-t", found.commit) == "commit"


def test_work_of_garrison_on_the_branch_is_not_undone_by_the_view(repo, tree, view):
    mounts = view.prepare()
    run_inside(tree, mounts, "echo a > a; git add a; git commit -qm a; echo rest > rest")
    collect(view)
    ours = Git(repo)
    kept = ours.commit_all(tree, "the rest")
    assert kept == tip(repo)
    run_inside(tree, mounts, "git status > /dev/null; touch x")
    collect(view)
    assert tip(repo) == kept == git(tree, "rev-parse", "HEAD")


def test_uncommitted_states_come_out(repo, tree, view):
    """A merge under way, ignored files added by force, files left out on purpose, another branch checked out."""
    (tree / ".gitignore").write_text("build\n")
    commit_all(tree, "ignore")
    mounts = view.prepare()
    run_inside(tree, mounts, """
      git branch side; echo 1 > s; git add s; git commit -qm main-side
      git switch -q side; echo 2 > t; git add t; git commit -qm side; git switch -q -
      git merge -q --no-commit --no-ff side 2>/dev/null
      echo forced > build; git add -f build
      git update-index --skip-worktree notes.txt; rm notes.txt""")
    collect(view)
    assert git(tree, "rev-parse", "MERGE_HEAD")
    Git(repo).commit_all(tree, "all")
    assert len(git(tree, "log", "-1", "--format=%P").split()) == 2
    assert set(git(tree, "ls-tree", "--name-only", "HEAD").split()) >= {"s", "t", "build", "notes.txt"}
    run_inside(tree, view.prepare(), "git switch -q -c elsewhere; echo e > e; git add e; git commit -qm elsewhere")
    before = tip(repo)
    collect(view)
    assert tip(repo) == before
    assert git(tree, "log", "-1", "--format=%s") == "elsewhere"
    assert not git(repo, "branch", "--list", "elsewhere")


def test_a_view_in_which_no_git_changed_anything_is_taken_over_at_once(repo, tree, view, monkeypatch):
    """Then neither an import nor a list of its index is needed; anything else is looked at."""
    asked, run = [], bounds.run_git
    monkeypatch.setattr(bounds, "run_git", lambda *given, **more: asked.append(given) or run(*given, **more))
    run_inside(tree, view.prepare(), "echo x > calc.py; echo y > new")
    assert collect(view).is_changed
    assert not collect(view).is_changed
    assert not asked
    for script in ("git add new", "git switch -q --detach", "git switch -qc side", COMMIT, "git branch -f old HEAD",
                   "git update-index --skip-worktree notes.txt"):
        run_inside(tree, view.prepare(), script)
        asked.clear()
        collect(view)
        assert bool(asked) != script.startswith("git branch"), script
        git(tree, "checkout", "-qf", "-B", BRANCH)
        git(tree, "read-tree", "HEAD")


HOSTILE = {
    "alternates to another repository": ("echo {secret}/.git/objects > {common}/objects/info/alternates; "
                                         "git update-ref refs/heads/garrison/run/node {oid} 2>/dev/null || "
                                         "echo {oid} > {common}/refs/heads/garrison/run/node"),
    "a branch that is a link": "mkdir -p {common}/refs/heads/garrison/run; f={common}/refs/heads/garrison/run/node; "
                               "rm -f $f; ln -s {secret}/.git/refs/heads/main $f",
    "a FIFO for HEAD": "rm {common}/HEAD; mkfifo {common}/HEAD",
    "a FIFO for an object": "echo x > x; git add x; git commit -qm x; o=$(git rev-parse HEAD); "
                            "f={common}/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-); rm -f $f; mkfifo $f",
    "a link for an object folder": "echo x > x; git add x; git commit -qm x; o=$(git rev-parse HEAD); "
                                   "d={common}/objects/$(echo $o | cut -c1-2); rm -rf $d; ln -s /etc $d",
    "an object of another name": "echo x > x; git add x; git commit -qm x; o=$(git rev-parse HEAD); "
                                 "f={common}/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-); "
                                 "p=$(git rev-parse HEAD^{{tree}}); rm -f $f; "
                                 "cp {common}/objects/$(echo $p | cut -c1-2)/$(echo $p | cut -c3-) $f",
    "a missing tree": "echo x > x; git add x; git commit -qm x; o=$(git rev-parse HEAD^{{tree}}); "
                      "rm -f {common}/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-)",
    "a tree with .git in it": "b=$(echo hi | git hash-object -w --stdin); "
                              "t=$(printf '100644 blob %s\\t.git\\n' $b | git mktree); "
                              "git update-ref refs/heads/garrison/run/node $(git commit-tree -p HEAD -m bad $t)",
    "ten million files of seventy objects": "t=$(echo hi | git hash-object -w --stdin); k=blob; m=100644; "
                                            "for n in 1 2 3 4 5 6 7; do t=$(for i in 0 1 2 3 4 5 6 7 8 9; do "
                                            "printf '%s %s %s\\td%s\\n' $m $k $t $i; done | git mktree); "
                                            "k=tree; m=040000; done; "
                                            "git update-ref HEAD $(git commit-tree -p HEAD -m bomb $t)",
    "300 levels": "export GIT_INDEX_FILE=/tmp/deep; o=$(echo hi | git hash-object -w --stdin); "
                  "git update-index --add --cacheinfo 100644,$o,$(printf 'd/%.0s' $(seq 300))d; "
                  "git update-ref HEAD $(git commit-tree -p HEAD -m deep $(git write-tree))",
    "a message of 20 MB": "echo x > x; git add x; head -c 20000000 /dev/zero | tr '\\0' x | git commit -qF -",
    "a message of 20 MB in a pack": "echo x > x; git add x; head -c 20000000 /dev/zero | tr '\\0' x | "
                                    "git commit -qF -; git repack -qad; git prune-packed",
    "a blob as the branch": "b=$(echo hi | git hash-object -w --stdin); mkdir -p {common}/refs/heads/garrison/run; "
                            "echo $b > {common}/refs/heads/garrison/run/node",
}


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    path = tmp_path_factory.mktemp("another") / "secret"
    make_repository(path)
    (path / "key").write_text("the key\n")
    commit_all(path, "secret")
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_contents_of_a_view_are_refused_in_one_line(repo, tree, view, secret, name):
    before = tip(repo)
    script = HOSTILE[name].format(common=REPOSITORY, secret=secret, oid=tip(secret, "main"))
    run_inside(tree, view.prepare(), script)
    with pytest.raises(GarrisonError) as refusal:
        collect(view)
    assert "\n" not in str(refusal.value)
    assert tip(repo) == before
    assert git(repo, "cat-file", "-t", tip(secret, "main"), check=False) == ""
    assert git(tree, "status", "--porcelain", "--", "calc.py") == ""


def test_a_commit_of_twelve_thousand_files_is_taken_over(repo, tree, view):
    # More names than two pipes hold: git answers while it reads, and stopped for five minutes when nobody did.
    run_inside(tree, view.prepare(), """
      { printf 'commit refs/heads/garrison/run/node\\ncommitter a <a@x> 1700000000 +0000\\ndata 1\\nx\\n'
        echo "from $(git rev-parse HEAD)"
        for n in $(seq 12000); do printf 'M 644 inline many/%s\\ndata %s\\n%s\\n' $n ${#n} $n; done; } |
        git fast-import --quiet; git reset -q --hard""")
    collect(view)
    assert len(git(repo, "ls-tree", "-r", "--name-only", "garrison/run/node", "many").splitlines()) == 12_000
    store = Git(repo)
    assert bounds.explain_excess(store, tip(repo, "main"), tip(repo)) == ""
    assert len(store.changes("main", tip(repo))) == 12_000


def test_configuration_of_the_view_is_not_run_outside(repo, tree, view, tmp_path):
    proof = tmp_path / "proof"
    run_inside(tree, view.prepare(), rf"""
      for key in core.fsmonitor core.sshCommand core.pager diff.external filter.x.clean filter.x.process; do
        git config $key 'touch {proof}'; done
      mkdir -p {repo}/.git/hooks
      for hook in reference-transaction post-index-change post-checkout; do
        printf '#!/bin/sh\ntouch {proof}\n' > {repo}/.git/hooks/$hook; chmod +x {repo}/.git/hooks/$hook; done
      echo x > x; git -c core.fsmonitor= -c filter.x.clean=cat -c filter.x.process= add x
      rm {repo}/.git/hooks/*; git -c core.fsmonitor= commit -qm x
      printf '#!/bin/sh\ntouch {proof}\n' > {repo}/.git/hooks/reference-transaction
      chmod +x {repo}/.git/hooks/reference-transaction""")
    collect(view)
    assert git(tree, "log", "-1", "--format=%s") == "x"
    assert not proof.exists()


def test_an_index_that_names_a_folder_has_no_repository_below_it_asked(repo, tree, view, tmp_path):
    proof = tmp_path / "proof"
    run_inside(tree, view.prepare(), rf"""
      git init -q deep/sub; echo '* filter=x' > deep/sub/.gitattributes; echo x > deep/sub/x
      sub='git -C deep/sub'; $sub config user.name a; $sub config user.email a@x
      $sub add -A; $sub commit -qm x; git add deep/sub 2> /dev/null; git commit -qm link
      $sub config filter.x.clean 'touch {proof}; cat'; echo y > deep/sub/x
      blob=$(echo x | git hash-object -w --stdin); git update-index --add --replace --cacheinfo 100644,$blob,deep""")
    collect(view)
    assert git(tree, "log", "-1", "--format=%s") == "link"
    assert not proof.exists()
    assert "deep/sub" in git(tree, "ls-files")


def test_a_collection_is_bounded(repo, tree, view):
    run_inside(tree, view.prepare(), "head -c 200000 /dev/urandom > big; git add big; git commit -qm big")
    (big,) = (path for path in view.common.glob("objects/??/*") if path.stat().st_size > 100_000)
    big.chmod(0o600)
    os.truncate(big, bounds.MAX_BYTES + 1)  # sparse
    with pytest.raises(GarrisonError, match=r"larger than|more than"):
        collect(view)
    assert git(repo, "count-objects").startswith("4 objects") or tip(repo) == tip(repo, "main")


@pytest.mark.parametrize("way", ["exec sleep 60", "echo some; exec sleep 60", "exec >&-; exec sleep 60"])
def test_a_git_in_an_agents_data_ends_with_its_time(tmp_path, monkeypatch, way):
    write_program(tmp_path / "git", f"#!/bin/sh\n{way}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(bounds.Excess, match=r"more than 0\.3 s"):
        bounds.run_git(tmp_path, "cat-file", text=b"x\n", seconds=0.3)


def test_the_link_to_the_git_directory_is_written_again(repo, tree, view, tmp_path):
    for damage in ("file", "link", "folder"):
        (tree / ".git").rename(tmp_path / f"before-{damage}")
        if damage == "file":
            (tree / ".git").write_text("gitdir: /elsewhere\n")
        elif damage == "link":
            (tree / ".git").symlink_to("/etc/passwd")
        else:
            git(tmp_path, "init", "-q", str(tree))
        restore_link(Git(repo), tree)
        assert not (tree / ".git").is_symlink()
        assert git(tree, "rev-parse", "--git-common-dir") == str(repo / ".git")


def test_other_kinds_of_repositories(tmp_path):
    """sha256; a separate git directory; a checkout that is itself a linked worktree; borrowed objects."""
    first = tmp_path / "first"
    make_repository(first)
    sha = tmp_path / "sha"
    sha.mkdir()
    git(sha, "init", "-q", "-b", "main", "--object-format=sha256")
    kinds = {"sha256": sha, "separate": tmp_path / "separate", "linked": tmp_path / "linked",
             "shared": tmp_path / "shared", "worktreeConfig": tmp_path / "wc"}
    git(tmp_path, "clone", "-q", f"--separate-git-dir={tmp_path}/elsewhere.git", str(first), str(kinds["separate"]))
    git(first, "worktree", "add", "-q", "-b", "linked", str(kinds["linked"]))
    git(tmp_path, "clone", "-q", "--shared", str(first), str(kinds["shared"]))
    git(tmp_path, "clone", "-q", str(first), str(kinds["worktreeConfig"]))
    git(kinds["worktreeConfig"], "config", "extensions.worktreeConfig", "true")
    for name, repo in kinds.items():
        git(repo, "config", "user.name", "n")
        git(repo, "config", "user.email", "e@x")
        git(repo, "commit", "-q", "--allow-empty", "-m", "start")
        tree = tmp_path / "trees" / name
        git(repo, "worktree", "add", "-q", "-b", BRANCH + name, str(tree))
        view = GitView(Git(repo), tree)
        run_inside(tree, view.prepare(), "echo x > x; git add x; git commit -qm inside; git fsck 2>&1; git log -1")
        collect(view)
        assert git(tree, "log", "-1", "--format=%s") == "inside", name
        assert tip(repo, BRANCH + name) == git(tree, "rev-parse", "HEAD")
        view.remove()
        assert not view.folder.exists()


def test_status_inside_reads_no_unchanged_file(tree, view):
    """The copied index knows 1,000 files, so that status compares times only."""
    for number in range(10):
        folder = tree / f"d{number}"
        folder.mkdir()
        for name in range(100):
            (folder / f"f{name}").write_text(f"{number} {name}\n")
    commit_all(tree, "many")
    git(tree, "update-index", "--refresh")
    done = run_inside(tree, view.prepare(), "git status --porcelain; strings=$(git ls-files | wc -l); echo $strings; "
                                            "GIT_TRACE2_PERF=/tmp/perf git status > /dev/null; cat /tmp/perf")
    assert done.stdout.startswith("1002\n")
    took = [line for line in done.stdout.splitlines() if "region_leave" in line and "refresh" in line]
    assert took, done.stdout


def test_libraries_that_read_refs_themselves_find_them(repo, view, monkeypatch):
    """GitPython refuses a packed-refs file whose header does not promise peeled tags; git needs none. Of the
    repository's refs none is missed that another process packs at the same time."""
    git(repo, "tag", "-a", "-m", "one", "v1")
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda *at, **how: git(repo, "pack-refs", "--all") or walk(*at, **how))
    view.prepare()
    monkeypatch.undo()
    packed = view.common / "packed-refs"
    assert all(line.split(" ")[1].startswith("refs/") for line in packed.read_text().splitlines())
    assert git(view.common, "for-each-ref", "--format=%(refname)") == git(repo, "for-each-ref", "--format=%(refname)")
