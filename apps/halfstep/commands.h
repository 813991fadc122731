// The subcommands. Each add_ function stands in a file of its own and adds one subcommand whose
// callback does the work; failures are thrown as halfstep::Error and printed by main.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace halfstep::train {
struct ModelSource;
}

namespace halfstep::apps {

void add_bench(CLI::App& app);
void add_convert(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_data(CLI::App& app);
void add_info(CLI::App& app);
void add_inspect(CLI::App& app);
void add_train(CLI::App& app);

// Of options that take a text: an empty one is how a variable of a script looks that was never set.
inline CLI::Validator not_empty() {
  return {[](const std::string& text) {
            return text.empty() ? std::string("got '', expected a text") : std::string();
          },
          ""};
}

// --load, --load-hf, --matmul-precision and --num-threads of the commands that read a model.
void add_model_source(CLI::App& command, train::ModelSource& source);

}  // namespace halfstep::apps
