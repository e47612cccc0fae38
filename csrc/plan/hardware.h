// Facts about GPUs that prices are counted with, each in one place: measured on an H100, and close
// enough for others, since the tables of prices (plan/prices.h) take up what differs.
#pragma once

namespace customconv::hardware {

constexpr double kLaunchMs = 0.0048;  // of a kernel alone, from its launch to its end
constexpr double kNextMs = 0.0022;    // of a kernel that begins while the one before it ends
constexpr double kLibraryMs = 0.004;  // of a call of cuBLAS, more than of a kernel of ours

constexpr double kSchedulers = 4;             // of a multiprocessor: an instruction a clock each
constexpr double kSharedBytesPerClock = 128;  // of a multiprocessor's shared memory
constexpr double kL2BytesPerClock = 50;       // from L2 to a multiprocessor, while all load
constexpr double kCopyRowClocks = 2.25;       // of the copy engine, for each row of a box
constexpr double kHidden = 0.12;              // of the work that is hidden behind what takes longer
constexpr double kClusterReach = 0.9;  // of the multiprocessors, that clusters above two reach
constexpr double kSectorBytes = 32;    // the least that memory reads or writes

}  // namespace customconv::hardware
