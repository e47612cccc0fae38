// implicit_gemm: matrix products on the tensor cores, from input tiles that stay in shared memory.
#include "kernels/implicit_gemm/mma_sync/plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/im2col/columns.h"
#include "kernels/implicit_gemm/forward.h"
#include "kernels/implicit_gemm/sm90/plan.h"
#include "kernels/implicit_gemm/wgrad/wgrad.h"

namespace customconv::implicit_gemm {

namespace {

constexpr int kLeastShared = 96 << 10;     // bytes of a block's memory
constexpr int kChunkBytes = 128;           // of a group's input channels
constexpr int kLeastChannels = 32;         // of output, of a group
constexpr int kLeastMmaSyncChannels = 64;  // the same where warps multiply

// 3xTF32 may be off by 2^-21 of a product, a multiply-add by 2^-24 (docs/how/float32.md). Long
// sums hide that.
constexpr int64_t kLeastStrictTerms = 8;

// The fewest products that are summed for a result, where the image's edges cut off none: in an
// input gradient those of the phase that meets the fewest taps.
int64_t least_terms(const ConvProblem& p) {
  const auto least_taps = [&p](int64_t taps, int64_t stride, int64_t dilation) {
    if (p.pass != Pass::kDgrad) return taps;
    return std::max<int64_t>(1, taps / (stride / std::gcd(stride, dilation)));
  };
  if (p.pass == Pass::kWgrad) return p.N * p.P * p.Q;
  return (p.pass == Pass::kFprop ? p.group_C() : p.group_K()) *
         least_taps(p.R, p.stride_h, p.dilation_h) * least_taps(p.S, p.stride_w, p.dilation_w) *
         least_taps(p.T, p.stride_d, p.dilation_d);
}

// Whether an image's rows, those of all its slices, follow each other, as planes or as pixels with
// all channels: of a dense tensor, or of rows of it.
bool rows_follow(const Shape5& sizes, const Shape5& strides) {
  const auto follow = [&](int64_t pixel) {
    return (sizes[3] == 1 || strides[3] == pixel) &&
           (sizes[2] == 1 || strides[2] == sizes[3] * pixel) &&
           (sizes[4] == 1 || strides[4] == sizes[2] * sizes[3] * pixel);
  };
  const bool planes = follow(1) && (sizes[1] == 1 || strides[1] >= sizes[2] * sizes[3] * sizes[4]);
  const bool pixels = follow(sizes[1]) && (sizes[1] == 1 || strides[1] == 1);
  return planes || pixels;
}

// Why the main loop cannot compute a problem of volumes, or nullptr.
const char* why_no_volume(const ConvProblem& p, const DeviceProperties& d) {
  if (!d.has_hopper_kernels()) return "volumes need Hopper";
  if (p.pass == Pass::kWgrad) return "it computes no weight gradients of volumes";
  if (p.pass == Pass::kDgrad && (p.stride_d > 1 || p.stride_h > 1 || p.stride_w > 1)) {
    return "it computes no strided input gradients of volumes";
  }
  if (p.T > 1 && p.R > 1 && p.w_strides[4] != p.R * p.w_strides[2]) {
    return "rows of the filter do not follow each other";
  }
  return nullptr;
}

const char* can_implement(const ConvProblem& asked, const DeviceProperties& d) {
  if (d.capability_major < 8) return "it needs compute capability 8.0";
  if (d.shared_bytes_block < kLeastShared) return "it needs 96 KiB of shared memory";
  if (asked.dtype == DType::kFloat64) return "there are no such tensor cores for float64";
  if (asked.is_strict_float32()) {
    if (!d.has_hopper_kernels()) return "TF32 is not allowed";
    if (least_terms(asked) < kLeastStrictTerms) {
      return "multiply-adds are closer in sums of fewer than 8 products";
    }
  }
  if (asked.is_deep()) {
    const char* why_not = why_no_volume(asked, d);
    if (why_not != nullptr) return why_not;
  }
  if (asked.pass == Pass::kWgrad) {
    if (asked.is_strict_float32() && sm90::can_exchange(asked)) return nullptr;
    return wgrad::can_implement(asked, d);
  }
  const bool strided = asked.pass == Pass::kDgrad && (asked.stride_h > 1 || asked.stride_w > 1);
  if (strided && !d.has_hopper_kernels()) return "its strided input gradients need Hopper";
  const bool joined = count_phases(asked) > kMostPhases;
  if (joined && !can_join_phases(asked)) {
    return "a strided input gradient has more than four phases, and groups, dilation or many "
           "channels";
  }
  const Forward p = joined ? join_phases(asked) : as_forward(asked);
  if (p.groups > 1) {
    // Chunks of channels and tiles are of one group.
    const bool chunks = p.group_C() * element_size(p.dtype) % kChunkBytes == 0;
    if (!chunks) return "a group's input channels are not whole 128 bytes";
    if (p.group_K() % kLeastChannels != 0) {
      return "a group's output channels are no multiple of 32";
    }
    if (!d.has_hopper_kernels() && p.group_K() % kLeastMmaSyncChannels != 0) {
      return "a group's output channels are no multiple of 64";
    }
  }
  if (!has_int32_coordinates(asked) || !has_int32_coordinates(p))
    return "image coordinates pass 2^31";
  const bool forward = asked.pass == Pass::kFprop;
  const bool follow = forward ? rows_follow(asked.y_sizes(), asked.y_strides)
                              : rows_follow(asked.x_sizes(), asked.x_strides);
  if (!follow) return "rows of what it computes do not follow each other";
  if (p.N > INT32_MAX || p.K > INT32_MAX / 2) return "a dimension passes 2^31";
  if (round_up(p.group_C(), 32) * p.taps_h * p.taps_w * round_up(p.K, 128) > INT32_MAX) {
    return "the weight passes 2^31 elements";
  }
  const double squares = static_cast<double>(p.N * p.O) * static_cast<double>(ceil_divide(p.P, 8)) *
                         static_cast<double>(ceil_divide(p.Q, 8));
  if (squares * static_cast<double>(ceil_divide(p.K, 32)) * p.phases > INT32_MAX / 2) {
    return "the tiles pass 2^30";
  }
  return nullptr;
}

ConvPlan propose(const ConvProblem& asked, const DeviceProperties& d, const Wanted& wanted) {
  ConvPlan best;
  if (asked.pass == Pass::kWgrad) {
    const auto weigh = [&best](const ConvPlan& plan) {
      if (plan.threads == 0) return;
      if (best.threads == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
    };
    if (wgrad::can_implement(asked, d) == nullptr) weigh(wgrad::propose(asked, d, wanted));
    if (asked.is_strict_float32() && sm90::can_exchange(asked)) weigh(sm90::best_plan(asked, d));
    return best;
  }
  if (d.has_hopper_kernels()) best = sm90::best_plan(asked, d, nullptr, wanted);
  // Where the main loop computes a problem, it nearly always is faster.
  if (best.threads == 0 && !asked.is_deep()) best = mma_sync::best_plan(asked, d, nullptr, wanted);
  return best;
}

std::vector<ConvPlan> variants(const ConvProblem& asked, const DeviceProperties& d) {
  std::vector<ConvPlan> plans;
  if (asked.pass == Pass::kWgrad) {
    if (wgrad::can_implement(asked, d) == nullptr) plans = wgrad::variants(asked, d);
    if (asked.is_strict_float32() && sm90::can_exchange(asked)) sm90::best_plan(asked, d, &plans);
    return plans;
  }
  if (!asked.is_deep()) mma_sync::best_plan(asked, d, &plans);
  if (d.has_hopper_kernels()) sm90::best_plan(asked, d, &plans);
  return plans;
}

int64_t sum_order(const ConvProblem& p, const ConvPlan& plan) {
  if (p.pass == Pass::kWgrad) return 0;  // its sums run over the batch
  const bool has_epilogue = p.epilogue_passes > 0 || p.has_statistics;
  return plan.payload.kind() == PlanKind::implicit_gemm_main_loop
             ? sm90::sum_order(p, plan, has_epilogue)
             : mma_sync::sum_order(plan, has_epilogue);
}

// The share of the taps along the depth that meet a slice.
double share_of_slices(const ConvProblem& p) {
  int64_t met = 0;
  for (int64_t o = 0; o < p.O; ++o) {
    for (int64_t t = 0; t < p.T; ++t) {
      const int64_t slice = o * p.stride_d - p.pad_d + t * p.dilation_d;
      met += slice >= 0 && slice < p.D ? 1 : 0;
    }
  }
  return static_cast<double>(met) / static_cast<double>(p.O * p.T);
}

// The main loop reads volumes' pixels once for each tap. So cuDNN is faster where
// - pixels have so few channels that a row of 32 bytes is mostly padding,
// - so many taps meet no slice, and tiles have pixels of several slices, which leave out none,
// - in 16 bits so few channels are computed that reading takes longest. That is not so of a layer
//   that is packed anyway, nor of one whose bias or epilogue is added, unless a pixel's last row is
//   mostly padding as well.
// Volumes that are one patch each are left to cuBLAS.
bool may_choose_volume(const ConvProblem& p) {
  constexpr int64_t kLeastBytes = 24, kRowBytes = 128, kFewChannels = 8, kMostChannels = 64;
  constexpr double kLeastShare = 0.75;
  const bool is_bare = !p.has_bias && p.epilogue_passes == 0;
  if (!p.is_deep()) {
    return !im2col::is_linear(p) || p.epilogue_passes > 0 || p.has_statistics || p.batch_invariant;
  }
  const bool gradient = p.pass == Pass::kDgrad;
  const int64_t size = element_size(p.dtype);
  const int64_t read = gradient ? p.K : p.C, computed = gradient ? p.C : p.K;
  if (!gradient && read * size < kLeastBytes) return false;
  if (!p.is_strict_float32() && share_of_slices(p) < kLeastShare) return false;
  if (size != 2 || p.T * p.R * p.S == 1 || computed > kMostChannels) return true;
  const bool is_padded = computed <= kFewChannels && read * size % kRowBytes != 0;
  if (!is_bare && !is_padded) return true;
  const Shape5& strides = gradient ? p.y_strides : p.x_strides;
  const bool packs = strides[1] != 1 || strides[3] * size % 16 != 0;
  return packs && (!gradient || computed >= kFewChannels);
}

LaunchShape shape(const ConvProblem& asked, const DeviceProperties&, const ConvPlan& plan) {
  if (plan.payload.kind() == PlanKind::implicit_gemm_main_loop) return sm90::shape(asked, plan);
  if (asked.pass == Pass::kWgrad) return wgrad::shape(asked, plan);
  if (plan.payload.kind() != PlanKind::implicit_gemm_mma_sync) return {};
  return mma_sync::shape(asked, plan);
}

}  // namespace

extern const Family family;
const Family family{"implicit_gemm",
                    can_implement,
                    propose,
                    shape,
                    variants,
                    /*fuses=*/true,
                    sum_order,
                    /*all_orders=*/nullptr,
                    sm90::statistics_parts,
                    may_choose_volume};

}  // namespace customconv::implicit_gemm
