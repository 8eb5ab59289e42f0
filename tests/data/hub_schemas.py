"""The hub's own types of every data set: class labels, integer widths, lists inside objects, as its cards give them."""

from __future__ import annotations

from datasets import ClassLabel, Features, Sequence, Value

TEXT, TEXTS, INT = Value("string"), Sequence(Value("string")), Value("int32")

SCHEMAS: dict[str, Features] = {
    "search_qa": Features(
        category=TEXT, air_date=TEXT, question=TEXT, value=TEXT, answer=TEXT, round=TEXT, show_number=INT,
        search_results=Sequence({"urls": TEXT, "snippets": TEXT, "titles": TEXT, "related_links": TEXT}),
    ),
    "trivia_qa": Features(
        question=TEXT, question_id=TEXT, question_source=TEXT,
        entity_pages=Sequence({"doc_source": TEXT, "filename": TEXT, "title": TEXT, "wiki_context": TEXT}),
        search_results=Sequence(
            {"description": TEXT, "filename": TEXT, "rank": INT, "title": TEXT, "url": TEXT, "search_context": TEXT}
        ),
        answer={
            "aliases": TEXTS, "normalized_aliases": TEXTS, "matched_wiki_entity_name": TEXT,
            "normalized_matched_wiki_entity_name": TEXT, "normalized_value": TEXT, "type": TEXT, "value": TEXT,
        },
    ),
    "boolq": Features(question=TEXT, answer=Value("bool"), passage=TEXT),
    "race": Features(example_id=TEXT, article=TEXT, answer=TEXT, question=TEXT, options=TEXTS),
    "wiki_hop": Features(query=TEXT, supports=TEXTS, candidates=TEXTS, answer=TEXT, id=TEXT),
    "pubmed_qa": Features(
        pubid=INT, question=TEXT, long_answer=TEXT, final_decision=TEXT,
        context=Sequence(
            {"contexts": TEXT, "labels": TEXT, "meshes": TEXT, "reasoning_required_pred": TEXT, "reasoning_free_pred": TEXT}
        ),
    ),
    "hellaswag": Features(
        ind=INT, activity_label=TEXT, ctx_a=TEXT, ctx_b=TEXT, ctx=TEXT, endings=TEXTS, source_id=TEXT, split=TEXT, split_type=TEXT,
        label=TEXT,
    ),
    "winogrande": Features(sentence=TEXT, option1=TEXT, option2=TEXT, answer=TEXT),
    "mmlu": Features(question=TEXT, subject=TEXT, choices=TEXTS, answer=ClassLabel(names=["A", "B", "C", "D"])),
    "piqa": Features(goal=TEXT, sol1=TEXT, sol2=TEXT, label=ClassLabel(names=["0", "1"])),
    "wikitext": Features(text=TEXT),
}  # fmt: skip
