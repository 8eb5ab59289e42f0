"""lm-eval's general tasks as examples: what is read and scored is lm-eval's own text, to the character."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lm_eval.tasks
import pytest
import yaml

from acct.cli.evaluation import evaluate_direction, example_loader
from acct.config.root import Config, compose
from acct.data.source import load_examples
from acct.data.tasks.registry import get_task
from acct.errors import ArtifactError, ConfigError, DataError
from acct.lm_harness.examples import GENERAL, MMLU_DESCRIPTION, build, contextual, general
from acct.locations import ensure_data
from acct.micro import datasets
from acct.models.pair import Pair
from acct.training.session import data_source
from tests.lm_harness.paths import harness, likelihoods, lm, manager, own_records, own_samples
from tests.training.conftest import finished  # noqa: F401 (a fixture)

FOLDER = Path(lm_eval.tasks.__file__).parent


def rows_of(name: str, count: int = 6) -> list[dict]:
    return datasets.rows(name, "test", count)


def requests(name: str, rows: list[dict]) -> list[list[tuple[str, str]]]:
    """lm-eval's own (prompt, continuation) of every candidate of every document."""
    folder, task_name = GENERAL[name]
    extra = {"description": MMLU_DESCRIPTION} if name == "mmlu" else {}
    task = build(FOLDER / folder, task_name, rows, **extra)
    found = []
    for number, doc in enumerate(task.eval_docs):
        built = task.construct_requests(doc, task.fewshot_context(doc, 0), metadata=(task_name, number, 1))
        found.append([request.args for request in built])
    return found


@pytest.mark.parametrize("name", ["hellaswag", "mmlu", "piqa"])
def test_prompt_and_candidates_are_lm_evals(name: str) -> None:
    rows = rows_of(name)
    examples = general(get_task(name), rows)
    package = get_task(name).examples(rows)
    for example, own, asked in zip(examples, package, requests(name, rows), strict=True):
        assert [(example.context, f" {text}") for text in example.candidates] == asked
        assert (example.id, example.gold, example.query, example.contextual) == (own.id, own.gold, "", False)


def test_winogrande_scores_what_follows_the_option() -> None:
    rows = rows_of("winogrande")
    rows[0] |= {"sentence": "Ann told Bob that _ was late.", "option1": "the old man", "option2": "the owl", "answer": "2"}
    examples = general(get_task("winogrande"), rows)
    for example, asked in zip(examples, requests("winogrande", rows), strict=True):
        whole = [f"{example.context} {candidate}{example.scored_suffix}" for candidate in example.candidates]
        assert whole == [prompt + continuation for prompt, continuation in asked]
        assert {example.scored_suffix} == {continuation for _, continuation in asked}
    assert (examples[0].context, examples[0].candidates) == ("Ann told Bob that the", ("old man", "owl"))
    assert [example.gold for example in examples[1:]] == [int(row["answer"]) - 1 for row in rows[1:]] and examples[0].gold == 1


def test_wikitext_windows_are_pieces_of_lm_evals_page() -> None:
    task = get_task("wikitext", window_tokens=40, context_tokens=30)
    rows = rows_of("wikitext", 2)
    rows[3]["text"] = f" The value is 1 @,@ 000 ; so it is . {rows[3]['text'].strip()} \n"
    pages = build(FOLDER / "wikitext", "wikitext", [{"page": page} for page in task.documents(rows)])
    texts = [pages.doc_to_target(doc) for doc in pages.eval_docs]
    windows = general(task, rows)
    assert [window.id for window in windows] == [f"wikitext/{number:05d}" for number in range(len(windows))]
    assert len(texts) == 2 and "1,000; so it is." in windows[0].context
    rest = list(texts)
    for window in windows:
        piece = window.context + window.candidates[0]
        while piece not in rest[0]:
            rest.pop(0)
        rest[0] = rest[0].replace(piece, "", 1)
        assert len(piece.split()) == 40 and len(window.context.split()) == 30


def test_mmlus_description_is_the_one_of_every_subject() -> None:
    files = sorted((FOLDER / "mmlu/default").glob("mmlu_*.yaml"))
    assert len(files) == 57
    for file in files:
        fields = yaml.safe_load(file.read_text())
        subject = fields["dataset_name"].replace("_", " ")
        assert fields["description"] == MMLU_DESCRIPTION.replace("{{subject|replace('_', ' ')}}", subject), file.name
    example = general(get_task("mmlu"), [row | {"subject": "high_school_physics"} for row in rows_of("mmlu", 1)])[0]
    assert example.context.startswith("The following are multiple choice questions (with answers) about high school physics.\n\n")
    assert example.context.endswith("\nAnswer:")


@pytest.mark.parametrize("name", ["search_qa", "trivia_qa", "boolq", "race", "wiki_hop", "pubmed_qa"])
def test_the_six_contextual_sets_come_back_from_their_yaml_files(name: str, micro: Config) -> None:
    task, rows = get_task(name), rows_of(name, 3)
    assert contextual(task, rows, micro) == task.examples(rows)


def test_rows_of_another_schema_are_refused_with_the_tasks_name() -> None:
    with pytest.raises(DataError, match=r"lm-eval's task hellaswag does not accept these rows: KeyError: 'ctx_a'"):
        general(get_task("hellaswag"), [{"ctx": "a", "endings": ["b", "c"], "label": "0"}])
    with pytest.raises(DataError, match=r"winogrande/00000: expected a prompt"):
        general(get_task("winogrande"), [{"sentence": "_ ran.", "option1": "Ann", "option2": "Bob", "answer": "1"}])


def test_both_paths_agree_on_lm_evals_own_tasks(micro: Config, settings, pair: Pair) -> None:
    config = replace(
        micro, evaluation=replace(micro.evaluation, tasks=["hellaswag", "piqa"]), data=replace(micro.data, tasks_from="lm_eval")
    )
    ensure_data(config, config.evaluation.tasks, ["evaluation"])
    samples = own_samples(config, pair, "base", example_loader(config))
    assert {name: len(sample.examples) for name, sample in samples.items()} == {"hellaswag": 5, "piqa": 5}
    for name, sample in samples.items():
        records = own_records(config, pair, None, "target_full", sample)
        rows = data_source(config).rows(name, "evaluation")
        chosen = [rows[int(example.id.rpartition("/")[2])] for example in sample.examples]
        task = build(FOLDER / GENERAL[name][0], GENERAL[name][1], chosen)
        found = harness(lm(pair, None, config, "target_full"), [task], manager(settings))[name]
        for example, row in zip(sample.examples, found, strict=True):
            assert likelihoods(row)[example.gold] == pytest.approx(-records[example.id]["nll_sum"], abs=2e-4)
            assert row["acc"] == records[example.id]["score"]


def test_evaluate_takes_lm_evals_tasks_and_keeps_the_records_apart(finished: Config, tmp_path: Path) -> None:  # noqa: F811
    tasks = ["boolq", "hellaswag", "winogrande", "mmlu", "piqa", "wikitext"]
    evaluation = replace(finished.evaluation, tasks=tasks, methods=["target_full", "acct"], examples=2, wikitext_window_tokens=40)
    evaluation = replace(evaluation, wikitext_context_tokens=30)
    config = replace(finished, evaluation=evaluation, data=replace(finished.data, tasks_from="lm_eval"))
    report = evaluate_direction(config)
    assert report.new == 2 * 2 * len(tasks)
    with pytest.raises(ArtifactError, match=r"data\.tasks_from was \"lm_eval\", now it is \"package\""):
        evaluate_direction(replace(config, data=finished.data))


def test_the_field_is_checked_and_defaults_to_the_packages_tasks() -> None:
    assert example_loader(compose(["debug=tiny"])) is load_examples
    with pytest.raises(ConfigError, match=r"data\.tasks_from must be one of package, lm_eval"):
        compose(["debug=tiny", "data.tasks_from=lmeval"])
