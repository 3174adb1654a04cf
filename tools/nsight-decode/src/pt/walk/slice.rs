// SPDX-License-Identifier: GPL-2.0-only
//! A slice of trace, and what comes out of it.

use crate::pt::item::{Item, What};
use crate::pt::switches::{Pair, Task};

/// How far a slice is decoded into the next one, for both to be joined.
pub const OVERLAP_ITEMS: usize = 512;
/// As far in packets, where code has fewer calls: each of them tells both the same.
pub const OVERLAP_PACKETS: usize = 4 << 10;

/// Traces of kernel code have some 6 bytes of packets for each item.
pub const BYTES_PER_ITEM: usize = 5;

/// What threads that decode have in common for one CPU (or traced thread).
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
    /// Who ran at its begin, and whether that was between the halves of a switch.
    pub task: Option<Task>,
    pub unsure: bool,
    /// Decoding had failed, and is to be taken up again where the next slice begins.
    pub lost_at_end: bool,
    /// Offset of the first packet that has a branch, and how many items there were before it.
    pub first_branch: usize,
    pub n_before: Option<usize>,
    pub n_insns: u64,
    /// Up to when it was decoded.
    pub until: u64,
    /// How often the times of packets were libipt's from some place on.
    pub n_borrowed: u64,
}

impl Output {
    /// Who runs before an item.
    pub fn task_at(&self, end: usize) -> Option<Task> {
        let last = self.items[..end].iter().rev().find(|i| i.what == What::Task);
        last.map(|i| Task { pid: i.from_sym as i32, tid: i.to_sym as i32 }).or(self.task)
    }

    pub fn last_task(&self) -> Option<Task> {
        self.task_at(self.items.len())
    }
}
