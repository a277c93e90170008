"""Downloads a model that DeePMD-kit publishes into the cache. Its name can then be used instead of a model file's name.
Without NAME it lists the models."""

import argparse
import sys
from pathlib import Path

from mdops.cli.arguments import add_overwrite, require_absent

HELP = "download a published model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of the model; upper or lower case")
    parser.add_argument(
        "--output", "-o", type=Path, metavar="FILE", help="the file to write, instead of one in the cache"
    )
    add_overwrite(parser, "FILE")


def run(args: argparse.Namespace) -> int:
    from mdops.errors import DownloadError, InputError
    from mdops.files.cache import make_folder
    from mdops.files.download import fetch, is_whole
    from mdops.files.published import published_path, require_published

    if args.name is None:
        if args.output is not None:
            raise InputError("--output needs the NAME of a model (`mdops download` lists them)")
        _show_all()
        return 0
    name = require_published(args.name)
    path: Path = args.output or published_path(name)
    was_there = is_whole(name, path)
    if not was_there:
        if args.output is not None:
            require_absent(path, overwrite=args.overwrite)
        else:
            try:
                make_folder(path.parent)
            except OSError as error:
                raise DownloadError(
                    f"the folder {path.parent} cannot be made ({error.strerror}): name a file with -o, or another "
                    "folder for the cache in the environment variable MDOPS_CACHE"
                ) from error
        print(f"downloading {name}", file=sys.stderr, flush=True)
        fetch(name, path)
    what = "it is already there" if was_there else f"{path.stat().st_size:,} bytes"
    print(f"{path}: {what}, with the published SHA-256")
    print(f"`mdops info {name if args.output is None else path}` describes it")
    return 0


def _show_all() -> None:
    """Prints the names, which models are in the cache, and where to read about them."""
    from mdops.files.published import PUBLISHED, page, published_path

    width = max(map(len, PUBLISHED))
    for name in PUBLISHED:
        state = "in the cache" if published_path(name).is_file() else ""
        print(f"{name:<{width}}  {state:<12}  {page(name)}")
    folder = published_path(next(iter(PUBLISHED))).parent
    print(f"`mdops download NAME` puts a model into {folder}")
