"""The documents against the code: the table of open choices, paths, targets, commands with their settings, and the library example."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from acct.cli.main import COMMANDS, quoted
from acct.cli.reproduce import TABLES
from acct.cli.sweep import of_the_scale
from acct.config.root import choices_table, compose
from acct.lm_harness.settings import configuration
from acct.reporting.charts.registry import CHARTS
from acct.reporting.claims_excerpt import excerpt
from appendix_tables.registry import TABLES as APPENDIX
from tests.training.conftest import finished  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in (
    "README.md", "CHANGELOG.md", "experiments/README.md", "experiments/LOG.md", "experiments/table1/README.md", "appendix_tables/README.md",
)}  # fmt: skip


def between(text: str, name: str) -> str:
    """What stands between the markers of a name."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    assert text.count(begin) == 1 and text.count(end) == 1, f"the markers of {name!r} must stand once each"
    return text.split(begin)[1].split(end)[0]


def blocks(text: str, language: str = "") -> list[str]:
    """Fenced blocks of a language; all of them where none is named."""
    return [body for kind, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M) if not language or kind == language]


def code(text: str) -> str:
    """Everything that is set as code, one piece a line."""
    outside = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.S | re.M)
    return "\n".join([*blocks(text), *re.findall(r"`([^`\n]+)`", outside)])


def tree_paths() -> list[Path]:
    """Paths of the annotated tree: two blanks a level, then the name, then the comment after two blanks or more."""
    parents: list[str] = []
    found = []
    for line in blocks(between(README, "tree"))[0].splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        parents = [*parents[:level], name.rstrip("/")]
        found.append(Path(*parents))
        assert name.endswith("/") == (ROOT / found[-1]).is_dir(), f"{found[-1]}: a folder, and only a folder, ends in /"
    return found


def test_the_two_commands_come_first():
    first = blocks(README)[0].split()
    assert first == ["make", "reproduce-table1", "make", "test"] and README.index("## The two commands") < README.index("## What it does")


def test_the_table_of_open_choices_is_the_codes():
    assert between(README, "choices") == choices_table(), "paste the output of `acct choices` between the markers of README.md"


def test_the_claims_are_the_committed_figures():
    expected = excerpt(ROOT / "experiments/claims/claims.json")
    assert between(README, "claims") == expected, "run: python -m acct.reporting.claims_excerpt experiments/claims/claims.json README.md"


def test_every_path_of_the_tree_exists_and_no_package_is_missing():
    paths = tree_paths()
    assert [str(path) for path in paths if not (ROOT / path).exists()] == []
    packages = {path.parent.relative_to(ROOT) for path in (ROOT / "acct").glob("**/__init__.py")}
    assert sorted(packages - {*paths, Path("acct")}) == []
    assert sorted(path.name for path in (ROOT / "acct").glob("*.py") if path.relative_to(ROOT) not in paths) == ["__init__.py"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_that_a_document_names_exist(name):
    text = DOCUMENTS[name]
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    named = re.findall(r"^((?:acct|conf|tests|experiments|appendix_tables)/[\w./]*)$", code(text), re.M)
    missing = [link for link in links if not ((ROOT / name).parent / link).exists()] + [
        path for path in named if not (ROOT / path).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_exists(name):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", code(DOCUMENTS[name]))) - targets == set()


def command_lines() -> list[list[str]]:
    """Commands of all documents, as arguments after `acct`; a bare `acct a, b, c` names several."""
    found = []
    for text in DOCUMENTS.values():
        for line in re.findall(r"^acct (.+)$", code(text), re.M):
            names = [name.strip() for name in line.split(",")]
            found += [[name] for name in names] if len(names) > 1 and "=" not in line else [shlex.split(line)]
    return found


@pytest.mark.parametrize("arguments", command_lines(), ids=" ".join)
def test_every_command_exists_and_its_settings_compose(arguments):
    command, rest = arguments[0], arguments[1:]
    if command == "<command>":
        return
    assert command in COMMANDS
    if command == "lm-eval":  # arguments of another program; settings of ours are in --model_args
        given = rest[rest.index("--model_args") + 1].split(",") if "--model_args" in rest else []
        configuration(dict(item.split("=") for item in given if not item.startswith("method=")))
        return
    scale = next((argument.partition("=")[2] for argument in rest if argument.startswith("scale=")), "micro")
    rest = of_the_scale([argument for argument in rest if not argument.startswith(("-", "hydra")) and argument != "job"], scale)
    if command == "reproduce":
        assert rest[:1] == [] or rest[0] in TABLES
        rest = [argument for argument in rest[1:] if not argument.startswith("jobs=")]
    if command in ("appendix", "figures"):
        known = {"appendix": APPENDIX, "figures": CHARTS}[command]
        assert {name for name in rest if "=" not in name} - {"<name>"} <= set(known)
        rest = [argument for argument in rest if "=" in argument]
    if command == "latency":  # names of directions go without a sign
        rest = [argument for argument in rest if "=" in argument]
    choices = []
    for argument in rest:
        name, _, values = argument.partition("=")
        sweeps = name in ("direction", "experiment", "runtime.seed") or name.startswith("budget.")
        choices.append([f"{name}={value}" for value in values.split(",")] if sweeps else [quoted(argument)])
    for overrides in itertools.product(*choices):
        compose(list(overrides))


def test_every_command_has_an_example():
    assert {arguments[0] for arguments in command_lines()} >= set(COMMANDS)


def test_the_library_example_runs(finished, tmp_path, monkeypatch, capsys):  # noqa: F811
    (example,) = blocks(README, "python")
    folder = re.search(r'from_pretrained\("([^"]+)"\)', example)
    assert folder is not None and (ROOT / "conf/direction" / f"{Path(folder[1]).name}.yaml").is_file()
    run = Path(finished.paths.run).resolve()
    monkeypatch.chdir(tmp_path)
    exec(compile(example.replace(folder[1], str(run)), "README.md", "exec"), {})
    assert "torch.Size" in capsys.readouterr().out and Path("states.safetensors").is_file()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_name_no_folder_of_one_machine(name):
    assert re.findall(r"(?<![\w.>])/(?:work|tmp|home|root|mnt)\b\S*", DOCUMENTS[name]) == []
