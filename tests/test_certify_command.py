"""`redraft certify`, the pytest plugin, and the adapters: a server with vLLM's protocol, transformers, the engine."""

import json
import re
import shlex
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from benchmarks.certify import END, Model, Sampling, tempered, top_p
from redraft.certify import Sampled, Verdict, certify
from redraft.certify.server import Server, ServerPolicy, ServerSampler
from redraft.cli.app import main
from redraft.cli.certify import _lines
from redraft.errors import UserError

ROOT = Path(__file__).parents[1]
PROMPTS = [np.random.default_rng(i).integers(1, 32, 4 + i % 5).tolist() for i in range(8)]


def documented(language):
    """Code blocks of the page."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs/certify.md").read_text(), re.DOTALL | re.MULTILINE)
    return [block for name, block in blocks if name == language]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with the page's sampler and prompts."""
    (tmp_path / "mine.py").write_text(documented("python")[0])
    (tmp_path / "prompts.jsonl").write_text("".join(f"[{token}]\n" for token in range(1, 16)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def called(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["certify", *arguments])
    return end.value.code, capsys.readouterr().out


def test_the_page_s_commands_pass_and_fail_without_torch(mine):
    script = (
        "import sys\nfrom redraft.cli.app import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n"
        "    heavy = {'torch', 'transformers', 'pandas', 'httpx'} & set(sys.modules)\n"
        "    assert not heavy, heavy"
    )
    *_, commands = [block for block in documented("sh") if "certify mine" in block]
    codes, outputs = [], []
    for line in commands.splitlines()[1:]:
        result = subprocess.run(
            [sys.executable, "-c", script, *shlex.split(line)[1:]], capture_output=True, text=True, check=False
        )
        codes.append(result.returncode)
        outputs.append(result.stdout + result.stderr)
    assert codes == [0, 1], outputs
    assert outputs[0].startswith("sampler passes against Table")
    (shown,) = [block for block in documented("") if "FAILED temperature" in block]
    assert re.sub(r"[\d.e-]{4,}", "", shown) in re.sub(r"[\d.e-]{4,}", "", outputs[1]), "but for numbers"


def test_the_certificate_as_json_and_as_a_file(mine, capsys):
    code, out = called(
        capsys, "mine:wrong", "--policy", "mine:policy", "--prompts", "prompts.jsonl", "--json", "--output", "c.json"
    )
    found, file = json.loads(out), json.loads((mine / "c.json").read_text())
    assert code == 1
    assert file["verdict"] == "fails"
    assert file["results"] == found["rows"]
    assert found["asked"]["samples"] == 32
    assert "temperature" in [row["name"] for row in found["rows"] if row["failed"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine:nothing", "--policy", "mine:policy"], "the module has no nothing"),
        (["other:sampler", "--policy", "mine:policy"], "there is no such module"),
        (["mine:RNG", "--policy", "mine:policy"], "no sampler"),
        (["mine:sampler", "--policy", "mine:RNG"], "no log_probs"),
        (["mine:sampler", "--policy", "nowhere"], "no such folder"),
        (["mine:sampler", "--policy", "http://127.0.0.1:9/v1"], "which tokens end a response"),
        (["mine:sampler", "--policy", "http://127.0.0.1:9/v1", "--end-tokens", "x"], "no token ids"),
        (["mine:sampler", "--policy", "http://127.0.0.1:9/v1", "--end-tokens", "0"], "the server does not answer"),
        (["generate", "--policy", "mine:policy"], "`generate` needs a model"),
        (["mine:sampler", "--policy", "mine:policy", "--parameter", "top_p"], "no key=value"),
        (["mine:sampler", "--policy", "mine:policy", "--parameter", "top_p=1"], "gets no parameters"),
        (["mine:sampler", "--policy", "mine:policy", "--level", "2"], "the level is no probability"),
    ],
)
def test_a_mistake_is_one_message(mine, mistake, arguments, message):
    assert message in mistake(mine, "certify", *arguments, "--prompts", "prompts.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "there is no prompt"), ("[1]\n[-1]", "line 2 is no prompt"), ("{}", "line 1 is no prompt"), ("[]", "line 1"),
     ('"a text"', "a text needs a tokenizer"), ("[1.5]", "line 1"), ("x", "line 1"), ("[" * 100_000, "line 1")],
)  # fmt: skip
def test_a_wrong_file_of_prompts_is_named(mine, mistake, content, message):
    (mine / "prompts.jsonl").write_text(content)
    text = mistake(mine, "certify", "mine:sampler", "--policy", "mine:policy", "--prompts", "prompts.jsonl")
    assert message in text
    assert "prompts.jsonl" in text
    assert "no file of prompts" in mistake(
        mine, "certify", "mine:sampler", "--policy", "mine:policy", "--prompts", "nowhere"
    )


def test_prompts_have_the_line_ends_and_marks_of_problem_files(tmp_path):
    (tmp_path / "prompts.jsonl").write_bytes('\ufeff[1]\r\n\r\n"a\u2028b"\n'.encode())
    assert _lines(tmp_path / "prompts.jsonl") == [[1], "a\u2028b"]


def test_the_plugin_fails_a_test_with_the_certificate(mine):
    test = documented("python")[1]
    wrong = test.replace("sampler", "wrong").replace("test_my_rollout", "test_wrong")
    (mine / "test_mine.py").write_text(test + wrong)
    # Without `-p`: pytest loads the plugin since the package is installed.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    assert "FAILED temperature" in result.stdout
    assert "test_wrong" in result.stdout


class Completions(BaseHTTPRequestHandler):
    """Completions as vLLM answers them, by a model of numpy."""

    change, sampler = staticmethod(lambda answer: answer), None

    def do_GET(self):
        self.answer({"data": [{"id": "tiny"}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, count = request["prompt"], request.get("n", 1)
        with LOCK:
            model = getattr(type(self).sampler, "model", Model(0))
            if request.get("temperature") == 0:
                best = next(model.log_probs([prompt], [[1]])).log_probs[0]
                sampled = [Sampled([int(best.argmax())], [float(best.max())])]
            else:
                (sampled,) = type(self).sampler([prompt], count, request["max_tokens"])
        choices = [
            {
                "token_ids": list(each.tokens),
                "prompt_token_ids": prompt,
                "prompt_logprobs": None,
                "logprobs": {"token_logprobs": list(each.log_probs)} if "logprobs" in request else None,
            }
            for each in sampled
        ]
        if (top := request.get("prompt_logprobs")) is not None:
            known = next(model.log_probs([prompt[:2]], [prompt[2:]])).log_probs
            choices[0]["prompt_logprobs"] = [None, None, *map(listed, known, prompt[2:], [top] * len(known))]
        self.answer(type(self).change({"choices": choices}))

    def answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(content.get("status", 200))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


LOCK = threading.Lock()


def listed(log_probs, token, top):
    """The token and the most probable ones, by id."""
    best = [token, *np.argsort(-log_probs)[:top].tolist()]
    return {str(i): {"logprob": max(float(log_probs[i]), -9999.0), "rank": 1} for i in best}


@contextmanager
def serving(sampler, change=lambda answer: answer):
    handler = type("Handler", (Completions,), {"sampler": staticmethod(sampler), "change": staticmethod(change)})
    # Connections that wait; the default of 5 is less than the requests at once.
    server = type("Server", (ThreadingHTTPServer,), {"request_queue_size": 64})(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def rng():
    return np.random.default_rng(0)


def test_a_server_is_certified_with_its_own_log_probs_and_a_function_s(tmp_path, capsys):
    model = Model(0)
    (tmp_path / "prompts.jsonl").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    size = ["--prompts", str(tmp_path / "prompts.jsonl"), "--samples", "24", "--max-tokens", "16", "--end-tokens", "0"]
    with serving(Sampling(model, rng())) as url:
        code, out = called(capsys, url, "--policy", url, "--top", "8", "--resolution", "0.3", *size, "--model", "tiny")
        assert code == 0, out
        assert "reported log-probabilities: 1;" in out
        assert certify(ServerSampler(Server(url)), model, PROMPTS, samples=24, max_tokens=16).verdict is Verdict.PASSES
    with serving(Sampling(model, rng(), warp=top_p(0.9))) as url:
        code, out = called(capsys, url, "--policy", url, "--top", "16", *size)
        assert code == 1
        assert "FAILED truncation" in out
    with serving(Sampling(model, rng(), warp=tempered(0.7))) as url:
        code, out = called(capsys, url, "--policy", url, "--top", "16", *size)
        assert "FAILED temperature" in out


def test_the_policy_of_a_server_is_the_model_s(monkeypatch):
    model = Model(0)
    responses = [[int(t) for t in rng().integers(1, 32, 9)], [5, 7, END]]
    with serving(Sampling(model, rng())) as url:
        found = list(ServerPolicy(Server(url), {END}, top=5).log_probs(PROMPTS[:2], responses))
    for known, right, tokens in zip(found, model.log_probs(PROMPTS[:2], responses), responses, strict=True):
        assert known.log_probs.shape == (len(tokens), 5)
        best = np.sort(right.log_probs, axis=1)[:, :-6:-1]
        assert np.allclose(np.sort(known.log_probs, axis=1)[:, ::-1], best), "without the token itself"
        assert np.allclose(known.sampled, right.log_probs[np.arange(len(tokens)), tokens])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {"choices": [c | {"token_ids": None} for c in a["choices"]]}, "returns no token ids"),
        (lambda a: {"choices": [c | {"prompt_token_ids": [1]} for c in a["choices"]]}, "changed the prompt"),
        (lambda a: {"choices": [*a["choices"], *a["choices"]]}, "another number of samples"),
        (lambda a: {"choices": []}, "answers without a choice"),
        (lambda a: {"status": 500}, "status 500"),
    ],
)
def test_a_server_that_does_not_give_what_is_needed_is_one_error(change, message):
    changed = lambda answer: answer if "data" in answer else change(answer)  # noqa: E731
    with serving(Sampling(Model(0), rng()), changed) as url, pytest.raises(UserError, match=message):
        certify(ServerSampler(Server(url)), Model(0), PROMPTS, samples=2, max_tokens=4)


def test_a_server_without_prompt_log_probs_or_the_model_is_one_error():
    without = lambda answer: {"choices": [c | {"prompt_logprobs": None} for c in answer["choices"]]}  # noqa: E731
    with serving(Sampling(Model(0), rng()), without) as url:
        with pytest.raises(UserError, match="gives no log-probabilities of prompts"):
            list(ServerPolicy(Server(url), {END}).log_probs([[1, 2]], [[3]]))
        with pytest.raises(UserError, match="no such model"):
            Server(url, "large")
    with pytest.raises(UserError, match="does not answer"):
        Server(url)


class Updated:
    """An exact sampler whose model gets other weights after some requests, as a server that is trained."""

    def __init__(self, requests):
        self.requests, self.served, self.sampling = requests, 0, Sampling(Model(0), rng())

    @property
    def model(self):
        return self.sampling.model

    def __call__(self, *arguments):
        self.served += 1
        if self.served == self.requests:
            self.sampling.model = Model(0).drifted(0.3)
        return self.sampling(*arguments)


@pytest.mark.parametrize(("requests", "when"), [(4, "in call 1"), (12, "in call 2")])
def test_a_server_whose_model_changes_in_the_middle_is_an_error(requests, when):
    with serving(Updated(requests)) as url, pytest.raises(UserError, match=f"the sampler changed {when}"):
        certify(ServerSampler(Server(url)), Model(0), PROMPTS, samples=4, max_tokens=8)
    with serving(Updated(99)) as url:
        found = certify(ServerSampler(Server(url)), Model(0), PROMPTS, samples=4, max_tokens=8, resolution=0.9)
    assert found.verdict is Verdict.PASSES
    assert "stayed the same: the sampler, the policy (3 checks)" in str(found)


@pytest.mark.parametrize("key", ["model", "system_fingerprint"])
def test_a_server_that_says_that_it_is_another_one_is_an_error(key):
    answers = iter(["tiny"] * 12 + ["other"] * 99)
    changed = lambda answer: answer if "data" in answer else answer | {key: next(answers)}  # noqa: E731
    with serving(Sampling(Model(0), rng()), changed) as url, pytest.raises(UserError, match="server changed") as error:
        certify(ServerSampler(Server(url)), Model(0), PROMPTS, samples=2, max_tokens=4)
    assert (error.value.key, error.value.value, error.value.allowed) == (key, "other", "tiny")


def test_a_server_that_stops_or_hangs_is_an_error(monkeypatch):
    monkeypatch.setattr("redraft.certify.server.SECONDS", 0.3)
    answers = iter(range(99))
    for fault in (lambda: time.sleep(1), lambda: {"status": 503}):
        changed = lambda answer: answer if next(answers) % 33 < 12 else fault() or answer  # noqa: B023, E731
        with (
            serving(Sampling(Model(0), rng()), changed) as url,
            pytest.raises(UserError, match="server (does not )?answer"),
        ):
            certify(ServerSampler(Server(url)), Model(0), PROMPTS, samples=2, max_tokens=4)


def test_a_server_whose_log_probs_are_of_other_tokens_fails():
    def shifted(answer):
        for choice in answer.get("choices", []):
            values = (choice["logprobs"] or {}).get("token_logprobs") or []
            values[:] = values[1:] + values[:1]
        return answer

    with serving(Sampling(Model(0), rng()), shifted) as url:
        found = certify(ServerSampler(Server(url)), Model(0), PROMPTS, samples=8, max_tokens=8)
    assert [test.name for test in found.failures] == ["reported log-probabilities"]


def test_the_probe_takes_what_a_server_gives():
    with serving(Sampling(Model(0), rng())) as url:
        assert len(ServerSampler(Server(url)).probe(PROMPTS)) == sum(len(prompt) - 1 for prompt in PROMPTS)
    without = lambda answer: {"choices": [c | {"prompt_logprobs": None} for c in answer["choices"]]}  # noqa: E731
    changed = lambda answer: answer if "data" in answer else without(answer)  # noqa: E731
    with serving(Sampling(Model(0), rng()), changed) as url:
        assert len(ServerSampler(Server(url)).probe(PROMPTS)) == len(PROMPTS)


def test_transformers_and_the_engine_are_certified(tiny_model):
    from redraft.certify.engine import EngineSampler
    from redraft.certify.transformers_policy import Generate, load
    from redraft.engines.torch.engine import TorchEngine

    policy, tokenizer = load(str(tiny_model))
    prompts = [tokenizer(f"{i}{letter}=")["input_ids"] for i, letter in enumerate("abcdefgh")]
    size = {"samples": 24, "max_tokens": 16, "resolution": 0.5}
    engine = TorchEngine(policy.model, stops=policy.end_tokens, max_length=40)
    found = certify(EngineSampler(engine), policy, prompts, **size)
    assert found.verdict is Verdict.PASSES, str(found)
    assert found.results[-1].test.p_value == 1
    assert "mean absolute difference" in str(found)
    assert certify(Generate(policy, top_k=0), policy, prompts, **size).verdict is Verdict.PASSES
    cut = certify(Generate(policy, top_k=2), policy, prompts, **size)
    assert "truncation" in [test.name for test in cut.failures], "the default of transformers is 50"
    with pytest.raises(UserError, match="not in the policy's vocabulary"):
        list(policy.log_probs([[1]], [[10**6]]))
