"""devcontainer.json: use the container that a repository describes for itself.

It is read from the target, never from a branch: agents may change the file, and what it requests beyond an image
(`GUARDED`) counts only if the user's own settings allow it. `prepare` builds or names the image at the launch and
records it in the home, where every place of the repository finds it (`of_repository`).

The worktree is at `workspaceFolder`. `onCreateCommand`, `updateContentCommand` and `postCreateCommand` are the set-up
of a launch without one. `remoteUser` is ignored: a command runs as the user who runs garrison. Features for editors
(ports, customizations, commands at start and attach) are ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.records import atomic
from garrison.records.json_io import read_json, write_json
from garrison.records.record import from_dict, to_dict
from garrison.sandbox import container
from garrison.sandbox.place import Mode
from garrison.system.command import run
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from garrison.sandbox.place import Rights
    from garrison.system.git import Git

FILES = (".devcontainer/devcontainer.json", ".devcontainer.json")
GUARDED = ("features", "mounts", "runArgs", "privileged")
"""Keys that count only if `[sandbox] devcontainer` of the user's config.toml names them."""
_IMPOSSIBLE = {"dockerComposeFile": "several containers", "initializeCommand": "a command on the machine itself",
               "workspaceMount": "another place of the worktree", "capAdd": "capabilities",
               "securityOpt": "other security options"}
"""Keys that garrison does not support."""
_SETUPS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[}\]])', re.DOTALL)
"""Strings, comments, and commas before a closing bracket."""
_VARIABLE = re.compile(r"\$\{([A-Za-z]+)(?::([^}:]*))?(?::([^}]*))?\}")
_MAX_BYTES = 1_000_000
_BUILD_TIMEOUT = 3600.0


class Devcontainer(Value):
    """Container that a repository describes, ready to run."""

    commit: str
    file: str
    image: str
    """Its image, or the name that it was built as."""
    workspace: str = ""
    """Absolute path of the worktree inside, '' for the checkout's path."""
    env: Mapping[str, str] = {}
    setup: str = ""
    """Shell line that prepares a worktree, '' for none."""
    options: tuple[str, ...] = ()
    """Options for the engine that the user's settings allow."""


# ---- reading ---------------------------------------------------------------------------------------------------------


def parse(text: str, file: str) -> dict[str, object]:
    """Return the object of a JSON text with comments and commas before a closing bracket; Refused with file and line.
    Pure."""
    plain = _TOKENS.sub(lambda found: found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0]), text)
    try:
        body = json.loads(plain)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise Refused(f"{file}:{line}: this is not JSON: {getattr(error, 'msg', error)}") from None
    if not isinstance(body, dict):
        raise Refused(f"{file}:1: this should be an object {{…}}")
    return body


def check(body: Mapping[str, object], text: str, file: str, allowed: Sequence[str]) -> None:
    """Refuse what garrison does not allow in a file that agents may change; the refusal names the line. Pure."""
    for key, what in _IMPOSSIBLE.items():
        if body.get(key):
            raise Refused(f"{file}:{_line_of(key, text)}: {key} asks for {what}, which garrison does not support; "
                          f"{_way_out()}")
    for key in GUARDED:
        if body.get(key) and key not in allowed:
            raise Refused(f"{file}:{_line_of(key, text)}: agents may change this file, so {key} needs your consent: "
                          f"add devcontainer = [\"{key}\"] to [sandbox] of config.toml, or {_way_out()}")


def _way_out() -> str:
    return 'name an image yourself: image = "…" in [sandbox] of config.toml'


def _line_of(key: str, text: str) -> int:
    at = text.find(f'"{key}"')
    return text.count("\n", 0, max(at, 0)) + 1


def setup_of(body: Mapping[str, object], file: str) -> str:
    """Return the commands that prepare a worktree as one shell line, '' for none; Refused for another form. Pure."""
    lines = [line for key in _SETUPS for line in _command(body.get(key), f"{file}: {key}")]
    return " && ".join(f"({line})" for line in lines) if len(lines) > 1 else "".join(lines)


def _command(value: object, where: str) -> list[str]:
    if not value:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return [shlex.join(value)]
    if isinstance(value, dict):
        return [line for name, each in value.items() for line in _command(each, f"{where}.{name}")]
    raise Refused(f"{where} should be a command, a list of its words, or an object of them")


def variables_of(body: Mapping[str, object], workspace: str, file: str) -> dict[str, str]:
    """Return its variables; references to the machine's (`${localEnv:…}`) are empty or their default. Pure."""
    found: dict[str, str] = {}
    for key in ("containerEnv", "remoteEnv"):
        table = body.get(key) or {}
        if not isinstance(table, dict):
            raise Refused(f"{file}: {key} should be an object of texts")
        for name, value in table.items():
            if value is not None and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                found[name] = _fill(str(value), workspace, found)
    return found


def _fill(text: str, workspace: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        kind, name, default = found[1], found[2] or "", found[3] or ""
        if kind in ("containerWorkspaceFolder", "localWorkspaceFolder"):
            return workspace
        if kind in ("containerWorkspaceFolderBasename", "localWorkspaceFolderBasename"):
            return Path(workspace).name
        if kind == "containerEnv":
            return known.get(name, default or (found[0] if name == "PATH" else ""))
        return default

    return _VARIABLE.sub(value, text)


def options_of(body: Mapping[str, object], file: str) -> tuple[str, ...]:
    """Return the engine's options for what the user allows; Refused for another form. Pure."""
    words: list[str] = ["--privileged"] if body.get("privileged") is True else []
    mounts, more = body.get("mounts") or [], body.get("runArgs") or []
    if not isinstance(mounts, list) or not isinstance(more, list):
        raise Refused(f"{file}: mounts and runArgs should be lists")
    for mount in mounts:
        text = mount if isinstance(mount, str) else ",".join(f"{key}={value}" for key, value in mount.items())
        words += ["--mount", text]
    return (*words, *map(str, more))


# ---- building --------------------------------------------------------------------------------------------------------


def prepare(git: Git, commit: str, home: Path, checkout: Path, allowed: Sequence[str],
            report: Callable[[str], None]) -> Devcontainer:
    """Read the file of a commit of the target, build its image unless it exists, and record the container.

    Refused with file and line for unsupported content; with the engine's error if the image cannot be built.
    """
    file, text = _read(git, commit)
    body = parse(text, file)
    check(body, text, file, allowed)
    stated = body.get("workspaceFolder")
    workspace = _fill(stated, str(checkout), {}) if isinstance(stated, str) else ""
    if workspace and not workspace.startswith("/"):
        raise Refused(f"{file}:{_line_of('workspaceFolder', text)}: workspaceFolder should be an absolute path")
    image = _image(git, commit, body, file, text, report)
    made = Devcontainer(commit, file, image, os.path.normpath(workspace) if workspace else "",
                        variables_of(body, workspace or str(checkout), file), setup_of(body, file),
                        options_of(body, file))
    write_json(_record(home, git.key), to_dict(made))
    return made


def _read(git: Git, commit: str) -> tuple[str, str]:
    for file in FILES:
        found = git.run("cat-file", "blob", f"{commit}:{file}", check=False, most=_MAX_BYTES)
        if found.code == 0:
            return file, found.out
    raise Refused(f"mode = \"container\" has no image, and {commit[:10]} has no {' or '.join(FILES)}: {_way_out()}")


def _image(git: Git, commit: str, body: Mapping[str, object], file: str, text: str,
           report: Callable[[str], None]) -> str:
    build = body.get("build") if isinstance(body.get("build"), dict) else {}
    assert isinstance(build, dict)
    dockerfile = build.get("dockerfile") or body.get("dockerFile")
    image = body.get("image")
    if body.get("features"):
        return _build_with_features(git, commit, file, text, report)
    if isinstance(image, str) and image and not image.startswith("-"):
        return image
    if not isinstance(dockerfile, str):
        raise Refused(f"{file}:1: it names neither image nor build.dockerfile; {_way_out()}")
    folder = os.path.dirname(file)  # noqa: PTH120  # of the repository, not of the machine
    context = os.path.normpath(f"{folder}/{build.get('context') or body.get('context') or '.'}")
    recipe = os.path.normpath(f"{folder}/{dockerfile}")
    for path in (context, recipe):
        if path.startswith(("..", "/")):
            raise Refused(f"{file}:{_line_of('build', text)}: {path} is not in the repository")
    args = build.get("args") or {}
    options = [word for name, value in args.items() for word in ("--build-arg", f"{name}={value}")] if isinstance(
        args, dict) else []
    if isinstance(target := build.get("target"), str):
        options += ["--target", target]
    # git follows no link here, so neither may the engine: a link could point to the user's own files.
    is_folder = context == "." or _entry(git, commit, context).startswith("040000 ")
    if not is_folder or not (blob := _entry(git, commit, recipe)).startswith("100"):
        raise Refused(f"{file}:{_line_of('build', text)}: {commit[:10]} has no {recipe if is_folder else context}, or "
                      "a link instead of it")
    tree = git.run("rev-parse", f"{commit}^{{tree}}" if context == "." else f"{commit}:{context}").out.strip()
    digest = hashlib.sha256("\0".join([tree, blob, *options]).encode()).hexdigest()[:16]

    def build_in(source: Path, engine: str, name: str) -> list[str]:
        return [engine, "build", "--quiet", "--tag", name, "--file", str(source / recipe), *options,
                str(source / context)]

    return _build(git, commit, digest, build_in, f"{file}:{_line_of('build', text)}", report)


def _entry(git: Git, commit: str, path: str) -> str:
    """Return the line of git's listing for a path of a commit, '' if it has none."""
    return git.run("ls-tree", commit, "--", path, check=False).out.strip()


def _build_with_features(git: Git, commit: str, file: str, text: str, report: Callable[[str], None]) -> str:
    """Build with the devcontainer program, which supports features."""
    program, where = shutil.which("devcontainer"), f"{file}:{_line_of('features', text)}"
    if program is None:
        raise Refused(f"{where}: features need the program devcontainer, which is missing: install it with "
                      f"`npm install -g @devcontainers/cli`, or {_way_out()}")
    tree = git.run("rev-parse", f"{commit}^{{tree}}").out.strip()

    def build_in(source: Path, engine: str, name: str) -> list[str]:
        return [str(program), "build", "--workspace-folder", str(source), "--image-name", name, "--docker-path", engine]

    return _build(git, commit, hashlib.sha256(f"features\0{tree}".encode()).hexdigest()[:16], build_in, where, report)


def _build(git: Git, commit: str, digest: str, words: Callable[[Path, str, str], list[str]], where: str,
           report: Callable[[str], None]) -> str:
    """Build an image from the files of a commit unless it exists; return its name."""
    name = f"localhost/garrison-devcontainer:{digest}"
    refusal = "neither podman nor docker is installed"
    for engine in filter(None, map(shutil.which, container.ENGINES)):
        if run([engine, "image", "inspect", name], 60).ok:
            return name
        if not (server := run([engine, "info"], 60)).ok:
            refusal = server.last_error
            continue
        report(f"container: building the image of {where}")
        with tempfile.TemporaryDirectory(prefix="garrison-build-") as folder:
            archive, source = Path(folder, "files.tar"), Path(folder, "files")
            source.mkdir()
            git.run("archive", "--format=tar", "-o", str(archive), commit)
            if not (unpacked := run(["tar", "-xf", str(archive), "-C", str(source), "--no-same-owner"], 600)).ok:
                raise Refused(f"{where}: {unpacked.last_error}")
            done = run(words(source, engine, name), _BUILD_TIMEOUT)
        if not done.ok:
            raise Refused(f"{where}: the image cannot be built: {container.first_error(done)}; {_way_out()}")
        return name
    raise Refused(f"{where}: the image cannot be built: {refusal}")


def prepare_launch(git: Git, commit: str, config: Sequence[Rights], checkout: Path,
                   report: Callable[[str], None]) -> Devcontainer | None:
    """Prepare the container of a repository if any of these rights needs it; return it."""
    needy = next((rights for rights in config if rights.mode is Mode.CONTAINER and not rights.image), None)
    if needy is None or git.home is None:
        return None
    made = prepare(git, commit, git.home, checkout, needy.devcontainer, report)
    report(f"container: {made.file} of the target, image {made.image}")
    return made


# ---- using -----------------------------------------------------------------------------------------------------------


def of_repository(git: Git) -> Devcontainer | None:
    """Return the container that the last launch on a repository recorded; None without one."""
    if git.home is None:
        return None
    body = read_json(_record(git.home, git.key))
    return None if body is None else from_dict(Devcontainer, body, _record(git.home, git.key))


def with_devcontainer(rights: Rights, git: Git) -> Rights:
    """Return the rights with the repository's container, if config.toml names none; Refused if the repository has none
    either."""
    if rights.mode is not Mode.CONTAINER or rights.image:
        return rights
    found = of_repository(git)
    if found is None:
        raise Refused(f"mode = \"container\" has no image, and no launch has read a devcontainer.json: {_way_out()}")
    return replace(rights, image=found.image, workspace=Path(found.workspace) if found.workspace else None,
                   container_env=tuple(found.env.items()), container_options=found.options)


def image_key(rights: Rights, git: Git) -> str:
    """Return the image of a set-up, on which its result depends in addition to its command and files."""
    if rights.mode is not Mode.CONTAINER:
        return ""
    return f" {container.ready(with_devcontainer(rights, git).image).image_id}"


def _record(home: Path, key: str) -> Path:
    return atomic.make_directory(home / "containers") / f"{key}.json"
