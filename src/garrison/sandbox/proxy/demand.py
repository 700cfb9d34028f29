"""Demand: highest possible cost of a model API call, from its request. Pure.

A text has at most one token per byte. What a request only refers to (an earlier response, a file, an address, a tool
that the API itself runs) may fill the model's context. An answer has at most the tokens that the request allows; a
request without a limit gets one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping

from garrison.records.budget import FLOOR
from garrison.records.costs import CACHE_WRITE, CACHE_WRITE_HOUR, estimate
from garrison.sandbox.proxy.apis import ApiName
from garrison.values import Value

DEFAULT_OUTPUT = 32_000
"""Tokens that an answer may have if the request does not say."""
WINDOW = 1 << 20
"""Tokens of a model's context."""
MAX_ANSWERS = 128
OVERHEAD, _TOOL, _IMAGE = 2_000, 1_000, 8_000
"""Tokens that an API adds to a request and to each built-in tool, and extra cost of an image beyond its bytes."""
_REFERENCES = frozenset({"conversation", "prompt", "cachedContent", "cached_content", "mcp_servers", "container",
                         "web_search_options"})
"""Keys of a request that refer to data stored at the API."""
_FILES = frozenset({"document", "file", "input_file", "input_audio", "audio", "video", "container_upload"})
_FILE_KEYS = frozenset({"fileData", "file_data", "file_id"})
_IMAGES = frozenset({"image", "image_url", "input_image"})
_HOSTED = ("web_search", "web_fetch", "code_", "file_search", "mcp", "image_generation", "tool_search", "googleSearch",
           "google_search", "codeExecution", "urlContext", "url_context", "fileSearch")
"""Prefixes of tools that an API runs itself, whose results it reads."""
_MAX_INFLATED = 64 << 20
MAX_PARTS = 500_000
"""Most commas and brackets in a request: parsing each takes microseconds, and the proxy serves other agents too."""
_DEARER = frozenset({"service_tier", "serviceTier", "speed", "inference_geo"})
"""Keys of a request that make the same tokens cost more."""


class Demand(Value):
    """Highest cost of one call."""

    model: str = ""
    input: int = 0
    """Upper bound of the request's tokens, at the plain price."""
    output: int = 0
    """Tokens that each answer may have; 0 for a call that writes nothing."""
    answers: int = 1
    continues: str = ""
    """Id of the earlier response that the request continues."""
    body: Mapping[str, object] | None = None
    size: int = 0
    """Bytes of the decoded request."""

    @property
    def floor(self) -> int:
        """Return the fewest tokens of an answer that make the call worthwhile."""
        return min(self.output, FLOOR)

    def usd(self, output: int) -> float:
        """Return what the call costs at most if each answer has that many tokens."""
        return estimate(self.model, {"input_tokens": self.input, "output_tokens": output * self.answers})


NOTHING = Demand()
"""Demand of a call for something already paid."""


def read_demand(api: ApiName, path: str, body: bytes, encoding: str = "") -> Demand:
    """Return the demand of a call; ValueError with a message if it is unknown.

    Args:
        path: of the call, below the API's base URL.
        encoding: of the body, '' for none.
    """
    data = _decode(body, encoding)
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_PARTS:
        raise ValueError("the request's body has too many parts")
    try:
        request = json.loads(data)
        text = json.dumps(request)  # as it is sent on, whatever the escaping of its keys
    except (ValueError, RecursionError):
        request, text = None, ""
    if not isinstance(request, dict):
        raise ValueError("the request's body is not a JSON object")  # noqa: TRY004  # what a client sent
    name = path.partition("?")[0].rpartition("/")[2]
    is_google = api is ApiName.GOOGLE
    model = name.partition(":")[0] if is_google else request.get("model")
    output, answers = 0, 1
    if not ("embed" in name or "Embed" in name):
        options = _google_options(request) if is_google else request
        limits = [_number(options[key]) for key in _limit_keys(api, path) if options.get(key) is not None]
        output = max(limits, default=DEFAULT_OUTPUT)
        # The last 1: without any of the keys there would be a single argument, which `max` would treat as a list.
        answers = max(1, *(_number(options[key]) for key in ("n", "best_of", "candidateCount", "candidate_count")
                           if options.get(key) is not None), 1)
        if answers > MAX_ANSWERS:
            raise ValueError(f"the request asks for {answers} answers")
    # No token is shorter than a byte: an upper bound without the models' vocabularies.
    tokens = min(WINDOW, len(data) + OVERHEAD + _beyond(request))
    dearer = 1.0 if "cache_control" not in text else CACHE_WRITE_HOUR if '"1h"' in text else CACHE_WRITE
    continues = request.get("previous_response_id") or ""
    return Demand(model if isinstance(model, str) else "", int(tokens * dearer), output, answers,
                  continues if isinstance(continues, str) else "?", request, len(data))


def limited_body(api: ApiName, path: str, demand: Demand, output: int) -> bytes:
    """Return a request's body that allows each answer that many tokens at the plain price, without duplicate keys."""
    body = {key: value for key, value in (demand.body or {}).items() if key not in _DEARER}
    if demand.output:
        keys = _limit_keys(api, path)
        options = _google_options(body) if api is ApiName.GOOGLE else body
        stated = next((key for key in keys if key in options), keys[0])
        options = {**{key: value for key, value in options.items() if key not in keys}, stated: output}
        if api is ApiName.GOOGLE:
            body.pop("generation_config", None)
            body["generationConfig"] = options
        else:
            body = options
        thinking = body.get("thinking")
        if isinstance(thinking, dict) and isinstance(tokens := thinking.get("budget_tokens"), int | float) \
                and tokens >= output:
            # A thought counts as output, has at least 1,024 tokens, and must leave some for the answer.
            body["thinking"] = {**thinking, "budget_tokens": output // 2} if output >= 2 * FLOOR else {
                "type": "disabled"}
    return json.dumps(body).encode()


def _limit_keys(api: ApiName, path: str) -> tuple[str, ...]:
    """Return the keys that limit an answer of a call; the first is written if none is set."""
    if api is ApiName.GOOGLE:
        return "maxOutputTokens", "max_output_tokens"
    where = path.partition("?")[0]
    return {"/responses": ("max_output_tokens",),
            "/chat/completions": ("max_completion_tokens", "max_tokens")}.get(where, ("max_tokens",))


def _google_options(request: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a request to Google, which accepts both spellings."""
    found: dict[str, object] = {}
    for key in ("generation_config", "generationConfig"):
        value = request.get(key)
        found |= value if isinstance(value, dict) else {}
    return found


def _beyond(request: Mapping[str, object]) -> int:
    """Return the tokens that a request may use beyond its bytes."""
    if not _REFERENCES.isdisjoint(key for key, value in request.items() if value):
        return WINDOW
    tokens = 0
    for part in _tables(request):
        kind, inline = part.get("type"), part.get("inlineData", part.get("inline_data"))
        if kind in _FILES or not _FILE_KEYS.isdisjoint(part) or (inline and not _is_image(inline)):
            return WINDOW
        tokens += _IMAGE if kind in _IMAGES or inline else 0
    tools = _tools(request)
    return WINDOW if any(map(_is_hosted, tools)) else tokens + _TOOL * len(tools)


def without_hosted_tools(demand: Demand) -> bytes | None:
    """Return a request without the tools that the API runs itself; None if it has none."""
    body = dict(demand.body or {})
    tools = _tools(body)
    kept = [tool for tool in tools if not _is_hosted(tool)]
    if len(kept) == len(tools):
        return None
    body["tools"] = kept
    if not kept:  # APIs refuse an empty list, and a tool choice without tools
        del body["tools"]
        body.pop("tool_choice", None)
    return json.dumps(body).encode()


def _tools(request: Mapping[str, object]) -> list[object]:
    tools = request.get("tools")
    return tools if isinstance(tools, list) else []


def _is_hosted(tool: object) -> bool:
    names = (*tool, tool.get("type")) if isinstance(tool, dict) else ()
    return any(isinstance(name, str) and name.startswith(_HOSTED) for name in names)


def _is_image(inline: object) -> bool:
    return isinstance(inline, dict) and str(inline.get("mimeType", inline.get("mime_type"))).startswith("image/")


def _tables(value: object) -> Iterator[Mapping[str, object]]:
    """Yield the tables of a request that describe a part: of its messages and its tools."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict):
            yield found
            is_call = str(found.get("type")).endswith("tool_use")
            waiting += [each for key, each in found.items() if key not in _OPAQUE and not (is_call and key == "input")]


_OPAQUE = frozenset({"input_schema", "parameters", "functionDeclarations", "function_declarations", "schema", "args",
                     "functionCall", "function_call", "functionResponse", "function_response", "response_format",
                     "metadata", "output_config"})
"""Keys of the inputs of the user's own tools, which may contain any word."""


def _number(value: object) -> int:
    try:
        number = int(value) if isinstance(value, int | float | str) else -1
    except (ValueError, OverflowError):
        number = -1
    if number < 0:
        raise ValueError("the request has a limit that is not a number")
    return number


def _decode(body: bytes, encoding: str) -> bytes:
    """Return a decoded body; only zlib's encodings are supported."""
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() not in ("gzip", "deflate", "x-gzip"):
        raise ValueError(f"the request's body is encoded as {encoding[:20]}, which cannot be read")
    reader = zlib.decompressobj(47)  # with a header of gzip or of zlib, whichever is there
    try:
        data = reader.decompress(body, _MAX_INFLATED)
    except zlib.error as error:
        raise ValueError("the request's body does not match its encoding") from error
    if reader.unconsumed_tail or not reader.eof:
        raise ValueError("the request's body is too long, or cut off")
    return data
