#include "halfstep/train/report.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <regex>
#include <vector>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/comm/together.h"
#include "halfstep/core/error.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/data/example_sampler.h"
#include "halfstep/io/units.h"
#include "halfstep/kernels/implementation.h"
#include "halfstep/optim/memory_counter.h"
#include "halfstep/optim/weights.h"
#include "halfstep/train/arena_slices.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/format_text.h"
#include "halfstep/train/saver.h"

namespace halfstep::train {
namespace {

using Json = nlohmann::ordered_json;

// Names with their layer number replaced by *, each once, in order.
std::string collapsed_names(const std::vector<arch::Parameter>& parameters,
                            const std::vector<int64_t>& indices) {
  static const std::regex number("\\.[0-9]+\\.");
  std::vector<std::string> names;
  for (const int64_t p : indices) {
    const std::string name = std::regex_replace(parameters[p].name, number, ".*.");
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const char* compute_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; }

Json memory_json(const Trainer& t) {
  const optim::MemoryReport& memory = t.arenas->memory();
  Json classes = Json::array();
  for (const optim::ClassMemory& c : memory.classes) {
    classes.push_back({{"class", layout::memory_class_name(c.memory_class)},
                       {"arena", c.arena},
                       {"dtype", dtype_name(c.dtype)},
                       {"planned_bytes", c.planned_bytes},
                       {"measured_bytes", c.measured_bytes}});
  }
  return {{"event", "memory"},
          {"parameters", memory.num_parameters},
          {"elements", memory.num_elements},
          {"planned_bytes", memory.planned_bytes},
          {"measured_bytes", memory.measured_bytes},
          {"scratch_bytes", t.reducer->scratch_bytes()},
          {"save_copy_bytes", t.save_copy_bytes},
          {"classes", classes}};
}

void report_memory(const Trainer& t, RunLog& log) {
  const optim::MemoryReport& memory = t.arenas->memory();
  for (const optim::ClassMemory& c : memory.classes) {
    log.detail(
        fmt::format("  {:<15}{:<7}{:>10} planned {:>10} measured {:>7.3f} bytes per parameter{}",
                    layout::memory_class_name(c.memory_class), dtype_name(c.dtype),
                    io::format_bytes(c.planned_bytes), io::format_bytes(c.measured_bytes),
                    c.bytes_per_parameter, c.arena > 0 ? " of --fp32-params" : ""));
  }
  const double parameters = static_cast<double>(memory.num_parameters);
  log.detail(fmt::format("  {:<22}{:>10} planned {:>10} measured {:>7.3f} bytes per parameter",
                         "together", io::format_bytes(memory.planned_bytes),
                         io::format_bytes(memory.measured_bytes),
                         static_cast<double>(memory.measured_bytes) / parameters));
  if (t.ranks.size() > 1) {
    const int64_t planned = t.arenas->layout().reduce_buffers(kBucketsInFlight).bytes();
    log.detail(fmt::format("  {:<22}{:>10} planned {:>10} measured, for buckets on their way",
                           "scratch", io::format_bytes(planned),
                           io::format_bytes(t.reducer->scratch_bytes())));
  }
  if (t.async_saver) {
    const int64_t planned = bytes_to_save(*t.arenas, t.ranks.rank());
    log.detail(fmt::format("  {:<22}{:>10} planned {:>10} measured, what --async-save is writing",
                           "save copy", io::format_bytes(planned),
                           io::format_bytes(t.save_copy_bytes)));
  }
}

// What fine-tuning examples became: how much of a sequence has a loss, and how much is padding.
void report_examples(const Trainer& t, RunLog& log) {
  if (!t.tokens.examples) return;
  for (const data::SampleSource* source : {t.training.get(), t.validation.get()}) {
    const auto* examples = dynamic_cast<const data::ExampleSampler*>(source);
    if (examples == nullptr) continue;
    const char* split = source == t.training.get() ? "training" : "validation";
    log.detail(fmt::format(
        "  {:<10} {} examples with {} tokens, {} of them learned, in {} sequences that are {:.1f} % "
        "full",
        split, examples->num_examples(), examples->num_tokens(), examples->num_targets(),
        examples->samples_per_epoch(), 100 * examples->fill()));
    log.event({{"event", "examples"},
               {"split", split},
               {"examples", examples->num_examples()},
               {"tokens", examples->num_tokens()},
               {"targets", examples->num_targets()},
               {"sequences", examples->samples_per_epoch()},
               {"fill", examples->fill()}});
  }
  const data::LongExampleCounts& long_ones = t.tokens.too_long;
  if (long_ones.longest == 0) return;
  log.line(fmt::format("  --long-examples: {} examples truncated, {} dropped; the longest, {}, has {} "
                       "tokens",
                       long_ones.truncated, long_ones.dropped, long_ones.longest_name,
                       long_ones.longest));
}

void report_ranks(const Trainer& t, RunLog& log) {
  if (t.ranks.size() == 1) return;
  const layout::Layout& layout = t.arenas->layout();
  const int64_t largest = layout.reduce_buffers(kBucketsInFlight).receive_bytes;
  log.detail(fmt::format(
      "ranks     {}, each with its shard of master and state{}; gradients travel in {}, {} buckets "
      "of up to {}, {}; weights are gathered {}",
      t.ranks.size(),
      t.options.use_distributed_optimizer ? ""
                                          : " (so without --use-distributed-optimizer too: copies "
                                            "would cost memory and give nothing)",
      dtype_name(layout.arenas[0].wire), layout.buckets.size(), io::format_bytes(largest),
      t.reducer->overlaps() ? "each as soon as backward has completed it" : "after backward",
      t.gather->overlaps() ? "while the next forward runs" : "after the step"));
}

void report_rounding(const Trainer& t, RunLog& log) {
  const optim::ArenaFormat& common = t.optimizer->formats().front();
  const auto state = [&](const char* name, Dtype dtype, const kernels::RoundingChoice& choice) {
    if (dtype == Dtype::kF32) return;
    log.detail(fmt::format("  {:<15}{} ({})", name, rounding_name(choice.rounding), choice.reason));
  };
  log.detail("rounding");
  state("exp_avg", common.format.exp_avg, common.exp_avg);
  state("exp_avg_sq", common.format.exp_avg_sq, common.exp_avg_sq);
  const int64_t k = t.options.num_micro_batches();
  const auto& accumulation = t.gradients->rounding(0);
  std::string added = fmt::format("of {} micro-batch{} added up in {}", k, k == 1 ? "" : "es",
                                  dtype_name(common.format.grad));
  if (common.format.grad != Dtype::kF32) {
    added += fmt::format(", {} ({})", rounding_name(accumulation.rounding), accumulation.reason);
  }
  log.detail(fmt::format("  {:<15}{}", "gradients", added));
  if (common.format.exp_avg_sq == Dtype::kBF16 && t.options.adam_beta2 >= 0.99) {
    log.detail(
        "  from beta2 = .99 up, --exp-avg-sq-dtype ue6m10 is more exact in the same 2 bytes");
  }
}

const char* fusion_text(const Trainer& t) {
  if (t.fused) return "weight gradients add straight into the FP32 buffer";
  return t.options.no_gradient_accumulation_fusion
             ? "off"
             : "cannot act here: it needs FP32 compute and FP32 gradients";
}

Json layer_norms(const Trainer& t, int64_t loss_weight) {
  Json norms = Json::object();
  const auto sums = t.optimizer->gradient_sum_squares();
  for (size_t p = 0; p < sums.size(); ++p) {
    norms[t.arenas->parameters()[p].name] = {
        {"gradient", std::sqrt(sums[p]) / static_cast<double>(loss_weight)},
        {"weight", std::sqrt(optim::weight_sum_squares(*t.arenas, static_cast<int64_t>(p)))}};
  }
  return norms;
}

}  // namespace

RunFacts run_facts(const Trainer& t) {
  return {.train_iters = t.options.train_iters,
          .flops_per_token = flops_per_token(t.config, t.options.seq_length),
          .peak_flops = t.compute.peak_flops * static_cast<double>(t.ranks.size()),
          .static_bytes = t.arenas->memory().measured_bytes + t.save_copy_bytes};
}

void report_start(const Trainer& t, RunLog& log) {
  const optim::MemoryReport& memory = t.arenas->memory();
  const double padding = 100.0 * static_cast<double>(memory.num_elements - memory.num_parameters) /
                         static_cast<double>(memory.num_parameters);
  log.detail(
      fmt::format("model     {} parameters in {} layers, {} elements with padding ({:.3f} %)",
                  memory.num_parameters, t.config.num_layers, memory.num_elements, padding));
  log.detail(fmt::format("compute   {} ({})", compute_name(t.compute.dtype), t.compute.reason));
  report_ranks(t, log);
  log.detail(fmt::format("threads   {}, kernels {}", at::get_num_threads(),
                         kernels::chosen_implementation()));
  log.detail(fmt::format(
      "data      {} training sequences of {} tokens, {} for validation; a step reads {} x {}{}",
      t.training->samples_per_epoch(), t.options.seq_length,
      t.validation ? t.validation->samples_per_epoch() : 0, t.options.num_micro_batches(),
      t.options.micro_batch_size,
      t.ranks.size() == 1 ? "" : fmt::format(" on each of {} ranks", t.ranks.size())));
  report_examples(t, log);
  log.detail(t.ranks.size() == 1 ? "memory" : "memory of a rank");
  report_memory(t, log);
  report_rounding(t, log);
  log.detail(fmt::format("fusion    {}", fusion_text(t)));
  if (t.options.save.empty()) log.detail("save      nothing: there is no --save");
  for (const optim::DecayGroup& group : t.optimizer->decay_groups()) {
    log.detail(fmt::format("{:<9} {:g}, {} parameters, {} elements: {}", group.name,
                           group.weight_decay, group.parameters.size(), group.num_elements,
                           collapsed_names(t.arenas->parameters(), group.parameters)));
  }
  report_save_space(t, log);
  for (const std::string& warning : t.optimizer->warnings()) log.line("warning: " + warning);

  log.event({{"event", "start"},
             {"step", t.progress.iteration},
             {"compute", compute_name(t.compute.dtype)},
             {"kernels", kernels::chosen_implementation()},
             {"threads", at::get_num_threads()},
             {"settings", settings_json(t.options)}});
  log.event(memory_json(t));
}

void report_interval(const Trainer& t, Interval& interval, RunLog& log) {
  const int64_t peak = optim::MemoryCounter::instance().peak_bytes();
  const RankSpread spread = interval.spread(t.ranks, peak);
  log.line(interval.line(spread));
  Json record = interval.json(spread);
  record["consumed_tokens"] = t.progress.consumed_tokens;
  if (t.options.log_per_layer) record["norms"] = layer_norms(t, interval.last_targets());
  // docs/numerics.md §3: below 2^-52 ue6m10 has fewer than ten bits.
  const double small = record.value("small_exp_avg_sq", 0.0);
  if (t.options.exp_avg_sq_storage() == Dtype::kUE6M10 && small > 0.01) {
    log.line(
        fmt::format("  warning: {:.1f} % of exp_avg_sq lie under the full precision of ue6m10; "
                    "--exp-avg-sq-dtype bf16 has no such limit",
                    100 * small));
  }
  log.event(record);
  interval.restart();
}

void report_samples(const Trainer& t, const StepRecord& step, RunLog& log) {
  const std::vector<double> own(step.samples.begin(), step.samples.end());
  const std::vector<double> all = comm::gather(t.ranks, own);
  log.event({{"event", "samples"},
             {"step", step.iteration},
             {"ids", std::vector<int64_t>(all.begin(), all.end())}});
}

void report_skipped_step(const StepRecord& step, RunLog& log) {
  log.line(fmt::format("step {} skipped: the gradient of '{}' is not finite; nothing was changed",
                       step.iteration, step.bad_parameter));
  log.event({{"event", "skipped"}, {"step", step.iteration}, {"parameter", step.bad_parameter}});
}

void report_end(const Trainer& t, RunLog& log, bool finished) {
  const auto& counter = optim::MemoryCounter::instance();
  log.detail(
      fmt::format("{} after step {}", finished ? "finished" : "stopped", t.progress.iteration));
  log.detail("memory");
  report_memory(t, log);
  Json phases = Json::object();
  std::string text;
  for (int p = 0; p < optim::kNumPhases; ++p) {
    const auto phase = static_cast<optim::Phase>(p);
    phases[std::string(optim::phase_name(phase))] = counter.peak_bytes(phase);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", optim::phase_name(phase),
                        io::format_bytes(counter.peak_bytes(phase)));
  }
  log.detail("  peak by phase  " + text);
  if (t.progress.skipped_steps > 0) {
    log.detail(
        fmt::format("  {} steps were skipped (non-finite gradients)", t.progress.skipped_steps));
  }
  // Not there if nothing was left to do in a run that was loaded from elsewhere.
  const std::string saved = t.options.save + "/" + checkpoint::step_name(t.progress.iteration);
  if (!t.options.save.empty() && std::filesystem::exists(saved)) log.detail("checkpoint  " + saved);
  log.event({{"event", "end"},
             {"step", t.progress.iteration},
             {"finished", finished},
             {"skipped_steps", t.progress.skipped_steps},
             {"peak_bytes", counter.peak_bytes()},
             {"peak_bytes_by_phase", phases}});
}

void throw_interrupted(const Trainer& t, const char* signal) {
  const bool saved = !t.options.save.empty();
  throw Error(ExitCode::kInterrupted,
              fmt::format("stopped by {} after step {}, {}", signal, t.progress.iteration,
                          saved ? "saved in " + t.options.save : "nothing saved (no --save)"),
              saved ? "continue with the same flags and --load " + t.options.save : "");
}

void throw_diverged(const Trainer& t, const std::string& bad_parameter) {
  throw Error(
      ExitCode::kDiverged,
      fmt::format("{} steps in a row had non-finite gradients, the last one (step {}) first "
                  "in '{}'; none of them changed a weight",
                  t.progress.consecutive_skipped_steps, t.progress.iteration, bad_parameter),
      "lower --lr, lengthen the warm-up, or look at the data; --max-skipped-steps sets the "
      "limit");
}

void throw_not_finite(const Trainer& t) {
  throw Error(
      ExitCode::kDiverged,
      fmt::format(
          "the last step, {}, is done, but the loss or the gradients there are not finite{}",
          t.progress.iteration, t.options.save.empty() ? "" : "; saved all the same"),
      "lower --lr, lengthen the warm-up, or look at the data");
}

}  // namespace halfstep::train
