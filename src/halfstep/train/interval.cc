#include "halfstep/train/interval.h"

#include <fmt/core.h>

#include "halfstep/io/units.h"
#include "halfstep/train/format_text.h"

namespace halfstep::train {

void Interval::restart() {
  start_ = Clock::now();
  paused_ = Clock::duration{0};
  steps_ = skipped_ = targets_ = tokens_ = saturated_ = 0;
  loss_sum_ = optimizer_ms_ = 0;
  last_.health.reset();
}

void Interval::pause() { paused_at_ = Clock::now(); }
void Interval::resume() { paused_ += Clock::now() - paused_at_; }

void Interval::add(const StepRecord& step) {
  last_ = step;
  ++steps_;
  tokens_ += step.tokens;
  optimizer_ms_ += step.optimizer_ms;
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

std::string Interval::line(int64_t peak_bytes) const {
  const double steps = static_cast<double>(steps_);
  std::string text = fmt::format(
      "step {}/{} | loss {:.4f} | lr {} | norm {} | {} tok/s | {:.0f} ms (opt {:.1f}) | MFU {:.0f} "
      "% "
      "| mem {}, {} static | clip {}",
      last_.iteration, facts_.train_iters, loss(), format_rate(last_.lr),
      format_rate(last_.grad_norm), format_count(tokens_per_second()), 1000 * seconds() / steps,
      optimizer_ms_ / steps, 100 * utilisation(), io::format_bytes(peak_bytes),
      io::format_bytes(facts_.static_bytes), format_rate(last_.clip_coefficient));
  if (last_.health) {
    text += fmt::format(" | lost w {:.2g} v {:.2g}", last_.health->lost_weight(),
                        last_.health->lost_exp_avg_sq());
  }
  if (saturated_ > 0) text += fmt::format(" | saturated {}", saturated_);
  if (skipped_ > 0) text += fmt::format(" | skipped {}", skipped_);
  return text + " | eta " + format_duration(eta_seconds());
}

nlohmann::ordered_json Interval::json(int64_t peak_bytes) const {
  const double steps = static_cast<double>(steps_);
  nlohmann::ordered_json record{{"event", "step"},
                                {"step", last_.iteration},
                                {"loss", loss()},
                                {"lr", last_.lr},
                                {"grad_norm", last_.grad_norm},
                                {"clip", last_.clip_coefficient},
                                {"tokens_per_second", tokens_per_second()},
                                {"step_ms", 1000 * seconds() / steps},
                                {"optimizer_ms", optimizer_ms_ / steps},
                                {"mfu", utilisation()},
                                {"peak_bytes", peak_bytes},
                                {"skipped", skipped_},
                                {"saturated", saturated_}};
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
