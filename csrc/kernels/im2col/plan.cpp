// im2col: the columns of a chunk of output pixels are written out and multiplied by the weights.
#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/im2col/columns.h"
#include "plan/fields.h"
#include "plan/hardware.h"
#include "plan/price.h"

namespace customconv::im2col {

namespace {

// Instructions of a thread, about as many as the source suggests.
constexpr double kThreadInstructions = 50;     // to find its place from its number
constexpr double kNchwEntryInstructions = 14;  // to write an entry of the columns
constexpr double kNhwcEntryInstructions = 30;  // the same, and to go on to the next tap
constexpr double kTapInstructions = 12;        // to find whether a tap meets an output
constexpr double kHitInstructions = 14;        // to add up a tap that does
constexpr double kLoadInstructions = 6;        // to load an operand and add it
constexpr double kUnitInstructions = 22;       // to move a few bytes of a volume's columns

int64_t round_up(int64_t a, int64_t b) { return ceil_divide(a, b) * b; }

// Most columns of an image that the bound leaves room for; whole packs, so that lines of them fit.
int64_t columns_within_bound(const ConvProblem& p) {
  constexpr int64_t kWhole = 8;
  const int64_t columns = kWorkspaceBound / chunk_bytes(p, kWhole) * kWhole;
  return columns > 0 ? columns : kWorkspaceBound / chunk_bytes(p, 1);
}

const char* can_implement(const ConvProblem& p, const DeviceProperties& device) {
  if (!device.has_blas) return "PyTorch has loaded no cuBLAS";
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  if (image_columns(p) > INT32_MAX || p.D * p.H * p.W > INT32_MAX) {
    return "an image passes 2^31 pixels";
  }
  if (dense_layout(p.w_sizes(), p.w_strides) == Layout::kOther) return "the weight is not dense";
  if (dense_layout(p.y_sizes(), p.y_strides) == Layout::kOther) return "the output is not dense";
  if (p.K > INT32_MAX || column_rows(p) > INT32_MAX) return "a matrix dimension passes 2^31";
  if (chunk_bytes(p, 1) == 0) return nullptr;
  if (p.pass == Pass::kDgrad && p.C * p.W > INT32_MAX) return "an image row passes 2^31 elements";
  const int64_t least = has_bands(p) ? band_columns(p, 1) : 1;
  if (columns_within_bound(p) < least) return "the workspace bound holds too few columns";
  return nullptr;
}

// The most whole units of an image's band, up to `most`, of so many rows each, that leave its
// columns in `room`.
int64_t most_units(const ConvProblem& p, int64_t rows, int64_t most, int64_t room) {
  int64_t units = 0;
  for (int64_t step = most; step > 0; step /= 2) {
    while (units + step <= most && band_columns(p, (units + step) * rows) <= room) units += step;
  }
  return units;
}

// Cuts the batch into chunks of whole images or an image into chunks of pixels, or bands of rows.
void choose_chunk(const ConvProblem& p, Im2colPlan& plan) {
  const bool bands = has_bands(p);
  const int64_t image_bytes = chunk_bytes(p, image_columns(p));
  // Kernels count a chunk's part of dx, which can be larger than its columns, in 32 bits.
  const int64_t image_elements = bands ? p.C * p.D * p.H * p.W : 1;
  if (image_bytes == 0 || (image_bytes <= kWorkspaceBound && image_elements <= INT32_MAX)) {
    plan.images = p.N;
    if (image_bytes > 0) {
      plan.images = std::min({p.N, kWorkspaceBound / image_bytes, INT32_MAX / image_elements});
      // Even chunks: a last one of a few volumes would not fill the GPU.
      if (p.is_deep()) plan.images = ceil_divide(p.N, ceil_divide(p.N, plan.images));
    }
    plan.pixels = bands ? p.D * p.H : image_columns(p);
    return;
  }
  const int64_t room = columns_within_bound(p);
  plan.images = 1;
  if (!bands) {
    // Even chunks, in whole warps: a last one of a few pixels would be all overhead.
    const int64_t chunks = ceil_divide(image_columns(p), room);
    plan.pixels = std::min(room, round_up(ceil_divide(image_columns(p), chunks), 32));
    return;
  }
  const int64_t most_rows = INT32_MAX / (p.C * p.W);
  const int64_t slices = p.is_deep() ? most_units(p, p.H, std::min(p.D, most_rows / p.H), room) : 0;
  plan.pixels = slices > 0 ? slices * p.H
                           : std::max<int64_t>(most_units(p, 1, std::min(p.H, most_rows), room), 1);
}

// Sums of a weight gradient of volumes that are formed at once: more of them fill the GPU better,
// and take longer to be added up.
int64_t sums_at_once(const ConvProblem& p, const DeviceProperties& d, int64_t images) {
  constexpr int64_t kMost = 16;
  constexpr double kTileRows = 128, kTileColumns = 256;
  const auto rows = static_cast<double>(p.K), columns = static_cast<double>(column_rows(p));
  const double tiles = std::ceil(rows / kTileRows) * std::ceil(columns / kTileColumns);
  const double rate = d.matrix_flops(p.dtype, p.tf32) / 2 / d.sm_count;
  const double tile_ms =
      1e3 * kTileRows * kTileColumns * static_cast<double>(image_columns(p)) / rate;
  const int64_t most =
      std::min({images, kMost, std::max<int64_t>(kPartsBound / (p.w_count() * 4), 1)});
  int64_t best = 1;
  double least = 0;
  for (int64_t sums = 1; sums <= most; ++sums) {
    const auto at_once = static_cast<double>(sums);
    const double ms = static_cast<double>(ceil_divide(images, sums)) *
                          std::ceil(tiles * at_once / d.sm_count) * tile_ms +
                      pass_ms(2 * at_once * rows * columns * 4, d);
    if (sums > 1 && ms >= least) continue;
    least = ms;
    best = sums;
  }
  return best;
}

// Calls of the library for a product of row-major matrices, as in `Product`. Sizes and leading
// dimensions count elements.
struct Matrices {
  double rows, columns, inner;
  double batch = 1;
  double calls = 1;
  int64_t a_leading, b_leading, c_leading;
  int64_t out_size = 0;  // bytes of a result
  bool accumulates = false;
};

// The largest power of two, up to 16, that divides the bytes of all rows. The library has its fast
// kernels only for 16.
int64_t row_alignment(const ConvProblem& p, const Matrices& m) {
  const int64_t size = element_size(p.dtype);
  const int64_t rows = m.a_leading * size | m.b_leading * size | m.c_leading * m.out_size | 16;
  return rows & -rows;
}

// The library's kernels for a product: the row of their price, and about the share of the full rate
// that they reach.
struct Library {
  uint16_t row;
  double rate;
};

Library library_for(const ConvProblem& p, const Matrices& m) {
  const bool narrow = element_size(p.dtype) == 2, tf32 = p.dtype == DType::kFloat32 && p.tf32;
  if (!narrow && (m.rows == 1 || m.columns == 1)) {
    return {price_row(PriceKind::kVectorProduct, 0), 1.2};
  }
  const int64_t alignment = row_alignment(p, m);
  if (alignment == 16) {
    constexpr double kRates[] = {1.2, 0.9, 0.65};
    const int kind = narrow ? 0 : tf32 ? 1 : 2;
    return {price_row(PriceKind::kProduct, kind), kRates[kind]};
  }
  constexpr double kRates[] = {0.33, 0.17, 0.36, 0.65};
  const int kind = narrow ? (alignment > 2 ? 0 : 1) : tf32 ? 2 : 3;
  return {price_row(PriceKind::kUnalignedProduct, kind), kRates[kind]};
}

// How the library shares out a product. We know the sizes of its tiles, but not which it takes, so
// we count the way that takes the fewest clocks.
struct Shares {
  double tiles, splits;  // parts that a tile's sums are split into
  double busy, stored;   // of a part: clocks of the busiest unit, and bytes stored
};

Shares share_out(const ConvProblem& p, const DeviceProperties& d, const Matrices& m, double rate) {
  constexpr double kSizes[] = {128, 64};
  constexpr double kStep = 64;  // bytes of the inner dimension that a tile takes at a time
  constexpr double kMostSplits = 32;
  constexpr double kStore = 8;  // bytes that a part stores in a clock
  const auto size = static_cast<double>(element_size(p.dtype));
  const double products = d.matrix_flops(p.dtype, p.tf32) / 2 / d.sm_count / d.clock_ghz / 1e9;
  const double steps = std::ceil(m.inner * size / kStep);
  // IEEE float32 is added up in order. We take batches and float64 not to be split, either.
  const bool splits_sums = m.batch == 1 && (size == 2 || p.tf32);
  Shares best{};
  double least = 0;
  for (const double most_rows : kSizes) {
    for (const double most_columns : kSizes) {
      // A vector takes no tile.
      const double rows = m.rows > 1 ? most_rows : 1, columns = m.columns > 1 ? most_columns : 1;
      const double tiles = std::ceil(m.rows / rows) * std::ceil(m.columns / columns) * m.batch;
      const double most = splits_sums ? std::min(steps, kMostSplits) : 1;
      for (double splits = 1; splits <= most; splits *= 2) {
        if (splits > 1 && tiles * splits > d.sm_count) break;
        const double inner = std::ceil(steps / splits) * kStep / size;
        const double busy = busiest({rows * columns * inner / products,
                                     (rows + columns) * inner * size / hardware::kL2BytesPerClock});
        const double stored = rows * columns * (splits > 1 ? 4 : static_cast<double>(m.out_size));
        const double adding = splits > 1 ? hardware::kNextMs * d.clock_ghz * 1e6 : 0;
        const double clocks =
            std::ceil(tiles * splits / d.sm_count) * (busy / rate + stored / kStore) + adding;
        if (least > 0 && clocks >= least) continue;
        least = clocks;
        best = {tiles, splits, busy, stored};
      }
    }
  }
  return best;
}

// A kernel with a thread for each element, or for each 16 bytes of columns.
Work by_threads(PriceKind kind, int row, const DeviceProperties& d, double threads,
                double instructions, double waits, double bytes, double repeats) {
  constexpr double kWarps = kBlock / 32.0;
  Work work;
  work.row = price_row(kind, row);
  work.repeats = static_cast<float>(repeats);
  work.blocks = static_cast<float>(std::ceil(threads / kBlock));
  work.sms = static_cast<float>(d.sm_count);
  work.resident = static_cast<float>(hardware::kWarpsPerSm / kWarps);
  work.busy = static_cast<float>(kWarps * instructions / hardware::kSchedulers);
  work.waits = static_cast<float>(waits);
  work.bytes = static_cast<float>(bytes);
  return work;
}

// How many chunks a plan has, and the size of the average one.
struct Chunks {
  double count;
  double images, pixels;  // images of a chunk, and output pixels of each
};

Chunks chunks_of(const ConvProblem& p, const Im2colPlan& plan) {
  const bool bands = has_bands(p);
  const int64_t pieces = ceil_divide(bands ? p.D * p.H : image_columns(p), plan.pixels);
  const int64_t batches = ceil_divide(p.N, plan.images);
  const double pixels = bands ? static_cast<double>(band_columns(p, plan.pixels))
                              : static_cast<double>(image_columns(p)) / static_cast<double>(pieces);
  return {static_cast<double>(pieces * batches),
          static_cast<double>(p.N) / static_cast<double>(batches), pixels};
}

// Counts the work of a plan's kernels and of its calls of the library.
class Counter {
 public:
  Counter(const ConvProblem& p, const DeviceProperties& d, const Im2colPlan& plan)
      : p_(p), d_(d), plan_(plan), chunks_(chunks_of(p, plan)) {}

  WorkList count() {
    switch (p_.pass) {
      case Pass::kFprop:
        count_fprop();
        break;
      case Pass::kDgrad:
        count_dgrad();
        break;
      case Pass::kWgrad:
        count_wgrad();
        break;
    }
    return works_;
  }

 private:
  // Elements from one row of the columns to the next.
  int64_t columns_leading() const {
    const int64_t pack = 16 / size_;
    if (pixel_rows_) return in_place_ ? p_.C : packs_of(p_, line_terms(p_)) * pack;
    return in_place_ ? image_columns(p_) : packs_of(p_, plan_.pixels) * pack;
  }

  void add_columns() {
    if (in_place_) return;
    const double packs =
        chunks_.images * static_cast<double>(columns_bytes(p_, std::llround(chunks_.pixels))) / 16;
    const double x_bytes = static_cast<double>(p_.x_count() * size_) / chunks_.count;
    if (p_.is_deep()) {
      const double instructions = kThreadInstructions + units_of_pack() * kUnitInstructions;
      works_.add(by_threads(PriceKind::kColumns, 1, d_, packs, instructions, 1,
                            packs * 16 + x_bytes, chunks_.count));
      return;
    }
    const double entries = 16.0 / static_cast<double>(size_);
    const bool taps_first = dense_layout(p_.w_sizes(), p_.w_strides) == Layout::kNhwc;
    const bool whole = channels_last_ && taps_first && p_.group_C() * size_ % 16 == 0;
    const double each = channels_last_ ? kNhwcEntryInstructions : kNchwEntryInstructions;
    const double instructions = kThreadInstructions + (whole ? 1 : entries) * each;
    works_.add(by_threads(PriceKind::kColumns,
                          !channels_last_ ? 0
                          : whole         ? 1
                                          : 2,
                          d_, packs, instructions, 1, packs * 16 + x_bytes, chunks_.count));
  }

  // Moves of a pack of a volume's columns: runs of the columns are about as long as x's lines
  // allow.
  double units_of_pack() const {
    const bool taps_first = dense_layout(p_.w_sizes(), p_.w_strides) == Layout::kNhwc;
    const int64_t bytes = (taps_first ? p_.group_C() : p_.S) * size_ | 16;
    return 16.0 / static_cast<double>(bytes & -bytes);
  }

  // Adds the products of all chunks. A call is a batch of images or of groups.
  void add_products(Matrices m, bool sums_images = false) {
    const auto groups = static_cast<double>(p_.groups);
    m.calls = chunks_.count;
    m.batch = groups;
    if (!channels_last_ && groups == 1 && !sums_images) {
      m.batch = chunks_.images;
    } else if (!channels_last_) {
      m.calls *= chunks_.images;
    }
    add_product(library_for(p_, m), m);
  }

  void add_product(const Library& library, const Matrices& m) {
    const int64_t apart = is_linear(p_) ? 0 : terms_apart(size_, std::llround(m.inner));
    if (apart > 0) {
      Matrices last = m;
      last.inner = static_cast<double>(apart);
      add_product(library, last);
    }
    const Shares shares = share_out(p_, d_, m, library.rate);
    const auto size = static_cast<double>(size_);
    const auto out = static_cast<double>(m.out_size) * (m.accumulates ? 2 : 1);
    const double results = m.batch * m.rows * m.columns;
    Work work;
    work.row = library.row;
    work.store_row = price_row(PriceKind::kProductStore, 0);
    work.repeats = static_cast<float>(m.calls);
    work.blocks = static_cast<float>(shares.tiles * shares.splits);
    work.sms = static_cast<float>(d_.sm_count);
    work.busy = static_cast<float>(shares.busy);
    work.stored = static_cast<float>(shares.stored);
    work.bytes =
        static_cast<float>(m.batch * (m.rows + m.columns) * m.inner * size + results * out);
    works_.add(work);
    if (shares.splits == 1) return;
    constexpr double kAtOnce = 8;  // parts that a thread loads before it waits
    add_pass(results, results * (shares.splits * 4 + out), m.calls,
             std::ceil(shares.splits / kAtOnce));
  }

  void count_fprop() {
    add_columns();
    const int64_t terms = copies_weight(p_) ? line_terms(p_) : group_rows_;
    const bool adds_bias = p_.has_bias && !copies_weight(p_) && !is_linear(p_);
    Matrices m{};
    m.inner = static_cast<double>(terms);
    m.out_size = keeps_products(p_) ? 4 : size_;
    m.accumulates = adds_bias && !keeps_products(p_);
    if (channels_last_) {
      m.rows = chunks_.images * chunks_.pixels;
      m.columns = static_cast<double>(p_.group_K());
      m.a_leading = columns_leading();
      m.b_leading = terms;
      m.c_leading = p_.K;
    } else {
      m.rows = static_cast<double>(p_.group_K());
      m.columns = chunks_.pixels;
      m.a_leading = terms;
      m.b_leading = columns_leading();
      m.c_leading = image_columns(p_);
    }
    add_products(m);
    if (copies_weight(p_)) {
      const auto copied = static_cast<double>(p_.K * terms);
      add_pass(copied, 2 * copied * static_cast<double>(size_), 1);
    }
    if (!adds_bias) return;
    const double passes = keeps_products(p_) ? chunks_.count : 1;
    const auto bytes = static_cast<double>(size_ + (keeps_products(p_) ? 4 : 0));
    const double outputs = static_cast<double>(p_.y_count()) / passes;
    add_pass(outputs, outputs * bytes, passes);
  }

  void count_dgrad() {
    Matrices m{};
    m.inner = static_cast<double>(p_.group_K());
    m.out_size = in_place_ || !has_bands(p_) ? size_ : accumulator_size(p_.dtype);
    if (pixel_rows_) {
      m.rows = (channels_last_ ? chunks_.images : 1) * chunks_.pixels;
      m.columns = static_cast<double>(group_rows_);
      m.a_leading = channels_last_ ? p_.K : image_columns(p_);
      m.b_leading = group_rows_;
      m.c_leading = has_bands(p_) ? column_rows(p_) : columns_leading();
    } else {
      m.rows = static_cast<double>(group_rows_);
      m.columns = chunks_.pixels;
      m.a_leading = group_rows_;
      m.b_leading = image_columns(p_);
      m.c_leading = in_place_ ? image_columns(p_) : std::llround(chunks_.pixels);
    }
    add_products(m);
    if (in_place_) return;
    if (!has_bands(p_)) return add_columns();
    const double strides = static_cast<double>(p_.stride_d * p_.stride_h * p_.stride_w);
    const double all = static_cast<double>(p_.T * p_.R * p_.S), hits = all / strides;
    // Volumes try no tap that a stride skips.
    const double taps = p_.is_deep() ? std::max(hits, 1.0) : all;
    const double elements = static_cast<double>(p_.x_count()) / chunks_.count;
    const double columns = chunks_.images * chunks_.pixels * static_cast<double>(column_rows(p_)) *
                           static_cast<double>(accumulator_size(p_.dtype));
    works_.add(by_threads(PriceKind::kSumColumns, channels_last_ ? 1 : 0, d_, elements,
                          kThreadInstructions + taps * kTapInstructions + hits * kHitInstructions,
                          hits, columns + elements * static_cast<double>(size_), chunks_.count));
  }

  void count_wgrad() {
    add_columns();
    Matrices m{};
    m.rows = static_cast<double>(p_.group_K());
    m.columns = static_cast<double>(group_rows_);
    m.inner = channels_last_ ? chunks_.images * chunks_.pixels : chunks_.pixels;
    m.a_leading = channels_last_ ? p_.K : image_columns(p_);
    m.b_leading = columns_leading();
    m.c_leading = group_rows_;
    const bool apart = sums_apart(p_);
    const bool single = is_single_product(p_);
    m.out_size = single ? size_ : accumulator_size(p_.dtype);
    const auto weights = static_cast<double>(p_.w_count());
    const auto sum_bytes = weights * static_cast<double>(accumulator_size(p_.dtype));
    if (sums_in_parts(p_)) {
      const WeightParts parts = weight_parts(p_, plan_.images, plan_.pixels);
      const int64_t most = plan_.parts;
      const double calls = static_cast<double>(ceil_divide(parts.count - parts.lines, most) +
                                               ceil_divide(parts.lines, most));
      const double at_once = static_cast<double>(parts.count) / calls;
      m.inner /=
          static_cast<double>(parts.count) / static_cast<double>(channels_last_ ? 1 : parts.lines);
      m.batch = at_once * static_cast<double>(p_.groups);
      m.calls = calls * chunks_.count;
      add_product({price_row(PriceKind::kListedProduct, 0), 1.2}, m);
      add_pass(m.batch, 0, m.calls);
      add_pass(weights * kBlock / 32, (at_once + 1) * sum_bytes, m.calls, at_once * 32 / kBlock);
    } else if (apart) {
      const double rounds = std::ceil(chunks_.images / static_cast<double>(plan_.parts));
      m.batch = chunks_.images / rounds;
      m.calls = rounds * chunks_.count;
      m.accumulates = m.calls > 1;
      add_product(library_for(p_, m), m);
    } else {
      m.accumulates = !single && (chunks_.count > 1 || !channels_last_);
      add_products(m, true);
    }
    const auto sums = static_cast<double>(apart ? plan_.parts : 1);
    if (!single) {
      add_pass(weights, sums * sum_bytes + weights * static_cast<double>(size_), 1, sums);
    }
  }

  // Adds a kernel that passes over its operands once. A thread loads `loads` of them.
  void add_pass(double threads, double bytes, double repeats, double loads = 1) {
    works_.add(by_threads(PriceKind::kElements, 0, d_, threads,
                          kThreadInstructions + loads * kLoadInstructions, loads, bytes, repeats));
  }

  const ConvProblem& p_;
  const DeviceProperties& d_;
  const Im2colPlan& plan_;
  const Chunks chunks_;
  const bool in_place_ = columns_are_in_place(p_), channels_last_ = is_channels_last(p_);
  const bool pixel_rows_ = has_pixel_rows(p_);
  const int64_t size_ = element_size(p_.dtype);
  const int64_t group_rows_ = column_rows(p_) / p_.groups;
  WorkList works_;
};

LaunchShape shape_of(const ConvProblem& p, const Im2colPlan& way) {
  const int64_t room = columns_room(p, way);
  const int64_t pixels = has_bands(p) ? band_columns(p, way.pixels) : way.pixels;
  return {std::max<int64_t>(ceil_divide(room / 16, kBlock), 1), kBlock, 0,
          room + way.images * products_bytes(p, pixels) + weight_sum_bytes(p) +
              parts_bytes(p, way.parts) + weight_copy_bytes(p)};
}

bool is_wide(const ConvProblem& p) { return p.is_deep() || needs_wide_index(p); }

ConvPlan propose(const ConvProblem& p, const DeviceProperties& device, const Wanted&) {
  Im2colPlan way;
  way.columns = columns_are_in_place(p) ? Place::kInput : Place::kWorkspace;
  way.wide = is_wide(p);
  choose_chunk(p, way);
  if (sums_in_parts(p)) way.parts = parts_at_once(p, way.images, way.pixels);
  if (sums_apart(p)) way.parts = sums_at_once(p, device, way.images);
  ConvPlan plan{shape_of(p, way)};
  plan.uses_blas = true;
  plan.payload = way;
  plan.works = Counter(p, device, way).count();
  plan.predicted_ms = price(plan.works, device);
  return plan;
}

LaunchShape shape(const ConvProblem& p, const DeviceProperties&, const ConvPlan& plan) {
  const auto way = plan.payload.as<Im2colPlan>();
  const bool in_place = way.columns == Place::kInput;
  const bool fits = in_place == columns_are_in_place(p) && way.wide == is_wide(p) &&
                    (way.parts > 0) == (sums_in_parts(p) || sums_apart(p));
  return fits ? shape_of(p, way) : LaunchShape{};
}

// Patches take a copy and a product. Others would write an input as often as it has taps. The copy
// takes longer than cuDNN if columns have more entries than the product has results, unless pixels
// have so few channels that cuDNN is slow.
bool may_choose_volume(const ConvProblem& p) {
  constexpr int64_t kFewChannels = 8;
  if (!p.is_deep()) return true;
  return p.groups == 1 && has_patches(p) && p.T * p.R * p.S > 1 &&
         (p.C < kFewChannels || p.K >= column_rows(p));
}

}  // namespace

extern const Family family;
const Family family{"im2col", can_implement, propose, shape,   nullptr,
                    false,    nullptr,       nullptr, nullptr, may_choose_volume};

}  // namespace customconv::im2col

namespace customconv {

template <>
Fields fields_of<PlanKind::im2col>() {
  using im2col::Im2colPlan;
  return FieldList<Im2colPlan>()
      .word("columns", &Im2colPlan::columns, {"workspace", "input"})
      .flag("wide", &Im2colPlan::wide)
      .size("images", &Im2colPlan::images)
      .size("pixels", &Im2colPlan::pixels)
      .size("parts", &Im2colPlan::parts);
}

}  // namespace customconv
