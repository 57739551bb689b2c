"""Objects of recorded days: `s3://BUCKET/PREFIX/FEED/DATE/...`, as the files of the day, and a list of them.

FEED/DATE/slice-00000/000000.journal ...   the files, byte for byte
FEED/DATE/files.json                       size and SHA-256 of each
FEED/DATE/manifest.json                    written last: without it there is no day
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import msgspec

from blackbox.archive.files.day import MANIFEST, MOST_JSON_BYTES
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError, JournalError

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES: Final = "files.json"
READ_BYTES: Final = 8 << 20
_S3: Final = re.compile(r"s3:/{1,2}(?=[^/])")
"""`pathlib` makes one slash of two."""
_NAME: Final = re.compile(r"(?:slice-\d{5}/)?[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_CONNECT_S: Final = 5.0
_REQUEST_S: Final = 60.0
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a stored day."""

    size: int
    """Bytes."""
    sha256: str
    """64 hex digits."""


class StoredFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `files.json`: all files of a day but itself, by their paths in the day's directory."""

    files: dict[str, StoredFile]

    @property
    def bytes(self) -> int:
        """Sum of the sizes."""
        return sum(each.size for each in self.files.values())

    def check(self) -> Self:
        """Raise ValueError for a path that is no file of a day, or if there is no manifest."""
        for name in self.files:
            if not _NAME.fullmatch(name):
                raise ValueError(f"path was {name!r}, expected one in a day's directory")
        if MANIFEST not in self.files:
            raise ValueError(f"{MANIFEST} is not listed")
        return self


_FILES: Final = Decoder[StoredFiles]("json", StoredFiles, MOST_JSON_BYTES)


def is_stored(path: str | os.PathLike[str]) -> bool:
    """Return True for `s3://...`, also as a `Path`."""
    return _S3.match(os.fspath(path)) is not None


def join(*names: str) -> str:
    """Return a path of these names without the empty ones."""
    return "/".join(filter(None, names))


class Store:
    """Objects below one prefix of a bucket, by pyarrow.

    Credentials and region are those of the AWS tools: variables such as AWS_ACCESS_KEY_ID, or `~/.aws`. The variable
    AWS_ENDPOINT_URL names another server than Amazon's, such as http://127.0.0.1:9000.
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        """`uri`: s3://BUCKET or s3://BUCKET/PREFIX. Raises ConfigError for another form, or without pyarrow."""
        text = os.fspath(uri)
        if not is_stored(text):
            raise ConfigError(f"store was {text!r}, expected s3://BUCKET/PREFIX")
        self.path = join(*_S3.sub("", text).split("/"))
        self._files = _open_s3(self.path.partition("/")[0])

    @property
    def uri(self) -> str:
        """The URI that it was made of."""
        return f"s3://{self.path}"

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the size of each object below a path, by its path after that. Raises JournalError."""
        from pyarrow.fs import FileSelector, FileType

        base = f"{self.path}/{below}".rstrip("/")
        with self._errors(base):
            found = self._files.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
        return {each.path.removeprefix(f"{base}/"): each.size for each in found if each.type == FileType.File}

    def read(self, name: str, most_bytes: int = MOST_JSON_BYTES) -> bytes | None:
        """Return a small object; None if it does not exist. Raises JournalError, also if it is larger."""
        from pyarrow.fs import FileType

        path = f"{self.path}/{name}"
        with self._errors(path):
            (info,) = self._files.get_file_info([path])
            if info.type != FileType.File:
                return None
            if info.size > most_bytes:
                raise JournalError(f"s3://{path} had {info.size} bytes, expected at most {most_bytes}")
            with self._files.open_input_stream(path) as stream:
                return bytes(stream.read())

    def files_of(self, name: str) -> StoredFiles | None:
        """Return the list of the files of a day; None if the store has no such day. Raises JournalError."""
        data = self.read(join(name, FILES)) if self.read(join(name, MANIFEST)) is not None else None
        if data is None:
            return None
        try:
            return _FILES.decode(data).check()
        except (DecodeError, ValueError) as error:
            raise JournalError(f"s3://{join(self.path, name, FILES)} is damaged: {error}") from error

    def write(self, name: str, data: bytes) -> None:
        """Write a small object. It appears as a whole. Raises JournalError."""
        path = f"{self.path}/{name}"
        with self._errors(path), self._files.open_output_stream(path) as stream:
            stream.write(data)

    def upload(self, file: Path, name: str, progress: Callable[[int], object]) -> None:
        """Write a file's bytes as an object. Raises JournalError, OSError.

        `progress` is called with the size of each part. After an error there may be an object with the first bytes.
        """
        path = f"{self.path}/{name}"
        with file.open("rb") as source, self._errors(path), self._files.open_output_stream(path) as stream:
            while data := source.read(READ_BYTES):
                stream.write(data)
                progress(len(data))

    def parts(self, name: str) -> Iterator[bytes]:
        """Yield an object in parts. Raises JournalError."""
        path = f"{self.path}/{name}"
        with self._errors(path), self._files.open_input_stream(path) as stream:
            while data := stream.read(READ_BYTES):
                yield data

    def digest(self, name: str) -> str:
        """Return the SHA-256 of an object's bytes as the store returns them. Raises JournalError."""
        hashed = hashlib.sha256()
        for data in self.parts(name):
            hashed.update(data)
        return hashed.hexdigest()

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Raise the library's errors, which are OSErrors, as JournalError."""
        try:
            yield
        except OSError as error:
            raise JournalError(f"s3://{path}: {str(error).splitlines()[0]}") from error


def _open_s3(bucket: str) -> Any:
    try:
        from pyarrow.fs import S3FileSystem, resolve_s3_region
    except ImportError as error:
        raise ConfigError(f"s3:// needs pyarrow: pip install 'blackbox-md[arrow]' ({error})") from error
    settings: dict[str, Any] = {"connect_timeout": _CONNECT_S, "request_timeout": _REQUEST_S}
    endpoint = next((os.environ[each] for each in _ENDPOINTS if os.environ.get(each)), "")
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
            raise ConfigError(f"AWS_ENDPOINT_URL was {endpoint!r}, expected http://HOST:PORT or https://HOST:PORT")
        settings |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        # Not every server knows the checksums that Amazon's library adds; `sync` compares the bytes themselves.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    try:
        if not region:
            region = "us-east-1" if endpoint else resolve_s3_region(bucket)
        return S3FileSystem(region=region, **settings)
    except OSError as error:
        raise JournalError(f"s3://{bucket}: {str(error).splitlines()[0]}") from error


def local_files(day: Path) -> Mapping[str, Path]:
    """Return the files of a day by their paths in its directory: segments, indexes and documents. Raises OSError."""
    found = (path for path in sorted(day.rglob("*")) if path.is_file() and path.suffix != ".new")
    return {name: path for path in found if _NAME.fullmatch(name := path.relative_to(day).as_posix())}


def digest_of(path: Path) -> StoredFile:
    """Return size and SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(file.tell(), sha256)
