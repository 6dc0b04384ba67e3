"""The few names of TensorFlow that init2winit's gaps have to do with."""

import types

from tensorflow import io as io
from tensorflow.io import gfile

errors = types.SimpleNamespace(NotFoundError=gfile.NotFoundError)
