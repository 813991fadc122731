// The flags with which eval and generate name a model.
#include "commands.h"
#include "halfstep/train/loaded_model.h"

namespace halfstep::apps {

void add_model_source(CLI::App& command, train::ModelSource& source) {
  using train::MatmulPrecision;
  command.add_option("--load", source.load, "a checkpoint, or the folder with its `latest`")
      ->check(not_empty());
  command.add_option("--load-hf", source.load_hf, "a Hugging Face folder")->check(not_empty());
  command
      .add_option("--matmul-precision", source.matmul_precision,
                  "auto, bf16 or fp32; auto measures both")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, MatmulPrecision>{{"auto", MatmulPrecision::kAuto},
                                                 {"bf16", MatmulPrecision::kBF16},
                                                 {"fp32", MatmulPrecision::kF32}}));
  command.add_option("--num-threads", source.num_threads, "default: what this process may use")
      ->check(CLI::Range(int64_t{1}, train::max_threads()));
}

}  // namespace halfstep::apps
