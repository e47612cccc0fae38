// col2im: input gradients of few channels, or of large strides. The columns of a tile of dy's
// pixels are sums in shared memory, where they are gathered.
#include <algorithm>

#include "kernels/col2im/geometry.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/search.h"

namespace customconv::col2im {

namespace {

// Instructions, of a thread unless it says otherwise.
constexpr double kCopyInstructions = 32;     // to copy a vector
constexpr double kElementInstructions = 34;  // to copy an element through registers
constexpr double kShiftInstructions = 16;    // of a warp, to begin a shift of a chunk
constexpr double kBlockInstructions = 4;     // of a warp, for a block of columns, without products
constexpr double kPlaceInstructions = 87;    // to find a place's outputs of all phases and channels
constexpr double kOutputInstructions = 24;
constexpr double kTapInstructions = 9;  // to gather a tap of an output
constexpr double kFragmentBytes = 512;  // shared memory that a warp reads for a block of an operand

constexpr double kElementBatch = 4;  // elements that a thread copies at a time
constexpr int kWidths[] = {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256};  // of tiles
constexpr int kWarps[] = {4, 8};
constexpr int64_t kMostStride = 1024;
constexpr int64_t kMostPacked = INT64_C(1) << 30;  // bytes of weights

class Search : public PlanSearch {
 public:
  using PlanSearch::PlanSearch;

  ConvPlan best() {
    search(/*any=*/false);
    return best_;
  }
  bool has_plan() {
    search(/*any=*/true);
    return best_.threads > 0;
  }

 private:
  // Weighs all plans, or with `any` stops as soon as it has one.
  void search(bool any) {
    for (int blocks = 0; blocks < kBlocksCount; ++blocks) {
      for (const int warp_blocks : kWarpBlocks) {
        if (is_slow(row_of(warp_blocks), d_.sm_count, least_clocks())) continue;
        for (const int warps : kWarps) {
          try_widths({kBlocks[blocks], warp_blocks, {}, warps},
                     blocks > 0 ? kBlocks[blocks - 1] : 0);
          if (any && best_.threads > 0) return;
        }
      }
    }
  }

  // `narrower`: the blocks of columns of the next narrower kernel.
  void try_widths(Col2imPlan v, int narrower) {
    const int most = v.warps * v.pixel_blocks * kBlockPixels;
    for (const int width : kWidths) {
      if (width > most) break;
      const int most_rows = std::min(most / width, g_.h.places);
      v.tile[0] = static_cast<int>(ceil_divide(g_.h.places, ceil_divide(g_.h.places, most_rows)));
      v.tile[1] = width;
      const Work w = work_of(g_, v, size_);
      if (!w.fits) continue;
      // What a narrower kernel computes, it does faster.
      const int columns = w.phases * w.phase_columns;
      if (columns <= narrower * kBlockColumns) return;
      consider(v, w);
      if (w.tiles_w == 1) break;
    }
  }

  void consider(const Col2imPlan& v, const Work& w) {
    ConvPlan plan{shape_of(g_, w, v)};
    if (plan.shared_bytes > d_.shared_bytes_block || plan.workspace_bytes > kMostPacked) return;
    if (plan.blocks > INT32_MAX) return;
    plan.payload = v;
    plan.works = count_work(v, w, plan.workspace_bytes);
    add(plan);
  }

  uint16_t row_of(int pixel_blocks) const {
    return price_row(PriceKind::kCol2im,
                     (pixel_blocks == kWarpBlocks[0] ? 0 : 2) + (size_ == 2 ? 0 : 1));
  }

  // Clocks that a multiprocessor's tensor cores take, without the padding of any tile.
  double least_clocks() const {
    const double pixels = static_cast<double>(p_.N) * g_.h.places * g_.w.places;
    const double columns = static_cast<double>(g_.C) * g_.h.taps * g_.w.taps;
    return pixels * columns * static_cast<double>(g_.K) / d_.sm_count / matrix_products();
  }

  WorkList count_work(const Col2imPlan& v, const Work& w, int64_t packed) const {
    const double warps = w.threads / 32.0, warp_blocks = v.pixel_blocks;
    const double chunks = w.k_chunks;
    // An average block has phases with so many rows of taps, which have so many different shifts.
    const double taps = static_cast<double>(g_.h.taps) / w.phase_chunks;
    const double shifts = std::min<double>(taps, w.shift_count);
    const double column_blocks = w.phase_columns / static_cast<double>(kBlockColumns);
    // All counts from here on are for one block.
    const double loads = taps * column_blocks;
    const double products =
        chunks * loads * warps * warp_blocks * kBlockPixels * kBlockColumns * kChunkBytes / size_;
    const double pixels = static_cast<double>(w.stage_rows) * w.width;
    const double vectors = chunks * pixels * kChunkBytes / g_.vector;
    const double copied = chunks * (pixels * kChunkBytes + w.weight_bytes);
    const double outputs =
        static_cast<double>(w.rows) * w.columns * w.phases * w.channels * g_.w.stride;
    const double gathered = outputs * g_.w.taps / g_.w.stride;
    const double sums = static_cast<double>(w.sum_pitch) * v.column_blocks * kBlockColumns;
    const double pixel_loads = size_ == 4 ? 12 : 2;  // float32 is rounded, too
    double issues = warps * chunks *
                    (shifts * (kShiftInstructions + warp_blocks * pixel_loads) +
                     loads * (kBlockInstructions + warp_blocks * 2));
    issues += vectors / 32 * (g_.vector == 2 ? kElementInstructions : kCopyInstructions);
    const bool planes = p_.x_strides[1] != 1;
    const int own = planes ? w.channels : own_channels(w.channels);
    const double places = outputs / w.phases / own;
    issues += (places * kPlaceInstructions + outputs * kOutputInstructions +
               gathered * kTapInstructions) /
              32;
    const double read = warps * chunks * (shifts * warp_blocks * 2 + loads) * kFragmentBytes;
    const double shared = read + copied + sums * 4 + gathered * 4;
    // How many blocks share a multiprocessor, by shared memory and by registers.
    const int64_t room = (d_.shared_bytes_block + 1024) / (w.shared_bytes + 1024);
    const auto registers =
        static_cast<int64_t>(44 + warp_blocks * (4 + 4 * v.column_blocks)) * w.threads;
    // A thread waits for each batch of outputs, and for each batch of elements that it copies.
    const double lines = static_cast<double>(w.phases) * own;
    const double gathers = outputs / w.threads / std::min<double>(lines, kBatch);
    const double elements = g_.vector == 2 ? vectors / w.threads / kElementBatch : 0;
    customconv::Work work;
    work.row = row_of(v.pixel_blocks);
    work.blocks = static_cast<float>(w.tiles(p_.N) * w.chunks());
    work.sms = static_cast<float>(d_.sm_count);
    work.resident = static_cast<float>(std::max<int64_t>(std::min(room, (1 << 16) / registers), 1));
    work.busy = static_cast<float>(
        busiest({products / matrix_products(), issues / hardware::kSchedulers,
                 shared / hardware::kSharedBytesPerClock, copied / hardware::kL2BytesPerClock}));
    work.waits =
        static_cast<float>(1 + chunks + gathers + elements +
                           issues / warps * hardware::kDependentClocks / hardware::kMemoryClocks);
    work.bytes = static_cast<float>(p_.least_bytes());
    WorkList works;
    works.add(work);
    customconv::Work pack;
    pack.row = price_row(PriceKind::kPackColumns, 0);
    pack.waits = 1;
    pack.bytes = static_cast<float>(2 * packed);
    works.add(pack);
    return works;
  }

  // Products that a multiprocessor's tensor cores form in a clock. Instructions of warps reach half
  // the rate of those of warpgroups.
  double matrix_products() const {
    return d_.matrix_flops(p_.dtype, p_.tf32) / 4 / d_.sm_count / d_.clock_ghz / 1e9;
  }

  const Geometry g_ = geometry_of(p_);
  const int size_ = static_cast<int>(element_size(p_.dtype));
};

const char* can_implement(const ConvProblem& p, const DeviceProperties& d) {
  if (p.pass != Pass::kDgrad) return "it computes input gradients";
  if (p.dtype == DType::kFloat64) return "sums are kept in float32";
  if (p.dtype == DType::kFloat32 && !p.tf32) return "TF32 is not allowed";
  if (d.capability_major < 8) return "it needs compute capability 8.0";
  if (p.groups > 1) return "it has no groups";
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  if (p.S > kMostColumns) return "a row of the filter has more than 64 taps";
  if (std::max(p.stride_h, p.stride_w) > kMostStride) return "a stride passes 1024";
  const Geometry g = geometry_of(p);
  int shifts[kMostShifts];
  if (shifts_of(g.h, shifts) < 0) return "the filter is too tall";
  if (p.C * p.R * p.S > INT32_MAX / 64 || p.K > INT32_MAX / 64) return "the weight is too large";
  if (!Search(p, d).has_plan()) return "a tile with its halo is larger than shared memory";
  return nullptr;
}

// By all that is decided, nothing of which follows from the batch.
int64_t sum_order(const ConvProblem&, const ConvPlan& plan) {
  const auto v = plan.payload.as<Col2imPlan>();
  int64_t order = v.column_blocks;
  for (const int size : {v.pixel_blocks, v.warps}) order = order << 8 | size;
  for (const int size : v.tile) order = order << 16 | size;
  return order;
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties&, const ConvPlan& plan) {
  const auto v = plan.payload.as<Col2imPlan>();
  const Geometry g = geometry_of(p);
  const Work w = work_of(g, v, static_cast<int>(element_size(p.dtype)));
  return w.fits ? shape_of(g, w, v) : LaunchShape{};
}

}  // namespace

extern const Family family;
const Family family{"col2im",        can_implement, cheapest_of<Search>, shape, all_of<Search>,
                    /*fuses=*/false, sum_order};

}  // namespace customconv::col2im

namespace customconv {

template <>
Fields fields_of<PlanKind::col2im>() {
  using col2im::Col2imPlan;
  return FieldList<Col2imPlan>()
      .number("column_blocks", &Col2imPlan::column_blocks)
      .number("pixel_blocks", &Col2imPlan::pixel_blocks)
      .size("tile", &Col2imPlan::tile)
      .size("warps", &Col2imPlan::warps);
}

}  // namespace customconv
