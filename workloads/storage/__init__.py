"""Files of examples: TFRecord, TFDS directories, token records, vocabularies."""
