// A pool of threads that share the tasks of one loop at a time.
//
// The caller works too and never waits for a helper that has taken nothing: on a busy machine a
// helper that is not running costs its help, not a stall. Between two loops of one step helpers
// spin, for the next is only microseconds away; after a while without work they sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace promptmill {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Pool {
 public:
  explicit Pool(int num_threads) {
    for (int index = 1; index < num_threads; ++index) {
      helpers_.emplace_back([this, index] { help(index); });
    }
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_closing_.store(true);
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Call work(task, thread) for every task below num_tasks; return when all are done.
  template <class Work>
  void share(int num_tasks, const Work& work) {
    if (num_tasks <= 1 || helpers_.empty()) {
      for (int task = 0; task < num_tasks; ++task) work(task, 0);
      return;
    }
    call_ = [](const void* of, int task, int thread) {
      (*static_cast<const Work*>(of))(task, thread);
    };
    work_ = &work;
    num_done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = loop_of(state_.load(std::memory_order_relaxed)) + 1;
    state_.store(loop << 40 | uint64_t(num_tasks) << 20, std::memory_order_release);
    wake_sleepers();
    take_tasks(loop, 0);
    for (int spins = 0; num_done_.load(std::memory_order_acquire) < num_tasks; ++spins) {
      spins < kSpinsBeforeYield ? pause_briefly() : std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpinsBeforeYield = 2000;
  static constexpr int kSpinsBeforeSleep = 20000;

  // One word tells which loop runs, how many tasks it has and which is next, so that a helper that
  // comes too late can never take a task of another loop: its exchange fails.
  static uint64_t loop_of(uint64_t state) { return state >> 40; }
  static int num_tasks_of(uint64_t state) { return (state >> 20) & 0xfffff; }
  static int next_of(uint64_t state) { return state & 0xfffff; }

  void take_tasks(uint64_t loop, int thread) {
    uint64_t state = state_.load(std::memory_order_acquire);
    while (loop_of(state) == loop && next_of(state) < num_tasks_of(state)) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      call_(work_, next_of(state), thread);
      num_done_.fetch_add(1, std::memory_order_release);
      state = state_.load(std::memory_order_acquire);
    }
  }

  void help(int thread) {
    uint64_t seen = 0;
    for (int spins = 0; !is_closing_.load(std::memory_order_relaxed);) {
      const uint64_t loop = loop_of(state_.load(std::memory_order_acquire));
      if (loop != seen) {
        take_tasks(loop, thread);
        seen = loop;
        spins = 0;
      } else if (++spins < kSpinsBeforeSleep) {
        pause_briefly();
      } else {
        sleep_after(seen);
        spins = 0;
      }
    }
  }

  void sleep_after(uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    num_sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return is_closing_.load() || loop_of(state_.load()) != seen; });
    num_sleeping_.fetch_sub(1);
  }

  void wake_sleepers() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (num_sleeping_.load() == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }

  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> is_closing_{false};
  std::atomic<int> num_sleeping_{0};
  void (*call_)(const void*, int, int) = nullptr;
  const void* work_ = nullptr;
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> num_done_{0};
};

}  // namespace promptmill
