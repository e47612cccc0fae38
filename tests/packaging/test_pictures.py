"""The documents' pictures and links, and how large tracked pictures and pages may be."""

import re
import shutil
import subprocess

import pytest

import build_config

ROOT = build_config.ROOT
MOST_BYTES = 150_000
PICTURES = {".gif", ".jpeg", ".jpg", ".png", ".svg", ".webp"}
PAGES = {".htm", ".html"}
HOSTS = {  # that anybody reaches: no mirror of packages is among them
    "ccache.dev", "download.pytorch.org", "github.com", "keepachangelog.com", "semver.org",
    "www.apache.org",
}  # fmt: skip
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
)  # fmt: skip


def references(document):
    """The files, folders and headings that a document shows or links to, without web pages."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r'\b(?:src|srcset|href)="([^"]+)"', text)
    found += re.findall(r"\]\(([^)\s]+)\)", text)
    return {link for link in found if not re.match(r"https?:", link)}


def headings(document):
    """The names by which links reach the headings of a document."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_refers_to_exists(document):
    missing = []
    for link in references(document):
        path, _, heading = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (heading and heading not in headings(target)):
            missing.append(link)
    assert missing == []


@pytest.mark.parametrize(
    ("document", "picture"), [("README.md", "known"), ("docs/benchmark.md", "floor")]
)
def test_each_picture_is_shown_for_light_and_dark_pages(document, picture):
    folder = "docs/pictures" if document == "README.md" else "pictures"
    shown = {f"{folder}/{picture}.png", f"{folder}/{picture}-dark.png"}
    assert shown <= references(ROOT / document)


def test_the_readmes_pictures_are_small():
    for path in (ROOT / "docs" / "pictures").iterdir():
        assert path.stat().st_size < MOST_BYTES, path


def tracked_files():
    """The files of the repository; without git the test that asks is skipped."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / path for path in done.stdout.splitlines() if (ROOT / path).is_file()]


def test_no_file_names_a_host_that_is_not_public():
    named = set()
    for path in tracked_files():
        if path.suffix not in PICTURES | {".xz", ".json"}:
            text = path.read_text(encoding="utf-8", errors="replace")
            named |= set(re.findall(r"\b(?:https?|ftp|ssh)://([\w.-]+)", text))
    assert named <= HOSTS


def test_tracked_pictures_are_small_and_generated_pages_are_not_tracked():
    tracked = tracked_files()
    assert not [path for path in tracked if path.suffix in PAGES]
    pictures = [path for path in tracked if path.suffix in PICTURES]
    assert pictures
    assert not [path for path in pictures if path.stat().st_size >= MOST_BYTES]
