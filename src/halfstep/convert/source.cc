#include "halfstep/convert/source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "halfstep/checkpoint/piece_reader.h"
#include "halfstep/core/error.h"
#include "halfstep/hf/folder_reader.h"

namespace halfstep::convert {
namespace {

using checkpoint::Slice;

class CheckpointSource : public Source {
 public:
  CheckpointSource(const checkpoint::CheckpointReader& reader, std::vector<Tensor> parameters,
                   bool with_state)
      : reader_(reader) {
    parameters_ = std::move(parameters);
    std::vector<TensorKind> kinds{TensorKind::kWeight};
    if (with_state) {
      kinds.insert(kinds.end(), {TensorKind::kExpAvg, TensorKind::kExpAvgSq});
      if (reader.state().storage.amsgrad) kinds.push_back(TensorKind::kMaxExpAvgSq);
    }
    std::vector<Slice> needed;
    const auto need = [&](TensorKind kind, const Tensor& p, Dtype dtype) {
      needed.push_back(checkpoint::whole_slice(kind, p.name, p.shape, dtype));
    };
    for (const Tensor& p : parameters_) {
      for (const TensorKind kind : kinds) {
        need(kind, p, reader_.dtype(kind, p.name).value_or(Dtype::kF32));
      }
      for (const TensorKind kind : {TensorKind::kMaster, TensorKind::kRemainder}) {
        if (const auto dtype = reader_.dtype(kind, p.name)) need(kind, p, *dtype);
      }
    }
    reader_.require(needed);
  }

  std::optional<Dtype> dtype(TensorKind kind, int64_t parameter) const override {
    return reader_.dtype(kind, name(parameter));
  }
  bool has_fp32_value(int64_t parameter) const override {
    return reader_.has_fp32_value(name(parameter));
  }
  void read(const Piece& piece, void* out) override {
    const auto dtype = reader_.dtype(piece.kind, name(piece.parameter));
    check(dtype.has_value(), "convert: a tensor that is not stored");
    reader_.read(slice(piece, *dtype), out);
  }
  void read_values(const Piece& piece, float* out) override {
    reader_.read_values(slice(piece, Dtype::kF32), out);
  }

 private:
  const std::string& name(int64_t parameter) const {
    return parameters_[static_cast<size_t>(parameter)].name;
  }
  Slice slice(const Piece& piece, Dtype dtype) const {
    const Tensor& p = parameters_[static_cast<size_t>(piece.parameter)];
    Slice slice = checkpoint::whole_slice(piece.kind, p.name, p.shape, dtype);
    slice.start = piece.first;
    slice.numel = piece.count;
    return slice;
  }

  checkpoint::PieceReader reader_;
};

class FolderSource : public Source {
 public:
  FolderSource(const std::filesystem::path& folder, const arch::ModelConfig& config)
      : reader_(folder, config) {
    for (const arch::Parameter& p : arch::parameter_list(config)) {
      parameters_.push_back({p.name, p.shape});
    }
  }

  std::optional<Dtype> dtype(TensorKind kind, int64_t parameter) const override {
    if (kind != TensorKind::kWeight) return std::nullopt;
    switch (reader_.dtype(parameter)) {
      case io::SafetensorsDtype::kF32:
        return Dtype::kF32;
      case io::SafetensorsDtype::kBF16:
        return Dtype::kBF16;
      default:  // F16, which we do not store
        return std::nullopt;
    }
  }
  bool has_fp32_value(int64_t) const override { return true; }
  void read(const Piece& piece, void* out) override {
    const auto stored = dtype(piece.kind, piece.parameter);
    check(stored.has_value(), "convert: a tensor that is not stored");
    reader_.load(piece.parameter, piece.first, piece.count, {out, *stored});
  }
  void read_values(const Piece& piece, float* out) override {
    if (checkpoint::is_weight_kind(piece.kind)) {
      reader_.load(piece.parameter, piece.first, piece.count, {out, Dtype::kF32});
    } else {
      std::fill_n(out, piece.count, 0.f);
    }
  }

 private:
  hf::FolderReader reader_;
};

}  // namespace

std::unique_ptr<Source> open_checkpoint(const checkpoint::CheckpointReader& reader) {
  std::vector<Tensor> parameters;
  for (const auto& [name, shape] : reader.parameters()) parameters.push_back({name, shape});
  return std::make_unique<CheckpointSource>(reader, std::move(parameters), /*with_state=*/true);
}

std::unique_ptr<Source> open_weights(const checkpoint::CheckpointReader& reader,
                                     const arch::ModelConfig& config) {
  std::vector<Tensor> parameters;
  for (const arch::Parameter& p : arch::parameter_list(config)) {
    parameters.push_back({p.name, p.shape});
  }
  return std::make_unique<CheckpointSource>(reader, std::move(parameters), /*with_state=*/false);
}

std::unique_ptr<Source> open_folder(const std::filesystem::path& folder,
                                    const arch::ModelConfig& config) {
  return std::make_unique<FolderSource>(folder, config);
}

}  // namespace halfstep::convert
