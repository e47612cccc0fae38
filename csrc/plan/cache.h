// Plans of the calls that came before: planning takes longer than a small convolution.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "plan/planner.h"

namespace customconv {

// Everything that a plan depends on: the device, the algorithm, and each field of the problem.
using PlanKey = std::array<int64_t, 33>;

struct PlanKeyHash {
  size_t operator()(const PlanKey& key) const;
};

// `problem.tf32` says what is allowed, not what was settled on.
PlanKey key_of(int device_index, const ConvProblem& problem, Algorithm algorithm = Algorithm::kAuto,
               bool prefer = false);

// A plan, and whether it is for operands that are rounded to TF32.
struct Decision {
  ConvPlan plan;
  bool tf32 = false;
};

// The decisions that were used last, for all threads. When it is full, the one that was not used
// for the longest time goes.
class PlanCache {
 public:
  explicit PlanCache(size_t capacity) : capacity_(capacity) {}

  std::optional<Decision> find(const PlanKey& key);
  // Changes whenever a decision is taken back.
  uint64_t generation() const;
  // Nothing where a decision was taken back since `generation`: this one may rest on it.
  void insert(const PlanKey& key, const Decision& decision, uint64_t generation);
  void erase(const PlanKey& key);
  void clear();
  size_t size() const;

 private:
  using Entry = std::pair<PlanKey, Decision>;

  const size_t capacity_;
  mutable std::mutex mutex_;
  uint64_t generation_ = 0;
  std::list<Entry> entries_;  // the one used last comes first
  std::unordered_map<PlanKey, std::list<Entry>::iterator, PlanKeyHash> places_;
};

}  // namespace customconv
