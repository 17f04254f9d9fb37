"""A measurement of the loader alone takes no part in anything that is said of training."""

import samples

from analysis.runs.groups import group_runs
from analysis.runs.placed import place_runs
from analysis.runs.points import roofline_point
from bench.config import RunConfig

NO_MODEL = "data_only=true: no model ran"


def loader_record():
    record = samples.run_record(RunConfig(data="photos", data_only=True))
    missing = record.missing | {"complexity": NO_MODEL}
    return record.model_copy(update={"complexity": None, "missing": missing})


def test_it_has_no_place_under_a_roof_and_says_why():
    place = roofline_point(loader_record(), [samples.ceilings_record("fp32")])
    assert place.reason == f"no complexity: {NO_MODEL}"


def test_its_rate_is_no_throughput_of_a_model():
    [loader, trained] = place_runs([loader_record(), samples.run_record()], [])
    if not loader.record.config.data_only:
        loader, trained = trained, loader
    assert loader.metrics["loader_images_per_s"] > 0
    assert loader.facts()["images_per_s"] is None
    [group] = group_runs((loader, trained))
    assert group.names == (trained.name,)
