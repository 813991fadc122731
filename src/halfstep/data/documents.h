// Documents out of files: a .jsonl file has one per line ({"text": …}), any other file is one as a
// whole. Memory does not grow with the number of documents: it is that of the largest one and of
// the batch that is being tokenized.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "halfstep/data/tokenizer.h"

namespace halfstep::data {

// A line that holds no document.
struct BadLine {
  std::string file;
  int64_t line = 0;  // from 1
  std::string reason;
  std::string content;  // the beginning, if the line is long
};

struct DocumentOptions {
  std::string text_key = "text";
  // Called for each bad line, which is then left out. Unset: a bad line is an InputError that names
  // file and line.
  std::function<void(const BadLine&)> on_bad_line = {};
  // Longer lines are bad lines.
  int64_t max_line_bytes = int64_t{1} << 30;
};

struct Document {
  std::string text;
  std::string file;
  int64_t line = 0;  // from 1; 0: the whole file
};

// Calls body for each document, in order. Lines of white space are no documents.
void for_each_document(const std::vector<std::string>& files, const DocumentOptions& options,
                       const std::function<void(Document&&)>& body);

// Calls body with the ids of each document, in order, followed by the tokenizer's end marker if
// append_eod. Documents without text are left out. Throws InputError naming the document that the
// tokenizer refuses.
void tokenize_documents(const std::vector<std::string>& files, const DocumentOptions& options,
                        Tokenizer& tokenizer, bool append_eod,
                        const std::function<void(std::span<const int32_t>)>& body);

}  // namespace halfstep::data
