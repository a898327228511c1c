"""`redraft advise`: work replayed from tokens, its seconds, acceptance from shared tokens, and the command."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.advise import BATCHES, ROOFLINES, Source, outcomes, simulated
from redraft.cli.app import main
from redraft.config.decoding import NGram, Suffix
from redraft.files import own_hash_file
from redraft.lab.advise.advice import advice, fastest, sentence
from redraft.lab.advise.agreement import SharedRatios, distribution_of_kept
from redraft.lab.advise.ranking import ranked
from redraft.lab.advise.replayed import (
    Drafters,
    common_prefix,
    kept_rows,
    ngram_rows,
    one_hot_rows,
    perfect_rows,
    plain_rows,
    suffix_rows,
)
from redraft.lab.advise.sample import PLAIN, PromptSample, work_of
from redraft.lab.advise.work import Column, Device, RowWork, Work
from redraft.lab.predict.saved_rollouts import Draft
from redraft.lab.predict.saved_run import open_run
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.rule import Distributions
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.selfspec.calibration import write_calibration
from redraft.selfspec.devices import A100, DEVICES, calibration_of
from redraft.selfspec.roofline import target_seconds, verify_seconds
from tests.columns import same
from tests.selfspec import QWEN, ROUND
from tests.test_predict import trained

SHORT = {"draft_lengths": [3], "longest": 4, "shortest": 1}
NGRAMS, SUFFIXES = NGram(kind="ngram", **SHORT), Suffix(kind="suffix", least_share=0, **SHORT)
DRAFTERS = Drafters(NGRAMS, SUFFIXES)


@pytest.fixture(scope="module")
def run(tiny_model, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("advise") / "results", tiny_model, Vanilla())


def numbers(text):
    return np.array([int(digit) for digit in text])


def work(*rows):
    """Work of one prompt with these rows."""
    return Work.of_groups([[list(rows)]])


# Seconds


def test_plain_decoding_takes_the_roofline_s_passes():
    rows = plain_rows(range(10), [np.zeros(4), np.zeros(2)])
    passes = work(*rows).passes[0, 0]
    seconds = Device(ROUND, 0.0).seconds(passes)
    # Both prompts, then one pass of two rows and two passes of one; 10 positions have 45 before them.
    prompts = max(100 / 10, (8 * 20 + 1 * 2 * 45) / 4) + 2
    decoding = target_seconds(ROUND, 2, 10) + target_seconds(ROUND, 1, 11) + target_seconds(ROUND, 1, 12)
    assert seconds == pytest.approx(prompts + float(decoding))


def test_a_block_takes_the_roofline_s_verification():
    row = RowWork(np.array([7.0]), np.array([5.0]), np.array([True]))
    found = work(row, row).passes[0, 0]
    # The roofline of self-speculation leaves out that tokens of a block attend to each other: 10 pairs in each row.
    beside = replace(ROUND, costs=replace(ROUND.costs, attention_flops=1e-12))
    assert Device(beside, 0).seconds(found) == pytest.approx(float(verify_seconds(beside, 2, 7, 4)))
    assert found[Column.ATTENDED, 0] == 2 * (5 * 7 + 10)


def test_lookups_cost_time_one_after_the_other():
    passes = work(*plain_rows([1], [np.zeros(2)])).passes[0, 0]
    assert Device(ROUND, 0.5).seconds(passes, 6) == pytest.approx(Device(ROUND, 0).seconds(passes) + 3)


def test_the_a100_is_the_printed_calibration_and_a_file_is_read(tmp_path):
    assert A100 == QWEN
    assert DEVICES["h100"].bandwidth / A100.bandwidth == pytest.approx(3.35 / 2.039)
    write_calibration(tmp_path / "mine.json", ROUND, {})
    assert calibration_of(str(tmp_path / "mine.json"), None) == ROUND


# Work


def test_a_kept_prefix_is_read_and_the_rest_is_decoded():
    row = RowWork.of_prefix(prompt=10, draft=6, kept=4, rest=3)
    assert row.fed.tolist() == [16, 1, 1]
    assert row.cached.tolist() == [0, 14, 15]
    assert row.drafted.tolist() == [True, False, False]
    assert RowWork.of_prefix(10, 6, 6, 0).fed.tolist() == [16], "a whole draft needs no further pass"


def test_n_grams_are_replayed_token_by_token():
    """After 1 2 the pass proposes 3 1 2 from the prompt: all agree, and 3 follows; then 1 2 3, of which 1 agrees."""
    (row,) = ngram_rows(numbers("123").tolist(), [numbers("1231239")], NGRAMS)
    # Token 1 comes with the prompt; then 2 3 1 + 2, then 3 (1 2) + 9.
    assert row.fed.tolist() == [3, 4, 4]
    assert row.cached.tolist() == [0, 3, 7]
    assert row.lookups == 2


def test_an_equal_earlier_response_leaves_a_pass_for_each_block():
    response = numbers("4172953608")
    (row,) = suffix_rows([0], [response], [response], SUFFIXES)
    (bound,) = perfect_rows([0], [response], 3)
    assert len(row.fed) == len(bound.fed) == 1 + math.ceil((len(response) - 1) / 4)
    (alone,) = suffix_rows([0], [response], [], Suffix(kind="suffix", shortest=3, longest=4))
    assert len(alone.fed) == len(response)
    assert not alone.drafted.any()


def test_a_response_that_has_ended_helps_the_others_of_its_group_and_none_before():
    short, long = numbers("55"), numbers("1234567555")
    first, second = suffix_rows([0], [short, long], [], SUFFIXES)
    assert len(first.fed) == 2
    # After its own first 5 another one is proposed, since the short response has two.
    assert second.drafted.tolist().index(True) == 5
    assert second.fed[5] == 2
    assert not any(each.drafted.any() for each in suffix_rows([0], [numbers("12"), numbers("12")], [], SUFFIXES))


def test_proposals_end_where_few_matches_go_on():
    """After the prompt's token and 1 all three responses go on with 2, two of them with 3, and one of these with 4."""
    earlier = [numbers("123456"), numbers("123777"), numbers("128")]
    fed = {}
    for share in (0.0, 0.5, 0.9):
        of_share = Suffix(kind="suffix", least_share=share, shortest=2, draft_lengths=[3])
        (row,) = suffix_rows([0], [numbers("129999")], earlier, of_share)
        fed[share] = row.fed.tolist()[1]
    assert fed == {0.0: 4, 0.5: 3, 0.9: 2}


def test_the_replayed_drafters_have_the_decodings_defaults(run, capsys):
    drafters = Drafters()
    assert (drafters.ngram, drafters.suffix) == (NGram(kind="ngram"), Suffix(kind="suffix"))
    before = advised(capsys, run, "--no-policies")["by_method"]
    other = advised(capsys, run, "--no-policies", "--draft-length", "15", "--shortest", "3")["by_method"]
    assert all(other[name]["passes"] != before[name]["passes"] for name in ("ngram", "suffix"))
    assert other["head"]["saved_high"] > before["head"]["saved_high"] >= 0
    same = ["--draft-length", "8", "--longest", "5", "--shortest", "2"]
    assert advised(capsys, run, "--no-policies", *same)["by_method"]["ngram"] == before["ngram"]
    same = ["--draft-length", "8", "--longest", "24", "--shortest", "1"]
    assert advised(capsys, run, "--no-policies", *same)["by_method"]["suffix"] == before["suffix"]


def test_nothing_is_proposed_after_the_longest_response():
    response = numbers("12345678")
    of_nine = Suffix(kind="suffix", draft_lengths=[9])
    fed = [suffix_rows([0], [response[:limit]], [response], of_nine, limit)[0].fed.tolist() for limit in (8, 3, 2)]
    # Of 8 tokens the first comes with the prompt and the last needs no proposal.
    assert fed == [[1, 7], [1, 2], [1, 1]]


def test_one_hot_keeps_what_draft_and_response_share():
    assert common_prefix(numbers("123"), numbers("1245")) == 2
    assert common_prefix(numbers("12"), numbers("123")) == 2
    drafts, responses = [numbers("123"), numbers("999")], [numbers("1245"), numbers("77")]
    kept, none = one_hot_rows([0], drafts, responses, 0)
    assert (kept.fed[0], len(kept.fed)) == (4, 2)
    assert (none.fed[0], len(none.fed)) == (4, 2)
    assert one_hot_rows([0], drafts, responses, 1)[0].cached.tolist() == [0, 1, 2, 3]


def test_the_rest_after_a_kept_prefix_is_that_of_a_longer_response():
    rng = np.random.default_rng(0)
    certain = np.array([0.0, 0.0, 1.0, -1e-17])
    rows = kept_rows([0], [np.zeros(3)] * 50, [certain] * 50, np.array([1, 2, 5, 9]), rng)
    assert {len(row.fed) for row in rows} == {3, 7}
    assert len(kept_rows([0], [np.zeros(3)], [certain], np.array([1]), rng)[0].fed) == 1, "the draft's own rest"
    whole = np.array([0.0, 0.0, 0.0, 1.0])
    assert len(kept_rows([0], [np.zeros(3)], [whole], np.array([9]), rng)[0].fed) == 1


# Acceptance from shared tokens


def test_shared_tokens_tell_acceptance_without_bias():
    """Independent tokens of known distributions, so that the rules' acceptance is known."""
    rng = np.random.default_rng(1)
    q, p = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.3, 0.4, 0.2, 0.1])

    def sampled(of):
        tokens = rng.choice(4, (30, 6), p=of)
        return [Draft(0, each, np.log(of)[each]) for each in tokens]

    shared = SharedRatios.of((sampled(q), sampled(p)) for _ in range(60))
    exact = np.minimum(q, p).sum() ** np.arange(7)
    assert shared.from_the_left(1.0, 6) == pytest.approx(exact, abs=0.03)
    lenient = np.minimum(q, math.exp(0.5) * p).sum() ** np.arange(7)
    assert shared.from_the_left(math.exp(0.5), 6) == pytest.approx(lenient, abs=0.03)
    log_p, log_q = (np.log(np.tile(each, (6, 1))) for each in (p, q))
    rule, support = BlockRule(), np.tile(np.arange(4), (6, 1))
    reached = np.zeros(7)
    for tokens in rng.choice(4, (1500, 6), p=q):
        at = np.arange(6), tokens
        kept = rule.distribution_of_kept(
            rule.acceptance(Distributions(tokens, log_p[at], log_q[at], support, log_p, log_q))
        )
        reached += kept[::-1].cumsum()[::-1] / 1500
    assert shared.by_block(6) == pytest.approx(reached, abs=0.05)
    assert shared.by_block(6)[3] > shared.from_the_left(1.0, 6)[3]
    assert distribution_of_kept(exact, 3) == pytest.approx([*(exact[:3] - exact[1:4]), exact[3]])


def test_shared_tokens_are_weighted_as_tokens_of_drafts():
    """Single tokens in the very proportions of q = (1/2, 1/2) and p = (9/10, 1/10), which accept 1/2 + 1/10."""

    def those(counts, of):
        return [Draft(0, np.array([token]), np.log([of[token]])) for token, n in enumerate(counts) for _ in range(n)]

    shared = SharedRatios.of([(those((5, 5), (0.5, 0.5)), those((9, 1), (0.9, 0.1)))])
    assert shared.from_the_left(1.0, 1)[1] == pytest.approx(0.6)
    assert shared.from_the_left(0.5, 1)[1] == pytest.approx(0.5 * 0.9 + 0.5 * 0.1)


def test_without_a_shared_token_acceptance_is_not_known():
    assert SharedRatios.of([([Draft(0, numbers("1"), np.zeros(1))], [Draft(0, numbers("2"), np.zeros(1))])]) is None


# Ranking


def sample(prompt, lengths, kept):
    """Drafts and responses of these lengths without a token in common; `kept` of each draft for certain."""
    drafts = [np.full(n, 1) for n in lengths]
    certain = [np.eye(n + 1)[min(kept, n)] for n in lengths]
    return PromptSample([9] * prompt, drafts, [np.full(n, 2) for n in lengths], {"residual": certain})


SAMPLES = [sample(5, (10 + i, 30), 9) for i in range(6)]


def test_methods_are_ranked_by_seconds_with_paired_intervals():
    found = {one.method: one for one in ranked(work_of(SAMPLES, DRAFTERS), Device(QWEN, 0), 2, replicates=60)}
    seconds = [one.seconds.value for one in found.values()]
    assert seconds == sorted(seconds)
    plain, residual = found[PLAIN], found["residual"]
    assert plain.saved.value == plain.saved.low == plain.saved.high == 0
    assert residual.saved.value == pytest.approx(1 - residual.seconds.value / plain.seconds.value)
    assert residual.saved.low < residual.saved.value < residual.saved.high
    assert 0.2 < residual.saved.value < 0.35
    assert plain.passes == 30
    # Each keeps 9 of 30, so 21 are left, the first of them with the draft's pass.
    assert 20 <= residual.passes <= 21
    assert not plain.tied(found["ngram"])
    assert residual.tied(residual)


def test_a_batch_may_have_more_prompts_than_there_are_and_one_prompt_has_no_interval():
    of = work_of(SAMPLES, DRAFTERS)
    few, many = ({one.method: one for one in ranked(of, Device(QWEN, 0), n, replicates=0)} for n in (1, 60))
    assert many[PLAIN].seconds.value > few[PLAIN].seconds.value
    alone = ranked(work_of(SAMPLES[:1], DRAFTERS), Device(QWEN, 0), 1)
    assert all(math.isnan(one.saved.low) for one in alone)


def test_an_inexact_method_is_not_the_advice():
    times = ranked(work_of(SAMPLES, DRAFTERS), Device(QWEN, 0), 1, replicates=20)
    assert fastest(times, {times[0].method: False}).method == times[1].method


# The command


def advised(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["advise", *map(str, arguments), "--json"])
    assert not end.value.code
    content = json.loads(capsys.readouterr().out)
    return content | {"by_method": {row["method"]: row for row in content["rows"]}}


def test_a_run_is_advised_with_and_without_policies(run, capsys, tmp_path):
    found = advised(capsys, run, "--csv", tmp_path / "rows.csv")
    rows = found["by_method"]
    assert {"plain", "ngram", "suffix", "one-hot", "residual", "block", "published, l = e^0.5", "head"} < set(rows)
    assert rows["block"]["source"] == "policies"
    assert rows["head"]["source"] == "unknown"
    assert rows["head"]["seconds"] is None
    assert rows["head"]["saved_low"] == 0 <= rows["head"]["saved_high"]
    assert rows["suffix"]["source"] == "tokens"
    assert [name for name, row in rows.items() if not row["exact"]] == ["published, l = e^0.5"]
    known = [row["seconds"] for row in found["rows"] if row["seconds"] is not None]
    assert known == sorted(known)
    for row in found["rows"]:
        if row["seconds"] is not None:
            assert row["saved"] == pytest.approx(1 - row["seconds"] / rows["plain"]["seconds"])
    assert "Acceptance from policies before and after: 4 and 8, 6 and 10." in found["notes"][0]
    assert "in epoch 2 (from 0)" in found["notes"][0]
    written = pd.read_csv(tmp_path / "rows.csv")
    assert written["method"].tolist() == list(rows)
    assert same("advice", written)
    # The replay needs no policies, but the policies tell acceptance of two of the epoch's four steps only.
    estimated = advised(capsys, run, "--no-policies", "--epoch", "1")["by_method"]
    assert estimated["block"]["source"] == "agreement"
    assert estimated["block"]["passes"] <= estimated["plain"]["passes"]


def test_replayed_lengths_are_the_recorded_ones(run, capsys):
    rows = advised(capsys, run, "--no-policies", "--prompts", "8")["by_method"]
    last = pd.concat(pd.read_parquet(file) for file in sorted(run.glob("rollouts/*.parquet"))[8:])
    assert rows["plain"]["passes"] == last["tokens"].map(len).max()


def test_the_text_fits_and_ends_in_a_sentence(run, capsys):
    with pytest.raises(SystemExit):
        main(["advise", str(run)])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    assert "Advice: " in text
    assert "Unknown: self-speculation: its acceptance was not measured" in text
    assert "The roofline leaves out" in text


def test_the_sentence_names_plain_decoding_where_nothing_saves(run):
    slow = replace(A100, verify_overhead=1e9)
    found = advice(open_run(run), Device(slow, 1.0), DRAFTERS, 1.0, with_policies=False)
    assert found.rows[0].method == "plain"
    assert sentence(found.rows).startswith("Advice: plain decoding; no exact method is predicted to save time here")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--roofline", "tpu"], "no roofline is known by this name"),
        (["--shortest", "9", "--longest", "8"], "no context is both"),
        (["--shortest", "6"], "allowed: 1 to 5"),
        (["--longest", "1"], "2 or more, ngram's shortest match"),
        (["--lenience", "e^x"], "a lenience must be a number"),
        (["--epoch", "7"], "this epoch has no rollouts, or none before it"),
        (["--model", "nowhere.json"], "missing"),
    ],
)
def test_options_that_fit_nothing_raise(arguments, message, run, tmp_path, mistake):
    assert message in mistake(tmp_path, "advise", str(run), *arguments)


def without(run, folder, keep):
    """A copy of the run whose manifest lists the rollouts of these steps only."""
    copy = shutil.copytree(run, folder)
    manifest = json.loads((copy / "manifest.json").read_text())
    listed = manifest["sha256"]
    manifest["sha256"] = {
        name: of for name, of in listed.items() if "rollouts" not in name or int(name[-12:-8]) in keep
    }
    (copy / "manifest.json").write_text(json.dumps(manifest))
    own_hash_file(copy / "manifest.json").unlink()
    return copy


def test_a_run_with_one_epoch_without_rollouts_or_with_reuse_raises(run, tiny_model, tmp_path, mistake):
    one = without(run, tmp_path / "one", range(4))
    assert "two successive epochs" in mistake(tmp_path, "advise", str(one))
    none = without(run, tmp_path / "none", ())
    assert "no rollouts of this run are saved" in mistake(tmp_path, "advise", str(none))
    manifest = json.loads((one / "manifest.json").read_text())
    manifest["configuration"]["reuse"] = {"kind": "speculative"}
    (one / "manifest.json").write_text(json.dumps(manifest))
    said = mistake(tmp_path, "advise", str(one))
    assert "this run reuses rollouts" in said
    assert Speculative().kind in said


# The back-test


def test_a_simulated_regime_has_a_pick_and_what_it_missed():
    """A policy that hardly drifts: whole drafts are kept, and the pick is right."""
    source = Source(vocabulary=8, length=12, drift=0.001, spread=3.0)
    found = pd.DataFrame(outcomes("s", "simulated", simulated(source, DRAFTERS, 0), DRAFTERS))
    assert len(found) == 2 * 2 * len(BATCHES) * len(ROOFLINES)
    assert (found["excess"] >= 0).all()
    few = found[(found["prompts"] == 1) & (found["allowed"] == "exact")]
    assert (few["best"].isin(["block", "residual"])).all()
    assert (few["excess"] < 0.3).all()
