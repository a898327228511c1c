"""What saved generations are of: whatever else would sample others has another identity."""

import os

import pytest

from redraft.config import ArithmeticProblems, Evaluation
from redraft.config.data import Benchmark
from redraft.evaluate import generate
from redraft.tasks.problems import Problem

BENCHMARK = Benchmark(data=ArithmeticProblems(size=2), samples=3)
PROBLEMS = [Problem("1a+1=", "2"), Problem("2a+2=", "4")]


@pytest.fixture
def identity(tmp_path, monkeypatch):
    """Identity of generations of a policy with one file, some things of which are changed."""
    monkeypatch.setattr(generate.models, "load_config", lambda policy: None)
    policy = tmp_path / "policy"
    policy.mkdir()

    def of(
        content="weights", written=1_000, seed=0, problems=PROBLEMS, step=0, evaluation=None, dtype="auto", **sampling
    ):
        (policy / "model.safetensors").write_text(content)
        os.utime(policy / "model.safetensors", ns=(written, written))
        benchmarks = {"sums": BENCHMARK.model_copy(update=sampling)}
        how = evaluation or Evaluation()
        return generate.identity({step: policy}, benchmarks, {"sums": problems}, seed, how, dtype)

    return of


OTHERS = {
    "another seed": {"seed": 1},
    "a policy trained again, of the same size": {"written": 2_000_000},
    "a policy of another size": {"content": "more weights"},
    "a policy of another step": {"step": 4},
    "another answer": {"problems": [PROBLEMS[0], Problem("2a+2=", "5")]},
    "another prompt": {"problems": [PROBLEMS[0], Problem("3a+1=", "4")]},
    "a problem less": {"problems": PROBLEMS[:1]},
    "another backend": {"evaluation": Evaluation(backend="vllm")},
    "another harness": {"evaluation": Evaluation(harness="lm-eval")},
    "another precision": {"dtype": "bfloat16"},
    "another temperature": {"temperature": 0.5},
    "another top-p": {"top_p": 0.5},
    "more samples": {"samples": 4},
    "another limit": {"max_new_tokens": 7},
    "another use of the template": {"chat": "never"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_samples_others_has_another_identity(identity, name):
    assert identity(**OTHERS[name]) != identity()


def test_what_is_only_graded_or_said_otherwise_has_the_same(identity):
    for changes in ({"role": "out-of-distribution"}, {"description": "other words"}, {"grading": "choice"}):
        assert identity(**changes) == identity()
    assert identity(evaluation=Evaluation(lighteval=True)) == identity()
