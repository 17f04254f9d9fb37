"""What a configuration accepts, and what it says about what it does not."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal

from bench.config import FILING_FIELDS, RunConfig, TimeLimits, legacy_defaults, parse_config
from bench.config.run_config import MeetingPoint, meeting_point, node_rank
from bench.errors import UserError


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"arch": "resnet5"}, ["arch='resnet5'", "resnet50"]),
        ({"arch": "RESNET18"}, ["arch='RESNET18'", "resnet18"]),
        ({"arch": "a:b;rm -rf x"}, ["arch='a:b;rm -rf x'", "module:callable"]),
        ({"arch": "mymodule:"}, ["module:callable"]),
        ({"batch_size": "0"}, ["batch_size='0'", "auto, or a number from 1", "auto"]),
        ({"batch_size": "many"}, ["batch_size='many'", "auto, or a whole number"]),
        ({"precision": "fp4"}, ["precision='fp4'", "amp-bf16"]),
        ({"backend": "tpu"}, ["backend='tpu'", "cuda"]),
        ({"iters": "-1"}, ["iters='-1'"]),
        ({"warmup_iters": "0"}, ["warmup_iters='0'"]),
        ({"max_seconds": "inf"}, ["max_seconds='inf'"]),
        ({"workers": "-2"}, ["workers='-2'"]),
        ({"augment": "maybe"}, ["augment='maybe'", "true or false"]),
        ({"seed": "4294967296"}, ["seed='4294967296'"]),
        ({"env": "two words"}, ["env='two words'", "letters"]),
        ({"campaign": "$(reboot)"}, ["campaign='$(reboot)'", "letters"]),
        ({"data": " "}, ["data=' '", "ImageFolder"]),
        ({"colour": "red"}, ["colour='red'"]),
        ({"phases": "true", "cuda_graphs": "true"}, ["cuda_graphs=true", "leave out phases"]),
        ({"compile": "default", "cuda_graphs": "true"}, ["leave out compile"]),
        ({"grad_accum_steps": "2", "cuda_graphs": "true"}, ["leave out grad_accum_steps"]),
        ({"devices": "2", "cuda_graphs": "true"}, ["leave out devices"]),
        ({"nodes": "2", "cuda_graphs": "true"}, ["leave out nodes"]),
        ({"devices": "0"}, ["devices='0'"]),
        ({"arch": "hf:~nosuchuser/config.json"}, ["hf:~nosuchuser/config.json", "check the path"]),
        ({"batch_size": "99999999999999999999"}, ["below 2147483648"]),
        ({"threads": "100000"}, ["below 4096"]),
        ({"iters": True}, ["iters=True", "number"]),
        ({"seed": True}, ["seed=True", "number"]),
        ({"max_seconds": True}, ["max_seconds=True", "number"]),
        ({"data_only": "true"}, ["data=synthetic", "data=fakedata"]),
        (
            {"data_only": "true", "data": "photos", "compile": "default", "phases": "true"},
            ["data_only=true runs no step", "phases, compile"],
        ),
        ({"data_only": "true", "data": "photos", "devices": "2"}, ["leave out devices"]),
        ({"depthwise_fp32": "true"}, ["depthwise_fp32=true", "precision=fp32"]),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy_in_one_line(values, words):
    message = refusal(parse_config, values)
    for word in words:
        assert word in message


def test_all_wrong_values_are_told_at_once():
    message = refusal(parse_config, {"arch": "resnet5", "batch_size": "0", "precision": "fp4"})
    for field in ("arch=", "batch_size=", "precision="):
        assert message.count(field) == 1


def test_config_id_is_stable_across_versions_of_python_and_this_file():
    assert (
        RunConfig(arch="resnet18", allocator="system", depthwise_fp32="false").config_id
        == "a8918765b5ce"
    )


#: A value of each later field that is not the one which reproduces older records.
NOT_AS_BEFORE = {
    "depthwise_kernel": "native",
    "devices": 2,
    "nodes": 2,
    "allocator": "retain",
    "data_only": True,
    "depthwise_fp32": "true",
    "seq_len": 64,
    "optimizer": "adamw",
}


@pytest.mark.parametrize("field", sorted(legacy_defaults(RunConfig).keys() - FILING_FIELDS))
def test_a_later_field_defines_the_measurement_unless_it_means_what_was_before(field):
    before = RunConfig(**legacy_defaults(RunConfig))
    after = RunConfig.model_construct(**{**dict(before), field: NOT_AS_BEFORE[field]})
    assert after.config_id != before.config_id


@pytest.mark.parametrize("field", sorted(FILING_FIELDS))
def test_filing_does_not_change_the_measurement(field):
    other = {"repeat": 2, "env": "elsewhere", "campaign": "second", "explain": False}[field]
    assert RunConfig(**{field: other}).config_id == RunConfig().config_id


@given(
    st.fixed_dictionaries(
        {
            "batch_size": st.one_of(st.just("auto"), st.integers(1, 4096)),
            "iters": st.integers(1, 10**6),
            "precision": st.sampled_from(["fp32", "tf32", "amp", "amp-bf16", "amp-fp16"]),
            "seed": st.integers(0, 2**32 - 1),
            "max_seconds": st.one_of(st.sampled_from(["auto", "none"]), st.floats(0.001, 1e6)),
            "channels_last": st.sampled_from(["auto", "true", "false"]),
        }
    )
)
def test_a_configuration_survives_json_and_keeps_its_id(values):
    config = RunConfig(**values)
    again = RunConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert again.config_id == config.config_id


@given(st.text(max_size=40))
@pytest.mark.slow
def test_no_text_for_arch_does_anything_but_pass_or_be_refused(text):
    with contextlib.suppress(UserError):
        assert parse_config({"arch": text}).arch == text


COUNTS = st.integers(1, 200)


@given(COUNTS, COUNTS, st.one_of(st.none(), st.floats(0.1, 1e4)), st.floats(1e-3, 1e3))
def test_warm_up_and_window_take_no_longer_than_their_limits_and_least_iterations(
    warmup_iters, iters, max_seconds, iteration_s
):
    limits = TimeLimits(warmup_iters, iters, max_seconds)
    warmup_s = limits.expected_warmup_s(iteration_s)
    window_s = limits.expected_window_s(iteration_s)
    assert warmup_s <= warmup_iters * iteration_s * (1 + 1e-9)
    assert window_s <= iters * iteration_s
    if max_seconds is None:
        assert (warmup_s, window_s) == pytest.approx(
            (warmup_iters * iteration_s, iters * iteration_s)
        )
    else:
        after_first_s = max(max_seconds / 3, iteration_s)
        assert warmup_s <= (iteration_s + after_first_s) * (1 + 1e-9)
        assert window_s <= max(max_seconds, 4 * iteration_s)


def test_limits_are_said_before_the_start():
    assert str(TimeLimits.of(RunConfig(), "cpu")) == (
        "10 (more until the device is warm) + 100 (more until the pace is known) iterations; "
        "warm-up ends at the latest 10 s after its first one, the window after 30 s "
        "(at least 2 + 4 iterations)"
    )
    assert "(at least 1 + 3 iterations)" in str(TimeLimits(1, 3, 45.0))
    assert "however long they take" in str(TimeLimits.of(RunConfig(max_seconds="none"), "cpu"))
    limits = str(TimeLimits.of(RunConfig(max_seconds=3600), "cuda"))
    assert "ends at the latest 1200 s after its first one, the window after 3600 s" in limits


def test_a_gpus_warm_up_lasts_until_its_clock_has_settled_but_no_longer_than_its_limit():
    def limits(**changes):
        return TimeLimits.of(RunConfig(**changes), "cuda")

    assert limits().expected_warmup_s(0.01) == 2.01
    assert limits().expected_warmup_s(0.5) == 5.0
    assert limits(max_seconds="none").expected_warmup_s(0.01) == 2.01
    assert limits(max_seconds=3).expected_warmup_s(0.01) == 1.01
    assert limits(data_only=True, data="x").settle_s == 0
    assert str(limits(warmup_iters=5, iters=50)).startswith("5 (or more, for 2 s) + 50 iterations")


def test_numbers_that_are_given_are_obeyed_and_without_a_time_limit_nothing_goes_on():
    found = TimeLimits.of(RunConfig(), "cpu")
    assert (found.warmup_iters, found.iters) == (10, 100)
    assert (found.until_steady, found.until_known) == (True, True)
    given = TimeLimits.of(RunConfig(warmup_iters=3, iters=20), "cpu")
    assert (given.warmup_iters, given.iters) == (3, 20)
    assert (given.until_steady, given.until_known) == (False, False)
    endless = TimeLimits.of(RunConfig(max_seconds="none"), "cpu")
    assert (endless.iters, endless.until_steady, endless.until_known) == (100, False, False)


def test_auto_has_the_identity_of_the_numbers_that_it_stands_for():
    assert RunConfig().config_id == RunConfig(warmup_iters=10, iters=100).config_id
    assert RunConfig().config_id != RunConfig(iters=101).config_id


@pytest.mark.parametrize(
    ("backend", "changes", "least"),
    [
        ("cpu", {}, 2),
        ("cpu", {"compile": "default"}, 2),
        ("cpu", {"compile": "max-autotune"}, 3),
        # One more reserves again what was given back after the first.
        ("cuda", {}, 3),
        ("cuda", {"compile": "reduce-overhead"}, 3),
        ("cuda", {"cuda_graphs": True}, 3),
    ],
)
def test_what_is_made_in_the_warm_up_is_used_once_before_the_window(backend, changes, least):
    assert TimeLimits.of(RunConfig(**changes), backend).min_warmup == least


# Where machines meet

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
        ({"MASTER_ADDR": ""}, "MASTER_ADDR=''"),
        ({"NODE_RANK": "2"}, "nodes=2, NODE_RANK='2'"),
        ({"NODE_RANK": "-1"}, "NODE_RANK='-1'"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http': on every machine set"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT='65536'"),
    ],
)
def test_a_wrong_variable_is_named_with_its_remedy(changes, words):
    assert words in refusal(meeting_point, TWO, {**WHOLE, **changes})


@pytest.mark.parametrize(
    ("given", "kept"), [("imgs/", "imgs"), ("/data/x//", "/data/x"), ("/", "/")]
)
def test_a_folder_is_the_same_with_a_slash_at_its_end(given, kept):
    assert parse_config({"data": given}).data == kept
