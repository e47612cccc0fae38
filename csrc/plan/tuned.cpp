#include "plan/tuned.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "plan/cache.h"

namespace customconv {

namespace {

class Store {
 public:
  void set(const TunedProblem& tuned) {
    const std::lock_guard<std::mutex> lock(mutex_);
    plans_[key_of(tuned.device_index, tuned.problem)] = tuned;
  }
  std::optional<TunedPlan> find(const PlanKey& key) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = plans_.find(key);
    return found == plans_.end() ? std::nullopt : std::optional(found->second.plan);
  }
  void erase(const PlanKey& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    plans_.erase(key);
  }
  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    plans_.clear();
  }
  std::vector<TunedProblem> all() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<TunedProblem> listed;
    for (const auto& [key, tuned] : plans_) listed.push_back(tuned);
    return listed;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<PlanKey, TunedProblem, PlanKeyHash> plans_;
};

// Neither this nor the recorder is destroyed: threads may convolve until the process ends.
Store& store() {
  static auto* plans = new Store;
  return *plans;
}

class Recorder {
 public:
  bool begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !is_on_.exchange(true, std::memory_order_relaxed);
  }
  std::vector<std::pair<int, ConvProblem>> end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_on_.store(false, std::memory_order_relaxed);
    known_.clear();
    return std::exchange(problems_, {});
  }
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  void add(int device_index, const ConvProblem& problem) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_on()) return;  // it ended in the meantime
    const bool is_new = known_.insert(key_of(device_index, problem)).second;
    if (is_new) problems_.emplace_back(device_index, problem);
  }

 private:
  std::atomic<bool> is_on_{false};
  std::mutex mutex_;
  std::unordered_set<PlanKey, PlanKeyHash> known_;
  std::vector<std::pair<int, ConvProblem>> problems_;
};

Recorder& recorder() {
  static auto* problems = new Recorder;
  return *problems;
}

}  // namespace

std::optional<ConvPlan> resolve(const TunedPlan& tuned, ConvProblem& problem,
                                const DeviceProperties& device) {
  ConvProblem settled = problem;
  ConvPlan plan;
  if (tuned.name.family == FamilyId::kAten) {
    settled.tf32 = computes_in_tf32(problem, device);
    if (settled.tf32 != problem.tf32) return std::nullopt;
  } else {
    const std::vector<ConvPlan> plans = tunable(settled, device);
    const auto found = std::find_if(plans.begin(), plans.end(), [&](const ConvPlan& each) {
      return name_of(each) == tuned.name;
    });
    if (found == plans.end()) return std::nullopt;
    plan = *found;
  }
  plan.tuned = true;
  problem.tf32 = settled.tf32;
  return plan;
}

void set_tuned_plan(const TunedProblem& tuned) {
  store().set(tuned);
  decisions().clear();
}

std::optional<TunedPlan> tuned_plan(int device_index, const ConvProblem& problem) {
  return store().find(key_of(device_index, problem));
}

std::vector<TunedProblem> tuned_plans() { return store().all(); }

void drop_tuned_plan(int device_index, const ConvProblem& problem) {
  store().erase(key_of(device_index, problem));
}

void clear_tuned_plans() {
  store().clear();
  decisions().clear();
}

bool begin_recording() { return recorder().begin(); }

std::vector<std::pair<int, ConvProblem>> end_recording() { return recorder().end(); }

bool is_recording() { return recorder().is_on(); }

void record(int device_index, const ConvProblem& problem) { recorder().add(device_index, problem); }

}  // namespace customconv
