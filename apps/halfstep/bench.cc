// `halfstep bench`: the optimizer step against the machine's in-place stream and torch's
// optimizers.
#include <fmt/core.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "halfstep/bench/optimizer_bench.h"
#include "halfstep/core/error.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/kernels/implementation.h"

namespace halfstep::apps {
namespace {

using bench::BenchReport;
using bench::Row;
using bench::TensorsReport;
using nlohmann::ordered_json;

double rounded(double x) { return std::round(x * 1000) / 1000; }

ordered_json rows_json(const std::vector<Row>& rows) {
  ordered_json list = ordered_json::array();
  for (const Row& row : rows) {
    list.push_back({{"name", row.name},
                    {"min_ms", rounded(row.timing.min_ms)},
                    {"median_ms", rounded(row.timing.median_ms)},
                    {"bytes_per_element", row.bytes_per_element},
                    {"gbps", rounded(row.gbps)}});
  }
  return list;
}

std::vector<bench::Bar> bars_of(const BenchReport& report, const TensorsReport& tensors) {
  return bench::bars_of(tensors.rows, tensors.set, report.stream_gbps,
                        kernels::chosen_implementation());
}

ordered_json bars_json(const BenchReport& report, const TensorsReport& tensors) {
  ordered_json bars = ordered_json::array();
  for (const auto& bar : bars_of(report, tensors)) {
    bars.push_back(
        {{"what", bar.what}, {"measured", rounded(bar.measured)}, {"required", bar.required}});
  }
  return bars;
}

void print_json(const bench::BenchOptions& options, const BenchReport& report) {
  const ordered_json document{{"stream_gbps", rounded(report.stream_gbps)},
                              {"elements", report.one.elements},
                              {"threads", options.threads},
                              {"repeats", options.repeats},
                              {"kernels", kernels::chosen_implementation()},
                              {"extra_bytes", report.one.extra_bytes},
                              {"streams", rows_json(report.streams)},
                              {"rows", rows_json(report.one.rows)},
                              {"list",
                               {{"tensors", report.list.tensors},
                                {"elements", report.list.elements},
                                {"extra_bytes", report.list.extra_bytes},
                                {"rows", rows_json(report.list.rows)},
                                {"bars", bars_json(report, report.list)}}},
                              {"bars", bars_json(report, report.one)}};
  fmt::print("{}\n", document.dump(2));
}

void print_table(const char* title, const std::vector<Row>& rows, double stream_gbps) {
  fmt::print("\n{}\n{:<46} {:>9} {:>9} {:>7} {:>7} {:>7}\n", title, "", "min ms", "median",
             "B/elem", "GB/s", "roof");
  for (const Row& row : rows) {
    fmt::print("{:<46} {:>9.2f} {:>9.2f} {:>7.0f} {:>7.1f} {:>6.0f}%\n", row.name,
               row.timing.min_ms, row.timing.median_ms, row.bytes_per_element, row.gbps,
               100 * row.gbps / stream_gbps);
  }
}

std::string title_of(const TensorsReport& tensors) {
  return fmt::format("{} {}, {} elements", tensors.tensors,
                     tensors.tensors == 1 ? "tensor" : "tensors", tensors.elements);
}

void print_tensors(const BenchReport& report, const TensorsReport& tensors) {
  print_table(title_of(tensors).c_str(), tensors.rows, report.stream_gbps);
  for (const auto& bar : bars_of(report, tensors)) {
    fmt::print("{:<46} {:>9.2f} (bar {:.2f}{})\n", bar.what, bar.measured, bar.required,
               bar.met() ? "" : ", missed");
  }
  fmt::print("{:<46} {:>9.2f} (at most {})\n", "extra memory of a step, MiB",
             static_cast<double>(tensors.extra_bytes) / (1 << 20), bench::kMaxExtraBytes >> 20);
}

void print_text(const bench::BenchOptions& options, const BenchReport& report) {
  fmt::print("kernels {}, {} threads, {} repeats\n", kernels::chosen_implementation(),
             options.threads, options.repeats);
  print_table("x <- a*x in place, over 1, 2 and 4 arrays", report.streams, report.stream_gbps);
  print_tensors(report, report.one);
  print_tensors(report, report.list);
}

void check_bars(const BenchReport& report) {
  std::string missed;
  const auto add = [&](const TensorsReport& tensors, const std::string& what) {
    missed += fmt::format("{}{}: {}", missed.empty() ? "" : "; ", title_of(tensors), what);
  };
  for (const TensorsReport* tensors : {&report.one, &report.list}) {
    for (const auto& bar : bars_of(report, *tensors)) {
      if (bar.met()) continue;
      add(*tensors, fmt::format("{}: {:.3f}, expected at least {:.2f}", bar.what, bar.measured,
                                bar.required));
    }
    if (tensors->extra_bytes > bench::kMaxExtraBytes) {
      add(*tensors, fmt::format("extra memory of a step: {} bytes, expected at most {}",
                                tensors->extra_bytes, bench::kMaxExtraBytes));
    }
  }
  if (!missed.empty()) {
    throw Error(ExitCode::kInternal, "bench: " + missed,
                "is the machine quiet? Only then the figures are the kernels'");
  }
}

struct Flags {
  bench::BenchOptions options{.threads = available_cpus()};
  bool json = false, check = false;
};

void run(const Flags& flags) {
  const BenchReport report = bench::run_optimizer_bench(flags.options);
  flags.json ? print_json(flags.options, report) : print_text(flags.options, report);
  if (flags.check) check_bars(report);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* command = app.add_subcommand(
      "bench", "optimizer kernels against the machine's in-place stream and torch's optimizers");
  auto flags = std::make_shared<Flags>();
  command->add_option("--elements", flags->options.elements, "elements of the tensor")
      ->capture_default_str()
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--repeats", flags->options.repeats, "interleaved runs of each row")
      ->capture_default_str();
  command->add_option("--threads", flags->options.threads, "threads of ours and of torch")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON document on stdout");
  command->add_flag("--check", flags->check, "exit 1 if a row is below its bar");
  command->callback([flags] { run(*flags); });
}

}  // namespace halfstep::apps
