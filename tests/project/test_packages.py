"""Wheel and sdist: their files, and metadata that needs neither the clone nor its repository."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from zipfile import ZipFile

import pytest

import blackbox
from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
PACKAGES = {"blackbox": "blackbox", "feeds/blackbox_feeds": "blackbox_feeds", "pyspark_blackbox": "pyspark_blackbox"}
"""Names in the wheel of folders of the clone."""
FILES = f"{REPOSITORY}/blob/v{blackbox.__version__}/"


def build(clone: Path, out: Path, target: str) -> Path:
    """Build a package as `python -m build` does, but with the hatchling that is installed here."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t", target]
    subprocess.run(command, cwd=clone, check=True, capture_output=True, timeout=300)
    (package,) = out.iterdir()
    return package


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked sdist of this clone."""
    place = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(ROOT, place / "out", "sdist")) as packed:
        packed.extractall(place, filter="data")
    return place / f"blackbox_md-{blackbox.__version__}"


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """Return the wheel built from the sdist."""
    return ZipFile(build(sdist, tmp_path_factory.mktemp("wheel"), "wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return BytesParser().parsebytes(wheel.read(name))


def test_the_wheel_has_every_file_of_its_packages_and_no_other(wheel: ZipFile) -> None:
    wanted = {
        f"{name}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, name in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".jar" and path.parent.name != "__pycache__"
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == wanted
    assert {wheel.read("blackbox/py.typed"), wheel.read("blackbox_feeds/py.typed")} == {b""}


def test_the_sdist_has_what_its_tests_and_commands_need(sdist: Path) -> None:
    wanted = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "hatch_build.py", "pyproject.toml"}
    folders = {"bench", "blackbox", "configs", "docs", "examples", "feeds", "notebooks", "pyspark_blackbox", "tests"}
    found = {path.name for path in sdist.iterdir()}
    made = {".gitignore", "PKG-INFO", "__pycache__"}  # the last one while the wheel is built from it
    assert found - made == wanted | folders


def test_entry_points_lead_to_modules_of_the_wheel(wheel: ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    modules = set(re.findall(r"= ([\w.]+):", wheel.read(name).decode()))
    assert len(modules) > 20
    files = {module: module.replace(".", "/") for module in modules}
    names = set(wheel.namelist())
    assert [each for each, file in files.items() if not {f"{file}.py", f"{file}/__init__.py"} & names] == []


def test_the_readme_of_the_package_has_absolute_links_to_existing_files_and_no_picture(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert text.startswith("# blackbox\n")
    assert "![" not in text
    assert "<img" not in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 40
    assert [link for link in links if not link.startswith(FILES)] == []
    paths = [link.removeprefix(FILES).partition("#")[0] for link in links]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_metadata_is_complete(metadata: Message) -> None:
    assert metadata["Version"] == blackbox.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] or metadata["Author-email"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert urls.keys() == {"Changelog", "Documentation", "Issues", "Repository"}
    assert [url for url in urls.values() if not url.startswith(REPOSITORY)] == []
    classifiers = metadata.get_all("Classifier", [])
    assert [f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)] == [
        each for each in classifiers if re.search(r":: 3\.\d+$", each)
    ]


def test_a_release_has_another_repository_than_the_placeholder(metadata: Message) -> None:
    """Otherwise the classifier keeps the package out of every registry."""
    assert "://example.org/" not in REPOSITORY or "Private :: Do Not Upload" in metadata.get_all("Classifier", [])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("sys.platform = 'win32'", "blackbox does not run on Windows"),
        ("sys.abiflags += 't'", "blackbox does not run on a free-threaded Python"),
    ],
)
def test_a_python_that_cannot_run_it_gets_one_error(change: str, error: str) -> None:
    script = f"import sys; {change}; import blackbox"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"ImportError: {error}")
