"""A built wheel holds all that `acct` reads at run time, and finds it from any folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "acct", "appendix_tables", "conf")
FOUND = """
import json, pathlib, acct
from acct.config.root import compose, config_folder
from acct.micro.families import MODELS
from acct.models.published import published_names
config = compose(["debug=tiny"])
print(json.dumps({"package": acct.__file__, "conf": str(config_folder()), "scale": config.scale, "direction": config.direction.name,
                  "models": len(list(MODELS.glob("*/model.safetensors"))), "published": len(published_names())}))
"""


def light(source: str, target: str) -> None:
    """Copy a file; weights, which take long to pack, by their name only."""
    if source.endswith(".safetensors"):
        Path(target).touch()
    else:
        shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is written into the checkout; a personal setting is there as well."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=light)
        else:
            shutil.copy(ROOT / name, folder / "source")
    (folder / "source" / "conf" / "local").mkdir(exist_ok=True)
    (folder / "source" / "conf" / "local" / "mine.yaml").write_text("scale: tiny\n")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder / "out"), str(folder / "source")], check=True, timeout=300)
    (built,) = (folder / "out").glob("acct-*.whl")
    return built


def test_every_file_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"acct/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml") if "local" not in path.parts}
    assert len(expected) > 30 and "acct/conf/config.yaml" in expected and "acct/conf/hydra/launcher/slurm.yaml" in expected
    for package in ("acct", "appendix_tables"):
        files = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        expected |= {str(path.relative_to(ROOT)) for path in files if path.name != "README.md" and "rendered" not in path.parts}
    assert sorted(expected - names) == []
    assert [name for name in names if "local" in name.split("/") or name.startswith(("tests/", "conf/"))] == []


def test_an_installed_wheel_finds_its_files_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (site / "conf").mkdir()
    (site / "conf" / "config.yaml").write_text("of: another package\n")
    (tmp_path / "elsewhere").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FOUND]
    done = subprocess.run(command, env=environment, cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "package": str(site / "acct" / "__init__.py"), "conf": str(site / "acct" / "conf"), "scale": "tiny", "direction": "tiny_qwen3",
        "models": 6, "published": len(list((ROOT / "acct" / "models" / "configurations").glob("*/*.json"))),
    }  # fmt: skip
