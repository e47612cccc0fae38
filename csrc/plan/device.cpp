#include "plan/device.h"

namespace customconv {

namespace {

// Dense FLOP per clock and multiprocessor of the tensor cores, 16-bit operands, sums in float32.
double tensor_flop_per_clock(int major, int minor) {
  if (major >= 10 && major < 12) return 8192;
  if (major == 9) return 4096;
  if (major == 8 && minor == 0) return 2048;
  return 512;  // the consumer parts of 8.x and 12.x
}

// Parts made for computing centres do float64 at half the float32 rate, the others at 1/64.
bool has_fast_float64(int major, int minor) { return minor == 0 && major >= 8 && major <= 10; }

}  // namespace

double DeviceProperties::vector_flops(DType dtype) const {
  const bool narrow = capability_major == 8 && capability_minor == 0;
  double flop_per_clock = narrow ? 128 : 256;
  if (dtype == DType::kFloat64) {
    flop_per_clock *= has_fast_float64(capability_major, capability_minor) ? 0.5 : 1.0 / 64;
  }
  return flop_per_clock * sm_count * clock_ghz * 1e9;
}

double DeviceProperties::matrix_flops(DType dtype, bool tf32) const {
  const double tensor =
      tensor_flop_per_clock(capability_major, capability_minor) * sm_count * clock_ghz * 1e9;
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return tensor;
    case DType::kFloat32:
      return tf32 ? tensor / 2 : vector_flops(dtype);
    case DType::kFloat64:
      break;
  }
  const bool fast = has_fast_float64(capability_major, capability_minor);
  return vector_flops(dtype) * (fast ? 2 : 1);  // float64 tensor cores
}

}  // namespace customconv
