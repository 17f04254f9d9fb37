"""What a user of MLflow's client writes by hand: many results uploaded, and all runs as CSV.

python benchmarks/plain_client.py table 40    # writes results.csv, for `mlproject import`
python benchmarks/plain_client.py upload 40
python benchmarks/plain_client.py pull runs.csv
"""

import sys
from pathlib import Path


def results(count: int) -> list[dict[str, str]]:
    """Return made results, each of another batch size or precision."""
    return [
        {"arch": "resnet18", "device": "NVIDIA L4", "precision": ("fp32", "amp")[number % 2],
         "batch_size": str(8 + 8 * (number // 2)), "images_per_s": str(400 + number)}
        for number in range(count)
    ]  # fmt: skip


def upload(count: int) -> None:
    """Make a run of each result, with its params, its metrics and two JSON artifacts."""
    import mlflow

    for result in results(count):
        rate = float(result["images_per_s"])
        with mlflow.start_run():
            mlflow.log_params(result)
            mlflow.log_metrics({"images_per_s": rate, "step_s": float(result["batch_size"]) / rate})
            mlflow.log_dict(result, "record.json")
            mlflow.log_dict({"program": "by hand"}, "environment.json")


def pull(file: str) -> None:
    """Write every run as a row."""
    import mlflow

    mlflow.search_runs(search_all_experiments=True).to_csv(file)


def main(what: str, given: str) -> None:
    """Do one of them."""
    if what == "table":
        rows = results(int(given))
        lines = (",".join(row) for row in ([*rows[0]], *(row.values() for row in rows)))
        Path("results.csv").write_text("\n".join(lines), "utf-8")
    elif what == "upload":
        upload(int(given))
    else:
        pull(given)


if __name__ == "__main__":
    main(*sys.argv[1:])
