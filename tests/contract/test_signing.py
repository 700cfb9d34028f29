"""Signatures of what lands, made by the real programs, without a user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from garrison.config import PullRequestOptions
from garrison.errors import GarrisonError
from garrison.merge.preflight import identify
from garrison.pull_request.client import PullRequestClient
from garrison.system.git import Git, neutral
from garrison.system.git.signing import Signer, SigningFailed, find_signer, with_signature
from garrison.values import asdict
from support import git, make_repository, processes, write_program

needs_gpg = pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not installed")
needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
USER = "A User <user@example.org>"


@pytest.fixture
def repo(tmp_path) -> Path:
    make_repository(tmp_path / "repo")
    git(tmp_path / "repo", "config", "commit.gpgsign", "true")
    return tmp_path / "repo"


@pytest.fixture
def keys() -> Iterator[Path]:
    """Yield a folder of keys with a short path, as gpg's agent has its socket there; the agent is ended."""
    folder = Path(tempfile.mkdtemp(prefix="g"))
    (folder / "gpg-agent.conf").write_text("s2k-count 65536\n")  # else a passphrase takes seconds
    yield folder
    if shutil.which("gpgconf"):
        subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, "GNUPGHOME": str(folder)}, check=False)
    shutil.rmtree(folder, ignore_errors=True)  # the agent removes its sockets


def gpg_key(keys: Path, passphrase: str, *options: str, expires: str = "never") -> dict[str, str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(keys), "GNUPGHOME": str(keys)}
    subprocess.run(["gpg", "--batch", "-q", *options, "--pinentry-mode", "loopback", "--passphrase", passphrase,
                    "--quick-gen-key", USER, "ed25519", "sign", expires], env=env, check=True, capture_output=True)
    return env


def ssh_key(repo: Path, keys: Path, passphrase: str) -> dict[str, str]:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(keys / "key")], check=True)
    (keys / "allowed").write_text(f"user@example.org {(keys / 'key.pub').read_text()}")
    for key, value in (("gpg.format", "ssh"), ("user.signingKey", "~/key.pub"),
                       ("gpg.ssh.allowedSignersFile", str(keys / "allowed"))):
        git(repo, "config", key, value)
    return {"PATH": os.environ["PATH"], "HOME": str(keys)}


def identity(repo: Path, environ: dict[str, str]) -> tuple[str, Signer | None, list[str]]:
    notes: list[str] = []
    return *identify(Git(repo, environ), environ, notes.append), notes


def signed_commit(repo: Path, signer: Signer) -> str:
    ours = Git(repo)
    ours.committer, ours.signer = ("A User", "user@example.org"), signer
    return ours.commit_tree(ours.tree_of("HEAD"), [git(repo, "rev-parse", "HEAD")], "Lénd\n\nbody\n", date=1700000000)


def verifies(repo: Path, commit: str, environ: dict[str, str]) -> bool:
    return subprocess.run(["git", "verify-commit", commit], cwd=repo, env=environ, capture_output=True,
                          check=False).returncode == 0


@needs_gpg
def test_git_accepts_what_gpg_signs(repo, keys):
    environ = gpg_key(keys, "")
    committer, signer, notes = identity(repo, environ)
    assert (committer, notes) == (USER, [])
    commit = signed_commit(repo, signer)
    assert verifies(repo, commit, environ)
    assert git(repo, "show", "-s", "--format=%cn <%ce> %s", commit) == f"{USER} Lénd"
    git(repo, "fsck", "--strict")


@needs_gpg
def test_a_key_with_a_passphrase_signs_only_while_gpgs_agent_has_it(repo, keys):
    environ = gpg_key(keys, "secret")
    subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=environ, check=True)
    _, signer, notes = identity(repo, environ)
    advice = f"echo | {shutil.which('gpg')} -bsau '{USER}' > /dev/null"
    assert (signer, notes) == (None, [
        "note: what lands will not be signed, although commit.gpgsign is set: its key needs a passphrase; "
        f"`{advice}` makes gpg's agent remember it"])
    subprocess.run(["gpg", "--batch", "--pinentry-mode", "loopback", "--passphrase", "secret", "--sign"],
                   env=environ, check=True, input=b"", capture_output=True)
    _, signer, notes = identity(repo, environ)
    assert (signer is not None, notes) == (True, [])


@needs_gpg
def test_a_key_that_has_expired_is_named_with_what_renews_it(repo, keys):
    environ = gpg_key(keys, "", "--faked-system-time", "20200101T000000", expires="2021-01-01")
    *_, notes = identity(repo, environ)
    found = re.fullmatch(r"note: .*: its key has expired; `(.*)` renews it", "\n".join(notes))
    assert found is not None, notes
    subprocess.run(found[1], shell=True, env=environ, check=True, capture_output=True)
    _, signer, notes = identity(repo, environ)
    assert signer is not None and notes == []
    assert verifies(repo, signed_commit(repo, signer), environ)


@needs_ssh
def test_a_merge_of_commits_pushed_onto_a_pull_request_is_signed_like_a_landing(repo, keys):
    """A branch that demands signatures would refuse it otherwise."""
    environ = ssh_key(repo, keys, "")
    committer, signer, _ = identity(repo, environ)
    base = git(repo, "rev-parse", "HEAD")
    tips = {}
    for name in ("garrison/r/integration", "theirs"):
        git(repo, "switch", "-qc", name, base)
        (repo / name.rpartition("/")[2]).touch()
        git(repo, "add", "-A")
        git(repo, "-c", "commit.gpgsign=false", "commit", "-qm", name)
        tips[name] = git(repo, "rev-parse", "HEAD")
    launch = SimpleNamespace(onto="garrison/r/integration", committer=committer, signer=asdict(signer))
    client = PullRequestClient(None, Git(repo), launch, PullRequestOptions(), lambda *_: "")
    client.take_in(tips["theirs"])
    made = git(repo, "rev-parse", launch.onto)
    assert git(repo, "log", "-1", "--format=%P|%cn <%ce>", made) == f"{' '.join(tips.values())}|{USER}"
    assert verifies(repo, made, environ) and client.git.signer is None
    git(repo, "update-ref", f"refs/heads/{launch.onto}", tips[launch.onto])
    launch.signer["key"] = str(keys / "gone")
    with pytest.raises(GarrisonError, match=r"the merge of what people pushed cannot be signed: .*gone"):
        client.take_in(tips["theirs"])
    assert git(repo, "rev-parse", launch.onto) == tips[launch.onto]


@needs_ssh
@pytest.mark.parametrize("passphrase", ["", "a secret"])
def test_ssh_signs_with_a_key_that_asks_for_nothing(repo, keys, passphrase):
    environ = ssh_key(repo, keys, passphrase)
    _, signer, notes = identity(repo, environ)
    assert notes == ([f"note: what lands will not be signed, although commit.gpgsign is set: its key needs a "
                      f"passphrase; `ssh-add {keys}/key` unlocks it"] if passphrase else [])
    assert (signer is None) == bool(passphrase)
    if signer is not None:
        assert verifies(repo, signed_commit(repo, signer), environ)


def test_a_program_that_waits_for_input_is_ended_with_all_it_started(tmp_path):
    program = tmp_path / "asks"
    write_program(program, f"#!/bin/sh\n(while true; do sleep 1; done; : {tmp_path}) &\nwait\n")
    with pytest.raises(SigningFailed, match=r"asks did not end within 1 s: it waits for the user"):
        Signer("openpgp", str(program), "key", {}).sign(b"text", 1.0)
    assert not [process for process in processes(str(program)) if process.living]


@pytest.mark.parametrize(("settings", "why"), [
    ({"gpg.program": "{root}/gpg"}, "is in the repository"),
    ({"gpg.program": "no-such-gpg"}, "no-such-gpg is not installed"),
    ({"gpg.format": "smoke"}, "gpg.format is smoke"),
    ({"gpg.format": "ssh", "gpg.ssh.program": "true"}, r"no user.signingkey is set"),
    ({"gpg.format": "ssh", "gpg.ssh.program": "true", "user.signingkey": "keys/id.pub"}, "is in the repository"),
])
def test_what_cannot_sign_is_refused_with_its_reason(settings, why, tmp_path):
    write_program(tmp_path / "gpg", "#!/bin/sh\n")
    given = {key: value.format(root=tmp_path) for key, value in settings.items()} | {"commit.gpgsign": "yes"}
    with pytest.raises(SigningFailed, match=why):
        find_signer(given, USER, tmp_path, {"PATH": os.environ["PATH"]})
    assert find_signer({**given, "commit.gpgsign": "no"}, USER, tmp_path, {}) is None


def test_what_an_agent_planted_chooses_neither_program_nor_key(repo, tmp_path):
    home = tmp_path / "home"
    ours = Git(repo, home=home)
    trusted = [(each.key, each.value) for each in ours.settings()]
    neutral.trust_path(home, ours.common).parent.mkdir(parents=True)
    neutral.trust_path(home, ours.common).write_text(neutral.trust_text(trusted, [], {}))
    write_program(tmp_path / "evil", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    git(repo, "config", "gpg.program", str(tmp_path / "evil"))
    git(repo, "config", "user.signingkey", "somebody@else")
    assert "somebody@else" in [each.value for each in ours.settings()]
    identify(ours, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, lambda line: None)
    assert not (tmp_path / "ran").exists()


def test_no_author_is_made_up_where_git_knows_no_name(repo):
    git(repo, "config", "--unset", "user.email")
    committer, _, notes = identity(repo, {"PATH": os.environ["PATH"], "HOME": "/nowhere"})
    assert committer == ""
    assert notes[0].startswith("note: git knows no name of yours, so garrison itself commits what lands")
    named = {"GIT_COMMITTER_NAME": "Other", "GIT_COMMITTER_EMAIL": "other@example.org"}
    assert Git(repo).find_committer(named) == "Other <other@example.org>"


def test_a_signature_is_the_last_header():
    assert with_signature("tree 1\ncommitter x\n\nA\n\nB\n", "-----BEGIN\nabc\n-----END\n") == (
        "tree 1\ncommitter x\ngpgsig -----BEGIN\n abc\n -----END\n\nA\n\nB\n")
