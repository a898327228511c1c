"""Advantages and losses against hand computations, micro-batches against the whole, and that verl computes them."""

import math

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForTokenClassification
from verl.trainer.ppo import core_algos

from redraft.config.algorithm import DAPO, GRPO, PPO, REINFORCE, RLOO, Overlong
from redraft.rollout.types import Finish, Rollout
from redraft.train.local.learner import Batch
from redraft.train.losses import PolicyLoss, advantages, shaped, value_loss

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


def mask_of(*lengths):
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).float()


def test_advantages_are_rewards_standardised_within_a_group():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    groups = np.array([7, 7, 3, 3, 7, 3])  # interleaved: rewards 1, 0, 1 and 0, 1, 1
    mask = mask_of(2, 3, 1, 3, 3, 2)
    deviation = math.sqrt((2 * (1 / 3) ** 2 + (2 / 3) ** 2) / 2)  # unbiased
    high, low = (1 / 3) / (deviation + 1e-6), (-2 / 3) / (deviation + 1e-6)
    expected = torch.tensor([high, low, low, high, high, high])[:, None] * mask
    for algorithm in (GRPO(), DAPO()):
        torch.testing.assert_close(advantages(algorithm, rewards, mask, groups)[0], expected)


def test_a_group_of_equal_rewards_teaches_nothing():
    for algorithm in (GRPO(), RLOO()):
        computed, _ = advantages(algorithm, torch.ones(4), mask_of(2, 2, 3, 1), np.array([0, 0, 1, 1]))
        assert computed.abs().max() == 0


def test_rloos_baseline_is_the_mean_of_the_others():
    rewards, groups = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.25]), np.array([0, 1, 0, 0, 1])
    mask = mask_of(2, 3, 1, 3, 2)
    others = torch.tensor([(0.5 + 1) / 2, 0.25, (1 + 1) / 2, (1 + 0.5) / 2, 0.0])
    expected = (rewards - others)[:, None] * mask
    torch.testing.assert_close(advantages(RLOO(), rewards, mask, groups)[0], expected)


def test_reinforce_does_not_divide_by_the_standard_deviation():
    rewards, groups = torch.tensor([1.0, 0.0, 0.5, 1.0]), np.array([0, 0, 1, 1])
    mask = mask_of(2, 3, 1, 3)
    expected = torch.tensor([0.5, -0.5, -0.25, 0.25])[:, None] * mask
    torch.testing.assert_close(advantages(REINFORCE(), rewards, mask, groups)[0], expected)


def test_groups_may_differ_in_size():
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1, 1, 1])
    mask = mask_of(2, 3, 1, 3, 3, 2)
    pair, half = math.sqrt(0.5), math.sqrt(1 / 3)  # deviations of (1, 0) and of (0, 1, 0, 1)
    by_deviation = [
        (0.5 if r else -0.5) / ((pair if g == 0 else half) + 1e-6) for r, g in zip(rewards, groups, strict=True)
    ]
    torch.testing.assert_close(advantages(GRPO(), rewards, mask, groups)[0], torch.tensor(by_deviation)[:, None] * mask)
    others = torch.tensor([0.0, 1.0, 2 / 3, 1 / 3, 2 / 3, 1 / 3])
    expected = (rewards - others)[:, None] * mask
    torch.testing.assert_close(advantages(RLOO(), rewards, mask, groups)[0], expected)


@pytest.mark.parametrize("algorithm", [GRPO(), RLOO(), DAPO(), REINFORCE()], ids=lambda a: a.kind)
def test_an_empty_response_has_no_advantage_and_its_reward_counts_in_the_group(algorithm):
    """The others' advantages are those of a group in which that response has a token."""
    groups, rewards = np.array([0, 0, 0, 0]), torch.tensor([1.0, 0.0, 1.0, 1.0])
    empty, whole = mask_of(2, 3, 0, 3), mask_of(2, 3, 1, 3)
    computed, expected = (advantages(algorithm, rewards, mask, groups)[0] for mask in (empty, whole))
    assert computed[2].abs().sum() == 0
    torch.testing.assert_close(computed[[0, 1, 3]], expected[[0, 1, 3]], atol=0, rtol=0)


def test_grpo_s_baseline_with_an_empty_response_is_the_mean_over_all_four():
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0])
    computed, _ = advantages(REINFORCE(), rewards, mask_of(2, 3, 0, 3), np.zeros(4, int))
    torch.testing.assert_close(computed[:, 0], torch.tensor([0.25, -0.75, 0.0, 0.25]))


def test_an_empty_response_s_reward_is_no_return_of_ppo():
    mask = mask_of(2, 0, 3)
    computed = [
        advantages(PPO(), torch.tensor([1.0, r, 0.0]), mask, np.zeros(3), torch.zeros(3, 3)) for r in (0.0, 1.0)
    ]
    for one, other in zip(*computed, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)
    assert computed[0][1][1].abs().sum() == 0


def gae(reward, values, gamma, lam):
    """Advantages of one response whose reward stands on its last token, by the sums that define them."""
    following = [*values[1:], 0.0]
    errors = [gamma * after - now for now, after in zip(values, following, strict=True)]
    errors[-1] += reward
    return [sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(values))) for t in range(len(values))]


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.0])
def test_ppos_advantages_are_generalised_ones_whitened_over_all_tokens(gamma, lam):
    generator, lengths, rewards = torch.Generator().manual_seed(0), [4, 1, 3], [1.0, 0.0, 0.5]
    mask = mask_of(*lengths)
    values = torch.randn(mask.shape, generator=generator) * mask
    computed, returns = advantages(PPO(gamma=gamma, lam=lam), torch.tensor(rewards), mask, np.zeros(3), values)
    rows = zip(rewards, lengths, values.tolist(), strict=True)
    raw = [gae(reward, row[:length], gamma, lam) for reward, length, row in rows]
    flat = np.concatenate(raw)
    whitened = (flat - flat.mean()) / math.sqrt(flat.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(computed[mask.bool()], whitened, atol=1e-5)
    np.testing.assert_allclose(returns[mask.bool()], flat + values[mask.bool()].numpy(), atol=1e-5)


def test_undiscounted_returns_are_the_rewards():
    mask = mask_of(4, 1, 3)
    values = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    _, returns = advantages(PPO(), torch.tensor([1.0, 0.0, 0.5]), mask, np.zeros(3), values)
    torch.testing.assert_close(returns * mask, torch.tensor([1.0, 0.0, 0.5])[:, None] * mask)


def test_the_value_loss_is_half_the_larger_of_the_clipped_and_the_plain_error():
    old, returns = torch.tensor([[0.0, 0.0, 0.0, 9.0]]), torch.tensor([[1.0, 0.2, -1.0, 9.0]])
    values = torch.tensor([[0.8, 0.1, 0.7, 5.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    loss = value_loss(PPO(value_clip=0.5), values, old, returns, mask, whole(mask))
    squares = [(0.5 - 1) ** 2, (0.1 - 0.2) ** 2, (0.7 + 1) ** 2]  # clipped; inside; the clipped one is smaller
    assert float(loss.detach()) == pytest.approx(0.5 * sum(squares) / 3, rel=1e-5)
    loss.backward()
    expected = [[0.0, (0.1 - 0.2) / 3, (0.7 + 1) / 3, 0.0]]  # what is clipped gets no gradient
    np.testing.assert_allclose(values.grad, expected, atol=1e-6)


def test_the_value_loss_of_micro_batches_sums_to_the_wholes():
    generator, mask = torch.Generator().manual_seed(2), mask_of(4, 1, 3, 2)
    values, old, returns = torch.randn((3, *mask.shape), generator=generator)
    parts = [value_loss(PPO(), values[r], old[r], returns[r], mask[r], whole(mask)) for r in (slice(0, 1), slice(1, 4))]
    assert float(sum(parts)) == pytest.approx(float(value_loss(PPO(), values, old, returns, mask, whole(mask))))


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(1, 0.0), (15, 0.0), (16, 0.0), (17, 0.25), (18, 0.5), (19, 0.75), (20, 1.0)],
)
def test_overlong_responses_are_punished_as_in_dapo(length, penalty):
    """Equation 13 of arXiv 2503.14476 with a limit of 20 tokens, of which 4, or a fifth, are the buffer."""
    rewards = np.array([1.0, 0.0], dtype=np.float32)
    lengths = np.array([length, length])
    for weight, buffer in ((1.0, 4), (0.5, 4), (1.0, 0.2)):
        computed = shaped(DAPO(overlong=Overlong(buffer=buffer, penalty=weight)), rewards, lengths, 20)
        assert computed.tolist() == [1 - weight * penalty, -weight * penalty]
        assert computed.dtype == np.float32


@pytest.mark.parametrize("algorithm", [GRPO(), PPO(), RLOO(), DAPO()], ids=lambda a: a.kind)
def test_rewards_are_not_shaped_unless_configured(algorithm):
    rewards = np.array([1.0, 0.0], dtype=np.float32)
    assert shaped(algorithm, rewards, np.array([20, 3]), 20).tolist() == [1.0, 0.0]


def whole(mask):
    return {"batch_num_tokens": mask.sum(), "global_batch_size": len(mask)}


def loss_of(algorithm, ratios, advantage, kl_shift=0.0):
    """The loss of one response with these probability ratios; the reference's log-probs lie `kl_shift` higher."""
    ratios = torch.tensor([ratios])
    old = torch.full_like(ratios, -1.0)
    log_probs = old + ratios.log()
    mask = torch.ones_like(ratios)
    return PolicyLoss(algorithm)(
        log_probs, old, log_probs + kl_shift, torch.full_like(ratios, advantage), mask, whole(mask)
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 2.0, -2.2),  # inside the clip range
        (1.5, 2.0, -2.4),  # clipped above, at 1.2
        (0.5, 2.0, -1.0),  # no clip where it would help
        (0.5, -2.0, 1.6),  # clipped below, at 0.8
        (1.5, -2.0, 3.0),
        (9.0, -2.0, 6.0),  # dual clip, at 3
    ],
)
def test_policy_loss_clips_as_ppo_with_a_dual_clip(ratio, advantage, expected):
    result = loss_of(GRPO(kl_loss_coef=0), [ratio, ratio], advantage)
    assert float(result.loss) == pytest.approx(expected, rel=1e-5)
    assert result.clip_fraction == float(expected in (-2.4, 1.6))


def test_clip_ranges_are_the_configured_ones():
    wide = GRPO(kl_loss_coef=0, clip_low=0.4, clip_high=0.28, clip_ratio_c=10)
    losses = [float(loss_of(wide, [r], a).loss) for r, a in ((1.5, 1.0), (0.5, -1.0), (20.0, -1.0))]
    assert losses == pytest.approx([-1.28, 0.6, 10.0], rel=1e-5)


@pytest.mark.parametrize("ratio", [1.21, 1.25, 1.27])
def test_dapo_clips_higher_than_the_others(ratio):
    others = [loss_of(algorithm, [ratio], 1.0) for algorithm in (GRPO(kl_loss_coef=0), PPO(), RLOO())]
    dapo = loss_of(DAPO(), [ratio], 1.0)
    assert {result.clip_fraction for result in others} == {1.0}
    assert dapo.clip_fraction == 0
    assert [float(result.loss) for result in (*others, dapo)] == pytest.approx([-1.2] * 3 + [-ratio], rel=1e-5)


def test_dapo_clips_above_1_28_below_0_8_and_far_less_of_what_got_worse():
    for ratio, advantage, expected in ((1.3, 1.0, -1.28), (0.7, -1.0, 0.8), (9.0, -1.0, 9.0), (11.0, -1.0, 10.0)):
        assert float(loss_of(DAPO(), [ratio], advantage).loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("algorithm", [PPO(), DAPO(), RLOO(), GRPO(kl_loss_coef=0)], ids=lambda a: a.kind)
def test_without_a_reference_there_is_no_kl(algorithm):
    ones = torch.ones(1, 2)
    result = PolicyLoss(algorithm)(-ones, -ones, None, ones, ones, whole(ones))
    assert (float(result.loss), result.kl) == (-1.0, None)


@pytest.mark.parametrize("algorithm", [GRPO(kl_loss_coef=0), PPO(), DAPO(), RLOO()], ids=lambda a: a.kind)
def test_every_token_counts_the_same_whatever_the_length_of_its_response(algorithm):
    mask = mask_of(1, 4)
    zeros = torch.zeros_like(mask)
    result = PolicyLoss(algorithm)(zeros, zeros, None, torch.tensor([[1.0], [-2.0]]) * mask, mask, whole(mask))
    assert float(result.loss) == pytest.approx(-(1 * 1.0 + 4 * -2.0) / 5)


def test_kl_loss_is_the_low_variance_estimator_with_its_weight():
    shift = 0.3
    estimate = math.exp(shift) - shift - 1
    result = loss_of(GRPO(kl_loss_coef=0.5), [1.0, 1.0], 0.0, shift)
    assert result.kl == pytest.approx(estimate, rel=1e-5)
    assert float(result.loss) == pytest.approx(0.5 * estimate, rel=1e-5)
    assert float(loss_of(GRPO(kl_loss_coef=0), [1.0], 0.0, shift).loss) == 0


def test_verl_computes_advantages_losses_and_divergence(monkeypatch):
    called = []

    def spy(name, value):
        def function(*args, **kwargs):
            called.append(name)
            return value

        return function

    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "grpo", spy("advantage", ("verl's", None)))
    monkeypatch.setitem(
        core_algos.POLICY_LOSS_REGISTRY, "vanilla", spy("loss", (torch.tensor(5.0), {"actor/pg_clipfrac": 0.25}))
    )
    monkeypatch.setattr(core_algos, "kl_penalty", spy("kl", torch.full((1, 1), 2.0)))
    assert advantages(GRPO(), torch.ones(2), mask_of(1, 1), np.array([0, 0])) == ("verl's", None)
    result = loss_of(GRPO(kl_loss_coef=0.5), [1.0], 1.0)
    assert (float(result.loss), result.clip_fraction, result.kl) == (5.0 + 0.5 * 2.0, 0.25, 2.0)
    assert called == ["advantage", "loss", "kl"]


PROMPTS = [[3, 4], [5], [6, 7, 8], [2], [9, 2], [4, 4, 4, 4]]
LENGTHS = [5, 1, 3, 7, 2, 4]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=12,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=24,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).double()


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    rollouts = [
        Rollout(i, 0, rng.integers(1, 12, n).astype(np.int32), np.zeros(n), np.zeros(n), Finish.LENGTH)
        for i, n in enumerate(LENGTHS)
    ]
    return Batch.of(PROMPTS, rollouts, 0, torch.device("cpu"))


def test_a_batch_joins_prompts_and_responses(batch):
    assert batch.starts.tolist() == [len(prompt) for prompt in PROMPTS]
    assert batch.mask.sum(1).tolist() == LENGTHS
    assert batch.tokens.shape == (6, max(len(p) + n for p, n in zip(PROMPTS, LENGTHS, strict=True)))
    assert [row[: len(p)].tolist() for row, p in zip(batch.tokens, PROMPTS, strict=True)] == PROMPTS


def test_a_batch_trains_on_every_response_unless_its_gradient_is_stopped(batch):
    assert batch.trained.tolist() == batch.mask.tolist()
    rollouts = [Rollout(i, 0, np.ones(n, np.int32), np.zeros(n), np.zeros(n), Finish.EOS) for i, n in enumerate((3, 1))]
    stopped = Batch.of(PROMPTS[:2], rollouts, 0, torch.device("cpu"), [True, False])
    assert stopped.mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert stopped.trained.tolist() == [[0, 0, 0], [1, 0, 0]]
    for rows, part in stopped.parts(1):
        assert part.trained.tolist() == stopped.trained[rows].tolist()


@torch.no_grad()
def test_padding_changes_no_log_prob_and_no_entropy(model, batch):
    log_probs, entropy = batch.log_probs(model, entropy=True)
    for row, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        alone = batch.tokens[row : row + 1, : len(prompt) + length]
        distribution = model(input_ids=alone).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        torch.testing.assert_close(log_probs[row, :length], distribution.gather(1, alone[0, len(prompt) :, None])[:, 0])
        torch.testing.assert_close(entropy[row, :length], -(distribution.exp() * distribution).sum(-1))
        assert log_probs[row, length:].abs().sum() == entropy[row, length:].abs().sum() == 0


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_micro_batches_hold_every_row_once_and_no_needless_padding(batch, size):
    rows = torch.tensor([5, 0, 3, 1, 4, 2])
    parts = list(batch.parts(size, rows))
    assert sorted(torch.cat([chosen for chosen, _ in parts]).tolist()) == list(range(6))
    for chosen, part in parts:
        assert len(chosen) <= size
        assert part.tokens.shape[1] == max(len(PROMPTS[i]) + LENGTHS[i] for i in chosen)
        assert part.mask.tolist() == batch.mask[chosen].tolist()


def gradients(model, batch, mode, size):
    """Gradients and loss of the whole batch, summed over micro-batches of some size."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        now = batch.log_probs(model)[0]
        old, ref = (now + 0.3 * torch.randn(now.shape, generator=generator) * batch.mask for _ in range(2))
    advantage = torch.randn((6, 1), generator=generator) * batch.mask
    loss, total = PolicyLoss(GRPO(loss_agg_mode=mode, kl_loss_coef=0.1)), 0.0
    model.zero_grad(set_to_none=True)
    for rows, part in batch.parts(size):
        result = loss(part.log_probs(model)[0], old[rows], ref[rows], advantage[rows], part.mask, whole(batch.mask))
        result.loss.backward()
        total += float(result.loss.detach())
    return total, [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_give_the_gradients_of_the_whole(model, batch, mode, size):
    expected_loss, expected = gradients(model, batch, mode, 6)
    loss, computed = gradients(model, batch, mode, size)
    assert max(float(g.abs().max()) for g in expected) > 1e-3
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    for one, other in zip(computed, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_aggregation_modes_differ(model, batch):
    assert len({round(gradients(model, batch, mode, 6)[0], 5) for mode in MODES}) == 3


@pytest.fixture(scope="module")
def critic():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=12,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=24,
        max_position_embeddings=32,
        initializer_range=0.2,
        num_labels=1,
    )
    return Qwen3ForTokenClassification(config).double().eval()


@torch.no_grad()
def test_a_value_is_the_critics_before_its_token(critic, batch):
    values = batch.values(critic)
    for row, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        alone = batch.tokens[row : row + 1, : len(prompt) + length]
        expected = critic(input_ids=alone).logits[0, len(prompt) - 1 : -1, 0].float()
        torch.testing.assert_close(values[row, :length], expected)
        assert values[row, length:].abs().sum() == 0


@torch.no_grad()
def test_a_value_does_not_see_its_token_or_what_follows(critic, batch):
    row, changed = 3, 2  # the row's third response token becomes another
    tokens = batch.tokens.clone()
    tokens[row, len(PROMPTS[row]) + changed] = 11 - tokens[row, len(PROMPTS[row]) + changed]
    before, after = (
        Batch(t, batch.starts, batch.mask, batch.trained).values(critic)[row] for t in (batch.tokens, tokens)
    )
    torch.testing.assert_close(after[: changed + 1], before[: changed + 1], atol=1e-7, rtol=0)
    assert (after[changed + 1 : LENGTHS[row]] - before[changed + 1 : LENGTHS[row]]).abs().min() > 1e-6
