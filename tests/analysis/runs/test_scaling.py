"""What more devices give: the speed-up and where the rest goes, with values by hand."""

import json
from pathlib import Path

import factories as make
import pytest
import samples

from analysis.figures import model_colours
from analysis.findings import conclusions
from analysis.runs.groups import Runs
from analysis.runs.place import place_runs
from analysis.scaling import LOSSES, scaling_charts, scalings
from bench.errors import Unknown
from bench.records import RunRecord

#: Of resnet18 on a busy processor with two cores, a thread each: 4 and 8 images on one device, 4
#: on each of two.
REAL = Path(__file__).parents[1] / "data" / "two_ranks.json"
FOUR = {"devices": 2, "nodes": 2}


def one(**changes):
    return make.run_record("one", **changes)


def four(images=40, **changes):
    """Every iteration of a second, as `one` has it: 4 devices do 4 times the images at best."""
    known = {"settings": FOUR, "measurement": make.measurement(images=images)}
    return make.run_record("four", **{**known, **changes})


def two(name="two", *, step_s=1.25, local_s=(1.0, 1.1), waits_s=(0.0, 0.0), **ranks):
    """Two ranks of 10 images each, and what each takes without the exchange."""
    figures = samples.distributed_figures(
        synced_step_s=(step_s,) * 3,
        local_step_s=(max(local_s),) * 3,
        ranks=tuple(
            samples.rank_figures(
                rank, (step_s,) * 10, local_step_s=(own_s,) * 3, data_wait_s=(wait_s,) * 10
            )
            for rank, (own_s, wait_s) in enumerate(zip(local_s, waits_s, strict=True))
        ),
    ).replaced(**ranks)
    measured = make.measurement(step_s=step_s, images=20).replaced(ranks=figures)
    return make.run_record(name, settings={"devices": 2}, measurement=measured)


def scaled(*records):
    return scalings(Runs(place_runs(records, [])))


def shares(scaling):
    """The losses in percent; the reason of what is not known."""
    assert scaling.efficiency + sum(v for v in scaling.losses.values() if v) == pytest.approx(1.0)
    assert (list(scaling.losses)[-1] == "not_explained_share") is any(
        isinstance(of, Unknown) for of in scaling.losses.values()
    )
    return [of.reason if isinstance(of, Unknown) else round(100 * of, 6)
            for of in scaling.losses.values()]  # fmt: skip


def test_a_loss_is_parted_into_what_was_measured():
    # 16 of 20 images/s; 1.1 of 1.25 s without the exchange, 1.05 on average, 1.0 alone
    (weak,) = scaled(one(), two())
    assert (weak.kind, weak.speed_up.ratio) == ("weak", pytest.approx(1.6))
    assert list(weak.losses) == list(LOSSES)[:-1]
    assert shares(weak) == [12.0, 4.0, 0.0, 0.0, 4.0]
    # one device does the whole batch in 1.6 s, a half of it in 1.0 s: 0.2 of 1.25 s are more
    whole = make.run_record("whole", batch=20, step_s=1.6)
    weak, strong = scaled(whole, one(), two())
    assert (strong.kind, strong.speed_up.ratio) == ("strong", pytest.approx(1.28))
    assert shares(strong) == [12.0, 4.0, 0.0, 16.0, 4.0]
    (strong,) = scaled(whole, two())
    why = "one device with batch 10 was not measured"
    assert shares(strong) == [12.0, 4.0, 0.0, why, 20.0]
    assert strong.row("samples_per_s")["smaller_batches_share"] is None
    assert f"smaller batches: {why}" in strong.row("samples_per_s")["note"]


def test_input_is_what_ranks_wait_for_it_longer_than_one_device():
    # 0.35 of 1.25 s on average; one device waits 0.1 s of the 1.0 s that is needed
    waits = one(measurement=make.measurement(wait_s=0.1))
    (weak,) = scaled(waits, two(local_s=(1.25, 1.25), waits_s=(0.3, 0.4)))
    assert shares(weak) == [0.0, 0.0, 20.0, 0.0, 0.0]


def test_of_a_script_the_waits_in_the_exchange_say_it():
    # a step of 1.25 s: rank 1 waits 0.15 s in the exchange, rank 0 0.25 s
    ranks = tuple(
        samples.rank_figures(rank, (1.25,) * 10, exchange_wait_s=(wait_s,) * 10)
        for rank, wait_s in enumerate((0.25, 0.15))
    )
    not_repeated = {"synced_step_s": Unknown("a script"), "local_step_s": Unknown("a script")}
    (weak,) = scaled(one(), two(ranks=ranks, **not_repeated))
    assert shares(weak) == [12.0, 4.0, 0.0, 0.0, 4.0]


def test_an_old_record_does_not_know_the_imbalance():
    ranks = tuple(samples.rank_figures(rank, (1.25,) * 10) for rank in (0, 1))
    (weak,) = scaled(one(), two(ranks=ranks))
    assert shares(weak) == [12.0, ranks[0].missing["exchange_wait_s"], 0.0, 0.0, 8.0]


def test_repeats_give_the_interval():
    (weak,) = scaled(one(), two())
    assert "no interval: one run on each side" in weak.row("samples_per_s")["note"]
    again = make.run_record("again", step_s=1.02, settings={"repeat": 2})
    (weak,) = scaled(one(), again, two())
    assert (
        weak.row("samples_per_s")["ratio_low"]
        < weak.speed_up.ratio
        < weak.row("samples_per_s")["ratio_high"]
    )


def test_two_real_processes_lose_to_communication_and_to_smaller_batches():
    records = [RunRecord.model_validate(known) for known in json.loads(REAL.read_text("utf-8"))]
    rates = {
        (record.config.devices, record.config.batch_size): record.measurement
        and record.measurement.throughput_samples_per_s
        for record in records
    }
    weak, strong = scaled(*records)
    assert weak.speed_up.ratio == pytest.approx(rates[2, 4] / rates[1, 4])
    assert strong.efficiency == pytest.approx(rates[2, 4] / rates[1, 8] / 2)
    # by hand from the six probed steps of both ranks
    assert shares(strong)[:2] == pytest.approx([34.4603, 2.0126], abs=1e-4)
    assert shares(strong)[3] == pytest.approx(100 * (weak.efficiency - strong.efficiency), abs=1e-4)
    assert shares(weak)[4] == pytest.approx(shares(strong)[4])


def held_against(many, others):
    """The records of one device that `many` is held against, and the efficiency."""
    (found,) = scaled(many, *others)
    return [run.record for run in found.single.runs], found.efficiency


def card(uuid, name="H200", **changes):
    return make.environment(device=make.gpu(name=name, uuid=uuid, **changes))


def test_the_pair_is_the_same_configuration_on_a_device_of_the_same_kind():
    # four devices that do four times the work are perfect
    assert held_against(four(), [one()]) == ([one()], pytest.approx(1.0))
    assert held_against(four(images=30), [one()]) == ([one()], pytest.approx(0.75))
    many = four(environment=card("GPU-0"))
    others = [
        one(environment=card("GPU-7", "L4")),
        one(environment=card("GPU-9", power_limit_w=500.0)),
        one(environment=card("GPU-0"), batch=16),
        make.failed_record(environment=card("GPU-0")),
    ]
    assert scaled(many, *others) == []
    pair = one(environment=card("GPU-5"))  # the machine's other card does as well
    assert held_against(many, [*others, pair])[0] == [pair]
    # by what ran, however it was asked for
    asked = {"batch_size": "auto", "threads": 4, "fused_optimizer": "true", "iters": 7}
    pair = one(environment=card("GPU-5"), settings=asked)
    assert held_against(many, [*others, pair])[0] == [pair]
    assert scaled(many, one(environment=card("GPU-5"), settings={"threads": 2})) == []


def test_a_sentence_names_the_largest_losses():
    whole = make.run_record("whole", batch=20, step_s=1.6)
    runs = Runs(place_runs([whole, one(), two()], []))
    (scaling,) = conclusions("scaling", runs)
    weak, strong = scaling.evidence
    assert "the images/s of one with batch 10, 80 % of ideal weak scaling" in weak
    assert "Of its step go 12 % to communication, 4 %" in weak
    assert (
        "one with batch 20, 64 % of ideal strong scaling. Of its step go 16 % to smaller" in strong
    )


def test_the_chart_has_a_line_from_one_device_on_and_the_ideal():
    charts = scaling_charts(scaled(one(), two()), model_colours(["resnet18"]))
    (panel,) = charts["weak"].panels
    ideal, line = panel.series
    assert (ideal.xs, ideal.ys) == ((1, 2), (1, 2))
    assert (line.xs, line.ys) == ((1, 2), (1, pytest.approx(1.6)))
    assert line.names == ("", "batch 10: 80 %")
