#include "core/bounce_frame.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>

namespace kvt {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kMagic = 0x4254564b;  // "KVTB"
constexpr std::size_t kHeaderBytes = 24;

class Writer {
 public:
  template <typename T>
  void put(const T& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof value);
  }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// Reads past the end give zeros and are remembered.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    if (bytes_.size() - at_ < sizeof value) {
      is_short_ = true;
      at_ = bytes_.size();
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  bool ended_exactly() const { return !is_short_ && at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool is_short_ = false;
};

Status refuse(const std::string& what) { return Status(StatusCode::kTransport, "malformed bounce frame: " + what); }

Status decode_want(Reader* in, BounceFrame* out) {
  out->total_bytes = in->get<std::uint64_t>();
  out->chunk_bytes = in->get<std::uint32_t>();
  const auto group_count = in->get<std::uint32_t>();
  if (group_count == 0 || group_count > kMaxWantGroups) return refuse(std::to_string(group_count) + " groups");
  if (out->total_bytes == 0 || out->chunk_bytes == 0) return refuse("a request of no bytes");
  if ((out->total_bytes - 1) / out->chunk_bytes >= kMaxWantChunks) return refuse("too many chunks");
  std::size_t slot_count = 0;
  for (std::uint32_t i = 0; i < group_count; ++i) {
    WantGroup group;
    group.key = in->get<std::uint32_t>();
    group.slot_count = in->get<std::uint32_t>();
    group.shape = in->get<std::uint64_t>();
    if (group.slot_count == 0 || group.slot_count > kMaxWantSlots) return refuse("a group's slot count");
    slot_count += group.slot_count;
    out->groups.push_back(group);
  }
  if (slot_count > kMaxWantSlots) return refuse(std::to_string(slot_count) + " slots");
  for (std::size_t i = 0; i < slot_count; ++i) out->slots.push_back(in->get<std::int32_t>());
  return Status::ok();
}

Status decode_body(Reader* in, BounceFrame* out) {
  switch (out->type) {
    case BounceFrameType::kWant:
      return decode_want(in, out);
    case BounceFrameType::kGrant: {
      const auto count = in->get<std::uint32_t>();
      (void)in->get<std::uint32_t>();
      if (count == 0 || count > kMaxGrantsPerFrame) return refuse(std::to_string(count) + " grants");
      for (std::uint32_t i = 0; i < count; ++i) {
        GrantedChunk granted;
        granted.grant = in->get<std::uint64_t>();
        granted.offset = in->get<std::uint64_t>();
        granted.chunk = in->get<std::uint32_t>();
        granted.bytes = in->get<std::uint32_t>();
        out->grants.push_back(granted);
      }
      return Status::ok();
    }
    case BounceFrameType::kData:
    case BounceFrameType::kAck:
      out->grant = in->get<std::uint64_t>();
      out->chunk = in->get<std::uint32_t>();
      (void)in->get<std::uint32_t>();
      return Status::ok();
    case BounceFrameType::kNack: {
      const auto refusal = in->get<std::uint32_t>();
      (void)in->get<std::uint32_t>();
      if (refusal < static_cast<std::uint32_t>(BounceRefusal::kEnded) ||
          refusal > static_cast<std::uint32_t>(BounceRefusal::kArenaLost)) {
        return refuse("unknown refusal " + std::to_string(refusal));
      }
      out->refusal = static_cast<BounceRefusal>(refusal);
      return Status::ok();
    }
    case BounceFrameType::kCancel: {
      const auto count = in->get<std::uint32_t>();
      (void)in->get<std::uint32_t>();
      if (count > kMaxUnproven) return refuse(std::to_string(count) + " unproven grants");
      for (std::uint32_t i = 0; i < count; ++i) out->unproven.push_back(in->get<std::uint64_t>());
      return Status::ok();
    }
  }
  return refuse("unknown type " + std::to_string(static_cast<int>(out->type)));
}

}  // namespace

const char* to_text(BounceRefusal refusal) {
  switch (refusal) {
    case BounceRefusal::kEnded:
      return "the receive was ended";
    case BounceRefusal::kUnknownTicket:
      return "it expects nothing under this ticket";
    case BounceRefusal::kMismatch:
      return "its own plan has other groups, fragments or sizes";
    case BounceRefusal::kForeignSlot:
      return "a slot does not belong to this ticket";
    case BounceRefusal::kTooMany:
      return "it has too many requests open";
    case BounceRefusal::kScatterFailed:
      return "its device could not scatter";
    case BounceRefusal::kTimedOut:
      return "the request made no progress";
    case BounceRefusal::kCancelled:
      return "the request was cancelled";
    case BounceRefusal::kArenaLost:
      return "its bounce arena has no room left: the rest may still be written by agents that are gone without a word; "
             "end their processes, or open the receiving agent again, if need be with a larger kvCacheBounceSizeMb";
  }
  return "unknown";
}

std::vector<std::byte> encode_bounce_frame(const BounceFrame& frame) {
  Writer out;
  out.put(kMagic);
  out.put(static_cast<std::uint8_t>(kBounceVersion));
  out.put(frame.type);
  out.put(std::uint16_t{0});
  out.put(frame.request);
  out.put(frame.ticket);
  switch (frame.type) {
    case BounceFrameType::kWant:
      out.put(frame.total_bytes);
      out.put(frame.chunk_bytes);
      out.put(static_cast<std::uint32_t>(frame.groups.size()));
      for (const WantGroup& group : frame.groups) {
        out.put(group.key);
        out.put(group.slot_count);
        out.put(group.shape);
      }
      for (const std::int32_t slot : frame.slots) out.put(slot);
      break;
    case BounceFrameType::kGrant:
      out.put(static_cast<std::uint32_t>(frame.grants.size()));
      out.put(std::uint32_t{0});
      for (const GrantedChunk& granted : frame.grants) {
        out.put(granted.grant);
        out.put(granted.offset);
        out.put(granted.chunk);
        out.put(granted.bytes);
      }
      break;
    case BounceFrameType::kData:
    case BounceFrameType::kAck:
      out.put(frame.grant);
      out.put(frame.chunk);
      out.put(std::uint32_t{0});
      break;
    case BounceFrameType::kNack:
      out.put(frame.refusal);
      out.put(std::uint32_t{0});
      break;
    case BounceFrameType::kCancel:
      out.put(static_cast<std::uint32_t>(frame.unproven.size()));
      out.put(std::uint32_t{0});
      for (const std::uint64_t grant : frame.unproven) out.put(grant);
      break;
  }
  return out.take();
}

Status decode_bounce_frame(std::span<const std::byte> bytes, BounceFrame* out) {
  if (bytes.size() < kHeaderBytes || bytes.size() > kMaxBounceFrameBytes) {
    return refuse("it has " + std::to_string(bytes.size()) + " bytes");
  }
  Reader in(bytes);
  if (in.get<std::uint32_t>() != kMagic) return refuse("it does not begin with KVTB");
  const auto version = in.get<std::uint8_t>();
  if (version != kBounceVersion) return refuse("version " + std::to_string(version));
  BounceFrame frame;
  frame.type = in.get<BounceFrameType>();
  (void)in.get<std::uint16_t>();
  frame.request = in.get<std::uint64_t>();
  frame.ticket = in.get<std::uint64_t>();
  Status status = decode_body(&in, &frame);
  if (!status.is_ok()) return status;
  if (!in.ended_exactly()) return refuse("its length does not fit its counts");
  *out = std::move(frame);
  return Status::ok();
}

}  // namespace kvt
