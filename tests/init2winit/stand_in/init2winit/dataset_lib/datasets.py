"""Its registry of data sets, and modules that the public tree or its libraries lack."""

import collections

import grain.tensorflow as grain
from grain._src.tensorflow import transforms
from tensorflow.contrib import image as contrib_image

from init2winit.dataset_lib import (
    fineweb_edu_10b_input_pipeline,  # noqa: F401
    spm_tokenizer,  # noqa: F401
    wikitext2_input_pipeline,  # noqa: F401
    wikitext103_input_pipeline,  # noqa: F401
)

_Dataset = collections.namedtuple("_Dataset", ("getter",))


class Mixup(grain.MapTransform):
    cached = transforms.CacheTransform


def rotated(image):
    return contrib_image.rotate(image)


# fmt: off
_ALL_DATASETS = {
    'fake': _Dataset(None),
    'mnist': _Dataset(None),
    'wikitext2': _Dataset(None),
    'wikitext103': _Dataset(None),
}
# fmt: on
