"""Arithmetic on uint8 images that `workloads.images.randaugment` builds its operations from.

Values are cut off, not rounded, when they become uint8, as TensorFlow's cast does.
"""

from collections.abc import Callable, Sequence

import cv2
import numpy as np


def blend(first: np.ndarray, second: np.ndarray, factor: float) -> np.ndarray:
    """`first + factor · (second - first)` within 0 … 255, uint8; `first` may be broadcast."""
    start = first.astype(np.float32)
    mixed = start + np.float32(factor) * (second.astype(np.float32) - start)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def grey(image: np.ndarray) -> np.ndarray:
    """Luma of an RGB image by ITU-R BT.601 weights, uint8 `[H, W]`, as TensorFlow computes it.

    TensorFlow converts to [0, 1] and back with a factor of 255.5.
    """
    weights = np.array([0.2989, 0.5870, 0.1140], np.float32)
    unit = image.astype(np.float32) * np.float32(1 / 255)
    return (unit @ weights * np.float32(255.5)).astype(np.uint8)


def by_channel(image: np.ndarray, table: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Every channel through its own lookup table, made from the channel's histogram.

    `table` maps counts int64 `[256]` to uint8 `[256]`.
    """
    channels = [image[:, :, index] for index in range(image.shape[2])]
    tables = [table(np.bincount(channel.ravel(), minlength=256)) for channel in channels]
    return cv2.LUT(image, np.stack(tables, axis=-1)[None])


def affine(
    image: np.ndarray, x_from: Sequence[float], y_from: Sequence[float], fill: int
) -> np.ndarray:
    """The pixel at (x, y) taken from (a·x + b·y + c, d·x + e·y + f), the nearest one.

    `x_from` is (a, b, c), `y_from` (d, e, f). Halves are rounded away from zero, as TensorFlow's
    ImageProjectiveTransformV3 does; places outside the image become `fill`.
    """
    height, width, _ = image.shape
    x = np.arange(width, dtype=np.float32)[None, :]
    y = np.arange(height, dtype=np.float32)[:, None]
    places = [np.float32(a) * x + np.float32(b) * y + np.float32(c) for a, b, c in (x_from, y_from)]
    # 16 bits are enough: an image has fewer than 2^15 rows, and places far outside are all alike.
    nearest = [np.clip(_round_half_away(place), -2, 32767).astype(np.int16) for place in places]
    return cv2.remap(
        image,
        np.stack(nearest, axis=-1),
        None,
        cv2.INTER_NEAREST,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(fill,) * 3,
    )


def _round_half_away(values: np.ndarray) -> np.ndarray:
    return np.trunc(values + np.copysign(np.float32(0.5), values))
