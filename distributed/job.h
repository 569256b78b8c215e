// Read second: one process's part in a job of several ranks, from its launch to its collectives.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "distributed/communicator.h"
#include "distributed/rank_device.h"
#include "distributed/rendezvous/fingerprint.h"
#include "distributed/rendezvous/launch_place.h"
#include "kernels/planning/collectives.h"

namespace tenon::distributed {

struct JobOptions {
  LaunchOptions launch;
  std::chrono::milliseconds deadline{60'000};  // of every wait
  bool peer_memory = true;                     // GPUs of one host sum what is small by themselves
  Fingerprint facts;                           // that must be the same on all ranks
  bool orders_graphs = false;                  // the caller does what Job::needs_order asks for
  std::string host_backend = "auto";           // without GPUs: auto | gloo | shm
};

// Ranks that meet, compare what they are about to do and are connected: through NCCL where they
// have GPUs, else through memory that they share or through Gloo. A rank that is lost ends what the
// others wait for.
class Job {
 public:
  // `gpu`: this rank's; null: its tensors are in host memory. Comes back when all ranks are in;
  // null where there is one alone. Throws UserError where the ranks differ or nobody says who this
  // one is, and CollectiveError where one does not come.
  static std::shared_ptr<Job> join(const JobOptions& options, const Variables& variables,
                                   std::shared_ptr<RankDevice> gpu = nullptr);
  virtual ~Job() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string engine() const = 0;
  virtual std::shared_ptr<const kernels::Collectives> collectives() const = 0;
  // Whether collectives of one Run must have ended before those of another begin, whatever their
  // streams, and graphs with some before one is called by itself.
  virtual bool needs_order() const { return false; }
  // All ranks call it with the same occasion: the same UserError on all of them where they differ.
  virtual void require_equal(const std::string& occasion, const Fingerprint& mine) const = 0;
  // What this rank is about to do, and all others too under the same occasion. Nobody waits; where
  // they differ collectives end with an error, and so does all that is asked of the job later.
  virtual void announce(const std::string& /*occasion*/, const Fingerprint& /*mine*/) const {}
  // This rank cannot go on, and all hear of it. Comes back with what to say of it: the reason, and
  // how far each rank came.
  virtual std::string give_up(const std::string& reason) const { return reason; }

  // Memory for what collectives exchange, registered by all ranks or by none. All ranks call both
  // with the same occasion and number of bytes, outside of captures; they throw CollectiveError.
  // `layout` tells where they place what they exchange: nothing is registered where that differs.
  virtual bool agree_on_memory(const std::string& /*occasion*/, const std::string& /*layout*/) {
    return false;
  }
  // Of those who agreed. Null: plain memory will do.
  virtual std::shared_ptr<void> make_memory(const std::string& /*occasion*/, size_t /*bytes*/) {
    return nullptr;
  }
  // Why there is none; empty: there is, or nobody asked.
  virtual std::string why_no_memory() const { return ""; }

  // Throws CollectiveError where the job has failed: what a GPU computed since is not to be used,
  // and what was captured there must not run again.
  virtual void require_alive() const {}
  // A Run put work on a GPU's stream. Where it is not done by the deadline the job fails, and with
  // it all that waits. `is_done` may be called by any thread.
  virtual void watch(std::function<bool()> /*is_done*/) {}
};

}  // namespace tenon::distributed
