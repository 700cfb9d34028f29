"""Change classifier: findings that the user should know about, and files that a project hardly ever wants. Pure.

`classify` uses names, sizes and the first bytes of files: `node.unfinished` calls it before garrison commits what an
agent left uncommitted. `inspect_diff` examines a diff that is about to land (`node.diff_check`): tests, the gate,
instructions of agents, secrets … It goes by names, by blobs before and after, and by marks in them; it does not judge
intent. `[guard]` sets the consequence of each kind of change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING

import msgspec

from garrison.ends import ChangeKind, LandingNote
from garrison.merge.gate_files import OWN_SETTINGS, GateFiles, is_same_section
from garrison.system.git.commits import ChangedPath
from garrison.system.terminal_text import format_size
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from garrison.config import GuardConfig

HEAD_BYTES = 4096
"""Leading bytes of a file that identify its type."""


class FindingKind(StrEnum):
    """Problem with a file of a change."""

    SECRET = "secret"
    """A private key, or a file of environment variables or passwords."""
    DUMP = "dump"
    """A core dump."""
    INSTALLED = "installed"
    """A folder of installed modules, or a virtual environment."""
    NAME = "name"
    """A name refused by the configuration."""
    SIZE = "size"
    MANY = "many"
    """Too many new files."""


class ChangedFile(Value):
    """One file as a change leaves it."""

    name: str
    size: int = 0
    """Bytes."""
    is_new: bool = True
    head: bytes = b""
    """Its first `HEAD_BYTES`, empty if unknown."""


class FileFinding(Value):
    """Problem with one file, or with all files below a folder (then `name` ends with a slash)."""

    kind: FindingKind
    name: str
    size: int = 0
    """Size in bytes."""
    count: int = 1
    """Number of files in the change."""


_FOLDERS = frozenset({"node_modules", "bower_components", ".venv", ".tox", ".nox", ".env", ".direnv", ".terraform"})
_ENVIRONMENT = "pyvenv.cfg"
"""File at the top of a virtual environment, whatever the folder's name."""
_DUMP = re.compile(r"(?:vg)?core(?:\.[0-9]+)?")
_ENV_FILE = re.compile(r"\.env(?:rc|\..+)?")
_ENV_EXAMPLE = re.compile(r"\.env\..*\b(?:example|sample|template|dist|defaults?)")
_SECRETS = re.compile("|".join(map(translate, (
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", "*.key", "*.p12", "*.pfx", ".netrc",
    ".pypirc", ".git-credentials"))))
_PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")


def classify(files: Iterable[ChangedFile], limits: GuardConfig) -> list[FileFinding]:
    """Return the problems of a change, folders first, then files by name; names that match `limits.allow` pass.

    Names of files that the project already tracks pass as well.
    """
    considered = sorted((file for file in files if not matches(file.name, limits.allow)), key=lambda file: file.name)
    environments = {file.name.removesuffix(_ENVIRONMENT) for file in considered
                    if file.is_new and file.name.endswith(f"/{_ENVIRONMENT}")}
    folders: Counter[str] = Counter()
    found: list[FileFinding] = []
    others = 0
    for file in considered:
        folder = _installed(file.name, environments) if file.is_new else ""
        if folder:
            folders[folder] += 1
        elif (kind := _kind(file, limits)) is not None:
            found.append(FileFinding(kind, file.name, file.size))
        else:
            others += file.is_new
    installed = [FileFinding(FindingKind.INSTALLED, name, count=count) for name, count in sorted(folders.items())]
    is_many = limits.max_files is not None and others > limits.max_files
    return [*installed, *found, *([_many(considered, others)] if is_many else [])]


def _many(files: Sequence[ChangedFile], count: int) -> FileFinding:
    """Return the finding for too many new files, named after the top folder that contains most of them."""
    folders = Counter(f"{parts[0]}/" if len(parts := file.name.split("/", 1)) > 1 else "./"
                      for file in files if file.is_new)
    return FileFinding(FindingKind.MANY, folders.most_common(1)[0][0], count=count)


def _installed(name: str, environments: Iterable[str]) -> str:
    """Return the outermost folder of installed files that a file lies in, with a final slash; '' for none."""
    parts = name.split("/")
    for depth, part in enumerate(parts[:-1], 1):
        if part in _FOLDERS or "/".join([*parts[:depth], ""]) in environments:
            return "/".join([*parts[:depth], ""])
    return ""


def _kind(file: ChangedFile, limits: GuardConfig) -> FindingKind | None:
    last = file.name.rpartition("/")[2]
    if file.is_new:
        if _DUMP.fullmatch(last):
            return FindingKind.DUMP
        if _is_secret(last, file.head):
            return FindingKind.SECRET
        if matches(file.name, limits.refuse):
            return FindingKind.NAME
    return FindingKind.SIZE if limits.max_file is not None and file.size > limits.max_file else None


def _is_secret(last: str, head: bytes) -> bool:
    is_variables = bool(_ENV_FILE.fullmatch(last)) and not _ENV_EXAMPLE.fullmatch(last)
    return bool(_SECRETS.fullmatch(last)) or is_variables or bool(_PRIVATE_KEY.search(head))


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a path matches a pattern: with a slash the whole path or a folder above, else any part of it."""
    if not patterns:
        return False
    parts = name.split("/")
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return any(fnmatchcase(candidate, pattern.strip("/"))
               for pattern in patterns for candidate in (above if "/" in pattern.strip("/") else parts))


def count_conflicts(content: bytes) -> int:
    """Return the number of conflicts, `<<<<<<<` to `>>>>>>>`, in a file; 0 for a binary file."""
    if b"<<<<<<< " not in content or b"\0" in content[:HEAD_BYTES]:
        return 0
    count, step = 0, 0
    for line in content.splitlines():
        if line.startswith(b"<<<<<<< "):
            step = 1
        elif step == 1 and line == b"=======":
            step = 2
        elif step == 2 and line.startswith(b">>>>>>> "):
            count, step = count + 1, 0
    return count


def conflict_hunks(text: str, limit: int) -> str:
    """Return the conflicts of a text with two lines of context each; at most `limit` lines."""
    lines, shown, begin = text.splitlines(), list[str](), -1
    for number, line in enumerate(lines):
        if line.startswith("<<<<<<< "):
            begin = number
        elif line.startswith(">>>>>>> ") and begin >= 0:
            shown += [f"line {begin + 1}:", *lines[max(0, begin - 2):number + 3]]
            begin = -1
    return "\n".join(shown if len(shown) <= limit else [*shown[:limit], f"… ({len(shown) - limit} more lines)"])


# ---- diff to land ----------------------------------------------------------------------------------------------------

SHOWN = 5
"""Names listed for each kind."""
MAX_READ = 1 << 20
"""Size in bytes up to which a file is read."""
_NOTHING, _NESTED, _LINK = "000000", "160000", "120000"
"""git's modes: no file, a commit of another repository, a symbolic link."""
ReadBlobs = Callable[[Iterable[str]], Mapping[str, bytes]]
"""Returns the content of blobs by name, without missing and too large ones."""


class Landed(Value):
    """Earlier landing, and its changes."""

    commit: str
    changes: Sequence[ChangedPath]


class Diff(Value):
    """Work to land, from git, and the context for judging it."""

    changes: Sequence[ChangedPath]
    """Differences from its start commit."""
    read: ReadBlobs
    gate: GateFiles = msgspec.field(default_factory=GateFiles)
    history: Sequence[ChangedPath] = ()
    """Changes of its commits, in order: even what a later one removed lands in the history."""
    landed: Sequence[Landed] = ()
    """Latest landings before its start, newest first."""
    sizes: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Sizes in bytes of its new blobs."""
    files: tuple[str, ...] = ()
    """Patterns of the files that the node may change; empty: all."""


def inspect_diff(diff: Diff, limits: GuardConfig) -> list[LandingNote]:
    """Return what the user should know about work to land, in the order of `ChangeKind`. Pure except for `read`.

    Files that match `limits.allow` are never reported as secret, too large or a nested repository.
    """
    moved = {change.old_blob for change in diff.changes if change.status == "D"} & {
        change.blob for change in diff.changes if change.status == "A"}
    changes = diff.changes
    history = _without(diff.history, changes)
    names = _by_name(changes)
    names[ChangeKind.GATE] = _gate(changes, diff)
    tests = set(names[ChangeKind.TESTS])
    deleted, skipped = _compare_tests([change for change in changes if change.name in tests
                                       or change.name.endswith(".rs")], tests, diff.read, moved)
    names[ChangeKind.DELETED_TESTS] = deleted
    names[ChangeKind.SKIPPED_TESTS] = skipped
    gone = {*deleted, *(change.name for change in changes if change.status == "D" and change.old_blob in moved)}
    names[ChangeKind.TESTS] = [name for name in names[ChangeKind.TESTS] if name not in gone]
    names[ChangeKind.SHADOWED_TESTS] = [change.name for change in changes if _shadows(change, diff.gate)]
    names[ChangeKind.NESTED] = _nested(changes, diff.read, limits)
    names[ChangeKind.SECRETS], names[ChangeKind.SIZE] = _unwanted((*changes, *history), diff.sizes, limits, moved)
    names[ChangeKind.SECRETS] += _secrets(changes, history, diff.read, limits, moved)
    names[ChangeKind.REVERTS] = _reverts(changes, diff.landed)
    names[ChangeKind.OUTSIDE] = [change.name for change in changes if not matches(change.name, diff.files)] \
        if diff.files else []
    return [LandingNote(kind.value, limits.effect(kind).value, len(found), tuple(found[:SHOWN]))
            for kind in ChangeKind if (found := list(dict.fromkeys(names.get(kind, ()))))]


def _without(history: Sequence[ChangedPath], changes: Sequence[ChangedPath]) -> list[ChangedPath]:
    """Return changes that only the history contains: made by one commit and changed again by a later one."""
    known = {(change.name, change.blob) for change in changes}
    return [change for change in history if (change.name, change.blob) not in known]


def parse_log(text: str) -> list[Landed]:
    """Read the output of `git log -z --raw --no-abbrev --no-renames --format=%H`."""
    commits: list[tuple[str, list[ChangedPath]]] = []
    parts = iter(text.split("\0"))
    for part in parts:
        line = part.strip("\n")
        if line.startswith(":"):
            old_mode, mode, old_blob, blob, status = line[1:].split(" ")
            commits[-1][1].append(ChangedPath(next(parts, ""), mode, blob, status, old_mode, old_blob))
        elif line:
            commits.append((line, []))
    return [Landed(commit, changes) for commit, changes in commits]


# ---- by names

_PROSE = frozenset({"md", "rst", "adoc"})
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs", "testing", "testdata", "__snapshots__",
                           "e2e"})
_TEST_NAME = re.compile(r"test_.*\.pyi?|.*_tests?\.(?:py|go|rb|exs|dart|c|cc|cpp|clj)|tests?\.(?:py|js|ts|rs|sh)|"
                        r".*[._-](?:test|tests|spec|e2e|cy)\.[cm]?[jt]sx?|.*_spec\.(?:rb|lua)|.*Tests?\.(?:java|kt|scala|"
                        r"groovy|php|cs|swift)|.*(?:IT|Spec)\.(?:java|kt|scala|groovy)|.*\.(?:bats|snap)", re.DOTALL)
_CI_FOLDERS = re.compile(r"(?:^|/)\.(?:github/(?:workflows|actions)|circleci|buildkite|gitea/workflows|forgejo/"
                         r"workflows|woodpecker|gitlab/ci|azure-pipelines|teamcity)(?:/|$)", re.IGNORECASE)
_CI = re.compile(r"\.gitlab-ci\.ya?ml|Jenkinsfile.*|azure-pipelines.*\.ya?ml|\.travis\.ya?ml|bitbucket-pipelines\.yml|"
                 r"\.drone\.ya?ml|\.woodpecker\.ya?ml|\.?appveyor\.ya?ml|cloudbuild\.ya?ml|\.cirrus\.ya?ml|"
                 r"\.github/(?:dependabot\.ya?ml|codeowners)|codeowners|\.?codecov\.ya?ml|\.?buildspec\.ya?ml",
                 re.IGNORECASE)
_HOOK_FOLDERS = re.compile(r"(?:^|/)\.(?:husky|githooks|git-hooks|hooks)(?:/|$)", re.IGNORECASE)
_HOOKS = frozenset({".pre-commit-config.yaml", ".pre-commit-config.yml", ".pre-commit-hooks.yaml", "lefthook.yml",
                    ".lefthook.yml", "lefthook.yaml", ".overcommit.yml", ".gitattributes", ".lfsconfig", ".huskyrc",
                    ".huskyrc.json", ".lintstagedrc", ".lintstagedrc.json"})
_MANIFESTS = re.compile(r"(?:.*[-_])?requirements(?:[-_].*)?\.(?:txt|in)|constraints.*\.txt|pyproject\.toml|setup\.(?:"
                        r"py|cfg)|pipfile(?:\.lock)?|environment\.ya?ml|package(?:-lock)?\.json|npm-shrinkwrap\.json|yarn\."
                        r"lock|pnpm-(?:lock|workspace)\.yaml|bun\.lockb?|deno\.(?:jsonc?|lock)|cargo\.(?:toml|lock)|go\."
                        r"(?:mod|sum|work)|gemfile(?:\.lock)?|.*\.gemspec|composer\.(?:json|lock)|pom\.xml|(?:build|"
                        r"settings)\.gradle(?:\.kts)?|gradle\.lockfile|libs\.versions\.toml|.*\.(?:cs|fs|vb)proj|"
                        r"packages\.lock\.json|mix\.(?:exs|lock)|pubspec\.(?:yaml|lock)|package\.(?:swift|resolved)|"
                        r"vcpkg\.json|conanfile\..*|flake\.(?:nix|lock)|(?:uv|poetry|pdm|pixi)\.lock|\.gitmodules|"
                        r"\.npmrc", re.IGNORECASE)
_INSTRUCTION_FOLDERS = re.compile(r"(?:^|/)\.(?:claude|cursor|codex|gemini|opencode|agents|windsurf|clinerules|roo|"
                                  r"kiro|junie|amazonq|continue|github/(?:instructions|prompts|agents|chatmodes))(?:/|$)",
                                  re.IGNORECASE)
_INSTRUCTIONS = re.compile(r"agents(?:\.override|\.local)?\.md|claude(?:\.local)?\.md|gemini\.md|qwen\.md|warp\.md|"
                           r"\.mcp\.json|mcp\.json|\.cursorrules|\.windsurfrules|\.clinerules|\.roorules|\.goosehints|"
                           r"\.aider\.conf\.ya?ml|opencode\.jsonc?|copilot-instructions\.md", re.IGNORECASE)
_LOADED = frozenset({"unittest", "pytest", "_pytest", "pluggy", "nose", "nose2", "tox", "nox", "coverage", "doctest"})
_ALWAYS_LOADED = frozenset({"conftest", "sitecustomize", "usercustomize"})


def is_test(name: str) -> bool:
    """Return whether a path is a test, or belongs to tests."""
    *folders, last = name.split("/")
    return bool(_TEST_NAME.fullmatch(last)) or (
        not _TEST_FOLDERS.isdisjoint(folder.lower() for folder in folders)
        and last.rpartition(".")[2].lower() not in _PROSE)


def _by_name(changes: Sequence[ChangedPath]) -> dict[ChangeKind, list[str]]:
    """Return the kinds of change that names alone reveal."""
    names: dict[ChangeKind, list[str]] = {kind: [] for kind in ChangeKind}
    for change in changes:
        name, last = change.name, change.name.rpartition("/")[2]
        if is_test(name):
            names[ChangeKind.TESTS].append(name)
        if _CI_FOLDERS.search(name) or _CI.fullmatch(last) or _CI.fullmatch(name):
            names[ChangeKind.CI].append(name)
        if _HOOK_FOLDERS.search(name) or last in _HOOKS:
            names[ChangeKind.GIT_HOOKS].append(name)
        if _MANIFESTS.fullmatch(last):
            names[ChangeKind.DEPENDENCIES].append(name)
        if _INSTRUCTION_FOLDERS.search(name) or _INSTRUCTIONS.fullmatch(last):
            names[ChangeKind.INSTRUCTIONS].append(name)
    return names


def _shadows(change: ChangedPath, gate: GateFiles) -> bool:
    """Return whether Python would load a new file in place of a test runner, or before all tests."""
    folder, _, last = change.name.rpartition("/")
    stem = last.partition(".")[0] if last.endswith((".py", ".pyc", ".so")) else ""
    if stem in _ALWAYS_LOADED or (last.endswith(".pth") and change.status != "D"):
        return True
    if change.status != "A":
        return False
    if last == "__init__.py" or (not stem and change.mode == _LINK):
        folder, _, stem = (folder if last == "__init__.py" else change.name).rpartition("/")
    return stem in {*_LOADED, *gate.modules} and folder in ("", "src", "lib", "test", "tests")


def _gate(changes: Sequence[ChangedPath], diff: Diff) -> list[str]:
    """Return the changed files of the gate; shared files only if the gate's sections of them differ."""
    patterns = [name for name in diff.gate.files if "*" in name]
    found: list[str] = []
    shared: dict[str, ChangedPath] = {}
    manifests = diff.gate.manifests
    for change in changes:
        if change.name in diff.gate.files or any(fnmatchcase(change.name, pattern) for pattern in patterns):
            found.append(change.name)
        elif change.name in manifests or change.name.endswith(f"/{OWN_SETTINGS.file}"):
            shared[change.name] = change
        elif change.mode in (_LINK, _NESTED):  # replaces a folder with files of the gate
            above = f"{change.name}/"
            found += [change.name for name in (*diff.gate.files, *manifests) if name.startswith(above)][:1]
    blobs = diff.read({oid for change in shared.values() for oid in (change.blob, change.old_blob)}) if shared else {}
    nested = {replace(OWN_SETTINGS, file=name) for name in shared if name.endswith(f"/{OWN_SETTINGS.file}")}
    for section in sorted(diff.gate.sections | nested, key=lambda each: (each.file, each.form)):
        if section.file not in shared:
            continue
        change = shared[section.file]
        before = None if change.old_mode == _NOTHING else blobs.get(change.old_blob, b"")
        after = None if change.mode == _NOTHING else blobs.get(change.blob, b"")
        if change.mode in (_LINK, _NESTED) or not is_same_section(section, before, after):
            found.append(change.name)
    return sorted(found)


# ---- tests

_SKIPS = re.compile(
    rb"(?m)@(?:\w+\.)*(?:skip|skip_?[Ii]f|skip_?[Uu]nless|xfail|expectedFailure)\b|\bpytest\.(?:skip|xfail|importorskip)\(|"
    rb"\bmark\.(?:skip|skipif|xfail)\b|\.skipTest\(|\bSkipTest\b|^\s*collect_ignore|\b__test__\s*=\s*False|"
    rb"\b(?:it|test|describe|context|suite|specify)(?:\.\w+)*\.(?:skip|only|todo|fixme|failing)\b|"
    rb"\b(?:xit|xdescribe|xtest|xcontext|fit|fdescribe)\s*\(|\bthis\.skip\(|\b[tb]\.Skip(?:f|Now)?\(|#\[ignore\b|"
    rb"//go:build\s+ignore|@(?:Disabled|Ignore)\b|\[Ignore\b|\bSkip\s*=\s*\"|markTestSkipped\(|markTestIncomplete\(|"
    rb"\bGTEST_SKIP\(|\bDISABLED_\w|^\s*skip\s+['\"]|^\s*xit\s|@tag\s+:skip|\bskip\s*:\s*true\b")
"""Markers of skipped tests and of expected failures in pytest, unittest, Jest, Mocha, Vitest, Playwright, Go, Rust,
JUnit, NUnit, xUnit, PHPUnit, GoogleTest, RSpec, Minitest and ExUnit."""
_SKIP_WORDS = (b"skip", b"Skip", b"SKIP", b"xfail", b"Failure", b"failing", b"only", b"todo", b"fixme", b"xit", b"fit",
               b"xdescribe", b"fdescribe", b"xtest", b"xcontext", b"__test__", b"ignore", b"Ignore", b"Disabled",
               b"DISABLED_", b"Incomplete")
_TEST_CASES = re.compile(
    rb"(?m)^[ \t]*(?:async[ \t]+)?def[ \t]+test|^[ \t]*(?:it|test)(?:\.\w+)*[ \t]*[(`]|^func[ \t]+Test|"
    rb"#\[(?:\w+::)?test\b|@(?:Test|ParameterizedTest|RepeatedTest)\b|function[ \t]+test|"
    rb"^[ \t]*(?:it|test|specify)[ \t]+['\"]|"
    rb"^[ \t]*\[(?:Fact|Theory|Test|TestMethod)\b|^@test\b|^[ \t]*TEST(?:_F|_P)?\(")


def _compare_tests(changes: Sequence[ChangedPath], tests: Collection[str], read: ReadBlobs,
                   moved: Collection[str]) -> tuple[list[str], list[str]]:
    """Return removed and skipped tests, by markers in the removed and added lines."""
    blobs = read({oid for change in changes for oid in (change.blob, change.old_blob) if oid.strip("0")})
    deleted, fewer, skipped, balance = [], [], [], 0
    for change in changes:
        before, after = _differing_lines(*(blobs.get(oid, b"") for oid in (change.old_blob, change.blob)))
        cases = len(_TEST_CASES.findall(after)) - len(_TEST_CASES.findall(before))
        is_gone = change.status in "DT" and change.mode in (_NOTHING, _LINK, _NESTED)
        if change.old_blob in moved and change.status == "D":
            continue
        balance += cases
        if is_gone and change.name in tests:
            deleted.append(change.name)
        elif cases < 0:
            fewer.append(f"{change.name} ({-cases} fewer)")
        is_moved = change.status == "A" and change.blob in moved
        if not is_moved and any(word in after for word in _SKIP_WORDS) and \
                len(_SKIPS.findall(after)) > len(_SKIPS.findall(before)):
            skipped.append(change.name)
    return [*deleted, *(fewer if balance < 0 else [])], skipped


def _differing_lines(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    """Return the lines that one of two texts has more often than the other."""
    if not before or not after:
        return before, after
    old, new = Counter(before.split(b"\n")), Counter(after.split(b"\n"))
    return b"\n".join((old - new).elements()), b"\n".join((new - old).elements())


# ---- unwanted files

_MODULE_PATH = re.compile(rb"(?m)^\s*path\s*=\s*\"?(.*?)\"?\s*$")


def _nested(changes: Sequence[ChangedPath], read: ReadBlobs, limits: GuardConfig) -> list[str]:
    """Return new gitlinks for which the diff adds no entry to `.gitmodules`."""
    links = [change.name for change in changes if change.mode == _NESTED and change.old_mode != _NESTED]
    if not links:
        return []
    modules = next((change.blob for change in changes if change.name == ".gitmodules"), "")
    known = {path.decode(errors="replace") for path in _MODULE_PATH.findall(read([modules]).get(modules, b""))} \
        if modules else set()
    return [name for name in links if name not in known and not matches(name, limits.allow)]


def _unwanted(changes: Sequence[ChangedPath], sizes: Mapping[str, int], limits: GuardConfig,
              moved: Collection[str]) -> tuple[list[str], list[str]]:
    """Return files with names of secrets, and files that are too large, too many or installed."""
    most = limits.max_file
    files = [ChangedFile(change.name, sizes.get(change.blob, 0), change.status == "A")
             for change in changes
             if change.status != "D" and change.mode not in (_NESTED, _LINK) and change.blob not in moved
             and (change.status == "A" or (most is not None and sizes.get(change.old_blob, 0) <= most
                                           < sizes.get(change.blob, 0)))]
    findings = classify(dict.fromkeys(files), limits)
    secrets = [finding.name for finding in findings if finding.kind is FindingKind.SECRET]
    return secrets, [describe_finding(finding, limits) for finding in findings
                     if finding.kind is not FindingKind.SECRET]


def describe_finding(finding: FileFinding, limits: GuardConfig) -> str:
    """Return a finding as text: the name and the problem."""
    match finding.kind:
        case FindingKind.SIZE:
            size, most = format_size(finding.size, "bytes"), format_size(limits.max_file or 0, "bytes")
            return f"{finding.name} ({size}, over max_file = {most})"
        case FindingKind.MANY:
            return f"{finding.count:,} new files, most in {finding.name} (over max_files = {limits.max_files:,})"
        case FindingKind.INSTALLED:
            return f"{finding.name} ({finding.count:,} installed file{'s' * (finding.count != 1)})"
        case FindingKind.SECRET:
            return f"{finding.name} (may hold secrets)"
        case FindingKind.DUMP:
            return f"{finding.name} (a core dump, {format_size(finding.size, 'bytes')})"
    return f"{finding.name} (refused by [guard])"


_KEYS: Sequence[tuple[str, tuple[bytes, ...], bytes]] = (
    ("a private key", (b"PRIVATE KEY",),
     rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s*(?:\\[nr])?[^-]{0,400}?[A-Za-z0-9+/=]{40,}"),
    ("an AWS access key", (b"AKIA", b"ASIA"), rb"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b"),
    ("a GitHub token", (b"ghp_", b"gho_", b"ghs_"), rb"\bgh[pos]_[A-Za-z0-9]{36,}\b"),
    ("a GitHub token", (b"github_pat_",), rb"\bgithub_pat_\w{60,}"),
    ("a GitLab token", (b"glpat-",), rb"\bglpat-[\w-]{20,}"),
    ("a Slack token", (b"xoxb-", b"xoxp-"), rb"\bxox[bp]-(?:[0-9A-Za-z]+-)+[0-9A-Za-z]{16,}"),
    ("a Slack webhook", (b"hooks.slack.com",), rb"hooks\.slack\.com/(?:services|workflows)/[\w+/]{40,}"),
    ("a Stripe key", (b"k_live_",), rb"\b[rs]k_live_[0-9a-zA-Z]{16,}"),
    ("a Google API key", (b"AIza",), rb"\bAIza[\w-]{35}\b"),
    ("an OpenAI key", (b"T3BlbkFJ",), rb"\bsk-[\w-]*T3BlbkFJ[\w-]{20,}"),
    ("an Anthropic key", (b"sk-ant-",), rb"\bsk-ant-[a-z0-9]+-[\w-]{40,}"),
    ("an npm token", (b"npm_",), rb"\bnpm_[A-Za-z0-9]{36}\b"),
    ("a PyPI token", (b"pypi-AgE",), rb"\bpypi-AgE[\w-]{50,}"),
    ("a SendGrid key", (b"SG.",), rb"\bSG\.[\w-]{16,32}\.[\w-]{39,50}"),
    ("a Hugging Face token", (b"hf_",), rb"\bhf_[A-Za-z]{34}\b"),
    ("a DigitalOcean token", (b"dop_v1_",), rb"\bdop_v1_[a-f0-9]{64}\b"),
    ("a Docker Hub token", (b"dckr_",), rb"\bdckr_(?:pat|oat)_[\w-]{27,}"),
    ("a Shopify token", (b"shpat_",), rb"\bshpat_[a-fA-F0-9]{32}\b"),
    ("a Linear key", (b"lin_api_",), rb"\blin_api_[A-Za-z0-9]{40}\b"),
    ("a Grafana token", (b"glsa_",), rb"\bglsa_[A-Za-z0-9]{32}_[a-f0-9]{8}\b"),
    ("a HashiCorp Vault token", (b"hvs.",), rb"\bhvs\.[\w-]{90,}"),
    ("a Telegram bot token", (b":AA",), rb"\b[0-9]{8,10}:AA[\w-]{33}\b"),
)
"""Kind of secret, words that every occurrence contains, and its pattern. The patterns are those that the providers
document, as in gitleaks (`config/gitleaks.toml`); no rule uses entropy or a name such as `password` alone."""
_FORMS = tuple((what, words, re.compile(form)) for what, words, form in _KEYS)
_MADE_UP = re.compile(rb"(?i)example|xxxx|placeholder|redacted|changeme|your[_-]|dummy|fake|sample|"
                      rb"012345|123456|abcdef|-garrison-")
"""Words that mark a non-secret, among them the placeholders for the user's keys behind the proxy."""
_MIN_LETTERS = 9
"""Minimum number of different characters of a real secret; the shortest have sixteen random characters."""


def find_secrets(content: bytes) -> dict[str, set[bytes]]:
    """Return the secrets in a text: kind → strings. Pure."""
    found: dict[str, set[bytes]] = {}
    for what, words, form in _FORMS:
        if any(word in content for word in words):
            for match in form.finditer(content):
                text = match[0]
                if len(set(text)) >= _MIN_LETTERS + len(words[0]) // 2 and not _MADE_UP.search(text):
                    found.setdefault(what, set()).add(text)
    return found


def _secrets(changes: Sequence[ChangedPath], history: Sequence[ChangedPath], read: ReadBlobs, limits: GuardConfig,
             moved: Collection[str]) -> list[str]:
    """Return the files to which any commit to land adds a secret."""
    added = {change.blob: change for change in (*history, *changes)
             if change.status != "D" and change.mode not in (_NESTED, _NOTHING) and change.blob not in moved
             and not matches(change.name, limits.allow)}
    blobs = read(added)
    joined = b"\n".join(blobs.values())  # one pass over all: few diffs contain a word of the table
    if not any(word in joined for _what, words, _form in _FORMS for word in words):
        return []
    found = {oid: secrets for oid, data in blobs.items() if (secrets := find_secrets(data))}
    if not found:
        return []
    before = b"\n".join(read({change.old_blob for change in changes if change.old_blob.strip("0")}).values())
    lines = []
    for oid, secrets in found.items():
        new = [what for what, texts in secrets.items() if any(text not in before for text in texts)]
        if new:
            lines.append(f"{added[oid].name} ({', '.join(new)})")
    return lines


def _reverts(changes: Sequence[ChangedPath], landed: Sequence[Landed]) -> list[str]:
    """Return earlier landings that are undone: each of their changed files is back at its previous content."""
    now = {change.name: change for change in changes}
    found = []
    for each in landed:
        undone = [change for change in each.changes if (mine := now.get(change.name)) is not None
                  and (mine.blob, mine.mode) == (change.old_blob, change.old_mode)
                  and (change.blob, change.mode) != (change.old_blob, change.old_mode)]
        is_whole = len(undone) == len(each.changes) > 0
        if is_whole or any(change.status == "M" for change in undone):
            found.append(f"{each.commit[:10]} in {', '.join(change.name for change in undone[:SHOWN])}")
    return found
