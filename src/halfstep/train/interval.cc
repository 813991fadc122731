#include "halfstep/train/interval.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "halfstep/comm/together.h"
#include "halfstep/io/units.h"
#include "halfstep/train/format_text.h"

namespace halfstep::train {

void Interval::restart() {
  start_ = Clock::now();
  paused_ = Clock::duration{0};
  steps_ = skipped_ = targets_ = tokens_ = saturated_ = 0;
  loss_sum_ = optimizer_ms_ = reduce_wait_ms_ = reduce_sum_ms_ = gather_wait_ms_ = 0;
  traffic_ = last_.traffic;
  last_.health.reset();
}

void Interval::pause() { paused_at_ = Clock::now(); }
void Interval::resume() { paused_ += Clock::now() - paused_at_; }

void Interval::add(const StepRecord& step) {
  last_ = step;
  ++steps_;
  tokens_ += step.tokens;
  optimizer_ms_ += step.optimizer_ms;
  reduce_wait_ms_ += step.reduce_wait_ms;
  reduce_sum_ms_ += step.reduce_sum_ms;
  gather_wait_ms_ += step.gather_wait_ms;
  saturated_ += step.saturated;
  if (step.skipped) {
    ++skipped_;
    return;
  }
  loss_sum_ += step.loss_sum;
  targets_ += step.targets;
}

double Interval::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_ - paused_).count();
}

double Interval::utilisation() const {
  return facts_.flops_per_token * tokens_per_second() / facts_.peak_flops;
}

double Interval::eta_seconds() const {
  if (steps_ == 0) return 0;
  return seconds() / static_cast<double>(steps_) *
         static_cast<double>(facts_.train_iters - last_.iteration);
}

RankSpread Interval::spread(comm::Communicator& ranks, int64_t peak_bytes) const {
  const double own[] = {1000 * seconds() / static_cast<double>(steps_),
                        static_cast<double>(peak_bytes), static_cast<double>(saturated_)};
  const std::vector<double> all = comm::gather(ranks, own);
  RankSpread spread{.ranks = ranks.size(),
                    .min_step_ms = all[0],
                    .max_step_ms = all[0],
                    .min_peak_bytes = static_cast<int64_t>(all[1]),
                    .max_peak_bytes = static_cast<int64_t>(all[1])};
  for (size_t i = 0; i < all.size(); i += std::size(own)) {
    const auto peak = static_cast<int64_t>(all[i + 1]);
    spread.min_step_ms = std::min(spread.min_step_ms, all[i]);
    spread.max_step_ms = std::max(spread.max_step_ms, all[i]);
    spread.min_peak_bytes = std::min(spread.min_peak_bytes, peak);
    spread.max_peak_bytes = std::max(spread.max_peak_bytes, peak);
    spread.saturated += static_cast<int64_t>(all[i + 2]);
  }
  return spread;
}

std::string Interval::line(const RankSpread& spread) const {
  const double steps = static_cast<double>(steps_);
  const bool many = spread.ranks > 1;
  std::string ms = fmt::format("{:.0f}", spread.max_step_ms);
  std::string peak = io::format_bytes(spread.max_peak_bytes);
  if (many) {
    ms = fmt::format("{:.0f} to {}", spread.min_step_ms, ms);
    peak = fmt::format("{} to {}", io::format_bytes(spread.min_peak_bytes), peak);
  }
  std::string text = fmt::format(
      "step {}/{} | loss {:.4f} | lr {} | norm {} | {} tok/s | {} ms (opt {:.1f}) | MFU {:.0f} % | "
      "mem {}, {} static{} | clip {}",
      last_.iteration, facts_.train_iters, loss(), format_rate(last_.lr),
      format_rate(last_.grad_norm), format_count(tokens_per_second()), ms, optimizer_ms_ / steps,
      100 * utilisation(), peak, io::format_bytes(facts_.static_bytes), many ? " per rank" : "",
      format_rate(last_.clip_coefficient));
  if (last_.health) {
    text += fmt::format(" | lost w {:.2g} v {:.2g}", last_.health->lost_weight(),
                        last_.health->lost_exp_avg_sq());
  }
  if (spread.saturated > 0) text += fmt::format(" | saturated {}", spread.saturated);
  if (skipped_ > 0) text += fmt::format(" | skipped {}", skipped_);
  return text + " | eta " + format_duration(eta_seconds());
}

nlohmann::ordered_json Interval::json(const RankSpread& spread) const {
  const double steps = static_cast<double>(steps_);
  nlohmann::ordered_json record{{"event", "step"},
                                {"step", last_.iteration},
                                {"loss", loss()},
                                {"lr", last_.lr},
                                {"grad_norm", last_.grad_norm},
                                {"clip", last_.clip_coefficient},
                                {"tokens_per_second", tokens_per_second()},
                                {"step_ms", spread.max_step_ms},
                                {"optimizer_ms", optimizer_ms_ / steps},
                                {"mfu", utilisation()},
                                {"peak_bytes", spread.max_peak_bytes},
                                {"skipped", skipped_},
                                {"saturated", spread.saturated}};
  if (spread.ranks > 1) {
    record["ranks"] = spread.ranks;
    record["min_step_ms"] = spread.min_step_ms;
    record["min_peak_bytes"] = spread.min_peak_bytes;
    record["reduce_wait_ms"] = reduce_wait_ms_ / steps;
    record["reduce_sum_ms"] = reduce_sum_ms_ / steps;
    record["gather_wait_ms"] = gather_wait_ms_ / steps;
    const auto per_step = [&](int64_t comm::Traffic::*bytes) {
      return static_cast<double>(last_.traffic.*bytes - traffic_.*bytes) / steps;
    };
    record["reduce_bytes"] = per_step(&comm::Traffic::all_to_all);
    record["gather_bytes"] = per_step(&comm::Traffic::all_gather);
  }
  if (last_.health) {
    const auto& h = *last_.health;
    record["lost_weight"] = h.lost_weight();
    record["lost_exp_avg_sq"] = h.lost_exp_avg_sq();
    record["small_exp_avg_sq"] =
        h.nonzero > 0 ? static_cast<double>(h.small) / static_cast<double>(h.nonzero) : 0.0;
  }
  return record;
}

}  // namespace halfstep::train
