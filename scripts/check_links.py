"""Opens every external address and every arXiv number in pages and messages. An address that does not answer is an
error, and so is a wrong form of an address. --offline checks only the form (as the tests do).

python scripts/check_links.py [--offline]
"""

import argparse
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("*.md", "*.toml", "*.cff", "docs/**/*.md", "mdops/**/*.py", "source/**/*.h", "examples/**/*")
_ADDRESS = re.compile(r"\bhttps?:[^\s)>\]\"'`]*")
_ARXIV = re.compile(r"\barxiv[: ]+([^\s,;)\"']+)", re.IGNORECASE)
_ARXIV_NUMBER = re.compile(r"\d{4}\.\d{4,5}(v\d+)?|[a-z-]+(\.[A-Z]{2})?/\d{7}")


def addresses(root: Path = ROOT) -> dict[str, list[str]]:
    """Each address with the files that name it."""
    found: dict[str, list[str]] = {}
    for path in sorted({path for place in PLACES for path in root.glob(place) if path.is_file()}):
        text = path.read_text(errors="ignore")
        named = [address.rstrip(".,;:") for address in _ADDRESS.findall(text)]
        named += [f"https://arxiv.org/abs/{number.rstrip('.:')}" for number in _ARXIV.findall(text)]
        for address in dict.fromkeys(named):
            found.setdefault(address, []).append(str(path.relative_to(root)))
    return found


def why_not_form(address: str) -> str | None:
    """What is wrong with the form of an address; None if nothing is."""
    parts = urlsplit(address)
    if parts.scheme != "https":
        return "it is not https"
    if not re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", parts.hostname or "") or parts.username:
        return "it names no host"
    if parts.hostname == "arxiv.org" and not _ARXIV_NUMBER.fullmatch(parts.path.removeprefix("/abs/")):
        return "arXiv has no such numbers"
    return None


def why_not_there(address: str) -> str | None:
    """Why an address does not answer; None if it does."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (a check of links)"})
    try:
        with urllib.request.urlopen(request, timeout=30):
            return None
    except (urllib.error.URLError, OSError) as error:
        return str(error)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--offline", action="store_true")
    offline, failed = parser.parse_args().offline, 0
    found = addresses()
    for address, files in found.items():
        problem = why_not_form(address) or (None if offline else why_not_there(address))
        failed += problem is not None
        print(f"{problem or 'ok'}: {address} ({', '.join(files)})")
    print(f"{len(found)} addresses, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
