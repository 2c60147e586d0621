#include "engine/frontend/resume_check.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::engine {
namespace {

absl::Status CheckCount(const char* field, size_t got, int32_t n) {
  if (got == static_cast<size_t>(n)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want one entry for each of the %d samples, got %d", field, n, got));
}

absl::Status CheckIsSame(const char* field, const std::string& got, const std::string& here) {
  if (got.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: want the value in the first message of the stream, got none", field));
  }
  if (got == here) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: the stream ran with \"%s\", this server has \"%s\", so its tokens could differ", field,
      got, here));
}

}  // namespace

absl::Status CheckResume(const GenerateParams& params, const AnswerIdentity& here,
                         int32_t vocab_size) {
  const ResumeParams& resume = *params.resume;
  if (!params.continuations.empty()) {
    return absl::InvalidArgumentError("resume_token_ids: want none where continuations are scored");
  }
  if (params.sampling.beam) {
    return absl::InvalidArgumentError("resume_token_ids: want none with sampling.beam");
  }
  if (params.ranks_samples()) {
    return absl::InvalidArgumentError(
        "resume_token_ids: want none with sampling.best_of, which needs the log-probability of "
        "every token; leave best_of out, or begin again");
  }
  if (!params.session.name.empty() && params.session.etag.empty()) {
    return absl::InvalidArgumentError(
        "session_etag: want the session's etag before the turn that is resumed, got none");
  }
  const int32_t n = params.sampling.num_samples();
  RETURN_IF_ERROR(CheckCount("resume_token_ids", resume.token_ids.size(), n));
  RETURN_IF_ERROR(CheckCount("resume_text_bytes", resume.text_bytes.size(), n));
  if (!params.sampling.seed) {
    return absl::InvalidArgumentError(
        "sampling.seed: want the seed in the first message of the stream, got none");
  }
  for (size_t k = 0; k < resume.token_ids.size(); ++k) {
    for (const int32_t id : resume.token_ids[k]) {
      if (id >= 0 && id < vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("resume_token_ids[%d]: want 0..%d, got %d", k, vocab_size - 1, id));
    }
  }
  RETURN_IF_ERROR(CheckIsSame("resume_model_digest", resume.model_digest, here.model_digest));
  RETURN_IF_ERROR(CheckIsSame("resume_numerics", resume.numerics, here.numerics));
  if (!here.no_resume.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("resume_token_ids: no stream can be resumed here, since ", here.no_resume));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
