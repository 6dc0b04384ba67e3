"""A CSV file's bytes as header and lines, in the one spelling that both roads read: lines end in
`\n`; no byte order mark, no quotes and no blanks around names and cells."""

import re
from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"
BLANKS = (b" ", b"\t")
# A whole cell in quotes; one with a comma or a quote in it is no number and stays as it is.
QUOTED = re.compile(rb'(?m)(^|,)[ \t]*"([^",\r\n]*)"[ \t]*(?=,|$)')
AROUND = re.compile(rb"(?m)^[ \t]+|[ \t]+$|[ \t]*,[ \t]*")


@dataclass(frozen=True)
class Text:
    """`names` of the header, None where there is no whole header; `body`, the complete lines below
    it; `notes` on how it was spelt; `problems`, what to say of a last line that does not end in a
    newline: it may have lost digits, so it is never used."""

    names: list[str] | None
    body: bytes
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    header: str = ""


def read(content: bytes) -> Text:
    """Returns the text of a file's `content`, whatever bytes it is made of."""
    end = content.find(b"\n")
    if end < 0:
        empty = "truncated: the file is empty"
        return Text(None, b"", ("truncated in its header, no rows" if content else empty,))
    head, notes = _spelt(content[: content.rfind(b"\n") + 1])
    first, _, body = head.partition(b"\n")
    header = first.decode("utf-8", errors="replace")
    return Text(header.split(","), body, _cut(content), notes, header)


def _cut(content: bytes) -> tuple[str, ...]:
    rest = content[content.rfind(b"\n") + 1 :].decode("utf-8", errors="replace")
    if not rest:
        return ()
    number = content.count(b"\n") + 1
    return (f"truncated in its last line ({number}), which is left out: {rest[:40]!r}",)


def _spelt(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Returns the lines in the one spelling, and what was changed but for the lines' ends."""
    notes = []
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if text.startswith(BOM):
        text, notes = text[len(BOM) :], ["a byte order mark before the header was left out"]
    if b'"' in text:
        text, count = QUOTED.subn(rb"\1\2", text)
        notes += ["cells in quotes were read without them"] * bool(count)
    if any(blank in text for blank in BLANKS):
        text, before = AROUND.sub(_comma, text), text
        notes += ["blanks around cells were left out"] * (text != before)
    return text, tuple(notes)


def _comma(found: re.Match[bytes]) -> bytes:
    return b"," if b"," in found[0] else b""
