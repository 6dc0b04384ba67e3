"""What a compiled program says in its text (HLO): cycles, bytes, collectives, calls, by part.

The compiler's own analyses count the body of a loop once; here it counts as often as its loop runs,
read from the loop's condition. Bytes are what every instruction reads and writes of the device's
main memory (not of on-chip memory, `S(1)` and above), as XLA reckons them: a slice reads what it
gives, an update in place writes what is new, a gather reads what it picks.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator

_BITS = {"pred": 8, "s4": 4, "u4": 4, "f8e4m3fn": 8, "f8e5m2": 8, "bf16": 16, "token": 0}
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = ")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{[^}]*?(?:S\((\d+)\))?\})?")
_FREE = frozenset(
    [
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "while",
        "conditional",
        "call",
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
    """One line: its name, result (as text), opcode, operands' names, and the rest of the line."""

    name: str
    result: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @property
    def op_name(self) -> str:
        """Where in the traced program it comes from: 'jit(_step)/jvp(Transformer)/…', or ''."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def cycles(self) -> int:
        """The TPU compiler's estimate; 0 where it gives none."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
        return int(found[1]) if found else 0

    def called(self, role: str) -> str:
        """Returns the computation that it calls as `role` ('calls', 'body', 'condition')."""
        found = re.search(rf"\b{role}=%?([\w.\-]+)", self.rest)
        return found[1] if found else ""


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

    @property
    def is_kernel(self) -> bool:
        """Whether it is an attention kernel (Mosaic, Triton, cuDNN), not a library matmul."""
        return bool(re.search(r"tpu_custom_call|fmha|triton|mosaic", self.call))

    @property
    def call(self) -> str:
        """The target of a call of a kernel or library, such as 'tpu_custom_call'; or ''."""
        found = re.search(r'custom_call_target="([^"]*)"', self.instruction.rest)
        target = found[1] if found and self.instruction.opcode == "custom-call" else ""
        return "" if _BOOKKEEPING.search(target) else target


class Module:
    """A compiled program. Iterate over `counted()`; `unknown_loops` names what counted once."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for a text without an entry computation."""
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        self.unknown_loops: list[str] = []
        self._channels: set[str] = set()
        self._read(text)
        if not self.entry:
            raise ValueError("the compiled program's text has no ENTRY computation")

    def _read(self, text: str) -> None:
        lines: dict[str, Instruction] = {}
        pending = ""
        for line in text.splitlines():
            if header := _HEADER.match(line):
                lines = self.computations.setdefault(header[2], {})
                self.entry = header[2] if header[1] else self.entry
            elif _LINE.match(line) or line.startswith("}"):
                if pending:
                    instruction = _instruction(pending)
                    lines[instruction.name] = instruction
                pending = "" if line.startswith("}") else line
            elif pending:
                # Attributes of Mosaic's calls span several lines.
                pending += " " + line.strip()

    def counted(self) -> Iterator[Counted]:
        """Yields every instruction that runs, loops and branches included (the longer branch)."""
        self._channels.clear()
        yield from self._walk(self.entry, 1)

    def _walk(self, computation: str, times: int) -> Iterator[Counted]:
        lines = self.computations[computation]
        for one in lines.values():
            if one.opcode == "while":
                trips = self._trips(one, lines)
                yield from self._walk(one.called("body"), times * trips)
            elif one.opcode in ("call", "async-start"):
                yield from self._walk(one.called("to_apply") or one.called("calls"), times)
            elif one.opcode == "conditional":
                yield from self._longest_branch(one, times)
            else:
                whole = _size(one.result) + sum(
                    _size(lines[name].result) for name in one.operands if name in lines
                )
                yield Counted(one, times, self._bytes(one, lines), whole, self._sent(one))

    def _longest_branch(self, one: Instruction, times: int) -> Iterator[Counted]:
        found = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
        names = found[1].split(",") if found else [one.called("true_computation")]
        names += [] if found else [one.called("false_computation")]
        walked = [list(self._walk(name.strip(" %"), times)) for name in names]
        yield from max(walked, key=lambda counted: sum(c.bytes * c.times for c in counted))

    def _trips(self, loop: Instruction, outside: dict[str, Instruction]) -> int:
        """Returns how often a loop's body runs: once where that cannot be read, which is noted."""
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest)
        if known:
            return int(known[1])
        condition = self.computations[loop.called("condition")]
        compared = next((one for one in condition.values() if one.opcode == "compare"), None)
        if compared is None:
            fused = [one for one in condition.values() if one.opcode == "fusion"]
            condition = self.computations[fused[0].called("calls")] if fused else condition
            compared = next((one for one in condition.values() if one.opcode == "compare"), None)
        limits = [_constant(one) for one in condition.values() if _constant(one) is not None]
        if compared is None or len(limits) != 1 or "direction=LT" not in compared.rest:
            self.unknown_loops.append(loop.name)
            return 1
        [limit] = limits
        return max(1, math.ceil((limit or 1) / self._step(loop)))

    def _step(self, loop: Instruction) -> int:
        """Returns what a loop adds to its counter: 1 unless its body says otherwise."""
        condition = self.computations[loop.called("condition")].values()
        index = [
            found[1]
            for one in condition
            if one.opcode == "get-tuple-element" and (found := re.search(r"index=(\d+)", one.rest))
        ]
        body = self.computations[loop.called("body")]
        result = list(body.values())[-1]
        if len(index) != 1 or result.opcode != "tuple":
            return 1
        new = body.get(result.operands[int(index[0])])
        if new is None or new.opcode != "add":
            return 1
        added = [_constant(body[name]) for name in new.operands if name in body]
        return next((step for step in added if step), 1)

    def _sent(self, one: Instruction) -> int:
        """Returns what a collective, or one inside a fusion, brings or sends, in bytes."""
        if _COLLECTIVES.match(one.opcode):
            # An asynchronous one stands in the fusions that start it, go on and finish.
            channel = re.search(r"channel_id=(\d+)", one.rest)
            if channel is not None and channel[1] in self._channels:
                return 0
            self._channels.add(channel[1] if channel else "")
            # A start gives its operand beside its result.
            return max((size for size, _ in _shapes(one.result)), default=0)
        inner = self.computations.get(one.called("calls"), {}) if one.opcode == "fusion" else {}
        return sum(self._sent(part) for part in inner.values())

    def _bytes(self, one: Instruction, lines: dict[str, Instruction]) -> int:
        if one.opcode in _FREE or one.opcode.endswith("-done"):
            return 0
        if one.opcode == "custom-call" and _BOOKKEEPING.search(one.rest):
            return 0
        operands = [lines[name] for name in one.operands if name in lines]
        if one.opcode.endswith("-start"):
            # (result, operand, …) of a transfer; a slice's operand is larger than what is read.
            sizes = [size for size, main in _shapes(one.result) if main and size > 64]
            shape = [size for size, _ in _shapes(one.result) if size > 64]
            return min(shape, default=0) * min(len(sizes), 2)
        written = _main(one.result)
        if one.opcode == "custom-call":
            # cuBLAS and cuDNN are lent a workspace of bytes as a result, which need not be used.
            written -= sum(int(size) for size in re.findall(r"\bs8\[(\d+)\]", one.result))
        if one.opcode in ("dynamic-slice", "slice", "gather"):
            return 2 * written
        if one.opcode == "dynamic-update-slice":
            return 2 * _main(operands[1].result) if len(operands) > 1 else written
        if one.opcode == "fusion":
            return self._fused_bytes(one, operands)
        return written + sum(_main(operand.result) for operand in operands)

    def _fused_bytes(self, one: Instruction, operands: list[Instruction]) -> int:
        inner = self.computations[one.called("calls")]
        users = _users(inner)
        total = 0
        for parameter, operand in zip(_parameters(inner), operands, strict=False):
            main = _main(operand.result)
            total += min(main, self._read_of(parameter, users)) if main else 0
        root = list(inner.values())[-1]
        for part in (
            [inner.get(name) for name in root.operands] if root.opcode == "tuple" else [root]
        ):
            if part is not None:
                total += self._written(part, inner)
        return min(total, sum(_main(operand.result) for operand in operands) + _main(one.result))

    def _written(self, part: Instruction, inner: dict[str, Instruction]) -> int:
        """Returns what a fusion writes for one of its results: the update alone where it is one."""
        while part.opcode in ("bitcast", "copy", "convert") and part.operands[0] in inner:
            part = inner[part.operands[0]]
        if part.opcode == "dynamic-update-slice":
            update = inner.get(part.operands[1])
            return _size(update.result) if update else 0
        return _main(part.result)

    def _read_of(self, part: Instruction, users: dict[str, list[Instruction]]) -> int:
        """Returns how many bytes of a fusion's parameter are read, in fusions inside it, too."""
        total = 0
        for user in users.get(part.name, []):
            first = bool(user.operands) and user.operands[0] == part.name
            if user.opcode in ("dynamic-slice", "slice", "gather") and first:
                total += _size(user.result)
            elif user.opcode == "dynamic-update-slice" and first:
                continue  # in place
            elif user.opcode == "bitcast":
                total += self._read_of(user, users)
            elif user.opcode == "fusion":
                inner = self.computations[user.called("calls")]
                passed, deeper = zip(user.operands, _parameters(inner), strict=False), _users(inner)
                total += sum(
                    self._read_of(one, deeper) for name, one in passed if name == part.name
                )
            else:
                return _size(part.result)
        return min(total, _size(part.result))


def _parameters(inner: dict[str, Instruction]) -> list[Instruction]:
    """Returns the parameters of a computation in their order."""
    parameters = [part for part in inner.values() if part.opcode == "parameter"]
    return sorted(parameters, key=lambda one: int(re.search(r"\d+", one.rest)[0]))  # type: ignore[index]


def _users(lines: dict[str, Instruction]) -> dict[str, list[Instruction]]:
    users: dict[str, list[Instruction]] = {}
    for one in lines.values():
        for name in one.operands:
            users.setdefault(name, []).append(one)
    return users


def _instruction(line: str) -> Instruction:
    name = _LINE.match(line)
    assert name is not None
    rest = line[name.end() :]
    # Layouts of a single result hold no blanks.
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    result, rest = rest[:end], rest[end:].lstrip()
    opcode, _, after = rest.partition("(")
    close = _closing("(" + after)
    inside = after[: close - 1]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    if opcode in ("parameter", "constant"):
        return Instruction(name[1], result, opcode, (), f"{opcode}({inside})" + after[close:])
    return Instruction(name[1], result, opcode, operands, after[close:])


def _closing(text: str) -> int:
    """Returns the index of the bracket that closes the first character."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return index
    return len(text) - 1


def _constant(one: Instruction) -> int | None:
    found = re.match(r"constant\((\d+)\)", one.rest) if one.opcode == "constant" else None
    return int(found[1]) if found else None


@functools.cache
def _shapes(result: str) -> tuple[tuple[int, bool], ...]:
    """Returns each array's bytes, and whether it lies in main memory."""
    return tuple(
        (_array_bytes(kind, dims), space in ("", "0"))
        for kind, dims, space in _SHAPE.findall(result)
    )


def _array_bytes(kind: str, dims: str) -> int:
    bits = _BITS.get(kind) if kind in _BITS else int(re.sub(r"\D", "", kind)[:2] or 8)
    return math.prod(map(int, filter(None, dims.split(",")))) * (bits or 0) // 8


def _size(result: str) -> int:
    return sum(size for size, _ in _shapes(result))


def _main(result: str) -> int:
    return sum(size for size, main in _shapes(result) if main)


def totals(
    counted: list[Counted], part_of: Callable[[Counted], str], amount: Callable[[Counted], float]
) -> dict[str, float]:
    """Returns the sum of an amount, times how often it runs, by part."""
    result: dict[str, float] = {}
    for one in counted:
        if value := amount(one) * one.times:
            part = part_of(one)
            result[part] = result.get(part, 0.0) + value
    return result
