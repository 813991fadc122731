// A Hugging Face tokenizer folder, worked by the `tokenizers` package in `python -m
// halfstep.tokenize FOLDER`. The interpreter is $HALFSTEP_PYTHON, else .venv/bin/python of the
// folder above the program's, else python3 on PATH.
//
// Protocol (python/halfstep/tokenize.py is the other end), little endian. Every message is
//   magic "hstk" | uint8 code | uint64 payload bytes | payload
// The child speaks first, then answers each request with one message.
//   hello    code 0: uint32 protocol version (3), int64 vocabulary size, int64 end-of-document id
//            or −1, uint64 number of special tokens in front of a text, then those, int32 each
//   encode   code 1: uint64 number of texts, then per text uint64 bytes and its UTF-8
//            answer: per text uint64 number of ids, then the ids, int32 each
//   decode   code 2: uint64 number of texts, then per text uint64 number of ids and the ids
//            answer: per text uint64 bytes and its UTF-8
//   chat     code 3: uint64 number of conversations, then per conversation uint64 bytes and its
//   JSON
//            answer: per conversation uint64 number of ids, then the ids, int32 each, then a uint8
//            per id: 1 if it is learned, else 0
//   prompt   code 4: uint64 number of messages, then per message uint64 bytes and its UTF-8
//            answer: per message uint64 number of ids, then the ids of the prompt, int32 each, and
//            int64 the token that ends the answer or −1
//   answers  code 0: as above; 1: the request was bad; 2: a package is missing; both with a
//   message.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "halfstep/data/subprocess.h"
#include "halfstep/data/tokenizer.h"

namespace halfstep::data {

class PipeTokenizer final : public Tokenizer {
 public:
  explicit PipeTokenizer(const std::string& folder);
  // For tests: another child, another patience. An answer may take `patience` and, on top, a second
  // for every 100 KB of the request.
  PipeTokenizer(const std::string& folder, std::vector<std::string> argv,
                Subprocess::Duration patience);

  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string_view> texts) override;
  std::vector<std::string> decode_batch(std::span<const std::vector<int32_t>> texts) override;
  std::vector<Example> encode_chats(std::span<const std::string_view> conversations) override;
  ChatPrompt chat_prompt(std::string_view message) override;
  int64_t vocab_size() const override { return vocab_size_; }
  int64_t eod() const override { return eod_; }
  std::span<const int32_t> prefix() const override { return prefix_; }

 private:
  void hello();
  // Sends a request and returns the answer's payload.
  std::string ask(uint8_t code, const std::string& payload);
  std::string receive_answer(size_t request_bytes);
  // Runs talk(); a failure of the child becomes an InputError, now and at every later call.
  template <typename Talk>
  auto guarded(Talk&& talk);
  [[noreturn]] void garbage(const std::string& what);
  // Takes a number of ids and the ids off the front of an answer.
  std::vector<int32_t> take_ids(std::string_view& in);

  std::string folder_;
  Subprocess::Duration patience_;
  std::unique_ptr<Subprocess> child_;
  int64_t vocab_size_ = 0, eod_ = -1;
  std::vector<int32_t> prefix_;
};

}  // namespace halfstep::data
