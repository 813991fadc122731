// Saves in the background: start() copies this rank's slices to host memory, at the speed of
// memory, and returns; a thread of its own writes the copy with save_checkpoint, over a
// communicator of its own. Files, commit protocol and guarantees are save_checkpoint's.
//
// One save at a time. The ranks need not agree on when one has ended, but on the order of their
// calls to start(). What it comes to, result or error, is what wait() returns or throws, the same
// on all ranks. Used by the training loop, on one thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "halfstep/checkpoint/retention.h"
#include "halfstep/checkpoint/slice.h"
#include "halfstep/checkpoint/train_state.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/communicator.h"

namespace halfstep::checkpoint {

class AsyncSaver {
 public:
  // `ranks` is the background thread's alone (Communicator::duplicate). `copy` has room for the
  // slices of any save; it outlives this object, so that nothing is allocated when one begins.
  AsyncSaver(std::unique_ptr<comm::Communicator> ranks, std::span<std::byte> copy,
             SaveOptions options = {});
  // A save under way is given up, on all ranks, at its next chunk: who wants it calls wait().
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // A save has been started and not been waited for.
  bool under_way() const { return result_.valid(); }
  // wait() would return at once. Needs a save under way.
  bool done() const;
  SaveResult wait();

  // The slices may change when it returns. Needs the one before to have been waited for.
  void start(std::filesystem::path dir, TrainState state, std::span<const TensorSlice> slices,
             const RetentionPolicy& policy);

 private:
  void work();

  const std::unique_ptr<comm::Communicator> ranks_;
  const std::span<std::byte> copy_;
  std::atomic<bool> give_up_ = false;
  SaveOptions options_;
  std::future<SaveResult> result_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::packaged_task<SaveResult()> task_;  // for the thread to take
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace halfstep::checkpoint
