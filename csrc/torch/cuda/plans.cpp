#include "torch/cuda/plans.h"

#include <c10/util/Exception.h>

#include <array>
#include <optional>
#include <unordered_map>

#include "torch/cuda/device.h"

namespace customconv::torch_layer {

namespace {

// Everything that a plan depends on.
using Key = std::array<int64_t, 33>;

struct Hash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, a word at a time
    for (const int64_t word : key) hash = (hash ^ static_cast<uint64_t>(word)) * 0x100000001b3;
    return static_cast<size_t>(hash ^ (hash >> 32));
  }
};

Key key_of(c10::DeviceIndex device, const ConvProblem& p, Algorithm algorithm, bool prefer) {
  const int64_t flags = (p.tf32 ? 1 : 0) | (p.has_bias ? 2 : 0) | (p.x_aligned ? 4 : 0) |
                        (p.w_aligned ? 8 : 0) | (prefer ? 16 : 0) | (p.has_residual ? 32 : 0) |
                        (p.y_aligned ? 64 : 0) | (p.batch_invariant ? 128 : 0) |
                        int64_t{p.epilogue_passes} << 8;
  Key key = {device,
             static_cast<int64_t>(algorithm),
             flags,
             static_cast<int64_t>(p.dtype),
             static_cast<int64_t>(p.pass),
             p.N,
             p.C,
             p.H,
             p.W,
             p.K,
             p.R,
             p.S,
             p.P,
             p.Q,
             p.groups,
             p.stride_h,
             p.stride_w,
             p.pad_h,
             p.pad_w,
             p.dilation_h,
             p.dilation_w};
  size_t next = 21;
  for (const Shape4* strides : {&p.x_strides, &p.w_strides, &p.y_strides}) {
    for (const int64_t stride : *strides) key[next++] = stride;
  }
  return key;
}

constexpr size_t kMostPlans = 4096;

thread_local std::optional<ConvPlan> forced;

struct Found {
  ConvPlan plan;
  bool tf32;
};

}  // namespace

ConvPlan plan_on(c10::DeviceIndex device, ConvProblem& problem, Algorithm algorithm, bool prefer) {
  if (forced && algorithm != Algorithm::kAuto) return *forced;
  thread_local std::unordered_map<Key, Found, Hash> plans;
  const Key key = key_of(device, problem, algorithm, prefer);
  auto known = plans.find(key);
  if (known == plans.end()) {
    try {
      const ConvPlan made = plan(problem, device_properties(device), algorithm, prefer);
      if (plans.size() >= kMostPlans) plans.clear();
      known = plans.emplace(key, Found{made, problem.tf32}).first;
    } catch (const std::runtime_error& error) {
      TORCH_CHECK(false, error.what());
    }
  }
  problem.tf32 = known->second.tf32;
  return known->second.plan;
}

void force_plan(const ConvPlan* plan) {
  forced = plan == nullptr ? std::nullopt : std::optional(*plan);
}

}  // namespace customconv::torch_layer
