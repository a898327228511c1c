"""SPEC-RL in one file: GRPO whose rollouts start from verified prefixes of older ones (arXiv 2509.23232, Algorithm 1).

    python examples/spec_rl_in_one_file.py                  # SPEC-RL, lenience e^0.5: half a minute on a processor
    python examples/spec_rl_in_one_file.py --lenience 0     # plain GRPO: no draft token is accepted

The task is the sum of twelve digits from 1 to 3, modulo 10. A prompt is `3 1 2 ... =`, a response the running totals
`4 6 ...` and an end token, and only the last total is graded. Every step

1. scores the old responses ("drafts") of its prompts under the current policy, in one parallel forward pass;
2. accepts draft token t with probability min(1, lenience * p_new / p_old), and keeps the tokens before the first
rejection;
3. samples the rest of each response from the current policy, one token at a time: this is the expensive part;
4. grades the responses, computes group-relative advantages (GRPO), and updates the policy by the clipped policy loss;
5. stores the responses as the drafts of the next epoch, with the log-probabilities that their tokens were sampled with.

Names end in their dimensions: B responses, T token positions of a response, V tokens of the vocabulary. The library
does the same with caches, resumable runs, other algorithms and exact acceptance rules; tests/test_example.py compares
the two.
"""

import argparse
import time

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

TERMS, EOS, EQUALS, VOCABULARY = 12, 10, 11, 12  # tokens 0 to 9 are the digits
PROMPT, LIMIT = TERMS + 1, TERMS + 1  # tokens of every prompt, and of the longest response
PROMPTS, PROMPTS_PER_STEP, GROUP, EPOCHS = 64, 32, 8, 8
LEARNING_RATE, CLIP, CLIP_NEGATIVE = 1e-3, 0.2, 3.0


def make_model(seed: int) -> Qwen3ForCausalLM:
    """A randomly initialised transformer of 0.1 million parameters."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, tie_word_embeddings=True, **sizes, **heads))


def make_problems(count: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts, int64 (count, PROMPT), and running totals, int64 (count, TERMS - 1); the last total is the answer."""
    digits = torch.from_numpy(rng.integers(1, 4, size=(count, TERMS)))
    prompts = torch.cat([digits, torch.full((count, 1), EQUALS)], 1)
    return prompts, digits.cumsum(1)[:, 1:] % 10


def log_probs_of(model: Qwen3ForCausalLM, prompts: torch.Tensor, tokens_BT: torch.Tensor) -> torch.Tensor:
    """Log-probability of each response token under the model, float32 (B, T)."""
    logits_BTV = model(input_ids=torch.cat([prompts, tokens_BT], 1)).logits[:, PROMPT - 1 : -1]
    return logits_BTV.log_softmax(-1).gather(2, tokens_BT[..., None])[..., 0]


def warm_start(model: Qwen3ForCausalLM, rng: np.random.Generator, steps: int = 150, slips: float = 0.1) -> None:
    """Teach the format by supervised learning. A total is wrong with probability `slips`, so that the policy
    guesses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        prompts, totals = make_problems(64, rng)
        noise = torch.from_numpy(rng.integers(10, size=totals.shape) * (rng.random(totals.shape) < slips))
        targets = (totals + noise.cumsum(1)) % 10  # a slip changes all later totals, too
        tokens_BT = torch.cat([targets, torch.full((64, 1), EOS)], 1)
        loss = -log_probs_of(model, prompts, tokens_BT).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def accepted_prefixes(
    new_BT: np.ndarray, old_BT: np.ndarray, uniforms_BT: np.ndarray, lengths_B: np.ndarray, lenience: float
) -> np.ndarray:
    """Number of draft tokens before the first rejection, int64 (B,) (equation 3)."""
    with np.errstate(divide="ignore"):  # a lenience of 0 rejects every token
        accepted_BT = np.log(uniforms_BT) <= np.minimum(np.log(lenience) + new_BT - old_BT, 0.0)
    accepted_BT &= np.arange(new_BT.shape[1]) < lengths_B[:, None]
    return np.logical_and.accumulate(accepted_BT, 1).sum(1)


def sample_tokens(logits_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """One token a row by inverse-CDF sampling: the first token whose cumulative probability reaches the uniform."""
    cdf_BV = logits_BV.softmax(-1).cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cdf_BV, uniforms_B[:, None] * cdf_BV[:, -1:])[:, 0].clamp(max=VOCABULARY - 1)


@torch.no_grad()
def roll_out(
    model: Qwen3ForCausalLM,
    prompts: torch.Tensor,
    drafts: dict[str, np.ndarray] | None,
    uniforms: np.ndarray,
    lenience: float,
) -> dict[str, np.ndarray]:
    """Responses that start with the accepted prefixes of their drafts.

    Args:
        prompts: int64 (B, PROMPT), a prompt in `GROUP` rows.
        drafts: earlier responses to the same prompts, as returned; None in the first epoch.
        uniforms: (2, B, LIMIT) on (0, 1]: for the acceptance of draft tokens, and for the tokens sampled after the
            prefix.

    Returns:
        `tokens` and `log_probs` (under the policy that sampled each), both (B, LIMIT), `lengths` and `prefixes`, both
        (B,).
    """
    count = len(prompts)
    tokens, log_probs = torch.full((count, LIMIT), EOS), torch.zeros(count, LIMIT)
    prefixes = np.zeros(count, dtype=np.int64)
    if drafts is not None:
        draft_BT = torch.from_numpy(drafts["tokens"])
        new_BT = log_probs_of(model, prompts, draft_BT).numpy()  # verification: one parallel pass over all drafts
        prefixes = accepted_prefixes(new_BT, drafts["log_probs"], uniforms[0], drafts["lengths"], lenience)
        kept_BT = torch.from_numpy(np.arange(LIMIT) < prefixes[:, None])
        tokens = torch.where(kept_BT, draft_BT, tokens)
        log_probs = torch.where(kept_BT, torch.from_numpy(drafts["log_probs"]), log_probs)
    lengths = torch.from_numpy(prefixes.copy())
    for t in range(LIMIT):  # decoding: one pass a token, only over rows that are not complete
        ended = (lengths > 0) & (tokens.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0] == EOS)
        rows = ((lengths == t) & ~ended).nonzero()[:, 0]
        if len(rows):
            logits_BV = model(input_ids=torch.cat([prompts[rows], tokens[rows, :t]], 1)).logits[:, -1]
            uniforms_B = torch.from_numpy(uniforms[1, rows.numpy(), t - prefixes[rows.numpy()]])
            tokens[rows, t] = sampled_B = sample_tokens(logits_BV, uniforms_B)
            log_probs[rows, t] = logits_BV.log_softmax(-1).gather(1, sampled_B[:, None])[:, 0]
            lengths[rows] = t + 1
    found = {"tokens": tokens, "log_probs": log_probs, "lengths": lengths}
    return {name: tensor.numpy() for name, tensor in found.items()} | {"prefixes": prefixes}


def rewards_of(rollouts: dict[str, np.ndarray], answers: np.ndarray) -> np.ndarray:
    """1 for a response that ends in the answer and an end token, else 0; float32 (B,)."""
    tokens, last = rollouts["tokens"], rollouts["lengths"] - 1
    rows = np.arange(len(tokens))
    return ((last > 0) & (tokens[rows, last] == EOS) & (tokens[rows, last - 1] == answers)).astype(np.float32)


def advantages_of(rewards_B: np.ndarray) -> torch.Tensor:
    """GRPO's advantages, float32 (B,): rewards normalised by the mean and the standard deviation of their group."""
    groups = torch.from_numpy(rewards_B).view(-1, GROUP)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).flatten()


def grpo_loss(
    new_BT: torch.Tensor, old_BT: torch.Tensor, advantages_B: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """The clipped policy loss, averaged over the tokens of the batch, with the dual clip of negative advantages."""
    ratio, advantage = (new_BT - old_BT).exp(), advantages_B[:, None]
    clipped = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP))
    clipped = torch.where(advantage < 0, torch.minimum(clipped, -advantage * CLIP_NEGATIVE), clipped)
    return (clipped * mask_BT).sum() / mask_BT.sum()


def update(
    model: Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    prompts: torch.Tensor,
    rollouts: dict[str, np.ndarray],
    rewards: np.ndarray,
    minibatches: int = 4,
) -> float:
    """One pass over the step's rollouts in mini-batches; returns the mean loss."""
    tokens_BT, advantages_B = torch.from_numpy(rollouts["tokens"]), advantages_of(rewards)
    mask_BT = torch.from_numpy(np.arange(LIMIT) < rollouts["lengths"][:, None])
    with torch.no_grad():  # as verl does, "old" is the policy before the update, also for reused tokens
        old_BT = log_probs_of(model, prompts, tokens_BT)
    losses = []
    for rows in torch.arange(len(prompts)).chunk(minibatches):
        new_BT = log_probs_of(model, prompts[rows], tokens_BT[rows])
        loss = grpo_loss(new_BT, old_BT[rows], advantages_B[rows], mask_BT[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses))


def main() -> None:
    """Warm start, then GRPO; prints the reward and the reuse of each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lenience", type=float, default=np.exp(0.5), help="1 is the ratio test, 0 is plain GRPO")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, model = np.random.default_rng(options.seed), make_model(options.seed)
    warm_start(model, rng)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    problems, totals = make_problems(PROMPTS, rng)
    memory: dict[int, dict[str, np.ndarray]] = {}  # drafts of each batch of prompts
    for epoch in range(EPOCHS):
        for batch, chosen in enumerate(torch.arange(PROMPTS).chunk(PROMPTS // PROMPTS_PER_STEP)):
            prompts, began = problems[chosen].repeat_interleave(GROUP, 0), time.perf_counter()
            uniforms = 1.0 - rng.random((2, len(prompts), LIMIT))
            rollouts = roll_out(model, prompts, memory.get(batch), uniforms, options.lenience)
            seconds = time.perf_counter() - began
            rewards = rewards_of(rollouts, totals[chosen, -1].repeat_interleave(GROUP).numpy())
            update(model, optimizer, prompts, rollouts, rewards)
            memory[batch] = rollouts
            total, kept = rollouts["lengths"].sum(), rollouts["prefixes"].sum()
            print(
                f"epoch {epoch + 1} step {batch + 1}: reward {rewards.mean():.2f}, {kept / total:4.0%} of "
                f"{total} tokens kept from drafts, {total - kept} decoded in {seconds:.2f} s"
            )


if __name__ == "__main__":
    main()
