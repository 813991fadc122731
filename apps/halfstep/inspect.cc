// `halfstep inspect`: what is inside a checkpoint, a .safetensors file (or a folder of them) or a
// .bin/.idx pair: names, shapes, dtypes, bytes, checksums. Data are read only with --verify.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"
#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/train_state_json.h"
#include "halfstep/core/error.h"
#include "halfstep/data/indexed_dataset.h"
#include "halfstep/io/safetensors.h"
#include "halfstep/io/units.h"
#include "process.h"

namespace halfstep::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Options {
  std::string path;
  bool json = false;
  bool verify = false;
};

void print_json(const ordered_json& document) {
  fmt::print("{}\n", document.dump(2, ' ', false, ordered_json::error_handler_t::replace));
}

// What of each kind and dtype there is.
void print_summary(const std::vector<checkpoint::StoredSlice>& slices) {
  struct Sum {
    int64_t tensors = 0, elements = 0, bytes = 0;
  };
  std::map<std::pair<std::string_view, std::string_view>, Sum> sums;
  for (const checkpoint::StoredSlice& slice : slices) {
    Sum& sum = sums[{checkpoint::tensor_kind_name(slice.kind), dtype_name(slice.dtype)}];
    ++sum.tensors;
    sum.elements += slice.numel;
    sum.bytes += slice.bytes();
  }
  for (const auto& [kind, sum] : sums) {
    fmt::print("{:<12} {:<7} {:>6} tensors {:>14} elements {:>10}\n", kind.first, kind.second,
               sum.tensors, sum.elements, io::format_bytes(sum.bytes));
  }
}

void inspect_checkpoint(const Options& options) {
  const checkpoint::CheckpointReader reader(options.path);
  if (options.verify) reader.verify();
  for (const std::string& warning : reader.warnings()) print_error(warning + "\n");
  ordered_json document{{"type", "checkpoint"}, {"path", reader.directory().string()}};
  document["state"] = checkpoint::train_state_to_json(reader.state());
  document["verified"] = options.verify;
  document["tensors"] = ordered_json::array();
  int64_t total = 0;
  for (const checkpoint::StoredSlice& slice : reader.manifest().slices) {
    std::vector<std::string> checksums;
    for (const uint64_t value : slice.checksums) checksums.push_back(fmt::format("{:016x}", value));
    document["tensors"].push_back({{"name", checkpoint::format_slice_name(slice)},
                                   {"shape", slice.shape},
                                   {"dtype", dtype_name(slice.dtype)},
                                   {"elements", slice.numel},
                                   {"bytes", slice.bytes()},
                                   {"file", reader.manifest().shards[slice.shard].file},
                                   {"xxh3", std::move(checksums)}});
    total += slice.bytes();
  }
  document["bytes"] = total;
  if (options.json) return print_json(document);
  const checkpoint::TrainState& state = reader.state();
  fmt::print("checkpoint {}\n", reader.directory().string());
  fmt::print("iteration {}, t {}, {} samples, {} tokens, seed {}\n", state.iteration, state.t,
             state.consumed_samples, state.consumed_tokens, state.seed);
  for (const auto& tensor : document["tensors"]) {
    const auto& checksums = tensor["xxh3"];
    fmt::print("{:<72} {:<7} [{}]  {}  {}{}\n", tensor["name"].get<std::string>(),
               tensor["dtype"].get<std::string>(),
               fmt::join(tensor["shape"].get<std::vector<int64_t>>(), ", "),
               io::format_bytes(tensor["bytes"].get<int64_t>()),
               checksums.empty() ? "" : checksums[0].get<std::string>(),
               checksums.size() > 1 ? fmt::format(" + {}", checksums.size() - 1) : "");
  }
  print_summary(reader.manifest().slices);
  fmt::print("{} tensors, {}{}\n", document["tensors"].size(), io::format_bytes(total),
             options.verify ? ", every checksum matches" : "");
}

// The .safetensors files of a folder, in the order of their names.
std::vector<fs::path> safetensors_files(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    throw InputError(fmt::format("'{}' has no checkpoint and no .safetensors files", path.string()),
                     "give a checkpoint, a Hugging Face folder, a .safetensors file or a .bin/.idx "
                     "prefix");
  }
  return files;
}

// Opening a file checks its whole header; the format has no checksums of its own to verify.
void inspect_safetensors(const Options& options) {
  ordered_json document{{"type", "safetensors"}, {"path", options.path}};
  document["tensors"] = ordered_json::array();
  int64_t total = 0;
  for (const fs::path& path : safetensors_files(options.path)) {
    const io::SafetensorsFile file(path);
    for (const io::SafetensorsTensor& tensor : file.tensors()) {
      document["tensors"].push_back({{"name", tensor.name},
                                     {"shape", tensor.shape},
                                     {"dtype", io::safetensors_dtype_name(tensor.dtype)},
                                     {"bytes", tensor.bytes},
                                     {"file", path.filename().string()}});
      total += tensor.bytes;
    }
  }
  document["bytes"] = total;
  if (options.json) return print_json(document);
  for (const auto& tensor : document["tensors"]) {
    fmt::print("{:<72} {:<5} [{}]  {}\n", tensor["name"].get<std::string>(),
               tensor["dtype"].get<std::string>(),
               fmt::join(tensor["shape"].get<std::vector<int64_t>>(), ", "),
               io::format_bytes(tensor["bytes"].get<int64_t>()));
  }
  fmt::print("{} tensors, {}\n", document["tensors"].size(), io::format_bytes(total));
}

// PREFIX, PREFIX.bin or PREFIX.idx.
std::string dataset_prefix(const std::string& path) {
  const fs::path given(path);
  const bool suffixed = given.extension() == ".bin" || given.extension() == ".idx";
  return suffixed ? path.substr(0, path.size() - 4) : path;
}

void inspect_dataset(const Options& options, const std::string& prefix) {
  const data::IndexedDataset dataset(prefix);
  const ordered_json document{{"type", "tokens"},
                              {"path", prefix},
                              {"dtype", data::token_dtype_name(dataset.index().dtype())},
                              {"documents", dataset.num_documents()},
                              {"tokens", dataset.num_tokens()},
                              {"bytes", static_cast<int64_t>(dataset.bin_bytes().size())},
                              {"fingerprint", dataset.fingerprint()}};
  if (options.json) return print_json(document);
  fmt::print("{}.bin/.idx: {} documents, {} tokens of {}, {}, fingerprint {:016x}\n", prefix,
             dataset.num_documents(), dataset.num_tokens(),
             data::token_dtype_name(dataset.index().dtype()),
             io::format_bytes(static_cast<int64_t>(dataset.bin_bytes().size())),
             dataset.fingerprint());
}

void inspect(const Options& options) {
  const std::string prefix = dataset_prefix(options.path);
  // A folder of steps that are all incomplete is a checkpoint that cannot be read.
  if (checkpoint::is_checkpoint(options.path) ||
      (fs::is_directory(options.path) &&
       !checkpoint::folders_without_manifest(options.path).empty())) {
    inspect_checkpoint(options);
  } else if (options.verify) {
    throw UsageError("--verify checks the checksums of a checkpoint, and this is none",
                     "for tokens use: halfstep data verify");
  } else if (fs::exists(data::idx_path(prefix))) {
    inspect_dataset(options, prefix);
  } else {
    inspect_safetensors(options);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto* command = app.add_subcommand(
      "inspect", "what is inside a checkpoint, a .safetensors file or a .bin/.idx pair");
  auto options = std::make_shared<Options>();
  command->add_option("path", options->path, "checkpoint, Hugging Face folder, file or prefix")
      ->required()
      ->check(not_empty());
  command->add_flag("--json", options->json, "one JSON document on stdout");
  command->add_flag("--verify", options->verify, "read all data of a checkpoint and check them");
  command->callback([options] { inspect(*options); });
}

}  // namespace halfstep::apps
