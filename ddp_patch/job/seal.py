"""What ranks tell each other as Python objects: the one door for pickles that come from other processes.

With a key, a pickle carries a code (HMAC) over itself and its name, and one without the right code is not read. Without
a key, values travel as plain data, and what is none of these is refused.
"""

from __future__ import annotations

import hmac
import pickle
from typing import Any

from ..errors import TrustError
from ..portable import portable
from . import plain_values
from .key import REMEDY

_CODE = 32  # bytes, of SHA-256


class Seal:
    """The seal of one job."""

    def __init__(self, key: bytes | None = None) -> None:
        """Take the key.

        Args:
            key: of all ranks, and nobody else; None if there is none.
        """
        self._key = key

    def pack(self, name: str, value: Any) -> bytes:
        """Write a value down, to be told under a name that is used once.

        Raises:
            TrustError: without a key, for what is no plain data.
            Exception: whatever its pickling raises.
        """
        if self._key is not None:
            text = pickle.dumps(value)
            return self._code(name, text) + text
        try:
            return plain_values.dumps(value)
        except plain_values.NotPlainError as error:
            raise _refused(name, str(error)) from None

    def unpack(self, name: str, data: bytes) -> Any:
        """Read what another rank told under a name.

        Raises:
            TrustError: if none of them did.
        """
        if self._key is not None:
            code, text = data[:_CODE], data[_CODE:]
            if not hmac.compare_digest(code, self._code(name, text)):
                raise TrustError(_not_ours(name, f"{len(data)} bytes without its code"))
            return pickle.loads(text)
        try:
            return plain_values.loads(data)
        except ValueError as error:
            raise TrustError(_not_ours(name, str(error))) from None

    def portable_error(self, name: str, error: BaseException) -> BaseException:
        """Give the form of an error in which every rank can raise it: a refusal, where that takes a key."""
        form: BaseException = portable(error)
        try:
            self.pack(name, form)
        except TrustError:
            return _refused(name, f"{type(error).__qualname__} ({error})")
        return form

    def _code(self, name: str, text: bytes) -> bytes:
        code = hmac.new(self._key, b"%d %b" % (len(name.encode()), name.encode()), "sha256")  # type: ignore[arg-type]
        code.update(text)
        return code.digest()


def _refused(name: str, what: str) -> TrustError:
    return TrustError(
        f"{name}: {what} travels as a pickle, and these ranks have no key by which they could tell one of theirs from "
        f"somebody else's. {REMEDY}"
    )


def _not_ours(name: str, found: str) -> str:
    return (
        f"{name}: what came is not of this job's ranks ({found}), so somebody else writes to its store or its sockets, "
        f"and nothing of it was read. Let nobody else reach them, and give the ranks a key. {REMEDY}"
    )
