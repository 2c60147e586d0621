#include "engine/sharing/prefix_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/logging.h"
#include "base/resource_name.h"
#include "base/status_macros.h"
#include "files/byte_codec.h"

namespace quire::engine {
namespace {

using files::ByteReader;
using files::ByteWriter;

constexpr char kFile[] = "named.log";
// A file below this size is not worth a rewrite.
constexpr int64_t kSmallFile = 1 << 20;

enum class Entry : uint64_t {
  kNextPin = 1,  // pins below this one were used
  kContent,      // a prefix with its content
  kChange,       // a prefix without it
  kEnd,          // the prefix is gone
};

uint64_t Encoded(absl::Time time) { return static_cast<uint64_t>(absl::ToUnixNanos(time)); }
absl::Time DecodedTime(uint64_t nanos) { return absl::FromUnixNanos(static_cast<int64_t>(nanos)); }

void AddIds(ByteWriter& writer, const std::vector<int32_t>& ids) {
  writer.Add(ids.size());
  for (const int32_t id : ids) writer.Add(static_cast<uint64_t>(id));
}

void AddContent(ByteWriter& writer, const PrefixContent& content) {
  AddIds(writer, content.ids);
  writer.Add(content.given.index());
  if (const auto* text = std::get_if<std::string>(&content.given)) {
    writer.AddSized(*text);
  } else if (const auto* ids = std::get_if<std::vector<int32_t>>(&content.given)) {
    AddIds(writer, *ids);
  } else {
    const auto& messages = std::get<std::vector<text::ChatMessage>>(content.given);
    writer.Add(messages.size());
    for (const text::ChatMessage& message : messages) {
      writer.AddSized(message.role);
      writer.AddSized(message.content);
    }
  }
}

std::string Encode(const SavedPrefix& prefix, bool with_content) {
  ByteWriter writer;
  writer.Add(static_cast<uint64_t>(with_content ? Entry::kContent : Entry::kChange));
  writer.Add(prefix.pin);
  for (const std::string* text : {&prefix.name, &prefix.tenant, &prefix.salt, &prefix.display_name,
                                  &prefix.request_id, &prefix.request_digest}) {
    writer.AddSized(*text);
  }
  writer.Add(prefix.allowed_tenants.size());
  for (const std::string& tenant : prefix.allowed_tenants) writer.AddSized(tenant);
  for (const absl::Time time : {prefix.create_time, prefix.update_time, prefix.end}) {
    writer.Add(Encoded(time));
  }
  writer.Add(static_cast<uint64_t>(absl::ToInt64Nanoseconds(prefix.ttl)));
  writer.Add(prefix.refresh_on_hit ? 1 : 0);
  writer.Add(prefix.version);
  if (with_content) AddContent(writer, *prefix.content);
  return writer.Take();
}

// Returns an empty list if an id is not in [0, vocab_size).
std::vector<int32_t> ReadIds(ByteReader& reader, int32_t vocab_size) {
  std::vector<int32_t> ids(reader.Count(/*item_bytes=*/8));
  for (int32_t& id : ids) {
    const uint64_t value = reader.Number();
    if (value >= static_cast<uint64_t>(vocab_size)) return {};
    id = static_cast<int32_t>(value);
  }
  return ids;
}

// Returns null if the bytes are no content.
std::shared_ptr<const PrefixContent> ReadContent(ByteReader& reader, const SavedPrefix& prefix,
                                                 int32_t vocab_size) {
  auto content = std::make_shared<PrefixContent>();
  content->pin = prefix.pin;
  content->tenant = prefix.tenant;
  content->ids = ReadIds(reader, vocab_size);
  switch (reader.Number()) {
    case 0:
      content->given = std::string(reader.Sized());
      break;
    case 1:
      content->given = ReadIds(reader, vocab_size);
      break;
    case 2: {
      std::vector<text::ChatMessage> messages(reader.Count(/*item_bytes=*/16));
      for (text::ChatMessage& message : messages) {
        message.role = reader.Sized();
        message.content = reader.Sized();
      }
      content->given = std::move(messages);
      break;
    }
    default:
      return nullptr;
  }
  return content->ids.empty() ? nullptr : content;
}

// Reads all but the pin and the content.
void ReadFields(ByteReader& reader, SavedPrefix& prefix) {
  for (std::string* text : {&prefix.name, &prefix.tenant, &prefix.salt, &prefix.display_name,
                            &prefix.request_id, &prefix.request_digest}) {
    *text = reader.Sized();
  }
  prefix.allowed_tenants.resize(reader.Count(/*item_bytes=*/8));
  for (std::string& tenant : prefix.allowed_tenants) tenant = reader.Sized();
  for (absl::Time* time : {&prefix.create_time, &prefix.update_time, &prefix.end}) {
    *time = DecodedTime(reader.Number());
  }
  prefix.ttl = absl::Nanoseconds(static_cast<int64_t>(reader.Number()));
  prefix.refresh_on_hit = reader.Number() != 0;
  prefix.version = reader.Number();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefixLog>> PrefixLog::Open(const files::StateDirectory& directory,
                                                           std::string_view model_digest,
                                                           const PrefixLogLimits& limits) {
  std::unique_ptr<PrefixLog> log(new PrefixLog(limits));
  auto opened = files::RecordLog::Open(directory, kFile,
                                       absl::StrFormat("prefixes of model %s", model_digest),
                                       [&](std::string_view record) { return log->Read(record); });
  if (absl::IsNotFound(opened.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(opened.status().message(),
                     ": its named prefixes belong to another model. Name another directory for "
                     "this one, or remove the file if they are not wanted any more"));
  }
  RETURN_IF_ERROR(opened.status());
  log->log_ = *std::move(opened);
  if (log->log_->num_cut_off() > 0) {
    base::Log(base::LogLevel::kWarning, "engine",
              "the end of the log of named prefixes was cut off, since it is damaged or was not "
              "written to its end",
              {{"directory", directory.path()}, {"bytes", log->log_->num_cut_off()}});
  }
  return log;
}

absl::Status PrefixLog::Read(std::string_view record) {
  // The checksum is right, so the record is what a server wrote: of this version, if all fits.
  const auto unknown = [] {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: has a record that this version does not know: start the version that wrote it, or "
        "move the file away",
        kFile));
  };
  ByteReader reader(record);
  const auto entry = static_cast<Entry>(reader.Number());
  const uint64_t pin = reader.Number();
  if (entry == Entry::kNextPin || entry == Entry::kEnd) {
    next_pin_ = std::max(next_pin_, pin + (entry == Entry::kEnd ? 1 : 0));
    if (entry == Entry::kEnd) {
      saved_.erase(pin);
      NoteSize(pin, 0);
    }
    return reader.ok() && reader.at_end() ? absl::OkStatus() : unknown();
  }
  SavedPrefix prefix{.pin = pin};
  ReadFields(reader, prefix);
  const auto known = saved_.find(pin);
  if (entry == Entry::kContent) {
    prefix.content = ReadContent(reader, prefix, limits_.vocab_size);
  } else if (entry == Entry::kChange && known != saved_.end()) {
    prefix.content = known->second.content;
  }
  if (!reader.ok() || !reader.at_end() || prefix.content == nullptr || pin == 0 ||
      !base::IsResourceName("prefixes", prefix.name)) {
    return unknown();
  }
  if (entry == Entry::kContent) NoteSize(pin, files::RecordLog::BytesOf(record.size()));
  next_pin_ = std::max(next_pin_, pin + 1);
  saved_[pin] = std::move(prefix);
  return absl::OkStatus();
}

void PrefixLog::NoteSize(uint64_t pin, int64_t bytes) {
  int64_t& size = sizes_[pin];
  used_bytes_ += bytes - size;
  size = bytes;
  if (bytes == 0) sizes_.erase(pin);
}

std::vector<SavedPrefix> PrefixLog::TakeSaved() {
  std::vector<SavedPrefix> all;
  for (auto& [pin, prefix] : saved_) all.push_back(std::move(prefix));
  saved_.clear();
  return all;
}

absl::Status PrefixLog::Save(const SavedPrefix& prefix) {
  const bool is_new = !Has(prefix.pin);
  const std::string record = Encode(prefix, /*with_content=*/is_new);
  const int64_t bytes = files::RecordLog::BytesOf(record.size());
  if (is_new && used_bytes_ + bytes > limits_.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("prefix_disk_mib: the prefix takes %d bytes of the disk, others take %d, "
                        "and %d are allowed: delete some, or raise it",
                        bytes, used_bytes_, limits_.max_bytes));
  }
  RETURN_IF_ERROR(log_->Append(record));
  if (is_new) NoteSize(prefix.pin, bytes);
  next_pin_ = std::max(next_pin_, prefix.pin + 1);
  return absl::OkStatus();
}

absl::Status PrefixLog::Remove(uint64_t pin) {
  if (!Has(pin)) return absl::OkStatus();
  ByteWriter writer;
  writer.Add(static_cast<uint64_t>(Entry::kEnd));
  writer.Add(pin);
  RETURN_IF_ERROR(log_->Append(writer.Take()));
  NoteSize(pin, 0);
  return absl::OkStatus();
}

bool PrefixLog::NeedsRewrite() const {
  return log_->is_broken() || log_->bytes() > 2 * used_bytes_ + kSmallFile;
}

absl::Status PrefixLog::Rewrite(absl::FunctionRef<bool(SavedPrefix&)> next) {
  std::map<uint64_t, int64_t> sizes;
  bool is_first = true;
  RETURN_IF_ERROR(log_->Replace([&](std::string& record) {
    if (std::exchange(is_first, false)) {
      ByteWriter writer;
      writer.Add(static_cast<uint64_t>(Entry::kNextPin));
      writer.Add(next_pin_);
      record = writer.Take();
      return true;
    }
    SavedPrefix prefix;
    if (!next(prefix)) return false;
    record = Encode(prefix, /*with_content=*/true);
    sizes[prefix.pin] = files::RecordLog::BytesOf(record.size());
    return true;
  }));
  sizes_ = std::move(sizes);
  used_bytes_ = 0;
  for (const auto& [pin, bytes] : sizes_) used_bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace quire::engine
