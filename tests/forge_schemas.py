"""GitHub's published OpenAPI description: checks what the double sends, and made the templates that it fills in.

`python tests/forge_schemas.py` fetches the description (npm, `@octokit/openapi`, MIT) into a cache and writes
`tests/doubles/forge_templates.json`: for each object the fields that the schema requires, with neutral values.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

VERSION = "23.0.2"
CACHE = Path.home() / ".cache/garrison-tests/octokit-openapi"
TEMPLATES = Path(__file__).resolve().parents[1] / "tests/doubles/forge_templates.json"
OBJECTS = ("pull-request", "pull-request-simple", "simple-user", "full-repository", "branch-with-protection",
           "branch-protection", "check-run", "combined-commit-status", "status", "pull-request-review",
           "pull-request-review-comment", "review-comment", "issue-comment", "issue", "label",
           "pull-request-merge-result", "repository-collaborator-permission", "public-user")


def fetch_description() -> dict[str, Any]:
    """Return GitHub's OpenAPI description; fetched once."""
    name = f"octokit-openapi-{VERSION}.tgz"
    if not (CACHE / name).is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", f"@octokit/openapi@{VERSION}"], cwd=CACHE, check=True,
                       capture_output=True, timeout=300)
    with tarfile.open(CACHE / name) as archive:
        file = archive.extractfile("package/generated/api.github.com.json")
        assert file is not None
        found: dict[str, Any] = json.load(file)
        return found


def to_json_schema(value: Any) -> Any:
    """Return a schema of OpenAPI 3.0 as JSON Schema: `nullable` becomes a type."""
    if isinstance(value, list):
        return [to_json_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: to_json_schema(each) for key, each in value.items() if key not in {"nullable", "example", "examples"}}
    return {"anyOf": [made, {"type": "null"}]} if value.get("nullable") is True else made


class Templates:
    """Objects with the required fields only."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas

    def make(self, schema: dict[str, Any]) -> Any:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        if schema.get("nullable"):
            return None
        for union in ("oneOf", "anyOf"):
            if union in schema and "properties" not in schema:
                return self.make(schema[union][0])
        if "allOf" in schema:
            merged: dict[str, Any] = {}
            for each in schema["allOf"]:
                merged |= self.make(each) or {}
            return merged
        if "enum" in schema:
            return schema["enum"][0]
        kind = schema.get("type", "object")
        if kind == "object":
            properties = schema.get("properties", {})
            return {name: self.make(properties.get(name, {"type": "string"})) for name in schema.get("required", ())}
        formats = {"uri": "http://127.0.0.1/", "date-time": "2026-01-01T00:00:00Z"}
        neutral = {"array": [], "integer": 0, "number": 0, "boolean": False}
        return neutral.get(kind, formats.get(schema.get("format", ""), ""))


def main() -> None:
    schemas = fetch_description()["components"]["schemas"]
    made = {name: Templates(schemas).make({"$ref": f"#/components/schemas/{name}"}) for name in OBJECTS}
    TEMPLATES.write_text(json.dumps(made, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    print(f"{TEMPLATES}: {TEMPLATES.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
