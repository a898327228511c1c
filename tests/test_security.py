"""Names and data never reach a shell unquoted or leave the results, and loading a file never runs what is in it."""

import ast
import contextlib
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from snakemake.utils import format as shell_text

from redraft.cli.app import main
from redraft.config import Experiments
from redraft.config.base import Label, Name, PaperName, WordyName
from redraft.config.data import HubProblems
from redraft.errors import UserError
from redraft.layout import Layout
from tests.checkout import snakemake

ROOT = Path(__file__).parents[1]
CODE = [file for part in ("src", "analysis", "workflows", "benchmarks") for file in sorted((ROOT / part).rglob("*.py"))]
RULES = [ROOT / "Snakefile", *sorted((ROOT / "workflows").rglob("*.smk"))]
HOSTILE = [
    "$(touch x)",
    "`touch x`",
    "a;touch x",
    "a'; touch x; '",
    'a"; touch x; "',
    "a b",
    "a\ntouch x",
    "a|touch x",
    "a&touch x",
    "a>x",
    "..",
    "../x",
    "a/../../x",
    "/tmp/x",
    "~",
    "~root",
    "-x",
    "--help",
    "",
    ".",
    "a\0b",
    "a\\x",
    "a..b",
    "a\n",
    "ａ",
    "{x}",
    "*",
    "$HOME",
    "%s",
]
PATTERNS = {"{x}", "*"}
"""A wildcard, which a layout accepts for the Snakefile's paths; no name of a configuration contains it."""


def calls(file):
    """Every call in a file: its dotted name, its keyword arguments, and its place."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            yield ast.unparse(node.func), node.args, keywords, f"{file.relative_to(ROOT)}:{node.lineno}"


# A shell.


def test_every_placeholder_of_a_rule_s_shell_line_is_quoted_or_a_number():
    numbers = {"wildcards.seed", "wildcards.bits", "threads"}
    found = []
    for file in RULES:
        text = re.sub(r"#.*", "", file.read_text())
        for block in re.findall(r'\n    shell:\n((?:        ".*"\n)+)', text):
            found += [(file.name, name) for name in re.findall(r"{([^{}]*)}", block)]
    assert len(found) > 40
    assert [entry for entry in found if not entry[1].endswith(":q") and entry[1] not in numbers] == []
    common = (ROOT / "workflows/rules/common.smk").read_text()
    assert 'seed=r"\\d+"' in common
    assert 'bits=r"\\d"' in common


def test_no_rule_with_a_shell_line_is_left_out_of_the_check():
    lines = [line for file in RULES for line in file.read_text().splitlines()]
    assert sum(line.strip() == "shell:" for line in lines) == sum(line.strip().startswith("shell") for line in lines)
    assert not any(re.match(r"\s*(run|script|notebook|wrapper|cwl):", line) for line in lines)


@settings(max_examples=25)
@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), min_size=1))
def test_what_snakemake_quotes_a_shell_takes_for_one_word(words):
    command = shell_text("printf '%s\\0' {words:q}", words=words)
    result = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert result.stdout.decode().split("\0")[:-1] == words
    assert shlex.split(command)[2:] == words


def test_no_process_is_started_through_a_shell():
    starters = (
        "subprocess.run",
        "subprocess.Popen",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
    )
    shells = ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "create_subprocess_shell")
    started = 0
    for file in CODE:
        for name, arguments, keywords, where in calls(file):
            assert not name.endswith(shells), where
            if name in starters:
                started += 1
                assert "shell" not in keywords, where
                assert not isinstance(arguments[0], ast.Constant | ast.JoinedStr | ast.BinOp), where
    assert started > 5
    for file in RULES:
        assert not re.search(r"shell\(|shell=|os\.system|os\.popen", file.read_text()), file


@pytest.fixture
def campaign(tmp_path):
    for name in ("Snakefile", "config", "workflows", "profiles", "experiments", "envs"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("preset", ['../$(touch x)\'; touch x; `touch x` "|touch x"', "[tiny]", "{tiny: x}", "1.5"])
def test_a_hostile_preset_is_one_message_and_runs_nothing(campaign, preset):
    before = {path for path in campaign.rglob("*") if ".snakemake" not in path.parts}
    result = snakemake(campaign, "-n", preset=preset)
    assert result.returncode != 0
    assert "error:" in result.stderr
    assert "key:     preset" in result.stderr
    assert "Traceback" not in result.stderr
    assert {path for path in campaign.rglob("*") if ".snakemake" not in path.parts} == before


# A path.


@pytest.mark.parametrize("kind", [Name, PaperName, WordyName, Label])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_of_the_configuration_can_leave_a_folder_or_end_a_word(kind, name):
    if kind is Label and not name:
        return
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(name)


@pytest.mark.parametrize("key", ["id", "local", "files"])
@pytest.mark.parametrize("path", ["../x", "a/../x", "/etc/passwd", "..", "a/..", ""])
def test_no_file_of_problems_lies_outside_of_its_repository(key, path):
    problems = {"id": "owner/name", "files": ["test.jsonl"], "local": "a.jsonl", "size": 1}
    HubProblems.model_validate(problems)
    with pytest.raises(ValidationError):
        HubProblems.model_validate(problems | {key: [path] if key == "files" else path})


@given(st.text())
def test_a_name_that_the_configuration_takes_is_one_plain_word(name):
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        return
    assert shlex.quote(name) == name
    assert Path("a", name).resolve().parent == Path("a").resolve()


PLACES = {
    "preset": lambda name: Layout(name).folder,
    "role of a model": Layout("tiny").model,
    "role of data": Layout("tiny").data,
    "role of an initial policy": lambda name: Layout("tiny").initial("tiny", name, 0),
    "seed of an initial policy": lambda name: Layout("tiny").initial("tiny", "model", f"0{name}"),
    "protocol of an initial policy": lambda name: Layout("tiny").initial(name, "model", 0),
    "paper of a run": lambda name: Layout("tiny").run(f"{name}/cell", 0),
    "cell": lambda name: Layout("tiny").run(f"spec_rl/{name}", 0),
    "seed": lambda name: Layout("tiny").run("spec_rl/cell", f"0{name}"),
    "collected": Layout("tiny").collected,
    "table": lambda name: Layout("tiny").table(name, 1),
    "figure": lambda name: Layout("tiny").figure(name, 1),
    "main result": Layout("tiny").main_result,
    "speedups": lambda name: Layout("tiny").reported_speedups(name, 4),
    "counterparts": Layout("tiny").without_counterpart,
    "cases": Layout("tiny").cases,
    "claims": Layout("tiny").claims,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in PATTERNS])
def test_no_name_leads_out_of_the_results(place, name):
    if "seed" in place and name in ("", ".", "-x", "--help"):
        return  # behind `seed0` these are harmless
    with pytest.raises(UserError, match="cannot be part of a path"):
        PLACES[place](name)


@pytest.mark.parametrize("place", PLACES)
@given(name=st.text(alphabet="ab/.~\\ \n$*{}-", min_size=1))
def test_whatever_a_layout_takes_lies_below_the_results(place, name):
    try:
        path = PLACES[place](name)
    except UserError:
        return
    assert path.resolve().is_relative_to(Path("results").resolve())
    assert len(path.relative_to("results").parts) <= 5


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\0" not in name])
def test_a_hostile_preset_paper_or_cell_is_refused_by_the_commands(name, tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "experiments", tmp_path / "inside/experiments")
    monkeypatch.chdir(tmp_path / "inside")
    before = set(tmp_path.rglob("*"))
    track, tables, model = (
        ["stage", stage, "--"]
        for stage in (
            "redraft.ops.workflow.tracking:track",
            "redraft.analysis.tables.files:write_tables",
            "redraft.train.initial_policy:make_model",
        )
    )
    writing = [[*track, name, "spec_rl"], [*track, "tiny", name]]
    for arguments in [
        *([] if name in PATTERNS else writing),
        [*tables, "tiny", name],
        ["show", "--preset", "tiny", "--", f"spec_rl/{name}"],
        ["show", "--", f"{name}/grpo-vanilla"],
        ["show", f"--preset={name}", "spec_rl/grpo-vanilla"],
        [*model, "tiny", name, "out"],
        ["run", f"--preset={name}", "spec_rl/grpo-vanilla"],
        ["run", "--", f"spec_rl/{name}"],
        ["list", f"--preset={name}"],
    ]:
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2, arguments
        assert "Traceback" not in capsys.readouterr().err
    assert set(tmp_path.rglob("*")) == before


# A terminal.


def test_all_output_for_people_goes_through_one_function():
    """`redraft.messages.echo` makes escapes of control characters."""
    printers = {"print", "typer.echo", "typer.secho", "click.echo", "rprint"}
    printed = [where for file in CODE for name, _, _, where in calls(file) if name in printers]
    streams = [where for file in CODE for name, _, _, where in calls(file) if re.search(r"std(out|err)\.write", name)]
    assert [where for where in printed if where.startswith(("src/", "analysis/"))] == []
    assert streams == []
    messages = (ROOT / "src/redraft/messages.py").read_text()
    assert messages.count(".write(") == 1
    assert "printable(text)" in messages
    assert not any(re.search(r"\bprint\(", file.read_text()) for file in RULES)


ESCAPE = "\x1b]0;owned\x07\u202e\x9b"


def test_what_results_of_someone_else_contain_does_not_reach_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    cells = Experiments(tmp_path).cells("spec_rl")[:2]
    folders = [Layout("tiny").run(cell.id, 0) for cell in cells]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "log.txt").write_text(f"step 1 {ESCAPE}\n")
    (folders[1] / "manifest.json").write_text(json.dumps({"fingerprint": "a", ESCAPE: ESCAPE, "sha256": ESCAPE}))
    (folders[1] / "scores.json").write_text(ESCAPE)
    (folders[1] / "steps.jsonl").write_text(ESCAPE)
    (Layout("tiny").pages).mkdir(parents=True)
    (Layout("tiny").pages / "summary.json").write_text(json.dumps({ESCAPE: ESCAPE}))
    found = ""
    for command in (
        ["status", "spec_rl", "--all"],
        ["status", "spec_rl", "--all", "--json"],
        ["compare", cells[0].id, cells[1].id],
        ["results"],
        ["prompts", cells[1].id],
        ["predict", str(folders[1])],
        ["replay", str(folders[1] / "steps.jsonl")],
        ["simulate", str(folders[1] / "manifest.json"), "--lengths", "0:1,100:2"],
        ["agreement", *map(str, folders)],
        ["show", cells[0].id, "--set", f"data={ESCAPE}"],
    ):
        with contextlib.suppress(SystemExit):
            main(command)
        output = capsys.readouterr()
        found += output.out + output.err
        assert not set(ESCAPE) & set("\x1b\x07\u202e\x9b") & set(output.out + output.err), command
    assert r"\x1b]0;owned\x07\u202e\x9b" in found


# What is loaded.


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def bomb(tmp_path):
    """A pickle that makes the file `harm`; shown to work."""
    harm = tmp_path / "harm"
    content = pickle.dumps({"weight": Bomb(harm)})
    pickle.loads(content)["weight"].close()
    assert harm.exists()
    harm.unlink()
    return content, harm


def test_no_code_unpickles_or_evaluates():
    forbidden = (
        "pickle.load",
        "pickle.loads",
        "joblib.load",
        "dill.load",
        "cloudpickle.loads",
        "eval",
        "exec",
        "yaml.unsafe_load",
        "yaml.full_load",
        "pd.read_pickle",
        "marshal.loads",
    )
    for file in CODE:
        for name, _, keywords, where in calls(file):
            assert name not in forbidden, where
            trusted = keywords.get("trust_remote_code")
            assert not (isinstance(trusted, ast.Constant) and trusted.value), where
            if name.endswith(("np.load", "numpy.load")):
                assert "allow_pickle" not in keywords, where
            if name == "torch.load":
                assert ast.unparse(keywords["weights_only"]) == "True", where
            if name == "yaml.load":
                assert ast.unparse(keywords["Loader"]) in ("yaml.SafeLoader", "yaml.CSafeLoader", "_Loader"), where


def test_transformers_is_always_told_to_run_no_code_of_a_model():
    models = ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM", "AutoModelForTokenClassification")
    loaders = {f"{model}.from_pretrained" for model in models}
    loads = [call for file in CODE for call in calls(file) if call[0].removeprefix("transformers.") in loaders]
    assert len(loads) >= 6
    for _, _, keywords, where in loads:
        assert "trust_remote_code" in keywords or None in keywords, where


def test_yaml_makes_no_objects(tmp_path):
    (tmp_path / "experiments/presets").mkdir(parents=True)
    file = tmp_path / "experiments/presets/tiny.yaml"
    file.write_text(f"name: !!python/object/apply:os.system ['touch {tmp_path}/harm']\n")
    with pytest.raises(UserError, match="not valid YAML"):
        Experiments(tmp_path).preset("tiny")
    assert not (tmp_path / "harm").exists()


LOAD = """
import sys
from pathlib import Path
from redraft.errors import UserError
from redraft.train import models
for folder in map(Path, sys.argv[1:]):
    for function in (models.load, models.load_tokenizer, models.load_config):
        try:
            function(folder)
        except UserError as error:
            print(folder.name, function.__name__, "refused", error, file=sys.stderr)
"""


def load(*folders):
    """Output of loading models' folders for a user who answers yes to every question."""
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, folders)],
        input="y\n" * 20,
        env=offline,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_neither_pickles_nor_a_model_s_own_code_are_run_even_if_the_user_agrees(tiny_model, tmp_path, bomb):
    content, harm = bomb
    folders = [tmp_path / "pickled", tmp_path / "renamed", tmp_path / "model"]
    for folder in folders:
        shutil.copytree(tiny_model, folder)
    for folder, name in zip(folders, ("pytorch_model.bin", "model.safetensors"), strict=False):
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)
    ran = tmp_path / "ran"
    give_own_code(folders[-1], f"open({str(ran)!r}, 'w')\n")
    said = load(*folders).stderr
    assert not harm.exists(), said
    assert not ran.exists(), said
    assert all(f"{folder.name} load refused" in said for folder in folders), said


def give_own_code(folder, code):
    """Let a model's folder name classes of its own, of a module that runs the code."""
    (folder / "custom.py").write_text(code + "class Config: pass\nclass Model: pass\nclass Tokenizer: pass\n")
    names = {"AutoConfig": "Config", "AutoModelForCausalLM": "Model"}
    own = {key: f"custom.{name}" for key, name in names.items()} | {"AutoTokenizer": ["custom.Tokenizer", None]}
    changes = {
        "config.json": {"auto_map": own, "model_type": "custom", "architectures": ["Model"]},
        "tokenizer_config.json": {"auto_map": own, "tokenizer_class": "Tokenizer"},
    }
    for name, change in changes.items():
        content = json.loads((folder / name).read_text()) | change
        (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["actor.safetensors", "random.safetensors", "memory.arrow", "schedule/waiting.arrow"])
def test_a_checkpoint_whose_files_are_pickles_is_refused_even_with_the_right_hashes(name, tmp_path, bomb):
    import torch

    from redraft.config.retention import Retention
    from redraft.methods.schedule import ScheduleState
    from redraft.rollout.memory import Memory
    from redraft.train.checkpoint import Checkpoints, TrainingState
    from redraft.train.local.tensors import save_parts

    content, harm = bomb
    parts, checkpoints = {"actor": torch.nn.Linear(2, 2)}, Checkpoints(tmp_path / "run", "run", {})
    with checkpoints.written(1, TrainingState(step=1)) as folder:  # hashes are of the bombs
        save_parts(folder, parts)
        Memory(Retention(visits=1)).save(folder / "memory.arrow")
        checkpoints.save_schedule(folder, ScheduleState({"waiting": []}))
        (folder / name).write_bytes(content)
    with pytest.raises(Exception, match=r"(?i)header|damaged|safetensors|earlier version"):
        read(checkpoints, parts)
    assert not harm.exists()


def read(checkpoints, parts):
    """All that a trainer and its schedule read of a checkpoint."""
    from redraft.config.retention import Retention
    from redraft.rollout.memory import Memory
    from redraft.train.local.tensors import restore_parts

    folder, _ = checkpoints.latest(hashes=True)
    restore_parts(folder, parts)
    Memory.load(folder / "memory.arrow", Retention(visits=1))
    checkpoints.schedule(folder)


# Servers.


def test_servers_listen_to_this_machine_only_or_are_off():
    from redraft.train.verl.settings import on_cpu, on_gpus

    line = next(text for text in (ROOT / "Makefile").read_text().splitlines() if "mlflow ui" in text)
    assert "--host 127.0.0.1" in line
    run = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "paper")
    for platform in (on_gpus, on_cpu):
        assert platform(run)["ray_kwargs"]["ray_init"]["include_dashboard"] is False
    assert not any("0.0.0.0" in file.read_text(encoding="utf-8") for file in [*CODE, *RULES, ROOT / "Makefile"])
