// Prints an engine's answers to prompts of token ids, for comparisons with other implementations.
//
//   answer_lines MODEL MAX_TOKENS MAX_MODEL_LEN < LINES
//
// Each line of LINES is a prompt: token ids with blanks between them. The answer to a prompt is one
// line of JSON. `tokens` has the ids of the tokens that are drawn greedily. `drawn` has, for each
// drawn token, the log-probabilities by id of the 20 likeliest tokens and of the drawn one.
// `prompt` has the same for each token of the prompt but the first.

#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

#include "engine/engine.h"
#include "tests/testing/collecting_sink.h"

namespace quire::engine {
namespace {

nlohmann::json ToJson(const std::vector<PositionLogprobs>& positions) {
  nlohmann::json list = nlohmann::json::array();
  for (const PositionLogprobs& position : positions) {
    nlohmann::json by_id = {{std::to_string(position.chosen.token_id), position.chosen.logprob}};
    for (const TokenLogprob& top : position.top) by_id[std::to_string(top.token_id)] = top.logprob;
    list.push_back(std::move(by_id));
  }
  return list;
}

absl::StatusOr<nlohmann::json> Answer(Engine& engine, TokenIds prompt, int32_t max_tokens) {
  GenerateParams params;
  params.prompt = std::move(prompt);
  params.sampling.temperature = 0.0f;
  params.stop.max_tokens = max_tokens;
  params.stop.ignore_eos = true;
  params.output.token_ids = true;
  params.output.top_logprobs = params.output.prompt_logprobs = 20;
  const auto sink = std::make_shared<quire::testing::CollectingSink>();
  const auto handle = engine.Submit(std::move(params), sink);
  if (!handle.ok()) return handle.status();
  sink->WaitFinished();
  if (!sink->status().ok()) return sink->status();
  const auto sample = sink->sample();
  return nlohmann::json{{"prompt", ToJson(sink->prompt_logprobs())},
                        {"tokens", sample.token_ids},
                        {"drawn", ToJson(sample.logprobs)}};
}

int Run(const std::string& model, int32_t max_tokens, int64_t max_model_len) {
  const auto engine = Engine::Create(
      {.model_path = model, .threads = 1, .max_num_seqs = 4, .max_model_len = max_model_len});
  if (!engine.ok()) {
    std::cerr << engine.status().message() << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream ids(line);
    TokenIds prompt((std::istream_iterator<int32_t>(ids)), {});
    const auto answer = Answer(**engine, std::move(prompt), max_tokens);
    if (!answer.ok()) {
      std::cerr << answer.status().message() << "\n";
      return 1;
    }
    std::cout << answer->dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace quire::engine

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: answer_lines MODEL MAX_TOKENS MAX_MODEL_LEN < LINES\n";
    return 2;
  }
  return quire::engine::Run(argv[1], std::stoi(argv[2]), std::stoll(argv[3]));
}
