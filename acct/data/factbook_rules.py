"""Which fields of the Factbook become questions, and which part of a field's text is the answer.

A rule names a field by its path, words the question for an entity's name, and takes the first group of a pattern that must match at the
beginning of the text. Units that the question names stay out of the answer, so that token F1 gives nothing for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_WORDS = 8  # longer answers are no short answers
NUMBER, PERCENT, DATE = r"(-?\d[\d,.]*)", r"(-?\d[\d,.]*%)", r"(\d{1,2} [A-Z][a-z]+ \d{4})"
MONEY = r"(-?\$\d[\d,.]*(?: (?:million|billion|trillion))?)"
PHRASE = r"([^;(+\[]+)"  # up to a bracket, a semicolon or a further value
POINT = r"(\D+?) (?:-?\d[\d,.]*|at sea level) ?m?\b"
UNKNOWN = {"na", "none", "nil", "unknown"}


@dataclass(frozen=True)
class Rule:
    """One kind of question.

    Attributes:
        path: of the field. question: with {name} for the entity. pattern: its first group is the answer.
    """

    path: str
    question: str
    pattern: str = PHRASE

    def answer(self, text: str) -> str | None:
        """The answer that a field's text holds, a part of it word for word; None where it holds no short one."""
        found = re.match(self.pattern, text)
        answer = found[1].strip(" ,").rstrip(".") if found else ""
        short = answer and len(answer.split()) <= MAX_WORDS and answer.lower() not in UNKNOWN
        return answer if short else None


def _rules(section: str, *rows: tuple[str, ...]) -> tuple[Rule, ...]:
    return tuple(Rule(f"{section}/{path}", *rest) for path, *rest in rows)


RULES: tuple[Rule, ...] = (
    *_rules(
        "Geography",
        ("Geographic coordinates", "What are the geographic coordinates of {name}?", r"(\d[\d ]*[NS], \d[\d ]*[EW])"),
        ("Area/total", "What is the total area of {name} in square kilometres?", NUMBER),
        ("Area/land", "What is the land area of {name} in square kilometres?", NUMBER),
        ("Area/water", "What is the water area of {name} in square kilometres?", NUMBER),
        ("Area - comparative", "How does the size of {name} compare with other places?"),
        ("Land boundaries/total", "How long are the land boundaries of {name} in kilometres?", NUMBER),
        ("Coastline", "How long is the coastline of {name} in kilometres?", NUMBER),
        ("Elevation extremes/highest point", "What is the highest point of {name}?", POINT),
        ("Elevation extremes/lowest point", "What is the lowest point of {name}?", POINT),
        ("Land use/forest", "What share of the land of {name} is forest?", PERCENT),
        ("Land use/agricultural land", "What share of the land of {name} is agricultural?", PERCENT),
        ("Irrigated land", "How many square kilometres of {name} are irrigated?", NUMBER),
    ),
    *_rules(
        "People and Society",
        ("Population", "What is the population of {name}?", NUMBER),
        ("Nationality/noun", "What are the people of {name} called?"),
        ("Nationality/adjective", "Which adjective names the nationality of {name}?"),
        ("Population growth rate", "How fast does the population of {name} grow?", PERCENT),
        ("Median age/total", "What is the median age in {name} in years?", NUMBER),
        ("Birth rate", "How many births are there for each 1,000 people of {name}?", NUMBER),
        ("Death rate", "How many deaths are there for each 1,000 people of {name}?", NUMBER),
        ("Net migration rate", "What is the net migration rate of {name} for each 1,000 people?", NUMBER),
        ("Infant mortality rate/total", "What is the infant mortality rate of {name} for each 1,000 live births?", NUMBER),
        ("Life expectancy at birth/total population", "What is the life expectancy at birth in {name} in years?", NUMBER),
        ("Total fertility rate", "How many children are born for each woman in {name}?", NUMBER),
        ("Urbanization/urban population", "What share of the population of {name} lives in towns?", PERCENT),
        ("Literacy/total population", "What share of the population of {name} can read and write?", PERCENT),
        ("Health expenditures", "What share of its GDP does {name} spend on health?", PERCENT),
        ("Physicians density", "How many physicians has {name} for each 1,000 people?", NUMBER),
    ),
    *_rules(
        "Government",
        ("Country name/conventional long form", "What is the conventional long form of the name of {name}?"),
        ("Country name/local short form", "What is {name} called in short by its own people?"),
        ("Government type", "What type of government has {name}?"),
        ("Capital/name", "What is the capital of {name}?"),
        ("Capital/time difference", "Which time zone has the capital of {name}?", r"(UTC ?[+-]?\d[\d:.]*)"),
        ("Independence", "When did {name} become independent?", DATE),
        ("National holiday", "On which day is the national holiday of {name}?", r"[^,]+, (\d{1,2} [A-Z][a-z]+)"),
        ("Executive branch/chief of state", "Who is the chief of state of {name}?"),
        ("Executive branch/head of government", "Who is the head of government of {name}?"),
        ("National anthem/name", "What is the name of the national anthem of {name}?", r'"([^"]+)"'),
    ),
    *_rules(
        "Economy",
        ("GDP (purchasing power parity)", "What is the GDP of {name} at purchasing power parity?", MONEY),
        ("GDP (official exchange rate)", "What is the GDP of {name} at the official exchange rate?", MONEY),
        ("GDP - per capita (PPP)", "What is the GDP of {name} for each person?", MONEY),
        ("GDP - real growth rate", "What is the real growth rate of the GDP of {name}?", PERCENT),
        ("GDP - composition, by sector of origin/agriculture", "What share of the GDP of {name} comes from agriculture?", PERCENT),
        ("GDP - composition, by sector of origin/industry", "What share of the GDP of {name} comes from industry?", PERCENT),
        ("GDP - composition, by sector of origin/services", "What share of the GDP of {name} comes from services?", PERCENT),
        ("Inflation rate (consumer prices)", "What is the inflation rate of {name}?", PERCENT),
        ("Unemployment rate", "What is the unemployment rate of {name}?", PERCENT),
        ("Public debt", "How high is the public debt of {name} as a share of its GDP?", PERCENT),
        ("Budget/revenues", "What are the budget revenues of {name}?", MONEY),
        ("Budget/expenditures", "What are the budget expenditures of {name}?", MONEY),
        ("Exports", "What are the exports of {name} worth?", MONEY),
        ("Imports", "What are the imports of {name} worth?", MONEY),
        ("Exports - partners", "Which is the largest export partner of {name}?", r"(\D+?) \d[\d.]*%"),
        ("Imports - partners", "Which is the largest import partner of {name}?", r"(\D+?) \d[\d.]*%"),
        ("Exchange rates", "In which currency are the exchange rates of {name} given?", r"([^(;+]+?) (?:\([^)]*\) )?per US dollar"),
        ("Debt - external", "How high is the external debt of {name}?", MONEY),
    ),
    *_rules(
        "Communications",
        ("Internet country code", "What is the Internet country code of {name}?", r"(\.[a-z]{2})\b"),
        ("Internet users/percent of population", "What share of the population of {name} uses the Internet?", PERCENT),
        (
            "Telephones - mobile cellular/subscriptions per 100 inhabitants",
            "How many mobile phones are there for 100 people of {name}?",
            NUMBER,
        ),
    ),
    *_rules(
        "Transportation",
        ("Airports", "How many airports has {name}?", NUMBER),
        ("Roadways/total", "How long are the roads of {name} in kilometres?", NUMBER),
        ("Railways/total", "How long are the railways of {name} in kilometres?", NUMBER),
        ("Ports and terminals/major seaport(s)", "Which are the major seaports of {name}?"),
    ),
)
