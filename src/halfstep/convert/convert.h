// `halfstep convert`: a checkpoint as a Hugging Face folder, a Hugging Face folder as a checkpoint
// of iteration 0, and a checkpoint in other formats (docs/convert.md). All stream: memory is a few
// pieces of 4 MiB, whatever the model's size. The source is only read; the target is complete under
// its name or not there. Called by apps/halfstep.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "halfstep/convert/formats.h"
#include "halfstep/convert/report.h"
#include "halfstep/hf/folder_writer.h"

namespace halfstep::convert {

struct ExportOptions {
  std::optional<Dtype> dtype = {};  // of all weights; empty: as they are stored
  int64_t max_shard_bytes = hf::kMaxShardBytes;
  std::string tokenizer =
      {};  // the folder with its files; empty: the one that the checkpoint names
};

// Weights, config.json and the tokenizer's files. With FP32 they are the FP32 values of master,
// remainder or weight.
Report export_to_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                    const ExportOptions& options);

// A checkpoint that training has not begun with: no data seen, state 0. Default formats are those
// of `train`: FP32 weights and state.
Report import_from_hf(const std::filesystem::path& folder, const std::filesystem::path& save,
                      const Formats& formats);

// `allow_lossy_master`: BF16 weights are taken for FP32 values that the source does not have.
Report convert_checkpoint(const std::filesystem::path& checkpoint,
                          const std::filesystem::path& save, const Formats& formats,
                          bool allow_lossy_master);

}  // namespace halfstep::convert
