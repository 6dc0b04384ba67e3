"""RandAugment (https://arxiv.org/abs/1909.13719) as AlgoPerf applies it, on uint8 RGB arrays.

The operations, their arguments by magnitude and the constants (grey 128 for what comes in from
outside, 40 pixels of cutout, 100 of translation) are AlgoPerf's, with its peculiarities: the
probability that it draws for each operation is never used, and `contrast` blends with a grey of
pixels / 256, not with the image's mean.

Different from AlgoPerf, on purpose: the sign of an argument and the place of the cutout come from
the example's generator (there they come from TensorFlow's unseeded global one), so a resumed run
repeats them. Different bit for bit: see the table of `tests/workloads/test_randaugment.py`.

Values are cut off, not rounded, when they become uint8, as TensorFlow's cast does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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


def affine(image: np.ndarray, x_from: Sequence[float], y_from: Sequence[float]) -> np.ndarray:
    """The pixel at (x, y) taken from (a·x + b·y + c, d·x + e·y + f), the nearest one.

    `x_from` is (a, b, c), `y_from` (d, e, f). Halves are rounded away from zero, as TensorFlow's
    ImageProjectiveTransformV3 does; places outside the image become `FILL`.
    """
    height, width, _ = image.shape
    x = np.arange(width, dtype=np.float32)[None, :]
    y = np.arange(height, dtype=np.float32)[:, None]
    places = [np.float32(a) * x + np.float32(b) * y + np.float32(c) for a, b, c in (x_from, y_from)]
    # 16 bits are enough: an image has fewer than 2^15 rows, and places far outside are all alike.
    halves = [np.copysign(np.float32(0.5), place) for place in places]
    nearest = [
        np.clip(np.trunc(place + half), -2, 32767).astype(np.int16)
        for place, half in zip(places, halves, strict=True)
    ]
    return cv2.remap(
        image,
        np.stack(nearest, axis=-1),
        None,
        cv2.INTER_NEAREST,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(FILL,) * 3,
    )


FILL = 128
CUTOUT_PIXELS = 40
TRANSLATE_PIXELS = 100


def randaugment(
    image: np.ndarray, layers: int, magnitude: float, generator: np.random.Generator
) -> np.ndarray:
    """`layers` operations in a row, each drawn from OPERATIONS with equal chance.

    Takes and returns uint8 `[H, W, 3]`. `magnitude` is on AlgoPerf's scale, 0 to 10.
    """
    for _ in range(layers):
        image = apply(
            OPERATIONS[int(generator.integers(len(OPERATIONS)))], image, magnitude, generator
        )
    return image


def apply(
    operation: "Operation", image: np.ndarray, magnitude: float, generator: np.random.Generator
) -> np.ndarray:
    """One operation at a magnitude, its sign or place drawn where it has one."""
    if operation.argument is None:
        return operation.function(image)
    argument = operation.argument(magnitude / 10)
    if operation.draws == "sign":
        return operation.function(image, argument if generator.random() < 0.5 else -argument)
    if operation.draws == "centre":
        row, column = (int(generator.integers(size)) for size in image.shape[:2])
        return operation.function(image, argument, row, column)
    return operation.function(image, argument)


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    """Rotated about the centre, nearest pixel; positive is counterclockwise."""
    height, width, _ = image.shape
    angle = np.float32(math.radians(degrees))
    cosine, sine = np.cos(angle), np.sin(angle)
    right, bottom = np.float32(width - 1), np.float32(height - 1)
    x = (right - (cosine * right - sine * bottom)) / 2
    y = (bottom - (sine * right + cosine * bottom)) / 2
    return affine(image, (cosine, -sine, x), (sine, cosine, y))


def color(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend from the grey image (0) over the image (1) to stronger colours."""
    return blend(np.repeat(grey(image)[:, :, None], 3, axis=2), image, factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend from a flat grey (0) over the image (1) to more contrast.

    The grey is the number of pixels / 256, at most 255 (196 for 224 × 224), because AlgoPerf
    takes the sum of the histogram for the sum of the values.
    """
    height, width, _ = image.shape
    flat = np.full((1, 1, 1), min(height * width / 256, 255.0)).astype(np.uint8)
    return blend(flat, image, factor)


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend from the smoothed image (0) over the image (1) to sharper; the border stays."""
    smooth = image.copy()
    # Pillow's SMOOTH filter: the neighbours with weight 1, the pixel with 5, over 13.
    sums = cv2.filter2D(image, cv2.CV_32F, _SMOOTH)
    smooth[1:-1, 1:-1] = (sums[1:-1, 1:-1].astype(np.uint16) // 13).astype(np.uint8)
    return blend(smooth, image, factor)


def cutout(image: np.ndarray, pixels: int, row: int, column: int) -> np.ndarray:
    """A square of 2·`pixels` around (row, column) made grey, as far as it lies in the image."""
    result = image.copy()
    rows = slice(max(row - pixels, 0), row + pixels)
    result[rows, slice(max(column - pixels, 0), column + pixels)] = FILL
    return result


@dataclass(frozen=True)
class Operation:
    """A row of the table: `function(image, argument(magnitude / 10))` and what it draws.

    argument: None for a function of the image alone.
    """

    name: str
    function: Callable[..., np.ndarray]
    argument: Callable[[float], Any] | None = None
    draws: str = ""


def _enhance(level: float) -> float:
    return level * 1.8 + 0.1


def _autocontrast_table(counts: np.ndarray) -> np.ndarray:
    present = np.flatnonzero(counts)
    low, high = np.float32(present[0]), np.float32(present[-1])
    values = np.arange(256, dtype=np.float32)
    if high > low:
        scale = np.float32(255) / (high - low)
        values = np.clip(values * scale - low * scale, 0, 255)
    return values.astype(np.uint8)


def _equalize_table(counts: np.ndarray) -> np.ndarray:
    step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
    if step == 0:
        return np.arange(256, dtype=np.uint8)
    below = np.concatenate([[0], np.cumsum(counts)[:-1]])
    table = (below + step // 2) // step
    table[0] = 0
    return np.clip(table, 0, 255).astype(np.uint8)


_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32)


OPERATIONS: tuple[Operation, ...] = (
    # Every channel stretched linearly to 0 … 255; a channel of one value stays.
    Operation("AutoContrast", lambda image: by_channel(image, _autocontrast_table)),
    # Every channel's histogram flattened, as Pillow's ImageOps.equalize does.
    Operation("Equalize", lambda image: by_channel(image, _equalize_table)),
    Operation("Invert", lambda image: 255 - image),
    Operation("Rotate", rotate, lambda level: level * 30.0, draws="sign"),
    # The highest bits of every value kept, as many as the argument says.
    Operation(
        "Posterize",
        lambda image, bits: image & np.uint8(256 - 2 ** (8 - bits)),
        lambda level: int(level * 4),
    ),
    # Values from the threshold on inverted. AlgoPerf compares uint8 with a threshold that
    # TensorFlow casts to uint8, so 256, its argument at magnitude 10, is 0 and inverts everything.
    Operation(
        "Solarize",
        lambda image, threshold: np.where(image < threshold % 256, image, 255 - image),
        lambda level: int(level * 256),
    ),
    Operation("Color", color, _enhance),
    Operation("Contrast", contrast, _enhance),
    # From black (0) over the image (1) to brighter.
    Operation(
        "Brightness",
        lambda image, factor: blend(np.zeros((1, 1, 1), np.uint8), image, factor),
        _enhance,
    ),
    Operation("Sharpness", sharpness, _enhance),
    # Row y moved left by level·y, or column x up by level·x, nearest pixel.
    Operation(
        "ShearX",
        lambda image, level: affine(image, (1, level, 0), (0, 1, 0)),
        lambda level: level * 0.3,
        draws="sign",
    ),
    Operation(
        "ShearY",
        lambda image, level: affine(image, (1, 0, 0), (level, 1, 0)),
        lambda level: level * 0.3,
        draws="sign",
    ),
    # Moved left, or up, by so many pixels.
    Operation(
        "TranslateX",
        lambda image, pixels: affine(image, (1, 0, pixels), (0, 1, 0)),
        lambda level: level * TRANSLATE_PIXELS,
        draws="sign",
    ),
    Operation(
        "TranslateY",
        lambda image, pixels: affine(image, (1, 0, 0), (0, 1, pixels)),
        lambda level: level * TRANSLATE_PIXELS,
        draws="sign",
    ),
    Operation("Cutout", cutout, lambda level: int(level * CUTOUT_PIXELS), draws="centre"),
    # Added to values below 128, at most to 255.
    Operation(
        "SolarizeAdd",
        lambda image, addition: np.where(
            image < 128, np.minimum(image, 255 - addition) + np.uint8(addition), image
        ),
        lambda level: int(level * 110),
    ),
)
