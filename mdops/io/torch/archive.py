"""The zip archive that PyTorch writes (torch.save and torch.jit.save), opened as data."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.torch import pickle_data
from mdops.io.torch.pickle_data import Tensor

# A compiled model's own members are in a folder with the file's name. DeePMD-kit adds some members to this folder.
_ADDED = "model/extra/"
_DTYPES = {
    "torch.DoubleStorage": "f8",
    "torch.FloatStorage": "f4",
    "torch.HalfStorage": "f2",
    "torch.BFloat16Storage": "u2",  # widened to float32 below: NumPy has no such type
    "torch.LongStorage": "i8",
    "torch.IntStorage": "i4",
    "torch.ShortStorage": "i2",
    "torch.CharStorage": "i1",
    "torch.ByteStorage": "u1",
    "torch.BoolStorage": "?",
}


class TorchArchive:
    """The members of a PyTorch archive. Every member that is read is checked against its CRC.

    PyTorch stores members without compression, so that nothing in it can be longer than the file.
    """

    def __init__(self, path: Path) -> None:
        self.zip = zipfile.ZipFile(path)
        members = self.zip.infolist()
        if sum(m.compress_size for m in members) > path.stat().st_size:
            raise ModelFileError("its zip directory states more data than the file holds")
        self.members = {m.filename.partition("/")[2]: m for m in members}
        order = self.read("byteorder").decode() if "byteorder" in self.members else "little"
        self.order = {"little": "<", "big": ">"}.get(order, "")
        own = {m.filename.partition("/")[0] for m in members if not m.filename.startswith(_ADDED)}
        if not self.order or len(own) != 1:
            raise ModelFileError("it is a zip file, but not one of PyTorch, or damaged")

    def __enter__(self) -> "TorchArchive":
        return self

    def __exit__(self, *_: Any) -> None:
        self.zip.close()

    def read(self, name: str) -> bytes:
        """The bytes of a member. Raises ModelFileError, zipfile.BadZipFile."""
        member = self.members.get(name)
        if member is None:
            raise ModelFileError(f"its zip archive has no member {name}")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise ModelFileError(
                f"the member {name} of its zip archive is compressed, which PyTorch does not do"
            )
        return self.zip.read(member)

    def load(self) -> Any:
        """The value in `data.pkl`, with inert objects for anything that is not a plain value or a tensor."""
        return pickle_data.load(self.read("data.pkl"))

    def array(self, tensor: Tensor) -> np.ndarray:
        """A copy of a tensor's numbers; bfloat16 becomes float32, which holds the same values."""
        if tensor.storage_type not in _DTYPES:
            raise ModelFileError(f"a tensor of it holds {tensor.storage_type}, which is not supported")
        dtype = np.dtype(self.order + _DTYPES[tensor.storage_type])
        storage = np.frombuffer(self.read(f"data/{tensor.storage}"), dtype)
        last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
        count = int(np.prod(tensor.shape, dtype=object))
        if len(storage) != tensor.storage_size or (count and (last >= len(storage) or count > len(storage))):
            raise ModelFileError(
                f"the storage {tensor.storage} of it does not fit its tensor of shape {tensor.shape}"
            )
        if not count:
            return np.empty(tensor.shape, dtype.newbyteorder("="))
        strides = [s * dtype.itemsize for s in tensor.strides]
        view = np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, strides)
        array = np.array(view, dtype=dtype.newbyteorder("="), order="C")
        if tensor.storage_type == "torch.BFloat16Storage":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array
