// Decisions on the calls that came before: planning takes longer than a small convolution.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "plan/planner.h"

namespace customconv {

struct Decision;  // plan/decide.h

// Everything that a decision depends on: the device, what was asked for, and each field of the
// problem. Keys of images are shorter than those of volumes.
struct PlanKey {
  static constexpr size_t kImageWords = 39, kVolumeWords = 48;

  std::array<int64_t, kVolumeWords> words;  // those behind `size` are not set
  size_t size;
};
bool operator==(const PlanKey& a, const PlanKey& b);

struct PlanKeyHash {
  size_t operator()(const PlanKey& key) const;
};

// `problem.tf32` says what is allowed, not what was settled on.
PlanKey key_of(int device_index, const ConvProblem& problem, Algorithm algorithm = Algorithm::kAuto,
               bool prefer = false, Layout copied = Layout::kNchw,
               const std::optional<Image>& image = {});

// The decisions that were used last, for all threads. When it is full, the one that was not used
// for the longest time goes.
class PlanCache {
 public:
  explicit PlanCache(size_t capacity) : capacity_(capacity) {}

  // Null where there is none.
  std::shared_ptr<const Decision> find(const PlanKey& key);
  // How often that was asked.
  uint64_t lookups() const;
  // Changes whenever decisions are taken back.
  uint64_t generation() const;
  // Nothing where decisions were taken back since `generation`: this one may rest on what they did.
  void insert(const PlanKey& key, std::shared_ptr<const Decision> decision, uint64_t generation);
  // Takes all of them back.
  void clear();
  size_t size() const;

 private:
  using Entry = std::pair<PlanKey, std::shared_ptr<const Decision>>;

  const size_t capacity_;
  mutable std::mutex mutex_;
  uint64_t generation_ = 0;
  uint64_t lookups_ = 0;
  std::list<Entry> entries_;  // the one used last comes first
  std::unordered_map<PlanKey, std::list<Entry>::iterator, PlanKeyHash> places_;
};

// Those of the process.
PlanCache& decisions();

}  // namespace customconv
