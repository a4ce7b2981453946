"""What the distributions hold and say about themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MAIN = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION: str = MAIN["project"]["version"]
SOURCES = {"ctxfold": ROOT / "shared", "langchain_ctx": ROOT, "llamaindex_ctx": ROOT}
THIN = {
    "langchain_ctxfold": {"langchain_ctxfold/__init__.py", "langchain_ctxfold/py.typed"},
    "llama_index_memory_ctxfold": {
        "llama_index/memory/ctxfold/__init__.py",
        "llama_index/memory/ctxfold/py.typed",
    },
}
ALL = ["ctxfold", *THIN]


def wheel_files(dist: Path, name: str) -> set[str]:
    with zipfile.ZipFile(next(dist.glob(f"{name}-*.whl"))) as wheel:
        return {entry for entry in wheel.namelist() if not entry.endswith("/")}


def metadata(dist: Path, name: str) -> Message:
    with zipfile.ZipFile(next(dist.glob(f"{name}-*.whl"))) as wheel:
        return message_from_bytes(wheel.read(f"{name}-{VERSION}.dist-info/METADATA"))


def test_the_wheel_holds_the_modules_and_the_listed_files(dist: Path) -> None:
    """The list has every file that is no module, so that data which should not ship, or no longer does, is noticed."""
    modules = {path.relative_to(top).as_posix() for name, top in SOURCES.items() for path in (top / name).rglob("*.py")}
    listed = set((ROOT / "tests/packaging/wheel-contents.txt").read_text(encoding="utf-8").split())
    files = {entry.replace(f"ctxfold-{VERSION}.dist-info", "dist-info") for entry in wheel_files(dist, "ctxfold")}
    python = {entry for entry in files if entry.endswith(".py")}
    assert python == modules
    assert files - python == listed, "add the file to tests/packaging/wheel-contents.txt if it is to ship"


@pytest.mark.parametrize("name", sorted(THIN))
def test_a_thin_wheel_holds_nothing_else(dist: Path, name: str) -> None:
    info = f"{name}-{VERSION}.dist-info"
    described = {f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD", f"{info}/licenses/LICENSE"}
    assert wheel_files(dist, name) == THIN[name] | described


@pytest.mark.parametrize("name", ALL)
def test_one_version_and_complete_metadata(dist: Path, name: str) -> None:
    about = metadata(dist, name)
    assert about["Version"] == VERSION
    assert about["License-Expression"] == "MIT"
    assert about["Requires-Python"] == ">=3.11"
    assert about["Keywords"]
    assert about["Description-Content-Type"] == "text/markdown"
    classifiers = about.get_all("Classifier") or []
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} <= set(classifiers)


@pytest.mark.parametrize("name", ALL)
def test_every_dependency_is_bound_below_and_above(dist: Path, name: str) -> None:
    for requirement in metadata(dist, name).get_all("Requires-Dist") or []:
        spec = requirement.partition(";")[0]
        if not re.fullmatch(r"ctxfold\[[a-z,]+\]\s*", spec):  # an extra that names other extras
            assert re.search(r">=[\d.]+", spec), requirement
            assert re.search(r"<[\d.]+", spec), requirement


@pytest.mark.parametrize("name", sorted(THIN))
def test_the_version_is_within_the_bounds_of_the_thin_distributions(dist: Path, name: str) -> None:
    [requirement] = metadata(dist, name).get_all("Requires-Dist") or []
    low, high = re.search(r">=([\d.]+)", requirement), re.search(r"<([\d.]+)", requirement)
    assert low is not None
    assert high is not None
    assert number(low[1]) <= number(VERSION) < number(high[1])


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = MAIN["project"]
    extras = project["optional-dependencies"]
    declared = [r for r in project["dependencies"] + extras["cli"] + extras["ui"] if not r.startswith("ctxfold")]
    for requirement in declared:
        found = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", requirement)
        assert found is not None
        width = len(number(found[2]))
        assert number(pinned[found[1]])[:width] == number(found[2]), requirement


@pytest.mark.parametrize("name", ALL)
def test_the_source_distribution_has_licence_and_readme_and_no_rubbish(dist: Path, name: str) -> None:
    with tarfile.open(next(dist.glob(f"{name}-*.tar.gz"))) as archive:
        files = {entry.partition("/")[2] for entry in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= files
    rubbish = re.compile(r"(^|/)(\.venv|__pycache__|\.git|dist|\.hypothesis|\.mypy_cache)(/|$)|\.pyc$")
    assert not [file for file in files if rubbish.search(file)]


def test_the_source_distribution_has_its_tests(dist: Path) -> None:
    with tarfile.open(next(dist.glob("ctxfold-*.tar.gz"))) as archive:
        files = {entry.partition("/")[2] for entry in archive.getnames()}
    assert {
        "tests/conftest.py",
        "examples/demo/play.py",
        "docs/architecture.md",
        "constraints-dev.txt",
        "Makefile",
    } <= files


def test_the_wheel_is_typed(dist: Path) -> None:
    assert {f"{name}/py.typed" for name in SOURCES} <= wheel_files(dist, "ctxfold")


# the README on a page of a package index

RELATIVE = re.compile(r"\]\((?!https?:|#)")


def build(kind: str, folder: Path, project: Path, repository: str) -> Path:
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder), str(project)]
    environment = {**os.environ, "CTXFOLD_REPOSITORY": repository}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_without_an_address_the_readme_has_no_links_that_lead_nowhere(dist: Path) -> None:
    if os.environ.get("CTXFOLD_REPOSITORY"):
        pytest.skip("the distributions were built with an address")
    about = metadata(dist, "ctxfold")
    text = str(about.get_payload())
    assert not RELATIVE.search(text)
    assert "docs/langchain-agents.md describes checkpoints" in text
    assert not about.get_all("Project-URL")


def test_with_an_address_every_link_leads_to_a_file_of_the_tag(tmp_path: Path) -> None:
    there = "https://git.example/owner/ctxfold"
    with tarfile.open(next(build("sdist", tmp_path / "source", ROOT, f"{there}/").iterdir())) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    # whoever builds a wheel from the source distribution gets the same page without knowing the address
    about = metadata(build("wheel", tmp_path / "wheel", unpacked, ""), "ctxfold")
    text = str(about.get_payload())
    assert not RELATIVE.search(text)
    links = re.findall(rf"(!?)\[[^\]]*\]\({there}/(blob|raw)/v{VERSION}/([^)#]+)(?:#[^)]*)?\)", text)
    assert len(links) > 15
    for picture, way, path in links:
        assert (ROOT / path).exists(), path
        assert way == ("raw" if picture else "blob")
    urls = dict(url.split(", ") for url in about.get_all("Project-URL") or [])
    assert urls["Source"] == there
    assert (ROOT / urls["Changelog"].rpartition("/")[2]).is_file()


# files beside the distributions


@pytest.mark.parametrize("name", ["ci.yml", "publish.yml"])
def test_a_workflow_is_well_formed(name: str) -> None:
    """Reads the file as YAML; GitHub alone can run it."""
    workflow: Any = yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert "permissions" in workflow
    for job in jobs.values():
        assert "uses" in job or job["steps"]
        needs = job.get("needs", [])
        assert ({needs} if isinstance(needs, str) else set(needs)) <= set(jobs)
        for step in job.get("steps", []):
            assert ("run" in step) != ("uses" in step), step
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)) | {"test-docs"}
    commands = [step.get("run", "") for job in jobs.values() for step in job.get("steps", [])]
    used = {target for command in commands for target in re.findall(r"\bmake ([a-z-]+)", command)}
    assert used <= targets


def test_ci_runs_every_version_that_the_classifiers_name() -> None:
    workflow: Any = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    named = [c.rpartition(" ")[2] for c in MAIN["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert matrix["python"] == named
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_only_the_publishing_job_may_ask_for_an_identity() -> None:
    workflow: Any = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    holders = [name for name, job in workflow["jobs"].items() if "id-token" in job.get("permissions", {})]
    assert holders == ["publish"]


def test_the_citation_is_well_formed() -> None:
    citation: Any = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == MAIN["project"]["license"]


def test_the_changelog_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[\w.]*)\] - \d{4}-\d\d-\d\d$", text, re.M)
    assert "## [Unreleased]" in text
    assert not released or released[0] == VERSION
