"""What a published machine's label says of its GPU, as in `8xH100_80GB_SXM5_192-222-52-99_v2`."""

from __future__ import annotations

import re

_GPU = re.compile(
    r"(?:(?P<count>\d{1,2})x)?(?P<gpu>TitanRTX|QuadroRTX\d{4}|(?:AdaA|GH|[ABHLTV])\d{2,4}|"
    r"\d{4}(?:Ti|SuperMaxQ|Super|Max-?Q)?)[A-Za-z]*"
)
_VARIANT = re.compile(r"\d{2,3}GB|SXM\d?|PCIe\d?|NVL")


def gpu_in_name(label: str) -> str | None:
    """Return the GPU that a label names, its words as they stand: `H100 80GB SXM5`; or None."""
    words = label.split("_")
    for place, word in enumerate(words):
        if (gpu := _GPU.fullmatch(word)) is not None:
            variants = []
            for following in words[place + 1 :]:
                if not _VARIANT.fullmatch(following):
                    break
                variants.append(following)
            return " ".join([gpu["gpu"], *variants])
    return None


def gpus_in_name(label: str) -> int | None:
    """Return how many GPUs a label names: 8 of `8xH100_80GB`; None where it has no number."""
    found = (_GPU.fullmatch(word) for word in label.split("_"))
    gpu = next((one for one in found if one is not None), None)
    return int(gpu["count"]) if gpu is not None and gpu["count"] else None
