"""Neutral settings: which keys of git's configuration make git run a program or follow a file, and what replaces them.

garrison's own git works in repositories that agents write to. So no program named in their configuration may run,
unless it was named there when the user launched the run.

- `ALWAYS` are keys with one name: garrison does not need what they configure, so every call overrides them.
- `RULES` are the keys that garrison needs if the user set them (filters such as LFS, merge drivers, a proxy's command),
  or whose names the configuration chooses. The last trusted value counts; without one, a value that runs nothing.
- `NO_DRIVERS` are options of commands that would run `diff.external`, `diff.NAME.command` or `diff.NAME.textconv`.

Aliases cannot replace a command of git, and garrison calls no command that reads `difftool`, `mergetool`, `guitool`,
`browser`, `man`, `sendemail`, `tar.NAME.command`, `trailer.NAME.command`, `submodule.NAME.update`,
`gc.recentObjectsHook` or a `gpg` program; git takes `trace2.*` and `uploadpack.packObjectsHook` from the user's own
files only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from enum import StrEnum
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from garrison.system.command import run
from garrison.system.stamps import file_stamp
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

class KeyGroup(StrEnum):
    """What a configuration key makes git do."""

    HOOKS = "hooks"
    FSMONITOR = "fsmonitor"
    FILTERS = "filters"
    DIFF = "diff programs"
    MERGE = "merge drivers"
    TERMINAL = "pagers, editors and prompts"
    SIGNATURES = "signature programs"
    TRANSPORT = "transports"
    CREDENTIALS = "credential helpers"
    FILES = "files of patterns"
    INCLUDES = "included files"
    WORKTREE = "another worktree"
    HISTORY = "replaced history"


class Always(NamedTuple):
    """A setting of every call."""

    group: KeyGroup
    key: str
    value: str


class KeyRule(NamedTuple):
    """Keys (as git prints them) for which only trusted values count; `neutral` replaces others."""

    group: KeyGroup
    key: re.Pattern[str]
    neutral: str = ""


class Setting(NamedTuple):
    """One line of the configuration: its scope as git names it, its file, key and value."""

    scope: str
    origin: str
    key: str
    value: str
    has_value: bool = True
    """False for a key without a value, which git takes as true."""


REPOSITORY_SCOPES = frozenset({"local", "worktree"})
"""Scopes of files in the repository."""
INCLUDE = re.compile(r"include\.path|includeif\..+\.path")
"""Keys that include another file of settings. Its settings are checked like all others."""

ALWAYS = (
    Always(KeyGroup.HOOKS, "core.hooksPath", os.devnull),  # no one can put a hook below it, not even the same user
    Always(KeyGroup.FSMONITOR, "core.fsmonitor", "false"),
    Always(KeyGroup.TERMINAL, "core.pager", "cat"),
    Always(KeyGroup.TERMINAL, "core.editor", "true"),
    Always(KeyGroup.TERMINAL, "sequence.editor", "true"),
    Always(KeyGroup.SIGNATURES, "commit.gpgSign", "false"),
    Always(KeyGroup.SIGNATURES, "tag.gpgSign", "false"),
    Always(KeyGroup.SIGNATURES, "push.gpgSign", "false"),
    Always(KeyGroup.SIGNATURES, "log.showSignature", "false"),
    Always(KeyGroup.SIGNATURES, "merge.verifySignatures", "false"),
    Always(KeyGroup.TRANSPORT, "protocol.ext.allow", "never"),
    Always(KeyGroup.TRANSPORT, "core.alternateRefsCommand", "true"),
    Always(KeyGroup.FILES, "init.templateDir", ""),
)
"""Settings of every call that keep programs from running. These and the calls' own options win over every file."""
_MERGE_AS_TEXT = "git merge-file -q --marker-size=%L %A %O %B || exit 1"
"""Merge driver that does what git does by default."""
BEHAVIOUR = (("gc.auto", "0"), ("maintenance.auto", "false"), ("core.safecrlf", "false"),
             ("submodule.recurse", "false"), ("merge.union.driver", _MERGE_AS_TEXT))
"""Settings of every call that keep git from disturbing working agents, and from union merges of its own: it would
follow the attributes of a checkout, and also unite ordered lists (`merge.union`)."""
HOOKS_KEY = "core.hooksPath"

RULES = (
    KeyRule(KeyGroup.FILTERS, re.compile(r"filter\..+\.(clean|smudge|process)"), ""),
    KeyRule(KeyGroup.FILTERS, re.compile(r"filter\..+\.required"), "false"),
    KeyRule(KeyGroup.MERGE, re.compile(r"merge\..+\.driver"), _MERGE_AS_TEXT),
    KeyRule(KeyGroup.TERMINAL, re.compile(r"core\.askpass"), ""),
    KeyRule(KeyGroup.TRANSPORT, re.compile(r"core\.sshcommand"), "ssh"),
    KeyRule(KeyGroup.FILES, re.compile(r"core\.attributesfile"), ""),
    KeyRule(KeyGroup.FILES, re.compile(r"core\.excludesfile"), ""),
)
_HOOK = re.compile(r"(hook\..+)\.(?:command|event|enabled)")
"""Hooks that newer versions of git take from the configuration."""
CREDENTIAL_HELPER = re.compile(r"credential\.(.+\.)?helper")
"""Helpers accumulate, so all are reset, and the trusted ones added again."""
NOT_NEUTRAL = re.compile(r"remote\..+\.(uploadpack|receivepack|vcs)|core\.gitproxy")
"""Transport programs for which git takes the first configured value: no later setting replaces them."""
NO_TRANSPORT = tuple((f"protocol.{name}allow", "never") for name in ("", "file.", "git.", "http.", "https.", "ssh."))
"""Settings that keep git off the network if such a program is not trusted."""
NETWORK = frozenset({"clone", "fetch", "ls-remote", "push"})
"""Commands that need a transport."""
WATCHED = (
    *(KeyRule(each.group, re.compile(re.escape(each.key.lower())), each.value) for each in ALWAYS),
    *RULES,
    KeyRule(KeyGroup.HOOKS, re.compile(r"hook\..+\.(command|event|enabled)")),
    KeyRule(KeyGroup.CREDENTIALS, re.compile(r"credential\..+")),
    KeyRule(KeyGroup.DIFF, re.compile(r"diff\.external|diff\..+\.(command|textconv)|interactive\.difffilter")),
    KeyRule(KeyGroup.SIGNATURES, re.compile(r"gpg\..*(program|defaultkeycommand)")),
    KeyRule(KeyGroup.TERMINAL, re.compile(r"alias\..+|pager\..+")),
    KeyRule(KeyGroup.TRANSPORT,
            re.compile(r"remote\..+\.(url|pushurl|proxy)|url\..+\.(pushinsteadof|insteadof)|http\..+|"
                                           r"protocol\..+|uploadpack\.packobjectshook|submodule\..+\.update")),
    KeyRule(KeyGroup.INCLUDES, INCLUDE),
    KeyRule(KeyGroup.TRANSPORT, NOT_NEUTRAL),
    KeyRule(KeyGroup.WORKTREE, re.compile(r"core\.worktree")),
)
"""Keys of a repository whose change during a run is reported: they affect the user's own git, if not garrison's."""

NO_DRIVERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("diff", "diff-index", "diff-files"), ("--no-ext-diff", "--no-textconv")),
    **dict.fromkeys(("show", "log", "diff-tree"), ("--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty"))}
"""Options after the name of a command. Commands that compare commits also ignore the `.gitmodules` of a checkout: it
could hide changes of submodules, and git dies on a bad one."""
VARIABLES: Mapping[str, str] = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat", "GIT_EDITOR": "true",
    "GIT_NO_REPLACE_OBJECTS": "1", "GIT_GRAFT_FILE": os.devnull,
}
"""Variables of every call. With replaced and grafted commits, git would show and merge a different history from what
lands."""


def find_group(key: str) -> KeyGroup | None:
    """Return the group of a key, as git prints it, whose change during a run is reported; None for all others."""
    return next((rule.group for rule in WATCHED if rule.key.fullmatch(key)), None)


def neutralise(settings: Sequence[Setting], trusted: Iterable[tuple[str, str]], *, hooks: bool = False,
               confined: Mapping[tuple[str, str], str] = MappingProxyType({})) -> list[tuple[str, str]]:
    """Return the settings to add to `settings` so that only programs among `trusted` (key, value) run.

    Only configured values are overridden, and only if they would differ.

    Args:
        hooks: configured hooks may run.
        confined: values that replace trusted ones.
    """
    accepted = set(trusted)
    last: dict[str, str] = {}
    kept: dict[str, str] = {}
    for setting in settings:
        if any(rule.key.fullmatch(setting.key) for rule in RULES):
            last[setting.key] = setting.value
            if (setting.key, setting.value) in accepted:
                kept[setting.key] = confined.get((setting.key, setting.value), setting.value)
    overrides = [(key, kept.get(key, rule.neutral or "")) for key, value in last.items()
                 for rule in RULES if rule.key.fullmatch(key) and kept.get(key) != value]
    stopped = {key.rpartition(".")[0] for key, _ in overrides if key.startswith("filter.") and key not in kept}
    overrides += [(f"{name}.required", "false") for name in sorted(stopped)
                  if not any(f"{name}.{program}" in kept for program in ("clean", "smudge", "process"))]
    configured = () if hooks else dict.fromkeys(match[1] for each in settings if (match := _HOOK.fullmatch(each.key)))
    overrides += [setting for name in configured for setting in ((f"{name}.enabled", "false"), (f"{name}.event", ""))]
    return [*overrides, *_reset_helpers(settings, accepted),
            *(NO_TRANSPORT if find_not_neutral(settings, accepted) else ())]


def find_not_neutral(settings: Sequence[Setting], trusted: Iterable[tuple[str, str]]) -> Setting | None:
    accepted = set(trusted)
    return next((each for each in settings
                 if NOT_NEUTRAL.fullmatch(each.key) and (each.key, each.value) not in accepted), None)


NO_LFS = "https://lfs.invalid"
"""Address for git-lfs if the user has none: no name server resolves it."""


def follows_lfsconfig(settings: Sequence[Setting]) -> bool:
    keys = {setting.key for setting in settings}
    return "lfs.url" not in keys and not keys.isdisjoint(("filter.lfs.process", "filter.lfs.smudge"))


def lfs_address_of_remote(settings: Sequence[Setting]) -> str:
    """Return the address that git-lfs would derive from the remote, `NO_LFS` without one."""
    values = {setting.key: setting.value for setting in settings}
    remotes = [key.removesuffix(".url") for key in values if key.startswith("remote.") and key.endswith(".url")]
    remote = f"remote.{values['remote.lfsdefault']}" if "remote.lfsdefault" in values else \
        "remote.origin" if "remote.origin" in remotes or len(remotes) != 1 else remotes[0]
    if stated := values.get(f"{remote}.lfsurl"):
        return stated
    url = values.get(f"{remote}.url", NO_LFS).rstrip("/")
    if url == NO_LFS or not url.startswith(("http://", "https://")):
        return url
    return f"{url}/info/lfs" if url.endswith(".git") else f"{url}.git/info/lfs"


def _reset_helpers(settings: Sequence[Setting], accepted: set[tuple[str, str]]) -> list[tuple[str, str]]:
    helpers = [(each.key, each.value) for each in settings if CREDENTIAL_HELPER.fullmatch(each.key)]
    if all(helper in accepted for helper in helpers):
        return []
    return [("credential.helper", ""), *(helper for helper in helpers if helper in accepted)]


ONTO_ANOTHER = "git " + " ".join(f"-c {key}={value}" for key, value in (
    ("core.hooksPath", os.devnull), ("core.fsmonitor", "false"), ("core.alternateRefsCommand", "true"),
    ("receive.autogc", "false"), ("receive.procReceiveRefs", ""))) + " receive-pack"
"""Program that receives a push in another local repository: git does not pass our settings to it."""


def to_variables(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return environment variables with settings that override every file; options `-c` of a call override them."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        variables[f"GIT_CONFIG_KEY_{number}"], variables[f"GIT_CONFIG_VALUE_{number}"] = key, value
    return variables


def exact_directories(settings: Sequence[Setting], directories: Sequence[str]) -> list[tuple[str, str]]:
    """Return settings that trust these `directories` instead of every one, where the user's `safe.directory` is `*`."""
    named = [setting.value for setting in settings if setting.key == "safe.directory"]
    if "*" not in named:
        return []
    return [("safe.directory", ""), *(("safe.directory", name) for name in [*named, *directories] if name not in "*")]


# ---- Trusted settings: programs in git's configuration when the user launched a run on a repository.
#
# `<home>/git/<key of the common directory>.json` has one list of (key, value) for a repository. Each launch rewrites
# it, without what appeared while agents were working (`suspects`), until that is gone or the user accepts it; and with
# the commands that run some of these programs in a sandbox (`confined`).


Pair = tuple[str, str]
_trusted: dict[str, tuple[tuple[int, ...], Trusted]] = {}


class Trusted(NamedTuple):
    """Settings that may run, and the commands that replace some of their values."""

    settings: frozenset[Pair]
    confined: Mapping[Pair, str]


def trust_path(home: Path, common: Path) -> Path:
    return home / "git" / f"{hashlib.sha256(os.fsencode(common)).hexdigest()[:16]}.json"


def read_trusted(home: Path, common: Path) -> Trusted | None:
    """Return the trusted settings of a repository, None if no launch has recorded them."""
    path = str(trust_path(home, common))
    if (stamp := file_stamp(path)) is None:
        return None
    if path not in _trusted or _trusted[path][0] != stamp:
        trusted, _, confined = _load_trusted(path)
        _trusted[path] = stamp, Trusted(frozenset(trusted), confined)
    return _trusted[path][1]


def read_suspects(home: Path, common: Path) -> frozenset[Pair]:
    """Return what appeared in a repository while agents were working and the user has not accepted."""
    return frozenset(_load_trusted(str(trust_path(home, common)))[1])


def trust_text(trusted: Iterable[Pair], suspects: Iterable[Pair], confined: Mapping[Pair, str]) -> str:
    body = {"trusted": sorted(trusted), "suspects": sorted(suspects),
            "confined": [[*pair, command] for pair, command in sorted(confined.items())]}
    return json.dumps(body, indent=1) + "\n"


def _load_trusted(path: str) -> tuple[list[Pair], list[Pair], dict[Pair, str]]:
    """Return the lists in the file; empty for a damaged one, which must not make a program run."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123  # a text, as above
            body = json.load(file)
        confined = {(key, value): command for key, value, command in body.get("confined", [])}
        return ([(key, value) for key, value in body["trusted"]], [(key, value) for key, value in body["suspects"]],
                confined)
    except (OSError, ValueError, KeyError, TypeError):
        return [], [], {}


# ---- Configuration of a repository as git reads it, and garrison's overrides.
#
# The files are read again only when one of them has changed, so that a git call costs only a few `stat` more. Settings
# below a condition (`includeIf`) count whether or not the condition is true here.


_MAX_INCLUDED = 50
"""Most files of settings that are read below conditions; more is refused."""
_SECONDS = 20.0


class Unneutral(Exception):
    """A configuration that cannot be neutralised; the text names key and file."""


class GitDirs(NamedTuple):
    """Git directory of one worktree, and the common one of the repository."""

    own: Path
    common: Path


class Configuration(Value):
    """Settings of a repository, in the order in which git reads them, with their files."""

    settings: tuple[Setting, ...] = ()
    files: tuple[Path, ...] = ()
    in_force: tuple[Setting, ...] = ()
    """The part of `settings` that applies here: without those below a false condition."""


# ------------------------------------------------------------------------------------------------------ where it is


def find_git_dirs(path: Path) -> GitDirs | None:
    """Return the git directories that git would use in `path`, from the files only; None if there are none."""
    for folder in chain((path,), path.parents):
        try:
            kind = stat.S_IFMT(_mode(f"{folder}/.git"))
            if kind == stat.S_IFDIR:
                return _git_dirs(folder / ".git")
            if kind == stat.S_IFREG:
                target = (folder / ".git").read_text(errors="surrogateescape")
                return _git_dirs(folder / target.removeprefix("gitdir: ").rstrip("\n"))
            if stat.S_ISREG(_mode(f"{folder}/HEAD")) and (stat.S_ISREG(_mode(f"{folder}/commondir")) or all(
                    stat.S_ISDIR(_mode(f"{folder}/{name}")) for name in ("objects", "refs"))):
                return _git_dirs(folder)
        except OSError:
            return None
    return None


def _mode(path: str) -> int:
    """Return type and mode of a file, 0 if it is not there."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116  # for each git call
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            raise
        return 0


def _git_dirs(own: Path) -> GitDirs:
    own = own.resolve()
    try:
        common = (own / "commondir").read_text(errors="surrogateescape").rstrip("\n")
        return GitDirs(own, own.parent.parent if common == "../.." else (own / common).resolve())
    except (OSError, ValueError):  # ValueError: a damaged file contains zeros
        return GitDirs(own, own)


# -------------------------------------------------------------------------------------------------------- reading it


_cached: dict[GitDirs, tuple[object, Configuration]] = {}


def read_configuration(dirs: GitDirs, environ: Mapping[str, str]) -> Configuration:
    """Return git's configuration with these directories; empty if git cannot read it."""
    known = _cached.get(dirs)
    if known is not None and known[0] == _fingerprint(dirs, known[1].files, environ):
        return known[1]
    configuration = _find_same(dirs, environ) or _read_all(dirs, environ)
    # stamped before reading: the next call notices a change in between
    _cached[dirs] = _fingerprint(dirs, configuration.files, environ), configuration
    return configuration


def _find_same(dirs: GitDirs, environ: Mapping[str, str]) -> Configuration | None:
    """Return the configuration of the repository itself, as read before, if a linked worktree certainly has the same:
    it has no settings of its own, and no condition depends on its place or branch."""
    known = _cached.get(GitDirs(dirs.common, dirs.common))
    if known is None or known[0] != _fingerprint(GitDirs(dirs.common, dirs.common), known[1].files, environ) \
            or any(each.key.startswith("includeif.") for each in known[1].settings) \
            or any(os.path.lexists(folder / "config.worktree") for folder in dirs):
        return None
    return known[1]


def _fingerprint(dirs: GitDirs, files: Sequence[Path], environ: Mapping[str, str]) -> object:
    own = (f"{dirs.common}/config", f"{dirs.common}/config.worktree", f"{dirs.own}/config.worktree")
    users = _user_files(environ.get("HOME", ""), environ.get("XDG_CONFIG_HOME", ""))
    return [*map(file_stamp, (*own, *users)), *map(file_stamp, files)]


@cache
def _user_files(home: str, config_home: str) -> tuple[str, ...]:
    return (f"{home}/.gitconfig", f"{config_home or home + '/.config'}/git/config", "/etc/gitconfig")


def _read_all(dirs: GitDirs, environ: Mapping[str, str]) -> Configuration:
    where = {"GIT_DIR": str(dirs.own), "GIT_COMMON_DIR": str(dirs.common)}
    listed = _list(["--show-scope"], dirs.own, {**environ, **where})
    fields = listed.split("\0")
    settings = [_setting(scope, origin, line, dirs.own)
                for scope, origin, line in zip(fields[::3], fields[1::3], fields[2::3], strict=False)]
    included: list[Setting] = []
    todo = [path for each in settings if (path := _included_file(each)) is not None]
    seen = {each.origin for each in settings}
    while todo:
        path = todo.pop()
        if str(path) in seen:
            continue
        seen.add(str(path))
        if len(seen) > _MAX_INCLUDED:
            raise Unneutral(f"{dirs.common / 'config'} includes more than {_MAX_INCLUDED} files through include.path")
        if path.is_file():
            fields = _list(["--no-includes", "--file", str(path)], dirs.own, environ).split("\0")
            more = [_setting("local", origin, line, dirs.own)
                    for origin, line in zip(fields[::2], fields[1::2], strict=False)]
            included += more
            todo += [inner for each in more if (inner := _included_file(each)) is not None]
    files = tuple(sorted(Path(name) for name in seen if name))
    return Configuration((*settings, *included), files, tuple(settings))


def _list(options: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> str:
    """Return `git config --list`, empty if git cannot read a file; the next git call will report it."""
    done = run(["git", "config", *options, "--list", "-z", "--show-origin"], _SECONDS, cwd=cwd, env=environ,
               errors="surrogateescape")
    return done.out if done.ok else ""


def _setting(scope: str, origin: str, line: str, cwd: Path) -> Setting:
    key, separator, value = line.partition("\n")
    name = origin.removeprefix("file:")
    return Setting(scope, str(cwd / name) if origin.startswith("file:") else "", key, value, bool(separator))


def _included_file(setting: Setting) -> Path | None:
    """Return the file that a setting of the repository includes; None if it includes none."""
    if setting.scope not in REPOSITORY_SCOPES or not INCLUDE.fullmatch(setting.key):
        return None
    return Path(setting.origin).parent / Path(setting.value).expanduser()


# -------------------------------------------------------------------------------------------------- overriding it


def neutral_variables(path: Path, common: Path | None, home: Path | None, environ: Mapping[str, str], *,
                      outer: Path | None = None, network: bool = False, hooks: bool = False) -> Mapping[str, str]:
    """Return the variables that make a git call in `path` neutral; Unneutral if that is impossible.

    Args:
        common: the repository that `path` must belong to; None: unknown.
        home: the home whose launches say what is trusted in the repository; None: nothing is.
        outer: for a repository inside a worktree, the common directory whose launches count.
        network: the call needs a transport.
        hooks: the user's hooks may run.
    """
    always = [*BEHAVIOUR, *((each.key, each.value) for each in ALWAYS if not (hooks and each.key == HOOKS_KEY))]
    dirs = find_git_dirs(path)
    if dirs is None:
        return to_variables(always)
    if common is not None and common != dirs.common and (dirs.own / "HEAD").exists():
        raise Unneutral(f"{path} belongs to another repository, {dirs.common}, not to {common}: its .git was rewritten")
    configuration = read_configuration(dirs, environ)
    settings = configuration.settings
    _check_worktree(settings, dirs)
    lfs = [("lfs.url", _lfs_address(settings, dirs, environ))] if follows_lfsconfig(settings) else []
    recorded = read_trusted(home, outer or dirs.common) if home is not None else None
    asked = (str(path), home, outer, network, hooks, *lfs)
    if (known := _variables.get(asked)) is not None and known[0] is configuration and known[1] is recorded:
        return known[2]
    accepted = [(each.key, each.value) for each in settings if each.scope not in REPOSITORY_SCOPES]
    if recorded is not None:
        accepted = list(recorded.settings)
    elif home is not None and outer is None:  # no launch yet: the user is about to launch, or uses only the queue
        accepted = [(each.key, each.value) for each in settings]
    if network and (found := find_not_neutral(settings, accepted)) is not None:
        raise Unneutral(f"{found.key} in {found.origin} names the program {found.value}, which was added after the "
                        f"run was launched; remove it: git config --file {found.origin} --unset-all {found.key}")
    directories = (str(path), str(dirs.common), str(dirs.common.parent))
    variables = to_variables([*always, *neutralise(settings, accepted, hooks=hooks,
                                                   confined=recorded.confined if recorded is not None else {}),
                              *lfs, *exact_directories(settings, directories)])
    if len(_variables) >= _MAX_CACHED:
        _variables.clear()
    _variables[asked] = configuration, recorded, variables
    return variables


_MAX_CACHED = 64
_variables: dict[tuple[object, ...], tuple[Configuration, Trusted | None, dict[str, str]]] = {}
"""Arguments of `neutral_variables` → configuration and trusted settings that they were derived from, and the result."""
_lfs_addresses: dict[Path, tuple[object, str]] = {}


def _lfs_address(settings: Sequence[Setting], dirs: GitDirs, environ: Mapping[str, str]) -> str:
    """Return the address for git-lfs, whatever a branch's `.lfsconfig` names: the one of the user's checkout, or of the
    remote."""
    file = dirs.common.parent / ".lfsconfig" if dirs.common.name == ".git" else None
    if file is None or not (stamp := file_stamp(file)):
        return lfs_address_of_remote(settings)
    known = _lfs_addresses.get(file)
    if known is None or known[0] != stamp:
        listed = _list(["--no-includes", "--file", str(file)], dirs.own, environ).split("\0")[1::2]
        stated = [line.partition("\n")[2] for line in listed if line.startswith("lfs.url\n")]
        known = _lfs_addresses[file] = stamp, next(reversed(stated), "")
    return known[1] or lfs_address_of_remote(settings)


def _check_worktree(settings: Sequence[Setting], dirs: GitDirs) -> None:
    """Raise Unneutral if the repository makes git work on files outside its own checkout, which no option overrides."""
    for setting in settings:
        if setting.key != "core.worktree" or setting.scope not in REPOSITORY_SCOPES:
            continue
        found = find_git_dirs((dirs.own / setting.value).resolve())
        if found is None or found.common != dirs.common:
            raise Unneutral(f"core.worktree in {setting.origin} points outside the repository, to {setting.value}; "
                            f"remove it: git config --file {setting.origin} --unset core.worktree")
