"""How probable a model finds continuations of contexts, and which ones it would give itself.

Requests are grouped by length. Rows of a batch are filled up on their right to the next length of a
short ladder, and every length of the ladder is compiled once. A causal model does not look there,
so no mask is needed. Logits are made at the continuations' places alone. Rows are divided over
all devices. A log-probability differs between lengths of the ladder by rounding alone.

Where a mixer's weights are not normalised, its output depends on how many keys there are, filled up
ones included (sigmoid attention's bias is minus the logarithm of their number): its rows are filled
up to the context, as it was trained.

As in training, what a model is given begins with the separator of documents:
[</s>] + context + continuation, of which the last token is only predicted.
"""

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from attention import table as variants_table
from workloads.base import sharding, spec
from workloads.downstream.tokens import Tokens
from workloads.storage import tokenizer
from workloads.text.language_models import TextWorkload

Request = tuple[Sequence[int], Sequence[int]]
Pair = tuple[str, str]
# Tokens of a batch on one device, filled up ones included: a batch has so many, whatever its
# length.
_TOKENS = 2048
# Shorter rows cost what these cost.
_SHORTEST = 16


@dataclasses.dataclass(frozen=True)
class Score:
    """What a model makes of one continuation.

    loglikelihood: natural logarithm, the float64 sum of float32 log-probabilities of its `tokens`.
    greedy: whether every one of them is the most probable. truncated: how many tokens the context
    was cut by, from its left.
    """

    loglikelihood: float
    greedy: bool
    tokens: int
    truncated: int = 0


def ladder(context: int) -> tuple[int, ...]:
    """Returns the lengths that rows are filled up to: three per octave (1, 1.25, 1.5), from 16 to
    the model's context. Rows of all lengths alike are 89 % real tokens."""
    octave, lengths = _SHORTEST, []
    while octave < context:
        parts = (4, 5, 6) if octave >= 32 else (4, 6)  # multiples of 8
        lengths += [octave * part // 4 for part in parts]
        octave *= 2
    return (*(length for length in lengths if length < context), context)


class Scorer:
    """Scores by one decoder with its parameters.

    parameters: the tree that the workload's `init_model_fn` gives, on the host or on devices.
    tokens: of a batch on each device. Raises ValueError where the workload is no decoder.
    """

    def __init__(self, workload: spec.Workload, parameters: Any, tokens: int = _TOKENS) -> None:
        if not isinstance(workload, TextWorkload) or not workload.is_causal:
            raise ValueError(
                f"{workload} is no decoder: suites score what a model says next; evaluate a "
                "language model such as pydoc_lm or c4_lm"
            )
        self.workload, self.context = workload, workload.size.context
        self.use(parameters)
        self._tokens = tokens
        self._ladder: tuple[int, ...] = (self.context,)
        if workload.variant is None or variants_table.MIXERS[workload.variant.mixer].normalised:
            self._ladder = ladder(self.context)
        self._run = jax.jit(workload.log_probabilities)

    def use(self, parameters: Any) -> None:
        """Has other parameters of the same model score from here on; nothing is compiled anew."""
        rules, mesh = self.workload.parameter_rules, self.workload.devices.mesh
        self._parameters = jax.device_put(parameters, sharding.shardings(parameters, rules, mesh))

    def loglikelihoods(
        self, requests: Sequence[Request], progress: Callable[[int, int], None] | None = None
    ) -> list[Score]:
        """Returns the scores of (context, continuation) token ids, in the order of the requests.

        Neither begins with the separator; the context may be empty: the unconditional probability.
        A continuation has 1 to `context` tokens. Equal requests are computed once. progress: called
        with (done, all) after every batch.
        """
        keys = [(tuple(context), tuple(continuation)) for context, continuation in requests]
        different = list(dict.fromkeys(keys))
        rows = []
        for context, continuation in different:
            kept = context[max(0, len(context) + len(continuation) - self.context) :]
            rows.append((kept + continuation, len(continuation)))
        results = self._scored(rows, progress)
        scores = {}
        for key, (row, asked), (logs, words) in zip(different, rows, results, strict=True):
            greedy = bool(np.array_equal(words, row[-asked:]))
            cut = len(key[0]) + asked - len(row)
            scores[key] = Score(float(logs.sum(dtype=np.float64)), greedy, asked, cut)
        return [scores[key] for key in keys]

    def greedy(self, contexts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Returns at most `tokens` most probable next tokens of each context, one after the other.

        An answer ends before the separator. Contexts are cut from the left so that the answer has
        room. Every token is another run over the whole row. Raises ValueError for no tokens or more
        than the model's context.
        """
        if not 0 < tokens <= self.context:
            raise ValueError(f"{tokens} tokens are asked; the model gives 1 to {self.context}")
        room = self.context - tokens
        starts = [tuple(context)[max(0, len(context) - room) :] for context in contexts]
        answers: list[list[int]] = [[] for _ in contexts]
        going = list(range(len(contexts)))
        for _ in range(tokens):
            # What is predicted last is not looked at: any token may stand there.
            rows = [((*starts[at], *answers[at], tokenizer.EOS), 1) for at in going]
            words = [int(predicted[0]) for _, predicted in self._scored(rows, None)]
            for at, word in zip(going, words, strict=True):
                answers[at].append(word)
            going = [at for at in going if answers[at][-1] != tokenizer.EOS]
            if not going:
                break
        return [ids[:-1] if ids[-1] == tokenizer.EOS else ids for ids in answers]

    def _scored(
        self,
        rows: Sequence[tuple[tuple[int, ...], int]],
        progress: Callable[[int, int], None] | None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns log-probabilities and most probable tokens of each row's last tokens."""
        results: list[Any] = [None] * len(rows)
        # The longest first: the rows of a batch have nearly one length.
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number][0]))
        done, pending = 0, None
        while done < len(order):
            length = self._ladder[bisect.bisect_left(self._ladder, len(rows[order[done]][0]))]
            numbers = order[done : done + self._rows(length)]
            spans, running = self._start(length, [rows[number] for number in numbers])
            done += len(numbers)
            if pending is not None:  # the devices work on the next batch while this one is read
                self._finish(*pending, results)
            pending = numbers, spans, running
            if progress is not None:
                progress(done, len(order))
        if pending is not None:
            self._finish(*pending, results)
        return results

    def _rows(self, length: int) -> int:
        """Returns how many rows of a length a batch has, on all devices."""
        devices = self.workload.devices
        return devices.rounded_up(1) * max(1, self._tokens // length)

    def _start(
        self, length: int, rows: Sequence[tuple[tuple[int, ...], int]]
    ) -> tuple[list[slice], Any]:
        """Returns where each row's results will stand in a batch's, and those of the devices."""
        devices = self.workload.devices
        size = self._rows(length)
        per_device = size // devices.rounded_up(1)
        inputs = np.full((size, length), tokenizer.EOS, np.int32)
        targets = np.full((size, length), tokenizer.EOS, np.int32)
        places = np.zeros((size, length), np.int32)
        counts = np.zeros(size, np.int32)
        spans = []
        end = 0
        for number, (row, asked) in enumerate(rows):
            inputs[number, 1 : len(row)] = row[:-1]
            targets[number, : len(row)] = row
            counts[number] = asked
            # A device's places follow each other, and count from its own first row.
            place = number % per_device
            start = end if place else number * length
            end = start + asked
            spans.append(slice(start, end))
            first = place * length + len(row) - asked
            places.reshape(-1)[start:end] = np.arange(first, first + asked)
        mine = devices.rows(size)
        batch = {"inputs": inputs, "targets": targets, "places": places, "counts": counts}
        batch = devices.shard({name: array[mine] for name, array in batch.items()})
        return spans, self._run(self._parameters, batch)

    def _finish(
        self, numbers: Sequence[int], spans: Sequence[slice], running: Any, results: list[Any]
    ) -> None:
        """Puts a batch's results where its rows stood. Raises ValueError where one is NaN."""
        logs, words = (array.ravel() for array in self.workload.devices.on_host(running))
        for number, span in zip(numbers, spans, strict=True):
            if np.isnan(logs[span]).any():  # argmax would take it for the best
                raise ValueError(
                    "the model's log-probabilities are NaN: its parameters are no numbers, as "
                    "after training that diverged; evaluate another checkpoint"
                )
            results[number] = logs[span], words[span]


def score_texts(
    scorer: Scorer,
    tokens: Tokens,
    pairs: Sequence[Pair],
    progress: Callable[[int, int], None] | None = None,
) -> dict[Pair, Score]:
    """Returns the score of every (context, continuation); progress: as in `loglikelihoods`.

    Raises ValueError for a continuation without a token, or longer than the model's context.
    """
    requests = [tokens.pair(*pair) for pair in pairs]
    for (context, continuation), (_, ids) in zip(pairs, requests, strict=True):
        if not 0 < len(ids) <= scorer.context:
            raise ValueError(
                f"the answer {continuation!r} has {len(ids)} tokens, the model scores 1 to "
                f"{scorer.context}; the question ends in {context[-60:]!r}"
            )
    return dict(zip(pairs, scorer.loglikelihoods(requests, progress), strict=True))


def answer_texts(scorer: Scorer, tokens: Tokens, contexts: Sequence[str], most: int) -> list[str]:
    """Returns greedy answers of at most so many tokens, up to the separator, without blanks."""
    answers = scorer.greedy([tokens.encode(context) for context in contexts], most)
    return [tokens.decode(ids).strip() for ids in answers]
