#include "gpu.h"

#include <ucontext.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

#include "kernels/ptx/wgmma.cuh"

namespace emulation {

Index thread_index, block_index, grid_size;

namespace {

constexpr size_t kStackBytes = 128 << 10;

struct Fiber {
  Thread thread;
  ucontext_t context;
  std::function<bool()> may_run;  // empty where it may
  bool returned = false;
};

struct Later {
  int turns;
  Fiber* fiber;
  std::function<void()> action;
};

struct Machine {
  ucontext_t scheduler;
  Fiber* running = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::vector<Later> later;
  std::mt19937 random;
  std::string failure;
  std::vector<std::unique_ptr<char[]>> stacks;
  std::vector<std::unique_ptr<char, decltype(&std::free)>> memories;
};
Machine machine;

void leave() { swapcontext(&machine.running->context, &machine.scheduler); }

void enter() {
  (*machine.kernel)();
  machine.running->returned = true;
  --machine.running->thread.block->threads;
  leave();
}

void set_running(Fiber& fiber) {
  machine.running = &fiber;
  thread_index = {fiber.thread.number};
  block_index = {fiber.thread.block->number};
}

// Actions whose time has come; true if any are left or were done.
bool do_later() {
  std::vector<Later> found = std::move(machine.later);
  machine.later.clear();
  for (Later& one : found) {
    if (one.turns-- > 0) {
      machine.later.push_back(std::move(one));
    } else {
      set_running(*one.fiber);
      one.action();
    }
  }
  return !found.empty();
}

void run_cluster(std::vector<Fiber>& fibers) {
  const auto count = static_cast<int>(fibers.size());
  const bool backwards = machine.random() % 2 != 0;
  int left = count;
  while (left > 0) {
    bool moved = false;
    for (int i = 0; i < count; ++i) {
      Fiber& fiber = fibers[static_cast<size_t>(backwards ? count - 1 - i : i)];
      if (fiber.returned) continue;
      set_running(fiber);
      if (fiber.may_run && !fiber.may_run()) continue;
      fiber.may_run = {};
      swapcontext(&machine.scheduler, &fiber.context);
      if (!machine.failure.empty()) throw std::runtime_error(machine.failure);
      if (fiber.returned) --left;
      moved = true;
    }
    if (!do_later() && !moved) {
      throw std::runtime_error(std::to_string(left) + " threads wait for what never happens");
    }
  }
  while (do_later()) {
  }
}

}  // namespace

Thread& here() { return machine.running->thread; }

void fail(const std::string& what) {
  machine.failure = "block " + std::to_string(block_index.x) + ", thread " +
                    std::to_string(thread_index.x) + ": " + what;
  leave();
  std::abort();  // nobody runs it again
}

void wait_until(const std::function<bool()>& is_so) {
  if (is_so()) return;
  machine.running->may_run = is_so;
  leave();
}

void later(std::function<void()> action) {
  constexpr int kMostTurns = 4;
  machine.later.push_back(
      {static_cast<int>(machine.random() % kMostTurns), machine.running, std::move(action)});
}

bool arrive(Meeting& meeting, int threads, const std::function<void()>& action) {
  if (++meeting.arrived < threads) return false;
  meeting.arrived = 0;
  if (action) action();
  ++meeting.round;
  return true;
}

void meet(Meeting& meeting, int threads, const std::function<void()>& action) {
  const unsigned round = meeting.round;
  if (arrive(meeting, threads, action)) return;
  wait_until([&meeting, round] { return meeting.round != round; });
}

void meet_cluster() {
  std::vector<Block>& blocks = *here().block->cluster;
  Meeting& meeting = blocks[0].cluster_meets;
  const unsigned round = meeting.round;
  ++meeting.arrived;
  // Who has not met yet may return instead.
  wait_until([&blocks, &meeting, round] {
    if (meeting.round != round) return true;
    int threads = 0;
    for (const Block& block : blocks) threads += block.threads;
    if (meeting.arrived < threads) return false;
    meeting.arrived = 0;
    ++meeting.round;
    return true;
  });
}

char* at(uint32_t address) {
  const uint32_t rank = address >> kRankShift, offset = address & ((1u << kRankShift) - 1);
  Block& own = *here().block;
  if (rank > own.cluster->size() || offset < kFirstAddress ||
      offset >= kFirstAddress + kSharedBytes) {
    fail("no shared memory at " + std::to_string(address));
  }
  char* const memory = rank == 0 ? own.memory : (*own.cluster)[rank - 1].memory;
  return memory + (offset - kFirstAddress);
}

void launch(int64_t blocks, int threads, int cluster, int shared_bytes,
            const std::function<void()>& kernel) {
  if (shared_bytes > static_cast<int>(kSharedBytes) || blocks % cluster != 0) {
    throw std::runtime_error("no such launch");
  }
  machine.kernel = &kernel;
  grid_size = {static_cast<int>(blocks)};
  machine.failure.clear();
  machine.later.clear();
  const auto fibers_count = static_cast<size_t>(cluster) * static_cast<size_t>(threads);
  while (machine.stacks.size() < fibers_count) {
    machine.stacks.emplace_back(new char[kStackBytes]);
  }
  constexpr size_t kAlignment = 1024;
  while (machine.memories.size() < static_cast<size_t>(cluster)) {
    machine.memories.emplace_back(static_cast<char*>(std::aligned_alloc(kAlignment, kSharedBytes)),
                                  &std::free);
  }
  const auto together = [threads](int width) { return (threads + width - 1) / width; };
  for (int64_t first = 0; first < blocks; first += cluster) {
    std::vector<Block> members(static_cast<size_t>(cluster));
    std::vector<Fiber> fibers(fibers_count);
    std::vector<Warp> warps(static_cast<size_t>(cluster * together(32)));
    std::vector<Products> products(static_cast<size_t>(cluster * together(128)));
    for (int rank = 0; rank < cluster; ++rank) {
      Block& block = members[static_cast<size_t>(rank)];
      block.number = static_cast<int>(first) + rank;
      block.rank = rank;
      block.memory = machine.memories[static_cast<size_t>(rank)].get();
      block.cluster = &members;
      block.threads = threads;
      std::memset(block.memory, 0xFF, kSharedBytes);  // no numbers
      for (int thread = 0; thread < threads; ++thread) {
        const auto i = static_cast<size_t>(rank * threads + thread);
        fibers[i].thread = {thread, &block,
                            &warps[static_cast<size_t>(rank * together(32) + thread / 32)],
                            &products[static_cast<size_t>(rank * together(128) + thread / 128)]};
        ucontext_t& context = fibers[i].context;
        getcontext(&context);
        context.uc_stack.ss_sp = machine.stacks[i].get();
        context.uc_stack.ss_size = kStackBytes;
        context.uc_link = nullptr;
        makecontext(&context, enter, 0);
      }
    }
    run_cluster(fibers);
  }
}

}  // namespace emulation
