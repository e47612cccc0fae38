// The main loop of implicit_gemm for float32, for Python: its plans by the loader im2col, and what
// each computes.
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu.h"
#include "kernels/implicit_gemm/forward.h"
#include "kernels/implicit_gemm/pack_weights.cuh"
#include "kernels/implicit_gemm/sm90/kernel.cuh"
#include "kernels/implicit_gemm/sm90/launch.cuh"
#include "kernels/implicit_gemm/weave.cuh"
#include "problems.h"

namespace customconv::implicit_gemm {

template void pack_weight_matrix<float>(const Forward&, bool, const PackedWeight&, const float*,
                                        float*, cudaStream_t);
template void pack_joined_weight<float>(const ConvProblem&, const Forward&, const PackedWeight&,
                                        const float*, float*, cudaStream_t);

namespace sm90 {

template <bool kFused, size_t... kIndex>
Kernel kernel_at(size_t index, std::index_sequence<kIndex...>) {
  static constexpr auto kOne = [](auto shape, auto store) -> Kernel {
    constexpr int kShape = shape();
    constexpr auto kStore = static_cast<Store>(store());
    // The smallest tiles: those of warpgroups that take turns, and those of one.
    constexpr bool kIsSmall =
        kTileShapes[kShape].pixels * kTileShapes[kShape].channels <= 128 * 128;
    if constexpr (kIsSmall && (kStore != Store::kCluster || is_clustered(kTileShapes[kShape]))) {
      return convolve<float, kShape, Loader::kIm2col, kStore, kFused, false>;
    } else {
      return nullptr;
    }
  };
  const Kernel table[] = {kOne(std::integral_constant<int, kIndex / kStoreCount>(),
                               std::integral_constant<int, kIndex % kStoreCount>())...};
  return table[index];
}

template <bool kFused>
Kernel found(const Tile& tile) {
  const auto index =
      static_cast<size_t>(tile.shape) * kStoreCount + static_cast<size_t>(tile.store);
  return kernel_at<kFused>(index, std::make_index_sequence<kTileShapeCount * kStoreCount>());
}
template <>
Kernel kernel_of<float, true, false>(const Tile& tile) {
  return found<true>(tile);
}
template <>
Kernel kernel_of<float, false, false>(const Tile& tile) {
  return found<false>(tile);
}

}  // namespace sm90
}  // namespace customconv::implicit_gemm

namespace customconv {

std::vector<ConvPlan> plans_of(const ConvProblem& p) {
  std::vector<ConvPlan> all, found;
  implicit_gemm::sm90::best_plan(p, DeviceProperties(), &all);
  for (const ConvPlan& plan : all) {
    const bool is_small = plan.tile[0] * plan.tile[1] <= 128 * 128;
    if (is_small && std::string(plan.variant).find("im2col") == 0) found.push_back(plan);
  }
  return found;
}

void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  implicit_gemm::sm90::launch<float>(problem, plan, operands, context);
}

}  // namespace customconv
