// SPDX-License-Identifier: GPL-2.0-only
//! The output for one CPU's trace, in order: edges, events, switches of threads.

use crate::edges::{Code, Kind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Edge(Kind),
    /// value: `from`
    Event(Code),
    /// Another thread runs: pid and tid are `from_sym` and `to_sym`.
    Task,
    /// Not an edge: decoding begins here, in the middle of running code.
    Entry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// ns of perf's clock
    pub time: u64,
    pub from: u64,
    pub to: u64,
    pub from_sym: u32,
    pub to_sym: u32,
    pub what: What,
    /// How far the packets of the run had been read.
    pub offset: usize,
}

impl Item {
    /// Whether both report the same occurrence.
    pub fn same(&self, other: &Self) -> bool {
        self.what == other.what && self.from == other.from && self.to == other.to
    }
}
