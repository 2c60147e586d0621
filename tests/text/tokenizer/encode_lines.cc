// Encodes texts for compare_with_hf.py. Reads one JSON string per line, and writes one JSON object
// per line. "ids" are the ids with special tokens added and recognised. "plain_ids" are the ids
// with neither. "text" is the text to which "ids" decode.
//
// usage: encode_lines MODEL < LINES; MODEL is a tokenizer.json, a GGUF file or a directory

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "base/check.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "engine/frontend/tokenizer_loader.h"
#include "files/model_files.h"
#include "text/tokenizer/tokenizer_json.h"

namespace {

using nlohmann::json;
using quire::text::Tokenizer;

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path) {
  if (!path.ends_with(".json")) {
    ASSIGN_OR_RETURN(const quire::files::OpenedModel model, quire::files::OpenModelFiles(path));
    return quire::engine::LoadTokenizer(model);
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const json null;
  return quire::text::CreateTokenizer({text, null, null, null});
}

// The other programs put special tokens around a text that has them already, and InputFrame does
// not. So they are added here.
std::vector<int32_t> Ids(const Tokenizer& tokenizer, const std::string& text, bool special) {
  const auto tokens = tokenizer.Encode(
      text, {.kind = quire::text::InputKind::kPart, .parse_special_tokens = special});
  QUIRE_CHECK(tokens.ok()) << tokens.status().ToString();
  const quire::text::InputFrame frame = special ? tokenizer.frame() : quire::text::InputFrame();
  std::vector<int32_t> ids = frame.prefix_ids;
  for (const auto& token : *tokens) ids.push_back(token.id);
  ids.insert(ids.end(), frame.suffix_ids.begin(), frame.suffix_ids.end());
  return ids;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: encode_lines MODEL < LINES\n";
    return 2;
  }
  const auto tokenizer = Load(argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << argv[1] << ": " << tokenizer.status() << "\n";
    return 1;
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = quire::base::ParseJson(line, "line");
    if (!text.ok() || !text->is_string()) {
      std::cerr << "want a JSON string a line, got " << line << "\n";
      return 1;
    }
    const auto& value = text->get_ref<const std::string&>();
    const std::vector<int32_t> ids = Ids(**tokenizer, value, /*special=*/true);
    json out = {{"ids", ids}, {"plain_ids", Ids(**tokenizer, value, /*special=*/false)}};
    out["text"] = (*tokenizer)->Decode(ids, /*skip_special_tokens=*/false);
    std::cout << out.dump() << "\n";
  }
  return 0;
}
