// What a plan of the main loop decides.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/tile.h"
#include "plan/payload.h"

namespace customconv::implicit_gemm::sm90 {

struct MainLoopPlan {
  static constexpr PlanKind kKind = PlanKind::implicit_gemm_main_loop;
  Loader loader = Loader::kIm2col;
  Packing packing = Packing::kNone;
  uint8_t tile = 0;     // of kTileShapes
  bool joined = false;  // see Form
  int16_t row = 0;      // bytes
  int16_t strips = 1;
  int64_t images = 0, pixels = 0;  // see Chunk
  int32_t groups = 1, bands = 1;   // see Exchange
  int16_t stages[2] = {};          // of pixels and of weights
  int16_t slots = 0;               // of a warp that transposes planes
  bool stream_k = false;           // see Tile

  Form form() const {
    const Packing own = loader == Loader::kGather ? Packing::kGathered : packing;
    return {own, joined, kTileShapes[tile].halves};
  }
  Chunk chunk() const { return {images, pixels}; }
  Exchange exchange() const { return {groups, bands}; }
};

}  // namespace customconv::implicit_gemm::sm90
