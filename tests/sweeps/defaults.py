"""The settings that a launcher has unless a study changes them."""


def of(launcher):
    """Returns {key: default} of a launcher's module."""
    return {name: key.default for name, key in launcher.KEYS.items()}
