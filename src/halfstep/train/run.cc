#include "halfstep/train/run.h"

#include <fmt/core.h>

#include <optional>

#include "halfstep/checkpoint/model_slices.h"
#include "halfstep/io/folder_lock.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/loop.h"
#include "halfstep/train/report.h"
#include "halfstep/train/trainer.h"

namespace halfstep::train {

void run_training(const Options& options, comm::Communicator& ranks, std::FILE* terminal) {
  const bool leads = ranks.rank() == 0;
  if (options.check_config) {
    if (leads) fmt::print(terminal, "{}\n", effective_configuration(options).dump(2));
    return;
  }
  // For the whole run: two that save in one folder would remove each other's checkpoints.
  std::optional<io::FolderLock> lock;
  if (leads && !options.save.empty()) lock.emplace(options.save);
  RunLog log = leads ? RunLog(terminal, options.log_dir.empty() ? options.save : options.log_dir,
                              options.quiet)
                     : RunLog();
  const auto trainer = set_up(options, ranks, log);
  report_start(*trainer, log);
  run_loop(*trainer, log);
}

nlohmann::ordered_json effective_configuration(const Options& options) {
  const TokenSources tokens = load_tokens(data_options(options));
  const arch::ModelConfig config = make_config(options, tokens);
  const auto parameters = arch::parameter_list(config);
  const layout::Layout layout = plan_layout(options, parameters);
  nlohmann::ordered_json classes = nlohmann::ordered_json::object();
  for (const layout::MemoryClass c : layout::kMemoryClasses) {
    if (layout.bytes(c) == 0) continue;
    classes[std::string(layout::memory_class_name(c))] = {
        {"dtype", dtype_name(layout.arenas[0].format.dtype(c))}, {"bytes", layout.bytes(c)}};
  }
  nlohmann::ordered_json offsets = nlohmann::ordered_json::array();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto& location = layout.locations[p];
    offsets.push_back({{"name", parameters[p].name},
                       {"shape", parameters[p].shape},
                       {"arena", location.arena},
                       {"offset", layout.placement_of(static_cast<int64_t>(p)).offset},
                       {"decayed", parameters[p].decayed()}});
  }
  const PartedSettings settings = parted_settings(options);
  return {{"settings", settings.given},
          {"defaults", settings.defaults},
          {"model", nlohmann::ordered_json::parse(arch::to_hf_config(config))},
          {"static_bytes", layout.total_bytes()},
          {"save_copy_bytes",
           options.async_save
               ? checkpoint::total_bytes(checkpoint::slices_to_save(layout, parameters, 0))
               : 0},
          {"memory", classes},
          {"parameters", offsets}};
}

}  // namespace halfstep::train
