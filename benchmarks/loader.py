"""This framework's loader alone beside torchvision's stock pipeline, on the same files, in turns.

    mlproject dataset generate --out data/generated
    python benchmarks/loader.py data/generated --workers 1 --workers 2

Stock is ImageFolder, Pillow, Resize, CenterCrop, ToTensor and Normalize in torch's DataLoader with
as many worker processes and batches of the same size. Both end with a normalised float32 batch on
the device. In every round both load the same number of batches, the first one alternating; batches
that were ready beforehand are thrown away. Ratios are taken within a round; quoted is their
geometric mean with a 95 % t-interval over the rounds. Per core means per second of processor time
of the whole process tree: what a machine with so many cores to spare can load.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil
from side_by_side import ratio_with_interval, take_turns, this_machine

OURS, STOCK = "mlproject", "torchvision"
PREFETCH = 2


@dataclass(frozen=True)
class Task:
    """What both load."""

    folder: Path
    workers: int
    batch_size: int
    image_size: int
    augment: bool
    decoder: Any
    device: Any

    def ours(self) -> tuple[Callable[[], Any], Callable[[], None]]:
        """Return what fetches the next batch, and what ends it."""
        from bench.config import RunConfig
        from bench.training.devices import open_device
        from bench.training.inputs import open_batches
        from bench.training.precision import open_precision
        from bench.training.resolve import resolve
        from bench.training.workloads import workload_of

        config = RunConfig(
            data=str(self.folder),
            decoder=self.decoder,
            workers=self.workers,
            batch_size=self.batch_size,
            image_size=self.image_size,
            prefetch_factor=PREFETCH,
            augment=self.augment,
        )
        device = open_device(self.device.type)
        workload = workload_of(config)
        resolved = resolve(config, device, open_precision("fp32", device), workload)
        batches = open_batches(config, resolved, workload, device.torch_device)
        return batches.next, batches.close

    def stock(self) -> tuple[Callable[[], Any], Callable[[], None]]:
        """Return the same of torchvision's, which draws with replacement and so has no epochs."""
        import torch
        from torch.utils.data import DataLoader, RandomSampler
        from torchvision import transforms as T  # noqa: N812
        from torchvision.datasets import ImageFolder

        if self.augment:
            cut = [T.RandomResizedCrop(self.image_size), T.RandomHorizontalFlip()]
        else:
            cut = [T.Resize(round(self.image_size * 256 / 224)), T.CenterCrop(self.image_size)]
        normal = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        folder = ImageFolder(self.folder, T.Compose([*cut, T.ToTensor(), normal]))
        loader = DataLoader(
            folder,
            batch_size=self.batch_size,
            sampler=RandomSampler(folder, replacement=True, num_samples=10**9),
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=PREFETCH if self.workers else None,
        )
        batches: Iterator[Any] = iter(loader)

        def fetch() -> Any:
            images, labels = (part.to(self.device, non_blocking=True) for part in next(batches))
            return images.contiguous(memory_format=torch.channels_last), labels

        return fetch, getattr(batches, "_shutdown_workers", lambda: None)


def timed(task: Task, fetch: Callable[[], Any], batches: int) -> tuple[float, float]:
    """Return the images loaded per second, and per second of processor time."""
    import torch

    for _ in range(1 + max(1, task.workers) * PREFETCH):
        fetch()
    busy_s, begin_s = _processor_s(), time.perf_counter()
    for _ in range(batches):
        fetch()
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)
    images = batches * task.batch_size
    return images / (time.perf_counter() - begin_s), images / (_processor_s() - busy_s)


def row(task: Task, rounds: int, batches: int) -> str:
    """Open both, let them take turns, and return the medians and the two ratios."""
    opened = {STOCK: task.stock(), OURS: task.ours()}
    try:
        sides = {name: partial(timed, task, fetch, batches) for name, (fetch, _) in opened.items()}
        rates = take_turns(sides, rounds)
    finally:
        for _, close in opened.values():
            close()
    cells = [str(task.workers), "random cut" if task.augment else "centre"]
    measures = (zip(*rates[name], strict=True) for name in (OURS, STOCK))
    for ours, stock in zip(*measures, strict=True):  # per second, then per core
        cells += [f"{statistics.median(side):.0f}" for side in (ours, stock)]
        cells.append(ratio_with_interval(ours, stock, digits=2))
    return f"| {' | '.join(cells)} |"


def _processor_s() -> float:
    """Processor time of this process and of the loaders' so far, in seconds."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(each.user + each.system for each in times)


HEADER = (
    "| workers | cut | mlproject images/s | torchvision | ratio (95 %) "
    "| mlproject images/s per core | torchvision | ratio (95 %) |\n"
    "|---|---|---|---|---|---|---|---|"
)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--workers", multiple=True, type=click.IntRange(0), default=[1], show_default=True)
@click.option("--batch-size", default=32, show_default=True)
@click.option("--image-size", default=224, show_default=True)
@click.option("--batches", default=20, show_default=True, help="of one round, each")
@click.option("--rounds", default=6, show_default=True)
@click.option("--augment", is_flag=True, help="random cuts and flips instead of the centre")
@click.option("--decoder", default="cpu", show_default=True, help="of mlproject alone")
@click.option("--device", "name", default="cpu", show_default=True)
def main(workers: tuple[int, ...], batches: int, rounds: int, name: str, **same: Any) -> None:
    """Print a row per number of workers as it is known."""
    import torch

    click.echo(
        f"{this_machine()}; {rounds} rounds of {batches} batches of {same['batch_size']}, "
        f"{same['image_size']} pixels, decoder {same['decoder']}, onto {name}\n\n{HEADER}"
    )
    for count in workers:
        task = Task(workers=count, device=torch.device(name), **same)
        click.echo(row(task, rounds, batches))


if __name__ == "__main__":
    main()
