// The subcommands. Each add_ function stands in a file of its own and adds one subcommand whose
// callback does the work; failures are thrown as halfstep::Error and printed by main.
#pragma once

#include <CLI/CLI.hpp>

namespace halfstep::train {
struct ModelSource;
}

namespace halfstep::apps {

void add_bench(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_data(CLI::App& app);
void add_info(CLI::App& app);
void add_inspect(CLI::App& app);
void add_train(CLI::App& app);

// --load, --load-hf, --matmul-precision and --num-threads of the commands that read a model.
void add_model_source(CLI::App& command, train::ModelSource& source);

}  // namespace halfstep::apps
