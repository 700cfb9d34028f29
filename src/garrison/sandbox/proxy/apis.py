"""Model APIs: their paths, keys, variables and errors, one table. Pure.

A confined client finds an API at a path of the proxy (`prefix`) through the variables that its tools read. The key it
sends is dropped; the proxy adds the user's. Only calls whose cost can be counted are admitted, so that a key cannot be
used for anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum

from garrison.values import Value


class ApiName(StrEnum):
    """Name of an API, in registrations and logs."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GOOGLE = "google"


class KeyVariable(Value):
    """A variable that contains a key, and the header in which the API expects it."""

    name: str
    header: str
    scheme: str = ""
    """Word before the key in the header, including the space."""
    dummy: str = "sk-garrison-"
    """Prefix of the variable's value inside; programs check the shape of a key."""


class AdmittedCalls(Value):
    """Calls that are admitted."""

    methods: frozenset[str]
    path: str
    """Pattern of the path below the API's base URL, compiled only in the proxy: every orchestrator loads this table."""
    costs: bool
    """True if the answer reports billed tokens."""


class Api(Value):
    """One model API."""

    name: ApiName
    title: str
    prefix: str
    """Path at the proxy for the API's base URL."""
    upstream: str
    """Base URL unless the user has set another."""
    url_variables: tuple[str, ...]
    """Variables that contain the base URL; the first one that the user has set counts."""
    keys: tuple[KeyVariable, ...]
    routes: tuple[AdmittedCalls, ...]
    encode_error: Callable[[int, str], dict[str, object]]
    """Error body of the API for a status and a message."""

    def find_route(self, method: str, path: str) -> AdmittedCalls | None:
        """Return the route that admits a call; None if none does."""
        return next((route for route in self.routes
                     if method in route.methods and re.fullmatch(route.path, path)), None)

    def error_body(self, status: int, message: str) -> bytes:
        return json.dumps(self.encode_error(status, message)).encode()


_GET, _POST = frozenset({"GET", "HEAD"}), frozenset({"POST"})
_ID = r"[A-Za-z0-9_.:-]{1,128}"


def _anthropic_error(status: int, message: str) -> dict[str, object]:
    kinds = {402: "billing_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
             502: "api_error", 504: "timeout_error"}
    return {"type": "error", "error": {"type": kinds.get(status, "invalid_request_error"), "message": message}}


def _openai_error(status: int, message: str) -> dict[str, object]:
    code = {402: "insufficient_quota", 404: "unknown_url"}.get(status)
    kind = "insufficient_quota" if status == 402 else "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _google_error(status: int, message: str) -> dict[str, object]:
    words = {402: "FAILED_PRECONDITION", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 502: "UNAVAILABLE",
             504: "DEADLINE_EXCEEDED"}
    return {"error": {"code": status, "message": message, "status": words.get(status, "INVALID_ARGUMENT")}}


APIS: Mapping[ApiName, Api] = {
    ApiName.ANTHROPIC: Api(
        ApiName.ANTHROPIC, "the Anthropic API", "/anthropic", "https://api.anthropic.com", ("ANTHROPIC_BASE_URL",),
        (KeyVariable("ANTHROPIC_API_KEY", "x-api-key", dummy="sk-ant-api03-garrison-"),
         KeyVariable("ANTHROPIC_AUTH_TOKEN", "authorization", "Bearer ", dummy="sk-ant-garrison-"),
         KeyVariable("CLAUDE_CODE_OAUTH_TOKEN", "authorization", "Bearer ", dummy="sk-ant-oat01-garrison-")),
        (AdmittedCalls(_POST, r"/v1/messages", True),
         AdmittedCalls(_POST, r"/v1/messages/count_tokens", False),
         AdmittedCalls(_GET, rf"/v1/models(/{_ID})?|/?", False)),
        _anthropic_error),
    ApiName.OPENAI: Api(
        ApiName.OPENAI, "the OpenAI API", "/openai/v1", "https://api.openai.com/v1",
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"), (KeyVariable("OPENAI_API_KEY", "authorization", "Bearer "),),
        (AdmittedCalls(_POST, r"/(chat/completions|completions|responses|embeddings)", True),
         AdmittedCalls(_GET, rf"/responses/{_ID}", True),
         AdmittedCalls(_POST, rf"/responses/{_ID}/cancel", True),
         AdmittedCalls(_GET, rf"/models(/[A-Za-z0-9_.:/-]{{1,128}})?|/responses/{_ID}/input_items", False)),
        _openai_error),
    ApiName.GOOGLE: Api(
        ApiName.GOOGLE, "the Gemini API", "/google", "https://generativelanguage.googleapis.com",
        ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"),
        (KeyVariable("GEMINI_API_KEY", "x-goog-api-key", dummy="AIzaSyGarrison"),
         KeyVariable("GOOGLE_API_KEY", "x-goog-api-key", dummy="AIzaSyGarrison")),
        (AdmittedCalls(_POST, rf"/v1(beta|alpha)?/models/{_ID}:((stream)?[gG]enerateContent|(e|batchE)mbedContents?)",
                       True),
         AdmittedCalls(_POST, rf"/v1(beta|alpha)?/models/{_ID}:countTokens", False),
         AdmittedCalls(_GET, rf"/v1(beta|alpha)?/models(/{_ID})?", False)),
        _google_error),
}
KEY_HEADERS = frozenset({key.header for api in APIS.values() for key in api.keys} | {"cookie"})
"""Headers that are dropped from a client's request to an API."""


def find_api(path: str) -> tuple[Api, str] | None:
    """Return the API at a path of the proxy and the path below its base URL; None for any other path."""
    for api in APIS.values():
        if path == api.prefix or path.startswith((f"{api.prefix}/", f"{api.prefix}?")):
            return api, path[len(api.prefix):]
    return None
