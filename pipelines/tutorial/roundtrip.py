"""A new test for itsdangerous; a node of itsdangerous.dot copies it into the project."""

import pytest
from itsdangerous import BadSignature, URLSafeTimedSerializer


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1, 2.5, None]}, "\N{SNOWMAN}"])
def test_a_value_comes_back_unless_it_was_tampered_with(value):
    """What dumps wrote, loads reads, and nothing else."""
    serializer = URLSafeTimedSerializer("secret", salt="tutorial")
    signed = serializer.dumps(value)
    assert serializer.loads(signed, max_age=60) == value
    with pytest.raises(BadSignature):
        serializer.loads("x" + signed)
