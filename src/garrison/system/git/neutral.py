"""Neutral settings: which keys of git's configuration make git run a program or follow a file, and what replaces them.

garrison's own git works in repositories that agents write to. So no program that is named there may run in it, unless
it was named there when a person launched the run (`trust.py`). Pure; `configuration.py` reads what is configured.

- `ALWAYS` are keys with one name: what they configure is of no use to garrison, so every call overrides them.
- `RULES` are the keys that garrison needs if the user set them (filters such as LFS, merge drivers, a proxy's command),
  or whose names the configuration chooses. The last trusted value counts; without one, a value that runs nothing.
- `NO_DRIVERS` are options of commands that would run `diff.external`, `diff.NAME.command` or `diff.NAME.textconv`.

Aliases cannot replace a command of git, and garrison calls no command that reads `difftool`, `mergetool`, `guitool`,
`browser`, `man`, `sendemail`, `tar.NAME.command`, `trailer.NAME.command`, `submodule.NAME.update`,
`gc.recentObjectsHook` or a `gpg` program; git takes `trace2.*` and `uploadpack.packObjectsHook` from the user's own
files only.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Group(StrEnum):
    """Kind of thing that a key of the configuration makes git do."""

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

    group: Group
    key: str
    value: str


class Rule(NamedTuple):
    """Keys (as git prints them) of which only trusted values count; `neutral` replaces any other."""

    group: Group
    key: re.Pattern[str]
    neutral: str = ""


class Setting(NamedTuple):
    """One line of the configuration: its scope as git names it, the file it is in, key and value."""

    scope: str
    origin: str
    key: str
    value: str


REPOSITORY_SCOPES = frozenset({"local", "worktree"})
"""Scopes of files that lie in the repository."""
INCLUDE = re.compile(r"include\.path|includeif\..+\.path")
"""Keys that name another file of settings. What it sets is judged like all the rest."""

ALWAYS = (
    Always(Group.HOOKS, "core.hooksPath", os.devnull),  # nobody can put a hook below it, not even the same user
    Always(Group.FSMONITOR, "core.fsmonitor", "false"),
    Always(Group.TERMINAL, "core.pager", "cat"),
    Always(Group.TERMINAL, "core.editor", "true"),
    Always(Group.TERMINAL, "sequence.editor", "true"),
    Always(Group.SIGNATURES, "commit.gpgSign", "false"),
    Always(Group.SIGNATURES, "tag.gpgSign", "false"),
    Always(Group.SIGNATURES, "push.gpgSign", "false"),
    Always(Group.SIGNATURES, "log.showSignature", "false"),
    Always(Group.SIGNATURES, "merge.verifySignatures", "false"),
    Always(Group.TRANSPORT, "protocol.ext.allow", "never"),
    Always(Group.TRANSPORT, "core.alternateRefsCommand", "true"),
    Always(Group.FILES, "init.templateDir", ""),
)
"""Settings of every call that keep programs from running. These and the calls' own options win over every file."""
_MERGE_AS_TEXT = "git merge-file -q --marker-size=%L %A %O %B || exit 1"
"""Merge driver that does what git does for a file without one."""
BEHAVIOUR = (("gc.auto", "0"), ("maintenance.auto", "false"), ("core.safecrlf", "false"),
             ("submodule.recurse", "false"), ("merge.union.driver", _MERGE_AS_TEXT))
"""Settings of every call that keep git from disturbing agents at work, and from uniting by itself: it would follow the
attributes of a checkout, and unite ordered lists, too (`merge.union`)."""
HOOKS_KEY = "core.hooksPath"

RULES = (
    Rule(Group.FILTERS, re.compile(r"filter\..+\.(clean|smudge|process)"), ""),
    Rule(Group.FILTERS, re.compile(r"filter\..+\.required"), "false"),
    Rule(Group.MERGE, re.compile(r"merge\..+\.driver"), _MERGE_AS_TEXT),
    Rule(Group.TERMINAL, re.compile(r"core\.askpass"), ""),
    Rule(Group.TRANSPORT, re.compile(r"core\.sshcommand"), "ssh"),
    Rule(Group.FILES, re.compile(r"core\.attributesfile"), ""),
    Rule(Group.FILES, re.compile(r"core\.excludesfile"), ""),
)
_HOOK = re.compile(r"(hook\..+)\.(?:command|event|enabled)")
"""Hooks that newer versions of git take from the configuration."""
CREDENTIAL_HELPER = re.compile(r"credential\.(.+\.)?helper")
"""Helpers add up, so all are reset, and the trusted ones named again."""
NOT_NEUTRAL = re.compile(r"remote\..+\.(uploadpack|receivepack|vcs)|core\.gitproxy")
"""Programs of transports of which git takes the first one that is configured: nothing on top replaces them."""
NO_TRANSPORT = tuple((f"protocol.{name}allow", "never") for name in ("", "file.", "git.", "http.", "https.", "ssh."))
"""Settings that keep git from the network, where such a program is not trusted."""
NETWORK = frozenset({"clone", "fetch", "ls-remote", "push"})
"""Commands that need a transport."""
WATCHED = (
    *(Rule(each.group, re.compile(re.escape(each.key.lower())), each.value) for each in ALWAYS),
    *RULES,
    Rule(Group.HOOKS, re.compile(r"hook\..+\.(command|event|enabled)")),
    Rule(Group.CREDENTIALS, re.compile(r"credential\..+")),
    Rule(Group.DIFF, re.compile(r"diff\.external|diff\..+\.(command|textconv)|interactive\.difffilter")),
    Rule(Group.SIGNATURES, re.compile(r"gpg\..*(program|defaultkeycommand)")),
    Rule(Group.TERMINAL, re.compile(r"alias\..+|pager\..+")),
    Rule(Group.TRANSPORT, re.compile(r"remote\..+\.(url|pushurl|proxy)|url\..+\.(pushinsteadof|insteadof)|http\..+|"
                                     r"protocol\..+|uploadpack\.packobjectshook|submodule\..+\.update")),
    Rule(Group.INCLUDES, INCLUDE),
    Rule(Group.TRANSPORT, NOT_NEUTRAL),
    Rule(Group.WORKTREE, re.compile(r"core\.worktree")),
)
"""Keys of a repository whose change during a run is told: they act on the user's own git, if not on garrison's."""

NO_DRIVERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("diff", "diff-index", "diff-files"), ("--no-ext-diff", "--no-textconv")),
    **dict.fromkeys(("show", "log", "diff-tree"), ("--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty"))}
"""Options after the name of a command. Those that compare commits read no `.gitmodules` of a checkout either: it could
hide changes of submodules, and git dies of a bad one."""
VARIABLES: Mapping[str, str] = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat", "GIT_EDITOR": "true",
    "GIT_NO_REPLACE_OBJECTS": "1", "GIT_GRAFT_FILE": os.devnull,
}
"""Variables of every call. Replaced and grafted commits would show and merge another history than what lands."""


def find_group(key: str) -> Group | None:
    """Return the group of a key, as git prints it, whose change during a run is told; None for all others."""
    return next((rule.group for rule in WATCHED if rule.key.fullmatch(key)), None)


def neutralise(settings: Sequence[Setting], trusted: Iterable[tuple[str, str]], *, hooks: bool = False,
               confined: Mapping[tuple[str, str], str] = MappingProxyType({})) -> list[tuple[str, str]]:
    """Return the settings to put on top of `settings`, so that only programs among `trusted` (key, value) run.

    Only what is configured is overridden, and only what would not be so anyway.

    Args:
        hooks: those configured may run.
        confined: values that take the place of trusted ones.
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
"""Address that git-lfs is given where the user has none: no name server knows it."""


def follows_lfsconfig(settings: Sequence[Setting]) -> bool:
    keys = {setting.key for setting in settings}
    return "lfs.url" not in keys and not keys.isdisjoint(("filter.lfs.process", "filter.lfs.smudge"))


def lfs_address_of_remote(settings: Sequence[Setting]) -> str:
    """Return the address at which git-lfs looks by itself for what belongs to the remote, `NO_LFS` without one."""
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
"""Program that takes a push into another local repository: git passes it no settings of ours."""


def to_variables(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return environment variables that put settings on top of every file; options `-c` of a call win over them."""
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
