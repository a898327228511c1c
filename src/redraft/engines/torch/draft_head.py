"""A learned drafter: a small head on the policy's last hidden state that proposes several tokens, one after another.

Each step takes the hidden state before a token and the token's embedding, and predicts the hidden state after it. The
policy's output layer turns this into the distribution of the next token. The first state is the policy's; later ones
are the head's predictions. Embedding and output layer are the policy's. The head has no other input, so it needs no
cache.

The head samples its proposals with the random numbers that the policy will use at the same positions, so that similar
distributions give equal tokens. Verification is by agreement: whatever the head has learnt, the tokens are those of
plain decoding.

Sources: like EAGLE (arXiv 2401.15077) the head predicts states from states and shifted tokens; like EAGLE-3
(arXiv 2503.01840) it is trained on its own predictions; like DeepSeek-V3's multi-token prediction (arXiv 2412.19437,
section 2.2) it concatenates the normalised state and embedding. Unlike these it has no attention.

Shapes: B rows, T positions, H hidden size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from redraft.engines.torch.head import Head
from redraft.engines.torch.row_table import DecodeRequest
from redraft.engines.torch.sampling import log_probs_of
from redraft.engines.torch.speculation import Block, Drafter, Proposals, SpeculativeEngine


class DraftHead(nn.Module):
    """Network that predicts the next hidden state; float32.

    Args:
        hidden: size of the policy's hidden states, H.
        vocabulary: size of the policy's vocabulary; saved with the weights, so that another size is an error.
        width: width of the feed-forward layer, as a multiple of the hidden size.
        generator: random generator of the initial weights.
    """

    vocabulary: torch.Tensor

    def __init__(self, hidden: int, vocabulary: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("vocabulary", torch.tensor(vocabulary))
        self.state_norm, self.token_norm, self.inner_norm, self.output_norm = (nn.RMSNorm(hidden) for _ in range(4))
        inner = width * hidden
        # Empty, so that PyTorch's own random numbers, which the policy's training may use, stay where they are.
        self.fuse, self.gate, self.up, self.down = (
            nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)
            for inputs, outputs in ((2 * hidden, hidden), (hidden, inner), (hidden, inner), (inner, hidden))
        )
        with torch.no_grad():
            for layer in (self.fuse, self.gate, self.up, self.down):
                layer.weight.normal_(0, layer.in_features**-0.5, generator=generator)

    def forward(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Hidden states (..., H) after tokens, from the states before them and their embeddings, both of this shape."""
        fused = self.fuse(torch.cat((self.state_norm(states), self.token_norm(embedded)), -1))
        inner = self.inner_norm(fused)
        return self.output_norm(fused + self.down(silu(self.gate(inner)) * self.up(inner)))

    def load_state_dict(self, state_dict: Any, *args: Any, **options: Any) -> Any:
        """Load weights.

        Raises:
            RuntimeError: for weights of another shape or vocabulary.
        """
        own, other = int(self.vocabulary), state_dict.get("vocabulary")
        result = super().load_state_dict(state_dict, *args, **options)
        if other is None or int(other) != own:
            raise RuntimeError(f"a head of a vocabulary of {other} tokens, not {own}")
        return result


class HeadDrafter(Drafter):
    """Drafter with a learned head.

    Args:
        model: the policy, in the engine's precision.
        width: see `DraftHead`.
        generator: random generator of the head's initial weights, on the CPU.

    Attributes:
        failed: whether the head's training had a loss or gradient that is not finite. From then on nothing is proposed.
    """

    reads_hidden = True

    def __init__(self, model: Any, width: int, generator: torch.Generator) -> None:
        self._model = model
        head = DraftHead(model.config.hidden_size, model.config.vocab_size, width, generator)
        self.head = head.to(model.device)
        self.failed = False
        self._states: dict[DecodeRequest, torch.Tensor] = {}

    def begin(self) -> None:
        """Drop the hidden states of the last rollout."""
        self._states.clear()

    def propose(self, engine: SpeculativeEngine, block: Block, count: int) -> Proposals | None:
        """Up to `count` proposals of each row with a known hidden state; a row in its first pass has none."""
        known = [request in self._states for request in block.requests]
        if self.failed or not any(known):
            return None
        tokens_B = engine.rows.tokens[: len(known)]
        # A row without a state gets any other one, and proposes nothing.
        any_H = next(iter(self._states.values()))
        states_BH = torch.stack([self._states.get(request, any_H) for request in block.requests])
        proposals = []
        for i in range(count):
            states_BH = self.head(states_BH.float(), self.embedded(tokens_B))
            log_probs_BV = log_probs_of(engine.head(states_BH.to(engine.dtype)), engine.head.temperature)
            tokens_B = block.sample(log_probs_BV[:, None], i, residual=False)[:, 0]
            proposals.append(tokens_B)
        # The block's own token is sampled in any case.
        room_B = torch.tensor(block.left, device=engine.device) - 1
        proposed_B = torch.tensor(known, device=engine.device) * room_B.clamp(0, count)
        width = int(proposed_B.max())
        return Proposals(torch.stack(proposals, 1)[:, :width], proposed_B) if width else None

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """The policy's embeddings of tokens, float32 (..., H)."""
        return self._model.get_input_embeddings()(tokens).float()

    def observe(self, requests: Sequence[DecodeRequest], hidden_BH: torch.Tensor) -> None:
        """Store the hidden states of the rows."""
        self._states = dict(zip(requests, hidden_BH.unbind(), strict=True))


def head_losses(
    drafter: HeadDrafter,
    output: Head,
    hidden_BTH: torch.Tensor,
    tokens_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    steps: int,
) -> Iterator[torch.Tensor]:
    """Cross-entropy of the policy's and the head's distributions, summed over positions, nats; one for each proposal.

    Args:
        drafter: has the head that is trained.
        output: the policy's output layer.
        hidden_BTH: the policy's hidden states at the tokens.
        tokens_BT: int64.
        mask_BT: bool, true for a token of a response.
        steps: number of proposals.

    Returns:
        a scalar for each of the `steps` proposals.
    """
    states_BTH, embedded_BTH = hidden_BTH.float(), drafter.embedded(tokens_BT)
    for step in range(1, steps + 1):
        # States of the tokens from `step` on, predicted with `step` tokens that the policy's state has not seen.
        states_BTH = drafter.head(states_BTH[:, :-1], embedded_BTH[:, step:])
        # They predict the next token, which has to be of the response.
        of_response_BT = mask_BT[:, step + 1 :]
        predicted_NH, true_NH = (
            states[:, : of_response_BT.shape[1]][of_response_BT] for states in (states_BTH, hidden_BTH[:, step:])
        )
        with torch.no_grad():
            policy_NV = log_probs_of(output(true_NH), output.temperature).exp()
        own_NV = log_probs_of(output(predicted_NH.to(hidden_BTH.dtype)), output.temperature)
        yield -(policy_NV * own_NV).sum()
