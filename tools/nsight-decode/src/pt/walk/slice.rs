// SPDX-License-Identifier: GPL-2.0-only
//! A slice of trace, and its output.

use crate::packets::index::{Psb, Run};
use crate::pt::item::{Item, What};
use crate::pt::switches::{Cursor, Task};
use crate::spare::Spare;

/// How far a slice is decoded into the next one, so that both can be joined.
pub const OVERLAP_ITEMS: usize = 512;
/// The same limit in packets, for code with few calls: both slices use each of these packets.
pub const OVERLAP_PACKETS: usize = 4 << 10;

/// Traces of kernel code have some 6 bytes of packets for each item.
const BYTES_PER_ITEM: usize = 5;
/// Items that are handed on at a time: a slice may have any number, because a PSB may be far from the next one.
pub const PART: usize = 1 << 14;
/// Room for a part: a block adds few items to a full one.
pub const ROOM: usize = PART + PART / 8;

/// Data of one CPU (or traced thread) that the decoding threads share.
pub struct Track {
    /// The CPU whose switches show the threads.
    pub cpu: Option<i32>,
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

impl Slice {
    /// The PSBs that may be read.
    pub fn psbs<'r>(&self, run: &'r Run) -> &'r [Psb] {
        let begin = run.psbs.partition_point(|p| p.offset < self.begin);
        let end = run.psbs.partition_point(|p| p.offset < self.read_end);
        &run.psbs[begin..end]
    }
}

/// What was decoded: a slice, or a part of it.
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
    /// Decoded up to this time: later items have no earlier one.
    pub until: u64,
    /// Another part of the slice follows. The parts after the first tell neither thread nor first branch.
    pub goes_on: bool,
    /// How often packet times were taken from libipt from some place on.
    pub n_borrowed: u64,
    /// TSC packets that were not used.
    pub n_damaged_times: u64,
}

impl Output {
    /// Of a slice that begins with the cursor's thread.
    pub fn new(slice: &Slice, cursor: &Cursor, spare: &Spare<Item>) -> Self {
        let n = (slice.read_end - slice.begin) / BYTES_PER_ITEM;
        let (items, task) = (spare.get(n.min(ROOM)), Some(cursor.task));
        Self { items, task, unsure: cursor.unsure, ..Self::default() }
    }

    /// The thread that runs before an item.
    pub fn task_at(&self, end: usize) -> Option<Task> {
        let last = self.items[..end].iter().rev().find(|i| i.what == What::Task);
        last.map(|i| Task { pid: i.from_sym as i32, tid: i.to_sym as i32 }).or(self.task)
    }

    pub fn last_task(&self) -> Option<Task> {
        self.task_at(self.items.len())
    }
}
