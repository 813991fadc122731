"""Reads the checkpoints of `halfstep train`; needs numpy alone.

    checkpoint = halfstep.load_checkpoint("runs/mine")
    checkpoint.iteration                                # 100
    w = checkpoint["model.norm.weight"]
    w.kinds                                             # ('weight', 'remainder', 'exp_avg', 'exp_avg_sq')
    w.master()                                          # float32, from weight and remainder
    w.tensor("exp_avg").numpy()                         # as stored: BF16 as its uint16 codes
    w.tensor("exp_avg").float32()                       # decoded

Opening reads the manifest alone. A tensor is read when it is asked for, from all the shards that hold
slices of it, and is not kept. Bytes are checked against the manifest's checksums where the package
`xxhash` is installed; `Checkpoint.verifies` says whether.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import xxhash
except ImportError:
    xxhash = None

FORMAT_VERSION = 1
"""The newest format of a checkpoint that this version reads."""

_CHUNK_BYTES = 4 << 20
_STEP = re.compile(r"step_(\d{8,})(\.replaced)?")
_KINDS = ("weight", "remainder", "master", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
# The elements as they are in the file.
_STORED: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype("<f4"),
    "bf16": np.dtype("<u2"),
    "ue6m10": np.dtype("<u2"),
    "int16": np.dtype("<i2"),
}


class CheckpointError(ValueError):
    """A folder that is no complete checkpoint, damaged bytes, or a newer format."""


class NewerFormatError(CheckpointError):
    """A checkpoint of a later format: an older one instead would be the wrong answer."""


def decode_bf16(codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values of BF16 codes, exactly; the same shape."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


def decode_ue6m10(codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values of ue6m10 codes, exactly; the same shape.

    ue6m10 is the format of exp_avg_sq with 6 exponent and 10 mantissa bits and no sign
    (docs/numerics.md §3): 0 to 2046, and NaN as 0xFFFF.
    """
    wide = codes.astype(np.uint32)
    values = ((wide << 13) + np.uint32(74 << 23)).view(np.float32)
    small = wide < 1024
    values[small] = wide[small].astype(np.float32) * np.float32(2.0**-62)
    values[wide == 0xFFFF] = np.float32("nan")
    return values


def join_master(
    weight: npt.NDArray[np.uint16], remainder: npt.NDArray[np.int16]
) -> npt.NDArray[np.float32]:
    """The float32 values that BF16 codes and their remainders stand for, exactly.

    Raises CheckpointError for a weight of 0 with a negative remainder, which no save writes.
    """
    if np.any(((weight & 0x7FFF) == 0) & (remainder < 0)):
        raise CheckpointError("a weight of 0 with a negative remainder is no number")
    bits = (weight.astype(np.uint32) << 16) + remainder.astype(np.int32).view(np.uint32)
    return bits.view(np.float32)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of one tensor, as it lies in one shard (docs/checkpoint-format.md)."""

    box: tuple[int, int, int, int]  # r0, r1, c0, c1 of the parameter seen as a matrix
    start: int  # first element in the box, row by row
    numel: int
    file: str
    offset: int  # in bytes, from the start of the file
    num_bytes: int
    checksums: tuple[str, ...]  # XXH3 of each 4 MiB, as 16 hexadecimal digits


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One kind of tensor of one parameter, whole. Nothing is read before numpy() or float32()."""

    name: str
    """Of the parameter."""
    kind: str
    """weight, remainder, master, exp_avg, exp_avg_sq or max_exp_avg_sq."""
    dtype: str
    """fp32, bf16, ue6m10 or int16."""
    shape: tuple[int, ...]
    """Of the whole parameter."""
    slices: tuple[Slice, ...]
    _checkpoint: Checkpoint = dataclasses.field(repr=False, compare=False)

    def numpy(self) -> np.ndarray:
        """The elements as they are stored, in the parameter's shape: float32, int16, or the uint16
        codes of bf16 and ue6m10. Raises CheckpointError for damaged or missing elements."""
        stored = _STORED[self.dtype]
        rows, cols = _matrix(self.shape)
        whole: np.ndarray = np.empty((rows, cols), stored)
        count = 0
        for part in self.slices:
            values = np.frombuffer(self._checkpoint._read(self, part), stored)
            _place(whole, values, part)
            count += part.numel
        if count != rows * cols:  # slices do not overlap, so counting is enough
            raise CheckpointError(
                f"{self._checkpoint.path}: {self.kind} of {self.name!r}: {rows * cols - count} "
                "elements are missing"
            )
        return whole.reshape(self.shape)

    def float32(self) -> npt.NDArray[np.float32]:
        """The values as float32, exactly, in the parameter's shape. Raises TypeError for a remainder,
        which has no value without its weight (Parameter.master)."""
        if self.dtype == "int16":
            raise TypeError("a remainder is a number together with its weight alone: see master()")
        stored = self.numpy()
        if self.dtype == "bf16":
            return decode_bf16(stored)
        return decode_ue6m10(stored) if self.dtype == "ue6m10" else stored


@dataclasses.dataclass(frozen=True)
class Parameter:
    """All that a checkpoint has of one parameter."""

    name: str
    shape: tuple[int, ...]
    t: int
    """Steps that the optimizer has made with it."""
    tensors: Mapping[str, Tensor]
    """By kind."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def tensor(self, kind: str) -> Tensor:
        """Raises KeyError if the checkpoint has no such tensor of it."""
        if kind not in self.tensors:
            raise KeyError(f"{self.name}: no {kind}; there are: {', '.join(self.kinds)}")
        return self.tensors[kind]

    def master(self) -> npt.NDArray[np.float32]:
        """The float32 values of the weight: of the master, of weight and remainder, or of an FP32
        weight. Raises KeyError if only a BF16 weight is there: its lower bits are lost, and
        tensor("weight").float32() gives what is left."""
        if "master" in self.tensors:
            return self.tensors["master"].float32()
        weight = self.tensor("weight")
        if weight.dtype == "fp32":
            return weight.float32()
        if "remainder" in self.tensors:
            return join_master(weight.numpy(), self.tensors["remainder"].numpy())
        raise KeyError(f"{self.name}: no FP32 value, only a BF16 weight: tensor('weight').float32()")


class Checkpoint(Mapping[str, Parameter]):
    """A checkpoint, as a mapping from the names of its parameters. Made by load_checkpoint."""

    def __init__(self, folder: pathlib.Path, manifest: dict[str, Any]) -> None:
        self.path = folder
        """The step's folder."""
        self.manifest = manifest
        """manifest.json, whole (docs/checkpoint-format.md)."""
        self.iteration: int = manifest["iteration"]
        """Completed steps, skipped ones included."""
        self.storage: dict[str, Any] = manifest["storage"]
        """weight, gradient, master, exp_avg, exp_avg_sq: the formats of the run."""
        self.model_config: dict[str, Any] = manifest["model_config"]
        """As in a Hugging Face config.json."""
        self.hyperparameters: dict[str, Any] = manifest["hyperparameters"]
        """The run's settings, by the names of its flags."""
        self.verifies: bool = xxhash is not None
        """Whether what is read is checked against its checksums: needs `pip install xxhash`."""
        self._parameters = self._collect()

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, iteration={self.iteration}, {len(self)} parameters)"

    def verify(self) -> None:
        """Reads all of it. Raises CheckpointError for the first damage, and ImportError without
        the package xxhash, as nothing would be checked."""
        if not self.verifies:
            raise ImportError("checksums are XXH3: pip install xxhash")
        for parameter in self.values():
            for tensor in parameter.tensors.values():
                for part in tensor.slices:
                    self._read(tensor, part)

    def _collect(self) -> dict[str, Parameter]:
        files = [shard["file"] for shard in self.manifest["shards"]]
        found: dict[str, dict[str, list[Slice]]] = {}
        about: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
        for entry in self.manifest["slices"]:
            name, kind, dtype = entry["name"], entry["kind"], entry["dtype"]
            shape = tuple(entry["shape"])
            if kind not in _KINDS or dtype not in _STORED:
                raise CheckpointError(f"{self.path}: {kind} of {name!r}: unknown kind or dtype {dtype}")
            if about.setdefault((name, kind), (dtype, shape)) != (dtype, shape):
                raise CheckpointError(f"{self.path}: {kind} of {name!r}: its slices do not fit together")
            found.setdefault(name, {}).setdefault(kind, []).append(
                Slice(
                    box=tuple(entry["box"]),
                    start=entry["start"],
                    numel=entry["numel"],
                    file=files[entry["shard"]],
                    offset=entry["offset"],
                    num_bytes=entry["bytes"],
                    checksums=tuple(entry["xxh3"]),
                )
            )
        steps = self.manifest["t"]
        parameters = {}
        for name, kinds in found.items():
            tensors = {
                kind: Tensor(name, kind, *about[name, kind], tuple(kinds[kind]), self)
                for kind in _KINDS
                if kind in kinds
            }
            shape = next(iter(tensors.values())).shape
            t = steps["exceptions"].get(name, steps["default"])
            parameters[name] = Parameter(name, shape, t, tensors)
        return parameters

    def _read(self, tensor: Tensor, part: Slice) -> bytes:
        path = self.path / part.file
        where = f"{path}: tensor '{_entry_name(tensor, part)}'"
        with path.open("rb") as file:
            file.seek(part.offset)
            data = file.read(part.num_bytes)
        if len(data) != part.num_bytes or len(data) != part.numel * _STORED[tensor.dtype].itemsize:
            raise CheckpointError(f"{where}: got {len(data)} bytes, expected {part.num_bytes}")
        if self.verifies:
            for i, expected in enumerate(part.checksums):
                chunk = data[i * _CHUNK_BYTES : (i + 1) * _CHUNK_BYTES]
                if xxhash.xxh3_64_hexdigest(chunk) != expected:
                    raise CheckpointError(
                        f"{where}: bytes {i * _CHUNK_BYTES} to {i * _CHUNK_BYTES + len(chunk)} of "
                        f"{part.num_bytes} do not match their checksum"
                    )
        return data


def load_checkpoint(path: str | pathlib.Path) -> Checkpoint:
    """Opens a checkpoint for reading.

    `path` is a step's folder, or the one above it: there `latest` names the step, and if that one is
    missing or not complete the newest complete one is taken, as by the program.

    Raises CheckpointError if there is none, for a manifest that does not match its own checksum
    (where xxhash is installed), and for a format that is newer than FORMAT_VERSION.
    """
    path = pathlib.Path(path)
    if (path / "manifest.json").is_file():
        return _open(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no folder with checkpoints")
    faults = []
    for folder in _candidates(path):
        try:
            return _open(folder)
        except NewerFormatError:
            raise
        except CheckpointError as fault:
            faults.append(str(fault))
    raise CheckpointError("; ".join([f"{path}: no complete checkpoint", *faults]))


def _open(folder: pathlib.Path) -> Checkpoint:
    file = folder / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"), parse_float=_Float)
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: no manifest: {error}") from error
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{file}: checkpoint format {version}, this halfstep reads up to {FORMAT_VERSION}: use "
            f"a halfstep that knows format {version}"
        )
    if xxhash is not None:
        content = {key: value for key, value in manifest.items() if key != "checksum"}
        if xxhash.xxh3_64_hexdigest(_canonical(content).encode()) != manifest.get("checksum"):
            raise CheckpointError(f"{file}: the manifest does not match its own checksum")
    try:
        _check_shards(folder, manifest)
        return Checkpoint(folder, manifest)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{file}: no manifest of a checkpoint: {error!r}") from error


def _check_shards(folder: pathlib.Path, manifest: dict[str, Any]) -> None:
    for shard in manifest["shards"]:
        file = folder / shard["file"]
        if file.parent != folder or not file.is_file():
            raise CheckpointError(f"{file}: the shard is missing")
        if file.stat().st_size != shard["bytes"]:
            raise CheckpointError(
                f"{file}: got {file.stat().st_size} bytes, expected {shard['bytes']}"
            )


def _candidates(path: pathlib.Path) -> list[pathlib.Path]:
    """The steps' folders in the order in which to try them: what `latest` names, then the newest; one
    that was being replaced stands behind the one that took its place."""
    steps = []
    for folder in path.iterdir():
        match = _STEP.fullmatch(folder.name)
        if match and (folder / "manifest.json").is_file():
            steps.append((int(match[1]), match[2] is None, folder))
    latest = path / "latest"
    named = _STEP.fullmatch(latest.read_text().strip()) if latest.is_file() else None
    first = int(named[1]) if named else None
    steps.sort(key=lambda step: (step[0] == first, step[0], step[1]), reverse=True)
    return [folder for _, _, folder in steps]


class _Float(float):
    """A number with the text that it was read from, which its checksum was made of."""

    def __new__(cls, text: str) -> _Float:
        value = super().__new__(cls, text)
        value.text = text
        return value

    text: str


def _canonical(value: Any) -> str:
    """Compact JSON with sorted keys, as the program makes the manifest's checksum of it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_canonical(k)}:{_canonical(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    return value.text if isinstance(value, _Float) else json.dumps(value, ensure_ascii=False)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """A parameter as rows × cols: [n] is one row, [a, b, c] is a rows of b·c."""
    if len(shape) < 2:
        return 1, int(np.prod(shape, dtype=np.int64))
    return shape[0], int(np.prod(shape[1:], dtype=np.int64))


def _place(whole: np.ndarray, values: np.ndarray, part: Slice) -> None:
    r0, r1, c0, c1 = part.box
    rows, cols = whole.shape
    end = part.start + part.numel
    inside = 0 <= r0 <= r1 <= rows and 0 <= c0 <= c1 <= cols
    if not inside or part.start < 0 or end > (r1 - r0) * (c1 - c0):
        raise CheckpointError(f"{part.file}: a slice outside of its parameter")
    if c1 - c0 == cols:  # whole rows follow each other
        whole.reshape(-1)[r0 * cols + part.start : r0 * cols + end] = values
    else:
        whole[r0:r1, c0:c1].flat[part.start : end] = values


def _entry_name(tensor: Tensor, part: Slice) -> str:
    """What the entry is called in its shard."""
    r0, r1, c0, c1 = part.box
    rows, cols = _matrix(tensor.shape)
    name = f"{tensor.kind}/{tensor.name}"
    if part.box != (0, rows, 0, cols):
        name += f"@{r0}:{r1},{c0}:{c1}" if len(tensor.shape) > 1 else f"@{c0}:{c1}"
    if part.numel != (r1 - r0) * (c1 - c0):
        name += f"+{part.start}"
    return name
