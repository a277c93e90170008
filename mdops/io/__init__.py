"""Reading and writing of model files.

`read_model` turns any file that `formats.md` lists into one tree, the one DeePMD-kit serialises a model
to, whatever the file was; `write_model` saves that tree as DeePMD-kit reads it, or as `.safetensors`. Neither ever
runs code out of a file.
"""

from mdops.io.model_file import ModelFile, ModelKind, describe
from mdops.io.read import read_model
from mdops.io.write import remove_unfinished, write_model

__all__ = ["ModelFile", "ModelKind", "describe", "read_model", "remove_unfinished", "write_model"]
