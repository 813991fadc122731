#include "halfstep/train/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "halfstep/core/error.h"

namespace halfstep::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParsedFlags parse(std::vector<std::string> args) { return parse_flags(args); }

// The message and the hint of the UsageError that parsing must throw.
std::string refusal(std::vector<std::string> args) {
  try {
    parse_flags(args);
  } catch (const UsageError& error) {
    return std::string(error.what()) + " / " + error.hint();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text, const std::string& name = "config")
      : path_(::testing::TempDir() + "halfstep_flags_" + name + ".json") {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Flags, NamesAreUniqueAndEveryFlagSaysWhatItIs) {
  std::set<std::string> names;
  for (const Flag& flag : flag_table()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    EXPECT_FALSE(flag.help.empty()) << flag.name;
    EXPECT_TRUE(flag.set) << flag.name;
    EXPECT_EQ(flag.value.empty(), flag.arity == Flag::Arity::kSwitch) << flag.name;
    EXPECT_THAT(flags_help(), HasSubstr("--" + flag.name));
  }
}

TEST(Flags, ReadsEveryKindOfValue) {
  const Options o = parse({"--bf16", "--hidden-size", "1KiB", "--lr=1e-4", "--lr-decay-style",
                           "WSD", "--exp-avg-sq-dtype", "ue6m10", "--state-rounding=auto", "--data",
                           "a.py", "b.py", "--save", "out", "--data", "c.py"})
                        .options;
  EXPECT_TRUE(o.bf16);
  EXPECT_EQ(o.hidden_size, 1024);
  EXPECT_EQ(o.lr, 1e-4);
  EXPECT_EQ(o.lr_decay_style, DecayStyle::kWsd);
  EXPECT_EQ(o.exp_avg_sq_dtype, Dtype::kUE6M10);
  EXPECT_EQ(o.state_rounding, std::nullopt);
  EXPECT_EQ(o.save, "out");
  EXPECT_THAT(o.data, ElementsAre("a.py", "b.py", "c.py"));
}

TEST(Flags, TheLastValueWinsAndASwitchCanBeTurnedOff) {
  const Options o = parse({"--lr", "1", "--bf16", "--lr", "2", "--bf16=false"}).options;
  EXPECT_EQ(o.lr, 2);
  EXPECT_FALSE(o.bf16);
}

TEST(Flags, AnUnknownFlagSuggestsTheNearest) {
  EXPECT_THAT(refusal({"--o2-optimiser"}), HasSubstr("did you mean --o2-optimizer?"));
  EXPECT_THAT(refusal({"--hidden_size", "8"}), HasSubstr("did you mean --hidden-size?"));
  EXPECT_THAT(refusal({"--xyzzy"}), HasSubstr("halfstep train --help"));
}

TEST(Flags, RefusesBadValues) {
  EXPECT_THAT(refusal({"--hidden-size"}), HasSubstr("--hidden-size needs a value"));
  EXPECT_THAT(refusal({"--hidden-size", "--bf16"}), HasSubstr("--hidden-size needs a value"));
  EXPECT_THAT(refusal({"--hidden-size", "0"}), HasSubstr("got 0, expected 1 or more"));
  EXPECT_THAT(refusal({"--hidden-size", "8.5"}), HasSubstr("--hidden-size"));
  EXPECT_THAT(refusal({"--num-layers", "two"}),
              HasSubstr("got 'two', expected a whole number from 1 to 65536"));
  EXPECT_THAT(refusal({"--num-layers", "100000000"}), HasSubstr("expected 65536 or less"));
  EXPECT_THAT(refusal({"--num-threads", "1000000"}), HasSubstr("or less"));
  EXPECT_THAT(refusal({"--norm-epsilon", "1e30"}), HasSubstr("between 0 and 1"));
  EXPECT_THAT(refusal({"--init-method-std", "1e30"}), HasSubstr("between 0 and 100"));
  EXPECT_THAT(refusal({"--weight-decay", "1e30"}), HasSubstr("between 0 and 1000"));
  EXPECT_THAT(refusal({"--lr", "fast"}), HasSubstr("--lr"));
  EXPECT_THAT(refusal({"--lr", "nan"}), HasSubstr("--lr"));
  EXPECT_THAT(refusal({"--lr", "-1"}), HasSubstr("--lr"));
  EXPECT_THAT(refusal({"--adam-beta2", "1"}), HasSubstr("strictly between 0 and 1"));
  EXPECT_THAT(refusal({"--lr-decay-style", "step"}), HasSubstr("constant,linear,cosine,WSD"));
  EXPECT_THAT(refusal({"--bf16=yes"}), HasSubstr("--bf16"));
  EXPECT_THAT(refusal({"bf16"}), HasSubstr("where a flag was expected"));
}

TEST(Flags, AnEmptyTextIsNotTakenForNothing) {
  for (const char* flag : {"--save", "--load", "--load-hf", "--tokenizer", "--fp32-params",
                           "--tokenizer-name-or-path", "--log-dir", "--split"}) {
    EXPECT_THAT(refusal({flag, ""}), HasSubstr(std::string(flag) + ": got '', expected")) << flag;
    EXPECT_THAT(refusal({std::string(flag) + "="}), HasSubstr("got ''")) << flag;
  }
  EXPECT_THAT(refusal({"--data", "a", ""}), HasSubstr("--data: got ''"));
}

TEST(Flags, RefusesWhatIsNotImplemented) {
  EXPECT_THAT(refusal({"--hidden-dropout", "0.1"}), HasSubstr("--hidden-dropout 0.1"));
  EXPECT_THAT(refusal({"--normalization", "LayerNorm"}), HasSubstr("only RMSNorm"));
  EXPECT_THAT(refusal({"--tensor-model-parallel-size", "2"}), HasSubstr("only 1 is"));
  EXPECT_THAT(refusal({"--recompute-granularity", "full"}), HasSubstr("not implemented"));
}

TEST(Flags, WhatHasNoMeaningIsListedOnce) {
  const ParsedFlags parsed = parse({"--use-flash-attn", "--spec", "a", "b", "--use-flash-attn",
                                    "--hidden-dropout", "0.0", "--bf16"});
  std::vector<std::string> names;
  for (const Flag* flag : parsed.nothing_to_do) names.push_back(flag->name);
  EXPECT_THAT(names, ElementsAre("use-flash-attn", "spec", "hidden-dropout"));
}

TEST(Flags, TheConfigFileHoldsTheSameNamesAndTheCommandLineWins) {
  const ConfigFile config(R"({"lr": 1e-4, "hidden-size": "1KiB", "bf16": true, "data": ["a", "b"],
                              "use-flash-attn": true, "master": null})");
  const ParsedFlags parsed = parse({"--lr", "2e-4", "--config", config.path()});
  EXPECT_EQ(parsed.options.lr, 2e-4);
  EXPECT_EQ(parsed.options.hidden_size, 1024);
  EXPECT_TRUE(parsed.options.bf16);
  EXPECT_THAT(parsed.options.data, ElementsAre("a", "b"));
  EXPECT_EQ(parsed.nothing_to_do.size(), 1u);
  // A list of the command line replaces the file's.
  EXPECT_THAT(parse({"--config=" + config.path(), "--data", "c"}).options.data, ElementsAre("c"));
}

TEST(Flags, TheConfigFileIsAsStrictAsTheCommandLine) {
  for (const auto& [text, message] :
       {std::pair{R"({"hidden-sise": 8})", "did you mean --hidden-size?"},
        {R"({"bf16": 1})", "expected true or false"},
        {R"({"lr": [1]})", "expected one value"},
        {R"({"data": "a"})", "expected a list"},
        {R"({"save": 5})", "save in "},
        {R"({"tokenizer": true})", "got true, expected a string"},
        {R"({"save": ""})", "got '', expected DIR"},
        {R"({"lr": )", "not valid JSON"},
        {R"([1])", "no JSON object"}}) {
    const ConfigFile config(text);
    EXPECT_THAT(refusal({"--config", config.path()}), HasSubstr(message));
  }
  EXPECT_THAT(refusal({"--config", "/nowhere.json"}), HasSubstr("/nowhere.json"));
}

TEST(Flags, SettingsAreAConfigFileThatGivesTheSameSettings) {
  const std::vector<std::string> args{"--bf16",
                                      "--lr",
                                      "3e-4",
                                      "--exp-avg-dtype",
                                      "bf16",
                                      "--state-rounding",
                                      "stochastic",
                                      "--data-path",
                                      "1",
                                      "a",
                                      "2",
                                      "b",
                                      "--adam-beta2",
                                      "0.95",
                                      "--master",
                                      "none"};
  const Options options = parse(args).options;
  const PartedSettings settings = parted_settings(options);
  const ConfigFile config(settings.given.dump());
  const Options read = parse({"--config", config.path()}).options;
  EXPECT_EQ(settings_json(read), settings_json(options));
  EXPECT_EQ(read.given, options.given);
  EXPECT_EQ(settings.given["lr"], 3e-4);
  EXPECT_FALSE(settings.given.contains("adam-beta1"));
  EXPECT_EQ(settings.defaults["adam-beta1"], 0.9);
}

TEST(Flags, AValueThatEqualsTheDefaultIsGiven) {
  EXPECT_FALSE(parse({}).options.is_given("eval-interval"));
  EXPECT_TRUE(parse({"--eval-interval", "1000"}).options.is_given("eval-interval"));
  EXPECT_TRUE(parse({"--tokenizer-name-or-path", "byte"}).options.is_given("tokenizer"));
  const ConfigFile config(R"({"eval-interval": 1000, "lr-decay-style": "linear", "bf16": null})");
  const Options read = parse({"--config", config.path()}).options;
  EXPECT_THAT(read.given, ElementsAre("eval-interval", "lr-decay-style"));
}

TEST(Flags, ALaterConfigFileCanBringADefaultBack) {
  const ConfigFile first(R"({"lr-decay-style": "cosine", "eval-interval": 5})", "first");
  const ConfigFile second(R"({"lr-decay-style": "linear"})", "second");
  const Options read = parse({"--config", first.path(), "--config", second.path()}).options;
  EXPECT_EQ(read.lr_decay_style, DecayStyle::kLinear);
  EXPECT_EQ(read.eval_interval, 5);
  // What a flag refuses, a file may not say either.
  const ConfigFile zero(R"({"num-layers": 0})");
  EXPECT_THAT(refusal({"--config", zero.path()}), HasSubstr("got 0, expected 1 or more"));
}

TEST(NearestName, CountsInsertionsDeletionsAndSubstitutions) {
  const std::vector<std::string> names{"kitten", "sit"};
  EXPECT_EQ(nearest_name("sitten", names), "kitten");
  EXPECT_EQ(nearest_name("si", names), "sit");
  EXPECT_EQ(nearest_name("abcdefgh", names), "");
}

}  // namespace
}  // namespace halfstep::train
