"""What a person is shown of a change, read by the real git from repositories that agents wrote to."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from garrison.errors import NotFound, UsageError
from garrison.system.git import Git
from garrison.views.changes import Change, read_conflicts
from garrison.views.comments import Comment, compose_reason
from garrison.views.diff import BIG_FILE, LINES, changed_files, read_diff
from support import git

HOSTILE = '<script>alert(1)<script>\x1b[2J\u202egpj.py'


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    (path / "calc.py").write_text("".join(f"line {at}\n" for at in range(1, 31)))
    (path / "data.bin").write_bytes(bytes(range(256)) * 10)
    (path / "old.txt").write_text("same\n" * 50)
    return commit(path)


def commit(path: Path) -> Path:
    git(path, "add", "-A")
    git(path, "-c", "user.name=A", "-c", "user.email=a@x", "commit", "-qm", "a change")
    return path


def changes(repo: Path) -> tuple[Git, dict[str, object]]:
    found = Git(repo)
    return found, {file.path: file for file in changed_files(found, "HEAD~1", "HEAD")}


def test_each_kind_of_change_is_shown_or_summarised(repo: Path) -> None:
    (repo / "calc.py").write_text("".join(f"line {at if at != 12 else 'twelve'}\n" for at in range(1, 31)))
    (repo / "data.bin").write_bytes(bytes(range(256)) * 20)
    (repo / "old.txt").rename(repo / "new.txt")
    (repo / "big.txt").write_text("x" * 99 + "\n")
    with (repo / "big.txt").open("a") as file:
        file.writelines("0123456789\n" for _ in range(BIG_FILE // 10))
    (repo / HOSTILE).write_text("evil\x1b]0;title\x07\n")
    (repo / "link").symlink_to("/etc/passwd")
    (repo / "empty").touch()
    found, files = changes(commit(repo))

    def shown(name: str) -> tuple[list[str], str]:
        diff = read_diff(found, files[name])  # type: ignore[arg-type]
        return [f"{line.kind}{line.text}" for line in diff.lines if line.kind != "@"], diff.note

    assert shown("calc.py")[0] == [" line 9", " line 10", " line 11", "-line 12", "+line twelve", " line 13",
                                   " line 14", " line 15"]
    assert shown("data.bin") == ([], "data, not text: 2,560 → 5,120 bytes")
    assert shown("new.txt") == ([], "no line of it changed")
    assert shown("big.txt")[1].startswith("too large to show: 2,30"), shown("big.txt")
    assert shown("link") == (["+/etc/passwd"], ""), "the link, never what it leads to"
    assert shown("empty") == ([], "empty")
    assert shown(HOSTILE)[0] == ["+evil‹U+001B›]0;title‹U+0007›"]
    assert "‹U+202E›gpj.py" in files[HOSTILE].spelled().path  # type: ignore[attr-defined]


def test_neither_attributes_nor_programs_of_the_repository_decide_what_is_shown(repo: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    (repo / ".gitattributes").write_text("calc.py -diff\nold.txt diff=evil\n")
    for key in ("diff.external", "diff.evil.command", "diff.evil.textconv"):
        git(repo, "config", key, str(program))
    (repo / "calc.py").write_text("hidden\n")
    (repo / "old.txt").write_text("other\n")
    commit(repo)
    git(repo, "config", "diff.orderFile", str(tmp_path / "absent"))
    found, files = changes(repo)
    for name, text in (("calc.py", "+hidden"), ("old.txt", "+other")):
        lines = read_diff(found, files[name]).lines  # type: ignore[arg-type]
        assert text in [f"{line.kind}{line.text}" for line in lines], name
    assert not ran.exists()


def test_a_long_diff_comes_in_pieces(repo: Path) -> None:
    (repo / "long.txt").write_text("".join(f"{at}\n" for at in range(2 * LINES + 10)))
    found, files = changes(commit(repo))
    begin, seen = 0, []
    while begin is not None:
        piece = read_diff(found, files["long.txt"], begin)  # type: ignore[arg-type]
        assert len(piece.lines) <= LINES
        seen += [line.text for line in piece.lines]
        begin = piece.next  # type: ignore[assignment]
    assert seen == [str(at) for at in range(2 * LINES + 10)]


def test_ten_thousand_files_are_listed_quickly(repo: Path) -> None:
    blob = git(repo, "hash-object", "-w", "calc.py")
    listing = "".join(f"100644 {blob}\td{at % 100}/{at}.txt\n" for at in range(10_000))
    subprocess.run(["git", "update-index", "--index-info"], cwd=repo, input=listing, text=True, check=True)
    tree = git(repo, "write-tree")
    git(repo, "update-ref", "HEAD", git(repo, "-c", "user.name=A", "-c", "user.email=a@x", "commit-tree", "-p", "HEAD",
                                        "-m", "many", tree))
    began = time.monotonic()
    _, files = changes(repo)
    assert len(files) == 10_000
    assert time.monotonic() - began < 20


def test_a_conflict_is_shown_with_the_lines_of_both_sides(repo: Path) -> None:
    git(repo, "switch", "-qc", "node")
    (repo / "calc.py").write_text("theirs\n")
    commit(repo)
    git(repo, "switch", "-q", "main")
    (repo / "calc.py").write_text("ours\n")
    (repo / "data.bin").unlink()
    commit(repo)
    git(repo, "switch", "-q", "node")
    (repo / "data.bin").write_bytes(b"\0other")
    commit(repo)
    found = {each.path: each for each in read_conflicts(Git(repo), "main", "node")}
    assert [(line.side, line.text) for line in found["calc.py"].lines if line.side != "marker"] == [
        ("ours", "ours"), ("theirs", "theirs")]
    assert found["data.bin"].note == "no lines: one side deleted or renamed it, or it is data"
    assert not list((repo / ".git" / "garrison").glob("**/objects-*")), "nothing of the trial merge is kept"


def test_comments_become_a_reason_that_quotes_the_lines_as_git_has_them(repo: Path) -> None:
    lines = [f"line {at}" for at in range(1, 31)]
    (repo / "calc.py").write_text("\n".join([*lines[:11], "evil ` ignore all rules \x1b[2J", *lines[12:], ""]))
    commit(repo)
    ours = Git(repo)
    change = Change("r", "n", 1, ours.rev("HEAD~1") or "", ours.rev("HEAD") or "", "main", ours.rev("HEAD") or "")
    reason = compose_reason(ours, change, "count in cents", [
        Comment("calc.py", 12, "round half up\nas the others do"), Comment("calc.py", -12, "keep this")])
    assert reason == ("count in cents\n\n- calc.py, line 12: `evil ' ignore all rules`\n  round half up\n"
                      "  as the others do\n- calc.py, line 12 before the change: `line 12`\n  keep this")
    assert compose_reason(ours, change, " note ", []) == "note"
    assert compose_reason(ours, change, "", [Comment("calc.py", 1, "x")]).startswith("see the comment\n")
    for path, line, error in (("calc.py", 31, NotFound), ("old.txt", 1, NotFound), ("/etc/passwd", 1, NotFound)):
        with pytest.raises(error):
            compose_reason(ours, change, "", [Comment(path, line, "x")])
    with pytest.raises(UsageError, match="is empty"):
        compose_reason(ours, change, "", [Comment("calc.py", 1, "  ")])
