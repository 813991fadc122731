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

void print_json(const bench::BenchOptions& options, const BenchReport& report) {
  ordered_json bars = ordered_json::array();
  for (const auto& bar :
       bench::bars_of(report.rows, report.stream_gbps, kernels::chosen_implementation())) {
    bars.push_back(
        {{"what", bar.what}, {"measured", rounded(bar.measured)}, {"required", bar.required}});
  }
  const ordered_json document{{"stream_gbps", rounded(report.stream_gbps)},
                              {"elements", options.elements},
                              {"threads", options.threads},
                              {"repeats", options.repeats},
                              {"kernels", kernels::chosen_implementation()},
                              {"extra_bytes", report.extra_bytes},
                              {"streams", rows_json(report.streams)},
                              {"rows", rows_json(report.rows)},
                              {"list",
                               {{"tensors", report.list_tensors},
                                {"elements", report.list_elements},
                                {"rows", rows_json(report.list_rows)}}},
                              {"bars", bars}};
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

void print_text(const bench::BenchOptions& options, const BenchReport& report) {
  fmt::print("kernels {}, {} threads, {} repeats; a step needs {:.1f} MiB beyond its tensors\n",
             kernels::chosen_implementation(), options.threads, options.repeats,
             static_cast<double>(report.extra_bytes) / (1 << 20));
  print_table("x <- a*x in place, over 1, 2 and 4 arrays", report.streams, report.stream_gbps);
  print_table(fmt::format("one tensor of {} elements", options.elements).c_str(), report.rows,
              report.stream_gbps);
  print_table(
      fmt::format("{} tensors, {} elements", report.list_tensors, report.list_elements).c_str(),
      report.list_rows, report.stream_gbps);
  fmt::print("\n");
  for (const auto& bar :
       bench::bars_of(report.rows, report.stream_gbps, kernels::chosen_implementation())) {
    fmt::print("{:<46} {:.2f} (bar {:.2f}{})\n", bar.what, bar.measured, bar.required,
               bar.met() ? "" : ", missed");
  }
}

void check_bars(const BenchReport& report) {
  std::string missed;
  for (const auto& bar :
       bench::bars_of(report.rows, report.stream_gbps, kernels::chosen_implementation())) {
    if (!bar.met()) {
      missed += fmt::format("{}{}: {:.3f}, expected at least {:.2f}", missed.empty() ? "" : "; ",
                            bar.what, bar.measured, bar.required);
    }
  }
  if (report.extra_bytes > bench::kMaxExtraBytes) {
    missed += fmt::format("{}extra memory of a step: {} bytes, expected at most {}",
                          missed.empty() ? "" : "; ", report.extra_bytes, bench::kMaxExtraBytes);
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
