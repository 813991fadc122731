"""The program as a process, for the tests in this folder."""

import os
import subprocess

HALFSTEP = os.environ["HALFSTEP_BINARY"]

TINY = """--num-layers 1 --hidden-size 16 --ffn-hidden-size 32 --num-attention-heads 2 --seq-length 16
  --micro-batch-size 2 --lr 1e-2 --matmul-precision fp32 --num-threads 1 --tokenizer byte
  --split 90,10,0 --eval-iters 0""".split()


def halfstep(*args, **more):
    environment = os.environ | more.pop("env", {})
    # A byte model may write bytes that are no UTF-8.
    return subprocess.run([HALFSTEP, *(a if isinstance(a, bytes) else str(a) for a in args)], capture_output=True, text=True, errors="replace",
                          env=environment, **more)


def failure(done, code):
    """The two lines of an error: what happened, what to do."""
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and lines[0].startswith("halfstep: ") and lines[1].startswith("  "), done.stderr
    return lines
