"""The next step after each end of a connection: the whole table, as histories."""

from __future__ import annotations

import pytest

from garrison.agents.conversation import policy
from garrison.agents.conversation.policy import ConnectionEnd, NextStep, NextStepKind, Prompt
from garrison.agents.trouble import WHAT_TO_DO, TroubleKind, classify


def after(*kinds: str, answered: bool = False, **last: object) -> NextStep:
    """Return the decision after endings of these kinds, one second apart."""
    endings = [ConnectionEnd(kind, float(number)) for number, kind in enumerate(kinds)]
    endings[-1] = ConnectionEnd(kinds[-1], float(len(kinds) - 1), **last)  # type: ignore[arg-type]
    return policy.decide(endings, answered)


def test_a_first_or_unknown_session_starts_fresh_and_a_known_or_dead_one_is_resumed():
    assert policy.first_decision(None) == NextStep(NextStepKind.CONNECT, Prompt.TASK, fresh=True)
    assert policy.first_decision("an-id") == NextStep(NextStepKind.CONNECT, Prompt.CONTINUE)
    assert after(TroubleKind.UNKNOWN_SESSION) == NextStep(NextStepKind.CONNECT, Prompt.CONTINUE, fresh=True)
    assert after(TroubleKind.CRASH) == NextStep(NextStepKind.CONNECT, Prompt.CONTINUE)
    assert after(policy.STOPPED) == NextStep(NextStepKind.CONNECT, Prompt.CONTINUE)


@pytest.mark.parametrize("success", [True, False])
def test_a_report_finishes_the_attempt(success):
    decision = after(policy.REPORTED, success=success, reason="because")
    assert (decision.step, decision.success, decision.reason) == (NextStepKind.FINISH, success, "because")


def test_a_missing_report_is_requested_once_and_a_question_waits_for_its_answer():
    assert after(policy.SILENT) == NextStep(NextStepKind.CONNECT, Prompt.REPORT)
    assert after(policy.SILENT, policy.SILENT,
                 progress=True).step is NextStepKind.FINISH, "progress does not make it a report"
    between = after(policy.SILENT, policy.QUESTION, policy.SILENT)
    assert between.prompt is Prompt.REPORT, "something else came in between"
    assert after(policy.QUESTION, reason="which?").step is NextStepKind.ASK
    assert after(policy.QUESTION, answered=True) == NextStep(NextStepKind.CONNECT, Prompt.ANSWER)


@pytest.mark.parametrize("kind", sorted(policy.NEEDS_PERSON))
def test_a_failure_that_needs_a_person_is_parked_with_instructions(kind):
    decision = after(kind, reason="said the API")
    assert decision.step is NextStepKind.PARK
    assert WHAT_TO_DO[kind] in decision.reason
    assert "said the API" in decision.reason


def test_a_rate_limit_is_waited_for_until_its_reset_and_never_fails_the_attempt():
    assert after(TroubleKind.RATE_LIMIT, resets_at=5000.0).until == 5000.0
    assert after(TroubleKind.RATE_LIMIT, resets_at=-5.0).until == 30.0, "a past one would be a loop without a pause"
    assert after(TroubleKind.RATE_LIMIT, resets_at=1.8e12).until == policy.MAX_WAIT, "milliseconds would be for ever"
    assert after(TroubleKind.RATE_LIMIT, resets_at=17.0).until == 17.0
    assert after(*[TroubleKind.RATE_LIMIT] * 200).step is NextStepKind.WAIT
    assert after(*[TroubleKind.RATE_LIMIT] * 200).until == 199 + 900.0, "the longest wait"


@pytest.mark.parametrize("kind", sorted(policy.TRANSIENT))
def test_a_transient_failure_waits_longer_each_time_and_fails_the_attempt_only_where_its_class_is_bounded(kind):
    most = policy.TRANSIENT[kind].tries
    waits = []
    for times in range(1, (most or 200) + 1):
        decision = after(*[kind] * times)
        assert decision.step is NextStepKind.WAIT
        waits.append(decision.until - (times - 1))
    assert waits == sorted(waits)
    assert waits[0] == policy.TRANSIENT[kind].first
    after_all = after(*[kind] * ((most or 2_000) + 1), reason="the same again")
    assert after_all.step is (NextStepKind.WAIT if most is None else NextStepKind.FINISH)
    assert "the same again" in after_all.reason


@pytest.mark.parametrize("kind", [TroubleKind.SERVER, TroubleKind.OVERLOADED, TroubleKind.NETWORK, TroubleKind.QUOTA])
def test_an_outage_is_a_wait_without_end_whatever_alternates(kind):
    """Seen: 5 min 40 s of 503 ended an unattended run."""
    assert after(*[kind, TroubleKind.NETWORK, TroubleKind.SERVER] * 500, kind).step is NextStepKind.WAIT


def test_a_refused_history_is_handed_over_once_and_a_full_context_a_limited_number_of_times():
    assert after(TroubleKind.HISTORY) == NextStep(NextStepKind.CONNECT, Prompt.HAND_OVER, fresh=True)
    again = after(TroubleKind.HISTORY, TroubleKind.HISTORY, reason="messages.3: bad")
    assert again.step is NextStepKind.FINISH and "messages.3: bad" in again.reason
    assert after(TroubleKind.CONTEXT) == NextStep(NextStepKind.CONNECT, Prompt.HAND_OVER, fresh=True)
    assert after(*[TroubleKind.CONTEXT] * policy.MAX_HAND_OVERS).step is NextStepKind.CONNECT
    kinds = [TroubleKind.CONTEXT, TroubleKind.SERVER] * policy.MAX_HAND_OVERS
    assert after(*kinds, TroubleKind.CONTEXT).step is NextStepKind.FINISH


def test_progress_resets_the_count_of_failures_but_each_attempt_has_a_limit():
    endings = [ConnectionEnd(TroubleKind.SERVER, 0.0), ConnectionEnd(TroubleKind.SERVER, 1.0),
               ConnectionEnd(TroubleKind.SERVER, 2.0, progress=True)]
    assert policy.consecutive(endings, {TroubleKind.SERVER}) == 1
    endings.append(ConnectionEnd(TroubleKind.SERVER, 3.0))
    assert policy.consecutive(endings, {TroubleKind.SERVER}) == 2
    endings = [ConnectionEnd(TroubleKind.HANG, float(number), progress=True) for number in range(9)]
    assert policy.decide(endings[:8]).step is NextStepKind.WAIT
    assert policy.decide(endings).step is NextStepKind.FINISH
    answers = [ConnectionEnd(TroubleKind.TOO_LONG, float(number), progress=True) for number in range(4)]
    assert policy.decide(answers[:3]).step is NextStepKind.WAIT
    assert "4 times" in policy.decide(answers).reason


def test_alternating_failures_lengthen_each_others_pauses():
    turns = [TroubleKind.SERVER, TroubleKind.RATE_LIMIT, TroubleKind.OVERLOADED, TroubleKind.RATE_LIMIT] * 20
    decisions = {number: after(*turns[:number]) for number in range(1, 80)}
    assert [decisions[number].until - (number - 1) for number in (1, 3, 5)] == [2.0, 4.0, 8.0]
    assert {decision.step for decision in decisions.values()} == {NextStepKind.WAIT}


@pytest.mark.parametrize(("kinds", "tokens", "is_resumed", "can"), [
    (["reported"], 100_000, False, True), (["silent", "silent"], 0, False, True),
    (["context", "reported"], 0, False, True), (["reported"], 100_001, False, False),
    (["reported"], 0, True, False), (["loop", "reported"], 0, False, False),
    (["max_turns"], 0, False, False), (["history"], 0, False, False), ([], 0, False, False)])
def test_a_refused_session_continues_unless_full_looping_or_refused_twice(kinds, tokens, is_resumed, can):
    endings = [ConnectionEnd(kind, 1.0) for kind in kinds]
    assert policy.can_mend(endings, tokens=tokens, is_resumed=is_resumed) == can


@pytest.mark.parametrize("kind", [TroubleKind.INVALID, TroubleKind.MAX_TURNS, "an unknown kind"])
def test_any_other_ending_fails_with_its_reason(kind):
    decision = after(kind, reason="400 no such model")
    assert (decision.step, decision.success) == (NextStepKind.FINISH, False)
    assert kind in decision.reason
    assert "no such model" in decision.reason


@pytest.mark.parametrize("failure", [
    (429, "", TroubleKind.RATE_LIMIT), (529, "", TroubleKind.OVERLOADED), (500, "", TroubleKind.SERVER),
    (503, "", TroubleKind.SERVER),
    (401, "", TroubleKind.AUTHENTICATION), (403, "", TroubleKind.AUTHENTICATION), (403, "billing", TroubleKind.BILLING),
    (402, "", TroubleKind.BILLING), (402, "garrison: budget used up: $1.00 of the $1.00", TroubleKind.BUDGET),
    (400, "prompt is too long: 210000 tokens > 200000 maximum", TroubleKind.CONTEXT),
    (400, "bad field", TroubleKind.INVALID),
    (413, "", TroubleKind.CONTEXT), (404, "model: none", TroubleKind.INVALID), (408, "", TroubleKind.NETWORK),
    (None, "No conversation found with session ID: x", TroubleKind.UNKNOWN_SESSION),
    (None, "Your credit balance is too low", TroubleKind.BILLING),
    (None, "Invalid API key · Please run /login", TroubleKind.AUTHENTICATION),
    (None, "Claude AI usage limit reached", TroubleKind.RATE_LIMIT), (None, "Overloaded", TroubleKind.OVERLOADED),
    (None, "Connection error.", TroubleKind.NETWORK), (None, "something else", TroubleKind.SERVER),
    (400, "Your credit balance is too low", TroubleKind.BILLING, "billing_error"),
    (400, "tools.0: bad", TroubleKind.INVALID, "unknown"),
    (None, "over the limit", TroubleKind.TOO_LONG, "max_output_tokens"),
    (None, "it will not", TroubleKind.INVALID, "invalid_request"), (None, "what?", TroubleKind.SERVER, "server_error"),
    (413, "Request too large", TroubleKind.CONTEXT, "invalid_request"),
    (None, "Request timed out", TroubleKind.NETWORK, "")], ids=str)
def test_failures_are_classified_by_status_text_and_the_clis_name_for_them(failure):
    status, said, kind, *error = failure
    assert classify(status, said, *error) == kind


def test_a_takeover_is_mentioned_until_the_model_has_answered():
    assert after(policy.STOPPED, policy.PERSON).prompt is Prompt.PERSON
    assert after(policy.QUESTION, policy.PERSON).prompt is Prompt.PERSON
    assert after(policy.PERSON, policy.STOPPED).prompt is Prompt.PERSON, "its prompt may not have been sent"
    assert after(policy.PERSON, TroubleKind.CRASH).prompt is Prompt.PERSON
    assert after(policy.PERSON, policy.STOPPED, progress=True).prompt is Prompt.CONTINUE
    assert after(policy.PERSON, policy.SILENT, policy.STOPPED).prompt is Prompt.CONTINUE
