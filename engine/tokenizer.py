"""Tokenizer: text to ids and back, for one model folder.

Owns the two rules a service needs and a notebook does not. Text of users never becomes a control
token: where it spells one, it is encoded as the plain characters it is made of; every other chat
encodes exactly as transformers' apply_chat_template would. And streamed text never shows half a
character.

Must not import torch or transformers: the API counts prompt tokens with this file. A Tokenizer is
not changed after loading and may be used from several threads.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ChatTemplateError
from engine.folder import (
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    MissingFileError,
    chat_template,
    read_json,
    readable_files,
)
from engine.model.families import read_eos_token_ids

# A private-use character is put into control-token text of users, so that it no longer spells a
# token while the template is rendered, and is taken out again before encoding. The first one that
# no message contains is used.
_MARKS = tuple(chr(code) for code in range(0xE000, 0xF8FF))

# Text that still ends in a replacement character after so many tokens is no unfinished character
# any more.
_MAX_HELD_TOKENS = 32
_CONTEXT_TOKENS = 4


class Tokenizer:
    """The tokenizer and the chat template of one model folder."""

    def __init__(
        self, definition: str, template: str | None, special: dict[str, str], eos: frozenset[int]
    ) -> None:
        """Take the texts of tokenizer.json and the template, its tokens and the end tokens."""
        self.eos_token_ids = eos
        self._full = tokenizers.Tokenizer.from_str(definition)
        self._plain = tokenizers.Tokenizer.from_str(_without_added_tokens(definition))
        self._special = special
        added = self._full.get_added_tokens_decoder()
        self._added_ids = {token.content: token_id for token_id, token in added.items()}
        by_length = sorted(self._added_ids, key=len, reverse=True)
        self._added_pattern = re.compile("|".join(map(re.escape, by_length)) or r"(?!)")
        self._template = None if template is None else _environment().from_string(template)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read a model folder; raise ModelFolderError for one without a usable tokenizer."""
        paths = readable_files(folder)
        if TOKENIZER_NAME not in paths:
            raise MissingFileError(TOKENIZER_NAME)
        settings = paths.get(TOKENIZER_CONFIG_NAME)
        return cls(
            paths[TOKENIZER_NAME].read_text(encoding="utf-8"),
            chat_template(paths),
            {} if settings is None else _named_tokens(read_json(settings)),
            read_eos_token_ids(folder),
        )

    @property
    def vocab_size(self) -> int:
        """Count the ids, added tokens included."""
        return self._full.get_vocab_size()

    @property
    def definition(self) -> str:
        """The text of tokenizer.json."""
        return self._full.to_str()

    def encode(self, text: str) -> list[int]:
        """Encode a plain prompt, with what the tokenizer itself puts before and after a text."""
        return self._plain.encode(text).ids

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Encode messages by the model's template, up to where its answer begins.

        Raise ChatTemplateError.
        """
        texts = [text for message in messages for text in message.values()]
        if not any(self._added_pattern.search(text) for text in texts):
            return self._full.encode(self._render(messages), add_special_tokens=False).ids
        mark = next(mark for mark in _MARKS if not any(mark in text for text in texts))
        disarmed = [
            {key: self._disarm(text, mark) for key, text in message.items()} for message in messages
        ]
        return self._encode_disarmed(self._render(disarmed), mark)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; control tokens are left out."""
        return self._full.decode(list(ids), skip_special_tokens=True)

    def detokenizer(self) -> "Detokenizer":
        """Begin decoding one streamed answer."""
        return Detokenizer(self)

    def _render(self, messages: list[dict[str, str]]) -> str:
        if self._template is None:
            message = "the model has no chat template"
            raise ChatTemplateError(message)
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._special
            )
        except TemplateError as error:
            raise ChatTemplateError(str(error)) from error

    def _disarm(self, text: str, mark: str) -> str:
        return self._added_pattern.sub(lambda found: found[0][0] + mark + found[0][1:], text)

    def _encode_disarmed(self, rendered: str, mark: str) -> list[int]:
        """Encode what the template wrote as control tokens, and what lies between as plain text."""
        ids: list[int] = []
        end = 0
        for found in self._added_pattern.finditer(rendered):
            ids += self._encode_plain(rendered[end : found.start()].replace(mark, ""))
            ids.append(self._added_ids[found[0]])
            end = found.end()
        return ids + self._encode_plain(rendered[end:].replace(mark, ""))

    def _encode_plain(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids


class Detokenizer:
    """Decodes one answer token by token.

    What feed and flush return, joined, is what decode returns for all.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._released: list[list[int]] = []
        self._context: list[int] = []
        self._held: list[int] = []

    def feed(self, token_id: int) -> str:
        """Take one more token; return the text that is certain now, often nothing."""
        self._held.append(token_id)
        text = self._decode_after_context(self._held)
        if text.endswith("\ufffd"):
            return self._release_surely_broken() if len(self._held) >= _MAX_HELD_TOKENS else ""
        self._advance(len(self._held))
        return text

    def flush(self) -> str:
        """Return what is still held: nothing, unless the answer ended inside a character."""
        text = self._decode_after_context(self._held)
        self._advance(len(self._held))
        return text

    def _decode_after_context(self, ids: list[int]) -> str:
        """Decode ids as they read after the tokens before them.

        A first word, for one, may lose its space.
        """
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + ids)[len(before) :]

    def _release_surely_broken(self) -> str:
        """Let go of bytes that can no longer become a character.

        The longest head that reads the same on its own.
        """
        whole = self._decode_after_context(self._held)
        for length in range(len(self._held) - 1, 0, -1):
            head = self._decode_after_context(self._held[:length])
            tail = self._tokenizer.decode(self._held[length:])
            if head + tail == whole:
                self._advance(length)
                return head
        return ""

    def _advance(self, length: int) -> None:
        """Let go of held tokens; the context begins where some of them did, not in a character."""
        self._released.append(self._held[:length])
        del self._held[:length]
        while sum(map(len, self._released)) - len(self._released[0]) >= _CONTEXT_TOKENS:
            del self._released[0]
        self._context = [token_id for released in self._released for token_id in released]


def _named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Collect what templates call bos_token, eos_token and so on."""
    return {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in settings.items()
        if name.endswith("_token") and isinstance(token, str | dict)
    }


def _without_added_tokens(definition: str) -> str:
    parsed = json.loads(definition)
    parsed["added_tokens"] = []
    return json.dumps(parsed)


def _environment() -> ImmutableSandboxedEnvironment:
    """Build what chat templates are written for (transformers, chat_template_utils.py)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_template_error
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)
