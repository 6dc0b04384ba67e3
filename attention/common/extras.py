"""Optional parts of the package: which extra brings a library that a command lacks.

Standard library only: this is what speaks where nothing else is installed.
"""

import contextlib
from collections.abc import Iterator

# Extras of setup.cfg to the modules that they bring and our code imports. Extras of other engines
# and compilers are named where they are needed (sweeps/launchers, sweeps/compilers).
MODULES = {
    "attention": ("flax", "jax", "numpy"),
    "workloads": (
        "absl",
        "array_record",
        "cv2",
        "google_crc32c",
        "grain",
        "jiwer",
        "msgspec",
        "optax",
        "pyarrow",
        "scipy",
        "sentencepiece",
        "sklearn",
        "tensorflow_datasets",
    ),
    "sweeps": ("ml_collections", "orbax", "rich"),
    "analysis": (
        "jinja2",
        "markupsafe",
        "msgspec",
        "numpy",
        "pandas",
        "pyarrow",
        "scipy",
        "tabulate",
    ),
    "small-speech": ("espeakng_loader",),
    "pictures": ("vl_convert",),
    "kubernetes": ("yaml",),
    "tensorboard": ("tensorboardX",),
}
# Extras of setup.cfg that bring others.
INCLUDED = {"workloads": ("attention",), "sweeps": ("attention", "workloads")}


@contextlib.contextmanager
def explained(command: str) -> Iterator[None]:
    """Within it, a missing library of an extra is a ValueError with the command that installs it.

    command: one of the four packages, whose extra is named where several bring the library. Other
    modules that are missing, ours among them, stay ModuleNotFoundError: an import is broken.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extras = [extra for extra, modules in MODULES.items() if error.name in modules]
        if not extras:
            raise
        is_own = bool({command, *INCLUDED.get(command, ())} & {*extras})
        extra = command if is_own else extras[0]
        raise ValueError(
            f"{error.name} is needed and not installed: pip install 'attnperf[{extra}]'"
        ) from error
