// Text to token ids and back. Two kinds: bytes (built in) and a Hugging Face folder, whose work the
// `tokenizers` package does in a child process (pipe_tokenizer.h). Not for use from two threads at
// once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halfstep/data/example.h"

namespace halfstep::data {

// What a chat model continues, and the special token with which it ends its turn (−1: not known).
struct ChatPrompt {
  std::vector<int32_t> tokens;
  int64_t end = -1;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Ids of each text, without any special token added. Throws InputError for a text that the
  // tokenizer cannot take (not UTF-8).
  virtual std::vector<std::vector<int32_t>> encode_batch(
      std::span<const std::string_view> texts) = 0;
  std::vector<int32_t> encode(std::string_view text) {
    return std::move(encode_batch({&text, 1})[0]);
  }
  // The text of each list of ids. Throws InputError for an id outside the vocabulary.
  virtual std::vector<std::string> decode_batch(std::span<const std::vector<int32_t>> texts) = 0;
  std::string decode(const std::vector<int32_t>& ids) {
    return std::move(decode_batch({&ids, 1})[0]);
  }
  // Conversations, each a JSON object {"messages": […], "tools": […]} (the latter may be missing),
  // through the tokenizer's chat template: what assistants say is learned. Throws InputError if it
  // has none, or for a conversation that the template refuses.
  virtual std::vector<Example> encode_chats(std::span<const std::string_view> conversations) = 0;
  // A conversation that begins with this message of the user and goes on with the assistant's turn.
  virtual ChatPrompt chat_prompt(std::string_view message) = 0;
  // One more than the largest id.
  virtual int64_t vocab_size() const = 0;
  // The id that ends a document, −1 if there is none.
  virtual int64_t eod() const = 0;
  // The special tokens that the tokenizer itself puts in front of a text (a BOS); often none.
  virtual std::span<const int32_t> prefix() const = 0;
};

// 256 byte values and the end marker 256, which has no text. Takes any bytes;
// decode(encode(x)) == x for all of them.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 257;
  static constexpr int32_t kEod = 256;

  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string_view> texts) override;
  std::vector<std::string> decode_batch(std::span<const std::vector<int32_t>> texts) override;
  std::vector<Example> encode_chats(std::span<const std::string_view> conversations) override;
  ChatPrompt chat_prompt(std::string_view message) override;
  int64_t vocab_size() const override { return kVocabSize; }
  int64_t eod() const override { return kEod; }
  std::span<const int32_t> prefix() const override { return {}; }
};

// `--tokenizer SPEC`: "byte" or a folder with a tokenizer.json. Throws InputError if the folder or
// the packages that it needs are not there.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec);

}  // namespace halfstep::data
