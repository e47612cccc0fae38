"""One convolution by an installed customconv against PyTorch's: the least a wheel must do."""

import torch
import torch.nn.functional as F

import customconv


def main() -> None:
    device = "cuda" if torch.cuda.is_available() and customconv.build_info()["cuda"] else "cpu"
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 8, 17, 19, generator=generator, dtype=torch.float64).to(device)
    weight = torch.randn(6, 4, 3, 5, generator=generator, dtype=torch.float64).to(device)
    bias = torch.randn(6, generator=generator, dtype=torch.float64).to(device)
    expected = F.conv2d(x, weight, bias, stride=(1, 2), padding=2, groups=2)
    actual = torch.ops.customconv.conv2d(x, weight, bias, stride=(1, 2), padding=2, groups=2)
    torch.testing.assert_close(actual, expected)
    print(f"customconv {customconv.__version__} on {device}: one convolution agrees with PyTorch's")


if __name__ == "__main__":
    main()
