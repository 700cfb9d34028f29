from __future__ import annotations

import pytest

from garrison.supervise.job_watch import LostTime

LIMIT = 100.0


@pytest.mark.parametrize(("looks", "lost"), [
    ([(0, 0, False), (1, 0, False), (2, 0, False)], 0),
    ([(0, 0, False), (1, 0, True), (2, 0, True), (31, 0, False), (32, 0, False)], 30),
    ([(0, 0, True), (1, 0, None), (40, 0, None)], 40),
    ([(0, 0, False), (1, 3600, False)], 3600),
    ([(0, 0, False), (61, 0, False)], 51),
    ([(0, 0, False), (9, 0, False), (18, 0, False)], 0),
])
def test_time_in_which_a_job_could_not_run_is_counted(looks, lost):
    time = LostTime(LIMIT)
    for look in looks:
        time.note(*look)
    assert time.seconds == lost
    assert time.is_decisive == (lost >= 10)
