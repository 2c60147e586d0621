#pragma once

// Prints generated text on the terminal. A single sample is printed as it arrives, several samples
// one after another.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/terminal_text.h"
#include "quire/v1/inference_service.pb.h"

namespace quire::client {

struct GenerationOutputOptions {
  bool json = false;   // prints each message as a line of JSON, and no plain text
  bool stats = false;  // prints a line of counts and times on standard error at the end
  // Breaks the lines of a single sample between words at this many columns; 0: prints it as it
  // comes.
  int columns = 0;
  // The number of samples of the request. Several samples are printed whole, each with a title.
  uint32_t num_samples = 1;
};

// Prints the messages of one request. Not thread-safe.
class GenerationPrinter {
 public:
  explicit GenerationPrinter(GenerationOutputOptions options);

  void Take(const v1::GenerateStreamResponse& message);
  void Take(const v1::GenerateResponse& response);
  // Must be called after the last message: ends the line, and prints logprobs and stats.
  void Finish();

  // The text of the first sample, so far.
  const std::string& text() const { return text_; }

 private:
  struct Sample {
    std::string text;
    std::vector<v1::PositionLogprobs> logprobs;
    std::optional<double> score;
  };

  void PrintText(const std::string& text);
  void TakeEnd(uint32_t index, v1::FinishReason reason, const v1::StoppedBy& stop);
  void PrintSample(uint32_t index);
  void PrintStats() const;

  const GenerationOutputOptions options_;
  std::map<uint32_t, Sample> samples_;  // by index; a single sample is printed as it arrives
  std::vector<v1::PositionLogprobs> prompt_logprobs_;
  std::map<uint32_t, std::string> endings_;
  std::string text_;
  std::optional<WordWrap> wrap_;
  v1::Usage usage_;
  v1::Timings timings_;
};

}  // namespace quire::client
