"""Workflow files: YAML (so JSON too) with the fields of `Workflow`, and `servers` for MCP.

    name: slow-tests
    inputs: {folder: tests}
    servers:
      notes: {command: [python3, -m, my_notes_server]}
    steps:
      - {name: files, tool: files.list, arguments: {pattern: "${inputs.folder}/**/test_*.py"}}
      - {name: slow, tool: "my_tools:slowest", arguments: {files: "${files.files}"}}     # a Python function
      - {name: keep, tool: notes.add, arguments: {text: "${files.count} files"}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import NotFound
from garrison.spelling import correction
from garrison.workflow.errors import Place, WorkflowValidationError
from garrison.workflow.mcp_tools import ServerSpec
from garrison.workflow.models import Workflow
from garrison.workflow.references import INPUTS, references

if TYPE_CHECKING:
    import yaml

BASE_DIR = "base"
"""Metadata key: the directory of the workflow's file, where its Python tools are searched for."""


def read_workflow(path: Path, given: Mapping[str, object] | None = None) -> tuple[Workflow, dict[str, ServerSpec]]:
    """Return the workflow of a file, with `given` overriding its inputs, and its servers.

    Raises:
        WorkflowValidationError: the file is invalid; the message is one line and names the place.
    """
    body = _load(path)
    specs, servers = _servers(path, body)
    try:
        workflow = Workflow.from_data(body)
    except WorkflowValidationError as error:
        raise WorkflowValidationError(f"{path}{_line(path, error.place)}: {error}") from error
    _check_given(path, workflow, given or {})
    workflow.inputs = {**workflow.inputs, **(given or {})}
    workflow.metadata = {**workflow.metadata, BASE_DIR: str(path.absolute().parent)}
    if specs:
        workflow.metadata = {**workflow.metadata, "servers": servers}
    return workflow, specs


def _check_given(path: Path, workflow: Workflow, given: Mapping[str, object]) -> None:
    """Refuse a value for an input that the workflow neither declares nor uses: a typo would otherwise have no
    effect.
    """
    used = {re.split(r"[.\[]", reference)[1] for step in workflow.steps for reference in references(step.arguments)
            if reference.startswith(f"{INPUTS}.")}
    accepted = [*workflow.inputs, *sorted(used - workflow.inputs.keys())]
    unknown = [name for name in given if name not in accepted]
    if unknown:
        raise WorkflowValidationError(f"{path}: unknown input {unknown[0]!r:.60}; " + correction(
            unknown[0], accepted, f"inputs: {', '.join(accepted) or 'none'}"))


def read_servers(path: Path) -> tuple[dict[str, ServerSpec], dict[str, object]]:
    return _servers(path, _load(path))


def _load(path: Path) -> dict[str, object]:
    import yaml

    try:
        body = yaml.load(path.read_text(encoding="utf-8"), _loader())
    except FileNotFoundError as error:
        raise NotFound(f"no workflow at {path}") from error
    except yaml.MarkedYAMLError as error:
        raise WorkflowValidationError(f"{path}{_location(error)}: {error.problem}"
                                      f"{f' ({error.context})' if error.context else ''}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise WorkflowValidationError(f"{path}: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(body, dict):
        raise WorkflowValidationError(f"{path}: a workflow is a mapping with name and steps")
    return body


def _loader() -> type[yaml.SafeLoader]:
    """Return YAML's safe loader, extended to refuse duplicate keys: the original silently keeps the last value."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> object:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r:.60} appears twice", key.start_mark)
            seen.add(key.value)
        return loader.construct_yaml_map(node)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct_mapping)
    return Loader


def _location(error: yaml.MarkedYAMLError) -> str:
    """Return the position of the error: the start of an unclosed construct, else the place itself."""
    mark = error.context_mark or error.problem_mark
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _servers(path: Path, body: dict[str, object]) -> tuple[dict[str, ServerSpec], dict[str, object]]:
    servers = body.pop("servers", None) or {}
    if not isinstance(servers, dict):
        raise WorkflowValidationError(f"{path}: servers is a mapping of NAME: {{command or url}}")
    try:
        return {str(name): ServerSpec.from_data(str(name), body) for name, body in servers.items()}, servers
    except WorkflowValidationError as error:
        raise WorkflowValidationError(f"{path}{_line(path, error.place)}: {error}") from error


def _line(path: Path, place: Place) -> str:
    """Return line and column of a field in a workflow's file, in the form of a suffix; '' if it is not there."""
    import yaml

    node, mark = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader), None
    for step in place:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            mark = node.start_mark
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        key, node = next(((key, value) for key, value in pairs if key.value == step), (None, None))
        mark = key.start_mark if key is not None else None
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""
