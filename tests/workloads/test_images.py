"""Decoding, cropping, resizing and shifting, against worked values and a plain reference."""

import io
import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from workloads.base.errors import DataError
from workloads.images import images


def _picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def _encode(picture: np.ndarray, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, kind, **options)
    return buffer.getvalue()


RGB = _picture(4, 6)
GREY, OPAQUE = np.stack([RGB[:, :, 0]] * 3, -1), np.full((4, 6), 9, np.uint8)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(RGB, RGB), (RGB[:, :, 0], GREY), (np.dstack([RGB, OPAQUE]), RGB)],
    ids=["RGB", "grey", "transparent"],
)
def test_png_is_decoded_exactly_as_rgb(stored: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(images.decode(_encode(stored, "PNG")), expected)


def test_jpeg_keeps_the_order_of_the_colours_and_ignores_an_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate by 90 degrees to view"
    picture = np.full((16, 24, 3), (200, 100, 30), np.uint8)
    decoded = images.decode(_encode(picture, "JPEG", quality=100, exif=exif))
    assert decoded.shape == (16, 24, 3)
    assert np.abs(decoded.astype(int) - picture).max() <= 2


def _huge() -> bytes:
    """A PNG whose head says 40,000 x 40,000 pixels, with the right checksum."""
    content = _encode(RGB, "PNG")
    head = b"IHDR" + struct.pack(">II", 40_000, 40_000) + content[24:29]
    return content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:]


@pytest.mark.parametrize(
    "content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", _huge()]
)
def test_what_is_no_image_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="no JPEG or PNG"):
        images.decode(content)


def test_cmyk_is_decoded_where_adobes_marker_says_how_and_refused_without() -> None:
    """OpenCV takes all of it for inverted, as Adobe's is: without the marker it would be black."""
    buffer = io.BytesIO()
    Image.new("CMYK", (32, 24), (55, 135, 215, 0)).save(buffer, "JPEG", quality=95)
    marked = buffer.getvalue()
    assert np.abs(images.decode(marked)[5, 5].astype(int) - (200, 120, 40)).max() <= 2
    start = marked.index(b"\xff\xee")
    size = int.from_bytes(marked[start + 2 : start + 4], "big")
    with pytest.raises(DataError, match="CMYK"):
        images.decode(marked[:start] + marked[start + 2 + size :])


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("transform", [images.eval_view, images.train_view])
def test_an_image_of_a_pixel_or_a_line_is_resized(shape, transform) -> None:
    record = {"image": _encode(np.full((*shape, 3), 77, np.uint8), "PNG"), "label": 1}
    example = transform(record, np.random.default_rng(0))
    assert example["inputs"].shape == (224, 224, 3)
    if transform is images.eval_view:
        assert (example["inputs"] == 77).all()


def _plain_resize(picture: np.ndarray, size: int) -> np.ndarray:
    """The same filter from its definition, as a product with a matrix along each axis."""
    weights = []
    for length in picture.shape[:2]:
        centres = (np.arange(size) + 0.5) * length / size - 0.5
        d = np.abs(centres[:, None] - np.arange(length))
        near, far = 1.5 * d**3 - 2.5 * d**2 + 1, -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2
        taps = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
        weights.append(taps / taps.sum(1, keepdims=True))
    return np.einsum("yi,xj,ijc->yxc", *weights, picture)


@given(height=st.integers(1, 12), width=st.integers(1, 12), size=st.integers(1, 9))
@settings(max_examples=25)
def test_resize_is_the_filter_by_definition(height: int, width: int, size: int) -> None:
    picture = _picture(height, width)
    np.testing.assert_allclose(
        images.resize(picture, size), _plain_resize(picture, size), atol=1e-3, rtol=0
    )


def test_eval_crop_takes_the_middle() -> None:
    # 7/8 of the shorter side of 8 × 12 is 7: rows from (8 - 7 + 1) // 2 = 1, columns from
    # (12 - 7 + 1) // 2 = 3, and resizing 7 to 7 changes nothing.
    picture = _picture(8, 12)
    crop = images.eval_crop(picture, image_size=7, resize_size=8)
    assert crop.dtype == np.uint8
    np.testing.assert_array_equal(crop, picture[1:8, 3:10])


def test_eval_crop_rounds_and_stays_in_range() -> None:
    picture = np.zeros((16, 16, 3), np.uint8)
    picture[:, 8:] = 255  # a sharp edge overshoots
    crop = images.eval_crop(picture, 14, 16)
    exact = images.resize(picture[1:15, 1:15], 14)
    np.testing.assert_array_equal(crop, np.clip(np.rint(exact), 0, 255))
    large = images.eval_crop(picture, 56, 64)
    assert (large[0, :20] == 0).all()
    assert (large[0, -20:] == 255).all()


@given(
    height=st.integers(20, 600),
    width=st.integers(20, 600),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=300)
def test_random_crops_keep_their_bounds(height: int, width: int, seed: int) -> None:
    box = images.sample_crop(height, width, np.random.default_rng(seed))
    if box is None:
        assert max(height, width) > 5 * min(height, width)
        return
    top, left, rows, columns = box
    assert 0 <= top <= height - rows
    assert 0 <= left <= width - columns
    assert 0.1 * height * width <= rows * columns <= height * width
    assert 0.75 * rows - 0.5 <= columns <= 4 / 3 * rows + 0.5


def test_random_crops_spread_as_tensorflow_draws_them() -> None:
    # From 40,000 draws of tf.image.stateless_sample_distorted_bounding_box (TensorFlow 2.21) on
    # 375 × 500: means of top, left, height, width, and their standard errors.
    generator = np.random.default_rng(0)
    boxes = np.array(
        [images.sample_crop(375, 500, generator) for _ in range(20_000)],
        np.float64,
    )
    means, errors = np.array([59.56, 117.28, 254.98, 264.96]), np.array([0.27, 0.42, 0.35, 0.42])
    own_errors = boxes.std(axis=0) / math.sqrt(len(boxes))
    assert (np.abs(boxes.mean(axis=0) - means) < 4 * np.hypot(errors, own_errors)).all()


@pytest.mark.parametrize("shape", [(10, 1000), (40, 40)])
def test_a_picture_that_is_not_cropped_gets_the_evaluation_view(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 10 × 13 pixels of 10 × 1000 keep the aspect ratio: less than a tenth of the area. Of
    a square the whole is drawn."""
    if shape == (40, 40):
        monkeypatch.setattr(images, "_AREAS", (1.0, 1.0))
        monkeypatch.setattr(images, "_ASPECTS", (1.0, 1.0))
    picture, generator = _picture(*shape), np.random.default_rng(0)
    crop = images.train_crop(picture, 8, 10, generator)
    np.testing.assert_array_equal(crop, images.eval_crop(picture, 8, 10))


def test_train_crop_cuts_grey_levels_off() -> None:
    picture = _picture(60, 80)
    top, left, rows, columns = images.sample_crop(60, 80, np.random.default_rng(3)) or (0, 0, 0, 0)
    exact = images.resize(picture[top : top + rows, left : left + columns], 16)
    np.testing.assert_array_equal(
        images.train_crop(picture, 16, 18, np.random.default_rng(3)),
        np.floor(np.clip(exact, 0, 255)).astype(np.uint8),
    )


def test_flip_exchanges_left_and_right_half_of_the_time() -> None:
    picture, generator = _picture(4, 5), np.random.default_rng(0)
    results = [images.flip(picture, generator).tobytes() for _ in range(1000)]
    assert set(results) == {picture.tobytes(), picture[:, ::-1].tobytes()}
    assert 430 < results.count(picture.tobytes()) < 570  # 500 ± 4.4 standard deviations


def test_shift_moves_by_every_amount_and_fills() -> None:
    picture, generator = _picture(4, 6), np.random.default_rng(0)
    padded = np.pad(picture, ((2, 2), (2, 2), (0, 0)))
    views = {padded[y : y + 4, x : x + 6].tobytes() for y in range(5) for x in range(5)}
    assert len(views) == 25
    assert {images.shift(picture, 2, generator).tobytes() for _ in range(400)} == views


def test_views_have_their_size_and_label_and_draw_only_from_the_generator() -> None:
    record = {"image": _encode(_picture(70, 90), "JPEG"), "label": 3}
    first, again, other = (
        images.train_view(record, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first["inputs"], again["inputs"])
    assert not np.array_equal(first["inputs"], other["inputs"])
    assert (first["inputs"].shape, first["inputs"].dtype) == ((224, 224, 3), np.uint8)
    assert first["targets"] == 3
    plain = images.shifted_view(record, np.random.default_rng(0))
    np.testing.assert_array_equal(plain["inputs"], images.decode(record["image"]))
