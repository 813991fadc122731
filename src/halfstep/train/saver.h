// The saves of a run: when one is due, what it holds, what is said of it. With --async-save they
// are written in the background from a copy in memory, one at a time; the next one waits for it,
// and so does whatever ends the run, but for an error on one of several ranks: the others may be
// gone. Used by the loop, on its thread, by every rank at the same steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>

#include "halfstep/checkpoint/async_saver.h"
#include "halfstep/train/trainer.h"

namespace halfstep::train {

// With --async-save: the copy, all of it allocated, and the thread. Called by set_up on every rank.
void prepare_async_save(Trainer& trainer);

// A line at the start of a run if one checkpoint is larger than what is free in --save.
void report_save_space(const Trainer& trainer, RunLog& log);

class Saver {
 public:
  // A resumed run that has nothing left to do saves nothing.
  Saver(Trainer& trainer, RunLog& log);

  // At --save-interval. A save that fails is said with its cause and ends nothing, as the disk may
  // have room again at the next interval; in the background, it is said when that is known.
  void save();
  // At every step boundary: says what a save in the background has come to, if it has ended.
  void poll();
  // What has been trained, if it is not saved yet. Returns when it is on the disk; throws if that
  // failed.
  void save_last();
  // The same, and a failure is only said.
  void try_save_last();
  // Waits for the save in the background, if there is one. A failure is only said.
  void try_finish();

 private:
  using Clock = std::chrono::steady_clock;

  bool saved() const;
  // Writes, or begins to, what has been trained; training has stood still since `since`.
  void begin(Clock::time_point since);
  // Waits for the save in the background, if there is one, and takes its result; throws if it
  // failed.
  void finish();
  // Runs `body`. That a save has failed is said, and `then`; a CommError is thrown.
  void said_if_failed(const std::function<void()>& body, const char* then);
  void report_saved(const checkpoint::SaveResult& result);
  void report_failed(const std::exception& error);

  // The save that was begun last.
  struct Latest {
    int64_t iteration = 0;
    double stall_ms = 0;  // for which training stood still
  };

  Trainer& t_;
  RunLog& log_;
  int64_t saved_at_;
  Latest latest_;
};

}  // namespace halfstep::train
