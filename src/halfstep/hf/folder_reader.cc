#include "halfstep/hf/folder_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "halfstep/core/bf16.h"
#include "halfstep/core/error.h"
#include "halfstep/hf/model_files.h"
#include "halfstep/io/file.h"
#include "halfstep/io/json.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::hf {
namespace {

namespace fs = std::filesystem;
using io::SafetensorsDtype;
using io::SafetensorsFile;
using io::SafetensorsTensor;

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

struct Source {
  const SafetensorsFile* file = nullptr;
  const SafetensorsTensor* tensor = nullptr;
};

// Exact: every binary16 value is an FP32 value.
float f16_decode(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000) << 16;
  const uint32_t exponent = code >> 10 & 0x1F, mantissa = code & 0x3FF;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t rebased = exponent == 0x1F ? 0xFF : exponent + (127 - 15);
  return std::bit_cast<float>(sign | rebased << 23 | mantissa << 13);
}

// Element i of a tensor's data as FP32.
float element(const std::byte* data, SafetensorsDtype dtype, int64_t i) {
  if (dtype == SafetensorsDtype::kF32) {
    float value;
    std::memcpy(&value, data + 4 * i, sizeof value);
    return value;
  }
  uint16_t code;
  std::memcpy(&code, data + 2 * i, sizeof code);
  return dtype == SafetensorsDtype::kBF16 ? bf16_decode(code) : f16_decode(code);
}

// Elements [first, first + n) of the source to the start of the slot.
void copy_converted(const Source& source, const WeightSlot& slot, int64_t first, int64_t n) {
  const SafetensorsDtype from = source.tensor->dtype;
  const int64_t width = io::safetensors_dtype_bytes(from);
  const auto bytes =
      source.file->data(*source.tensor)
          .subspan(static_cast<size_t>(first * width), static_cast<size_t>(n * width));
  const bool same = (from == SafetensorsDtype::kF32 && slot.dtype == Dtype::kF32) ||
                    (from == SafetensorsDtype::kBF16 && slot.dtype == Dtype::kBF16);
  if (same) {
    std::memcpy(slot.data, bytes.data(), bytes.size());
  } else if (slot.dtype == Dtype::kF32) {
    auto* to = static_cast<float*>(slot.data);
    for (int64_t i = 0; i < n; ++i) to[i] = element(bytes.data(), from, i);
  } else {
    auto* to = static_cast<uint16_t*>(slot.data);
    for (int64_t i = 0; i < n; ++i) to[i] = bf16_nearest(element(bytes.data(), from, i));
  }
}

std::vector<std::unique_ptr<SafetensorsFile>> open_single(const fs::path& path) {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  files.push_back(std::make_unique<SafetensorsFile>(path));
  return files;
}

// The shards that an index names; each must exist and hold exactly the tensors it is said to hold.
std::vector<std::unique_ptr<SafetensorsFile>> open_shards(const fs::path& index_path) {
  const nlohmann::json document = io::read_json_file(index_path);
  const io::JsonObject index(document, index_path.string());
  const io::JsonObject weight_map = index.object("weight_map");
  std::map<std::string, std::set<std::string>> tensors_by_file;
  for (const auto& [name, unused] : weight_map.value().items()) {
    const std::string file = weight_map.string(name);
    if (fs::path(file).filename() != file || file == "..") {
      throw InputError(
          fmt::format("{}: tensor '{}' is in '{}', expected the name of a file beside it",
                      index_path.string(), name, file),
          "an index may only name shards in its own folder");
    }
    tensors_by_file[file].insert(name);
  }
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  for (const auto& [name, tensors] : tensors_by_file) {
    const fs::path path = index_path.parent_path() / name;
    if (!fs::exists(path)) {
      throw InputError(fmt::format("{}: tensor '{}' is in '{}', which does not exist",
                                   index_path.string(), *tensors.begin(), name),
                       "copy the missing shard into the folder");
    }
    auto file = std::make_unique<SafetensorsFile>(path);
    for (const std::string& tensor : tensors) file->at(tensor);
    for (const SafetensorsTensor& tensor : file->tensors()) {
      if (!tensors.contains(tensor.name)) {
        throw InputError(fmt::format("{}: tensor '{}' of '{}' is not in the index",
                                     index_path.string(), tensor.name, name),
                         "the index and the shards are from different saves");
      }
    }
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<std::unique_ptr<SafetensorsFile>> open_folder(const fs::path& folder) {
  const fs::path index = folder / kIndexFile;
  return fs::exists(index) ? open_shards(index) : open_single(folder / kWeightsFile);
}

// Buffers that old versions of `transformers` saved; they follow from the config.
bool is_derived(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

void check_tensor(const Source& source, const std::vector<int64_t>& shape) {
  const SafetensorsTensor& tensor = *source.tensor;
  const std::string where =
      fmt::format("{}: tensor '{}'", source.file->path().string(), tensor.name);
  if (tensor.shape != shape) {
    throw InputError(fmt::format("{} has shape [{}], expected [{}] by config.json", where,
                                 fmt::join(tensor.shape, ", "), fmt::join(shape, ", ")),
                     "config.json and the weights must come from the same model");
  }
  if (tensor.dtype != SafetensorsDtype::kF32 && tensor.dtype != SafetensorsDtype::kF16 &&
      tensor.dtype != SafetensorsDtype::kBF16) {
    throw InputError(fmt::format("{} has dtype {}, expected F32, F16 or BF16", where,
                                 io::safetensors_dtype_name(tensor.dtype)),
                     "quantised weights cannot be trained; take the original ones");
  }
}

}  // namespace

struct FolderReader::Impl {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::vector<arch::Parameter> parameters;
  std::vector<Source> sources;  // by parameter
  Source tied_head;             // lm_head.weight of a tied model, if the files have it
  std::vector<std::string> ignored;
  fs::path folder;

  void compare_tied() const {
    if (tied_head.tensor == nullptr) return;
    const Source& embedding = sources.front();
    const std::byte* a = embedding.file->data(*embedding.tensor).data();
    const std::byte* b = tied_head.file->data(*tied_head.tensor).data();
    double largest = 0;
    for (int64_t i = 0; i < parameters.front().numel(); ++i) {
      const double difference =
          std::fabs(static_cast<double>(element(a, embedding.tensor->dtype, i)) -
                    element(b, tied_head.tensor->dtype, i));
      if (!(difference <= largest)) largest = difference;  // NaN counts
    }
    if (largest == 0) return;
    throw InputError(
        fmt::format("{}: tie_word_embeddings is true, but '{}' differs from '{}' by up to {}",
                    folder.string(), kHead, kEmbedding, largest),
        "set tie_word_embeddings to false in config.json, or delete the tensor that is wrong");
  }
};

FolderReader::FolderReader(const fs::path& folder, const arch::ModelConfig& config)
    : impl_(std::make_unique<Impl>()) {
  impl_->folder = folder;
  impl_->files = open_folder(folder);
  impl_->parameters = arch::parameter_list(config);

  std::map<std::string, Source> found;
  for (const auto& file : impl_->files) {
    for (const SafetensorsTensor& tensor : file->tensors()) {
      if (!found.emplace(tensor.name, Source{file.get(), &tensor}).second) {
        throw InputError(
            fmt::format("{}: tensor '{}' is in two shards", folder.string(), tensor.name),
            "the shards are from different saves");
      }
    }
  }
  for (const arch::Parameter& parameter : impl_->parameters) {
    const auto entry = found.find(parameter.name);
    if (entry == found.end()) {
      throw InputError(
          fmt::format("{}: missing tensor '{}' (shape [{}])", folder.string(), parameter.name,
                      fmt::join(parameter.shape, ", ")),
          parameter.name == kHead
              ? "if the model shares it with the embedding, set tie_word_embeddings to true"
              : "config.json and the weights must come from the same model");
    }
    check_tensor(entry->second, parameter.shape);
    impl_->sources.push_back(entry->second);
    found.erase(entry);
  }
  if (const auto head = found.find(kHead); head != found.end() && config.tie_embeddings) {
    check_tensor(head->second, impl_->parameters.front().shape);
    impl_->tied_head = head->second;
    found.erase(head);
  }
  for (const auto& [name, source] : found) {
    if (!is_derived(name)) {
      throw InputError(fmt::format("{}: unexpected tensor '{}', the model has no such parameter",
                                   source.file->path().string(), name),
                       "config.json and the weights must come from the same model");
    }
    impl_->ignored.push_back(name);
  }
  impl_->compare_tied();
}
FolderReader::~FolderReader() = default;
FolderReader::FolderReader(FolderReader&&) noexcept = default;

const std::vector<std::string>& FolderReader::ignored() const { return impl_->ignored; }

bool FolderReader::wider_than_bf16(int64_t parameter) const {
  return dtype(parameter) != SafetensorsDtype::kBF16;
}

io::SafetensorsDtype FolderReader::dtype(int64_t parameter) const {
  return impl_->sources.at(static_cast<size_t>(parameter)).tensor->dtype;
}

void FolderReader::load(int64_t parameter, const WeightSlot& slot) const {
  load(parameter, 0, impl_->parameters.at(static_cast<size_t>(parameter)).numel(), slot);
}

void FolderReader::load(int64_t parameter, int64_t first, int64_t count,
                        const WeightSlot& slot) const {
  copy_converted(impl_->sources.at(static_cast<size_t>(parameter)), slot, first, count);
}

void FolderReader::load(std::span<const WeightSlot> slots) const {
  check(slots.size() == impl_->sources.size(), "load: one slot per parameter is needed");
  for (size_t i = 0; i < slots.size(); ++i) load(static_cast<int64_t>(i), slots[i]);
}

}  // namespace halfstep::hf
