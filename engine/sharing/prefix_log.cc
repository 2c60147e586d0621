#include "engine/sharing/prefix_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/logging.h"
#include "base/resource_name.h"
#include "base/status_macros.h"
#include "engine/request/named_prefixes.h"
#include "files/byte_codec.h"

namespace quire::engine {
namespace {

using files::ByteReader;
using files::ByteWriter;

constexpr char kFile[] = "named.log";
// A file below this size is not worth a rewrite.
constexpr int64_t kSmallFile = 1 << 20;
// More than the changes of a prefix, and the prefixes, that damage may hide.
constexpr uint64_t kMostLost = 1 << 20;

// The kind of a record, whose key is the pin.
enum class Entry : uint64_t {
  kNextPin = 1,  // pins below this one were used
  kContent,      // a prefix with its content
  kChange,       // a prefix without it
  kEnd,          // the prefix is gone
};

uint64_t Encoded(absl::Time time) { return static_cast<uint64_t>(absl::ToUnixNanos(time)); }
absl::Time DecodedTime(uint64_t nanos) { return absl::FromUnixNanos(static_cast<int64_t>(nanos)); }

// The kind of a prefix's content.
enum class Given : uint64_t {
  kText,
  kIds,
  kMessages,         // without literal contents
  kLiteralMessages,  // with a number for each message: 1 if its content is literal, else 0
};

void AddIds(ByteWriter& writer, const std::vector<int32_t>& ids) {
  writer.Add(ids.size());
  for (const int32_t id : ids) writer.Add(static_cast<uint64_t>(id));
}

void AddContent(ByteWriter& writer, const PrefixContent& content) {
  AddIds(writer, content.ids);
  const auto add_kind = [&](Given kind) { writer.Add(static_cast<uint64_t>(kind)); };
  if (const auto* text = std::get_if<std::string>(&content.given)) {
    add_kind(Given::kText);
    writer.AddSized(*text);
  } else if (const auto* ids = std::get_if<std::vector<int32_t>>(&content.given)) {
    add_kind(Given::kIds);
    AddIds(writer, *ids);
  } else {
    const auto& messages = std::get<std::vector<text::ChatMessage>>(content.given);
    const bool literal = std::ranges::any_of(messages, &text::ChatMessage::literal);
    add_kind(literal ? Given::kLiteralMessages : Given::kMessages);
    writer.Add(messages.size());
    for (const text::ChatMessage& message : messages) {
      writer.AddSized(message.role);
      writer.AddSized(message.content);
      if (literal) writer.Add(message.literal ? 1 : 0);
    }
  }
}

// Returns the body of a record of kContent or kChange.
std::string Encode(const SavedPrefix& prefix, bool with_content) {
  ByteWriter writer;
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
  const auto kind = static_cast<Given>(reader.Number());
  switch (kind) {
    case Given::kText:
      content->given = std::string(reader.Sized());
      break;
    case Given::kIds:
      content->given = ReadIds(reader, vocab_size);
      break;
    case Given::kMessages:
    case Given::kLiteralMessages: {
      std::vector<text::ChatMessage> messages(reader.Count(/*item_bytes=*/16));
      for (text::ChatMessage& message : messages) {
        message.role = reader.Sized();
        message.content = reader.Sized();
        if (kind == Given::kLiteralMessages) message.literal = reader.Number() != 0;
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
  auto opened = files::RecordLog::Open(
      directory, kFile, absl::StrFormat("prefixes of model %s", model_digest),
      /*room=*/kMaxPrefixes * files::RecordLog::BytesOf(0),
      [&](const files::RecordLog::Record& record) { return log->Read(record); });
  if (absl::IsNotFound(opened.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory.WithPath(opened.status()).message(),
                     ": its named prefixes belong to another model. Name another directory for "
                     "this one, or remove the file if they are not wanted any more"));
  }
  if (!opened.ok()) return directory.WithPath(opened.status());
  log->log_ = *std::move(opened);
  if (log->log_->num_cut_off() > 0) {
    base::Log(base::LogLevel::kWarning, "engine",
              "the end of the log of named prefixes was cut off, since it was not written whole",
              {{"directory", directory.path()}, {"bytes", log->log_->num_cut_off()}});
  }
  if (log->log_->num_damaged() > 0) log->CloseDoubted();
  if (!log->log_->is_broken()) return log;
  if (const absl::Status status = log->RewriteSaved(); !status.ok()) {
    base::Log(base::LogLevel::kError, "engine", "the log of named prefixes cannot be written anew",
              {{"directory", directory.path()}, {"status", status.ToString()}});
  }
  return log;
}

absl::Status PrefixLog::Read(const files::RecordLog::Record& record) {
  using State = files::RecordLog::Record::State;
  // The checksum is right, so the record is what a server wrote: of this version, if all fits.
  const auto unknown = [] {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: has a record that this version does not know: start the version that wrote it, or "
        "move the file away",
        kFile));
  };
  if (record.state == State::kLost) {
    for (const auto& [pin, prefix] : saved_) doubted_.insert(pin);
    is_incomplete_ = true;
    return absl::OkStatus();
  }
  ByteReader reader(record.body);
  const auto entry = static_cast<Entry>(record.is_old ? reader.Number() : record.kind);
  const uint64_t pin = record.is_old ? reader.Number() : record.key;
  if (entry < Entry::kNextPin || entry > Entry::kEnd) return unknown();
  next_pin_ = std::max(next_pin_, entry == Entry::kNextPin ? pin : pin + 1);
  if (entry == Entry::kEnd) {
    saved_.erase(pin);
    NoteSize(pin, 0);
  }
  if (entry == Entry::kEnd || entry == Entry::kNextPin) {
    return reader.ok() && reader.at_end() ? absl::OkStatus() : unknown();
  }
  const auto known = saved_.find(pin);
  if (record.state == State::kDamaged) {
    if (known != saved_.end()) doubted_.insert(pin);
    is_incomplete_ = true;
    return absl::OkStatus();
  }
  SavedPrefix prefix{.pin = pin};
  ReadFields(reader, prefix);
  if (entry == Entry::kContent) {
    prefix.content = ReadContent(reader, prefix, limits_.vocab_size);
  } else if (known != saved_.end()) {
    prefix.content = known->second.content;
  } else if (is_incomplete_) {
    return absl::OkStatus();  // a change of a prefix whose content is damaged
  }
  if (!reader.ok() || !reader.at_end() || prefix.content == nullptr || pin == 0 ||
      !base::IsResourceName("prefixes", prefix.name)) {
    return unknown();
  }
  if (entry == Entry::kContent) NoteSize(pin, files::RecordLog::BytesOf(record.body.size()));
  saved_[pin] = std::move(prefix);
  doubted_.erase(pin);
  return absl::OkStatus();
}

void PrefixLog::CloseDoubted() {
  std::vector<std::string> names;
  for (const uint64_t pin : doubted_) {
    const auto it = saved_.find(pin);
    if (it == saved_.end()) continue;  // it ended afterwards
    it->second.allowed_tenants.clear();
    it->second.version += kMostLost;  // so that no etag comes again
    names.push_back(it->second.name);
  }
  doubted_.clear();
  next_pin_ += kMostLost;
  base::Log(base::LogLevel::kWarning, "engine",
            "the log of named prefixes is damaged, and is kept beside it as named.log.damaged: "
            "prefixes may be lost, and of those named here, whose last change may be lost, only "
            "the owners may use each",
            {{"damaged_records", log_->num_damaged()},
             {"prefixes", std::ssize(names)},
             {"names", absl::StrJoin(names, " ")}});
}

absl::Status PrefixLog::RewriteSaved() {
  auto it = saved_.begin();
  return Rewrite([&](SavedPrefix& prefix) {
    if (it == saved_.end()) return false;
    prefix = (it++)->second;
    return true;
  });
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
  const std::string body = Encode(prefix, /*with_content=*/is_new);
  const int64_t bytes = files::RecordLog::BytesOf(body.size());
  if (is_new && used_bytes_ + bytes > limits_.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("prefix_disk_mib: the prefix takes %d bytes of the disk, others take %d, "
                        "and %d are allowed: delete some, or raise it",
                        bytes, used_bytes_, limits_.max_bytes));
  }
  RETURN_IF_ERROR(
      log_->Append({.kind = static_cast<uint64_t>(is_new ? Entry::kContent : Entry::kChange),
                    .key = prefix.pin,
                    .body = body}));
  if (is_new) NoteSize(prefix.pin, bytes);
  next_pin_ = std::max(next_pin_, prefix.pin + 1);
  return absl::OkStatus();
}

absl::Status PrefixLog::Remove(uint64_t pin) {
  if (!Has(pin)) return absl::OkStatus();
  RETURN_IF_ERROR(log_->Append({.kind = static_cast<uint64_t>(Entry::kEnd), .key = pin}));
  NoteSize(pin, 0);
  return absl::OkStatus();
}

bool PrefixLog::NeedsRewrite() const {
  return log_->is_broken() || log_->bytes() > 2 * used_bytes_ + kSmallFile;
}

absl::Status PrefixLog::Rewrite(absl::FunctionRef<bool(SavedPrefix&)> next) {
  std::map<uint64_t, int64_t> sizes;
  std::string body;
  bool is_first = true;
  RETURN_IF_ERROR(log_->Replace([&](files::RecordLog::Record& record) {
    if (std::exchange(is_first, false)) {
      record = {.kind = static_cast<uint64_t>(Entry::kNextPin), .key = next_pin_};
      return true;
    }
    SavedPrefix prefix;
    if (!next(prefix)) return false;
    body = Encode(prefix, /*with_content=*/true);
    record = {.kind = static_cast<uint64_t>(Entry::kContent), .key = prefix.pin, .body = body};
    sizes[prefix.pin] = files::RecordLog::BytesOf(body.size());
    return true;
  }));
  sizes_ = std::move(sizes);
  used_bytes_ = 0;
  for (const auto& [pin, bytes] : sizes_) used_bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace quire::engine
