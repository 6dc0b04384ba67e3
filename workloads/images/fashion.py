"""Fashion-MNIST in ImageNet's format: photographs of clothes, 28 × 28 grey pixels, 10 classes.

60,000 images to train and 10,000 to test (arXiv:1708.07747). One fixed permutation of the former
gives 55,000 to train and 5,000 to validate. The images are not in this package: `prepare` reads
Debian's package dataset-fashion-mnist, or the four IDX files that other libraries download
(format: http://yann.lecun.com/exdb/mnist/), and takes them by their SHA-256 alone.
"""

import gzip
import hashlib
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import cv2
import numpy as np

from attention import files
from workloads.base.errors import DataError
from workloads.images import image_set

IMAGE_SIZE = 28
LICENSE_FILE = "LICENSE-fashion-mnist"
_PERMUTATION_SEED = 0
_TRAIN, _TEST = 60_000, 10_000
# The same version in Debian 11 to 13; SHA-256 of the file there.
_PACKAGE = "dataset-fashion-mnist"
_PACKAGE_FILE = "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb"
_PACKAGE_SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
_AR_MAGIC, _AR_HEADER = b"!<arch>\n", 60
# What Python's libraries raise for compressed data that is cut short or damaged.
_DAMAGED = (EOFError, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError, zlib.error)


@dataclass(frozen=True)
class IdxFile:
    """One of the four files: its name, the shape of its array (uint8), SHA-256 of its content
    before compression."""

    name: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def header(self) -> bytes:
        """The first bytes: 0, 0, 8 for uint8, the number of axes, and their lengths."""
        return b"".join(
            number.to_bytes(4, "big") for number in (0x0800 + len(self.shape), *self.shape)
        )


FILES = (
    IdxFile(
        "train-images-idx3-ubyte",
        (_TRAIN, IMAGE_SIZE, IMAGE_SIZE),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    IdxFile(
        "train-labels-idx1-ubyte",
        (_TRAIN,),
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    IdxFile(
        "t10k-images-idx3-ubyte",
        (_TEST, IMAGE_SIZE, IMAGE_SIZE),
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    IdxFile(
        "t10k-labels-idx1-ubyte",
        (_TEST,),
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)
SOURCES = (
    "`make data-fashion` gets them from Debian or Ubuntu; elsewhere get the package "
    f"{_PACKAGE} ({_PACKAGE_FILE}, SHA-256 {_PACKAGE_SHA256}), or a directory with "
    f"{', '.join(file.name for file in FILES)}, each as it is or with .gz, and run: "
    "python -m workloads prepare fashion_vit --from=PATH"
)


def _repair(data_dir: str | os.PathLike[str]) -> str:
    return f"{SOURCES} --data_dir={files.quoted(data_dir)}"


FASHION = image_set.ImageSet(
    workload="fashion_vit",
    what="Fashion-MNIST",
    note=(
        "Small: Fashion-MNIST, grey photographs of clothes at 28 x 28, not ImageNet. Errors on it "
        "say nothing about ImageNet."
    ),
    sizes={"train": 55_000, "validation": 5_000, "test": _TEST},
    num_classes=10,
    content_sha256="81274f5ffb51a3c753724fb4db3f514b197bb3d251ffac951821ac2e7a442700",
    repair=_repair,
    neighbours=5_000,
)
check, read_reference = FASHION.check, FASHION.read_reference


def prepare(data_dir: str | os.PathLike[str], source: Path | None = None) -> Path:
    """Writes the data below `data_dir` unless it is there and whole (`ImageSet.prepare`).

    source: the Debian package, or a directory of the four files; None where the data is there. It
    is read and checked first. Raises DataError for anything else.
    """
    found = read(source) if source is not None else []

    def examples() -> image_set.Examples:
        if not found:
            raise DataError("Fashion-MNIST is not made from what is installed", _repair(data_dir))
        files.write(Path(data_dir, LICENSE_FILE), _LICENSE)
        return _examples(*found)

    return FASHION.prepare(data_dir, examples)


def read(source: Path, expected: Sequence[IdxFile] = FILES) -> list[np.ndarray]:
    """Returns the arrays of the expected files, uint8, in their order.

    source: a Debian package (data.tar.xz or .gz; any other by dpkg-deb), or a directory that holds
    the files, compressed by gzip or not. A file that is there twice must be right twice. Raises
    DataError naming the file that is missing, damaged or another one.
    """
    by_name = {file.name: file for file in expected}
    found: dict[str, np.ndarray] = {}
    for where, name, opened in _files(source):
        bare = name.removesuffix(".gz").replace(".idx", "-idx")
        if bare in by_name:
            try:
                stream = gzip.GzipFile(fileobj=opened) if name.endswith(".gz") else opened
                content = stream.read(_longest(expected) + 1)
            except _DAMAGED as problem:
                raise _refused(f"{where} is cut short or damaged ({problem})") from problem
            found[bare] = _array(where, content, by_name[bare], expected)
    missing = [file.name for file in expected if file.name not in found]
    if missing:
        raise _refused(f"{source} holds no {', no '.join(missing)}")
    return [found[file.name] for file in expected]


def _refused(problem: str) -> DataError:
    return DataError(problem, SOURCES)


def _longest(expected: Sequence[IdxFile]) -> int:
    return max(len(file.header) + int(np.prod(file.shape)) for file in expected)


def _array(where: str, content: bytes, file: IdxFile, expected: Sequence[IdxFile]) -> np.ndarray:
    digest, size = hashlib.sha256(content).hexdigest(), int(np.prod(file.shape))
    if digest == file.sha256:
        return np.frombuffer(content, np.uint8, offset=len(file.header)).reshape(file.shape)
    for other in expected:
        if digest == other.sha256:
            raise _refused(
                f"{where} holds the content of {other.name}: files were swapped, or one was given "
                "twice"
            )
    if content[: len(file.header)] != file.header:
        raise _refused(
            f"{where} begins with {content[: len(file.header)].hex()}, not with "
            f"{file.header.hex()}, as an IDX file of uint8 {list(file.shape)}"
        )
    if len(content) != len(file.header) + size:
        raise _refused(
            f"{where} has {len(content) - len(file.header):,} values or more; {size:,} are expected"
        )
    raise _refused(
        f"{where} has the form of Fashion-MNIST's file, but SHA-256 {digest} in place of "
        f"{file.sha256}; MNIST's digits come in files of the same names and sizes"
    )


def _files(source: Path) -> Iterator[tuple[str, str, IO[bytes]]]:
    """Yields what errors call a file, its name, and the file, open."""
    if source.is_dir():
        for path in sorted(source.iterdir()):
            if path.is_file():
                with path.open("rb") as opened:
                    yield str(path), path.name, opened
        return
    with source.open("rb") as package:
        if package.read(len(_AR_MAGIC)) != _AR_MAGIC:
            raise _refused(f"{source} is no Debian package and no directory")
        try:
            yield from _members(source, _data_of(source, package))
        except _DAMAGED as problem:
            raise _refused(f"{source} is cut short or damaged ({problem})") from problem


def _members(source: Path, data: IO[bytes]) -> Iterator[tuple[str, str, IO[bytes]]]:
    with tarfile.open(fileobj=data, mode="r:*") as archive:
        for member in archive:
            if opened := archive.extractfile(member) if member.isfile() else None:
                yield f"{source}: {member.name}", Path(member.name).name, opened


def _data_of(source: Path, package: IO[bytes]) -> IO[bytes]:
    """Returns the archive of a package's files: its member data.tar.* (deb(5)).

    A member's header has its name in the first 16 bytes and its size from byte 48 to 58; members
    begin at even places.
    """
    name = "no data.tar"
    while header := package.read(_AR_HEADER):
        name, size = header[:16].decode("ascii", "replace").strip(" /"), header[48:58].strip()
        if len(header) < _AR_HEADER or not size.isdigit():
            raise EOFError("a member's header is not whole")
        content = package.read(int(size) + int(size) % 2)
        if name in ("data.tar.xz", "data.tar.gz", "data.tar"):
            return io.BytesIO(content)
        if name.startswith("data.tar"):
            break
    if not shutil.which("dpkg-deb"):
        raise _refused(
            f"{source} has {name}, which Python's library does not read, and dpkg-deb is not here; "
            "install dpkg, or unpack the package on a host that has it: dpkg-deb -x PACKAGE DIR"
        )
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", source], capture_output=True)
    if unpacked.returncode:
        raise _refused(f"{source}: {unpacked.stderr.decode(errors='replace').strip()}")
    return io.BytesIO(unpacked.stdout)


def _examples(
    train_images: np.ndarray,
    train_labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
) -> dict[str, list[dict[str, Any]]]:
    """The examples of each role, as `tfds_writer` takes them."""
    # RandomState's stream is frozen (NEP 19), so the split is the same with every NumPy.
    order = np.random.RandomState(_PERMUTATION_SEED).permutation(_TRAIN)
    numbers = {
        "train": order[: FASHION.sizes["train"]],
        "validation": order[FASHION.sizes["train"] :],
    }
    found = {
        role: [_example("train", train_images, train_labels, int(number)) for number in part]
        for role, part in numbers.items()
    }
    test = [_example("test", test_images, test_labels, number) for number in range(_TEST)]
    return {**found, "test": test}


def _example(part: str, images: np.ndarray, labels: np.ndarray, number: int) -> dict[str, Any]:
    _, encoded = cv2.imencode(".png", images[number])
    name = f"{part}_{number:05d}.png"
    return {"image": encoded.tobytes(), "label": int(labels[number]), "file_name": name}


_LICENSE = """Fashion-MNIST, https://github.com/zalandoresearch/fashion-mnist

The MIT License (MIT)

Copyright (c) 2017 Zalando SE, https://tech.zalando.com

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
