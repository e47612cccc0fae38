#include "plan/cache.h"

#include <algorithm>
#include <initializer_list>

namespace customconv {

size_t PlanKeyHash::operator()(const PlanKey& key) const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, a word at a time
  for (size_t i = 0; i < key.size; ++i) {
    hash = (hash ^ static_cast<uint64_t>(key.words[i])) * 0x100000001b3;
  }
  return static_cast<size_t>(hash ^ (hash >> 32));
}

bool operator==(const PlanKey& a, const PlanKey& b) {
  return a.size == b.size && std::equal(a.words.data(), a.words.data() + a.size, b.words.data());
}

PlanKey key_of(int device_index, const ConvProblem& p, Algorithm algorithm, bool prefer,
               Layout copied, const std::optional<Image>& image) {
  // To prefer the planner's own choice is to leave it the choice.
  const bool prefers = prefer && algorithm != Algorithm::kAuto;
  const int64_t flags = (p.tf32 ? 1 : 0) | (p.has_bias ? 2 : 0) | (p.x_aligned ? 4 : 0) |
                        (p.w_aligned ? 8 : 0) | (prefers ? 16 : 0) | (p.has_residual ? 32 : 0) |
                        (p.y_aligned ? 64 : 0) | (p.batch_invariant ? 128 : 0) |
                        (p.has_statistics ? 256 : 0) | (copied == Layout::kNhwc ? 512 : 0) |
                        int64_t{p.epilogue_passes} << 10;
  PlanKey key;
  size_t next = 0;
  const auto put = [&](std::initializer_list<int64_t> words) {
    for (const int64_t word : words) key.words[next++] = word;
  };
  put({device_index,
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
       p.dilation_w});
  for (const Shape5* strides : {&p.x_strides, &p.w_strides, &p.y_strides}) {
    put({(*strides)[0], (*strides)[1], (*strides)[2], (*strides)[3]});
  }
  if (image) {
    put({image->H, image->W, image->P, image->Q, image->pad_h, image->pad_w});
  } else {
    put({0, 0, 0, 0, 0, 0});
  }
  if (p.is_deep()) {
    put({p.D, p.T, p.O, p.stride_d, p.pad_d, p.dilation_d, p.x_strides[4], p.w_strides[4],
         p.y_strides[4]});
  }
  key.size = next;
  return key;
}

std::shared_ptr<const Decision> PlanCache::find(const PlanKey& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++lookups_;
  const auto place = places_.find(key);
  if (place == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, place->second);
  return place->second->second;
}

uint64_t PlanCache::lookups() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lookups_;
}

uint64_t PlanCache::generation() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return generation_;
}

void PlanCache::insert(const PlanKey& key, std::shared_ptr<const Decision> decision,
                       uint64_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Another thread may have planned the same in the meantime.
  if (generation != generation_ || places_.count(key) != 0) return;
  if (entries_.size() >= capacity_) {
    places_.erase(entries_.back().first);
    entries_.pop_back();
  }
  entries_.emplace_front(key, std::move(decision));
  places_[key] = entries_.begin();
}

void PlanCache::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++generation_;
  places_.clear();
  entries_.clear();
}

size_t PlanCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

PlanCache& decisions() {
  constexpr size_t kMostPlans = 4096;
  static auto* cache = new PlanCache(kMostPlans);  // threads may convolve until the process ends
  return *cache;
}

}  // namespace customconv
