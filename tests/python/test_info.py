"""What `python -m customconv info` prints."""

import re
import sys

import pytest
import torch

import customconv
from customconv import _bind, _load, info


def test_cuda_off_reasons(monkeypatch):
    monkeypatch.setattr(info, "build_record", lambda: {"cuda_left_out": None})
    assert info.cuda_off_reason() == "customconv was built without CUDA"
    monkeypatch.setattr(info, "build_record", lambda: {"cuda_left_out": "no GPU was in sight"})
    assert info.cuda_off_reason() == "customconv was built without CUDA (no GPU was in sight)"
    monkeypatch.setattr(info._load, "missing", "customconv has no operators for PyTorch 2.99")
    assert info.cuda_off_reason() == "customconv has no operators for PyTorch 2.99"
    monkeypatch.setattr(info._load, "missing", "")
    monkeypatch.setattr(info, "build_record", lambda: {"cuda": "13.0"})

    def no_driver():
        raise RuntimeError("The NVIDIA driver on your system is too old.\nUpdate it.")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "current_device", no_driver)
    assert info.cuda_off_reason() == "The NVIDIA driver on your system is too old."
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert info.cuda_off_reason() is None
    monkeypatch.setattr(torch.version, "cuda", None)
    assert info.cuda_off_reason() == "this PyTorch was built without CUDA"


@pytest.mark.parametrize(
    ("capability", "measured"),
    [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), False), ((12, 0), False)],
)
def test_is_measured(capability, measured):
    assert info.is_measured(capability) == measured


def test_build_info():
    build = customconv.build_info()
    assert build["version"] == customconv.__version__
    minor = ".".join(torch.__version__.split(".")[:2])
    assert any(f"{each}.".startswith(f"{minor}.") for each in build["torch"].split(", "))
    assert build["with_cuda"] == bool(build["cuda"]) == bool(build["arch_list"])
    assert build["compiler"]


def test_report_on_this_machine():
    text = info.report()
    assert customconv.__version__ in text
    assert torch.__version__ in text
    on = customconv.build_info()["with_cuda"] and torch.cuda.is_available()
    assert ("off: " not in text) == on
    assert f"loaded         {_load.operators}" in text
    assert "libcustomconv.so" in text
    major, minor = sys.version_info[:2]
    assert re.search(rf"modules for .*{major}\.{minor}", text)
    assert re.search(r"operators for 2\.\d+", text)


def test_report_of_a_build_with_cuda(monkeypatch):
    class Device:
        name, major, minor, total_memory = "NVIDIA H100", 9, 0, 80 * 2**30

    class Older(Device):
        name, major = "Tesla V100", 7

    class Unmeasured(Device):
        name, major = "NVIDIA A100", 8

    build = customconv.build_info() | {
        "with_cuda": True,
        "cuda": "13.0",
        "arch_list": "8.0;9.0a",
    }
    monkeypatch.setattr(info, "build_info", lambda: build)
    monkeypatch.setattr(info, "cuda_off_reason", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    devices = Device, Older, Unmeasured
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: devices[i])
    monkeypatch.setattr(_bind, "why_no_kernels", lambda i: "it is too old" if i == 1 else "")
    lines = {line.split()[0]: line for line in info.report().splitlines()}
    assert "8.0, 9.0a" in lines["architectures"]
    assert lines["cuda:0"].endswith("NVIDIA H100, compute capability 9.0, 80 GiB: served")
    served = "Tesla V100, compute capability 7.0, 80 GiB: NOT served: it is too old"
    assert lines["cuda:1"].endswith(served)
    assert "NVIDIA A100, compute capability 8.0, 80 GiB: " in lines["cuda:2"]
    assert "customconv.tune" in lines["cuda:2"]
