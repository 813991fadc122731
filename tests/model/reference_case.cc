#include "reference_case.h"

#include <ATen/ATen.h>

#include <cstdlib>
#include <cstring>

#include "halfstep/core/error.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::model::testing {
namespace {

at::Tensor to_tensor(const io::SafetensorsFile& file, const io::SafetensorsTensor& entry) {
  at::ScalarType dtype = at::kFloat;
  if (entry.dtype == io::SafetensorsDtype::kI64) dtype = at::kLong;
  at::Tensor tensor = at::empty(entry.shape, dtype);
  const auto bytes = file.data(entry);
  check(bytes.size() == tensor.nbytes(), "reference: a tensor is neither F32 nor I64");
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

const std::vector<std::string>& all_cases() {
  static const std::vector<std::string> cases{"qwen3",      "qwen3_tied",  "llama_untied",
                                              "llama_tied", "llama_rope3", "llama_head_dim",
                                              "qwen2",      "mistral"};
  return cases;
}

ReferenceCase::ReferenceCase(const std::string& name) {
  const char* root = std::getenv("HALFSTEP_MODEL_REFERENCE");
  check(root != nullptr, "HALFSTEP_MODEL_REFERENCE is not set; run this test through ctest");
  folder = std::filesystem::path(root) / name;
  config = arch::load_hf_config(folder / "config.json");
  parameters = arch::parameter_list(config);
  const io::SafetensorsFile file(folder / "reference.safetensors");
  for (const auto& entry : file.tensors()) reference[entry.name] = to_tensor(file, entry);
  batch.tokens = reference.at("tokens");
  batch.targets = reference.at("targets");
  batch.positions = at::arange(batch.tokens.size(1)).expand_as(batch.tokens);
}

std::vector<at::Tensor> make_leaves(const std::vector<arch::Parameter>& parameters,
                                    at::ScalarType dtype, int64_t alignment) {
  std::vector<at::Tensor> leaves;
  if (alignment == 0) {
    for (const auto& p : parameters) leaves.push_back(at::zeros(p.shape, dtype));
  } else {
    std::vector<int64_t> offsets;
    int64_t total = 0;
    for (const auto& p : parameters) {
      offsets.push_back(total);
      total += (p.numel() + alignment - 1) / alignment * alignment;
    }
    const at::Tensor arena = at::zeros({total}, dtype);
    for (size_t i = 0; i < parameters.size(); ++i) {
      leaves.push_back(
          arena.narrow(0, offsets[i], parameters[i].numel()).view(parameters[i].shape).detach());
    }
  }
  for (at::Tensor& leaf : leaves) leaf.requires_grad_();
  return leaves;
}

std::vector<hf::WeightSlot> slots_of(const std::vector<at::Tensor>& leaves) {
  std::vector<hf::WeightSlot> slots;
  for (const at::Tensor& leaf : leaves) {
    slots.push_back(
        {leaf.data_ptr(), leaf.scalar_type() == at::kFloat ? Dtype::kF32 : Dtype::kBF16});
  }
  return slots;
}

std::vector<at::Tensor> load_leaves(const ReferenceCase& c, at::ScalarType dtype,
                                    int64_t alignment) {
  const std::vector<at::Tensor> leaves = make_leaves(c.parameters, dtype, alignment);
  hf::FolderReader(c.folder, c.config).load(slots_of(leaves));
  return leaves;
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  return ((x - y).norm() / y.norm()).item<double>();
}

}  // namespace halfstep::model::testing
