"""English text that ships with Python: the help topics and the docstrings of its library.

A document is one topic of `pydoc_data.topics`, or all docstrings of one source file of the standard
library in the order they stand in. Sources are parsed, never imported. What not every installation
has (tests, tkinter, idlelib, ensurepip), what a later Python dropped with its directory (lib2to3,
distutils) and the tables of encodings are left out.

Text differs between Python versions, patch releases included, and so do losses on it.
"""

import ast
import inspect
import itertools
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workloads.base.errors import DataError

_NOT_EVERYWHERE = {"ensurepip", "idlelib", "test", "tests", "tkinter", "turtledemo"}
_DROPPED_LATER = {"distutils", "lib2to3"}
_NO_LIBRARY = {"__phello__", "__pycache__", "dist-packages", "lib-dynload", "site-packages"}
LEFT_OUT = _NOT_EVERYWHERE | _DROPPED_LATER | _NO_LIBRARY | {"encodings", "pydoc_data"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLANK_LINE = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Document:
    """`name` is `topic:NAME` or a source file's path below the library; paragraphs as lines."""

    name: str
    text: str


def documents() -> list[Document]:
    """All documents, topics first, each group sorted by name; no paragraph occurs twice.

    A paragraph that stands in several documents stays in the first (without this, 13 % of the
    validation characters stood in train too). Raises DataError where the installation has no
    sources of its library, or no `pydoc_data`.
    """
    return deduplicated(itertools.chain(_topics(), _library()))


def deduplicated(found: Iterable[tuple[str, str]]) -> list[Document]:
    """Documents from (name, text): paragraphs on one line each, later copies of one dropped.

    Copies are found by their letters and digits alone; paragraphs without any are dropped, and so
    are documents that nothing is left of.
    """
    seen: set[str] = set()
    kept = []
    for name, text in found:
        paragraphs = [" ".join(part.split()) for part in _BLANK_LINE.split(text)]
        new = [paragraph for paragraph in paragraphs if _is_new(paragraph, seen)]
        if new:
            kept.append(Document(name, "\n".join(new)))
    return kept


def _is_new(paragraph: str, seen: set[str]) -> bool:
    key = "".join(filter(str.isalnum, paragraph)).lower()
    is_new = bool(key) and key not in seen
    seen.add(key)
    return is_new


def _topics() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data import topics
    except ImportError as problem:
        raise DataError(
            f"this Python has no help topics: {problem}", "install the whole standard library"
        ) from problem
    return ((f"topic:{name}", topics.topics[name]) for name in sorted(topics.topics))


def _library() -> Iterator[tuple[str, str]]:
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(_sources(library), key=lambda path: path.relative_to(library).as_posix())
    if not sources:
        raise DataError(
            f"{library}: this Python has no source files of its standard library",
            "use an installation with its sources",
        )
    for path in sources:
        yield path.relative_to(library).as_posix(), "\n\n".join(docstrings(path.read_bytes()))


def _sources(library: Path) -> Iterator[Path]:
    for path in library.iterdir():
        # _sysconfigdata… and config-… are written when Python is built, sitecustomize by a site.
        name = path.name
        if name in LEFT_OUT or name.startswith(("_sysconfigdata", "config-", "sitecustomize")):
            continue
        if path.is_dir():
            yield from _sources(path)
        elif path.suffix == ".py":
            yield path


def docstrings(source: bytes) -> list[str]:
    """Docstrings of a module, its classes and functions, outer before inner, without indentation.

    Raises SyntaxError for a source that is no Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old sources
        tree = ast.parse(source)
    return [inspect.cleandoc(text) for text in _walk(tree)]


def _walk(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node, clean=False)):
        yield text
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)
