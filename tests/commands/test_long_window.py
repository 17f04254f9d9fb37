"""A window of 100,000 iterations, as a small model on a GPU has it, from its record to a report."""

import json
from collections import Counter

import pytest
import samples
from stored_runs import filed

from tracking.content import content_of
from tracking.tracked_runs import download_record, search_runs

ITERATIONS = 100_000


@pytest.mark.long
def test_a_window_of_100_000_iterations_is_kept_whole_uploaded_and_reported(
    mlproject_command, embedded
):
    times_s = tuple(0.001 + 1e-9 * number for number in range(ITERATIONS))
    measured = samples.run_record(measurement=samples.measurement(times_s))
    _, record = filed(mlproject_command.folder / "records", measured)
    code, printed, err = mlproject_command("sync")
    assert (code, err) == (0, "")
    assert printed.splitlines()[-1].startswith("1 uploaded ")
    [run] = search_runs()
    assert download_record(run.run_id) == record
    points = Counter(point.key for point in content_of(record).metrics)
    name, most = points.most_common(1)[0]
    assert most == ITERATIONS == len(embedded.get_metric_history(run.run_id, name))
    code, printed, err = mlproject_command("report", "--no-log", "--format", "json")
    assert code == 0, err
    [shown] = json.loads(printed)["runs"]
    assert shown["throughput_images_per_s"] == pytest.approx(8 * ITERATIONS / sum(times_s))
