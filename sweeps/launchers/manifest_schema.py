"""Strict checks of what is handed to an engine: an unknown or misspelt key is refused, by path.

API servers and the official Python client accept misspelt keys without a word (`backofLimit` is
dropped, and a job is retried six times). A schema is a JSON schema (draft 2020-12) in which every
object names all of its keys.
"""

import difflib
import importlib
import json
from collections.abc import Iterator
from typing import Any

INSTALL = "pip install -e '.[kubernetes]'"

Schema = dict[str, Any]


def keys(required: str = "", /, **properties: Schema) -> Schema:
    """Returns the schema of an object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def items(of: Schema, fewest: int = 0) -> Schema:
    """Returns the schema of a list."""
    return {"type": "array", "items": of, "minItems": fewest}


def one_of(*values: str) -> Schema:
    """Returns the schema of a text that is one of some values."""
    return {"type": "string", "enum": list(values)}


TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
EXIT_CODES = items({"type": "integer", "minimum": 0, "maximum": 255}, 1)


def to_yaml(document: Any) -> str:
    """Returns plain data as YAML, without anchors."""
    import yaml

    return str(yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False))


def check(document: Any, schema: Schema, title: str) -> None:
    """Raises ValueError that names, by path, everything in `document` that the schema refuses.

    Raises ValueError with the command to run where the library `jsonschema` is not installed.
    """
    problems = list(_problems(document, schema))
    if problems:
        raise ValueError(f"{title} is not valid:\n  " + "\n  ".join(problems))


def _problems(document: Any, schema: Schema) -> Iterator[str]:
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError as missing:
        message = f"checking manifests needs the library jsonschema: {INSTALL}"
        raise ValueError(message) from missing
    validator = jsonschema.Draft202012Validator(schema)
    for error in sorted(validator.iter_errors(document), key=lambda found: found.json_path):
        path = error.json_path.removeprefix("$").removeprefix(".")
        if error.validator != "additionalProperties":
            yield f"{path or 'document'}: {error.message}"
            continue
        known = error.schema["properties"]
        for key in sorted(set(error.instance) - set(known)):
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            where = f"{path}.{key}" if path else key
            yield f"{where}: unknown key.{hint} Known: {', '.join(sorted(known))}"
