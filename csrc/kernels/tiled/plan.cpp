#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/tiled/tile.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"

namespace customconv::tiled {

namespace {

// Input channels of a group up to which a tile may hold several groups.
constexpr int64_t kPackedChannels = 8;
// Bytes of neighbouring channels worth fetching together: two sectors.
constexpr int64_t kPackedBytes = 64;
// Products that a step should at least add up for an output, and the channels that a step may hold.
constexpr int64_t kStepProducts = 72;
constexpr int64_t kLeastChunk = 8;
constexpr int64_t kMostChunk = 32;

// Instructions of a thread.
constexpr double kInstructionsPerInput = 9;         // copied to shared memory
constexpr double kInstructionsPerNarrowInput = 24;  // of 16 bits: fetched alone and converted
constexpr double kInstructionsPerWeight = 8;
constexpr double kInstructionsPerPosition = 20;  // whose offset is computed, once a block and tap
constexpr double kInstructionsPerOutput = 8;
constexpr double kInstructionsPerRow = 8;  // loop and address of a kernel row
constexpr double kInstructionsPerRound = 100;
constexpr double kInstructionsPerBlock = 300;
// Elements of 16 bits that a thread loads before it waits for them.
constexpr double kNarrowBatch = 4;

// Cuts `size` into as few pieces of at most `most` as it takes, all about equal.
int64_t even_piece(int64_t size, int64_t most) {
  return size <= most ? size : ceil_divide(size, ceil_divide(size, most));
}
int64_t power_of_two_above(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

void swap_axes(Geometry& g) {
  std::swap(g.H, g.W);
  std::swap(g.P, g.Q);
  std::swap(g.R, g.S);
  std::swap(g.stride_h, g.stride_w);
  std::swap(g.pad_h, g.pad_w);
  std::swap(g.dilation_h, g.dilation_w);
  std::swap(g.in.h, g.in.w);
  std::swap(g.out.p, g.out.q);
  std::swap(g.weight.r, g.weight.s);
}

// Strips run along one axis: makes that axis long where the problem allows.
// Returns whether rows become columns where there are several taps, which then come in that order.
bool choose_row_axis(Geometry& g) {
  const bool pointwise = g.R == 1 && g.S == 1 && g.stride_h == 1 && g.stride_w == 1 &&
                         g.pad_h == 0 && g.pad_w == 0 && g.P == g.H && g.Q == g.W;
  if (g.Q == 1 && g.W == 1 && pointwise) swap_axes(g);
  if (pointwise && (g.H == 1 || (g.in.h == g.W * g.in.w && g.out.p == g.Q * g.out.q))) {
    g.W = g.Q = g.H * g.W;
    g.H = g.P = 1;
    if (g.Q == 1) {  // one pixel an image: the images make the row
      g.W = g.Q = g.N;
      g.N = 1;
      g.in.w = g.in.n;
      g.out.q = g.out.n;
    }
  }
  const bool swaps = g.Q <= kStrip / 2 && g.P >= 2 * g.Q;
  if (swaps) swap_axes(g);
  return swaps && g.R * g.S > 1;
}

Geometry geometry_of(const ConvProblem& problem);

// The kernel that walks these taps with a halo in shared memory.
Taps halo_taps(const Geometry& g) {
  const bool adjacent = g.stride_w == 1 && (g.dilation_w == 1 || g.S == 1);
  if (g.R * g.S == 1) return Taps::kOne;
  if (adjacent) {
    switch (g.S) {
      case 1:
        return Taps::kOne;
      case 3:
        return Taps::kThree;
      case 5:
        return Taps::kFive;
      case 7:
        return Taps::kSeven;
      default:
        return Taps::kAny;
    }
  }
  return g.stride_w == 1 ? Taps::kStride1 : g.stride_w == 2 ? Taps::kStride2 : Taps::kAnyStride;
}

constexpr int find_kernel(Taps taps, int channels) {
  for (size_t i = 0; i < kKernelCount; ++i) {
    if (kKernels[i].taps == taps && kKernels[i].channels == channels) return static_cast<int>(i);
  }
  return -1;
}

int choose_kernel(Taps taps, int64_t group_channels) {
  const int channels = group_channels == 1 ? 1 : group_channels <= 4 ? 4 : 8;
  const int exact = find_kernel(taps, channels);
  if (exact >= 0) return exact;
  return find_kernel(reads_windows(taps) ? Taps::kAny : Taps::kAnyStride, channels);
}

int64_t shared_bytes(const Tile& tile, const Geometry& g, int warps) {
  const int64_t stages = int64_t{4} * tile.stages * (tile.input_floats() + tile.weight_floats(g));
  const int64_t stores = int64_t{4} * 32 * kStrip * warps;
  return tile.table_bytes(g) + stages + stores;
}

// Sets what follows from the tile's output; false where a size is out of all proportion.
bool lay_out(Tile& tile, const Geometry& g, const Kernel& kernel) {
  constexpr int64_t kTooMuch = 1 << 20;
  const int64_t columns = int64_t{tile.strips} * kStrip;
  if (!tile.gathered &&
      (std::max(g.stride_h, g.dilation_h) > kTooMuch ||
       std::max(g.stride_w, g.dilation_w) > kTooMuch || std::max(g.R, g.S) > kTooMuch)) {
    return false;
  }
  const int64_t in_rows =
      tile.gathered ? tile.rows : (tile.rows - 1) * g.stride_h + (g.R - 1) * g.dilation_h + 1;
  const int64_t in_columns =
      tile.gathered ? columns : (columns - 1) * g.stride_w + (g.S - 1) * g.dilation_w + 1;
  // Two rows of four strips fall into different banks, whether read four floats at a time or one.
  const bool windows = reads_windows(kernel.taps);
  const int64_t pitch = windows ? (in_columns + 3) / 8 * 8 + 4 : (in_columns + 6) / 8 * 8 + 1;
  const int64_t plane = (tile.images * in_rows * pitch + 27) / 32 * 32 + (windows ? 4 : 5);
  if (in_rows > kTooMuch || in_columns > kTooMuch || plane > kTooMuch) return false;
  tile.in_rows = static_cast<int>(in_rows);
  tile.in_columns = static_cast<int>(in_columns);
  tile.pitch = static_cast<int>(pitch);
  tile.plane = static_cast<int>(plane);
  tile.weight_pitch = tile.groups * tile.channels;
  if (kernel.channels > 1) tile.weight_pitch = (tile.weight_pitch + 3) / 8 * 8 + 4;
  return true;
}

bool shrink(TiledPlan& plan) {
  int& size = plan.tile[0] > 1 ? plan.tile[0] : plan.groups > 1 ? plan.groups : plan.tile[1];
  if (size == 1) return false;
  size = (size + 1) / 2;
  return true;
}

// One tap reads a halo only along the column, and one pixel apart along the row.
bool has_halo(const Geometry& g, const Kernel& kernel) {
  return kernel.taps != Taps::kOne || (g.S == 1 && g.stride_w == 1 && g.R > 1);
}

// What is tried: indices into the tables.
struct Variant {
  int kernel = 0;
  int warps = 0;
  int width = 0;
  int rounds = 0;
};

// The tile with or without a halo, as large as the block's threads and the memory allow.
bool fit(const Geometry& g, const Variant& variant, int64_t element_bytes, int64_t limit,
         TiledPlan& plan, Tile& tile) {
  const Kernel& kernel = kKernels[variant.kernel];
  const WarpShape& shape = kWarpShapes[variant.warps];
  int64_t room = int64_t{32} * shape.strips;
  plan.kernel = variant.kernel;
  plan.warps[0] = shape.channels;
  plan.warps[1] = shape.strips;

  const bool packs =
      g.groups > 1 && g.C <= kPackedChannels && g.K <= kernel.channels * shape.channels;
  const bool channels_last = g.in_channels_last() || g.out_channels_last();
  int64_t groups = 1;
  if (packs && channels_last) {
    const int64_t wanted = power_of_two_above(ceil_divide(kPackedBytes, g.C * element_bytes));
    groups = std::min({wanted, power_of_two_above(g.groups), int64_t{32}});
  }
  room /= groups;
  const int64_t strips = std::min(int64_t{kTileWidths[variant.width]}, room);
  const int64_t rows = even_piece(g.P, room / strips);
  const int64_t images = even_piece(g.N, room / (strips * rows));
  if (packs) groups *= std::min(g.groups, room / (strips * rows * images));
  plan.groups = static_cast<int>(even_piece(g.groups, groups));
  plan.tile[0] = static_cast<int>(images);
  plan.tile[1] = static_cast<int>(rows);
  plan.tile[2] = static_cast<int>(strips);

  const int64_t taps = plan.gathered ? 1 : g.R * g.S;
  do {
    const bool one_step = packs && !plan.gathered && has_rounds(kernel.channels);
    const int64_t groups_left = ceil_divide(g.groups, plan.groups);
    plan.rounds = one_step ? static_cast<int>(even_piece(groups_left, kRounds[variant.rounds])) : 1;
    const bool divisible = plan.groups == 1 && plan.rounds == 1;
    int64_t chunk = g.C;
    if (divisible) {
      const int64_t wanted = power_of_two_above(ceil_divide(kStepProducts, taps));
      chunk = std::min(power_of_two_above(chunk), std::clamp(wanted, kLeastChunk, kMostChunk));
    }
    for (; chunk > 0; chunk = divisible ? chunk / 2 : 0) {
      if (chunk > limit) continue;
      plan.chunk = static_cast<int>(chunk);
      tile = make_tile(g, plan);
      if (tile.shared_bytes > 0 && tile.shared_bytes <= limit) return true;
    }
  } while (shrink(plan));
  return false;
}

// The one with a halo if it fits, else where a tap can be taken at a time the other.
bool choose_tile(const Geometry& g, const Variant& variant, int64_t element_bytes, int64_t limit,
                 TiledPlan& plan, Tile& tile) {
  if (has_halo(g, kKernels[variant.kernel]) && fit(g, variant, element_bytes, limit, plan, tile)) {
    return true;
  }
  plan.gathered = true;
  return kKernels[variant.kernel].taps == Taps::kOne &&
         fit(g, variant, element_bytes, limit, plan, tile);
}

WorkList count_work(const ConvProblem& problem, const Geometry& g, const TiledPlan& plan,
                    const Tile& tile, const DeviceProperties& device) {
  const Kernel& kernel = kKernels[plan.kernel];
  const WarpShape shape{plan.warps[0], plan.warps[1]};
  const double warps = shape.channels * shape.strips, threads = 32 * warps;
  const double taps = static_cast<double>(g.R * g.S);
  const double channels = static_cast<double>(g.C);
  const bool narrow = problem.dtype != DType::kFloat32;

  // Loads for a tap: its weights, and its share of the row's slice or its own inputs.
  const double weights = kernel.channels == 1 ? 1 : kernel.channels / 4;
  const double inputs = reads_windows(kernel.taps)
                            ? static_cast<double>(kStrip + g.S) / 4 / static_cast<double>(g.S)
                        : kernel.taps == Taps::kAnyStride ? 2 * kStrip
                                                          : kStrip;
  const double tap = kernel.channels * kStrip + weights + inputs + 1;
  const double compute = channels * (taps * tap + static_cast<double>(g.R) * kInstructionsPerRow);
  const double positions = static_cast<double>(tile.positions()) * (tile.gathered ? taps : 1);
  // Elements that a thread copies in a round.
  const double fetched = channels * tile.groups * positions / threads;
  const double fetched_weights = channels * tile.groups * taps * tile.channels / threads;
  const double fill = fetched * (narrow ? kInstructionsPerNarrowInput : kInstructionsPerInput) +
                      fetched_weights * kInstructionsPerWeight;
  const double output = kernel.channels * kStrip * kInstructionsPerOutput;
  const double round = compute + fill + output + kInstructionsPerRound;
  const double once = positions * kInstructionsPerPosition / threads + kInstructionsPerBlock;
  const double instructions = round * tile.rounds + once;
  const double steps = static_cast<double>(tile.steps) * tile.rounds;
  const double batches = (fetched + fetched_weights) * tile.rounds / kNarrowBatch;

  // A block with fewer warps than there are schedulers uses only some of them. It counts as a block
  // of a share of a multiprocessor.
  const double shares = std::max(hardware::kSchedulers / warps, 1.0);
  const double room =
      std::min<double>(std::floor(static_cast<double>(device.shared_bytes_block + 1024) /
                                  static_cast<double>(tile.shared_bytes + 1024)),
                       std::floor(kMinBlocks * max_threads(kernel.channels) / threads));
  Work work;
  work.row = price_row(PriceKind::kTiled, (kernel.channels > 1 ? 2 : 0) + (narrow ? 0 : 1));
  work.blocks = static_cast<float>(tile.count());
  work.sms = static_cast<float>(device.sm_count * shares);
  work.resident = static_cast<float>(std::max(std::floor(room / shares), 1.0));
  work.busy = static_cast<float>(instructions * warps * shares / hardware::kSchedulers);
  // Most instructions need the result of the one before and wait for it. Products do not.
  const double chained = (fill + kInstructionsPerRound) * tile.rounds + once;
  work.waits = static_cast<float>(1 + (narrow ? std::max(steps, batches) : steps) +
                                  chained * hardware::kDependentClocks / hardware::kMemoryClocks);
  work.bytes = static_cast<float>(problem.least_bytes());
  WorkList works;
  works.add(work);
  return works;
}

const char* can_implement(const ConvProblem& problem, const DeviceProperties& device) {
  if (problem.dtype == DType::kFloat64) return "sums are kept in float32";
  if (problem.pass == Pass::kWgrad) return "it has no weight gradient";
  if (problem.pass == Pass::kDgrad && (problem.stride_h != 1 || problem.stride_w != 1)) {
    return "the input gradient of a strided convolution is not a forward convolution";
  }
  if (problem.x_count() == 0 || problem.w_count() == 0 || problem.y_count() == 0) {
    return "a tensor is empty";
  }
  // Channels, taps and their products are counted in 32 bits.
  constexpr int64_t kMost = int64_t{1} << 30;
  if (std::max({problem.C, problem.K, problem.group_C() * problem.R * problem.S,
                problem.group_K() * problem.R * problem.S}) > kMost) {
    return "it has more than 2^30 channels or products an output";
  }
  // Were every strip of a channel a block of its own.
  const bool forward = problem.pass == Pass::kFprop;
  const int64_t rows = problem.N * (forward ? problem.K * problem.P : problem.C * problem.H);
  if (rows * ceil_divide(forward ? problem.Q : problem.W, kStrip) > device.max_grid_x) {
    return "it has too many output pixels for one grid";
  }
  return nullptr;
}

// A variant whose tile is of a single image, whatever the batch: one warp's, of strips so wide that
// rows of an image fill it.
Variant single_image_variant(const Geometry& g, int kernel) {
  constexpr int64_t kWarpStrips = 32;
  Variant variant{kernel, kWarpShapeCount - 1, 0, 0};
  for (const int width : {0, 3, 4}) {
    variant.width = width;
    const int64_t room = kWarpStrips / kTileWidths[width];
    if (room / even_piece(g.P, room) < 2) break;
  }
  return variant;
}

// In which order a tile adds the terms of a sum: by the kernel, whether it takes a tap at a time,
// and the channels of a step, whose products are summed apart.
int64_t order_of(const Geometry& g, const TiledPlan& plan) {
  const int64_t walk = int64_t{plan.kernel} * 2 + (plan.gathered ? 1 : 0);
  return walk << 32 | std::min<int64_t>(plan.chunk, g.C);
}

// The cheapest plan. Where `all` is given, plans go there of the one order of sums that every batch
// has, also of tiles that do not pay for the problem's batch.
ConvPlan search(const ConvProblem& problem, const DeviceProperties& device,
                std::vector<ConvPlan>* all) {
  const Geometry g = forward_geometry(problem);
  const int64_t element_bytes = element_size(problem.dtype);
  ConvPlan best;
  int64_t order = -1;  // of all
  const auto consider = [&](const Variant& variant, int64_t limit) {
    TiledPlan decided;
    Tile tile;
    if (!choose_tile(g, variant, element_bytes, limit, decided, tile)) return int64_t{0};
    ConvPlan plan{shape_of(tile, decided)};
    plan.payload = decided;
    plan.works = count_work(problem, g, decided, tile, device);
    plan.predicted_ms = price(plan.works, device);
    if (order < 0) order = order_of(g, decided);
    if (all != nullptr && order_of(g, decided) == order) all->push_back(plan);
    if (best.threads == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
    return tile.count();
  };
  const auto try_kernel = [&](int kernel, int64_t limit) {
    // Its order is that of all plans. Whether it fits does not depend on the batch.
    if (all != nullptr && consider(single_image_variant(g, kernel), limit) == 0) return;
    const int channels = kKernels[kernel].channels;
    for (int warps = 0; warps < kWarpShapeCount; ++warps) {
      const WarpShape& shape = kWarpShapes[warps];
      const bool too_large = shape.channels * shape.strips * 32 > max_threads(channels);
      const bool idle_channels = shape.channels > 1 && channels * shape.channels / 2 >= g.K;
      if (too_large || idle_channels) continue;
      int64_t most_blocks = 0;
      for (int width = 0; width < kTileWidthCount; ++width) {
        const int64_t strips = kTileWidths[width];
        if (strips > 32 * shape.strips || (strips - 1) * kStrip >= 2 * g.Q) continue;
        if (all == nullptr && strips > 8 && g.P * g.N >= 4) continue;
        for (int rounds = 0; rounds < kRoundsCount; ++rounds) {
          if (rounds > 0 && (g.groups == 1 || g.C > kPackedChannels || !has_rounds(channels)))
            break;
          most_blocks = std::max(most_blocks, consider({kernel, warps, width, rounds}, limit));
        }
      }
      // Smaller blocks only help where there are too few.
      const bool last_of_size =
          shape.channels * shape.strips * 32 <= max_threads(channels) && shape.channels == 1;
      if (all == nullptr && last_of_size && most_blocks >= 4 * int64_t{device.sm_count}) break;
    }
  };
  // Room for several blocks on a multiprocessor; then for one; then a tap at a time.
  const Taps taps = halo_taps(g);
  const int kernel = choose_kernel(taps, g.K);
  const int64_t most = device.shared_bytes_block;
  const int64_t share = most / kMinBlocks - 1024;
  try_kernel(kernel, share);
  if (best.threads == 0) try_kernel(kernel, most);
  if (best.threads == 0) try_kernel(choose_kernel(Taps::kOne, g.K), most);
  return best;
}

ConvPlan propose(const ConvProblem& problem, const DeviceProperties& device, const Wanted&) {
  return search(problem, device, nullptr);
}

std::vector<ConvPlan> all_orders(const ConvProblem& problem, const DeviceProperties& device) {
  std::vector<ConvPlan> plans;
  search(problem, device, &plans);
  return plans;
}

int64_t sum_order(const ConvProblem& problem, const ConvPlan& plan) {
  Geometry g = geometry_of(problem);
  const int64_t swapped = choose_row_axis(g) ? 1 : 0;
  return swapped << 62 | order_of(g, plan.payload.as<TiledPlan>());
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties&, const ConvPlan& plan) {
  const auto way = plan.payload.as<TiledPlan>();
  const Geometry g = forward_geometry(p);
  const bool walks = way.gathered ? way.kernel == choose_kernel(Taps::kOne, g.K)
                                  : way.kernel == choose_kernel(halo_taps(g), g.K) &&
                                        has_halo(g, kKernels[way.kernel]);
  const Tile tile = make_tile(g, way);
  return walks && tile.shared_bytes > 0 ? shape_of(tile, way) : LaunchShape{};
}

}  // namespace

Geometry forward_geometry(const ConvProblem& p) {
  Geometry g = geometry_of(p);
  choose_row_axis(g);
  return g;
}

namespace {

// The forward convolution that computes a problem, with rows as they are.
Geometry geometry_of(const ConvProblem& p) {
  Geometry g{};
  const Shape5& x = p.x_strides;
  const Shape5& w = p.w_strides;
  const Shape5& y = p.y_strides;
  g.N = p.N;
  g.groups = p.groups;
  g.R = p.R;
  g.S = p.S;
  g.stride_h = p.stride_h;
  g.stride_w = p.stride_w;
  g.dilation_h = p.dilation_h;
  g.dilation_w = p.dilation_w;
  if (p.pass == Pass::kDgrad) {
    g.H = p.P;
    g.W = p.Q;
    g.P = p.H;
    g.Q = p.W;
    g.C = p.group_K();
    g.K = p.group_C();
    g.pad_h = p.dilation_h * (p.R - 1) - p.pad_h;
    g.pad_w = p.dilation_w * (p.S - 1) - p.pad_w;
    g.in = {y[0], y[1], y[2], y[3]};
    g.out = {x[0], x[1], x[2], x[3]};
    g.weight = {p.group_K() * w[0], w[1], w[0], -w[2], -w[3]};
    g.weight_offset = (p.R - 1) * w[2] + (p.S - 1) * w[3];
  } else {
    g.H = p.H;
    g.W = p.W;
    g.P = p.P;
    g.Q = p.Q;
    g.C = p.group_C();
    g.K = p.group_K();
    g.pad_h = p.pad_h;
    g.pad_w = p.pad_w;
    g.in = {x[0], x[1], x[2], x[3]};
    g.out = {y[0], y[1], y[2], y[3]};
    g.weight = {p.group_K() * w[0], w[0], w[1], w[2], w[3]};
  }
  return g;
}

}  // namespace

Tile make_tile(const Geometry& g, const TiledPlan& plan) {
  constexpr int64_t kTooMuch = 1 << 20;  // what keeps products within 32 bits
  const Kernel& kernel = kKernels[plan.kernel];
  Tile tile;
  tile.gathered = plan.gathered;
  tile.images = plan.tile[0];
  tile.rows = plan.tile[1];
  tile.strips = plan.tile[2];
  tile.groups = plan.groups;
  tile.rounds = plan.rounds;
  tile.channels = kernel.channels * plan.warps[0];
  tile.groups_first = tile.groups > 1 && g.out_channels_last();
  tile.tiles_k = ceil_divide(g.K, tile.channels);
  tile.tiles_g = ceil_divide(g.groups, int64_t{tile.groups} * tile.rounds);
  tile.tiles_q = ceil_divide(g.Q, int64_t{tile.strips} * kStrip);
  tile.tiles_p = ceil_divide(g.P, tile.rows);
  tile.tiles_n = ceil_divide(g.N, tile.images);
  const int64_t taps = tile.gathered ? 1 : g.R * g.S;
  if (!lay_out(tile, g, kernel) || taps * plan.chunk > kTooMuch ||
      int64_t{tile.plane} * tile.groups * plan.chunk > kTooMuch) {
    return tile;
  }
  tile.chunk = plan.chunk;
  tile.steps = (tile.gathered ? g.R * g.S : 1) * ceil_divide(g.C, tile.chunk);
  tile.stages = tile.steps > 1 || tile.rounds > 1 ? 2 : 1;
  tile.shared_bytes = shared_bytes(tile, g, plan.warps[0] * plan.warps[1]);
  return tile;
}

LaunchShape shape_of(const Tile& tile, const TiledPlan& plan) {
  return {tile.count(), 32 * plan.warps[0] * plan.warps[1], static_cast<int>(tile.shared_bytes), 0};
}

extern const Family family;
const Family family{"tiled",         can_implement, propose,   shape, /*variants=*/nullptr,
                    /*fuses=*/false, sum_order,     all_orders};

}  // namespace customconv::tiled

namespace customconv {

template <>
Fields fields_of<PlanKind::tiled>() {
  using tiled::TiledPlan;
  return FieldList<TiledPlan>()
      .word("kernel", &TiledPlan::kernel, words_of(tiled::kKernels))
      .number("warps", &TiledPlan::warps)
      .flag("gathered", &TiledPlan::gathered)
      .size("tile", &TiledPlan::tile)
      .size("groups", &TiledPlan::groups)
      .size("rounds", &TiledPlan::rounds)
      .size("chunk", &TiledPlan::chunk);
}

}  // namespace customconv
