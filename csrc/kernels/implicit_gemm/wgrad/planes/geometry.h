// How a channels-first weight gradient is cut into matrix products; the planner chooses, the kernel
// follows.
//
// Pixels follow each other in x and in dy, and sums run along them. dy lies in shared memory in
// slabs, 128 bytes of pixels of each output channel, and is the second operand as it lies. x lies
// there in rows of the image, channel by channel; threads fetch the first operand from those, so
// that a tap may begin at any pixel. Rows of the instruction are 64 input channels of a tap.
//
// A step of the instruction takes two units of 16 bytes of pixels, any distance apart in x.
//
// Runs are pixels of a plane one after the other, whatever the rows. TMA brings them
// even if planes do not begin at multiples of 16 bytes: from the last such multiple before them.
// Channels that begin alike are a class, and come together. A tile is a run of dy. If there are
// classes, either threads put it in order, or a thread block has output channels of one class: then
// all planes begin equally late in their first tile. A run of x is what the tile's taps meet. A
// table tells for each pixel of the tile where its first tap is, and which taps are inside of the
// image.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/wgrad/geometry.h"

namespace customconv::implicit_gemm::wgrad::planes {

constexpr int kUnitBytes = 16;
constexpr int kSlabUnits = 8;                                 // with the 128-byte swizzle
constexpr int kSlabSteps = 4;                                 // of two units
constexpr int kMostFlat = 48;                                 // channels beside which taps are rows
constexpr int kRawStages = 2;                                 // of dy that comes in classes
constexpr int kMostSteps = 64;                                // of a tile
constexpr int kMostBoxes = 4;                                 // of a run
constexpr int kSlabBytes = kBlock * kSlabUnits * kUnitBytes;  // of 64 channels
constexpr int kRowPadding = 4;                                // sums, behind each row of results

// How pixels come to shared memory; TMA brings boxes and runs.
enum Way : uint8_t { kByThreads = 1, kByBoxes = 2, kByRuns = 4 };

// A warpgroup sums some taps of 64 input channels by `k_blocks` times 64 output channels.
struct Kernel {
  const char* name;
  int warpgroups;
  int taps, k_blocks;
  int loaders;                           // threads
  int math_registers, loader_registers;  // of a thread
  int ways;                              // that it has; others serve hardly any layer
  bool halves = false;                   // of float32: x is halved as it is fetched, dy in slabs

  constexpr bool has(Way way) const { return (ways & way) != 0; }
  constexpr int blocks() const { return taps * k_blocks; }
  // Steps whose products are under way together: of one tap there are few.
  constexpr int together() const { return taps == 1 ? 2 : 1; }
  // Slabs have both halves: first all high ones.
  constexpr int slab_sets() const { return halves ? 2 : 1; }
  constexpr int threads() const { return warpgroups * 128 + loaders; }
  // Whether threads that load give as many registers as the others take, or these wait forever.
  constexpr bool shares_registers() const {
    const int each = 65536 / threads() / 8 * 8;  // at the start
    return warpgroups * 128 * math_registers + loaders * loader_registers <= threads() * each;
  }
};

inline constexpr Kernel kKernels[] = {
    // Three rows of a filter share what is loaded.
    {"planes, 3 x 3 taps", 3, 3, 1, 128, 152, 56, kByThreads | kByRuns},
    // Of a tap more products.
    {"planes, 2 x 3 taps by 128", 2, 3, 2, 128, 232, 40, kByBoxes | kByRuns},
    // For few channels, beside their taps.
    {"planes, 3 x 64", 3, 1, 1, 128, 152, 56, kByThreads | kByBoxes | kByRuns},
    // The most products of a single tap; fewer output channels, and fewest.
    {"planes, 2 x 256", 2, 1, 4, 128, 216, 72, kByRuns},
    {"planes, 2 x 128", 2, 1, 2, 256, 200, 56, kByThreads},
    {"planes, 2 x 64", 2, 1, 1, 256, 200, 56, kByThreads},
    {"3xTF32 planes, 2 x 128", 2, 1, 2, 128, 224, 56, kByThreads | kByBoxes | kByRuns, true},
    {"3xTF32 planes, 2 x 64", 2, 1, 1, 256, 200, 56, kByThreads | kByBoxes | kByRuns, true},
};
// What threads load, and fits wherever any kernel does; and the same of halves.
constexpr int kLeastKernel = 5, kLeastHalves = 7;
constexpr int kBarrierBytes = 256;
constexpr int kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

// A step of the instruction: a slab, the place of its first unit there, and which units of the
// tile's rows they are. Where there is none dy is zeros, and the first unit stands in.
struct Step {
  int slab, place;
  int units[2];
};

// Some that follow each other.
struct Range {
  int first = 0, count = 1;
};

struct Tile {
  int kernel = 0;
  bool boxed = false, runs = false;  // TMA loads, else threads
  bool flat = false;       // rows of the instruction are channels and taps, few as they are
  bool one_class = false;  // of runs: the output channels of a thread block are a class
  int along_c = 1;         // warpgroups that have input channels of their own
  int images = 1, rows = 1, columns = 1;  // of output pixels; columns are whole units
  int along_p = 1;                        // warpgroups that share a tile's steps
  int64_t splits = 1;
  int cluster = 1;  // splits whose sums are added up before they are stored

  // What follows from that.
  int unit = 1;                   // pixels
  int filter_rows = 1;            // of a thread block
  int chunks = 1;                 // of a filter row
  int vector = 0;                 // bytes that threads copy, 0 where pixels go through registers
  int align = 1;                  // pixels: where a row may begin in shared memory
  int channels = kBlock;          // of x that lie in shared memory together
  int x_rows = 1, x_columns = 1;  // in shared memory
  // The rows and units of x that threads load. The others are outside of the image in every tile,
  // and stay zeros.
  Range inside_rows, inside_units;
  int row_step = 1;                           // rows there from an output row to the next
  int step_h = 1;                             // rows of the image from one there to the next
  int x_channel = 0, x_row = 0, x_image = 0;  // bytes from one to the next
  int64_t x_block = 0;                        // bytes of those channels
  int slabs = 1, full_slabs = 1;              // the others have fewer steps
  int last_steps = 0;
  int64_t slab_bytes = 0, stage_bytes = 0;
  // For runs. Their tiles have one row, whose columns are pixels of a plane.
  int x_classes = 1, y_classes = 1;
  int k_classes = 1;              // that thread blocks have one each of
  int x_runs = 1;                 // one for each filter row of the thread block, or one for all
  int x_boxes = 1, box_step = 0;  // of a run, and pixels from one to the next
  int table_bytes = 0;            // for a filter row
  int y_channel = 0;              // bytes from one to the next of what comes in classes,
  int64_t raw_y = 0;              // and of all of it
  int stages = 0;
  int64_t tiles_n = 1, tiles_p = 1, tiles_q = 1;
  int64_t blocks_k = 1, blocks_c = 1, filter_sets = 1;  // thread blocks in each dimension

  const Kernel& kind() const { return kKernels[kernel]; }
  // Bytes of a table for what four lanes' first pixel, or two, of a unit are: a word of places, and
  // one of ones for each tap that is inside of the image.
  int entry_bytes() const { return kind().taps > 1 ? 16 : 8; }
  // Whether threads put dy in order.
  bool orders() const { return y_classes > k_classes; }
  int64_t tiles() const { return tiles_n * tiles_p * tiles_q; }
  int row_units() const { return columns / unit; }
  int units() const { return images * rows * row_units(); }
  int steps() const { return full_slabs * kSlabSteps + (slabs - full_slabs) * last_steps; }
  Step step(int number) const;
  int64_t raw_bytes() const { return kRawStages * raw_y; }
  int64_t y_bytes() const { return slabs * slab_bytes * kind().slab_sets(); }  // of a stage
  int64_t parts() const { return splits / cluster * along_p; }
  // Whether blocks store their results, rather than parts of sums.
  bool is_direct() const { return parts() == 1; }
  // Sums of a thread block, including those of channels and taps that do not exist.
  int64_t sums() const { return int64_t{kind().warpgroups} * kind().blocks() * kBlock * kBlock; }
  bool exists() const { return stage_bytes > 0 && splits < tiles() + cluster; }
};

// Who brings pixels: threads, or TMA, which may bring runs. Of those, the output
// channels of a thread block may be one class.
enum class Loader : uint8_t { kThreads, kBoxes, kRuns, kClassRuns };
// What warpgroups have of their own: rows of the filter, input channels or steps, each of which is
// a split of its own.
enum class Along : uint8_t { kRows, kC, kP };
struct PlanesPlan {
  static constexpr PlanKind kKind = PlanKind::implicit_gemm_wgrad_planes;
  int kernel = 0;  // of kKernels
  Loader loader = Loader::kThreads;
  Along along = Along::kRows;
  bool flat = false;  // see Tile
  int cluster = 1;    // splits
  int tile[3] = {};   // rows, columns, images
  int stages = 0;
};

// A single tap of dense planes: images of one row.
ConvProblem as_one_row(ConvProblem p);

// The same whose channels are all channels and taps, where those are rows of the instruction.
ConvProblem rows_of(ConvProblem p, bool flat);
// How threads fetch x: element by element, or in words of two neighbours, which output pixels or
// their taps share. With a stride of two, each pixel is half of a word. A table may tell where. Or
// not at all: a single tap's pixels may lie in slabs as dy's do, and the instruction reads both.
enum class Fetch { kElements, kPairs, kHalves, kTableElements, kTablePairs, kSlabs };
constexpr bool has_table(Fetch fetch) {
  return fetch == Fetch::kTableElements || fetch == Fetch::kTablePairs;
}
Fetch fetch_of(const ConvProblem& p, const Tile& t);
// Whether TMA can read a tensor's rows.
bool is_boxed(const ConvProblem& p);

// As of the other kernels (../geometry.h).
bool is_variant(const ConvProblem& p, const PlanesPlan& plan);
Tile make_tile(const ConvProblem& p, const PlanesPlan& plan, int64_t splits);
void choose_stages(int64_t shared_bytes, Tile& t);
LaunchShape shape_of(const ConvProblem& p, const Tile& t);

// Where the barriers begin, behind what the block keeps in shared memory.
int64_t memory_bytes(const Tile& t);

// Thread blocks that share a part of the pixels.
int64_t blocks_of(const ConvProblem& p, const Tile& t);
// Whether sums meet no pixel of x but those that their taps meet. Else zeros of dy, of pixels that
// do not exist, meet some more.
bool is_exact(const ConvProblem& p, const Tile& t);
// Whether what a thread block has of an output channel lies together in the weight.
bool rows_follow(const ConvProblem& p, const Tile& t);

}  // namespace customconv::implicit_gemm::wgrad::planes
