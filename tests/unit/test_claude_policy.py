"""What follows when a stretch of a session has ended: the whole table, as histories."""

from __future__ import annotations

import pytest

from garrison.agents.claude import failures as why
from garrison.agents.claude import policy
from garrison.agents.claude.policy import Ending, Move


def after(*kinds: str, answered: bool = False, **last: object) -> Move:
    """The move after endings of these kinds, one second apart."""
    endings = [Ending(kind, float(number)) for number, kind in enumerate(kinds)]
    endings[-1] = Ending(kinds[-1], float(len(kinds) - 1), **last)  # type: ignore[arg-type]
    return policy.decide(endings, answered)


def test_a_session_begins_or_goes_on():
    assert policy.first_move(None) == Move("start", "fresh", "task")
    assert policy.first_move("an-id") == Move("start", "resume", "go_on")


@pytest.mark.parametrize("success", [True, False])
def test_a_report_is_the_end(success):
    move = after(policy.REPORTED, success=success, reason="because")
    assert (move.kind, move.success, move.reason) == ("finish", success, "because")


def test_silence_is_asked_about_once():
    assert after(policy.SILENT) == Move("start", "resume", "report")
    assert after(policy.SILENT, policy.SILENT, progress=True).kind == "finish", "progress does not make it a report"
    assert after(policy.SILENT, policy.QUESTION, policy.SILENT).say == "report", "something else came in between"


def test_a_question_waits_for_its_answer():
    assert after(policy.QUESTION, reason="which?").kind == "ask"
    assert after(policy.QUESTION, answered=True) == Move("start", "resume", "answer")


@pytest.mark.parametrize("kind", sorted(policy.FOR_A_PERSON))
def test_what_a_person_must_mend_is_parked_with_what_to_do(kind):
    move = after(kind, reason="said the API")
    assert move.kind == "park"
    assert why.WHAT_TO_DO[kind] in move.reason
    assert "said the API" in move.reason


def test_a_rate_limit_is_waited_for_until_its_reset_and_gives_nobody_up():
    assert after(why.RATE_LIMIT, resets_at=5000.0).until == 5000.0
    assert after(*[why.RATE_LIMIT] * 200).kind == "wait"
    assert after(*[why.RATE_LIMIT] * 200).until == 199 + 900.0, "the longest wait"


@pytest.mark.parametrize("kind", sorted(set(policy.TROUBLES) - {why.RATE_LIMIT}))
def test_a_trouble_is_waited_out_longer_each_time_and_at_last_given_up(kind):
    most = policy.TROUBLES[kind].most
    waits = []
    for times in range(1, most + 1):
        move = after(*[kind] * times)
        assert move.kind == "wait"
        waits.append(move.until - (times - 1))
    assert waits == sorted(waits)
    assert waits[0] == policy.TROUBLES[kind].first
    given_up = after(*[kind] * (most + 1), reason="the same again")
    assert (given_up.kind, given_up.success) == ("finish", False)
    assert "the same again" in given_up.reason


def test_progress_makes_earlier_troubles_forgotten():
    endings = [Ending(why.SERVER, 0.0), Ending(why.SERVER, 1.0), Ending(why.SERVER, 2.0, progress=True)]
    assert policy.running(endings, {why.SERVER}) == 1
    endings.append(Ending(why.SERVER, 3.0))
    assert policy.running(endings, {why.SERVER}) == 2


def test_troubles_that_take_turns_are_waited_out_longer_and_at_last_given_up():
    turns = [why.SERVER, why.RATE_LIMIT, why.OVERLOADED, why.RATE_LIMIT] * 20
    moves = {number: after(*turns[:number]) for number in range(1, 80)}
    assert [moves[number].until - (number - 1) for number in (1, 3, 5)] == [2.0, 4.0, 8.0]
    assert {moves[number].kind for number in range(2, 80, 2)} == {"wait"}, "a rate limit gives nobody up"
    ends = [number for number in range(1, 80, 2) if moves[number].kind == "finish"]
    assert ends[0] <= 2 * policy.MOST + 1


def test_a_full_context_is_handed_over_but_not_for_ever():
    assert after(why.CONTEXT) == Move("start", "fresh", "hand_over")
    assert after(*[why.CONTEXT] * policy.HAND_OVERS).kind == "start"
    assert after(*[why.CONTEXT, why.SERVER] * policy.HAND_OVERS, why.CONTEXT).kind == "finish"


def test_an_unknown_session_begins_anew_and_a_death_goes_on():
    assert after(why.UNKNOWN_SESSION) == Move("start", "fresh", "go_on")
    assert after(why.CRASH) == Move("start", "resume", "go_on")
    assert after(policy.STOPPED) == Move("start", "resume", "go_on")


@pytest.mark.parametrize("kind", [why.INVALID, why.MAX_TURNS, "a kind that nobody knows"])
def test_the_rest_fails_and_says_why(kind):
    move = after(kind, reason="400 no such model")
    assert (move.kind, move.success) == ("finish", False)
    assert kind in move.reason
    assert "no such model" in move.reason


@pytest.mark.parametrize(("status", "said", "kind"), [
    (429, "", why.RATE_LIMIT), (529, "", why.OVERLOADED), (500, "", why.SERVER), (503, "", why.SERVER),
    (401, "", why.AUTHENTICATION), (403, "", why.AUTHENTICATION), (403, "billing", why.BILLING), (402, "", why.BILLING),
    (400, "prompt is too long: 210000 tokens > 200000 maximum", why.CONTEXT), (400, "bad field", why.INVALID),
    (413, "", why.CONTEXT), (404, "model: none", why.INVALID), (408, "", why.NETWORK),
    (None, "No conversation found with session ID: x", why.UNKNOWN_SESSION),
    (None, "Your credit balance is too low", why.BILLING), (None, "Invalid API key · Please run /login",
                                                            why.AUTHENTICATION),
    (None, "Claude AI usage limit reached", why.RATE_LIMIT), (None, "Overloaded", why.OVERLOADED),
    (None, "Connection error.", why.NETWORK), (None, "something else", why.SERVER)])
def test_what_was_said_is_a_class(status, said, kind):
    assert why.classify(status, said) == kind


def test_what_comes_again_after_each_step_forward_is_the_end_too():
    """Progress begins the count anew, but not for ever: each of these costs a call."""
    endings = [Ending(why.HANG, float(number), progress=True) for number in range(31)]
    assert policy.decide(endings[:30]).kind == "wait"
    assert policy.decide(endings).kind == "finish"
    answers = [Ending(why.TOO_LONG, float(number), progress=True) for number in range(4)]
    assert policy.decide(answers[:3]).kind == "wait"
    assert "4 times" in policy.decide(answers).reason


def test_a_reset_that_cannot_be_meant_is_not_waited_for():
    """One that is past would make a loop without a pause, one in milliseconds would wait for ever."""
    assert after(why.RATE_LIMIT, resets_at=-5.0).until == 30.0
    assert after(why.RATE_LIMIT, resets_at=1.8e12).until == policy.LONGEST
    assert after(why.RATE_LIMIT, resets_at=17.0).until == 17.0


def test_that_a_person_was_there_is_said_until_the_model_has_answered():
    assert after(policy.STOPPED, policy.PERSON).say == "person"
    assert after(policy.QUESTION, policy.PERSON).say == "person"
    assert after(policy.PERSON, policy.STOPPED).say == "person", "its prompt may not have been sent"
    assert after(policy.PERSON, why.CRASH).say == "person"
    assert after(policy.PERSON, policy.STOPPED, progress=True).say == "go_on"
    assert after(policy.PERSON, policy.SILENT, policy.STOPPED).say == "go_on"


@pytest.mark.parametrize(("status", "said", "error", "kind"), [
    (400, "Your credit balance is too low", "billing_error", why.BILLING),
    (400, "tools.0: bad", "unknown", why.INVALID), (None, "over the limit", "max_output_tokens", why.TOO_LONG),
    (None, "it will not", "invalid_request", why.INVALID), (None, "what?", "server_error", why.SERVER),
    (413, "Request too large", "invalid_request", why.CONTEXT), (None, "Request timed out", "", why.NETWORK)])
def test_what_the_cli_calls_a_failure_tells_its_class(status, said, error, kind):
    assert why.classify(status, said, error) == kind
