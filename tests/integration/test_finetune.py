"""Fine-tuning through the program: what examples become, what it prints, resume, eval, errors, a chat."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from program import TINY, failure, halfstep

SHORT = [*TINY, "--seq-length", "32", "--train-iters", "12", "--log-interval", "1"]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    lines = [{"prompt": f"{i % 7} plus {i % 5} is ", "completion": str(i % 7 + i % 5)} for i in range(97)]
    return write(tmp_path_factory.mktemp("examples") / "sums.jsonl", lines)


def events(folder, kind):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


@pytest.fixture(scope="module")
def trained(examples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = halfstep("train", *SHORT, "--data", examples, "--save", folder / "run", "--eval-iters", "100", "--split", "90,10,0",
                    "--save-interval", "6")
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


def test_the_start_says_what_examples_became(trained):
    folder, out = trained
    training, validation = events(folder, "examples")
    assert (training["split"], validation["split"]) == ("training", "validation")
    assert training["examples"] + validation["examples"] == 97
    # A completion is one or two digits and the end marker; "d plus d is " are 12 bytes.
    assert training["tokens"] == 12 * training["examples"] + training["targets"]
    assert 2 * training["examples"] <= training["targets"] <= 3 * training["examples"]
    # 13 or 14 places each (a token less than there are): two in a row of 32.
    assert training["sequences"] == (training["examples"] + 1) // 2
    places = training["tokens"] - training["examples"]
    assert training["fill"] == pytest.approx(places / (32 * training["sequences"]), abs=1e-12)
    assert f"{training['examples']} examples with {training['tokens']} tokens, {training['targets']} of them learned" in out
    assert events(folder, "eval")[0]["tokens"] == validation["targets"]


def test_a_resumed_run_is_the_uninterrupted_one(trained, examples, tmp_path):
    # Steps 7 to 12 of sequences of the same rows, in the same order, and the same bits at the end.
    folder, _ = trained
    again = halfstep("train", "--load", folder / "step_00000006", "--save", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert [e["loss"] for e in events(tmp_path / "again", "step")] == [e["loss"] for e in events(folder, "step")][6:]
    shards = [sorted((f / "step_00000012").glob("*.safetensors"))[0].read_bytes() for f in (folder, tmp_path / "again")]
    assert shards[0] == shards[1]


def test_a_resume_sees_that_examples_changed(trained, examples, tmp_path):
    lines = [json.loads(line) for line in examples.read_text().splitlines()]
    lines[3]["completion"] += "!"
    changed = write(tmp_path / "changed.jsonl", lines)
    for other in (["--data", changed], ["--no-packing"]):
        first, _ = failure(halfstep("train", "--load", trained[0] / "step_00000006", *other), 2)
        assert "data" in first


def test_eval_is_the_loss_per_learned_token_whatever_is_packed_together(trained, examples):
    whole = json.loads(halfstep("eval", "--load", trained[0], "--data", examples, "--json").stdout)
    lines = [json.loads(line) for line in examples.read_text().splitlines()]
    assert whole["tokens"] == sum(len(line["completion"]) + 1 for line in lines)
    # In rows of twice the length four share a row instead of two. Sums of the same FP32 losses: of some
    # 300 terms, half an ulp each at most.
    longer = json.loads(halfstep("eval", "--load", trained[0], "--data", examples, "--json", "--seq-length", 32).stdout)
    alone = json.loads(halfstep("eval", "--load", trained[0], "--data", examples, "--json", "--seq-length", 14).stdout)
    assert longer == whole and alone["sequences"] == 97 > whole["sequences"]
    assert alone["tokens"] == whole["tokens"]
    assert alone["loss"] == pytest.approx(whole["loss"], rel=300 * 2**-24)


def test_long_examples(examples, tmp_path):
    lines = [json.loads(line) for line in examples.read_text().splitlines()]
    path = write(tmp_path / "long.jsonl", [*lines, {"prompt": "why? ", "completion": "because " * 9}])
    refused = halfstep("train", *SHORT, "--data", path)
    first, second = failure(refused, 3)
    assert "1 of 98 examples have more than the 32 tokens" in first and f"{path}:98, has 78" in first
    assert "--long-examples" in second
    for policy, said in ("truncate", "1 examples truncated, 0 dropped"), ("drop", "0 examples truncated, 1 dropped"):
        done = halfstep("train", *SHORT, "--data", path, "--long-examples", policy)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout


@pytest.mark.parametrize("content, what, hint", [
    ('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}', ":2: 'completion' is missing", ""),
    ('{"text": "a"}', ":1: a document", "halfstep data build"),
    ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}', "chat template", "--tokenizer DIR"),
    ("\n", "no examples", "docs/finetuning.md"),
    ('{"prompt": "\\ud800", "completion": "b"}', ":1: not valid JSON", ""),
])
def test_bad_examples_are_exit_3_with_file_and_line(tmp_path, content, what, hint):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    for command in (["train", *SHORT], ["train", *SHORT, "--check-config"]):
        done = halfstep(*command, "--data", path)
        assert done.returncode == 3, done.stdout
        assert str(path) in done.stderr and what in done.stderr and hint in done.stderr


def test_eval_refuses_flags_without_effect(trained, examples, text):
    load = ["eval", "--load", trained[0]]
    assert "--eod-mask-loss" in failure(halfstep(*load, "--data", examples, "--eod-mask-loss"), 2)[0]
    assert "--long-examples" in failure(halfstep(*load, "--data", text, "--long-examples", "drop"), 2)[0]


TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory):
    """A tokenizer folder with a chat template: letters, and the tokens that it writes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("chat")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>", "<|end|>", "<|eos|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>", "chat_template": TEMPLATE}))
    return folder


def test_a_chat_is_learned_and_answers(chat_folder, tmp_path):
    def turn(question, answer):
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    lines = [{"messages": turn("ping", "pong") + turn("tick", "tock")}, {"messages": turn("tick", "tock")}] * 10
    path = write(tmp_path / "chat.jsonl", lines)
    flags = [*SHORT, "--tokenizer", chat_folder, "--train-iters", "150", "--log-interval", "50", "--hidden-size", "32", "--seq-length", "64"]
    done = halfstep("train", *flags, "--data", path, "--split", "100,0,0", "--save", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    (training,) = events(tmp_path / "run", "examples")
    assert training["targets"] == 10 * 5 * 3  # "pong<|end|>" and "tock<|end|>"; "tock<|end|>"
    for question, answer in ("ping", "pong"), ("tick", "tock"):
        said = halfstep("generate", "--load", tmp_path / "run", "--chat", "--prompt", question, "--max-new-tokens", 20)
        assert said.stdout == answer + "\n", said.stdout + said.stderr


def test_generate_says_what_it_lacks(trained, chat_folder):
    ask = ["generate", "--load", trained[0], "--prompt", "x", "--max-new-tokens", 1]
    assert "no chat template" in failure(halfstep(*ask, "--chat"), 3)[0]
    assert "--bos has no effect" in failure(halfstep(*ask, "--bos"), 2)[0]
    assert "--chat" in failure(halfstep(*ask, "--bos", "--chat"), 2)[0]


def test_the_example_runs_in_its_smallest_form(tmp_path):
    script = pathlib.Path(__file__).parents[2] / "examples" / "finetune" / "finetune.py"
    environment = os.environ | {"HALFSTEP_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, script, "--smoke", "--out", tmp_path / "out"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["tuned_hf"]["loss"] < summary["base_hf"]["loss"]
    assert (tmp_path / "out" / "tuned_hf" / "tokenizer_config.json").exists()
