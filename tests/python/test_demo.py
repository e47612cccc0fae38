"""The demonstration's parts, and that its checks can fail."""

import io
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("rich")
pytest.importorskip("skimage")
pytest.importorskip("sklearn")

from PIL import Image
from rich.console import Console

import customconv
from customconv import demo
from customconv.demo import digits, photo, table

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    """Tests run side by side; threads that wait for a busy core would only slow them down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=120)


def printed(console):
    return console.file.getvalue()


def test_photo(console, tmp_path):
    assert photo.run(console, tmp_path / "new" / "folder", CPU)
    assert "ok" in printed(console)
    with Image.open(tmp_path / "new" / "folder" / "photo.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 1500
        # Nine pictures, each with its own content.
        width, height = picture.size
        tiles = [
            picture.crop((left, top, left + width // 3, top + height // 4)).convert("L")
            for left in range(0, width - 2, width // 3)
            for top in range(0, height - height // 4, height // 3)
        ]
    assert len(tiles) == 9
    assert len({tile.tobytes() for tile in tiles}) == 9
    assert all(len(set(tile.tobytes())) > 50 for tile in tiles)


def test_filters():
    for kernel in (photo.gaussian(2.0), photo.motion(31, 30), photo.delta(13)):
        assert float(kernel.sum()) == pytest.approx(1)
    for kernel in (photo.SOBEL_X, photo.LAPLACIAN, photo.gabor(45)):
        assert float(kernel.sum()) == pytest.approx(0, abs=1e-9)


@pytest.fixture
def wrong(monkeypatch):
    """The operator, off by a little."""

    def conv2d(*arguments, **options):
        return functional.conv2d(*arguments, **options) * 1.001

    class Ops:
        class customconv:
            pass

    Ops.customconv.conv2d = staticmethod(conv2d)
    monkeypatch.setattr(photo.torch, "ops", Ops)


def test_photo_that_is_wrong(console, tmp_path, wrong):
    assert not photo.run(console, tmp_path, CPU)
    assert "FAILED" in printed(console)


def test_digits(console, monkeypatch):
    monkeypatch.setattr(digits, "EPOCHS", 5)
    assert digits.run(console, CPU, quick=True)
    assert "FAILED" not in printed(console)
    assert "test accuracy" in printed(console)


def test_digits_are_the_same_for_both_classes():
    theirs, ours = digits.build(nn.Conv2d, CPU), digits.build(customconv.Conv2d, CPU)
    torch.testing.assert_close(theirs.state_dict(), ours.state_dict())
    assert sum(isinstance(m, customconv.Conv2d) for m in ours) == 3


@pytest.mark.parametrize("name", ["LEAST_ACCURACY", "TOLERANCE", "ACCURACY_TOLERANCE"])
def test_digits_that_are_wrong(console, monkeypatch, name):
    monkeypatch.setattr(digits, "EPOCHS", 1)
    monkeypatch.setattr(digits, "LEAST_ACCURACY", 0.0)
    monkeypatch.setattr(digits, name, {"LEAST_ACCURACY": 1.01}.get(name, -1.0))
    assert not digits.run(console, CPU, quick=True)
    assert printed(console).count("FAILED") == 1


def test_table(console, monkeypatch):
    """Above 1 is faster."""
    ours = SimpleNamespace(plan="a plan", family="tiled", fallback="")
    monkeypatch.setattr(table, "SHAPES", table.SHAPES[:2])
    monkeypatch.setattr(table, "explain", lambda *_: ours)
    monkeypatch.setattr(table, "compare", lambda *_: (0.5, 2.0))
    table.run(console, CPU, quick=True)
    text = printed(console)
    assert "first layer" in text
    assert text.count("tiled") == 2
    assert "times as fast" in text
    assert text.count("4.00") == 2


def test_no_table_where_pytorch_would_be_compared_with_itself(console, monkeypatch):
    monkeypatch.delattr(table, "compare")
    table.run(console, CPU, quick=True)
    text = printed(console)
    assert "3. times: none where PyTorch computes: kernels run on CUDA" in text
    assert "first layer" not in text


def test_compare_keeps_the_two_apart(monkeypatch):
    monkeypatch.setattr(table, "milliseconds", lambda call, device: call())
    assert table.compare(lambda: 1.0, lambda: 2.0, CPU, 5) == (1.0, 2.0)


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_run_gives_the_verdict(monkeypatch, tmp_path, capsys, good, code):
    monkeypatch.setattr(demo.photo, "run", lambda *_: good)
    monkeypatch.setattr(demo.digits, "run", lambda *_: True)
    monkeypatch.setattr(demo.table, "run", lambda *_: None)
    allow_tf32 = torch.backends.cudnn.allow_tf32
    assert demo.run(tmp_path, CPU, quick=True) == code
    assert ("a check failed" in capsys.readouterr().out) == (not good)
    assert torch.backends.cudnn.allow_tf32 == allow_tf32
    assert torch.backends.cudnn.enabled
