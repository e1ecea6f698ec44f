"""Bytes of a script to text and back, as Python itself reads them."""

from __future__ import annotations

import codecs
import io
import tokenize
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A decoded file. Its line ends are as they were."""

    content: str  # without a byte order mark
    encoding: str  # for encode(); "utf-8" unless a coding cookie says otherwise
    mark: bool  # the file begins with a byte order mark

    def encode(self, content: str) -> bytes:
        """Give new content the encoding and the mark of this file."""
        return (codecs.BOM_UTF8 if self.mark else b"") + content.encode(self.encoding)


class NotText(ValueError):
    """These bytes are no text in the encoding that they have or name."""


def decode(data: bytes) -> Text:
    """Decode a script as Python does: by its coding cookie (PEP 263), its byte order mark, or as UTF-8.

    Raises:
        NotText: for anything else, with the reason.
    """
    if b"\0" in data[:8192]:
        raise NotText("this is not text: it holds zero bytes")
    mark = data.startswith(codecs.BOM_UTF8)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        if "missing encoding declaration" not in str(error):
            raise NotText(f"its encoding cannot be told: {error.msg or error}") from None
        encoding = "utf-8"
    encoding = encoding.removesuffix("-sig") if mark else encoding
    body = data[len(codecs.BOM_UTF8) :] if mark else data
    try:
        return Text(body.decode(encoding), encoding, mark)
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise NotText(
            f"line {line} is not {encoding}: byte 0x{body[error.start]:02x}. Save the file as UTF-8, or write its "
            "encoding on the first line: # -*- coding: latin-1 -*-"
        ) from None
