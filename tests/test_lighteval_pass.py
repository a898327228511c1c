"""pass@1 of n samples in the pinned lighteval, on made-up answers (docs/evaluation.md)."""

import json

import pytest

from tests.test_lighteval import PYTHON, lighteval

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(not PYTHON.exists(), reason="lighteval's environment is not there; `make lighteval` makes it"),
]

PASS_AT_1 = r"""
import json
from importlib.metadata import version
from lighteval.metrics.metrics import Metrics
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc

def score(metric, n, *texts, reasoning=""):
    parameters = {"n": n} if metric.startswith("avg") else {"k": 1, "n": n}
    answered = ModelResponse(text=[reasoning + text for text in texts], text_post_processed=list(texts))
    doc = Doc(query="1+1=", choices=["2"], gold_index=0)
    try:
        found = getattr(Metrics, metric)(sample_params=parameters).compute_sample(doc=doc, model_response=answered)
    except IndexError as error:
        return type(error).__name__
    return float(*found.values())

kinds = ("pass_at_k", "avg_at_n")
print(json.dumps({
    "version": version("lighteval"),
    "whole": [[score(kind, 4, *["3"] * i, "2", *["3"] * (3 - i)) for i in range(4)] for kind in kinds],
    "short": [score(kind, 4, "2", "2") for kind in kinds],
    "long": [score(kind, 4, "3", "3", "3", "3", "2", "2") for kind in kinds],
    "reasoning": [score(kind, 4, *["2"] * 4, reasoning="<think>1+1</think>") for kind in kinds],
    "math": score("pass_at_k_math", 4, *[r"\boxed{2}"] * 2),
}))
"""


def test_lighteval_s_pass_at_1_divides_by_n_however_many_responses_there_are():
    """A version in which this fails may have been repaired."""
    found = json.loads(lighteval("-c", PASS_AT_1).splitlines()[-1])
    assert found["version"] == "0.13.0"
    assert found["whole"] == [[0.25] * 4] * 2, "with n responses both are right, wherever the right one is"
    assert found["short"] == [0.5, "IndexError"], "two right responses of two, over n = 4"
    assert found["math"] == 0.5
    assert found["long"] == [0, 0], "only the first n"
    assert found["reasoning"] == [1, 0], "avg@n compares texts from which reasoning was not removed"
