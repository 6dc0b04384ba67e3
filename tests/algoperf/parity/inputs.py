"""Parity of input pipelines on a tiny prepared directory that both read.

Evaluation is compared element by element; training, whose draws differ on purpose (ours are a
function of seed and step alone), by statistics over batches against their sampling error.
"""

import dataclasses
import importlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import jax
import numpy as np

from tests.algoperf import tiny_data
from tests.algoperf.parity import workload_pairs
from tests.algoperf.parity.workload_pairs import Pair, Row, largest
from workloads import registry
from workloads.algoperf.installation import Installation
from workloads.images import imagenet

_IMAGES, _BATCH, _BATCHES, _DRAWS = 32, 8, 40, 200
# Of a difference of two means: with seven of them, chance passes 4 once in two thousand tables.
_STANDARD_ERRORS = 4.0
# ImageNet's smallest standard deviation of a channel, in grey levels: what 1 level is divided by.
_LEVEL = 1 / (0.224 * 255)


def image_rows(installation: Installation) -> Iterator[Row]:
    """Yields images after evaluation's and training's transformations."""
    pair = workload_pairs.make("imagenet_vit", installation)
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        tensorflow = importlib.import_module("tensorflow")
        for split in ("validation", "test"):
            yield from _evaluation_rows(pair, split, folder, tensorflow)
        yield from _training_rows(pair, folder)


def _queue(workload: Any, split: str, folder: str) -> Iterator[dict[str, Any]]:
    """The batches of a split, as a training loop or an evaluation asks for them."""
    key = jax.random.PRNGKey(4)
    # As AlgoPerf's `_eval_model_on_split` asks.
    again = {"cache": True, "repeat_final_dataset": True} if split != "train" else {}
    return workload._build_input_queue(key, split, folder, _BATCH, **again)


def _evaluation_rows(pair: Pair, split: str, folder: str, tensorflow: Any) -> Iterator[Row]:
    """Images as AlgoPerf decodes them, and with TensorFlow's accurate, whole decoding.

    Unless told otherwise TensorFlow decodes JPEG by a fast, rougher inverse transform, OpenCV by
    the accurate one; and decoding a crop alone changes colours at its edges. What TensorFlow's
    two ways differ by bounds what ours differs by.
    """
    ours, theirs = (_images(side.workload, split, folder) for side in (pair.ours, pair.theirs))

    def decode(image: Any, window: Any, channels: int) -> Any:
        whole = tensorflow.io.decode_jpeg(image, channels, dct_method="INTEGER_ACCURATE")
        top, left, height, width = tensorflow.unstack(window)
        return whole[top : top + height, left : left + width]

    with mock.patch.object(tensorflow.io, "decode_and_crop_jpeg", decode):
        exact = _images(pair.theirs.workload, split, folder)
    yield Row("imagenet_vit", f"{split}: labels in order", largest(ours[1], theirs[1]), 0)
    apart = np.abs(ours[0] - exact[0]).max() / _LEVEL
    remark = "grey levels; ours are rounded to 8 bits"
    yield Row("imagenet_vit", f"{split}: images, accurate JPEG decoding", apart, 0.51, remark)
    apart, allowed = (np.abs(a[0] - theirs[0]).mean() / _LEVEL for a in (ours, exact))
    darker = (exact[0] - theirs[0]).mean() / _LEVEL
    remark = f"mean, grey levels; AlgoPerf's are {darker:.2f} darker by TensorFlow's fast decoding"
    quantity = f"{split}: images, as decoded"
    yield Row("imagenet_vit", quantity, apart, allowed + 0.5, remark)


def _images(workload: Any, split: str, folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns all images and labels of an evaluation split, in order."""
    # AlgoPerf keeps its evaluation queues; a new one is asked for each time.
    batches = list(itertools.islice(_queue(workload, split, folder), _IMAGES // _BATCH))
    images, labels = (np.concatenate([b[name] for b in batches]) for name in ("inputs", "targets"))
    return images, labels


def _training_rows(pair: Pair, folder: str) -> Iterator[Row]:
    """Crop, mirror and RandAugment without mixup, whose one draw a batch would hide them."""
    workload = registry.make("imagenet_vit")
    workload._data = dataclasses.replace(workload._data, mixup_alpha=0.0)
    # As the ViT workload's `_build_dataset` asks its parent, but for mixup.
    parent: Any = super(type(pair.theirs.workload).__mro__[1], pair.theirs.workload)
    unmixed = parent._build_dataset(
        jax.random.PRNGKey(4), "train", folder, _BATCH, None, None, False, True
    )
    ours, theirs = (
        np.concatenate([batch["inputs"] for batch in itertools.islice(queue, _BATCHES)])
        for queue in (_queue(workload, "train", folder), unmixed)
    )
    measured = [_statistics(images) for images in (ours, theirs)]
    for name in measured[0]:
        yield _sampled(f"train: {name} per image", *(side[name] for side in measured))


def _statistics(images: np.ndarray) -> dict[str, np.ndarray]:
    flat = images.reshape(len(images), -1)
    return {
        "mean": flat.mean(axis=1),
        "standard deviation": flat.std(axis=1),
        "difference of neighbouring pixels": np.abs(np.diff(images, axis=2)).mean(axis=(1, 2, 3)),
        "least value": flat.min(axis=1),
        "greatest value": flat.max(axis=1),
    }


def _sampled(quantity: str, ours: np.ndarray, theirs: np.ndarray) -> Row:
    """A row of the difference of two means in standard errors."""
    error = np.sqrt(ours.var(ddof=1) / len(ours) + theirs.var(ddof=1) / len(theirs))
    remark = f"ours {ours.mean():.3f}, AlgoPerf's {theirs.mean():.3f}; in standard errors"
    difference = abs(ours.mean() - theirs.mean()) / error
    return Row("imagenet_vit", quantity, float(difference), _STANDARD_ERRORS, remark)


def mixup_rows(installation: Installation) -> Iterator[Row]:
    """Yields mixup's weights over many batches, of the batch's own label and its greatest."""
    module = installation.module("algoperf.workloads.imagenet_resnet.imagenet_jax.input_pipeline")
    pair = workload_pairs.make("imagenet_vit", installation)
    labels = np.asarray([3, 5], np.int32)
    black = np.zeros((2, 1, 1, 3), np.float32)
    ours, theirs = [], []
    for number in range(_DRAWS):
        batch = {"inputs": black, "targets": labels}
        mixed = pair.ours.workload._finished(batch, jax.random.key(number), 0)
        ours.append(float(mixed["targets"][0, 3]))
        theirs.append(float(module.mixup_tf([number, 7], black, labels, alpha=0.2)[1][0, 3]))
    first, second = np.asarray(ours), np.asarray(theirs)
    yield _sampled("train: mixup's weight", first, second)
    least = (np.minimum(weights, 1 - weights) for weights in (first, second))
    yield _sampled("train: mixup's lesser weight", *least)


def write_images(folder: Path) -> None:
    """Writes smooth colour images of several sizes as JPEG, in AlgoPerf's two directories."""
    draw = np.random.default_rng(8)
    examples = {role: [_image(draw, n) for n in range(_IMAGES)] for role in imagenet.DATASETS}
    imagenet.write(
        folder, examples, num_classes=imagenet.NUM_CLASSES, description="for the comparison"
    )


def _image(draw: np.random.Generator, number: int) -> dict[str, Any]:
    """A smooth image of grey levels about 60 to 200, which no resizing takes beyond 0 or 255."""
    height, width = draw.integers(200, 400, 2)
    coarse = draw.uniform(60, 200, (6, 6, 3)).astype(np.float32)
    image = cv2.resize(coarse, (int(width), int(height)), interpolation=cv2.INTER_LINEAR)
    _, encoded = cv2.imencode(".jpg", image.astype(np.uint8))
    label = int(draw.integers(imagenet.NUM_CLASSES))
    return {"image": encoded.tobytes(), "label": label, "file_name": f"{number}.JPEG"}


def speech_rows(installation: Installation) -> Iterator[Row]:
    """Yields audio, paddings and targets of utterances, element by element."""
    pair = workload_pairs.make("librispeech_conformer", installation)
    module = installation.module("algoperf.workloads.librispeech_conformer.input_pipeline")
    with tempfile.TemporaryDirectory() as folder:
        tiny_data.prepare(folder, "librispeech_conformer")
        theirs = module.LibriSpeechDataset(split="dev-clean+dev-other", data_dir=folder)
        expected = [theirs[number] for number in range(len(theirs))]
        queue = pair.ours.workload._build_input_queue(
            jax.random.PRNGKey(0), "validation", folder, len(expected)
        )
        batch = next(iter(queue))
    for name, number in (("inputs", 0), ("targets", 1)):
        for what, part in (("values", 0), ("paddings", 1)):
            stacked = np.stack([example[number][part] for example in expected])
            difference = largest(batch[name][part], stacked)
            yield Row("librispeech_conformer", f"validation: {name}, {what}", difference, 0)
