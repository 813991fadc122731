"""Reads a checkpoint with nothing but its documented format: JSON and safetensors."""

import json
import math
import pathlib

import torch
from safetensors import safe_open


def read_checkpoint(folder):
    """{(kind, name): its elements in order, as the bytes that are stored}, whichever ranks wrote them."""
    folder = pathlib.Path(folder)
    folder = folder / (folder / "latest").read_text().strip()
    manifest = json.loads((folder / "manifest.json").read_text())
    shards = [safe_open(folder / shard["file"], framework="pt") for shard in manifest["shards"]]
    parts = {}
    for entry in manifest["slices"]:
        # A rank's part of a parameter is a flat range of it: KIND/NAME+START.
        key = f"{entry['kind']}/{entry['name']}"
        if entry["numel"] < math.prod(entry["shape"]):
            key += f"+{entry['start']}"
        data = shards[entry["shard"]].get_tensor(key).reshape(-1).view(torch.uint8).numpy().tobytes()
        parts.setdefault((entry["kind"], entry["name"]), []).append((entry["start"], data))
    return {key: b"".join(data for _, data in sorted(pieces)) for key, pieces in parts.items()}
