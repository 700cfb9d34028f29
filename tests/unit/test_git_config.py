"""Settings of the user's git configuration that a confined worktree gets."""

from __future__ import annotations

import pytest

from garrison.sandbox.git_config import NO_PUSH, ConfigEntry, parse, render, select

SCOPES = ("system", "global", "local")


def kept(*settings, push=False):
    entries = [ConfigEntry("local", *setting) for setting in settings]
    return [(entry.key, entry.value) for entry in select(entries, SCOPES, push=push)]


@pytest.mark.parametrize("key", [
    "credential.helper", "credential.https://example.org.helper", "core.sshcommand", "core.fsmonitor", "core.askpass",
    "core.pager", "core.editor", "core.hookspath", "core.gitproxy", "core.worktree", "core.alternaterefscommand",
    "http.extraheader", "http.https://example.org.extraheader", "http.cookiefile", "include.path",
    "includeif.gitdir:/x.path", "sendemail.smtppass", "github.token", "gpg.program", "user.signingkey",
    "commit.gpgsign", "remote.origin.proxy", "remote.origin.receivepack", "url.x.pushinsteadof", "push.gpgsign",
    "lfs.https://example.org/info/lfs.access", "pager.log", "sequence.editor", "diff.external",
    "interactive.difffilter", "init.templatedir", "extensions.refstorage", "branch.main.pushremote", "imap.pass",
    "alias.st", "user.token", "merge.mysecret", "log.apitoken", "color.mine", "format.headers", "pull.mine",
    "commit.template", "lfs.customtransfer.x.args", "merge.tool", "submodule.s.update", "trailer.t.command",
    "push.pushoption", "remote.o.vcs", "fsck.badname", "advice.mine", "core.mine", "fetch.bundleuri", "url.x.mine"])
def test_secrets_and_commands_that_run_by_themselves_are_left_out(key):
    assert kept((key, "x")) == []


@pytest.mark.parametrize("key", [
    "user.name", "user.email", "core.autocrlf", "core.ignorecase", "core.sparsecheckout", "merge.ours.driver",
    "diff.image.textconv", "filter.lfs.clean", "filter.lfs.process", "submodule.a.b.url", "pull.rebase",
    "branch.main.merge", "extensions.objectformat", "extensions.worktreeconfig", "extensions.partialclone",
    "rerere.enabled", "lfs.url", "push.default", "i18n.commitencoding", "url.https://a/.insteadof"])
def test_settings_for_work_on_files_and_commits_are_kept(key):
    assert kept((key, "x")) == [(key, "x")]


def test_switches_of_sections_with_a_switch_a_name_are_kept():
    settings = (("advice.detachedhead", "false"), ("advice.x", None), ("fsck.missingemail", "ignore"))
    assert kept(*settings) == list(settings)


def test_addresses_lose_their_credentials_and_push_goes_nowhere_unless_allowed():
    assert kept(("remote.origin.url", "https://me:token@example.org/x.git"), ("remote.origin.pushurl", "ssh://x")) == [
        ("remote.origin.url", "https://example.org/x.git"), ("remote.origin.pushurl", NO_PUSH)]
    assert kept(("url.https://token@host/.insteadof", "gh:")) == [("url.https://host/.insteadof", "gh:")]
    assert kept(("remote.o.url", "ssh://git@host/x"))[0] == ("remote.o.url", "ssh://git@host/x")
    for address in ("https://u:p@SECRET@host/x", "https://host/x?private_token=SECRET",
                    "https://SECRET@u@host/x#SECRET"):
        assert kept(("submodule.s.url", address)) == [("submodule.s.url", "https://host/x")]
    assert kept(("submodule.s.url", "ssh://me:p@SECRET@host/x")) == [("submodule.s.url", "ssh://host/x")]
    assert kept(("submodule.s.url", "ssh://me:pw@host/x")) == [("submodule.s.url", "ssh://host/x")]
    settings = (("remote.origin.url", "/srv/x"), ("remote.origin.pushurl", "/srv/y"), ("push.followtags", "true"))
    assert kept(*settings, push=True) == list(settings)


def test_a_narrower_scope_overrides_and_settings_of_the_call_itself_do_not():
    listing = "global\0user.name\nA\0local\0user.name\nB\0command\0gc.auto\n0\0command\0user.name\nC\0"
    assert select(parse(listing), SCOPES) == [ConfigEntry("local", "user.name", "B")]


def test_values_survive_rendering():
    odd = ConfigEntry("local", 'filter.a"b.c.clean', 'sh -c "x\\y" # no comment; \n\tz')
    text = render([odd, ConfigEntry("local", "a.b", None)])
    assert text == b'[filter "a\\"b.c"]\n\tclean = "sh -c \\"x\\\\y\\" # no comment; \\n\\tz"\n[a]\n\tb\n'
