"""Whole tunings of a simulated device with a known optimum, cliffs and noise."""

from collections import Counter

import pytest
from simulated_device import START, Device, environment

from bench.config import RunConfig
from bench.records import Finding, Verdict
from campaigns.knobs import KNOBS, WINDOW_S, differing
from campaigns.search import Limits, tune
from campaigns.trials import StartFailedError, TuneWatch

LONG_S = 10_000.0


def tuned(device, config=START, *, budget_s=LONG_S, known=(), fixed_batch=False, max_batch=None):
    limits = Limits(budget_s, fixed_batch=fixed_batch, max_batch=max_batch)
    return tune(config, environment(), device, limits, known=known, clock=device.clock)


def speed(knobs):
    """Fastest with two threads, batch 64 and compile=default: 1.1 x 1.2 x 1.08 x 1.25."""
    rate = 16.0 if knobs["channels_last"] else 12.0
    rate *= {1: 1.0, 2: 1.1}[knobs["threads"]]
    rate *= {4: 0.6, 8: 0.8, 16: 1.0, 32: 1.2, 64: 1.296}.get(knobs["batch_size"], 1.2)
    return rate * {"none": 1.0, "default": 1.25, "max-autotune": 1.25}[knobs["compile"]]


def flat(knobs):
    return 16.0


def comparison(result, name):
    return next(each for each in result.comparisons if each.name == name)


def best_of(result):
    return {name: getattr(result.best, name) for name in differing(result.start, result.best)}


def test_every_knob_of_the_table_is_a_field_with_valid_values():
    for knobs in KNOBS.values():
        for knob in knobs:
            for value in knob.values(environment()):
                RunConfig.model_validate({"precision": "amp", knob.field: value})
    assert KNOBS.keys() == WINDOW_S.keys()


@pytest.fixture(scope="module")
def device():
    """The device of `speed`, whole and tuned once."""
    return Device(speed)


@pytest.fixture(scope="module")
def whole(device):
    return tuned(device)


@pytest.mark.slow
def test_the_optimum_is_found_and_its_gain_confirmed_by_fresh_runs(whole):
    assert best_of(whole) == {"compile": "default", "threads": 2, "batch_size": 64}
    gain = 1.1 * 1.296 * 1.25
    assert whole.confirmed.estimate.interval.low < gain < whole.confirmed.estimate.interval.high
    assert whole.confirmed.confirmed
    searched = {t.record.record_id for t in whole.trials if t.stage != "confirmation"}
    fresh = {t.record.record_id for t in whole.trials if t.stage == "confirmation"}
    assert len(fresh) >= 2 * len(whole.confirmed.ratios)
    assert not searched & fresh


@pytest.mark.slow
def test_no_effect_is_seldom_confirmed_even_where_the_search_was_fooled():
    """Twenty searches of noise alone: whatever they adopt, fresh runs judge it again."""
    results = [tuned(Device(flat, seed=seed, noise=0.02), budget_s=900.0) for seed in range(20)]
    fooled = [result for result in results if result.best != result.start]
    assert fooled  # else the test shows nothing
    assert sum(result.confirmed.confirmed for result in fooled) <= 2


@pytest.mark.parametrize(
    ("too_much", "outcome", "value", "reason", "failures", "best"),
    [
        (
            lambda knobs: knobs["batch_size"] > 32,
            *("oom", "batch_size=64", "DefaultCPUAllocator: can't allocate memory", 1),
            {"compile": "default", "threads": 2, "batch_size": 32},
        ),
        (
            lambda knobs: knobs["compile"] != "none",
            *("crashed", "compile=default", "BackendCompilerFailed: no C++ compiler", 2),
            {"threads": 2, "batch_size": 64},
        ),
    ],
    ids=["out of memory", "compiler"],
)
@pytest.mark.slow
def test_a_failure_is_a_trial_with_a_result_and_is_not_repeated(
    too_much, outcome, value, reason, failures, best
):
    result = tuned(Device(speed, lambda knobs: (outcome, reason) if too_much(knobs) else None))
    assert best_of(result) == best
    assert comparison(result, value).decision == "failed"
    assert comparison(result, value).reason == f"{outcome}: {reason}"
    assert [each.name for each in result.comparisons].count(value) == 1
    assert Counter(t.record.outcome for t in result.trials)[outcome] == failures


@pytest.mark.slow
def test_a_window_with_a_doubt_of_its_own_is_not_enough_to_give_a_value_up():
    class Disturbed(Device):
        """Other programs run whenever this value is measured."""

        def __call__(self, config, limit_s):
            record = super().__call__(config, limit_s)
            if config.channels_last == "false":
                busy = Finding(code="busy-host", level="suspect", message="other processes")
                doubt = Verdict(level="suspect", findings=(busy,))
                record = self.records[-1] = record.model_copy(update={"verdict": doubt})
            return record

    disturbed = comparison(tuned(Disturbed(speed)), "channels_last=false")
    assert disturbed.decision == "not faster"
    assert len(disturbed.ratios) == 2
    assert len(disturbed.trials) == 4  # each beside the incumbent


@pytest.mark.slow
def test_the_batch_is_halved_where_doubling_does_not_pay():
    def small_is_fast(knobs):
        return {4: 15.0, 8: 20.0}.get(knobs["batch_size"], 16.0)

    result = tuned(Device(small_is_fast))
    assert best_of(result) == {"batch_size": 8}
    assert comparison(result, "batch_size=4").decision == "not faster"


@pytest.mark.slow
def test_a_fixed_batch_and_a_largest_batch_are_kept():
    assert tuned(Device(speed), fixed_batch=True).best.batch_size == "auto"
    result = tuned(Device(speed), max_batch=32)
    assert result.best.batch_size == 32
    names = [each.name for each in result.comparisons]  # the batch before is not tried once more
    assert names[names.index("batch_size=32") + 1] == "channels_last=false"


@pytest.mark.slow
def test_what_the_configuration_forbids_is_left_out():
    start = START.model_copy(update={"phases": True, "backend": "cuda"})
    device = Device(flat)
    device.backend = "cuda"
    result = tuned(device, start)
    [line] = result.left_out
    assert line.startswith("cuda_graphs=true: ")
    assert line.endswith("leave out phases")
    assert not any(t.config.cuda_graphs for t in result.trials)


@pytest.mark.parametrize("budget_s", [30.0, 250.0, 400.0])
def test_the_budget_is_overrun_by_one_trial_at_most(budget_s):
    device = Device(speed)
    result = tuned(device, budget_s=budget_s)
    slowest_s = max(trial.took_s for trial in result.trials)
    assert device.now_s <= budget_s + slowest_s
    assert result.used_s == device.now_s
    assert result.untried
    if budget_s == 400.0:  # up to half of it is left for confirming
        assert len(result.confirmed.ratios) >= 3
        assert result.confirmed.estimate.interval


def test_a_trial_that_takes_too_long_is_given_up_and_says_so():
    device = Device(speed, autotune_s=1200.0)
    result = tuned(device, budget_s=2000.0, fixed_batch=True)
    given_up = [t for t in result.trials if t.record.outcome == "interrupted"]
    assert [t.config.compile for t in given_up] == ["max-autotune"]
    assert given_up[0].took_s == 500.0
    assert "took longer than the 500 s" in comparison(result, "compile=max-autotune").reason


def test_a_start_that_does_not_fit_is_halved():
    def fails(knobs):
        return ("oom", "out of memory") if knobs["batch_size"] > 8 else None

    result = tuned(Device(speed, fails))
    assert result.start.batch_size == 8
    assert "starts with batch_size=8, not 16: oom: out of memory" in result.notes
    with pytest.raises(StartFailedError, match="out of memory"):
        tuned(Device(speed, fails), fixed_batch=True)


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_found_and_the_next_tuning_goes_on_from_there(whole):
    device = Device(speed)
    device.interrupt_at = 20
    first = tuned(device)
    assert first.interrupted
    assert len(first.trials) == 20
    device.interrupt_at = None
    again = tuned(device, known=device.records)
    assert not again.interrupted
    assert again.best == whole.best
    reused = [t.record for t in again.trials if not t.fresh]
    # The run whose partner was cut off, if there was one, has no partner now either.
    assert device.records[:19] == reused[:19]


def test_an_interrupt_right_after_the_first_trial_has_that_to_tell():
    device = Device(speed)

    class InterruptAtOnce(TuneWatch):
        def ended(self, trial):
            raise KeyboardInterrupt

    result = tune(
        *(START, environment(), device, Limits(LONG_S)), watch=InterruptAtOnce(), clock=device.clock
    )
    assert result.interrupted
    assert result.best == result.start
    assert [trial.record for trial in result.trials] == device.records
    device.interrupt_at = len(device.records)  # before the first trial there is nothing to give
    with pytest.raises(KeyboardInterrupt):
        tuned(device)


@pytest.mark.slow
def test_a_value_that_changes_nothing_here_is_told_and_not_judged():
    """Where the C library is not glibc, `retain` comes to what the system does anyway."""
    device = Device(speed, noise=0.2)
    device.knobs = lambda config: Device.knobs(device, config) | {"allocator": "system"}
    result = tuned(device)
    same = comparison(result, "allocator=retain")
    assert same.decision == "no change"
    assert same.reason == "allocator is system here either way"
    assert same.ratios == ()
    assert same.estimate is None
    assert [each.name for each in result.comparisons].count("allocator=retain") == 1
    assert result.best.allocator == "auto"
