// `halfstep convert`: checkpoint → Hugging Face folder, Hugging Face folder → checkpoint, and
// checkpoint → checkpoint in other formats (docs/convert.md).
#include "halfstep/convert/convert.h"

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"
#include "halfstep/core/error.h"
#include "halfstep/io/units.h"

namespace halfstep::apps {
namespace {

struct Options {
  std::string load, load_hf, save, save_hf, dtype, max_shard_size, tokenizer;
  std::string exp_avg_dtype, exp_avg_sq_dtype, master;
  bool bf16 = false, o2_optimizer = false, reuse_fp32_param = false, allow_lossy_master = false;
  bool json = false;
};

void refuse_if(bool wrong, const std::string& what, const std::string& hint) {
  if (wrong) throw UsageError(what, hint);
}

// Which of the flags that have no effect in a direction were given.
void refuse_idle(const std::vector<std::pair<bool, std::string_view>>& flags,
                 std::string_view reason) {
  for (const auto& [given, name] : flags) {
    refuse_if(given, fmt::format("{} has no effect here: {}", name, reason), "drop it");
  }
}

void check_direction(const Options& o) {
  refuse_if(o.load.empty() == o.load_hf.empty(),
            "what is to be converted? Got --load and --load-hf both, or none",
            "give --load DIR (a checkpoint) or --load-hf DIR (a Hugging Face folder)");
  refuse_if(o.save.empty() == o.save_hf.empty(), "where to? Got --save and --save-hf both, or none",
            "give --save DIR (a checkpoint) or --save-hf DIR (a Hugging Face folder)");
  refuse_if(!o.load_hf.empty() && !o.save_hf.empty(),
            "--load-hf and --save-hf: one side has to be a checkpoint",
            "give --save DIR or --load DIR");
  if (!o.save_hf.empty()) {
    refuse_idle({{!o.exp_avg_dtype.empty(), "--exp-avg-dtype"},
                 {!o.exp_avg_sq_dtype.empty(), "--exp-avg-sq-dtype"},
                 {o.o2_optimizer, "--o2-optimizer"},
                 {!o.master.empty(), "--master"},
                 {o.reuse_fp32_param, "--reuse-fp32-param"},
                 {o.allow_lossy_master, "--allow-lossy-master"}},
                "a Hugging Face folder has weights alone");
  } else {
    refuse_idle(
        {{!o.max_shard_size.empty(), "--max-shard-size"}, {!o.tokenizer.empty(), "--tokenizer"}},
        "it is of --save-hf");
    refuse_idle({{o.allow_lossy_master && !o.load_hf.empty(), "--allow-lossy-master"}},
                "the values of a Hugging Face folder are kept whole");
  }
}

std::optional<Dtype> weight_dtype(const Options& o) {
  refuse_if(o.bf16 && o.dtype == "fp32", "--bf16 contradicts --dtype fp32", "give one of them");
  if (o.bf16) return Dtype::kBF16;
  return parse_dtype(o.dtype);  // of an empty name there is none
}

convert::Formats formats_of(const Options& o) {
  convert::Formats formats{.weight = weight_dtype(o),
                           .exp_avg = parse_dtype(o.exp_avg_dtype),
                           .exp_avg_sq = parse_dtype(o.exp_avg_sq_dtype),
                           .master = {}};
  if (o.o2_optimizer) {
    formats.exp_avg = formats.exp_avg.value_or(Dtype::kBF16);
    formats.exp_avg_sq = formats.exp_avg_sq.value_or(Dtype::kBF16);
  }
  refuse_if(o.reuse_fp32_param && !o.master.empty() && o.master != "split",
            fmt::format("--reuse-fp32-param contradicts --master {}", o.master),
            "give one of them");
  const std::string master = o.reuse_fp32_param ? "split" : o.master;
  for (const MasterMode mode : {MasterMode::kFp32, MasterMode::kSplit, MasterMode::kNone}) {
    if (master_name(mode) == master) formats.master = mode;
  }
  return formats;
}

convert::Report convert_it(const Options& o) {
  if (!o.save_hf.empty()) {
    const int64_t limit = o.max_shard_size.empty()
                              ? hf::kMaxShardBytes
                              : io::parse_bytes(o.max_shard_size, "--max-shard-size");
    refuse_if(limit < 1, "--max-shard-size 0: expected 1 or more", "give a size such as 5GB");
    return convert::export_to_hf(
        o.load, o.save_hf,
        {.dtype = weight_dtype(o), .max_shard_bytes = limit, .tokenizer = o.tokenizer});
  }
  if (!o.load_hf.empty()) return convert::import_from_hf(o.load_hf, o.save, formats_of(o));
  return convert::convert_checkpoint(o.load, o.save, formats_of(o), o.allow_lossy_master);
}

void run_convert(const Options& o) {
  check_direction(o);
  const convert::Report report = convert_it(o);
  if (o.json) {
    fmt::print("{}\n", convert::to_json(report).dump(
                           2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{}", convert::to_text(report));
  }
}

}  // namespace

void add_convert(CLI::App& app) {
  auto* command = app.add_subcommand(
      "convert", "a checkpoint to a Hugging Face folder, back, or to other formats");
  auto o = std::make_shared<Options>();
  const auto text = [&](const char* name, std::string& value, const char* help) {
    return command->add_option(name, value, help)->check(not_empty());
  };
  text("--load", o->load, "from a checkpoint, or the folder with its `latest`");
  text("--load-hf", o->load_hf, "from a Hugging Face folder");
  text("--save", o->save, "to a checkpoint in this folder");
  text("--save-hf", o->save_hf, "to a Hugging Face folder, which must be new or empty");
  text("--dtype", o->dtype, "of the target's weights; default: as in the checkpoint")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  command->add_flag("--bf16", o->bf16, "the same as --dtype bf16");
  text("--max-shard-size", o->max_shard_size, "--save-hf: largest file of weights (5GB)");
  text("--tokenizer", o->tokenizer,
       "--save-hf: folder whose tokenizer is copied; default: the checkpoint's");
  text("--exp-avg-dtype", o->exp_avg_dtype, "--save: storage of exp_avg")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  text("--exp-avg-sq-dtype", o->exp_avg_sq_dtype, "--save: storage of exp_avg_sq")
      ->check(CLI::IsMember({"fp32", "bf16", "ue6m10"}));
  command->add_flag("--o2-optimizer", o->o2_optimizer, "--save: both of them bf16");
  text("--master", o->master, "--save: FP32 master of BF16 weights")
      ->check(CLI::IsMember({"fp32", "split", "none"}));
  command->add_flag("--reuse-fp32-param", o->reuse_fp32_param, "the same as --master split");
  command->add_flag("--allow-lossy-master", o->allow_lossy_master,
                    "take BF16 weights where the checkpoint has no FP32 values");
  command->add_flag("--json", o->json, "one JSON document on stdout");
  command->callback([o] { run_convert(*o); });
}

}  // namespace halfstep::apps
