"""The models that DeePMD-kit publishes. Their names stand for files in the cache wherever a model file is named.

<cache>/models/<name>.pt
"""

import difflib
import os
from pathlib import Path
from typing import NamedTuple

from mdops.errors import InputError, JitError
from mdops.files.cache import cache_folder


class Published(NamedTuple):
    """A published file.

    Attributes:
        repository, file: its place on the hosts.
        digest: its SHA-256.
    """

    repository: str
    file: str
    digest: str


# The addresses of the repositories of each host, and the name of their main branch.
HOSTS = (
    ("https://huggingface.co/deepmodelingcommunity", "main"),
    ("https://hf-mirror.com/deepmodelingcommunity", "main"),
    ("https://modelscope.cn/models/DeepModelingCommunity", "master"),
)
_DPA4 = {
    "Nano": "ded047546c2b44a50e2c850680d77279e2bf3e107c10f1c2fe39a5c344e693f6",
    "Mini": "13edeea63448c0f8a0b38e08fd8ba196fb1e2fad5f12486b1cd23320829da268",
    "Neo": "fd7f34ae28f921201e4a0328ddf56179892752084f8363e7796038201471c989",
    "Air": "7ac5fb696fc057229ceebc33f31f7a96b2f3616ac5b63a512acd1848f2d41a09",
    "Plus": "6820a320dc241a4002e6c257ad21983950df178b1f80271a6e6af199adb18567",
}
# Those of DeePMD-kit 3.2.0.
PUBLISHED = {
    "DPA-2.4-7M": Published(
        "DPA-2.4-7M",
        "DPA-2.4-7M-patched-mt.pt",
        "904eb5560af9ff644347dedd3ebf1e9c97929d02ee37ce3cbe895de3df711198",
    ),
    "DPA-3.1-3M": Published(
        "DPA-3.1-3M",
        "DPA-3.1-3M.pt",
        "86dd3a804d78ca5d203ebf98747e8f16dff9713ba8950097ceb760b161e19907",
    ),
    "DPA-3.2-5M": Published(
        "DPA-3.2-5M",
        "DPA-3.2-5M.pt",
        "876354744aeaae17b2639a6a690514470273784f2b4836280850f50cbb799165",
    ),
    "DPA-3.3-1M": Published(
        "DPA-3.3-1M",
        "DPA-3.3-1M.pt",
        "36fe440c111108d60cda54aa7d3fccac743794de25abef4d49564b9fb896a55b",
    ),
    "DPA3-Omol-Large": Published(
        "DPA3-Omol-Large",
        "DPA3-Omol-Large.pt",
        "dc4d252b31450b41eb3546cc48f640ad0831c0b5d069ce27d996e0ff58fc037a",
    ),
    **{
        f"DPA4-{size}-OMat24-v20260805": Published("DPA4-OMat24", f"DPA4-{size}-OMat24-v20260805.pt", digest)
        for size, digest in _DPA4.items()
    },
}


def addresses(name: str) -> list[str]:
    """Where the file of a published model is, the first host first."""
    model = PUBLISHED[name]
    return [f"{site}/{model.repository}/resolve/{branch}/{model.file}" for site, branch in HOSTS]


def page(name: str) -> str:
    """The address of the page that describes a published model."""
    return f"{HOSTS[0][0]}/{PUBLISHED[name].repository}"


def published_name(word: str) -> str | None:
    """The name of a published model as `PUBLISHED` writes it, for a word in any case; None if no model has the name."""
    return next((name for name in PUBLISHED if name.lower() == word.lower()), None)


def require_published(word: str) -> str:
    """As `published_name`, but raises InputError with the nearest name and all names if no model has the name."""
    found = published_name(word)
    if found is not None:
        return found
    small = {name.lower(): name for name in PUBLISHED}
    near = difflib.get_close_matches(word.lower(), small, 1, 0.0)
    nearest = f"; the nearest is {small[near[0]]!r}" if near else ""
    raise InputError(
        f"there is no published model {word!r}{nearest}. The published models are {', '.join(PUBLISHED)}"
    )


def published_path(name: str) -> Path:
    """Where the file of a published model is in the cache, or would be."""
    return cache_folder() / "models" / f"{name}.pt"


def find_model_file(path: str | os.PathLike[str]) -> Path:
    """The file of a model. If there is no file at the path, and the path is the name of a published model whose file is
    in the cache, that file; else the path."""
    path = Path(path)
    name = published_name(str(path))
    if name is None or path.is_file():
        return path
    try:
        cached = published_path(name)
    except JitError:  # there is no home folder
        return path
    return cached if cached.is_file() else path


def model_of_input(path: str, folder: str | os.PathLike[str]) -> str:
    """The absolute path of a model file that an input names relative to its folder. The name of a published model stays
    as it is, unless there is a file of this name."""
    found = os.path.abspath(os.path.join(folder, path))
    return found if published_name(path) is None or os.path.isfile(found) else path


def why_no_model_file(path: Path) -> str:
    """The reason to report for a path at which `find_model_file` found no file."""
    name = published_name(str(path))
    if path.exists():
        return "this is a folder" if path.is_dir() else "this is no file"
    if name is None:
        return "there is no such file"
    return f"there is no such file; it is a published model, which `mdops download {name}` fetches"
