"""Parity of input pipelines on a tiny prepared directory that both read.

Evaluation is compared element by element; training, whose draws differ on purpose (ours are a
function of seed and step alone), by statistics over batches against their sampling error.
"""

import csv
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import jax
import numpy as np

from workloads import imagenet, librispeech, speech_records, tfds_directory, tfds_writer
from workloads.algoperf import parity_pairs
from workloads.algoperf.installation import Installation
from workloads.algoperf.parity_pairs import Pair
from workloads.algoperf.parity_rows import Row, largest

_IMAGES, _BATCH, _BATCHES = 32, 8, 24
# Of a difference of two means; 12 statistics: 4 is passed by chance once in a thousand tables.
_STANDARD_ERRORS = 4.0
# ImageNet's smallest standard deviation of a channel, in grey levels: what 1 level is divided by.
_LEVEL = 1 / (0.224 * 255)


def image_rows(installation: Installation) -> Iterator[Row]:
    """Yields images after evaluation's and training's transformations, and a whole evaluation."""
    pair = parity_pairs.make("imagenet_vit", installation)
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        for split in ("validation", "test"):
            yield from _evaluation_rows(pair, split, folder)
        yield from _training_rows(pair, folder)
        yield from _metric_rows(installation, folder)


def _queue(workload: Any, split: str, folder: str) -> Iterator[dict[str, Any]]:
    """The batches of a split, as a training loop or an evaluation asks for them."""
    key = jax.random.PRNGKey(4)
    again = {"cache": True, "repeat_final_dataset": True} if split != "train" else {}
    queue: Iterator[dict[str, Any]] = workload._build_input_queue(
        key, split, folder, _BATCH, **again
    )
    return queue


def _evaluation_rows(pair: Pair, split: str, folder: str) -> Iterator[Row]:
    ours, theirs = (
        list(itertools.islice(_queue(side.workload, split, folder), _IMAGES // _BATCH))
        for side in (pair.ours, pair.theirs)
    )
    labels = [[batch["targets"] for batch in side] for side in (ours, theirs)]
    yield Row("imagenet_vit", f"{split}: labels in order", largest(*labels), 0)
    images = [np.concatenate([batch["inputs"] for batch in side]) for side in (ours, theirs)]
    apart = np.abs(images[0] - images[1]) / _LEVEL
    remark = "grey levels; ours are rounded to 8 bits"
    yield Row("imagenet_vit", f"{split}: images, mean |difference|", apart.mean(), 0.5, remark)
    yield Row("imagenet_vit", f"{split}: images, greatest", apart.max(), 2.0, "grey levels")


def _training_rows(pair: Pair, folder: str) -> Iterator[Row]:
    ours, theirs = (
        [_statistics(b) for b in itertools.islice(_queue(side.workload, "train", folder), _BATCHES)]
        for side in (pair.ours, pair.theirs)
    )
    for name in ours[0]:
        a, b = (np.asarray([batch[name] for batch in side]) for side in (ours, theirs))
        error = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / _BATCHES)
        remark = f"ours {a.mean():.3f}, AlgoPerf's {b.mean():.3f}; in standard errors"
        difference = abs(a.mean() - b.mean()) / error
        yield Row("imagenet_vit", f"train: {name}", difference, _STANDARD_ERRORS, remark)


def _statistics(batch: dict[str, Any]) -> dict[str, float]:
    """Of one batch after crop, mirror, RandAugment and mixup."""
    images, targets = np.asarray(batch["inputs"]), np.asarray(batch["targets"])
    return {
        "mean": images.mean(),
        "standard deviation within images": images.std(axis=(1, 2)).mean(),
        "difference of neighbouring pixels": np.abs(np.diff(images, axis=2)).mean(),
        "1st percentile": np.percentile(images, 1),
        "99th percentile": np.percentile(images, 99),
        "greatest weight of a label (mixup)": targets.max(axis=1).mean(),
    }


def _metric_rows(installation: Installation, folder: str) -> Iterator[Row]:
    """A whole evaluation by each side's own `_eval_model_on_split`, small model."""
    pair = parity_pairs.make("imagenet_vit", installation, small=True)
    key = jax.random.PRNGKey(4)
    params = parity_pairs.moved(pair.ours.initial(key, *pair.examples())[0], key)
    ours, theirs = (
        side.workload._eval_model_on_split(
            "validation", _IMAGES, _BATCH, params, None, key, folder
        )
        for side in (pair.ours, pair.theirs)
    )
    for name, tolerance in (("accuracy", 0.0), ("loss", 1e-3)):
        quantity = f"evaluation of {_IMAGES} images from disk: {name}"
        difference = abs(float(ours[name]) - float(theirs[name]))
        yield Row("imagenet_vit, small", quantity, difference, tolerance, "8-bit rounding")


def write_images(folder: Path) -> None:
    """Writes smooth colour images of several sizes as JPEG, in AlgoPerf's two directories."""
    draw = np.random.default_rng(8)
    for dataset, splits in (
        (imagenet.IMAGENET, ("train", "validation")),
        (imagenet.IMAGENET_V2, ("test",)),
    ):
        tfds_writer.write_image_dataset(
            tfds_directory.directory_of(folder, dataset),
            dataset=dataset,
            splits={split: [_image(draw, n) for n in range(_IMAGES)] for split in splits},
            num_classes=imagenet.NUM_CLASSES,
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
    pair = parity_pairs.make("librispeech_conformer", installation)
    module = installation.module("algoperf.workloads.librispeech_conformer.input_pipeline")
    with tempfile.TemporaryDirectory() as folder:
        write_speech(Path(folder))
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


def write_speech(folder: Path) -> None:
    """Writes noise of several lengths as AlgoPerf's preparation leaves LibriSpeech, without text."""
    draw = np.random.default_rng(9)
    for splits in librispeech.SPLITS.values():
        for split in splits:
            (folder / split).mkdir(parents=True)
            names = [f"{split}-{number}" for number in range(3)]
            for name in names:
                audio = draw.integers(-3000, 3000, draw.integers(8000, 50_000))
                np.save(speech_records.audio_path(folder, split, name), audio)
                ids = draw.integers(3, 1000, draw.integers(2, 30))
                np.save(speech_records.targets_path(folder, split, name), ids)
            with (folder / f"{split}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([["", "id"], *enumerate(names)])
