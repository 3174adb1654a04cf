// SPDX-License-Identifier: GPL-2.0-only
//! What comes out of the trace of one CPU, in order: edges, events, switches of threads.

use crate::edges::{Code, Kind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Edge(Kind),
    /// value: `from`
    Event(Code),
    /// Another thread runs: pid and tid are `from_sym` and `to_sym`.
    Task,
    /// Not an edge: decoding begins here, in the midst of code that ran on.
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
    /// How far the run's packets had been read.
    pub offset: usize,
}

impl Item {
    /// Whether both say that the same happened.
    pub fn same(&self, other: &Self) -> bool {
        self.what == other.what && self.from == other.from && self.to == other.to
    }
}
