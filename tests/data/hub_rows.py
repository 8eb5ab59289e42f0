"""Hand-written rows in the hub's field names, two or three of each task; the content is invented."""

from __future__ import annotations

from typing import Any

ROWS: dict[str, list[dict[str, Any]]] = {
    "search_qa": [
        {
            "category": "RIVERS", "air_date": "2001-01-01", "question": "This river runs through the town of Orlen.", "value": "$200",
            "answer": "the Tavin", "round": "Jeopardy!", "show_number": 3,
            "search_results": {
                "urls": ["u1", "u2", "u3"], "snippets": ["Orlen lies on the Tavin.", None, " The Tavin is long. "],
                "titles": ["Orlen", "x", "Tavin"], "related_links": [None, None, None],
            },
        },
        {"question": "Who founded Orlen?", "answer": "Mira Sol", "search_results": {"snippets": ["Mira Sol founded Orlen."]}},
    ],
    "trivia_qa": [
        {
            "question": "Which city did Mira Sol found", "question_id": "tc_1", "question_source": "x",
            "entity_pages": {"doc_source": [], "filename": [], "title": [], "wiki_context": ["Mira Sol founded a city."]},
            "search_results": {
                "description": ["d"], "filename": ["f"], "rank": [0], "title": ["t"], "url": ["u"],
                "search_context": ["She founded Orlen."],
            },
            "answer": {
                "aliases": ["Orlen", "Orlen City", "City of Orlen"], "normalized_aliases": ["orlen"], "matched_wiki_entity_name": "",
                "normalized_matched_wiki_entity_name": "", "normalized_value": "orlen", "type": "WikipediaEntity", "value": "Orlen",
            },
        },
        {
            "question": "Who?", "entity_pages": {"wiki_context": ["Page one.", "Page two."]}, "search_results": {"search_context": []},
            "answer": {"value": "Mira", "aliases": []},
        },
    ],
    "boolq": [
        {"question": "is the tavin a river", "answer": True, "passage": "The Tavin is a river."},
        {"question": "is orlen a river", "answer": False, "passage": "Orlen is a town."},
    ],
    "race": [
        {
            "example_id": "high1.txt", "article": "Tom went to Orlen by boat.", "answer": "C", "question": "Tom went to Orlen  _  .",
            "options": ["by car", "on foot", "by boat", "by train"],
        },
        {
            "example_id": "high1.txt", "article": "Tom went to Orlen by boat.", "answer": "A", "question": "Where did Tom go?",
            "options": ["Orlen", "Tavin", "the sea", "home"],
        },
    ],
    "wiki_hop": [
        {
            "id": "WH_dev_0", "query": "country_of_origin mira sol", "answer": "tavinia", "candidates": ["orlen", "tavinia"],
            "supports": ["Mira Sol was born in Orlen.", "Orlen lies in Tavinia."], "annotations": [],
        },
        {"id": "WH_dev_1", "query": "country orlen", "answer": "tavinia", "candidates": ["tavinia", "belen"],
         "supports": ["Orlen, Tavinia."]},
    ],
    "pubmed_qa": [
        {
            "pubid": 21645374, "question": "Do leaves sleep?", "long_answer": "They do.", "final_decision": "maybe",
            "context": {"contexts": ["Leaves move.", "We watched them."], "labels": ["B", "M"], "meshes": [],
                        "reasoning_required_pred": ["m"]},
        },
        {"pubid": 7, "question": "Is water wet?", "context": {"contexts": ["Water."]}, "final_decision": "yes"},
    ],
    "hellaswag": [
        {"ctx": "A woman lifts a bar. the woman", "endings": ["sings.", "puts it down.", "eats it.", "paints."], "label": "1"},
        {"ctx": "[header] How to row [title] Sit down. [step] Take the oars.",
         "endings": ["Pull. [step] Rest.", "b", "c", "d"], "label": 0},
    ],
    "winogrande": [
        {"sentence": "The cup did not fit the box because the _ was too big.", "option1": "cup", "option2": "box", "answer": "1"},
        {"sentence": "Ann helped Eve because _ was tired.", "option1": "Ann", "option2": "Eve", "answer": "2"},
    ],
    "mmlu": [
        {"question": "What is 2 + 2?", "subject": "mathematics", "choices": ["3", "4", "5", "6"], "answer": 1},
        {"question": "Which is a river?", "subject": "geography", "choices": ["Tavin", "Orlen", "Mira", "Sol"], "answer": 0},
    ],
    "piqa": [
        {"goal": "Open a jar", "sol1": "Turn the lid.", "sol2": "Turn the floor. ", "label": 0},
        {"goal": "Dry a cup", "sol1": "Put it in water.", "sol2": "Use a towel.", "label": 1},
    ],
    "wikitext": [
        {"text": ""},
        {"text": " = Orlen = \n"},
        {"text": " Orlen is a town on the river Tavin , founded by Mira Sol . \n"},
        {"text": " = = History = = \n"},
        {"text": " The town was small for a long time . \n"},
        {"text": " = Tavin = \n"},
        {"text": " The Tavin is a river . \n"},
    ],
}  # fmt: skip
