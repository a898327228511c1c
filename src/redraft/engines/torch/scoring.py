"""Log-probabilities of drafts, and of other tokens in their places, out of the hidden states of one pass."""

from collections.abc import Sequence

import numpy as np
import torch

from redraft.engines.requests import checked
from redraft.engines.torch.head import Head
from redraft.engines.torch.rows import Row
from redraft.engines.torch.sampling import gumbel, keys_of
from redraft.rollout.engine import Scores
from redraft.rollout.types import TopLogProbs


def scores_of(head: Head, hidden: torch.Tensor, batch: Sequence[Row], starts: Sequence[int]) -> list[Scores]:
    """Scores of the drafts or chunks in a batch; only their own positions pass through the head.

    Each position gets what any of the sessions asks for, and each session only what it asked for.

    Args:
        hidden: (rows, width, size), of prompts and drafts, padded on the right.
        starts: position of each row's first hidden state; at most that before its chunk.
    """
    requests, device = [row.scoring for row in batch], hidden.device
    lengths = [len(request.chunk) for request in requests]
    # The hidden state before a token has its distribution.
    before = [
        slice(len(row.prompt) + row.scoring.places.start - 1 - start, row.length - 1 - start)
        for row, start in zip(batch, starts, strict=True)
    ]
    states = torch.cat([of_row[places] for of_row, places in zip(hidden, before, strict=True)])
    tokens = torch.tensor(np.concatenate([r.chunk for r in requests]), dtype=torch.long, device=device)
    widths = [0 if request.at is None else request.at.shape[1] for request in requests]
    at = torch.zeros((len(tokens), max(widths)), dtype=torch.long, device=device)
    for request, width, part in zip(requests, widths, at.split(lengths), strict=True):
        if request.at is not None:
            part[:, :width] = torch.tensor(request.at)
    top, noisy = max(request.top for request in requests), any(request.draws for request in requests)
    each = zip(requests, lengths, strict=True)
    keys = keys_of([r.draws.key if r.draws else 0 for r, length in each for _ in range(length)], device)
    positions = torch.cat([torch.arange(r.places.start, r.places.stop, device=device) for r in requests])
    columns = []
    for places, distribution in head.distributions(states):
        own, others = (distribution.gather(1, chosen[places]) for chosen in (tokens[:, None], at))
        largest, drawn = distribution.topk(top), tokens[places]
        if noisy:
            drawn = (distribution.double() + gumbel(keys[places], positions[places], distribution.shape[1])).argmax(-1)
        columns.append([own[:, 0], others, largest.indices.to(torch.int32), largest.values, drawn.to(torch.int32)])
    ends = np.cumsum(lengths)[:-1]
    parts = [np.split(torch.cat(column).cpu().numpy(), ends) for column in zip(*columns, strict=True)]
    return [
        Scores(
            checked(log_probs),
            None if request.at is None else checked(others[:, :width]),
            TopLogProbs(top_tokens[:, : request.top], tops[:, : request.top]) if request.top else None,
            None if request.draws is None else drawn,
        )
        for request, width, log_probs, others, top_tokens, tops, drawn in zip(requests, widths, *parts, strict=True)
    ]
