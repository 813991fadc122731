"""What several readers of a Hugging Face tokenizer folder need: its JSON files, and their complaint."""

from __future__ import annotations

import json
import pathlib
from typing import Any


class BadRequest(Exception):
    """What was asked for cannot be done; the message goes to the user."""


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The object in a file, empty without the file. Raises BadRequest if it holds no JSON object."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"cannot read {path.name}: {error}") from error
    if not isinstance(content, dict):
        raise BadRequest(f"cannot read {path.name}: expected a JSON object")
    return content


def token_text(value: Any) -> str | None:
    """The text of a special token, which files give as a string or as an object; None if it is neither."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
