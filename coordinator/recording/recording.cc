#include "coordinator/recording/recording.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/wire_fields.h"
#include "harmony/v1/recording.pb.h"

namespace harmony::recording {
namespace {

static_assert(v1::ObjectState_MAX == static_cast<int>(command::ObjectState::kUpdating));

// ---- Writing: an overload for each kind of event ----

void Put(const runner::ProcessId& process, uint32_t incarnation, v1::Member* wire) {
  wire->set_role(static_cast<v1::Role>(static_cast<int>(process.role) + 1));  // 0: unspecified
  wire->set_device(process.device);
  wire->set_incarnation(incarnation);
}
void Put(const runner::ProcessAttached& event, v1::RecordedEvent* wire) {
  Put(event.process, event.incarnation, wire->mutable_attached());
  wire->mutable_attached()->set_own_deaths(event.own_deaths);
}
void Put(const runner::ProcessLost& event, v1::RecordedEvent* wire) {
  Put(event.process, event.incarnation, wire->mutable_lost());
}
void Put(const runner::Quiesced& event, v1::RecordedEvent* wire) {
  Put(event.process, event.incarnation, wire->mutable_quiesced()->mutable_member());
  wire->mutable_quiesced()->set_generation(event.generation);
}
void Put(const runner::RecordsRead& event, v1::RecordedEvent* wire) {
  wire->mutable_records()->set_generation(event.generation);
  for (const command::ObjectView& record : event.records) {
    v1::Record* out = wire->mutable_records()->add_records();
    out->set_kind(rpc::ToWire<v1::ObjectKind>(record.key.kind));
    out->set_index(record.key.index);
    out->set_number(record.key.number);
    out->set_offset(record.offset.count());
    out->set_size(record.size.count());
    out->set_version(record.version);
    out->set_state(rpc::ToWire<v1::ObjectState>(record.state));
  }
}
void Put(const runner::LaneProgress& event, v1::RecordedEvent* wire) {
  v1::LaneProgress* out = wire->mutable_progress();
  out->set_generation(event.generation);
  out->set_lane(event.lane);
  out->set_value(event.value);
}
void Put(const runner::CommandFailed& event, v1::RecordedEvent* wire) {
  v1::CommandFailed* out = wire->mutable_failed();
  out->set_generation(event.generation);
  out->set_lane(event.lane);
  out->set_value(event.value);
  out->set_code(static_cast<int>(event.status.code()));
  out->set_message(std::string(event.status.message()));
}
void Put(const runner::Tick&, v1::RecordedEvent* wire) { wire->set_tick(true); }
void Put(const runner::StopRequested&, v1::RecordedEvent* wire) { wire->set_stop(true); }
void Put(const runner::TryNow&, v1::RecordedEvent* wire) { wire->set_try_now(true); }

// ---- Reading ----

template <typename MemberEvent>
MemberEvent MemberOf(const v1::Member& wire, rpc::WireFields& read) {
  MemberEvent event;
  if (read.Enumerator<int>(wire.role(), "role") == v1::ROLE_UNSPECIFIED) read.Wrong("role", 0);
  event.process = {static_cast<runner::Role>(wire.role() - 1), read.Index(wire.device(), "device")};
  event.incarnation = wire.incarnation();
  return event;
}

runner::RecordsRead RecordsOf(const v1::Records& wire, rpc::WireFields& read) {
  runner::RecordsRead event;
  event.generation = wire.generation();
  for (const v1::Record& in : wire.records()) {
    command::ObjectView& record = event.records.emplace_back();
    record.key = {read.Enumerator<command::ObjectKind>(in.kind(), "kind"), in.index(), in.number()};
    record.offset = read.Size(in.offset(), "offset");
    record.size = read.Size(in.size(), "size");
    record.version = in.version();
    record.state = read.Enumerator<command::ObjectState>(in.state(), "state");
  }
  return event;
}

absl::StatusOr<runner::Event> EventOf(const v1::RecordedEvent& wire, rpc::WireFields& read) {
  switch (wire.event_case()) {
    case v1::RecordedEvent::kAttached: {
      auto event = MemberOf<runner::ProcessAttached>(wire.attached(), read);
      event.own_deaths = wire.attached().own_deaths();
      return event;
    }
    case v1::RecordedEvent::kLost:
      return MemberOf<runner::ProcessLost>(wire.lost(), read);
    case v1::RecordedEvent::kQuiesced: {
      auto event = MemberOf<runner::Quiesced>(wire.quiesced().member(), read);
      event.generation = wire.quiesced().generation();
      return event;
    }
    case v1::RecordedEvent::kRecords:
      return RecordsOf(wire.records(), read);
    case v1::RecordedEvent::kProgress: {
      const v1::LaneProgress& in = wire.progress();
      return runner::LaneProgress{in.generation(), static_cast<int>(in.lane()), in.value()};
    }
    case v1::RecordedEvent::kFailed: {
      const v1::CommandFailed& in = wire.failed();
      return runner::CommandFailed{
          in.generation(), static_cast<int>(in.lane()), in.value(),
          absl::Status(static_cast<absl::StatusCode>(in.code()), in.message())};
    }
    case v1::RecordedEvent::kTick:
      return runner::Tick{};
    case v1::RecordedEvent::kStop:
      return runner::StopRequested{};
    case v1::RecordedEvent::kTryNow:
      return runner::TryNow{};
    case v1::RecordedEvent::EVENT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("no kind of event");
}

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (!status.ok()) return;
    status = absl::InvalidArgumentError(
        absl::StrCat("line ", line + 1, " of the recording, column ", column + 1, ": ", message));
  }
  absl::Status status;
};

}  // namespace

std::string WriteRecording(const Recording& recording) {
  v1::Recording wire;
  for (const auto& [at, event] : recording) {
    v1::RecordedEvent* out = wire.add_events();
    out->set_at_ns(at.count());
    std::visit([out](const auto& e) { Put(e, out); }, event);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(wire, &text);
  return text;
}

absl::StatusOr<Recording> ReadRecording(absl::string_view text) {
  v1::Recording wire;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &wire)) return error.status;
  Recording recording;
  for (const v1::RecordedEvent& in : wire.events()) {
    rpc::WireFields read;
    absl::StatusOr<runner::Event> event = EventOf(in, read);
    const absl::Status status = event.ok() ? read.status() : event.status();
    HARMONY_RETURN_IF_ERROR_CTX(status,
                                absl::StrCat("event ", recording.size() + 1, " of the recording"));
    recording.emplace_back(Nanos(in.at_ns()), *std::move(event));
  }
  return recording;
}

}  // namespace harmony::recording
