"""Signing: sign what lands with the user's key, as the user's git would, without ever prompting.

The signing program is run here, not by git: so nothing that an agent writes into a repository's configuration can
choose the program or the key. Both are taken from the settings that a launch trusts, and recorded with the queue. A
program that would ask for a passphrase has neither a terminal nor a display, and is killed at a time limit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.system.command import run
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TRIAL_SECONDS = 8.0
"""Time limit for the trial signature of a launch; longer means that the program waits for the user."""
SECONDS = 30.0
"""Time limit for the signature of a landing."""
_PROGRAMS = {"openpgp": "gpg", "x509": "gpgsm", "ssh": "ssh-keygen"}
"""Formats, as `gpg.format` names them, with the program that git takes for each."""
_GPG_UNUSABLE, _GPG_NO_PINENTRY = 54, 85
"""gpg's error numbers: a key that is expired, revoked or disabled; a key that needs a passphrase."""
_GPG_FAILURE = re.compile(r"\[GNUPG:\] FAILURE sign ([0-9]+)")
_TRUE = frozenset({"true", "yes", "on", "1", ""})
_VARIABLES = ("HOME", "GNUPGHOME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR")
"""Variables that locate the user's keys. None of them is a secret."""
_IDENT = re.compile(r"([^<>\n]+?) <([^<>\n]*)>")


class SigningFailed(GarrisonError):
    """A signature that could not be made without the user; the text says why."""


class Signer(Value):
    """Key and program for signing landings, and the variables that locate the key."""

    format: str
    program: str
    key: str
    variables: dict[str, str]

    def sign(self, payload: bytes, limit: float = SECONDS) -> str:
        """Return the signature of a commit's content; SigningFailed if there is none within `limit` seconds."""
        if self.format == "ssh":
            return self._sign_by_ssh(payload, limit)
        argv = [self.program, "--batch", "--pinentry-mode", "error", "--status-fd=2", "-bsau", self.key]
        out, told = self._run(argv, payload, limit, self._explain_gpg)
        if "[GNUPG:] SIG_CREATED " not in told:
            raise SigningFailed(f"{self.program} made no signature")
        return out

    def _explain_gpg(self, lines: Sequence[str]) -> str:
        """Return why gpg could not sign, by its error number, with advice; '' for other reasons."""
        # The upper bits of the number say which library of gpg failed.
        codes = [int(found[1]) & 0xFFFF for line in lines if (found := _GPG_FAILURE.match(line))]
        if _GPG_NO_PINENTRY in codes:
            return (f"its key needs a passphrase; `echo | {self.program} -bsau {shlex.quote(self.key)} > /dev/null` "
                    "makes gpg's agent remember it")
        if _GPG_UNUSABLE not in codes:
            return ""
        listed = run([self.program, "--batch", "--with-colons", "--list-secret-keys", self.key], SECONDS,
                     env=self._environment()).out
        fields = [line.split(":") for line in listed.splitlines() if line.startswith(("sec:", "fpr:"))]
        print_of = next((each[9] for each in fields if each[0] == "fpr" and len(each) > 9), self.key)
        if any(each[:2] == ["sec", "e"] for each in fields):
            return f"its key has expired; `{self.program} --quick-set-expire {print_of} 1y` renews it"
        return f"gpg refuses its key, which may be revoked or disabled: {print_of}"

    def _sign_by_ssh(self, payload: bytes, limit: float) -> str:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="garrison-sign-") as folder:
            content, key, more = Path(folder, "commit"), self.key, []
            content.write_bytes(payload)
            if literal := _literal_key(key):
                key, more = f"{folder}/key.pub", ["-U"]
                Path(key).write_text(f"{literal}\n")
            self._run([self.program, "-Y", "sign", "-n", "git", "-f", key, *more, str(content)], b"", limit,
                      lambda lines: self._explain_ssh(key))
            try:
                return content.with_name("commit.sig").read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise SigningFailed(f"{self.program} left no signature") from error

    def _explain_ssh(self, key: str) -> str:
        """Return that a key needs a passphrase, with advice; '' if ssh-keygen failed for another reason."""
        private = key.removesuffix(".pub")
        opened = run([self.program, "-y", "-P", "", "-f", private], SECONDS, env=self._environment())
        return f"its key needs a passphrase; `ssh-add {shlex.quote(private)}` unlocks it" \
            if Path(private).is_file() and opened.code else ""

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never",
                **self.variables}

    def _run(self, argv: Sequence[str], text: bytes, limit: float,
             explain: Callable[[Sequence[str]], str]) -> tuple[str, str]:
        """Run the program without any way to prompt the user; return the output of both streams."""
        done = run(argv, limit, text=text, env=self._environment())
        if done.code is None:
            raise SigningFailed(f"{done.why}: it waits for the user" if done.timed_out else done.why)
        lines = done.err.splitlines()
        if not done.ok and (why := explain(lines)):
            raise SigningFailed(why)
        if not done.ok:
            said = [line for line in lines if line.strip() and not line.startswith("[GNUPG:]")]
            raise SigningFailed(said[-1].strip() if said else f"{argv[0]}: exit code {done.code}")
        return done.out.replace("\r", ""), "\n".join(lines)


def _literal_key(key: str) -> str:
    """Return the public key in the setting itself, '' if it names a file."""
    return key.removeprefix("key::") if key.startswith("key::") else key if key.startswith("ssh-") else ""


def with_signature(commit: str, signature: str) -> str:
    """Return a commit's content with its signature as git stores it: the last header, its lines indented. Pure."""
    header, _, message = commit.partition("\n\n")
    is_sha256 = len(header.partition("\n")[0]) > len("tree ") + 40
    name = "gpgsig-sha256" if is_sha256 else "gpgsig"
    indented = signature.rstrip("\n").replace("\n", "\n ")
    return f"{header}\n{name} {indented}\n\n{message}"


def parse_ident(text: str) -> tuple[str, str] | None:
    """Return name and address of `Name <address>`, None for anything else. Pure."""
    match = _IDENT.fullmatch(text)
    return (match[1], match[2]) if match else None


# ------------------------------------------------------------------------------------------------------- at a launch


def find_signer(settings: Mapping[str, str], committer: str, root: Path, environ: Mapping[str, str]) -> Signer | None:
    """Return how the user signs commits, None if they do not; SigningFailed if that is impossible here.

    Args:
        settings: what the launch trusts, by key.
        committer: owner of the key if no `user.signingkey` is set, `Name <address>`.
        root: the checkout, where agents' work lands: it must contain neither program nor key.
    """
    if settings.get("commit.gpgsign", "false").lower() not in _TRUE:
        return None
    kind = settings.get("gpg.format", "openpgp").lower()
    if kind not in _PROGRAMS:
        raise SigningFailed(f"gpg.format is {kind}, which is unknown")
    named = settings.get(f"gpg.{kind}.program") or (settings.get("gpg.program") if kind == "openpgp" else None)
    named = _expand(named or _PROGRAMS[kind], environ)
    program = shutil.which(named, path=environ.get("PATH", os.defpath))
    if program is None:
        raise SigningFailed(f"{named} is not installed")
    key = settings.get("user.signingkey", "") or ("" if kind == "ssh" else committer)
    if not key:
        raise SigningFailed("no user.signingkey is set")
    if kind == "ssh" and not _literal_key(key):
        key = _expand(key, environ)
        _refuse_inside(key, root, "user.signingkey")
    _refuse_inside(program, root, "the signing program")
    return Signer(kind, program, key, {name: environ[name] for name in _VARIABLES if environ.get(name)})


def _expand(path: str, environ: Mapping[str, str]) -> str:
    return f"{environ['HOME']}{path[1:]}" if path.startswith("~/") and environ.get("HOME") else path


def _refuse_inside(path: str, root: Path, what: str) -> None:
    if not os.path.isabs(path) or Path(path).resolve().is_relative_to(root.resolve()):  # noqa: PTH117
        raise SigningFailed(f"{what}, {path}, is in the repository, where agents' work lands")
