// How functions that pass between libraries fail. No exception does, since its type may be another
// one on the other side.
#pragma once

#include <exception>
#include <string>

namespace customconv {

// Null, or why a call failed: text that stays until the thread's next call.
using Failure = const char*;

template <typename Call>
Failure guarded(const Call& call) {
  thread_local std::string failure;
  try {
    call();
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "customconv: an unknown error";
  }
  return failure.c_str();
}

}  // namespace customconv
