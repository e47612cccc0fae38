// Facts about GPUs with which work is counted, each in one place. They were measured on an H100,
// and are close enough for other GPUs: the tables of prices (plan/price.h) make up for what
// differs.
#pragma once

namespace customconv::hardware {

// Measured (docs/log/), or of the architecture.
constexpr double kLaunchMs = 0.0048;  // of a kernel alone, from its launch to its end
constexpr double kNextMs = 0.0022;    // of a kernel that begins while the one before it ends

constexpr double kSchedulers = 4;             // of a multiprocessor: an instruction a clock each
constexpr double kSharedBytesPerClock = 128;  // of a multiprocessor's shared memory
constexpr double kL2BytesPerClock = 50;       // from L2 to a multiprocessor, while all load
constexpr double kCopyRowClocks = 2.25;       // of TMA, for each row of a box
constexpr double kStripCopyClocks = 190;      // of a warp that copies a strip row by row, each
constexpr double kWarpProductClocks = 2;  // of a multiprocessor: a warp's of 16 by 8 by 32 bytes
constexpr double kUnhidden = 0.12;        // of shorter work: it adds so much to the longest
constexpr double kClusterReach = 0.91;    // of the multiprocessors, for clusters of more than two
constexpr double kSectorBytes = 32;       // the least that memory reads or writes
constexpr double kWarpsPerSm = 64;        // that a multiprocessor holds

// Estimates that no measurement has isolated: what happens in the time of one wait. Bytes come to a
// multiprocessor, while all load; a warp fetches instructions that it runs for the first time; it
// issues others where it is alone; and it goes through steps of products, each of which waits for
// what it loads from shared memory.
constexpr double kBroughtBytes = 16384;
constexpr double kFetchedInstructions = 128;
constexpr double kLoneInstructions = 256;
constexpr double kStepsOfWait = 8;
constexpr double kKeptInstructions = 2048;  // that need not be fetched again
constexpr double kMemoryClocks = 800;       // from asking memory until the answer arrives
constexpr double kDependentClocks = 4;      // of a warp, from an instruction to the next
constexpr double kSteadyWarps = 8;          // that keep a multiprocessor busy

}  // namespace customconv::hardware
