"""A method that a user adds: the file of `docs/adding-a-method.md`, in a copy of the package, and nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "redraft"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Folder of a package whose files are links to this one's, with the documented method among them."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "redraft").mkdir()
    for entry in SOURCE.iterdir():
        if entry.name != "methods":
            (folder / "redraft" / entry.name).symlink_to(entry.resolve())
    methods = folder / "redraft" / "methods"
    methods.mkdir()
    for entry in (SOURCE / "methods").iterdir():
        (methods / entry.name).symlink_to(entry)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adding-a-method.md").read_text(), re.DOTALL)
    (methods / "threshold.py").write_text(code)
    return folder


def run(package, *arguments):
    environment = os.environ | {"PYTHONPATH": str(package)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


SCRIPT = """
import sys
from pydantic import TypeAdapter
from redraft.config.reuse import Reuse

method = TypeAdapter(Reuse).validate_python({"kind": "threshold", "least": 0.3})
assert method.model_dump() == {"fresh_every": 0, "kind": "threshold", "least": 0.3}
assert "threshold" in str(TypeAdapter(Reuse).json_schema())
assert "numpy" not in sys.modules

from redraft.lab.audit.enumeration import Policy
from redraft.lab.audit.rules import RULES, SPACE, enumerate_rule
from redraft.lab.audit.bias_laboratory import arm_samplers
from redraft.lab.predict.prediction import candidates, chosen

policies = [Policy(SPACE, 0, number, 0.3) for number in (1, 2)]
found = enumerate_rule("threshold", RULES["threshold"], policies, 0.3)
assert (found.verdict, found.passes) == ("not exact, as declared", True), found
assert 0 < found.kept < found.draft and found.first > 1e-3
assert "threshold" in arm_samplers()
assert [rule.name for rule in chosen(candidates(), ["threshold"])] == ["threshold"]

from redraft.analysis.pages.laboratory_parts import rule_of

sys.path.insert(0, "tests")
from groups import METHODS, name_of, two_epochs

assert rule_of(method, []) == "threshold"
assert "threshold" in [name_of(each) for each in METHODS]
(_, before), (engine, after) = two_epochs(method)
kept = [rollout.prefix_length for rollout in after]
assert 0 < sum(kept) < sum(rollout.draft_length for rollout in after)
assert sum(map(len, engine.scored)) == sum(rollout.verified for rollout in after)
"""


def test_a_documented_method_is_configured_rolled_out_audited_and_predicted(package):
    run(package, "-c", SCRIPT)


def test_a_second_method_of_a_kind_is_rejected_by_name(package):
    (package / "redraft" / "methods" / "again.py").write_text(
        (package / "redraft" / "methods" / "threshold.py").read_text()
    )
    try:
        with pytest.raises(subprocess.CalledProcessError) as error:
            run(package, "-c", "import redraft.config")
    finally:
        (package / "redraft" / "methods" / "again.py").unlink()
    last = error.value.stderr.splitlines()[-1]
    assert "'threshold' of redraft.methods.threshold is that of redraft.methods.again" in last
