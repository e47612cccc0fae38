// What the price of a plan is counted from.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/mma_sync/tile.h"
#include "plan/device.h"
#include "plan/work.h"

namespace customconv::implicit_gemm::mma_sync {

// Clocks of the tensor cores for the products of a block of pixels over a piece.
double product_clocks(const ConvProblem& problem, const DeviceProperties& device, const Tile& tile);

// The rows of the prices of a tile's main loop, and of stores of splits.
uint16_t loop_row(const ConvProblem& problem, const Tile& tile);
uint16_t split_store_row(const ConvProblem& problem);
// Bytes that a tile stores if its sum is split.
double split_stored_bytes(const Tile& tile);

// Adds up a tile's splits.
Work adding(const Tile& tile);
// The main loop, what adds up splits, and what packs and weaves.
WorkList count_work(const Forward& problem, const DeviceProperties& device, const Tile& tile);

}  // namespace customconv::implicit_gemm::mma_sync
