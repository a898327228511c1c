"""What `redraft list`, `show`, `status`, `compare` and `cost` print, and how little a call of help imports."""

import errno
import io
import json
import re
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

import redraft
from redraft.cli.app import COMMANDS, main
from redraft.cli.arguments import DEFAULT_PRESET
from redraft.cli.cells import _fields
from redraft.config import Experiments
from tests.finished import CELLS, SECONDS, finish

ROOT = Path(__file__).parents[1]


def printed(folder, *arguments):
    """Standard output of a command, called in this process."""
    out = io.StringIO()
    with chdir(folder), redirect_stdout(out), pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert not end.value.code
    return out.getvalue()


def document(folder, *arguments):
    """The JSON document of a command; all have one shape."""
    content = json.loads(printed(folder, *arguments, "--json"))
    assert list(content) == ["command", "asked", "rows", "notes"]
    assert content["command"] == arguments[0]
    assert all(row.keys() == content["rows"][0].keys() for row in content["rows"])
    return content


def test_list_fits_80_columns_and_shows_models_data_and_seeds_by_paper(folder):
    finish(folder, "spec_rl/grpo-vanilla", seed=1)
    finish(folder, "spec_rl/ppo-vanilla", seed=0)
    outdated = finish(folder, "spec_rl/ppo-vanilla", seed=2) / "manifest.json"
    outdated.write_text(json.dumps(json.loads(outdated.read_text()) | {"fingerprint": "another"}))
    lines = printed(folder, "list").splitlines()
    assert max(map(len, lines)) <= 80
    headers = [re.split(r" {2,}", line) for line in lines if line.startswith("cell of ")]
    assert headers == [[f"cell of {paper}", "model", "data", "state"] for paper in Experiments(ROOT).papers]
    rows = [re.split(r" {2,}", line) for line in lines]
    assert ["grpo-vanilla", "qwen3-1.7b-base", "deepmath-6k", "1/3 done"] in rows
    outdated = rows.index(["ppo-vanilla", "qwen3-1.7b-base", "deepmath-6k", "1/3 done, 1"])
    assert rows[outdated + 1] == ["", "outdated"], "broken into two lines"
    of_paper = printed(folder, "list", "spec_rl").splitlines()
    assert [line.split()[2] for line in of_paper if line.startswith("cell of ")] == ["spec_rl"]
    assert f"{len(Experiments(ROOT).cells('spec_rl'))} cells" in of_paper[-2]


def test_list_as_json_has_every_cell_and_says_what_a_preset_lacks(folder):
    finish(folder, "spec_rl/grpo-vanilla", seed=1)
    rows = {row["cell"]: row for row in document(folder, "list")["rows"]}
    assert len(rows) == sum(len(Experiments(ROOT).cells(paper)) for paper in Experiments(ROOT).papers)
    assert rows["spec_rl/grpo-vanilla"] == {
        "paper": "spec_rl",
        "cell": "spec_rl/grpo-vanilla",
        "model": "qwen3-1.7b-base",
        "data": "deepmath-6k",
        "reuse": "vanilla",
        "schedule": "-",
        "decoding": "-",
        "state": "1/3 done",
        "seeds_done": [1],
    }
    preset = yaml.safe_load((folder / "experiments/presets/tiny.yaml").read_text())
    del preset["models"]["qwen3-14b-base"]
    (folder / "experiments/presets/few.yaml").write_text(yaml.safe_dump(preset | {"name": "few"}))
    rows = {row["cell"]: row for row in document(folder, "list", "--preset", "few")["rows"]}
    assert rows["spec_rl/14b-grpo-vanilla"]["state"] == "not at this preset"
    assert rows["spec_rl/grpo-vanilla"]["state"] == "0/3 done"
    for seed in (0, 2, 7):
        finish(folder, "spec_rl/grpo-vanilla", seed=seed)
    rows = {row["cell"]: row for row in document(folder, "list")["rows"]}
    assert rows["spec_rl/grpo-vanilla"]["state"] == "4/4 done", "one of them is beyond the preset's seeds"


def test_a_file_with_a_mistake_is_named_behind_the_cells_of_the_others(folder, mistake):
    file = folder / "experiments/ar3po/cells.yaml"
    file.write_text(file.read_text().replace("title:", "titel:"))
    text = mistake(folder, "list")
    assert "ar3po/cells.yaml: there is no such key" in text
    assert "titel" in text
    assert "title" in text.partition("allowed:")[2]


def test_show_as_json_has_every_field_with_its_origin(folder):
    found = document(folder, "show", "spec_rl/grpo-spec-l0.5", "--seed", "3")
    rows = {row["field"]: row for row in found["rows"]}
    assert found["asked"] == {"cell": "spec_rl/grpo-spec-l0.5", "preset": "tiny", "seed": 3, "backend": None, "set": []}
    assert rows["reuse.lenience"] == {"field": "reuse.lenience", "value": "e^0.5", "origin": None}
    assert rows["trainer.group_size"]["value"] == 4
    assert "preset tiny" in rows["trainer.group_size"]["origin"]
    text = yaml.safe_load(printed(folder, "show", "spec_rl/grpo-spec-l0.5", "--seed", "3"))
    assert {row["field"].partition(".")[0] for row in found["rows"]} == set(text)
    assert _fields({"a": {"b": {"c": 1}, "d": {}}}) == [{"field": "a.b.c", "value": 1}, {"field": "a.d", "value": {}}]


def test_a_variant_is_shown_and_costed_and_kept_nowhere(folder, mistake):
    changes = ["--set", "trainer.group_size=8", "--set", "reuse.lenience=e^0.4"]
    rows = {row["field"]: row for row in document(folder, "show", "spec_rl/grpo-spec-l0.5", *changes)["rows"]}
    assert (rows["trainer.group_size"]["value"], rows["trainer.group_size"]["origin"]) == (8, "cell")
    assert rows["reuse.lenience"]["value"] == "e^0.4"
    usual = document(folder, "cost", "spec_rl/grpo-spec-l0.5", "--preset", "paper")["rows"][0]
    found = document(folder, "cost", "spec_rl/grpo-spec-l0.5", "--set", "trainer.group_size=16", "--preset", "paper")
    assert found["rows"][0]["name"] == "grpo-spec-l0.5-group_size16"
    assert found["rows"][0]["hours"] == pytest.approx(2 * usual["hours"], rel=0.2), "of groups twice as large"
    assert not (folder / "experiments/own").exists()
    for command in ("show", "cost"):
        assert "--set: there is no such key" in mistake(
            folder, command, "spec_rl/grpo-vanilla", "--set", "trainer.groups=1"
        )


def test_costs_at_a_scale_that_was_timed_elsewhere_say_so_and_others_are_unknown(folder):
    (folder / "workflows").mkdir()
    (folder / "workflows/seconds.yaml").write_text("work: 1000\npresets: {tiny: {train: 2.9e+6}}")
    (tiny, *_) = document(folder, "cost", CELLS[0])["rows"]
    assert 10 / 3600 < tiny["hours_per_run"] < 29000 / 3600, "2,900 times a piece of work: 3 ms to 10 s"
    assert "another machine" in tiny["source"]
    other = document(folder, "cost", CELLS[0], "--preset", "verl-tiny")["rows"]
    assert {(row["hours"], row["cumulative"]) for row in other} == {(None, None)}


def test_status_names_its_preset_and_papers_and_counts_finished_runs_of_other_cells(folder):
    core = ["preset tiny: spec_rl, grid core", "12 runs: 12 waiting"]
    assert printed(folder, "status").splitlines() == core
    for cell in ("ar3po/ar3po", "spec_rl/rloo-vanilla", CELLS[0]):
        finish(folder, cell)
    (finish(folder, "ar3po/dapo") / "manifest.json").unlink()
    assert Experiments(ROOT).cell(CELLS[0]) in Experiments(ROOT).cells("spec_rl", ["core"])
    target, counts, *besides = printed(folder, "status").splitlines()
    assert (target, counts) == (core[0], "12 runs: 1 done, 11 waiting")
    others = "2 finished runs of other cells: 1 of ar3po, 1 of spec_rl"
    assert " ".join(besides) == f"also {others} (`redraft list` shows which)"
    found = document(folder, "status", "spec_rl", "--grid", "core")
    assert found["asked"] == {"preset": "tiny", "grids": {"spec_rl": ["core"]}}
    assert others in " ".join(found["notes"][0].split())
    (done,) = (row for row in found["rows"] if row["state"] == "done")
    assert (done["cell"], done["seed"], done["step"], done["detail"]) == (CELLS[0], 0, 30, [])
    assert "also" not in printed(folder, "status", "ar3po", "--preset", "smoke")


def test_compare_fits_80_columns_and_as_json_has_the_numbers(folder):
    for seed, rollouts in enumerate([(2.0, 1.0), (2.0, 0.5)]):
        for cell, seconds in zip(CELLS, rollouts, strict=True):
            finish(folder, cell, seed=seed, seconds=SECONDS | {"rollout": seconds})
    lines = printed(folder, "compare", *CELLS).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [f"first:  {CELLS[0]}", f"second: {CELLS[1]}"]
    text = " ".join(" ".join(lines).split())
    assert "rollout_seconds (s)" in text
    assert "2.828 × as fast" in text
    assert "[0.035, 2 231.217]" in text, "seeds are in the next column"
    rows = {row.pop("quantity"): row for row in document(folder, "compare", *CELLS)["rows"]}
    assert rows["rollout_seconds"] == {
        "unit": "s",
        "first": 60.0,
        "second": 22.5,
        "relation": "speedup",
        "against": pytest.approx(8**0.5),
        "seeds": 2,
        "low": pytest.approx(0.0346, abs=1e-4),
        "high": pytest.approx(231.217, abs=1e-3),
    }
    assert rows["fresh_reward"]["against"] is None, "not a number"


def test_all_commands_have_the_workflow_s_preset_and_cost_says_how_to_ask_for_the_papers_scale(folder):
    assert yaml.safe_load((ROOT / "config/config.yaml").read_text())["preset"] == DEFAULT_PRESET
    lines = printed(folder, "cost", CELLS[0]).splitlines()
    assert lines[0] == "costs at the preset tiny; `--preset paper` is the papers' scale"
    found = document(folder, "cost", CELLS[0], "--preset", "paper")
    assert found["asked"]["preset"] == "paper"
    assert found["notes"][0] == "costs at the preset paper"
    (cell,) = (row for row in found["rows"] if row["kind"] == "cell")
    assert (cell["name"], cell["paper"], cell["runs"], cell["source"]) == ("grpo-vanilla", "spec_rl", 3, "Table 4")
    assert cell["added"] is None


@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_cost_fits_80_columns_and_letters_stand_for_its_sources(folder, scale):
    lines = printed(folder, "cost", "spec_rl", "--preset", scale).splitlines()
    assert max(map(len, lines)) <= 80
    letters = dict(line.split(": ", 1) for line in lines if re.match("[a-z]+: ", line))
    cell = next(line.split() for line in lines if line.startswith("grpo-vanilla "))
    wide = printed(folder, "cost", "spec_rl", "--preset", scale, "--wide").splitlines()
    row = next(line for line in wide if line.startswith("grpo-vanilla "))
    assert row.endswith(letters[cell[-1]])
    assert "policies GB" in next(line for line in wide if line.startswith("cell "))


def test_a_run_as_json_has_its_quantities_by_seed_and_its_jobs_write_to_standard_error(folder, monkeypatch):
    calls = []

    def finished(command, results, stdout):
        assert results == Path("results")
        calls.append((command, stdout))
        for seed in (0, 2):
            finish(folder, CELLS[0], seed=seed, correct=3 - seed)
        return 0

    monkeypatch.setattr("redraft.ops.workflow.call.call", finished)
    (folder / "Snakefile").touch()
    found = document(folder, "run", CELLS[0], "--seed", "0", "--seed", "2")
    ((command, stdout),) = calls
    assert stdout is sys.stderr
    assert command[-1] == f"results/tiny/runs/{CELLS[0]}/seed2/diversity.parquet"
    accuracies = {row["seed"]: row["value"] for row in found["rows"] if row["quantity"] == "accuracy:all"}
    assert accuracies == {0: 75.0, 2: 25.0}
    assert "--forcerun collect" in found["notes"][0]


def test_rollouts_that_exceed_the_memory_are_refused_before_any_job(folder, monkeypatch, mistake):
    (folder / "Snakefile").touch()
    monkeypatch.setattr("redraft.ops.workflow.call.call", lambda *_: pytest.fail("a job was started"))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1000))
    text = mistake(folder, "run", CELLS[0])
    assert "do not fit into this machine's memory" in text
    assert "GiB" in text


def test_a_run_whose_jobs_fail_ends_with_their_exit_code_and_prints_no_quantities(folder, monkeypatch, capsys):
    calls = []

    def failed(command, results, stdout):
        calls.append(command)
        return 3

    monkeypatch.setattr("redraft.ops.workflow.call.call", failed)
    (folder / "Snakefile").touch()
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(["run", CELLS[0], "--preset", "smoke"])
    assert end.value.code == 3
    assert capsys.readouterr().out == ""
    config, scores, diversity = calls[0][calls[0].index("--config") + 1], *calls[0][-2:]
    assert config == "preset=smoke"
    run = f"results/smoke/runs/{CELLS[0]}/seed0"
    assert (scores, diversity) == (f"{run}/scores.json", f"{run}/diversity.parquet")


def test_the_call_that_makes_the_tables_names_another_preset_than_the_usual_one():
    from redraft.cli.runs import _table_command

    assert _table_command(CELLS[0], Experiments(ROOT), "smoke").startswith(
        "`snakemake --config preset=smoke --forcerun"
    )
    assert _table_command(CELLS[0], Experiments(ROOT), DEFAULT_PRESET).startswith("`snakemake --forcerun")


def test_cost_of_several_papers_and_of_extras_has_all_lines_in_its_file(folder):
    names = {}
    for options in ([], ["--extras"]):
        printed(folder, "cost", "spec_rl", "ar3po", *options, "--csv", "cost.csv")
        written = pd.read_csv(folder / "cost.csv")
        assert set(written["paper"]) >= {"spec_rl", "ar3po"}
        names[bool(options)] = set(written.loc[written["kind"] == "cell", "name"])
    assert "rloo-vanilla" in names[True] - names[False]


def test_a_file_without_access_is_one_message_and_another_error_of_the_system_keeps_its_traceback(capsys):
    def call(error):
        def command(args):
            raise error

        main([], command)

    with pytest.raises(SystemExit) as end:
        call(PermissionError(errno.EACCES, "Permission denied", "results/x"))
    assert (end.value.code, capsys.readouterr().err) == (2, "error: results/x: permission denied\n")
    with pytest.raises(OSError, match="Input/output error"):
        call(OSError(errno.EIO, "Input/output error", "results/x"))


def test_a_log_of_prompts_is_printed_as_csv_or_json(folder, monkeypatch):
    log, asked = pd.DataFrame({"uid": ["0-1"], "step": [3], "reused": [True], "share": [float("nan")]}), []
    monkeypatch.setattr(
        "redraft.analysis.data.prompt_frames.prompt_log", lambda run, place: asked.append((run.seed, place.name)) or log
    )
    assert printed(folder, "prompts", CELLS[0]) == log.to_csv(index=False)
    rows = document(folder, "prompts", CELLS[0], "--seed", "1")["rows"]
    assert asked == [(0, "seed0"), (1, "seed1")]
    assert rows == [{"uid": "0-1", "step": 3, "reused": True, "share": None}]
    assert printed(folder, "prompts", CELLS[0], "--file", "log.csv") == "1 prompts: log.csv\n"
    assert len(document(folder, "prompts", CELLS[0], "--file", "log.csv")["rows"]) == 1
    assert (folder / "log.csv").read_text() == log.to_csv(index=False)


# How little is imported.


HEAVY = ("torch", "transformers", "pandas", "numpy", "yaml", "analysis", "redraft.config", "snakemake")
PROBE = """
import sys
from redraft.cli.app import main
try:
    main(sys.argv[2:])
except SystemExit as end:
    code = end.code
found = [name for name in sys.argv[1].split(",") if name in sys.modules]
print("\\nLOADED", code, *found)
"""


def loaded(*arguments, cwd=ROOT):
    """Exit code of a command in a process of its own, and the heavy packages that it has imported."""
    command = [sys.executable, "-c", PROBE, ",".join(HEAVY), *arguments]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    code, *found = result.stdout.splitlines()[-1].split()[1:]
    return code, found


@pytest.mark.parametrize("command", [[], ["list"], ["evaluate"]])
def test_help_imports_nothing_heavy(command):
    """The help of all commands is made at once, so that this bounds what any command's module imports."""
    assert loaded(*command, "--help") == ("0", [])


@pytest.mark.parametrize(
    "arguments",
    [
        ["experiments/spec_rl"],
        ["no/such/folder"],
        ["a/b", "--protocol", "tinny"],
        ["a/b", "--backend", "sglang"],
        ["a/b", "--protocol", "tiny", "--benchmarks", "sums"],
        ["a/b", "--harness", "x"],
        ["a/b", "--benchmarks", "math500", "--lighteval"],
    ],
)
def test_evaluate_refuses_a_question_before_it_imports_what_samples_and_grades(arguments):
    code, found = loaded("evaluate", *arguments)
    assert code == "2"
    assert not {"torch", "transformers", "pandas", "numpy", "analysis"} & set(found)


def test_the_version_names_the_commit_if_it_is_known(folder, monkeypatch):
    from redraft import provenance

    for state, text in [
        ({"commit": "abc", "modified": True}, " (commit abc, with changes)"),
        ({"commit": "abc", "modified": False}, " (commit abc)"),
        ({"commit": None, "modified": None}, ""),
    ]:
        monkeypatch.setattr(provenance, "git_state", lambda found=state: found)
        assert printed(folder, "--version") == f"redraft {redraft.__version__}{text}\n"


def test_the_package_is_a_module_that_runs_and_a_typo_is_answered_by_what_is_near():
    result = subprocess.run([sys.executable, "-m", "redraft", "lst"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "Did you mean 'list'?" in result.stderr


def test_completion_knows_all_commands(monkeypatch):
    environment = {"_REDRAFT_COMPLETE": "complete_bash", "COMP_WORDS": "redraft ", "COMP_CWORD": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = subprocess.run(["redraft"], capture_output=True, text=True, check=False)
    assert set(result.stdout.split()) == set(COMMANDS)


def test_the_documentation_names_every_command_and_which_of_them_print_json():
    text = (ROOT / "docs/cli.md").read_text()
    first, _, rest = text.partition("## One preset")
    assert {
        name for row in re.findall(r"^\| (`.+?) \|", first, re.M) for name in re.findall(r"`([a-z-]+)", row)
    } == set(COMMANDS)
    parts = {name: target.partition(":") for name, target in COMMANDS.items()}
    functions = {name: getattr(import_module(module), function) for name, (module, _, function) in parts.items()}
    taking = {name for name, function in functions.items() if "as_json" in signature(function).parameters}
    assert set(COMMANDS) - taking == set(
        re.findall(r"`(\w+)`", re.search(r"All commands but (.+) take `--json`", rest)[1])
    )


def test_the_error_in_the_documentation_is_the_one_that_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with chdir(ROOT), pytest.raises(SystemExit):
        main(["show", "spec_rl/grpo-vanila"])
    assert capsys.readouterr().err in (ROOT / "docs/cli.md").read_text()


ERRORS = {
    "run-until": [["nothing"], ["spec_rl", "--looks", "5,x"], ["spec_rl", "--target", "everything"]],
    "list": [["nope"], ["--preset", "nope"]],
    "show": [["nope"], [CELLS[0], "--preset", "nope"], []],
    "run": [["nope"], []],
    "status": [["nope"], ["--preset", "nope"]],
    "compare": [["nope", "nope"], [*CELLS]],
    "prompts": [["nope"], [CELLS[0]]],
    "evaluate": [["nope/x", "--protocol", "nope"]],
    "agreement": [["a", "b"]],
    "sensitivity": [["nope/x", "--protocol", "nope"]],
    "regrade": [["nope"]],
    "cost": [["nope"], ["--memory", "--csv", "a.csv"], ["--memory", "--gpus", "4"], ["--memory", "--wide"]],
    "results": [[]],
    "claims": [["nope"]],
    "seeds": [["nope"], ["quality-kept"], []],
    "doctor": [["--preset", "nope"]],
    "calibrate": [["a.csv", "--model", "b", "--out", "c"]],
    "simulate": [["a.json", "--lengths", "1"]],
    "replay": [["a.jsonl"]],
    "predict": [["nope"]],
    "advise": [["nope"], ["nope", "--roofline", "tpu"]],
    "audit": [["nope"], ["rules", "--samples", "9"], ["rules", "--temperature", "0.5"]],
    "check": [["nope"]],
    "certify": [["nope"], ["nope", "--policy", "nope", "--prompts", "nope"]],
    "validate": [["nope"]],
}


def failed(folder, capsys, *arguments):
    """Standard output of a command that ends with an error, which it prints on standard error.

    The error is about an unknown option only where `arguments` have one.
    """
    capsys.readouterr()
    with chdir(folder), pytest.raises(SystemExit) as end:
        main(list(arguments))
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert printed.err
    assert "Traceback" not in printed.err
    assert ("No such option" in printed.err) == ("--no-such-option" in arguments)
    return printed.out


def test_every_command_with_json_prints_a_document_or_nothing_if_it_fails(folder, capsys):
    (folder / "results").mkdir()
    assert ERRORS.keys() == COMMANDS.keys() - {"share", "report", "publish", "recover", "new", "schema"}
    for command, calls in ERRORS.items():
        for arguments in [*calls, ["--no-such-option"]]:
            out = failed(folder, capsys, command, *arguments, "--json")
            assert not out or json.loads(out)["command"] == command


NEEDED = {"show": CELLS[:1], "run": CELLS[:1], "compare": CELLS, "prompts": CELLS[:1]}
NEEDED |= {"seeds": ["spec_rl"], "run-until": ["spec_rl"], "publish": ["spec_rl"]}
"""Arguments without which a command with a preset does not start."""


def test_every_command_names_the_presets_that_there_are(folder, mistake):
    (folder / "results").mkdir()
    (folder / "Snakefile").touch()
    functions = {name: import_module((where := of.split(":"))[0]).__dict__[where[1]] for name, of in COMMANDS.items()}
    having = [name for name, function in functions.items() if "preset" in signature(function).parameters]
    assert {"list", "results", "share", "claims", "run", *NEEDED} <= set(having)
    for name in having:
        text = mistake(folder, name, *NEEDED.get(name, []), "--preset", "smkoe")
        assert "no such preset key: preset value: 'smkoe' allowed: smoke" in text, name
    every = "allowed: paper, smoke, smol, tiny, verl-smol, verl-tiny"
    assert every in mistake(folder, "results", "--preset", "nope")
    assert "`snakemake --config preset=smoke` makes it" in mistake(folder, "results", "--preset", "smoke")
    # Results of a preset that this code lacks, such as those that were unpacked for a report.
    (folder / "results/other").mkdir()
    assert "there is no report yet" in mistake(folder, "results", "--preset", "other")


def test_names_of_papers_and_claims_are_answered_with_similar_ones(folder, mistake):
    (folder / "results").mkdir()
    (folder / "Snakefile").touch()
    for arguments in (["list"], ["validate"], ["claims"], ["run-until"], ["status"], ["publish"]):
        assert "value: 'spec_lr' allowed: spec_rl, speed_rl" in mistake(folder, *arguments, "spec_lr"), arguments
    papers = ", ".join(Experiments(ROOT).papers)
    for name, allowed in (
        ("nope", f"{papers}, the id of a claim in experiments/PAPER/claims.yaml"),
        ("spec_lr", "spec_rl, speed_rl"),
        ("spec_rl/qwertz", "the id of a claim in experiments/spec_rl/claims.yaml"),
        ("qualty-kept", "quality-kept"),
    ):
        text = mistake(folder, "seeds", name)
        assert "no such claim" in text
        assert allowed in text
    assert "no such paper key: claim value: 'spec_lr' allowed: spec_rl" in mistake(folder, "seeds", "spec_lr/x")


@pytest.mark.parametrize("file", ["spec_rl/cells.yaml", "presets/tiny.yaml"])
def test_a_damaged_declaration_leaves_a_document_or_nothing(folder, capsys, file):
    (folder / "results").mkdir()
    (folder / "experiments" / file).write_text("a: [")
    calls = [["list"], ["validate"], ["show", CELLS[0]], ["status"], ["cost"], ["compare", *CELLS]]
    for command, *arguments in calls:
        out = failed(folder, capsys, command, *arguments, "--json")
        assert not out or json.loads(out)["command"] == command


def test_what_libraries_print_while_they_evaluate_is_not_part_of_the_document(folder, monkeypatch, capsys):
    from redraft.evaluate import command

    def noisy(_):
        print("a library's line")
        return {"sums": {"correct": 1}}

    monkeypatch.setattr(command, "evaluate", noisy)
    monkeypatch.setattr(command, "failures", lambda _: "")
    monkeypatch.setattr(command, "notes", lambda *_: [])
    planned = SimpleNamespace(text=lambda: "plan", request=SimpleNamespace(model="m"), protocol="p", folder="f")
    monkeypatch.setattr("redraft.evaluate.evaluation_plan.plan", lambda *_: planned)
    with chdir(folder), pytest.raises(SystemExit):
        main(["evaluate", "m", "--backend", "torch", "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["rows"] == [{"benchmark": "sums", "correct": 1}]
    assert "a library's line" in printed.err
