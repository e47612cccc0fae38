"""A build knows what it is for."""

import json
from pathlib import Path

import build_config
import customconv


def test_the_record_beside_the_binary_tells_what_the_binary_tells():
    record = json.loads(Path(customconv.__file__).with_name("_build.json").read_text())
    info = customconv.build_info()
    assert record["version"] == info["version"] == customconv.__version__
    assert record["torch"] == info["torch"]
    assert (record["cuda"] or "") == info["cuda"]
    assert ";".join(record["arch_list"]) == info["arch_list"]
    assert record["compiler"] and record["python"]


def test_the_version_is_the_packages():
    assert customconv.__version__ == build_config.version()
