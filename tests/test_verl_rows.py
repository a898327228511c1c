"""Groups as the rows that verl trains on, over a queue in this process's memory; verl's advantages of them are ours."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from redraft.config import DAPO, GRPO, RLOO, ProblemFile, Run, TinyModel, Vanilla
from redraft.config.algorithm import Overlong
from redraft.config.trainer import VerlEngine
from redraft.errors import UserError
from redraft.rollout.types import Finish, Group, OldLogProbs, Rollout, Sample, Use
from redraft.train.losses import advantages, divides_by_std, estimator
from redraft.train.verl import transfer_rows
from redraft.train.verl.transfer_rows import (
    PARTITION,
    HandoverBuffer,
    RowWriter,
    log_prob_gaps,
    low_variance_kl,
    mini_batches,
    put_stored_log_probs,
    stored_keys,
)
from tests.trainers import make_trainer

SIZE, LIMIT, PAD = 4, 8, 99
PROMPTS = [[10, 11], [12], [13, 14, 15], [16]]


class Queue:
    """TransferQueue's part that is used, in memory; fields of rows become nested tensors, as they do there."""

    def __init__(self):
        self.rows, self.tags = {}, {}

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None):
        assert partition_id == PARTITION
        assert fields.batch_size == (len(keys),)
        for name in fields.keys():  # noqa: SIM118  a TensorDict iterates over its rows
            column = fields[name]
            values = column.unbind() if isinstance(column, torch.Tensor) else column
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = getattr(value, "data", value)
        for key, tag in zip(keys, tags or [], strict=tags is not None):
            self.tags[key] = tag
        return KVBatchMeta(keys=keys, tags=[self.tags[key] for key in keys], partition_id=partition_id)

    def kv_batch_get(self, keys, partition_id, select_fields):
        assert partition_id == PARTITION
        known = [name for name in select_fields if name in self.rows[keys[0]]]
        data = list_of_dict_to_tensordict([{name: self.rows[key][name] for name in known} for key in keys])
        for name in known:
            if isinstance(self.rows[keys[0]][name], torch.Tensor) and not data[name].is_nested:
                data[name] = torch.nested.as_nested_tensor(list(data[name]), layout=torch.jagged)
        return data

    def kv_clear(self, keys, partition_id):
        for key in keys:
            del self.rows[key], self.tags[key]


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(transfer_rows, "tq", queue)
    monkeypatch.setattr("verl.trainer.ppo.v1.trainer_base.tq", queue)
    return queue


def make_run(algorithm=None):
    algorithm = algorithm or GRPO()
    trainer = make_trainer(prompts_per_step=4, prompts_per_update=2, group_size=SIZE, max_response_tokens=LIMIT)
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
        reuse=Vanilla(),
        schedule=algorithm.usual_schedule,
        trainer=trainer,
        engine=VerlEngine(device="cpu"),
    )


def a_sample(prompt, index, length, reward, prefix=0, **fields):
    tokens = np.arange(length, dtype=np.int32) + 20 * (1 + index)
    log_probs = np.linspace(-2, -1, length).astype(np.float32) - index
    rollout = Rollout(prompt, index, tokens, log_probs, np.zeros(length, np.int32), Finish.EOS, prefix, prefix, prefix)
    return Sample(rollout, float(reward), **fields)


def a_group(prompt, *samples):
    """A group of samples given as (length, reward) or (length, reward, fields)."""
    made = (
        a_sample(prompt, i, length, reward, **(more[0] if more else {}))
        for i, (length, reward, *more) in enumerate(samples)
    )
    return Group(prompt, 0, tuple(made))


RAGGED = [
    a_group(2, (3, 1), (5, 0)),
    a_group(0, (1, 0), (2, 1), (4, 0), (3, 0)),
    a_group(3, (2, 1)),
    a_group(1, (4, 1), (1, 0), (6, 1)),
]
STOPPED = [
    a_group(2, (3, 1, {"use": Use.STOPPED}), (5, 0)),
    a_group(0, (1, 0), (2, 1, {"use": Use.STOPPED}), (4, 0), (3, 0)),
    a_group(3, (2, 1), (2, 0, {"use": Use.STOPPED}), (3, 0.5)),
]


def put(groups, algorithm=None, global_step=7):
    run = make_run(algorithm)
    return RowWriter(run, PROMPTS, PAD).put(mini_batches(groups, run.trainer), global_step)


def samples_of(groups):
    return [(number, index, s) for number, g in enumerate(groups) for index, s in enumerate(g.samples)]


def test_rows_stand_in_the_order_of_groups_and_samples_and_each_group_is_filled_to_the_run_s_size(queue):
    batch = put(RAGGED)
    assert batch.partition_id == PARTITION
    expected = []
    for number, group in enumerate(RAGGED):
        filled = range(len(group.samples), SIZE)
        expected += [f"{number:09d}_{index}_0" for index in range(len(group.samples))]
        expected += [f"pad{number:09d}_{index}_0" for index in filled]
    assert batch.keys == expected == list(queue.rows)
    assert [tag.get("is_padding", False) for tag in batch.tags] == [key.startswith("pad") for key in batch.keys]
    assert batch.tags == [queue.tags[key] for key in batch.keys]
    assert len(batch.keys) == len(RAGGED) * SIZE, "a mini-batch of so many rows holds whole groups"


def test_a_row_holds_prompt_response_log_probs_and_reward(queue):
    put(RAGGED)
    for number, index, sample in samples_of(RAGGED):
        row, rollout = queue.rows[f"{number:09d}_{index}_0"], sample.rollout
        prompt = PROMPTS[RAGGED[number].prompt]
        assert row["prompts"].tolist() == prompt
        assert row["responses"].tolist() == rollout.tokens.tolist()
        assert row["input_ids"].tolist() == [*prompt, *rollout.tokens.tolist()]
        assert row["position_ids"].tolist() == list(range(len(prompt) + rollout.length))
        assert row["rollout_log_probs"].tolist() == rollout.log_probs.tolist()
        assert row["response_mask"].tolist() == row["loss_mask"].tolist() == [1] * rollout.length
        assert row["rm_scores"].tolist() == [0.0] * (rollout.length - 1) + [sample.reward]
        assert (row["uid"], row["session_id"], row["global_steps"]) == (f"{number:09d}", index, 7)


def test_tags_say_what_verl_balances_and_ages_rows_by(queue):
    put(RAGGED)
    for number, index, sample in samples_of(RAGGED):
        tag, prompt = queue.tags[f"{number:09d}_{index}_0"], PROMPTS[RAGGED[number].prompt]
        length = sample.rollout.length
        assert tag == {
            "status": "success",
            "prompt_len": len(prompt),
            "response_len": length,
            "seq_len": len(prompt) + length,
            "global_steps": 7,
            "min_global_steps": 6,
            "max_global_steps": 6,
        }


def test_a_masked_row_belongs_to_no_group_and_has_nothing_to_train_on(queue):
    batch = put(RAGGED)
    real = {queue.rows[f"{number:09d}_0_0"]["uid"] for number in range(len(RAGGED))}
    masked = [key for key in batch.keys if key.startswith("pad")]
    assert len(masked) == sum(SIZE - len(group.samples) for group in RAGGED) == 6
    for key in masked:
        row = queue.rows[key]
        assert row["responses"].tolist() == [PAD]
        assert (row["response_mask"].tolist(), row["loss_mask"].tolist(), row["rm_scores"].tolist()) == (
            [0],
            [0],
            [0.0],
        )
        assert row["uid"] not in real
        assert row.keys() == queue.rows[batch.keys[0]].keys()


def test_a_stopped_sample_has_no_loss_and_keeps_its_reward_at_the_last_token(queue):
    put(STOPPED)
    for number, index, sample in samples_of(STOPPED):
        row, length = queue.rows[f"{number:09d}_{index}_0"], sample.rollout.length
        trained = int(sample.use is Use.TRAINED)
        assert row["response_mask"].tolist() == row["loss_mask"].tolist() == [trained] * length
        assert row["rm_scores"].tolist() == [0.0] * (length - 1) + [sample.reward]
        assert row["responses"].tolist() == sample.rollout.tokens.tolist()


def test_rewards_are_shaped_as_in_the_local_trainer(queue):
    put([a_group(0, (8, 1), (7, 1), (6, 0), (4, 1))], DAPO(overlong=Overlong(buffer=4)))
    last = [queue.rows[f"000000000_{index}_0"]["rm_scores"][-1].item() for index in range(SIZE)]
    assert last == [0.0, 0.25, -0.5, 1.0]


@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean"])
def test_a_loss_over_sequences_is_rejected_where_masked_rows_would_count(mode, queue):
    whole = [a_group(prompt, *[(2, 1)] * SIZE) for prompt in (0, 1)]
    assert len(put(whole, GRPO(loss_agg_mode=mode)).keys) == 2 * SIZE
    stopped = [a_group(0, *[(2, 1)] * 3, (2, 0, {"use": Use.STOPPED}))]
    for groups in (RAGGED, stopped, [a_group(0, (2, 1), (2, 0)), a_group(1, (2, 1), (2, 0))]):
        with pytest.raises(UserError, match="masked rows") as error:
            put(groups, GRPO(loss_agg_mode=mode))
        assert (error.value.key, error.value.value) == ("algorithm.loss_agg_mode", mode)


def test_a_group_beyond_the_run_s_size_is_an_error(queue):
    with pytest.raises(RuntimeError, match="exceeds the run's group size of 4"):
        put([a_group(0, *[(2, 1)] * (SIZE + 1))])
    assert not queue.rows


def fill_in(queue, batch, name, value):
    """What verl's processes would put into the queue: for every row a tensor as long as its response."""
    for key in batch.keys:
        queue.rows[key][name] = torch.full((len(queue.rows[key]["responses"]),), value)


def test_stored_log_probs_take_the_place_of_recomputed_ones_where_samples_ask(queue):
    stored = {"old_log_probs": OldLogProbs.STORED}
    groups = [a_group(2, (3, 1), (5, 0, stored)), a_group(0, (1, 0, stored), (2, 1))]
    batch = put(groups)
    fill_in(queue, batch, "old_log_probs", -9.0)
    assert stored_keys(groups) == ["000000000_1_0", "000000001_0_0"]
    put_stored_log_probs(stored_keys(groups))
    for number, index, sample in samples_of(groups):
        row = queue.rows[f"{number:09d}_{index}_0"]
        is_stored = sample.old_log_probs is OldLogProbs.STORED
        assert row["old_log_probs"].tolist() == (
            sample.rollout.log_probs.tolist() if is_stored else [-9.0] * row["responses"].numel()
        )
        assert row["rollout_log_probs"].tolist() == sample.rollout.log_probs.tolist()


def test_verl_gets_the_density_of_a_token_with_weights_and_its_gap_leaves_out_the_one_after_a_rejection(queue):
    weights = np.array([0.5, -0.25, 0.75, 0.0, 0.0], np.float32)
    groups = [a_group(2, (5, 1, {"prefix": 2}), (3, 0))]
    weighted, plain = groups[0].samples
    weighted = replace(weighted, rollout=replace(weighted.rollout, log_weights=weights))
    batch = put([replace(groups[0], samples=(weighted, plain))])
    rows_of = [queue.rows[f"000000000_{index}_0"] for index in range(2)]
    expected = weighted.rollout.log_probs - weights
    np.testing.assert_allclose(rows_of[0]["rollout_log_probs"].numpy(), expected, rtol=1e-6)
    assert rows_of[1]["rollout_log_probs"].tolist() == plain.rollout.log_probs.tolist()
    for row, sample in zip(rows_of, (weighted, plain), strict=True):
        row["old_log_probs"] = torch.from_numpy(sample.rollout.log_probs)
    mean, largest, drift = log_prob_gaps(batch)
    assert largest == pytest.approx(0, abs=1e-6)
    assert mean == pytest.approx(0, abs=1e-6)
    assert drift == pytest.approx((np.exp(weights) - 1 - weights).sum() / 8, rel=1e-5)


def test_without_stored_log_probs_the_queue_is_not_asked(monkeypatch):
    monkeypatch.setattr(transfer_rows, "tq", None)
    assert stored_keys(RAGGED) == []
    put_stored_log_probs([])


def test_the_gap_is_of_tokens_sampled_now(queue):
    groups = [
        a_group(2, (3, 1), (5, 0, {"prefix": 3})),
        a_group(0, (4, 1, {"carried": True}), (2, 1, {"prefix": 2}), (2, 0)),
    ]
    batch = put(groups)
    for key in batch.keys:
        queue.rows[key]["old_log_probs"] = queue.rows[key]["rollout_log_probs"] + 2.0
    now = {
        "000000000_0_0": [0.5, -0.25, 0.0],
        "000000000_1_0": [2.0, 2.0, 2.0, 0.125, 0.0],
        "000000001_2_0": [0.0, -1.0],
    }
    for key, gaps in now.items():
        queue.rows[key]["old_log_probs"] = queue.rows[key]["rollout_log_probs"] + torch.tensor(gaps)
    mean, largest, drift = log_prob_gaps(batch)
    assert mean == pytest.approx((0.5 + 0.25 + 0.125 + 1.0) / 7, rel=1e-5)
    assert largest == pytest.approx(1.0, rel=1e-5)
    every = np.array([0.5, -0.25, 0.125, -1.0, *[0.0] * 3, *[2.0] * 9])
    assert drift == pytest.approx((np.exp(every) - 1 - every).mean(), rel=1e-4)


def test_without_a_token_sampled_now_there_is_no_gap(queue):
    batch = put([a_group(2, (3, 1, {"prefix": 3}), (5, 0, {"carried": True}))])
    fill_in(queue, batch, "old_log_probs", 5.0)
    assert log_prob_gaps(batch)[:2] == (0.0, 0.0)


def test_what_is_only_measured_has_no_masked_rows_whatever_its_size_and_loss(queue):
    batch = RowWriter(make_run(GRPO(loss_agg_mode="seq-mean-token-mean")), PROMPTS, PAD).put_unmasked(
        [a_group(2, (3, 1)), a_group(0, (4, 1), (2, 0))], 7
    )
    assert batch.keys == ["000000000_0_0", "000000001_0_0", "000000001_1_0"]
    assert not any(tag.get("is_padding") for tag in batch.tags)


def test_the_estimate_of_the_divergence_is_unbiased_and_has_no_bound(queue):
    """Over all tokens of a distribution, each as often as it is sampled, the estimates' mean is the divergence."""
    policy, reference = np.array([0.5, 0.25, 0.25]), np.array([0.125, 0.125, 0.75])
    draws = [0, 0, 1, 2]
    batch = put([a_group(0, (4, 1))])
    key = batch.keys[0]
    queue.rows[key]["rollout_log_probs"] = torch.tensor(np.log(policy[draws]))
    queue.rows[key]["ref_log_prob"] = torch.tensor(np.log(reference[draws]))
    for other in batch.keys[1:]:  # masked rows
        queue.rows[other] |= {"rollout_log_probs": torch.tensor([0.0]), "ref_log_prob": torch.tensor([9.0])}
    assert low_variance_kl(batch) == pytest.approx(float((policy * np.log(policy / reference)).sum()))
    queue.rows[key]["ref_log_prob"] = queue.rows[key]["rollout_log_probs"] - 1000.0
    assert low_variance_kl(batch) == pytest.approx(999.0), "verl's own is bounded by 10"


def verl_s_advantages(queue, batch, algorithm):
    """What verl's trainer computes from the queue, by key; a row has as many as it has tokens."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer  # not where all workers collect: it loads a part of vLLM

    config = OmegaConf.create(
        {
            "algorithm": {
                "adv_estimator": estimator(algorithm),
                "gamma": 1.0,
                "lam": 1.0,
                "use_kl_in_reward": False,
                "norm_adv_by_std_in_grpo": divides_by_std(algorithm),
            },
            "actor_rollout_ref": {"rollout": {"n": SIZE}},
        }
    )
    PPOTrainer._compute_advantage(SimpleNamespace(config=config), batch, {})
    return {key: queue.rows[key]["advantages"].tolist() for key in batch.keys}


def our_advantages(groups, algorithm):
    """The local trainer's, by verl's keys."""
    samples = samples_of(groups)
    lengths = torch.tensor([s.rollout.length for _, _, s in samples])
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).float()
    rewards = torch.tensor([s.reward for _, _, s in samples])
    owner = np.array([number for number, _, _ in samples])
    computed, _ = advantages(algorithm, rewards, mask, owner)
    return {
        f"{n:09d}_{p}_0": row[: s.rollout.length].tolist() for (n, p, s), row in zip(samples, computed, strict=True)
    }


@pytest.mark.parametrize("groups", [RAGGED, STOPPED], ids=["ragged", "stopped"])
@pytest.mark.parametrize("algorithm", [GRPO(), RLOO(), DAPO()], ids=lambda a: a.kind)
def test_verl_s_advantages_of_ragged_groups_are_the_local_trainer_s(algorithm, groups, queue):
    theirs, ours = verl_s_advantages(queue, put(groups, algorithm), algorithm), our_advantages(groups, algorithm)
    stopped = {f"{n:09d}_{p}_0" for n, p, s in samples_of(groups) if s.use is Use.STOPPED}
    for key, expected in ours.items():
        assert theirs[key] == pytest.approx([0.0] * len(expected) if key in stopped else expected, abs=1e-6)
    padding = {key: values for key, values in theirs.items() if key.startswith("pad")}
    assert {tuple(values) for values in padding.values()} == {(0.0,)}
    assert any(abs(value) > 0.1 for key, values in theirs.items() if key not in stopped for value in values)


@pytest.mark.parametrize("algorithm", [GRPO(), RLOO()], ids=lambda a: a.kind)
def test_masked_rows_give_nothing_to_the_groups_that_they_fill(algorithm, queue):
    alone = verl_s_advantages(queue, put([RAGGED[1]], algorithm), algorithm)
    beside = verl_s_advantages(queue, put([RAGGED[1], RAGGED[0], RAGGED[2]], algorithm), algorithm)
    alone = {key: values for key, values in alone.items() if not key.startswith("pad")}
    assert {key: beside[key] for key in alone} == alone
    assert len(alone) == len(RAGGED[1].samples)


def test_an_update_of_fewer_groups_is_filled_with_masked_ones(queue):
    """Of three groups two are in the first update and one in the second, which gets a group of masked rows."""
    batch = put([RAGGED[1], RAGGED[0], RAGGED[2]])
    assert len(batch.keys) == 4 * SIZE
    assert len(set(batch.keys)) == len(batch.keys)
    assert all(key.startswith("pad") for key in batch.keys[3 * SIZE :])


def test_one_reused_correct_response_in_a_group_of_eight_has_ar3po_s_advantages(queue, monkeypatch):
    monkeypatch.setitem(globals(), "SIZE", 8)
    group = a_group(0, *[(2, int(i == 5), {"use": Use.STOPPED if i == 5 else Use.TRAINED}) for i in range(8)])
    theirs = verl_s_advantages(queue, put([group]), GRPO())
    assert [round(values[0], 3) for values in list(theirs.values())[:8]] == [-0.354] * 5 + [0.0] + [-0.354] * 2
    assert round(our_advantages([group], GRPO())["000000000_5_0"][0], 3) == 2.475


def test_a_batch_is_handed_over_once():
    handed, batch = HandoverBuffer(), KVBatchMeta(keys=["a"], tags=[{}], partition_id=PARTITION)
    handed.batch = batch
    assert handed.sample(global_steps=1, partition_id=PARTITION, batch_size=4) == (batch, {})
    with pytest.raises(AssertionError, match="before one was set"):
        handed.sample()
