"""Images on the host: decoding, cropping, resizing, and the transforms of training and evaluation.

uint8 RGB out, normalised on the device. A transform takes a record `{"image", "label"}` and the
example's own generator, and returns `{"inputs": uint8 [size, size, 3], "targets": int}`; it can be
pickled.

Sources of the formulas: AlgoPerf's ImageNet input pipeline, and for what it calls, TensorFlow's
documented behaviour of `tf.image.stateless_sample_distorted_bounding_box` and
`tf.image.resize(method="bicubic")`.

One resize filter everywhere: the cubic of Keys (1981) with a = -0.5, half-pixel centres, no
antialiasing, weights beyond the edge dropped and the rest renormalised. That is TensorFlow's.
OpenCV's INTER_CUBIC has a = -0.75 and differs by 0.7 (shrinking) to 1.0 (enlarging) grey levels
on average, 10 at most, on a photograph; Pillow's antialiases. The exact filter costs about 0.3 ms
an image more than OpenCV's.
"""

import functools
import math
import re
from typing import Any

import cv2
import numpy as np
import scipy.sparse

from workloads.base.errors import DataError
from workloads.images import randaugment

# Of ImageNet's views: AlgoPerf's.
IMAGE_SIZE, _RESIZE_SIZE = 224, 256
# AlgoPerf asks that a crop cover a tenth of the "object", which is the whole image: crops between
# the smallest area (0.08) and a tenth are drawn, and drawn again.
_MIN_COVERED = 0.1
# Of crops: their share of the image, and width over height.
_AREAS, _ASPECTS = (0.08, 1.0), (0.75, 4 / 3)
# The frame header of a JPEG with four components, 8 bits each, and Adobe's segment.
_CMYK = re.compile(rb"\xff[\xc0-\xc2]\x00\x14\x08.{4}\x04", re.DOTALL)
_ADOBE = b"\xff\xee\x00\x0eAdobe"
_RANDAUGMENT_LAYERS, _RANDAUGMENT_MAGNITUDE = 2, 10.0


def decode(image: bytes | np.ndarray) -> np.ndarray:
    """A JPEG or PNG as uint8 RGB `[H, W, 3]`; an array is returned as it is.

    An orientation in the file's EXIF data is ignored, as TensorFlow does. Raises DataError if the
    bytes are no image, or one that OpenCV decodes to black: it takes all CMYK for inverted, as
    Adobe's is.
    """
    if isinstance(image, np.ndarray):
        return image
    if b"\x00\x14\x08" in image and _CMYK.search(image) and _ADOBE not in image:
        raise DataError("a CMYK JPEG without Adobe's marker: convert it to RGB")
    buffer = np.frombuffer(image, np.uint8)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        decoded = cv2.imdecode(buffer, flags) if buffer.size else None
    except cv2.error:  # more pixels than OpenCV takes
        decoded = None
    if decoded is None:
        raise DataError(f"{buffer.size} bytes starting with {image[:8]!r} are no JPEG or PNG image")
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def decoded(record: dict[str, Any]) -> dict[str, Any]:
    """A record `{"image", "label"}` with its image decoded: transforms take both alike."""
    return {**record, "image": decode(record["image"])}


def resize(image: np.ndarray, size: int) -> np.ndarray:
    """Bicubic (a = -0.5) to float32 `[size, size, C]`; values may overshoot 0 and 255."""
    height, width, channels = image.shape
    rows = image.reshape(height, width * channels).astype(np.float32)
    rows = (_filter(height, size) @ rows).reshape(size, width, channels)
    columns = cv2.transpose(rows).reshape(width, size * channels)
    columns = (_filter(width, size) @ columns).reshape(size, size, channels)
    return cv2.transpose(columns)


def eval_crop(image: np.ndarray, image_size: int, resize_size: int) -> np.ndarray:
    """AlgoPerf's evaluation view: the central square of `image_size / resize_size` of the shorter
    side, resized to uint8 `[image_size, image_size, 3]`, rounded to the nearest grey level.
    """
    height, width, _ = image.shape
    side = max(1, int(image_size / resize_size * min(height, width)))
    top, left = (height - side + 1) // 2, (width - side + 1) // 2
    crop = resize(image[top : top + side, left : left + side], image_size)
    return np.clip(np.rint(crop), 0, 255).astype(np.uint8)


def train_crop(
    image: np.ndarray,
    image_size: int,
    resize_size: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """AlgoPerf's training view: a random crop, resized to uint8 `[image_size, image_size, 3]`.

    Where no crop was found, or it is the whole image, the evaluation's crop is taken. Grey levels
    are cut off, not rounded, as AlgoPerf casts before RandAugment.
    """
    height, width, _ = image.shape
    box = sample_crop(height, width, generator)
    if box is None or box[2:] == (height, width):
        return eval_crop(image, image_size, resize_size)
    top, left, rows, columns = box
    crop = resize(image[top : top + rows, left : left + columns], image_size)
    return np.clip(crop, 0, 255).astype(np.uint8)


def sample_crop(
    height: int, width: int, generator: np.random.Generator
) -> tuple[int, int, int, int] | None:
    """Top, left, height, width of a random crop as TensorFlow draws it; None after ten failures.

    The aspect ratio (width / height) is uniform, then the height is uniform between the one of the
    smallest area and the tallest that fits. The position excludes the last row and column.
    """
    for _ in range(10):
        size = _crop_size(height, width, generator.uniform(*_ASPECTS), generator)
        if size is not None:
            top = int(generator.integers(max(height - size[0], 1)))
            return top, int(generator.integers(max(width - size[1], 1))), *size
    return None


def _crop_size(
    height: int, width: int, aspect: float, generator: np.random.Generator
) -> tuple[int, int] | None:
    smallest, largest = (fraction * height * width for fraction in _AREAS)
    # The columns of so many rows, rounded, are no more than the width.
    fitting = int((width + 0.5) / aspect)
    fitting -= round(fitting * aspect) > width
    tallest = min(round(math.sqrt(largest / aspect)), fitting, height)
    shortest = min(round(math.sqrt(smallest / aspect)), tallest)
    rows = int(generator.integers(shortest, tallest, endpoint=True))
    # Rounding may have put the area just outside the range: one row more or less may mend it.
    rows += rows * round(rows * aspect) < smallest
    rows -= rows * round(rows * aspect) > largest
    columns = round(rows * aspect)
    large_enough = rows * columns >= max(smallest, _MIN_COVERED * height * width)
    fits = rows <= height and columns <= width and rows * columns <= largest
    return (rows, columns) if large_enough and fits and rows * columns else None


def flip(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The image, or with probability 1/2 its mirror image (left and right exchanged)."""
    return cv2.flip(image, 1) if generator.random() < 0.5 else image


def shift(image: np.ndarray, max_shift: int, generator: np.random.Generator) -> np.ndarray:
    """Moved by whole pixels, down and right, each uniform in -max_shift … max_shift.

    What comes in from outside is 0.
    """
    height, width, _ = image.shape
    k = max_shift
    framed = cv2.copyMakeBorder(image, k, k, k, k, cv2.BORDER_CONSTANT)
    top, left = generator.integers(0, 2 * k, 2, endpoint=True)
    return framed[top : top + height, left : left + width]


@functools.lru_cache(maxsize=1024)
def _filter(source: int, target: int) -> scipy.sparse.csr_array:
    """The resize along one axis as a sparse matrix, float32 `[target, source]`, 4 taps a row."""
    centres = (np.arange(target) + 0.5) * (source / target) - 0.5
    taps = np.floor(centres).astype(np.int32)[:, None] + np.arange(-1, 3, dtype=np.int32)
    inside = (taps >= 0) & (taps < source)
    weights = np.where(inside, _keys(np.abs(centres[:, None] - taps)), 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    columns = np.clip(taps, 0, source - 1).ravel()
    rows = np.arange(0, 4 * target + 1, 4, dtype=np.int32)
    entries = (weights.astype(np.float32).ravel(), columns, rows)
    return scipy.sparse.csr_array(entries, shape=(target, source))


def _keys(distance: np.ndarray) -> np.ndarray:
    """Keys' cubic convolution kernel with a = -0.5 (Keys 1981, equation 15)."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def train_view(record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """AlgoPerf's ImageNet training view: random crop, mirror image, RandAugment."""
    crop = train_crop(decode(record["image"]), IMAGE_SIZE, _RESIZE_SIZE, generator)
    image = randaugment.randaugment(
        flip(crop, generator), _RANDAUGMENT_LAYERS, _RANDAUGMENT_MAGNITUDE, generator
    )
    return {"inputs": image, "targets": record["label"]}


def eval_view(record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """AlgoPerf's ImageNet evaluation view: the central crop; draws nothing."""
    image = eval_crop(decode(record["image"]), IMAGE_SIZE, _RESIZE_SIZE)
    return {"inputs": image, "targets": record["label"]}


def shifted_view(
    record: dict[str, Any], generator: np.random.Generator, max_shift: int = 0
) -> dict[str, Any]:
    """The image moved by up to `max_shift` pixels each way; with 0, the image as it is."""
    image = decode(record["image"])
    if max_shift:
        image = shift(image, max_shift, generator)
    return {"inputs": image, "targets": record["label"]}
