"""What verl reads: problems in Parquet, and the order of each pass, which a saved loader goes on with."""

import itertools
import json

import pandas as pd
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from redraft import stages
from redraft.config import Experiments
from redraft.config.data import ArithmeticProblems
from redraft.errors import UserError
from redraft.rollout.streams import stream
from redraft.tasks.problems import Problem, load_problems
from redraft.train.verl.data import write_problems
from redraft.train.verl.order import in_epoch_order

SIZE, SEED = 12, 5


def loader(batch_size, size=SIZE, seed=SEED):
    plain = StatefulDataLoader(list(range(size)), batch_size=batch_size, shuffle=True, collate_fn=list, num_workers=0)
    return in_epoch_order(plain, seed)


class Fetcher:
    """Batches as verl's trainer fetches them: a new iterator at the end of each pass."""

    def __init__(self, loader):
        self.loader, self.iterator = loader, None

    def next(self):
        try:
            if self.iterator is None:
                self.iterator = iter(self.loader)
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)

    def take(self, count):
        return [self.next() for _ in range(count)]


def expected(batch_size, batches, size=SIZE):
    """The local trainer's order (`redraft.train.local`), in batches."""
    whole = size // batch_size * batch_size
    for epoch in itertools.count():
        order = stream(SEED, "order", epoch).permutation(size).tolist()[:whole]
        for start in range(0, whole, batch_size):
            if batches == 0:
                return
            batches -= 1
            yield order[start : start + batch_size]


@pytest.mark.parametrize("batch_size", [1, 4, 12])
def test_each_pass_has_the_local_trainer_s_order(batch_size):
    batches = 4 * SIZE // batch_size
    assert Fetcher(loader(batch_size)).take(batches) == list(expected(batch_size, batches))


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("passes", [0, 1 / 3, 1, 4 / 3, 5 / 3, 2, 3])
def test_a_loader_that_was_saved_goes_on_exactly(batch_size, passes):
    done, more = round(passes * SIZE / batch_size), 3 * SIZE // batch_size
    before = Fetcher(loader(batch_size))
    before.take(done)
    state = before.loader.state_dict()
    after = Fetcher(loader(batch_size))
    after.loader.load_state_dict(state)
    wanted = list(expected(batch_size, done + more))[done:]
    assert after.take(more) == wanted
    assert before.take(more) == wanted, "looking at the state changes nothing"


def test_a_loader_that_is_saved_again_and_again_never_loses_its_place():
    batches, state = [], None
    for _ in range(20):
        fetcher = Fetcher(loader(4))
        if state:
            fetcher.loader.load_state_dict(state)
        batches += fetcher.take(1)
        state = fetcher.loader.state_dict()
    assert batches == list(expected(4, 20))


def test_what_is_left_of_a_pass_that_batches_do_not_divide_is_dropped():
    batches = Fetcher(loader(5)).take(4)
    assert batches == list(expected(5, 4))


def test_another_seed_has_another_order():
    assert Fetcher(loader(4)).take(3) != Fetcher(loader(4, seed=6)).take(3)


def test_verl_s_dataset_reads_the_problems(tmp_path):
    problems = [Problem("1+1=", "2"), Problem("what is\n\\boxed{x}?", "025"), Problem("ü", "")]
    write_problems(problems, "deepmath-6k", file := tmp_path / "problems.parquet")
    dataset = RLHFDataset(str(file), tokenizer=None, config={"filter_overlong_prompts": False})
    batch = collate_fn([dataset[i] for i in range(3)])
    assert [message[0]["content"] for message in batch["raw_prompt"]] == [problem.prompt for problem in problems]
    assert [entry["ground_truth"] for entry in batch["reward_model"]] == ["2", "025", ""]
    assert list(batch["index"]) == [0, 1, 2]
    assert set(batch["data_source"]) == {"deepmath-6k"}


def test_preparing_data_writes_the_problems_and_what_they_were_read_from(tmp_path, monkeypatch):
    preset = Experiments().preset("verl-tiny")
    stages.prepare_data("verl-tiny", "deepmath-6k", tmp_path / "data")
    frame = pd.read_parquet(tmp_path / "data/problems.parquet")
    assert [p[0]["content"] for p in frame["prompt"]] == [p.prompt for p in load_problems(preset.data["deepmath-6k"])]
    record = json.loads((tmp_path / "data/data.json").read_text())
    assert record["problems"] == len(frame) == 48
    assert (record["origin"], record["sha256"]) == ({"kind": "arithmetic"}, {})
    assert ArithmeticProblems.model_validate(record["data"]) == preset.data["deepmath-6k"]
    with pytest.raises(UserError, match="no such data"):
        stages.prepare_data("verl-tiny", "deepmath-9k", tmp_path / "data")
