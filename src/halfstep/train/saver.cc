#include "halfstep/train/saver.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <chrono>
#include <span>
#include <utility>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/together.h"
#include "halfstep/core/error.h"
#include "halfstep/core/stopwatch.h"
#include "halfstep/io/file.h"
#include "halfstep/io/units.h"
#include "halfstep/optim/memory_counter.h"
#include "halfstep/train/arena_slices.h"
#include "halfstep/train/flags.h"

namespace halfstep::train {
namespace {

using checkpoint::RetentionPolicy;
using checkpoint::TrainState;

// Everything of the run that is not a tensor.
TrainState train_state(const Trainer& t) {
  const optim::UpdateCounts counts = t.optimizer->update_counts();
  nlohmann::json hyperparameters = settings_json(t.options);
  // What auto chose: a measurement, which a resumed run must not repeat.
  hyperparameters["matmul-precision"] = t.compute.dtype == at::kBFloat16 ? "bf16" : "fp32";
  TrainState state{
      .iteration = t.progress.iteration,
      .t = counts.common,
      .t_exceptions = counts.exceptions,
      .consumed_samples = t.progress.consumed_samples,
      .consumed_tokens = t.progress.consumed_tokens,
      .skipped_steps = t.progress.skipped_steps,
      .consecutive_skipped_steps = t.progress.consecutive_skipped_steps,
      .seed = t.seed,
      .data_fingerprint = t.training->fingerprint(),
      .torch_threads = at::get_num_threads(),
      .storage = t.arenas->layout().arenas[0].format,
      .fp32_params = {},
      .hyperparameters = std::move(hyperparameters),
      .model_config = nlohmann::json::parse(arch::to_hf_config(t.config)),
      .data = {{"seq_length", t.options.seq_length}, {"tokenizer", t.options.tokenizer}}};
  const auto& arenas = t.arenas->layout().arenas;
  for (size_t arena = 1; arena < arenas.size(); ++arena) {
    for (const auto& placement : arenas[arena].placements) {
      state.fp32_params.push_back(t.arenas->parameters()[placement.parameter].name);
    }
  }
  return state;
}

constexpr char kGoesOn[] = "  the run goes on and tries again at the next --save-interval";

RetentionPolicy retention_policy(const Trainer& t) {
  // While steps are being skipped the newest weights may be the broken ones: older ones stay.
  const bool in_doubt = t.progress.consecutive_skipped_steps > 0;
  return {.keep_last = in_doubt ? 0 : t.options.keep_last, .keep_every = t.options.keep_every};
}

}  // namespace

void prepare_async_save(Trainer& t) {
  const int64_t planned = bytes_to_save(*t.arenas, t.ranks.rank());
  const auto& counter = optim::MemoryCounter::instance();
  const int64_t before = counter.thread_bytes();
  t.save_copy = at::zeros({planned}, at::kByte);  // written, so that its pages exist
  t.save_copy_bytes = counter.thread_bytes() - before;
  if (t.save_copy_bytes != planned) {
    throw InternalError(fmt::format("the copy of --async-save took {} bytes, planned {}",
                                    t.save_copy_bytes, planned));
  }
  t.async_saver = std::make_unique<checkpoint::AsyncSaver>(
      t.ranks.duplicate(),
      std::span(static_cast<std::byte*>(t.save_copy.data_ptr()), static_cast<size_t>(planned)));
}

void report_save_space(const Trainer& t, RunLog& log) {
  if (t.options.save.empty()) return;
  const std::optional<int64_t> free = io::free_bytes(t.options.save);
  if (!free) return;
  const int64_t needed = bytes_to_save(*t.arenas);
  const int64_t room = *free + checkpoint::leftover_bytes(t.options.save);
  if (needed <= room) return;
  log.line(fmt::format("warning: a checkpoint takes {}, and '{}' has {} free: saves will fail",
                       io::format_bytes(needed), t.options.save, io::format_bytes(room)));
}

Saver::Saver(Trainer& t, RunLog& log) : t_(t), log_(log), saved_at_(t.progress.iteration) {}

bool Saver::saved() const { return t_.options.save.empty() || saved_at_ == t_.progress.iteration; }

void Saver::save() {
  const auto start = Clock::now();
  said_if_failed([&] { finish(); }, kGoesOn);
  if (!saved()) said_if_failed([&] { begin(start); }, kGoesOn);
}

void Saver::poll() {
  if (t_.async_saver && t_.async_saver->under_way() && t_.async_saver->done()) {
    said_if_failed([&] { finish(); }, kGoesOn);
  }
}

void Saver::save_last() {
  const auto start = Clock::now();
  said_if_failed([&] { finish(); }, "");
  if (!saved()) {
    begin(start);
    finish();
  }
  // The thread's communicator ends with the run: no rank may still be reading from another.
  if (t_.async_saver) t_.ranks.barrier();
}

void Saver::try_save_last() {
  said_if_failed([&] { save_last(); }, "");
}

void Saver::try_finish() {
  said_if_failed([&] { finish(); }, "");
}

void Saver::begin(Clock::time_point since) {
  t_.gather->wait_for_all();
  latest_ = {.iteration = t_.progress.iteration, .stall_ms = 0};
  TrainState state;
  std::vector<checkpoint::TensorSlice> slices;
  // What fails here on one rank must not leave the others alone in the save.
  comm::together(t_.ranks, [&] {
    state = train_state(t_);
    slices = slices_to_save(*t_.arenas, t_.ranks.rank());
  });
  if (t_.async_saver) {
    t_.async_saver->start(t_.options.save, std::move(state), slices, retention_policy(t_));
    latest_.stall_ms = milliseconds_since(since);
    return;
  }
  const auto result =
      checkpoint::save_checkpoint(t_.options.save, state, slices, retention_policy(t_), t_.ranks);
  latest_.stall_ms = milliseconds_since(since);
  report_saved(result);
}

void Saver::finish() {
  if (t_.async_saver && t_.async_saver->under_way()) report_saved(t_.async_saver->wait());
}

void Saver::said_if_failed(const std::function<void()>& body, const char* then) {
  try {
    body();
  } catch (const comm::CommError&) {
    throw;
  } catch (const std::exception& error) {
    report_failed(error);
    if (*then != 0) log_.line(then);
  }
}

void Saver::report_saved(const checkpoint::SaveResult& result) {
  saved_at_ = latest_.iteration;
  for (const std::string& warning : result.warnings) log_.line("warning: " + warning);
  std::string text =
      fmt::format("saved {} ({}", result.directory.string(), io::format_bytes(result.bytes));
  if (t_.async_saver) {
    text += fmt::format("; training stood still for {:.0f} of {:.0f} ms", latest_.stall_ms,
                        result.milliseconds);
  }
  log_.line(text + ")");
  log_.event({{"event", "save"},
              {"step", latest_.iteration},
              {"directory", result.directory.string()},
              {"bytes", result.bytes},
              {"stall_ms", latest_.stall_ms},
              {"write_ms", result.milliseconds},
              {"removed", result.removed}});
}

void Saver::report_failed(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  log_.line(fmt::format("warning: step {} was not saved: {}{}", latest_.iteration, error.what(),
                        ours && !ours->hint().empty() ? " (" + ours->hint() + ")" : ""));
  log_.event({{"event", "save_failed"}, {"step", latest_.iteration}, {"error", error.what()}});
}

}  // namespace halfstep::train
