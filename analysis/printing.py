"""Prints documents for commands: as text, Markdown or LaTeX, on the terminal or into a file."""

import argparse
import os
import pathlib
import shutil
import sys
from collections.abc import Sequence

from analysis.grid import Document
from sweeps import layout

FORMATS = ("text", "markdown", "latex")
SUFFIXES = {".md": "markdown", ".tex": "latex"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --format and --out."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by the suffix of --out (.md .tex), else text",
    )
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write to FILE instead")


def emit(documents: Sequence[Document], options: argparse.Namespace) -> None:
    """Prints the documents as `options.format` says, to `options.out` where it is given.

    Raises ValueError where the directory of `options.out` does not exist.
    """
    out: pathlib.Path | None = options.out
    form = options.format or SUFFIXES.get(out.suffix if out else "", "text")
    rendered = "\n".join(_rendered(document, form, out is None) for document in documents)
    if out is None:
        _print(rendered)
        return
    if not out.parent.is_dir():
        raise ValueError(f"{out}: {out.parent} is no directory; make it first")
    layout.write_atomically(out, rendered)
    print(f"wrote {out}", file=sys.stderr)


def _rendered(document: Document, form: str, on_screen: bool) -> str:
    from analysis import render

    if form == "text" and on_screen:
        return render.text(document, sys.stdout.isatty(), shutil.get_terminal_size().columns)
    return {"text": render.text, "markdown": render.markdown, "latex": render.latex}[form](document)


def _print(text: str) -> None:
    """A reader that has seen enough (`| head`) closes the pipe; that is no error of ours."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
