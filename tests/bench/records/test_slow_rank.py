"""Who makes the others wait: planted in steps of known noise, and never in an even job."""

import random

import pytest
import samples

from bench.records.slow_rank import rank_rows, slow_rank

#: Seconds of a step's parts, alike on all ranks: the loader's, computing, other use of the host.
LOADS_S, COMPUTES_S, HOST_S = 0.001, 0.080, 0.010
STEP_S = LOADS_S + COMPUTES_S + HOST_S
STEPS = 120


def job(ranks=4, slow=None, seed=0, noise=0.03, steps=STEPS, each=1, **more_s):
    """Ranks whose steps end together; the parts scatter by `noise` of the step.

    The slow rank has `more_s` in the mean, all of it at each so many steps.
    """
    rng = random.Random(seed)
    own = []
    for rank in range(ranks):
        usual_s = {"loader": LOADS_S, "compute": COMPUTES_S, "host": HOST_S}
        part_s = {
            name: [
                abs(seconds + rng.gauss(0, noise * 0.1))
                + (rank == slow and step % each == seed % each) * each * more_s.get(name, 0.0)
                for step in range(steps)
            ]
            for name, seconds in usual_s.items()
        }
        own.append(part_s)
    whole_s = [[sum(parts) for parts in zip(*part_s.values(), strict=True)] for part_s in own]
    ends_s = [0.005 + max(step) for step in zip(*whole_s, strict=True)]
    return [
        samples.rank_figures(
            rank,
            ends_s,
            data_wait_s=tuple(own[rank]["loader"]),
            processor_s=tuple(own[rank]["compute"]),
            exchange_wait_s=tuple(
                end - busy for end, busy in zip(ends_s, whole_s[rank], strict=True)
            ),
            host=f"machine-{rank}",
        )
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("cause", ["loader", "compute", "host"])
@pytest.mark.parametrize(("ranks", "slower_s"), [(2, 0.0034), (2, 0.005), (4, 0.005)])
def test_a_rank_that_is_slower_by_3_to_5_percent_is_named_with_its_cause(ranks, slower_s, cause):
    found = slow_rank(job(ranks, slow=1, **{cause: slower_s}), on_card=False)
    assert (found.code, found.facts["rank"], found.facts["cause"]) == ("slow-rank", 1, cause)
    assert found.facts["low_ms"] < 1e3 * slower_s < found.facts["high_ms"]
    assert found.facts["wait_ms"] == pytest.approx(1e3 * slower_s, rel=0.3)


def test_of_even_jobs_none_is_named():
    found = [slow_rank(job(2 + seed % 3, seed=seed), on_card=False) for seed in range(100)]
    assert {slow.code for slow in found} == {"no-slow-rank"}
    assert all(0 < slow.facts["high_ms"] < 50 * STEP_S for slow in found)


@pytest.mark.parametrize("each", [4, 8, 10])
def test_a_wait_that_is_not_in_each_step_is_told_in_70(each):
    found = slow_rank(job(2, slow=1, steps=70, each=each, loader=0.0046), on_card=False)
    assert (found.facts["rank"], found.facts["cause"]) == (1, "loader")


def drifting(seed, compute_s):
    """Two ranks whose speed wanders by 6 % in ten steps, as that of a shared core; 700 steps."""
    rng, ranks = random.Random(seed + 1000), []
    for rank in job(2, slow=1, seed=seed, steps=700, compute=compute_s):
        later_s = [0.0]
        for _ in range(699):
            later_s.append(0.9 * later_s[-1] + rng.gauss(0, 0.06 * COMPUTES_S * 0.19**0.5))
        ran_s = map(sum, zip(rank.processor_s, later_s, strict=True))
        waits_s = map(sum, zip(rank.exchange_wait_s, (-s for s in later_s), strict=True))
        ranks.append(rank.replaced(processor_s=tuple(ran_s), exchange_wait_s=tuple(waits_s)))
    return ranks


def test_in_a_window_of_700_steps_a_wandering_speed_hides_no_slow_rank():
    found = [slow_rank(drifting(seed, 0.05 * STEP_S), on_card=False) for seed in range(20)]
    named = [(slow.facts["rank"], slow.facts.get("cause")) for slow in found]
    assert named.count((1, "compute")) >= 15
    even = [slow_rank(drifting(seed, 0.0), on_card=False).code for seed in range(40)]
    assert even == ["no-slow-rank"] * 40


@pytest.mark.parametrize(
    "changes",
    [
        {"slow": 1, "loader": 0.001},  # equal ranks differ by as much
        {"slow": 1, "loader": 0.005, "compute": -0.01},  # it is faster elsewhere
    ],
)
def test_nobody_is_named_without_need(changes):
    assert slow_rank(job(**changes), on_card=False).code == "no-slow-rank"


def test_of_few_steps_nothing_is_said():
    assert slow_rank(job(slow=1, loader=0.005, steps=20), on_card=False) is None


def test_a_single_stop_of_one_rank_makes_it_no_slow_one():
    ranks = job()
    stopped = list(ranks[2].data_wait_s)
    stopped[50] += 1.0  # 10 % of the window
    ranks[2] = ranks[2].replaced(data_wait_s=tuple(stopped))
    assert slow_rank(ranks, on_card=False).code == "no-slow-rank"


@pytest.mark.parametrize(("clock_mhz", "cause"), [(1400.0, "clock"), (1790.0, "compute")])
def test_a_gpu_of_a_lower_clock_is_slow_by_that(clock_mhz, cause):
    clocks = {"": 1800.0, "rank1_": clock_mhz, "rank2_": 1795.0}
    series = tuple(
        samples.SampledSeries(
            name=f"{rank}gpu_sm_clock_mhz", source="nvml", times_s=(0.0,), values=(value,)
        )
        for rank, value in clocks.items()
    )
    telemetry = samples.telemetry(series=series)
    found = slow_rank(job(3, slow=1, compute=0.01), on_card=True, telemetry=telemetry)
    assert (found.facts["rank"], found.facts["cause"]) == (1, cause)


def test_a_rank_that_is_not_there_is_in_the_table_with_its_reason():
    absent = samples.facts(samples.RankFigures, "it was killed", rank=2, node=0)
    rows = rank_rows([*job(2), absent], on_card=False)
    assert [row["why"] for row in rows] == [None, None, "it was killed"]
    assert rows[0]["compute_ms"] == pytest.approx(80, rel=0.02)
    assert rows[0]["step_ms"] == pytest.approx(
        sum(rows[0][f"{part}_ms"] for part in ("loader", "compute", "host", "exchange_wait"))
    )
    assert (rows[2]["step_ms"], rows[1]["host"]) == (None, "machine-1")
