"""Training in bfloat16: float32 weights behind it, and a rounded copy that rolls out."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from redraft.config import Experiments, InProcessEngine, VerlEngine, run_fingerprint, sampling_fingerprint
from redraft.engines.torch import packed
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.files import read_json
from redraft.layout import Layout
from redraft.ops.workflow import pace
from redraft.ops.workflow.dry_run import is_dry
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import uniforms
from redraft.rollout.types import Finish, Rollout
from redraft.train import models
from redraft.train.local.decoding import Decoding
from redraft.train.local.learner import Batch, Learner
from redraft.train.local.trainer import LocalTrainer
from redraft.train.pretrained.precision import dtype_of, rounded
from tests.test_trainer import ROOT, make_run

BF16, CPU = torch.bfloat16, torch.device("cpu")
EXPERIMENTS = Experiments(ROOT)
SETTINGS = {"stops": [0], "max_length": 8, "max_rows": 2}
"""Arguments of the engine."""


def tied_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return LlamaForCausalLM(LlamaConfig(vocab_size=20, tie_word_embeddings=True, **shape)).eval()


def test_a_copy_has_rounded_weights_and_the_same_buffers_and_ties():
    model = tied_llama()
    copy = rounded(model, BF16)
    for own, its in zip(copy.parameters(), model.parameters(), strict=True):
        assert torch.equal(own, its.to(BF16))
        assert own.dtype == BF16
        assert its.dtype == torch.float32
        assert not own.requires_grad
        assert its.requires_grad
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight
    angles = [dict(each.named_buffers())["model.rotary_emb.inv_freq"] for each in (copy, model)]
    assert torch.equal(*angles)
    assert angles[0].dtype == torch.float32
    assert rounded(copy, BF16) is copy
    assert rounded(model, torch.float32) is model


def test_the_engine_s_copy_takes_the_weights_when_they_are_published():
    model = tied_llama()
    own = Decoding(model, BF16, SETTINGS)
    with torch.no_grad():
        model.model.norm.weight.fill_(3.0)
    assert float(own.engine.model.model.norm.weight[0]) == 1.0
    own.publish()
    assert float(own.engine.model.model.norm.weight[0]) == 3.0


def test_steps_that_bfloat16_cannot_add_are_not_lost():
    """1 + 1e-4 is 1 in bfloat16; a hundred of them are not."""
    model = tied_llama()
    own, start = Decoding(model, BF16, SETTINGS), model.model.norm.weight.detach().clone()
    for _ in range(100):
        with torch.no_grad():
            model.model.norm.weight.add_(1e-4)
        own.publish()
    assert torch.allclose(own.engine.model.model.norm.weight.float(), start + 0.01, atol=0.004)
    alone = start.to(BF16)
    assert torch.equal(alone + torch.tensor(1e-4, dtype=BF16), alone)


@pytest.mark.parametrize(("dtype", "computed"), [("bfloat16", BF16), ("auto", torch.float32)])
def test_passes_compute_in_the_run_s_precision_and_leave_gradients_in_float32(tiny_model, dtype, computed):
    learner = Learner(make_run(dtype=dtype), models.load(tiny_model)[0], tiny_model, CPU, pad=0)
    with learner.autocast:
        logits = learner.policy(torch.arange(8)[None]).logits
    assert logits.dtype == computed
    logits.float().logsumexp(-1).sum().backward()
    assert {parameter.grad.dtype for parameter in learner.policy.parameters()} == {torch.float32}


@pytest.fixture(scope="module")
def runs(tiny_model, tmp_path_factory):
    """Folders of the same run in both precisions, and trainer of the second."""
    base = tmp_path_factory.mktemp("precision")
    for dtype in ("auto", "bfloat16"):
        run = make_run(dtype=dtype)
        trainer = LocalTrainer(run, tiny_model, base / dtype)
        trainer.train()
    return base, trainer


def test_rollouts_come_from_the_rounded_copy_of_the_trained_weights(runs):
    _, trainer = runs
    engine = trainer.engine.model
    assert (engine.dtype, trainer.learner.policy.dtype) == (BF16, torch.float32)
    for own, trained in zip(engine.parameters(), trainer.learner.policy.parameters(), strict=True):
        assert torch.equal(own, trained.to(BF16))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("rows", "chunk"), [(1, None), (9, None), (9, 7)])
def test_an_unchanged_policy_accepts_its_own_tokens(rows, chunk, large, monkeypatch):
    """Decoded one by one in a changing batch, and scored at once: rounding rejects 2 in 1,000 tokens at most."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if large:  # packed weights, and prompts that are computed once
        monkeypatch.setattr(packed, "LEAST_WEIGHTS", 0)
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 1536, "initializer_range": 0.15}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=200, **heads, **shape)).to(BF16)
    engine = TorchEngine(model, stops=(), max_length=120, max_rows=6, chunk=chunk)

    async def decode(row):
        async with engine.session(list(range(2, 4 + 7 * row))) as session:
            draws = Inversion(uniforms(0, "precision", row, count=40))
            return await session.decode(np.zeros(0, np.int32), 40 - 4 * row, draws)

    async def score(row, draft):
        async with engine.session(list(range(2, 4 + 7 * row))) as session:
            scores = np.zeros(0, np.float32)
            while len(scores) < len(draft):
                scores = np.append(scores, (await session.score(draft, scored=len(scores))).log_probs)
            return scores

    decoded = engine.run(*map(decode, range(rows)))
    scored = engine.run(*(score(row, of_row.tokens) for row, of_row in enumerate(decoded)))
    gaps = np.concatenate([s - d.log_probs for s, d in zip(scored, decoded, strict=True)])
    assert np.exp(np.minimum(gaps, 0)).mean() > 0.998


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_no_token_is_decoded_alone_in_bfloat16(tiny_model, monkeypatch, dtype):
    """The product of one vector adds in another order than scoring does."""
    engine = TorchEngine(models.load(tiny_model, dtype=dtype)[0], stops=(), max_length=20)
    fed, passes = [], engine._hidden_after
    monkeypatch.setattr(
        engine, "_hidden_after", lambda tokens, *rest: [fed.append(tokens.numel()), passes(tokens, *rest)][1]
    )

    async def decode():
        async with engine.session([2, 3]) as session:
            return await session.decode(np.zeros(0, np.int32), 5, Inversion(np.full(5, 0.5)))

    (found,) = engine.run(decode())
    assert len(found.tokens) == len(found.log_probs) == 5
    assert set(fed) == {2 if dtype == BF16 else 1}


def test_policy_and_reference_are_rounded_alike(tiny_model):
    """Else the divergence would not start at 0, and the KL loss would pull to a rounding error."""
    learner = Learner(make_run(dtype="bfloat16"), models.load(tiny_model)[0], tiny_model, CPU, pad=0)
    tokens = Rollout(0, 0, np.arange(2, 8, dtype=np.int32), np.zeros(6, np.float32), np.zeros(6, np.int32), Finish.EOS)
    batch = Batch.of([[1, 2]], [tokens], 0, CPU)
    own, its = (learner.log_probs(model, batch)[0] for model in (learner.policy, learner.reference))
    assert torch.equal(own, its)
    plain = batch.log_probs(learner.policy)[0]
    assert not torch.equal(own, plain)
    assert torch.allclose(own, plain, atol=0.1)
    assert learner.divergence([tokens], [[1, 2]]) == 0


def test_kept_policies_are_those_that_roll_out(runs):
    base, trainer = runs
    last = max((base / "bfloat16/policies").iterdir())
    assert models.load_config(last).dtype == BF16
    saved, _ = models.load(last, dtype=BF16)
    for own, kept in zip(trainer.engine.model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(own, kept)


def test_training_goes_on_with_the_restored_weights_rounded(runs, tiny_model):
    base, trainer = runs
    again = LocalTrainer(trainer.run, tiny_model, base / "bfloat16")
    before = [parameter.clone() for parameter in again.engine.model.parameters()]
    again.loop.prepare(None, None)
    again.loop.restore(again)
    restored = list(again.engine.model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, restored, strict=True))
    for own, trained in zip(restored, again.learner.policy.parameters(), strict=True):
        assert torch.equal(own, trained.to(BF16))


def test_what_is_trained_hardly_differs(runs, tiny_model):
    """Both have moved, and by far more than they lie apart."""
    base, _ = runs
    start = torch.nn.utils.parameters_to_vector(models.load(tiny_model)[0].parameters()).detach()
    ends = [
        torch.nn.utils.parameters_to_vector(models.load(max((base / dtype / "policies").iterdir()))[0].parameters())
        for dtype in ("auto", "bfloat16")
    ]
    moved = [float((end.detach() - start).norm()) for end in ends]
    assert min(moved) > 0
    assert 0.5 < moved[0] / moved[1] < 2


def test_precision_is_part_of_what_a_run_and_its_generations_are():
    run, preset = EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, "tiny"), EXPERIMENTS.preset("tiny")
    half = run.engine.model_copy(update={"dtype": "bfloat16"})
    assert run_fingerprint(run) != run_fingerprint(run.model_copy(update={"engine": half}))
    assert sampling_fingerprint(preset) != sampling_fingerprint(preset.model_copy(update={"engine": half}))
    assert "dtype" not in run.identity


def test_under_verl_precision_is_verl_s():
    assert VerlEngine(dtype="auto")
    with pytest.raises(ValidationError, match="must be auto"):
        VerlEngine(dtype="bfloat16")


@pytest.fixture
def preset_of(folder, monkeypatch):
    """The preset smoke with `engine.dtype: fastest`, in an empty folder."""
    file = folder / "experiments/presets/smoke.yaml"
    file.write_text(file.read_text().replace("engine: {kind: torch,", "engine: {kind: torch, dtype: fastest,"))
    monkeypatch.chdir(folder)
    return lambda: Experiments().preset("smoke")


def taken(ratio, preset_of, monkeypatch):
    """Start a campaign on a machine where bfloat16 takes this many times float32's time; identity of a run then."""
    monkeypatch.setattr(pace, "product_ratio", lambda device: ratio)
    pace.take_precision(preset_of())
    return Experiments().run("spec_rl/grpo-vanilla", 0, "smoke").identity["dtype"]


@pytest.mark.parametrize(("ratio", "dtype"), [(0.5, "bfloat16"), (0.9, "bfloat16"), (0.95, "float32"), (8, "float32")])
def test_the_faster_precision_is_taken_recorded_and_named_by_the_run(preset_of, monkeypatch, capsys, ratio, dtype):
    assert taken(ratio, preset_of, monkeypatch) == dtype
    record = read_json(Layout("smoke").precision)
    assert (record["dtype"], record["times_float32"]) == (dtype, ratio)
    assert record["machine"]["cores"] >= 1
    assert f"engine.dtype: {dtype}; bfloat16 takes {ratio:.2f} of" in capsys.readouterr().err
    run = Experiments().run("spec_rl/grpo-vanilla", 0, "smoke")
    assert run.model_dump(mode="json")["engine"]["dtype"] == dtype, "of the manifest"
    assert dtype_of(run.engine) == getattr(torch, dtype)
    explicit = preset_of().model_copy(update={"engine": InProcessEngine(dtype=dtype)})
    assert sampling_fingerprint(preset_of()) == sampling_fingerprint(explicit)


def test_a_machine_where_it_is_slow_goes_on_in_the_recorded_precision(preset_of, monkeypatch):
    assert taken(0.5, preset_of, monkeypatch) == "bfloat16"
    first = run_fingerprint(Experiments().run("spec_rl/grpo-vanilla", 0, "smoke"))
    assert taken(8, preset_of, monkeypatch) == "bfloat16"
    assert run_fingerprint(Experiments().run("spec_rl/grpo-vanilla", 0, "smoke")) == first
    Layout("smoke").precision.unlink()
    assert taken(8, preset_of, monkeypatch) == "float32"
    other = run_fingerprint(Experiments().run("spec_rl/grpo-vanilla", 0, "smoke"))
    assert other != first, "checkpoints of the one are not those of the other"


def test_nothing_is_measured_for_another_choice(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pace, "product_ratio", lambda device: pytest.fail("it was measured"))
    for dtype in ("auto", "float32", "bfloat16"):
        preset = EXPERIMENTS.preset("smoke")
        pace.take_precision(preset.model_copy(update={"engine": InProcessEngine(dtype=dtype)}))
    assert not Layout("smoke").precision.exists()


def test_before_a_precision_is_taken_nothing_computes(preset_of):
    run = Experiments().run("spec_rl/grpo-vanilla", 0, "smoke")
    assert run.identity["dtype"] == "fastest"
    with pytest.raises(UserError, match="has not been taken yet"):
        dtype_of(run.engine)


@pytest.mark.parametrize("text", ["[]", '{"dtype": "float16"}', "{"])
def test_a_damaged_record_is_one_error(preset_of, text):
    file = Layout("smoke").precision
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UserError, match=r"precision\.json"):
        preset_of()


def test_a_measured_precision_is_not_promised_to_be_bitwise_and_is_the_in_process_engine_s():
    with pytest.raises(ValidationError, match="in float32"):
        InProcessEngine(dtype="fastest", bitwise=True)
    with pytest.raises(ValidationError, match="must be auto"):
        VerlEngine(dtype="fastest")


@pytest.mark.parametrize(("option", "dry"), [("-n", True), ("-np", True), ("--dry-run", True), ("-p", False)])
def test_a_dry_run_takes_no_precision(option, dry):
    assert is_dry(["snakemake", option, "--cores", "2"]) == dry
