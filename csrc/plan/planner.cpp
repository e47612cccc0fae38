#include "plan/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "plan/fold.h"
#include "plan/name.h"
#include "plan/price.h"

namespace customconv {

#define CUSTOMCONV_FAMILY(name) \
  namespace name {              \
  extern const Family family;   \
  }
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY

namespace {

constexpr size_t kFamilyCount = static_cast<size_t>(FamilyId::kAten);

const std::array<const Family*, kFamilyCount> kFamilies = {
#define CUSTOMCONV_FAMILY(name) &name::family,
#include "plan/families.def"
#undef CUSTOMCONV_FAMILY
};

// Why a family cannot compute a folded problem, or nullptr.
const char* can_implement(size_t index, const ConvProblem& problem,
                          const DeviceProperties& device) {
  const Family& family = *kFamilies[index];
  if (problem.is_deep() && family.may_choose_volume == nullptr) return "it computes no volumes";
  return family.can_implement(problem, device);
}

bool is_family(Algorithm algorithm) { return static_cast<size_t>(algorithm) < kFamilyCount; }

// A family's own plan as the planner compares it.
ConvPlan complete(ConvPlan plan, size_t index, const ConvProblem& problem,
                  const DeviceProperties& device) {
  const Family& family = *kFamilies[index];
  plan.family = static_cast<FamilyId>(index);
  if (problem.pass == Pass::kFprop) plan.fuses = family.fuses;
  if (!plan.fuses) plan.predicted_ms += epilogue_ms(problem, device);
  if (problem.has_statistics) {
    const bool leaves_parts = family.statistics_parts != nullptr && plan.threads > 0;
    plan.statistics_parts = leaves_parts ? family.statistics_parts(problem, plan) : 0;
    if (plan.statistics_parts == 0) plan.predicted_ms += statistics_ms(problem, device);
  }
  return plan;
}

// Leaves a family's plan in `plan`, or returns why there is none: also where nothing is known that
// rules a problem out, but no tile fits it.
const char* propose_for_batch(size_t index, const ConvProblem& asked,
                              const DeviceProperties& device, ConvPlan& plan,
                              const Wanted& wanted = {}) {
  ConvProblem room;
  const ConvProblem& problem = folded(asked, room);
  const char* why_not = can_implement(index, problem, device);
  if (why_not != nullptr) return why_not;
  plan = complete(kFamilies[index]->propose(problem, device, wanted), index, problem, device);
  return plan.threads > 0 ? nullptr : "none of its tiles fits the problem";
}

// Every plan of a family, listed by one of its functions; none where it cannot.
std::vector<ConvPlan> listed(size_t index, const ConvProblem& asked, const DeviceProperties& device,
                             decltype(Family::variants) list) {
  std::vector<ConvPlan> all;
  ConvProblem room;
  const ConvProblem& problem = folded(asked, room);
  if (list == nullptr) {
    ConvPlan own;
    if (propose_for_batch(index, problem, device, own) == nullptr) all.push_back(own);
  } else if (can_implement(index, problem, device) == nullptr) {
    for (const ConvPlan& plan : list(problem, device)) {
      all.push_back(complete(plan, index, problem, device));
    }
  }
  return all;
}

// A batch so large that no tile has images of all of it.
constexpr int64_t kManyImages = 256;
// Elements of the larger tensor of images: offsets are the same wherever there are no more.
constexpr int64_t kMostElements = int64_t{1} << 30;

// As many images, or fewer where they would pass kMostElements.
int64_t limited_batch(const ConvProblem& p, int64_t images) {
  const int64_t image = std::max(p.C * p.H * p.W * p.D, p.K * p.P * p.Q * p.O);
  return std::clamp<int64_t>(kMostElements / image, 1, images);
}

ConvProblem with_batch(ConvProblem problem, int64_t images) {
  problem.N = images;
  return problem;
}

// The strides of the one dense layout that all tensors have: where a size is one, theirs could tell
// an image from a batch. Where sizes leave two layouts, it is the one that y's strides name.
void settle_strides(ConvProblem& p) {
  const bool channels_last = p.y_strides == dense_strides(p.y_sizes(), Layout::kNhwc);
  const Layout named = channels_last ? Layout::kNhwc : Layout::kNchw;
  for (const Layout layout : {named, Layout::kNchw, Layout::kNhwc}) {
    if (!strides_match(p.x_sizes(), p.x_strides, layout) ||
        !strides_match(p.w_sizes(), p.w_strides, layout) ||
        !strides_match(p.y_sizes(), p.y_strides, layout)) {
      continue;
    }
    p.x_strides = dense_strides(p.x_sizes(), layout);
    p.w_strides = dense_strides(p.w_sizes(), layout);
    p.y_strides = dense_strides(p.y_sizes(), layout);
    if (p.x_aligned && p.w_aligned && p.y_aligned) return;
  }
  throw std::runtime_error("a batch-invariant plan is of dense, aligned tensors in one layout");
}

// The images that a problem is a part of, in its layout; the problem itself where it is none.
ConvProblem whole_of(const ConvProblem& part, const Image* image) {
  if (image == nullptr) return part;
  ConvProblem p = part;
  p.H = image->H;
  p.W = image->W;
  p.P = image->P;
  p.Q = image->Q;
  p.pad_h = image->pad_h;
  p.pad_w = image->pad_w;
  const auto are_in = [&part](Layout layout) {
    return part.x_strides == dense_strides(part.x_sizes(), layout) &&
           part.y_strides == dense_strides(part.y_sizes(), layout);
  };
  const Layout layout = are_in(Layout::kNchw) ? Layout::kNchw : Layout::kNhwc;
  p.x_strides = dense_strides(p.x_sizes(), layout);
  p.y_strides = dense_strides(p.y_sizes(), layout);
  return p;
}

// A family's cheapest plan for each order of sums that does not depend on the batch. The order of
// splits depends on it, and so may cuBLAS's.
struct Ordered {
  int64_t order;
  ConvPlan plan;
};
std::vector<Ordered> ordered_plans(size_t index, const ConvProblem& problem,
                                   const DeviceProperties& device) {
  std::vector<Ordered> found;
  const Family& family = *kFamilies[index];
  const auto list = family.all_orders != nullptr ? family.all_orders : family.variants;
  for (const ConvPlan& plan : listed(index, problem, device, list)) {
    if (plan.splits > 1 || plan.uses_blas || plan.threads == 0) continue;
    const int64_t order = sum_order(problem, plan);
    const auto same = std::find_if(found.begin(), found.end(),
                                   [&](const Ordered& other) { return other.order == order; });
    if (same == found.end()) {
      found.push_back({order, plan});
    } else if (plan.predicted_ms < same->plan.predicted_ms) {
      same->plan = plan;
    }
  }
  return found;
}

const Ordered* find_order(const std::vector<Ordered>& plans, int64_t order) {
  const auto found = std::find_if(plans.begin(), plans.end(),
                                  [&](const Ordered& other) { return other.order == order; });
  return found == plans.end() ? nullptr : &*found;
}

// The family's order of sums that is cheapest for the reference batch, of those that a single image
// and many have too. `chosen` gets its plan for that batch.
const char* choose_order(size_t index, const ConvProblem& asked, const DeviceProperties& device,
                         Ordered& chosen, const Image* image) {
  const ConvProblem problem = whole_of(asked, image);
  const ConvProblem reference = with_batch(problem, reference_batch(problem));
  ConvProblem room;
  const char* why_not = can_implement(index, folded(reference, room), device);
  if (why_not != nullptr) return why_not;
  std::vector<Ordered> plans = ordered_plans(index, reference, device);
  if (plans.empty()) return "cuBLAS does not promise an image the same bits in every batch";
  std::sort(plans.begin(), plans.end(), [](const Ordered& a, const Ordered& b) {
    return a.plan.predicted_ms < b.plan.predicted_ms;
  });
  const std::vector<Ordered> of_one = ordered_plans(index, with_batch(problem, 1), device);
  const std::vector<Ordered> of_many =
      ordered_plans(index, with_batch(problem, limited_batch(problem, kManyImages)), device);
  for (const Ordered& plan : plans) {
    if (find_order(of_one, plan.order) == nullptr) continue;
    if (find_order(of_many, plan.order) == nullptr) continue;
    chosen = plan;
    return nullptr;
  }
  return "none of its plans is for every batch";
}

constexpr const char* kTooLarge = "the batch is too large to be computed as others are";

// The cheapest plan of a batch-invariant problem with the order that was chosen.
const char* propose_in_order(size_t index, const ConvProblem& problem,
                             const DeviceProperties& device, ConvPlan& plan, const Image* image) {
  Ordered chosen;
  const char* why_not = choose_order(index, problem, device, chosen, image);
  if (why_not != nullptr) return why_not;
  const std::vector<Ordered> plans = ordered_plans(index, problem, device);
  const Ordered* found = find_order(plans, chosen.order);
  if (found == nullptr) return kTooLarge;
  plan = found->plan;
  return nullptr;
}

const char* propose(size_t index, const ConvProblem& problem, const DeviceProperties& device,
                    ConvPlan& plan, const Wanted& wanted = {}, const Image* image = nullptr) {
  return is_batch_invariant(problem) ? propose_in_order(index, problem, device, plan, image)
                                     : propose_for_batch(index, problem, device, plan, wanted);
}

// `im2col` asks for TF32, but cuBLAS computes some small products exactly, which is allowed.
bool keeps_precision(size_t index, const ConvProblem& settled) {
  return !settled.tf32 || may_round_to_tf32(static_cast<FamilyId>(index));
}

// Whether a folded problem is the weight gradient of few channels by a single tap, in channels-last
// and not in IEEE float32. Every family reads its pixels slower than cuDNN.
bool is_small_weight_gradient(const ConvProblem& p) {
  constexpr int64_t kFewChannels = 64;
  const bool channels_last = (p.K > 1 ? p.y_strides : p.x_strides)[1] == 1;
  return p.pass == Pass::kWgrad && !p.is_deep() && p.groups == 1 && channels_last &&
         p.R * p.S == 1 && p.P * p.Q > 1 && std::min(p.C, p.K) < kFewChannels &&
         (element_size(p.dtype) == 2 || p.tf32);
}

// Whether a family is one that the planner chooses from.
bool may_choose(size_t index, const ConvProblem& asked) {
  return may_choose(static_cast<FamilyId>(index), asked);
}

// The cheapest plan in the problem's precision.
ConvPlan cheapest(const ConvProblem& problem, const DeviceProperties& device) {
  ConvPlan best;
  Wanted faster;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    ConvPlan proposed;
    if (!keeps_precision(i, problem) || !may_choose(i, problem)) continue;
    if (propose(i, problem, device, proposed, faster) != nullptr) continue;
    if (best.family == FamilyId::kAten || proposed.predicted_ms < best.predicted_ms) {
      best = proposed;
      faster.most_ms = best.predicted_ms;
    }
  }
  return best;
}

// The family that computes a batch-invariant problem of the reference batch fastest, kAten if none
// does, and its time. `direct` is the last resort.
FamilyId cheapest_in_order(const ConvProblem& problem, const DeviceProperties& device,
                           const Image* image, double& ms) {
  FamilyId best = FamilyId::kAten;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    Ordered chosen;
    if (!keeps_precision(i, problem) || !may_choose(i, problem)) continue;
    if (choose_order(i, problem, device, chosen, image) != nullptr) continue;
    if (best == FamilyId::kAten || best == FamilyId::direct || chosen.plan.predicted_ms < ms) {
      best = static_cast<FamilyId>(i);
      ms = chosen.plan.predicted_ms;
    }
  }
  return best;
}

// The plan of a batch-invariant problem by the family that computes it fastest.
ConvPlan plan_in_order(const ConvProblem& problem, const DeviceProperties& device, FamilyId family,
                       const Image* image) {
  ConvPlan best;
  const char* why_not = family == FamilyId::kAten ? "no family computes this for every batch alike"
                                                  : propose_in_order(static_cast<size_t>(family),
                                                                     problem, device, best, image);
  if (why_not == kTooLarge && image != nullptr) return {};
  if (why_not != nullptr) {
    throw std::runtime_error("there is no batch-invariant plan for this " +
                             std::string(to_string(problem.pass)) + ": " + why_not);
  }
  return best;
}

// Infinite without a plan. For batch-invariant problems `direct` counts as none.
double cheapest_ms(const ConvProblem& problem, const ConvPlan& cheapest) {
  const bool is_last_resort = is_batch_invariant(problem) && cheapest.family == FamilyId::direct;
  return cheapest.family == FamilyId::kAten || is_last_resort
             ? std::numeric_limits<double>::infinity()
             : cheapest.predicted_ms;
}

// The cheapest plan. For a batch-invariant problem it is only a family and a time, those of the
// reference batch.
ConvPlan weighed(const ConvProblem& problem, const DeviceProperties& device, const Image* image) {
  if (!is_batch_invariant(problem)) return cheapest(problem, device);
  ConvPlan best;
  best.family = cheapest_in_order(problem, device, image, best.predicted_ms);
  return best;
}

// Whether the planner has a plan in the problem's precision of which `is_enough(ms)` holds, as of
// all faster ones, and as it does of about `enough_ms`. It asks the family `first` before the
// others.
template <typename IsEnough>
bool has_plan(const ConvProblem& asked, const DeviceProperties& device, const Image* image,
              FamilyId first, double enough_ms, const IsEnough& is_enough) {
  const auto suffices = [&](const ConvPlan& plan) {
    const double ms = cheapest_ms(asked, plan);
    return std::isfinite(ms) && is_enough(ms);
  };
  if (is_batch_invariant(asked)) return suffices(weighed(asked, device, image));
  ConvProblem room;
  const ConvProblem& problem = folded(asked, room);
  std::array<size_t, kFamilyCount> order;
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[0], order[static_cast<size_t>(first)]);
  return std::any_of(order.begin(), order.end(), [&](size_t i) {
    const Family& family = *kFamilies[i];
    if (!keeps_precision(i, problem) || !may_choose(i, asked) ||
        can_implement(i, problem, device) != nullptr) {
      return false;
    }
    const ConvPlan quick = family.propose(problem, device, {enough_ms});
    if (quick.threads == 0) return false;
    if (suffices(complete(quick, i, problem, device))) return true;
    if (quick.predicted_ms > enough_ms) return false;  // the cheapest
    ConvPlan proposed;
    return propose(i, problem, device, proposed) == nullptr && suffices(proposed);
  });
}

// Whether volumes that may be rounded to TF32 are left to PyTorch, though a family computes them
// so.
bool leaves_rounded(const ConvProblem& asked, const DeviceProperties& device) {
  if (!asked.is_deep() || is_batch_invariant(asked)) return false;
  ConvProblem room;
  const ConvProblem& problem = folded(asked, room);
  for (size_t i = 0; i < kFamilyCount; ++i) {
    if (keeps_precision(i, asked) && !may_choose(i, asked) &&
        can_implement(i, problem, device) == nullptr) {
      return true;
    }
  }
  return false;
}

// Settles a problem's precision (see computes_in_tf32) and returns its cheapest plan.
ConvPlan settle(ConvProblem& problem, const DeviceProperties& device,
                const Image* image = nullptr) {
  if (!problem.tf32) return weighed(problem, device, image);
  const auto dense_in = [&problem](Layout layout, bool tf32) {
    ConvProblem dense = problem;
    dense.x_aligned = dense.w_aligned = dense.y_aligned = true;
    dense.x_strides = dense_strides(dense.x_sizes(), layout);
    dense.w_strides = dense_strides(dense.w_sizes(), layout);
    dense.y_strides = dense_strides(dense.y_sizes(), layout);
    dense.tf32 = tf32;
    return dense;
  };
  const auto is_own = [&](Layout layout) {
    const ConvProblem dense = dense_in(layout, problem.tf32);
    return problem.x_aligned && problem.w_aligned && problem.y_aligned &&
           dense.x_strides == problem.x_strides && dense.w_strides == problem.w_strides &&
           dense.y_strides == problem.y_strides;
  };
  const Layout own = is_own(Layout::kNhwc) ? Layout::kNhwc : Layout::kNchw;
  const Layout other = own == Layout::kNhwc ? Layout::kNchw : Layout::kNhwc;
  const ConvPlan rounded = weighed(dense_in(own, true), device, image);
  if (rounded.family == FamilyId::kAten && leaves_rounded(dense_in(own, true), device)) {
    return rounded;
  }
  const ConvPlan exact = weighed(dense_in(own, false), device, image);
  const double rounded_ms = cheapest_ms(problem, rounded);
  // Products are the same from either layout; of four plans, three are needed. A layout of volumes
  // that is left to PyTorch has none: its kernels round to TF32 where they may.
  const ConvPlan exact_other = weighed(dense_in(other, false), device, image);
  const bool is_alone = problem.is_deep() && exact_other.family == FamilyId::kAten;
  const double exact_ms =
      cheapest_ms(problem, exact) * (is_alone ? 1 : cheapest_ms(problem, exact_other));
  const bool is_known = is_own(own);
  problem.tf32 = std::isfinite(rounded_ms) &&
                 (is_alone ? rounded_ms <= exact_ms
                           : has_plan(dense_in(other, true), device, image, rounded.family,
                                      exact_ms / rounded_ms,
                                      [&](double ms) { return rounded_ms * ms <= exact_ms; }));
  if (is_known) return problem.tf32 ? rounded : exact;
  return weighed(problem, device, image);
}

}  // namespace

int64_t sum_order(const ConvProblem& problem, const ConvPlan& plan) {
  const Family& family = *kFamilies[static_cast<size_t>(plan.family)];
  ConvProblem room;
  return family.sum_order == nullptr ? 0 : family.sum_order(folded(problem, room), plan);
}

LaunchShape launch_shape(const ConvProblem& asked, const ConvPlan& plan,
                         const DeviceProperties& device) {
  const auto index = static_cast<size_t>(plan.family);
  ConvProblem room;
  const ConvProblem& problem = folded(asked, room);
  if (can_implement(index, problem, device) != nullptr) return {};
  LaunchShape shape = kFamilies[index]->shape(problem, device, plan);
  shape.blocks = std::min(shape.blocks, plan.blocks);
  return shape;
}

void check_plan(const ConvProblem& problem, const ConvPlan& plan, const DeviceProperties& device) {
  if (plan.family == FamilyId::kAten) return;
  const LaunchShape s = launch_shape(problem, plan, device);
  if (s.threads > 0 && s.threads == plan.threads && s.blocks == plan.blocks &&
      s.shared_bytes == plan.shared_bytes && s.workspace_bytes == plan.workspace_bytes) {
    return;
  }
  throw std::invalid_argument("customconv: '" + to_string(name_of(plan)) +
                              "' is a plan of another problem than " + to_string(problem));
}

bool is_batch_invariant(const ConvProblem& problem) {
  return problem.batch_invariant && problem.pass != Pass::kWgrad;
}

int64_t reference_batch(const ConvProblem& problem) {
  return limited_batch(problem, kReferenceBatch);
}

// Two kinds. Patches of volumes in 16 bits, without padding, are a copy and a product by cuBLAS,
// which PyTorch's kernels at best equal. Depthwise images in NCHW, where bytes take so many times
// as long as products, are far from the memory's limit by PyTorch's kernels; in NHWC cuDNN's are
// near.
FamilyId leaves_no_doubt(const ConvProblem& asked, const DeviceProperties& device) {
  constexpr double kMargin = 2;
  ConvProblem room;
  const ConvProblem& p = folded(asked, room);
  if (asked.is_deep() && element_size(p.dtype) == 2 && im2col::family.may_choose_volume(asked)) {
    const bool can = im2col::family.can_implement(p, device) == nullptr;
    return can ? FamilyId::im2col : FamilyId::kAten;
  }
  if (p.is_deep()) return FamilyId::kAten;
  const auto in_planes = [](const Shape5& sizes, const Shape5& strides) {
    return sizes[2] * sizes[3] > 1 && strides_match(sizes, strides, Layout::kNchw);
  };
  const bool is_plain = p.groups > 1 && p.group_C() == 1 && p.group_K() == 1 &&
                        in_planes(p.x_sizes(), p.x_strides) && in_planes(p.y_sizes(), p.y_strides);
  if (!is_plain) return FamilyId::kAten;
  ConvProblem bare = p;
  bare.has_residual = false;  // the convolution decides for a fused call too
  const double bytes_ms = 1e-6 * bare.least_bytes() / device.bandwidth_gb_s;
  const double products_ms = 2e3 * p.macs() / device.vector_flops(p.dtype);
  const bool can =
      bytes_ms >= kMargin * products_ms && depthwise::family.can_implement(p, device) == nullptr;
  return can ? FamilyId::depthwise : FamilyId::kAten;
}

bool may_round_to_tf32(FamilyId family) {
  switch (family) {
    case FamilyId::implicit_gemm:
    case FamilyId::grouped:
    case FamilyId::col2im:
    case FamilyId::im2col:
      return true;
    case FamilyId::direct:
    case FamilyId::tiled:
    case FamilyId::depthwise:
    case FamilyId::kAten:
      break;
  }
  return false;
}

const char* propose(FamilyId family, const ConvProblem& problem, const DeviceProperties& device,
                    ConvPlan& plan) {
  return propose(static_cast<size_t>(family), problem, device, plan);
}

bool may_choose(FamilyId family, const ConvProblem& asked) {
  if (!asked.is_deep()) return true;
  ConvProblem room;
  const ConvProblem& problem = folded(asked, room);
  if (is_small_weight_gradient(problem)) return false;
  const auto may = kFamilies[static_cast<size_t>(family)]->may_choose_volume;
  return may == nullptr ? !problem.is_deep() : may(problem);
}

bool keeps_precision(FamilyId family, const ConvProblem& settled) {
  return keeps_precision(static_cast<size_t>(family), settled);
}

bool computes_in_tf32(const ConvProblem& problem, const DeviceProperties& device) {
  if (!problem.tf32) return false;
  ConvProblem settled = problem;
  settle(settled, device);
  return settled.tf32;
}

ConvPlan plan(ConvProblem& problem, const DeviceProperties& device, Algorithm algorithm,
              bool prefer, const Image* image) {
  const bool in_order = is_batch_invariant(problem);
  if (in_order) settle_strides(problem);
  if (algorithm == Algorithm::kAten) {
    if (in_order) throw std::runtime_error("PyTorch's convolution is not batch invariant");
    return {};
  }
  if (is_family(algorithm)) {
    const auto index = static_cast<size_t>(algorithm);
    ConvPlan own;
    const char* why_not = propose(index, problem, device, own, {}, image);
    if (why_not == nullptr) return own;
    if (why_not == kTooLarge && image != nullptr) return {};
    if (!prefer) {
      throw std::runtime_error(std::string("algorithm '") + kFamilies[index]->name +
                               "' cannot compute this " + to_string(problem.pass) + ": " + why_not);
    }
  }
  if (!device.has_prices() && !problem.batch_invariant) {
    problem.tf32 = false;
    ConvPlan own;
    const FamilyId family = leaves_no_doubt(problem, device);
    if (family != FamilyId::kAten) propose(family, problem, device, own);
    return own;
  }
  const ConvPlan settled = settle(problem, device, image);
  return in_order ? plan_in_order(problem, device, settled.family, image) : settled;
}

std::vector<ConvPlan> variants(const ConvProblem& problem, const DeviceProperties& device) {
  std::vector<ConvPlan> all;
  for (size_t i = 0; i < kFamilyCount; ++i) {
    const std::vector<ConvPlan> own = listed(i, problem, device, kFamilies[i]->variants);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::vector<ConvPlan> tunable(ConvProblem& problem, const DeviceProperties& device) {
  problem.tf32 = computes_in_tf32(problem, device);
  std::vector<ConvPlan> plans = variants(problem, device);
  const auto is_out = [&](const ConvPlan& plan) {
    return plan.threads == 0 || !keeps_precision(static_cast<size_t>(plan.family), problem);
  };
  plans.erase(std::remove_if(plans.begin(), plans.end(), is_out), plans.end());
  std::stable_sort(plans.begin(), plans.end(), [](const ConvPlan& a, const ConvPlan& b) {
    return a.predicted_ms < b.predicted_ms;
  });
  const ConvPlan taken = cheapest(problem, device);
  if (taken.family != FamilyId::kAten) plans.insert(plans.begin(), taken);
  return plans;
}

std::string format_ms(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", ms);
  return text;
}

std::string to_string(const ConvPlan& plan) {
  const std::string name = std::string(plan.tuned ? "tuned " : "") + to_string(name_of(plan));
  if (plan.family == FamilyId::kAten) return name;
  return name + " (" + std::to_string(plan.blocks) + " blocks of " + std::to_string(plan.threads) +
         " threads, shared " + std::to_string(plan.shared_bytes) + " B, workspace " +
         std::to_string(plan.workspace_bytes) + " B, predicted " + format_ms(plan.predicted_ms) +
         ")";
}

}  // namespace customconv
