"""Configuration of a private git view: the user's settings that git needs inside, without secrets. Pure.

Settings of the user's system, home and repository become one file. An allow-list of names keeps those that decide how
git works on files, commits and branches, with filters and drivers of diff and merge. So these are left out:
credentials, aliases, programs that would run automatically (fsmonitor, askpass, pagers, editors, ssh commands),
signing, includes (their content is inlined), push addresses, and settings of later versions of git or of other
programs.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from garrison.system.command import run
from garrison.system.git.neutral import INCLUDE
from garrison.system.stamps import file_stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

NO_PUSH = "pushing-is-off-here--garrison-lands-this-branch"
"""Push address that makes `git push` fail with an explanation."""
FORCED = (("gc.auto", "0"), ("maintenance.auto", "false"), ("commit.gpgsign", "false"), ("tag.gpgsign", "false"))
"""Settings of every view: nothing in the background, and no signing without the user's key."""

def _table(text: str) -> dict[str, frozenset[str]]:
    """Read lines of `section: name name …`; one without a colon continues the previous line."""
    found: dict[str, frozenset[str]] = {}
    section = ""
    for line in text.strip().splitlines():
        named, colon, names = line.partition(":")
        section = named.strip() if colon else section
        found[section] = found.get(section, frozenset()) | frozenset((names if colon else line).split())
    return found


_KEYS = _table("""
    add: ignore-errors ignoreerrors
    am: keepcr threeway
    apply: ignorewhitespace whitespace
    blame: blankboundary coloring date showemail showroot ignorerevsfile markunblamablelines markignoredlines
    branch: autosetupmerge autosetuprebase sort
    checkout: defaultremote guess workers thresholdforparallelism
    clean: requireforce
    color: ui branch diff grep interactive showbranch status
    column: ui branch clean status tag
    commit: cleanup status verbose
    core: repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf
        eol safecrlf checkroundtripencoding whitespace quotepath sparsecheckout sparsecheckoutcone
        bigfilethreshold compression loosecompression abbrev commentchar commentstring checkstat trustctime
        untrackedcache splitindex sharedrepository preloadindex multipackindex commitgraph protecthfs
        protectntfs notesref longpaths warnambiguousrefs maxtreedepth
    diff: autorefreshindex dirstat statnamewidth statgraphwidth context interhunkcontext ignoresubmodules
        mnemonicprefix noprefix srcprefix dstprefix relative orderfile renamelimit renames suppressblankempty
        submodule wordregex algorithm wserrorhighlight colormoved colormovedws indentheuristic trustexitcode
    extensions: objectformat compatobjectformat worktreeconfig partialclone preciousobjects noop relativeworktrees
    fetch: recursesubmodules fsckobjects unpacklimit prune prunetags all output negotiationalgorithm
        showforcedupdates parallel writecommitgraph
    format: attach from numbered subjectprefix suffix encodeemailheaders pretty thread signoff coverletter
        filenamemaxlength useautobase notes mboxrd noprefix
    fsck: skiplist
    gc: aggressivedepth aggressivewindow autodetach cruftpacks packrefs pruneexpire worktreepruneexpire
        reflogexpire reflogexpireunreachable rerereresolved rerereunresolved writecommitgraph
    grep: linenumber column patterntype extendedregexp threads fullname fallbacktonoindex
    help: autocorrect
    i18n: commitencoding logoutputencoding
    index: recordendofindexentries recordoffsettable sparse threads version skiphash
    init: defaultbranch defaultobjectformat defaultrefformat
    interactive: singlekey
    lfs: url batch basictransfersonly concurrenttransfers activitytimeout dialtimeout tlstimeout keepalive
        fetchinclude fetchexclude fetchrecentalways fetchrecentrefsdays fetchrecentcommitsdays
        fetchrecentremoterefs pruneoffsetdays skipdownloaderrors allowincompletepush locksverify
        setlockablereadonly lockignoredfiles repositoryformatversion
    log: abbrevcommit date decorate initialdecorationset excludedecoration diffmerges follow graphcolors
        showroot mailmap
    mailinfo: scissors
    merge: conflictstyle defaulttoupstream ff branchdesc log renamelimit renames directoryrenames renormalize
        stat autostash verbosity suppressdest
    notes: mergestrategy displayref rewritemode rewriteref
    pack: window depth windowmemory deltacachesize deltacachelimit threads compression indexversion
        packsizelimit usebitmaps usesparse preferbitmaptips writebitmaphashcache writebitmaplookuptable
        writereverseindex allowpackreuse
    pull: ff rebase octopus twohead
    push: default autosetupremote
    rebase: backend stat autosquash autostash updaterefs missingcommitscheck instructionformat
        abbreviatecommands reschedulefailedexec forkpoint rebasemerges maxlabellength
    repack: usedeltabaseoffset packkeptobjects usedeltaislands writebitmaps updateserverinfo
    rerere: autoupdate enabled
    reset: quiet
    revert: reference
    showbranch: default
    sparse: expectfilesoutsideofpatterns
    splitindex: maxpercentchange sharedindexexpire
    stash: showincludeuntracked showpatch showstat
    status: relativepaths short branch aheadbehind displaycommentprefix renamelimit renames showstash
        showuntrackedfiles submodulesummary
    submodule: active fetchjobs alternatelocation alternateerrorstrategy propagatebranches stickyrecursivecheckout
    tag: sort
    trailer: separators ifexists ifmissing where
    user: name email useconfigonly
    versionsort: suffix prereleasesuffix
    worktree: guessremote userelativepaths
""")
"""Section → names of the settings that are shown."""
_NAMED_KEYS = _table("""
    branch: remote merge rebase mergeoptions description
    diff: funcname xfuncname binary textconv cachetextconv command wordregex algorithm
    filter: clean smudge process required
    merge: name driver recursive
    notes: mergestrategy
    remote: url fetch tagopt prune prunetags promisor partialclonefilter skipdefaultupdate skipfetchall
        followremotehead
    submodule: url branch fetchrecursesubmodules ignore active
    trailer: key ifexists ifmissing where
    url: insteadof
""")
"""The same for settings below a name, such as a remote's."""
_PUSH_KEYS = _table("push: followtags recursesubmodules useforceifincludes negotiate usebitmaps")
_NAMED_PUSH_KEYS = _table("""
    branch: pushremote
    remote: pushurl push mirror
    url: pushinsteadof
""")
"""Additional settings for an agent that may push."""
_SWITCHES = {"advice": frozenset({"true", "false", "yes", "no", "on", "off", "1", "0", ""}),
             "fsck": frozenset({"error", "warn", "ignore"})}
"""Sections whose many settings have one of these values each."""
_CREDENTIALS = re.compile(r"\b((?:https?|ftps?)://)[^/\s]+@|(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)[^/\s@:]*:[^/\s]*@",
                          re.IGNORECASE)
"""The part before the host: up to the last `@`, since a password may contain one."""
_QUERY = re.compile(r"(://[^\s?#]*)[?#]\S*")
_SECRET_NAMES = ("extraheader", "smtppass", "password", "token", "secret")
"""Names of settings that contain a secret in any section."""


class ConfigEntry(NamedTuple):
    """One setting: its scope (system, global, local, worktree), full key, and value (None: true)."""

    scope: str
    key: str
    value: str | None


def parse(listing: str) -> list[ConfigEntry]:
    """Parse the output of `git config --list -z --show-scope`."""
    parts = listing.split("\0")
    entries = []
    for scope, setting in zip(parts[::2], parts[1::2], strict=False):
        key, separator, value = setting.partition("\n")
        entries.append(ConfigEntry(scope, key, value if separator else None))
    return entries


def select(entries: Iterable[ConfigEntry], scopes: Sequence[str], *, push: bool = False) -> list[ConfigEntry]:
    """Return the settings of these scopes that a view gets, in order, without credentials in addresses.

    `push`: keep the addresses to push to.
    """
    kept = [ConfigEntry(entry.scope, _strip(entry.key), None if entry.value is None else _strip(entry.value))
            for entry in _effective(entries) if entry.scope in scopes and _is_kept(entry.key, entry.value, push=push)]
    if not push:
        remotes = dict.fromkeys(_split(entry.key)[1] for entry in kept
                                if entry.key.startswith("remote.") and entry.key.endswith(".url"))
        kept += [ConfigEntry("local", f"remote.{remote}.pushurl", NO_PUSH) for remote in remotes]
    return kept


def _effective(entries: Iterable[ConfigEntry]) -> list[ConfigEntry]:
    """Return the entries without those that a narrower scope overrides: otherwise a single file could not be edited."""
    entries = [entry for entry in entries if entry.scope != "command"]  # settings of garrison's own call
    narrowest = {entry.key: entry.scope for entry in entries if entry.scope != "worktree"}
    return [entry for entry in entries if entry.scope in ("worktree", narrowest.get(entry.key))
            or entry.key.endswith(".insteadof")]


def _is_kept(key: str, value: str | None, *, push: bool) -> bool:
    section, middle, name = _split(key)
    if any(word in name for word in _SECRET_NAMES):
        return False
    if not middle and section in _SWITCHES and (value or "").lower() in _SWITCHES[section]:
        return True
    tables = (_NAMED_KEYS, _NAMED_PUSH_KEYS) if middle else (_KEYS, _PUSH_KEYS)
    return any(name in table.get(section, ()) for table in tables[:2 if push else 1])


def _split(key: str) -> tuple[str, str, str]:
    """Split a full key into section, subsection (which may contain dots) and name."""
    section, _, rest = key.partition(".")
    middle, _, name = rest.rpartition(".")
    return section, middle, name


def _strip(text: str) -> str:
    """Return the text without user, password and query in addresses; the user of an ssh address stays."""
    return _QUERY.sub(r"\1", _CREDENTIALS.sub(lambda match: match[1] or match[2], text))


def render(entries: Iterable[ConfigEntry]) -> bytes:
    """Return the file that contains these settings."""
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


# ---- user git config -------------------------------------------------------------------------------------------------

# The user's git settings in the home inside: without them only the worktree's own repository knows who commits.
#
# Submodules, repositories that tests create, and with Landlock the worktree itself, are not garrison's views.

NAME = ".gitconfig"
_TIMEOUT = 20


def copy_settings(env: Mapping[str, str], user_home: Path, home: Path) -> None:
    """Write the user's own settings into a home inside, without secrets; keep an existing file."""
    if os.path.lexists(home / NAME) or not any(os.path.lexists(path) for path in _files(env, user_home)):
        return
    text = _render_own(env, user_home)
    # The home may belong to the agent since an earlier command: no link in the file's place is followed.
    with suppress(FileExistsError), (home / NAME).open("xb") as file:
        file.write(text)


_rendered: dict[tuple[str, str], tuple[object, bytes]] = {}
"""Files of a user → their stamps and content."""


def _render_own(env: Mapping[str, str], user_home: Path) -> bytes:
    """Return the user's own settings; cached while their files are unchanged."""
    files = _files(env, user_home)
    stamps = [*map(file_stamp, files)]  # before they are read: a change in between makes the next stamp differ
    if (known := _rendered.get(files)) is not None and known[0] == stamps:
        return known[1]
    entries = parse(_list(env, user_home))
    text = render(select(entries, ("global",)))
    if not any(INCLUDE.fullmatch(entry.key) for entry in entries):
        _rendered[files] = stamps, text
    return text


def _files(env: Mapping[str, str], user_home: Path) -> tuple[str, str]:
    return f"{user_home}/{NAME}", f"{env.get('XDG_CONFIG_HOME') or f'{user_home}/.config'}/git/config"


def _list(env: Mapping[str, str], user_home: Path) -> str:
    """Return all settings as git lists them outside of any repository; '' if it cannot."""
    own = {name: env[name] for name in ("PATH", "XDG_CONFIG_HOME") if name in env}
    done = run(["git", "config", "--list", "-z", "--show-scope", "--includes"], _TIMEOUT, errors="surrogateescape",
               env={**own, "HOME": str(user_home), "GIT_CONFIG_NOSYSTEM": "1"})
    return done.out if done.ok else ""
