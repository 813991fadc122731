// A reference model made by make_reference.py: its folder, and what `transformers` computed with
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/hf/folder_reader.h"
#include "halfstep/model/model.h"

namespace halfstep::model::testing {

const std::vector<std::string>& all_cases();

struct ReferenceCase {
  explicit ReferenceCase(const std::string& name);

  std::filesystem::path folder;
  arch::ModelConfig config;
  std::vector<arch::Parameter> parameters;
  std::map<std::string, at::Tensor> reference;  // tokens, targets, logits, loss, grad.NAME
  Batch batch;                                  // one segment per row
};

// One leaf per parameter, all in one allocation, each starting at a multiple of `alignment`
// elements (so that with 1 all neighbours are adjacent in memory), or each of its own if alignment
// is 0.
std::vector<at::Tensor> make_leaves(const std::vector<arch::Parameter>& parameters,
                                    at::ScalarType dtype, int64_t alignment);
std::vector<hf::WeightSlot> slots_of(const std::vector<at::Tensor>& leaves);
// make_leaves filled from the case's folder.
std::vector<at::Tensor> load_leaves(const ReferenceCase& c, at::ScalarType dtype = at::kFloat,
                                    int64_t alignment = 1);

// ‖a − b‖ / ‖b‖, in FP64.
double relative_error(const at::Tensor& a, const at::Tensor& b);

}  // namespace halfstep::model::testing
