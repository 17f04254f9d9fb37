"""torchvision's stock image pipeline alone: what one would write by hand to load a folder.

ImageFolder, Pillow, Resize, CenterCrop, ToTensor and Normalize in torch's DataLoader. Prints images
per second over `--batches` batches, those that were ready beforehand thrown away.
"""

import argparse
import json
import time

from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

PREFETCH = 2


def main() -> None:
    """Load and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=30)
    given = parser.parse_args()
    normal = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    cut = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), normal]
    folder = ImageFolder(given.folder, transforms.Compose(cut))
    loader = DataLoader(
        folder,
        batch_size=given.batch_size,
        sampler=RandomSampler(folder, replacement=True, num_samples=10**9),
        num_workers=given.workers,
        prefetch_factor=PREFETCH if given.workers else None,
    )
    batches = iter(loader)
    for _ in range(1 + max(1, given.workers) * PREFETCH):
        next(batches)
    begin_s = time.perf_counter()
    for _ in range(given.batches):
        next(batches)
    seconds = time.perf_counter() - begin_s
    print(json.dumps({"samples_per_s": given.batches * given.batch_size / seconds}), flush=True)


if __name__ == "__main__":
    main()
