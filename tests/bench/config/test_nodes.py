"""Where machines meet, and what is said where the variables are wrong."""

import pytest
from refusals import refusal

from bench.config import RunConfig
from bench.config.parsing import MeetingPoint, meeting_point, node_rank

TWO = RunConfig(nodes=2)
WHOLE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "1"}


def test_machines_meet_where_torchruns_variables_say_and_one_alone_meets_nobody():
    assert meeting_point(TWO, WHOLE) == MeetingPoint(1, "10.0.0.1", 29500)
    assert (node_rank(TWO, WHOLE), node_rank(RunConfig(devices=2), WHOLE)) == (1, 0)
    assert meeting_point(RunConfig(devices=2), {}) is None
    assert RunConfig(devices=2, nodes=3).world_size == 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MASTER_ADDR": ""}, "nodes=2: MASTER_ADDR not set"),
        ({"MASTER_PORT": "", "NODE_RANK": ""}, "MASTER_PORT, NODE_RANK not set"),
        ({"NODE_RANK": "2"}, "NODE_RANK='2': give a whole number from 0 to 1"),
        ({"NODE_RANK": "-1"}, "NODE_RANK='-1'"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http': give a whole number from 0 to 65535"),
    ],
)
def test_a_wrong_variable_is_named_with_its_remedy(changes, words):
    assert words in refusal(meeting_point, TWO, {**WHOLE, **changes})
