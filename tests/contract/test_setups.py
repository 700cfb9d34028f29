"""What a set-up left, as a layer: real git, the real sandbox, each way in which a layer can be laid."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from garrison.sandbox import confine as confining
from garrison.sandbox import layers, setups
from garrison.sandbox.collect import git_mounts
from garrison.sandbox.confine import confine
from garrison.sandbox.layers import LayerMeans, LayerMethod
from garrison.sandbox.place import Mode, Network, Place, Rights, Role
from garrison.sandbox.setups import DAY, SetupLayer, SetupLimits, expired
from garrison.system import failpoint, untrusted
from garrison.system.git import Git
from garrison.values import replace
from sandbox_support import missing
from support import commit_all, copy_of, git, make_repository, wait_for, write_program

needs_sandbox = pytest.mark.skipif(bool(missing()), reason=missing())
RIGHTS = Rights(Mode.BUBBLEWRAP, Network.OPEN)
COMMAND = "npm ci"
IGNORED = "node_modules/\nbuild/\n"


@pytest.fixture
def repo(tmp_path):
    return copy_of(make, tmp_path / "home/project")


def make(path):
    make_repository(path)
    (path / ".gitignore").write_text(IGNORED)
    (path / "packages").mkdir()
    (path / "packages/a.js").write_text("a\n")
    (path / "package-lock.json").write_text("{}\n")
    commit_all(path, "more")


def add_tree(repo, name):
    path = repo.parent / ".cache/garrison/key/run" / name
    git(repo, "worktree", "add", "-q", "-b", f"garrison/run/{name}", str(path))
    return path


def store(tree):
    return setups.store_of(tree.parent.parent)


def leave(tree, text="as set-up left it\n"):
    """Leave in a worktree and in a home what a set-up leaves; return the home."""
    home = tree.parent / f".{tree.name}.sandbox/setup/home"
    for path in (tree / "node_modules/x/index.js", tree / "packages/node_modules/y", tree / "stray.lock",
                 home / ".cache/foo/f", home / ".gitconfig", home / ".local/bin/tool"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tree / "node_modules/link").symlink_to("/etc/passwd")
    return home


def capture(repo, tree, *, kept=True, digest="d1", before=(), text="as set-up left it\n"):
    home = leave(tree, text)
    return setups.capture(Git(repo), tree, home, before, SetupLayer("", digest, COMMAND, kept=kept), store(tree))


def place(repo, tree, role=Role.AGENT):
    layer = setups.layer_of(tree)
    source = Git(repo)
    return Place(role, RIGHTS, tree, tree.parent / f".{tree.name}.sandbox/{role}",
                 git_mounts(source, tree, RIGHTS, role, "1", repo), under_home=(layer.home,),
                 under_worktree=(layer.tree,), checkout=repo, secret=(source.root, source.common),
                 worktree_writable=role is not Role.VALIDATOR)


def run(repo, tree, script, role=Role.AGENT, check=True, **more):
    """Run a script in a worktree's place, as its agent; `more`: what else the place has."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(repo.parent), "LANG": "C.UTF-8", "GARRISON_TREE": str(tree)}
    confined = confine(["/bin/sh", "-euc", script], env, replace(place(repo, tree, role), **more))
    done = subprocess.run(confined.argv, env=dict(confined.env), cwd=tree, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(params=[LayerMethod.OVERLAY, LayerMethod.COPY])
def way(request, monkeypatch, tmp_path):
    means = layers.examine(tmp_path)
    if request.param is LayerMethod.OVERLAY and means.way is not LayerMethod.OVERLAY:
        pytest.skip(f"no overlay here: {means.why}")
    monkeypatch.setattr(confining, "way_at", lambda folder: LayerMeans(request.param))
    return request.param


@needs_sandbox
def test_each_worktree_has_what_the_set_up_left_as_its_own(repo, way):
    first, second = add_tree(repo, "a"), add_tree(repo, "b")
    layer = capture(repo, first)
    assert layer.made == ("node_modules", "packages/node_modules", "stray.lock")
    assert layer.shown == ("stray.lock",)
    assert not (first / "node_modules").exists(), "it lies under the worktree, not in it"
    assert not (layer.home / ".gitconfig").exists()
    assert setups.lay(second, layer, store(second))
    change = """
      test "$PWD" = "$GARRISON_TREE"; git rev-parse --show-toplevel; test -f .git
      cat node_modules/x/index.js packages/node_modules/y ~/.cache/foo/f ~/.local/bin/tool | sort -u
      echo mine > node_modules/x/index.js; rm -r packages/node_modules; mkdir -p ~/.cache/bar packages/node_modules
      echo mine > packages/node_modules/z; rm -r ~/.cache/foo; echo new > node_modules/x/new
      echo work > work.txt; git add work.txt; git commit -qm work; git status --porcelain"""
    assert run(repo, first, change).splitlines() == [str(repo), "as set-up left it", "?? stray.lock"]
    again = run(repo, first, "cat node_modules/x/index.js node_modules/x/new; ls packages/node_modules; ls -A ~/.cache")
    assert again.split() == ["mine", "new", "z", "bar"], "a successor finds its predecessor's changes"
    unchanged = "cat node_modules/x/index.js packages/node_modules/y ~/.cache/foo/f; ls node_modules/x"
    assert run(repo, second, unchanged).split("\n")[-2] == "index.js"
    assert "mine" not in run(repo, second, unchanged)
    assert (layer.tree / "node_modules/x/index.js").read_text() == "as set-up left it\n"


@needs_sandbox
def test_a_validator_reads_the_layer_and_changes_neither_it_nor_the_worktree(repo, way):
    tree = add_tree(repo, "a")
    capture(repo, tree)
    out = run(repo, tree, "cat node_modules/x/index.js; ! echo x > node_modules/x/index.js; ! echo x > calc.py; "
                          "echo x > ~/own", Role.VALIDATOR)
    assert out == "as set-up left it\n"
    assert (tree / "calc.py").read_text() != "x\n"


@needs_sandbox
def test_what_a_gate_did_to_the_layer_is_forgotten(repo):
    tree = add_tree(repo, "a")
    layer = capture(repo, tree)
    run(repo, tree, "rm -r node_modules packages; git checkout -q packages; mkdir -p packages/node_modules; "
                    "echo evil > packages/node_modules/y; echo evil > stray.lock", Role.GATE)
    layers.forget_written(tree, layer.made)
    assert run(repo, tree, "cat node_modules/x/index.js packages/node_modules/y stray.lock", Role.GATE) \
        == 3 * "as set-up left it\n"


@needs_sandbox
def test_a_link_in_a_layer_leads_nothing_out(repo, tmp_path):
    """Mount points below it, which bubblewrap makes, are made in the tree's own folder."""
    tree, outside = add_tree(repo, "a"), tmp_path / "outside"
    outside.mkdir()
    home = leave(tree)
    (home / "project").symlink_to(outside)
    (home / ".cargo").symlink_to(outside)
    setups.capture(Git(repo), tree, home, (), SetupLayer("", "d", COMMAND, kept=True), store(tree))
    run(repo, tree, "pwd; echo x > ~/.cargo/x || true", check=False)
    assert not list(outside.iterdir())


def test_tracked_files_that_a_set_up_changed_are_restored_and_reported(repo):
    tree = add_tree(repo, "a")
    (tree / "package-lock.json").write_text("changed\n")
    (tree / "include").mkdir()
    (tree / "include/.env").write_text("there before\n")
    before = setups.list_untracked(Git(repo), tree)
    layer = capture(repo, tree, before=before)
    assert layer.changed == ("package-lock.json",)
    assert (tree / "package-lock.json").read_text() == "{}\n"
    assert (tree / "include/.env").exists()
    assert "include" not in layer.made


def test_a_private_layer_serves_its_own_worktree_alone_and_ends_with_it(repo):
    first, second = add_tree(repo, "a"), add_tree(repo, "b")
    layer = capture(repo, first, kept=False)
    assert setups.layer_of(first) == layer
    assert setups.find_kept(store(second), "d1") is None
    setups.take_away(first)
    assert setups.layer_of(first) is None
    assert not Path(layer.folder).exists()
    assert not setups.is_lost(second)
    layer = capture(repo, second)
    assert not setups.is_lost(second)
    untrusted.remove_tree(Path(layer.folder))
    assert setups.is_lost(second), "it was removed"
    assert setups.layer_of(second) is None


def test_when_two_set_ups_end_at_once_the_first_counts(repo):
    first, second = add_tree(repo, "a"), add_tree(repo, "b")
    capture(repo, first, text="first\n")
    assert capture(repo, second, text="second\n").tree == setups.layer_of(first).tree
    assert (setups.layer_of(second).tree / "stray.lock").read_text() == "first\n"
    assert not list(store(first).glob(".new-*"))


def test_no_half_layer_is_used_after_a_kill_at_any_step(repo, monkeypatch):
    class Killed(BaseException):
        pass

    def die(is_here):
        if is_here:
            raise Killed

    for number, point in enumerate(("setup:moved", "setup:recorded")):
        tree, digest = add_tree(repo, f"tree{number}"), f"d{number}"
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(failpoint, "here", lambda name, at=point: die(name == at))
            capture(repo, tree, digest=digest)
        assert setups.find_kept(store(tree), digest) is None
        assert len(setups.list_kept(store(tree))) == number
        assert capture(repo, tree, digest=digest) == setups.find_kept(store(tree), digest)


def test_nothing_that_a_worktree_uses_is_removed_and_rests_of_killed_processes_are(repo):
    first, second = add_tree(repo, "a"), add_tree(repo, "b")
    used, unused = capture(repo, first), capture(repo, second, digest="d2")
    setups.take_away(second)
    (store(first) / ".new-999999999-d3/tree").mkdir(parents=True)
    lock = setups.lock_of(store(first), "gone")
    assert setups.lock_of(store(first), "gone") is None, "one process makes it"
    lock.release()
    assert setups.users_of(first.parent.parent) == {used.folder: ["run/a"]}
    assert setups.sweep(store(first), SetupLimits(), everything=True) == [unused]
    assert [layer.digest for layer in setups.list_kept(store(first))] == ["d1"]
    assert {path.name for path in store(first).iterdir() if not path.name.startswith(".gone")} == {"d1", ".lock"}
    git(repo, "worktree", "remove", "--force", str(first))
    assert setups.sweep(store(first), SetupLimits(), names=("d",)) == [used]


def test_after_a_kill_while_layers_are_removed_none_is_used_and_the_next_sweep_finishes(repo, monkeypatch):
    tree = add_tree(repo, "a")
    kept = capture(repo, tree)
    setups.take_away(tree)
    with monkeypatch.context() as patch:
        patch.setattr(untrusted, "remove_set_aside", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            setups.sweep(store(tree), SetupLimits(), everything=True)
    assert setups.find_kept(store(tree), "d1") is None
    assert not setups.lay(tree, kept, store(tree))
    assert list(store(tree).glob(".gone*"))
    setups.sweep(store(tree), SetupLimits())
    wait_for("what was set aside is removed", lambda: not list(store(tree).glob(".gone*")))


@pytest.mark.parametrize(("limits", "shortfall", "gone"), [
    (SetupLimits(), 0, []), (SetupLimits(days=2), 0, ["3", "4"]), (SetupLimits(bytes=25), 0, ["3", "4"]),
    (SetupLimits(), 15, ["4", "3"]),
    (SetupLimits(days=3.5), 5, ["4"]), (SetupLimits(), 1000, ["4", "3", "2", "1"])])
def test_the_longest_unused_goes_first(limits, shortfall, gone):
    kept = [replace(SetupLayer(f"/store/{days}", str(days), size=10), created=-days * DAY) for days in range(1, 5)]
    uses = {layer.folder: layer.created for layer in kept}
    assert [layer.digest for layer in expired(kept, uses, limits, 0.0, shortfall)] == gone


def test_the_digest_tells_apart_what_a_set_up_depends_on(repo, tmp_path):
    tree, where = add_tree(repo, "a"), tmp_path / "bin"
    where.mkdir()
    write_program(where / "npm", "#!/bin/sh\n")
    (tree / "setup.sh").write_text("true\n")

    def digest(key="k", command="sh ./setup.sh && npm ci", checkout=repo):
        return setups.digest_of(key, command, tree, {"PATH": f"{where}:/usr/bin"}, checkout, store(tree))

    found = [digest(), digest(key="other"), digest(command="npm ci"), digest(checkout=Path("/elsewhere"))]
    assert digest() == found[0]
    (tree / "setup.sh").write_text("false\n")
    found.append(digest())
    (where / "npm").write_text("#!/bin/sh\n# newer\n")
    found.append(digest())
    setups.make_anew(store(tree))
    found.append(digest())
    assert len(set(found)) == len(found)
    (tree / "setup.sh").unlink()
    os.mkfifo(tree / "setup.sh")
    assert digest(), "what is not a file is not read"


def test_entries_without_permissions_are_also_moved_and_removed(repo):
    """A module cache of Go is made of folders that no one may write."""
    tree = add_tree(repo, "a")
    (tree / "node_modules/locked").mkdir(parents=True)
    (tree / "node_modules/locked/f").write_text("x")
    (tree / "node_modules/locked").chmod(0o555)
    (tree / "node_modules").chmod(0o555)
    home = tree.parent / f".{tree.name}.sandbox/setup/home"
    layer = setups.capture(Git(repo), tree, home, (), SetupLayer("", "d", COMMAND, kept=True), store(tree))
    assert (layer.tree / "node_modules/locked/f").exists()
    assert oct((layer.tree / "node_modules").stat().st_mode & 0o777) == "0o555"
    setups.take_away(tree)
    assert setups.sweep(store(tree), SetupLimits(), everything=True) == [layer]
    untrusted.remove_set_aside(store(tree))


@needs_sandbox
def test_caches_of_the_user_are_read_and_a_set_ups_additions_serve_the_others(repo):
    if layers.way_at(repo.parent).way is not LayerMethod.OVERLAY:
        pytest.skip("no overlay here")
    tree, cache = add_tree(repo, "a"), repo.parent / ".cache/uv"
    cache.mkdir(parents=True)
    (cache / "wheel").write_text("user's\n")
    private = tree.parent / f".{tree.name}.sandbox/setup"
    (private / "caches/uv").mkdir(parents=True)
    (private / "caches/uv/more").write_text("set-up's\n")
    layer = capture(repo, tree)
    script = "cat ~/.cache/uv/wheel ~/.cache/uv/more; echo x > ~/.cache/uv/wheel; rm ~/.cache/uv/more; ls ~/.cache/uv"
    out = run(repo, tree, script, caches=True, under_caches=layer.caches)
    assert out.split() == ["user's", "set-up's", "wheel"]
    assert (cache / "wheel").read_text() == "user's\n"
    assert (layer.caches / "uv/more").exists()
