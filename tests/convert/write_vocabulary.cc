// Writes the tokenizer of a Hugging Face directory as a GGUF file without tensors, for
// tests/text/tokenizer/compare_with_llama_cpp.py. Warnings about losses go to stderr.
//
// usage: write_vocabulary TOKENIZER_JSON OUT [NAME]. Reads tokenizer_config.json beside
// TOKENIZER_JSON. NAME becomes general.name.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "base/json.h"
#include "convert/tokenizer_to_gguf.h"
#include "engine/frontend/tokenizer_loader.h"

namespace {

using quire::files::GgufBytes;

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int Fail(const absl::Status& status) {
  std::cerr << status << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: write_vocabulary TOKENIZER_JSON OUT [NAME]\n";
    return 2;
  }
  const std::filesystem::path path = argv[1];
  quire::files::OpenedModel model{.path = path.parent_path().string()};
  quire::files::HfFiles& hf = model.hf.emplace();
  hf.tokenizer_json = ReadText(path);
  const std::string config = ReadText(path.parent_path() / "tokenizer_config.json");
  if (!config.empty()) {
    auto parsed = quire::base::ParseJson(config, "tokenizer_config.json");
    if (!parsed.ok()) return Fail(parsed.status());
    hf.tokenizer_config = *std::move(parsed);
  }
  const auto tokenizer = quire::engine::LoadTokenizer(model);
  if (!tokenizer.ok()) return Fail(tokenizer.status());

  quire::files::GgufValues values;
  values.String("general.architecture", "llama");
  if (argc == 4) values.String("general.name", argv[3]);
  std::vector<std::string> warnings;
  const absl::Status status =
      quire::convert::TokenizerToGguf(model, (*tokenizer)->vocab_size(), values, warnings);
  if (!status.ok()) return Fail(status);
  for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
  std::ofstream out(argv[2], std::ios::binary);
  out << "GGUF" << GgufBytes(uint32_t{3}) << GgufBytes(uint64_t{0})
      << GgufBytes(static_cast<uint64_t>(values.size())) << values.Bytes();
  return out.good() ? 0 : 1;
}
