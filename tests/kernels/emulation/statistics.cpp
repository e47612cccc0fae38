// A library for Python: the statistics of an output's channels, in parts and merged.
#include "kernels/statistics/statistics.h"

#include <stdexcept>
#include <string>

#include "gpu.h"

namespace {

using namespace customconv;

struct Output {
  int64_t sizes[4];
  int64_t channels_last;
  int64_t dtype;  // float32, float16, bfloat16
};

ConvProblem problem_of(const Output& o) {
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  ConvProblem p;
  p.dtype = kDTypes[o.dtype];
  p.N = o.sizes[0];
  p.K = o.sizes[1];
  p.P = o.sizes[2];
  p.Q = o.sizes[3];
  p.y_strides = dense_strides(p.y_sizes(), o.channels_last != 0 ? Layout::kNhwc : Layout::kNchw);
  return p;
}

std::string failure;

// What went wrong, or null.
template <typename Action>
const char* attempt(const Action& action) {
  try {
    action();
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}

}  // namespace

extern "C" int64_t count_parts(const Output* output) {
  return statistics::count_parts(problem_of(*output));
}

extern "C" const char* leave_parts(const Output* output, const void* y, float* moments,
                                   float* counts) {
  return attempt([&] {
    const ConvProblem p = problem_of(*output);
    const StatisticsParts to{moments, counts};
    if (p.dtype == DType::kFloat32) statistics::launch_parts<float>(p, y, to, nullptr);
    if (p.dtype == DType::kFloat16) statistics::launch_parts<__half>(p, y, to, nullptr);
    if (p.dtype == DType::kBFloat16) statistics::launch_parts<__nv_bfloat16>(p, y, to, nullptr);
  });
}

// `merged`: mean, variance, reciprocal of the standard deviation, running mean and variance.
extern "C" const char* merge_parts(float* moments, float* counts, int64_t count, int64_t channels,
                                   int64_t pixels, float eps, float momentum, float** merged) {
  return attempt([&] {
    const statistics::Merged to{merged[0], merged[1], merged[2], eps,
                                merged[3], merged[4], momentum};
    statistics::launch_merge({moments, counts}, count, channels, pixels, to, nullptr);
  });
}
