"""RandAugment's operations, each against values worked by hand.

Compared once with AlgoPerf's TensorFlow operations (TensorFlow 2.21; a photograph and noise, at
magnitude 10 and at others): every operation gives the same bytes, except sharpness, where 0.1 to
0.7 % of the values differ by 1, because TensorFlow sums in float32 what is summed exactly here.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.images import randaugment as ra


def _grey(rows: list[list[int]]) -> np.ndarray:
    """A picture whose three channels are all `rows`."""
    return np.repeat(np.array(rows, np.uint8)[:, :, None], 3, axis=2)


def _same(result: np.ndarray, rows: list[list[int]]) -> None:
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, _grey(rows))


SMALL = _grey([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


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


def test_autocontrast_stretches_every_channel() -> None:
    # 10 … 60 to 0 … 255: scale 5.1; (20 - 10)·5.1 = 51, (35 - 10)·5.1 = 127.5, cut off.
    _same(ra.autocontrast(_grey([[10, 20, 35, 60]])), [[0, 51, 127, 255]])
    mixed = np.stack([np.full((1, 2), 7), [[0, 255]], [[3, 4]]], axis=-1).astype(np.uint8)
    np.testing.assert_array_equal(
        ra.autocontrast(mixed), np.stack([[[7, 7]], [[0, 255]], [[0, 255]]], axis=-1)
    )


def test_equalize_flattens_the_histogram() -> None:
    # 512 pixels: 255 of 10, 255 of 20, 2 of 30. step = (512 - 2) // 255 = 2. Values below: 0 for
    # 10, 255 for 20, 510 for 30, each (count + 1) // 2: 0, 128, 255.
    values = [10] * 255 + [20] * 255 + [30] * 2
    _same(ra.equalize(_grey([values])), [[0] * 255 + [128] * 255 + [255] * 2])
    few = _grey([[9, 200, 9]])  # step is 0: unchanged
    np.testing.assert_array_equal(ra.equalize(few), few)


def test_invert_posterize_solarize() -> None:
    picture = _grey([[0, 100, 127, 128, 255]])
    _same(ra.invert(picture), [[255, 155, 128, 127, 0]])
    _same(ra.posterize(picture, 4), [[0, 96, 112, 128, 240]])
    _same(ra.solarize(picture, 128), [[0, 100, 127, 127, 0]])
    _same(ra.solarize(picture, 256), [[255, 155, 128, 127, 0]])  # AlgoPerf's uint8 threshold
    _same(ra.solarize_add(picture, 110), [[110, 210, 237, 128, 255]])


def test_rotate_by_a_quarter_and_a_half_turn() -> None:
    _same(ra.rotate(SMALL, 90), [[3, 6, 9], [2, 5, 8], [1, 4, 7]])
    _same(ra.rotate(SMALL, -90), [[7, 4, 1], [8, 5, 2], [9, 6, 3]])
    _same(ra.rotate(SMALL, 180), [[9, 8, 7], [6, 5, 4], [3, 2, 1]])


def test_rotate_fills_the_corners_with_grey() -> None:
    # At 45° the corners of 3 × 3 come from a distance of √2 along an axis, 0.41 beyond the edge,
    # which still rounds to the edge; the corners of 5 × 5 from 2√2 = 2.83, beyond 2.5.
    assert not (ra.rotate(SMALL, 45) == 128).any()
    turned = ra.rotate(np.full((5, 5, 3), 9, np.uint8), 45)[:, :, 0]
    assert turned[[0, 0, 4, 4], [0, 4, 0, 4]].tolist() == [128] * 4
    assert (turned == 9).sum() == 21


def test_color_blends_with_grey() -> None:
    # Grey of (100, 50, 200): 0.2989·100 + 0.587·50 + 0.114·200 = 82.04, times 255.5/255 = 82.2.
    picture = np.array([[[100, 50, 200]]], np.uint8)
    np.testing.assert_array_equal(ra.color(picture, 0.0), [[[82, 82, 82]]])
    np.testing.assert_array_equal(ra.color(picture, 1.0), picture)
    # White stays white although the weights add up to 0.9999: 255·0.9999·255.5/255 = 255.47.
    white = np.full((1, 1, 3), 255, np.uint8)
    np.testing.assert_array_equal(ra.color(white, 0.0), white)
    # 82 + 1.9·(100 - 82) = 116.2; 82 + 1.9·(50 - 82) = 21.2; 82 + 1.9·(200 - 82) = 306.2.
    np.testing.assert_array_equal(ra.color(picture, 1.9), [[[116, 21, 255]]])


def test_contrast_blends_with_a_grey_of_the_picture_size() -> None:
    # 16 × 32 pixels / 256 = 2; 2 + 1.9·(10 - 2) = 17.2; 2 + 1.9·(1 - 2) = 0.1.
    _same(ra.contrast(_grey([[10] * 32] * 15 + [[1] * 32]), 1.9), [[17] * 32] * 15 + [[0] * 32])
    # 300 × 300 / 256 is more than 255, so 255; 255 + 0.5·(55 - 255) = 155.
    assert (ra.contrast(np.full((300, 300, 3), 55, np.uint8), 0.5) == 155).all()


def test_brightness_blends_with_black() -> None:
    _same(ra.brightness(_grey([[0, 7, 100, 200]]), 1.9), [[0, 13, 190, 255]])
    _same(ra.brightness(_grey([[0, 7, 100, 200]]), 0.5), [[0, 3, 50, 100]])


def test_sharpness_moves_away_from_the_smoothed_picture() -> None:
    # The middle smoothed: (8 neighbours of 13 + 5·39) / 13 = 299 / 13 = 23; 23 + 1.9·(39 - 23) =
    # 53.4. The border is not smoothed, so it stays.
    rows = [[13, 13, 13], [13, 39, 13], [13, 13, 13]]
    _same(ra.sharpness(_grey(rows), 0.0), [[13, 13, 13], [13, 23, 13], [13, 13, 13]])
    _same(ra.sharpness(_grey(rows), 1.9), [[13, 13, 13], [13, 53, 13], [13, 13, 13]])


def test_shears_move_rows_and_columns_by_their_place() -> None:
    # Row y is read at x + y, so it moves left by y.
    _same(ra.shear_x(SMALL, 1.0), [[1, 2, 3], [5, 6, 128], [9, 128, 128]])
    _same(ra.shear_y(SMALL, 1.0), [[1, 5, 9], [4, 8, 128], [7, 128, 128]])
    # 0.3·2 = 0.6 rounds to 1; 0.3·1 to 0. To the right, place -0.6 rounds to -1, outside.
    _same(ra.shear_x(SMALL, 0.3), [[1, 2, 3], [4, 5, 6], [8, 9, 128]])
    _same(ra.shear_x(SMALL, -0.3), [[1, 2, 3], [4, 5, 6], [128, 7, 8]])


def test_translations_round_halves_away_from_zero() -> None:
    _same(ra.translate_x(SMALL, 1), [[2, 3, 128], [5, 6, 128], [8, 9, 128]])
    _same(ra.translate_x(SMALL, -2), [[128, 128, 1], [128, 128, 4], [128, 128, 7]])
    _same(ra.translate_y(SMALL, 1), [[4, 5, 6], [7, 8, 9], [128, 128, 128]])
    # Places -0.5, 0.5, 1.5 are -1, 1, 2.
    _same(ra.translate_x(SMALL, -0.5), [[128, 2, 3], [128, 5, 6], [128, 8, 9]])
    assert (ra.translate_x(SMALL, 100_000) == 128).all()


def test_cutout_is_cut_at_the_border() -> None:
    picture = _grey([[9] * 4] * 4)
    rows = [[9, 128, 128, 9], [9, 128, 128, 9], [9] * 4, [9] * 4]
    _same(ra.cutout(picture, 1, 1, 2), rows)
    _same(ra.cutout(picture, 1, 0, 0), [[128, 9, 9, 9]] + [[9] * 4] * 3)
    _same(ra.cutout(picture, 3, 3, 0), [[128, 128, 128, 9]] * 4)
    _same(picture, [[9] * 4] * 4)


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
        int(ra.apply(translate, SMALL, 0.1, np.random.default_rng(seed))[0, 0, 0] == 2)
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
        operation = ra.OPERATIONS[int(replay.integers(16))]
        expected = ra.apply(operation, expected, 10.0, replay)
    np.testing.assert_array_equal(ra.randaugment(picture, layers, 10.0, generator), expected)
