#include "engine/request/request.h"

namespace quire::engine {

int64_t NumBytes(const ChatMessages& messages) {
  int64_t bytes = 0;
  for (const text::ChatMessage& message : messages) {
    bytes += std::ssize(message.role) + std::ssize(message.content) + 1;
  }
  return bytes;
}

int64_t NumBytes(const PromptContent& prompt) {
  return std::visit([](const auto& given) { return NumBytes(given); }, prompt);
}

absl::Status CancelledStatus() { return absl::CancelledError("the request was cancelled"); }

absl::Status PastDeadlineStatus() {
  return absl::DeadlineExceededError("the request's deadline has passed");
}

absl::Status StillWanted(const Request& request, absl::Time now) {
  if (request.cancelled.load(std::memory_order_acquire)) return CancelledStatus();
  return request.deadline <= now ? PastDeadlineStatus() : absl::OkStatus();
}

}  // namespace quire::engine
