"""Reads a name while it is imported, another one when it is called."""


def tokenizer(vocab_path=SPM_TOKENIZER_VOCAB_PATH):  # noqa: F821
    return vocab_path


def directory():
    return DATA_DIR  # noqa: F821
