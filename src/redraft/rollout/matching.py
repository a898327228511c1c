"""Proposals by matching: tokens that followed the same context before, in other sequences or in the same one.

`SuffixIndex` is a suffix automaton over several sequences (Blumer et al., 1985, "The smallest automaton recognizing the
subwords of a text"): each state is a class of strings that end at the same positions. It has at most two states per
token, so its memory is linear in the number of tokens. Occurrences are counted only for strings up to a given length:
in a response that repeats one token, n strings end at the n-th one, and counting all of them takes quadratic time. A
lookup takes time linear in the length of the context, whatever the number of sequences. SRT (arXiv 2601.09083),
DAS (arXiv 2511.13841) and vLLM's suffix decoding use suffix trees for the same purpose.

`ngram_proposal` searches the context itself (prompt lookup decoding).

Both are deterministic functions of tokens. They need neither torch nor an engine.
"""

from collections.abc import Sequence

ROOT = 0
"""State of the empty string."""


class SuffixIndex:
    """All substrings of several sequences, with their numbers of occurrences.

    Args:
        deepest: longest strings whose occurrences are counted, tokens, 1 or more: a match with its proposals.

    Attributes:
        sequences: epoch and tokens of each sequence, in the order in which they were added. An index that is built
            again from these makes the same proposals.
        tokens: number of tokens of the sequences.
    """

    sequences: list[tuple[int, list[int]]]
    tokens: int

    def __init__(self, deepest: int) -> None:
        self.sequences, self._deepest = [], deepest
        self._clear()

    def _clear(self) -> None:
        """Forget all substrings."""
        self.tokens = 0
        # By state: the states one token further, the state of the longest suffix in another class, the length of the
        # longest string, the number of its occurrences, and the position of the last one among all tokens. The last two
        # are right for states that have a string of at most `deepest` tokens; `_counted` leads to the first of these
        # along the links, maybe in several steps, and is the state itself there.
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length, self._count, self._last, self._counted = [-1], [0], [0], [0], [0]

    def add(self, tokens: Sequence[int], epoch: int) -> None:
        """Add a sequence.

        Args:
            epoch: epoch in which the sequence was sampled, for `forget`.
        """
        sequence = [int(token) for token in tokens]
        self.sequences.append((epoch, sequence))
        state = ROOT
        for token in sequence:
            state = self._extended(state, token)
            self.tokens += 1
            suffix = state
            while (nearer := self._counted[suffix]) != suffix:
                suffix = nearer
            self._counted[state] = suffix
            while suffix != ROOT:
                self._count[suffix] += 1
                self._last[suffix] = self.tokens
                suffix = self._link[suffix]

    def forget(self, before: int) -> None:
        """Remove the sequences of epochs before `before`."""
        kept = [(epoch, tokens) for epoch, tokens in self.sequences if epoch >= before]
        if len(kept) < len(self.sequences):
            self.sequences = []
            self._clear()
            for epoch, tokens in kept:
                self.add(tokens, epoch)

    def propose(
        self, context: Sequence[int], n: int, longest: int, shortest: int = 1, least_share: float = 0.0
    ) -> list[int]:
        """Up to n tokens that may follow a context.

        The longest suffix of the context that some sequence continues is matched. Each proposed token is the one that
        followed the matched tokens most often; of equally frequent ones, the one that followed them last.

        Args:
            context: tokens so far; only the last `longest` are used.
            n: largest number of proposed tokens.
            longest: largest length of a match, tokens.
            shortest: smallest length of a match, tokens, 1 or more; without such a match nothing is proposed.
            least_share: smallest share of the matched occurrences that continue with all proposed tokens; a proposal
                ends before the share falls below it.

        Raises:
            ValueError: if match and proposals may be longer than `deepest`.
        """
        if longest + n > self._deepest:
            raise ValueError(f"occurrences of up to {self._deepest} tokens are counted, not of {longest} + {n}")
        state, length = self._match(context[max(len(context) - longest, 0) :])
        while state != ROOT and not self._next[state]:  # occurs at ends of sequences only
            state = self._link[state]
            length = self._length[state]
        proposed: list[int] = []
        if length < max(shortest, 1):
            return proposed
        enough = least_share * self._count[state]
        while len(proposed) < n and (following := self._next[state]):
            token, state = max(following.items(), key=lambda edge: (self._count[edge[1]], self._last[edge[1]]))
            if self._count[state] < enough:
                break
            proposed.append(token)
        return proposed

    def _match(self, context: Sequence[int]) -> tuple[int, int]:
        """State and length of the longest suffix of a context that occurs."""
        state, length = ROOT, 0
        for token in context:
            while token not in self._next[state] and state != ROOT:
                state = self._link[state]
                length = self._length[state]
            if token in self._next[state]:
                state = self._next[state][token]
                length += 1
        return state, length

    def _extended(self, state: int, token: int) -> int:
        """The state of the string that is one token longer, which is added if it is new."""
        if (known := self._next[state].get(token)) is not None:
            # The sequence repeats another one so far.
            return known if self._length[known] == self._length[state] + 1 else self._split(state, token, known)
        new = self._new({}, self._length[state] + 1)
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state == -1:
            self._set_link(new, ROOT)
        else:
            known = self._next[state][token]
            exact = self._length[known] == self._length[state] + 1
            self._set_link(new, known if exact else self._split(state, token, known))
        return new

    def _split(self, state: int, token: int, known: int) -> int:
        """The new class of the shorter strings of a known one, which will also occur where the longer ones do not."""
        shorter = self._new(dict(self._next[known]), self._length[state] + 1)
        self._set_link(shorter, self._link[known])
        self._set_link(known, shorter)
        self._count[shorter], self._last[shorter] = self._count[known], self._last[known]
        while state != -1 and self._next[state].get(token) == known:
            self._next[state][token] = shorter
            state = self._link[state]
        return shorter

    def _set_link(self, state: int, link: int) -> None:
        """The shortest string of a state is one token longer than the longest one of its link."""
        self._link[state] = link
        self._counted[state] = state if self._length[link] < self._deepest else link

    def _new(self, following: dict[int, int], length: int) -> int:
        self._next.append(following)
        self._length.append(length)
        self._link.append(ROOT)
        self._count.append(0)
        self._last.append(0)
        self._counted.append(len(self._counted))
        return len(self._next) - 1


def ngram_proposal(context: Sequence[int], n: int, longest: int, shortest: int = 1) -> list[int]:
    """The n tokens after the most recent earlier occurrence of the context's end.

    The function matches the longest suffix of the context that occurred before. If fewer than n tokens follow it, the
    proposal continues with its own tokens, as a repetition would.

    Args:
        context: tokens so far, including the prompt.
        n: number of proposed tokens; none are proposed without a match.
        longest: largest length of a match, tokens.
        shortest: smallest length of a match, tokens, 1 or more.
    """
    backwards = list(context)[::-1]
    best, distance, at = max(shortest, 1) - 1, 0, 0
    while best < longest:
        try:
            at = backwards.index(backwards[0], at + 1)
        except (ValueError, IndexError):  # no further occurrence of the last token; an empty context
            break
        length = 1
        while length < longest and at + length < len(backwards) and backwards[at + length] == backwards[length]:
            length += 1
        if length > best:  # an equally long one further back is older
            best, distance = length, at
    return [int(backwards[distance - 1 - i % distance]) for i in range(n)] if distance else []
