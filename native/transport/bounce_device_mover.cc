#include "transport/bounce_device_mover.h"

#include <cstring>
#include <utility>

#include "device/inbound_flush.h"

namespace kvt {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(5);
// Tables beyond this make room for new ones where nobody else holds them.
constexpr std::size_t kMaxTables = 256;
// So few bytes are moved before a copy of the slots would have ended: the kernel reads them from host memory instead.
constexpr std::uint64_t kSlotsInPlaceBytes = std::uint64_t{1} << 20;

}  // namespace

BounceDeviceMover::~BounceDeviceMover() {
  free_spent();
  if (running_.empty() && lost_.empty() && spent_.empty()) return;
  // Something queued still reads slots and tables: they are given up as they are.
  struct GivenUp {
    std::unordered_map<const FragmentTable*, Table> tables;
    std::vector<Running> running;
    std::vector<Running> lost;
    std::vector<Spent> spent;
  };
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): nobody owns it any more, on purpose
  new GivenUp{std::move(tables_), std::move(running_), std::move(lost_), std::move(spent_)};
}

Status BounceDeviceMover::open() {
  Status status = CudaContext::retain(device_, &context_);
  if (!status.is_ok()) return status;
  status = PageKernels::load(context_, &kernels_);
  if (!status.is_ok()) return status;
  must_flush_ = needs_inbound_flush(*context_);
  for (CudaStream* stream : {&gather_stream_, &scatter_stream_, &upload_stream_}) {
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

Status BounceDeviceMover::find_table(const std::shared_ptr<const FragmentTable>& table, Table** out) {
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
  if (status.is_ok()) status = CudaEvent::create(context_, EventTiming::kOff, &made.uploaded);
  if (!status.is_ok()) return status;
  std::memcpy(made.buffer.host().data(), made.copy.fragments.data(), bytes);
  status = made.buffer.upload(bytes, upload_stream_);
  if (!status.is_ok()) {
    buffers_->give_back(std::move(made.buffer));
    return status;
  }
  status = made.uploaded.record(upload_stream_);
  if (!status.is_ok()) {
    spent_.push_back({std::move(made.buffer), StreamMark(std::move(made.uploaded))});
    spent_.back().passed.set(upload_stream_);
    return status;
  }
  *out = &tables_.emplace(table.get(), std::move(made)).first->second;
  return Status::ok();
}

Status BounceDeviceMover::take_event(CudaEvent* out) {
  if (spare_events_.empty()) return CudaEvent::create(context_, EventTiming::kOff, out);
  *out = std::move(spare_events_.back());
  spare_events_.pop_back();
  return Status::ok();
}

Status BounceDeviceMover::prepare(const Job& job, DeviceBuffer* slots, std::vector<Table*>* tables) {
  std::size_t slot_bytes = 0;
  for (const PackedGroup& group : *job.groups) slot_bytes += group.slots.size() * sizeof(std::int32_t);
  Status status = buffers_->take(slot_bytes, slots);
  std::size_t at = 0;
  for (const PackedGroup& group : *job.groups) {
    Table* table = nullptr;
    if (status.is_ok()) status = find_table(group.table, &table);
    if (!status.is_ok()) return status;
    tables->push_back(table);
    const std::size_t bytes = group.slots.size() * sizeof(std::int32_t);
    std::memcpy(slots->host().data() + at, group.slots.data(), bytes);
    at += bytes;
  }
  return status;
}

Status BounceDeviceMover::launch(const Job& job, const CudaStream& stream, const DeviceBuffer& slots,
                                 const std::vector<Table*>& tables) {
  const bool is_in_place = job.end - job.begin <= kSlotsInPlaceBytes;
  std::uint64_t slots_at =
      is_in_place ? reinterpret_cast<std::uintptr_t>(slots.host().data()) : std::uint64_t{slots.device()};
  std::size_t slot_bytes = 0;
  std::vector<CopyPart> parts;
  Status status;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const PackedGroup& group = (*job.groups)[i];
    Table& table = *tables[i];
    if (!table.is_uploaded) table.is_uploaded = table.uploaded.query(&status) == EventProgress::kReached;
    if (status.is_ok() && !table.is_uploaded) status = table.uploaded.wait_on(stream);
    if (!status.is_ok()) return status;
    parts.push_back({.table = &table.copy,
                     .fragments_at = table.buffer.device(),
                     .source_slots_at = job.side == PackedSide::kSource ? slots_at : 0,
                     .destination_slots_at = job.side == PackedSide::kSource ? 0 : slots_at,
                     .pair_count = static_cast<std::uint32_t>(group.slots.size()),
                     .slot_step = 1});
    slots_at += group.slots.size() * sizeof(std::int32_t);
    slot_bytes += group.slots.size() * sizeof(std::int32_t);
  }
  CopyArguments arguments;
  status = make_copy_arguments(parts, &arguments);
  if (!status.is_ok()) return status;
  restrict_range(parts, job.begin, job.end, &arguments);
  arguments.linear = job.linear;
  if (!is_in_place) status = slots.upload(slot_bytes, stream);
  if (!status.is_ok()) return status;
  const CopyKind kind = job.side == PackedSide::kSource ? CopyKind::kGather : CopyKind::kScatter;
  return kernels_->copy(kind, CopyMethod::kRegisters, arguments, blocks_, stream);
}

void BounceDeviceMover::start(Job job) {
  const CurrentContext current(*context_);
  Status status = current.status();
  if (status.is_ok() && must_flush_ && job.side == PackedSide::kDestination) status = flush_inbound(*context_);
  if (!status.is_ok()) {
    failed_.push_back({job.id, std::move(status), false});
    return;
  }
  const CudaStream& stream = job.side == PackedSide::kSource ? gather_stream_ : scatter_stream_;
  Running running;
  std::vector<Table*> tables;
  CudaEvent event;
  status = prepare(job, &running.slots, &tables);
  if (status.is_ok()) status = take_event(&event);
  if (!status.is_ok()) {
    if (running.slots.size() > 0) buffers_->give_back(std::move(running.slots));
    failed_.push_back({job.id, std::move(status), false});
    return;
  }
  running.done = StreamMark(std::move(event));
  status = launch(job, stream, running.slots, tables);
  running.done.set(stream);
  if (!status.is_ok()) {
    failed_.push_back({job.id, std::move(status), false});
    spent_.push_back({std::move(running.slots), std::move(running.done)});
    return;
  }
  running.job = std::move(job);
  running_.push_back(std::move(running));
}

void BounceDeviceMover::free_spent() {
  std::erase_if(spent_, [this](Spent& spent) {
    Status error;
    if (spent.passed.query(&error, &refused_) != EventProgress::kReached) return false;
    buffers_->give_back(std::move(spent.buffer));
    spare_events_.push_back(spent.passed.take_event());
    return true;
  });
}

void BounceDeviceMover::work(std::vector<Ended>* out) {
  for (Ended& ended : failed_) out->push_back(std::move(ended));
  failed_.clear();
  if (!spent_.empty()) free_spent();
  for (std::size_t i = 0; i < running_.size();) {
    Running& running = running_[i];
    Status error;
    const EventProgress progress = running.done.query(&error, &refused_);
    if (progress == EventProgress::kPending) {
      ++i;
      continue;
    }
    const bool is_reached = progress == EventProgress::kReached;
    out->push_back({running.job.id, error, !is_reached});
    if (is_reached) {
      buffers_->give_back(std::move(running.slots));
      spare_events_.push_back(running.done.take_event());
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
