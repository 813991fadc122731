"""Damaged tokenizer folders are read or refused, in bounded time, by the child and by the program."""

import json
import pathlib
import subprocess
import sys

import tokenizer_mutations

MUTATIONS = pathlib.Path(tokenizer_mutations.__file__)


def test_damaged_folders_are_served_or_refused(bpe_folder):
    child = subprocess.run(
        [sys.executable, MUTATIONS, bpe_folder, "0", "400"],
        capture_output=True, text=True, timeout=600,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    result = json.loads(child.stdout)
    assert result["wrong"] == []
    assert result["read"] > 50 and result["refused"] > 50


def test_the_program_says_what_is_wrong_with_a_folder(halfstep, bpe_folder, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "some text"}\n')
    refused = 0
    for seed in range(12):
        folder = tmp_path / f"folder{seed}"
        folder.mkdir()
        tokenizer_mutations.damage(bpe_folder, folder, seed)
        expected = 0 if tokenizer_mutations.serve(folder)[0] == 0 else 3
        process = halfstep(
            "data", "build", "--input", tmp_path / "in.jsonl", "--output-prefix", tmp_path / "out",
            "--tokenizer", folder, "--no-append-eod", exit_code=expected,
        )
        if expected != 0:
            refused += 1
            assert str(folder) in process.stderr
            assert "Traceback" not in process.stderr
    assert 0 < refused < 12
