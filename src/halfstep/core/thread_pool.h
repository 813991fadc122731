// A fixed set of threads that run the tasks of one loop at a time. Which thread runs which task is
// left open, so callers must make every task's result independent of it; all kernels do.
// parallel_for may be called from one thread at a time per pool; it does not allocate.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace halfstep {

// CPUs this process may use: the least of its affinity mask, its cgroup's quota (rounded up) and
// OMP_NUM_THREADS where that is set. At least 1.
int available_cpus();

class ThreadPool {
 public:
  // Starts num_threads − 1 threads (the caller is the last one). num_threads ≥ 1.
  explicit ThreadPool(int num_threads = available_cpus());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Runs body(task) once for each task in [0, num_tasks), and returns when all are done. An
  // exception of a task is rethrown here after the others have ended (the first one wins).
  template <typename Body>
  void parallel_for(int64_t num_tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(num_tasks, [](void* context, int64_t task) { (*static_cast<Plain*>(context))(task); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // The pool of this process, made on first use with available_cpus() threads; on a thread with an
  // Override, that pool.
  static ThreadPool& global();
  // While it lives, global() is `pool` on the thread that made it: ranks that are threads of one
  // process compute at the same time, and a pool serves one caller.
  class Override {
   public:
    explicit Override(ThreadPool& pool);
    ~Override();
    Override(const Override&) = delete;
    Override& operator=(const Override&) = delete;

   private:
    ThreadPool* before_;
  };
  // Replaces the global pool. Not while a kernel runs.
  static void set_global_threads(int num_threads);

 private:
  void run(int64_t num_tasks, void (*body)(void*, int64_t), void* context);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace halfstep
