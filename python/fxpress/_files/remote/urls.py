"""Access files at URLs through fsspec, which torch depends on."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import time
from collections.abc import Callable
from http.client import responses
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from fxpress._base.errors import Error, UnsupportedError, is_about_input
from fxpress._base.observing.text import printable
from fxpress._files.format.limit_values import DEFAULT

_T = TypeVar("_T")
_HTTP = ("http", "https")
_GONE = (404, 410)  # HTTP statuses of missing files
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses after which a retry may succeed
_RETRY_DELAYS = (0.1, 0.4, 1.6)  # seconds before a request is repeated
_RETRY_TIMEOUT = 30.0  # seconds after which a request is not repeated
_READ_TIMEOUT = 20.0  # seconds; a request fails if the server sends nothing for so long
_SHORTEST_PART = 6  # characters; `_contains` finds shorter secrets only as separate words


def url_of(path: str | bytes | os.PathLike[str]) -> str | None:
    """Return the path if it is a URL; None for a local path, even if it starts with `file://`."""
    text = os.fsdecode(path)
    if "://" not in text or text.startswith(("file://", "local://")):
        return None
    with contextlib.suppress(ValueError):  # the message of `urlsplit` may contain a password
        urlsplit(text)
        return text
    raise UnsupportedError(f"{shown(text)} is not a valid URL")


def local_path(path: str | bytes | os.PathLike[str]) -> str:
    """Return a local path without its prefix `file://` or `local://`."""
    text = os.fsdecode(path)
    for scheme in ("file://", "local://"):
        if text.startswith(scheme):
            return text.removeprefix(scheme)
    return text


def machine_path(path: str | bytes | os.PathLike[str]) -> str:
    """Return `local_path(path)`; UnsupportedError for a URL that is not also a local path."""
    url = url_of(path)
    if url is not None and not os.path.exists(url):
        raise UnsupportedError(f"{shown(url)} is a URL: expected a path of this machine")
    return local_path(path)


def shown(url: str) -> str:
    """Return a URL for messages: without user, password, query and fragment."""
    return printable(re.sub(r"://[^/]*@", "://", re.split(r"[?#]", url, maxsplit=1)[0]))


def is_archive(url: str) -> bool:
    """Return whether a URL names a .pt2 file with all pipeline stages, not a folder of stages."""
    parts = urlsplit(url)
    return (parts.netloc + parts.path).endswith(".pt2")  # the path of memory://stages.pt2 is empty


def joined(url: str, name: str) -> str:
    """Return the URL of a file in a folder."""
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def opened_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system and path for a URL, or raise UnsupportedError or OSError."""
    import fsspec

    for name in ("fsspec", "fsspec.http"):
        logging.getLogger(name).addFilter(_hide_secrets)

    def find() -> tuple[Any, str] | str:
        try:
            found: tuple[Any, str] = fsspec.core.url_to_fs(url, **_options(url))
            return found
        except (ImportError, ValueError) as error:
            return _redacted(str(error), url)

    found = reached(url, find)
    if isinstance(found, str):
        raise UnsupportedError(f"{shown(url)} cannot be opened: {found}")
    return found


def _options(url: str) -> dict[str, Any]:
    """Return options for fsspec that limit the bytes and the time of an HTTP response."""
    if urlsplit(url).scheme not in _HTTP:
        return {}
    try:
        import aiohttp
        from fsspec.config import conf
    except ImportError:  # `opened_system` reports the missing package
        return {}
    timeout = aiohttp.ClientTimeout(total=300, sock_connect=_READ_TIMEOUT, sock_read=_READ_TIMEOUT)
    kept: dict[str, Any] = {"timeout": timeout}
    for scheme in _HTTP:
        kept |= conf.get(scheme, {}).get("client_kwargs", {})
    return {"client_kwargs": {**kept, "response_class": _limited_response()}}


@functools.cache
def _limited_response() -> Any:
    """Return a response class that accepts at most the bytes of the requested range."""
    import aiohttp

    class Limited(aiohttp.ClientResponse):  # type: ignore[misc]
        async def read(self) -> bytes:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.request_info.headers.get("Range", ""))
            most = int(asked[2]) - int(asked[1]) + 1 if asked else DEFAULT.memory
            data = bytearray()
            async for part in self.content.iter_any():
                data += part
                if len(data) > most:
                    self.close()
                    raise ValueError(f"the server sent more than the {most} requested bytes")
            return bytes(data)

    return Limited


def _hide_secrets(record: logging.LogRecord) -> bool:
    """Redact the URLs in a record of fsspec's log."""
    record.msg, record.args, record.exc_info = _redacted(record.getMessage()), (), None
    return True


def _redacted(text: str, url: str = "") -> str:
    """Return an error text with redacted URLs; "" if it still contains a secret of `url`."""
    # A URL may contain spaces, so everything after the start of the first URL is redacted.
    text = printable(re.sub(r"(?s)\w+://.*", lambda found: shown(found[0]), text))
    parts = urlsplit(url)
    secrets = [parts.username, parts.password, parts.query, parts.fragment]
    secrets += [value for _, value in parse_qsl(parts.query)]
    plain = unquote_plus(text)
    has_secret = any(
        each and (_contains(text, each) or _contains(plain, unquote_plus(each))) for each in secrets
    )
    return "" if has_secret else text


def _contains(text: str, secret: str) -> bool:
    """Return whether a text contains a secret; a short secret counts only as a separate word."""
    if len(secret) >= _SHORTEST_PART:
        return secret in text
    return re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", text) is not None


def reached(url: str, call: Callable[[], _T], *, repeats: bool = True) -> _T:
    """Return the result of a call that reads from a URL; retry transient failures.

    Exceptions of fsspec and its libraries become an OSError that names the URL. They are not
    chained, because their texts may contain secrets of the URL.
    """
    end = time.monotonic() + _RETRY_TIMEOUT
    pauses = [*_RETRY_DELAYS] if repeats else []
    while True:
        try:
            return call()
        except Exception as error:
            if isinstance(error, Error) or not is_about_input(error):
                raise
            failure, is_transient = _failure(url, error)
        if not (is_transient and pauses and time.monotonic() < end):
            raise failure
        time.sleep(pauses.pop(0))


def _failure(url: str, error: BaseException) -> tuple[OSError, bool]:
    """Return the OSError for an exception of a library, and whether the failure is transient."""
    if isinstance(error, FileNotFoundError) and urlsplit(url).scheme in _HTTP:
        error = error.__cause__ or error  # fsspec converts any failure of its first request
    status = getattr(error, "status", None)
    if type(status) is int and status:  # 0: no response
        text = f"HTTP status {status} ({responses.get(status, 'unknown')})"
        is_transient = status in _TRANSIENT
    else:
        text = ": ".join(filter(None, (type(error).__name__, _redacted(str(error), url))))
        is_of_network = type(error).__module__.startswith("aiohttp.")
        is_transient = isinstance(error, (ConnectionError, TimeoutError)) or is_of_network
    if status in _GONE or (status is None and isinstance(error, FileNotFoundError)):
        what = os.strerror(errno.ENOENT) + (f": {text}" if status else "")
        return FileNotFoundError(errno.ENOENT, what, shown(url)), False
    return OSError(f"{shown(url)}: {text}"), is_transient
