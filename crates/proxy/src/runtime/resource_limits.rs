//! The limits of the whole process: client connections, datagram flows, descriptors and memory, and a permit
//! for each use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::runtime::memory::MemoryBudget;

/// The client connections of all threads, the datagram flows (unlimited here), and the descriptors of
/// connections to clients and members.
pub(crate) struct ResourceLimits {
    open: AtomicUsize,
    flows: AtomicUsize,
    pub(crate) max_open: AtomicUsize,
    descriptors: AtomicUsize,
    /// The budget of the bytes that peers make this process keep.
    pub(crate) memory: Arc<MemoryBudget>,
    /// The maximum number of descriptors for connections: the process's limit less those for health checks,
    /// the admin side and files.
    pub(crate) max_descriptors: AtomicUsize,
}

/// The descriptor of one connection to a member, while this is held.
pub(crate) struct DescriptorPermit(Arc<ResourceLimits>);

/// An admitted client connection.
pub(crate) struct ConnectionPermit(Arc<ResourceLimits>);

/// A datagram flow. Graceful shutdown waits for it as for connections.
pub(crate) struct FlowPermit(Arc<ResourceLimits>);

impl ResourceLimits {
    pub(crate) fn new(max_open: usize, max_descriptors: usize, memory: usize) -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryBudget::new(memory),
            open: AtomicUsize::new(0),
            flows: AtomicUsize::new(0),
            max_open: AtomicUsize::new(max_open),
            descriptors: AtomicUsize::new(0),
            max_descriptors: AtomicUsize::new(max_descriptors),
        })
    }

    /// Counts another descriptor, and returns `true` if one was free.
    fn take_descriptor(&self) -> bool {
        let has_free = self.descriptors.fetch_add(1, Relaxed) < self.max_descriptors.load(Relaxed);
        if !has_free {
            self.descriptors.fetch_sub(1, Relaxed);
        }
        has_free
    }

    /// Takes a descriptor for a connection to a member; `None` if connections use all that they may.
    pub(crate) fn descriptor(self: &Arc<Self>) -> Option<DescriptorPermit> {
        self.take_descriptor().then(|| DescriptorPermit(Arc::clone(self)))
    }

    /// Returns the number of connections and flows.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Relaxed) + self.flows.load(Relaxed)
    }

    /// Admits a connection; `None` if there are too many.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<ConnectionPermit> {
        if self.open.fetch_add(1, Relaxed) >= self.max_open.load(Relaxed) || !self.take_descriptor() {
            self.open.fetch_sub(1, Relaxed);
            return None;
        }
        Some(ConnectionPermit(Arc::clone(self)))
    }

    /// Counts a flow.
    pub(crate) fn admit_flow(self: &Arc<Self>) -> FlowPermit {
        self.flows.fetch_add(1, Relaxed);
        FlowPermit(Arc::clone(self))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
        self.0.descriptors.fetch_sub(1, Relaxed);
    }
}

impl Drop for DescriptorPermit {
    fn drop(&mut self) {
        self.0.descriptors.fetch_sub(1, Relaxed);
    }
}

impl Drop for FlowPermit {
    fn drop(&mut self) {
        self.0.flows.fetch_sub(1, Relaxed);
    }
}
