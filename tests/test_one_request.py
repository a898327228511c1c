"""One request that verifies a draft and goes on (`benchmarks.cutting`): the responses of two requests."""

import importlib.util

import pytest

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    if not importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is not installed")
    from benchmarks import one_request

    case, group = one_request.CASES["tiny preset's model"]
    made = one_request.Work(one_request.save(case, tmp_path_factory.mktemp("policy")), case, group)
    yield made
    made.vllm.close()


@pytest.mark.parametrize("stops", [(), (5,)], ids=["full length", "ended by a stop"])
def test_one_request_makes_the_responses_of_two_and_leaves_a_right_cache(work, stops):
    from benchmarks.one_request import check

    assert "the same of all ways" in check(work, stops)
    scheduler = work.vllm.engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1, "blocks are held behind the last request"
    assert not scheduler._drafts
