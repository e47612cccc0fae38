"""The README's pictures and links, and how large tracked pictures and pages may be."""

import re
import shutil
import subprocess

import pytest

import build_config

ROOT = build_config.ROOT
MOST_BYTES = 150_000
PICTURES = {".gif", ".jpeg", ".jpg", ".png", ".svg", ".webp"}
PAGES = {".htm", ".html"}


def references() -> set[str]:
    """The files and folders of the repository that the README shows or links to."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r'\b(?:src|srcset|href)="([^"]+)"', text)
    found += re.findall(r"\]\(([^)\s]+)\)", text)
    return {link.partition("#")[0] for link in found if not re.match(r"https?:|#", link)}


def test_what_the_readme_refers_to_exists():
    found = references()
    assert {"docs/pictures/floor.png", "docs/pictures/floor-dark.png"} <= found
    assert not [path for path in found if not (ROOT / path).exists()]


def test_the_readmes_pictures_are_small():
    for path in (ROOT / "docs" / "pictures").iterdir():
        assert path.stat().st_size < MOST_BYTES, path


def test_tracked_pictures_are_small_and_generated_pages_are_not_tracked():
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = [ROOT / path for path in done.stdout.splitlines() if (ROOT / path).is_file()]
    assert not [path for path in tracked if path.suffix in PAGES]
    pictures = [path for path in tracked if path.suffix in PICTURES]
    assert pictures
    assert not [path for path in pictures if path.stat().st_size >= MOST_BYTES]
