"""The rollout function for TRL with a trainer that has what TRL passes; `test_trl.py` runs TRL itself."""

import asyncio
import json
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from redraft.config.retention import Retention
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.integrations.prompt_memory import PromptMemory
from redraft.integrations.trl import ALLOWED, RULES, ReuseRollout
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.goodness import g_test
from redraft.lab.audit.tiny_models import PROMPT, ModelPolicy, drifting
from redraft.rollout.engine import Inversion
from redraft.rollout.types import Group, Sample
from tests.random_groups import make

SPACE = Space(3, 3)
TEXT = " ".join(map(str, PROMPT))


class Tokenizer:
    """A token for each number of a text."""

    size = 3

    def __call__(self, text):
        return {"input_ids": [list(map(int, each.split())) for each in text]}

    def apply_chat_template(self, conversation, chat_template, add_generation_prompt, **_):
        return self([" ".join(message["content"] for message in each) for each in conversation])

    def get_vocab(self):
        return {str(token): token for token in range(self.size)}


def trainer_of(model, folder="run", temperature=1.0, **settings):
    """What the function uses of a GRPOTrainer, in training."""
    args = {"seed": 0, "max_completion_length": SPACE.longest, "output_dir": str(folder)}
    args |= {"gradient_accumulation_steps": 2} | {name: allowed[0] for name, allowed in ALLOWED.items()} | settings
    logged, handler = [], SimpleNamespace(callbacks=[])
    return SimpleNamespace(
        args=SimpleNamespace(**args),
        temperature=temperature,
        use_vllm=False,
        model=model.train(),
        accelerator=SimpleNamespace(num_processes=1, mixed_precision="no"),
        is_deepspeed_enabled=False,
        is_fsdp_enabled=False,
        tools=[],
        environment_factories=None,
        processing_class=Tokenizer(),
        chat_template=None,
        chat_template_kwargs={},
        eos_token_ids=[0],
        state=SimpleNamespace(global_step=0, is_hyper_param_search=False),
        callback_handler=handler,
        add_callback=handler.callbacks.append,
        logged=logged,
        _log_metric=lambda name, value: logged.append((name, value)),
    )


def update(model, other):
    """Change weights in place, as an optimizer does."""
    model.load_state_dict(other.state_dict())


@pytest.fixture(scope="module")
def policies():
    """Three policies, each at some distance from the one before."""
    return drifting(SPACE, 3, drift=0.5, scale=0.6)


@pytest.fixture
def model(policies):
    return deepcopy(policies[0])


@pytest.mark.parametrize(
    ("rule", "settings", "exact"),
    [
        ("one_hot", {}, True),
        ("residual", {"top": 2}, True),
        ("published", {"lenience": "inf"}, False),
    ],
)
def test_responses_of_the_third_pass_have_the_policy_s_distribution_if_the_rule_is_exact(
    rule, settings, exact, policies, model
):
    """Weights change in place between passes; the temperature is not 1. A rule that is not exact is detected."""
    rollout, trainer = ReuseRollout(rule, **settings), trainer_of(model, temperature=0.8)
    for policy in policies:
        update(model, policy)
        found = rollout([TEXT] * 500, trainer)
    law = ModelPolicy(SPACE, policies[-1], temperature=0.8)
    expected = np.array([law.probability(response) for response in SPACE.responses])
    indices = [SPACE.index[tuple(tokens)] for tokens in found["completion_ids"]]
    test = g_test(np.bincount(indices, minlength=len(expected)), expected)
    assert test.rejected != exact, test
    kept = dict(trainer.logged[-7:]).get("reuse/kept_share", 0)
    assert kept > 0.1
    if exact:  # the policy's log-probabilities, also of kept tokens
        totals = np.exp([sum(log_probs) for log_probs in found["logprobs"]])
        np.testing.assert_allclose(totals, expected[indices], rtol=1e-4)


def test_responses_are_in_the_order_of_the_prompts_and_continue_the_draft_of_their_own_index(model):
    """Prompts as TRL passes them, and out of order; with an unchanged policy, residual reuse keeps whole drafts."""
    rollout, trainer = ReuseRollout("residual", top=3), trainer_of(model, max_completion_length=12)
    prompts = ["1 2", "1 2", "2", "2", "1 2", "2 2 1"]
    first = rollout(prompts, trainer)
    assert first["prompt_ids"] == [[1, 2], [1, 2], [2], [2], [1, 2], [2, 2, 1]]
    assert len(set(map(tuple, first["completion_ids"]))) > 2
    again = rollout(["2 2 1", "2", "2", "1 2", "1 2", "1 2", "1 1"], trainer)
    assert again["completion_ids"][:-1] == [first["completion_ids"][row] for row in (5, 2, 3, 0, 1, 4)]
    logged = dict(trainer.logged[-7:])
    assert logged["reuse/kept_share"] == 1
    assert logged["reuse/dropped"] == 0
    assert logged["reuse/drafts"] == pytest.approx(6 / 7), "a new prompt has no draft"
    assert logged["reuse/saved_tokens"] == logged["reuse/verified_tokens"] == sum(map(len, first["completion_ids"]))
    assert logged["reuse/decoded_tokens"] == len(again["completion_ids"][-1])
    assert model.training


def test_a_conversation_is_tokenised_by_the_chat_template(model):
    conversation = [{"role": "system", "content": "1 2"}, {"role": "user", "content": "2"}]
    assert ReuseRollout()([conversation], trainer_of(model))["prompt_ids"] == [[1, 2, 2]]
    image = [{"role": "user", "content": [{"type": "image"}]}]
    with pytest.raises(UserError, match="content that is no text"):
        ReuseRollout()([image], trainer_of(model))


def test_evaluation_has_no_drafts_and_leaves_training_as_it_is(model):
    """Numbers differ between evaluation batches, and training goes on as without evaluation."""
    plain, with_evaluation = (ReuseRollout("residual", top=3) for _ in range(2))
    trainer = trainer_of(model)
    expected = [plain([TEXT] * 8, trainer) for _ in range(2)]
    trainer = trainer_of(model)
    assert with_evaluation([TEXT] * 8, trainer) == expected[0]
    logged = len(trainer.logged)
    model.eval()
    evaluated = [with_evaluation([TEXT] * 40, trainer)["completion_ids"] for _ in range(2)]
    assert evaluated[0] != evaluated[1]
    assert evaluated[0][:8] != expected[0]["completion_ids"]
    assert not model.training
    assert len(trainer.logged) == logged
    model.train()
    assert with_evaluation([TEXT] * 8, trainer) == expected[1]


def test_the_memory_is_bounded_and_forgets_the_prompt_that_was_rolled_out_first(model):
    rollout, trainer = ReuseRollout(most_tokens=9), trainer_of(model)
    trainer.eos_token_ids = []  # three tokens a response
    rollout(["1", "2", "1 1"], trainer)
    rollout(["1"], trainer)  # the most recent one now
    rollout(["2 2"], trainer)
    assert len(rollout.memory) == 9
    assert [value for name, value in trainer.logged if name == "reuse/dropped"] == [0, 0, 1], "2 is dropped"
    for prompt, drafts in (("1", 1), ("2", 0)):
        rollout([prompt], trainer)
        assert ("reuse/drafts", drafts) in trainer.logged[-7:], prompt
    assert len(rollout.memory.memory) == 3


def passes(rollout, trainer, policies, first=0):
    """Responses of passes from `first` on, each under the next policy; a checkpoint after the first pass."""
    found = []
    for step in range(first, 3):
        update(trainer.model, policies[step])
        found.append(rollout([TEXT] * 6 + ["2"] * 2, trainer))
        trainer.state.global_step += 1
        if step == 0:
            (folder := (trainer_folder(trainer))).mkdir()
            trainer.callback_handler.callbacks[0].on_save(trainer.args, trainer.state, None)
            assert sorted(file.name for file in (folder / "redraft").iterdir()) == ["index.json", "rollouts.arrow"]
    return found


def trainer_folder(trainer):
    from pathlib import Path

    return Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"


def resumed(model, folder, **settings):
    trainer = trainer_of(model, folder, **settings)
    trainer.state.global_step = 1
    return trainer


@pytest.mark.parametrize(("rule", "settings"), [("one_hot", {}), ("block", {"top": 3}), ("none", {})])
def test_a_resumed_training_continues_as_the_uninterrupted_one(rule, settings, policies, model, tmp_path):
    expected = passes(ReuseRollout(rule, **settings), trainer_of(model, tmp_path), policies)
    trainer, rollout = resumed(model, tmp_path), ReuseRollout(rule, **settings)
    assert passes(rollout, trainer, policies, first=1) == expected[1:]
    assert len({json.dumps(each["completion_ids"]) for each in expected}) == 3
    # A second call of `trainer.train` in the same process reads the checkpoint again.
    trainer.state.global_step = 1
    rollout.on_train_begin(trainer.args, trainer.state, None)
    assert passes(rollout, trainer, policies, first=1) == expected[1:]
    elsewhere = ReuseRollout(rule, resume_from=tmp_path / "checkpoint-1", **settings)
    assert passes(elsewhere, resumed(model, tmp_path / "other"), policies, first=1) == expected[1:]


def test_without_a_memory_training_resumes_without_drafts_says_so_and_has_other_random_numbers(
    policies, model, tmp_path, caplog
):
    first = passes(ReuseRollout(), trainer_of(model, tmp_path), policies)[0]
    trainer = resumed(model, tmp_path / "other")
    update(model, policies[0])
    found = ReuseRollout()([TEXT] * 6 + ["2"] * 2, trainer)
    assert "checkpoint-1 has no memory of rollouts, so this pass has no drafts" in caplog.text
    assert ("reuse/drafts", 0) in trainer.logged
    assert found["completion_ids"] != first["completion_ids"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("model", "rollouts of another model"),
        ("tokenizer", "rollouts of another tokenizer"),
        ("rule", "of another rule of reuse"),
        ("index", "damaged"),
        ("rollouts", "not the one that was saved with the index"),
        ("missing", "missing"),
    ],
)
def test_a_memory_that_does_not_belong_to_the_training_is_rejected(fault, message, policies, model, tmp_path):
    passes(ReuseRollout(), trainer_of(model, tmp_path), policies)
    trainer, rollout, folder = resumed(model, tmp_path), ReuseRollout(), tmp_path / "checkpoint-1/redraft"
    if fault == "model":
        trainer.model = drifting(Space(4, 3), 1, drift=0)[0].train()
    elif fault == "tokenizer":
        trainer.processing_class.size = 4
    elif fault == "rule":
        rollout = ReuseRollout("residual", top=3)
    elif fault == "index":
        (folder / "index.json").write_text('{"prompts": []}')
    elif fault == "rollouts":
        (folder / "rollouts.arrow").write_bytes((folder / "rollouts.arrow").read_bytes()[:-1])
    else:
        rollout = ReuseRollout(resume_from=tmp_path / "checkpoint-2")
    with pytest.raises(UserError, match=message) as error:
        rollout([TEXT], trainer)
    assert error.value.file


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("top_p", 0.9),
        ("top_k", 50),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
        ("generation_kwargs", {"suppress_tokens": [1]}),
        ("use_transformers_continuous_batching", True),
        ("cast_lm_head_to_fp32", True),
        ("temperature", 0.0),
        ("max_completion_length", None),
    ],
)
def test_a_setting_that_the_engine_cannot_follow_is_rejected(key, value, model):
    with pytest.raises(UserError, match="does not support this setting") as error:
        ReuseRollout()([TEXT], trainer_of(model, **{key: value}))
    assert (error.value.key, error.value.value) == (key, value)


def test_a_second_training_reads_no_memory_of_an_earlier_run_s_checkpoint(policies, model, tmp_path):
    """TRL counts on from the first rollout's step, which is not 0 with several iterations."""
    rollout, trainer = ReuseRollout("random"), trainer_of(model, tmp_path)
    passes(rollout, trainer, policies)
    trainer.state.global_step = 0
    rollout.on_train_begin(trainer.args, trainer.state, None)
    trainer.state.global_step = 1
    assert (trainer_folder(trainer) / "redraft").exists()
    trainer.logged.clear()
    rollout([TEXT] * 4, trainer)
    assert dict(trainer.logged)["reuse/drafts"] == 0


def test_a_rollout_works_where_an_event_loop_runs(model):
    """As in a notebook; the tokens are the same."""

    trainer = trainer_of(model)
    trainer.accelerator.mixed_precision = "bf16"  # autocast is that of a thread

    async def notebook():
        return ReuseRollout("none")([TEXT] * 4, trainer)

    found = asyncio.run(notebook())
    assert found == ReuseRollout("none")([TEXT] * 4, trainer)
    trainer.accelerator.mixed_precision = "no"
    assert found["logprobs"] != ReuseRollout("none")([TEXT] * 4, trainer)["logprobs"]


@pytest.mark.parametrize("ends", [[None], [None, 0], [0, 64]])
def test_end_tokens_that_the_model_does_not_know_end_nothing(ends, model):
    trainer = trainer_of(model)
    trainer.eos_token_ids = ends
    for tokens in ReuseRollout("none")([TEXT] * 20, trainer)["completion_ids"]:
        assert len(tokens) == SPACE.longest or (tokens[-1] == 0 and 0 in ends)


def test_trl_s_vllm_server_is_rejected(model):
    """`test_trl.py` has what is rejected of the vLLM in the trainer's process."""
    trainer = trainer_of(model, vllm_enable_sleep_mode=False, vllm_structured_outputs_regex=None)
    trainer.use_vllm, trainer.vllm_mode = True, "server"
    with pytest.raises(UserError, match="with TRL's vLLM") as error:
        ReuseRollout()([TEXT], trainer)
    assert error.value.key == "vllm_mode"


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("num_processes", {"accelerator": SimpleNamespace(num_processes=2, mixed_precision="no")}),
        ("mixed_precision", {"accelerator": SimpleNamespace(num_processes=1, mixed_precision="fp16")}),
        ("distributed", {"is_fsdp_enabled": True}),
        ("tools", {"tools": [print]}),
        ("hyperparameter_search", {"state": SimpleNamespace(global_step=0, is_hyper_param_search=True)}),
        ("model", {"model": torch.nn.Linear(1, 1)}),
    ],
)
def test_a_trainer_that_the_engine_cannot_follow_is_rejected(key, change, model):
    trainer = trainer_of(model)
    vars(trainer).update(change)
    with pytest.raises(UserError, match="does not support this setting") as error:
        ReuseRollout()([TEXT], trainer)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("rule", "settings", "key"),
    [
        ("greedy", {}, "rule"),
        ("one_hot", {"lenience": 2}, "lenience"),
        ("residual", {"lenience": 2.0}, "lenience"),
        ("published", {"lenience": -1}, "lenience"),
        ("block", {"top": 0}, "top"),
        ("one_hot", {"most_tokens": 0}, "most_tokens"),
        ("one_hot", {"most_rows": 0}, "most_rows"),
    ],
)
def test_a_rule_or_setting_that_does_not_exist_is_rejected(rule, settings, key):
    with pytest.raises(UserError) as error:
        ReuseRollout(rule, **settings)
    assert (error.value.key, bool(error.value.allowed)) == (key, True)


@pytest.mark.parametrize("rule", ["one_hot", "residual", "block"])
def test_drafts_of_another_limit_or_other_end_tokens_keep_the_policy_s_distribution(rule, policies, model):
    """The first pass is longer and has no end token, as before a resumed training with other settings."""
    rollout = ReuseRollout(rule) if rule == "one_hot" else ReuseRollout(rule, top=3)
    trainer = trainer_of(model, max_completion_length=6)
    trainer.eos_token_ids = []
    assert set(map(len, rollout([TEXT] * 1000, trainer)["completion_ids"])) == {6}
    trainer.args.max_completion_length, trainer.eos_token_ids = 3, [0]
    update(model, policies[1])
    found = rollout([TEXT] * 1000, trainer)["completion_ids"]
    assert dict(trainer.logged[-7:])["reuse/kept_share"] > 0.05
    expected = ModelPolicy(SPACE, policies[1]).response_distribution()
    counts = np.bincount([SPACE.index[tuple(tokens)] for tokens in found], minlength=len(expected))
    assert not g_test(counts, expected).rejected


def test_another_number_of_generations_has_drafts_for_the_indices_that_were_there(model):
    """Also of a pass before the last one, at the indices that the last one did not have."""
    rollout, trainer = ReuseRollout(), trainer_of(model)
    for count, drafts in ((6, 0), (4, 1), (8, 0.75)):
        rollout([TEXT] * count, trainer)
        assert dict(trainer.logged[-7:])["reuse/drafts"] == drafts


def test_another_trainer_begins_with_an_empty_memory_and_gets_the_callback(policies, model):
    rollout, trainer = ReuseRollout(), trainer_of(model)
    rollout([TEXT] * 2, trainer)
    other = trainer_of(deepcopy(policies[1]))
    rollout([TEXT] * 2, other)
    assert ("reuse/drafts", 0) in other.logged
    assert other.callback_handler.callbacks == [rollout]


@pytest.mark.parametrize(("text", "message"), [("", "a prompt has no tokens"), ("1 3", "that the model does not know")])
def test_a_prompt_that_the_model_cannot_read_is_one_clear_error(text, message, model):
    with pytest.raises(UserError, match=message):
        ReuseRollout()([TEXT, text], trainer_of(model))


@pytest.mark.parametrize(("key", "value"), [("suppress_tokens", [1]), ("min_p", 0.1), ("min_new_tokens", 2)])
def test_what_trl_s_own_loop_takes_from_the_model_s_generation_config_is_rejected(key, value, model):
    trainer = trainer_of(model)
    setattr(model.generation_config, key, value)
    with pytest.raises(UserError, match="does not support this setting") as error:
        ReuseRollout()([TEXT], trainer)
    assert error.value.key == f"generation_config.{key}"


def test_more_stored_tokens_than_the_vocabulary_has_are_rejected(model):
    with pytest.raises(UserError, match="reuse.top"):
        ReuseRollout("residual", top=4)([TEXT], trainer_of(model))


def test_the_engine_is_made_again_for_longer_prompts_or_what_the_trainer_changed_alone(policies, model):
    rollout, trainer = ReuseRollout(most_rows=4), trainer_of(model)
    engines = []
    for prompts in (["1"], ["2"], ["1 2 1 2"] * 9, ["1"] * 3):
        rollout(prompts, trainer)
        engines.append(rollout._engine)
    assert [engines[i] is engines[i + 1] for i in range(3)] == [True, False, True]
    assert engines[-1].max_rows == 4
    trainer.temperature = 0.5
    rollout(["1"], trainer)
    assert rollout._engine.temperature == 0.5
    trainer.model = deepcopy(policies[1]).train()
    rollout(["1"], trainer)
    assert rollout._engine.model is trainer.model
    trainer.eos_token_ids = [0, 1]
    rollout(["1"], trainer)
    assert rollout._engine.stops == {0, 1}


def test_under_mixed_precision_the_engine_computes_as_the_trainer_does(model):
    """Scores equal decoded log-probabilities bit by bit, and the trainer's within the noise of bfloat16."""
    trainer = trainer_of(model)
    trainer.accelerator.mixed_precision = "bf16"
    (rollout := ReuseRollout())(["1"], trainer)
    assert rollout._engine.autocast == torch.bfloat16
    engine = TorchEngine(model, stops=(), max_length=60, autocast=torch.bfloat16)
    rng = np.random.default_rng(0)

    async def one():
        async with engine.session([1, 2, 1]) as session:
            found = await session.decode(np.zeros(0, np.int32), 40, Inversion(rng.random(40)))
            return found, await session.score(found.tokens)

    for found, scores in engine.run(*(one() for _ in range(8))):
        np.testing.assert_array_equal(scores.log_probs, found.log_probs)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logits_TV = model.eval()(torch.tensor([[1, 2, 1, *found.tokens.tolist()]])).logits.float()[0, 2:-1]
        tokens_T1 = torch.tensor(found.tokens[:, None]).long()
        expected = logits_TV.log_softmax(-1).gather(1, tokens_T1)[:, 0].numpy()
        np.testing.assert_allclose(found.log_probs, expected, atol=0.2)
        assert np.abs(found.log_probs - expected).mean() < 0.05
    trainer.model = model.to(torch.bfloat16)
    (rollout := ReuseRollout())(["1"], trainer)
    assert rollout._engine.autocast is None


@pytest.mark.parametrize("length", [1, 4, 16, 400])
def test_whether_a_draft_is_kept_does_not_depend_on_its_length(length):
    """If long drafts were dropped and short ones kept, kept ones would not be distributed as the policy samples."""
    memory = PromptMemory(Retention(visits=1), 10)
    for prompt, tokens in enumerate([5, length, 9]):
        ((number, _),) = memory.tasks([[prompt]]).items()
        memory.put([Group(number, 0, (Sample(make(number, length=tokens), 0.0),))])
    assert memory.memory.prompts() == [1, 2], "9 tokens are newer than prompt 1, 10 or more than prompt 0"


def test_a_memory_s_prompts_are_found_by_their_tokens(tmp_path):
    """Equal prompts of a batch are one task; the index survives saving."""
    memory = PromptMemory(Retention(visits=1), 100)
    tasks = memory.tasks([[1, 2], [12], [1, 2]])
    assert [(task.samples, rows) for task, rows in tasks.values()] == [(2, [0, 2]), (1, [1])]
    memory.put([])  # nothing was stored, so nothing is known
    assert [*memory.tasks([[12]])] == [2], "no number is used twice"
    assert set(RULES) == {"none", "one_hot", "block", "residual", "published", "random"}
