// What the price of a plan of boxes and rows is counted from.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/tile.h"
#include "plan/device.h"
#include "plan/work.h"

namespace customconv::implicit_gemm {

// Clocks of the tensor cores for an instruction's products.
double instruction_clocks(const ConvProblem& problem, const DeviceProperties& device,
                          const Tile& tile);
// Thread blocks that run at a time.
int64_t blocks_at_once(const DeviceProperties& device, const Tile& tile);

// How a tile's results leave it.
enum class Store : int { kBoxes, kThreads, kPlanes, kCluster, kSplits, kElements };

// The rows of the prices of a tile's stores, and of its main loop. `wide`: 1 for float32, else 0.
uint16_t store_row(const Forward& problem, Store store);
uint16_t loop_row(const Tile& tile, int wide);
// Bytes that a tile stores, as the memory system counts them.
double stored_bytes(const Forward& problem, const Tile& tile, Store store);

// Adds up a tile's splits.
Work adding(const Tile& tile);
// The main loop, what adds up splits, and what packs and weaves.
WorkList count_work(const Forward& problem, const DeviceProperties& device, const Tile& tile);

}  // namespace customconv::implicit_gemm
