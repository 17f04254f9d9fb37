"""What a user gets wrong is one line."""

import pytest

from bench.errors import UserError


def refusal(call, *arguments, error=UserError, **options):
    """The one line with which a call is refused."""
    with pytest.raises(error) as refused:
        call(*arguments, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message
