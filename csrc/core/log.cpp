#include "core/log.h"

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <unordered_set>

namespace customconv {

namespace {

bool plans_are_logged() {
  const char* topics = std::getenv("CUSTOMCONV_LOG");
  return topics != nullptr && std::string(topics) == "plan";
}

}  // namespace

void log_plan(const ConvProblem& problem, const ConvPlan& plan) {
  static const bool enabled = plans_are_logged();
  if (!enabled) return;
  const std::string line = to_string(problem) + ": " + to_string(plan);
  static std::mutex mutex;
  static std::unordered_set<std::string> printed;
  const std::lock_guard<std::mutex> lock(mutex);
  if (printed.insert(line).second) std::cerr << "customconv: " << line << '\n';
}

}  // namespace customconv
