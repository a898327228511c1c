"""What a checkpoint keeps of PyTorch: modules, optimizers and the random state come back as they were."""

import pytest
import torch

from redraft.train.local.tensors import restore_parts, save_parts


def parts_of(seed):
    """A model of two layers and its optimizer after a step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


@pytest.fixture(autouse=True)
def own_random_state():
    with torch.random.fork_rng():
        yield


def test_what_is_drawn_behind_a_restore_is_what_was_drawn_behind_the_save(tmp_path):
    parts = parts_of(0)
    save_parts(tmp_path, parts)
    drawn = torch.randn(7)
    torch.manual_seed(99)
    restore_parts(tmp_path, parts)
    assert torch.equal(torch.randn(7), drawn)


def test_a_restored_model_and_optimizer_make_the_same_step(tmp_path):
    parts, other = parts_of(0), parts_of(1)
    save_parts(tmp_path, parts)
    restore_parts(tmp_path, other)
    saved, restored = (each["optimizer"].state_dict()["state"] for each in (parts, other))
    assert restored.keys() == saved.keys() == {0, 1, 2, 3}
    for index, entry in saved.items():
        assert restored[index].keys() == entry.keys()
        assert all(torch.equal(restored[index][name], value) for name, value in entry.items())
    data = torch.ones(5, 3)
    for each in (parts, other):
        each["optimizer"].zero_grad()
        each["model"](data).sum().backward()
        each["optimizer"].step()
    for one, same in zip(parts["model"].parameters(), other["model"].parameters(), strict=True):
        assert torch.equal(one, same)
