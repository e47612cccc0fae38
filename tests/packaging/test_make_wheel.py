"""The one wheel is put together from parts of the same build, and a release has all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import build_config
import make_wheel

PARTS = [
    *(
        f"lib/libcustomconv_{sm}.so"
        for sm in ("sm80", "sm86", "sm89", "sm90a", "sm100", "sm120_ptx")
    ),
    *(f"lib/torch_2_{minor}{kind}.so" for minor in range(9, 15) for kind in ("", "_cuda")),
    *(f"_bind.cpython-3{minor}-x86_64-linux-gnu.so" for minor in range(10, 15)),
]


@pytest.fixture
def package(tmp_path) -> Path:
    """A package with all that a release has, in name."""
    folder = tmp_path / "customconv"
    (folder / "lib").mkdir(parents=True)
    for name in ("lib/libcustomconv.so", *PARTS):
        (folder / name).touch()
    (folder / "_build.json").write_text('{"version": "1.2.3", "arch_list": ["9.0a"]}')
    return folder


def test_a_release_has_all_parts(package):
    make_wheel.check_complete(package)


@pytest.mark.parametrize("name", PARTS)
def test_a_release_without_a_part_is_refused(package, name):
    (package / name).unlink()
    told = "a module for Python 3." if name.startswith("_bind") else name
    with pytest.raises(build_config.ConfigError, match=f"a release lacks {told}"):
        make_wheel.check_complete(package)


def test_the_record_names_all_parts(package):
    make_wheel.note(package)
    record = json.loads((package / "_build.json").read_text())
    assert record["version"] == "1.2.3"
    assert record["arch_list"] == build_config.RELEASE_ARCHITECTURES.split(";")
    assert record["torch"] == "2.9, 2.10, 2.11, 2.12, 2.13, 2.14"
    assert record["python"] == "3.10, 3.11, 3.12, 3.13, 3.14"


def test_parts_of_another_build_are_refused(package, tmp_path):
    parts = tmp_path / "parts"
    (parts / "kernels").mkdir(parents=True)
    part = parts / "kernels/libcustomconv_sm80.so"
    part.write_bytes(build_config.hash_of_interface().encode())
    module = parts / "_bind.cpython-310-x86_64-linux-gnu.so"
    module.write_bytes(build_config.hash_of_interface().encode())
    (parts / "libcustomconv.so").write_bytes(build_config.hash_of_interface().encode())
    make_wheel.add_parts(package, [parts])
    assert (package / "lib/libcustomconv_sm80.so").read_bytes() == part.read_bytes()
    assert (package / module.name).read_bytes() == module.read_bytes()
    assert (package / "lib/libcustomconv.so").read_bytes() == b""  # the package's own
    part.write_bytes(b"of another build")
    with pytest.raises(build_config.ConfigError, match="is of another build"):
        make_wheel.add_parts(package, [parts])
