"""Fixtures: the built program and a small tokenizer folder."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import golden_corpus

# How Qwen and Llama 3 cut text into words: contractions, letters, digits, punctuation, and runs of
# white space with a look-ahead, which is what home-made tokenizers get wrong.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EOD = "<|endoftext|>"


@pytest.fixture(scope="session")
def halfstep():
    """Runs the program: halfstep("data", "verify", prefix) returns the finished process."""
    binary = os.environ["HALFSTEP_BINARY"]

    def run(*args, exit_code=0, env=None):
        process = subprocess.run(
            [binary, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "HALFSTEP_PYTHON": sys.executable, **(env or {})},
        )
        assert process.returncode == exit_code, process.stderr
        return process

    return run


def make_bpe():
    """A byte-level BPE of 1000 ids, trained on the golden corpus."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(golden_corpus.strings(), trainer)
    # As Llama's: a special token in front, which documents for training must not get.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOD} $A", special_tokens=[(EOD, tokenizer.token_to_id(EOD))]
    )
    return tokenizer


@pytest.fixture(scope="session")
def bpe():
    return make_bpe()


@pytest.fixture(scope="session")
def bpe_folder(bpe, tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("bpe")
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOD}))
    return folder


@pytest.fixture(scope="session")
def wide_folder(tmp_path_factory) -> pathlib.Path:
    """A folder whose ids need more than 16 bits ("b" is 70000), without an end marker."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 70000, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("wide")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
