// SPDX-License-Identifier: GPL-2.0-only
//! A slice of trace, and its output.

use crate::pt::item::{Item, What};
use crate::pt::switches::{Pair, Task};

/// How far a slice is decoded into the next one, so that both can be joined.
pub const OVERLAP_ITEMS: usize = 512;
/// The same limit in packets, for code with few calls: both slices use each of these packets.
pub const OVERLAP_PACKETS: usize = 4 << 10;

/// Traces of kernel code have some 6 bytes of packets for each item.
pub const BYTES_PER_ITEM: usize = 5;

/// Data of one CPU (or traced thread) that the decoding threads share.
pub struct Track {
    pub pairs: Vec<Pair>,
    pub start: Task,
    /// How far packets' times may be off, ns.
    pub slack: u64,
}

/// A slice: from a PSB to another one or the end of its run.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub begin: usize,
    pub end: usize,
    /// Up to where packets may be read to join it with the next slice.
    pub read_end: usize,
    pub time: u64,
}

#[derive(Default)]
pub struct Output {
    pub items: Vec<Item>,
    /// The thread at the begin, and whether the begin was between the halves of a switch.
    pub task: Option<Task>,
    pub unsure: bool,
    /// Decoding had failed, and resumes at the begin of the next slice.
    pub lost_at_end: bool,
    /// Offset of the first packet that has a branch, and the number of items before it.
    pub first_branch: usize,
    pub n_before: Option<usize>,
    pub n_insns: u64,
    /// Decoded up to this time.
    pub until: u64,
    /// How often packet times were taken from libipt from some place on.
    pub n_borrowed: u64,
}

impl Output {
    /// The thread that runs before an item.
    pub fn task_at(&self, end: usize) -> Option<Task> {
        let last = self.items[..end].iter().rev().find(|i| i.what == What::Task);
        last.map(|i| Task { pid: i.from_sym as i32, tid: i.to_sym as i32 }).or(self.task)
    }

    pub fn last_task(&self) -> Option<Task> {
        self.task_at(self.items.len())
    }
}
