"""A disk with too little room for a checkpoint: a small tmpfs in a mount namespace of the run's own.

Where such a namespace cannot be made a test passes with a line that says so, and nothing was tested; the same
check with an injected disk is in checkpoint_test (SpaceTest).
"""

import shlex
import subprocess

import pytest
from program import HALFSTEP, TINY, failure

STEPS = ["--train-iters", "6", "--save-interval", "2"]


def on_small_disk(folder, kibibytes, *flags):
    """The run with `folder` on a disk of that size, then the names in it; None where that is not permitted."""
    run = shlex.join([HALFSTEP, "train", *TINY, *STEPS, *map(str, flags), "--save", str(folder)])
    mount = f"mount -t tmpfs -o size={kibibytes}k none {shlex.quote(str(folder))}"
    script = f"{mount} || exit 99; {run}; code=$?; find {shlex.quote(str(folder))} -mindepth 1 -printf 'LEFT %P\\n'; exit $code"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True)
    if done.returncode == 99 or done.stderr.startswith("unshare"):
        print(f"NOT TESTED: no mount namespaces on this machine: {done.stderr}")
        return None
    return done


@pytest.mark.parametrize("how", [[], ["--async-save"]])
def test_too_little_is_said_at_start_and_before_anything_is_written(how, text, tmp_path):
    done = on_small_disk(tmp_path, 64, "--data", text, *how)
    if done is None:
        return
    first, second = failure(done, 3)
    assert f"'{tmp_path}': the checkpoint needs " in first and " are free" in first
    assert "--keep-last" in second and "another folder" in second
    lines = done.stdout.splitlines()
    assert any(line.startswith("warning: a checkpoint takes ") and str(tmp_path) in line for line in lines), lines
    assert sum(line.startswith("warning: step ") and "the checkpoint needs" in line for line in lines) == 2, lines
    assert {line for line in lines if line.startswith("LEFT ")} == {"LEFT .lock", "LEFT log.jsonl"}


def test_room_for_one_checkpoint_is_enough_for_the_first(text, tmp_path):
    """A second one does not fit beside it, and the first one stays whole."""
    done = on_small_disk(tmp_path, 192, "--data", text)
    if done is None:
        return
    failure(done, 3)
    assert "warning: a checkpoint takes" not in done.stdout
    left = {line for line in done.stdout.splitlines() if line.startswith("LEFT ")}
    assert left == {"LEFT .lock", "LEFT log.jsonl", "LEFT latest", "LEFT step_00000002",
                    "LEFT step_00000002/manifest.json", "LEFT step_00000002/shard_00001_of_00001.safetensors"}
