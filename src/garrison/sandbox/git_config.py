"""Configuration of a private git view: what of the user's settings git needs inside, without secrets. Pure.

Settings of the user's system, home and repository become one file. Kept are the sections of git itself that decide how
it works on files, commits and branches, with filters and drivers of diff and merge. Left out are credentials, whatever
names a program that would run unasked (fsmonitor, askpass, pagers, editors, ssh commands), signing, includes (their
content is kept in their place), and addresses to push to.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NO_PUSH = "pushing-is-off-here--garrison-lands-this-branch"
"""Address to push to, so that `git push` ends with a message that says why."""
FORCED = (("gc.auto", "0"), ("maintenance.auto", "false"), ("commit.gpgsign", "false"), ("tag.gpgsign", "false"))
"""Settings of every view: nothing in the background, and no signing without the user's key."""

_SECTIONS = frozenset((
    "add", "advice", "am", "apply", "blame", "branch", "checkout", "clean", "color", "column", "commit",
    "core", "diff", "extensions", "fetch", "filter", "format", "fsck", "gc", "grep", "help", "i18n", "index",
    "init", "interactive", "lfs", "log", "mailinfo", "merge", "notes", "pack", "pull", "push", "rebase", "remote",
    "repack", "rerere", "reset", "revert", "sequence", "showbranch", "sparse", "splitindex", "stash", "status",
    "submodule", "tag", "trailer", "url", "user", "versionsort", "worktree"))
_CORE = frozenset((
    "repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase", "precomposeunicode",
    "symlinks", "autocrlf", "eol", "safecrlf", "checkroundtripencoding", "whitespace", "quotepath",
    "sparsecheckout", "sparsecheckoutcone", "bigfilethreshold", "compression", "loosecompression", "abbrev",
    "commentchar", "checkstat", "trustctime", "untrackedcache", "splitindex", "sharedrepository", "preloadindex",
    "multipackindex", "commitgraph", "protecthfs", "protectntfs", "notesref", "longpaths", "warnambiguousrefs",
    "maxtreedepth"))
_REMOTE = frozenset(("url", "fetch", "tagopt", "prune", "prunetags", "promisor", "partialclonefilter",
                     "skipdefaultupdate", "skipfetchall"))
_USER = frozenset(("name", "email", "useconfigonly"))
_BRANCH = frozenset(("remote", "merge", "rebase", "mergeoptions", "description"))
_DENIED = frozenset(("commit.template", "diff.external", "init.templatedir", "interactive.difffilter", "lfs.extension",
                     "push.gpgsign", "sequence.editor", "tag.forcesignannotated", "user.signingkey",
                     "extensions.refstorage", "submodule.recurse", "gc.auto", "commit.gpgsign", "tag.gpgsign"))
_CREDENTIALS = re.compile(r"\b((?:https?|ftps?)://)[^/\s]+@|(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)[^/\s@:]*:[^/\s]*@",
                          re.IGNORECASE)
"""What stands before the host: up to the last `@`, for a password may hold one."""
_QUERY = re.compile(r"(://[^\s?#]*)[?#]\S*")
_TOKEN = re.compile(r"[?&][a-z_]*(?:token|secret|password|key)=", re.IGNORECASE)
_SECRET_NAMES = ("extraheader", "smtppass", "password", "token", "secret")
"""Names of settings that hold a secret in any section."""


class Entry(NamedTuple):
    """One setting: its scope (system, global, local, worktree), full key, and value (None: true)."""

    scope: str
    key: str
    value: str | None


def parse(listing: str) -> list[Entry]:
    """Parse the output of `git config --list -z --show-scope`."""
    parts = listing.split("\0")
    entries = []
    for scope, setting in zip(parts[::2], parts[1::2], strict=False):
        key, separator, value = setting.partition("\n")
        entries.append(Entry(scope, key, value if separator else None))
    return entries


def select(entries: Iterable[Entry], scopes: Sequence[str], *, push: bool = False) -> list[Entry]:
    """Return the settings of these scopes that a view gets, in order, without credentials in addresses.

    `push`: keep the addresses to push to.
    """
    kept = [Entry(entry.scope, _strip(entry.key), None if entry.value is None else _strip(entry.value))
            for entry in _effective(entries) if entry.scope in scopes and _is_kept(entry.key, push=push)]
    if not push:
        remotes = dict.fromkeys(_split(entry.key)[1] for entry in kept
                                if entry.key.startswith("remote.") and entry.key.endswith(".url"))
        kept += [Entry("local", f"remote.{remote}.pushurl", NO_PUSH) for remote in remotes]
    return kept


def find_secrets(entries: Iterable[Entry]) -> list[str]:
    """Return the keys of the repository's own settings that hold a password or a token, without what they hold."""
    return list(dict.fromkeys(_strip(entry.key) for entry in entries
                              if entry.scope in ("local", "worktree") and _holds_secret(entry)))


def _holds_secret(entry: Entry) -> bool:
    return _split(entry.key)[2] in _SECRET_NAMES or any(
        _strip(text) != text or _TOKEN.search(text) is not None for text in (entry.key, entry.value or ""))


def _effective(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries without those that a narrower scope overrides: one file could not be edited otherwise."""
    entries = [entry for entry in entries if entry.scope != "command"]  # those of garrison's own call
    narrowest = {entry.key: entry.scope for entry in entries if entry.scope != "worktree"}
    return [entry for entry in entries if entry.scope in ("worktree", narrowest.get(entry.key))
            or entry.key.endswith(".insteadof")]


def _is_kept(key: str, *, push: bool) -> bool:
    section, middle, name = _split(key)
    if section not in _SECTIONS or key in _DENIED or any(word in name for word in _SECRET_NAMES):
        return False
    if section == "user":
        return name in _USER
    if section == "core":
        return name in _CORE
    if section == "remote":
        return bool(middle) and (name in _REMOTE or (push and name in ("pushurl", "push", "mirror")))
    if section == "branch":
        return not middle or name in _BRANCH or (push and name == "pushremote")
    if section == "url":
        return name == "insteadof" or (push and name == "pushinsteadof")
    if section == "push":
        return push or name in ("default", "autosetupremote")
    return section != "lfs" or "://" not in middle  # access rights and tokens are kept per address


def _split(key: str) -> tuple[str, str, str]:
    """Split a full key into section, subsection (which may hold dots) and name."""
    section, _, rest = key.partition(".")
    middle, _, name = rest.rpartition(".")
    return section, middle, name


def _strip(text: str) -> str:
    """Return the text without user, password and query in addresses; the user of an ssh address stays."""
    return _QUERY.sub(r"\1", _CREDENTIALS.sub(lambda match: match[1] or match[2], text))


def render(entries: Iterable[Entry]) -> bytes:
    """Return the file that holds these settings."""
    lines = []
    for entry in entries:
        section, middle, name = _split(entry.key)
        subsection = "" if not middle else ' "' + middle.replace("\\", "\\\\").replace('"', '\\"') + '"'
        value = "" if entry.value is None else f" = {_quote(entry.value)}"
        lines.append(f"[{section}{subsection}]\n\t{name}{value}")
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
