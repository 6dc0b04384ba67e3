"""A decoder as lm-eval asks models: texts in, log-likelihoods and greedy answers out.

Importing this imports lm-eval, without torch and transformers.
"""

from collections.abc import Callable, Sequence

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from workloads.downstream.scoring import Score, Scorer
from workloads.downstream.tokens import Tokens

# Of an answer, where a task does not say more: the T5 prompts' longest has 6 pieces out of 32,000.
MOST_TOKENS = 16
Pair = tuple[str, str]


class Decoder(LM):
    """The model that lm-eval judges. Every document begins behind the separator, `</s>`.

    scores: of every (context, continuation) that was asked.
    answered: the generated text of every context, and by how many tokens that was cut.
    """

    def __init__(
        self, scorer: Scorer, tokens: Tokens, progress: Callable[[int, int], None] | None = None
    ) -> None:
        super().__init__()
        self._scorer, self._tokens, self.progress = scorer, tokens, progress
        self.scores: dict[Pair, Score] = {}
        self.answered: dict[str, tuple[str, int]] = {}

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Returns (log-likelihood, whether greedy) of each request's continuation."""
        return [(one.loglikelihood, one.greedy) for one in self.score([r.args for r in requests])]

    def score(self, pairs: Sequence[Pair]) -> list[Score]:
        """Returns the scores of (context, continuation), and keeps them in `scores`.

        Raises ValueError for a continuation without a token, or longer than the model's context.
        """
        asked = [self._tokens.pair(*pair) for pair in pairs]
        for (context, continuation), (_, ids) in zip(pairs, asked, strict=True):
            if not 0 < len(ids) <= self._scorer.context:
                raise ValueError(
                    f"the answer {continuation!r} has {len(ids)} tokens, the model scores 1 to "
                    f"{self._scorer.context}; the question ends in {context[-60:]!r}"
                )
        scores = self._scorer.loglikelihoods(asked, self.progress)
        self.scores.update(zip(pairs, scores, strict=True))
        return scores

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Not supported: no suite has a task that asks for whole texts."""
        raise NotImplementedError("no suite asks for the log-likelihood of whole texts")

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Returns greedy answers, up to the separator or a text of the request's `until`."""
        contexts = [self._tokens.encode(request.args[0]) for request in requests]
        most = max(r.args[1].get("max_gen_toks", MOST_TOKENS) for r in requests)
        answers = []
        for request, context, ids in zip(
            requests, contexts, self._scorer.greedy(contexts, most), strict=True
        ):
            prompt, settings = request.args
            text = self._tokens.decode(ids)
            for stop in settings["until"]:
                text = text.split(stop)[0] if stop else text
            answers.append(text.strip())
            self.answered[prompt] = answers[-1], max(0, len(context) + most - self._scorer.context)
        return answers
