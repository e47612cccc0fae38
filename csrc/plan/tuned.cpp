#include "plan/tuned.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <unordered_set>

namespace customconv {

namespace {

constexpr size_t kMostPlans = 4096;

// None of these is destroyed: threads may convolve until the process ends.
PlanCache& cache() {
  static auto* plans = new PlanCache(kMostPlans);
  return *plans;
}

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
  void add(const PlanKey& key, int device_index, const ConvProblem& problem) {
    if (!is_on_.load(std::memory_order_relaxed)) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_on_.load(std::memory_order_relaxed)) return;  // it ended in the meantime
    if (known_.insert(key).second) problems_.emplace_back(device_index, problem);
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
  cache().erase(key_of(tuned.device_index, tuned.problem));
}

std::optional<TunedPlan> tuned_plan(int device_index, const ConvProblem& problem) {
  return store().find(key_of(device_index, problem));
}

std::vector<TunedProblem> tuned_plans() { return store().all(); }

void clear_tuned_plans() {
  store().clear();
  cache().clear();
}

bool begin_recording() { return recorder().begin(); }

std::vector<std::pair<int, ConvProblem>> end_recording() { return recorder().end(); }

ConvPlan decide(int device_index, ConvProblem& problem, const DeviceProperties& device,
                Algorithm algorithm, bool prefer, bool record, bool& dropped) {
  dropped = false;
  const PlanKey key = key_of(device_index, problem, algorithm, prefer);
  const bool is_free = algorithm == Algorithm::kAuto;
  // A batch-invariant problem is planned for all batches; what is faster for one is no plan of it.
  if (is_free && record && !is_batch_invariant(problem) && !problem.has_statistics) {
    recorder().add(key, device_index, problem);
  }
  if (const auto known = cache().find(key)) {
    problem.tf32 = known->tf32;
    return known->plan;
  }
  // No lock is held while planning. The generation is read first, so that a plan made before a
  // tuned one arrived is not cached after it.
  const uint64_t generation = cache().generation();
  std::optional<ConvPlan> decided;
  if (is_free) {
    if (const auto tuned = store().find(key)) {
      decided = resolve(*tuned, problem, device);
      dropped = !decided;
      if (dropped) store().erase(key);
    }
  }
  if (!decided) decided = plan(problem, device, algorithm, prefer);
  cache().insert(key, {*decided, problem.tf32}, generation);
  return *decided;
}

std::optional<TunedPlan> apply_tuned(int device_index, ConvProblem problem,
                                     const DeviceProperties& device, Explanation& explanation) {
  const std::optional<TunedPlan> tuned = tuned_plan(device_index, problem);
  if (!tuned) return std::nullopt;
  const std::optional<ConvPlan> plan = resolve(*tuned, problem, device);
  if (!plan) return std::nullopt;
  const std::string taken = to_string(plan->family);
  // A candidate without a reason is the planner's choice, one with a time a rival of it. The others
  // are not possible in this precision, whatever was tuned.
  for (Candidate& candidate : explanation.candidates) {
    if (candidate.family == taken) {
      candidate.reason.clear();
      if (plan->family != FamilyId::kAten) candidate.plan = *plan;
    } else if (candidate.reason.empty() || candidate.reason.rfind("predicted", 0) == 0) {
      candidate.reason = taken + " was the fastest when it was tuned";
    }
  }
  explanation.plan = *plan;
  return tuned;
}

}  // namespace customconv
