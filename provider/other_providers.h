// Sessions that Tenon shares with the runtime's own GPU providers.
//
// The runtime keeps one way to make streams for a kind of device, that of the first provider which
// brings one, and uses it for every provider's nodes. CUDAExecutionProvider takes each stream for
// one of its own class and reads its handles behind it: with streams of ours it crashes. Ours are
// plain CUDA streams to us, whoever made them. So in a session where such a provider may have nodes
// we bring no streams, and get that provider's.
#pragma once

namespace tenon::provider {

// What follows on this thread belongs to another session: the runtime creates one from beginning to
// end on one thread.
void begin_session();
// Nodes of the session on this thread go to other providers.
void note_nodes_for_others();
// Whether the session on this thread leaves nodes to others while a GPU provider of the runtime's
// own is loaded in this process.
bool shares_streams_with_stock_provider() noexcept;

}  // namespace tenon::provider
