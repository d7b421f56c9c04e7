#include "transport/bounce_device_mover.h"

#include <cstring>
#include <utility>

namespace kvt {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(5);
// Tables beyond this make room for new ones where nobody else holds them.
constexpr std::size_t kMaxTables = 256;

}  // namespace

BounceDeviceMover::~BounceDeviceMover() {
  if (running_.empty() && lost_.empty()) return;
  // Something queued still reads slots and tables: they are given up as they are.
  struct GivenUp {
    std::unordered_map<const FragmentTable*, Table> tables;
    std::vector<Running> running;
    std::vector<Running> lost;
  };
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): nobody owns it any more, on purpose
  new GivenUp{std::move(tables_), std::move(running_), std::move(lost_)};
}

Status BounceDeviceMover::open() {
  Status status = CudaContext::retain(device_, &context_);
  if (!status.is_ok()) return status;
  status = PageKernels::load(context_, &kernels_);
  if (!status.is_ok()) return status;
  for (CudaStream* stream : {&ready_stream_, &waiting_stream_, &idle_stream_}) {
    status = CudaStream::create(context_, StreamPriority::kLow, stream);
    if (!status.is_ok()) return status;
  }
  buffers_.emplace(context_);
  return Status::ok();
}

void BounceDeviceMover::drop_unused_tables() {
  for (auto entry = tables_.begin(); entry != tables_.end();) {
    // A job holds its tables, so nothing queued reads this one.
    if (entry->second.original.use_count() > 1) {
      ++entry;
      continue;
    }
    buffers_->give_back(std::move(entry->second.buffer));
    entry = tables_.erase(entry);
  }
}

Status BounceDeviceMover::find_table(const std::shared_ptr<const FragmentTable>& table, const Table** out) {
  if (const auto known = tables_.find(table.get()); known != tables_.end()) {
    *out = &known->second;
    return Status::ok();
  }
  if (tables_.size() >= kMaxTables) drop_unused_tables();
  Table made;
  made.original = table;
  Status status = make_copy_table(*table, &made.copy);
  if (!status.is_ok()) return status;
  const std::size_t bytes = made.copy.fragments.size() * sizeof(DeviceFragment);
  status = buffers_->take(bytes, &made.buffer);
  if (!status.is_ok()) return status;
  std::memcpy(made.buffer.host().data(), made.copy.fragments.data(), bytes);
  status = made.buffer.upload(bytes, idle_stream_);
  // Every other stream may read it from here on, and a table's first use is rare: these microseconds are waited for.
  if (status.is_ok()) status = idle_stream_.synchronize();
  if (!status.is_ok()) return status;
  *out = &tables_.emplace(table.get(), std::move(made)).first->second;
  return Status::ok();
}

Status BounceDeviceMover::take_event(CudaEvent* out) {
  if (spare_events_.empty()) return CudaEvent::create(context_, EventTiming::kOff, out);
  *out = std::move(spare_events_.back());
  spare_events_.pop_back();
  return Status::ok();
}

Status BounceDeviceMover::launch(const Job& job, const CudaStream& stream, DeviceBuffer* slots) {
  std::size_t slot_bytes = 0;
  for (const PackedGroup& group : *job.groups) slot_bytes += group.slots.size() * sizeof(std::int32_t);
  Status status = buffers_->take(slot_bytes, slots);
  if (!status.is_ok()) return status;
  std::vector<CopyPart> parts;
  std::size_t at = 0;
  for (const PackedGroup& group : *job.groups) {
    const Table* table = nullptr;
    status = find_table(group.table, &table);
    if (!status.is_ok()) return status;
    const std::size_t bytes = group.slots.size() * sizeof(std::int32_t);
    std::memcpy(slots->host().data() + at, group.slots.data(), bytes);
    const std::uint64_t slots_at = slots->device() + at;
    parts.push_back({.table = &table->copy,
                     .fragments_at = table->buffer.device(),
                     .source_slots_at = job.side == PackedSide::kSource ? slots_at : 0,
                     .destination_slots_at = job.side == PackedSide::kSource ? 0 : slots_at,
                     .pair_count = static_cast<std::uint32_t>(group.slots.size()),
                     .slot_step = 1});
    at += bytes;
  }
  CopyArguments arguments;
  status = make_copy_arguments(parts, &arguments);
  if (!status.is_ok()) return status;
  restrict_range(parts, job.begin, job.end, &arguments);
  arguments.linear = job.linear;
  status = slots->upload(slot_bytes, stream);
  // The slots travel before the event is waited for, so that they cost nothing once it is reached.
  if (status.is_ok() && job.after != nullptr) status = job.after->wait_on(stream);
  if (!status.is_ok()) return status;
  const CopyKind kind = job.side == PackedSide::kSource ? CopyKind::kGather : CopyKind::kScatter;
  return kernels_->copy(kind, CopyMethod::kRegisters, arguments, blocks_, stream);
}

void BounceDeviceMover::start(Job job) {
  const CurrentContext current(*context_);
  if (!current.status().is_ok()) {
    failed_.push_back({job.id, current.status(), false});
    return;
  }
  Status ignored;
  const bool waits = job.after != nullptr && job.after->query(&ignored) == EventProgress::kPending;
  const CudaStream& stream = waits ? waiting_stream_ : ready_stream_;
  Running running;
  Status status = launch(job, stream, &running.slots);
  if (status.is_ok()) status = take_event(&running.done);
  if (status.is_ok()) status = running.done.record(stream);
  running.job = std::move(job);
  if (status.is_ok()) {
    running_.push_back(std::move(running));
    return;
  }
  // Part of it may be queued already. A device that refuses a launch is lost.
  failed_.push_back({running.job.id, std::move(status), true});
  lost_.push_back(std::move(running));
}

void BounceDeviceMover::work(std::vector<Ended>* out) {
  for (Ended& ended : failed_) out->push_back(std::move(ended));
  failed_.clear();
  for (std::size_t i = 0; i < running_.size();) {
    Running& running = running_[i];
    Status error;
    const EventProgress progress = running.done.query(&error);
    if (progress == EventProgress::kPending) {
      ++i;
      continue;
    }
    const bool is_reached = progress == EventProgress::kReached;
    out->push_back({running.job.id, error, !is_reached});
    if (is_reached) {
      buffers_->give_back(std::move(running.slots));
      spare_events_.push_back(std::move(running.done));
    } else {
      lost_.push_back(std::move(running));
    }
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::optional<TimePoint> BounceDeviceMover::next_wakeup(TimePoint now) const {
  if (!failed_.empty()) return now;
  return running_.empty() ? std::nullopt : std::optional(now + kPollInterval);
}

}  // namespace kvt
