"""Settings that would have no effect are refused when they are read: a reader would take them for applied."""

import re

import pytest
from pydantic import TypeAdapter, ValidationError

from redraft.config import (
    PPO,
    CellTable,
    Experiments,
    HubProblems,
    Preset,
    PretrainedModel,
    SelfSpeculation,
    Staged,
    Suffix,
    WarmStart,
)
from redraft.config.claims import Printed
from redraft.config.data import Sampling
from redraft.config.tables import PublishedTable
from redraft.config.trainer import Engine
from redraft.errors import UserError

EXPERIMENTS = Experiments()
HUB = {"id": "a/b", "files": ["*test*"], "local": "b.jsonl", "size": 3}
GYM = [{"kind": "reasoning_gym", "task": "chain_sum"}]
HASH = "0" * 64


def table(**column):
    """A table with one column."""
    column = {"name": "c", "title": "C", "quantity": "tokens_decoded"} | column
    rows = [{"label": "A", "cell": "a"}, {"label": "B", "cell": "b"}]
    return {"number": 1, "title": "T", "baseline": "a", "columns": [column], "rows": rows}


@pytest.mark.parametrize(
    ("model", "fields", "says"),
    [
        (HubProblems, HUB | {"sha256": {"tset.jsonl": HASH}}, "no file tset.jsonl is read"),
        (HubProblems, HUB | {"sha256": {"*test*": HASH}}, "is read, so its hash would not be checked"),
        (HubProblems, HUB | {"local": "./b.jsonl", "sha256": {"./b.jsonl": HASH}}, "no file ./b.jsonl is read"),
        (HubProblems, HUB | {"sha256": {"b.jsonl": ""}}, "should match pattern"),
        (PretrainedModel, {"path": "/models/x", "revision": "abc"}, "a local folder has no revision"),
        (PretrainedModel, {"path": "./x", "revision": "abc"}, "a local folder has no revision"),
        (WarmStart, {"problems": GYM, "error_share": 0.5}, "error_share has no effect with problems"),
        (WarmStart, {"problems": GYM, "data": {"min_terms": 2}}, "data has no effect with problems"),
        (WarmStart, {"final_steps": 0, "final_learning_rate": 0.1}, "final_learning_rate has no effect"),
        (WarmStart, {"final_steps": 0, "final_guess_share": 0.1}, "final_guess_share has no effect"),
        (WarmStart, {"steps": 0, "learning_rate": 0.1}, "learning_rate has no effect with steps: 0"),
        (WarmStart, {"steps": 0, "guess_share": 0.1}, "guess_share has no effect with steps: 0"),
        (WarmStart, {"steps": 0, "final_steps": 0, "batch_size": 3}, "batch_size has no effect without steps"),
        (Suffix, {"kind": "suffix", "ramp": 3}, "ramp has no effect with when: always"),
        (Suffix, {"kind": "suffix", "raise_at": 0.9}, "raise_at has no effect with a single draft length"),
        (Suffix, {"kind": "suffix", "lower_at": 0.1}, "lower_at has no effect with a single draft length"),
        (Suffix, {"kind": "suffix", "patience": 3}, "patience has no effect with a single draft length"),
        (CellTable, table(printed_relative=True), "printed_relative (c) has no effect without reported columns"),
        (Staged, {"replay": "none", "capacity": 3}, "capacity has no effect with replay: none"),
        (Staged, {"replay": "none", "evict": "newest"}, "evict has no effect"),
        (Staged, {"replay": "none", "replaced": "first"}, "replaced has no effect"),
        (SelfSpeculation, {"kind": "self_speculation", "when": "always", "margin": 0.2}, "margin has no effect"),
        (Sampling, {"temperature": 0, "samples": 8}, "all samples of a problem are equal"),
        (Printed, {"number": "1.5", "relative": "speedup"}, "relative (speedup) needs a baseline"),
        (Printed, {"number": "1.5", "ends": True}, "a single number has no ends"),
        (CellTable, table(relative="ratio", reported=["t"], without_first_epoch=True), "needs relative: ratio"),
        (
            CellTable,
            table(quantity="reuse_epochs:tokens_decoded", relative="ratio", without_first_epoch=True),
            "reported columns that are not printed_relative",
        ),
        (CellTable, table(quantity="speedup:honest", relative="difference"), "is a speedup itself"),
        (CellTable, table(quantity="accuracy:*", reported=["t"]), "columns of the benchmarks' names"),
        (PublishedTable, {"mean_row": True}, "only a table of runs has a mean_row"),
    ],
)
def test_a_setting_without_an_effect_is_refused(model, fields, says):
    with pytest.raises(ValidationError, match=re.escape(says)):
        model.model_validate(fields)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (HubProblems, HUB | {"sha256": {"b.jsonl": HASH, "my-test-0.parquet": HASH}}),
        (PretrainedModel, {"path": "owner/model", "revision": "abc"}),
        (WarmStart, {"problems": GYM, "guess_share": 0.5}),
        (Staged, {"replay": "stored", "capacity": 3, "evict": "newest", "replaced": "first"}),
        (SelfSpeculation, {"kind": "self_speculation", "margin": 0.2}),
        (SelfSpeculation, {"kind": "self_speculation", "ramp": 3, "raise_at": 0.9, "lower_at": 0.1, "patience": 3}),
        (WarmStart, {"final_steps": 1, "final_learning_rate": 0.1, "final_guess_share": 0.1}),
        (Sampling, {"temperature": 0.5, "samples": 8}),
        (Printed, {"number": "1.5–2", "ends": True}),
        (
            CellTable,
            table(quantity="reuse_epochs:tokens_decoded", relative="ratio", reported=["t"], without_first_epoch=True),
        ),
        (CellTable, table(quantity="speedup:honest")),
    ],
)
def test_where_it_has_one_it_is_read_and_read_again(model, fields):
    read = model.model_validate(fields)
    assert model.model_validate(read.model_dump()) == read, "a saved run has all fields"


def test_a_calibration_is_of_a_model_that_the_preset_has():
    tiny = EXPERIMENTS.preset("tiny").model_dump() | {"protocol": "", "protocols": {}, "probe": ""}
    tiny["engine"] |= {"calibrations": {"qwen-typo": "c.json"}}
    with pytest.raises(ValidationError, match="the preset has no model qwen-typo"):
        Preset.model_validate(tiny)


@pytest.mark.parametrize("calibrations", [3, True, [{}], "abc"])
def test_calibrations_of_a_model_that_are_no_mapping_are_one_error(calibrations):
    tiny = EXPERIMENTS.preset("tiny").model_dump() | {"protocol": "", "protocols": {}, "probe": ""}
    tiny["engines"] = {"qwen3-1.7b-base": {"calibrations": calibrations}}
    with pytest.raises(ValidationError, match="valid dictionary"):
        Preset.model_validate(tiny)


def test_a_stopped_gradient_is_no_part_of_ppo():
    cell = EXPERIMENTS.cell("ar3po/ar3po").model_copy(update={"algorithm": PPO()})
    with pytest.raises(UserError, match="PPO's advantages have no group baseline") as error:
        EXPERIMENTS.run_of(cell, 0, "tiny")
    assert error.value.key == "reuse.replay"
    stored = cell.model_copy(update={"reuse": cell.reuse.model_copy(update={"replay": "stored"})})
    assert EXPERIMENTS.run_of(stored, 0, "tiny").algorithm == PPO()


@pytest.mark.parametrize("key", ["global_profiler.steps", "critic.model.override_config.attn_implementation"])
def test_keys_that_verl_would_not_read_are_refused(key):
    with pytest.raises(ValidationError, match="a site may not set"):
        TypeAdapter(Engine).validate_python({"kind": "verl", "verl": {key: 1}})
