"""Published configurations against the parameter counts that the hub states, without weights."""

from __future__ import annotations

import json
import re

import pytest

from acct.cli.plan import SIX
from acct.config.root import compose
from acct.errors import ModelError, UnknownName
from acct.models.published import CONFIGURATIONS, configuration, published, published_names

STATED = {name: int(count.replace(",", "")) for name, count in re.findall(
    r"\[([^\]]+)\]\([^)]+\) \| ([\d,]+) \|", (CONFIGURATIONS / "README.md").read_text(encoding="utf-8")
)}  # fmt: skip


@pytest.mark.parametrize("name", published_names())
def test_an_instantiated_configuration_has_the_stated_parameters(name):
    model = published(name)
    assert model.parameters == STATED[name]
    assert model.geometry.head_dim == 128  # paper E.2: d_S = d_T = 128 in all directions
    assert model.geometry.hidden == configuration(name)["hidden_size"]


def test_every_hub_model_of_a_direction_has_a_configuration():
    assert set(STATED) == set(published_names())
    for direction in SIX["paper"]:
        chosen = compose([f"direction={direction}", "scale=paper"]).direction
        assert {chosen.source, chosen.target} <= set(STATED)


def test_a_local_folder_is_read_like_a_hub_id(tmp_path):
    shape = {"hidden_size": 24, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "head_dim": 10, "vocab_size": 7, **shape}))
    geometry = published(str(tmp_path)).geometry
    assert (geometry.layers, geometry.kv_heads, geometry.queries_per_head, geometry.head_dim) == (2, 2, 2, 10)
    # embedding and head 2 x 7 x 24; per layer q, o 2 x 24 x 40, k, v 2 x 24 x 20, three of 24 x 8, two norms of 24; a last norm
    assert published(str(tmp_path)).parameters == 2 * 7 * 24 + 2 * (2 * 24 * 40 + 2 * 24 * 20 + 3 * 24 * 8 + 2 * 24) + 24


def test_what_is_not_there_or_not_a_configuration_is_named(tmp_path):
    with pytest.raises(UnknownName, match="Qwen3-5B"):
        published("Qwen/Qwen3-5B")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="must hold an object, got list"):
        published(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="model_type"):
        published(str(tmp_path))
