"""Every way in which a JSON file can be unusable has a message with the file, the reason and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from acct.errors import ArtifactError, ModelError
from acct.json_files import read_json


def test_objects_and_lists_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"name": "é", "value": 1.5}', encoding="utf-8")
    assert read_json(path, "Write it.") == {"name": "é", "value": 1.5}
    path.write_text("[1, NaN]", encoding="utf-8")
    first, second = read_json(str(path), "Write it.", list, finite=False)
    assert first == 1 and second != second


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": 1', "is not JSON: Expecting"), (b"", "is not JSON"), (b'{"a": "\xff"}', "is not JSON: 'utf-8' codec"),
        (b'{"a": NaN}', "NaN is no JSON number"), (b'{"a": -Infinity}', "-Infinity is no JSON number"),
        (b"[1]", "must hold an object, got list"), (b"null", "must hold an object, got NoneType"),
        (b"[" * 200_000, "is not JSON"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "card.json"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_json(path, "Make it again.", error=ModelError)
    message = str(caught.value)
    assert message.startswith(str(path)) and reason in message and message.endswith(" Make it again.")


def test_no_file_a_folder_and_an_object_for_a_list(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none\.json: no such file\. Make it\.$"):
        read_json(tmp_path / "none.json", "Make it.")
    with pytest.raises(ArtifactError, match=r"cannot be read: Is a directory\. Make it\.$"):
        read_json(tmp_path, "Make it.")
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ArtifactError, match="must hold a list of objects, got dict"):
        read_json(tmp_path / "a.json", "Make it.", list)
