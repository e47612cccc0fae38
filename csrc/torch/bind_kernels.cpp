#include "torch/bind_kernels.h"

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/grouped/geometry.h"
#include "kernels/implicit_gemm/sm90/tile.h"
#include "kernels/implicit_gemm/tile.h"
#include "kernels/implicit_gemm/wgrad/geometry.h"
#include "kernels/implicit_gemm/wgrad/planes/geometry.h"
#include "kernels/implicit_gemm/wgrad/registers/geometry.h"
#include "kernels/tiled/tile.h"

namespace customconv::torch_layer {

namespace {

using Names = std::vector<std::string>;

template <typename... Table>
Names names_of(const Table&... tables) {
  Names names;
  const auto append = [&names](const auto& table) {
    for (const auto& kernel : table) names.emplace_back(kernel.name);
  };
  (append(tables), ...);
  return names;
}

// Names of kernels as plans have them, by family and pass: a forward pass's are an input
// gradient's too.
std::map<std::pair<std::string, std::string>, Names> kernel_names() {
  namespace ig = implicit_gemm;
  return {
      {{"implicit_gemm", "fprop"}, names_of(ig::kKernels)},
      {{"implicit_gemm", "wgrad"},
       names_of(ig::wgrad::kKernels, ig::wgrad::registers::kKernels, ig::wgrad::planes::kKernels)},
      {{"grouped", "fprop"}, names_of(grouped::kKernels, grouped::kBoxKernels)},
      {{"grouped", "wgrad"}, names_of(grouped::kGradientKernels, grouped::kGradientBoxKernels)},
      {{"tiled", "fprop"}, names_of(tiled::kKernels)},
  };
}

// Tiles of implicit_gemm's main loop for Hopper: the loader, pixels, channels, and whether they are
// of 3xTF32.
std::vector<std::tuple<std::string, int, int, bool>> main_loop_tiles() {
  namespace sm90 = implicit_gemm::sm90;
  std::vector<std::tuple<std::string, int, int, bool>> tiles;
  for (int loader = 0; loader < sm90::kLoaderCount; ++loader) {
    for (const sm90::TileShape& t : sm90::kTileShapes) {
      if (!sm90::has_tile(static_cast<sm90::Loader>(loader), t)) continue;
      tiles.emplace_back(sm90::kLoaderNames[loader], t.pixels, t.channels, t.halves);
    }
  }
  return tiles;
}

}  // namespace

void bind_kernels(pybind11::module_& m) {
  m.def("kernel_names", kernel_names);
  m.def("main_loop_tiles", main_loop_tiles);
}

}  // namespace customconv::torch_layer
