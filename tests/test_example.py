"""examples/spec_rl_in_one_file.py: it learns while it reuses, and its prefixes, tokens and losses are the library's."""

import re
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from examples import spec_rl_in_one_file as example
from redraft.config.algorithm import GRPO
from redraft.config.retention import Retention
from redraft.engines.torch.engine import TorchEngine
from redraft.methods.speculative import Speculative
from redraft.rollout.context import Meter, RolloutContext
from redraft.rollout.memory import Memory
from redraft.rollout.types import Finish, Group, Rollout, Sample, Task
from redraft.train.losses import PolicyLoss, advantages

PROMPTS = 12


@dataclass
class Numbers:
    """The example's random numbers in place of the library's streams."""

    uniforms: np.ndarray
    step: int = 1
    used: list[str] = field(default_factory=list)

    def __call__(self, use, prompt, sample, count):
        self.used.append(use)
        return self.uniforms[("acceptance", "sampling").index(use), prompt * example.GROUP + sample, :count]

    @property
    def streams(self):
        """What stands for `redraft.rollout.context.Streams`."""
        return type("Streams", (), {"uniforms": staticmethod(self.__call__), "step": self.step})()


@pytest.fixture(scope="module")
def two_epochs():
    """Problems, drafts of a first policy, and the policy after some updates, which differs from the first."""
    rng, model = np.random.default_rng(3), example.make_model(3)
    example.warm_start(model, rng)
    problems, totals = example.make_problems(PROMPTS, rng)
    prompts = problems.repeat_interleave(example.GROUP, 0)
    answers = totals[:, -1].repeat_interleave(example.GROUP).numpy()
    uniforms = 1.0 - rng.random((2, 2, len(prompts), example.LIMIT))
    drafts = example.roll_out(model, prompts, None, uniforms[0], 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(3):
        example.update(model, optimizer, prompts, drafts, example.rewards_of(drafts, answers))
    return model.eval(), problems, answers, drafts, uniforms[1]


async def no_reward(prompt, rollouts):
    return np.zeros(len(rollouts), np.float32)


def as_groups(rollouts):
    """The example's rollouts as groups of the library."""
    made = []
    for row, length in enumerate(rollouts["lengths"]):
        tokens = rollouts["tokens"][row, :length].astype(np.int32)
        finish = Finish.EOS if tokens[-1] == example.EOS else Finish.LENGTH
        place = divmod(row, example.GROUP)
        made.append(Rollout(*place, tokens, rollouts["log_probs"][row, :length], np.zeros(length, np.int32), finish))
    return [
        Group(prompt, 0, tuple(Sample(each, 0.0) for each in made if each.prompt == prompt))
        for prompt in range(PROMPTS)
    ]


@pytest.mark.parametrize("lenience", [0.0, 0.5, 1.0, float(np.exp(0.5)), 4.0])
def test_prefixes_and_tokens_are_those_of_the_library_from_the_same_numbers(two_epochs, lenience):
    model, problems, _, drafts, uniforms = two_epochs
    prompts = problems.repeat_interleave(example.GROUP, 0)
    found = example.roll_out(model, prompts, drafts, uniforms, lenience)

    engine = TorchEngine(model, stops={example.EOS}, max_length=example.PROMPT + example.LIMIT, max_rows=len(prompts))
    memory, numbers = Memory(Retention(visits=1)), Numbers(uniforms)
    for group in as_groups(drafts):
        memory.put(group)
    context = RolloutContext(
        engine, no_reward, memory, Meter(), numbers.streams, [p.tolist() for p in problems], example.LIMIT
    )
    strategy = Speculative(lenience=lenience).strategy()
    groups = engine.run(*(strategy(Task(prompt, 1, example.GROUP), context) for prompt in range(PROMPTS)))

    rollouts = [sample.rollout for group in groups for sample in group.samples]
    assert [rollout.prefix_length for rollout in rollouts] == found["prefixes"].tolist()
    assert [rollout.length for rollout in rollouts] == found["lengths"].tolist()
    for row, rollout in enumerate(rollouts):
        assert rollout.tokens.tolist() == found["tokens"][row, : rollout.length].tolist()
        np.testing.assert_allclose(rollout.log_probs, found["log_probs"][row, : rollout.length], atol=1e-4)
    kept = found["prefixes"].sum() / drafts["lengths"].sum()
    assert 0 < kept < 1 if lenience else not kept, "some tokens are kept and some are rejected"
    assert set(numbers.used) == {"acceptance", "sampling"}


def test_advantages_and_loss_are_verls(two_epochs):
    model, problems, answers, drafts, uniforms = two_epochs
    prompts = problems.repeat_interleave(example.GROUP, 0)
    rollouts = example.roll_out(model, prompts, drafts, uniforms, 1.0)
    rewards = example.rewards_of(rollouts, answers)
    assert 0 < rewards.mean() < 1
    mask = torch.from_numpy(np.arange(example.LIMIT) < rollouts["lengths"][:, None])
    groups = np.arange(len(prompts)) // example.GROUP
    expected, _ = advantages(GRPO(kl_loss_coef=0), torch.from_numpy(rewards), mask, groups)
    mine = example.advantages_of(rewards)
    torch.testing.assert_close(mine[:, None] * mask, expected * mask)

    new = example.log_probs_of(model, prompts, torch.from_numpy(rollouts["tokens"])).detach().requires_grad_()
    old = new.detach() + torch.randn(
        new.shape, generator=torch.Generator().manual_seed(0)
    )  # ratios on both sides of the clips
    whole = {"batch_num_tokens": int(mask.sum()), "global_batch_size": len(prompts), "dp_size": 1}
    library = PolicyLoss(GRPO(kl_loss_coef=0))(new, old, None, expected, mask.float(), whole).loss
    loss = example.grpo_loss(new, old, mine, mask)
    torch.testing.assert_close(loss, library)
    gradient, of_library = (torch.autograd.grad(each, new, retain_graph=True)[0] for each in (loss, library))
    torch.testing.assert_close(gradient, of_library)


def test_it_learns_and_keeps_most_of_its_drafts(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [example.__file__])
    example.main()
    out = capsys.readouterr().out
    steps = re.findall(r"reward (\S+), +(\d+)% of (\d+) tokens kept from drafts, (\d+) decoded", out)
    assert len(steps) == example.EPOCHS * example.PROMPTS // example.PROMPTS_PER_STEP
    rewards = [float(reward) for reward, *_ in steps]
    assert sum(rewards[-2:]) > sum(rewards[:2]) + 0.4
    assert {share for _, share, *_ in steps[:2]} == {"0"}, "there are no drafts in the first epoch"
    assert all(int(share) >= 50 for _, share, *_ in steps[2:])
