#include "core/state.h"

namespace customconv {

Switches& switches() {
  static Switches all;
  return all;
}

Counters& counters() {
  static Counters all;
  return all;
}

}  // namespace customconv
