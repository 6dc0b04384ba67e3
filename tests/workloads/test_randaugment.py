"""RandAugment's operations, each against values worked by hand.

Compared once with AlgoPerf's TensorFlow operations (TensorFlow 2.21; a photograph and noise, at
magnitude 10 and at others): every operation gives the same bytes, except sharpness, where 0.1 to
0.7 % of the values differ by 1, because TensorFlow sums in float32 what is summed exactly here.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.images import randaugment as ra


def _grey(rows: list[list[int]]) -> np.ndarray:
    """A picture whose three channels are all `rows`."""
    return np.repeat(np.array(rows, np.uint8)[:, :, None], 3, axis=2)


FUNCTIONS = {operation.name: operation.function for operation in ra.OPERATIONS}
SMALL = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_the_table_is_algoperfs() -> None:
    names = [operation.name for operation in ra.OPERATIONS]
    assert names[:3] == ["AutoContrast", "Equalize", "Invert"]
    at_ten = {
        operation.name: (operation.argument(1.0), operation.draws)
        for operation in ra.OPERATIONS[3:]
    }
    assert at_ten == {
        "Rotate": (30.0, "sign"),
        "Posterize": (4, ""),
        "Solarize": (256, ""),
        "Color": (1.9000000000000001, ""),
        "Contrast": (1.9000000000000001, ""),
        "Brightness": (1.9000000000000001, ""),
        "Sharpness": (1.9000000000000001, ""),
        "ShearX": (0.3, "sign"),
        "ShearY": (0.3, "sign"),
        "TranslateX": (100.0, "sign"),
        "TranslateY": (100.0, "sign"),
        "Cutout": (40, "centre"),
        "SolarizeAdd": (110, ""),
    }
    at_five = {operation.name: operation.argument(0.5) for operation in ra.OPERATIONS[3:]}
    assert (at_five["Rotate"], at_five["Posterize"], at_five["Color"]) == (15.0, 2, 1.0)


# An operation, the three equal channels of a picture, arguments and the result's channels.
RAMP = [[0, 100, 127, 128, 255]]
STEPS = [[0, 7, 100, 200]]
SPOT = [[13, 13, 13], [13, 39, 13], [13, 13, 13]]
NINE = [[9] * 4] * 4
BY_HAND = [
    # 10 … 60 to 0 … 255: scale 5.1; (20 - 10)·5.1 = 51, (35 - 10)·5.1 = 127.5, cut off.
    (FUNCTIONS["AutoContrast"], [[10, 20, 35, 60]], (), [[0, 51, 127, 255]]),
    (FUNCTIONS["AutoContrast"], [[7, 7]], (), [[7, 7]]),
    # 512 pixels: 255 of 10, 255 of 20, 2 of 30. step = (512 - 2) // 255 = 2. Values below: 0 for
    # 10, 255 for 20, 510 for 30, each (count + 1) // 2: 0, 128, 255.
    (
        FUNCTIONS["Equalize"],
        [[10] * 255 + [20] * 255 + [30] * 2],
        (),
        [[0] * 255 + [128] * 255 + [255] * 2],
    ),
    (FUNCTIONS["Equalize"], [[9, 200, 9]], (), [[9, 200, 9]]),  # step is 0: unchanged
    (FUNCTIONS["Invert"], RAMP, (), [[255, 155, 128, 127, 0]]),
    (FUNCTIONS["Posterize"], RAMP, (4,), [[0, 96, 112, 128, 240]]),
    (FUNCTIONS["Solarize"], RAMP, (128,), [[0, 100, 127, 127, 0]]),
    (FUNCTIONS["Solarize"], RAMP, (256,), [[255, 155, 128, 127, 0]]),  # AlgoPerf's uint8 threshold
    (FUNCTIONS["SolarizeAdd"], RAMP, (110,), [[110, 210, 237, 128, 255]]),
    (ra.rotate, SMALL, (90,), [[3, 6, 9], [2, 5, 8], [1, 4, 7]]),
    (ra.rotate, SMALL, (-90,), [[7, 4, 1], [8, 5, 2], [9, 6, 3]]),
    (ra.rotate, SMALL, (180,), [[9, 8, 7], [6, 5, 4], [3, 2, 1]]),
    # White stays white although the weights add up to 0.9999: 255·0.9999·255.5/255 = 255.47.
    (ra.color, [[255]], (0.0,), [[255]]),
    # 16 × 32 pixels / 256 = 2; 2 + 1.9·(10 - 2) = 17.2; 2 + 1.9·(1 - 2) = 0.1.
    (ra.contrast, [[10] * 32] * 15 + [[1] * 32], (1.9,), [[17] * 32] * 15 + [[0] * 32]),
    # 300 × 300 / 256 is more than 255, so 255; 255 + 0.5·(55 - 255) = 155.
    (ra.contrast, [[55] * 300] * 300, (0.5,), [[155] * 300] * 300),
    (FUNCTIONS["Brightness"], STEPS, (1.9,), [[0, 13, 190, 255]]),
    (FUNCTIONS["Brightness"], STEPS, (0.5,), [[0, 3, 50, 100]]),
    # The middle smoothed: (8 neighbours of 13 + 5·39) / 13 = 299 / 13 = 23; 23 + 1.9·(39 - 23) =
    # 53.4. The border is not smoothed, so it stays.
    (ra.sharpness, SPOT, (0.0,), [[13, 13, 13], [13, 23, 13], [13, 13, 13]]),
    (ra.sharpness, SPOT, (1.9,), [[13, 13, 13], [13, 53, 13], [13, 13, 13]]),
    # Row y is read at x + y, so it moves left by y.
    (FUNCTIONS["ShearX"], SMALL, (1.0,), [[1, 2, 3], [5, 6, 128], [9, 128, 128]]),
    (FUNCTIONS["ShearY"], SMALL, (1.0,), [[1, 5, 9], [4, 8, 128], [7, 128, 128]]),
    # 0.3·2 = 0.6 rounds to 1; 0.3·1 to 0. To the right, place -0.6 rounds to -1, outside.
    (FUNCTIONS["ShearX"], SMALL, (0.3,), [[1, 2, 3], [4, 5, 6], [8, 9, 128]]),
    (FUNCTIONS["ShearX"], SMALL, (-0.3,), [[1, 2, 3], [4, 5, 6], [128, 7, 8]]),
    (FUNCTIONS["TranslateX"], SMALL, (1,), [[2, 3, 128], [5, 6, 128], [8, 9, 128]]),
    (FUNCTIONS["TranslateX"], SMALL, (-2,), [[128, 128, 1], [128, 128, 4], [128, 128, 7]]),
    (FUNCTIONS["TranslateY"], SMALL, (1,), [[4, 5, 6], [7, 8, 9], [128, 128, 128]]),
    # Places -0.5, 0.5, 1.5 are -1, 1, 2.
    (FUNCTIONS["TranslateX"], SMALL, (-0.5,), [[128, 2, 3], [128, 5, 6], [128, 8, 9]]),
    (FUNCTIONS["TranslateX"], SMALL, (100_000,), [[128] * 3] * 3),
    (ra.cutout, NINE, (1, 1, 2), [[9, 128, 128, 9], [9, 128, 128, 9], [9] * 4, [9] * 4]),
    (ra.cutout, NINE, (1, 0, 0), [[128, 9, 9, 9]] + [[9] * 4] * 3),
    (ra.cutout, NINE, (3, 3, 0), [[128, 128, 128, 9]] * 4),
]


@pytest.mark.parametrize(("operation", "rows", "arguments", "expected"), BY_HAND)
def test_an_operation_by_hand(
    operation: Callable[..., np.ndarray],
    rows: list[list[int]],
    arguments: tuple[float, ...],
    expected: list[list[int]],
) -> None:
    result = operation(_grey(rows), *arguments)
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, _grey(expected))


def test_channels_by_hand() -> None:
    """Contrast is stretched in every channel by itself, colour blends with grey."""
    mixed = np.stack([[[7, 7]], [[0, 255]], [[3, 4]]], axis=-1).astype(np.uint8)
    np.testing.assert_array_equal(
        FUNCTIONS["AutoContrast"](mixed), np.stack([[[7, 7]], [[0, 255]], [[0, 255]]], axis=-1)
    )
    # Grey of (100, 50, 200): 0.2989·100 + 0.587·50 + 0.114·200 = 82.04, times 255.5/255 = 82.2.
    # 82 + 1.9·(100 - 82) = 116.2; 82 + 1.9·(50 - 82) = 21.2; 82 + 1.9·(200 - 82) = 306.2.
    picture = np.array([[[100, 50, 200]]], np.uint8)
    blends = [ra.color(picture, factor).tolist() for factor in (0.0, 1.0, 1.9)]
    assert blends == [[[[82, 82, 82]]], [[[100, 50, 200]]], [[[116, 21, 255]]]]


def test_rotate_fills_the_corners_with_grey() -> None:
    # At 45° the corners of 3 × 3 come from a distance of √2 along an axis, 0.41 beyond the edge,
    # which still rounds to the edge; the corners of 5 × 5 from 2√2 = 2.83, beyond 2.5.
    assert not (ra.rotate(_grey(SMALL), 45) == 128).any()
    turned = ra.rotate(np.full((5, 5, 3), 9, np.uint8), 45)[:, :, 0]
    assert turned[[0, 0, 4, 4], [0, 4, 0, 4]].tolist() == [128] * 4
    assert (turned == 9).sum() == 21


@given(
    name=st.sampled_from([operation.name for operation in ra.OPERATIONS]),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    magnitude=st.floats(0, 10),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200)
def test_any_operation_takes_any_picture(
    name: str, height: int, width: int, magnitude: float, seed: int
) -> None:
    operation = next(o for o in ra.OPERATIONS if o.name == name)
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    before = picture.copy()
    result = ra.apply(operation, picture, magnitude, np.random.default_rng(seed))
    assert (result.shape, result.dtype) == (picture.shape, np.uint8)
    np.testing.assert_array_equal(picture, before)


def test_both_signs_are_drawn_equally_often() -> None:
    translate = next(o for o in ra.OPERATIONS if o.name == "TranslateX")
    left = sum(
        int(ra.apply(translate, _grey(SMALL), 0.1, np.random.default_rng(seed))[0, 0, 0] == 2)
        for seed in range(1000)
    )
    assert 430 < left < 570


def test_cutout_is_centred_anywhere() -> None:
    cutout = next(o for o in ra.OPERATIONS if o.name == "Cutout")
    covered = np.zeros((8, 8))
    for seed in range(500):
        picture = np.zeros((8, 8, 3), np.uint8)
        covered += ra.apply(cutout, picture, 0.25, np.random.default_rng(seed))[:, :, 0] == 128
    # One pixel around a centre uniform over 64 places: 1 to 4 places cover a pixel.
    assert (covered > 0).all()
    assert covered[3:5, 3:5].min() > 15  # expected 500 · 4 / 64 = 31


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_layers_are_applied_in_a_row(layers: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    generator, replay = np.random.default_rng(5), np.random.default_rng(5)
    expected = picture
    for _ in range(layers):
        expected = ra.apply(ra.OPERATIONS[int(replay.integers(16))], expected, 10.0, replay)
    np.testing.assert_array_equal(ra.randaugment(picture, layers, 10.0, generator), expected)
