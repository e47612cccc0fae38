// The family's kernels of volumes: columns written, scattered and summed. Columns have a row a
// pixel.
#pragma once

#include <cstdint>

#include "kernels/im2col/columns.cuh"

namespace customconv::im2col {

// What the kernels need to know of a problem of volumes. The entries of a line are cut into runs,
// which lie together in x, and are inside or outside of it together. Runs are numbered as the
// digits of a clock are: (outer, t, r, s, c), where s and c count only what is not within a run,
// and the outer digit is the group or, where taps come last, the channel.
struct VolumeGeometry {
  int D, H, W;
  int stride_d, stride_h, stride_w;
  int pad_d, pad_h, pad_w;
  int dilation_d, dilation_h, dilation_w;
  int rows;  // entries of a line that are of x
  int run;
  int most_c, most_s, most_r, most_t;  // the largest value of each digit
  // Elements of x from one image on to the next, and of the dimensions.
  int64_t x_n, x_d, x_h, x_w;
  int64_t step_c, step_outer;  // of the first digit and the last
  // And from a run to the next, by the digit that it counts up; the digits before begin again.
  int64_t next_s, next_r, next_t, next_outer;
  Divider<int32_t> by_run, by_c, by_s, by_r, by_t, by_Q, by_P;

  explicit VolumeGeometry(const ConvProblem& p);
};

// Entries of a line of columns that lie together in x.
struct Runs {
  bool taps_first;
  bool has_c, has_s;  // whether they run over channels and over a row of taps
  int64_t length;

  explicit Runs(const ConvProblem& p) {
    const bool pointwise = p.T * p.R * p.S == 1;  // then both orders are one
    taps_first = pointwise || dense_layout(p.w_sizes(), p.w_strides) == Layout::kNhwc;
    has_c = taps_first && (p.x_strides[1] == 1 || p.group_C() == 1);
    const int64_t inner = has_c ? p.group_C() : 1;
    const bool is_inside =
        p.pad_w <= 0 && (p.Q - 1) * p.stride_w - p.pad_w + (p.S - 1) * p.dilation_w < p.W;
    has_s = p.S == 1 ||
            (is_inside && p.dilation_w == 1 && p.x_strides[3] == inner && (has_c || !taps_first));
    if (taps_first && !has_c) has_s = false;
    length = inner * (has_s ? p.S : 1);
  }
};

inline VolumeGeometry::VolumeGeometry(const ConvProblem& p)
    : D(static_cast<int>(p.D)),
      H(static_cast<int>(p.H)),
      W(static_cast<int>(p.W)),
      stride_d(static_cast<int>(p.stride_d)),
      stride_h(static_cast<int>(p.stride_h)),
      stride_w(static_cast<int>(p.stride_w)),
      pad_d(static_cast<int>(p.pad_d)),
      pad_h(static_cast<int>(p.pad_h)),
      pad_w(static_cast<int>(p.pad_w)),
      dilation_d(static_cast<int>(p.dilation_d)),
      dilation_h(static_cast<int>(p.dilation_h)),
      dilation_w(static_cast<int>(p.dilation_w)),
      rows(static_cast<int>(column_rows(p))),
      x_n(p.x_strides[0]),
      x_d(p.x_strides[4]),
      x_h(p.x_strides[2]),
      x_w(p.x_strides[3]),
      by_Q(p.Q),
      by_P(p.P) {
  const Runs runs(p);
  run = static_cast<int>(runs.length);
  most_c = runs.taps_first && !runs.has_c ? static_cast<int>(p.group_C()) - 1 : 0;
  most_s = runs.has_s ? 0 : static_cast<int>(p.S) - 1;
  most_r = static_cast<int>(p.R) - 1;
  most_t = static_cast<int>(p.T) - 1;
  step_c = p.x_strides[1];
  step_outer = p.x_strides[1] * (runs.taps_first ? p.group_C() : 1);
  const int64_t step_s = p.dilation_w * x_w, step_r = p.dilation_h * x_h;
  const int64_t step_t = p.dilation_d * x_d;
  int64_t back = most_c * step_c;
  next_s = step_s - back;
  back += most_s * step_s;
  next_r = step_r - back;
  back += most_r * step_r;
  next_t = step_t - back;
  back += most_t * step_t;
  next_outer = step_outer - back;
  by_run = Divider<int32_t>(run);
  by_c = Divider<int32_t>(most_c + 1);
  by_s = Divider<int32_t>(most_s + 1);
  by_r = Divider<int32_t>(most_r + 1);
  by_t = Divider<int32_t>(most_t + 1);
}

// Bytes that can be moved at once, up to 16: within a run, and aligned in x.
template <typename T>
int unit_bytes(const ConvProblem& p, const T* x) {
  constexpr int64_t kSize = sizeof(T);
  const Runs runs(p);
  const Shape5& strides = p.x_strides;
  uint64_t steps = static_cast<uint64_t>(runs.length * kSize) | 16;
  const auto add = [&](int64_t elements) { steps |= static_cast<uint64_t>(elements * kSize); };
  steps |= reinterpret_cast<uintptr_t>(x);
  if (p.N > 1) add(strides[0]);
  if (p.D > 1) add(strides[4]);
  if (p.H > 1) add(strides[2]);
  if (!runs.has_c || p.groups > 1) add(strides[1] * (runs.has_c ? p.group_C() : 1));
  if (!runs.has_s) add(strides[3]);
  add(p.stride_w * strides[3]);
  add(p.pad_w * strides[3]);
  return static_cast<int>(steps & (~steps + 1));
}

// The pixel that a line is of, as the first element of x that its taps meet.
struct Corner {
  int64_t image;
  int d, h, w;

  __device__ Corner(const VolumeGeometry& g, int64_t n, int pixel) : image(n) {
    w = g.by_Q.split(pixel) * g.stride_w - g.pad_w;
    h = g.by_P.split(pixel) * g.stride_h - g.pad_h;
    d = pixel * g.stride_d - g.pad_d;
  }
};

// Where a run begins in x, and whether it is inside.
class Run {
 public:
  __device__ Run(const VolumeGeometry& g, const Corner& corner, int number)
      : g_(g), corner_(corner) {
    c_ = g.by_c.split(number);
    s_ = g.by_s.split(number);
    r_ = g.by_r.split(number);
    t_ = g.by_t.split(number);
    begin_ = corner.image * g.x_n + number * g.step_outer + c_ * g.step_c + d() * g.x_d +
             h() * g.x_h + w() * g.x_w;
    is_inside_ = is_inside_x();
  }

  __device__ void next() {
    if (c_++ < g_.most_c) {
      begin_ += g_.step_c;
      return;
    }
    c_ = 0;
    if (s_++ < g_.most_s) {
      begin_ += g_.next_s;
    } else {
      s_ = 0;
      if (r_++ < g_.most_r) {
        begin_ += g_.next_r;
      } else {
        r_ = 0;
        if (t_++ < g_.most_t) {
          begin_ += g_.next_t;
        } else {
          t_ = 0;
          begin_ += g_.next_outer;
        }
      }
    }
    is_inside_ = is_inside_x();
  }

  __device__ int64_t begin() const { return begin_; }
  __device__ bool is_inside() const { return is_inside_; }

 private:
  __device__ int d() const { return corner_.d + t_ * g_.dilation_d; }
  __device__ int h() const { return corner_.h + r_ * g_.dilation_h; }
  __device__ int w() const { return corner_.w + s_ * g_.dilation_w; }
  __device__ bool is_inside_x() const {
    const auto within = [](int at, int size) {
      return static_cast<unsigned>(at) < static_cast<unsigned>(size);
    };
    return within(d(), g_.D) && within(h(), g_.H) && within(w(), g_.W);
  }

  const VolumeGeometry& g_;
  const Corner& corner_;
  int c_, s_, r_, t_;
  int64_t begin_;
  bool is_inside_;
};

// Calls with the place in x of each unit of a pack, and with the unit.
template <typename T, typename Unit, typename Body>
__device__ void for_each_unit(const VolumeGeometry& g, const Corner& corner, int first,
                              Pack<T>& pack, const Body& body) {
  constexpr int kStep = sizeof(Unit) / sizeof(T), kUnits = sizeof(Pack<T>) / sizeof(Unit);
  auto* units = reinterpret_cast<Unit*>(&pack);
  int number = first;
  int in_run = g.by_run.split(number);
  Run run(g, corner, number);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    body(run.begin() + in_run, run.is_inside() && first + i * kStep < g.rows, units[i]);
    in_run += kStep;
    if (i + 1 < kUnits && in_run == g.run) {
      in_run = 0;
      run.next();
    }
  }
}

template <typename T, typename Unit>
__device__ void load_units(const VolumeGeometry& g, const Corner& corner, int first,
                           const T* __restrict__ x, Pack<T>& pack) {
  for_each_unit<T, Unit>(g, corner, first, pack, [x](int64_t at, bool is_inside, Unit& unit) {
    unit = is_inside ? *reinterpret_cast<const Unit*>(x + at) : Unit{};
  });
}

template <typename T, typename Unit>
__device__ void store_units(const VolumeGeometry& g, const Corner& corner, int first,
                            T* __restrict__ x, Pack<T>& pack) {
  for_each_unit<T, Unit>(g, corner, first, pack, [x](int64_t at, bool is_inside, Unit& unit) {
    if (is_inside) *reinterpret_cast<Unit*>(x + at) = unit;
  });
}

// A thread takes a pack of consecutive entries. Lines are `packs` packs long.
struct Lines {
  Divider<int32_t> by_packs, by_lines;
  int count;  // packs of all lines
};

// Writes a chunk's columns; entries that fall into the padding are 0, and so are those behind the
// rows, but the first of them is 1 where it meets the bias.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    write_volume_columns(VolumeGeometry g, Chunk chunk, Lines lines, int unit, bool has_one,
                         const T* __restrict__ x, T* __restrict__ columns) {
  constexpr int kPack = Pack<T>::kSize;
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < lines.count;
       at += int64_t{gridDim.x} * kBlock) {
    int n = static_cast<int>(at);
    const int first = lines.by_packs.split(n) * kPack;
    const int pixel = lines.by_lines.split(n) + chunk.pixel;
    const Corner corner(g, chunk.image + n, pixel);
    Pack<T> pack;
    if (unit == 16) {
      load_units<T, uint4>(g, corner, first, x, pack);
    } else if (sizeof(T) == 8 || unit == 8) {
      load_units<T, uint2>(g, corner, first, x, pack);
    } else if constexpr (sizeof(T) <= 4) {
      if (sizeof(T) == 4 || unit == 4) {
        load_units<T, uint32_t>(g, corner, first, x, pack);
      } else if constexpr (sizeof(T) == 2) {
        load_units<T, uint16_t>(g, corner, first, x, pack);
      }
    }
    if (has_one && first <= g.rows && g.rows < first + kPack) pack.v[g.rows - first] = narrow<T>(1);
    reinterpret_cast<Pack<T>*>(columns)[at] = pack;
  }
}

// Brings a chunk's columns, which have one term for each element of dx at most, to their places.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    scatter_columns(VolumeGeometry g, Chunk chunk, Lines lines, int unit,
                    const T* __restrict__ columns, T* __restrict__ dx) {
  static_assert(sizeof(T) <= 4);
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < lines.count;
       at += int64_t{gridDim.x} * kBlock) {
    int n = static_cast<int>(at);
    const int first = lines.by_packs.split(n) * Pack<T>::kSize;
    const int pixel = lines.by_lines.split(n) + chunk.pixel;
    const Corner corner(g, chunk.image + n, pixel);
    Pack<T> pack = reinterpret_cast<const Pack<T>*>(columns)[at];
    if (unit == 16) {
      store_units<T, uint4>(g, corner, first, dx, pack);
    } else if (unit == 8) {
      store_units<T, uint2>(g, corner, first, dx, pack);
    } else if (sizeof(T) == 4 || unit == 4) {
      store_units<T, uint32_t>(g, corner, first, dx, pack);
    } else if constexpr (sizeof(T) == 2) {
      store_units<T, uint16_t>(g, corner, first, dx, pack);
    }
  }
}

// The output pixels along one dimension that an input pixel is a term of, from tap to tap.
struct Axis {
  int pad, taps, dilation, out;
  Divider<int32_t> by_stride;

  Axis(int64_t pad, int64_t taps, int64_t stride, int64_t dilation, int64_t out)
      : pad(static_cast<int>(pad)),
        taps(static_cast<int>(taps)),
        dilation(static_cast<int>(dilation)),
        out(static_cast<int>(out)),
        by_stride(stride) {}

  // Calls with the taps and the pixels; without dilation it tries no others.
  template <typename Body>
  __device__ void for_each(int position, const Body& body) const {
    const int from = position + pad;
    int first = 0, step = 1;
    if (dilation == 1 && from >= 0) {
      int quotient = from;
      first = by_stride.split(quotient);
      step = by_stride.divisor();
    }
    for (int tap = first; tap < taps; tap += step) {
      int pixel = from - tap * dilation;
      if (pixel < 0) return;
      if (by_stride.split(pixel) == 0 && pixel < out) body(tap, pixel);
    }
  }
};

// A band of dx and the columns that reach it: those of the output's slices from `o` and of rows
// from `p`, so many of each.
struct Band {
  int64_t image;
  int d, depth, h, height;
  int o, slices, p, lines;
  bool channels_inner;  // whether neighbouring threads take neighbouring channels
  Divider<int32_t> by_C, by_group_C, by_W, by_height, by_depth;
};

struct VolumeAxes {
  Axis d, h, w;
  int group_C, Q, rows, taps;
  bool taps_first;
  int64_t x_n, x_c, x_d, x_h, x_w;

  explicit VolumeAxes(const ConvProblem& p)
      : d(p.pad_d, p.T, p.stride_d, p.dilation_d, p.O),
        h(p.pad_h, p.R, p.stride_h, p.dilation_h, p.P),
        w(p.pad_w, p.S, p.stride_w, p.dilation_w, p.Q),
        group_C(static_cast<int>(p.group_C())),
        Q(static_cast<int>(p.Q)),
        rows(static_cast<int>(column_rows(p))),
        taps(static_cast<int>(p.T * p.R * p.S)),
        taps_first(dense_layout(p.w_sizes(), p.w_strides) == Layout::kNhwc),
        x_n(p.x_strides[0]),
        x_c(p.x_strides[1]),
        x_d(p.x_strides[4]),
        x_h(p.x_strides[2]),
        x_w(p.x_strides[3]) {}
};

// Adds up, for each input element of a band, the entries of the columns that it went into; always
// in the order of the taps.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    sum_volume_columns(VolumeAxes g, Band band, int64_t count,
                       const Accumulator<T>* __restrict__ columns, T* __restrict__ dx) {
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kBlock) {
    int n = static_cast<int>(at);
    int c = 0;
    if (band.channels_inner) c = band.by_C.split(n);
    const int w = band.by_W.split(n);
    const int h = band.h + band.by_height.split(n);
    const int d = band.d + band.by_depth.split(n);
    if (!band.channels_inner) c = band.by_C.split(n);
    const int group = band.by_group_C.quotient(c);
    const int c_in_group = c - group * g.group_C;
    const int64_t first_row = int64_t{group} * g.group_C * g.taps;
    Accumulator<T> sum = 0;
    g.d.for_each(d, [&](int t, int o) {
      g.h.for_each(h, [&](int r, int p) {
        const int64_t line =
            ((int64_t{n} * band.slices + o - band.o) * band.lines + p - band.p) * g.Q;
        g.w.for_each(w, [&](int s, int q) {
          const int tap = (t * g.h.taps + r) * g.w.taps + s;
          const int64_t row =
              first_row + (g.taps_first ? tap * g.group_C + c_in_group : c_in_group * g.taps + tap);
          sum += columns[(line + q) * g.rows + row];
        });
      });
    });
    dx[(band.image + n) * g.x_n + c * g.x_c + d * g.x_d + h * g.x_h + w * g.x_w] = narrow<T>(sum);
  }
}

// Copies the weight to lines of `terms` entries; the one behind a filter's taps is its bias, if
// there is one, and all others are 0.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    copy_weight(int64_t count, Divider<int64_t> by_terms, int64_t rows, const T* __restrict__ w,
                const T* __restrict__ bias, T* __restrict__ copy) {
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kBlock) {
    int64_t k = at;
    const int64_t term = by_terms.split(k);
    T value = narrow<T>(0);
    if (term < rows) value = w[k * rows + term];
    if (term == rows && bias != nullptr) value = bias[k];
    copy[at] = value;
  }
}

// The sum of a weight gradient's sums, rounded.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    add_sums(int64_t weights, int64_t count, const Accumulator<T>* __restrict__ sums,
             T* __restrict__ dw) {
  for (int64_t at = blockIdx.x * int64_t{kBlock} + threadIdx.x; at < weights;
       at += int64_t{gridDim.x} * kBlock) {
    Accumulator<T> total = 0;
    for (int64_t i = 0; i < count; ++i) total += sums[i * weights + at];
    dw[at] = narrow<T>(total);
  }
}

}  // namespace customconv::im2col
