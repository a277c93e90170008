"""Reading and writing of model files.

`read_model` reads a file of any format that `formats.md` lists. The result is one tree, as DeePMD-kit serialises a
model. `write_model` saves this tree in a format that DeePMD-kit reads, or as `.safetensors`. Neither ever runs code
from a file.
"""

from mdops.io.model_file import ModelFile, ModelKind, describe
from mdops.io.read import read_model
from mdops.io.write import remove_unfinished, write_model

__all__ = ["ModelFile", "ModelKind", "describe", "read_model", "remove_unfinished", "write_model"]
