// The conversion whose target is a Hugging Face folder.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/convert/convert.h"
#include "halfstep/convert/encoder.h"
#include "halfstep/convert/source.h"
#include "halfstep/core/error.h"
#include "halfstep/hf/model_files.h"
#include "halfstep/io/json.h"

namespace halfstep::convert {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = int64_t{4} << 20;

// The folder with the tokenizer's files, and a line that says what comes of it.
std::pair<fs::path, std::string> find_tokenizer(const checkpoint::CheckpointReader& reader,
                                                const std::string& given) {
  std::string name = given;
  if (name.empty()) {
    const nlohmann::json& data = reader.state().data;
    if (data.contains("tokenizer") && data["tokenizer"].is_string()) name = data["tokenizer"];
  }
  const bool is_folder = !name.empty() && name != "byte";
  const fs::path folder = is_folder ? name : "";
  const size_t count = is_folder ? hf::tokenizer_files(folder).size() : 0;
  if (count > 0) return {folder, fmt::format("{} tokenizer files copied from {}", count, name)};
  if (!given.empty()) {
    throw InputError(fmt::format("--tokenizer {}: no tokenizer.json or other of its files", given),
                     "give the folder that has them, or leave --tokenizer out");
  }
  if (name.empty()) return {{}, "no tokenizer copied: the checkpoint names none"};
  if (name == "byte") return {{}, "no tokenizer copied: the bytes are the tokens"};
  return {{}, fmt::format("no tokenizer copied: {} has none; name it with --tokenizer DIR", name)};
}

}  // namespace

Report export_to_hf(const fs::path& checkpoint, const fs::path& folder,
                    const ExportOptions& options) {
  hf::refuse_occupied(folder);
  const checkpoint::CheckpointReader reader(checkpoint);
  const arch::ModelConfig config =
      arch::parse_hf_config(reader.state().model_config.dump(),
                            (reader.directory() / checkpoint::kManifestFile).string());
  const auto source = open_weights(reader, config);
  const auto [tokenizer, note] = find_tokenizer(reader, options.tokenizer);

  Report report{.source = reader.directory().string(),
                .target = folder.string(),
                .iteration = reader.state().iteration,
                .notes = reader.warnings()};
  ClassReport row{.name = "weight"};
  std::set<std::string> from, to;
  hf::FolderContent content{.max_shard_bytes = options.max_shard_bytes,
                            .files = hf::tokenizer_files(tokenizer)};
  std::vector<Target> targets;
  for (int64_t p = 0; p < std::ssize(source->parameters()); ++p) {
    const Tensor& parameter = source->parameters()[static_cast<size_t>(p)];
    const Dtype stored = source->dtype(TensorKind::kWeight, p).value();
    const Dtype dtype = options.dtype.value_or(stored);
    targets.push_back({.parameter = p, .dtype = dtype});
    content.tensors.push_back({parameter.name, hf::weight_dtype(dtype), parameter.shape});
    const int64_t numel = io::tensor_bytes(content.tensors.back()) / dtype_bytes(dtype);
    from.emplace(dtype_name(stored));
    to.emplace(dtype_name(dtype));
    report.parameters += numel;
    row.bytes_before += numel * dtype_bytes(stored);
  }
  content.config_json = hf::config_text(config, content.tensors, hf::token_ids(tokenizer));

  Encoder encoder(*source);
  std::vector<std::byte> piece;
  const auto written = hf::write_folder(folder, content, [&](int64_t tensor, const hf::Sink& sink) {
    const Target& target = targets[static_cast<size_t>(tensor)];
    const int64_t width = dtype_bytes(target.dtype);
    const int64_t bytes = io::tensor_bytes(content.tensors[static_cast<size_t>(tensor)]);
    for (int64_t first = 0; first < bytes; first += kPieceBytes) {
      piece.resize(static_cast<size_t>(std::min(kPieceBytes, bytes - first)));
      encoder.encode(target, first / width, piece);
      sink(piece);
    }
  });
  const ClassReport& counts = encoder.counts(TensorKind::kWeight);
  row.max_relative_error = counts.max_relative_error;
  row.became_zero = counts.became_zero;
  row.saturated = counts.saturated;
  row.from = fmt::format("{}", fmt::join(from, "+"));
  row.to = fmt::format("{}", fmt::join(to, "+"));
  row.bytes_after = written.tensor_bytes;
  report.classes.push_back(std::move(row));
  report.notes.insert(report.notes.end(), written.warnings.begin(), written.warnings.end());
  report.notes.push_back(note);
  report.notes.push_back(
      fmt::format("{} file{} of weights", written.num_files, written.num_files == 1 ? "" : "s"));
  return report;
}

}  // namespace halfstep::convert
