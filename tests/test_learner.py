"""What an update does to policy and critic: how many steps it takes, and that one is what autograd says by hand."""

import copy
import itertools
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from redraft.config import DAPO, GRPO, PPO, RLOO, InProcessEngine, ProblemFile, Run, TinyModel, Vanilla
from redraft.errors import UserError
from redraft.methods.staged import part_of_replay
from redraft.methods.weighted import WeightedReuse
from redraft.rollout.types import Finish, Group, OldLogProbs, Rollout, Sample, Use
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from redraft.train.local.learner import Batch, Learner
from redraft.train.records import StageClock
from tests.trainers import make_trainer

CPU = torch.device("cpu")
PROMPTS, GROUP = 4, 3
REWARDS = np.array([1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1], dtype=np.float32)


def make_run(algorithm, prompts_per_update=PROMPTS, learning_rate=0.01, gradient_clip=1.0, **others):
    trainer = make_trainer(
        prompts_per_step=PROMPTS,
        group_size=GROUP,
        prompts_per_update=prompts_per_update,
        learning_rate=learning_rate,
        gradient_clip=gradient_clip,
        **others,
    )
    return Run(
        preset="test",
        paper="test",
        cell="cell",
        seed=0,
        model_role="tiny",
        data_role="sums",
        model=TinyModel(),
        data=ProblemFile(path="none", size=4),
        algorithm=algorithm,
        schedule=algorithm.usual_schedule,
        reuse=Vanilla(),
        trainer=trainer,
        engine=InProcessEngine(device="cpu", rows_per_micro_batch=5),
    )


@pytest.fixture
def sequences():
    """Prompts and responses of different lengths, as token ids."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 40, n).tolist() for n in (2, 4, 3, 1)]
    return [(prompts[i // GROUP], rng.integers(2, 40, rng.integers(1, 8)).tolist()) for i in range(PROMPTS * GROUP)]


def groups_of(sequences, rewards=REWARDS, sizes=(GROUP,) * PROMPTS, **of_samples):
    """Groups of consecutive sequences, with their prompts; `of_samples` are fields of samples, by their place."""
    rows, places = iter(zip(sequences, rewards, strict=True)), itertools.count()
    return [
        Group(
            number, 0, tuple(a_sample(number, i, *next(rows), **field(of_samples, next(places))) for i in range(size))
        )
        for number, size in enumerate(sizes)
    ]


def a_sample(prompt, index, sequence, reward, log_probs=None, log_weights=None, **fields):
    tokens = np.array(sequence[1], np.int32)
    stored = np.zeros(len(tokens), np.float32) if log_probs is None else log_probs
    rollout = Rollout(
        prompt, index, tokens, stored, np.zeros(len(tokens), np.int32), Finish.LENGTH, log_weights=log_weights
    )
    return Sample(rollout, float(reward), **fields)


def field(of_samples, place):
    return {name: values[place] for name, values in of_samples.items() if place in values}


def prompts_of(sequences, sizes=(GROUP,) * PROMPTS):
    """The prompt of each group."""
    return [sequences[end - 1][0] for end in np.cumsum(sizes)]


def make_learner(run, folder, moved=0.0):
    """A learner whose policy lies this far from its reference."""
    policy, generator = models.load(folder)[0], torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(moved * torch.randn(parameter.shape, generator=generator))
    return Learner(run, policy, folder, CPU, pad=0)


def update(learner, sequences, rewards=REWARDS):
    return learner.update(groups_of(sequences, rewards), prompts_of(sequences), StageClock(time.process_time))


def batch_of(learner, sequences):
    rollouts, prompts = (
        [sample.rollout for group in groups_of(sequences) for sample in group.samples],
        prompts_of(sequences),
    )
    return Batch.of([prompts[r.prompt] for r in rollouts], rollouts, learner.pad, learner.device)


def log_probs_by_hand(model, sequences, temperature=1.0):
    """One tensor a response, each computed by itself."""
    logits = [model(input_ids=torch.tensor([[*p, *r]])).logits[0] for p, r in sequences]
    distributions = [(each / temperature).log_softmax(-1) for each in logits]
    return [
        distribution[len(p) - 1 : -1].gather(1, torch.tensor(r)[:, None])[:, 0]
        for distribution, (p, r) in zip(distributions, sequences, strict=True)
    ]


def grpo_step_by_hand(model, reference, sequences, weight, learning_rate, limit, temperature):
    """GRPO's update as its formulas say: standardised rewards, ratio 1, KL's estimator, clipped gradient, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    with torch.no_grad():
        references = log_probs_by_hand(reference, sequences, temperature)
    rewards = REWARDS.reshape(PROMPTS, GROUP)
    standardised = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)
    terms, divergences = [], []
    now = log_probs_by_hand(model, sequences, temperature)
    for log_probs, theirs, advantage in zip(now, references, standardised.reshape(-1), strict=True):
        terms.append(-(log_probs - log_probs.detach()).exp() * float(advantage))
        divergences.append((theirs - log_probs).exp() - (theirs - log_probs) - 1)
    kl = torch.cat(divergences).mean()
    (torch.cat(terms).mean() + weight * kl).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return float(norm), float(kl.detach())


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """A model that finds no token so unlikely that verl's bounds on ratios and divergences matter."""
    tokenizer, folder = make_tokenizer(), tmp_path_factory.mktemp("models") / "untrained"
    shape = TinyModel(hidden_size=16, layers=1, heads=2, head_dim=8, intermediate_size=32)
    models.save(models.initialise(shape, tokenizer), tokenizer, folder)
    return folder


@pytest.mark.parametrize(("limit", "temperature"), [(1e-3, 1.0), (1e3, 1.0), (1e3, 0.6), (1e3, 1.5)])
def test_one_update_of_grpo_is_what_its_formulas_say(limit, temperature, untrained, sequences):
    run = make_run(GRPO(kl_loss_coef=0.5), gradient_clip=limit, temperature=temperature)
    learner = make_learner(run, untrained, moved=0.05)
    before, model = copy.deepcopy(learner.policy), copy.deepcopy(learner.policy)
    norm, kl = grpo_step_by_hand(model, models.load(untrained)[0], sequences, 0.5, 0.01, limit, temperature)
    metrics = update(learner, sequences)
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["kl"] == pytest.approx(kl, rel=1e-4)
    assert kl > 1e-3
    for name, parameter in learner.policy.named_parameters():
        expected, start = model.get_parameter(name), before.get_parameter(name)
        assert (expected - start).abs().max() > 1e-4
        assert (parameter - expected).abs().max() < 1e-2 * (expected - start).abs().max(), name


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_entropy_is_the_mean_over_response_tokens_before_the_update(temperature, tiny_model, sequences):
    distribution = distributions_by_hand(models.load(tiny_model)[0], sequences, temperature)
    expected = float(-(distribution.exp() * distribution).sum(-1).mean())
    metrics = update(make_learner(make_run(RLOO(), temperature=temperature), tiny_model), sequences)
    assert metrics["entropy"] == pytest.approx(expected, rel=1e-4)


def distributions_by_hand(model, sequences, temperature=1.0):
    """The distribution before each response token, float32 (all tokens, vocabulary), each response computed by
    itself."""
    with torch.no_grad():
        rows = [model(input_ids=torch.tensor([[*p, *r]])).logits[0, len(p) - 1 : -1] for p, r in sequences]
    return (torch.cat(rows) / temperature).log_softmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_the_divergence_is_the_sum_over_the_vocabulary_without_a_bound(temperature, tiny_model, sequences):
    learner = make_learner(make_run(GRPO(), temperature=temperature), tiny_model, moved=1.0)
    rollouts = [sample.rollout for group in groups_of(sequences) for sample in group.samples]
    own, other = (distributions_by_hand(each, sequences, temperature) for each in (learner.policy, learner.reference))
    expected = float((own.exp() * (own - other)).sum(-1).mean())
    found = learner.divergence(rollouts, prompts_of(sequences))
    assert found == pytest.approx(expected, rel=1e-4)
    assert found > 1, "the policy was moved far away"
    backwards = float((other.exp() * (other - own)).sum(-1).mean())
    assert abs(found - backwards) > 0.05 * found, "the test tells the two directions apart"
    same = make_learner(make_run(GRPO()), tiny_model)
    assert same.divergence(rollouts, prompts_of(sequences)) == pytest.approx(0, abs=1e-6)


def test_without_a_reference_policy_there_is_no_divergence(tiny_model, sequences):
    rollouts = [sample.rollout for group in groups_of(sequences) for sample in group.samples]
    assert make_learner(make_run(RLOO()), tiny_model).divergence(rollouts, prompts_of(sequences)) is None


def count_steps(learner, name):
    counted, step = [], learner.parts[name].step
    learner.parts[name].step = lambda: [counted.append(1), step()]
    return counted


@pytest.mark.parametrize("algorithm", [GRPO(), PPO(), DAPO(), RLOO()], ids=lambda a: a.kind)
@pytest.mark.parametrize("prompts", [1, 2, 4])
def test_a_step_has_as_many_updates_as_mini_batches(algorithm, prompts, tiny_model, sequences):
    learner = make_learner(make_run(algorithm, prompts), tiny_model)
    counted = {name: count_steps(learner, name) for name in learner.parts if name.endswith("optimizer")}
    update(learner, sequences)
    assert {len(steps) for steps in counted.values()} == {PROMPTS // prompts}
    assert set(counted) == {"optimizer"} | ({"critic_optimizer"} if algorithm.kind == "ppo" else set())


def test_a_mini_batch_is_whole_groups_in_order_and_has_every_row_once(tiny_model, sequences):
    learner = make_learner(make_run(RLOO(), 2), tiny_model)
    for sizes, first in (((GROUP,) * PROMPTS, 6), ((2, 5, 4, 1), 7)):
        owner = np.repeat(np.arange(PROMPTS), sizes)
        minis = learner._mini_batches(batch_of(learner, sequences), owner)
        assert [rows.tolist() for rows, _ in minis] == [list(range(first)), list(range(first, 12))]
        lengths = [len(r) for _, r in sequences]
        assert [int(whole["batch_num_tokens"]) for _, whole in minis] == [sum(lengths[:first]), sum(lengths[first:])]
        assert [whole["global_batch_size"] for _, whole in minis] == [first, 12 - first]


def test_only_later_updates_of_a_step_leave_the_clip_range(tiny_model, sequences):
    """Ratios refer to the policy before the step, so the first update's are 1."""
    once, often = (
        update(make_learner(make_run(RLOO(), prompts, learning_rate=0.05), tiny_model), sequences)["clip_fraction"]
        for prompts in (PROMPTS, 1)
    )
    assert once == 0
    assert often > 0


def mean_error(learner, sequences, target):
    with torch.no_grad():
        values = learner._values(batch := batch_of(learner, sequences))
    return float((values[batch.mask.bool()] - target).abs().mean())


@pytest.mark.parametrize("target", [1.0, 0.0])
def test_the_critic_learns_what_rewards_are(target, tiny_model, sequences):
    learner = make_learner(make_run(PPO(), 1, learning_rate=2e-4), tiny_model)
    with torch.no_grad():
        learner.critic.score.bias.fill_(0.5)
    rewards = np.full(len(sequences), target, dtype=np.float32)
    errors, losses = [mean_error(learner, sequences, target)], []
    for _ in range(20):
        losses.append(update(learner, sequences, rewards)["critic_loss"])
        errors.append(mean_error(learner, sequences, target))
    assert errors[0] > 0.3
    assert errors[-1] < errors[0] / 3
    assert losses[-1] < losses[0] / 5


def test_a_critic_starts_as_the_policy_with_a_head_from_the_runs_seed(tiny_model):
    policy = models.load(tiny_model)[0].model.state_dict()
    critics = [models.load_critic(tiny_model, seed) for seed in (0, 0, 1)]
    for critic in critics:
        trunk = critic.model.state_dict()
        assert trunk.keys() == policy.keys()
        assert all(torch.equal(trunk[name], policy[name]) for name in policy)
    heads = [critic.score.weight for critic in critics]
    assert heads[0].shape == (1, 16)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_making_a_critic_draws_nothing_from_the_global_generator(tiny_model):
    before = torch.get_rng_state()
    models.load_critic(tiny_model, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_diverged_critic_is_named_and_not_updated(tiny_model, sequences):
    learner = make_learner(make_run(PPO()), tiny_model)
    with torch.no_grad():
        learner.critic.score.weight.fill_(math.inf)
    before = [parameter.clone() for parameter in learner.policy.parameters()]
    with pytest.raises(UserError, match="diverged: the loss of the critic") as error:
        update(learner, sequences)
    assert error.value.key == "trainer.learning_rate"
    assert all(torch.equal(p, b) for p, b in zip(learner.policy.parameters(), before, strict=True))


@pytest.mark.parametrize("algorithm", [GRPO(), PPO(), DAPO(), RLOO()], ids=lambda a: a.kind)
def test_a_step_without_an_update_reports_the_same_keys(algorithm, tiny_model, sequences):
    learner = make_learner(make_run(algorithm), tiny_model)
    assert learner.metrics_without_update.keys() == update(learner, sequences).keys()
    assert set(learner.metrics_without_update.values()) == {None}


def test_the_critics_learning_rate_is_the_actors_times_its_ratio(tiny_model):
    learner = make_learner(make_run(PPO(), learning_rate=5e-7), tiny_model)
    rates = [learner.parts[name].param_groups[0]["lr"] for name in ("optimizer", "critic_optimizer")]
    assert rates == pytest.approx([5e-7, 1e-5])


def test_policy_and_critic_decay_as_the_trainer_says(tiny_model):
    run = make_run(PPO())
    run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"weight_decay": 0.25})})
    learner = make_learner(run, tiny_model)
    decays = [learner.parts[name].param_groups[0]["weight_decay"] for name in ("optimizer", "critic_optimizer")]
    assert decays == [0.25, 0.25]


# Groups of different sizes, stopped gradients and stored log-probabilities, against gradients by hand

SIZES = (2, 5, 4, 1)


@pytest.fixture
def ragged(sequences):
    """The same responses in groups of different sizes."""
    owner = np.repeat(np.arange(PROMPTS), SIZES)
    prompts = [sequences[i * GROUP][0] for i in range(PROMPTS)]
    return [(prompts[group], response) for group, (_, response) in zip(owner, sequences, strict=True)]


def standardised(rewards, sizes=SIZES):
    """GRPO's advantages by hand; verl takes the reward itself where a group has one sample."""
    parts = np.split(np.asarray(rewards, np.float64), np.cumsum(sizes)[:-1])
    return np.concatenate([(p - p.mean()) / (p.std(ddof=1) + 1e-6) if len(p) > 1 else p for p in parts])


def gradients(learner, groups, prompts):
    """The gradient of each mini-batch, all at the policy as it is, and the metrics."""
    found = []
    learner.parts["optimizer"].step = lambda: found.append([p.grad.clone() for p in learner.policy.parameters()])
    return found, learner.update(groups, prompts, StageClock(time.process_time))


def gradient_by_hand(learner, sequences, advantage, rows, old=None, mode="token-mean", weights=None):
    """Gradient of PPO's clipped loss over these rows; `old` are log-probabilities by row, the policy's own if none.

    `weights` are factors of the tokens' losses by row.
    """
    terms = []
    for row in rows:
        (now,) = log_probs_by_hand(learner.policy, [sequences[row]])
        before = now.detach() if old is None else torch.from_numpy(old[row])
        ratio, a = (now - before).exp(), float(advantage[row])
        factor = 1.0 if weights is None else torch.from_numpy(weights[row])
        terms.append(-torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) * factor)
    sums = torch.stack([term.sum() for term in terms])
    means = torch.stack([term.mean() for term in terms])
    loss = {
        "token-mean": torch.cat(terms).mean(),
        "seq-mean-token-sum": sums.mean(),
        "seq-mean-token-mean": means.mean(),
    }
    return torch.autograd.grad(loss[mode], list(learner.policy.parameters()))


def assert_same(found, expected):
    assert max(float(g.abs().max()) for g in expected) > 1e-3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


def plain(prompts_per_update=PROMPTS, **algorithm):
    """A run without KL whose gradients are not clipped."""
    return make_run(GRPO(kl_loss_coef=0, **algorithm), prompts_per_update, gradient_clip=1e6)


def test_mini_batches_of_ragged_groups_have_the_gradients_of_their_groups(untrained, ragged):
    learner = make_learner(plain(2), untrained)
    groups, prompts = groups_of(ragged, sizes=SIZES), prompts_of(ragged, SIZES)
    found, _ = gradients(learner, groups, prompts)
    advantage = standardised(REWARDS)
    assert len(found) == 2
    for gradient, rows in zip(found, (range(7), range(7, 12)), strict=True):
        assert_same(gradient, gradient_by_hand(learner, ragged, advantage, rows))
    alone = [gradients(learner, part, prompts)[0] for part in (groups[:2], groups[2:])]
    for gradient, (separate,) in zip(found, alone, strict=True):
        assert_same(gradient, separate)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_a_stopped_sample_moves_the_baseline_and_gives_no_gradient_itself(mode, untrained, ragged):
    stopped = {1: Use.STOPPED, 4: Use.STOPPED, 8: Use.STOPPED}
    learner = make_learner(plain(loss_agg_mode=mode), untrained)
    found, _ = gradients(learner, groups_of(ragged, sizes=SIZES, use=stopped), prompts_of(ragged, SIZES))
    trained = [row for row in range(12) if row not in stopped]
    advantage = standardised(REWARDS)
    assert_same(found[0], gradient_by_hand(learner, ragged, advantage, trained, mode=mode))
    flipped = REWARDS.copy()
    flipped[[1, 4]] = 1 - flipped[[1, 4]]
    assert np.abs(standardised(flipped)[trained] - advantage[trained]).max() > 0.1
    again, _ = gradients(learner, groups_of(ragged, flipped, SIZES, use=stopped), prompts_of(ragged, SIZES))
    assert_same(again[0], gradient_by_hand(learner, ragged, standardised(flipped), trained, mode=mode))


def test_one_reused_correct_response_in_a_group_of_eight(untrained, ragged):
    """AR3PO: the reused response's gradient is stopped; the others' advantage is -0.354, its own would be 2.475."""
    rewards, sizes = np.array([0, 0, 0, 1, 0, 0, 0, 0], np.float32), (8,)
    advantage = standardised(rewards, sizes)
    assert [round(a, 3) for a in (advantage[0], advantage[3])] == [-0.354, 2.475]
    sequences, others = [(ragged[0][0], response) for _, response in ragged[:8]], [0, 1, 2, 4, 5, 6, 7]
    learner = make_learner(plain(), untrained)
    groups = groups_of(sequences, rewards, sizes, use={3: Use.STOPPED})
    found, _ = gradients(learner, groups, prompts_of(sequences, sizes))
    assert_same(found[0], gradient_by_hand(learner, sequences, [-0.35355] * 8, others))


@pytest.mark.parametrize("replay", ["recomputed", "stopped", "stored"])
def test_the_gradient_of_each_of_ar3po_s_options(replay, untrained, ragged):
    """The reused response is the fourth of eight; a behaviour policy gave its tokens half the probability or twice it.

    Option I takes the ratio 1, option II leaves the response out, direct replay takes the stored probabilities, so that
    tokens of twice the probability are clipped, for which its positive advantage has no gradient.
    """
    rewards, sizes, reused = np.array([0, 0, 0, 1, 0, 0, 0, 0], np.float32), (8,), 3
    sequences = [(ragged[0][0], response) for _, response in ragged[:8]]
    sequences[reused] = (ragged[0][0], [5, 6, 7, 8])
    learner = make_learner(plain(), untrained)
    with torch.no_grad():
        now = [log_probs.numpy() for log_probs in log_probs_by_hand(learner.policy, sequences)]
    behaviour = now[reused] + np.log(np.array([2, 0.5, 2, 0.5], np.float32))
    use, source = part_of_replay(replay)
    groups = groups_of(
        sequences, rewards, sizes, use={reused: use}, old_log_probs={reused: source}, log_probs={reused: behaviour}
    )
    (found,), _ = gradients(learner, groups, prompts_of(sequences, sizes))
    rows = [row for row in range(8) if row != reused or replay != "stopped"]
    old = [behaviour if row == reused and replay == "stored" else now[row] for row in range(8)]
    assert_same(found, gradient_by_hand(learner, sequences, standardised(rewards, sizes), rows, old))
    others = gradient_by_hand(
        learner, sequences, standardised(rewards, sizes), rows, [*old[:3], old[3] + 5.0, *old[4:]]
    )
    moved = max(float((one - other).abs().max()) for one, other in zip(found, others, strict=True))
    assert (moved > 1e-3) == (replay != "stopped"), "what the reused response is told changes its gradient alone"


@pytest.mark.parametrize(("updates", "sizes"), [(1, [12]), (3, [7, 4, 1]), (4, [2, 5, 4, 1])])
def test_a_batch_is_dealt_to_so_many_updates_as_evenly_as_groups_allow(updates, sizes, untrained, ragged):
    run = plain()
    run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"updates_per_batch": updates})})
    learner = make_learner(run, untrained)
    found, _ = gradients(learner, groups_of(ragged, sizes=SIZES), prompts_of(ragged, SIZES))
    assert len(found) == updates
    ends = np.cumsum(sizes)
    for gradient, end, size in zip(found, ends, sizes, strict=True):
        rows = range(end - size, end)
        assert_same(gradient, gradient_by_hand(learner, ragged, standardised(REWARDS), rows))


def test_learning_rates_rise_linearly_from_0_as_verl_s_and_stay():
    from verl.utils.torch_functional import get_constant_schedule_with_warmup

    run = make_run(PPO(critic_learning_rate_ratio=20), warmup_steps=4)
    parts = {
        name: torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        for name, rate in (("optimizer", 0.01), ("critic_optimizer", 0.2))
    }
    learner = SimpleNamespace(run=run, parts=parts)
    theirs = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    schedule = get_constant_schedule_with_warmup(theirs, 4)
    for batches in range(7):
        Learner.warm_up(learner, batches)
        rate, critic = (parts[name].param_groups[0]["lr"] for name in parts)
        assert rate == pytest.approx(theirs.param_groups[0]["lr"])
        assert critic == pytest.approx(20 * rate)
        schedule.step()
    assert (rate, critic) == (0.01, 0.2)


def test_a_stopped_sample_has_no_part_in_the_kl_loss(untrained, ragged):
    """Its response may be anything: only its reward counts."""
    run = make_run(GRPO(kl_loss_coef=0.5), gradient_clip=1e6)
    other = list(ragged)
    other[4] = (ragged[4][0], [3, 3, 3, 3])
    found = []
    for sequences in (ragged, other):
        learner = make_learner(run, untrained, moved=0.05)
        groups = groups_of(sequences, sizes=SIZES, use={4: Use.STOPPED})
        (gradient,), metrics = gradients(learner, groups, prompts_of(sequences, SIZES))
        found.append((gradient, metrics["kl"]))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4)
    assert found[0][1] > 1e-3


def test_stored_log_probs_are_the_denominator_of_the_ratio(untrained, ragged):
    learner, rng = make_learner(plain(), untrained), np.random.default_rng(5)
    with torch.no_grad():
        now = [log_probs.numpy() for log_probs in log_probs_by_hand(learner.policy, ragged)]
    stored = {row: now[row] + rng.normal(0, 0.2, len(now[row])).astype(np.float32) for row in (0, 2, 6, 7)}
    kinds = dict.fromkeys(stored, OldLogProbs.STORED)
    groups = groups_of(ragged, sizes=SIZES, log_probs=stored | {1: now[1] + 9.0}, old_log_probs=kinds)
    (found,), metrics = gradients(learner, groups, prompts_of(ragged, SIZES))
    old = [stored.get(row, now[row]) for row in range(12)]
    expected = gradient_by_hand(learner, ragged, standardised(REWARDS), range(12), old)
    assert_same(found, expected)
    ratios = np.concatenate([np.exp(now[row] - old[row]) for row in range(12)])
    signs = np.repeat(np.sign(standardised(REWARDS)), [len(r) for _, r in ragged])
    clipped = ((ratios > 1.2) & (signs > 0)) | ((ratios < 0.8) & (signs < 0))
    assert metrics["clip_fraction"] == pytest.approx(clipped.mean(), abs=1e-6)
    assert clipped.any()


@pytest.mark.parametrize("kind", OldLogProbs)
def test_drift_is_of_the_policies_that_sampled_from_the_current_one(untrained, ragged, kind):
    learner, rng = make_learner(plain(), untrained), np.random.default_rng(5)
    with torch.no_grad():
        now = [log_probs.numpy() for log_probs in log_probs_by_hand(learner.policy, ragged)]
    stored = {row: now[row] + rng.normal(0, 0.5, len(now[row])).astype(np.float32) for row in range(12)}
    groups = groups_of(ragged, sizes=SIZES, log_probs=stored, old_log_probs=dict.fromkeys(range(12), kind))
    _, metrics = gradients(learner, groups, prompts_of(ragged, SIZES))
    gaps = np.concatenate([now[row] - stored[row] for row in range(12)])
    assert metrics["drift"] == pytest.approx((np.exp(gaps) - 1 - gaps).mean(), rel=1e-4)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_multiply_the_policy_loss_and_are_truncated(level, untrained, ragged):
    rng = np.random.default_rng(5)
    weights = {row: rng.normal(0, 0.4, len(ragged[row][1])).astype(np.float32) for row in (0, 2, 6, 7)}
    reuse = WeightedReuse(weights={"level": level, "bound": 1.5})
    learner = make_learner(plain().model_copy(update={"reuse": reuse}), untrained)
    groups = groups_of(ragged, sizes=SIZES, log_weights=weights)
    (found,), metrics = gradients(learner, groups, prompts_of(ragged, SIZES))
    own = [weights.get(row, np.zeros(len(ragged[row][1]), np.float32)) for row in range(12)]
    if level == "sequence":
        own = [np.full_like(row, row.sum()) for row in own]
    factors = [np.minimum(np.exp(row), 1.5) for row in own]
    assert_same(found, gradient_by_hand(learner, ragged, standardised(REWARDS), range(12), weights=factors))
    assert any((row == 1.5).any() for row in factors)
    of_tokens = np.concatenate(factors)
    assert metrics["mean_weight"] == pytest.approx(of_tokens.mean(), rel=1e-5), "of truncated weights"
    share = of_tokens.mean() ** 2 / (of_tokens**2).mean()
    assert metrics["effective_samples"] == pytest.approx(share, rel=1e-5)
    without = make_learner(plain(), untrained)
    (plainly,), others = gradients(without, groups, prompts_of(ragged, SIZES))
    assert "mean_weight" not in others
    assert any(not torch.allclose(one, other) for one, other in zip(plainly, found, strict=True))


@pytest.mark.parametrize("algorithm", [GRPO(), PPO(), RLOO()], ids=lambda a: a.kind)
def test_a_mini_batch_whose_gradient_is_stopped_everywhere_makes_no_step(algorithm, untrained, ragged):
    learner = make_learner(make_run(algorithm, 1), untrained)
    counted = {name: count_steps(learner, name) for name in learner.parts if name.endswith("optimizer")}
    stopped = dict.fromkeys([*range(2, 7), 11], Use.STOPPED)  # the second group and the fourth
    metrics = learner.update(
        groups_of(ragged, sizes=SIZES, use=stopped), prompts_of(ragged, SIZES), StageClock(time.process_time)
    )
    assert {len(steps) for steps in counted.values()} == {2}
    assert all(value is None or math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("algorithm", [GRPO(), PPO(), RLOO()], ids=lambda a: a.kind)
def test_a_batch_whose_gradient_is_stopped_everywhere_changes_nothing(algorithm, untrained, ragged):
    learner = make_learner(make_run(algorithm, 2), untrained)
    before = [
        parameter.clone()
        for name in ("model", "critic")
        if name in learner.parts
        for parameter in learner.parts[name].parameters()
    ]
    groups = groups_of(ragged, sizes=SIZES, use=dict.fromkeys(range(12), Use.STOPPED))
    metrics = learner.update(groups, prompts_of(ragged, SIZES), StageClock(time.process_time))
    after = [
        parameter
        for name in ("model", "critic")
        if name in learner.parts
        for parameter in learner.parts[name].parameters()
    ]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert metrics.keys() == learner.metrics_without_update.keys()
    assert {name for name, value in metrics.items() if value is not None} == {"entropy", "drift"}
