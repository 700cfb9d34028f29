"""Classifier of a change: what hardly ever belongs in a history, by name, size, number and the beginning of a file."""

from __future__ import annotations

import pytest

from garrison.config import GuardConfig, parse_guard
from garrison.errors import UsageError
from garrison.merge.diff_guard import ChangedFile, Finding, FindingKind, classify, count_conflicts

MB = 1_000_000
KEY = b"-----BEGIN EC PRIVATE KEY-----\nMHcC"


def found(*files: ChangedFile, **limits: object) -> list[Finding]:
    return classify(files, GuardConfig(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "kind"), [
    (".env", FindingKind.SECRET), ("web/.env.local", FindingKind.SECRET), (".envrc", FindingKind.SECRET),
    ("id_rsa", FindingKind.SECRET), ("ssh/id_ed25519", FindingKind.SECRET), ("tls/server.key", FindingKind.SECRET),
    ("core", FindingKind.DUMP), ("a/core.12345", FindingKind.DUMP), ("vgcore.7", FindingKind.DUMP),
    ("web/node_modules/x/y.js", FindingKind.INSTALLED), (".venv/bin/pip", FindingKind.INSTALLED),
    (".env.example", None), (".env.sample", None), ("a/.env.template", None), (".env.production.example", None),
    ("id_rsa.pub", None), ("core.py", None), ("core/code.py", None),
    ("environment.py", None), ("node_modules.md", None)])
def test_a_new_file_is_judged_by_its_name_and_a_tracked_one_is_not(name: str, kind: FindingKind | None) -> None:
    assert [finding.kind for finding in found(ChangedFile(name, 1))] == ([kind] if kind else [])
    assert found(ChangedFile(name, 1, is_new=False)) == []


def test_a_private_key_is_known_by_its_content_and_an_environment_by_its_file() -> None:
    assert found(ChangedFile("cert.pem", 90, head=KEY)) == [Finding(FindingKind.SECRET, "cert.pem", 90)]
    assert found(ChangedFile("cert.pem", 90, head=b"-----BEGIN CERTIFICATE-----")) == []
    files = [ChangedFile(name) for name in ("e/pyvenv.cfg", "e/bin/x", "e/lib/y", "lib/venv/mine.py")]
    assert found(*files) == [Finding(FindingKind.INSTALLED, "e/", count=3)]


def test_sizes_and_numbers_have_limits_and_what_is_allowed_passes_all() -> None:
    big = ChangedFile("a/big.bin", 10 * MB + 1)
    assert found(big, ChangedFile("fine", 10 * MB)) == [Finding(FindingKind.SIZE, "a/big.bin", 10 * MB + 1)]
    assert found(big, ChangedFile(".env"), allow=("a/*", ".env")) == []
    assert found(big, max_file=None) == []
    assert found(ChangedFile("a/b.db"), refuse=("*.db",)) == [Finding(FindingKind.NAME, "a/b.db")]
    many = [ChangedFile(f"out/{number}") for number in range(4)]
    assert found(*many, max_files=3) == [Finding(FindingKind.MANY, "out/", count=4)]
    assert found(*many, max_files=4) == found(*many, max_files=None) == []
    assert found(*(ChangedFile(file.name, is_new=False) for file in many), max_files=3) == []


def test_a_conflict_is_a_whole_block_of_markers() -> None:
    block = b"a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> other\n"
    assert count_conflicts(block) == 1
    assert count_conflicts(block.replace(b"\n", b"\r\n") * 3) == 3
    assert count_conflicts(b"Title\n=======\n<<<<<<< is a marker\n") == 0
    assert count_conflicts(block.replace(b"a", b"\0", 1)) == 0


def test_the_table_is_read_with_units_and_refused_with_what_it_should_be() -> None:
    read = parse_guard("here", {"max_file": "1.5 MiB", "max_files": "none", "refuse": ["x"], "x_note": 1})
    assert read == GuardConfig(1_572_864, None, ("x",))
    assert read.with_project({"max_file": "none", "allow": ["y"]}, "there") == GuardConfig(None, None, ("x",), ("y",))
    for table, said in (({"max_file": "ten"}, 'should be a size such as "10 MB"'), ({"max_files": -1}, "whole number"),
                        ({"refuse": "x"}, "list of strings"), ({"max_fle": 1}, "did you mean max_file"),
                        ([], "should be a table")):
        with pytest.raises(UsageError, match=said):
            parse_guard("here", table)
