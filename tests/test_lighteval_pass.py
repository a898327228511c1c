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


CONTINUOUS = r"""
from types import SimpleNamespace as Names
from lighteval.metrics.metrics import Metrics
from lighteval.models.transformers.transformers_model import TransformersModel
from lighteval.tasks.requests import Doc

class Tokenizer:
    def __call__(self, contexts, add_special_tokens):
        return {"input_ids": [[1]] * len(contexts)}

    def decode(self, tokens, skip_special_tokens):
        return "2"

settings = {}  # of transformers' generation, which would have to contain a number of samples
model = Names(
    DATASET_SPLITS=1, use_chat_template=True, add_special_tokens=False, max_length=9, skip_special_tokens=True,
    tokenizer=Tokenizer(), prompt_manager=Names(prepare_prompt=lambda doc: doc.query),
    config=Names(generation_parameters=Names(max_new_tokens=4)),
)
def generate_batch(inputs, generation_config):
    settings.update(vars(generation_config))
    return {str(i): Names(generated_tokens=[2], prompt_ids=ids) for i, ids in enumerate(inputs)}

model.model = Names(generate_batch=generate_batch, generation_config=Names())
model._generate = lambda **options: TransformersModel._generate(model, **options)
model._generate_continuous = lambda **options: TransformersModel._generate_continuous(model, **options)
doc = Doc(query="1+1=", choices=["2"], gold_index=0, num_samples=16, use_logits=False, generation_size=4)
(answered,) = TransformersModel._continuous_greedy_until(model, [doc])
metric = Metrics.pass_at_k(sample_params={"k": 1, "n": 16})
print(len(answered.text), sorted(settings), *metric.compute_sample(doc=doc, model_response=answered).values())
"""


def test_lighteval_s_continuous_batching_gives_one_response_for_any_number_of_samples():
    """Through lighteval's own methods, over a stand-in for transformers' model that is always right."""
    assert lighteval("-c", CONTINUOUS).splitlines()[-1] == "1 ['max_batch_tokens', 'use_cuda_graph'] 0.0625"
