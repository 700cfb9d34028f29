"""Access to paths where an agent may have planted something else."""

from __future__ import annotations

import os

import pytest

from garrison.system import untrusted
from garrison.system.untrusted import UnsafeFile
from support import until


def test_patterns_match_a_limited_number_of_names_without_links(tmp_path):
    for name in ("a/x/T-1.xml", "a/x/T-2.xml", "a/y/other.xml", "outside/T-3.xml", "many/T-4.xml"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    (tmp_path / "in/outside").rename(tmp_path / "outside")
    (tmp_path / "in/a/z").symlink_to(tmp_path / "outside")
    (tmp_path / "in/linked").symlink_to(tmp_path / "outside")
    (tmp_path / "in/many/more").touch()
    assert list(untrusted.match(tmp_path / "in", "a/*/T-*.xml", 3)) == ["a/x/T-1.xml", "a/x/T-2.xml"]
    assert list(untrusted.match(tmp_path / "in", "linked/T-*.xml", 3)) == []
    assert list(untrusted.match(tmp_path / "in", "many/T-*.xml", 1)) == []


def test_only_regular_files_up_to_a_size_are_copied(tmp_path):
    (tmp_path / "file").write_text("text")
    assert untrusted.copy(tmp_path, "file", tmp_path / "copy", 4)
    assert (tmp_path / "copy").read_text() == "text"
    assert not untrusted.copy(tmp_path, "absent", tmp_path / "copy", 4)
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with pytest.raises(UnsafeFile):
            untrusted.copy(tmp_path, name, tmp_path / "copy", 3)


def test_only_files_of_the_opened_folder_are_removed(tmp_path, monkeypatch):
    """A folder that becomes a link between the check and the removal is not followed."""
    for name in ("tree/folder/mine/file", "outside/mine/file"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    lstat = os.lstat

    def swap(*arguments, **options):
        if "dir_fd" in options and not (tmp_path / "moved").exists():
            (tmp_path / "tree/folder").rename(tmp_path / "moved")
            (tmp_path / "tree/folder").symlink_to(tmp_path / "outside")
        return lstat(*arguments, **options)

    monkeypatch.setattr(os, "lstat", swap)
    untrusted.remove_below(tmp_path / "tree", ["folder/mine"])
    assert not (tmp_path / "moved/mine").exists()
    assert (tmp_path / "outside/mine/file").exists()


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_files_in_a_folder_without_permissions_are_removed(tmp_path, mode):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").touch()
    (tmp_path / "tree").chmod(mode)
    untrusted.remove(tmp_path, "tree")
    (tmp_path / "tree").mkdir(exist_ok=True)
    (tmp_path / "tree/file").touch()
    (tmp_path / "tree").chmod(0o555)
    untrusted.remove(tmp_path / "tree", "file")
    assert list((tmp_path / "tree").iterdir()) == []


def test_regular_files_are_read_without_following_links(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_text("text")
    assert untrusted.read(tmp_path, "a/b/c") == b"text"
    assert untrusted.read(tmp_path, "a/b/d") is None
    assert untrusted.read(tmp_path, "a/x/d") is None
    assert untrusted.read_end(tmp_path, "a/b/c", 2) == "xt"
    assert untrusted.list_names(tmp_path, "a") == ["b"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link").symlink_to(tmp_path / "a/b")
    assert untrusted.read(tmp_path / "folder", "link/c") is None
    assert untrusted.list_names(tmp_path / "folder", "link") == []
    for name in ("../a/b/c", "a\0b"):
        with pytest.raises(UnsafeFile):
            untrusted.read(tmp_path / "folder", name)


@pytest.mark.parametrize("make", [
    lambda path, secret: path.symlink_to(secret), lambda path, _: os.mkfifo(path), lambda path, _: path.mkdir(),
    lambda path, _: path.symlink_to("/dev/zero"), lambda path, _: path.write_bytes(b"x" * 2000),
    lambda path, _: path.symlink_to(path)])
def test_other_than_small_regular_files_are_refused_immediately(tmp_path, make):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder / "name", secret)
    with pytest.raises(UnsafeFile) as refusal:
        untrusted.read(folder, "name", 1000)
    assert "\n" not in str(refusal.value)
    assert "secret" not in untrusted.read_text(folder, "name", 1000)


@pytest.mark.parametrize("make", [
    lambda path, mine: path.symlink_to(mine), lambda path, mine: path.hardlink_to(mine),
    lambda path, _: os.mkfifo(path), lambda path, _: path.mkdir()])
def test_only_our_own_regular_file_is_appended_to(tmp_path, make):
    folder, mine = tmp_path / "folder", tmp_path / "mine"
    folder.mkdir()
    untrusted.append(folder, "ours", b"one\n")
    untrusted.append(folder, "ours", b"two\n")
    assert (folder / "ours").read_bytes() == b"one\ntwo\n"
    assert (folder / "ours").stat().st_mode & 0o777 == 0o600
    mine.write_text("mine")
    make(folder / "planted", mine)
    with pytest.raises(UnsafeFile):
        untrusted.append(folder, "planted", b"x")
    assert mine.read_text() == "mine"


def test_only_regular_files_are_linked(tmp_path):
    folder, target = tmp_path / "folder", tmp_path / "target"
    folder.mkdir()
    (folder / "file").write_text("1234")
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo")
    with untrusted.open_directory(folder) as directory:
        assert untrusted.link_regular(directory, "file", target, 10) == 4
        target.unlink()
        assert [untrusted.link_regular(directory, name, target, 10) for name in ("link", "fifo", "absent")] == [-1] * 3
        with pytest.raises(UnsafeFile):
            untrusted.link_regular(directory, "file", target, 3)
    assert not os.path.lexists(target)


def test_a_tree_set_aside_is_gone_immediately_and_removed_later(tmp_path):
    for number in range(3):
        (tmp_path / f"tree/{number}/deep").mkdir(parents=True)
        (tmp_path / f"tree/{number}/deep/file").write_text("x")
    (tmp_path / "tree/0/deep").chmod(0)
    (tmp_path / "tree/link").symlink_to("/etc")
    untrusted.set_aside(tmp_path, "tree")
    untrusted.set_aside(tmp_path, "absent")
    assert not (tmp_path / "tree").exists()
    untrusted.remove_set_aside(tmp_path)
    for left in list(tmp_path.iterdir()):  # while the process also removes it
        untrusted.remove_tree(left)
    until(lambda: not list(tmp_path.iterdir()))
    untrusted.remove_set_aside(tmp_path)


def test_trees_set_aside_by_a_dead_process_are_removed_with_the_next(tmp_path):
    (tmp_path / "old").mkdir()
    untrusted.set_aside(tmp_path, "old")
    (tmp_path / "new").mkdir()
    untrusted.set_aside(tmp_path, "new")
    assert len(list(tmp_path.iterdir())) == 2
    untrusted.remove_set_aside(tmp_path)
    until(lambda: not list(tmp_path.iterdir()))
