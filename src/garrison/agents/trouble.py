"""Failures that stop agents: one table of classes for sessions and programs, and how their messages are parsed.

A class says whether to wait for its end, and with which pauses; when another agent takes over (`failover`); what it
means for the restart policy; and its text in `status`. Sessions (`conversation.policy`) and programs (`command`) act on
the table. The API's own answer determines the class of a failure, if the run's proxy has seen it (`judge`); else a
status, the name that an API or a CLI gives it, or its text.

For a *program* only the end of its output counts, and only if it failed: its output is an agent's, which may mention
limits for many reasons (its task is a rate limiter, a test has `429` in its name). `find_witness` therefore searches
from the end for an error as clients print it, and stops at the first line that names another reason.

Everything here is pure, with `now` as an argument, except for reading this machine's time zone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from garrison.backoff import Backoff
from garrison.supervise import death_classes
from garrison.system.clock import find_zone
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.records.api_answers import ApiAnswer
    from garrison.records.budget import Shortfall

SAME_DAY = 20 * 3600.0
"""Longest wait in seconds whose end is shown as a time of day."""


class TroubleKind(StrEnum):
    """Classes of failures that stop an agent; the values are stored in records."""

    RATE_LIMIT = "rate_limit"
    QUOTA = "quota"
    """The account's quota is used up: for a day or a month, or until the user raises it."""
    OVERLOADED = "overloaded"
    SERVER = "server"
    NETWORK = "network"
    VANISHED = "vanished"
    """The agent's program has disappeared since the launch: usually an update is replacing it."""
    BROKEN = "broken"
    """The program exists but cannot be run, or a part is missing: perhaps an update is in progress."""
    AUTHENTICATION = "authentication"
    BILLING = "billing"
    BUDGET = "budget"
    RESERVED = "reserved"
    """Calls of other sessions may cost what is left of a budget."""
    CONTEXT = "context"
    HISTORY = "history"
    """The API refuses the session's own messages: each further request would also be refused."""
    UNKNOWN_SESSION = "unknown_session"
    INVALID = "invalid"
    MAX_TURNS = "max_turns"
    TOO_LONG = "too_long"
    """An answer reaches the model's output limit."""
    REFUSED = "refused"
    """The model refuses the task."""
    CRASH = "crash"
    HANG = "hang"
    LOOP = "loop"
    """The session is looping (`conversation.loop_detector`)."""
    START = "start"
    """The program does not start."""
    PROTOCOL = "protocol"
    """An ACP agent violates the protocol."""


class FailoverRule(StrEnum):
    """When another agent takes over, if one is named."""

    AT_ONCE = "at once"
    PATIENT = "after patience"
    """Once the wait for its end exceeds the patience, or the agent has been given up."""
    GIVEN_UP = "given up"
    """Once the agent has been given up, after its own retries."""
    NEVER = "never"


class Handling(Value):
    """Reaction to a class of failures."""

    failover: FailoverRule
    backoff: Backoff | None = None
    """Pauses before automatic retries of the same agent; None: no retries."""
    death: str = death_classes.CRASH
    """Its class in the restart policy."""
    words: str = ""
    """Its name in `status`, '' if it is no interruption."""
    max_total: int | None = None
    """Most such failures of one attempt, despite progress in between: each costs a call."""
    max_seconds: float | None = None
    """Longest wait for its end in seconds, after which the attempt fails; None for no limit."""


TABLE: Mapping[TroubleKind, Handling] = {
    TroubleKind.RATE_LIMIT: Handling(FailoverRule.PATIENT, Backoff(30.0, 900.0), death_classes.RATE_LIMIT,
                                     "rate limit"),
    TroubleKind.QUOTA: Handling(FailoverRule.AT_ONCE, Backoff(60.0, 900.0), death_classes.RATE_LIMIT, "quota used up"),
    TroubleKind.OVERLOADED: Handling(FailoverRule.PATIENT, Backoff(2.0, 120.0), words="API overloaded"),
    TroubleKind.SERVER: Handling(FailoverRule.PATIENT, Backoff(2.0, 60.0), words="API failing"),
    TroubleKind.NETWORK: Handling(FailoverRule.PATIENT, Backoff(1.0, 60.0), words="API not reachable"),
    TroubleKind.VANISHED: Handling(FailoverRule.AT_ONCE, Backoff(1.0, 10.0), death_classes.SHORTAGE, "program gone"),
    TroubleKind.BROKEN: Handling(FailoverRule.AT_ONCE, Backoff(1.0, 10.0), death_classes.SHORTAGE, "program broken",
                                 max_seconds=600.0),
    TroubleKind.HANG: Handling(FailoverRule.GIVEN_UP, Backoff(0.5, 10.0, 3), death_classes.HUNG, "interrupted",
                               max_total=8),
    TroubleKind.TOO_LONG: Handling(FailoverRule.NEVER, Backoff(0.5, 10.0, 3), words="response too long", max_total=3),
    TroubleKind.RESERVED: Handling(FailoverRule.NEVER, Backoff(2.0, 30.0), death_classes.RATE_LIMIT,
                                   "waits for the budget"),
    TroubleKind.AUTHENTICATION: Handling(FailoverRule.AT_ONCE, None, death_classes.AUTHENTICATION),
    TroubleKind.BILLING: Handling(FailoverRule.AT_ONCE, None, death_classes.BILLING),
    # The next agent would spend what the user has limited, or make another model do what the first one refused.
    TroubleKind.BUDGET: Handling(FailoverRule.NEVER, None, death_classes.BUDGET),
    TroubleKind.REFUSED: Handling(FailoverRule.NEVER),
    TroubleKind.MAX_TURNS: Handling(FailoverRule.NEVER),
    TroubleKind.CONTEXT: Handling(FailoverRule.NEVER, None, death_classes.CHURN, "context full"),
    TroubleKind.HISTORY: Handling(FailoverRule.GIVEN_UP, None, death_classes.CHURN, "history refused by the API"),
    TroubleKind.LOOP: Handling(FailoverRule.NEVER, words="interrupted, it goes round"),
    TroubleKind.UNKNOWN_SESSION: Handling(FailoverRule.GIVEN_UP, words="session lost"),
    TroubleKind.CRASH: Handling(FailoverRule.GIVEN_UP),
    TroubleKind.INVALID: Handling(FailoverRule.AT_ONCE),
    TroubleKind.START: Handling(FailoverRule.AT_ONCE),
    TroubleKind.PROTOCOL: Handling(FailoverRule.AT_ONCE),
}
"""Class → reaction; every class has a line."""
CLASSES: Mapping[str, str] = {kind: each.death for kind, each in TABLE.items() if each.death != death_classes.CRASH
                              or kind is TroubleKind.CRASH}
"""Class of a failure → its class in the restart policy; any other is a crash there."""

WHAT_TO_DO: Mapping[str, str] = {
    TroubleKind.AUTHENTICATION: "the key or log-in was refused: set ANTHROPIC_API_KEY (and pass it on), or run "
                                "`garrison login`",
    TroubleKind.BILLING: "the account cannot pay: resolve that with the provider",
    TroubleKind.BUDGET: "the budget is used up: raise it in config.toml or the graph",
}
"""Failure of a session → instruction for the user, who must act before it can continue."""
TRANSIENT: Mapping[str, Backoff] = {kind: each.backoff for kind, each in TABLE.items() if each.backoff is not None}
"""Classes that end by themselves, with their pauses."""
LIMITS = frozenset({TroubleKind.RATE_LIMIT, TroubleKind.QUOTA})
"""Classes that end at a time that may be known."""
OUTAGES = LIMITS | {TroubleKind.OVERLOADED, TroubleKind.SERVER, TroubleKind.NETWORK}
"""Classes that stop every agent of an account (`agents.outages`)."""
_WITNESSED = OUTAGES | {TroubleKind.AUTHENTICATION, TroubleKind.BILLING, TroubleKind.CONTEXT, TroubleKind.HISTORY,
                        TroubleKind.INVALID, TroubleKind.CRASH, TroubleKind.HANG}
"""Classes for which the API's own answer is more precise than the agent's program."""
MAX_WAIT = 8 * 86_400.0
"""Longest wait for a reset that a record names, in seconds: a weekly limit plus one day."""
MAX_RESET = 7 * 86_400.0
"""Longest wait for a reset that a text names, in seconds."""


def ruling(kind: str) -> death_classes.Ruling:
    return death_classes.ruling(CLASSES.get(kind, death_classes.CRASH))


class _Pattern(str):
    """Case-insensitive pattern, compiled on first use: most processes that load the table parse no text."""

    __slots__ = ()

    def search(self, text: str) -> re.Match[str] | None:
        return _compile(self).search(text)

    def findall(self, text: str) -> list[Any]:
        return _compile(self).findall(text)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# ---- which class a failure has

_STATUSES: Mapping[int, TroubleKind] = {
    401: TroubleKind.AUTHENTICATION, 402: TroubleKind.BILLING, 403: TroubleKind.AUTHENTICATION,
    408: TroubleKind.NETWORK, 413: TroubleKind.CONTEXT, 429: TroubleKind.RATE_LIMIT, 529: TroubleKind.OVERLOADED}
_CONTEXT = (r"prompt (?:is )?too long|context (?:window|length|limit)|ContextWindow|input length and .?max_tokens|"
            r"request_too_large|token count\b.{0,20}\bexceeds|input tokens exceed|reduce the length of the messages")
_HISTORY = (r"tool_use.{0,3} ids? w(?:ere|as) found without|unexpected .{0,3}tool_use_id|blocks must be non-empty|"
            r"must have non-empty content|blocks\b.{0,60}\bcannot be modified|first block must be .{0,3}thinking|"
            r"could not process image|image dimensions exceed|must be followed by tool messages|no tool output found|"
            r"function call turn comes immediately|number of function response parts|roles must alternate|"
            r"cannot end with trailing whitespace")
_QUOTA = (r"insufficient[_ ]quota|exceeded your current quota|specified (?:\w+ )?api usage limits|"
          r"you will regain access|(?:daily|monthly|free.tier) (?:quota|limit|usage|requests?)\b.{0,30}"
          r"(?:exceeded|exhausted|reached|used up)|"
          r"(?:quota|credits?) (?:is |are |has been )?(?:used up|exhausted)|out of (?:quota|credits)|models-per-day|"
          r"quota exceeded\. check your plan|reached your daily\b.{0,40}\b(?:quota|limit)")
_RATE_LIMIT = (r"too many requests|rate.?limit.?(?:error|exceeded|reached|hit)|rate.?limit(?:ed)?\b.{0,60}\b(?:exceeded"
               r"|reached|hit|error|exhausted|429|again|retry|wait|for (?:model|requests|tokens|this))|"
               r"\bexceed(?:ed|s)?\b.{0,40}rate.?limit|\brate.?limited\b|\blimit (?:has been )?(?:reached|exceeded)|"
               r"\b(?:hit|reached|exceeded|exhausted) (?:your|the|its|this model's|all (?:of )?your)\b.{0,50}"
               r"\b(?:limit|quota)|\bhit a rate limit|\blimit will reset|resource[_ ](?:has been )?exhausted|"
               r"quota (?:has been )?(?:exceeded|reached)|exceeded your .{0,30}quota|quota exceeded|"
               r"throttling(?:exception|error)|out of extra usage")
_OVERLOADED = (r"overloaded_error|\b529\b|\b(?:is|are|was|currently|temporarily|servers?|models?|api|service)\b[^\n]{0,"
               r"30}\boverloaded\b|(?:^|[\"':({\[]|exception -)\s*overloaded\b(?!\s+(?:function|method|operator|"
               r"constructor))|\b(?:at|over) capacity\b|experiencing high (?:demand|load)")
_NETWORK = (r"connection (?:error|refused|reset|closed|timed out|aborted)|econn(?:refused|reset|aborted)|etimedout|"
            r"enotfound|eai_again|getaddrinfo|could not resolve|name or service not known|name resolution|dns error|"
            r"no such host|network (?:is |error|failure)|e(?:host|net)unreach|no route to host|fetch failed|"
            r"socket hang up|socket connection was closed|unable to connect|"
            r"(?:failed|cannot|could not) (?:to )?connect|(?:request|connect(?:ion)?|read) ?time(?:d )?.?out")
_AUTHENTICATION = (r"authentication[_ ](?:error|failed)|invalid (?:x-)?api.?key|incorrect api key|api key not valid|"
                   r"permission_error|not logged in|please run /login|"
                   r"oauth token (?:has )?(?:been )?(?:expired|revoked)")
# The first match counts, so the narrower class comes first: messages about a quota also mention limits and billing.
_BY_TEXT = tuple((kind, _Pattern(pattern)) for kind, pattern in (
    (TroubleKind.UNKNOWN_SESSION, r"no conversation found|session .{0,60}not found"),
    (TroubleKind.CONTEXT, _CONTEXT),
    (TroubleKind.HISTORY, _HISTORY),
    (TroubleKind.QUOTA, _QUOTA),
    (TroubleKind.BILLING, r"billing|credit balance|payment|insufficient (?:credit|balance|funds)"),
    (TroubleKind.AUTHENTICATION, rf"authentication|unauthori[sz]ed|set an auth method|(?:log|sign) ?in again|"
                                 rf"{_AUTHENTICATION}"),
    (TroubleKind.RATE_LIMIT, rf"rate.?limit|usage limit|{_RATE_LIMIT}"),
    (TroubleKind.OVERLOADED, rf"overloaded|{_OVERLOADED}"),
    (TroubleKind.NETWORK, rf"{_NETWORK}|timed? ?out|socket|network|error sending request|stream closed before"),
))
_REFINED: Mapping[TroubleKind, frozenset[TroubleKind]] = {
    TroubleKind.INVALID: frozenset({TroubleKind.CONTEXT, TroubleKind.HISTORY, TroubleKind.QUOTA, TroubleKind.BILLING,
                                    TroubleKind.AUTHENTICATION}),
    TroubleKind.AUTHENTICATION: frozenset({TroubleKind.QUOTA, TroubleKind.BILLING}),
    TroubleKind.RATE_LIMIT: frozenset({TroubleKind.QUOTA}),
    TroubleKind.SERVER: frozenset({TroubleKind.OVERLOADED}),
    TroubleKind.TOO_LONG: frozenset({TroubleKind.CONTEXT})}
"""Class by status or name → classes that the message may narrow it to."""
_BY_ERROR: Mapping[str, TroubleKind] = {
    "max_output_tokens": TroubleKind.TOO_LONG, "authentication_failed": TroubleKind.AUTHENTICATION,
    "billing_error": TroubleKind.BILLING, "rate_limit": TroubleKind.RATE_LIMIT,
    "model_not_found": TroubleKind.INVALID, "invalid_request": TroubleKind.INVALID,
    "error_max_turns": TroubleKind.MAX_TURNS, "error_max_budget_usd": TroubleKind.BUDGET,
    "budget": TroubleKind.BUDGET, "refusal": TroubleKind.REFUSED}
"""Class by the CLI's name of a failure, in its result or the message before it."""
_MAX_TEXT = 4_000
"""Characters of a message that are parsed."""
_BUDGET = _Pattern("garrison: budget used up")
"""Answer of garrison's proxy, which refuses calls beyond a budget."""


def kind_of_shortfall(shortfall: Shortfall) -> TroubleKind:
    """Return the class of missing money for a call: used up, or only reserved by others."""
    return TroubleKind.RESERVED if shortfall.is_reserved else TroubleKind.BUDGET


def classify(status: int | None, text: str, error: str = "") -> TroubleKind:
    """Return the class of an API failure, for Claude, ACP agents and the proxy alike.

    Args:
        status: HTTP status, None if unknown: then the text may name one.
        text: its message.
        error: the CLI's own name of the failure.
    """
    text = text[:_MAX_TEXT]
    # Our own proxy's refusal: by status it would be the provider's billing, and another agent would take over.
    if _BUDGET.search(text) and status in (None, 402):
        return TroubleKind.BUDGET
    by_text = classify_text(text)
    kind = _BY_ERROR.get(error) if status is None else None
    if kind is None:
        status = status or _find_status(text)
        if status is None:
            return by_text or TroubleKind.SERVER
        kind = _STATUSES.get(status) or (TroubleKind.SERVER if status >= 500 else TroubleKind.INVALID)
    return by_text if by_text is not None and by_text in _REFINED.get(kind, ()) else kind


def judge(kind: str, answer: ApiAnswer | None) -> TroubleKind | None:
    """Return the class of a failure by the API's own last answer; None if that does not determine it.

    Args:
        kind: class by the agent's program, or an ending that is no failure: then only temporary classes count.
    """
    if answer is None:
        return None
    is_refused = answer.status is not None and answer.status >= 300
    seen = TroubleKind.NETWORK if answer.status is None else \
        classify(answer.status if is_refused else None, answer.words, answer.error)
    return seen if kind in _WITNESSED or (kind not in set(TroubleKind) and seen in TRANSIENT) else None


def _find_status(text: str) -> int | None:
    found = _STATUS.search(text)
    return _status_in(found) if found else None


def _status_in(found: re.Match[str]) -> int:
    """Return the status that one of the forms of `_STATUS` names."""
    return int(next(filter(None, found.groups())))


def classify_text(text: str) -> TroubleKind | None:
    """Return the class of an API failure only by its message, None if unknown."""
    return next((kind for kind, pattern in _BY_TEXT if pattern.search(text[:_MAX_TEXT])), None)


# ---- the last output of a program

_STATUS = _Pattern(
    r"(?:api error|\bhttp(?:/[\d.]+)?|\bstatus(?:[ _]?code)?|\berror(?:[ _]code)?|\bcode|server (?:returned|answered))"
    r"[\s:=(\[\\\"']{1,4}(?:is |was |of )?[\"']?([45]\d\d)\b|\((429|529|50[0234])\)|"
    r"\b(429|529)[\s:]{1,2}(?:\{|too many|overloaded|rate|site|resource|sorry|you)|^\W*(429|529)\b")
_STRICT = tuple((kind, _Pattern(pattern)) for kind, pattern in (
    (TroubleKind.QUOTA, _QUOTA), (TroubleKind.RATE_LIMIT, _RATE_LIMIT), (TroubleKind.OVERLOADED, _OVERLOADED),
    (TroubleKind.BILLING, r"credit balance|billing_error|insufficient (?:credit|balance|funds)"),
    (TroubleKind.AUTHENTICATION, rf"401 unauthori[sz]ed|{_AUTHENTICATION}"),
))
_SERVICE = _Pattern(r"internal server error|service (?:is )?(?:temporarily |currently )?unavailable|bad gateway|"
                      r"gateway time.?out|\bUNAVAILABLE\b|server_error|upstream connect")
_REACH = _Pattern(rf"{_NETWORK}|stream disconnected|error sending request")
_MODEL = _Pattern(r"\bapi\b|api(?:connection|timeout|status)?error|anthropic|openai|claude|codex|gemini|googleapis|"
                    r"openrouter|mistral|deepseek|groq|litellm|bedrock|vertex|chatgpt|\bx\.ai\b|\bllm\b|\bmodels?\b|"
                    r"ollama|stream (?:error|disconnected)")
"""Marks a line as being about a model's API."""
_LOOPBACK = _Pattern(r"\blocalhost\b|\b127\.\d+\.\d+\.\d+|\[?::1\b|\b0\.0\.0\.0\b")
_ANOTHER_MATTER = re.compile(r"^\W*(?:I|We) [a-z]|\bassert|\bexpected\b|\bexpect\(|::test|\btest_\w|\btests?[/\\]|"
                             r"\b\d+ (?:tests? )?failed|^\W*(?:not ok|ok|FAIL(?:ED)?|PASS(?:ED)?)\b|"
                             r"\.(?:py|[jt]sx?|rs|go|c|cc|cpp|java):\d+:")
"""Lines of compilers and tests: what they quote is no failure of the agent."""
_EMPTY = _Pattern(r"^[\W_]*$|^\s*at\s|^\s*File \"|^\s*node:|^Node\.js v|^── |^\s*[\w$'\"-]+:\s.*,$|^\s*\d+: 0x|"
                    r"^\W*request id\b|^\W*tokens? used|^\s*\^+|^\s*\d[\d,]*$")
"""Lines without information: stack frames, brackets, and what clients print below an error."""
_OTHER_FAILURE = _Pattern(r"\b(?:error|failed|failure|fatal|exception|traceback|panic(?:ked)?|denied|not found|cannot|"
                            r"undefined|unexpected|mismatch|conflict|abort(?:ed)?)\b|\w(?:Error|Exception)\b")
_GENERIC = _Pattern(r"^\W*(?:(?:npm|fatal|error|ERR!|warn\w*)\W+)*(?:the |a |an )?(?:command|process|program|agent|run|"
                      r"task|session|request|turn|script|recipe|make\S*|execution|job|lifecycle|elifecycle|exit\w*|"
                      r"code|critical|giving up)\b[^.]{0,80}$|^\W*(?:traceback|exception|error)\W*$")
"""Lines that say that something failed, but not what."""
_AN_ERROR = _Pattern(r"\berrors?\b|Error\b|exception|\bfatal\b|\bfailed\b|^\W*(?:you(?:'|’)?(?:ve|r| have)\b|claude|"
                       r"usage|rate|429|529|too many|overloaded|quota|resource|stream|exceeded|unexpected status|"
                       r"the model|model|api|http|limit)")
_EARLY = 40
"""Characters at the start of a line that contain its cause, unless it is marked as an error: prose mentions it
later."""
_MAX_LINES, _MAX_LINE, _MAX_OTHERS = 80, 2_000, 3


class Witness(Value):
    """Failure in a program's last output."""

    kind: TroubleKind
    line: str
    around: str
    """The line with its neighbours, where a client may say until when."""


def find_witness(output: str, *, is_agent: bool = True, hosts: Collection[str] = (), is_told: bool = False,
                 ) -> Witness | None:
    """Return the failure of its model's API in the last output of a failed program; None for none.

    Args:
        output: the end of what it printed.
        is_agent: it is an agent's own program. Any other command may fail to connect to anything.
        hosts: `host:port` of its model's API, as its environment names it.
        is_told: the output is the message of an error event, which is always about its model's API.
    """
    hosts = ("",) if is_told else hosts
    lines = [line[:_MAX_LINE] for line in output.splitlines()][-_MAX_LINES:]
    others = 0
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if _EMPTY.search(line) and not _STATUS.search(line):
            continue
        if (kind := _classify_line(line, is_agent, hosts)) is not None:
            around = "\n".join((*lines[at:at + 8], *lines[max(0, at - 3):at]))
            return Witness(kind, line.strip(), around)
        others += 1
        # It ended because of a later failure of another kind: the agent may have survived the limit mentioned above.
        if others > _MAX_OTHERS or (_OTHER_FAILURE.search(line) and not _GENERIC.search(line)):
            return None
    return None


def _classify_line(line: str, is_agent: bool, hosts: Collection[str]) -> TroubleKind | None:
    if _ANOTHER_MATTER.search(line) or _BUDGET.search(line):
        return None
    is_error = _AN_ERROR.search(line) is not None
    for kind, pattern in _STRICT:
        if (found := pattern.search(line)) and (is_error or found.start() <= _EARLY):
            return kind
    about_model = _MODEL.search(line) is not None or any(host in line for host in hosts)
    if (found := _STATUS.search(line)) and (is_error or found.start() <= _EARLY):
        status = _status_in(found)
        # These rarely come from a server other than the model's; a 500 may come from any, such as the task's.
        if status in (429, 529):
            return _STATUSES[status]
        if status >= 500 and about_model:
            return TroubleKind.SERVER
    if about_model and is_error and _SERVICE.search(line):
        return TroubleKind.SERVER
    if _REACH.search(line) and (about_model or (is_agent and not _LOOPBACK.search(line))):
        return TroubleKind.NETWORK
    return None


# ---- when a limit is reset

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_UNIT = r"(?:milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|hr|h|days?|d|weeks?|w)"
_AMOUNT = _Pattern(rf"(\d+(?:\.\d+)?)\s*({_UNIT})(?![a-z])")
_DURATION = rf"\d+(?:\.\d+)?\s*{_UNIT}(?:[\s,]*(?:and\s+)?\d+(?:\.\d+)?\s*{_UNIT})*(?![a-z])"
_LEAD = (r"(?:\bagain|\bretry\b|\bresets?|\bresume\w{0,9}|\bavailable|\baccess|\brenews?|\bwait|\brefresh\w{0,9}|"
         r"\bunblocked|\blifted|\bexpires?)")
_IN = _Pattern(rf"{_LEAD}[^\n\d]{{0,40}}?\b(?:in|after|for|within|wait)\W{{0,4}}(?:about |approximately )?"
               rf"({_DURATION})|\bwait ({_DURATION})|"
               rf"(?:retry[-_ ]?delay|retry[-_ ]?after|reset[-_ ]?after)\W{{1,8}}({_DURATION})")
_SOON = _Pattern(rf"{_LEAD}[^\n\d]{{0,40}}?\b(?:in|after) (?:less than )?(a|an|one) (minute|hour|day)\b")
_RETRY_AFTER = _Pattern(r"retry[-_ ]?after(_ms|-ms)?\W{1,5}(\d+(?:\.\d+)?)(?![\d.]*\s*[a-z:-]|\d)")
_EPOCH = _Pattern(r"(?:\||\bresets?(?:[-_ ]?at)?\W{1,5}|resetsAt\W{1,5}|x-ratelimit-reset\W{1,5}|\bat )"
                    r"(1[5-9]\d{8}|[2-4]\d{9})(\d{3})?(?:\.\d+)?(?!\d)")
_ISO = _Pattern(r"(\d{4})-(\d\d)-(\d\d)(?:[T ]| at )(\d\d):(\d\d)(?::(\d\d))?(?:\.\d+)?\s*"
                r"(Z\b|UTC|GMT|[+-]\d\d:?\d\d)?")
_MONTHS = {name: number for number, name in enumerate(
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)}
_DAYS = {name: number for number, name in enumerate(("mon", "tue", "wed", "thu", "fri", "sat", "sun"))}
_MONTH, _WEEKDAY = f"(?:{'|'.join(_MONTHS)})[a-z]*", f"(?:{'|'.join(_DAYS)})[a-z]*"
_DATE = (rf"(?:(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?|(?P<day2>\d{{1,2}})(?:st|nd|rd|th)? "
         rf"(?P<month2>{_MONTH})\.?|(?P<weekday>\b{_WEEKDAY})|(?P<tomorrow>tomorrow))(?:,? (?P<year>\d{{4}}))?")
_TIME = (r"(?:(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?(?::\d\d)?\s*(?P<half>[ap]\.?m\b\.?)|"
         r"(?P<hour24>\d{1,2}):(?P<minute24>\d\d)(?::\d\d)?|(?P<named>midnight|noon))")
_ZONE = r"(?:\s*\(?(?P<zone>[A-Z][A-Za-z_]+/[A-Za-z_+\-0-9/]+|UTC|GMT|Z\b|[A-Z]{2,4}T\b|[+-]\d\d:?\d\d|Pacific)\)?)?"
_CLOCK = _Pattern(rf"(?:{_LEAD}|\buntil|\bat|\blimit)[^\n\d]{{0,40}}?(?:{_DATE})?[\s,]*(?:at\b\s*)?{_TIME}{_ZONE}")
_DAY_ONLY = _Pattern(rf"{_LEAD}[^\n\d]{{0,30}}?{_DATE}{_ZONE}")
_SLASHED = _Pattern(rf"{_LEAD}[^\n\d]{{0,60}}?\b(\d{{1,2}})/(\d{{1,2}})/(\d{{4}})\b")
_ZONES = {"utc": 0, "gmt": 0, "z": 0, "pst": -8, "pdt": -7, "mst": -7, "mdt": -6, "cst": -6, "cdt": -5, "est": -5,
          "edt": -4, "bst": 1, "cet": 1, "cest": 2, "eet": 2, "eest": 3, "ist": 5.5, "jst": 9, "kst": 9, "aest": 10,
          "aedt": 11}
_PAST = timedelta(minutes=30)
"""Largest age of a time without a date: a message is read a moment after it was printed."""


def read_reset(text: str, now: float, zone: tzinfo = UTC) -> float | None:
    """Return when a message says that a limit is reset, in seconds since 1970; None if it names no time.

    A time in the past is returned as it is: then the limit may be gone. One later than `MAX_RESET` from now is cut.

    Args:
        now: seconds since 1970.
        zone: of a time that names none.
    """
    try:
        found = _read_reset(text[:_MAX_TEXT], now, zone)
    except (ValueError, OverflowError):
        return None
    return None if found is None else min(found, now + MAX_RESET)


def _read_reset(text: str, now: float, zone: tzinfo) -> float | None:
    # From exact to vague: a message that names a time often also names a duration or a day.
    if found := _EPOCH.search(text):
        return float(found[1])
    today = datetime.fromtimestamp(now, zone)
    if found := _ISO.search(text):
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        return datetime(year, month, day, hour, minute, second, tzinfo=_zone_of(found[7], zone)).timestamp()
    if found := _IN.search(text):
        amounts = _AMOUNT.findall(found[1] or found[2] or found[3])
        return now + sum(float(number) * _UNITS[_short(unit)] for number, unit in amounts)
    if found := _SOON.search(text):
        return now + _UNITS[found[2][0].lower()]
    if found := _RETRY_AFTER.search(text):
        return now + float(found[2]) * (0.001 if found[1] else 1.0)
    if found := _CLOCK.search(text):
        return _clock(found, today)
    if found := _SLASHED.search(text):
        return datetime(int(found[3]), int(found[1]), int(found[2]), tzinfo=zone).timestamp()
    if found := _DAY_ONLY.search(text):
        return _at(found, today.astimezone(_zone_of(found["zone"], zone)), 0, 0).timestamp()
    return None


def _short(unit: str) -> str:
    unit = unit.lower()
    return "ms" if unit.startswith(("ms", "milli")) else unit[0]


def _clock(found: re.Match[str], today: datetime) -> float:
    """Return the time of a clock time: the next one, unless it has just passed."""
    assert today.tzinfo is not None
    local = today.astimezone(_zone_of(found["zone"], today.tzinfo))
    if found["named"]:
        hour, minute = (0 if found["named"].lower() == "midnight" else 12), 0
    elif found["half"]:
        hour = int(found["hour"]) % 12 + (12 if found["half"].lower().startswith("p") else 0)
        minute = int(found["minute"] or 0)
    else:
        hour, minute = int(found["hour24"]), int(found["minute24"])
    moment = _at(found, local, hour, minute)
    dated = any(found[name] for name in ("month", "month2", "weekday", "tomorrow"))
    if not dated and moment < local - _PAST:
        moment = _at(found, local + timedelta(days=1), hour, minute)
    return moment.timestamp()


def _at(found: re.Match[str], local: datetime, hour: int, minute: int) -> datetime:
    """Return that time on the day that the match names, else on the day of `local`."""
    moment = local.replace(hour=hour, minute=minute, second=0, microsecond=0)
    month, day = found["month"] or found["month2"], found["day"] or found["day2"]
    if found["tomorrow"]:
        return moment + timedelta(days=1)
    if found["weekday"]:
        ahead = (_DAYS[found["weekday"][:3].lower()] - local.weekday()) % 7
        moment += timedelta(days=ahead)
        return moment if ahead or moment >= local - _PAST else moment + timedelta(days=7)
    if not month:
        return moment
    moment = moment.replace(month=_MONTHS[month[:3].lower()], day=int(day))
    if found["year"]:
        return moment.replace(year=int(found["year"]))
    # Without a year: in December, "resets Jan 2" is next year's.
    return moment if moment > local - timedelta(days=180) else moment.replace(year=moment.year + 1)


def _zone_of(name: str | None, default: tzinfo) -> tzinfo:
    if not name:
        return default
    if name.lower() in _ZONES:
        return timezone(timedelta(hours=_ZONES[name.lower()]))
    if name[0] in "+-":
        sign, digits = (-1 if name[0] == "-" else 1), name[1:].replace(":", "")
        return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))
    return find_zone("America/Los_Angeles" if name.lower() == "pacific" else name) or default


def read_told(status: int | None, error: str, message: str) -> Witness | None:
    """Return the failure in the error event at the end of a program's stream; None if it is not about its API.

    Args:
        status: HTTP status, None if it names none.
        error: the program's name for the failure, '' for none.
        message: its text.
    """
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    if status is not None or error in _BY_ERROR:
        return Witness(classify(status, message, error), line or f"status {status}", message)
    return find_witness(message, is_told=True)


def hosts_of(environment: Mapping[str, str]) -> Sequence[str]:
    """Return `host:port` of the model APIs that an environment names."""
    urls = (value for name, value in environment.items()
            if name.endswith(("_BASE_URL", "_API_BASE", "_ENDPOINT", "_API_URL")))
    return tuple(url.partition("://")[2].partition("/")[0] for url in urls if "://" in url)


def describe_moment(at: float, now: float) -> str:
    """Format a time, with its day if it is not soon; both in seconds since 1970. Pure."""
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S UTC}" if at - now > SAME_DAY else f"{moment:%H:%M:%S UTC}"
