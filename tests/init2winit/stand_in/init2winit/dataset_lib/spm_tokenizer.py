"""Has TensorFlow's files under a name."""

import tensorflow as tf

gfile = tf.io.gfile
