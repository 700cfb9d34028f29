"""Receive a host's push: `git receive-pack` that accepts one ref, the incoming ref of one claim.

`python -P -m garrison.dispatch.receive REPO --ref REF` takes the place of `git receive-pack REPO` at the end of a
connection. Objects stay in git's own quarantine until the ref is accepted, and are checked for what git refuses. None
of the repository's hooks run, and nothing else in its configuration that would run a program: agents write there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.dispatch.incoming import NAMESPACE, find_refusal, parse_updates
from garrison.errors import GarrisonError, UsageError
from garrison.system.git.configuration import Unneutral, neutral_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTINGS = (
    ("receive.fsckObjects", "true"), ("receive.denyDeletes", "true"), ("receive.denyNonFastForwards", "false"),
    ("receive.advertisePushOptions", "false"), ("receive.autogc", "false"), ("gc.auto", "0"),
    ("maintenance.auto", "false"), ("receive.updateServerInfo", "false"), ("receive.shallowUpdate", "false"),
)
MAX_BYTES = 2_000_000_000
"""Largest pack that is accepted."""
USAGE = "usage: python -P -m garrison.dispatch.receive REPO --ref REF"


def receive(repo: Path, ref: str, environ: Mapping[str, str]) -> int:
    """Serve one push on standard input and output; return git's exit code."""
    if not ref.startswith(f"{NAMESPACE}/"):
        raise UsageError(f"not an incoming ref: {ref}")
    try:
        neutral = neutral_variables(repo, None, None, environ)
    except Unneutral as error:
        raise GarrisonError(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="garrison-receive-") as folder:
        hook = Path(folder) / "pre-receive"
        hook.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m garrison.dispatch.receive --check "
                        f"{shlex.quote(ref)}\n", encoding="utf-8")
        hook.chmod(0o700)
        settings = [*SETTINGS, ("receive.maxInputSize", str(MAX_BYTES)), ("core.hooksPath", folder)]
        argv = ["git", *(word for key, value in settings for word in ("-c", f"{key}={value}")), "receive-pack",
                str(repo)]
        return subprocess.run(argv, env={**environ, **neutral}, check=False).returncode


def check(ref: str, text: str) -> int:
    """Judge a push as its pre-receive hook; git shows what is printed to whoever pushes."""
    refusal = find_refusal(parse_updates(text), ref)
    if refusal:
        print(f"garrison: {refusal}", file=sys.stderr)
    return 1 if refusal else 0


def main(argv: Sequence[str]) -> int:
    """Serve a push, or judge it."""
    try:
        match argv:
            case ["--check", ref]:
                return check(ref, sys.stdin.read())
            case ["--ref", ref, repo] | [repo, "--ref", ref]:
                return receive(Path(repo), ref, os.environ)
    except GarrisonError as error:
        print(f"garrison: {error}", file=sys.stderr)
        return error.exit_code
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
