"""Decides by their names which values are secrets, and leaves these out of what is written."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from stagespan import settings

REDACTED = "(redacted)"
"""What reports contain in place of a secret."""

_NAMES = """
    password passwd passphrase pwd secret secret_value credential authorization auth cookie bearer
    jwt apikey api_key access_key private_key secret_key signing_key encryption_key accesstoken
    authtoken connection_string
"""
_TOKENS = """
    access api auth bearer bot csrf deploy gh github gitlab hf hub hugging_face huggingface id
    identity oauth personal private refresh sas secret security service session slack vault xsrf
"""
_LAST_WORDS = (*_NAMES.split(), *(f"{kind}_token" for kind in _TOKENS.split()))
# As the last word, this is also a part of a text, as in eos_token.
_WHOLE_NAMES = frozenset(("token",))
_LONGEST_NAME = 256
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_FIELD = re.compile(r"[\w.-]{1,64}")


@functools.lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether the texts of a field of this name are secrets: its whole name or last words say so.

    ``OPENAI_API_KEY``, ``x-api-key`` and ``apiKeys`` end with the words of ``api_key``;
    ``max_tokens``, ``eos_token_id`` and ``tokenizer`` do not end with those of a secret.
    """
    words = [word.lower() for word in _WORDS.findall(name[-_LONGEST_NAME:])]
    whole = "_".join(words)
    if whole in _WHOLE_NAMES:
        return True
    singular = whole, whole.removesuffix("s")
    return any(f"_{each}".endswith(f"_{word}") for each in singular for word in _LAST_WORDS)


def names_secret(pair: Sequence[Any]) -> bool:
    """Whether two values are the name and the text of a secret, such as a header of a request."""
    if len(pair) != 2:
        return False
    name = pair[0]
    if isinstance(name, bytes):
        name = name.decode("latin-1")
    return isinstance(name, str) and _FIELD.fullmatch(name) is not None and is_secret(name)


def hides_secrets() -> bool:
    """Whether files leave out secrets; False if ``STAGESPAN_REDACT`` is ``none``."""
    return bool(settings.get("STAGESPAN_REDACT") != "none")


def without_secrets(value: Any) -> Any:
    """Return a value of JSON types in which `REDACTED` replaces the texts of secrets."""
    return _without(value, False) if hides_secrets() else value


def _without(value: Any, is_hidden: bool) -> Any:
    if isinstance(value, str):
        return REDACTED if is_hidden else value
    if isinstance(value, dict):
        return {k: _without(v, is_hidden or is_secret(str(k))) for k, v in value.items()}
    if isinstance(value, list):
        if names_secret(value):
            return [value[0], _without(value[1], True)]
        return [_without(item, is_hidden) for item in value]
    return value
