#include "halfstep/core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "halfstep/core/cgroup.h"
#include "halfstep/core/error.h"

namespace halfstep {

int available_cpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  if (int granted = cgroup_cpus(); granted > 0) cpus = std::min(cpus, granted);
  // OMP_NUM_THREADS may be a list of nesting levels; the first entry is the outermost.
  if (const char* omp = std::getenv("OMP_NUM_THREADS")) {
    if (int asked = std::atoi(omp); asked > 0) cpus = std::min(cpus, asked);
  }
  return std::max(cpus, 1);
}

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable start, done;
  std::vector<std::thread> threads;
  // One loop; guarded by mutex but for next_task.
  void (*body)(void*, int64_t) = nullptr;
  void* context = nullptr;
  int64_t num_tasks = 0;
  std::atomic<int64_t> next_task{0};
  uint64_t generation = 0;
  int busy = 0;
  bool stopping = false;
  std::exception_ptr failure;

  void work() {
    try {
      for (int64_t task; (task = next_task.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
        body(context, task);
      }
    } catch (...) {
      next_task.store(num_tasks, std::memory_order_relaxed);
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  void stop() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    start.notify_all();
    for (auto& thread : threads) thread.join();
    threads.clear();
  }

  void thread_main() {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      start.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) return;
      seen = generation;
      lock.unlock();
      work();
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  try {
    for (int i = 1; i < num_threads; ++i) {
      state_->threads.emplace_back([state = state_.get()] { state->thread_main(); });
    }
  } catch (const std::system_error& error) {
    const size_t started = state_->threads.size() + 1;
    state_->stop();
    throw UsageError("cannot start " + std::to_string(num_threads) + " threads, only " +
                         std::to_string(started) + ": " + error.what(),
                     "ask for fewer: --num-threads or OMP_NUM_THREADS");
  }
}

ThreadPool::~ThreadPool() { state_->stop(); }

int ThreadPool::num_threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(int64_t num_tasks, void (*body)(void*, int64_t), void* context) {
  if (num_tasks <= 0) return;
  State& s = *state_;
  {
    std::lock_guard lock(s.mutex);
    s.body = body;
    s.context = context;
    s.num_tasks = num_tasks;
    s.next_task.store(0, std::memory_order_relaxed);
    s.failure = nullptr;
    // A loop of one task is not worth waking anybody.
    if (num_tasks > 1) {
      ++s.generation;
      s.busy = static_cast<int>(s.threads.size());
    }
  }
  if (num_tasks > 1) s.start.notify_all();
  s.work();
  std::unique_lock lock(s.mutex);
  s.done.wait(lock, [&] { return s.busy == 0; });
  if (s.failure) std::rethrow_exception(std::exchange(s.failure, nullptr));
}

namespace {
std::unique_ptr<ThreadPool>& global_pool() {
  static std::unique_ptr<ThreadPool> pool = std::make_unique<ThreadPool>();
  return pool;
}
thread_local ThreadPool* own_pool = nullptr;
}  // namespace

ThreadPool& ThreadPool::global() { return own_pool != nullptr ? *own_pool : *global_pool(); }

ThreadPool::Override::Override(ThreadPool& pool) : before_(std::exchange(own_pool, &pool)) {}
ThreadPool::Override::~Override() { own_pool = before_; }

void ThreadPool::set_global_threads(int num_threads) {
  if (num_threads != global_pool()->num_threads()) {
    global_pool().reset();
    global_pool() = std::make_unique<ThreadPool>(std::max(num_threads, 1));
  }
}

}  // namespace halfstep
