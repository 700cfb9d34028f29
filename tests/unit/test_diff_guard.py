"""Classifier of a change: files that hardly ever belong in a history, by name, size, number and first bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import pytest

from garrison.config import GuardConfig, GuardHooks
from garrison.ends import ChangeKind, Effect
from garrison.errors import UsageError
from garrison.merge.config import QueueConfig
from garrison.merge.diff_guard import (
    ChangedFile,
    Diff,
    FileFinding,
    FindingKind,
    Landed,
    classify,
    count_conflicts,
    find_secrets,
    inspect_diff,
    parse_log,
)
from garrison.merge.explanation import describe_change
from garrison.merge.gate_files import find_gate_files
from garrison.node.commit_hooks import describe_hooks
from garrison.records.record import from_data
from garrison.sandbox.network import dummy_key
from garrison.sandbox.proxy.apis import APIS
from garrison.system.git.commits import ChangedPath
from garrison.tables import Table
from garrison.values import asdict

MB = 1_000_000
KEY = b"-----BEGIN EC PRIVATE KEY-----\nMHcC"


def found(*files: ChangedFile, **limits: object) -> list[FileFinding]:
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
    assert found(ChangedFile("cert.pem", 90, head=KEY)) == [FileFinding(FindingKind.SECRET, "cert.pem", 90)]
    assert found(ChangedFile("cert.pem", 90, head=b"-----BEGIN CERTIFICATE-----")) == []
    files = [ChangedFile(name) for name in ("e/pyvenv.cfg", "e/bin/x", "e/lib/y", "lib/venv/mine.py")]
    assert found(*files) == [FileFinding(FindingKind.INSTALLED, "e/", count=3)]


def test_sizes_and_numbers_have_limits_and_what_is_allowed_passes_all() -> None:
    big = ChangedFile("a/big.bin", 10 * MB + 1)
    assert found(big, ChangedFile("fine", 10 * MB)) == [FileFinding(FindingKind.SIZE, "a/big.bin", 10 * MB + 1)]
    assert found(big, ChangedFile(".env"), allow=("a/*", ".env")) == []
    assert found(big, max_file=None) == []
    assert found(ChangedFile("a/b.db"), refuse=("*.db",)) == [FileFinding(FindingKind.NAME, "a/b.db")]
    many = [ChangedFile(f"out/{number}") for number in range(4)]
    assert found(*many, max_files=3) == [FileFinding(FindingKind.MANY, "out/", count=4)]
    assert found(*many, max_files=4) == found(*many, max_files=None) == []
    assert found(*(ChangedFile(file.name, is_new=False) for file in many), max_files=3) == []


def test_a_conflict_is_a_whole_block_of_markers() -> None:
    block = b"a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> other\n"
    assert count_conflicts(block) == 1
    assert count_conflicts(block.replace(b"\n", b"\r\n") * 3) == 3
    assert count_conflicts(b"Title\n=======\n<<<<<<< is a marker\n") == 0
    assert count_conflicts(block.replace(b"a", b"\0", 1)) == 0


def test_the_table_is_read_with_units_and_refused_with_what_it_should_be() -> None:
    read = Table("here", {"max_file": "1.5 MiB", "max_files": "none", "refuse": ["x"], "x_note": 1}).read(GuardConfig)
    assert read == GuardConfig(1_572_864, None, ("x",))
    assert read.with_project(Table("there", {"max_file": "none", "allow": ["y"]})) == GuardConfig(
        None, None, ("x",), ("y",))
    for table, said in (({"max_file": "ten"}, 'should be a size such as "10 MB"'), ({"max_files": -1}, "whole number"),
                        ({"refuse": "x"}, "list of strings"), ({"max_fle": 1}, "did you mean max_file"),
                        ([], "should be a table")):
        with pytest.raises(UsageError, match=said):
            Table("here", table).read(GuardConfig)


# ---- what is to land -------------------------------------------------------------------------------------------------

Files = dict[str, bytes | None]
TOKEN = b"ghp_" + b"aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY2zA4"
PEM = b"-----BEGIN RSA PRIVATE KEY-----\n" + b"MIIEpAIBAAKCAQEA7bq0fVRmX9lYc2JkPzQ8sT4uWv6nEoHd\n" * 3
CASE, CASES = b"def test_a():\n    assert f()\n", b"def test_a():\n    assert f()\n\ndef test_b():\n    assert g()\n"
SCRIPT, MANIFEST = {"run.sh": b"#!/bin/sh\nexec sh ci/lint.sh\n"}, b'[project]\nname = "x"\n[tool.pytest.ini_options]\n'
MAKE = b"PY = python3\ntest: build\n\t$(PY) -m pytest\nbuild:\n\tcc x.c\nclean:\n\trm x\n"
LINT = b"all: lint\nlint:\n\tsh l.sh\n"
PACKAGE = {"scripts": {"test": "node check.js && npm run lint", "lint": "eslint .", "build": "tsc"}, "dependencies": {}}


def package(**more: object) -> bytes:
    return json.dumps({**PACKAGE, **more}).encode()


def judged(before: Files, after: Files, gate: str = "sh run.sh", *, links: Sequence[str] = (),
           nested: Sequence[str] = (), executable: Sequence[str] = (), files: tuple[str, ...] = (),
           landed: Sequence[Landed] = (), history: Sequence[tuple[str, bytes]] = (),
           **limits: object) -> dict[str, tuple[str, ...]]:
    """Return kind → names of the findings about the change from `before` to `after`."""
    blobs = {hashlib.sha1(data).hexdigest(): data for side in (before, after) for data in side.values()
             if data is not None}
    blobs |= {hashlib.sha1(data).hexdigest(): data for _, data in history}
    none = "0" * 40

    def side(contents: Files, name: str, *, is_new: bool) -> tuple[str, str]:
        data = contents.get(name)
        mode = "160000" if name in nested and is_new else "120000" if name in links and is_new else \
            "100755" if name in executable and is_new else "100644"
        return ("000000", none) if data is None else (mode, hashlib.sha1(data).hexdigest())

    changes = []
    for name in sorted({*before, *after}):
        old, new = side(before, name, is_new=False), side(after, name, is_new=True)
        if old != new:
            status = "A" if old[1] == none else "D" if new[1] == none else "T" if new[0][:2] != old[0][:2] else "M"
            changes.append(ChangedPath(name, *new, status, *old))
    done = [ChangedPath(name, "100644", hashlib.sha1(data).hexdigest(), "A", "000000", none) for name, data in history]
    found = inspect_diff(Diff(
        changes, lambda names: {name: blobs[name] for name in names if name in blobs},
        find_gate_files(gate, before.get), done, landed,
        {oid: len(data) for oid, data in blobs.items()}, files), GuardConfig(**limits))  # type: ignore[arg-type]
    return {each.kind: tuple(each.names) for each in found}


@pytest.mark.parametrize(("before", "after", "expected"), [
    # tests
    ({}, {"test_a.py": CASE}, {"tests": ("test_a.py",)}),
    ({}, {"pkg/a_test.go": b"func TestA(t *testing.T) {}\n"}, {"tests": ("pkg/a_test.go",)}),
    ({}, {"src/a.spec.ts": b"it('a', () => {})\n"}, {"tests": ("src/a.spec.ts",)}),
    ({}, {"tests/data/x.json": b"{}"}, {"tests": ("tests/data/x.json",)}),
    ({}, {"tests/README.md": b"x", "contest.py": b"x", "src/latest.py": b"x", "attest/x.py": b"x"}, {}),
    ({"test_a.py": CASE}, {"test_a.py": CASES}, {"tests": ("test_a.py",)}),
    ({"test_a.py": CASES}, {"test_a.py": CASE},
     {"tests": ("test_a.py",), "deleted_tests": ("test_a.py (1 fewer)",)}),
    ({"test_a.py": CASES}, {"test_a.py": CASES.replace(b"def test_b", b"# def test_b")},
     {"tests": ("test_a.py",), "deleted_tests": ("test_a.py (1 fewer)",)}),
    ({"test_a.py": CASE}, {"test_a.py": None}, {"deleted_tests": ("test_a.py",)}),
    ({"test_a.py": CASE}, {"test_a.py": None, "tests/test_a.py": CASE}, {"tests": ("tests/test_a.py",)}),
    ({"test_a.py": CASES, "test_b.py": b"x=1\n"}, {"test_a.py": CASE, "test_b.py": CASES[28:]},
     {"tests": ("test_a.py", "test_b.py")}),
    ({"test_a.py": CASE}, {"test_a.py": b"@pytest.mark.skip\n" + CASE},
     {"tests": ("test_a.py",), "skipped_tests": ("test_a.py",)}),
    *((({name: old}, {name: new}, {"tests": (name,), "skipped_tests": (name,)})) for name, old, new in (
        ("test_a.py", CASE, b"@unittest.skipIf(True, 'x')\n" + CASE), ("test_a.py", CASE, b"@xfail\n" + CASE),
        ("test_a.py", CASE, CASE + b"    pytest.skip('x')\n"), ("test_a.py", CASE, b"__test__ = False\n" + CASE),
        ("test_a.py", CASE, b"pytestmark = pytest.mark.xfail\n" + CASE),
        ("a.test.js", b"it('a', f)\n", b"it.skip('a', f)\n"), ("a.test.js", b"it('a', f)\n", b"it.only('a', f)\n"),
        ("a.test.tsx", b"describe('a', f)\n", b"describe.skip('a', f)\n"), ("a.spec.ts", b"x()\n", b"xit('a', f)\n"),
        ("a_test.go", b"func TestA(t *testing.T) {}\n", b"func TestA(t *testing.T) { t.Skip() }\n"),
        ("ATest.java", b"@Test void a() {}\n", b"@Disabled @Test void a() {}\n"),
        ("a_spec.rb", b"it 'a' do\n", b"it 'a' do\n skip 'later'\n"))),
    ({"src/a.rs": b"#[test]\nfn a() {}\n"}, {"src/a.rs": b"#[test]\n#[ignore]\nfn a() {}\n"},
     {"skipped_tests": ("src/a.rs",)}),
    ({"src/a.rs": b"#[test]\nfn a() {}\n"}, {"src/a.rs": b"fn a() {}\n"},
     {"deleted_tests": ("src/a.rs (1 fewer)",)}),
    ({}, {"unittest.py": b""}, {"shadowed_tests": ("unittest.py",)}),
    ({}, {"pytest/__init__.py": b""}, {"shadowed_tests": ("pytest/__init__.py",)}),
    ({}, {"src/app/pytest.py": b""}, {}),
    ({}, {"sitecustomize.py": b"x", "a.pth": b"import x"}, {"shadowed_tests": ("a.pth", "sitecustomize.py")}),
    ({"conftest.py": b"a"}, {"conftest.py": b"b"}, {"shadowed_tests": ("conftest.py",)}),
    # the gate
    (SCRIPT, {"run.sh": b"exit 0\n"}, {"gate": ("run.sh",)}),
    (SCRIPT, {"run.sh": None}, {"gate": ("run.sh",)}),
    ({**SCRIPT, "ci/lint.sh": b"ruff check\n"}, {**SCRIPT, "ci/lint.sh": b"true\n"}, {"gate": ("ci/lint.sh",)}),
    ({**SCRIPT, "lint.sh": b"a"}, {**SCRIPT, "lint.sh": b"b"}, {}),
    ({}, {"sub/a/garrison.toml": b"[launch]\ngate = 'true'\n"}, {"gate": ("sub/a/garrison.toml",)}),
    ({}, {"garrison.toml": b"[launch]\ngate = 'true'\n"}, {"gate": ("garrison.toml",)}),
    ({"garrison.toml": b"[launch]\nagent = 'a'\n"}, {"garrison.toml": b"[launch]\nagent = 'a'\n[x_note]\na = 1\n"}, {}),
    # the rest by names
    ({}, {".github/workflows/ci.yml": b"x"}, {"ci": (".github/workflows/ci.yml",)}),
    ({}, {".gitlab-ci.yml": b"x", "Jenkinsfile": b"x"}, {"ci": (".gitlab-ci.yml", "Jenkinsfile")}),
    ({}, {".pre-commit-config.yaml": b"x", ".husky/pre-commit": b"x"},
     {"git_hooks": (".husky/pre-commit", ".pre-commit-config.yaml")}),
    ({"package.json": b"{}"}, {"package.json": b'{"dependencies": {"a": "1"}}', "package-lock.json": b"{}"},
     {"dependencies": ("package-lock.json", "package.json")}),
    ({}, {"api/requirements-dev.txt": b"x", "Cargo.lock": b"x", "go.mod": b"x"},
     {"dependencies": ("Cargo.lock", "api/requirements-dev.txt", "go.mod")}),
    ({}, {"AGENTS.md": b"x", "sub/claude.md": b"x", ".mcp.json": b"{}"},
     {"instructions": (".mcp.json", "AGENTS.md", "sub/claude.md")}),
    ({}, {".claude/settings.json": b"{}", ".cursor/rules/a.mdc": b"x", ".github/copilot-instructions.md": b"x"},
     {"instructions": (".claude/settings.json", ".cursor/rules/a.mdc", ".github/copilot-instructions.md")}),
    ({}, {"docs/agents.rst": b"x", "claude/x.py": b"x", "src/agents.py": b"x"}, {}),
    # secrets
    ({}, {"a.py": b"token = '" + TOKEN + b"'"}, {"secrets": ("a.py (a GitHub token)",)}),
    ({"a.py": b"t = '" + TOKEN + b"'"}, {"a.py": b"t = '" + TOKEN + b"'\nmore\n"}, {}),
    ({"a.py": TOKEN}, {"a.py": None, "b.py": TOKEN}, {}),
    ({}, {"k.pem": PEM}, {"secrets": ("k.pem (a private key)",)}),
    ({}, {"doc.md": b"a file that begins with -----BEGIN RSA PRIVATE KEY----- is a key"}, {}),
    ({}, {"a.py": b"ghp_" + b"x" * 36, "b.py": b"AKIAIOSFODNN7EXAMPLE"}, {}),
    ({}, {"a.py": b"AKIAQWJ3K7ZPLM5R2TVB"}, {"secrets": ("a.py (an AWS access key)",)}),
    ({}, {"a.py": b"sk-ant-api03-" + b"aZ3kP9qW_7xR2mT5vB8nC1dF4gH6jL0sY-uE" * 2},
     {"secrets": ("a.py (an Anthropic key)",)}),
    ({}, {".env": b"A=1\n", ".env.example": b"A=\n"}, {"secrets": (".env",)}),
    ({}, {"bin": b"\0\1" + TOKEN + b" \xff"}, {"secrets": ("bin (a GitHub token)",)}),
    # hostile and odd names
    ({}, {"tests/a\nb'\"$(x).py": b"x", "tests/ü\u202e.py": b"x", "\ud800test_x.py": b"x"},
     {"tests": ("tests/a\nb'\"$(x).py", "tests/ü\u202e.py")}),
    ({}, {"-rf": b"x", ":(glob)*": b"x", "a b/test_c d.py": b"x"}, {"tests": ("a b/test_c d.py",)}),
    ({}, {"a" * 250 + "/test_x.py": b"x"}, {"tests": ("a" * 250 + "/test_x.py",)}),
    ({}, {}, {}),
])
def test_a_diff_is_classified_by_the_names_and_contents_of_its_files(before: Files, after: Files,
                                                                     expected: dict[str, tuple[str, ...]]) -> None:
    assert judged(before, after) == expected


@pytest.mark.parametrize(("gate", "before", "after", "names"), [
    ("make test", {"Makefile": MAKE}, {"Makefile": MAKE.replace(b"rm x", b"rm y")}, ()),
    ("make test", {"Makefile": MAKE}, {"Makefile": MAKE.replace(b"pytest", b"this")}, ("Makefile",)),
    ("make test", {"Makefile": MAKE}, {"Makefile": MAKE.replace(b"cc x.c", b"true")}, ("Makefile",)),
    ("make test", {"Makefile": MAKE}, {"Makefile": MAKE.replace(b"= python3", b"= true")}, ("Makefile",)),
    ("make test", {"Makefile": MAKE}, {"Makefile": MAKE, "GNUmakefile": b"test:\n\ttrue\n"}, ("GNUmakefile",)),
    ("make -C sub test", {"sub/Makefile": b"test:\n\t./t.sh\n"}, {"sub/t.sh": b"x"}, ("sub/Makefile", "sub/t.sh")),
    ("make", {"Makefile": LINT}, {"l.sh": b"x", "Makefile": LINT}, ("l.sh",)),
    ("npm test", {"package.json": package()}, {"package.json": package(dependencies={"a": "1"})}, ()),
    ("npm test", {"package.json": package()}, {"package.json": package(scripts={"test": "true"})}, ("package.json",)),
    ("npm test", {"package.json": package()}, {"package.json": package(), "check.js": b"x"}, ("check.js",)),
    ("npm test", {"package.json": package()},
     {"package.json": package(scripts={**PACKAGE["scripts"], "lint": "true"})}, ("package.json",)),
    ("npm test", {"package.json": package()},
     {"package.json": package(scripts={**PACKAGE["scripts"], "build": "x"})}, ()),
    ("npm run test", {"package.json": package()}, {"package.json": b"{ not json"}, ("package.json",)),
    ("npm ci && npm t", {"package.json": package()},
     {"package.json": package(scripts={**PACKAGE["scripts"], "pretest": "x"})}, ("package.json",)),
    ("python -m pytest -q", {"pyproject.toml": MANIFEST}, {"pyproject.toml": MANIFEST + b'addopts = "-k x"\n'},
     ("pyproject.toml",)),
    ("uv run --frozen pytest", {"pyproject.toml": MANIFEST},
     {"pyproject.toml": MANIFEST.replace(b'"x"\n', b'"x"\ndependencies = ["requests"]\n')}, ()),
    ("poetry run pytest tests/test_a.py", {}, {"pytest.ini": b"[pytest]\n", "tests/test_a.py": CASE}, ("pytest.ini",)),
    ("pytest", {"setup.cfg": b"[metadata]\na=1\n"}, {"setup.cfg": b"[metadata]\na=2\n"}, ()),
    ("pytest", {"setup.cfg": b"[metadata]\na=1\n"}, {"setup.cfg": b"[metadata]\na=1\n[tool:pytest]\nx=1\n"},
     ("setup.cfg",)),
    ("tox -e py", {"tox.ini": b"[tox]\n"}, {"tox.ini": b"[tox]\nx=1\n"}, ("tox.ini",)),
    ("python -m unittest", {}, {"pytest.ini": b"x", "pyproject.toml": MANIFEST}, ()),
    ("env A=b timeout 5 ./ci/check 2>&1 | tee log", {}, {"ci/check": b"x", "log": b"x"}, ("ci/check",)),
    ("bash -euc 'cd web && node tools/t.js'", {}, {"web/tools/t.js": b"x", "tools/t.js": b"x"}, ("web/tools/t.js",)),
    ("python3 -W error scripts/check.py tests", {}, {"scripts/check.py": b"x", "tests": b"x"}, ("scripts/check.py",)),
    ("python -m checks.all", {"checks/all.py": b"a"}, {"checks/all.py": b"b"}, ("checks/all.py",)),
    ("if true; then . ci/env; fi", {}, {"ci/env": b"x"}, ("ci/env",)),
    ("coverage run -m pytest && ruff check", {}, {"ruff.toml": b"x", ".coveragerc": b"x"},
     (".coveragerc", "ruff.toml")),
    ("cargo test", {"Cargo.toml": b"[package]\n"}, {"Cargo.toml": b"[package]\n[dependencies]\na='1'\n"}, ()),
    ("npx jest", {}, {"jest.config.mjs": b"x"}, ("jest.config.mjs",)),
    ("./link", {"link": b"ci/real", "ci/real": b"a"}, {"link": b"ci/real", "ci/real": b"b"}, ("ci/real",)),
    ("sh /abs/x.sh; sh ../out.sh; $X; sh \"$Y\"; sh 'open", {}, {"abs/x.sh": b"x", "out.sh": b"x"}, ()),
])
def test_files_of_the_gate_are_those_in_its_command_and_its_sections_of_shared_manifests(
        gate: str, before: Files, after: Files, names: tuple[str, ...]) -> None:
    assert judged(before, after, gate).get("gate", ()) == names


def test_links_modes_and_nested_repositories_are_recognized() -> None:
    assert judged(SCRIPT, SCRIPT, executable=["run.sh"]) == {"gate": ("run.sh",)}
    assert judged({"ci/run.sh": b"x"}, {"ci/run.sh": None, "ci": b"/tmp"}, "sh ci/run.sh", links=["ci"]) == {
        "gate": ("ci", "ci/run.sh")}
    assert judged({"test_a.py": CASE}, {"test_a.py": b"/dev/null"}, links=["test_a.py"]) == {
        "deleted_tests": ("test_a.py",)}
    assert judged({}, {".claude": b"elsewhere"}, links=[".claude"]) == {"instructions": (".claude",)}
    assert judged({}, {"inner": b"x"}, nested=["inner"]) == {"nested_repositories": ("inner",)}
    assert judged({}, {"inner": b"x", ".gitmodules": b'[submodule "i"]\n\tpath = inner\n'}, nested=["inner"]) == {
        "dependencies": (".gitmodules",)}
    assert judged({}, {"inner": b"x"}, nested=["inner"], allow=("inner",)) == {}


@pytest.mark.parametrize("secret", ["", "7d0f9e2b4c6a81357d0f9e2b4c6a8135"])
def test_a_key_that_only_opens_the_proxy_is_no_secret(secret: str) -> None:
    keys = [dummy_key(key, secret) for api in APIS.values() for key in api.keys]
    assert find_secrets(" ".join(keys).encode()) == {}
    assert find_secrets(keys[0].replace("garrison", "one-that-opens").encode()) or not secret


def test_a_file_that_one_commit_adds_and_another_removes_is_found_in_the_history() -> None:
    assert judged({}, {"a": b"x"}, history=[("k.py", TOKEN)]) == {"secrets": ("k.py (a GitHub token)",)}
    assert judged({}, {"a": b"x"}, history=[("k.py", TOKEN)], allow=("k.py",)) == {}
    assert judged({}, {"a": b"x"}, history=[("big", b"x" * 11)], max_file=10) == {
        "size": ("big (11 bytes, over max_file = 10 bytes)",)}


def test_work_that_restores_files_reverts_what_landed_and_other_changes_do_not() -> None:
    def landing(name: str, status: str, old: bytes, new: bytes) -> Landed:
        oid = [hashlib.sha1(data).hexdigest() if data else "0" * 40 for data in (old, new)]
        modes = ["100644" if data else "000000" for data in (old, new)]
        return Landed("c0ffee" + "0" * 34, [ChangedPath(name, modes[1], oid[1], status, modes[0], oid[0])])

    changed, added = landing("a", "M", b"1", b"2"), landing("b", "A", b"", b"2")
    assert judged({"a": b"2"}, {"a": b"1"}, landed=[changed]) == {"reverts": ("c0ffee0000 in a",)}
    assert judged({"a": b"3"}, {"a": b"1"}, landed=[changed]) == {"reverts": ("c0ffee0000 in a",)}
    assert judged({"a": b"2"}, {"a": b"3"}, landed=[changed, added]) == {}
    assert judged({"b": b"2"}, {"b": None}, landed=[added]) == {"reverts": ("c0ffee0000 in b",)}
    raw = f":100644 100644 {'1' * 40} {'2' * 40} M"
    assert parse_log(f"{'a' * 40}\0\0{raw}\0x\ny\0{raw}\0z\0{'b' * 40}\0") == [
        Landed("a" * 40, [ChangedPath(name, "100644", "2" * 40, "M", "100644", "1" * 40) for name in ("x\ny", "z")]),
        Landed("b" * 40, [])]


def test_files_outside_those_of_the_node_are_found_and_many_names_are_counted() -> None:
    assert judged({}, {"docs/a.md": b"x", "src/b.c": b"x"}, files=("docs", "*.txt")) == {"outside_files": ("src/b.c",)}
    diff = Diff([ChangedPath(f"tests/{number}.py", "100644", "1" * 40, "A", "000000", "0" * 40)
                 for number in range(5000)], lambda _names: {})
    found = inspect_diff(diff, GuardConfig(max_files=None))
    assert [(each.kind, each.number, len(each.names)) for each in found] == [("tests", 5000, 5)]
    assert describe_change(found[0], most=2) == "changes 5000 tests: tests/0.py, tests/1.py and 4,998 more"


def test_each_kind_has_its_effect_which_the_table_changes() -> None:
    asked = {kind for kind in ChangeKind if GuardConfig().effect(kind) is Effect.ASK}
    refused = {kind for kind in ChangeKind if GuardConfig().effect(kind) is Effect.REFUSE}
    assert asked == {ChangeKind.GATE, ChangeKind.INSTRUCTIONS, ChangeKind.PARTIAL}
    assert refused == {ChangeKind.SECRETS, ChangeKind.SIZE, ChangeKind.NESTED}
    own = Table("here", {"gate": "tell", "tests": "ask"}).read(GuardConfig)
    assert (own.effect(ChangeKind.GATE), own.effect(ChangeKind.TESTS)) == (Effect.TELL, Effect.ASK)
    both = own.with_project(Table("there", {"gate": "refuse"}))
    assert (both.effect(ChangeKind.GATE), both.effect(ChangeKind.TESTS)) == (Effect.REFUSE, Effect.ASK)
    with pytest.raises(UsageError, match="here: gate='no' should be one of tell, ask, refuse"):
        Table("here", {"gate": "no"}).read(GuardConfig)


# ---- commit hooks of the repository in the line of a launch, and where `[guard] hooks` may be set


AGENT, GATE, NONE = GuardHooks


@pytest.mark.parametrize(("names", "mode", "has_gate", "line"), [
    ((), AGENT, True, ""),
    (("commit-msg",), AGENT, True, "commit-msg runs for what agents commit ([guard] hooks)"),
    (("pre-commit", "commit-msg"), AGENT, False,
     "pre-commit, commit-msg run for what agents commit ([guard] hooks)"),
    (("pre-commit", "commit-msg"), GATE, True,
     'pre-commit runs as part of the gate ([guard] hooks = "gate"), no other does'),
    (("pre-commit",), GATE, False, 'pre-commit does not run ([guard] hooks = "gate", and there is no gate)'),
    (("commit-msg",), GATE, True, 'commit-msg does not run ([guard] hooks = "gate")'),
    (("pre-commit", "commit-msg"), NONE, True, 'pre-commit, commit-msg do not run ([guard] hooks = "none")'),
])
def test_a_launch_prints_in_one_line_whether_hooks_run(names, mode, has_gate, line):
    assert describe_hooks(names, mode, has_gate=has_gate) == (f"hooks: {line}" if line else "")


def test_hooks_are_chosen_only_by_the_home_and_one_in_the_gate_makes_another_gate():
    assert Table("config.toml", {}).read(GuardConfig).hooks is AGENT
    assert Table("config.toml", {"hooks": "none"}).read(GuardConfig).hooks is NONE
    assert GuardConfig(hooks=GATE).with_project(Table("garrison.toml", {"max_files": 3})).hooks is GATE
    with pytest.raises(UsageError, match="hooks='off' should be one of agent, gate, none"):
        Table("config.toml", {"hooks": "off"}).read(GuardConfig)
    with pytest.raises(UsageError, match="hooks has no effect there, since agents can change that file"):
        GuardConfig().with_project(Table("garrison.toml", {"hooks": "none"}))
    plain, hooked = QueueConfig("true"), QueueConfig("true", commit_hook="refs/heads/it's")
    assert plain.gate_command == "true"
    assert plain.command_key != hooked.command_key
    assert hooked.gate_command.endswith("\ntrue")
    assert "git merge-base HEAD 'refs/heads/it'\"'\"'s'" in hooked.gate_command
    assert from_data(QueueConfig, asdict(hooked)) == hooked
