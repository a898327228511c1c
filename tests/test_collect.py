"""Collecting runs: what does not belong together is refused, what is out of date is left out and named."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import yaml

from redraft.analysis.data.collect import Runs, collect
from redraft.analysis.data.sequential import write_looks
from redraft.config import Experiments, run_fingerprint, sampling_fingerprint
from redraft.errors import UserError
from redraft.files import hashes, sha256, write_json
from redraft.layout import Layout

ROOT = Path(__file__).parents[1]
CELL = "spec_rl/grpo-vanilla"
ROLE = "qwen3-1.7b-base"
RUN = Experiments(ROOT).run(CELL, 0, "smoke")
BENCHMARKS = Experiments(ROOT).preset("smoke").benchmarks
SCORES = {
    name: {"correct": 3, "total": benchmark.data.size * benchmark.samples, "role": benchmark.role}
    for name, benchmark in BENCHMARKS.items()
}
SAMPLED = [sampling_fingerprint(Experiments(ROOT).preset("smoke").of_seed(seed)) for seed in (0, 1)]
STEPS = range(RUN.steps)
EVALUATED = (2, 4, 6)


@pytest.fixture
def layout(tmp_path):
    """Two finished runs of the smoke preset."""
    layout = Layout("smoke", tmp_path / "results")
    for seed in (0, 1):
        write_run(layout.run(CELL, seed), seed)
        write_json(initial(layout, seed) / "scores.json", {"0": SCORES})
        write_hashes(initial(layout, seed))
    return layout


def initial(layout, seed):
    return layout.initial("smoke", Experiments(ROOT).preset("smoke").role(ROLE, seed), seed)


def write_hashes(folder, *manifest, generations=None):
    """The records beside an evaluated policy, as they would be of the files that are there."""
    (folder / "grades.parquet").write_text("grades")
    sampled = SAMPLED[int(folder.name[-1])]
    made = generations or {"generations.parquet": "a hash"}
    write_json(folder / "generations.json", {"sampled": sampled, "sha256": made, "made_from": hashes(*manifest)})
    graded = hashes(folder / "grades.parquet", folder / "scores.json")
    write_json(folder / "grades.json", {"sha256": graded, "made_from": made})
    if manifest:
        measured = {"sha256": hashes(folder / "diversity.parquet"), "made_from": hashes(*manifest)}
        write_json(folder / "diversity.json", measured)


def write_run(folder, seed):
    folder.mkdir(parents=True)
    records = [
        {
            "step": i,
            "epoch": i,
            "training_step": i + 1,
            "updated": True,
            "prefix_length": None,
            "full_reuse_ratio": None,
            "kl": None,
            "tokens_verified": 0,
            "passes": [[8, 0, 3, 1.0, 3.0]],
            "seconds": {"total": 1.0},
        }
        for i in STEPS
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pd.DataFrame({"step": STEPS, "epoch": STEPS, "self_bleu_within": 0.5}).to_parquet(folder / "diversity.parquet")
    write_json(folder / "scores.json", {str(step): SCORES for step in EVALUATED})
    fingerprint = run_fingerprint(Experiments(ROOT).run(CELL, seed, "smoke"))
    digests = {"steps.jsonl": sha256(folder / "steps.jsonl")}
    digests |= {f"rollouts/step-{step:04d}.parquet": "a hash" for step in STEPS}
    digests |= {f"policies/step-{step:04d}/model.safetensors": "a hash" for step in EVALUATED}
    manifest = {"run": f"{CELL}/seed{seed}", "fingerprint": fingerprint, "seconds": 2.0, "sha256": digests}
    role = Experiments(ROOT).preset("smoke").role(ROLE, seed)
    write_json(folder / "manifest.json", manifest | {"configuration": {"model_role": role}})
    write_hashes(folder, folder / "manifest.json")


def collected(layout):
    return collect(layout, "spec_rl", Experiments(ROOT))


def test_all_finished_runs_are_collected_and_survive_the_files(layout, tmp_path):
    runs = collected(layout)
    assert list(runs.runs["seed"]) == [0, 1]
    assert len(runs.steps) == 2 * RUN.steps
    assert len(runs.scores) == 2 * len(BENCHMARKS) * (1 + len(EVALUATED))
    assert set(runs.scores["step"]) == {0, *EVALUATED}
    runs.save(tmp_path / "collected")
    pd.testing.assert_frame_equal(Runs.load(tmp_path / "collected").steps, runs.steps)


def test_the_looks_of_a_sequential_campaign_are_collected_and_belong_to_the_blocks(layout, tmp_path):
    assert collected(layout).looks == ()
    write_looks(layout.looks("spec_rl"), (2, 5))
    runs = collected(layout)
    runs.save(tmp_path / "collected")
    loaded = Runs.load(tmp_path / "collected")
    for each in (runs, loaded, loaded.by("training_steps")):
        assert (each.looks, each.blocks.looks, dict(each.blocks)) == ((2, 5), (2, 5), {0: 0, 1: 1})
    edit(tmp_path / "collected/collected.json", lambda record: record.update(looks=[5, 2]))
    with pytest.raises(UserError, match="no looks"):
        Runs.load(tmp_path / "collected")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scores.json", lambda text: text.replace('"correct": 3', '"correct": 4')),
        ("grades.parquet", lambda text: text + " "),
        ("grades.json", lambda text: text.replace("a hash", "another hash")),
    ],
)
@pytest.mark.parametrize("of", ["run", "initial"])
def test_scores_that_are_not_what_was_graded_are_an_error(layout, of, name, change):
    folder = layout.run(CELL, 0) if of == "run" else initial(layout, 0)
    before = (folder / name).read_text()
    assert change(before) != before
    (folder / name).write_text(change(before))
    with pytest.raises(UserError) as error:
        collected(layout)
    assert error.value.file == folder / name


@pytest.mark.parametrize("name", ["generations.json", "diversity.json"])
def test_what_was_made_from_another_run_is_an_error(layout, name):
    folder = layout.run(CELL, 0)
    edit(folder / name, lambda record: record["made_from"].update({"manifest.json": "of another run"}))
    with pytest.raises(UserError, match="made from other files") as error:
        collected(layout)
    assert error.value.file == folder / name


@pytest.mark.parametrize("name", ["manifest.json", "scores.json", "grades.json", "generations.json", "diversity.json"])
@pytest.mark.parametrize("content", [None, [], 7, {"sha256": 3}])
def test_a_file_of_another_type_is_one_error_that_names_it(layout, name, content):
    write_json(layout.run(CELL, 0) / name, content)
    with pytest.raises(UserError, match="this file|made from other files") as error:
        collected(layout)
    assert error.value.file == layout.run(CELL, 0) / name


@pytest.mark.parametrize("name", ["steps.jsonl", "rollouts/step-0003.parquet", "policies/step-0006/model.safetensors"])
def test_a_manifest_without_a_hash_is_an_error(layout, name):
    folder = layout.run(CELL, 0)
    edit(folder / "manifest.json", lambda manifest: manifest["sha256"].pop(name))
    with pytest.raises(UserError, match=f"lacks the hash of {name.removesuffix('/model.safetensors')}") as error:
        collected(layout)
    assert error.value.file == folder / "manifest.json"


def test_a_copy_beside_a_run_is_no_run(layout):
    shutil.copytree(layout.run(CELL, 0), layout.run(CELL, 0).with_name("seed0.bak"))
    assert list(collected(layout).runs["seed"]) == [0, 1]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("runs", lambda frame: pd.concat([frame, frame.iloc[:1]]), "a row occurs twice"),
        ("steps", lambda frame: pd.concat([frame, frame.iloc[-1:]]), "a row occurs twice"),
        ("scores", lambda frame: pd.concat([frame, frame.iloc[:1]]), "a row occurs twice"),
        ("scores", lambda frame: frame.assign(correct=frame["total"] + 1), "no share of right answers"),
        ("scores", lambda frame: frame.assign(total=0, correct=0), "no share of right answers"),
        ("scores", lambda frame: frame.assign(correct=-1), "no share of right answers"),
    ],
)
def test_collected_rows_that_no_campaign_has_are_an_error(layout, tmp_path, name, change, words):
    """Someone else's files may have hashes that fit."""
    runs = collected(layout)
    replace(runs, **{name: change(getattr(runs, name))}).save(tmp_path / "collected")
    with pytest.raises(UserError, match=words) as error:
        Runs.load(tmp_path / "collected")
    assert error.value.file == tmp_path / f"collected/{name}.parquet"


@pytest.mark.parametrize("name", ["runs.parquet", "steps.parquet", "scores.parquet", "collected.json"])
def test_collected_files_that_were_edited_since_are_an_error(layout, name, tmp_path):
    folder = tmp_path / "collected"
    collected(layout).save(folder)
    Runs.load(folder)
    if name.endswith("parquet"):
        pd.read_parquet(folder / name).assign(seed=3).to_parquet(folder / name)
    else:
        edit(folder / name, lambda record: record["sha256"].pop("steps.parquet"))
    with pytest.raises(UserError, match="hash") as error:
        Runs.load(folder)
    assert error.value.file == folder / name


@pytest.mark.parametrize("name", ["generations.parquet", "rollouts/step-0001.parquet", "rollouts/step-0006.parquet"])
def test_damaged_rollouts_and_generations_are_an_error(layout, name):
    """Whole folders may be removed to save space; what is there is what was recorded."""
    folder = layout.run(CELL, 0)
    files = [folder / "generations.parquet", *(folder / f"rollouts/step-000{i}.parquet" for i in STEPS)]
    (folder / "rollouts").mkdir()
    for file in files:
        file.write_bytes(bytes(range(256)) * 20)
    edit(folder / "manifest.json", lambda m: m["sha256"].update({f"rollouts/{f.name}": sha256(f) for f in files[1:]}))
    write_hashes(folder, folder / "manifest.json", generations=hashes(files[0]))
    assert len(collected(layout).runs) == 2
    content = bytearray((folder / name).read_bytes() if (folder / name).exists() else b"unknown")
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match="hash") as error:
        collected(layout)
    assert error.value.file == folder / name


def test_diversity_of_other_rollouts_is_an_error(layout):
    folder = layout.run(CELL, 1)
    frame = pd.DataFrame({"step": STEPS, "epoch": STEPS, "self_bleu_within": 0.25})
    frame.to_parquet(folder / "diversity.parquet")
    with pytest.raises(UserError, match=r"differs from the hash in diversity\.json"):
        collected(layout)


def test_a_run_without_hashes_of_its_evaluation_is_left_out_and_named(layout, capsys):
    (layout.run(CELL, 0) / "grades.json").unlink()
    assert list(collected(layout).runs["seed"]) == [1]
    assert "it was evaluated without grades.json, by an earlier version" in capsys.readouterr().err


def test_seeds_without_a_finished_run_are_named(layout, capsys):
    seeds = Experiments(ROOT).preset("smoke").seeds
    (layout.run(CELL, 0) / "scores.json").unlink()
    collected(layout)
    missing = ", ".join(map(str, sorted({*seeds} - {1})))
    assert f"without seed {missing}: grpo-vanilla has 1 finished runs" in capsys.readouterr().err


def test_more_seeds_of_a_grid_are_missed_for_its_cells_alone(layout, capsys, monkeypatch):
    preset = Experiments(ROOT).preset("smoke")
    for grids, missing in (({"pair": [8, 9]}, "8, 9"), ({"rloo": [8]}, "")):
        more = preset.model_copy(update={"seeds": [0, 1], "more_seeds": {"spec_rl": grids}})
        monkeypatch.setattr(Experiments, "preset", lambda self, name, protocol="", more=more: more)
        collected(layout)
        said = capsys.readouterr().err
        assert said == f"without seed {missing}: grpo-vanilla has 2 finished runs\n" * bool(missing)


def test_a_run_that_is_not_finished_is_left_out(layout):
    (layout.run(CELL, 0) / "scores.json").unlink()
    assert list(collected(layout).runs["seed"]) == [1]


def test_a_run_of_another_configuration_or_other_benchmarks_is_left_out_and_named(layout, capsys):
    edit(layout.run(CELL, 0) / "manifest.json", lambda manifest: manifest.update(fingerprint="of old"))
    assert list(collected(layout).runs["seed"]) == [1]
    assert "its configuration changed" in capsys.readouterr().err
    edit(layout.run(CELL, 1) / "scores.json", lambda scores: scores[str(RUN.steps)].pop(next(iter(BENCHMARKS))))
    with pytest.raises(UserError, match="no finished run"):
        collected(layout)
    assert "since its benchmarks changed" in capsys.readouterr().err


def test_a_run_without_a_record_of_its_sampling_or_with_another_is_left_out_and_named(layout, capsys):
    edit(layout.run(CELL, 0) / "generations.json", lambda record: record.update(sampled="at another temperature"))
    assert list(collected(layout).runs["seed"]) == [1]
    (initial(layout, 1) / "generations.json").unlink()
    with pytest.raises(UserError, match="no finished run"):
        collected(layout)
    assert capsys.readouterr().err.count("what samples them, changed") == 3


def changed_experiments(folder, edit):
    """The experiments with another preset."""
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    path = folder / "experiments/presets/smoke.yaml"
    content = yaml.safe_load(path.read_text())
    edit(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return Experiments(folder)


SAMPLED_OTHERWISE = {
    "temperature": lambda preset: preset["benchmarks"]["arithmetic"].update(temperature=0.123),
    "backend": lambda preset: preset.setdefault("evaluation", {}).update(backend="transformers"),
    "problems": lambda preset: preset["benchmarks"]["arithmetic"]["data"].update(seed=77),
}


@pytest.mark.parametrize("name", SAMPLED_OTHERWISE)
def test_runs_that_were_sampled_otherwise_than_today_are_left_out(name, layout, tmp_path, capsys):
    today = changed_experiments(tmp_path / "today", SAMPLED_OTHERWISE[name])
    with pytest.raises(UserError, match="no finished run"):
        collect(layout, "spec_rl", today)
    assert capsys.readouterr().err.count("what samples them, changed") == 2


def test_each_of_a_run_s_policies_and_its_initial_one_must_be_sampled_as_today(layout, capsys):
    edit(initial(layout, 0) / "generations.json", lambda record: record.update(sampled="otherwise"))
    assert list(collected(layout).runs["seed"]) == [1]
    edit(layout.run(CELL, 1) / "generations.json", lambda record: record.update(sampled="otherwise"))
    with pytest.raises(UserError, match="no finished run"):
        collected(layout)
    assert capsys.readouterr().err.count("what samples them, changed") == 3


def test_a_default_that_has_changed_since_is_noticed_and_a_new_field_is_not_one(layout, capsys):
    def configured(seed, **algorithm):
        run = Experiments(ROOT).run(CELL, seed, "smoke").model_dump(mode="json")
        del run["trainer"]["fresh_samples"]  # as before the field was there
        return run | {"algorithm": run["algorithm"] | algorithm}

    def configure(manifest, seed, **algorithm):
        manifest.update(configuration=configured(seed, **algorithm))

    for seed, algorithm in ((0, {}), (1, {"clip_ratio_c": 5.0})):
        edit(layout.run(CELL, seed) / "manifest.json", partial(configure, seed=seed, **algorithm))
        write_hashes(layout.run(CELL, seed), layout.run(CELL, seed) / "manifest.json")
    assert list(collected(layout).runs["seed"]) == [0]
    assert "a default of its configuration changed" in capsys.readouterr().err


@pytest.mark.parametrize("whose", ["run", "initial"])
def test_a_benchmark_of_which_a_part_was_graded_is_left_out_and_named(whose, layout, capsys):
    first = next(iter(BENCHMARKS))
    folder = layout.run(CELL, 0) if whose == "run" else initial(layout, 0)
    step = str(EVALUATED[0]) if whose == "run" else "0"
    edit(folder / "scores.json", lambda scores: scores[step][first].update(total=SCORES[first]["total"] - 1))
    assert list(collected(layout).runs["seed"]) == [1]
    assert "its benchmarks changed" in capsys.readouterr().err


def test_a_run_whose_policies_of_other_steps_were_graded_is_left_out_and_named(layout, capsys):
    edit(layout.run(CELL, 0) / "scores.json", lambda scores: scores.update({"999": SCORES}))
    assert list(collected(layout).runs["seed"]) == [1]
    edit(layout.run(CELL, 1) / "scores.json", lambda scores: scores.update({"5": scores.pop("4")}))
    with pytest.raises(UserError, match="no finished run"):
        collected(layout)
    assert capsys.readouterr().err.count("its evaluated steps changed") == 3


def test_a_run_without_an_evaluated_initial_policy_is_left_out_and_named(layout, capsys):
    (initial(layout, 1) / "scores.json").unlink()
    assert list(collected(layout).runs["seed"]) == [0]
    assert "its initial policy was not evaluated" in capsys.readouterr().err
    edit(initial(layout, 0) / "scores.json", lambda scores: scores["0"].clear())
    with pytest.raises(UserError, match="no finished run"):
        collected(layout)


def test_each_seed_has_the_initial_scores_of_its_own_evaluation(layout):
    first = next(iter(BENCHMARKS))
    edit(initial(layout, 1) / "scores.json", lambda scores: scores["0"][first].update(correct=7))
    write_hashes(initial(layout, 1))
    scores = collected(layout).scores
    chosen = scores[(scores["step"] == 0) & (scores["benchmark"] == first)]
    assert dict(zip(chosen["seed"], chosen["correct"], strict=True)) == {0: 3, 1: 7}


def test_what_no_step_measured_is_a_column_of_floats(layout):
    steps = collected(layout).steps
    for column in ("kl", "prefix_length", "full_reuse_ratio"):
        assert steps[column].dtype == float
        assert steps[column].isna().all()


def test_lists_of_a_record_are_no_number_of_a_step(layout):
    steps = collected(layout).steps
    assert "passes" not in steps
    assert (steps["seconds.total"] == 1.0).all()


def test_a_run_of_a_cell_that_is_gone_is_left_out(layout, capsys):
    folder = layout.run("spec_rl/grpo-gone", 0)
    shutil.copytree(layout.run(CELL, 0), folder)
    edit(folder / "manifest.json", lambda manifest: manifest.update(run="spec_rl/grpo-gone/seed0"))
    assert set(collected(layout).runs["cell"]) == {"grpo-vanilla"}
    assert "its cell changed" in capsys.readouterr().err


def test_records_that_lost_lines_are_refused(layout):
    file = layout.run(CELL, 0) / "steps.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match=r"steps\.jsonl: this file differs from the hash in manifest\.json"):
        collected(layout)


@pytest.mark.parametrize(
    ("steps", "epochs"),
    [([0], [0]), ([0, 2], [0, 2]), ([0, 1, 2], [0, 1, 2]), ([1, 0], [1, 0]), ([0, 1], [5, 6])],
    ids=str,
)
def test_diversity_of_other_steps_is_refused(steps, epochs, layout):
    folder = layout.run(CELL, 0)
    frame = pd.DataFrame({"step": steps, "epoch": epochs, "self_bleu_within": 0.5})
    frame.to_parquet(folder / "diversity.parquet")
    write_hashes(folder, folder / "manifest.json")
    with pytest.raises(UserError, match="other steps or epochs than were recorded"):
        collected(layout)


def edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    write_json(file, content)
