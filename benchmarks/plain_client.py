"""What a user of MLflow's client writes by hand to upload a table of results.

python benchmarks/plain_client.py table 40    # writes results.csv, for `mlproject import` too
python benchmarks/plain_client.py upload
"""

import csv
import sys
from pathlib import Path

TABLE = Path("results.csv")


def write_table(count: int) -> None:
    """Write made results, each of another batch size or precision."""
    with TABLE.open("w", encoding="utf-8") as file:
        file.write("arch,device,precision,batch_size,images_per_s\n")
        for number in range(count):
            precision, batch_size = ("fp32", "amp")[number % 2], 8 + 8 * (number // 2)
            file.write(f"resnet18,NVIDIA L4,{precision},{batch_size},{400 + number}\n")


def upload() -> None:
    """Make a run of each result, with its params, its metrics and two JSON artifacts."""
    import mlflow

    for result in csv.DictReader(TABLE.read_text("utf-8").splitlines()):
        rate = float(result["images_per_s"])
        with mlflow.start_run():
            mlflow.log_params(result)
            mlflow.log_metrics({"images_per_s": rate, "step_s": float(result["batch_size"]) / rate})
            mlflow.log_dict(result, "record.json")
            mlflow.log_dict({"program": "by hand"}, "environment.json")


if __name__ == "__main__":
    write_table(int(sys.argv[2])) if sys.argv[1] == "table" else upload()
