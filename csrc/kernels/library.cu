#include <stdexcept>
#include <type_traits>

#include "core/build.h"
#include "core/failure.h"
#include "kernels/bias/bias.h"
#include "kernels/common/check.h"
#include "kernels/common/scalar.cuh"
#include "kernels/library.h"
#include "plan/fold.h"

namespace customconv {

namespace {

// The caller's device is that of its own CUDA runtime. This one sees it too, but not in a thread
// that has no context yet.
void use(int device) {
  int current = 0;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current != device) check_cuda(cudaSetDevice(device), "cudaSetDevice");
}

template <typename Call>
Failure on(const Place& place, const Call& call) {
  return guarded([&] {
    use(place.device);
    call();
  });
}

// Calls with a value of the type that a dtype is.
template <typename Call>
void with_type(DType dtype, const Call& call) {
  switch (dtype) {
    case DType::kFloat64:
      return call(double{});
    case DType::kFloat32:
      return call(float{});
    case DType::kFloat16:
      return call(__half{});
    case DType::kBFloat16:
      return call(__nv_bfloat16{});
  }
}

// The same without float64, which some kernels lack.
template <typename Call>
void with_narrow_type(DType dtype, const Call& call) {
  with_type(dtype, [&](auto value) {
    if constexpr (std::is_same_v<decltype(value), double>) {
      throw std::logic_error("customconv: there is no such kernel of float64");
    } else {
      call(value);
    }
  });
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  switch (plan.family) {
#define CUSTOMCONV_FAMILY(name)                        \
  case FamilyId::name:                                 \
    name::launch<T>(problem, plan, operands, context); \
    return;
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY
    case FamilyId::kAten:
      break;
  }
  throw std::logic_error("customconv: PyTorch's own convolution has no kernel");
}

Failure convolve(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                 const LaunchContext& context) {
  ConvProblem room;
  const ConvProblem& flat = folded(problem, room);
  return on({context.device, context.stream}, [&] {
    with_type(problem.dtype,
              [&](auto value) { launch<decltype(value)>(flat, plan, operands, context); });
  });
}

BiasGradient sums_of(Layout layout, const Shape5& sizes, DType dtype) {
  return BiasGradient(layout, sizes, static_cast<int>(element_size(dtype)));
}

int64_t bias_gradient_bytes(Layout layout, const Shape5& sizes, DType dtype) {
  if (layout == Layout::kOther || dtype == DType::kFloat64) return -1;
  const BiasGradient sums = sums_of(layout, sizes, dtype);
  return sums.is_possible ? sums.workspace_bytes() : -1;
}

Failure bias_gradient(Layout layout, const Shape5& sizes, DType dtype, const void* grad, void* to,
                      void* workspace, const Place& place) {
  return on(place, [&] {
    const BiasGradient sums = sums_of(layout, sizes, dtype);
    with_narrow_type(dtype, [&](auto value) {
      launch_bias_gradient<decltype(value)>(sums, grad, to, workspace, place.stream);
    });
  });
}

Failure statistics_parts(const ConvProblem& problem, const void* y, const StatisticsParts& to,
                         const Place& place) {
  return on(place, [&] {
    with_narrow_type(problem.dtype, [&](auto value) {
      statistics::launch_parts<decltype(value)>(problem, y, to, place.stream);
    });
  });
}

Failure merge_statistics(const StatisticsParts& parts, int64_t count, int64_t channels,
                         int64_t pixels, const statistics::Merged& to, const Place& place) {
  return on(place,
            [&] { statistics::launch_merge(parts, count, channels, pixels, to, place.stream); });
}

Failure fold_batch_norms(const parameters::BatchNorm* batch_norms, size_t count,
                         const Place& place) {
  return on(place, [&] { parameters::launch_fold(batch_norms, count, place.stream); });
}

Failure copy_parameters(const parameters::Copy* copies, size_t count, DType from, DType to,
                        const Place& place) {
  return on(place, [&] { parameters::launch_copies(copies, count, from, to, place.stream); });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const KernelLibrary* customconv_kernel_library() {
  static const KernelLibrary library = {kBuild,
                                        kArchitecture,
                                        CUDART_VERSION,
                                        convolve,
                                        bias_gradient_bytes,
                                        bias_gradient,
                                        statistics::count_parts,
                                        statistics_parts,
                                        merge_statistics,
                                        fold_batch_norms,
                                        copy_parameters};
  return &library;
}

}  // namespace customconv
