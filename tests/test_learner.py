"""What an update does to policy and critic: how many steps it takes, and that one is what autograd says by hand."""

import copy
import math

import numpy as np
import pytest
import torch

from redraft.config import DAPO, GRPO, PPO, RLOO, InProcessEngine, ProblemFile, Run, TinyModel, Vanilla
from redraft.errors import UserError
from redraft.rollout.types import Finish, Rollout
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from redraft.train.batch import Batch
from redraft.train.learner import Learner
from redraft.train.stages import StageClock
from tests.trainers import make_trainer

CPU = torch.device("cpu")
PROMPTS, GROUP = 4, 3
GROUPS = np.arange(PROMPTS * GROUP) // GROUP
REWARDS = np.array([1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1], dtype=np.float32)


def make_run(algorithm, prompts_per_update=PROMPTS, learning_rate=0.01, gradient_clip=1.0):
    trainer = make_trainer(
        prompts_per_step=PROMPTS, group_size=GROUP, prompts_per_update=prompts_per_update,
        learning_rate=learning_rate, gradient_clip=gradient_clip,
    )  # fmt: skip
    return Run(
        preset="test", paper="test", cell="cell", seed=0, model_role="tiny", data_role="sums", model=TinyModel(),
        data=ProblemFile(path="none", size=4), algorithm=algorithm, schedule=algorithm.usual_schedule, reuse=Vanilla(),
        trainer=trainer, engine=InProcessEngine(device="cpu", rows_per_micro_batch=5),
    )  # fmt: skip


@pytest.fixture
def sequences():
    """Prompts and responses of different lengths, as token ids."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 40, n).tolist() for n in (2, 4, 3, 1)]
    return [(prompts[i // GROUP], rng.integers(2, 40, rng.integers(1, 8)).tolist()) for i in range(PROMPTS * GROUP)]


def batch_of(sequences):
    rollouts = [
        Rollout(i // GROUP, i % GROUP, np.array(r, np.int32), np.zeros(len(r)), np.zeros(len(r)), Finish.LENGTH)
        for i, (_, r) in enumerate(sequences)
    ]
    return Batch.of([prompt for prompt, _ in sequences], rollouts, 0, CPU)


def make_learner(run, folder, moved=0.0):
    """A learner whose policy lies this far from its reference."""
    policy, generator = models.load(folder)[0], torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(moved * torch.randn(parameter.shape, generator=generator))
    return Learner(run, policy, folder, CPU)


def update(learner, sequences, rewards=REWARDS):
    return learner.update(batch_of(sequences), rewards, GROUPS, StageClock(CPU))


def log_probs_by_hand(model, sequences):
    """One tensor a response, each computed by itself."""
    laws = [model(input_ids=torch.tensor([[*p, *r]])).logits[0].log_softmax(-1) for p, r in sequences]
    return [
        law[len(p) - 1 : -1].gather(1, torch.tensor(r)[:, None])[:, 0]
        for law, (p, r) in zip(laws, sequences, strict=True)
    ]  # fmt: skip


def grpo_step_by_hand(model, reference, sequences, weight, learning_rate, limit):
    """GRPO's update as its formulas say: standardised rewards, ratio 1, KL's estimator, clipped gradient, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    with torch.no_grad():
        references = log_probs_by_hand(reference, sequences)
    rewards = REWARDS.reshape(PROMPTS, GROUP)
    standardised = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)
    terms, divergences = [], []
    now = log_probs_by_hand(model, sequences)
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


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_one_update_of_grpo_is_what_its_formulas_say(limit, untrained, sequences):
    run = make_run(GRPO(kl_loss_coef=0.5), gradient_clip=limit)
    learner = make_learner(run, untrained, moved=0.05)
    before, model = copy.deepcopy(learner.policy), copy.deepcopy(learner.policy)
    norm, kl = grpo_step_by_hand(model, models.load(untrained)[0], sequences, 0.5, 0.01, limit)
    metrics = update(learner, sequences)
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["kl"] == pytest.approx(kl, rel=1e-4)
    assert kl > 1e-3
    for name, parameter in learner.policy.named_parameters():
        expected, start = model.get_parameter(name), before.get_parameter(name)
        assert (expected - start).abs().max() > 1e-4
        assert (parameter - expected).abs().max() < 1e-2 * (expected - start).abs().max(), name


@torch.no_grad()
def test_entropy_is_the_mean_over_response_tokens_before_the_update(tiny_model, sequences):
    model = models.load(tiny_model)[0]
    laws = [model(input_ids=torch.tensor([[*p, *r]])).logits[0, len(p) - 1 : -1].log_softmax(-1) for p, r in sequences]
    expected = float(-torch.cat([(law.exp() * law).sum(-1) for law in laws]).mean())
    with torch.enable_grad():
        metrics = update(make_learner(make_run(RLOO()), tiny_model), sequences)
    assert metrics["entropy"] == pytest.approx(expected, rel=1e-4)


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
    batch = batch_of(sequences)
    minis = make_learner(make_run(RLOO(), 2), tiny_model)._mini_batches(batch)
    assert [rows.tolist() for rows, _ in minis] == [list(range(6)), list(range(6, 12))]
    lengths = [len(r) for _, r in sequences]
    assert [int(whole["batch_num_tokens"]) for _, whole in minis] == [sum(lengths[:6]), sum(lengths[6:])]


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
        values = learner._values(batch_of(sequences))
    mask = batch_of(sequences).mask.bool()
    return float((values[mask] - target).abs().mean())


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
