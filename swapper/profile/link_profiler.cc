#include "swapper/profile/link_profiler.h"

#include <algorithm>
#include <latch>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/profile_call.h"

namespace harmony::swapper {
namespace {

constexpr int kPieces = 4;  // of a slice; used in turn, so that caches do not help
constexpr double kPacedPieceSeconds = 0.01;
constexpr Bytes kTiny(64);

class LinkMeter {
 public:
  LinkMeter(const std::vector<plan::DeviceSpec>& devices, CopyEngine& engine, bool quick)
      : devices_(devices),
        engine_(engine),
        limits_{3, 1000, quick ? Millis(25) : Millis(100)},
        lanes_(static_cast<int>(devices.size())) {
    Bytes arena;
    for (const plan::DeviceSpec& device : devices_) {
      slices_.push_back(profile::LinkSlice(device, devices_.size()));
      arena_begin_.push_back(arena);
      arena += slices_.back() * 2;
    }
  }

  absl::StatusOr<std::vector<profile::DeviceProfile>> MeasureAll() {
    std::vector<profile::DeviceProfile> profiles(devices_.size());
    for (int d = 0; d < count(); ++d) HARMONY_RETURN_IF_ERROR(MeasureDevice(d, profiles[d]));
    std::vector<command::Lane> host, peers;
    for (int d = 0; d < count(); ++d) {
      host.push_back({command::LaneKind::kH2DBulk, d});
      host.push_back({command::LaneKind::kD2H, d});
      if (count() > 1) peers.push_back({command::LaneKind::kP2P, d});
    }
    HARMONY_ASSIGN_OR_RETURN(const std::vector<profile::Measured> rates, RatesOf(host));
    HARMONY_ASSIGN_OR_RETURN(const std::vector<profile::Measured> peer_rates, RatesOf(peers));
    for (int d = 0; d < count(); ++d) {
      profiles[d].h2d.together = rates[2 * d];
      profiles[d].d2h.together = rates[2 * d + 1];
      if (profiles[d].p2p) profiles[d].p2p->together = peer_rates[d];
    }
    return profiles;
  }

 private:
  int count() const { return static_cast<int>(devices_.size()); }

  absl::Status MeasureDevice(int d, profile::DeviceProfile& profile) {
    const command::Lane in{command::LaneKind::kH2DBulk, d}, out{command::LaneKind::kD2H, d},
        peer{command::LaneKind::kP2P, d};
    HARMONY_ASSIGN_OR_RETURN(profile.h2d, MeasureAlone(in));
    HARMONY_ASSIGN_OR_RETURN(profile.d2h, MeasureAlone(out));
    HARMONY_ASSIGN_OR_RETURN(const std::vector<profile::Measured> both, RatesOf({in, out}));
    profile.h2d.duplex = both[0];
    profile.d2h.duplex = both[1];
    if (count() == 1) return absl::OkStatus();
    HARMONY_ASSIGN_OR_RETURN(profile.p2p, MeasureAlone(peer));
    const command::Lane back{command::LaneKind::kP2P, (d + 1) % count()};
    HARMONY_ASSIGN_OR_RETURN(const std::vector<profile::Measured> exchange, RatesOf({peer, back}));
    profile.p2p->duplex = exchange[0];
    return absl::OkStatus();
  }

  absl::StatusOr<profile::LinkProfile> MeasureAlone(const command::Lane& lane) {
    profile::LinkProfile link;
    HARMONY_ASSIGN_OR_RETURN(std::vector<double> tiny,
                             runtime::TimeRepeats(limits_, [&] { return Copy(lane, 0, kTiny); }));
    link.latency = profile::MeasuredOf(tiny);
    latency_[lane] = link.latency.median;
    HARMONY_ASSIGN_OR_RETURN(const std::vector<profile::Measured> alone, RatesOf({lane}));
    link.alone = link.duplex = link.together = alone[0];
    return link;
  }

  // Bytes per second of each lane while all are busy, latency taken out.
  absl::StatusOr<std::vector<profile::Measured>> RatesOf(const std::vector<command::Lane>& lanes) {
    std::vector<absl::StatusOr<std::vector<double>>> seconds(lanes.size(), std::vector<double>());
    {
      std::latch ready(static_cast<std::ptrdiff_t>(lanes.size()));
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < lanes.size(); ++i) {
        threads.emplace_back([&, i] {
          int piece = 0;
          const auto copy = [&] { return Copy(lanes[i], piece++, PieceOf(lanes[i])); };
          // Memory that is touched for the first time is far slower.
          absl::Status touched = absl::OkStatus();
          while (piece < kPieces) touched.Update(copy());
          ready.arrive_and_wait();
          seconds[i] = runtime::TimeRepeats(limits_, copy);
          if (!touched.ok()) seconds[i] = touched;
        });
      }
    }
    std::vector<profile::Measured> rates;
    for (size_t i = 0; i < lanes.size(); ++i) {
      HARMONY_RETURN_IF_ERROR(seconds[i].status());
      const double bytes = static_cast<double>(PieceOf(lanes[i]).count());
      const auto found = latency_.find(lanes[i]);
      const double latency = found == latency_.end() ? 0 : found->second;
      for (double& each : *seconds[i]) each = bytes / std::max(each - latency, each / 10);
      rates.push_back(profile::MeasuredOf(*seconds[i]));
    }
    return rates;
  }

  Bytes PieceOf(const command::Lane& lane) const {
    const plan::DeviceSpec& device = devices_[lane.device];
    const double rate = lane.kind == command::LaneKind::kP2P   ? device.p2p.value
                        : lane.kind == command::LaneKind::kD2H ? device.d2h.value
                                                               : device.h2d.value;
    Bytes piece(slices_[SliceOwner(lane)].count() / kPieces);
    if (rate > 0) {
      piece = std::min(piece, Bytes(static_cast<int64_t>(rate * kPacedPieceSeconds)));
    }
    return Bytes(std::max(piece.count() / kSlotAlignment, int64_t{1}) * kSlotAlignment);
  }
  // A copy between devices is as large as the smaller one's slice.
  int SliceOwner(const command::Lane& lane) const {
    if (lane.kind != command::LaneKind::kP2P) return lane.device;
    const int peer = (lane.device + 1) % count();
    return slices_[peer] < slices_[lane.device] ? peer : lane.device;
  }

  absl::Status Copy(const command::Lane& lane, int number, Bytes size) {
    const int d = lane.device, peer = (d + 1) % count();
    const Bytes at = PieceOf(lane) * (number % kPieces);
    command::Transfer transfer;
    transfer.size = size;
    switch (lane.kind) {
      case command::LaneKind::kD2H:
        transfer.source = {d, slices_[d] + at};
        transfer.destination = {-1, arena_begin_[d] + slices_[d] + at};
        break;
      case command::LaneKind::kP2P:
        transfer.source = {d, slices_[d] * 2 + at};
        transfer.destination = {peer, slices_[peer] * 3 + at};
        break;
      default:
        transfer.source = {-1, arena_begin_[d] + at};
        transfer.destination = {d, at};
        break;
    }
    command::Command command;
    command.header.lane = static_cast<uint32_t>(lanes_.IndexOf(lane));
    command.body = transfer;
    return engine_.Run(command);
  }

  const std::vector<plan::DeviceSpec>& devices_;
  CopyEngine& engine_;
  const runtime::RepeatLimits limits_;
  const command::LaneTable lanes_;
  std::vector<Bytes> slices_, arena_begin_;
  std::map<command::Lane, double> latency_;
};

}  // namespace

absl::StatusOr<std::vector<profile::DeviceProfile>> MeasureLinks(
    const std::vector<plan::DeviceSpec>& devices, CopyEngine& engine, bool quick) {
  return LinkMeter(devices, engine, quick).MeasureAll();
}

absl::Status AnswerLinkProfile(const std::string& request_path,
                               const std::vector<plan::DeviceSpec>& devices, CopyEngine& engine) {
  return runtime::AnswerProfileCall(
      request_path, [&](const runtime::ProfileCall& call) -> absl::StatusOr<profile::Profile> {
        if (call.request.part != profile::ProfileRequest::Part::kLinks) {
          return absl::InvalidArgumentError("the swapper measures links only");
        }
        profile::Profile profile;
        HARMONY_ASSIGN_OR_RETURN(profile.devices,
                                 MeasureLinks(devices, engine, call.request.quick));
        return profile;
      });
}

}  // namespace harmony::swapper
