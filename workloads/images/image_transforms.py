"""What happens to one example on the host: picklable callables for `workloads.base.loader`.

Each takes a record `{"image", "label"}` and a generator, the example's own, and returns
`{"inputs": uint8 [size, size, 3], "targets": int}`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workloads.images import images, randaugment


@dataclass(frozen=True)
class TrainTransform:
    """AlgoPerf's ImageNet training view: random crop, mirror image, RandAugment."""

    image_size: int = 224
    resize_size: int = 256
    area_range: tuple[float, float] = (0.08, 1.0)
    aspect_range: tuple[float, float] = (0.75, 4 / 3)
    randaugment_layers: int = 2
    randaugment_magnitude: float = 10.0

    def __call__(self, record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        image = images.train_crop(
            images.decode(record["image"]),
            self.image_size,
            self.resize_size,
            generator,
            self.area_range,
            self.aspect_range,
        )
        image = images.flip(image, generator)
        image = randaugment.randaugment(
            image, self.randaugment_layers, self.randaugment_magnitude, generator
        )
        return {"inputs": image, "targets": record["label"]}


@dataclass(frozen=True)
class EvalTransform:
    """AlgoPerf's ImageNet evaluation view: the central crop; draws nothing."""

    image_size: int = 224
    resize_size: int = 256

    def __call__(self, record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        image = images.decode(record["image"])
        image = images.eval_crop(image, self.image_size, self.resize_size)
        return {"inputs": image, "targets": record["label"]}


@dataclass(frozen=True)
class ShiftTransform:
    """The image moved by up to `max_shift` pixels each way; with 0, the image as it is."""

    max_shift: int = 0
    fill: str = "zero"

    def __call__(self, record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        image = images.decode(record["image"])
        if self.max_shift:
            image = images.shift(image, self.max_shift, generator, self.fill)
        return {"inputs": image, "targets": record["label"]}
