from tensorflow.io import gfile as gfile
