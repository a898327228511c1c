"""Drafters that propose the tokens that followed the same context before, in the response or in others to the prompt.

Their proposals are tokens without a distribution, which the engine verifies by agreement. They run no model. Rows
without a match propose nothing, and a pass in which no row has a proposal is a plain one.

Sources: prompt lookup decoding (Saxena, 2023; vLLM's `ngram`); suffix trees over earlier responses to the prompt, as in
SRT (arXiv 2601.09083), DAS (arXiv 2511.13841), HistoSpec (arXiv 2508.18588) and vLLM's `suffix`.
"""

import torch

from redraft.config.decoding import LONGEST_DRAFT
from redraft.engines.torch.row_table import DecodeRequest
from redraft.engines.torch.speculation import Block, Drafter, Proposals, SpeculativeEngine
from redraft.rollout.history import ResponseHistory
from redraft.rollout.matching import SuffixIndex, ngram_proposal


class MatchingDrafter(Drafter):
    """Tracks the tokens of each decoding session, and proposes tokens by matching the last ones."""

    def __init__(self) -> None:
        self._contexts: dict[DecodeRequest, list[int]] = {}

    def begin(self) -> None:
        """Drop the sessions of the last rollout."""
        self._contexts.clear()

    def propose(self, engine: SpeculativeEngine, block: Block, count: int) -> Proposals | None:
        """Up to `count` proposals of each row, fewer near the row's limit of tokens."""
        proposed = []
        # The block's own token is sampled in any case.
        for request, context, left in zip(block.requests, self._updated(engine, block), block.left, strict=True):
            proposed.append(self.matched(request, context, min(count, left - 1)) if left > 1 else [])
        width = max(map(len, proposed))
        if not width:
            return None
        padded = [tokens + [0] * (width - len(tokens)) for tokens in proposed]
        counts = [len(tokens) for tokens in proposed]
        return Proposals(torch.tensor(padded, device=engine.device), torch.tensor(counts, device=engine.device))

    def _updated(self, engine: SpeculativeEngine, block: Block) -> list[list[int]]:
        """Prompt and response so far of each row."""
        tokens = engine.rows.out_tokens[: len(block.requests)].cpu().numpy()
        contexts = []
        for row, (request, count) in enumerate(zip(block.requests, block.counts, strict=True)):
            context = self._contexts.setdefault(request, list(request.sequence))
            context += tokens[row, len(context) - len(request.sequence) : count].tolist()
            contexts.append(context)
        return contexts

    def matched(self, request: DecodeRequest, context: list[int], count: int) -> list[int]:
        """Up to `count` tokens, 1 or more, that may follow a context."""
        raise NotImplementedError

    def ended(self, request: DecodeRequest, tokens: list[int]) -> None:
        """Drop the session's tokens."""
        self._contexts.pop(request, None)


class NGramDrafter(MatchingDrafter):
    """Proposes the tokens after the most recent earlier occurrence of the last tokens, in prompt and response.

    Args:
        longest: longest match, tokens.
        shortest: shortest match, tokens.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        super().__init__()
        self._longest, self._shortest = longest, shortest

    def matched(self, request: DecodeRequest, context: list[int], count: int) -> list[int]:
        """See `redraft.rollout.matching.ngram_proposal`."""
        return ngram_proposal(context, count, self._longest, self._shortest)


class SuffixDrafter(MatchingDrafter):
    """Proposes the most frequent continuation in earlier responses to the prompt and in ended ones of this rollout.

    The index of a prompt is built when one of its sessions first decodes, and dropped after the rollout, since an
    automaton takes some hundred bytes per token and the history four. Responses of a rollout are only added to the
    index; the trainer adds them to the history.

    Args:
        history: responses of earlier passes.
        longest: longest match, tokens. In the index this number of prompt tokens precedes each response, so that first
            tokens of a response are proposed too.
        shortest: shortest match, tokens.
        least_share: as of `redraft.rollout.matching.SuffixIndex.propose`.
    """

    def __init__(self, history: ResponseHistory, longest: int, shortest: int, least_share: float) -> None:
        super().__init__()
        self.history = history
        self._longest, self._shortest, self._least_share = longest, shortest, least_share
        self._indices: dict[tuple[int, ...], SuffixIndex] = {}

    def begin(self) -> None:
        """Drop the sessions and responses of the last rollout."""
        super().begin()
        self._indices.clear()

    def matched(self, request: DecodeRequest, context: list[int], count: int) -> list[int]:
        """See `redraft.rollout.matching.SuffixIndex.propose`."""
        index = self._index(request.session.prompt)
        return index.propose(context, count, self._longest, self._shortest, self._least_share)

    def ended(self, request: DecodeRequest, tokens: list[int]) -> None:
        """Add the response to the prompt's index for the rest of the rollout."""
        super().ended(request, tokens)
        prompt = request.session.prompt
        response = [*request.sequence[len(prompt) :], *tokens]
        self._index(prompt).add(prompt[-self._longest :] + response, 0)

    def _index(self, prompt: list[int]) -> SuffixIndex:
        key = tuple(prompt)
        if key not in self._indices:
            index = self._indices[key] = SuffixIndex(self._longest + LONGEST_DRAFT)
            for responses in self.history.passes(prompt):
                for response in responses:
                    index.add([*prompt[-self._longest :], *response.tolist()], 0)
        return self._indices[key]
