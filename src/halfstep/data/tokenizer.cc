#include "halfstep/data/tokenizer.h"

#include <fmt/core.h>

#include <filesystem>

#include "halfstep/core/error.h"
#include "halfstep/data/pipe_tokenizer.h"

namespace halfstep::data {

std::vector<std::vector<int32_t>> ByteTokenizer::encode_batch(
    std::span<const std::string_view> texts) {
  std::vector<std::vector<int32_t>> all;
  for (const std::string_view text : texts) {
    auto& ids = all.emplace_back();
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  }
  return all;
}

std::vector<std::string> ByteTokenizer::decode_batch(std::span<const std::vector<int32_t>> texts) {
  std::vector<std::string> all;
  for (const std::vector<int32_t>& ids : texts) {
    std::string& text = all.emplace_back();
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id >= kVocabSize) {
        throw InputError(
            fmt::format("token {}, expected 0 to {} (--tokenizer byte)", id, kVocabSize - 1),
            "the tokens were made with another tokenizer");
      }
      if (id != kEod) text += static_cast<char>(id);
    }
  }
  return all;
}

std::vector<Example> ByteTokenizer::encode_chats(std::span<const std::string_view>) {
  throw InputError("--tokenizer byte has no chat template for {\"messages\"}",
                   "give the tokenizer folder of a chat model (--tokenizer DIR), or {\"prompt\", "
                   "\"completion\"} examples");
}

ChatPrompt ByteTokenizer::chat_prompt(std::string_view) {
  throw InputError("--tokenizer byte has no chat template for --chat",
                   "leave --chat out, or give the tokenizer folder of a chat model");
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec) {
  if (spec == "byte") return std::make_unique<ByteTokenizer>();
  if (!std::filesystem::exists(std::filesystem::path(spec) / "tokenizer.json")) {
    throw InputError(fmt::format("--tokenizer '{}': no tokenizer.json there", spec),
                     "give `byte` or a Hugging Face folder with a tokenizer.json");
  }
  return std::make_unique<PipeTokenizer>(spec);
}

}  // namespace halfstep::data
