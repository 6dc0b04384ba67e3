"""A compiled program's text (HLO): cycles, bytes, collectives and calls of every instruction.

The compiler's own analyses count the body of a loop once; here it counts as often as its loop runs,
read from the loop's condition. Bytes are what every instruction reads and writes of the device's
main memory (not of on-chip memory, `S(1)` and above), as XLA counts them: a slice reads what it
gives, an update in place writes what is new, a gather reads what it picks.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_WORDS = {"pred": 8, "token": 0, "opaque": 8}
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = ")
# Name, result, opcode, operands, attributes. Operands are names alone, without brackets.
_INSTRUCTION = re.compile(_LINE.pattern + r"(\(.*?\)|\S+) ([a-z][\w\-]*)\((.*?)\)(.*)")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{[^}]*?(?:S\((\d+)\))?\})?")
_FREE = frozenset(
    [
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
        "optimization-barrier",
        "domain",
        "add-dependency",
    ]
)
_COLLECTIVES = re.compile(
    r"(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all)"
    r"(-start)?$"
)
# Calls of the compilers' own that move nothing.
_BOOKKEEPING = re.compile(r"AllocateBuffer|ConcatBitcast|AssumeGather|AsyncCollective|Sharding")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line.

    result: its shape, as text. arguments: what stands in the brackets. attributes: the rest.
    """

    name: str
    result: str
    opcode: str
    arguments: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    def attribute(self, pattern: str) -> str:
        """Returns the pattern's group where its attributes hold it, else ''."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""

    @property
    def op_name(self) -> str:
        """Where in the traced program it comes from: 'jit(_step)/jvp(Transformer)/…', or ''."""
        return self.attribute(r'op_name="([^"]*)"')

    @property
    def cycles(self) -> int:
        """The TPU compiler's estimate; 0 where it gives none."""
        return int(self.attribute(r'"estimated_cycles":"(\d+)"') or 0)

    def called(self, role: str) -> str:
        """Returns the computation that it calls as `role` ('calls', 'body', 'condition')."""
        return self.attribute(rf"\b{role}=%?([\w.\-]+)")

    @property
    def call(self) -> str:
        """The target of a call of a kernel or library, such as 'tpu_custom_call'; or ''."""
        if self.opcode != "custom-call" or _BOOKKEEPING.search(self.attributes):
            return ""
        return self.attribute(r'custom_call_target="([^"]*)"')

    @property
    def is_kernel(self) -> bool:
        """Whether it is an attention kernel (Mosaic, Triton, cuDNN), not a library matmul."""
        return bool(re.search(r"tpu_custom_call|fmha|triton|mosaic", self.call))


@dataclasses.dataclass(frozen=True)
class Counted:
    """An instruction that runs, with how often it does, and each time its bytes of main memory.

    all_bytes: of operands and results, in on-chip memory, too.
    """

    instruction: Instruction
    times: int
    bytes: int
    all_bytes: int
    collective_bytes: int


Computation = dict[str, Instruction]


class Module:
    """A compiled program.

    counted: every instruction that runs, as often as its loops do. unread: names of loops that
    counted once, because their number of trips cannot be read, and of branches, not counted.
    """

    def __init__(self, text: str) -> None:
        """Raises ValueError for a text without an entry computation."""
        self._computations: dict[str, Computation] = {}
        self._channels: set[str] = set()
        self.unread: list[str] = []
        entry = self._read(text)
        if not entry:
            raise ValueError("the compiled program's text has no ENTRY computation")
        self.counted = list(self._walk(entry, 1))

    def _read(self, text: str) -> str:
        """Reads the computations; returns the name of the entry, or ''."""
        lines: Computation = {}
        entry, pending = "", ""
        for line in text.splitlines():
            if header := _HEADER.match(line):
                lines = self._computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
            elif _LINE.match(line) or line.startswith("}"):
                if match := _INSTRUCTION.match(pending):
                    lines[match[1]] = Instruction(*match.groups())
                pending = line
            else:
                # Attributes of Mosaic's calls span several lines.
                pending += " " + line.strip()
        return entry

    def _walk(self, computation: str, times: int) -> Iterator[Counted]:
        lines = self._computations[computation]
        for line in lines.values():
            if line.opcode == "while":
                yield from self._walk(line.called("body"), times * self._trips(line))
            elif line.opcode in ("call", "async-start"):
                yield from self._walk(line.called("to_apply") or line.called("calls"), times)
            elif line.opcode == "conditional":
                self.unread.append(line.name)  # no train step of ours has branches
            else:
                shapes = [line.result, *(operand.result for operand in _operands(line, lines))]
                yield Counted(
                    line, times, self._bytes(line, lines), sum(map(_size, shapes)), self._sent(line)
                )

    def _trips(self, loop: Instruction) -> int:
        """Returns how often a loop's body runs: once where that cannot be read, which is noted."""
        condition = self._computations[loop.called("condition")]
        lines = list(condition.values())
        for line in condition.values():
            lines += self._computations.get(line.called("calls"), {}).values()
        compares = [line for line in lines if line.opcode == "compare"]
        limits = [limit for line in lines if (limit := _constant(line)) is not None]
        is_below = [line.attribute(r"direction=(\w+)") == "LT" for line in compares]
        if is_below != [True] or len(limits) != 1:
            self.unread.append(loop.name)
            return 1
        return max(1, math.ceil(limits[0] / self._step(loop, condition)))

    def _step(self, loop: Instruction, condition: Computation) -> int:
        """Returns what a loop adds to its counter: 1 unless its body says otherwise."""
        read = [line for line in condition.values() if line.opcode == "get-tuple-element"]
        if len(read) != 1:
            return 1
        body = self._computations[loop.called("body")]
        counter = int(read[0].attribute(r"index=(\d+)"))
        added = body[list(body.values())[-1].operands[counter]]
        steps = map(_constant, _operands(added, body)) if added.opcode == "add" else ()
        return next(filter(None, steps), 1)

    def _sent(self, line: Instruction) -> int:
        """Returns what a collective, or one inside a fusion, brings or sends, in bytes."""
        if _COLLECTIVES.match(line.opcode):
            # An asynchronous one stands in the fusions that start it, go on and finish.
            channel = line.attribute(r"channel_id=(\d+)")
            if channel in self._channels:
                return 0
            if channel:
                self._channels.add(channel)
            # A start gives its operand beside its result.
            return max((size for size, _ in _shapes(line.result)), default=0)
        inner = self._computations[line.called("calls")] if line.opcode == "fusion" else {}
        return sum(map(self._sent, inner.values()))

    def _bytes(self, line: Instruction, lines: Computation) -> int:
        if line.opcode in _FREE or line.opcode.endswith("-done"):
            return 0
        operands = [_main(operand.result) for operand in _operands(line, lines)]
        if line.opcode.endswith("-start"):
            # (result, operand, …) of a transfer; a slice's operand is larger than what is read.
            transferred = [(size, main) for size, main in _shapes(line.result) if size > 64]
            ends = sum(main for _, main in transferred)
            return min((size for size, _ in transferred), default=0) * min(ends, 2)
        written = _main(line.result)
        if line.opcode == "custom-call":
            if not line.call:
                return 0
            # cuBLAS and cuDNN are lent a workspace of bytes as a result, which need not be used.
            written -= sum(int(size) for size in re.findall(r"\bs8\[(\d+)\]", line.result))
        if line.opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * written
        if line.opcode == "dynamic-update-slice":
            return 2 * operands[1]
        if line.opcode == "fusion":
            inner = self._computations[line.called("calls")]
            read = sum(map(min, operands, self._read_by(inner)))
            return min(read + self._written_by(inner), sum(operands) + written)
        return written + sum(operands)

    def _written_by(self, inner: Computation) -> int:
        """Returns what a fusion writes: of results that are updated in place the update alone."""
        root = list(inner.values())[-1]
        total = 0
        for part in _operands(root, inner) if root.opcode == "tuple" else [root]:
            while part.opcode in ("bitcast", "copy", "convert"):
                [part] = _operands(part, inner)
            if part.opcode == "dynamic-update-slice":
                total += _size(_operands(part, inner)[1].result)
            else:
                total += _main(part.result)
        return total

    def _read_by(self, inner: Computation) -> list[int]:
        """Returns the bytes that a fusion reads of each of its parameters, in their order."""
        users: dict[str, list[Instruction]] = collections.defaultdict(list)
        for line in inner.values():
            for name in line.operands:
                users[name].append(line)
        parameters = [line for line in inner.values() if line.opcode == "parameter"]
        parameters.sort(key=lambda line: int(line.arguments))
        return [self._read_of(parameter, users) for parameter in parameters]

    def _read_of(self, part: Instruction, users: dict[str, list[Instruction]]) -> int:
        """Returns how many bytes of a fusion's parameter are read, in fusions inside it, too."""
        total = 0
        for user in users[part.name]:
            is_first = user.operands[0] == part.name
            if user.opcode in ("dynamic-slice", "slice", "gather") and is_first:
                total += _size(user.result)
            elif user.opcode == "dynamic-update-slice" and is_first:
                continue  # in place
            elif user.opcode == "bitcast":
                total += self._read_of(user, users)
            elif user.opcode == "fusion":
                read = self._read_by(self._computations[user.called("calls")])
                for name, size in zip(user.operands, read, strict=True):
                    total += size if name == part.name else 0
            else:
                return _size(part.result)
        return min(total, _size(part.result))


def _operands(line: Instruction, lines: Computation) -> list[Instruction]:
    return [lines[name] for name in line.operands]


def _constant(line: Instruction) -> int | None:
    is_number = line.opcode == "constant" and line.arguments.isdecimal()
    return int(line.arguments) if is_number else None


@functools.cache
def _shapes(result: str) -> tuple[tuple[int, bool], ...]:
    """Returns each array's bytes, and whether it lies in main memory."""
    shapes = []
    for kind, dims, space in _SHAPE.findall(result):
        width = re.search(r"\d+", kind)
        bits = int(width[0]) if width else _WORDS[kind]
        elements = math.prod(int(size) for size in dims.split(",") if size)
        shapes.append((elements * bits // 8, space in ("", "0")))
    return tuple(shapes)


def _size(result: str) -> int:
    return sum(size for size, _ in _shapes(result))


def _main(result: str) -> int:
    return sum(size for size, main in _shapes(result) if main)
