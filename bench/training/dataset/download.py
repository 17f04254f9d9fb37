"""Downloads one file over HTTP, going on where an earlier attempt stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import requests

from bench.errors import UserError

#: Called with the bytes on disk and the bytes in all, where the server says so.
OnBytes = Callable[[int, "int | None"], None]

CONNECT_TIMEOUT_S = 10
SILENCE_TIMEOUT_S = 60
ATTEMPTS = 5  # in a row, of which at most the first brought something
CHUNK_BYTES = 1 << 16
OFFLINE_REMEDY = "check the network, or make images without one: mlproject dataset generate"


class _BrokenOffError(Exception):
    """The transfer failed in a way that may pass."""


def download(
    url: str, part: Path, on_bytes: OnBytes | None = None, *, pause_s: float = 1.0
) -> None:
    """Download `url` into `part`, keeping what `part` already holds.

    A transfer that breaks off is taken up again after `pause_s`, then twice as long, and so on.
    Raises `UserError` without network, for an HTTP error, and when attempts bring nothing more;
    `part` stays for the next call. Raises `OSError` if `part` cannot be written.
    """
    failures = 0
    while True:
        before = _size(part)
        try:
            _transfer(url, part, on_bytes)
            return
        except requests.ConnectionError as error:
            if not failures and _size(part) == before:
                raise UserError(f"url={url!r}: {_cause(error)}: {OFFLINE_REMEDY}") from None
            problem: Exception = error
        except (requests.Timeout, _BrokenOffError) as error:
            problem = error
        except requests.RequestException as error:
            raise UserError(f"url={url!r}: {_one_line(error)}: give another --url") from None
        failures = 1 if _size(part) > before else failures + 1
        if failures >= ATTEMPTS:
            raise UserError(
                f"url={url!r}: broken off at {_size(part)} bytes, {failures} times "
                f"({_one_line(problem)}): run the same command again to go on from there"
            )
        time.sleep(pause_s * 2 ** (failures - 1))


def _transfer(url: str, part: Path, on_bytes: OnBytes | None) -> None:
    """Make one request and write what it brings."""
    have = _size(part)
    headers = {"Accept-Encoding": "identity"}  # bytes as stored, so that ranges count alike
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(
        url, headers=headers, stream=True, timeout=(CONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S)
    ) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            if _range_numbers(response)[-1:] != [have]:
                _start_over(part)
            return  # the whole file is here already
        if response.status_code >= 500:
            raise _BrokenOffError(f"the server answered {response.status_code}")
        if response.status_code >= 400:
            raise UserError(
                f"url={url!r}: the server answered {response.status_code} {response.reason}: "
                "give another --url, or make images without a network: mlproject dataset generate"
            )
        resumed = response.status_code == requests.codes.partial_content
        if resumed and _range_numbers(response)[:1] != [have]:
            _start_over(part)
        _write(response, part, have if resumed else 0, on_bytes)


def _write(response: requests.Response, part: Path, have: int, on_bytes: OnBytes | None) -> None:
    length = response.headers.get("Content-Length", "")
    total = have + int(length) if length.isdecimal() else None
    with part.open("ab" if have else "wb") as stream:
        try:
            for chunk in response.iter_content(CHUNK_BYTES):
                stream.write(chunk)
                have += len(chunk)
                if on_bytes is not None:
                    on_bytes(have, total)
        except requests.RequestException as error:
            raise _BrokenOffError(_one_line(error)) from None
    if total is not None and have < total:
        raise _BrokenOffError(f"{total - have} bytes are missing")


def _range_numbers(response: requests.Response) -> list[int]:
    """Start, end and total of `Content-Range: bytes 5-9/10`; total alone of `bytes */10`."""
    found = re.findall(r"\d+", response.headers.get("Content-Range", ""))
    return [int(number) for number in found]


def _start_over(part: Path) -> None:
    part.unlink()
    raise _BrokenOffError("what was downloaded before does not belong to this file")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _cause(error: requests.ConnectionError) -> str:
    """What stood in the way, without the layers of urllib3 around it."""
    reason = getattr(error.args[0], "reason", error) if error.args else error
    return _one_line(reason).split(": ", 1)[-1]


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]
