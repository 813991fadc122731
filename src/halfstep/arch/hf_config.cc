// Hugging Face's config.json, in and out. What a missing key means is what the model's class in
// `transformers` takes for it; where those defaults differ between versions, the key is required.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "halfstep/arch/model_config.h"
#include "halfstep/core/error.h"
#include "halfstep/io/file.h"
#include "halfstep/io/json.h"

namespace halfstep::arch {
namespace {

using nlohmann::json;

struct FamilyNames {
  Family family;
  const char* model_type;
  const char* architecture;
};
constexpr std::array kFamilies{
    FamilyNames{Family::kLlama, "llama", "LlamaForCausalLM"},
    FamilyNames{Family::kMistral, "mistral", "MistralForCausalLM"},
    FamilyNames{Family::kQwen2, "qwen2", "Qwen2ForCausalLM"},
    FamilyNames{Family::kQwen3, "qwen3", "Qwen3ForCausalLM"},
};
constexpr const char* kSupported =
    "supported: Llama 2/3, Mistral without sliding window, Qwen2.5 and Qwen3 dense";

// io::JsonObject for the files of others: null is absent, a missing key may have a default, and
// every error says which models are supported.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  bool is_null(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }

  [[noreturn]] void refuse(const char* key, std::string_view expected) const {
    const std::string got = has(key) ? object_.at(key).dump() : "absent or null";
    throw InputError(fmt::format("{}: '{}' is {}, expected {}", where_, key, got, expected),
                     kSupported);
  }

  int64_t integer(const char* key, std::optional<int64_t> fallback = {}) const {
    if (!has(key) && fallback) return *fallback;
    if (!has(key) || !object_.at(key).is_number_integer()) refuse(key, "an integer");
    const json& value = object_.at(key);
    // A number without a sign is kept as unsigned, and beyond 2^63 would become a negative one.
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
      refuse(key, "an integer below 2^63");
    }
    return value.get<int64_t>();
  }
  double number(const char* key, std::optional<double> fallback = {}) const {
    if (!has(key) && fallback) return *fallback;
    if (!has(key) || !object_.at(key).is_number()) refuse(key, "a number");
    return object_.at(key).get<double>();
  }
  bool boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_boolean()) refuse(key, "true or false");
    return object_.at(key).get<bool>();
  }
  std::string text(const char* key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_string()) refuse(key, "a string");
    return object_.at(key).get<std::string>();
  }
  std::optional<Reader> object(const char* key) const {
    if (!has(key)) return std::nullopt;
    if (!object_.at(key).is_object()) refuse(key, "an object");
    return Reader(object_.at(key), fmt::format("{}: {}", where_, key));
  }
  const json& raw(const char* key) const { return object_.at(key); }

 private:
  const json& object_;
  std::string where_;
};

Family read_family(const Reader& config) {
  if (!config.has("model_type")) config.refuse("model_type", "the type of the model");
  const std::string type = config.text("model_type", "");
  const auto* found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](const auto& f) { return type == f.model_type; });
  if (found == kFamilies.end()) config.refuse("model_type", "llama, mistral, qwen2 or qwen3");
  if (config.has("architectures") &&
      config.raw("architectures") != json::array({found->architecture})) {
    config.refuse("architectures", fmt::format("[\"{}\"]", found->architecture));
  }
  return found->family;
}

// Everything that would change the function and that we do not implement.
void refuse_unsupported(const Reader& config, const ModelConfig& model) {
  if (config.text("hidden_act", "silu") != "silu") config.refuse("hidden_act", "\"silu\"");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (config.boolean(key, false)) config.refuse(key, "false");
  }
  if (config.number("attention_dropout", 0) != 0) config.refuse("attention_dropout", "0");
  if (config.has("quantization_config")) config.refuse("quantization_config", "none");
  if (model.family == Family::kMistral) {
    // Its class has a window of 4096 where the key is missing, none where it is null.
    if (!config.is_null("sliding_window")) config.refuse("sliding_window", "null");
  }
  if (config.boolean("use_sliding_window", false)) config.refuse("use_sliding_window", "false");
  if (config.has("layer_types")) {
    const json& types = config.raw("layer_types");
    const bool full =
        types.is_array() && std::all_of(types.begin(), types.end(),
                                        [](const json& t) { return t == "full_attention"; });
    if (!full) config.refuse("layer_types", "\"full_attention\" for every layer");
  }
}

void read_rope(const Reader& config, ModelConfig& model) {
  // transformers < 5 writes rope_theta and rope_scaling, 5 writes rope_parameters with both.
  const char* key = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const std::optional<Reader> rope = config.object(key);
  model.rope_theta = config.number("rope_theta", 10000.0);
  if (config.number("partial_rotary_factor", 1) != 1) config.refuse("partial_rotary_factor", "1");
  if (!rope) return;
  model.rope_theta = rope->number("rope_theta", model.rope_theta);
  if (rope->number("partial_rotary_factor", 1) != 1) rope->refuse("partial_rotary_factor", "1");
  const char* type_key = rope->has("rope_type") ? "rope_type" : "type";
  const std::string type = rope->text(type_key, "default");
  if (type == "default") return;
  if (type != "llama3") rope->refuse(type_key, "\"default\" or \"llama3\"");
  model.rope_scaling =
      Llama3RopeScaling{.factor = rope->number("factor"),
                        .low_freq_factor = rope->number("low_freq_factor"),
                        .high_freq_factor = rope->number("high_freq_factor"),
                        .original_max_position_embeddings = rope->integer(
                            "original_max_position_embeddings", model.max_position_embeddings)};
}

}  // namespace

ModelConfig load_hf_config(const std::filesystem::path& config_json) {
  return parse_hf_config(io::read_text_file(config_json), config_json.string());
}

ModelConfig parse_hf_config(std::string_view text, const std::string& file) {
  const json document = io::parse_json(text, file);
  if (!document.is_object()) {
    throw InputError(fmt::format("{}: not a JSON object", file), "download or copy the file again");
  }
  const Reader config(document, file);

  ModelConfig model;
  model.family = read_family(config);
  model.qk_norm = model.family == Family::kQwen3;
  model.qkv_bias = model.family == Family::kQwen2;
  model.num_layers = config.integer("num_hidden_layers");
  model.hidden_size = config.integer("hidden_size");
  model.ffn_hidden_size = config.integer("intermediate_size");
  model.num_attention_heads = config.integer("num_attention_heads");
  model.vocab_size = config.integer("vocab_size");
  model.max_position_embeddings = config.integer("max_position_embeddings");
  // Llama 1 and 2 leave it out where it equals the number of heads; elsewhere the default is a
  // number that fits no particular model.
  model.num_query_groups = model.family == Family::kLlama
                               ? config.integer("num_key_value_heads", model.num_attention_heads)
                               : config.integer("num_key_value_heads");
  if (model.num_attention_heads < 1) config.refuse("num_attention_heads", "1 or more");
  if (model.family == Family::kQwen3) {
    model.head_dim = config.integer("head_dim", 128);
  } else {
    if (!config.has("head_dim") && model.hidden_size % model.num_attention_heads != 0) {
      config.refuse("head_dim", "a number, as num_attention_heads does not divide hidden_size");
    }
    model.head_dim = config.integer("head_dim", model.hidden_size / model.num_attention_heads);
  }
  model.norm_eps = config.number("rms_norm_eps", 1e-6);
  model.tie_embeddings = config.boolean("tie_word_embeddings", false);
  model.init_std = config.number("initializer_range", 0.02);
  read_rope(config, model);
  refuse_unsupported(config, model);
  try {
    model.validate();
  } catch (const UsageError& error) {  // the same rules, but here the file is at fault
    throw InputError(fmt::format("{}: {}", file, error.what()), kSupported);
  }
  return model;
}

std::string to_hf_config(const ModelConfig& config) {
  config.validate();
  const auto* names = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](const auto& f) { return f.family == config.family; });
  // Both spellings of the rotary embedding, for readers before and after transformers 5.
  json rope = {{"rope_type", "default"}};
  if (config.rope_scaling) {
    const auto& scaling = *config.rope_scaling;
    rope = {{"rope_type", "llama3"},
            {"factor", scaling.factor},
            {"low_freq_factor", scaling.low_freq_factor},
            {"high_freq_factor", scaling.high_freq_factor},
            {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
  }
  json rope_parameters = rope;
  rope_parameters["rope_theta"] = config.rope_theta;

  nlohmann::ordered_json out = {
      {"architectures", {names->architecture}},
      {"model_type", names->model_type},
      {"hidden_act", "silu"},
      {"num_hidden_layers", config.num_layers},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.ffn_hidden_size},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_query_groups},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.norm_eps},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", config.rope_scaling ? rope_parameters : json()},
      {"rope_parameters", rope_parameters},
      {"tie_word_embeddings", config.tie_embeddings},
      {"initializer_range", config.init_std},
      {"attention_dropout", 0.0},
      {"sliding_window", nullptr},
  };
  if (config.family == Family::kLlama || config.family == Family::kQwen3) {
    out["attention_bias"] = false;
  }
  if (config.family == Family::kLlama) out["mlp_bias"] = false;
  if (config.family == Family::kQwen2 || config.family == Family::kQwen3) {
    out["use_sliding_window"] = false;
  }
  return out.dump(2) + "\n";
}

}  // namespace halfstep::arch
